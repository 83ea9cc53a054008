"""What the page about Spark shows works as it stands there, and so does the example."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import runpy
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rookery.sealed.schema import SCHEMA
from rookery.spark.options import KNOWN
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sql)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_run_in_their_order(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", KEY) as server:
        world = World(server.http)
        for name in ("orders", "big-orders"):
            world.stream(name)
        world.call("POST", "/streams/orders/publish", [{"message": {"id": i, "amount": i * 600}} for i in range(5)])
        spark.createDataFrame([(9, 10.0)], "id long, amount double").createOrReplaceTempView("new_orders")
        names: dict[str, Any] = {"__name__": "spark_page"}
        shown = io.StringIO()
        try:
            for kind, block in BLOCKS:
                block = block.replace("http://localhost:8080", world.url).replace("API_KEY", "ROOKERY_TESTS_TOKEN")
                block = block.replace("/var/lib/checkpoints", str(tmp_path))
                if kind == "sql":
                    for statement in filter(str.strip, block.split(";")):
                        spark.sql(statement).collect()
                    continue
                with contextlib.redirect_stdout(shown):
                    exec(compile(block, "spark.md", "exec", dont_inherit=True), names)
            names["query"].awaitTermination()
        finally:
            spark.sql("DROP TABLE IF EXISTS orders")
            spark.catalog.dropTempView("new_orders")
        written = world.call("GET", "/streams/big-orders/records")["records"]
        assert [record["value"]["id"] for record in written] == [2, 3, 4]
        assert world.lag("orders", "big-orders") == 0
        assert json.loads(world.values("orders")[-1]) == {"id": 9, "amount": 10.0}
    assert shown.getvalue().count("+---") > 3


def test_the_page_names_every_option_and_column() -> None:
    for name in (*KNOWN, *SCHEMA.names):
        assert f"`{name}`" in PAGE or name == "isolation", name


def test_the_example_prints_what_it_promises(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where Spark has been started already."""
    example = ROOT / "examples" / "spark_orders.py"
    said = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    printed = io.StringIO()
    with serving(tmp_path, "--api-key", KEY) as server, contextlib.redirect_stdout(printed):
        monkeypatch.setenv("ROOKERY_URL", f"http://127.0.0.1:{server.http}")
        monkeypatch.setenv("API_KEY", KEY)
        runpy.run_path(str(example), run_name="__main__")
    assert printed.getvalue().strip() == textwrap.dedent(said.partition("Prints:\n\n")[2]).strip()

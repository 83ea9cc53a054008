"""The same file on every engine: the tables are equal, and functions beside the file reach the executors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rookery.pipelines.jobs import PipelineJob
from rookery.pipelines.runner import Runner
from rookery.pipelines.spec import load
from tests.interop.pipeline_world import publish
from tests.interop.server import serving
from tests.interop.spark_cluster import EXECUTORS, connect_server, standalone
from tests.interop.spark_process import Driver, environment, home
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400
FILE = """
broker: {endpoint: "${TEST_URL}", tokenEnv: TEST_KEY}
source: {stream: readings, startingOffsets: earliest, maxOffsetsPerTrigger: 150}
transform:
  - sql: |
      SELECT get_json_object(CAST(value AS STRING), '$.n')::INT AS n, partition, offset
      FROM {input}
  - python: beside:squared
    params: {times: 2}
expect: [{name: not_tenth, check: n % 10 <> 0, on_fail: quarantine}]
quarantine: {table: held}
sink: {table: squares, partitionBy: [rest]}
"""
BESIDE = '''
"""A step with a function that runs on executors, which do not have this file."""

from pyspark.sql.functions import col, udf


def squared(frame, params):
    square = udf(lambda n: n * n * params["times"], "long")
    return frame.withColumn("square", square(col("n"))).withColumn("rest", rest(col("n")))


@udf("int")
def rest(n):
    return n % SEVEN


SEVEN = 7
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        made = World(server.http)
        made.stream("readings", partitions=2)
        publish(made, "readings", [{"n": n} for n in range(ROWS)])
        yield made
        assert server.stop() == 0


@pytest.fixture
def file(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_URL", world.url)
    monkeypatch.setenv("TEST_KEY", KEY)
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "squares.yaml").write_text(FILE)
    return tmp_path / "squares.yaml"


def check(root: Path, squares: str = "squares", quarantine: str = "held", pipeline: str = "squares") -> None:
    """What comes out, worked out by hand."""
    from deltalake import DeltaTable

    table: list[Any] = DeltaTable(str(root / "lake" / squares)).to_pyarrow_table().to_pylist()
    found = sorted((row["n"], row["square"], row["rest"]) for row in table)
    assert found == [(n, n * n * 2, n % 7) for n in range(ROWS) if n % 10]
    held: list[Any] = DeltaTable(str(root / "lake" / quarantine)).to_pyarrow_table().to_pylist()
    assert sorted(json.loads(row["row"])["n"] for row in held) == list(range(0, ROWS, 10))
    assert {(row["pipeline"], *row["expectations"]) for row in held} == {(pipeline, "not_tenth")}
    assert len({(row["partition"], row["offset"]) for row in table}) == len(table)


def test_local(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    status = Runner(PipelineJob(load(file)), tmp_path / "root", spark, once=True).run()
    assert status.state == "finished", status.error
    assert status.progress.batch == 2
    check(tmp_path / "root")


def test_a_cluster_of_processes(cluster: Driver, file: Path, tmp_path: Path, world: World) -> None:
    done = cluster.run(
        do="pipeline", file=str(file), root=str(tmp_path / "root"), environ={"TEST_URL": world.url, "TEST_KEY": KEY}
    )
    assert done["state"] == "finished", done["failure"]
    check(tmp_path / "root")


@pytest.mark.long
def test_several_on_one_server_of_connect(file: Path, tmp_path: Path, need_java: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    names = ("one", "two", "three")
    for name in names:
        (folder / f"{name}.yaml").write_text(
            FILE.replace("table: squares", f"table: squares_{name}").replace("table: held", f"table: held_{name}")
        )
    (folder / "beside.py").write_text(BESIDE)
    with connect_server(tmp_path) as master:
        command = [sys.executable, "-m", "rookery", "pipelines", "up", str(folder), "--once"]
        command += ["--root", str(tmp_path / "my root"), "--master", master]
        ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.stdout[-3000:], ran.stderr[-3000:])
    assert "restarting" not in ran.stdout
    for name in names:
        check(tmp_path / "my root", f"squares_{name}", f"held_{name}", name)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "local-cluster", "standalone", "connect"])
def test_by_the_command_line(engine: str, file: Path, tmp_path: Path, need_java: str) -> None:
    environ = environment()
    with ExitStack() as stack:
        if engine == "standalone":
            master = stack.enter_context(standalone(tmp_path))
        elif engine == "connect":
            master = stack.enter_context(connect_server(tmp_path))
        else:
            master = {"local": "local[2]", "local-cluster": "local-cluster[2,1,1024]"}[engine]
        if engine == "local-cluster":
            environ["SPARK_HOME"] = str(home(tmp_path))
        conf = {**EXECUTORS, "spark.driver.memory": "700m"} if engine != "connect" else {}
        text = "".join(f"    {name}: '{value}'\n" for name, value in conf.items())
        if conf:
            file.write_text(f"{FILE}engine:\n  conf:\n{text}")
        command = [sys.executable, "-m", "rookery", "pipelines", "run", str(file), "--once", "--json"]
        command += ["--root", str(tmp_path / "my root"), "--master", master]
        ran = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (ran.stdout[-3000:], ran.stderr[-3000:])
    assert json.loads(ran.stdout.splitlines()[-1])["state"] == "finished"
    check(tmp_path / "my root")

"""The blocks of the page about streams run, in order, in one directory, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "streams.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
SPARK = "SparkSession"


def run_blocks(blocks: list[str]) -> None:
    names: dict[str, Any] = {"__name__": "streams_page"}
    for number, block in enumerate(blocks):
        expected = re.findall(r"^# > ?(.*)$", block, re.MULTILINE)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec", dont_inherit=True), names)
        assert printed.getvalue().splitlines() == expected, block


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    run_blocks([block for block in BLOCKS if SPARK not in block])


def test_the_page_names_every_setting_and_column() -> None:
    from rookery.core.stream import StreamSettings
    from rookery.sealed.schema import SCHEMA, SEALED_SCHEMA

    said = PAGE.read_text(encoding="utf-8")
    for name in (*StreamSettings().as_dict(), *SCHEMA.names, *SEALED_SCHEMA.names):
        assert f"`{name}`" in said, name


def test_there_is_one_block_for_spark() -> None:
    assert sum(SPARK in block for block in BLOCKS) == 1

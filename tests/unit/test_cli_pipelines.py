"""`rookery pipelines`, as far as it needs neither Spark nor a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rookery
from rookery.cli import app
from rookery.cli.pipelines import news
from rookery.lake.pipelines import LastError, Place, Progress, Status

GOOD = "source: {stream: a}\nsink: {stream: b}\n"


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["pipelines", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_file_is_valid_and_nothing_is_overwritten(here: Path) -> None:
    assert run("new", "orders-eu", "--stream", "orders", "--dir", "files")[0] == 0
    text = (here / "files" / "orders-eu.yaml").read_text()
    code, out, _ = run("validate", "files")
    assert (code, out) == (0, "files/orders-eu.yaml: orders-eu is valid\n")
    code, _, err = run("new", "orders-eu", "--dir", "files")
    assert (code, "is there already" in err) == (5, True)
    assert (here / "files" / "orders-eu.yaml").read_text() == text


def test_mistakes_are_told_with_their_lines(here: Path) -> None:
    (here / "good.yaml").write_text(GOOD)
    (here / "bad.yaml").write_text("source: {stream: a}\nsinc: {stream: b}\n")
    (here / "lost.yaml").write_text(
        "source: {stream: a}\ntransform:\n  - python: no_such_module:f\nsink: {stream: b}\n"
    )
    code, out, _ = run("validate", "good.yaml", "bad.yaml", "lost.yaml")
    assert code == 2
    assert "good.yaml: good is valid" in out
    assert "bad.yaml:2: sinc: there is no such entry; did you mean sink?" in out
    assert "lost.yaml:3: No module named 'no_such_module': put no_such_module.py beside the file, or install it" in out
    code, out, _ = run("validate", "--json", "bad.yaml")
    assert [row["name"] for row in json.loads(out)] == [None]


def test_status_shows_the_last_error(here: Path) -> None:
    assert run("status")[0] == 0
    place = Place(here / "rookery-pipelines", "p")
    place.tell(Status("p", "failed", progress=Progress(batch=3, lag=9), error=LastError("no stream 'orders'", 1)))
    code, out, _ = run("status")
    assert code == 0
    assert "no stream 'orders'" in out
    shown = json.loads(run("status", "p", "--json")[1])
    assert (shown["state"], shown["progress"]["lag"]) == ("failed", 9)
    assert run("status", "nobody")[0] == 3
    assert json.loads(run("status", "--json", "--root", "elsewhere")[1]) == []


def test_stop_and_reset_of_what_does_not_run(here: Path) -> None:
    place = Place(here / "rookery-pipelines", "p")
    place.tell(Status("p", "finished"))
    place.claim("f", "p.yaml")
    assert run("stop", "p")[:2] == (0, "p is not running\n")
    assert not place.stop_wanted
    table = place.table("orders")
    table.mkdir(parents=True)
    assert run("reset", "p", "--drop-table", "orders", "--yes")[0] == 0
    assert place.identity() is None
    assert not table.exists()
    assert run("reset", "nobody", "--yes")[0] == 3


def test_a_line_for_each_batch() -> None:
    found = Progress(batch=12, rows=5_000, rows_per_sec=6157.6, batch_ms=812, lag=40, total_rows=60_000)
    assert news(Status("p", "running", progress=found)).endswith(
        "p  running  batch 12: 5,000 rows in 812 ms, 6,158/s, lag 40"
    )
    assert news(Status("p", "finished", progress=found)).endswith("p  finished  60,000 rows in all")


def test_the_broker_and_the_command_line_never_import_spark() -> None:
    program = (
        "import sys, rookery.server.process, rookery.cli.pipelines\n"
        "import rookery.pipelines.spec, rookery.pipelines.supervisor\n"
        "print([name for name in ('pyspark', 'deltalake', 'pandas') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert said == "[]\n"

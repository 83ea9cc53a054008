"""`make demo` ends well with filled tables; with tables that lack something it fails, and says what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rookery
from tests.interop.spark_process import CLASSES

DEMO = Path(__file__).resolve().parents[2] / "tools" / "demo.py"
PATIENCE_SEC = 900


@pytest.mark.parametrize("seconds", [8, pytest.param(30, marks=pytest.mark.long)])
def test_the_demo_ends_with_filled_tables(tmp_path: Path, need_program: Callable[[str], str], seconds: int) -> None:
    need_program("java")
    CLASSES.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").symlink_to(CLASSES)
    said = demo(tmp_path, "--seconds", str(seconds))
    assert said.returncode == 0, said.stdout[-4_000:] + said.stderr[-4_000:]
    for text in ("the tables are complete", "$ rookery insights show dlq_summary", "ValueError: could not convert"):
        assert text in said.stdout
    (page,) = tmp_path.glob("*/insights.html")
    shown = page.read_text()
    assert "Nothing yet." not in shown
    assert "Why messages died" in shown


def test_a_demo_without_tables_fails_and_says_what_is_missing(tmp_path: Path) -> None:
    # no pipelines come up without Java
    said = demo(tmp_path, "--seconds", "1", "--patience", "1", JAVA_HOME=str(tmp_path / "nothing"))
    assert said.returncode == 1, said.stdout + said.stderr
    assert "the demo has failed" in said.stderr
    assert "queue_stats is empty" in said.stderr


def demo(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it; whatever it started ends with it, also when it hangs."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1]), **environ}
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--folder", str(folder), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE_SEC)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err)

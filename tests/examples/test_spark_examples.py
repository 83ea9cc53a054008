"""The example of Spark that starts everything itself prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rookery
from tests.examples.test_examples import ROOT, promised

EXAMPLES = [ROOT / "examples" / "spark_exactly_once.py"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(example: Path, tmp_path: Path, need_program: Callable[[str], str]) -> None:
    need_program("java")
    environment = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=400,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip() == promised(example), run.stderr

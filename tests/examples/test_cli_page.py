"""Every block of the page about the command line runs, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import rookery
from tests.interop.server import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_blocks_of_the_page_print_what_it_says(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    expected = [line.removeprefix("# > ") for line in lines if line.startswith("# > ")]
    script = "\n".join(line for line in lines if not line.startswith("# > "))
    program = tmp_path / "bin" / "rookery"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rookery "$@"\n')
    program.chmod(0o755)
    with serving(tmp_path) as server:
        environ = {"PATH": f"{program.parent}:{os.environ['PATH']}", "APP_PORT": str(server.http)}
        environ |= {"PYTHONPATH": str(Path(rookery.__file__).parents[1]), "HOME": str(tmp_path)}
        ran = subprocess.run(
            [need_program("bash"), "-euc", script],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(expected) > 40
    for line, promise in zip(ran.stdout.splitlines(), expected, strict=True):
        pattern = re.sub(r"(\\ )+", r"\\s+", re.escape(promise)).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, line), (promise, line)

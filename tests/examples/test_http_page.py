"""Every block of the pages about HTTP runs, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.server import serving

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"http.md": 15, "push.md": 2, "webhooks.md": 2, "api.md": 30}
"""And how many lines are promised at least."""


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_page_print_what_it_says(
    page: str, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    need_program("curl")
    bash = need_program("bash")
    script = ["set -eu"]
    expected = []
    for block in blocks:
        for line in block.splitlines():
            if line.startswith("# > "):
                expected.append(line.removeprefix("# > "))
            else:
                # an answer has no line end of its own
                script.append(f"{line}; echo" if _answers(line) else line)
    with serving(tmp_path, "--api-key", "supersecretkey") as server:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "API_KEY": "supersecretkey"}
        environment["BASE"] = f"http://127.0.0.1:{server.http}"
        run = subprocess.run(
            [bash, "-c", "\n".join(script)], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert run.returncode == 0, run.stderr
    printed = [line for line in run.stdout.splitlines() if line]
    assert len(expected) > PAGES[page]
    for line, promise in zip(printed, expected, strict=True):
        assert re.fullmatch(re.escape(promise).replace(r"\.\.\.", ".*"), line), (promise, line)


def _answers(line: str) -> bool:
    return not line.endswith("\\") and ("curl" in line or line.startswith("  ")) and "=$(" not in line

"""The blocks of the page about the client run, in order, against one server, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.interop.server import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
KEY = "key-for-the-page-of-the-client"


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_API_KEY", KEY)
    assert len(BLOCKS) >= 5
    with serving(tmp_path, "--api-key", KEY) as server:
        for number, block in enumerate(BLOCKS):
            expected = re.findall(r"^ *# > ?(.*)$", block, re.MULTILINE)
            printed = io.StringIO()
            names: dict[str, Any] = {"__name__": f"block_{number}"}
            here = block.replace("http://localhost:8080", f"http://127.0.0.1:{server.http}")
            with contextlib.redirect_stdout(printed):
                exec(compile(here, f"{PAGE.name}, block {number}", "exec", dont_inherit=True), names)
            assert printed.getvalue().splitlines() == expected, block

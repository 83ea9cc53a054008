"""docs/server.md lists the settings as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rookery.config.settings import SETTINGS

ROOT = Path(__file__).parents[2]


@pytest.mark.row("S3-10")
def test_the_page_of_the_server_lists_every_setting_as_it_is() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_settings.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run tools/make_settings.py"
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    for setting in SETTINGS:
        assert f"| `{setting.variable}` | `{setting.flag}` |" in text

"""Writes the table of settings in docs/server.md from `rookery.config.settings`; with --check, only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from rookery.config.settings import SETTINGS, Setting

PAGE = Path(__file__).parents[1] / "docs" / "server.md"
BEGIN = "<!-- settings: written by tools/make_settings.py -->\n"
END = "<!-- end of settings -->\n"


def row(setting: Setting) -> str:
    default = setting.show(setting.default)
    wants = setting.kind.expects.replace("|", "\\|")
    key = f"`{setting.key}`" if setting.key else ""
    shown = f"`{default}`" if default else ""
    return f"| `{setting.variable}` | `{setting.flag}` | {key} | {shown} | {setting.help} | {wants} |\n"


def table() -> str:
    head = "| variable | flag | TOML | default | what it is for | wants |\n|---|---|---|---|---|---|\n"
    return head + "".join(row(setting) for setting in SETTINGS)


def page(text: str) -> str:
    """The page with the table as it should be."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "the page has lost the mark where the table begins"
    assert end, "the page has lost the mark where the table ends"
    return before + BEGIN + table() + END + after


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" in sys.argv:
        return 0 if new == old else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The documented table of differences, and the scenarios that show them, name the same rows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from tests.interop.oracle import scenario

PAGE = Path(__file__).parents[3] / "docs" / "amqp.md"


def test_every_difference_is_documented_and_shown() -> None:
    for module in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"tests.interop.oracle.{module.stem}")
    section = PAGE.read_text().split("## Differences from RabbitMQ\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(scenario.DIFFERENCES)

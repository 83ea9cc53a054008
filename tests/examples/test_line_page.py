"""Every example on the page about the line protocol goes as the page says."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from rookery.wire.line.commands import COMMANDS, CONSUME_READERS
from tests.interop.server import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "line-protocol.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```line\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.row("S4-37")
def test_the_conversations_of_the_page_go_as_it_says(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 5
    with serving(tmp_path) as server:
        for block in BLOCKS:
            with socket.create_connection(("127.0.0.1", server.line), 30) as sock, sock.makefile("rwb", 0) as lines:
                for line in block.splitlines():
                    if line.startswith("> "):
                        lines.write(line.removeprefix("> ").encode() + b"\n")
                    else:
                        assert lines.readline().decode() == f"{line}\n"


def test_the_page_names_every_command_and_option() -> None:
    for verb in COMMANDS:
        assert re.search(rf"`{verb}\b", TEXT), verb
    for option in CONSUME_READERS:
        assert f"`{option}=" in TEXT, option

"""Writes docs/decoders.md from `decoders.py`: `python -m tests.fuzz.page`; with --check, only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz.decoders import AMQP, FILES, HTTP, TEXTS, TRUSTED, WIRE, Decoder

PAGE = Path(__file__).parents[2] / "docs" / "decoders.md"

INTRODUCTION = """\
# Decoders of outside bytes

Every place where Rookery decodes bytes that somebody else wrote, and what limits it. Malformed input, and input beyond
a limit, gets the error in the last column; nothing else may escape a decoder. This page is written by
`python -m tests.fuzz.page` from `tests/fuzz/decoders.py`, and a test compares them.

Each decoder is fuzzed:

```sh
make fuzz MINUTES=5                      # all of them, five minutes each
make fuzz MINUTES=5 DECODER=amqp-table   # one
```

Decoders of our own are fuzzed by [atheris](https://github.com/google/atheris), guided by coverage. Those of native
libraries are fuzzed by mutation of well-formed input, in a process with limits on memory and CPU time: a crash, a hang
and growing memory are findings too. Every run of the tests replays `tests/fuzz/corpus` and tries some hundred
mutations of each decoder, always the same ones.

A decoder that is missing here fails `tests/fuzz/test_decoders.py`, which looks in all modules for calls that decode.
"""

SECTIONS = (
    ("AMQP", AMQP),
    ("WebSocket, PROXY protocol, line protocol", WIRE),
    ("HTTP", HTTP),
    ("Texts, messages and definitions", TEXTS),
    ("Rows and files", FILES),
)


def page() -> str:
    text = INTRODUCTION
    for title, decoders in SECTIONS:
        text += f"\n## {title}\n\n| decoder | what | from | size | depth | count | expansion | refused with |\n"
        text += "|---|---|---|---|---|---|---|---|\n" + "".join(_row(decoder) for decoder in decoders)
    text += "\n## Decoded, but not from outside\n\n| module | whose bytes |\n|---|---|\n"
    return text + "".join(f"| `{module}` | {why} |\n" for module, why in TRUSTED.items())


def _row(decoder: Decoder) -> str:
    library = f" ({decoder.library})" if decoder.library else ""
    cells = (decoder.what + library, decoder.sender, decoder.size, decoder.depth, decoder.count, decoder.expansion)
    return f"| `{decoder.name}` | {' | '.join(cells)} | {decoder.refusal} |\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")

"""Patterns of policies and rights: regular expressions from outside."""

from __future__ import annotations

import random
import re
import warnings

from rookery.core.patterns import Pattern, PatternError
from tests.fuzz.target import Target

NAME_MAX = 255
STEPS_MAX = 2_000_000
COMPARED_MAX = 10
"""The longest name that is searched by `re` too, whose time may grow with its power."""


class Patterns(Target):
    """A pattern and, on the next line, a name: refused, or `re.search` finds the same in it."""

    tokens = (
        b"^(a+)+$",
        b"(?!amq\\.)",
        b"(?<=a)",
        b"(?:",
        b"(?P<n>",
        b"(?i)",
        b"[^a-z]",
        b"[\\w-]",
        b"{2,5}",
        b"{,9}",
        b"*?",
        b"\\b",
        b"\\d",
        b"\\Z",
        b"\\x41",
        b"\\N{BULLET}",
        b".*",
        b"|",
        b"\n",
        "ſßİ".encode(),
    )

    def make(self, rng: random.Random) -> bytes:
        parts = [rng.choice((b"a", b"b", b".", b"-", *self.tokens[:18])) for _ in range(rng.randrange(1, 6))]
        if rng.random() < 0.4:
            parts = [b"(", *parts, b")", rng.choice((b"", b"*", b"+", b"?"))]
        name = bytes(rng.choice(b"ab.-A1 ") for _ in range(rng.randrange(12)))
        return b"".join(parts) + b"\n" + name

    def check(self, data: bytes) -> None:
        text, _, name = data.decode("utf-8", "replace").partition("\n")
        try:
            pattern = Pattern(text)
        except PatternError:
            return
        found = pattern.search(name[:NAME_MAX])
        assert pattern.steps <= STEPS_MAX, pattern.steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                known = re.compile(text)
            except re.error:
                # syntax that is newer than this Python, such as \z
                return
        # what \B means in an empty text has changed in Python 3.14
        if 0 < len(name) <= COMPARED_MAX and len(text) <= 40:
            assert found == (known.search(name) is not None)

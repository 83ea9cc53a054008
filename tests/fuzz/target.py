"""What is fuzzed: a decoder with what must hold of it."""

from __future__ import annotations

import random
from collections.abc import Iterable


class Target:
    """`check` feeds bytes to a decoder. It returns when the decoder took or refused them as documented, and raises
    when anything else happened. `make` gives well-formed input, from which mutations start.
    """

    tokens: tuple[bytes, ...] = ()

    def check(self, data: bytes) -> None:
        raise NotImplementedError

    def make(self, rng: random.Random) -> bytes:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the target holds open."""


def pieces(data: bytes, step: int) -> Iterable[bytes]:
    """The data in parts of `step` bytes."""
    return (data[at : at + step] for at in range(0, len(data), step))


def words(rng: random.Random, most: int = 12) -> str:
    """A short text of letters, with signs and other alphabets now and then."""
    alphabet = rng.choice(("abcxyz", "abc019-_.#*", 'aé€😀\x00 "\\%'))
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(most + 1)))

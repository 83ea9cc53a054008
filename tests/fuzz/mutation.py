"""Changes to bytes that break decoders: cut, copied, spliced, numbers at their edges. One seed gives one series."""

from __future__ import annotations

import random
from collections.abc import Sequence

_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63)
_DEPTHS = (8, 31, 32, 33, 64, 300, 990, 1_010, 5_000)


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes], tokens: Sequence[bytes], max_len: int) -> bytes:
    """One to four changes to `data`, never longer than `max_len`."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        _change(rng, found, others, tokens)
    return bytes(found[:max_len])


def _change(rng: random.Random, data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes]) -> None:
    kind = rng.randrange(11)
    at = rng.randrange(len(data) + 1)
    size = min(len(data) - at, rng.choice((1, 1, 2, 4, 8, 16, 64, 1_000)))
    if kind == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = rng.randrange(256)
    elif kind in (2, 3):
        _put_number(rng, data, at)
    elif kind == 4:
        del data[at : at + size]
    elif kind == 5:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 32)))
    elif kind == 6:
        to = rng.randrange(len(data) + 1)
        data[to:to] = data[at : at + size]
    elif kind == 7 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        data[at:] = other[start:]
    elif kind == 8 and tokens:
        token = rng.choice(tokens)
        data[at : at + rng.choice((0, 0, len(token)))] = token
    elif kind == 9:
        del data[at:]
    elif kind == 10 and size:
        data[at:at] = bytes(data[at : at + min(size, 8)]) * rng.choice(_DEPTHS)


def _put_number(rng: random.Random, data: bytearray, at: int) -> None:
    """A number at the edge of its range, or near the one that stands there, in 1, 2, 4 or 8 bytes of either order."""
    width = rng.choice((1, 2, 4, 4, 8))
    order = rng.choice(("big", "little"))
    if rng.random() < 0.5 and at + width <= len(data):
        number = int.from_bytes(data[at : at + width], order) + rng.choice((-8, -2, -1, 1, 2, 8))  # type: ignore[arg-type]
    elif rng.random() < 0.3:
        number = len(data) + rng.randrange(-8, 9)
    else:
        number = rng.choice(_EDGES)
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]

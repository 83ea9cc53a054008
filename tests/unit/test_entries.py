"""The line of one priority, against a sorted list."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rookery.core.entries import GONE, Entry, Level
from rookery.format.model import Message, Route


def entry(seq: int) -> Entry:
    return Entry(Message(Route("", ""), b"", b"", seq, 0, 0, 0), seq, 0)


@given(st.lists(st.integers(0, 3), max_size=300), st.randoms(use_true_random=False))
def test_a_level_against_a_sorted_list(steps: list[int], dice: random.Random) -> None:
    """Add, pop, return and remove out of turn, in any order."""
    level = Level(0)
    model: list[Entry] = []
    out: list[Entry] = []
    seq = 0
    for step in steps:
        if step == 0 or not model:
            seq += 1
            model.append(entry(seq))
            level.add(model[-1])
        elif step == 1:
            popped = level.pop()
            assert popped is model.pop(0)
            out.append(popped)
        elif step == 2 and out:
            back = out.pop(dice.randrange(len(out)))
            model.append(back)
            model.sort(key=lambda e: e.seq)
            level.add(back)
        else:
            gone = model.pop(dice.randrange(len(model)))
            gone.state = GONE
            level.forget_one()
        assert level.entries() == model
    while model:
        assert level.pop() is model.pop(0)
    assert level.pop() is None


def test_a_level_gives_back_the_room_of_what_left() -> None:
    level = Level(0)
    entries = [entry(seq) for seq in range(1, 10_001)]
    for one in entries:
        level.add(one)
    for one in entries[:-10]:
        one.state = GONE
        level.forget_one()
    assert len(level.line) < 500
    assert level.entries() == entries[-10:]
    level = Level(0)
    for one in entries:
        one.state = 0
        level.add(one)
    for one in entries[:-10]:
        assert level.pop() is one
    assert len(level.line) < 5_000

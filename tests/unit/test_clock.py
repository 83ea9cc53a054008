"""Clocks: the machine's, and the one that moves when told."""

from __future__ import annotations

import time

import pytest

from rookery.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.wall_ms() <= time.time_ns() // 1_000_000
    before = time.monotonic_ns() // 1_000_000
    assert before <= clock.mono_ms() <= time.monotonic_ns() // 1_000_000


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(wall_ms=5_000, mono_ms=70)
    assert (clock.wall_ms(), clock.mono_ms()) == (5_000, 70)
    assert (clock.wall_ms(), clock.mono_ms()) == (5_000, 70)


def test_advance_moves_both_clocks() -> None:
    clock = ManualClock(wall_ms=5_000, mono_ms=70)
    clock.advance(30)
    clock.advance(0)
    assert (clock.wall_ms(), clock.mono_ms()) == (5_030, 100)


@pytest.mark.parametrize("ms", [-50, 50])
def test_jump_moves_the_wall_clock_alone(ms: int) -> None:
    clock = ManualClock(wall_ms=5_000, mono_ms=70)
    clock.jump_wall(ms)
    assert (clock.wall_ms(), clock.mono_ms()) == (5_000 + ms, 70)


def test_time_does_not_run_backwards() -> None:
    clock = ManualClock(wall_ms=5_000, mono_ms=70)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert (clock.wall_ms(), clock.mono_ms()) == (5_000, 70)

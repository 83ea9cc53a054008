"""Where time comes from. The core never asks for it: edges read a clock once a turn and pass both times in.

`wall_ms` dates delays, expiry and history and may jump; `mono_ms` dates leases and heartbeats and never goes back.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int: ...

    def mono_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that moves when told: for tests and for the simulation."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, mono_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._mono_ms = mono_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def mono_ms(self) -> int:
        return self._mono_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        if ms < 0:
            raise ValueError("time does not run backwards; jump_wall() moves the wall clock")
        self._wall_ms += ms
        self._mono_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Move only the wall clock, forwards or (negative) backwards, as an operator or NTP may."""
        self._wall_ms += ms

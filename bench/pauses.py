"""How long the turns of a loop are: a task that does nothing but yield, beside the work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.harness import table

PAUSE_MAX_MS = 20
PAUSES_MS = (1, 2, 5, 10, 20, 50, 100)
EXPLAINED = """The time between the turns of a task that does nothing but yield. Wall time has the machine's other
    processes in it, and waiting for the interpreter's lock; CPU is what the loop's thread itself did."""


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """Watch the running loop; what was found is there at the end."""
    found: dict[str, Any] = {}
    turns: list[float] = []
    worked: list[float] = []

    async def tick() -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            turns.append((time.perf_counter() - wall) * 1000)
            worked.append((time.thread_time() - cpu) * 1000)

    ticker = asyncio.create_task(tick())
    try:
        yield found
    finally:
        ticker.cancel()
    found["turns"] = len(turns)
    for name, values in (("wall", turns), ("cpu", worked)):
        found[name] = [sum(1 for value in values if value > limit) for limit in PAUSES_MS]
        found[f"{name}_max_ms"] = max(values)


def show_pauses(found: dict[str, Any]) -> None:
    rows = [
        [f"> {limit} ms", f"{wall:,}", f"{cpu:,}"]
        for limit, wall, cpu in zip(PAUSES_MS, found["wall"], found["cpu"], strict=True)
    ]
    rows.append(
        [f"longest (aim ≤ {PAUSE_MAX_MS} ms)", f"{found['wall_max_ms']:.1f} ms", f"{found['cpu_max_ms']:.1f} ms"]
    )
    table([f"of {found['turns']:,} turns", "wall", "CPU"], rows)

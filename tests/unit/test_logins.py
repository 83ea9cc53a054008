"""Passwords to verify: bounded, fair between addresses, each credential once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rookery.server import logins
from rookery.server.logins import Logins


class Turns:
    def run(self, work: Any) -> None:
        work()


class Check:
    """A password whose verification waits until it is let go."""

    def __init__(self, name: str, ran: list[str], gate: threading.Event, error: Exception | None = None) -> None:
        self.key = name
        self._ran = ran
        self._gate = gate
        self._error = error

    def run(self) -> bool:
        self._gate.wait(30)
        self._ran.append(self.key)
        if self._error is not None:
            raise self._error
        return True


class World:
    def __init__(self) -> None:
        self.logins = Logins(Turns())  # type: ignore[arg-type]
        self.gate = threading.Event()
        self.ran: list[str] = []
        self.outcomes: dict[str, list[str]] = {}

    def verify(self, host: str, name: str, error: Exception | None = None) -> None:
        check: Any = Check(name, self.ran, self.gate, error)
        self.logins.verify(host, name, check, self.outcomes.setdefault(name, []).append)

    async def finish(self) -> None:
        self.gate.set()
        while self.logins.pending or self.logins._running:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.logins.close()


async def test_one_address_delays_another_by_no_more_than_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "THREADS", 1)
    world = World()
    for number in range(60):
        world.verify("192.0.2.1", f"flood {number}")
    world.verify("192.0.2.2", "ada")
    world.verify("192.0.2.3", "bob")
    await world.finish()
    # one of the flood runs, and then addresses take turns
    assert {"ada", "bob"} <= set(world.ran[:4])
    assert len(world.ran) == 62


async def test_an_address_has_a_share_and_the_fullest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "PENDING_MAX", 70)
    world = World()
    for number in range(100):
        world.verify("192.0.2.1", f"flood {number}")
    busy = [name for name, outcomes in world.outcomes.items() if outcomes == ["busy"]]
    assert len(busy) == 100 - logins.ADDRESS_PENDING_MAX - logins.THREADS
    for number in range(20):
        world.verify(f"198.51.100.{number}", f"other {number}")
    assert world.logins.pending == 70
    await world.finish()
    assert [world.outcomes[f"other {number}"] for number in range(20)] == [["checked"]] * 20
    assert all(len(outcomes) == 1 for outcomes in world.outcomes.values())
    assert world.logins.refused == sum(outcomes == ["busy"] for outcomes in world.outcomes.values())


async def test_the_same_credential_is_verified_once() -> None:
    world = World()
    for _ in range(1_000):
        world.verify("192.0.2.1", "ada")
    assert world.logins.pending == 1
    await world.finish()
    assert world.ran == ["ada"]
    assert world.outcomes["ada"] == ["checked"] * 1_000


async def test_a_check_that_cannot_be_made_is_answered() -> None:
    world = World()
    world.verify("192.0.2.1", "ada", MemoryError())
    await world.finish()
    assert world.outcomes["ada"] == ["failed"]

"""Turns in the event loop: the shard is flushed once a turn, and what waits for the journal goes out in the turn that
learns of its answer.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookery.clock import SystemClock
from rookery.core import streams
from rookery.core.feeds import Following
from rookery.core.policy import Policy
from rookery.engine.engine import Engine, ServerEngine
from rookery.server.attached import _Locking
from rookery.server.logs import make_log
from rookery.server.turns import Turns
from rookery.store.file import FileMedium
from rookery.store.medium import Medium
from rookery.wire.turn import Outlet, Peer, Turn
from tests.contract.faulty import Fault, FaultyMedium
from tests.wire.amqp_peer import Transport

PATIENCE_S = 30
LOG = make_log("critical", io.StringIO())


class CountingEngine(ServerEngine):
    """Counts its turns."""

    turns = 0

    def end(self) -> None:
        self.turns += 1
        super().end()


class Flushes(Following):
    """Follows a stream; every flush of the shard has it look for records."""

    def __init__(self, engine: CountingEngine) -> None:
        self.count = 0
        tenant = engine.shard.create_tenant("watched")
        super().__init__(streams.declare(tenant, "log", {})[0], {0: 0})

    def fill(self) -> None:
        self.count += 1

    def has_more(self) -> bool:
        return False


class Publisher(Peer):
    """A peer that is told `confirmed` once what it published is durable."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self.transport = Transport()
        self.out = Outlet(turn, self)
        self.out.transport = self.transport
        self.batch: int | None = None

    def publish(self) -> None:
        shard = self.turn.shard
        shard.publish(shard.tenant("default"), "", "q", b"\x00\x00", b"x")
        self.batch = int(shard.log.horizon())
        self.turn.expect(self)

    def finish(self) -> bool:
        if self.batch is None:
            return False
        if self.turn.shard.log.durable < self.batch:
            return True
        self.batch = None
        self.out.w.write(b"confirmed")
        self.out.touch()
        return False


def opened(engine: Any, medium: Medium, where: Path) -> None:
    engine.open_journal(medium, where, sync="always", page_bytes=0, compression="none", compress_min_bytes=0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_confirm_goes_out_in_the_turn_that_learns_of_its_durability(tmp_path: Path) -> None:
    engine, medium = CountingEngine(SystemClock(), b"secret"), FaultyMedium()
    await engine.start()
    opened(engine, medium, tmp_path)
    with engine:
        engine.shard.create_tenant("default").declare_queue("q", {}, "embedded")
    await engine.lasting()
    turns = Turns(engine, LOG)
    publisher = Publisher(turns.turn)
    # how often the loop has gone round, and when something was written
    rounds = 0
    written: list[tuple[int, int]] = []

    def go_round() -> None:
        nonlocal rounds
        rounds += 1
        loop.call_soon(go_round)

    loop = asyncio.get_running_loop()
    loop.call_soon(go_round)
    publisher.transport.on_write = lambda: written.append((rounds, engine.turns))
    for _ in range(3):
        medium.script(Fault.SLOW)
        turns.run(publisher.publish)
        await asyncio.sleep(0.01)
        assert medium.held
        assert written == []
        before = (rounds, engine.turns)
        # the medium answers here, in the loop, as one on a network would
        medium.release()
        await until(lambda: written)
        assert written == [(before[0] + 1, before[1])], "written in another turn, or another round of the loop"
        assert publisher.transport.sent == [b"confirmed"]
        assert engine.turns == before[1] + 1
        written.clear()
        publisher.transport.sent.clear()
    turns.stop()
    await engine.stop()


async def test_a_confirm_of_a_broker_with_threads_comes_with_the_next_turn_of_the_loop(tmp_path: Path) -> None:
    """There the journal answers in a thread, which may not write to sockets."""
    engine = Engine(SystemClock(), b"secret")
    opened(engine, FileMedium(tmp_path, segment_bytes=0, reserve_bytes=0), tmp_path)
    with engine:
        engine.shard.create_tenant("default").declare_queue("q", {}, "embedded")
    turns = Turns(_Locking(engine), LOG)
    publisher = Publisher(turns.turn)
    for _ in range(3):
        turns.run(publisher.publish)
        await until(lambda: publisher.transport.sent)
        assert publisher.transport.sent == [b"confirmed"]
        publisher.transport.sent.clear()
    turns.stop()
    await asyncio.get_running_loop().run_in_executor(None, engine.stop)


@pytest.mark.parametrize("served", [False, True], ids=["embedded", "served"])
async def test_the_shard_is_flushed_once_a_turn(tmp_path: Path, served: bool) -> None:
    engine = CountingEngine(SystemClock(), b"secret")
    await engine.start()
    opened(engine, FaultyMedium(), tmp_path)
    shard = engine.shard
    with engine:
        flushes = Flushes(engine)
        tenant = shard.create_tenant("default")
        queue, _ = tenant.declare_queue("q", {}, "embedded")
    await engine.lasting()
    turns = Turns(engine, LOG) if served else None

    def take(work: Callable[[], Any]) -> None:
        if turns is not None:
            turns.run(work)
        else:
            with engine:
                work()

    flushes.count = engine.turns = 0
    for _ in range(10):
        take(lambda: shard.publish(tenant, "", "q", b"\x00\x00", b"x"))
    # what the beginning of a turn does: leases lapse, delays end, policies reach queues, streams are tended
    take(
        lambda: [shard.claim(queue, 5, 20), shard.publish(tenant, "", "q", b"\x00\x00", b"x", 0, 0, shard.wall_ms + 20)]
    )
    take(lambda: tenant.set_policy(Policy("p", ".*", {"length_max": 100})))
    take(lambda: setattr(shard, "streams_due_ms", 0))
    await until(lambda: queue.ready == 11)
    await engine.lasting()
    assert engine.turns > 15
    assert flushes.count == engine.turns
    if turns is not None:
        turns.stop()
    await engine.stop()


async def test_what_closing_words_make_deliverable_is_delivered_in_a_turn_that_follows() -> None:
    engine = CountingEngine(SystemClock(), b"secret")
    await engine.start()
    with engine:
        tenant = engine.shard.create_tenant("default")
        queue, _ = tenant.declare_queue("q", {}, "embedded")
        engine.shard.publish(tenant, "", "q", b"\x00\x00", b"x")
        lease = engine.shard.claim(queue, 1, 60_000)[0]
        mailbox = engine.shard.wait_claim(queue, 1, 60_000)
    turns = Turns(engine, LOG)

    class Leaving(Peer):
        def finish(self) -> bool:
            queue.release(lease)
            return False

    turns.run(lambda: turns.turn.expect(Leaving()))
    assert mailbox.leases == []
    await until(lambda: mailbox.leases)
    assert queue.leased == 1
    turns.stop()
    await engine.stop()

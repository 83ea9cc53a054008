"""A queue against a naive model of it: plain tuples in lists, sorted and searched over again at every step."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rookery.core.entries import Lease
from rookery.format.model import NEVER, PRIORITY_MAX, PRIORITY_MIN
from tests.unit.core_world import World

COUNTS = (
    "published",
    "delivered",
    "redelivered",
    "acked",
    "retried",
    "released",
    "rejected",
    "lapsed",
    "expired",
    "dead_lettered",
    "dropped",
    "purged",
)

times = st.integers(1, 100)
priorities = st.sampled_from([0, 0, 0, 1, 2, -1, 7, PRIORITY_MIN, PRIORITY_MAX])
outcomes = st.sampled_from(["ack", "retry", "release", "reject"])
indexes = st.integers(0, 1_000)


class Row(NamedTuple):
    """A message as the model knows it; `due` is when its delay ends, `expires` its own expiry (0: none)."""

    seq: int
    body: bytes
    priority: int
    entered: int
    expires: int
    due: int = 0
    attempts: int = 0
    redelivered: bool = False


class Held(NamedTuple):
    row: Row
    until: int
    lease: Lease


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.wall = self.world.shard.wall_ms
        self.mono = self.world.shard.mono_ms
        self.ready: list[Row] = []
        self.delayed: list[Row] = []
        self.held: list[Held] = []
        self.ended: list[Lease] = []
        self.graves: Counter[tuple[bytes, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.seq = 0

    @initialize(
        ordered=st.booleans(),
        max_attempts=st.integers(0, 3),
        ttl_ms=st.sampled_from([0, 40]),
        backoff_ms=st.sampled_from([0, 15]),
        buries=st.booleans(),
    )
    def declare(self, ordered: bool, max_attempts: int, ttl_ms: int, backoff_ms: int, buries: bool) -> None:
        self.ordered, self.max_attempts, self.ttl_ms = ordered, max_attempts, ttl_ms
        self.backoff_ms, self.buries = backoff_ms, buries
        settings: dict[str, Any] = {
            "ordered": ordered,
            "max_attempts": max_attempts,
            "ttl_ms": ttl_ms or None,
            "backoff_base_ms": backoff_ms,
            "dead_letter_queue": "graves" if buries else None,
        }
        self.queue = self.world.queue(**settings)
        self.buried = self.world.queue("graves")

    # The naive queue

    def place(self, row: Row) -> tuple[int, int]:
        return (-row.priority if self.ordered else 0, row.seq)

    def expiry(self, row: Row) -> int:
        both = [row.expires, row.entered + self.ttl_ms if self.ttl_ms else 0]
        return min((time for time in both if time), default=0)

    def line_up(self, row: Row) -> None:
        self.ready.append(row)
        self.ready.sort(key=self.place)

    def die(self, row: Row, reason: str) -> None:
        if self.buries:
            self.graves[row.body, reason] += 1
            self.counts["dead_lettered"] += 1
        else:
            self.counts["expired" if reason == "expired" else "dropped"] += 1

    def come_back(self, row: Row, delay_ms: int) -> None:
        row = row._replace(redelivered=True)
        if 0 < self.expiry(row) <= self.wall:
            self.die(row, "expired")
        elif delay_ms:
            self.delayed.append(row._replace(due=self.wall + delay_ms))
        else:
            self.line_up(row)

    def fail(self, row: Row, delay_ms: int) -> None:
        if self.max_attempts and row.attempts >= self.max_attempts:
            self.die(row, "delivery_limit")
        else:
            self.counts["retried"] += 1
            self.come_back(row, delay_ms)

    def tick(self) -> None:
        for row in [row for row in self.delayed if row.due <= self.wall]:
            self.delayed.remove(row)
            self.line_up(row)
        for rows in (self.ready, self.delayed):
            for row in [row for row in rows if 0 < self.expiry(row) <= self.wall]:
                rows.remove(row)
                self.die(row, "expired")
        for held in [held for held in self.held if held.until <= self.mono]:
            self.held.remove(held)
            self.ended.append(held.lease)
            self.counts["lapsed"] += 1
            self.fail(held.row, 0)

    # What happens to both

    @rule(
        priority=priorities, delay=st.just(0) | times, ttl=st.just(0) | times, body=st.sampled_from([b"", b"x", b"yy"])
    )
    def publish(self, priority: int, delay: int, ttl: int, body: bytes) -> None:
        self.seq += 1
        body = b"%d %b" % (self.seq, body)
        self.world.publish(body, priority=priority, delay_ms=delay, ttl_ms=ttl)
        self.counts["published"] += 1
        row = Row(self.seq, body, priority, self.wall + delay, self.wall + ttl if ttl else 0)
        if delay:
            self.delayed.append(row._replace(due=self.wall + delay))
        else:
            self.line_up(row)

    @rule(count=st.integers(1, 5), lease_ms=times)
    def claim(self, count: int, lease_ms: int) -> None:
        leases = self.world.claim(self.queue, count, lease_ms)
        rows, self.ready = self.ready[:count], self.ready[count:]
        assert [lease.entry.message.body for lease in leases] == [row.body for row in rows]
        for row, lease in zip(rows, leases, strict=True):
            taken = row._replace(attempts=row.attempts + 1)
            assert (lease.entry.seq, lease.attempt) == (row.seq, taken.attempts)
            assert lease.entry.redelivered == row.redelivered
            self.counts["delivered"] += 1
            self.counts["redelivered"] += row.redelivered
            self.held.append(Held(taken, self.mono + lease_ms, lease))

    @precondition(lambda self: self.held)
    @rule(index=indexes, outcome=outcomes, delay=st.sampled_from([-1, 0, 25]))
    def settle(self, index: int, outcome: str, delay: int) -> None:
        row, _, lease = self.held.pop(index % len(self.held))
        self.ended.append(lease)
        if outcome == "ack":
            assert self.queue.ack(lease)
            self.counts["acked"] += 1
        elif outcome == "retry":
            assert self.queue.retry(lease, delay, "")
            self.fail(row, self.backoff_ms if delay < 0 else delay)
        elif outcome == "release":
            assert self.queue.release(lease)
            self.counts["released"] += 1
            self.come_back(row._replace(attempts=row.attempts - 1), 0)
        else:
            assert self.queue.reject(lease, "")
            self.counts["rejected"] += 1
            self.die(row, "rejected")

    @precondition(lambda self: self.ended)
    @rule(index=indexes, outcome=outcomes)
    def settle_too_late(self, index: int, outcome: str) -> None:
        assert not self.world.settle(self.ended[index % len(self.ended)], outcome)

    @precondition(lambda self: self.held)
    @rule(index=indexes, lease_ms=times)
    def extend(self, index: int, lease_ms: int) -> None:
        at = index % len(self.held)
        assert self.queue.extend(self.held[at].lease, lease_ms)
        self.held[at] = self.held[at]._replace(until=self.mono + lease_ms)

    @rule(ms=st.integers(0, 60))
    def advance(self, ms: int) -> None:
        self.wall += ms
        self.mono += ms
        self.world.advance(ms)
        self.tick()

    @rule(ms=st.integers(-60, 60))
    def jump(self, ms: int) -> None:
        self.wall += ms
        self.world.jump_wall(ms)
        self.tick()

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.ready)
        self.counts["purged"] += len(self.ready)
        self.ready = []

    # What must be the same

    @invariant()
    def looks_the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue = self.queue
        assert [entry.message.body for entry in queue.ready_entries()] == [row.body for row in self.ready]
        due = sorted((row.due, row.seq) for row in self.delayed)
        assert [(entry.due_ms, entry.seq) for entry in queue.delayed_entries()] == due
        assert {(lease.entry.seq, lease.due_ms) for lease in queue.leases()} == {
            (held.row.seq, held.until) for held in self.held
        }
        assert {name: int(getattr(queue, name)) for name in COUNTS} == {name: self.counts[name] for name in COUNTS}
        buried = Counter((e.message.body, e.message.route.deaths[0].reason) for e in self.buried.ready_entries())
        assert buried == self.graves

    @invariant()
    def wakes_in_time(self) -> None:
        soon = [row.due - self.wall for row in self.delayed]
        soon += [self.expiry(row) - self.wall for row in self.ready + self.delayed if self.expiry(row)]
        soon += [held.until - self.mono for held in self.held]
        assert self.world.shard.next_due_ms() <= min(soon, default=NEVER)

    @invariant()
    def obeys_the_laws(self) -> None:
        self.world.check()


TestQueueModel = QueueMachine.TestCase

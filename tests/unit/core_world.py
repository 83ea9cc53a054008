"""A shard under a manual clock, short words for driving it, and the laws that must hold whatever a test did to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rookery.clock import ManualClock
from rookery.core import publishing
from rookery.core.consumers import KEY_HASH, Mailbox, Subscription
from rookery.core.entries import Entry, Lease
from rookery.core.feeds import Feed
from rookery.core.publishing import Publish
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.topology import Tenant
from rookery.format.model import DEAD, Message
from rookery.format.properties import EMPTY, Properties, encode

LEASE_MS = 30_000

BROKEN_HEADERS = b"\x20\x00" + b"\x00\x00\x00\x03" + b"\x01a?"
"""A property list whose headers are framed well and cannot be read: no field has the type `?`."""


def publish_once(
    shard: Shard, tenant: Tenant, exchange: str, key: str, dedup_key: str, props: bytes, body: bytes
) -> tuple[int, bool]:
    """Publish with a dedup key: the number of its message, and whether it is a repeat."""
    return publishing.publish(shard, tenant, Publish(exchange, key, props, body, dedup_key=dedup_key))


class World:
    """One shard, one tenant `acme`, one clock. Every queue that `queue` made is checked at the end, deleted or not."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.shard = Shard(b"secret of the tests", 7)
        self.shard.turn(self.clock.wall_ms(), self.clock.mono_ms())
        self.tenant: Tenant = self.shard.create_tenant("acme")
        self._made: list[Queue] = []

    def queue(self, name: str = "jobs", face: str = "embedded", **settings: Any) -> Queue:
        queue = self.tenant.declare_queue(name, settings, face)[0]
        if queue not in self._made:
            self._made.append(queue)
        return queue

    def publish(
        self,
        body: bytes = b"x",
        key: str = "jobs",
        exchange: str = "",
        *,
        priority: int = 0,
        ttl_ms: int = 0,
        delay_ms: int = 0,
        headers: dict[str, object] | None = None,
        props: bytes = EMPTY,
    ) -> Message:
        return self.reach(
            body, key, exchange, priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms, headers=headers, props=props
        )[0]

    def reach(
        self,
        body: bytes = b"x",
        key: str = "jobs",
        exchange: str = "",
        *,
        priority: int = 0,
        ttl_ms: int = 0,
        delay_ms: int = 0,
        headers: dict[str, object] | None = None,
        props: bytes = EMPTY,
    ) -> tuple[Message, int]:
        """Publish; the message, and how many queues it reached."""
        if headers is not None:
            props = encode(Properties(headers=headers))
        now = self.shard.wall_ms
        return self.shard.publish(
            self.tenant,
            exchange,
            key,
            props,
            body,
            priority,
            now + ttl_ms if ttl_ms else 0,
            now + delay_ms if delay_ms else 0,
        )

    def fill(self, count: int, key: str = "jobs") -> None:
        """Publish bodies 0, 1, 2 …"""
        for i in range(count):
            self.publish(b"%d" % i, key)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.turn()

    def jump_wall(self, ms: int) -> None:
        self.clock.jump_wall(ms)
        self.turn()

    def turn(self) -> None:
        self.shard.turn(self.clock.wall_ms(), self.clock.mono_ms())
        self.shard.flush()

    def claim(self, queue: Queue, count: int = 1, lease_ms: int = LEASE_MS) -> list[Lease]:
        return self.shard.claim(queue, count, lease_ms)

    def one(self, queue: Queue, lease_ms: int = LEASE_MS) -> Lease:
        (lease,) = self.shard.claim(queue, 1, lease_ms)
        return lease

    def drain(self, queue: Queue) -> list[bytes]:
        """Claim and ack everything that is ready; the bodies in order."""
        drained: list[bytes] = []
        while queue.ready:
            leases = self.claim(queue)
            if not leases:
                break
            for lease in leases:
                drained.append(lease.entry.message.body)
                assert queue.ack(lease)
        return drained

    def mailbox(self, queue: Queue, credit: int = 0, lease_ms: int = 0, priority: int = 0, name: str = "") -> Mailbox:
        return self.shard.subscribe(queue, credit, lease_ms, priority, name)

    def settle(self, lease: Lease, outcome: str = "ack") -> bool:
        """Settle and end the turn."""
        queue = lease.queue
        if outcome == "retry":
            done = queue.retry(lease, -1, "failed")
        elif outcome == "reject":
            done = queue.reject(lease, "unfit")
        else:
            done = bool(getattr(queue, outcome)(lease))
        self.shard.flush()
        return done

    def check(self) -> None:
        """The laws, for every queue of the tenant and every one that was deleted."""
        self.shard.flush()
        queues = [*self.tenant.queues.values(), *(q for q in self._made if q.deleted)]
        for queue in queues:
            check_conservation(queue)
        for queue in self.tenant.queues.values():
            _check_entries(queue)
            _check_nobody_waits_in_vain(queue)
        _check_memory(self.tenant)


class Recorder(Subscription):
    """What a protocol's own subscription is told."""

    def __init__(
        self, queue: Queue, limit: int = 0, lease_ms: int = 0, no_ack: bool = False, tracked: bool = False
    ) -> None:
        super().__init__(queue, limit, lease_ms, no_ack, 0, tracked)
        self.entries: list[Entry] = []
        self.leases: list[Lease | None] = []
        self.ran_out: list[Lease] = []
        self.reasons: list[str] = []

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        self.entries.append(entry)
        self.leases.append(lease)

    def lapsed(self, lease: Lease) -> None:
        self.ran_out.append(lease)

    def cancelled(self, reason: str) -> None:
        self.reasons.append(reason)


def a_world() -> Iterator[World]:
    """The fixture of the core's tests: `world = pytest.fixture(a_world, name="world")`."""
    world = World()
    yield world
    world.check()


def bodies(leases: Iterable[Lease]) -> list[bytes]:
    return [lease.entry.message.body for lease in leases]


def waiting(queue: Queue) -> list[bytes]:
    """The bodies of the ready entries, in order, by peeking."""
    return [entry.message.body for entry in queue.ready_entries()]


def check_conservation(queue: Queue) -> None:
    """Each message that entered is here or left by exactly one way."""
    entered = queue.published + queue.dead_lettered_in + queue.moved_in + queue.restored
    here = queue.ready + queue.delayed + queue.leased
    left = queue.acked + queue.expired + queue.dead_lettered + queue.dropped + queue.purged + queue.moved_out
    assert entered == here + left, f"{queue.name}: {entered} entered, {here} are here, {left} left"
    assert min(queue.ready, queue.delayed, queue.leased, queue.bytes, queue.leased_bytes) >= 0


def _entries(queue: Queue) -> list[Entry] | None:
    """All entries of a queue; None when some are leased without being tracked."""
    if queue.leased != len(queue.leases()):
        return None
    return queue.waiting_entries() + [lease.entry for lease in queue.leases()]


def _check_entries(queue: Queue) -> None:
    assert len(queue.ready_entries()) == queue.ready
    assert len(queue.delayed_entries()) == queue.delayed
    entries = _entries(queue)
    if entries is None:
        return
    assert sum(len(entry.message.body) for entry in entries) == queue.bytes
    assert sum(len(lease.entry.message.body) for lease in queue.leases()) == queue.leased_bytes
    origins = Counter(e.message.route.deaths[0].queue for e in entries if e.message.flags & DEAD)
    assert dict(origins) == queue.origins


def _check_nobody_waits_in_vain(queue: Queue) -> None:
    """After a turn no subscription with credit faces an entry it could take."""
    if queue.ready and not queue.grouped and queue.roster.distribution != KEY_HASH:
        assert not queue.roster.any_credit(), f"{queue.name}: {queue.ready} ready, and somebody has credit"


def _check_memory(tenant: Tenant) -> None:
    """Every message held is counted once, however many queues hold it."""
    held: dict[int, Message] = {}
    stays: Counter[int] = Counter()
    feeds = [feed.queue for feed in tenant.shard.feeds if isinstance(feed, Feed) and feed.stream.tenant is tenant]
    for queue in [*tenant.queues.values(), *feeds]:
        entries = _entries(queue)
        if entries is None:
            return
        for entry in entries:
            held[id(entry.message)] = entry.message
            stays[id(entry.message)] += 1
    for number, message in held.items():
        assert message.refs == stays[number]
    assert sum(message.size_bytes() for message in held.values()) == tenant.memory_bytes

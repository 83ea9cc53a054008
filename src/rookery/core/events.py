"""The lives of messages as a stream: `rookery.events` of the system tenant tells what happened to each, and when.

Whether a message is told of is decided once, when it is published, and goes with it: every message up to a rate, above
it one of 2, 4, 8 …, chosen by its number; a burst thins them out at once, and from second to second the rate decides.
The weight of the choice stands in each of its events, so counting weights is honest and a journey is told whole or not
at all. Exact counts of every queue and exchange go in from time to time beside them, with what they grew by.
`event_kinds` lists the kinds of events and their fields.

Events are notes until the next tick; nothing on the hot path encodes them, and nobody waits for them. There are no
events about the stream of events itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from mypy_extensions import i32, i64

from rookery.core import streams
from rookery.core.event_kinds import Kind, LeaseEnd
from rookery.core.snapshots import COUNTERS, dead_count
from rookery.core.stream import Partition
from rookery.format import properties
from rookery.format.model import NEVER, PERSISTENT, SAMPLE_SHIFT, SAMPLED, Message, Route
from rookery.format.rendering import plain_table

if TYPE_CHECKING:
    from rookery.core.consumers import Subscription
    from rookery.core.entries import Entry
    from rookery.core.queue import Queue
    from rookery.core.shard import Shard
    from rookery.core.topology import Exchange, Tenant

SYSTEM: Final = "rookery"
"""The tenant of the broker itself; only administrators see it."""

STREAM: Final = "rookery.events"
SCHEMA_VERSION: Final = 1

RATE_MAX: Final = 100
"""Messages told of a second, on average; more than that are sampled."""

POWER_MAX: Final[i64] = 30
BURST_STEPS: Final[i64] = 16
"""Within a second, messages beyond the rate are sampled half as often after each such part of it."""

TICK_MS: Final[i64] = 100
TUNE_MS: Final[i64] = 1_000
SNAPSHOT_MS: Final[i64] = 10_000
SNAPSHOT_SLICE: Final = 500
NOTES_MAX: Final[i64] = 50_000
"""More notes than this between two ticks are dropped, and counted."""

_Note = tuple[Kind, int, str, str, Message, int, int, int, str, str]

EXCHANGE_COUNTERS: Final = ("published", "unroutable", "bytes")


@final
class Events:
    """What is to be told. Off, it costs a look at a flag."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.on = False
        self.due_ms: i64 = NEVER
        self.rate_max = RATE_MAX
        self.told = 0
        self.dropped = 0
        self._mask: i64 = 0
        self._power: i64 = 0
        self._room: i64 = RATE_MAX
        self._bits: i32 = 1 << SAMPLE_SHIFT
        self._notes: list[_Note] = []
        self._last_id: i64 = 0
        self._tuned_ms: i64 = 0
        self._snapshot_ms: i64 = 0
        self._todo: list[Queue] = []
        self._seen: dict[Queue, list[int]] = {}
        self._routed: dict[Exchange, list[int]] = {}

    def start(self, rate_max: int, settings: dict[str, object]) -> None:
        """Begin to tell; the stream is made if it is not there."""
        shard = self._shard
        tenant = shard.tenants.get(SYSTEM) or shard.create_tenant(SYSTEM)
        if STREAM not in tenant.streams:
            streams.declare(tenant, STREAM, settings)
        self.rate_max = rate_max
        self._room = rate_max
        self.on = True
        self._last_id = shard.last_id
        self._tuned_ms = shard.mono_ms
        self._snapshot_ms = shard.mono_ms + SNAPSHOT_MS
        self.due_ms = shard.mono_ms + TICK_MS

    # Choosing

    def mark(self, number: i64) -> i32:
        """What goes into the flags of a new message."""
        mixed = ((number & 0x3FFFFFFF) * 0x9E3779B1) >> 20
        if mixed & self._mask:
            return 0
        bits = self._bits
        self._room -= 1
        if self._room <= 0 and self._power < POWER_MAX:
            # a burst: to tell of all of it until the second is over would cost more than the messages themselves
            self._choose(self._power + 1, i64(self.rate_max) // BURST_STEPS)
        return bits

    def _choose(self, power: i64, room: i64) -> None:
        """Tell of one message of 2 ** power from here on; of twice as few when so many were told of."""
        self._power = power
        self._mask = (1 << power) - 1
        self._bits = i32(power + 1) << SAMPLE_SHIFT
        self._room = room

    def _tune(self) -> None:
        """Choose the share of messages so that no more are told of than `rate_max` a second."""
        shard = self._shard
        elapsed = int(shard.mono_ms - self._tuned_ms)
        rate = int(shard.last_id - self._last_id) * 1000 // max(1, elapsed)
        power: i64 = 0
        while rate >> power > self.rate_max and power < POWER_MAX:
            power += 1
        self._choose(power, i64(self.rate_max))
        self._last_id = shard.last_id
        self._tuned_ms = shard.mono_ms

    # Noting

    def _note(
        self,
        kind: Kind,
        tenant: str,
        queue: str,
        message: Message,
        a: i64,
        b: i64,
        c: i64,
        reason: str,
        consumer: str = "",
    ) -> None:
        if len(self._notes) >= NOTES_MAX:
            self.dropped += 1
            return
        at = int(self._shard.wall_ms)
        self._notes.append((kind, at, tenant, queue, message, int(a), int(b), int(c), reason, consumer))
        if self.due_ms > self._shard.mono_ms + TICK_MS:
            self.due_ms = self._shard.mono_ms + TICK_MS

    def published(self, tenant: Tenant, message: Message, reached: i64) -> None:
        """It is about to be offered to so many queues and streams."""
        self._note("published" if reached else "unroutable", tenant.name, "", message, 0, reached, 0, "")

    def appended(self, tenant: Tenant, message: Message, size: i64) -> None:
        """A staged message, whose body of that size is not here any more, is in its stream now."""
        self._note("published", tenant.name, "", message, 0, 1, size, "")

    def delivered(self, queue: Queue, entry: Entry, consumer: str) -> None:
        waited = self._shard.wall_ms - entry.enqueued_ms
        attempts = i64(entry.attempts)
        self._note("delivered", queue.tenant.name, queue.name, entry.message, attempts, waited, 0, "", consumer)

    def settled(
        self, kind: LeaseEnd, queue: Queue, entry: Entry, delivered_ms: i64, reason: str, holder: Subscription | None
    ) -> None:
        """It was acked, retried or released, so long after it entered and after it was delivered."""
        shard = self._shard
        worked = shard.mono_ms - delivered_ms
        lived = shard.wall_ms - entry.enqueued_ms
        name = "" if holder is None else holder.name
        attempts = i64(entry.attempts)
        self._note(kind, queue.tenant.name, queue.name, entry.message, attempts, lived, worked, reason, name)

    def left(self, queue: Queue, entry: Entry, arrived: bool, reason: str, detail: str) -> None:
        """It died in its queue."""
        kind: Kind = "dead_lettered" if arrived else "expired" if reason == "expired" else "dropped"
        lived = self._shard.wall_ms - entry.enqueued_ms
        why = reason if not detail or detail == reason else f"{reason}: {detail}"
        self._note(kind, queue.tenant.name, queue.name, entry.message, i64(entry.attempts), lived, 0, why)

    # Telling

    def tick(self) -> None:
        """Write what was noted, and what is due, into the stream."""
        shard = self._shard
        now = shard.mono_ms
        self.due_ms = now + TICK_MS
        tenant = shard.tenants.get(SYSTEM)
        stream = None if tenant is None else tenant.streams.get(STREAM)
        if stream is None or shard.log.refusing:
            # nowhere to tell it: the stream was deleted, or the disk is full
            self.dropped += len(self._notes)
            self._notes = []
            return
        if now - self._tuned_ms >= TUNE_MS:
            self._tune()
        partition = stream.partitions[0]
        notes = self._notes
        self._notes = []
        for note in notes:
            self._tell(partition, note)
        if now >= self._snapshot_ms:
            self._snapshot_ms = now + SNAPSHOT_MS
            self._todo = [queue for t in shard.tenants.values() for queue in t.queues.values()]
            self._seen = {queue: n for queue, n in self._seen.items() if not queue.deleted}
            self._routings(partition)
        if self._todo:
            self._snapshots(partition)
        if not self._todo and not notes:
            self.due_ms = self._snapshot_ms

    def _append(self, partition: Partition, row: dict[str, object]) -> None:
        shard = self._shard
        self.told += 1
        row["event_id"] = f"{shard.epoch}-{partition.end}"
        row["schema_version"] = SCHEMA_VERSION
        route = Route("", f"{row['event_type']}.{row['tenant']}")
        try:
            body = msgspec.json.encode(row)
        except UnicodeEncodeError:
            # a name that came over AMQP; nothing that a peer sends may stop the turn of all
            body = msgspec.json.encode(plain_table(row))
        message = Message(route, _PROPS, body, shard.new_id(), 0, 0, PERSISTENT)
        synced = shard.log.wants_sync
        partition.append(message)
        partition.stream.appended += 1
        # nobody waits for an event: it rides with the next batch
        shard.log.wants_sync = synced

    def _tell(self, partition: Partition, note: _Note) -> None:
        kind, at, tenant, queue, message, attempts, first, second, reason, consumer = note
        props = message.props
        route = message.route
        ids = self._shard.ids
        row: dict[str, object] = {
            "event_type": kind,
            "event_time_ms": at,
            "tenant": tenant,
            "exchange": route.exchange,
            "routing_key": route.key,
            "queue": queue or None,
            "message_id": properties.message_id(props) or ids.uuid(int(message.public_id)),
            "size_bytes": len(message.body),
            "delivery_count": attempts,
            "weight": 1 << (((int(message.flags) & int(SAMPLED)) >> int(SAMPLE_SHIFT)) - 1),
        }
        if kind == "delivered":
            row["latency_ms"] = first
            row["consumer"] = consumer or None
        elif queue:
            row["latency_ms"] = first
            row["process_ms"] = second
            row["consumer"] = consumer or None
            row["reason"] = reason or None
        else:
            row["reached"] = first
            # the body of a staged record is not here, but its size
            row["size_bytes"] = second or len(message.body)
        if route.deaths:
            death = route.deaths[0]
            row["dlq_source"] = {"queue": death.queue, "exchange": death.exchange, "routing_key": death.key}
        self._append(partition, row)

    def _snapshots(self, partition: Partition) -> None:
        """Exact counts of queues that something happened to, a slice at a time."""
        some = self._todo[:SNAPSHOT_SLICE]
        del self._todo[:SNAPSHOT_SLICE]
        for queue in some:
            if not queue.deleted:
                self.snapshot(partition, queue)

    def snapshot(self, partition: Partition, queue: Queue) -> None:
        now = [int(getattr(queue, name)) for name in COUNTERS]
        before = self._seen.get(queue)
        if before == now:
            return
        self._seen[queue] = now
        self._append(
            partition,
            {
                "event_type": "snapshot",
                "event_time_ms": int(self._shard.wall_ms),
                "tenant": queue.tenant.name,
                "queue": queue.name,
                "ready": int(queue.ready),
                "delayed": int(queue.delayed),
                "leased": int(queue.leased),
                "dead": dead_count(queue),
                "bytes": int(queue.bytes),
                "counters": dict(zip(COUNTERS, now, strict=True)),
                "changes": _changes(COUNTERS, before, now),
                "dropped_events": self.dropped,
            },
        )

    def _routings(self, partition: Partition) -> None:
        """Exact counts of exchanges that something was published to."""
        seen = self._routed
        self._routed = {}
        for tenant in self._shard.tenants.values():
            if tenant.name == SYSTEM:
                continue
            for exchange in tenant.exchanges.values():
                now = [int(exchange.published), int(exchange.unroutable), int(exchange.bytes)]
                before = seen.get(exchange)
                self._routed[exchange] = now
                if before == now or not any(now):
                    continue
                self._append(
                    partition,
                    {
                        "event_type": "snapshot",
                        "event_time_ms": int(self._shard.wall_ms),
                        "tenant": tenant.name,
                        "exchange": exchange.name,
                        "counters": dict(zip(EXCHANGE_COUNTERS, now, strict=True)),
                        "changes": _changes(EXCHANGE_COUNTERS, before, now),
                    },
                )


def _changes(names: tuple[str, ...], before: list[int] | None, now: list[int]) -> dict[str, int]:
    """What was counted since the last snapshot: sums of it need no other snapshot beside them."""
    if before is None:
        return {name: n for name, n in zip(names, now, strict=True) if n}
    return {name: n - old for name, n, old in zip(names, now, before, strict=True) if n != old}


_PROPS: Final = properties.encode(properties.Properties(content_type="application/json", delivery_mode=2))

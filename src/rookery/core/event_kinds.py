"""The events of the stream `rookery.events`: one table of their kinds, and one of their fields.

`core.events` writes them. The lifecycle's tables on Spark (`pipelines.builtin`) take their schema and their groups of
kinds from here, and `tools/make_tables.py` writes the tables in `docs/insights.md`. A new kind is a row here, and the
place in the core where it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LeaseEnd = Literal["acked", "retried", "released", "lapsed"]
Kind = Literal[
    "published",
    "unroutable",
    "delivered",
    "acked",
    "retried",
    "released",
    "lapsed",
    "expired",
    "dead_lettered",
    "dropped",
    "snapshot",
]
"""The names in the table, for type checkers."""


@dataclass(frozen=True, kw_only=True)
class EventKind:
    """One kind. Its events are about one message, unless it is a snapshot."""

    name: Kind
    help: str
    in_queue: bool = False
    """It is a step of a message's stay in a queue."""
    ends_lease: bool = False
    """A consumer, or time, ended the lease of a delivery."""
    ends_stay: bool = False
    """The message left the queue: no other event of this stay follows."""


EVENT_KINDS: Final[tuple[EventKind, ...]] = (
    EventKind(name="published", help="The message was published and routed to at least one queue or stream."),
    EventKind(name="unroutable", help="The message was published, and no binding matched."),
    EventKind(name="delivered", in_queue=True, help="The message was delivered to a consumer under a lease."),
    EventKind(
        name="acked", in_queue=True, ends_lease=True, ends_stay=True, help="The consumer acknowledged the message."
    ),
    EventKind(
        name="retried", in_queue=True, ends_lease=True, help="The delivery failed; the message is delivered again."
    ),
    EventKind(
        name="released", in_queue=True, ends_lease=True, help="The consumer returned the message without trying it."
    ),
    EventKind(name="lapsed", in_queue=True, ends_lease=True, help="The lease ran out before it was settled."),
    EventKind(name="expired", in_queue=True, ends_stay=True, help="The message outlived its time to live."),
    EventKind(
        name="dead_lettered", in_queue=True, ends_stay=True, help="The message moved to the queue's dead-letter target."
    ),
    EventKind(
        name="dropped",
        in_queue=True,
        ends_stay=True,
        help="The message was dropped: the queue was full, or there was no dead-letter target.",
    ),
    EventKind(name="snapshot", help="Exact counters of a queue or of an exchange, every 10 s while they change."),
)
"""The rows, in the order of a message's life."""

FieldType = Literal["text", "int", "long", "place", "counts"]

_ALL: Final = tuple(kind.name for kind in EVENT_KINDS)
_OF_MESSAGES: Final = tuple(name for name in _ALL if name != "snapshot")
_IN_QUEUES: Final = tuple(kind.name for kind in EVENT_KINDS if kind.in_queue)
_AFTER_DELIVERY: Final = tuple(name for name in _IN_QUEUES if name != "delivered")
_ROUTINGS: Final = ("published", "unroutable")
_SNAPSHOTS: Final = ("snapshot",)


@dataclass(frozen=True)
class EventField:
    """A field of an event: its type, and the kinds that have it. A `place` is a queue, exchange and routing key."""

    name: str
    type: FieldType
    kinds: tuple[str, ...]
    help: str


EVENT_FIELDS: Final[tuple[EventField, ...]] = (
    EventField("event_id", "text", _ALL, "Unique id of the event"),
    EventField("event_type", "text", _ALL, "Kind of the event"),
    EventField("event_time_ms", "long", _ALL, "When it happened, in milliseconds since 1970"),
    EventField("schema_version", "int", _ALL, "Version of this list of fields"),
    EventField("tenant", "text", _ALL, "Tenant of the queue or exchange"),
    EventField("exchange", "text", _ALL, "Exchange that the message was published to, or that was counted"),
    EventField("routing_key", "text", _OF_MESSAGES, "Routing key of the message"),
    EventField("queue", "text", _ALL, "Queue that the message is in, or that was counted"),
    EventField("consumer", "text", _IN_QUEUES, "Name of the consumer"),
    EventField("message_id", "text", _OF_MESSAGES, "Id of the message"),
    EventField("size_bytes", "long", _OF_MESSAGES, "Size of the body"),
    EventField("delivery_count", "int", _OF_MESSAGES, "Deliveries so far"),
    EventField("weight", "long", _OF_MESSAGES, "Number of messages that this sampled one stands for"),
    EventField("reached", "long", _ROUTINGS, "Number of queues and streams that the message was routed to"),
    EventField("latency_ms", "long", _IN_QUEUES, "Time since the message entered the queue"),
    EventField("process_ms", "long", _AFTER_DELIVERY, "Time since the delivery"),
    EventField("reason", "text", _AFTER_DELIVERY, "Why the delivery failed or the message left"),
    EventField("dlq_source", "place", _OF_MESSAGES, "Where a dead letter died last; absent for other messages"),
    EventField("ready", "long", _SNAPSHOTS, "Messages that can be delivered now"),
    EventField("delayed", "long", _SNAPSHOTS, "Messages that can be delivered later"),
    EventField("leased", "long", _SNAPSHOTS, "Messages under a lease"),
    EventField("dead", "long", _SNAPSHOTS, "Dead letters of this queue in its dead-letter queue"),
    EventField("bytes", "long", _SNAPSHOTS, "Size of all bodies in the queue"),
    EventField("counters", "counts", _SNAPSHOTS, "Counters since the broker started"),
    EventField("changes", "counts", _SNAPSHOTS, "Growth of the counters since the last snapshot"),
    EventField("dropped_events", "long", _SNAPSHOTS, "Number of events that could not be written"),
)
"""The fields, in the order of the columns of `lifecycle_events`."""

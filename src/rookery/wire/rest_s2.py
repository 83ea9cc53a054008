"""Queues under /api/v1: create, publish, pull, ack, nack, peek, stats.

A `delivery_tag` is a lease's token. `requeue: true` retries at once, `requeue: false` after the queue's backoff, until
the attempts are used up; `dead_letter: true` dead-letters now. A queue comes into being when it is first used.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rookery import properties
from rookery.core.dedup import scope_of
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.core.snapshots import dead_count
from rookery.errors import AlreadyExists, InvalidArgument
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Router
from rookery.wire.http_trace import answer_trace, carry
from rookery.wire.rest import KEY_MAX_BYTES, Rest, Sending, content_of, headers_of
from rookery.wire.rest_types import (
    Amount,
    Attempts,
    DedupKey,
    Duration,
    Lasting,
    Many,
    Name,
    Share,
    Short,
    WaitSeconds,
)

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dead-letter", "drop-new", "close"]
Distribution = Literal["round-robin", "least-busy", "priority", "key-hash"]

FACE: Final = "http"
ACK_KEY: Final = "\0ack "
"""Sets the keys of acks apart from those of publishes to the same queue, which do not begin so."""


class QueueOptions(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What can be said about a queue; what is not said is left to the server's settings and policies."""

    durable: bool | None = None
    auto_delete: bool | None = None
    expires_ms: Lasting | None = None
    ttl_ms: Duration | None = None
    length_max: Amount | None = None
    bytes_max: Amount | None = None
    overflow: Overflow | None = None
    dead_letter_exchange: Short | None = None
    dead_letter_key: Short | None = None
    dead_letter_queue: Name | None = None
    max_attempts: Attempts | None = None
    backoff: Literal["fixed", "linear", "exponential"] | None = None
    backoff_base_ms: Duration | None = None
    backoff_max_ms: Duration | None = None
    backoff_jitter: Share | None = None
    ordered: bool | None = None
    priority_max: Amount | None = None
    single_active: bool | None = None
    distribution: Distribution | None = None
    grouped: bool | None = None
    lease_ms: Lasting | None = None
    dedup_window_ms: Lasting | None = None
    dedup: bool | None = None
    queue_type: Literal["classic", "quorum"] | None = None
    consumer_timeout_ms: Duration | None = None
    arguments: dict[str, Any] | None = None


class QueueMade(msgspec.Struct):
    name: str
    created: bool
    settings: dict[str, Any]


class Published(msgspec.Struct, omit_defaults=True):
    """`duplicate` is there when the idempotency key was seen before: then `message_id` is the first message's."""

    message_id: str
    duplicate: bool = False


class Nothing(msgspec.Struct):
    """There was no message."""

    delivery_tag: None = None
    message: None = None
    retry: int = 0


class Delivery(msgspec.Struct, omit_defaults=True):
    """`retry` is 0 at the first delivery. A body that is neither JSON nor text is in `message_base64`."""

    delivery_tag: str | None
    message: Any
    retry: int
    message_id: str
    routing_key: str
    redelivered: bool = False
    priority: int = 0
    message_base64: str | None = None
    headers: dict[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    deaths: list[dict[str, Any]] | None = None


class Deliveries(msgspec.Struct):
    """The answer to a pull with `max`."""

    messages: list[Delivery]


class Tag(msgspec.Struct):
    """With an `idempotency_key`, an ack may be repeated: the second one succeeds and does nothing."""

    delivery_tag: str
    idempotency_key: DedupKey | None = None


class Nack(msgspec.Struct):
    delivery_tag: str
    requeue: bool = False
    dead_letter: bool = False
    delay_ms: Duration | None = None
    reason: str = ""


class Settled(msgspec.Struct, omit_defaults=True):
    status: str
    duplicate: bool = False


class Peeked(msgspec.Struct):
    """The head of the queue, and the messages asked for, which are left where they are."""

    message: Any
    messages: list[Delivery]


class QueueStats(msgspec.Struct):
    """`ready` can be pulled now, `delayed` later, `in_flight` is leased, `dlq_size` died in this queue."""

    queue: str
    ready: int
    delayed: int
    in_flight: int
    retries: int
    dlq_size: int
    published: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int
    bytes: int
    consumers: int
    consumer_lag: int
    oldest_age_ms: int


def show_stats(queue: Queue) -> QueueStats:
    ready, leased = int(queue.ready), int(queue.leased)
    return QueueStats(
        queue=queue.name,
        ready=ready,
        delayed=int(queue.delayed),
        in_flight=leased,
        retries=int(queue.retried),
        dlq_size=dead_count(queue),
        published=int(queue.published),
        delivered=int(queue.delivered),
        acked=int(queue.acked),
        nacked=nacked(queue),
        expired=int(queue.expired),
        dead_lettered=int(queue.dead_lettered),
        bytes=int(queue.bytes),
        consumers=queue.consumers(),
        consumer_lag=ready + leased,
        oldest_age_ms=int(queue.oldest_age_ms()),
    )


def nacked(queue: Queue) -> int:
    """Deliveries that were not acked: retried (lapses too), released or rejected."""
    return int(queue.retried + queue.released + queue.rejected)


def show(rest: Rest, entry: Entry, tag: str | None, retry: int) -> Delivery:
    message, coded = content_of(entry.message)
    stored = entry.message
    deaths = [death.as_dict() for death in stored.route.deaths]
    return Delivery(
        delivery_tag=tag,
        message=message,
        retry=retry,
        message_id=rest.message_id(entry.message),
        routing_key=str(deaths[-1]["routing_key"]) if deaths else stored.route.key,
        redelivered=entry.redelivered,
        priority=int(stored.priority),
        message_base64=coded,
        headers=headers_of(entry.message),
        correlation_id=properties.correlation_id(stored.props) or None,
        reply_to=properties.reply_to(stored.props) or None,
        deaths=deaths or None,
    )


class Pulling:
    """Pull, ack and nack of one queue, for queues and for the queues behind topics."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest

    def pull(
        self, call: Call, queue: Queue, wait: float, max: int | None, auto_ack: bool, empty: str, lease_ms: int
    ) -> object:
        def done(leases: list[Lease]) -> object:
            if len(leases) == 1:
                answer_trace(call, leases[0].entry.message.props)
            shown = [self._delivered(call, lease, auto_ack) for lease in leases]
            if auto_ack and shown:
                call.lasting()
            if not shown and empty == "204":
                return Answer(204)
            if max is not None:
                return Deliveries(shown)
            return shown[0] if shown else Nothing()

        return self.rest.claim(call, queue, max or 1, lease_ms, int(wait * 1000), done)

    def _delivered(self, call: Call, lease: Lease, auto_ack: bool) -> Delivery:
        token = lease.token()
        call.tag = token
        shown = show(self.rest, lease.entry, None if auto_ack else token, int(lease.attempt) - 1)
        if auto_ack:
            lease.queue.ack(lease)
        return shown

    def ack(self, call: Call, queue: str, tag: Tag) -> Settled:
        call.tag = tag.delivery_tag
        tenant = self.rest.tenant(call)
        key = tag.idempotency_key
        if key is not None:
            if len(key.encode()) > KEY_MAX_BYTES:
                raise InvalidArgument(
                    f"idempotency_key is longer than {KEY_MAX_BYTES} bytes", argument="idempotency_key"
                )
            if tenant.dedup.find(scope_of("", queue), ACK_KEY + key, int(self.rest.shard.wall_ms)):
                call.lasting()
                return Settled("ok", True)
        lease = self.rest.lease(call, queue, tag.delivery_tag)
        number = int(lease.entry.message.public_id)
        lease.queue.ack(lease)
        if key is not None:
            tenant.remember("", queue, ACK_KEY + key, number)
        call.lasting()
        return Settled("ok")

    def nack(self, call: Call, queue: str, nack: Nack) -> Settled:
        call.tag = nack.delivery_tag
        delay_ms = -1 if nack.delay_ms is None else nack.delay_ms
        lease = self.rest.lease(call, queue, nack.delivery_tag)
        if nack.dead_letter:
            lease.queue.reject(lease, nack.reason[:255])
        elif nack.requeue:
            lease.queue.retry(lease, 0, nack.reason[:255])
        else:
            lease.queue.retry(lease, delay_ms, nack.reason[:255])
        call.lasting()
        return Settled("ok")


class Queues:
    """The routes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._pulling = Pulling(rest)

    def create(self, call: Call, name: Name, body: QueueOptions | None = None, new: bool = False) -> Answer:
        """Create a queue. The same again is fine, with other options a conflict; with `new`, any that is there."""
        call.principal.require("configure", name)
        said = {} if body is None else {n: v for n, v in msgspec.to_builtins(body).items() if v is not None}
        tenant = self._rest.tenant(call)
        if new and name in tenant.queues:
            raise AlreadyExists(f"queue {name!r} already exists", argument="queue")
        queue, created = self._rest.declare(tenant, name, said, FACE)
        call.lasting()
        return Answer(201 if created else 200, QueueMade(name, created, queue.settings.as_dict()))

    def publish(self, call: Call, name: Name, body: Sending) -> Answer:
        """Publish any JSON value to a queue."""
        rest = self._rest
        p = body.packed("", name, int(rest.shard.wall_ms))
        carry(call, p)
        queue = rest.queue(call, name, FACE, "write")
        number, repeat = rest.publish(queue.tenant, p)
        call.lasting()
        return Answer(200 if repeat else 201, Published(rest.shard.ids.uuid(number), repeat))

    def pull(
        self,
        call: Call,
        name: Name,
        wait: WaitSeconds = 0,
        max: Many | None = None,
        auto_ack: bool = False,
        empty: Literal["200", "204"] = "200",
    ) -> object:
        """Lease the next message, or up to `max` of them; `wait` seconds for the first."""
        queue = self._rest.queue(call, name, FACE, "read")
        return self._pulling.pull(call, queue, wait, max, auto_ack, empty, self._rest.options.lease_ms)

    def ack(self, call: Call, name: Name, body: Tag) -> Settled:
        """Done with a message."""
        call.principal.require("read", name)
        return self._pulling.ack(call, name, body)

    def nack(self, call: Call, name: Name, body: Nack) -> Settled:
        """Failed with a message: it is tried again, or becomes a dead letter."""
        call.principal.require("read", name)
        return self._pulling.nack(call, name, body)

    def peek(self, call: Call, name: Name, max: Many = 1) -> Peeked:
        """Look at the next messages and leave them where they are."""
        queue = self._rest.queue(call, name, FACE, "read")
        entries = queue.ready_entries(max)[:max]
        shown = [show(self._rest, entry, None, int(entry.attempts)) for entry in entries]
        return Peeked(shown[0].message if shown else None, shown)

    def stats(self, call: Call, name: Name) -> QueueStats:
        """The counts of a queue."""
        return show_stats(self._rest.queue(call, name, FACE, "read"))


def add_routes(router: Router, rest: Rest) -> None:
    queues = Queues(rest)
    root = "/api/v1/queues/{name}"
    pulled = (Delivery, Nothing, Deliveries)
    router.add("PUT", root, queues.create, {201: QueueMade, 200: QueueMade}, tag="queues")
    router.add("POST", f"{root}/publish", queues.publish, {201: Published, 200: Published}, tag="queues")
    router.add("POST", f"{root}/pull", queues.pull, {200: pulled, 204: None}, tag="queues")
    router.add("POST", f"{root}/ack", queues.ack, {200: Settled}, tag="queues")
    router.add("POST", f"{root}/nack", queues.nack, {200: Settled}, tag="queues")
    router.add("GET", f"{root}/peek", queues.peek, {200: Peeked}, tag="queues")
    router.add("GET", f"{root}/stats", queues.stats, {200: QueueStats}, tag="queues")

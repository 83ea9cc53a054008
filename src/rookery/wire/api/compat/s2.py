"""Queues under /api/v1: create, publish, pull, ack, nack, peek, stats.

A `delivery_tag` is a lease's token. `requeue: true` retries at once, `requeue: false` after the queue's backoff, until
the attempts are used up; `dead_letter: true` dead-letters now. A queue comes into being when it is first used.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rookery.core import rights
from rookery.core.queue import Queue
from rookery.core.snapshots import dead_count
from rookery.errors import AlreadyExists
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Router
from rookery.wire.rest import Rest
from rookery.wire.rest_pulling import FACE, Pulling, show
from rookery.wire.rest_types import (
    Amount,
    Attempts,
    Deliveries,
    Delivery,
    Duration,
    Lasting,
    Many,
    Nack,
    Name,
    Nothing,
    Published,
    Sending,
    Settled,
    Share,
    Short,
    Tag,
    WaitSeconds,
)

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dead-letter", "drop-new", "close"]
Distribution = Literal["round-robin", "least-busy", "priority", "key-hash"]


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


class Queues:
    """The routes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._pulling = Pulling(rest)

    def create(self, call: Call, name: Name, body: QueueOptions | None = None, new: bool = False) -> Answer:
        """Create a queue. The same again is fine, with other options a conflict; with `new`, any that is there."""
        said = {} if body is None else {n: v for n, v in msgspec.to_builtins(body).items() if v is not None}
        rights.require_dead_letter(call.principal, name, said)
        tenant = self._rest.tenant(call)
        if new and name in tenant.queues:
            raise AlreadyExists(f"queue {name!r} already exists", argument="queue")
        queue, created = self._rest.declare(tenant, name, said, FACE)
        call.lasting()
        return Answer(201 if created else 200, QueueMade(name, created, queue.settings.as_dict()))

    def publish(self, call: Call, name: Name, body: Sending) -> Answer:
        """Publish any JSON value to a queue."""
        return self._pulling.publish(call, name, body)

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
        return self._pulling.ack(call, name, body)

    def nack(self, call: Call, name: Name, body: Nack) -> Settled:
        """Failed with a message: it is tried again, or becomes a dead letter."""
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
    router.add("PUT", root, queues.create, {201: QueueMade, 200: QueueMade}, "queue.declare", tag="queues")
    router.add(
        "POST", f"{root}/publish", queues.publish, {201: Published, 200: Published}, "queue.publish", tag="queues"
    )
    router.add("POST", f"{root}/pull", queues.pull, {200: pulled, 204: None}, "queue.claim", tag="queues")
    router.add("POST", f"{root}/ack", queues.ack, {200: Settled}, "queue.settle", tag="queues")
    router.add("POST", f"{root}/nack", queues.nack, {200: Settled}, "queue.settle", tag="queues")
    router.add("GET", f"{root}/peek", queues.peek, {200: Peeked}, "queue.peek", tag="queues")
    router.add("GET", f"{root}/stats", queues.stats, {200: QueueStats}, "queue.stats", tag="queues")

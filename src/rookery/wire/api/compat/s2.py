"""Queues under /api/v1 as others have documented them: publish, pull, ack, nack, peek, stats.

A `delivery_tag` is a lease's token. `requeue: true` retries at once, `requeue: false` after the queue's backoff, until
the attempts are used up; `dead_letter: true` dead-letters now. A queue comes into being when it is first used.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rookery.wire.api.compat.pulling import Pulling, show
from rookery.wire.api.rest import FACE, Rest
from rookery.wire.api.stats import QueueStats, queue_stats
from rookery.wire.api.types import (
    Deliveries,
    Delivery,
    Many,
    Nack,
    Name,
    Nothing,
    Published,
    Sending,
    Settled,
    Tag,
    WaitSeconds,
)
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router


class Peeked(msgspec.Struct):
    """The head of the queue, and the messages asked for, which are left where they are."""

    message: Any
    messages: list[Delivery]


class Queues:
    """The routes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._pulling = Pulling(rest)

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
        queue = self._rest.found(call, name, "read")
        entries = [] if queue is None else queue.ready_entries(max)[:max]
        shown = [show(self._rest, entry, None, int(entry.attempts)) for entry in entries]
        return Peeked(shown[0].message if shown else None, shown)

    def stats(self, call: Call, name: Name) -> QueueStats:
        """The counts of a queue."""
        queue = self._rest.found(call, name, "read")
        return QueueStats(name) if queue is None else queue_stats(queue)


def add_routes(router: Router, rest: Rest) -> None:
    queues = Queues(rest)
    root = "/api/v1/queues/{name}"
    pulled = (Delivery, Nothing, Deliveries)
    router.add(
        "POST", f"{root}/publish", queues.publish, {201: Published, 200: Published}, "queue.publish", tag="queues"
    )
    router.add("POST", f"{root}/pull", queues.pull, {200: pulled, 204: None}, "queue.claim", tag="queues")
    router.add("POST", f"{root}/ack", queues.ack, {200: Settled}, "queue.settle", tag="queues")
    router.add("POST", f"{root}/nack", queues.nack, {200: Settled}, "queue.settle", tag="queues")
    router.add("GET", f"{root}/peek", queues.peek, {200: Peeked}, "queue.peek", tag="queues")
    router.add("GET", f"{root}/stats", queues.stats, {200: QueueStats}, "queue.stats", tag="queues")

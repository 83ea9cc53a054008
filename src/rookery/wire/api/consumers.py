"""Who consumes from queues now: list them, and end one. Claims that wait are no consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from rookery.core import rights
from rookery.core.access import Principal
from rookery.core.consumers import Mailbox, Subscription
from rookery.core.queue import Queue
from rookery.errors import Conflict, NotFound
from rookery.format.model import NEVER
from rookery.wire.api.broker import Api
from rookery.wire.api.shapes import Deleted
from rookery.wire.api.types import Many
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router
from rookery.wire.turn import Peer

UNCONNECTED: Final = "http"
"""The protocol that is shown for consumers without a connection of their own: webhooks, and readers that come back."""


class ConsumerShown(msgspec.Struct):
    """`credit` is how many unsettled deliveries it takes, null for any number; `connection` as in `/connections`."""

    id: str
    queue: str
    name: str
    protocol: str
    connection: str | None
    credit: int | None
    leased: int
    delivered: int
    priority: int


class ConsumerList(msgspec.Struct):
    """`more` says that there are others beyond the limit."""

    consumers: list[ConsumerShown]
    more: bool


class Consumers:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def all(self, call: Call, queue: str = "", limit: Many = 100) -> ConsumerList:
        """Who consumes from the queues that the caller may read, or from one of them."""
        if queue:
            queues = [self._api.rest.existing(call, queue, "read")]
        else:
            principal: Principal = call.principal
            queues = [q for q in self._api.tenant(call).queues.values() if principal.may("read", q.name)]
        found = [_shown(each) for each in _consumers(queues)]
        return ConsumerList(found[:limit], len(found) > limit)

    def cancel(self, call: Call, id: str) -> Deleted:
        """End a consumer of a queue that the caller may configure. Its peer is told where its protocol has a word for
        that; what it has leased stays with it.
        """
        for consumer in _consumers(list(self._api.tenant(call).queues.values())):
            if _shown(consumer).id == id:
                rights.require(call.principal, "consumer.cancel", "queue", consumer.queue.name)
                if isinstance(consumer, Mailbox):
                    raise Conflict("this consumer ends with its webhook or connection", argument="id")
                consumer.queue.unsubscribe(consumer)
                consumer.cancelled("cancelled by an operator")
                return Deleted(id)
        raise NotFound(f"no consumer {id!r}", argument="id")


def _consumers(queues: list[Queue]) -> Iterator[Subscription]:
    for queue in queues:
        yield from [each for each in queue.roster.all if not each.once]


def _shown(consumer: Subscription) -> ConsumerShown:
    peer = consumer.peer()
    connection = peer if isinstance(peer, Peer) else None
    protocol = UNCONNECTED if connection is None else connection.protocol
    return ConsumerShown(
        id=f"{protocol}-{id(consumer):x}",
        queue=consumer.queue.name,
        name=consumer.name,
        protocol=protocol,
        connection=None if connection is None else connection.label(),
        credit=None if int(consumer.limit) == NEVER else int(consumer.limit),
        leased=int(consumer.inflight),
        delivered=int(consumer.delivered),
        priority=int(consumer.priority),
    )


def add_routes(router: Router, api: Api) -> None:
    routes = Consumers(api)
    router.add("GET", "/api/v1/consumers", routes.all, {200: ConsumerList}, "consumer.list", tag="connections")
    router.add("DELETE", "/api/v1/consumers/{id}", routes.cancel, {200: Deleted}, "consumer.cancel", tag="connections")

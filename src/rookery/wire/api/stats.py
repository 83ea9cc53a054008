"""Sizes and counts of queues and topics, each by itself or all of a tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from rookery.core.access import Principal
from rookery.core.queue import Queue
from rookery.core.snapshots import dead_count, exchange_stats
from rookery.core.topology import STANDARD_EXCHANGES, Exchange, Tenant
from rookery.wire.api.broker import Api
from rookery.wire.api.types import Many
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router

STEP_QUEUES: Final = 1_000
"""So many queues are looked at in one turn."""


class QueueStats(msgspec.Struct):
    """`ready` can be pulled now, `delayed` later, `in_flight` is leased, `dlq_size` died in this queue."""

    queue: str
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    retries: int = 0
    dlq_size: int = 0
    published: int = 0
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    bytes: int = 0
    consumers: int = 0
    consumer_lag: int = 0
    oldest_age_ms: int = 0


class TopicStats(msgspec.Struct):
    topic: str
    subscriptions: int
    published: int
    unroutable: int
    bytes: int


class Stats(msgspec.Struct):
    """`more` says that there are queues or topics beyond the limit. `connections` are open ones, by protocol."""

    tenant: str
    queues: dict[str, QueueStats]
    topics: dict[str, TopicStats]
    more: bool
    connections: dict[str, int]


class StatsRoutes:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._rest = api.rest

    def stats(self, call: Call, limit: Many = 1_000) -> object:
        """Sizes of all queues and topics of the caller's tenant."""
        tenant = self._rest.tenant(call)
        connections = {name: face.count_in(tenant.name) for name, face in self._api.faces.items()}
        stats = Stats(tenant.name, {}, {}, False, connections)
        return self._api.in_steps(call, _look(tenant, call.principal, limit, stats), STEP_QUEUES, lambda: stats)


def _look(tenant: Tenant, principal: Principal, limit: int, stats: Stats) -> Iterator[None]:
    """Show the first queues and topics that a principal may read; a step for each that is looked at."""
    for queue in list(tenant.queues.values()):
        if queue.owner is None and not queue.deleted and principal.may("read", queue.name):
            if len(stats.queues) >= limit:
                stats.more = True
                break
            stats.queues[queue.name] = queue_stats(queue)
        yield
    for name, exchange in list(tenant.exchanges.items()):
        if exchange.kind == "topic" and name not in STANDARD_EXCHANGES and principal.may("read", name):
            if len(stats.topics) >= limit:
                stats.more = True
                break
            stats.topics[name] = topic_stats(exchange)
        yield


def queue_stats(queue: Queue) -> QueueStats:
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


def topic_stats(exchange: Exchange) -> TopicStats:
    stats: dict[str, Any] = exchange_stats(exchange)
    return TopicStats(exchange.name, stats["bindings"], stats["published"], stats["unroutable"], stats["bytes"])


def add_routes(router: Router, routes: StatsRoutes) -> None:
    router.add("GET", "/api/v1/stats", routes.stats, {200: Stats}, "tenant.stats", tag="operations")

"""For operators: is it alive, is it ready, what is going on.

`/health/ready` sends a message through the broker for real (publish, to disk, claim, ack), at most once a second
however often it is asked. `/metrics` shows totals to everyone, the queues of its tenant to a credential, and all
queues to an admin's; how many queues it names is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rookery import properties
from rookery.core.access import Principal
from rookery.core.queue import Queue
from rookery.core.topology import STANDARD_EXCHANGES, Tenant
from rookery.core.transactions import Publish
from rookery.errors import NotReady
from rookery.properties import Properties
from rookery.wire import rest_s2, rest_topics
from rookery.wire.http_call import Call
from rookery.wire.http_routes import LATER, Content, Router
from rookery.wire.rest import Rest
from rookery.wire.rest_keys import SYSTEM_TENANT
from rookery.wire.rest_types import Many

READY_QUEUE: Final = "rookery.ready"
READY_MAX_MS: Final = 5_000
READY_CACHE_MS: Final = 1_000
METRICS_QUEUES_MAX: Final = 1_000
TOTALS_QUEUES_PER_MS: Final = 10
"""So many queues are summed up for each millisecond that their sums are good for: 10,000 queues, once a second."""

PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"

_PROPS: Final = properties.encode(Properties(delivery_mode=2))
_TOTALS: Final = (
    ("published", "counter", "messages that entered queues by being published"),
    ("delivered", "counter", "deliveries"),
    ("acked", "counter", "messages acked"),
    ("nacked", "counter", "deliveries that were not acked"),
    ("retries", "counter", "deliveries to be repeated"),
    ("expired", "counter", "messages that outlived their time"),
    ("dead_lettered", "counter", "messages moved to a dead-letter target"),
    ("dlq_size", "gauge", "dead letters that wait, by the queue they died in"),
    ("ready", "gauge", "messages that wait for a consumer"),
    ("delayed", "gauge", "messages whose time has not come"),
    ("in_flight", "gauge", "messages under lease"),
    ("bytes", "gauge", "bytes of message bodies"),
    ("consumers", "gauge", "subscriptions"),
    ("consumer_lag", "gauge", "messages due and not yet settled"),
    ("oldest_age_ms", "gauge", "age of the oldest ready message"),
)


class Health(msgspec.Struct):
    status: str


class Ready(msgspec.Struct):
    """`took_ms` is how long the message was under way."""

    status: str
    took_ms: int


class Stats(msgspec.Struct):
    """`more` says that there are queues or topics beyond the limit."""

    tenant: str
    queues: dict[str, rest_s2.QueueStats]
    topics: dict[str, rest_topics.TopicStats]
    more: bool


class QueueMetrics(msgspec.Struct):
    tenant: str
    queue: str
    values: dict[str, int]


class Metrics(msgspec.Struct):
    """`omitted` counts the queues that are not named."""

    totals: dict[str, int]
    queues: list[QueueMetrics]
    omitted: int


class Operations:
    """The routes."""

    def __init__(self, rest: Rest, started_ms: int) -> None:
        self._rest = rest
        self._shard = rest.shard
        self._started_ms = started_ms
        self._ready: Ready | None = None
        self._ready_ms = 0
        self._totals: dict[str, int] = {}
        self._totals_until_ms = 0

    def health(self, call: Call) -> Health:
        """The process is alive."""
        return Health("ok")

    # Readiness

    def ready(self, call: Call) -> object:
        """A message made its way through the broker: published, on disk, claimed, acked."""
        now = int(self._shard.mono_ms)
        if self._ready is not None and now - self._ready_ms < READY_CACHE_MS:
            return self._ready
        if self._shard.log.failure is not None:
            raise NotReady(str(self._shard.log.failure))
        tenant = self._shard.tenants.get(SYSTEM_TENANT) or self._shard.create_tenant(SYSTEM_TENANT)
        queue, _ = tenant.declare_queue(READY_QUEUE, {"length_max": 1_000}, "embedded")
        self._rest.publish(tenant, Publish("", READY_QUEUE, _PROPS, b"ready?"))
        call.lasting()
        call.then = lambda: self._claim(call, queue, now)
        call.ready = True
        call.touch()
        return LATER

    def _claim(self, call: Call, queue: Queue, began_ms: int) -> object:
        leases = queue.claim(1_000, READY_MAX_MS)
        if not leases:
            raise NotReady("the message is not there")
        for lease in leases:
            queue.ack(lease)
        call.lasting()
        now = int(self._shard.mono_ms)
        self._ready = Ready("ready", now - began_ms)
        self._ready_ms = now
        return self._ready

    # Numbers

    def stats(self, call: Call, limit: Many = 1_000) -> Stats:
        """Sizes of all queues and topics of the caller's tenant."""
        tenant = self._rest.tenant(call)
        principal: Principal = call.principal
        queues = [q for q in tenant.queues.values() if q.owner is None and principal.may("read", q.name)]
        topics = [
            exchange
            for name, exchange in tenant.exchanges.items()
            if exchange.kind == "topic" and name not in STANDARD_EXCHANGES and principal.may("read", name)
        ]
        return Stats(
            tenant.name,
            {queue.name: rest_s2.show_stats(queue) for queue in queues[:limit]},
            {exchange.name: rest_topics.show_stats(exchange) for exchange in topics[:limit]},
            len(queues) > limit or len(topics) > limit,
        )

    def metrics(self, call: Call) -> object:
        """Counters and gauges, for Prometheus, or as JSON where that is asked for."""
        shown = self._metrics(call.principal)
        accept = call.header(b"accept")
        if "application/json" in accept and "text/plain" not in accept:
            return shown
        return Content(_exposition(shown, self._server_values()), PROMETHEUS)

    def _metrics(self, principal: Principal | None) -> Metrics:
        rows: list[QueueMetrics] = []
        omitted = 0
        if principal is not None:
            for queue in self._shown_to(principal):
                if len(rows) < METRICS_QUEUES_MAX:
                    rows.append(QueueMetrics(queue.tenant.name, queue.name, _values(queue)))
                else:
                    omitted += 1
        return Metrics(self._sums(), rows, omitted)

    def _shown_to(self, principal: Principal) -> Iterable[Queue]:
        for tenant in self._shard.tenants.values():
            if tenant.name != SYSTEM_TENANT and (principal.admin or principal.tenant == tenant.name):
                for queue in tenant.queues.values():
                    if principal.admin or principal.may("read", queue.name):
                        yield queue

    def _sums(self) -> dict[str, int]:
        """The sums over all queues, looked at again the less often the more queues there are."""
        now = int(self._shard.mono_ms)
        if self._totals and now < self._totals_until_ms:
            return self._totals
        totals = dict.fromkeys([name for name, _, _ in _TOTALS], 0)
        count = 0
        for tenant in self._shard.tenants.values():
            if tenant.name == SYSTEM_TENANT:
                continue
            for queue in tenant.queues.values():
                count += 1
                for name, value in _values(queue).items():
                    totals[name] = max(totals[name], value) if name == "oldest_age_ms" else totals[name] + value
        self._totals = totals
        self._totals_until_ms = now + count // TOTALS_QUEUES_PER_MS
        return totals

    def _server_values(self) -> list[tuple[str, str, str, int]]:
        shard = self._shard
        tenants: Iterable[Tenant] = shard.tenants.values()
        return [
            ("uptime_seconds", "gauge", "since the start", (int(shard.mono_ms) - self._started_ms) // 1000),
            ("memory_bytes", "gauge", "memory held by messages", int(shard.memory_bytes)),
            ("queues", "gauge", "queues", int(shard.queue_count)),
            ("tenants", "gauge", "tenants", len(shard.tenants)),
            ("journal_batches_total", "counter", "batches in the journal, each synced once", int(shard.log.durable)),
            ("refused_total", "counter", "publishes refused for want of room", sum(int(t.refused) for t in tenants)),
        ]


def _values(queue: Queue) -> dict[str, int]:
    stats = rest_s2.show_stats(queue)
    return {name: getattr(stats, name) for name, _, _ in _TOTALS}


def _exposition(shown: Metrics, server: list[tuple[str, str, str, int]]) -> bytes:
    """Prometheus' text format: totals under `rookery_…`, queues under `rookery_queue_…`."""
    lines: list[str] = []
    for name, kind, text, value in server:
        lines += [f"# HELP rookery_{name} {text}", f"# TYPE rookery_{name} {kind}", f"rookery_{name} {value}"]
    for name, kind, text in _TOTALS:
        full = f"rookery_{_counted(name, kind)}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {shown.totals[name]}"]
    if shown.queues:
        labels = [f'{{tenant="{_escape(row.tenant)}",queue="{_escape(row.queue)}"}}' for row in shown.queues]
        for name, kind, text in _TOTALS:
            full = f"rookery_queue_{_counted(name, kind)}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
            lines += [f"{full}{label} {row.values[name]}" for label, row in zip(labels, shown.queues, strict=True)]
        lines += ["# HELP rookery_queues_omitted queues that are not named here", "# TYPE rookery_queues_omitted gauge"]
        lines.append(f"rookery_queues_omitted {shown.omitted}")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _counted(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def add_routes(router: Router, operations: Operations) -> None:
    for root in ("", "/api/v1"):
        router.add("GET", f"{root}/health", operations.health, {200: Health}, public=True, tag="operations")
        router.add("GET", f"{root}/health/ready", operations.ready, {200: Ready}, public=True, tag="operations")
        router.add("GET", f"{root}/metrics", operations.metrics, {200: (Metrics, bytes)}, open=True, tag="operations")
    router.add("GET", "/api/v1/stats", operations.stats, {200: Stats}, tag="operations")

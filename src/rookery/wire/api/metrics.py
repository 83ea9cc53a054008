"""For operators: is it alive, is it ready, what is going on.

`/health/ready` sends a message through the broker for real (publish, to disk, claim, ack), at most once a second
however often it is asked. `/metrics` shows totals to everyone, the queues of its tenant to a credential, and all
queues to an admin's; how many queues it names is bounded. The sums over all queues are made in steps, once for all who
ask meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from rookery.wire.api import Api
from rookery.wire.http_call import Call
from rookery.wire.http_routes import LATER, Content, Router
from rookery.wire.rest_keys import SYSTEM_TENANT
from rookery.wire.rest_types import Many

READY_QUEUE: Final = "rookery.ready"
READY_MAX_MS: Final = 5_000
READY_CACHE_MS: Final = 1_000
METRICS_QUEUES_MAX: Final = 1_000
STEP_QUEUES: Final = 1_000
"""So many queues are looked at in one turn."""

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

    def __init__(self, api: Api, started_ms: int) -> None:
        self._api = api
        self._rest = api.rest
        self._shard = api.shard
        self._started_ms = started_ms
        self._ready: Ready | None = None
        self._ready_ms = 0
        # what else the server counts, for whoever knows of it to add
        self.server_values: list[Callable[[], tuple[str, str, str, int]]] = []
        self._totals = _no_totals()
        self._totals_until_ms = 0
        self._summing: Iterator[None] | None = None

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

    def stats(self, call: Call, limit: Many = 1_000) -> object:
        """Sizes of all queues and topics of the caller's tenant."""
        tenant = self._rest.tenant(call)
        stats = Stats(tenant.name, {}, {}, False)
        return self._api.in_steps(call, _look(tenant, call.principal, limit, stats), STEP_QUEUES, lambda: stats)

    def metrics(self, call: Call) -> object:
        """Counters and gauges, for Prometheus, or as JSON where that is asked for."""
        shown = Metrics({}, [], 0)
        accept = call.header(b"accept")

        def answer() -> object:
            shown.totals = self._totals
            if "application/json" in accept and "text/plain" not in accept:
                return shown
            return Content(_exposition(shown, self._server_values()), PROMETHEUS)

        return self._api.in_steps(call, self._measure(call.principal, shown), STEP_QUEUES, answer)

    def _measure(self, principal: Principal | None, shown: Metrics) -> Iterator[None]:
        """Bring the sums up to date and show the queues that a principal may see; a step for each queue."""
        if self._summing is None and int(self._shard.mono_ms) >= self._totals_until_ms:
            self._summing = self._sum()
        if self._summing is not None:
            yield from _together(self._summing)
        if principal is None:
            return
        for tenant in list(self._shard.tenants.values()):
            if tenant.name == SYSTEM_TENANT or not (principal.admin or principal.tenant == tenant.name):
                continue
            for queue in list(tenant.queues.values()):
                if not queue.deleted and (principal.admin or principal.may("read", queue.name)):
                    if len(shown.queues) < METRICS_QUEUES_MAX:
                        shown.queues.append(QueueMetrics(tenant.name, queue.name, _values(queue)))
                    else:
                        shown.omitted += 1
                yield

    def _sum(self) -> Iterator[None]:
        """Sum up all queues. The more there are, the longer their sums are good for."""
        now = int(self._shard.mono_ms)
        totals = _no_totals()
        count = 0
        try:
            for tenant in list(self._shard.tenants.values()):
                if tenant.name == SYSTEM_TENANT:
                    continue
                for queue in list(tenant.queues.values()):
                    if not queue.deleted:
                        count += 1
                        for name, value in _values(queue).items():
                            totals[name] = max(totals[name], value) if name == "oldest_age_ms" else totals[name] + value
                    yield
            self._totals = totals
            self._totals_until_ms = now + count // TOTALS_QUEUES_PER_MS
        finally:
            self._summing = None

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
            *[value() for value in self.server_values],
        ]


def _no_totals() -> dict[str, int]:
    return dict.fromkeys([name for name, _, _ in _TOTALS], 0)


def _together(work: Iterator[None]) -> Iterator[None]:
    """Go on with work that others go on with too, until one of them has come to its end."""
    for _ in work:
        yield


def _look(tenant: Tenant, principal: Principal, limit: int, stats: Stats) -> Iterator[None]:
    """Show the first queues and topics that a principal may read; a step for each that is looked at."""
    for queue in list(tenant.queues.values()):
        if queue.owner is None and not queue.deleted and principal.may("read", queue.name):
            if len(stats.queues) >= limit:
                stats.more = True
                break
            stats.queues[queue.name] = rest_s2.show_stats(queue)
        yield
    for name, exchange in list(tenant.exchanges.items()):
        if exchange.kind == "topic" and name not in STANDARD_EXCHANGES and principal.may("read", name):
            if len(stats.topics) >= limit:
                stats.more = True
                break
            stats.topics[name] = rest_topics.show_stats(exchange)
        yield


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
        router.add("GET", f"{root}/health", operations.health, {200: Health}, "server.health", tag="operations")
        router.add("GET", f"{root}/health/ready", operations.ready, {200: Ready}, "server.health", tag="operations")
        router.add(
            "GET", f"{root}/metrics", operations.metrics, {200: (Metrics, bytes)}, "server.metrics", tag="operations"
        )
    router.add("GET", "/api/v1/stats", operations.stats, {200: Stats}, "tenant.stats", tag="operations")

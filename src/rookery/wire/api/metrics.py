"""Counters and gauges, for Prometheus or as JSON.

`/metrics` shows totals to everyone, the queues of its tenant to a credential, and all queues to an admin's; how many
queues it names is bounded. The sums over all queues are made in steps, once for all who ask meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from rookery.core.access import Principal
from rookery.core.queue import Queue
from rookery.core.topology import Tenant
from rookery.wire.api.broker import Api
from rookery.wire.api.keys import SYSTEM_TENANT
from rookery.wire.api.stats import queue_stats
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Content, Router
from rookery.wire.turn import Face

METRICS_QUEUES_MAX: Final = 1_000

STEP_QUEUES: Final = 1_000
"""So many queues are looked at in one turn."""

TOTALS_QUEUES_PER_MS: Final = 10
"""So many queues are summed up for each millisecond that their sums are good for: 10,000 queues, once a second."""

PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"

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


class QueueMetrics(msgspec.Struct):
    tenant: str
    queue: str
    values: dict[str, int]


class Metrics(msgspec.Struct):
    """`omitted` counts the queues that are not named."""

    totals: dict[str, int]
    queues: list[QueueMetrics]
    omitted: int


class MetricsRoutes:
    """The routes."""

    def __init__(self, api: Api, started_ms: int) -> None:
        self._api = api
        self._shard = api.shard
        self._started_ms = started_ms
        # what else the server counts, for whoever knows of it to add
        self.server_values: list[Callable[[], tuple[str, str, str, int]]] = []
        self._totals = _no_totals()
        self._totals_until_ms = 0
        self._summing: Iterator[None] | None = None

    def metrics(self, call: Call) -> object:
        """Counters and gauges, for Prometheus, or as JSON where that is asked for."""
        shown = Metrics({}, [], 0)
        accept = call.header(b"accept")

        def answer() -> object:
            shown.totals = self._totals
            if "application/json" in accept and "text/plain" not in accept:
                return shown
            return Content(_exposition(shown, self._server_values(), self._api.faces), PROMETHEUS)

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


def _values(queue: Queue) -> dict[str, int]:
    stats = queue_stats(queue)
    return {name: getattr(stats, name) for name, _, _ in _TOTALS}


def _exposition(shown: Metrics, server: list[tuple[str, str, str, int]], faces: Mapping[str, Face]) -> bytes:
    """Prometheus' text format: totals under `rookery_…`, queues under `rookery_queue_…`."""
    lines: list[str] = []
    for name, kind, text, value in server:
        lines += [f"# HELP rookery_{name} {text}", f"# TYPE rookery_{name} {kind}", f"rookery_{name} {value}"]
    for full, kind, text, values in (
        ("protocol_connections", "gauge", "open connections", {p: len(face.connections) for p, face in faces.items()}),
        ("protocol_opened_total", "counter", "connections opened", {p: int(face.opened) for p, face in faces.items()}),
    ):
        lines += [f"# HELP rookery_{full} {text}, by protocol", f"# TYPE rookery_{full} {kind}"]
        lines += [f'rookery_{full}{{protocol="{protocol}"}} {value}' for protocol, value in values.items()]
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


def add_routes(router: Router, routes: MetricsRoutes) -> None:
    for root in ("", "/api/v1"):
        router.add(
            "GET", f"{root}/metrics", routes.metrics, {200: (Metrics, bytes)}, "server.metrics", tag="operations"
        )

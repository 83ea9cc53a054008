"""What is going on, as plain JSON values, taken when somebody asks: of a queue, an exchange, a tenant.

Counters only grow, and a queue's go with it; the others say what is so now. In every snapshot of a queue

    published + dead_lettered_in + moved_in + restored
        = ready + delayed + leased + acked + expired + dead_lettered + dropped + purged + moved_out
"""

from __future__ import annotations

from typing import Any, Final

from rookery.core.meters import Histogram
from rookery.core.queue import Queue
from rookery.core.topology import Exchange, Tenant

COUNTERS: Final = (
    "published",
    "dead_lettered_in",
    "moved_in",
    "restored",
    "delivered",
    "redelivered",
    "acked",
    "retried",
    "released",
    "rejected",
    "lapsed",
    "expired",
    "dead_lettered",
    "dropped",
    "purged",
    "moved_out",
    "refused",
)
"""A queue's counters, in the order in which they are shown; `restored` is what a restart brought back."""

_SUMMED: Final = ("ready", "delayed", "leased", "bytes", "consumers", "waiting_claims", "consumer_lag")


def dead_count(queue: Queue) -> int:
    """How many messages that died in this queue wait in its default dead-letter queue."""
    name = queue.settings.dead_letter_queue
    target = None if name is None else queue.tenant.queues.get(name)
    return 0 if target is None else target.origins.get(queue.name, 0)


def queue_stats(queue: Queue) -> dict[str, Any]:
    """One queue. `consumer_lag` is what its consumers are behind by: due and not yet settled (ready + leased)."""
    ready, leased = int(queue.ready), int(queue.leased)
    stats: dict[str, Any] = {
        "name": queue.name,
        "ready": ready,
        "delayed": int(queue.delayed),
        "leased": leased,
        "dead": dead_count(queue),
        **_counters(queue),
        "bytes": int(queue.bytes),
        "consumers": queue.consumers(),
        "waiting_claims": queue.waiting_claims(),
        "oldest_age_ms": int(queue.oldest_age_ms()),
        "consumer_lag": ready + leased,
        "wait_ms": histogram_stats(queue.wait_ms),
        "work_ms": histogram_stats(queue.work_ms),
    }
    return stats


def _counters(queue: Queue) -> dict[str, int]:
    return {name: int(getattr(queue, name)) for name in COUNTERS}


def histogram_stats(histogram: Histogram) -> dict[str, Any]:
    """Count, total, mean and quantiles, and the buckets that hold something as [upper bound, count]."""
    return {**histogram.as_dict(), "buckets": [[bound, count] for bound, count in histogram.buckets()]}


def exchange_stats(exchange: Exchange) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "kind": exchange.kind,
        "bindings": int(exchange.matcher.count),
        "published": int(exchange.published),
        "unroutable": int(exchange.unroutable),
        "bytes": int(exchange.bytes),
    }


def no_totals() -> dict[str, int]:
    """Sums over no queues."""
    return dict.fromkeys((*_SUMMED, "dead", *COUNTERS), 0)


def add_to_totals(totals: dict[str, int], queue: Queue) -> None:
    ready, leased = int(queue.ready), int(queue.leased)
    now = (ready, int(queue.delayed), leased, int(queue.bytes), queue.consumers(), queue.waiting_claims())
    for name, value in zip(_SUMMED, (*now, ready + leased), strict=True):
        totals[name] += value
    totals["dead"] += dead_count(queue)
    for name in COUNTERS:
        totals[name] += int(getattr(queue, name))


def tenant_stats(tenant: Tenant, totals: dict[str, int] | None = None) -> dict[str, Any]:
    """One tenant: what it has, and under `totals` the sums over the queues it has now, unless they are given."""
    if totals is None:
        totals = no_totals()
        for queue in tenant.queues.values():
            add_to_totals(totals, queue)
    return {
        "name": tenant.name,
        "queues": len(tenant.queues),
        "exchanges": len(tenant.exchanges),
        "bindings": tenant.bindings,
        "policies": len(tenant.policies),
        "published": int(tenant.published),
        "refused": int(tenant.refused),
        "dead_letters_lost": tenant.dead_letters_lost,
        "memory_bytes": int(tenant.memory_bytes),
        "memory_bytes_max": tenant.limits.memory_bytes_max,
        "definition_bytes": int(tenant.definition_bytes),
        "dedup_keys": len(tenant.dedup),
        "dedup_bytes": tenant.dedup.bytes,
        "dedup_duplicates": tenant.dedup.duplicates,
        "dedup_evicted": tenant.dedup.evicted,
        "totals": totals,
    }

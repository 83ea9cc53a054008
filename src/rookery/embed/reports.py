"""What a broker says about itself: its health for a glance, its meters for a monitor. All of it within a turn."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rookery.core.snapshots import exchange_stats, queue_stats, tenant_stats
from rookery.core.topology import Tenant
from rookery.embed.context import Context
from rookery.engine.engine import AsyncEngine, Engine
from rookery.format.model import MESSAGE_OVERHEAD_BYTES


def health(context: Context[Engine] | Context[AsyncEngine], topics: Collection[str], started_ms: int) -> dict[str, Any]:
    """Whether the broker has memory for one more message, and the numbers an operator asks for first. `topics` are
    those of its subscribers, one for each. Times are in milliseconds.
    """
    tenant = context.tenant
    limit = context.config.memory_bytes_max
    return {
        "status": "unhealthy" if limit and tenant.memory_bytes + MESSAGE_OVERHEAD_BYTES > limit else "healthy",
        "timestamp": context.engine.clock.wall_ms(),
        "uptime": context.engine.clock.mono_ms() - started_ms,
        "total_topics": len(set(topics)),
        "total_subscribers": len(topics),
        "memory_usage": int(tenant.memory_bytes),
        "memory_limit": limit,
        "metrics": {
            **_totals(tenant),
            "active_topics": len(set(topics)),
            "active_subscribers": len(topics),
            "last_error": context.last_error,
            "last_panic": context.last_panic,
            "last_panic_time": context.last_panic_ms,
        },
    }


def _totals(tenant: Tenant) -> dict[str, Any]:
    queues = tenant.queues.values()
    deliveries = sum(int(q.wait_ms.count) for q in queues)
    waited_ms = sum(int(q.wait_ms.total_ms) for q in queues)
    return {
        "total_published": int(tenant.published),
        "total_delivered": int(tenant.delivered_before) + sum(int(q.delivered) for q in queues),
        "total_dropped": int(tenant.dropped_before) + sum(int(q.dropped + q.expired) for q in queues),
        "average_latency": waited_ms / deliveries if deliveries else 0.0,
    }


def metrics(tenant: Tenant) -> dict[str, Any]:
    """All meters: of the tenant, of every queue and of every exchange."""
    return {
        "tenant": tenant_stats(tenant),
        "queues": {name: queue_stats(queue) for name, queue in tenant.queues.items()},
        "exchanges": {name: exchange_stats(exchange) for name, exchange in tenant.exchanges.items()},
    }

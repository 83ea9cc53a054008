"""What was published to topics, kept for a while: to be recovered or replayed, also after a restart.

Each topic that is kept has a durable queue of its own beside its subscribers' queues, in which messages stay for a
week. Recovering looks into it; replaying hands what is in it to today's subscribers, and stores nothing again. All
functions work within a turn.
"""

from __future__ import annotations

import hashlib
from typing import Final

from rookery.core import publishing
from rookery.core.entries import Entry
from rookery.core.queue import Queue
from rookery.core.topology import KEPT, Tenant
from rookery.format.model import FLAGS_MASK, PERSISTENT, Message

TOPICS: Final = "amq.topic"
"""The exchange on which topics of the embedded face and AMQP bindings meet."""

PREFIX: Final = KEPT
KEEP_MS: Final = 7 * 86_400_000


def name_of(key: str) -> str:
    """The name of the queue that keeps a topic's messages."""
    name = PREFIX + key
    return name if len(name.encode()) <= 255 else PREFIX + hashlib.sha256(key.encode()).hexdigest()


def keep(tenant: Tenant, key: str) -> None:
    """Have messages of this topic kept from now on; a pattern is no topic."""
    name = name_of(key)
    if name in tenant.queues or any(word in ("*", "#") for word in key.split(".")):
        return
    most = tenant.limits.kept_topics_max
    if most and tenant.kept_topics >= most:
        raise tenant.too_many("kept topics", "kept_topics_max", "topic")
    settings = {"ttl_ms": KEEP_MS, "ordered": False, "max_attempts": 0}
    queue, _ = tenant.declare_queue(name, settings, "embedded")
    tenant.bind(TOPICS, queue, key)


def kept_in(tenant: Tenant, key: str) -> Queue | None:
    """Where messages of a topic are: its keeper, or the queue of its name."""
    return tenant.queues.get(name_of(key)) or tenant.queues.get(key)


def recover(tenant: Tenant, key: str, limit: int) -> list[Entry]:
    """The kept messages of a topic (or the waiting ones of a queue), oldest first, expired ones left out."""
    queue = kept_in(tenant, key)
    if queue is None:
        return []
    entries = queue.ready_entries(limit)
    return entries[:limit] if limit else entries


def replay(tenant: Tenant, key: str, limit: int) -> int:
    """Hand the kept messages of a topic to its subscribers of today; how many messages."""
    kept = kept_in(tenant, key)
    entries = recover(tenant, key, limit)
    way = tenant.way(tenant.exchange(TOPICS), key)
    for entry in entries:
        old = entry.message
        flags = old.flags & FLAGS_MASK & ~PERSISTENT  # it is kept already
        again = Message(old.route, old.props, old.body, old.id, old.priority, old.expires_ms, flags)
        found = tenant.queues_for(way, old.props)
        queues = [queue for queue in found if not queue.name.startswith(PREFIX) and queue is not kept]
        publishing.offer_again(queues, again)
    return len(entries)

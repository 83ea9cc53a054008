"""What was published to topics, kept on disk for a while: to be recovered or replayed after a restart.

Each topic that was published to has a durable queue of its own beside its subscribers' queues, in which messages stay
for a week. Recovering looks into it; replaying hands what is in it to today's subscribers, and stores nothing again.
"""

from __future__ import annotations

import hashlib
from typing import Final

from rookery.core.queue import Queue
from rookery.embed.context import TOPICS, Context, EngineT
from rookery.embed.messages import Message, unpack
from rookery.errors import PersistenceDisabled, Unroutable
from rookery.model import Message as StoredMessage

PREFIX: Final = "amq.kept."
KEEP_MS: Final = 7 * 86_400_000


def name_of(key: str) -> str:
    """The name of the queue that keeps a topic's messages."""
    name = PREFIX + key
    return name if len(name.encode()) <= 255 else PREFIX + hashlib.sha256(key.encode()).hexdigest()


def keep(context: Context[EngineT], key: str) -> None:
    """Have messages of this topic kept from now on (within a turn)."""
    if not context.config.enable_persistence or any(word in ("*", "#") for word in key.split(".")):
        return
    name = name_of(key)
    if name not in context.tenant.queues:
        settings = {"ttl_ms": KEEP_MS, "ordered": False, "max_attempts": 0}
        queue, _ = context.tenant.declare_queue(name, settings, "embedded")
        context.tenant.bind(TOPICS, queue, key)


def check_reached(context: Context[EngineT], key: str, props: bytes) -> None:
    """Unroutable when nobody but the keeper would get a message (within a turn)."""
    tenant = context.tenant
    queues = tenant.queues_for(tenant.way(tenant.exchange(TOPICS), key), props)
    if all(queue.name.startswith(PREFIX) for queue in queues):
        raise Unroutable(f"nobody subscribes to {key!r}", argument="topic")


def recover(context: Context[EngineT], key: str, limit: int) -> list[Message]:
    """The kept messages of a topic (or the waiting ones of a queue), oldest first, expired ones left out."""
    queue = _kept(context, key)
    if queue is None:
        return []
    entries = queue.ready_entries(limit)
    return [unpack(entry, context.engine.shard.ids) for entry in (entries[:limit] if limit else entries)]


def replay(context: Context[EngineT], key: str, limit: int) -> int:
    """Hand the kept messages of a topic to its subscribers of today; how many messages."""
    kept = _kept(context, key)
    if kept is None:
        return 0
    tenant = context.tenant
    entries = kept.ready_entries(limit)
    if limit:
        entries = entries[:limit]
    for entry in entries:
        old = entry.message
        way = tenant.way(tenant.exchange(TOPICS), key)
        flags = old.flags & 0xFE  # not persistent: it is kept already
        again = StoredMessage(old.route, old.props, old.body, old.id, old.priority, old.expires_ms, flags)
        for queue in tenant.queues_for(way, old.props):
            if not queue.name.startswith(PREFIX) and queue is not kept:
                queue.offer(again, 0)
    return len(entries)


def _kept(context: Context[EngineT], key: str) -> Queue | None:
    if not context.config.enable_persistence:
        raise PersistenceDisabled("nothing is kept: persistence is off (enable_persistence)")
    return context.tenant.queues.get(name_of(key)) or context.tenant.queues.get(key)

"""Kept topics of an embedded broker: those that were published to while persistence was on. Within a turn."""

from __future__ import annotations

from rookery.core import keeping
from rookery.core.keeping import PREFIX
from rookery.embed.context import TOPICS, Context, EngineT
from rookery.embed.messages import Message, unpack
from rookery.errors import PersistenceDisabled, Unroutable

__all__ = ["PREFIX", "check_reached", "keep", "recover", "replay"]


def keep(context: Context[EngineT], key: str) -> None:
    """Have messages of this topic kept from now on, if anything is."""
    if context.config.enable_persistence:
        keeping.keep(context.tenant, key)


def check_reached(context: Context[EngineT], key: str, props: bytes) -> None:
    """Unroutable when nobody but the keeper would get a message."""
    tenant = context.tenant
    queues = tenant.queues_for(tenant.way(tenant.exchange(TOPICS), key), props)
    if all(queue.name.startswith(PREFIX) for queue in queues):
        raise Unroutable(f"nobody subscribes to {key!r}", argument="topic")


def recover(context: Context[EngineT], key: str, limit: int) -> list[Message]:
    _check(context)
    return [unpack(entry, context.engine.shard.ids) for entry in keeping.recover(context.tenant, key, limit)]


def replay(context: Context[EngineT], key: str, limit: int) -> int:
    _check(context)
    return keeping.replay(context.tenant, key, limit)


def _check(context: Context[EngineT]) -> None:
    if not context.config.enable_persistence:
        raise PersistenceDisabled("nothing is kept: persistence is off (enable_persistence)")

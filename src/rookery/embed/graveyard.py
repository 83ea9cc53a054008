"""The dead-letter topic of an embedded broker, when it is switched on: a queue that keeps, and a topic that tells.

Dead letters go to the topic, so that its subscribers hear of each; a queue of the topic's name is bound to it and keeps
them until they are drained or replayed. All functions work within a turn.
"""

from __future__ import annotations

from typing import Any

from rookery.core import dead_letters, publishing
from rookery.core.publishing import Publish
from rookery.core.queue import Queue
from rookery.embed.context import TOPICS, Context, check_topic
from rookery.embed.messages import Message, given_id, unpack
from rookery.embed.options import Config
from rookery.engine.engine import AsyncEngine, Engine
from rookery.errors import DeadLetterNotSupported
from rookery.format.model import PERSISTENT

HANDLING_MS = 30_000
"""The lease of a dead letter between taking it and deciding what becomes of it, which is one turn."""

Contexts = Context[Engine] | Context[AsyncEngine]


def prepare(context: Contexts, config: Config) -> None:
    """Make what dies of failure in this face's queues go where the settings say.

    The target is the face's default, so a queue may name another; and what is dropped or expires stays dropped.
    """
    target: dict[str, object] = {}
    if config.enable_dead_letter_queue:
        key = check_topic(config.dead_letter_topic)
        queue, _ = context.tenant.declare_queue(config.dead_letter_topic, {}, "dead-letter")
        context.tenant.bind(TOPICS, queue, key)
        target = {"dead_letter_exchange": TOPICS, "dead_letter_key": key}
    if target or "embedded" in context.tenant.face_defaults:
        context.tenant.set_face_defaults("embedded", target)


def find(context: Contexts) -> Queue:
    """The queue that keeps dead letters."""
    if not context.config.enable_dead_letter_queue:
        raise DeadLetterNotSupported("dead letters are switched off (enable_dead_letter_queue)")
    return context.tenant.queue(context.config.dead_letter_topic)


def bury(context: Contexts, p: Publish, body: object, reason: str) -> str:
    """A message that its publisher gives up on goes to the topic; its id."""
    find(context)
    shard = context.engine.shard
    tenant = context.tenant
    topics = tenant.exchange(TOPICS)
    flags = PERSISTENT if p.persistent else 0
    way = tenant.way(topics, p.key)
    message = publishing.new_message(shard, tenant, way, p.props, p.body, p.priority, 0, flags)
    graves = tenant.way(topics, check_topic(context.config.dead_letter_topic))
    dead_letters.bury_new(tenant, graves, p.key, message, reason)
    return given_id(body) or shard.ids.uuid(message.id)


def stats(context: Contexts) -> dict[str, Any]:
    config = context.config
    queue = find(context) if config.enable_dead_letter_queue else None
    return {
        "enabled": config.enable_dead_letter_queue,
        "topic": config.dead_letter_topic,
        "total_messages": 0 if queue is None else int(queue.dead_lettered_in),
        "current_count": 0 if queue is None else int(queue.ready + queue.delayed + queue.leased),
        "last_message_time": None if queue is None else int(queue.last_entered_ms) or None,
    }


def take(context: Contexts, limit: int, replay: bool) -> list[Message]:
    """Take dead letters out, for good or to publish them again; one that nobody would get stays."""
    taken: list[Message] = []
    queue = find(context)
    ids = context.engine.shard.ids
    for lease in queue.claim(limit or max(1, queue.ready), HANDLING_MS):
        stored = lease.entry.message
        if replay and not (stored.route.deaths and dead_letters.revive_to_topic(context.tenant, stored, TOPICS) > 0):
            queue.release(lease)
            continue
        taken.append(unpack(lease.entry, ids))
        queue.ack(lease)
    return taken

"""Topics: publish and subscribe with a buffer per subscriber, and acknowledgements by id.

A subscription is a queue of its own, bound to the topic exchange and gone with it, so priority, expiry, redelivery and
dead letters are the core's. Its subscriber gets messages, not leases: a message is settled as it is handed out,
unless it was published with an ack id, in which case it comes again until somebody calls `ack` for that id.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Self

from rookery.core import queue as core
from rookery.core.entries import Lease
from rookery.core.publishing import Batch, Publish
from rookery.core.receipts import ACK_ID_HEADER, ACK_TIMEOUT_HEADER
from rookery.embed import keeping
from rookery.embed.aio.deliveries import wait_for_leases
from rookery.embed.aio.queues import put, put_all
from rookery.embed.context import TOPICS, Context, check_ack, check_text, check_timeout
from rookery.embed.messages import Message, given_id, unpack
from rookery.embed.options import AckPolicy, SubOptions
from rookery.engine.engine import AsyncEngine
from rookery.engine.workers import AsyncSignal
from rookery.errors import (
    InvalidConfig,
    LimitExceeded,
    NotFound,
)

OVERFLOW: Final = {
    "drop_oldest": "drop-head",
    "drop_newest": "drop-new",
    "block_with_timeout": "drop-new",
    "close_subscriber": "close",
}
HANDLING_MS: Final = 30_000
"""The lease of a message between taking it from its queue and deciding how it is settled."""


class AsyncTopicSubscription:
    """A subscriber's own buffer of what is published to a topic. Iterate it, or call `get`; `cancel` ends it."""

    def __init__(self, topics: AsyncTopics, topic: str, queue: core.Queue, options: SubOptions) -> None:
        self._topics = topics
        self._context = topics.context
        self._queue = queue
        self.room = self._context.watch(AsyncSignal())
        self.options = options
        self.topic = topic
        self.received = 0

    def __repr__(self) -> str:
        return f"TopicSubscription({self.topic!r}, id={self.id!r})"

    @property
    def id(self) -> str:
        return self._queue.name

    @property
    def done(self) -> bool:
        """Whether it has ended: cancelled, closed because its buffer was full, or with its broker."""
        return self._queue.deleted or self._context.closed

    async def stats(self) -> dict[str, int]:
        """What was received and dropped, and how full the buffer is."""
        self._context.check_open()
        queue = self._queue
        return {
            "received": self.received,
            "dropped": int(queue.dropped + queue.expired),
            "queue_len": int(queue.ready + queue.delayed),
            "queue_cap": int(queue.length_max),
        }

    async def get(self, timeout_ms: int | None = None) -> Message:
        """The next message; TimeoutError when none came in time, NotFound when the subscription has ended."""
        check_timeout(timeout_ms)
        message = await self._get(timeout_ms)
        if message is None:
            self._context.check_open()
            if self.done:
                raise NotFound(f"the subscription to {self.topic!r} has ended", argument="subscription")
            raise TimeoutError(f"no message on {self.topic!r} within {timeout_ms} ms")
        return message

    async def _get(self, timeout_ms: int | None) -> Message | None:
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while not self.done:
            with self._context.engine:
                leases = self._queue.claim(1, HANDLING_MS)
            if not leases:
                left = None if until is None else (until - time.monotonic()) * 1000
                if left is not None and left <= 0:
                    return None
                leases = await wait_for_leases(self._context, self._queue, 1, HANDLING_MS, left)
            for lease in leases:
                message = self._hand_out(lease)
                if message is not None:
                    return message
        return None

    def _hand_out(self, lease: Lease) -> Message | None:
        """Settle a lease for the subscriber; its message, unless it is not for him or was acknowledged meanwhile."""
        message = unpack(lease.entry, self._context.engine.shard.ids)
        passes = self._passes(message)
        receipts = self._context.tenant.receipts
        with self._context.engine:
            self.room.set()
            if not passes or receipts.refuses(lease):
                self._queue.ack(lease)
                return None
            if not receipts.hand_out(lease):
                return None
            self.received += 1
        if lease.attempt > 1:
            self._context.observe("redeliver", message.topic, time.perf_counter(), None)
        return message

    def _passes(self, message: Message) -> bool:
        chosen = self.options.filter
        if chosen is None:
            return True
        try:
            return bool(chosen(message))
        except Exception as panic:  # noqa: BLE001 (a filter that fails lets nothing through, and is noted)
            self._context.note_panic(panic)
            return False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self._get(None)
        if message is None:
            raise StopAsyncIteration
        return message

    async def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        if self._context.closed:
            return
        with self._context.engine:
            self._topics.forget(self)
            self.room.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cancel()


class AsyncTopics:
    """The topics of one broker: who subscribes, and who waits for room."""

    def __init__(self, context: Context[AsyncEngine]) -> None:
        self.context = context
        self.subscriptions: dict[str, AsyncTopicSubscription] = {}
        self._blocking = 0
        self._sweep_at = 64

    # Subscribing

    def live(self) -> list[AsyncTopicSubscription]:
        """The subscriptions that have not ended; those closed because they were full are forgotten (within a turn)."""
        for subscription in [s for s in self.subscriptions.values() if s.done]:
            self.forget(subscription)
        return list(self.subscriptions.values())

    def add(self, topic: str, options: SubOptions) -> AsyncTopicSubscription:
        """A new subscription (within a turn)."""
        context = self.context
        config = context.config
        if config.topics_max or config.subscribers_max:
            self._check_limits(topic)
        elif len(self.subscriptions) >= self._sweep_at:
            self._sweep_at = 64 + 2 * len(self.live())
        name = context.next_name("sub")
        queue, _ = context.tenant.declare_queue(name, self._settings(options), "embedded", owner=self)
        try:
            context.tenant.bind(TOPICS, queue, topic)
        except BaseException:
            context.tenant.delete(queue, "refused")
            raise
        subscription = AsyncTopicSubscription(self, topic, queue, options)
        self.subscriptions[name] = subscription
        self._blocking += options.policy == "block_with_timeout"
        return subscription

    def _check_limits(self, topic: str) -> None:
        config = self.context.config
        live = self.live()
        topics = {s.topic for s in live}
        if config.topics_max and topic not in topics and len(topics) >= config.topics_max:
            raise LimitExceeded(f"there are {config.topics_max} topics already", argument="topic")
        if config.subscribers_max and sum(s.topic == topic for s in live) >= config.subscribers_max:
            raise LimitExceeded(f"topic {topic!r} has its {config.subscribers_max} subscribers", argument="topic")

    def _settings(self, options: SubOptions) -> dict[str, object]:
        config = self.context.config
        return {
            "durable": False,
            "length_max": options.buffer_size or config.buffer_size,
            "overflow": OVERFLOW[options.policy],
            "ordered": config.enable_priority_queue,
            "max_attempts": 4,
        }

    def forget(self, subscription: AsyncTopicSubscription) -> None:
        """End a subscription (within a turn)."""
        if self.subscriptions.pop(subscription.id, None) is not None:
            self._blocking -= subscription.options.policy == "block_with_timeout"
        queue = self.context.tenant.queues.get(subscription.id)
        if queue is not None:
            self.context.tenant.delete(queue, "cancelled")

    # Publishing

    async def publish(
        self, key: str, body: Any, ack: AckPolicy, ack_id: str | None, ack_timeout_ms: int | None, mandatory: bool
    ) -> str:
        """Publish to all subscribers of a topic once there is room with those who make a publisher wait for it."""
        context = self.context
        deadlines: dict[str, float] = {}
        while True:
            context.check_open()
            headers = self._ack_headers(ack, ack_id, ack_timeout_ms)
            p = context.pack(TOPICS, key, body, mandatory, headers)
            async with context.engine.change as engine:
                keeping.keep(context, key)
                if mandatory:
                    keeping.check_reached(context, key, p.props)
                full = self._crowded([p], deadlines)
                if full is None:
                    if headers is None:
                        return put(engine.shard, context.tenant, p, body)
                    number, repeat = context.tenant.receipts.publish(context.tenant, p, ack_id or "")
                    return (None if repeat else given_id(body)) or engine.shard.ids.uuid(number)
            await full.room.wait((deadlines[full.id] - time.monotonic()) * 1000)

    async def publish_many(self, key: str, bodies: list[Any]) -> Sequence[str]:
        """Publish all of them in one step, once there is room for all, or none when one is invalid."""
        context = self.context
        deadlines: dict[str, float] = {}
        while True:
            context.check_open()
            packed = context.pack_all(TOPICS, key, bodies)
            async with context.engine.change as engine:
                keeping.keep(context, key)
                full = self._crowded(packed, deadlines)
                if full is None:
                    return put_all(engine.shard, context.tenant, packed, bodies)
            await full.room.wait((deadlines[full.id] - time.monotonic()) * 1000)

    def _crowded(self, packed: Batch | list[Publish], deadlines: dict[str, float]) -> AsyncTopicSubscription | None:
        """A subscription that makes the publisher wait, and for which he has not waited long enough (within a turn)."""
        if not self._blocking or not packed:
            return None
        tenant = self.context.tenant
        bodies = packed.bodies if isinstance(packed, Batch) else [p.body for p in packed]
        size = sum(map(len, bodies))
        p = packed if isinstance(packed, Batch) else packed[0]
        for queue in tenant.queues_for(tenant.way(tenant.exchange(TOPICS), p.key), p.props):
            subscription = self.subscriptions.get(queue.name)
            if subscription is None or subscription.options.policy != "block_with_timeout":
                continue
            if queue.has_room_for(min(len(bodies), int(queue.length_max)), size):
                continue
            now = time.monotonic()
            until = deadlines.setdefault(subscription.id, now + subscription.options.block_timeout_ms / 1000)
            if now < until:
                subscription.room.clear()
                return subscription
        return None

    # Acknowledging

    def _check_enabled(self, argument: str) -> None:
        if not self.context.config.enable_ack_support:
            raise InvalidConfig("acknowledgements are switched off (enable_ack_support)", argument=argument)

    def _ack_headers(self, ack: str, ack_id: str | None, ack_timeout_ms: int | None) -> dict[str, object] | None:
        """The headers that make a message wait for an ack; None when it does not."""
        if ack != "none":
            self._check_enabled("ack")
        timeout = check_ack(ack, ack_id, ack_timeout_ms, self.context.config.ack_timeout_ms)
        if timeout is None:
            return None
        return {ACK_ID_HEADER: ack_id or "", ACK_TIMEOUT_HEADER: timeout}

    def ack(self, topic: str, ack_id: str) -> None:
        """The message with this ack id is done: nobody gets it again (within a turn)."""
        self._check_enabled("ack_id")
        self.context.tenant.receipts.ack(topic, check_text(ack_id, "ack_id"))

    def nack(self, topic: str, ack_id: str) -> None:
        """Everybody who has the message with this ack id gets it again now (within a turn)."""
        self._check_enabled("ack_id")
        self.context.tenant.receipts.nack(topic, check_text(ack_id, "ack_id"))

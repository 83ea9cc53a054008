"""Topics: publish and subscribe with a buffer per subscriber, and acknowledgements by id.

A subscription is a queue of its own, bound to the topic exchange and gone with it, so priority, expiry, redelivery and
dead letters are the core's. Its subscriber gets messages, not leases: a message is settled as it is handed out,
unless it was published with an ack id, in which case it comes again until somebody calls `ack` for that id.
"""

from __future__ import annotations

import time
from typing import Any, Final, Self, cast

from rookery import properties
from rookery.core import queue as core
from rookery.core.consumers import Mailbox
from rookery.core.entries import Lease
from rookery.embed.context import TOPICS, Context, check_wait
from rookery.embed.engine import AsyncEngine, AsyncSignal
from rookery.embed.messages import ACK_ID_HEADER, ACK_TIMEOUT_HEADER, Message, Parcel, unpack
from rookery.embed.options import SubOptions
from rookery.errors import InvalidConfig, LimitExceeded, MessageAcknowledged, MessageNotAcked
from rookery.model import Message as StoredMessage

OVERFLOW: Final = {
    "drop_oldest": "drop-head",
    "drop_newest": "drop-new",
    "block_with_timeout": "drop-new",
    "close_subscriber": "close",
}
HANDLING_MS: Final = 30_000
"""The lease of a message between taking it from its queue and deciding how it is settled: within one turn."""


class AsyncTopicSubscription:
    """A subscriber's own buffer of what is published to a topic. Iterate it, or call `get`; `cancel` ends it."""

    def __init__(self, topics: AsyncTopics, topic: str, queue: core.Queue, options: SubOptions) -> None:
        self._topics = topics
        self._context = topics.context
        self._queue = queue
        self._signal = self._context.watch(AsyncSignal())
        self._done = False
        self.room = self._context.watch(AsyncSignal())
        self.options = options
        self.topic = topic
        self.received = 0

    @property
    def id(self) -> str:
        return self._queue.name

    @property
    def done(self) -> bool:
        """Whether it has ended: cancelled, closed because its buffer was full, or with its broker."""
        return self._done or self._queue.deleted or self._context.closed

    @property
    def stats(self) -> dict[str, int]:
        """What was received and dropped, and how full the buffer is."""
        queue = self._queue
        return {
            "received": self.received,
            "dropped": int(queue.dropped + queue.expired + queue.refused),
            "queue_len": int(queue.ready + queue.delayed),
            "queue_cap": int(queue.length_max),
        }

    async def get(self, timeout_ms: int | None = None) -> Message:
        """The next message; TimeoutError when none came in time, LookupError when the subscription has ended."""
        if timeout_ms is not None:
            check_wait(timeout_ms, "timeout_ms")
        self._context.check_open()
        message = await self._get(timeout_ms)
        if message is None:
            if self.done:
                raise LookupError(f"the subscription to {self.topic!r} has ended")
            raise TimeoutError(f"no message on {self.topic!r} within {timeout_ms} ms")
        return message

    async def _get(self, timeout_ms: int | None) -> Message | None:
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while not self.done:
            with cast(AsyncEngine, self._context.engine) as engine:
                self._signal.clear()
                leases = self._queue.claim(1, HANDLING_MS)
                if leases:
                    message = self._hand_out(leases[0])
                    if message is not None:
                        return message
                    continue
                mailbox = engine.shard.wait_claim(self._queue, 1, HANDLING_MS)
                mailbox.on_event = self._signal
            left = None if until is None else (until - time.monotonic()) * 1000
            came = False
            try:
                came = await self._signal.wait(left)
            finally:
                message = self._stop_waiting(mailbox, came)
            if message is not None or not came:
                return message
        return None

    def _stop_waiting(self, mailbox: Mailbox, came: bool) -> Message | None:
        """End a waiting claim: what it got is handed out, or given back when nobody waits any more."""
        if self._context.closed:
            return None
        with cast(AsyncEngine, self._context.engine):
            self._queue.unsubscribe(mailbox)
            for lease in mailbox.take():
                if came:
                    return self._hand_out(lease)
                self._queue.release(lease)
        return None

    def _hand_out(self, lease: Lease) -> Message | None:
        """Settle a lease for the subscriber; its message, if it passes the filter (within a turn)."""
        message = unpack(lease.entry, self._context.engine.shard.ids)
        self._topics.handed_out(lease)
        self.room.set()
        if not self._passes(message):
            return None
        self.received += 1
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

    def __aiter__(self) -> AsyncTopicSubscription:
        return self

    async def __anext__(self) -> Message:
        message = await self._get(None)
        if message is None:
            raise StopAsyncIteration
        return message

    async def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        if self.done:
            self._done = True
            return
        with cast(AsyncEngine, self._context.engine):
            self._done = True
            self._topics.forget(self)
            self._signal.set()
            self.room.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cancel()


class _Pending:
    """A message published with an ack id: acknowledged by that id, whoever received it."""

    __slots__ = ("acked", "leases", "message")

    def __init__(self, message: StoredMessage) -> None:
        self.message = message
        self.leases: list[Lease] = []
        self.acked = False

    def live(self) -> list[Lease]:
        return [lease for lease in self.leases if lease.live]


class AsyncTopics:
    """The topics of one broker: who subscribes, and which ack ids are pending."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.subscriptions: dict[str, AsyncTopicSubscription] = {}
        self._pending: dict[tuple[str, str], _Pending] = {}

    # Subscribing

    def add(self, topic: str, options: SubOptions) -> AsyncTopicSubscription:
        """A new subscription (within a turn)."""
        context = self.context
        config = context.config
        live = [s for s in self.subscriptions.values() if not s.done]
        known = {s.topic for s in live}
        if config.topics_max and topic not in known and len(known) >= config.topics_max:
            raise LimitExceeded(f"there are {config.topics_max} topics already", argument="topic")
        if config.subscribers_max and sum(s.topic == topic for s in live) >= config.subscribers_max:
            raise LimitExceeded(f"topic {topic!r} has its {config.subscribers_max} subscribers", argument="topic")
        name = context.next_name("sub")
        queue, _ = context.tenant.declare_queue(name, self._settings(options), "embedded", owner=self)
        try:
            context.tenant.bind(TOPICS, queue, topic)
        except BaseException:
            context.tenant.delete(queue, "deleted")
            raise
        subscription = AsyncTopicSubscription(self, topic, queue, options)
        self.subscriptions[name] = subscription
        return subscription

    def _settings(self, options: SubOptions) -> dict[str, object]:
        config = self.context.config
        settings: dict[str, object] = {
            "durable": False,
            "length_max": options.buffer_size or config.buffer_size,
            "overflow": OVERFLOW[options.policy],
            "ordered": config.enable_priority_queue,
            "max_attempts": 4,
        }
        if config.enable_dead_letter_queue:
            settings["dead_letter_exchange"] = TOPICS
            settings["dead_letter_key"] = config.dead_letter_topic
        return settings

    def forget(self, subscription: AsyncTopicSubscription) -> None:
        self.subscriptions.pop(subscription.id, None)
        queue = self.context.tenant.queues.get(subscription.id)
        if queue is not None:
            self.context.tenant.delete(queue, "cancelled")

    # Waiting for room

    def crowded(self, key: str, parcel: Parcel, waited: set[str]) -> AsyncTopicSubscription | None:
        """A subscription that makes the publisher of this parcel wait, and for which it has not waited in vain yet."""
        if not self.subscriptions:
            return None
        tenant = self.context.tenant
        for queue in tenant.queues_for(tenant.way(tenant.exchange(TOPICS), key), parcel.props):
            subscription = self.subscriptions.get(queue.name)
            if (
                subscription is not None
                and subscription.options.policy == "block_with_timeout"
                and subscription.id not in waited
            ):
                subscription.room.clear()
                if not queue.has_room_for(1, len(parcel.body)):
                    return subscription
        return None

    def closed_by_overflow(self) -> None:
        """Forget subscriptions whose queue was closed because it was full."""
        for subscription in [s for s in self.subscriptions.values() if s.done]:
            del self.subscriptions[subscription.id]

    # Acknowledging

    def ack_headers(
        self, topic: str, ack: str, ack_id: str | None, ack_timeout_ms: int | None
    ) -> dict[str, object] | None:
        """The headers that make a message wait for an ack; None when it does not."""
        if ack not in ("none", "required", "timeout"):
            raise InvalidConfig(f"ack must be none, required or timeout, not {ack!r}", argument="ack")
        if ack == "none":
            if ack_id is not None or ack_timeout_ms is not None:
                raise InvalidConfig("an ack id or timeout needs ack='required' or ack='timeout'", argument="ack")
            return None
        if not self.context.config.enable_ack_support:
            raise InvalidConfig("acknowledgements are switched off (enable_ack_support)", argument="ack")
        if ack == "timeout" and ack_timeout_ms is None:
            raise InvalidConfig("ack='timeout' needs ack_timeout_ms", argument="ack_timeout_ms")
        timeout = self.context.config.ack_timeout_ms if ack_timeout_ms is None else ack_timeout_ms
        if type(timeout) is not int or timeout < 1:
            raise InvalidConfig("ack_timeout_ms must be an int of at least 1", argument="ack_timeout_ms")
        if ack_id is not None:
            self._prune()
            if (topic, ack_id) in self._pending:
                raise MessageAcknowledged(f"ack id {ack_id!r} is pending on {topic!r} already", argument="ack_id")
        return {ACK_ID_HEADER: ack_id or "", ACK_TIMEOUT_HEADER: timeout}

    def track(self, topic: str, ack_id: str, message: StoredMessage) -> None:
        self._pending[topic, ack_id] = _Pending(message)

    def handed_out(self, lease: Lease) -> None:
        """Settle a message that a subscriber takes, or start to wait for its ack."""
        headers: dict[str, Any] = properties.headers(lease.entry.message.props)
        if ACK_ID_HEADER not in headers or lease.entry.message.route.deaths:
            lease.queue.ack(lease)
            return
        pending = self._pending.get((lease.entry.message.route.key, self._ack_id(lease, headers)))
        if pending is None or pending.acked:
            lease.queue.ack(lease)
            return
        pending.leases = [*pending.live(), lease]
        lease.queue.extend(lease, int(headers[ACK_TIMEOUT_HEADER]))

    def _ack_id(self, lease: Lease, headers: dict[str, Any]) -> str:
        return str(headers[ACK_ID_HEADER]) or self.default_ack_id(lease.entry.message)

    def default_ack_id(self, message: StoredMessage) -> str:
        """The ack id of a message that was published without one: made of its id."""
        return properties.message_id(message.props) or self.context.engine.shard.ids.uuid(message.public_id)

    def _prune(self) -> None:
        """Forget ack ids whose messages no queue holds any more."""
        for place in [p for p, pending in self._pending.items() if pending.message.refs == 0]:
            del self._pending[place]

    def _find(self, topic: str, ack_id: str) -> _Pending:
        if not self.context.config.enable_ack_support:
            raise InvalidConfig("acknowledgements are switched off (enable_ack_support)", argument="ack_id")
        pending = self._pending.get((topic, ack_id))
        if pending is None or pending.message.refs == 0:
            raise MessageNotAcked(f"no message with ack id {ack_id!r} waits on {topic!r}", argument="ack_id")
        return pending

    def ack(self, topic: str, ack_id: str) -> None:
        pending = self._find(topic, ack_id)
        pending.acked = True
        for lease in pending.live():
            lease.queue.ack(lease)
        del self._pending[topic, ack_id]

    def nack(self, topic: str, ack_id: str) -> None:
        pending = self._find(topic, ack_id)
        leases = pending.live()
        if not leases:
            raise MessageNotAcked(f"the message with ack id {ack_id!r} is not with a subscriber", argument="ack_id")
        for lease in leases:
            lease.queue.retry(lease, 0, "negative acknowledgement")

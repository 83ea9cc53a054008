"""Topics: publish and subscribe with a buffer per subscriber, which is a queue of its own at the broker.

The queue is deleted with the subscription, or by the broker when nobody has read it for a while, so a subscriber whose
connection breaks goes on with what came meanwhile. A message is acked as it is handed out, unless it waits for an ack
by id: that is the broker's business.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final, Self

from rookery.client.aio.deliveries import claim, settle_in_queue
from rookery.client.aio.link import AsyncLink
from rookery.client.aio.queues import AsyncQueue, bind
from rookery.client.http import part
from rookery.client.messages import unpack
from rookery.embed.aio.topics import OVERFLOW
from rookery.embed.context import TOPICS, check_timeout
from rookery.embed.messages import Message
from rookery.embed.options import SubOptions
from rookery.errors import BrokerClosed, InvalidConfig, LeaseLost, NotFound, RookeryError

KEPT_MS: Final = 300_000
BUFFER: Final = 16
AT_ONCE: Final = 16
"""How many messages are fetched in one request."""


class AsyncTopicSubscription:
    """A subscriber's own buffer of what is published to a topic. Iterate it, or call `get`; `cancel` ends it."""

    def __init__(self, link: AsyncLink, topic: str, name: str, options: SubOptions) -> None:
        self._link = link
        self._queue = AsyncQueue(link, name)
        self._inbox: deque[tuple[Message, str]] = deque()
        self._done = False
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
        """Whether it has ended, as far as is known: cancelled, closed because its buffer was full, or with its
        client.
        """
        return self._done or self._link.closed

    async def stats(self) -> dict[str, int]:
        """What was received and dropped, and how full the buffer is."""
        stats = await self._queue.stats()
        return {
            "received": self.received,
            "dropped": int(stats["dropped"] + stats["expired"]),
            "queue_len": len(self._inbox) + int(stats["ready"] + stats["delayed"]),
            "queue_cap": self.options.buffer_size or BUFFER,
        }

    async def get(self, timeout_ms: int | None = None) -> Message:
        """The next message; TimeoutError when none came in time, NotFound when the subscription has ended."""
        message = await self._get(check_timeout(timeout_ms))
        if message is None:
            self._link.check_open()
            if self._done:
                raise NotFound(f"the subscription to {self.topic!r} has ended", argument="subscription")
            raise TimeoutError(f"no message on {self.topic!r} within {timeout_ms} ms")
        return message

    async def _get(self, timeout_ms: int | None) -> Message | None:
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while not self.done:
            while (found := self._next()) is not None:
                message, lease = found
                if self._passes(message):
                    self.received += 1
                    return message
                if message.ack_id is not None:
                    await self._let_go(lease)
            left = None if until is None else max(0.0, (until - time.monotonic()) * 1000)
            try:
                claimed = await claim(self._link, self.id, AT_ONCE, left, None, ack=True)
            except NotFound:
                self._done = True
                return None
            self._inbox.extend((unpack(got), got.lease) for got in claimed)
            if not claimed and until is not None and time.monotonic() >= until:
                return None
        return None

    async def _let_go(self, lease: str) -> None:
        """A message that is not for this subscriber waits for no ack of his."""
        try:
            await settle_in_queue(self._link, self.id, [lease], "ack", -1, "")
        except (LeaseLost, NotFound):
            return

    def _next(self) -> tuple[Message, str] | None:
        try:
            return self._inbox.popleft()
        except IndexError:
            return None

    def _passes(self, message: Message) -> bool:
        chosen = self.options.filter
        if chosen is None:
            return True
        try:
            return bool(chosen(message))
        except Exception as panic:  # noqa: BLE001 (a filter that fails lets nothing through, and is noted)
            self._link.note_panic(panic)
            return False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            message = await self._get(None)
        except BrokerClosed:
            message = None
        if message is None:
            raise StopAsyncIteration
        return message

    async def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        if self.done:
            return
        self._done = True
        try:
            await self._queue.delete()
        except RookeryError:
            # it goes by itself
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cancel()


async def subscribe(link: AsyncLink, topic: str, options: SubOptions) -> AsyncTopicSubscription:
    """Make the queue of a subscription and bind it."""
    if options.policy == "block_with_timeout":
        raise InvalidConfig("publishers elsewhere cannot be made to wait: choose another policy", argument="policy")
    name = link.next_name("topic")
    path = f"/api/v1/queues/{part(name)}"
    settings: dict[str, Any] = {
        "durable": False,
        "expires_ms": KEPT_MS,
        "length_max": options.buffer_size or BUFFER,
        "overflow": OVERFLOW[options.policy],
        "max_attempts": 4,
    }
    await link.put(path, settings)
    link.declared(f"queue {name}", "PUT", path, settings)
    made = AsyncTopicSubscription(link, topic, name, options)
    try:
        await bind(link, TOPICS, name, "queue", topic, None)
    except RookeryError:
        await made.cancel()
        raise
    return made

"""Requests: a message that asks for an answer, and the queue in which the answer is waited for.

A reply queue whose answer came is kept for the next request, so that steady traffic changes no topology. The broker
deletes one that nobody has used for a while.
"""

from __future__ import annotations

import copy
import time
from typing import Any, Final

from rookery.client.aio.deliveries import claim
from rookery.client.aio.link import AsyncLink
from rookery.client.aio.queues import AsyncQueue
from rookery.client.http import part
from rookery.client.messages import unpack
from rookery.embed.messages import Message
from rookery.errors import ReplyTimeout, RookeryError

REPLY_QUEUES_MAX: Final = 16
KEPT_MS: Final = 300_000


class AsyncRequests:
    """The requests of one client."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self._idle: list[str] = []

    async def request(self, queue: str, body: Any, timeout_ms: int) -> Any:
        """Publish a request to a queue; the value of the answer, or ReplyTimeout."""
        message = copy.copy(body) if isinstance(body, Message) else Message(body)
        if message.ttl_ms is None and message.expires_at is None:
            message.ttl_ms = timeout_ms
        if message.correlation_id is None:
            message.correlation_id = self._link.next_name("request")
        replies = await self._open()
        message.reply_to = replies
        answer: Message | None = None
        try:
            await AsyncQueue(self._link, queue).publish(message)
            answer = await self._answer(replies, message.correlation_id, timeout_ms)
        finally:
            if not self._link.closed:
                await self._close(replies, answer is not None)
        if answer is None:
            raise ReplyTimeout(f"no reply from {queue!r} within {timeout_ms} ms")
        return answer.data

    async def _answer(self, replies: str, correlation_id: str, timeout_ms: int) -> Message | None:
        until = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(0, int((until - time.monotonic()) * 1000))
            answers = [unpack(got) for got in await claim(self._link, replies, 1, left_ms, None, ack=True)]
            for answer in answers:
                if answer.correlation_id == correlation_id:
                    return answer
            if not answers:
                return None

    async def _open(self) -> str:
        """A queue for the answer to one request."""
        if self._idle:
            return self._idle.pop()
        name = self._link.next_name("reply")
        path = f"/api/v1/queues/{part(name)}"
        body = {"durable": False, "expires_ms": KEPT_MS}
        await self._link.put(path, body)
        self._link.declared(f"queue {name}", "PUT", path, body)
        return name

    async def _close(self, name: str, answered: bool) -> None:
        """Keep a queue whose answer came; into another one it may still come."""
        if answered and len(self._idle) < REPLY_QUEUES_MAX:
            self._idle.append(name)
            return
        try:
            await AsyncQueue(self._link, name).delete()
        except RookeryError:
            # it goes by itself
            return

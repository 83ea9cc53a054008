"""Requests: a message that asks for an answer, and the queue in which the answer is waited for.

A reply queue whose answer came is kept for the next request, so that steady traffic changes no topology.
"""

from __future__ import annotations

import copy
import time
from typing import Any, Final

from rookery.embed.aio.deliveries import AsyncDelivery
from rookery.embed.aio.queues import AsyncQueue
from rookery.embed.context import Context
from rookery.embed.messages import Message
from rookery.engine.engine import AsyncEngine
from rookery.errors import ReplyTimeout

REPLY_QUEUES_MAX: Final = 16
"""How many reply queues are kept."""


class AsyncRequests:
    """The requests of one broker."""

    def __init__(self, context: Context[AsyncEngine]) -> None:
        self._context = context
        self._idle: list[str] = []

    async def request(self, queue: str, body: Any, timeout_ms: int) -> Any:
        """Publish a request to a queue; the value of the answer, or ReplyTimeout."""
        context = self._context
        message = copy.copy(body) if isinstance(body, Message) else Message(body)
        if message.ttl_ms is None and message.expires_at is None:
            message.ttl_ms = timeout_ms
        answer: AsyncDelivery | None = None
        with context.engine:
            replies = self._open()
            message.reply_to = replies
            if message.correlation_id is None:
                message.correlation_id = context.next_name("request")
        try:
            await AsyncQueue(context, queue).publish(message)
            answer = await self._answer(replies, message.correlation_id, timeout_ms)
        finally:
            if not context.closed:
                with context.engine:
                    self._close(replies, answer is not None)
        if answer is None:
            raise ReplyTimeout(f"no reply from {queue!r} within {timeout_ms} ms")
        return answer.data

    async def _answer(self, replies: str, correlation_id: str, timeout_ms: int) -> AsyncDelivery | None:
        until = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(0, int((until - time.monotonic()) * 1000))
            answers = await AsyncQueue(self._context, replies).claim(1, wait_ms=left_ms)
            for answer in answers:
                await answer.ack()
                if answer.message.correlation_id == correlation_id:
                    return answer
            if not answers:
                return None

    def _open(self) -> str:
        """A queue for the answer to one request (within a turn)."""
        if self._idle:
            return self._idle.pop()
        name = self._context.next_name("reply")
        self._context.tenant.declare_queue(name, {"durable": False}, "embedded", owner=self)
        return name

    def _close(self, name: str, answered: bool) -> None:
        """Keep a queue whose answer came; into another one it may still come (within a turn)."""
        if answered and len(self._idle) < REPLY_QUEUES_MAX:
            self._idle.append(name)
        else:
            self._context.tenant.delete_queue(name, owner=self)

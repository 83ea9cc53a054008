"""Handlers: functions that are called for each message of a queue, with the body as the type they ask for.

The handler returns: the message is acked (and answered, when it asked for a reply). It raises: the message is retried
by the queue's rule, or rejected when it raised `Reject`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, cast

import msgspec

from rookery.embed.aio.deliveries import AsyncDelivery, AsyncQueueSubscription
from rookery.embed.context import Context
from rookery.embed.engine import AsyncEngine
from rookery.embed.messages import Message
from rookery.errors import BrokerClosed, LeaseLost, Reject


class AsyncHandler:
    """One registered function and the queue it serves."""

    def __init__(
        self, context: Context, queue: str, function: Callable[..., Any], concurrency: int, settings: dict[str, Any]
    ) -> None:
        self.context = context
        self.queue = queue
        self.function = function
        self.concurrency = concurrency
        self.settings = settings
        self._wanted = wanted_type(function)

    def _argument(self, delivery: AsyncDelivery) -> Any:
        wanted = self._wanted
        if wanted is None:
            return delivery.data
        if wanted is AsyncDelivery:
            return delivery
        if wanted is Message:
            return delivery.message
        if wanted is bytes:
            return delivery.body
        if wanted is str:
            return delivery.body.decode()
        return msgspec.json.decode(delivery.body, type=wanted)

    async def run(self, subscription: AsyncQueueSubscription) -> None:
        """Handle one delivery after the other until the subscription ends."""
        async for delivery in subscription:
            try:
                await self._handle(delivery)
            except (LeaseLost, BrokerClosed):
                continue

    async def _handle(self, delivery: AsyncDelivery) -> None:
        try:
            argument = self._argument(delivery)
        except (ValueError, msgspec.DecodeError, msgspec.ValidationError) as error:
            await delivery.reject(f"{type(error).__name__}: {error}")
            return
        try:
            result = await cast(AsyncEngine, self.context.engine).call(self.function, argument)
        except Reject as unfit:
            await delivery.reject(str(unfit))
            return
        except Exception as error:  # noqa: BLE001 (whatever a handler raises means: try again)
            self.context.note_panic(error)
            await delivery.retry(reason=f"{type(error).__name__}: {error}")
            return
        if self._wanted is AsyncDelivery and not delivery.lease.live:
            return
        if result is not None and delivery.message.reply_to:
            await delivery.reply(result)
        else:
            await delivery.ack()


def wanted_type(function: Callable[..., Any]) -> Any:
    """The type that the handler's first parameter asks for, None when it says nothing."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        hints = getattr(function, "__annotations__", {})
    for name in inspect.signature(function).parameters:
        wanted = hints.get(name)
        return None if wanted is Any else wanted
    return None

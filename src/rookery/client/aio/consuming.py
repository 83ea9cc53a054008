"""A consumer that calls a function for each message of a queue, and tries again what failed as a policy says."""

from __future__ import annotations

from typing import Any

from rookery.client.aio.deliveries import AsyncDelivery
from rookery.client.aio.subscriptions import AsyncQueueSubscription
from rookery.client.retrying import RetryPolicy
from rookery.embed.aio.handlers import AsyncHandler
from rookery.errors import BrokerClosed, LeaseLost


class AsyncConsumer:
    """Runs until it is cancelled, or its client is closed."""

    def __init__(self, handler: AsyncHandler, subscription: AsyncQueueSubscription, retry: RetryPolicy | None) -> None:
        self._handler = handler
        self._subscription = subscription
        self._retry = retry

    def __repr__(self) -> str:
        return f"Consumer({self._subscription.queue!r})"

    @property
    def done(self) -> bool:
        return self._subscription.done

    async def run(self) -> None:
        """Handle one delivery after the other."""
        if self._retry is None:
            await self._handler.run(self._subscription)
            return
        async for delivery in self._subscription:
            try:
                await self._handler.handle(_Patient(delivery, self._retry))
            except (LeaseLost, BrokerClosed):
                continue

    async def cancel(self) -> None:
        """Take no more messages; a second call does nothing."""
        await self._subscription.cancel()


class _Patient:
    """A delivery whose retries are a policy's."""

    def __init__(self, delivery: AsyncDelivery, policy: RetryPolicy) -> None:
        self._delivery = delivery
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    async def retry(self, delay_ms: int | None = None, reason: str = "") -> None:
        pauses = list(self._policy.pauses())
        attempt = self._delivery.attempt
        if attempt > len(pauses):
            await self._delivery.reject(reason)
        else:
            await self._delivery.retry(int(pauses[attempt - 1] * 1000) if delay_ms is None else delay_ms, reason)

"""A transaction as a block: publishes and settles that happen together at its end, or not at all."""

from __future__ import annotations

from typing import Any, Self, cast

from rookery.core.transactions import Publish, Settle
from rookery.embed.aio.deliveries import AsyncDelivery
from rookery.embed.context import TOPICS, Context, check_topic, check_wait
from rookery.embed.engine import AsyncEngine
from rookery.errors import InvalidArgument, LeaseLost


class AsyncTransaction:
    """Collects operations; leaving the block commits them, an exception in it (or `rollback`) drops them."""

    def __init__(self, context: Context, timeout_ms: int) -> None:
        self._context = context
        self._timeout_ms = timeout_ms
        self._ended = False
        self.id = ""

    async def __aenter__(self) -> Self:
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine) as engine:
            name = self._context.next_name("transaction")
            engine.shard.transactions.begin(self._context.tenant, name, self._timeout_ms)
            self.id = name
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._ended:
            return
        if kind is None:
            try:
                await self.commit()
            except BaseException:
                await self.rollback()
                raise
        else:
            await self.rollback()

    async def publish(self, topic: str, body: Any) -> None:
        """Publish to a topic when the transaction commits."""
        self._add_publish(TOPICS, check_topic(topic), body)

    async def publish_to_queue(self, queue: str, body: Any) -> None:
        """Publish to a queue when the transaction commits."""
        self._context.tenant.queue(queue)
        self._add_publish("", queue, body)

    async def publish_to_exchange(self, exchange: str, key: str, body: Any) -> None:
        """Publish to an exchange when the transaction commits."""
        self._add_publish(exchange, key, body)

    def _add_publish(self, exchange: str, key: str, body: Any) -> None:
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine) as engine:
            transactions = engine.shard.transactions
            transaction = transactions.get(self._context.tenant, self.id)
            p = self._context.parcel(body)
            operation = Publish(
                exchange, key, p.props, p.body, p.priority, p.expires_ms, p.due_ms, p.persistent, p.dedup_key
            )
            transactions.add(transaction, operation)

    async def ack(self, delivery: AsyncDelivery) -> None:
        """Ack a delivery when the transaction commits."""
        self._add_settle(delivery, "ack", None, "")

    async def retry(self, delivery: AsyncDelivery, delay_ms: int | None = None, reason: str = "") -> None:
        self._add_settle(delivery, "retry", delay_ms, reason)

    async def release(self, delivery: AsyncDelivery) -> None:
        self._add_settle(delivery, "release", None, "")

    async def reject(self, delivery: AsyncDelivery, reason: str = "") -> None:
        self._add_settle(delivery, "reject", None, reason)

    def _add_settle(self, delivery: AsyncDelivery, outcome: str, delay_ms: int | None, reason: str) -> None:
        if not isinstance(delivery, AsyncDelivery):
            raise InvalidArgument("delivery must be a Delivery", argument="delivery")
        delay = -1 if delay_ms is None else check_wait(delay_ms, "delay_ms")
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine) as engine:
            transactions = engine.shard.transactions
            transaction = transactions.get(self._context.tenant, self.id)
            if not delivery.lease.live:
                raise LeaseLost(f"lease {delivery.token} has ended", argument="lease")
            transactions.add(transaction, Settle(delivery.lease, outcome, delay, reason))

    async def commit(self) -> None:
        """Do all of it now; when that is not possible, an error says why and nothing was done."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine) as engine:
            engine.shard.transactions.commit(self._context.tenant, self.id)
            self._ended = True

    async def rollback(self) -> None:
        """Drop all of it."""
        self._ended = True
        if self._context.closed:
            return
        with cast(AsyncEngine, self._context.engine) as engine:
            transactions = engine.shard.transactions
            if transactions.is_open(self._context.tenant, self.id):
                transactions.rollback(self._context.tenant, self.id)

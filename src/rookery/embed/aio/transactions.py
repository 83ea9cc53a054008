"""A transaction as a block: publishes and settles that happen together at its end, or not at all."""

from __future__ import annotations

from typing import Any, Self

from rookery.core.publishing import Publish
from rookery.core.transactions import Settle
from rookery.embed import keeping
from rookery.embed.aio.deliveries import AsyncDelivery, check_delay, lease_of
from rookery.embed.context import TOPICS, Context, check_key, check_name, check_text, check_topic
from rookery.embed.options import Outcome
from rookery.engine.engine import AsyncEngine
from rookery.errors import LeaseLost


class AsyncTransaction:
    """Collects operations; leaving the block commits them, an exception in it (or `rollback`) drops them."""

    def __init__(self, context: Context[AsyncEngine], timeout_ms: int) -> None:
        self._context = context
        self._timeout_ms = timeout_ms
        self._ended = False
        self.id = ""

    def __repr__(self) -> str:
        return f"Transaction({self.id!r})"

    async def __aenter__(self) -> Self:
        context = self._context
        context.check_open()
        with context.engine as engine:
            name = context.next_name("transaction")
            engine.shard.transactions.begin(context.tenant, name, self._timeout_ms)
            self.id = name
            self._ended = False
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._ended:
            return
        try:
            if kind is None:
                await self.commit()
        finally:
            self._drop()

    async def publish(self, topic: str, body: Any) -> None:
        """Publish to a topic when the transaction commits."""
        self._context.check_open()
        key = check_topic(topic)
        with self._context.engine:
            keeping.keep(self._context, key)
        self._add(self._context.pack(TOPICS, key, body))

    async def publish_to_queue(self, queue: str, body: Any) -> None:
        """Publish to a queue when the transaction commits; the queue must exist now and then."""
        self._context.check_open()
        self._context.tenant.queue(check_name(queue, "queue"))
        self._add(self._context.pack("", queue, body, True))

    async def publish_to_exchange(self, exchange: str, key: str, body: Any) -> None:
        """Publish to an exchange when the transaction commits."""
        self._context.check_open()
        self._context.tenant.exchange(check_text(exchange, "exchange"))
        self._add(self._context.pack(exchange, check_key(key), body))

    async def ack(self, delivery: AsyncDelivery) -> None:
        """Ack a delivery when the transaction commits."""
        self._add_settle(delivery, "ack", -1, "")

    async def retry(self, delivery: AsyncDelivery, delay_ms: int | None = None, reason: str = "") -> None:
        self._add_settle(delivery, "retry", check_delay(delay_ms), reason)

    async def release(self, delivery: AsyncDelivery) -> None:
        self._add_settle(delivery, "release", -1, "")

    async def reject(self, delivery: AsyncDelivery, reason: str = "") -> None:
        self._add_settle(delivery, "reject", -1, reason)

    def _add_settle(self, delivery: AsyncDelivery, outcome: Outcome, delay_ms: int, reason: str) -> None:
        self._context.check_open()
        lease = lease_of(self._context, delivery)
        self._add(Settle(lease, outcome, delay_ms, check_text(reason, "reason")))

    def _add(self, operation: Publish | Settle) -> None:
        with self._context.engine as engine:
            transactions = engine.shard.transactions
            transaction = transactions.get(self._context.tenant, self.id)
            if isinstance(operation, Settle) and not operation.lease.live:
                raise LeaseLost(f"lease {operation.lease.token()} has ended", argument="lease")
            transactions.add(transaction, operation)

    async def commit(self) -> None:
        """Do all of it now; when that is not possible, an error says why and nothing was done."""
        self._context.check_open()
        async with self._context.engine.change as engine:
            engine.shard.transactions.commit(self._context.tenant, self.id)
            self._ended = True

    async def rollback(self) -> None:
        """Drop all of it."""
        self._context.check_open()
        with self._context.engine as engine:
            engine.shard.transactions.rollback(self._context.tenant, self.id)
            self._ended = True

    def _drop(self) -> None:
        """Drop what is left of it, if anything."""
        self._ended = True
        if self._context.closed or self._context.engine.forked:
            return
        with self._context.engine as engine:
            transactions = engine.shard.transactions
            if transactions.is_open(self._context.tenant, self.id):
                transactions.rollback(self._context.tenant, self.id)

"""A transaction as a block: publishes and settles that are sent together at its end, wholly or not at all."""

from __future__ import annotations

import time
from typing import Any, Final, Self

from rookery.client.aio.deliveries import AsyncDelivery, check_delay, own
from rookery.client.aio.link import AsyncLink
from rookery.client.messages import pack
from rookery.core.transactions import TIMEOUT_MS
from rookery.embed.context import TOPICS, check_key, check_name, check_text, check_topic
from rookery.embed.messages import Message
from rookery.errors import (
    LeaseLost,
    LimitExceeded,
    TransactionCommitted,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimeout,
)
from rookery.wire.packed import PackedSettle, PackedWork, encode

NAMES_MAX: Final = 1_000
"""How many transactions by name a client knows, those that ended among them."""


class AsyncTransaction:
    """Collects operations; leaving the block commits them, an exception in it (or `rollback`) drops them."""

    def __init__(self, link: AsyncLink, timeout_ms: int) -> None:
        self._link = link
        self._timeout_ms = timeout_ms
        self._work = PackedWork([], [])
        self._deliveries: list[tuple[AsyncDelivery, str]] = []
        self._state = ""
        self._until = 0.0
        self.id = ""

    def __repr__(self) -> str:
        return f"Transaction({self.id!r})"

    async def __aenter__(self) -> Self:
        self._link.check_open()
        self._begin(self._link.next_name("transaction"))
        return self

    def _begin(self, id: str) -> None:
        self.id = id
        self._work = PackedWork([], [])
        self._deliveries = []
        self._state = "open"
        self._until = time.monotonic() + self._timeout_ms / 1000

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._state != "open":
            return
        try:
            if kind is None:
                await self.commit()
        finally:
            if self._state == "open":
                self._state = "rolled back"

    async def publish(self, topic: str, body: Any) -> None:
        """Publish to a topic when the transaction commits."""
        self._add(TOPICS, check_topic(topic), body, False)

    async def publish_to_queue(self, queue: str, body: Any) -> None:
        """Publish to a queue when the transaction commits; the queue must exist then."""
        self._add("", check_name(queue, "queue"), body, True)

    async def publish_to_exchange(self, exchange: str, key: str, body: Any) -> None:
        """Publish to an exchange when the transaction commits."""
        self._add(check_text(exchange, "exchange"), check_key(key), body, False)

    def _add(self, exchange: str, key: str, body: Any, mandatory: bool) -> None:
        self._check()
        publish = pack(body)
        publish.exchange = exchange
        publish.routing_key = key
        publish.mandatory = mandatory
        self._work.publish.append(publish)

    async def ack(self, delivery: AsyncDelivery) -> None:
        """Ack a delivery when the transaction commits."""
        self._add_settle(delivery, "ack", -1, "")

    async def retry(self, delivery: AsyncDelivery, delay_ms: int | None = None, reason: str = "") -> None:
        self._add_settle(delivery, "retry", check_delay(delay_ms), reason)

    async def release(self, delivery: AsyncDelivery) -> None:
        self._add_settle(delivery, "release", -1, "")

    async def reject(self, delivery: AsyncDelivery, reason: str = "") -> None:
        self._add_settle(delivery, "reject", -1, reason)

    def _add_settle(self, delivery: AsyncDelivery, outcome: str, delay_ms: int, reason: str) -> None:
        self._check()
        own(self._link, delivery).check_live()
        self._work.settle.append(PackedSettle(delivery.token, outcome, delay_ms, check_text(reason, "reason")))
        self._deliveries.append((delivery, outcome))

    def _check(self) -> None:
        self._link.check_open()
        if self._state == "committed":
            raise TransactionCommitted(f"transaction {self.id!r} was committed already")
        if self._state == "rolled back":
            raise TransactionRolledBack(f"transaction {self.id!r} was rolled back already")
        if not self._state:
            raise TransactionNotFound("this transaction has not begun: use it as a block")
        if self._state == "timed out" or time.monotonic() >= self._until:
            self._state = "timed out"
            raise TransactionTimeout(f"transaction {self.id!r} had {self._timeout_ms} ms")

    def _is_over(self) -> bool:
        return self._state != "open" or time.monotonic() >= self._until

    async def commit(self) -> None:
        """Do all of it now; when that is not possible, an error says why and nothing was done."""
        self._check()
        if self._work.publish or self._work.settle:
            try:
                await self._link.once("/api/v1/transactions", encode(self._work), packed=True)
            except LeaseLost as lost:
                self._ended(str(lost))
                raise
        self._state = "committed"
        for delivery, outcome in self._deliveries:
            delivery.ended(outcome)

    def _ended(self, lost: str) -> None:
        """The broker named a lease that is over."""
        for delivery, _ in self._deliveries:
            if delivery.token in lost:
                delivery.ended()

    async def rollback(self) -> None:
        """Drop all of it."""
        self._check()
        self._state = "rolled back"


class AsyncNamedTransactions:
    """The transactions of a client that go by a name of their user's. Those that ended are remembered for a while."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self._known: dict[str, AsyncTransaction] = {}

    def publish(self, name: str, topic: str, message: Message, mandatory: bool) -> None:
        """Add a publish to a transaction, which begins with its first."""
        known = self._known.get(check_name(name, "transaction"))
        if known is None:
            packed = AsyncTransaction(self._link, TIMEOUT_MS)
            packed._begin(name)
            packed._add(TOPICS, topic, message, mandatory)
            self._forget()
            self._known[name] = packed
        else:
            known._add(TOPICS, topic, message, mandatory)

    def _forget(self) -> None:
        if len(self._known) >= NAMES_MAX:
            for name in [name for name, each in self._known.items() if each._is_over()][: NAMES_MAX // 2]:
                del self._known[name]
        if len(self._known) >= NAMES_MAX:
            raise LimitExceeded(f"this client has {NAMES_MAX} open transactions", argument="transaction")

    def _find(self, name: str) -> AsyncTransaction:
        self._link.check_open()
        known = self._known.get(check_name(name, "transaction"))
        if known is None:
            raise TransactionNotFound(f"no transaction {name!r}", argument="transaction")
        return known

    async def commit(self, name: str) -> None:
        await self._find(name).commit()

    async def rollback(self, name: str) -> None:
        await self._find(name).rollback()

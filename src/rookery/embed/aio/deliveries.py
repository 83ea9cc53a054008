"""Deliveries from a queue: what a consumer holds under lease, how it is waited for, and the subscription it comes
through.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from typing import Any, Self

from rookery.core import queue as core
from rookery.core.consumers import Mailbox
from rookery.core.entries import Lease
from rookery.core.transactions import OUTCOMES
from rookery.embed.context import Context, check_not_negative, check_positive, check_text, check_timeout
from rookery.embed.messages import Message, decode_body, unpack
from rookery.embed.options import Outcome
from rookery.engine.engine import AsyncEngine
from rookery.engine.workers import AsyncSignal
from rookery.errors import BrokerClosed, InvalidArgument, InvalidType, LeaseLost, NotFound
from rookery.format import properties
from rookery.format.rendering import JSON


class AsyncDelivery:
    """One handing-over of a message. Settle it before its lease lapses: ack, retry, release or reject."""

    __slots__ = ("_context", "_message", "lease")

    def __init__(self, context: Context[AsyncEngine], lease: Lease) -> None:
        self._context = context
        self._message: Message | None = None
        self.lease = lease

    def __repr__(self) -> str:
        return f"Delivery({self.queue!r}, attempt={self.attempt}, id={self.id!r})"

    @property
    def queue(self) -> str:
        return self.lease.queue.name

    @property
    def id(self) -> str:
        stored = self.lease.entry.message
        return properties.message_id(stored.props) or self._context.engine.shard.ids.uuid(stored.public_id)

    @property
    def body(self) -> bytes:
        """The bytes as they were published."""
        return self.lease.entry.message.body

    @property
    def data(self) -> Any:
        """The value that was published."""
        stored = self.lease.entry.message
        return decode_body(stored.body, properties.content_type(stored.props))

    @property
    def key(self) -> str:
        return self.lease.entry.message.route.key

    @property
    def message(self) -> Message:
        """The whole message, decoded."""
        if self._message is None:
            self._message = unpack(self.lease.entry, self._context.engine.shard.ids)
        return self._message

    @property
    def reply_to(self) -> str:
        """Where an answer is waited for; empty when none is asked for."""
        return properties.reply_to(self.lease.entry.message.props) or ""

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return int(self.lease.attempt)

    @property
    def redelivered(self) -> bool:
        return self.lease.entry.redelivered

    @property
    def live(self) -> bool:
        """Whether it can still be settled, as far as is known: a lease that ran out ends at the next call."""
        return self.lease.live

    @property
    def token(self) -> str:
        """A text that stands for this lease in other processes' hands."""
        return self.lease.token()

    async def ack(self) -> None:
        """Done: the message is gone for good."""
        await self._settle("ack", -1, "")

    async def retry(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Failed: once more after `delay_ms` (by default the queue's backoff), dead-lettered when attempts are
        used up.
        """
        await self._settle("retry", check_delay(delay_ms), check_text(reason, "reason"))

    async def release(self) -> None:
        """Not for me: back to its place at once, as if never delivered."""
        await self._settle("release", -1, "")

    async def reject(self, reason: str = "") -> None:
        """Unfit: to the dead letters now."""
        await self._settle("reject", -1, check_text(reason, "reason"))

    async def _settle(self, outcome: Outcome, delay_ms: int, reason: str) -> None:
        context = self._context
        context.check_open()
        with context.engine:
            lease = self.lease
            if not end(lease, outcome, delay_ms, reason):
                raise LeaseLost(f"lease {lease.token()} has ended", argument="lease")
        if context.engine.journal is not None:
            await context.engine.lasting()

    async def extend(self, lease_ms: int) -> None:
        """Keep the lease for `lease_ms` from now."""
        check_positive(lease_ms, "lease_ms")
        self._context.check_open()
        with self._context.engine:
            if not self.lease.queue.extend(self.lease, lease_ms):
                raise LeaseLost(f"lease {self.token} has ended", argument="lease")

    async def reply(self, value: Any) -> None:
        """Answer a request and ack it, in one step; None is an answer too. Nobody may be waiting for it any more."""
        context = self._context
        context.check_open()
        message = self.message
        if not message.reply_to:
            raise InvalidArgument("this message asks for no reply", argument="reply_to")
        if value is None:
            answer = Message(b"null", content_type=JSON)
        else:
            answer = copy.copy(value) if isinstance(value, Message) else Message(value)
        answer.correlation_id = message.correlation_id
        p = context.pack("", message.reply_to, answer)
        async with context.engine.change as engine:
            if not self.lease.live or self.lease.queue.deleted:
                raise LeaseLost(f"lease {self.token} has ended", argument="lease")
            engine.shard.publish(
                context.tenant, "", p.key, p.props, p.body, p.priority, p.expires_ms, p.due_ms, p.persistent
            )
            self.lease.queue.ack(self.lease)


def check_delay(delay_ms: int | None) -> int:
    """A delay as the core takes it: -1 is the queue's backoff."""
    return -1 if delay_ms is None else check_not_negative(delay_ms, "delay_ms")


def end(lease: Lease, outcome: Outcome, delay_ms: int, reason: str) -> bool:
    """Settle a lease (within a turn); False when it has ended already."""
    queue = lease.queue
    if outcome == "ack":
        return queue.ack(lease)
    if outcome == "retry":
        return queue.retry(lease, delay_ms, reason)
    if outcome == "release":
        return queue.release(lease)
    return queue.reject(lease, reason)


async def settle(
    context: Context[AsyncEngine],
    deliveries: Iterable[AsyncDelivery],
    outcome: Outcome,
    delay_ms: int | None,
    reason: str,
) -> None:
    """Settle deliveries with one outcome: all of them, or none when one lease has ended."""
    if outcome not in OUTCOMES:
        raise InvalidArgument(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}", argument="outcome")
    delay = check_delay(delay_ms)
    check_text(reason, "reason")
    context.check_open()
    leases = [lease_of(context, delivery) for delivery in deliveries]
    async with context.engine.change:
        for lease in leases:
            if not lease.live or lease.queue.deleted:
                raise LeaseLost(f"lease {lease.token()} has ended", argument="lease")
        if outcome == "ack":
            for lease in leases:
                lease.queue.ack(lease)
        else:
            for lease in leases:
                end(lease, outcome, delay, reason)


def lease_of(context: Context[AsyncEngine], delivery: object) -> Lease:
    """The lease of a delivery of this broker."""
    if type(delivery) is not AsyncDelivery:
        raise InvalidType(f"a Delivery is wanted, not {type(delivery).__name__}", argument="delivery")
    if delivery._context is not context:
        raise InvalidArgument("the delivery is one of another broker", argument="delivery")
    return delivery.lease


async def wait_for_leases(
    context: Context[AsyncEngine], queue: core.Queue, count: int, lease_ms: int, wait_ms: float | None
) -> list[Lease]:
    """Up to `count` leases; waits up to `wait_ms` (None: as long as it takes) for the first.

    None at all when nothing came, when the queue was deleted, or when the broker was closed meanwhile. A caller who is
    interrupted while waiting gives back what came for him.
    """
    with context.engine as engine:
        leases = queue.claim(count, lease_ms)
        if leases or queue.deleted:
            return leases
        mailbox = engine.shard.wait_claim(queue, count, lease_ms)
        signal = context.watch(AsyncSignal())
        mailbox.on_event = signal
    try:
        await signal.wait(wait_ms)
    except BaseException:
        _give_back(context, queue, mailbox)
        raise
    if context.closed:
        _give_back(context, queue, mailbox)
        return []
    with context.engine:
        queue.unsubscribe(mailbox)
        return mailbox.take()


def _give_back(context: Context[AsyncEngine], queue: core.Queue, mailbox: Mailbox) -> None:
    with context.engine:
        queue.unsubscribe(mailbox)
        for lease in mailbox.take():
            queue.release(lease)


def tell_redelivered(context: Context[AsyncEngine], leases: list[Lease]) -> None:
    """Tell the observer of every message that is handed out once more."""
    for lease in leases:
        if lease.attempt > 1:
            context.observe("redeliver", lease.queue.name, time.perf_counter(), None)


class AsyncQueueSubscription:
    """A standing demand for deliveries from one queue. Iterate it, or call `get`; `cancel` ends it.

    It holds at most `credit` unsettled deliveries. After `cancel`, iteration ends and deliveries that were not taken
    yet go back to their places.
    """

    def __init__(self, context: Context[AsyncEngine], mailbox: Mailbox) -> None:
        self._context = context
        self._mailbox = mailbox
        self._signal = context.watch(AsyncSignal())
        self._inbox: list[Lease] = []
        self._done = False
        mailbox.on_event = self._signal

    def __repr__(self) -> str:
        return f"QueueSubscription({self.queue!r}, {self._mailbox.name!r})"

    @property
    def queue(self) -> str:
        return self._mailbox.queue.name

    @property
    def done(self) -> bool:
        """Whether it has ended: cancelled, or with its queue or its broker."""
        return self._done or self._mailbox.ended != "" or self._context.closed

    def _next(self) -> Lease | None:
        """The next lease that is still live (within a turn)."""
        while True:
            if not self._inbox:
                self._inbox = self._mailbox.take()
                self._inbox.reverse()
            if not self._inbox:
                return None
            lease = self._inbox.pop()
            if lease.live:
                return lease

    async def get(self, timeout_ms: int | None = None) -> AsyncDelivery:
        """The next delivery; TimeoutError when none came in time, NotFound when the subscription has ended."""
        leases = await self._get(1, check_timeout(timeout_ms))
        if not leases:
            raise TimeoutError(f"no delivery from {self.queue!r} within {timeout_ms} ms")
        return AsyncDelivery(self._context, leases[0])

    async def get_many(self, count: int, timeout_ms: int | None = None) -> list[AsyncDelivery]:
        """At least one and up to `count` deliveries; an empty list when none came in time."""
        check_positive(count, "count")
        leases = await self._get(count, check_timeout(timeout_ms))
        return [AsyncDelivery(self._context, lease) for lease in leases]

    async def _get(self, count: int, timeout_ms: int | None) -> list[Lease]:
        context = self._context
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            context.check_open()
            with context.engine:
                if self.done:
                    raise NotFound(f"the subscription to {self.queue!r} has ended", argument="subscription")
                leases: list[Lease] = []
                while len(leases) < count:
                    lease = self._next()
                    if lease is None:
                        break
                    leases.append(lease)
                if not leases:
                    self._signal.clear()
            if leases:
                if context.observer is not None:
                    tell_redelivered(context, leases)
                return leases
            left = None if until is None else (until - time.monotonic()) * 1000
            if not await self._signal.wait(left):
                return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncDelivery:
        try:
            leases = await self._get(1, None)
        except (NotFound, BrokerClosed):
            raise StopAsyncIteration from None
        return AsyncDelivery(self._context, leases[0])

    async def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        if self.done:
            return
        with self._context.engine:
            self._done = True
            queue = self._mailbox.queue
            queue.unsubscribe(self._mailbox)
            for lease in self._inbox + self._mailbox.take():
                queue.release(lease)
            self._inbox = []
            self._signal.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cancel()

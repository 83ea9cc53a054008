"""Deliveries from a queue: what a consumer holds under lease, and the subscription they come through."""

from __future__ import annotations

from typing import Any, Self, cast

from rookery import properties
from rookery.core.consumers import Mailbox
from rookery.core.entries import Lease
from rookery.core.transactions import OUTCOMES
from rookery.embed.context import Context, check_positive, check_wait
from rookery.embed.engine import AsyncEngine, AsyncSignal
from rookery.embed.messages import Message, decode_body, unpack
from rookery.errors import BrokerClosed, InvalidArgument, LeaseLost, QueueNotFound


class AsyncDelivery:
    """One handing-over of a message. Settle it before its lease lapses: ack, retry, release or reject."""

    __slots__ = ("_context", "_message", "lease")

    def __init__(self, context: Context, lease: Lease) -> None:
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
    def attempt(self) -> int:
        """1 for the first delivery."""
        return int(self.lease.attempt)

    @property
    def redelivered(self) -> bool:
        return self.lease.entry.redelivered

    @property
    def token(self) -> str:
        """A text that stands for this lease in other processes' hands."""
        return self.lease.token()

    async def ack(self) -> None:
        """Done: the message is gone for good."""
        await settle(self._context, [self], "ack", None, "")

    async def retry(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Failed: once more after `delay_ms` (by default the queue's backoff), dead-lettered when attempts are
        used up.
        """
        await settle(self._context, [self], "retry", delay_ms, reason)

    async def release(self) -> None:
        """Not for me: back to its place at once, as if never delivered."""
        await settle(self._context, [self], "release", None, "")

    async def reject(self, reason: str = "") -> None:
        """Unfit: to the dead letters now."""
        await settle(self._context, [self], "reject", None, reason)

    async def extend(self, lease_ms: int) -> None:
        """Keep the lease for `lease_ms` from now."""
        check_positive(lease_ms, "lease_ms")
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            if not self.lease.queue.extend(self.lease, lease_ms):
                raise LeaseLost(f"lease {self.token} has ended", argument="lease")

    async def reply(self, value: Any) -> None:
        """Answer a request and ack it, in one step."""
        message = self.message
        if not message.reply_to:
            raise InvalidArgument("this message asks for no reply", argument="reply_to")
        answer = value if isinstance(value, Message) else Message(value)
        answer.correlation_id = message.correlation_id
        context = self._context
        context.check_open()
        with cast(AsyncEngine, context.engine) as engine:
            if not self.lease.live:
                raise LeaseLost(f"lease {self.token} has ended", argument="lease")
            parcel = context.parcel(answer)
            engine.shard.publish(context.tenant, "", message.reply_to, parcel.props, parcel.body, parcel.priority)
            self.lease.queue.ack(self.lease)


async def settle(
    context: Context, deliveries: list[AsyncDelivery], outcome: str, delay_ms: int | None, reason: str
) -> None:
    """Settle deliveries with one outcome: all of them, or none when one lease has ended."""
    if outcome not in OUTCOMES:
        raise InvalidArgument(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}", argument="outcome")
    delay = -1 if delay_ms is None else check_wait(delay_ms, "delay_ms")
    context.check_open()
    with cast(AsyncEngine, context.engine):
        for delivery in deliveries:
            lease = delivery.lease
            if not lease.live or lease.queue.deleted:
                raise LeaseLost(f"lease {lease.token()} has ended", argument="lease")
        for delivery in deliveries:
            lease = delivery.lease
            if outcome == "ack":
                lease.queue.ack(lease)
            elif outcome == "retry":
                lease.queue.retry(lease, delay, reason)
            elif outcome == "release":
                lease.queue.release(lease)
            else:
                lease.queue.reject(lease, reason)


class AsyncQueueSubscription:
    """A standing demand for deliveries from one queue. Iterate it, or call `get`; `cancel` ends it.

    It holds at most `credit` unsettled deliveries. After `cancel`, iteration ends and deliveries that were not taken
    yet go back to their places.
    """

    def __init__(self, context: Context, mailbox: Mailbox) -> None:
        self._context = context
        self._mailbox = mailbox
        self._signal = context.watch(AsyncSignal())
        self._inbox: list[Lease] = []
        self._done = False
        mailbox.on_event = self._signal

    @property
    def queue(self) -> str:
        return self._mailbox.queue.name

    @property
    def done(self) -> bool:
        return self._done

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
        """The next delivery; TimeoutError when none came in time."""
        if timeout_ms is not None:
            check_wait(timeout_ms, "timeout_ms")
        delivery = await self._get(timeout_ms)
        if delivery is None:
            if self._done:
                raise QueueNotFound(f"the subscription to {self.queue!r} has ended", argument="queue")
            raise TimeoutError(f"no delivery from {self.queue!r} within {timeout_ms} ms")
        return delivery

    async def get_many(self, count: int, timeout_ms: int | None = None) -> list[AsyncDelivery]:
        """At least one and up to `count` deliveries; an empty list when none came in time."""
        check_positive(count, "count")
        first = await self._get(timeout_ms)
        if first is None:
            return []
        taken = [first]
        with cast(AsyncEngine, self._context.engine):
            while len(taken) < count:
                lease = self._next()
                if lease is None:
                    break
                taken.append(AsyncDelivery(self._context, lease))
        return taken

    async def _get(self, timeout_ms: int | None) -> AsyncDelivery | None:
        while True:
            self._context.check_open()
            with cast(AsyncEngine, self._context.engine):
                self._signal.clear()
                if self._done:
                    return None
                lease = self._next()
                if lease is not None:
                    return AsyncDelivery(self._context, lease)
                if self._mailbox.ended:
                    self._done = True
                    return None
            if not await self._signal.wait(timeout_ms):
                return None

    def __aiter__(self) -> AsyncQueueSubscription:
        return self

    async def __anext__(self) -> AsyncDelivery:
        try:
            delivery = await self._get(None)
        except BrokerClosed:
            delivery = None
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        if self._done or self._context.closed:
            self._done = True
            return
        with cast(AsyncEngine, self._context.engine):
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

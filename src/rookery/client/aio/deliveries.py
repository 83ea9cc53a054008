"""Deliveries from a queue of a broker elsewhere, and the subscription they come through."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from typing import Any, Protocol

from rookery.client.aio.link import AsyncLink
from rookery.client.http import part
from rookery.client.messages import pack, read_messages, unpack
from rookery.core.transactions import OUTCOMES
from rookery.embed.context import check_not_negative, check_positive, check_text
from rookery.embed.messages import Message, decode_body
from rookery.embed.options import Outcome
from rookery.errors import InvalidArgument, InvalidType, LeaseLost
from rookery.format import properties
from rookery.format.rendering import JSON
from rookery.wire.packed import PackedMessage, PackedSettle, PackedWork, encode

CLAIM_MAX = 1_000
WAIT_MAX_MS = 20_000
"""The longest that one request waits: a broker that is gone without a word is noticed soon after."""


class Holder(Protocol):
    """Whoever a delivery came through."""

    def settled(self, id: str, outcome: str) -> None: ...


class AsyncDelivery:
    """One handing-over of a message. Settle it before its lease lapses: ack, retry, release or reject."""

    __slots__ = ("_got", "_holder", "_link", "_live", "_message", "queue")

    def __init__(self, link: AsyncLink, queue: str, got: PackedMessage, holder: Holder | None = None) -> None:
        self._link = link
        self._got = got
        self._live = True
        self._message: Message | None = None
        self._holder = holder
        self.queue = queue

    def __repr__(self) -> str:
        return f"Delivery({self.queue!r}, attempt={self.attempt}, id={self.id!r})"

    @property
    def id(self) -> str:
        return self._got.id

    @property
    def body(self) -> bytes:
        """The bytes as they were published."""
        return self._got.body

    @property
    def data(self) -> Any:
        """The value that was published."""
        return decode_body(self._got.body, properties.content_type(self._got.props))

    @property
    def key(self) -> str:
        return self._got.key

    @property
    def message(self) -> Message:
        """The whole message, decoded."""
        if self._message is None:
            self._message = unpack(self._got)
        return self._message

    @property
    def reply_to(self) -> str:
        """Where an answer is waited for; empty when none is asked for."""
        return properties.reply_to(self._got.props) or ""

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self._got.attempt

    @property
    def redelivered(self) -> bool:
        return self._got.redelivered

    @property
    def live(self) -> bool:
        """Whether it can still be settled, as far as is known here: the broker knows when its lease ran out."""
        return self._live

    @property
    def token(self) -> str:
        """A text that stands for this lease in other processes' hands."""
        return self._got.lease

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
        self._link.check_open()
        self.check_live()
        try:
            await settle_in_queue(self._link, self.queue, [self.token], outcome, delay_ms, reason)
        except LeaseLost:
            self.ended()
            raise
        self.ended(outcome)

    def check_live(self) -> None:
        if not self._live:
            raise LeaseLost(f"lease {self.token} has ended", argument="lease")

    def ended(self, outcome: str = "") -> None:
        """The lease is over, by this outcome if one is given."""
        self._live = False
        if self._holder is not None:
            self._holder.settled(self.id, outcome)

    async def extend(self, lease_ms: int) -> None:
        """Keep the lease for `lease_ms` from now."""
        check_positive(lease_ms, "lease_ms")
        self._link.check_open()
        self.check_live()
        body = {"leases": [self.token], "lease_ms": lease_ms}
        answer = await self._link.post(f"/api/v1/queues/{part(self.queue)}/extend", body)
        if answer["lost"]:
            self.ended()
            raise LeaseLost(f"lease {self.token} has ended", argument="lease")

    async def reply(self, value: Any) -> None:
        """Answer a request and ack it, in one step; None is an answer too. Nobody may be waiting for it any more."""
        self._link.check_open()
        message = self.message
        if not message.reply_to:
            raise InvalidArgument("this message asks for no reply", argument="reply_to")
        if value is None:
            answer = Message(b"null", content_type=JSON)
        else:
            answer = copy.copy(value) if isinstance(value, Message) else Message(value)
        answer.correlation_id = message.correlation_id
        publish = pack(answer)
        publish.routing_key = message.reply_to
        self.check_live()
        work = PackedWork([publish], [PackedSettle(self.token, "ack")])
        try:
            await self._link.once("/api/v1/transactions", encode(work), packed=True)
        except LeaseLost:
            self.ended()
            raise
        self.ended("ack")


def check_delay(delay_ms: int | None) -> int:
    """A delay as the broker takes it: -1 is the queue's backoff."""
    return -1 if delay_ms is None else check_not_negative(delay_ms, "delay_ms")


def own(link: AsyncLink, delivery: object) -> AsyncDelivery:
    """A delivery of this client's."""
    if type(delivery) is not AsyncDelivery:
        raise InvalidType(f"a Delivery is wanted, not {type(delivery).__name__}", argument="delivery")
    if delivery._link is not link:
        raise InvalidArgument("the delivery is one of another broker", argument="delivery")
    return delivery


async def settle_in_queue(
    link: AsyncLink, queue: str, tokens: list[str], outcome: Outcome, delay_ms: int, reason: str
) -> None:
    """Settle leases of one queue with one outcome: all, or none when one has ended."""
    body: dict[str, object] = {"leases": tokens, "outcome": outcome, "reason": reason, "together": True}
    if delay_ms >= 0:
        body["delay_ms"] = delay_ms
    await link.once(f"/api/v1/queues/{part(queue)}/settle", body)


async def settle(
    link: AsyncLink, deliveries: Iterable[AsyncDelivery], outcome: Outcome, delay_ms: int | None, reason: str
) -> None:
    """Settle deliveries with one outcome: all of them, or none when one lease has ended."""
    if outcome not in OUTCOMES:
        raise InvalidArgument(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}", argument="outcome")
    delay = check_delay(delay_ms)
    check_text(reason, "reason")
    link.check_open()
    chosen = [own(link, delivery) for delivery in deliveries]
    for delivery in chosen:
        delivery.check_live()
    if not chosen:
        return
    queues = {delivery.queue for delivery in chosen}
    if len(queues) == 1:
        tokens = [delivery.token for delivery in chosen]
        await settle_in_queue(link, queues.pop(), tokens, outcome, delay, reason)
    else:
        work = PackedWork([], [PackedSettle(delivery.token, outcome, delay, reason) for delivery in chosen])
        await link.once("/api/v1/transactions", encode(work), packed=True)
    for delivery in chosen:
        delivery.ended(outcome)


async def claim(
    link: AsyncLink, queue: str, count: int, wait_ms: float | None, lease_ms: int | None, ack: bool = False
) -> list[PackedMessage]:
    """Up to `count` messages; waits up to `wait_ms` (None: as long as it takes) for the first."""
    until = None if wait_ms is None else time.monotonic() + wait_ms / 1000
    path = f"/api/v1/queues/{part(queue)}/claim"
    while True:
        left_ms = WAIT_MAX_MS if until is None else max(0, int((until - time.monotonic()) * 1000))
        body: dict[str, object] = {"max": min(count, CLAIM_MAX), "wait_ms": min(left_ms, WAIT_MAX_MS), "create": False}
        if lease_ms is not None:
            body["lease_ms"] = lease_ms
        if ack:
            body["ack"] = True
        found = read_messages(await link.post_packed(path, body, wait_ms=min(left_ms, WAIT_MAX_MS)))
        while 0 < len(found) < count and len(found) % CLAIM_MAX == 0:
            body = {**body, "max": min(count - len(found), CLAIM_MAX), "wait_ms": 0}
            more = read_messages(await link.post_packed(path, body))
            found += more
            if not more:
                break
        if found or left_ms == 0 or (until is not None and time.monotonic() >= until):
            return found

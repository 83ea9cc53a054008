"""A channel: its consumers, the deliveries it has not settled, and the publishes it has not confirmed.

Delivery tags count up from 1, so unsettled leases lie in a list at the index tag - base, with None where one was
settled (or never was, for a consumer without acknowledgement); its settled front is cut off now and then. When a few
old leases would keep a long list alive, they move to a dict.

What an end means for a lease: ack is ack; requeue, recover and the end of the channel release it, or retry it where the
queue counts or limits attempts (so that a message that kills its consumers is dead-lettered in the end); a refusal
without requeue rejects it. In a transaction (`tx`) the ends wait for its commit. A lease that lapsed is let go of,
and its tag remembered, so that an acknowledgement that comes too late is not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, i64, u8

from rookery.core.consumers import Credit, Subscription
from rookery.core.entries import Entry, Lease
from rookery.core.feeds import Feed
from rookery.core.log import Log
from rookery.core.queue import Queue
from rookery.core.topology import Tenant, Way
from rookery.format import properties
from rookery.format.bytes import BytesWriter, write_i32_be, write_i64_be
from rookery.format.fieldtables import Long, Timestamp
from rookery.format.model import Death, Route
from rookery.wire.amqp.codec import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_DELIVER,
    BASIC_NACK,
    FRAME_END,
    METHOD,
    Fault,
    begin_method,
    end_method,
    put_channel,
    put_content,
    put_settled,
    put_short_string,
)
from rookery.wire.turn import CORK_BYTES, Outlet

if TYPE_CHECKING:
    from rookery.wire.amqp.connection import AmqpConnection
    from rookery.wire.amqp.tx import Tx

# How a lease is settled
ACK: Final[i64] = 0
REQUEUE: Final[i64] = 1
REJECT: Final[i64] = 2

CUT_AT: Final[i64] = 512
SPARSE_AT: Final[i64] = 16_384
LAPSED_MAX: Final = 10_000
"""So many tags of lapsed deliveries a channel remembers."""


@final
class Target:
    """Where the publishes of one basic.publish frame go: the frame's own channel, and the way as it was found."""

    def __init__(self, channel: Channel, tenant: Tenant, way: Way, mandatory: bool) -> None:
        self.channel = channel
        self.tenant = tenant
        self.way = way
        self.mandatory = mandatory
        # an answer by direct reply-to: the key names a channel
        self.reply = False


@final
class Incoming:
    """A message that has not arrived whole. `size` is -1 until its header came; a `refused` one is read and dropped."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.props = b""
        self.size: i64 = -1
        self.got: i64 = 0
        self.parts: list[bytes] = []
        self.refused = False


@final
class Channel:
    """See the module's docstring."""

    def __init__(self, connection: AmqpConnection, number: i64, out: Outlet) -> None:
        self.connection = connection
        self.number: i64 = number
        self.out = out
        self.closing = False
        self.ended = False
        self.consumers: dict[str, AmqpConsumer] = {}
        self.prefetch: i64 = 0
        self.credit: Credit | None = None
        self.last_queue = ""
        self.incoming: Incoming | None = None
        self.tx: Tx | None = None
        self.reply_tag = ""
        self.reply_name = ""
        # deliveries
        self.tag: i64 = 0
        self.base: i64 = 1
        self.head: i64 = 0
        self.unacked: list[Lease | None] = []
        self.old: dict[int, Lease] = {}
        self.lapsed: dict[int, bool] = {}
        self._gaps: i64 = 0
        # publishes
        self.confirming = False
        self.published: i64 = 0
        self.seen: i64 = 0
        self.confirmed: i64 = 0
        self.refused: list[int] = []
        self.lasting = False
        self._batches: list[tuple[int, int]] = []

    # Deliveries

    def hold(self, lease: Lease | None) -> None:
        """Keep the lease of the delivery that takes the next tag; None for one that is not to be acknowledged."""
        self.tag += 1
        if lease is not None:
            self.unacked.append(lease)
        elif self.unacked:
            self.unacked.append(None)
            self._gap()
        else:
            self.base = self.tag + 1

    def ack(self, tag: i64) -> None:
        """Acknowledge one delivery: the common case of `settle`."""
        unacked = self.unacked
        at = tag - self.base
        if at < 0 or at >= len(unacked) or self.tx is not None:
            self.settle(tag, False, ACK)
            return
        lease = unacked[at]
        if lease is None:
            self._lapsed(tag)
            return
        unacked[at] = None
        lease.queue.ack(lease)
        if at == self.head:
            self._cut()
        else:
            self._gap()
        if self.credit is not None:
            self._share_credit()

    def settle(self, tag: i64, multiple: bool, outcome: i64) -> None:
        """Settle the delivery of that tag, or all up to it (tag 0: all there are)."""
        if multiple:
            self._settle_up_to(tag, outcome)
        else:
            at = tag - self.base
            lease: Lease | None = None
            if at < 0:
                lease = self.old.pop(tag, None)
            elif at < len(self.unacked):
                lease = self.unacked[at]
                self.unacked[at] = None
            if lease is None:
                self._lapsed(tag)
                return
            self._end(tag, lease, outcome)
            self._gap()
        self._cut()
        if self.credit is not None:
            self._share_credit()

    def _settle_up_to(self, tag: i64, outcome: i64) -> None:
        unacked = self.unacked
        if tag == 0:
            tag = self.tag
        elif not self._is_held(tag):
            self._lapsed(tag)
        if self.old:
            for old in [each for each in self.old if each <= tag]:
                self._end(old, self.old.pop(old), outcome)
        at = self.head
        end = tag - self.base
        while at <= end and at < len(unacked):
            lease = unacked[at]
            if lease is not None:
                unacked[at] = None
                self._end(self.base + at, lease, outcome)
            at += 1

    def _end(self, tag: i64, lease: Lease, outcome: i64) -> None:
        if self.tx is None:
            end_lease(lease, outcome)
        else:
            self.tx.settle(tag, lease, outcome)

    def take_back(self, tag: i64, lease: Lease) -> None:
        """A delivery that was settled in a transaction is not settled after all."""
        at = tag - self.base
        if 0 <= at < len(self.unacked):
            self.unacked[at] = lease
            if at < self.head:
                self.head = at
        else:
            self.old[tag] = lease

    def lapse(self, lease: Lease) -> None:
        """A delivery lapsed: it is no longer held, and its acknowledgement comes too late."""
        tag: i64 = -1
        at = self.head
        while at < len(self.unacked):
            if self.unacked[at] is lease:
                self.unacked[at] = None
                tag = self.base + at
                self._gap()
                self._cut()
                break
            at += 1
        if tag < 0:
            for old, held in self.old.items():
                if held is lease:
                    tag = old
                    break
            self.old.pop(tag, None)
        if tag > 0:
            self.lapsed[tag] = True
            if len(self.lapsed) > LAPSED_MAX:
                del self.lapsed[next(iter(self.lapsed))]

    def _lapsed(self, tag: i64) -> None:
        """A tag that is not held: unknown, unless its delivery lapsed."""
        if not self.lapsed or self.lapsed.pop(tag, None) is None:
            raise unknown_tag(tag)

    def _is_held(self, tag: i64) -> bool:
        at = tag - self.base
        if at < 0:
            return tag in self.old
        return at < len(self.unacked) and self.unacked[at] is not None

    def settle_all(self, outcome: i64) -> None:
        leases = [*self.old.values(), *[each for each in self.unacked if each is not None]]
        self.old = {}
        self.unacked = []
        self.head = 0
        self.base = self.tag + 1
        for lease in leases:
            end_lease(lease, outcome)
        if self.credit is not None:
            self._share_credit()

    def holds(self) -> bool:
        """Whether there are deliveries to settle."""
        if self.old:
            return True
        for lease in self.unacked:
            if lease is not None:
                return True
        return False

    def _cut(self) -> None:
        """Step over the settled front of the list."""
        unacked = self.unacked
        size: i64 = len(unacked)
        head = self.head
        while head < size and unacked[head] is None:
            head += 1
        if head == size:
            unacked.clear()
        elif head > CUT_AT and head * 2 > size:
            del unacked[:head]
        else:
            self.head = head
            return
        self.base += head
        self.head = 0
        self._gaps = self._gaps - head if self._gaps > head else 0

    def _gap(self) -> None:
        """A None came to lie inside the list. When most of it is such, the rest moves to the dict."""
        self._gaps += 1
        unacked = self.unacked
        if self._gaps < SPARSE_AT or self._gaps * 2 < len(unacked):
            return
        self._gaps = 0
        tag = self.base
        for lease in unacked:
            if lease is not None:
                self.old[tag] = lease
            tag += 1
        self.unacked = []
        self.head = 0
        self.base = self.tag + 1

    def _share_credit(self) -> None:
        """Credit that all consumers share came free: each of their queues may go on."""
        for consumer in self.consumers.values():
            consumer.queue.mark_dirty()

    # Publishes

    def take(self, refused: bool) -> None:
        """Count one publish, to be confirmed at the end of the turn."""
        self.published += 1
        if refused:
            self.refused.append(self.published)

    def confirm(self, log: Log) -> bool:
        """Tell the publisher what became of its publishes, as far as that is durable; True when some are left.

        Those of one turn wait together, for the batch of the journal that ends with them, and in their order.
        """
        if self.published > self.seen:
            self.seen = self.published
            horizon: i64 = 0
            if self.lasting and log.active:
                horizon = log.horizon()
            self.lasting = False
            if self._batches or horizon > log.durable:
                self._batches.append((horizon, self.published))
        done = self.published
        if self._batches:
            if log.failure is not None:
                self._fail()
                return False
            done = self.confirmed
            while self._batches and self._batches[0][0] <= log.durable:
                done = self._batches.pop(0)[1]
        self._tell(done)
        return done < self.published

    def _tell(self, done: i64) -> None:
        refused: i64 = 0
        for tag in self.refused:
            if tag > done:
                break
            put_settled(self.out, self.number, BASIC_NACK, tag, 0)
            refused += 1
        if done - self.confirmed > refused:
            put_settled(self.out, self.number, BASIC_ACK, done, 1)
        if refused:
            del self.refused[:refused]
        self.confirmed = done

    def _fail(self) -> None:
        """The journal failed: nobody knows what of the rest will be found again."""
        put_settled(self.out, self.number, BASIC_NACK, self.published, 1)
        self.refused = []
        self._batches = []
        self.confirmed = self.published

    # Ending

    def leave(self) -> None:
        """End the subscriptions, and confirm no more; what was delivered is still held."""
        self.ended = True
        consumers = list(self.consumers.values())
        self.consumers = {}
        for consumer in consumers:
            consumer.queue.unsubscribe(consumer)
            consumer.ended()
        if self.reply_name:
            self.connection.face.replies.pop(self.reply_name, None)


def unknown_tag(tag: i64) -> Fault:
    return Fault(406, f"unknown delivery tag {tag}")


def end_lease(lease: Lease, outcome: i64) -> None:
    queue = lease.queue
    if outcome == ACK:
        queue.ack(lease)
    elif outcome == REJECT:
        queue.reject(lease, "")
    elif counts_returns(queue):
        queue.retry(lease, 0, "")
    else:
        queue.release(lease)


def counts_returns(queue: Queue) -> bool:
    """Whether a delivery that comes back counts: its queue limits them, or tells of them."""
    return queue.max_attempts > 0 or queue.quorum


@final
class AmqpConsumer(Subscription):
    """A subscription that writes each delivery to its channel's peer at once."""

    def __init__(
        self, channel: Channel, queue: Queue, tag: str, limit: i64, no_ack: bool, priority: i64, exclusive: bool
    ) -> None:
        super().__init__(queue, limit, queue.settings.consumer_timeout_ms, no_ack, priority, False)
        self.name = tag
        self.channel = channel
        self.exclusive = exclusive
        self._counted = queue.quorum
        # what fills the queue, where it is this consumer's own (a stream's)
        self.feed: Feed | None = None
        self.out = channel.out
        self.number: i64 = channel.number
        self.payload_max: i64 = channel.connection.payload_max
        # a delivery's method frame up to its size, and from there to the tag
        w = BytesWriter()
        w.append(u8(METHOD))
        put_channel(w, channel.number)
        self._head = w.getvalue()
        w = BytesWriter()
        write_i32_be(w, BASIC_DELIVER)
        put_short_string(w, tag)
        self._start = w.getvalue()

    def peer(self) -> object:
        return self.channel.connection

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        out = self.out
        if not out.dirty:
            out.touch()
        channel = self.channel
        channel.hold(lease)
        message = entry.message
        route = message.route
        wire = route.wire
        if len(wire) == 0:
            wire = wire_of(route)
        start = self._start
        w = out.w
        w.write(self._head)
        write_i32_be(w, i32(len(start) + 9 + len(wire)))
        w.write(start)
        write_i64_be(w, channel.tag)
        w.append(u8(1) if entry.redelivered else u8(0))
        w.write(wire)
        w.append(u8(FRAME_END))
        props = message.props
        if route.deaths or self._counted:
            props = props_of(self.queue, entry, False)
        put_content(out, self.number, self.payload_max, props, message.body)
        if out.size() >= CORK_BYTES:
            channel.connection.cork()

    def ended(self) -> None:
        """Its client is done with it."""
        if self.feed is not None:
            self.feed.close()

    def lapsed(self, lease: Lease) -> None:
        self.channel.lapse(lease)

    def cancelled(self, reason: str) -> None:
        """The queue is gone (RabbitMQ's consumer cancel notification)."""
        channel = self.channel
        if channel.consumers.pop(self.name, None) is not None and channel.connection.cancel_notify:
            start = begin_method(self.out, self.number, BASIC_CANCEL)
            put_short_string(self.out.w, self.name)
            self.out.w.append(u8(1))
            end_method(self.out, start)


def wire_of(route: Route) -> bytes:
    """Exchange and routing key as they stand in basic.deliver, made once per route."""
    w = BytesWriter()
    put_short_string(w, route.exchange)
    put_short_string(w, route.key)
    route.wire = w.getvalue()
    return route.wire


def props_of(queue: Queue, entry: Entry, pulled: bool) -> bytes:
    """The properties of a delivery, with RabbitMQ's headers that tell of deaths, and of earlier deliveries (also that
    there were none, to who pulled it).
    """
    message = entry.message
    headers: dict[str, object] = {}
    deaths = message.route.deaths
    if deaths:
        headers["x-death"] = [_row(death) for death in sorted(deaths, key=_row_number)]
        first = deaths[0]
        for death in deaths:
            if death.order < first.order:
                first = death
        # a publisher that passes a history on knows more of its beginning
        if not properties.header_type(message.props, "x-death"):
            headers["x-first-death-exchange"] = first.exchange
            headers["x-first-death-queue"] = first.queue
            headers["x-first-death-reason"] = first.reason
    if queue.quorum and (pulled or entry.attempts > 1):
        headers["x-delivery-count"] = Long(max(0, entry.attempts - 1))
    return properties.with_headers(message.props, headers) if headers else message.props


def _row_number(death: Death) -> int:
    return death.row


def _row(death: Death) -> dict[str, object]:
    """A line of x-death. RabbitMQ writes the fields of the first in this order, and sorts them later."""
    row: dict[str, object] = {
        "count": Long(death.count),
        "reason": death.reason,
        "queue": death.queue,
        "time": Timestamp(death.first_ms // 1000),
        "exchange": death.exchange,
        "routing-keys": [death.key, *death.copies],
    }
    if death.expiration_ms >= 0:
        row["original-expiration"] = str(death.expiration_ms)
    if death.order or death.count > 1:
        return {name: row[name] for name in sorted(row)}
    return row

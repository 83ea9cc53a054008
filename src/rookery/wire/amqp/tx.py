"""Transactions of a channel (spec 1.9): publishes and settles wait for tx.commit, and then happen wholly or not at all.

Each is checked when it comes, as far as it can be, and all of them again at the commit, which is answered when what was
done is durable. A rollback forgets the publishes and gives the deliveries back to the channel, unsettled.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i32, i64

from rookery.core import transactions
from rookery.core.entries import Lease
from rookery.core.publishing import Publish
from rookery.core.topology import Tenant
from rookery.core.transactions import Settle, Transaction
from rookery.errors import RookeryError
from rookery.format.model import NEVER, Route
from rookery.wire.amqp import replies
from rookery.wire.amqp.channel import ACK, REJECT, Channel, counts_returns
from rookery.wire.amqp.codec import (
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK,
    TX_ROLLBACK_OK,
    TX_SELECT,
    TX_SELECT_OK,
    Fault,
    put_method,
    put_return,
)
from rookery.wire.amqp.names import not_implemented, tenant_of


def call(channel: Channel, method: i32) -> None:
    tx = channel.tx
    if method == TX_SELECT:
        if channel.confirming:
            raise Fault(406, "cannot switch from confirm to tx mode")
        if tx is None:
            channel.tx = Tx(channel, tenant_of(channel))
        put_method(channel.out, channel.number, TX_SELECT_OK)
    elif method != TX_COMMIT and method != TX_ROLLBACK:
        raise not_implemented()
    elif tx is None:
        raise Fault(406, "channel is not transactional")
    elif method == TX_COMMIT:
        tx.commit()
        put_method(channel.out, channel.number, TX_COMMIT_OK)
    else:
        tx.rollback()
        put_method(channel.out, channel.number, TX_ROLLBACK_OK)


@final
class Tx:
    """What a channel has asked for since its last commit or rollback."""

    def __init__(self, channel: Channel, tenant: Tenant) -> None:
        self.channel = channel
        self.tenant = tenant
        self._shard = channel.connection.shard
        self._clear()

    def _clear(self) -> None:
        self._work = Transaction("", self.tenant, NEVER)
        # times to live count from the commit on
        self._ttls: list[tuple[Publish, int]] = []
        self._returnable: list[Publish] = []
        self._held: list[tuple[int, Lease]] = []
        self._replies: list[Publish] = []

    def publish(self, publish: Publish, ttl_ms: i64, mandatory: bool) -> None:
        """Take a publish; it is no message yet."""
        self._shard.transactions.add(self._work, publish)
        if ttl_ms >= 0:
            self._ttls.append((publish, ttl_ms))
        if mandatory:
            self._returnable.append(publish)

    def reply(self, publish: Publish, mandatory: bool) -> None:
        """Take an answer by direct reply-to. It counts towards the limits, and is no part of what the core does."""
        self._shard.transactions.add(self._work, publish)
        self._work.operations.pop()
        self._replies.append(publish)
        if mandatory:
            self._returnable.append(publish)

    def settle(self, tag: i64, lease: Lease, outcome: i64) -> None:
        """Take the end of a delivery, which its channel holds no longer."""
        self._held.append((tag, lease))
        word = "ack" if outcome == ACK else "reject" if outcome == REJECT else "release"
        delay_ms = -1
        if word == "release" and counts_returns(lease.queue):
            word = "retry"
            delay_ms = 0
        self._shard.transactions.add(self._work, Settle(lease, word, delay_ms))

    def commit(self) -> None:
        """Do all of it; if that cannot be, nothing of it is done and the channel ends."""
        shard = self._shard
        for publish, ttl_ms in self._ttls:
            publish.expires_ms = shard.wall_ms + ttl_ms
        # deliveries that lapsed, or whose queue is gone, have nothing to settle any more
        work = [each for each in self._work.operations if not isinstance(each, Settle) or _is_live(each.lease)]
        try:
            unroutable = [each for each in self._returnable if self._reaches_nobody(each)]
            transactions.apply(shard, self.tenant, work)
        except RookeryError as error:
            self.rollback()
            raise Fault(406, f"the transaction was not done: {error}") from None
        channel = self.channel
        for reply in self._replies:
            asker = replies.find(channel.connection, reply.key)
            if asker is not None:
                replies.deliver(asker, reply.key, reply.props, reply.body)
        for publish in unroutable:
            route = Route(publish.exchange, publish.key)
            put_return(channel.out, channel.number, channel.connection.payload_max, route, publish.props, publish.body)
        for _, lease in self._held:
            if not lease.live:
                continue
            # its queue was deleted: memory and credit are given back
            lease.queue.ack(lease)
        if shard.log.wants_sync:
            channel.out.await_batch(shard.log.horizon())
        self._clear()

    def _reaches_nobody(self, publish: Publish) -> bool:
        if publish in self._replies:
            return replies.find(self.channel.connection, publish.key) is None
        way = publish.way(self.tenant)
        return not way.queues and not way.streams

    def rollback(self) -> None:
        """Forget all of it."""
        held = self._held
        self._clear()
        for tag, lease in held:
            if lease.live:
                self.channel.take_back(tag, lease)


def _is_live(lease: Lease) -> bool:
    return lease.live and not lease.queue.deleted

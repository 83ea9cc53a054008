"""Acknowledgements by id: a message that comes again, to everybody who got it, until somebody acks its id.

Such a message carries its ack id and the time after which it comes again in two headers. It is known here by its topic
and ack id for as long as a queue holds it; that is not journaled, as the queues of subscribers are not. Whoever hands
messages to a subscriber without a lease of his own asks `refuses` before and calls `hand_out` instead of acking.
All methods work within a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rookery.core import publishing
from rookery.core.entries import Lease
from rookery.errors import MessageAcknowledged, MessageNotAcked, Unroutable
from rookery.format import properties
from rookery.format.model import Message

if TYPE_CHECKING:
    from rookery.core.publishing import Publish
    from rookery.core.topology import Tenant

ACK_ID_HEADER: Final = "x-ack-id"
ACK_TIMEOUT_HEADER: Final = "x-ack-timeout-ms"
TIMEOUT_MS: Final = 30_000
"""How long an ack may take where nothing else is said."""


class _Pending:
    """A message that was published with an ack id: acknowledged by that id, whoever received it."""

    __slots__ = ("leases", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.leases: list[Lease] = []

    def live(self) -> list[Lease]:
        return [lease for lease in self.leases if lease.live]


class Receipts:
    """The messages of a tenant that wait for an ack, by topic and ack id."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._prune_at = 64

    def __len__(self) -> int:
        return len(self._pending)

    def publish(self, tenant: Tenant, p: Publish, ack_id: str) -> tuple[int, bool]:
        """Publish one message that waits for an ack; its number, and whether its dedup key was used before.

        Its property list must have the two headers. Without an ack id, its message id is taken for one.
        """

        def track(message: Message) -> None:
            self._track(tenant, p.key, ack_id or _default_id(tenant, message), message)

        try:
            return publishing.publish(tenant.shard, tenant, p, track)
        except Unroutable:
            raise Unroutable(f"nobody subscribes to {p.key!r}", argument="topic") from None

    def _track(self, tenant: Tenant, topic: str, ack_id: str, message: Message) -> None:
        known = self._pending.get((topic, ack_id))
        if known is not None and known.message.refs:
            raise MessageAcknowledged(f"ack id {ack_id!r} is pending on {topic!r} already", argument="ack_id")
        if len(self._pending) >= min(self._prune_at, tenant.limits.receipts_max or self._prune_at):
            # ids whose messages no queue holds any more
            self._pending = {place: p for place, p in self._pending.items() if p.message.refs}
            self._prune_at = 64 + 2 * len(self._pending)
        most = tenant.limits.receipts_max
        if most and len(self._pending) >= most:
            raise tenant.too_many("messages that wait for an ack by id", "receipts_max", "ack_id")
        self._pending[topic, ack_id] = _Pending(message)

    # Handing out

    def refuses(self, lease: Lease) -> bool:
        """Whether nobody may have it: the lease has ended, or it comes once more although it was acknowledged."""
        return not lease.live or (lease.attempt > 1 and _waits(lease) and self._of(lease) is None)

    def hand_out(self, lease: Lease) -> bool:
        """Settle what a subscriber takes, or start to wait for its ack; whether the lease was there for that."""
        pending = self._of(lease)
        if pending is None:
            return lease.queue.ack(lease)
        pending.leases = [*pending.live(), lease]
        timeout: Any = properties.header(lease.entry.message.props, ACK_TIMEOUT_HEADER)
        return lease.queue.extend(lease, int(timeout))

    def _of(self, lease: Lease) -> _Pending | None:
        if not self._pending or not _waits(lease):
            return None
        stored = lease.entry.message
        ack_id = str(properties.header(stored.props, ACK_ID_HEADER)) or _default_id(lease.queue.tenant, stored)
        pending = self._pending.get((stored.route.key, ack_id))
        return pending if pending is not None and pending.message is stored else None

    # Acknowledging

    def _find(self, topic: str, ack_id: str) -> _Pending:
        pending = self._pending.get((topic, ack_id))
        if pending is None or pending.message.refs == 0:
            raise MessageNotAcked(f"no message with ack id {ack_id!r} waits on {topic!r}", argument="ack_id")
        return pending

    def ack(self, topic: str, ack_id: str) -> None:
        """The message with this ack id is done: nobody gets it again."""
        for lease in self._find(topic, ack_id).live():
            lease.queue.ack(lease)
        del self._pending[topic, ack_id]

    def nack(self, topic: str, ack_id: str) -> None:
        """Everybody who has the message with this ack id gets it again now."""
        leases = self._find(topic, ack_id).live()
        if not leases:
            raise MessageNotAcked(f"the message with ack id {ack_id!r} is not with a subscriber", argument="ack_id")
        for lease in leases:
            lease.queue.retry(lease, 0, "negative acknowledgement")


def _waits(lease: Lease) -> bool:
    """Whether a message was published with an ack id, and is not a dead letter by now."""
    stored = lease.entry.message
    return not stored.route.deaths and properties.header(stored.props, ACK_ID_HEADER) is not None


def _default_id(tenant: Tenant, message: Message) -> str:
    """The ack id of a message that was published without one: its id."""
    return properties.message_id(message.props) or tenant.shard.ids.uuid(message.public_id)

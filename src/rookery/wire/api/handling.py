"""Publishing, claiming and settling in the native API, many messages at a time."""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import i64

from rookery.core.entries import Entry, Lease
from rookery.core.publishing import Batch, Publish, publish_all, publish_batch
from rookery.core.queue import Queue
from rookery.core.topology import Tenant
from rookery.errors import InvalidArgument, LeaseLost
from rookery.format import properties
from rookery.format.bytes import BytesWriter
from rookery.format.rendering import content_of, headers_of, legible, plain
from rookery.wire import packed
from rookery.wire.api.bodies import Bodies
from rookery.wire.api.broker import KEY_HEADER, Api
from rookery.wire.api.rest import FACE, require
from rookery.wire.api.shapes import (
    Claiming,
    Extended,
    ExtendMany,
    Leased,
    LeasedAll,
    Sent,
    SentAll,
    SettledAll,
    SettleMany,
    SettleOne,
)
from rookery.wire.http.call import JSON, Call
from rookery.wire.http.routes import Answer, Content
from rookery.wire.http.trace import answer_trace
from rookery.wire.packed import KEY, PACKED, PackedMessage


class Handling:
    """See the module's docstring."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._rest = api.rest
        self._shard = api.shard

    def publish(
        self,
        call: Call,
        tenant: Tenant,
        exchange: str,
        key: str,
        found: Bodies,
        ids: bool,
        mandatory: bool,
    ) -> Answer:
        self._rest.check_room()
        earlier = self._api.repeated(call, exchange, key)
        if earlier:
            return self._again(call, found, earlier)
        if found.bodies is not None and not mandatory and len(found.bodies) > 1:
            batch = Batch(exchange, key, found.props, found.bodies, 0)
            last_id = int(self._shard.last_id)
            numbers = publish_batch(self._shard, tenant, batch)
            self._api.remember(call, exchange, key, numbers[0])
            call.lasting()
            count = len(numbers)
            if ids and numbers[-1] - numbers[0] != count - 1:
                # some are repeats of others
                publishes = [each.publish(exchange, key, mandatory) for each in found.all()]
                return Answer(201, SentAll(count, self.sent(publishes, numbers, last_id)))
            return Answer(201, self._numbered(numbers[0], count) if ids else SentAll(count))
        publishes = [each.publish(exchange, key, mandatory) for each in found.all()]
        if len(publishes) == 1:
            return self._publish_one(call, tenant, publishes[0], found.single)
        keyed = sum(1 for each in publishes if each.dedup_key)
        if 0 < keyed < len(publishes) and KEY_HEADER in call.headers:
            raise InvalidArgument("all messages of a request have a key of their own, or none has", argument=KEY)
        last_id = int(self._shard.last_id)
        numbers = publish_all(self._shard, tenant, publishes)
        if not keyed:
            self._api.remember(call, exchange, key, numbers[0])
        call.lasting()
        all_sent = self.sent(publishes, numbers, last_id) if ids or found.single else None
        if found.single and all_sent is not None:
            return Answer(200 if all_sent[0].duplicate else 201, all_sent[0])
        return Answer(201, SentAll(len(numbers), all_sent))

    def _numbered(self, first: i64, count: i64) -> Content:
        """What `SentAll` says of messages that are numbered on, written without an object for each."""
        ids = self._shard.ids
        w = BytesWriter()
        w.write(b'{"count":%d,"messages":[{"message_id":"' % count)
        ids.write_uuid(w, first)
        number = first + 1
        while number < first + count:
            w.write(b'"},{"message_id":"')
            ids.write_uuid(w, number)
            number += 1
        w.write(b'"}]}')
        return Content(w.getvalue(), JSON)

    def _publish_one(self, call: Call, tenant: Tenant, p: Publish, single: bool) -> Answer:
        number, repeat = self._rest.publish(tenant, p)
        if not p.dedup_key:
            self._api.remember(call, p.exchange, p.key, number)
        call.lasting()
        given = None if repeat else properties.message_id(p.props)
        sent = Sent(given or self._shard.ids.uuid(number), repeat)
        return Answer(200 if repeat else 201, sent if single else SentAll(1, [sent]))

    def _again(self, call: Call, found: Bodies, first: int) -> Answer:
        """The answer to a request that was made before, whose messages were numbered on from `first`."""
        ids = self._shard.ids
        call.lasting()
        every = found.all()
        sent = [
            Sent(properties.message_id(each.props) or ids.uuid(first + index), True) for index, each in enumerate(every)
        ]
        return Answer(200, sent[0] if found.single else SentAll(len(sent), sent))

    def sent(self, publishes: list[Publish], numbers: Sequence[int], last_id: int) -> list[Sent]:
        """What became of publishes that were done together, when `last_id` was the number of the last message."""
        ids = self._shard.ids
        seen: set[int] = set()
        sent = []
        for p, number in zip(publishes, numbers, strict=True):
            repeat = number <= last_id or number in seen
            seen.add(number)
            given = None if repeat else properties.message_id(p.props)
            sent.append(Sent(given or ids.uuid(number), repeat))
        return sent

    # Claiming and settling

    def claim(self, call: Call, name: str, wanted: Claiming) -> object:
        queue = self._rest.queue(call, name, FACE, "read") if wanted.create else self._rest.existing(call, name, "read")

        is_packed = wants_packed(call)

        def done(leases: list[Lease]) -> object:
            if wanted.ack:
                leases = [lease for lease in leases if not refused(lease)]
            if is_packed:
                return packed_content([self.pack(lease.entry, int(lease.attempt), lease.token()) for lease in leases])
            return LeasedAll([self.show(lease.entry, int(lease.attempt), lease.token()) for lease in leases])

        def handed_out(leases: list[Lease]) -> None:
            if len(leases) == 1 and not is_packed and not (wanted.ack and refused(leases[0])):
                call.tag = leases[0].token()
                answer_trace(call, leases[0].entry.message.props)
            if wanted.ack:
                self._settle_handed_out(call, leases)

        lease_ms = wanted.lease_ms or lease_ms_of(queue) or self._rest.options.lease_ms
        return self._rest.claim(call, queue, wanted.max, lease_ms, wanted.wait_ms, done, handed_out)

    def _settle_handed_out(self, call: Call, leases: list[Lease]) -> None:
        """End the leases of whoever does not settle; of messages that wait for an ack by id, it is waited for."""
        for lease in leases:
            if refused(lease):
                lease.queue.ack(lease)
            else:
                lease.queue.tenant.receipts.hand_out(lease)
        call.lasting()

    def settle(self, call: Call, name: str, wanted: SettleMany) -> SettledAll:
        require(call.principal, "read", name)
        same = [SettleOne(token, wanted.outcome, wanted.delay_ms, wanted.reason) for token in wanted.leases]
        every = [*wanted.settle, *same]
        if self._api.repeated(call, "", name):
            call.lasting()
            return SettledAll(len(every), [])
        lost = []
        found: list[tuple[SettleOne, Lease]] = []
        for one in every:
            lease = self._lease(call, name, one.lease)
            if lease is None:
                lost.append(one.lease)
            else:
                found.append((one, lease))
        if lost and wanted.together:
            raise LeaseLost(f"lease {lost[0][:300]} has ended", argument="lease")
        for one, lease in found:
            if lease.live:
                settle_one(lease, one)
            else:
                lost.append(one.lease)
        # a settle that is made again does no harm, so its key need not outlive this process
        self._api.remember_here(call, "", name)
        call.lasting()
        return SettledAll(len(every) - len(lost), lost)

    def extend(self, call: Call, name: str, wanted: ExtendMany) -> Extended:
        require(call.principal, "read", name)
        lost = []
        for token in wanted.leases:
            lease = self._lease(call, name, token)
            if lease is None or not lease.queue.extend(lease, wanted.lease_ms):
                lost.append(token)
        return Extended(len(wanted.leases) - len(lost), lost)

    def _lease(self, call: Call, queue: str, token: str) -> Lease | None:
        lease = self._shard.lease(self._rest.tenant(call), token)
        return lease if lease is not None and lease.live and lease.queue.name == queue else None

    def packed(self, entry: Entry, lease: Lease) -> bytes:
        """A delivery for Rookery's client."""
        return packed.encode(self.pack(entry, int(lease.attempt), lease.token()))

    def pack(self, entry: Entry, attempt: int, lease: str = "") -> PackedMessage:
        """A message for Rookery's client."""
        stored = entry.message
        return PackedMessage(
            legible(self._rest.message_id(stored)),
            stored.props,
            stored.body,
            legible(stored.route.exchange),
            legible(stored.route.key),
            int(stored.priority),
            int(entry.enqueued_ms),
            int(stored.expires_ms),
            attempt,
            entry.redelivered,
            lease,
            int(entry.seq),
            plain([death.as_dict() for death in stored.route.deaths]),
        )

    def show(self, entry: Entry, attempt: int, lease: str | None = None) -> Leased:
        """A message as the API shows it, with the token of its lease if there is one."""
        stored = entry.message
        message, coded = content_of(stored)
        found = properties.decode(stored.props)
        stamp = found.timestamp
        return Leased(
            message,
            self._rest.message_id(stored),
            attempt,
            lease,
            coded,
            stored.route.exchange,
            stored.route.key,
            entry.redelivered,
            int(stored.priority),
            found.content_type,
            headers_of(stored),
            found.correlation_id,
            found.reply_to,
            found.type,
            None if stamp is None else int(stamp) * 1000,
            int(entry.enqueued_ms),
            int(stored.expires_ms),
            int(entry.due_ms),
            [death.as_dict() for death in stored.route.deaths] or None,
        )


def refused(lease: Lease) -> bool:
    """Whether nobody may have its message any more."""
    return lease.queue.tenant.receipts.refuses(lease)


def settle_one(lease: Lease, one: SettleOne) -> None:
    """End a lease with its outcome."""
    queue = lease.queue
    if one.outcome == "ack":
        queue.ack(lease)
    elif one.outcome == "retry":
        queue.retry(lease, -1 if one.delay_ms is None else one.delay_ms, one.reason)
    elif one.outcome == "release":
        queue.release(lease)
    else:
        queue.reject(lease, one.reason)


def lease_ms_of(queue: Queue) -> int:
    """The lease that was said of a queue, by who declared it or by a policy; 0 when nothing was."""
    tenant = queue.tenant
    policy = tenant.policy_for(queue.name)
    said = "lease_ms" in tenant.said[queue.name] or (policy is not None and "lease_ms" in policy.settings)
    return int(queue.settings.lease_ms) if said else 0


def wants_packed(call: Call) -> bool:
    return PACKED in call.header(b"accept")


def packed_content(value: object) -> Content:
    return Content(packed.encode(value), PACKED.encode())

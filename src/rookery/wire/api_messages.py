"""Messages of queues and exchanges, many at a time: publish, claim, settle, extend."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from rookery import properties
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.core.topology import Tenant
from rookery.core.transactions import Batch, Publish, apply, publish_batch
from rookery.errors import InvalidArgument, LeaseLost
from rookery.wire import api_bodies, packed
from rookery.wire.api import KEY_HEADER, Api
from rookery.wire.api_bodies import EVENT, EVENTS, JSON, LINES, Item, check_routing_key
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Content, Router
from rookery.wire.http_trace import answer_trace
from rookery.wire.packed import KEY, PACKED, PackedMessage
from rookery.wire.rest import content_of, headers_of, plain
from rookery.wire.rest_s2 import FACE
from rookery.wire.rest_types import (
    CheckedName,
    CheckedShort,
    DedupKey,
    Duration,
    Lasting,
    Name,
    Priority,
    Short,
)

LEASES_MAX: Final = 10_000

WaitMs = Annotated[int, msgspec.Meta(ge=0, le=60_000)]
ClaimCount = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
Outcome = Literal["ack", "retry", "release", "reject"]
Tokens = Annotated[list[str], msgspec.Meta(min_length=1, max_length=LEASES_MAX)]
Reason = Annotated[str, msgspec.Meta(max_length=65_536)]

ACCEPTED: Final = {
    PACKED: bytes,
    JSON: Item | list[Item],
    LINES[0]: str,
    EVENT: dict[str, Any],
    EVENTS: list[dict[str, Any]],
    "application/octet-stream": bytes,
}
"""What bodies of publishes may be, for the OpenAPI document."""


class Sent(msgspec.Struct, omit_defaults=True):
    """`duplicate`: the idempotency key was seen before, and the id is the first message's."""

    message_id: str
    duplicate: bool = False


class SentAll(msgspec.Struct, omit_defaults=True):
    count: int
    messages: list[Sent] | None = None


class Claiming(msgspec.Struct, forbid_unknown_fields=True):
    """Up to `max` messages under lease for `lease_ms`; `wait_ms` for the first. With `ack` they are acked as they are
    handed out; without `create`, a queue that is not there is an error.
    """

    max: ClaimCount = 1
    wait_ms: WaitMs = 0
    lease_ms: Lasting | None = None
    create: bool = True
    ack: bool = False


class Leased(msgspec.Struct, omit_defaults=True):
    """A message, and under `lease` the right to settle it (not where it is only looked at).

    A body that is neither JSON nor text is in `message_base64`.
    """

    message: Any
    message_id: str
    attempt: int
    lease: str | None = None
    message_base64: str | None = None
    exchange: str = ""
    routing_key: str = ""
    redelivered: bool = False
    priority: int = 0
    content_type: str | None = None
    headers: dict[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    timestamp_ms: int | None = None
    enqueued_ms: int = 0
    expires_ms: int = 0
    due_ms: int = 0
    deaths: list[dict[str, Any]] | None = None


class LeasedAll(msgspec.Struct):
    deliveries: list[Leased]


class SettleOne(msgspec.Struct, forbid_unknown_fields=True):
    """`retry` and `reject` may say why; `retry` after `delay_ms`, else after the queue's backoff."""

    lease: str
    outcome: Outcome = "ack"
    delay_ms: Duration | None = None
    reason: Reason = ""

    def do(self, lease: Lease) -> None:
        queue = lease.queue
        if self.outcome == "ack":
            queue.ack(lease)
        elif self.outcome == "retry":
            queue.retry(lease, -1 if self.delay_ms is None else self.delay_ms, self.reason)
        elif self.outcome == "release":
            queue.release(lease)
        else:
            queue.reject(lease, self.reason)


class SettleMany(msgspec.Struct, forbid_unknown_fields=True):
    """`settle` names each lease with an outcome of its own; `leases` all get the one of `outcome`. With `together`, one
    that had ended refuses them all.
    """

    settle: Annotated[list[SettleOne], msgspec.Meta(max_length=LEASES_MAX)] = []
    leases: Annotated[list[str], msgspec.Meta(max_length=LEASES_MAX)] = []
    outcome: Outcome = "ack"
    delay_ms: Duration | None = None
    reason: Reason = ""
    together: bool = False

    def every(self) -> list[SettleOne]:
        same = [SettleOne(token, self.outcome, self.delay_ms, self.reason) for token in self.leases]
        return [*self.settle, *same]


class SettledAll(msgspec.Struct):
    """`lost` are leases that had ended before: settled, lapsed, or never there."""

    settled: int
    lost: list[str]


class ExtendMany(msgspec.Struct, forbid_unknown_fields=True):
    leases: Tokens
    lease_ms: Lasting


class Extended(msgspec.Struct):
    extended: int
    lost: list[str]


class Messages:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._rest = api.rest
        self._shard = api.shard

    # Publishing

    def publish_to_queue(
        self,
        call: Call,
        name: Name,
        body: bytes,
        ids: bool = True,
        priority: Priority = 0,
        delay_ms: Duration | None = None,
        ttl_ms: Lasting | None = None,
        message_id: Short | None = None,
        correlation_id: Short | None = None,
        reply_to: Short | None = None,
        type: Short | None = None,
        idempotency_key: DedupKey | None = None,
        persistent: bool = True,
        create: bool = True,
    ) -> Answer:
        """Publish one message or many, all of them or none. A body that is neither JSON, lines of JSON nor an event is
        one message as it is: then the query says the rest, and headers of the request that begin with `X-Header-` are
        headers of the message. A repeated header `Idempotency-Key` adds nothing; without `create`, a queue that is not
        there is an error.
        """
        queue = self._rest.queue(call, name, FACE, "write") if create else self._rest.existing(call, name, "write")
        said = _said(
            priority, delay_ms, ttl_ms, message_id, correlation_id, reply_to, type, idempotency_key, persistent
        )
        found = api_bodies.read(call, body, int(self._shard.wall_ms), said)
        for index, each in enumerate(found.messages):
            if each.routing_key not in (None, name):
                at = "routing_key" if found.single else f"[{index}].routing_key"
                raise InvalidArgument("messages to a queue have its name as their routing key", argument=at)
        return self._publish(call, queue.tenant, "", name, found, ids, False)

    def publish_to_exchange(
        self,
        call: Call,
        name: Name,
        body: bytes,
        routing_key: CheckedShort = "",
        mandatory: bool = False,
        ids: bool = True,
        priority: Priority = 0,
        delay_ms: Duration | None = None,
        ttl_ms: Lasting | None = None,
        message_id: Short | None = None,
        correlation_id: Short | None = None,
        reply_to: Short | None = None,
        type: Short | None = None,
        idempotency_key: DedupKey | None = None,
        persistent: bool = True,
    ) -> Answer:
        """Publish to an exchange, as to a queue. A message without a routing key of its own has that of the query; with
        `mandatory`, one that nobody would get refuses them all.
        """
        call.principal.require("write", name, kind="exchange")
        tenant = self._rest.tenant(call)
        if tenant.exchange(name).internal:
            raise InvalidArgument(f"exchange {name!r} is internal", argument="exchange")
        check_routing_key(routing_key)
        said = _said(
            priority, delay_ms, ttl_ms, message_id, correlation_id, reply_to, type, idempotency_key, persistent
        )
        found = api_bodies.read(call, body, int(self._shard.wall_ms), said)
        return self._publish(call, tenant, name, routing_key, found, ids, mandatory)

    def _publish(
        self,
        call: Call,
        tenant: Tenant,
        exchange: str,
        key: str,
        found: api_bodies.Bodies,
        ids: bool,
        mandatory: bool,
    ) -> Answer:
        self._rest.check_room()
        uuid = self._shard.ids.uuid
        earlier = self._api.repeated(call, exchange, key)
        if earlier:
            return self._again(call, found, earlier)
        if found.bodies is not None and not mandatory and len(found.bodies) > 1:
            count = len(found.bodies)
            batch = Batch(exchange, key, found.props, found.bodies, 0)
            first = publish_batch(self._shard, tenant, batch)
            self._api.remember(call, exchange, key, first)
            call.lasting()
            sent = [Sent(uuid(number)) for number in range(first, first + count)] if ids else None
            return Answer(201, SentAll(count, sent))
        publishes: list[Any] = [each.publish(exchange, key, mandatory) for each in found.all()]
        if len(publishes) == 1 and not mandatory:
            return self._publish_one(call, tenant, publishes[0], found.single)
        keyed = sum(1 for each in publishes if each.dedup_key)
        if 0 < keyed < len(publishes) and KEY_HEADER in call.headers:
            raise InvalidArgument("all messages of a request have a key of their own, or none has", argument=KEY)
        last_id = int(self._shard.last_id)
        numbers = apply(self._shard, tenant, publishes)
        if not keyed:
            self._api.remember(call, exchange, key, numbers[0])
        call.lasting()
        all_sent = self.sent(publishes, numbers, last_id) if ids or found.single else None
        if found.single and all_sent is not None:
            return Answer(200 if all_sent[0].duplicate else 201, all_sent[0])
        return Answer(201, SentAll(len(numbers), all_sent))

    def _publish_one(self, call: Call, tenant: Tenant, p: Publish, single: bool) -> Answer:
        number, repeat = self._rest.publish(tenant, p)
        if not p.dedup_key:
            self._api.remember(call, p.exchange, p.key, number)
        call.lasting()
        given = None if repeat else properties.message_id(p.props)
        sent = Sent(given or self._shard.ids.uuid(number), repeat)
        return Answer(200 if repeat else 201, sent if single else SentAll(1, [sent]))

    def _again(self, call: Call, found: api_bodies.Bodies, first: int) -> Answer:
        """The answer to a request that was made before, whose messages were numbered on from `first`."""
        uuid = self._shard.ids.uuid
        call.lasting()
        every = found.all()
        sent = [
            Sent(properties.message_id(each.props) or uuid(first + index), True) for index, each in enumerate(every)
        ]
        return Answer(200, sent[0] if found.single else SentAll(len(sent), sent))

    def sent(self, publishes: list[Publish], numbers: list[int], last_id: int) -> list[Sent]:
        """What became of publishes that were done together, when `last_id` was the number of the last message."""
        uuid = self._shard.ids.uuid
        seen: set[int] = set()
        sent = []
        for p, number in zip(publishes, numbers, strict=True):
            repeat = number <= last_id or number in seen
            seen.add(number)
            given = None if repeat else properties.message_id(p.props)
            sent.append(Sent(given or uuid(number), repeat))
        return sent

    # Claiming and settling

    def claim(self, call: Call, name: Name, body: Claiming | None = None) -> object:
        """Lease messages of a queue, at once or when there are some."""
        wanted = body or Claiming()
        queue = self._rest.queue(call, name, FACE, "read") if wanted.create else self._rest.existing(call, name, "read")

        def done(leases: list[Lease]) -> object:
            made: object = self._claimed(call, leases)
            if wanted.ack:
                for lease in leases:
                    lease.queue.ack(lease)
                call.lasting()
            return made

        lease_ms = wanted.lease_ms or lease_ms_of(queue) or self._rest.options.lease_ms
        return self._rest.claim(call, queue, wanted.max, lease_ms, wanted.wait_ms, done)

    def _claimed(self, call: Call, leases: list[Lease]) -> object:
        if wants_packed(call):
            return packed_content([self.pack(lease.entry, int(lease.attempt), lease.token()) for lease in leases])
        if len(leases) == 1:
            call.tag = leases[0].token()
            answer_trace(call, leases[0].entry.message.props)
        return LeasedAll([self._delivery(lease) for lease in leases])

    def settle(self, call: Call, name: CheckedName, body: SettleMany) -> SettledAll:
        """Settle many leases of a queue, each with its outcome."""
        call.principal.require("read", name)
        every = body.every()
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
        if lost and body.together:
            raise LeaseLost(f"lease {lost[0][:300]} has ended", argument="lease")
        for one, lease in found:
            if lease.live:
                one.do(lease)
            else:
                lost.append(one.lease)
        # a settle that is made again does no harm, so its key need not outlive this process
        self._api.remember_here(call, "", name)
        call.lasting()
        return SettledAll(len(every) - len(lost), lost)

    def extend(self, call: Call, name: CheckedName, body: ExtendMany) -> Extended:
        """Let leases last so long from now."""
        call.principal.require("read", name)
        lost = []
        for token in body.leases:
            lease = self._lease(call, name, token)
            if lease is None or not lease.queue.extend(lease, body.lease_ms):
                lost.append(token)
        return Extended(len(body.leases) - len(lost), lost)

    def _lease(self, call: Call, queue: str, token: str) -> Lease | None:
        lease = self._shard.lease(self._rest.tenant(call), token)
        return lease if lease is not None and lease.live and lease.queue.name == queue else None

    def _delivery(self, lease: Lease) -> Leased:
        shown = self.show(lease.entry, int(lease.attempt))
        shown.lease = lease.token()
        return shown

    def packed(self, entry: Entry, lease: Lease) -> bytes:
        """A delivery for Rookery's client."""
        return packed.encode(self.pack(entry, int(lease.attempt), lease.token()))

    def pack(self, entry: Entry, attempt: int, lease: str = "") -> PackedMessage:
        """A message for Rookery's client."""
        stored = entry.message
        return PackedMessage(
            plain(self._rest.message_id(entry.message)),
            stored.props,
            stored.body,
            stored.route.exchange,
            plain(stored.route.key),
            int(stored.priority),
            int(entry.enqueued_ms),
            int(stored.expires_ms),
            attempt,
            entry.redelivered,
            lease,
            int(entry.seq),
            plain([death.as_dict() for death in stored.route.deaths]),
        )

    def show(self, entry: Entry, attempt: int) -> Leased:
        message, coded = content_of(entry.message)
        stored = entry.message
        found = properties.decode(stored.props)
        stamp = found.timestamp
        return Leased(
            message=message,
            message_id=self._rest.message_id(entry.message),
            attempt=attempt,
            message_base64=coded,
            exchange=stored.route.exchange,
            routing_key=stored.route.key,
            redelivered=entry.redelivered,
            priority=int(stored.priority),
            content_type=found.content_type,
            headers=headers_of(entry.message),
            correlation_id=found.correlation_id,
            reply_to=found.reply_to,
            type=found.type,
            timestamp_ms=None if stamp is None else int(stamp) * 1000,
            enqueued_ms=int(entry.enqueued_ms),
            expires_ms=int(stored.expires_ms),
            due_ms=int(entry.due_ms),
            deaths=[death.as_dict() for death in stored.route.deaths] or None,
        )


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


def _said(
    priority: int,
    delay_ms: int | None,
    ttl_ms: int | None,
    message_id: str | None,
    correlation_id: str | None,
    reply_to: str | None,
    type: str | None,
    idempotency_key: str | None,
    persistent: bool,
) -> Item:
    """What a query says of a body."""
    return Item(
        priority=priority,
        delay_ms=delay_ms,
        ttl_ms=ttl_ms,
        message_id=message_id,
        correlation_id=correlation_id,
        reply_to=reply_to,
        type=type,
        idempotency_key=idempotency_key,
        persistent=persistent,
    )


def add_routes(router: Router, api: Api) -> Messages:
    messages = Messages(api)
    queue = "/api/v1/queues/{name}"
    sent = (Sent, SentAll)
    tag = "messages"
    router.add(
        "POST", f"{queue}/messages", messages.publish_to_queue, {201: sent, 200: sent}, tag=tag, accepts=ACCEPTED
    )
    router.add(
        "POST",
        "/api/v1/exchanges/{name}/messages",
        messages.publish_to_exchange,
        {201: sent, 200: sent},
        tag=tag,
        accepts=ACCEPTED,
    )
    router.add("POST", f"{queue}/claim", messages.claim, {200: (LeasedAll, bytes)}, tag=tag)
    router.add("POST", f"{queue}/settle", messages.settle, {200: SettledAll}, tag=tag)
    router.add("POST", f"{queue}/extend", messages.extend, {200: Extended}, tag=tag)
    return messages


__all__ = ["Leased", "Messages", "Sent", "SettleOne", "add_routes", "packed_content", "wants_packed"]

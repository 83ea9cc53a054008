"""Messages of queues and exchanges, many at a time: publish, claim, settle, extend."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from rookery import properties
from rookery.core.entries import Entry, Lease
from rookery.core.topology import Tenant
from rookery.core.transactions import Batch, Publish, apply, publish_batch
from rookery.errors import InvalidArgument
from rookery.wire import api_bodies
from rookery.wire.api import Api
from rookery.wire.api_bodies import EVENT, EVENTS, JSON, LINES, Item, check_routing_key
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Router
from rookery.wire.http_trace import answer_trace
from rookery.wire.rest import content_of, headers_of
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
Reason = Annotated[str, msgspec.Meta(max_length=255)]

ACCEPTED: Final = {
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
    """Up to `max` messages under lease for `lease_ms`; `wait_ms` for the first."""

    max: ClaimCount = 1
    wait_ms: WaitMs = 0
    lease_ms: Lasting | None = None


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
    """`settle` names each lease with an outcome of its own; `leases` all get the one of `outcome`."""

    settle: Annotated[list[SettleOne], msgspec.Meta(max_length=LEASES_MAX)] = []
    leases: Annotated[list[str], msgspec.Meta(max_length=LEASES_MAX)] = []
    outcome: Outcome = "ack"
    delay_ms: Duration | None = None
    reason: Reason = ""

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
    ) -> Answer:
        """Publish one message or many, all of them or none. A body that is neither JSON, lines of JSON nor an event is
        one message as it is: then the query says the rest, and headers of the request that begin with `X-Header-` are
        headers of the message.
        """
        queue = self._rest.queue(call, name, FACE, "write")
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
        if found.bodies is not None and not mandatory:
            count = len(found.bodies)
            batch = Batch(exchange, key, api_bodies.PLAIN_PROPS, found.bodies, 0)
            first = publish_batch(self._shard, tenant, batch)
            call.lasting()
            sent = [Sent(uuid(number)) for number in range(first, first + count)] if ids else None
            return Answer(201, SentAll(count, sent))
        publishes: list[Any] = [each.publish(exchange, key, mandatory) for each in found.all()]
        last_id = int(self._shard.last_id)
        numbers = apply(self._shard, tenant, publishes)
        call.lasting()
        all_sent = self.sent(publishes, numbers, last_id) if ids or found.single else None
        if found.single and all_sent is not None:
            return Answer(200 if all_sent[0].duplicate else 201, all_sent[0])
        return Answer(201, SentAll(len(numbers), all_sent))

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
        queue = self._rest.queue(call, name, FACE, "read")

        def done(leases: list[Lease]) -> LeasedAll:
            if len(leases) == 1:
                call.tag = leases[0].token()
                answer_trace(call, leases[0].entry.message.props)
            return LeasedAll([self._delivery(lease) for lease in leases])

        lease_ms = wanted.lease_ms or self._rest.options.lease_ms
        return self._rest.claim(call, queue, wanted.max, lease_ms, wanted.wait_ms, done)

    def settle(self, call: Call, name: CheckedName, body: SettleMany) -> SettledAll:
        """Settle many leases of a queue, each with its outcome."""
        call.principal.require("read", name)
        every = body.every()
        lost = []
        for one in every:
            lease = self._lease(call, name, one.lease)
            if lease is None:
                lost.append(one.lease)
            else:
                one.do(lease)
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

    def show(self, entry: Entry, attempt: int) -> Leased:
        message, coded = content_of(entry)
        stored = entry.message
        found = properties.decode(stored.props)
        stamp = found.timestamp
        return Leased(
            message=message,
            message_id=self._rest.message_id(entry),
            attempt=attempt,
            message_base64=coded,
            exchange=stored.route.exchange,
            routing_key=stored.route.key,
            redelivered=entry.redelivered,
            priority=int(stored.priority),
            content_type=found.content_type,
            headers=headers_of(entry),
            correlation_id=found.correlation_id,
            reply_to=found.reply_to,
            type=found.type,
            timestamp_ms=None if stamp is None else int(stamp) * 1000,
            enqueued_ms=int(entry.enqueued_ms),
            expires_ms=int(stored.expires_ms),
            due_ms=int(entry.due_ms),
            deaths=[death.as_dict() for death in stored.route.deaths] or None,
        )


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
        "POST", f"{queue}/messages", messages.publish_to_queue, {201: sent, 200: Sent}, tag=tag, accepts=ACCEPTED
    )
    router.add(
        "POST",
        "/api/v1/exchanges/{name}/messages",
        messages.publish_to_exchange,
        {201: sent, 200: Sent},
        tag=tag,
        accepts=ACCEPTED,
    )
    router.add("POST", f"{queue}/claim", messages.claim, {200: LeasedAll}, tag=tag)
    router.add("POST", f"{queue}/settle", messages.settle, {200: SettledAll}, tag=tag)
    router.add("POST", f"{queue}/extend", messages.extend, {200: Extended}, tag=tag)
    return messages


__all__ = ["Leased", "Messages", "Sent", "SettleOne", "add_routes"]

"""Messages of queues and exchanges, many at a time: publish, claim, settle, extend."""

from __future__ import annotations

from typing import Any, Final

from rookery.errors import InvalidArgument
from rookery.wire import api_bodies
from rookery.wire.api import Api
from rookery.wire.api_bodies import EVENT, EVENTS, JSON, LINES, check_routing_key
from rookery.wire.api_handling import Handling
from rookery.wire.api_shapes import (
    Claiming,
    Extended,
    ExtendMany,
    Item,
    LeasedAll,
    Sent,
    SentAll,
    SettledAll,
    SettleMany,
)
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Router
from rookery.wire.packed import PACKED
from rookery.wire.rest import refuse_internal
from rookery.wire.rest_pulling import FACE
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

ACCEPTED: Final = {
    PACKED: bytes,
    JSON: Item | list[Item],
    LINES[0]: str,
    EVENT: dict[str, Any],
    EVENTS: list[dict[str, Any]],
    "application/octet-stream": bytes,
}
"""What bodies of publishes may be, for the OpenAPI document."""


class Messages:
    """The routes."""

    def __init__(self, api: Api, handling: Handling) -> None:
        self._rest = api.rest
        self._handling = handling

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
        said = None
        if b"?" in call.url:
            said = _said(
                priority, delay_ms, ttl_ms, message_id, correlation_id, reply_to, type, idempotency_key, persistent
            )
        found = api_bodies.read(call, body, int(self._rest.shard.wall_ms), said)
        for index, each in enumerate(found.messages):
            if each.routing_key not in (None, name):
                at = "routing_key" if found.single else f"[{index}].routing_key"
                raise InvalidArgument("messages to a queue have its name as their routing key", argument=at)
        return self._handling.publish(call, queue.tenant, "", name, found, ids, False)

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
        refuse_internal(tenant.exchange(name))
        check_routing_key(routing_key)
        said = None
        if b"?" in call.url:
            said = _said(
                priority, delay_ms, ttl_ms, message_id, correlation_id, reply_to, type, idempotency_key, persistent
            )
        found = api_bodies.read(call, body, int(self._rest.shard.wall_ms), said)
        return self._handling.publish(call, tenant, name, routing_key, found, ids, mandatory)

    # Claiming and settling

    def claim(self, call: Call, name: Name, body: Claiming | None = None) -> object:
        """Lease messages of a queue, at once or when there are some."""
        return self._handling.claim(call, name, body or Claiming())

    def settle(self, call: Call, name: CheckedName, body: SettleMany) -> SettledAll:
        """Settle many leases of a queue, each with its outcome."""
        return self._handling.settle(call, name, body)

    def extend(self, call: Call, name: CheckedName, body: ExtendMany) -> Extended:
        """Let leases last so long from now."""
        return self._handling.extend(call, name, body)


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


def add_routes(router: Router, api: Api) -> Handling:
    handling = Handling(api)
    messages = Messages(api, handling)
    queue = "/api/v1/queues/{name}"
    sent = (Sent, SentAll)
    tag = "messages"
    router.add(
        "POST",
        f"{queue}/messages",
        messages.publish_to_queue,
        {201: sent, 200: sent},
        "queue.publish",
        tag=tag,
        accepts=ACCEPTED,
    )
    router.add(
        "POST",
        "/api/v1/exchanges/{name}/messages",
        messages.publish_to_exchange,
        {201: sent, 200: sent},
        "exchange.publish",
        tag=tag,
        accepts=ACCEPTED,
    )
    router.add("POST", f"{queue}/claim", messages.claim, {200: (LeasedAll, bytes)}, "queue.claim", tag=tag)
    router.add("POST", f"{queue}/settle", messages.settle, {200: SettledAll}, "queue.settle", tag=tag)
    router.add("POST", f"{queue}/extend", messages.extend, {200: Extended}, "queue.settle", tag=tag)
    return handling

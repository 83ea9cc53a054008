"""Messages of queues and exchanges, many at a time: publish them, and look at those of a queue."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.core.entries import Entry, by_seq
from rookery.core.queue import Queue
from rookery.errors import InvalidArgument
from rookery.format.rendering import JSON
from rookery.wire.api import bodies
from rookery.wire.api.bodies import EVENT, EVENTS, LINES, check_routing_key
from rookery.wire.api.broker import Api
from rookery.wire.api.handling import Handling, packed_content, wants_packed
from rookery.wire.api.rest import FACE, refuse_internal
from rookery.wire.api.shapes import PACKED_MAX, SHOWN_MAX, Item, Leased, Sent, SentAll
from rookery.wire.api.types import CheckedShort, DedupKey, Duration, Lasting, Name, Priority, Short
from rookery.wire.http.call import Call
from rookery.wire.http.routes import CHECKED, Answer, Router
from rookery.wire.packed import PACKED

ACCEPTED: Final = {
    PACKED: bytes,
    JSON: Item | list[Item],
    LINES[0]: str,
    EVENT: dict[str, Any],
    EVENTS: list[dict[str, Any]],
    "application/octet-stream": bytes,
}
"""What bodies of publishes may be, for the OpenAPI document."""

Page = Annotated[int, msgspec.Meta(ge=1, le=PACKED_MAX)]

State = Literal["ready", "delayed", "leased"]

Place = Annotated[str, msgspec.Meta(pattern=r"^(-?[0-9]{1,20}\.[0-9]{1,20})?$"), CHECKED]


class Looked(msgspec.Struct):
    """`count` is how many there are in all; `next` is what to ask for with `after` to go on, null at the end."""

    count: int
    messages: list[Leased]
    next: str | None


class Messages:
    """The routes."""

    def __init__(self, api: Api, handling: Handling) -> None:
        self._rest = api.rest
        self._handling = handling

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
        found = bodies.read(call, body, int(self._rest.shard.wall_ms), said)
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
        found = bodies.read(call, body, int(self._rest.shard.wall_ms), said)
        return self._handling.publish(call, tenant, name, routing_key, found, ids, mandatory)

    def look(self, call: Call, name: Name, state: State = "ready", limit: Page = 100, after: Place = "") -> object:
        """Look at messages of a queue, in order, and leave them as they are."""
        queue = self._rest.existing(call, name, "read")
        if state == "ready":
            count = int(queue.ready)
            entries = queue.ready_entries(0 if after else limit + 1)
        elif state == "delayed":
            count = int(queue.delayed)
            entries = sorted(queue.delayed_entries(), key=lambda entry: (int(entry.due_ms), int(entry.seq)))
        else:
            count, entries = int(queue.leased), sorted((lease.entry for lease in queue.leases()), key=by_seq)
        if after:
            major, _, minor = after.partition(".")
            behind = (int(major), int(minor))
            entries = [entry for entry in entries if _place(queue, state, entry) > behind]
        if wants_packed(call):
            return packed_content([self._handling.pack(entry, int(entry.attempts)) for entry in entries[:limit]])
        chosen = entries[: min(limit, SHOWN_MAX)]
        following = None
        if len(entries) > len(chosen):
            following = "{}.{}".format(*_place(queue, state, chosen[-1]))
        return Looked(count, [self._handling.show(entry, int(entry.attempts)) for entry in chosen], following)


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


def _place(queue: Queue, state: State, entry: Entry) -> tuple[int, int]:
    """Where an entry stands among those of its state: its place, which no other has."""
    first = 0
    if state == "delayed":
        first = int(entry.due_ms)
    elif state == "ready" and queue.ordered:
        first = -int(min(entry.message.priority, queue.priority_max))
    return first, int(entry.seq)


def add_routes(router: Router, api: Api, handling: Handling) -> None:
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
    router.add("GET", f"{queue}/messages", messages.look, {200: (Looked, bytes)}, "queue.peek", tag=tag)

"""The oldest API: exchanges and queues by JSON at the root, and a queue's messages as server-sent events.

`/publish` and `/stats` are shared with the small queue API (`s0`): a queue in the query, or the scheme `ApiKey`,
means that one.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rookery.core import rights
from rookery.core.consumers import Mailbox
from rookery.core.publishing import Publish
from rookery.errors import AccessRefused, QueueNotFound, RookeryError
from rookery.format import properties
from rookery.wire.api.compat.s0 import S0, Count, Counts, DeadLetters, KeyCreated, word_error
from rookery.wire.api.rest import Rest, refuse_internal
from rookery.wire.api.stats import Stats, StatsRoutes
from rookery.wire.api.types import Claimed, Done, MessageId, Name, NeededName, Short
from rookery.wire.http.call import Call
from rookery.wire.http.errors import Error
from rookery.wire.http.routes import LATER, Answer, Content, Router, decode_json, parse_query

FACE: Final = "line"
CREDIT: Final = 100
EVENTS: Final = b"text/event-stream"

_PROPS: Final = properties.of_type("text/plain")


class Create(msgspec.Struct):
    exchange: Name
    exchange_type: Literal["direct", "fanout", "topic"]
    queue: Name
    routing_key: Short = ""


class LegacyPublish(msgspec.Struct):
    exchange: str
    routing_key: str = ""
    body: str = ""


_decode_publish = msgspec.json.Decoder(LegacyPublish).decode


def for_small_queues(call: Call) -> bool:
    """Whether a request to a shared path speaks the small queue API."""
    return "queue" in parse_query(call.query) or call.header(b"authorization").startswith("ApiKey ")


def word_shared_error(call: Call, error: RookeryError) -> tuple[int, object]:
    if for_small_queues(call):
        return word_error(call, error)
    return error.http, Error(error.code, str(error), call.request_id, error.argument)


def word_text_error(call: Call, error: RookeryError) -> tuple[int, object]:
    if isinstance(error, QueueNotFound):
        return 404, Content(b"Queue not found", b"text/plain; charset=utf-8")
    return error.http, Error(error.code, str(error), call.request_id, error.argument)


class Legacy:
    """The routes."""

    def __init__(self, rest: Rest, s0: S0, stats: StatsRoutes) -> None:
        self._rest = rest
        self._s0 = s0
        self._stats = stats

    def create(self, call: Call, body: Create) -> Done:
        """Declare an exchange and a queue, and bind them."""
        operation: Final = "exchange.create_with_queue"
        rights.require(call.principal, operation, "exchange", body.exchange)
        rights.require(call.principal, operation, "queue", body.queue)
        tenant = self._rest.tenant(call)
        tenant.declare_exchange(body.exchange, body.exchange_type)
        queue, _ = self._rest.declare(tenant, body.queue, {}, FACE)
        tenant.bind(body.exchange, queue, body.routing_key)
        call.lasting()
        return Done("ok")

    def publish(self, call: Call, body: bytes, queue: NeededName = "") -> MessageId | Done:
        """Put the body into a queue; or, without a queue, publish what its JSON says to an exchange."""
        if for_small_queues(call) or not body.lstrip().startswith(b"{"):
            return self._s0.publish(call, body, queue)
        said: LegacyPublish = decode_json(_decode_publish, body)
        rights.require(call.principal, "exchange.publish", "exchange", said.exchange)
        if not said.exchange:
            raise AccessRefused("an exchange must be named")
        tenant = self._rest.tenant(call)
        refuse_internal(tenant.exchange(said.exchange))
        self._rest.publish(tenant, Publish(said.exchange, said.routing_key, _PROPS, said.body.encode()))
        call.lasting()
        return Done("ok")

    def stats(self, call: Call, queue: Name = "") -> object:
        """The counts of a queue, or of everything in the tenant."""
        if for_small_queues(call):
            return self._s0.stats(call, queue)
        return self._stats.stats(call)

    def register(self, call: Call) -> Done:
        """Nothing needs to be registered any more."""
        return Done("ok")

    def consume(self, call: Call, queue: NeededName = "") -> object:
        """The messages of a queue as server-sent events; a message is done with when it is sent."""
        found = self._rest.existing(call, queue, "read")
        if call.method == "HEAD":
            return Answer(200, Content(b"", EVENTS))
        _Events(call, self._rest.shard.subscribe(found, CREDIT, 0))
        return LATER


class _Events:
    """A subscription whose deliveries are events of a stream."""

    def __init__(self, call: Call, mailbox: Mailbox) -> None:
        self._call = call
        self._mailbox = mailbox
        mailbox.on_event = self
        call.add_header("Cache-Control", "no-store")
        call.stream(EVENTS, self._leave, self._look, self._room)

    def set(self) -> None:
        self._call.touch()

    def _look(self) -> None:
        mailbox = self._mailbox
        for lease in mailbox.take():
            text = lease.entry.message.body.decode("utf-8", "replace")
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            self._call.send("".join([f"data: {line}\n" for line in lines]).encode() + b"\n")
            mailbox.queue.ack(lease)
        connection = self._call.connection
        mailbox.paused = connection is not None and connection.write_paused
        if mailbox.ended:
            self._call.end()

    def _room(self) -> None:
        self._mailbox.paused = False
        self._mailbox.queue.mark_dirty()
        self._call.touch()

    def _leave(self) -> None:
        mailbox = self._mailbox
        for lease in mailbox.take():
            mailbox.queue.release(lease)
        mailbox.queue.unsubscribe(mailbox)


def add_routes(router: Router, rest: Rest, stats: StatsRoutes) -> None:
    """The routes of the small queue API and of the oldest one."""
    s0 = S0(rest)
    legacy = Legacy(rest, s0, stats)
    small: dict[str, Any] = {"errors": word_error, "tag": "small queues"}
    shared: dict[str, Any] = {"errors": word_shared_error, "tag": "small queues"}
    old: dict[str, Any] = {"errors": word_text_error, "tag": "oldest"}
    router.add("GET POST", "/create_key", s0.create_key, {200: KeyCreated}, "key.create", **small)
    router.add("POST GET", "/publish", legacy.publish, {200: (MessageId, Done)}, "queue.publish", **shared)
    router.add("GET POST", "/claim", s0.claim, {200: Claimed}, "queue.claim", **small)
    router.add("POST GET", "/ack", s0.ack, {200: Done}, "queue.settle", **small)
    router.add("POST GET", "/extend", s0.extend, {200: Done}, "queue.settle", **small)
    router.add("GET POST", "/stats", legacy.stats, {200: (Counts, Stats)}, "queue.stats", **shared)
    router.add("GET", "/dead_letters", s0.dead, {200: DeadLetters}, "dead_letters.list", **small)
    router.add("DELETE", "/dead_letters", s0.purge, {200: Count}, "dead_letters.change", **small)
    router.add("POST", "/dead_letters/redrive", s0.redrive, {200: Count}, "dead_letters.change", **small)
    router.add("POST", "/create", legacy.create, {200: Done}, "exchange.create_with_queue", **old)
    router.add("GET", "/consume", legacy.consume, {200: bytes}, "queue.consume", **old)
    router.add("POST GET", "/add_publisher", legacy.register, {200: Done}, "session", **old)
    router.add("POST GET", "/add_consumer", legacy.register, {200: Done}, "session", **old)

"""Messages as they come: readers of queues, topics and streams over an answer that does not end (server-sent events).

    GET /api/v1/queues/{name}/stream      what the queue holds and gets, shared with its other consumers
    GET /api/v1/topics/{name}/stream      what is published from now on, kept for a while when the reader is away
    GET /api/v1/streams/{name}/stream     records from an offset on

A reader that does not keep up is not sent more than a socket holds back: its messages stay where they are. One that
comes back with `Last-Event-ID` goes on behind that event (`push_sources`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rookery.core.credentials import base64url
from rookery.core.queue import Queue
from rookery.wire.api import Api
from rookery.wire.api_bodies import PartitionIndex
from rookery.wire.http_call import Call
from rookery.wire.http_routes import LATER, Answer, Content, Router
from rookery.wire.push_sources import QueueSource, Record, Sessions, Source, StreamSource, positions_of
from rookery.wire.rest_s2 import FACE, Delivery
from rookery.wire.rest_topics import Topics, queue_name
from rookery.wire.rest_types import Many, Name, Short
from rookery.wire.turn import CORK_BYTES

EVENTS: Final = b"text/event-stream"
RETRY_MS: Final = 1_000
"""When a browser should try to connect again."""

HEARTBEAT_MS: Final = 15_000
KEEP_MS: Final = 300_000
"""How long a topic's messages are kept for a reader that is away."""

ID_BYTES: Final = 9
CREDIT: Final = 32

Acks = Literal["auto", "explicit"]

_encode = msgspec.json.Encoder().encode


class Push:
    """The routes, and the readers that are connected."""

    def __init__(self, api: Api, topics: Topics) -> None:
        self._api = api
        self._rest = api.rest
        self._topics = topics
        self._random_bytes = api.random_bytes
        self._sessions = Sessions()
        self.readers: dict[int, Events] = {}

    def tick(self) -> None:
        """What time asks for, about once a second, in a turn."""
        now_ms = int(self._rest.shard.mono_ms)
        for reader in list(self.readers.values()):
            reader.tick(now_ms)
        self._sessions.tick(now_ms)

    def queue(self, call: Call, name: Name, ack: Acks = "auto", credit: Many = CREDIT) -> object:
        """The messages of a queue as server-sent events. `Last-Event-ID` goes on where a broken connection ended.

        With `ack=explicit` each event has a `delivery_tag` that is acked as one that was pulled, and at most `credit`
        of them are out at a time.
        """
        queue = self._rest.queue(call, name, FACE, "read")
        return self._open(call, self._of_queue(queue, "", last_id(call), ack, credit))

    def topic(
        self,
        call: Call,
        name: Name,
        routing_key: Short = "#",
        subscription: str = "",
        ack: Acks = "auto",
        credit: Many = CREDIT,
    ) -> object:
        """The messages of a topic as server-sent events, from now on, or behind `Last-Event-ID`.

        They are those that match `routing_key`, or those of an existing `subscription`.
        """
        seen = last_id(call)
        known, _, rest = seen.rpartition("/")
        queue = self._topic_queue(call, name, routing_key, subscription or known, bool(subscription))
        prefix = queue.name.removeprefix(queue_name(name, "")) + "/"
        return self._open(call, self._of_queue(queue, prefix, rest, ack, credit))

    def stream(self, call: Call, name: Name, from_: str = "next", partition: PartitionIndex | None = None) -> object:
        """The records of a stream as server-sent events, behind `Last-Event-ID`, or from `first`, `next` (what is new)
        or an offset on.
        """
        stream = self._api.stream(call, name, "read")
        positions = positions_of(stream, partition, from_, last_id(call))
        return self._open(call, StreamSource(self._rest, stream, positions))

    def _of_queue(self, queue: Queue, prefix: str, seen: str, ack: Acks, credit: int) -> Source:
        known, _, number = seen.rpartition(":")
        session = self._sessions.find(known, queue) if known else None
        after = int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else None
        explicit = ack == "explicit"
        if session is None or session.explicit != explicit or after is None:
            session = self._sessions.open(base64url(self._random_bytes(ID_BYTES)), queue, explicit)
            after = None
        return QueueSource(self._rest, session, credit if explicit else 0, prefix, after)

    def _topic_queue(self, call: Call, topic: str, routing_key: str, known: str, named: bool) -> Queue:
        """The queue behind a topic's reader: the one it had, else a new one that goes some time after it."""
        self._topics.topic(call, topic, "read")
        tenant = self._rest.tenant(call)
        queue = tenant.queues.get(queue_name(topic, known)) if known else None
        if queue is not None or named:
            queue = queue or self._topics.queue_of(tenant, topic, known)
            call.principal.require("read", queue.name)
            tenant.check_owner(queue, None)
            return queue
        name = queue_name(topic, known or base64url(self._random_bytes(ID_BYTES)))
        call.principal.require("configure", name)
        queue, _ = self._rest.declare(tenant, name, {"expires_ms": KEEP_MS}, FACE)
        try:
            tenant.bind(topic, queue, routing_key)
        except Exception:
            tenant.delete(queue, "deleted")
            raise
        call.lasting()
        return queue

    def _open(self, call: Call, source: Source) -> object:
        if call.method == "HEAD":
            source.stop()
            return Answer(200, Content(b"", EVENTS))
        Events(self, call, source)
        return LATER


def last_id(call: Call) -> str:
    return call.header(b"last-event-id").strip()


class Events:
    """One reader over server-sent events."""

    def __init__(self, push: Push, call: Call, source: Source) -> None:
        self._push = push
        self._call = call
        self._source = source
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._said_ms = call.began_ms
        push.readers[id(self)] = self
        call.add_header("Cache-Control", "no-store")
        call.add_header("X-Accel-Buffering", "no")
        call.stream(EVENTS, self._leave, self._look, self._room)
        self._say(b"retry: %d\n\n" % RETRY_MS)
        source.start(self)

    def arrived(self, event_id: str, value: Delivery | Record) -> None:
        data: bytes = _encode(value)
        if b"\n" in data or b"\r" in data:
            # between the tokens of a JSON body, where they mean nothing
            data = data.replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
        self._say(b"id: %b\ndata: %b\n\n" % (event_id.encode(), data))
        connection = self._call.connection
        if self._bytes > CORK_BYTES and connection is not None:
            self._source.pause()
            connection.out.corked = True

    def _say(self, piece: bytes) -> None:
        if not self._pieces:
            self._call.touch()
        self._pieces.append(piece)
        self._bytes += len(piece)

    def _look(self) -> None:
        """The turn ends: send what came in it."""
        connection = self._call.connection
        if self._pieces and connection is not None:
            self._call.send(b"".join(self._pieces))
            self._pieces.clear()
            self._bytes = 0
            self._said_ms = int(connection.shard.mono_ms)
        if connection is not None and connection.write_paused:
            self._source.pause()

    def _room(self) -> None:
        connection = self._call.connection
        if connection is not None and not connection.write_paused:
            self._source.resume()
            connection.out.touch()

    def tick(self, now_ms: int) -> None:
        connection = self._call.connection
        flowing = connection is not None and not connection.write_paused
        self._source.tick(now_ms, flowing)
        if flowing and now_ms - self._said_ms >= HEARTBEAT_MS:
            self._say(b":\n\n")

    def ended(self, reason: str) -> None:
        """There will be no more messages."""
        self._say(b"event: end\ndata: %b\n\n" % _encode({"reason": reason}))
        self._look()
        self._leave()
        self._call.end()

    def _leave(self) -> None:
        self._push.readers.pop(id(self), None)
        self._source.stop()


def add_routes(router: Router, push: Push) -> None:
    for kind, handler in (("queues", push.queue), ("topics", push.topic), ("streams", push.stream)):
        router.add("GET", f"/api/v1/{kind}/{{name}}/stream", handler, {200: bytes}, tag="push")

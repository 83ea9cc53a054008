"""Messages as they come: readers of queues, topics and streams, over an answer that does not end (server-sent events)
or, where the request asks for an upgrade, over a WebSocket (`socket`).

    GET /api/v1/queues/{name}/stream      what the queue holds and gets, shared with its other consumers
    GET /api/v1/topics/{name}/stream      what is published from now on, kept for a while when the reader is away
    GET /api/v1/streams/{name}/stream     records from an offset on

A reader that does not keep up is not sent more than a socket holds back: its messages stay where they are. One that
comes back with `Last-Event-ID` goes on behind that event (`sources`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from rookery.core.credentials import base64url
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.model import Message
from rookery.format.rendering import content_of, headers_of
from rookery.wire.api.broker import Api
from rookery.wire.api.compat.pulling import show
from rookery.wire.api.handling import Handling, lease_ms_of
from rookery.wire.api.messages import Messages
from rookery.wire.api.policies import PolicyPriority
from rookery.wire.api.rest import FACE
from rookery.wire.api.shapes import PartitionIndex
from rookery.wire.api.streams import Streams
from rookery.wire.api.topics import Topics, queue_name
from rookery.wire.api.types import AtMost, Delivery, Lasting, Many, Name, Short
from rookery.wire.http.auth import refuse_other_sites
from rookery.wire.http.call import Call
from rookery.wire.http.routes import LATER, Answer, Content, Router, encode_json
from rookery.wire.push.ops import Operations, Target, queue_target, stream_target, topic_target
from rookery.wire.push.socket import Socket
from rookery.wire.push.sources import (
    UNCONFIRMED_MAX,
    GroupSource,
    QueueSource,
    Reader,
    Sessions,
    Source,
    StreamSource,
    is_number,
    positions_of,
    start_of,
)
from rookery.wire.turn import CORK_BYTES
from rookery.wire.websocket import accept_key

EVENTS: Final = b"text/event-stream"
RETRY_MS: Final = 1_000
"""When a browser should try to connect again."""

HEARTBEAT_MS: Final = 15_000
KEEP_MS: Final = 300_000
"""How long a topic's messages are kept for a reader that is away."""

ID_BYTES: Final = 9
CREDIT: Final = 32

SUBPROTOCOL: Final = "rookery.v1"
VERSION: Final = "13"

Acks = Literal["auto", "explicit"]

_encode = msgspec.json.Encoder().encode


class Push:
    """The routes, and the readers that are connected."""

    def __init__(self, api: Api, topics: Topics) -> None:
        self._api = api
        self._rest = api.rest
        self._topics = topics
        self._handling = Handling(api)
        self._messages = Messages(api, self._handling)
        self._streams = Streams(api)
        self._random_bytes = api.random_bytes
        self._sessions = Sessions()
        self._members: dict[tuple[int, str], GroupSource] = {}
        self.readers: dict[int, Events | Socket] = {}

    def tick(self) -> None:
        """What time asks for, about once a second, in a turn."""
        now_ms = int(self._rest.shard.mono_ms)
        for reader in list(self.readers.values()):
            reader.tick(now_ms)
        self._sessions.tick(now_ms)

    def queue(
        self,
        call: Call,
        name: Name,
        ack: Acks = "auto",
        credit: Many = CREDIT,
        lease_ms: Lasting | None = None,
        after: str = "",
        priority: PolicyPriority = 0,
        consumer: Short = "",
        create: bool = True,
        packed: bool = False,
    ) -> object:
        """The messages of a queue as server-sent events, or, upgraded, over a WebSocket. `Last-Event-ID` or `after`
        goes on where a broken connection ended.

        With `ack=explicit` each message has a tag or lease to settle it by, and at most `credit` of them are out at a
        time, each for `lease_ms`. Readers of higher `priority` are served first; the name of a `consumer` keeps its
        share of a queue that distributes by key. `packed` is how Rookery's client gets messages over a WebSocket;
        without `create`, a queue that is not there is an error.
        """
        queue = self._rest.queue(call, name, FACE, "read") if create else self._rest.existing(call, name, "read")
        target = queue_target(self._messages, name)
        lease_ms = lease_ms or lease_ms_of(queue) or self._rest.options.lease_ms
        wish = _Wish(ack, credit, lease_ms, last_id(call) or after, priority, consumer)
        return self._open(call, lambda: self._of_queue(call, queue, "", wish), target, wish.explicit, packed)

    def topic(
        self,
        call: Call,
        name: Name,
        routing_key: Short = "#",
        subscription: str = "",
        ack: Acks = "auto",
        credit: Many = CREDIT,
        lease_ms: Lasting | None = None,
        after: str = "",
    ) -> object:
        """The messages of a topic as server-sent events, or, upgraded, over a WebSocket: from now on, or behind
        `Last-Event-ID` or `after`.

        They are those that match `routing_key`, or those of an existing `subscription`.
        """
        known, _, seen = (last_id(call) or after).rpartition("/")
        queue = self._topic_queue(call, name, routing_key, subscription or known, bool(subscription))
        prefix = queue.name.removeprefix(queue_name(name, "")) + "/"
        target = topic_target(self._messages, name, queue.name)
        wish = _Wish(ack, credit, lease_ms or self._rest.options.lease_ms, seen)
        return self._open(call, lambda: self._of_queue(call, queue, prefix, wish), target, wish.explicit)

    def stream(
        self,
        call: Call,
        name: Name,
        from_: str = "next",
        partition: PartitionIndex | None = None,
        after: str = "",
        group: Short = "",
        member: Short = "",
        credit: AtMost = 0,
    ) -> object:
        """The records of a stream as server-sent events, or, upgraded, over a WebSocket: behind `Last-Event-ID` or
        `after`, or from `first`, `next` (what is new) or an offset on.

        Over a WebSocket, no more than `credit` records, unless that is 0, are out beyond those that were acked. With
        `group`, they are those of a member's share that the group has not acked.
        """
        stream = self._api.stream(call, name, "read")
        target = stream_target(self._streams, name)
        seen = last_id(call) or after
        if not group:
            positions = positions_of(stream, partition, from_, seen)
            return self._open(call, lambda: StreamSource(stream, positions, credit), target, False)
        if not call.upgrading:
            raise InvalidArgument("a member of a group reads over a WebSocket", argument="group")
        if partition is not None or seen:
            raise InvalidArgument("a member reads its share, from where the group is", argument="group")
        start_of(stream, 0, from_, False)
        member = member or f"push-{self._api.random_text()}"

        def begin(index: int) -> int:
            return start_of(stream, index, from_, False)

        return self._open(call, lambda: GroupSource(stream, group, member, begin, credit, self._members), target, False)

    def _of_queue(self, call: Call, queue: Queue, prefix: str, wish: _Wish) -> Source:
        known, _, number = wish.seen.rpartition(":")
        session = self._sessions.find(known, queue) if known else None
        after = int(number) if is_number(number) else -1
        if session is None or session.explicit != wish.explicit or after < 0:
            session = self._sessions.open(base64url(self._random_bytes(ID_BYTES)), queue, wish.explicit)
            after = -1
        credit = wish.credit if wish.explicit else 0
        if call.upgrading and not wish.explicit:
            credit = int(UNCONFIRMED_MAX)
        source = QueueSource(session, credit, wish.lease_ms, prefix, after)
        source.introduce(wish.priority, wish.consumer)
        return source

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

    def _open(
        self, call: Call, make: Callable[[], Source], target: Target, explicit: bool, packed: bool = False
    ) -> object:
        if call.method == "HEAD":
            make().stop()
            return Answer(200, Content(b"", EVENTS))
        if is_websocket(call):
            self._open_socket(call, make, target, explicit, packed)
        else:
            Events(self, call, make(), explicit)
        return LATER

    def _open_socket(
        self, call: Call, make: Callable[[], Source], target: Target, explicit: bool, packed: bool
    ) -> None:
        agree(call)
        source = make()
        socket = Socket(call, source, explicit, self.left, self._handling.packed if packed else None)
        socket.operations = Operations(call, source, target, self._handling, self._rest.router.count)
        call.headers.clear()
        call.upgrade(socket)
        self.readers[id(socket)] = socket
        source.start(socket)

    def left(self, reader: Events | Socket) -> None:
        self.readers.pop(id(reader), None)


class _Wish:
    """How a reader of a queue wants to read."""

    def __init__(self, ack: Acks, credit: int, lease_ms: int, seen: str, priority: int = 0, consumer: str = "") -> None:
        self.explicit = ack == "explicit"
        self.credit = credit
        self.lease_ms = lease_ms
        self.seen = seen
        self.priority = priority
        self.consumer = consumer


def is_websocket(call: Call) -> bool:
    return call.upgrading and call.header(b"upgrade").strip().lower() == "websocket"


def agree(call: Call) -> None:
    """Check a handshake, and agree to it."""
    refuse_other_sites(call)
    if call.header(b"sec-websocket-version").strip() != VERSION:
        call.add_header("Sec-WebSocket-Version", VERSION)
        raise InvalidArgument(f"only version {VERSION} is spoken", argument="Sec-WebSocket-Version")
    accepted = accept_key(call.headers.get(b"sec-websocket-key", b"").strip())
    if accepted is None:
        raise InvalidArgument("the key is 16 bytes in base64", argument="Sec-WebSocket-Key")
    call.add_header("Upgrade", "websocket")
    call.add_header("Connection", "Upgrade")
    call.add_header("Sec-WebSocket-Accept", accepted)
    if SUBPROTOCOL in [each.strip() for each in call.header(b"sec-websocket-protocol").split(",")]:
        call.add_header("Sec-WebSocket-Protocol", SUBPROTOCOL)


def last_id(call: Call) -> str:
    return call.header(b"last-event-id").strip()


class Record(msgspec.Struct, omit_defaults=True):
    """A message of a stream. A body that is neither JSON nor text is in `message_base64`."""

    partition: int
    offset: int
    message: Any
    message_id: str
    routing_key: str
    priority: int = 0
    message_base64: str | None = None
    headers: dict[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None


class Events(Reader):
    """One reader over server-sent events."""

    def __init__(self, push: Push, call: Call, source: Source, explicit: bool) -> None:
        self._push = push
        self._call = call
        self._rest = push._rest
        self._source = source
        self._explicit = explicit
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._said_ms = call.began_ms
        push.readers[id(self)] = self
        call.add_header("Cache-Control", "no-store")
        call.add_header("X-Accel-Buffering", "no")
        call.stream(EVENTS, self._leave, self._look, self._room)
        self._say(b"retry: %d\n\n" % RETRY_MS)
        source.start(self)

    def delivered(self, entry: Entry, lease: Lease) -> None:
        tag = lease.token() if self._explicit else None
        self._tell(show(self._rest, entry, tag, int(lease.attempt) - 1))

    def record(self, message: Message, partition: int, offset: int) -> None:
        content, coded = content_of(message)
        self._tell(
            Record(
                partition=partition,
                offset=offset,
                message=content,
                message_id=self._rest.message_id(message),
                routing_key=message.route.key,
                priority=int(message.priority),
                message_base64=coded,
                headers=headers_of(message),
                correlation_id=properties.correlation_id(message.props) or None,
                reply_to=properties.reply_to(message.props) or None,
            )
        )

    def _tell(self, value: Delivery | Record) -> None:
        data = encode_json(value)
        if b"\n" in data or b"\r" in data:
            # between the tokens of a JSON body, where they mean nothing
            data = data.replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
        self._say(b"id: %b\ndata: %b\n\n" % (self._source.last_id().encode(), data))
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
        expires_ms = self._call.principal.expires_ms
        if expires_ms is not None and connection is not None and connection.shard.wall_ms >= expires_ms:
            self._call.cancel()
            return
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
        self._push.left(self)
        self._source.stop()


def add_routes(router: Router, push: Push) -> None:
    answers = {200: bytes, 101: None}
    router.add("GET", "/api/v1/queues/{name}/stream", push.queue, answers, "queue.consume", tag="push")
    router.add("GET", "/api/v1/topics/{name}/stream", push.topic, answers, "topic.consume", tag="push")
    router.add("GET", "/api/v1/streams/{name}/stream", push.stream, answers, "stream.consume", tag="push")

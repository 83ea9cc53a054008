"""A scenario under way against one broker: a client that does one thing at a time and writes down all that it sees.

Brokers may order what belongs to different channels, or to different causes, as they like. So nothing goes into the
transcript when it happens to arrive: it is kept per channel, and written when the scenario asks for it. `call` writes
the answer to a method, `expect` the next events of one kind, `events` the next of any kind, `confirmed` what became of
all publishes so far, `quiet` everything that came until the named queues had nothing left to do. What nobody asked for
stands at the end.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.interop.oracle.frames import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    METHODS,
    PROTOCOL,
    WITH_CONTENT,
    Frame,
    Method,
    frame,
    header_payload,
    method_payload,
    read_header,
    read_method,
)

PATIENCE_SEC = 10.0
_REPLIES = {"basic.get": ("basic.get-ok", "basic.get-empty")}
CAPABILITIES = {
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
    "connection.blocked": True,
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
}
_MADE_BY_SERVER = re.compile(r"amq\.(gen-|ctag-|rabbitmq\.reply-to\.)[\w.+/=-]{10,}")

# Erlang breaks long terms into lines, as text or as escaped text.
_BROKEN_LINE = re.compile(r"\\n *")


class Stuck(Exception):
    """What the scenario waits for did not come."""


class Script:
    """The connections of one scenario, and its transcript."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[str] = []
        self.queues: set[str] = set()
        self.exchanges: set[str] = set()
        self._connections: list[Connection] = []
        self._made: dict[str, str] = {}

    def write(self, line: str) -> None:
        self.lines.append(_MADE_BY_SERVER.sub(self._stand_in, _BROKEN_LINE.sub("", line)))

    def _stand_in(self, match: re.Match[str]) -> str:
        return self._made.setdefault(match[0], f"amq.{match[1]}<{len(self._made) + 1}>")

    def socket(self, **options: Any) -> Connection:
        """A connection on which nothing has been sent."""
        connection = Connection(self, "ABCDEFGH"[len(self._connections)], **options)
        self._connections.append(connection)
        return connection

    def connect(self, **options: Any) -> Connection:
        """A connection that is open; how it came so is not written down."""
        connection = self.socket()
        connection.log_in(**options)
        return connection

    def channel(self, **options: Any) -> Channel:
        """A new channel on a new connection."""
        return self.connect(**options).channel()

    def finish(self) -> None:
        """Write what is left and close in order."""
        for connection in self._connections:
            if not connection.ended:
                connection.finish()

    def clean(self) -> None:
        """Leave the broker as it was found. Queues may be locked until it noticed that their connection is gone."""
        for connection in self._connections:
            connection.drop()
        if not self.queues and not self.exchanges:
            return
        aside = Script(self.port).connect()
        deadline = time.monotonic() + PATIENCE_SEC
        work: list[tuple[str, dict[str, Any]]] = [("queue.delete", {"queue": each}) for each in sorted(self.queues)]
        work += [("exchange.delete", {"exchange": each}) for each in sorted(self.exchanges)]
        channel = aside.channel()
        for name, values in work:
            while channel.call(name, **values).name == "channel.close" and time.monotonic() < deadline:
                time.sleep(0.02)
                channel = aside.channel()
        aside.drop()


class Connection:
    """One connection; `zero` is its channel 0."""

    def __init__(self, script: Script, label: str, *, receive_buffer: int = 0) -> None:
        self.script = script
        self.label = label
        self.ended = False
        self.frame_max = 131072
        self.heartbeats = 0
        self._opened = False
        self._buffer = b""
        self._channels: dict[int, Channel] = {}
        self._socket = socket.socket()
        if receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.connect(("127.0.0.1", script.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.zero = Channel(self, 0)
        self._channels[0] = self.zero

    # Bytes

    def send(self, raw: bytes) -> None:
        try:
            self._socket.sendall(raw)
        except OSError:
            pass  # the broker hung up first; what it had to say is still read

    def drop(self) -> None:
        """Vanish without a word."""
        self.ended = True
        self._socket.close()

    def pump(self, deadline: float) -> None:
        """Read once, and hand every whole frame to its channel."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise Stuck(f"{self.label} does not say what is wanted")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            raise Stuck(f"{self.label} is silent") from None
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return
        self._buffer += data
        if not self._opened and self._buffer.startswith(b"AMQP"):
            self.zero.arrived(Method("protocol", {"header": self._buffer[:8]}))
            self._buffer = self._buffer[8:]
        while len(self._buffer) >= 7:
            size = int.from_bytes(self._buffer[3:7], "big") + 8
            if len(self._buffer) < size:
                break
            whole, self._buffer = self._buffer[:size], self._buffer[size:]
            assert whole[-1] == 0xCE, whole
            self._opened = True
            self._take(Frame(whole[0], int.from_bytes(whole[1:3], "big"), whole[7:-1]))

    def _take(self, arrived: Frame) -> None:
        if arrived.kind == HEARTBEAT:
            assert (arrived.channel, arrived.payload) == (0, b"")
            self.heartbeats += 1
            return
        assert len(arrived.payload) + 8 <= self.frame_max, f"a frame of {len(arrived.payload)} bytes"
        self._channels[arrived.channel].take(arrived)

    # Opening

    def log_in(
        self,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
        capabilities: dict[str, object] | None = None,
        product: str = "oracle",
    ) -> None:
        silent, lines = self.script.lines, self.script.lines.copy()
        self.greet()
        self.start_ok(user, password, capabilities=capabilities, product=product)
        self.tune_ok(channel_max, frame_max, heartbeat)
        answer = self.zero.call("connection.open", vhost=vhost)
        if answer.name != "connection.open-ok":
            raise Stuck(f"no connection {self.label}")
        silent[:] = lines

    def greet(self, header: bytes = PROTOCOL) -> Method:
        """Send a protocol header. The server's own properties are not written down."""
        self.script.write(f"{self.label} > {header!r}")
        self.send(header)
        method = self.zero.await_one(lambda _: True)
        if method.name == "connection.start":
            self.script.lines[-1] = f"{self.label} < connection.start"
        return method

    def start_ok(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        capabilities: dict[str, object] | None = None,
        product: str = "oracle",
    ) -> Method:
        self.zero.call(
            "connection.start-ok",
            client_properties={
                "product": product,
                "capabilities": CAPABILITIES if capabilities is None else capabilities,
            },
            mechanism=mechanism,
            response=f"\0{user}\0{password}" if response is None else response,
            locale="en_US",
        )
        return self.zero.await_one(lambda _: True)

    def tune_ok(self, channel_max: int, frame_max: int, heartbeat: int) -> None:
        self.frame_max = frame_max or 131072
        self.zero.call("connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)

    def channel(self, number: int = 0) -> Channel:
        """A channel that is open; that it was opened is not written down."""
        channel = self.closed_channel(number)
        length = len(self.script.lines)
        if channel.call("channel.open").name != "channel.open-ok":
            raise Stuck(f"no channel {channel.number} on {self.label}")
        del self.script.lines[length:]
        return channel

    def closed_channel(self, number: int = 0) -> Channel:
        number = number or max(self._channels) + 1
        self._channels[number] = Channel(self, number)
        return self._channels[number]

    # Ending

    def close(self) -> None:
        """Close in order. Who then hangs up first is not specified, so this side does."""
        self.zero.call("connection.close", code=200, text="done")
        self.drop()

    def end(self) -> None:
        """Wait until the broker has closed the socket."""
        while not self.ended:
            self.zero.await_one(lambda _: True)

    def finish(self) -> None:
        for channel in self._channels.values():
            if channel.open and channel.number:
                channel.finish()
        self.close()


class Channel:
    """One channel: what arrived on it and was not yet asked for."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.script = connection.script
        self.number = number
        self.open = False
        self.inbox: list[Method] = []
        self._content: Method | None = None
        self._size = 0
        self._bodies = 0
        self._published = 0
        self._confirming = False
        self._acked: set[int] = set()
        self._nacked: set[int] = set()

    def __repr__(self) -> str:
        return f"{self.connection.label}{self.number or ''}"

    # Arriving

    def take(self, arrived: Frame) -> None:
        if arrived.kind == METHOD:
            assert self._content is None, "a method inside a content"
            method = read_method(arrived.payload)
            if method.name in WITH_CONTENT:
                self._content = method
            else:
                self.arrived(method)
            return
        assert self._content is not None, "a content without a method"
        if arrived.kind == HEADER:
            self._size, properties = read_header(arrived.payload)
            self._content = self._content._replace(properties=properties)
            self._bodies = 0
        else:
            assert arrived.kind == BODY
            self._bodies += 1
            self._content = self._content._replace(body=self._content.body + arrived.payload)
        if len(self._content.body) == self._size:
            method, self._content = self._content, None
            if self._bodies > 1:
                method.arguments["body_frames"] = self._bodies
            self.arrived(method)

    def arrived(self, method: Method) -> None:
        self.inbox.append(method)
        if method.name == "channel.open-ok":
            self.open = True
        elif method.name in ("channel.close", "connection.close"):
            self.open = False
            self.write_frame(METHOD, method_payload(f"{method.name}-ok", {}))

    def await_one(self, wanted: Callable[[Method], bool]) -> Method:
        """The next method that is wanted, or what ends the channel or the connection; it is written down."""
        deadline = time.monotonic() + PATIENCE_SEC
        connection = self.connection
        while True:
            for at, method in enumerate(self.inbox):
                if wanted(method) or method.name in ("channel.close", "connection.close"):
                    del self.inbox[at]
                    return self._noted(method)
            if any(each.name == "connection.close" for each in connection.zero.inbox):
                return connection.zero.await_one(lambda each: each.name == "connection.close")
            if connection.ended:
                self.script.write(f"{connection.label} hung up")
                return Method("hung up", {})
            connection.pump(deadline)

    def _noted(self, method: Method) -> Method:
        if method.name in ("basic.ack", "basic.nack"):
            self._resolve(method)
        self.script.write(f"{self!r} < {shown(method)}")
        if method.name == "queue.declare-ok":
            self.script.queues.add(method.arguments["queue"])
        return method

    def _resolve(self, method: Method) -> None:
        """Note the fate of publishes; whether a confirm of one says `multiple` is the broker's choice."""
        last = method.arguments["delivery"]
        first = 1 if method.arguments.pop("multiple") else last
        fates = self._acked if method.name == "basic.ack" else self._nacked
        fates.update(set(range(first, last + 1)) - self._acked - self._nacked)

    # Sending

    def write_frame(self, kind: int, payload: bytes) -> None:
        self.connection.send(frame(kind, self.number, payload))

    def send(self, name: str, **values: Any) -> None:
        """Send a method without waiting for an answer."""
        if name == "queue.declare" and values.get("queue") and not values.get("passive"):
            self.script.queues.add(values["queue"])
        if name == "exchange.declare" and not values["exchange"].startswith("amq.") and values["exchange"]:
            self.script.exchanges.add(values["exchange"])
        if name == "confirm.select":
            self._confirming = True
        self.script.write(f"{self!r} > {shown(Method(name, values))}")
        self.write_frame(METHOD, method_payload(name, values))

    def call(self, name: str, **values: Any) -> Method:
        """Send a method and wait for its answer, where it has one."""
        self.send(name, **values)
        replies = _REPLIES.get(name, (f"{name}-ok",))
        if values.get("nowait") or replies[0] not in METHODS:
            return Method("none", {})
        return self.await_one(lambda method: method.name in replies)

    def publish(
        self,
        body: str | bytes = b"",
        key: str = "",
        exchange: str = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        raw = body.encode() if isinstance(body, str) else body
        self._published += self._confirming
        target = {"exchange": exchange, "key": key, "mandatory": mandatory, "immediate": immediate}
        self.script.write(f"{self!r} > {shown(Method('basic.publish', target, properties, raw))}")
        size = self.connection.frame_max - 8
        self.write_frame(METHOD, method_payload("basic.publish", target))
        self.write_frame(HEADER, header_payload(len(raw), properties))
        for at in range(0, len(raw), size):
            self.write_frame(BODY, raw[at : at + size])

    # Shorthands of what most scenarios do

    def queue(self, queue: str = "", arguments: Mapping[str, object] | None = None, **flags: bool) -> str:
        """Declare a queue; returns its name."""
        answer = self.call("queue.declare", queue=queue, arguments=arguments or {}, **flags)
        return str(answer.arguments.get("queue", ""))

    def exchange(
        self, exchange: str, type: str = "direct", arguments: Mapping[str, object] | None = None, **flags: bool
    ) -> Method:
        return self.call("exchange.declare", exchange=exchange, type=type, arguments=arguments or {}, **flags)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> Method:
        return self.call("queue.bind", queue=queue, exchange=exchange, key=key, arguments=arguments or {})

    def consume(
        self, queue: str, tag: str = "", arguments: Mapping[str, object] | None = None, **flags: bool
    ) -> Method:
        return self.call("basic.consume", queue=queue, tag=tag, arguments=arguments or {}, **flags)

    def get(self, queue: str, *, no_ack: bool = True) -> Method:
        return self.call("basic.get", queue=queue, no_ack=no_ack)

    def get_all(self, queue: str) -> None:
        while self.get(queue).name == "basic.get-ok":
            pass

    def ack(self, delivery: int, *, multiple: bool = False) -> None:
        self.send("basic.ack", delivery=delivery, multiple=multiple)

    def nack(self, delivery: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send("basic.nack", delivery=delivery, multiple=multiple, requeue=requeue)

    # Watching

    def expect(self, name: str, count: int = 1) -> Method:
        """The next events of that name, passing over others; returns the last."""
        method = Method("none", {})
        for _ in range(count):
            method = self.await_one(lambda each: each.name == name)
        return method

    def events(self, count: int = 1) -> None:
        """The next events, whatever they are."""
        for _ in range(count):
            self.await_one(lambda _: True)

    def confirmed(self) -> None:
        """What became of all publishes so far. Which of them share one confirm is the broker's choice."""
        acked, nacked = self._acked, self._nacked
        known = len(acked) + len(nacked)
        while len(acked) + len(nacked) < self._published:
            length = len(self.script.lines)
            method = self.await_one(lambda each: each.name in ("basic.ack", "basic.nack"))
            if not method.name.endswith("ack"):
                return
            del self.script.lines[length:]
        if len(acked) + len(nacked) > known:
            self.script.write(f"{self!r} < confirmed acks={sorted(acked)} nacks={sorted(nacked)}")

    def quiet(self, *queues: str) -> None:
        """Everything that came, once these queues have done all that was asked of them so far, and their counts.

        A queue answers in order, but its deliveries may overtake, or be overtaken by, its answer to a method. After a
        second round they are all here.
        """
        length = len(self.script.lines)
        for queue in queues:
            self.call("queue.declare", queue=queue, passive=True)
        counts: list[str] = []
        for queue in queues:
            answer = self.call("queue.declare", queue=queue, passive=True)
            counts.append(shown(answer).removeprefix("queue.declare-ok "))
        del self.script.lines[length:]
        self._empty()
        for line in counts:
            self.script.write(f"{self!r} = {line}")

    def _empty(self) -> None:
        while self.inbox:
            self._noted(self.inbox.pop(0))

    def until(self, queue: str, **counts: int) -> None:
        """Wait until a queue has so many messages or consumers."""
        length = len(self.script.lines)
        deadline = time.monotonic() + PATIENCE_SEC
        while True:
            answer = self.call("queue.declare", queue=queue, passive=True)
            last = self.script.lines[-1]
            del self.script.lines[length:]
            if counts.items() <= answer.arguments.items():
                break
            if time.monotonic() > deadline or answer.name != "queue.declare-ok":
                raise Stuck(f"{last}, not {counts}")
            time.sleep(0.005)
        self.script.write(f"{self!r} = {shown(answer).removeprefix('queue.declare-ok ')}")

    def until_gone(self, queue: str) -> None:
        """Wait until there is no such queue. It is asked for by publishing, which does not count as using it."""
        length = len(self.script.lines)
        deadline = time.monotonic() + PATIENCE_SEC
        probe = self.connection.channel()
        while not any(each.name == "basic.return" for each in probe.inbox):
            if time.monotonic() > deadline:
                raise Stuck(f"queue {queue!r} is still there")
            time.sleep(0.005)
            probe.publish("are you there?", queue, mandatory=True)
            probe.call("exchange.declare", exchange="amq.direct", passive=True)
        probe.inbox.clear()
        probe.close()
        del self.script.lines[length:]
        self.script.write(f"{self!r} = no queue {queue!r}")

    def close(self) -> None:
        self.call("channel.close", code=200, text="done")
        self.open = False

    def finish(self) -> None:
        length = len(self.script.lines)
        self.call("exchange.declare", exchange="amq.direct", passive=True)
        del self.script.lines[length:]
        if self._confirming:
            self.confirmed()
        self._empty()


# How things look in a transcript


def shown(method: Method) -> str:
    parts = [method.name]
    for name, value in method.arguments.items():
        if name.startswith("_") or value is False or (name == "arguments" and not value):
            continue
        parts.append(name if value is True else f"{name}={_table(value) if _is_table(value) else repr(value)}")
    if method.properties is not None:
        inside = ", ".join(f"{name}={_property(value)}" for name, value in method.properties.items())
        body = repr(method.body) if len(method.body) < 100 else f"{len(method.body)} bytes of {method.body[:1]!r}"
        parts.append(f"{{{inside}}} {body}")
    return " ".join(parts)


def _is_table(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 3 for each in value)


def _property(value: Any) -> str:
    if isinstance(value, list):
        return _table(value)
    return repr(value)


def _table(rows: list[tuple[str, str, Any]]) -> str:
    """Sorted by name, since the order in which a table was sent means nothing, and RabbitMQ's changes."""
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names), rows
    in_order = sorted(rows, key=lambda row: row[0])
    return "{" + ", ".join(f"{name}: {_field(letter, value)}" for name, letter, value in in_order) + "}"


def _field(letter: str, value: Any) -> str:
    if letter == "F":
        return _table(value)
    if letter == "A":
        return "[" + ", ".join(_field(*each) for each in value) + "]"
    if letter == "T" and abs(value - time.time()) < 3600:
        return "T now"
    return f"{letter} {value!r}"

"""A scripted AMQP peer for tests: its own encoder and decoder of frames, a transport that only records, a manual clock.

Nothing here uses `rookery.wire.amqp.codec`, so a mistake there is not repeated on this side.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rookery.clock import ManualClock
from rookery.core.access import FULL, Principal, Rights
from rookery.core.shard import Shard
from rookery.errors import AccessRefused
from rookery.wire.amqp.connection import AmqpConnection, AmqpFace
from rookery.wire.turn import Turn

PROTOCOL = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def octet(n: int) -> bytes:
    return struct.pack(">B", n)


def short(n: int) -> bytes:
    return struct.pack(">H", n)


def long(n: int) -> bytes:
    return struct.pack(">I", n)


def longlong(n: int) -> bytes:
    return struct.pack(">Q", n)


def short_string(text: str) -> bytes:
    raw = text.encode()
    return octet(len(raw)) + raw


def long_string(raw: bytes) -> bytes:
    return long(len(raw)) + raw


def table(**fields: object) -> bytes:
    body = b""
    for name, value in fields.items():
        body += short_string(name.replace("_", "-") if name.startswith(("x_", "alternate_")) else name)
        if isinstance(value, bool):
            body += b"t" + octet(value)
        elif isinstance(value, int):
            body += b"l" + struct.pack(">q", value)
        elif isinstance(value, str):
            body += b"S" + long_string(value.encode())
        elif isinstance(value, dict):
            body += b"F" + table(**value)
        else:
            raise TypeError(name)
    return long_string(body)


NO_ARGUMENTS = table()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return octet(kind) + short(channel) + long(len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, short(class_id) + short(method_id) + arguments)


def header(channel: int, size: int, props: bytes = b"\x00\x00") -> bytes:
    return frame(2, channel, short(60) + short(0) + longlong(size) + props)


def bodies(channel: int, body: bytes, most: int = 131064) -> bytes:
    return b"".join(frame(3, channel, body[at : at + most]) for at in range(0, len(body), most))


def publish(
    channel: int, exchange: str, key: str, body: bytes = b"", props: bytes = b"\x00\x00", bits: int = 0
) -> bytes:
    start = method(channel, 60, 40, short(0) + short_string(exchange) + short_string(key) + octet(bits))
    return start + header(channel, len(body), props) + bodies(channel, body)


def start_ok(user: str = "guest", password: str = "guest", mechanism: str = "PLAIN", **capabilities: Any) -> bytes:
    response = b"\x00" + user.encode() + b"\x00" + password.encode()
    client = table(capabilities=capabilities)
    return method(0, 10, 11, client + short_string(mechanism) + long_string(response) + short_string("en_US"))


def tune_ok(channels: int = 0, frame_max: int = 0, heartbeat: int = 0) -> bytes:
    return method(0, 10, 31, short(channels) + long(frame_max) + short(heartbeat))


def open_vhost(vhost: str = "/") -> bytes:
    return method(0, 10, 40, short_string(vhost) + b"\x00\x00")


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes

    @property
    def name(self) -> tuple[int, int]:
        assert self.kind == 1
        return struct.unpack(">HH", self.payload[:4])

    @property
    def arguments(self) -> bytes:
        return self.payload[4:]


def frames(data: bytes) -> Iterator[Frame]:
    """Take a stream of frames apart, checking each."""
    at = 0
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        payload = data[at + 7 : at + 7 + size]
        assert len(payload) == size
        assert data[at + 7 + size] == 0xCE
        yield Frame(kind, channel, payload)
        at += size + 8


def strings(data: bytes) -> list[str]:
    """Short strings that follow one another."""
    found = []
    while data:
        found.append(data[1 : 1 + data[0]].decode())
        data = data[1 + data[0] :]
    return found


class Transport:
    """Records what it is given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.writes = 0
        self.closed = False
        self.aborted = False
        self.reading = True
        self.unsent_bytes = 0
        self.on_write: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.sent.append(bytes(data))
        if self.on_write is not None:
            self.on_write()

    def writelines(self, parts: list[Any]) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


class Driver:
    """A shard on a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.shard = Shard(b"test", 1)
        self.turns = 0

    def begin(self) -> None:
        self.shard.turn(self.clock.wall_ms(), self.clock.mono_ms())

    def end(self) -> None:
        self.turns += 1


class Broker:
    """A face with one tenant, and users that a test may add to: name -> (password, rights)."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = Driver(self.clock)
        self.shard = self.driver.shard
        self.users: dict[str, tuple[str, Rights]] = {"guest": ("guest", FULL)}
        self.woken = 0
        self.slow_logins: list[tuple[AmqpConnection, bool]] | None = None
        self.log: list[tuple[str, str]] = []
        numbers = itertools.count(1)
        self.turn = Turn(self.driver, self._wake)
        self.face = AmqpFace(self.turn, self._login, self._enter, lambda: f"random{next(numbers)}")
        self.face.log = lambda event, _peer, reason: self.log.append((event, reason))
        self.driver.begin()
        self.tenant = self.shard.create_tenant("default")
        self.driver.end()

    def _wake(self) -> None:
        self.woken += 1

    def sync(self) -> None:
        """The journal takes what there is, and has it."""
        log = self.shard.log
        log.open_segment(1)
        log.take_changes()
        log.take(1, 0)

        def answered() -> None:
            log.written = log.durable = log.batch - 1

        self.take_turn(answered)

    def _login(self, connection: AmqpConnection, user: str, password: str) -> None:
        known = user in self.users and self.users[user][0] == password
        if self.slow_logins is not None:
            self.slow_logins.append((connection, known))
        else:
            connection.login_done(known)

    def _enter(self, _connection: AmqpConnection, user: str, _password: str, tenant: str) -> Principal:
        if tenant != "default":
            raise AccessRefused
        return Principal(user, tenant, self.users[user][1])

    def take_turn(self, work: Callable[[], object] = lambda: None) -> None:
        assert self.turn.begin()
        try:
            work()
        finally:
            self.turn.end()

    def settle(self) -> None:
        """Take turns for as long as somebody asks for one."""
        while self.woken:
            self.woken = 0
            self.take_turn()

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.take_turn(self.face.tick)


class Peer:
    """One connection to a Broker and its far end."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport = Transport()
        self.connection = AmqpConnection(broker.face)
        self.connection.connection_made(self.transport)
        self._read = 0

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def received(self) -> bytes:
        """What came since the last call."""
        data = b"".join(self.transport.sent)
        new = data[self._read :]
        self._read = len(data)
        return new

    def frames(self) -> list[Frame]:
        return list(frames(self.received()))

    def ask(self, data: bytes) -> list[Frame]:
        self.received()
        self.send(data)
        return self.frames()

    def call(self, channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> Frame:
        """Send a method and give its one answer, which may have to wait for the journal."""
        answers = self.ask(method(channel, class_id, method_id, arguments))
        if not answers:
            self.broker.sync()
            answers = self.frames()
        (answer,) = answers
        return answer

    def handshake(self, *, frame_max: int = 0, heartbeat: int = 0, **capabilities: Any) -> Peer:
        self.send(PROTOCOL + start_ok(**capabilities) + tune_ok(0, frame_max, heartbeat) + open_vhost())
        assert [each.name for each in self.frames()] == [(10, 10), (10, 30), (10, 41)]
        return self

    def channel(self, number: int = 1) -> Peer:
        assert self.call(number, 20, 10, b"\x00").name == (20, 11)
        return self

    def declare(self, name: str, bits: int = 0, channel: int = 1, **arguments: object) -> Frame:
        return self.call(channel, 50, 10, short(0) + short_string(name) + octet(bits) + table(**arguments))

    def consume(self, queue: str, tag: str = "c", bits: int = 0, channel: int = 1, **arguments: object) -> list[Frame]:
        words = short(0) + short_string(queue) + short_string(tag) + octet(bits) + table(**arguments)
        return self.ask(method(channel, 60, 20, words))

    def qos(self, count: int, together: bool = False, channel: int = 1) -> None:
        assert self.call(channel, 60, 10, long(0) + short(count) + octet(together)).name == (60, 11)

    def get(self, queue: str, no_ack: bool = False, channel: int = 1) -> list[Frame]:
        return self.ask(method(channel, 60, 70, short(0) + short_string(queue) + octet(no_ack)))

    def ack(self, tag: int, multiple: bool = False, channel: int = 1) -> list[Frame]:
        return self.ask(method(channel, 60, 80, longlong(tag) + octet(multiple)))

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True, channel: int = 1) -> list[Frame]:
        return self.ask(method(channel, 60, 120, longlong(tag) + octet(multiple + 2 * requeue)))

    def confirm(self, channel: int = 1) -> Peer:
        assert self.call(channel, 85, 10, b"\x00").name == (85, 11)
        return self

    def lose(self) -> None:
        self.transport.closed = True
        self.connection.connection_lost(None)


class Delivered(NamedTuple):
    tag: int
    redelivered: bool
    exchange: str
    key: str
    props: bytes
    body: bytes
    consumer: str


def deliveries(received: list[Frame]) -> list[Delivered]:
    """The messages among the frames: basic.deliver, get-ok and return each with header and bodies."""
    found = []
    at = 0
    while at < len(received):
        start = received[at]
        at += 1
        if start.kind != 1 or start.name not in ((60, 60), (60, 71), (60, 50)):
            continue
        words = start.arguments
        consumer = ""
        tag, redelivered = 0, 0
        if start.name == (60, 60):
            consumer = words[1 : 1 + words[0]].decode()
            words = words[1 + words[0] :]
        if start.name == (60, 50):
            words = words[2:]
            words = words[1 + words[0] :]
        else:
            tag, redelivered = struct.unpack_from(">QB", words)
            words = words[9:]
        exchange = words[1 : 1 + words[0]].decode()
        words = words[1 + words[0] :]
        key = words[1 : 1 + words[0]].decode()
        head = received[at]
        at += 1
        assert head.kind == 2
        assert head.channel == start.channel
        assert head.payload[:4] == b"\x00\x3c\x00\x00"
        (size,) = struct.unpack_from(">Q", head.payload, 4)
        body = b""
        while len(body) < size:
            assert received[at].kind == 3
            assert received[at].channel == start.channel
            body += received[at].payload
            at += 1
        assert len(body) == size
        found.append(Delivered(tag, bool(redelivered), exchange, key, head.payload[12:], body, consumer))
    return found


class Closed(NamedTuple):
    code: int
    text: str
    method: tuple[int, int]


def closed(answer: Frame, hard: bool = False) -> Closed:
    """What a channel.close, or with `hard` a connection.close, says."""
    assert answer.name == ((10, 50) if hard else (20, 40))
    (code,) = struct.unpack_from(">H", answer.arguments)
    text = answer.arguments[3 : 3 + answer.arguments[2]].decode()
    class_id, method_id = struct.unpack(">HH", answer.arguments[3 + answer.arguments[2] :])
    return Closed(code, text, (class_id, method_id))

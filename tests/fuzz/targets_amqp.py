"""AMQP 0-9-1: field tables, property lists, method arguments, and a whole connection."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.fieldtables import Long, Timestamp, check_table, decode_table, encode_table
from rookery.wire.amqp.codec import Arguments, Fault
from tests.fuzz.target import Target, pieces, words
from tests.wire.amqp_peer import (
    NO_ARGUMENTS,
    PROTOCOL,
    Broker,
    Peer,
    frame,
    frames,
    long,
    long_string,
    longlong,
    method,
    octet,
    open_vhost,
    publish,
    short,
    short_string,
    start_ok,
    tune_ok,
)


def value(rng: random.Random, depth: int) -> object:
    """A value that may stand in a table."""
    kind = rng.randrange(14 if depth < 4 else 12)
    if kind == 12:
        return {words(rng): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 13:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    simple: tuple[object, ...] = (
        None,
        rng.random() < 0.5,
        rng.randrange(-100, 100),
        rng.randrange(-(1 << 63), 1 << 63),
        rng.uniform(-1e9, 1e9),
        float("nan"),
        words(rng, 40),
        rng.randbytes(rng.randrange(20)),
        Decimal(rng.randrange(-(1 << 31), 1 << 31)).scaleb(-rng.randrange(256)),
        Timestamp(rng.choice((0, 1, 1 << 31, (1 << 64) - 1))),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        Long(rng.randrange(1000)),
    )
    return simple[kind]


def table(rng: random.Random) -> dict[str, object]:
    return {words(rng): value(rng, 1) for _ in range(rng.randrange(6))}


class Tables(Target):
    """What is accepted is accepted by `check_table` too, and can be written again."""

    tokens = (b"F", b"A", b"x", b"S", b"T", b"D", b"\x01aF\x00\x00\x00", b"A\x00\x00\x00\x05", b"\xff\xff\xff\xff")

    def make(self, rng: random.Random) -> bytes:
        return encode_table(table(rng))

    def check(self, data: bytes) -> None:
        try:
            found = decode_table(data, 0, len(data))
        except InvalidArgument:
            found = None
        try:
            check_table(data, 0, len(data))
        except InvalidArgument:
            assert found is None
            return
        assert found is not None
        again = encode_table(found)
        assert encode_table(decode_table(again, 0, len(again))) == again


class PropertyLists(Target):
    """`decode`, `check`, `Scan` and each accessor agree on what is well-formed; what is can be written again."""

    tokens = (b"\xff\xfc", b"\x20\x00", b"\x01\x00", b"\x00\x01", b"\xff\xff\xff\xff", b"1000", b"x-death")

    def make(self, rng: random.Random) -> bytes:
        made = properties.Properties()
        for name in ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id"):
            if rng.random() < 0.4:
                setattr(made, name, words(rng))
        if rng.random() < 0.6:
            made.headers = table(rng)
        made.expiration = str(rng.randrange(10**6)) if rng.random() < 0.4 else None
        made.timestamp = rng.randrange(1 << 64) if rng.random() < 0.4 else None
        made.priority = rng.randrange(256) if rng.random() < 0.4 else None
        made.delivery_mode = rng.choice((None, 1, 2))
        return properties.encode(made)

    def check(self, data: bytes) -> None:
        found = _or_refused(properties.decode, data)
        assert (_or_refused(_checked, data) is None) == (found is None)
        scanned = _or_refused(_scanned, data)
        for read in _ACCESSORS:
            _or_refused(read, data)
        changes = _CHANGES if found is None or found.reply_to is not None else _CHANGES[:2]
        for change in changes:
            changed = _or_refused(change, data)
            if found is not None and changed is not None:
                properties.decode(changed)
        if found is None:
            return
        properties.Places().read(data, 0, len(data))
        assert scanned is not None or _or_refused(properties.expiration_ms, data) is None
        assert properties.headers(data).keys() == (found.headers or {}).keys()
        again = properties.encode(found)
        assert properties.encode(properties.decode(again)) == again


def _or_refused(read: Any, data: bytes) -> Any:
    try:
        return read(data)
    except InvalidArgument:
        return None


def _checked(data: bytes) -> bool:
    properties.check(data)
    return True


def _scanned(data: bytes) -> properties.Scan:
    scan = properties.Scan()
    scan.read(data)
    return scan


_ACCESSORS = (
    properties.delivery_mode,
    properties.priority,
    properties.expiration_ms,
    properties.content_type,
    properties.correlation_id,
    properties.reply_to,
    properties.message_id,
    properties.user_id,
    properties.timestamp,
    properties.headers,
    lambda data: properties.header(data, "a"),
    lambda data: properties.header_type(data, "a"),
)
_CHANGES = (
    lambda data: properties.with_headers(data, {"a": 1, "x": None}),
    properties.without_expiration,
    # of a list that has an address to reply to
    lambda data: properties.with_reply_to(data, "there"),
)


class MethodArguments(Target):
    """The first bytes say which readers are called, the rest is what they read."""

    _READERS = ("octet", "short", "long", "longlong", "short_string", "long_string", "table", "typed_table")

    def make(self, rng: random.Random) -> bytes:
        reads = rng.randbytes(rng.randrange(1, 8))
        body = b""
        for read in reads:
            kind = self._READERS[read % 8]
            fields = encode_table(table(rng))
            body += {
                "octet": octet(1),
                "short": short(2),
                "long": long(3),
                "longlong": longlong(4),
                "short_string": short_string("abc"),
                "long_string": long_string(b"defg"),
            }.get(kind, long(len(fields)) + fields)
        return bytes([len(reads)]) + reads + body

    def check(self, data: bytes) -> None:
        count = data[0] % 16 if data else 0
        arguments = Arguments(data, min(1 + count, len(data)), len(data))
        try:
            for read in data[1 : 1 + count]:
                getattr(arguments, self._READERS[read % 8])()
        except Fault:
            pass


_OPENED = PROTOCOL + start_ok() + tune_ok() + open_vhost() + method(1, 20, 10, b"\x00")


class Connections(Target):
    """Whatever a peer sends, its connection does not fail by a defect, and leaves nothing behind."""

    tokens = (
        PROTOCOL,
        start_ok(),
        tune_ok(),
        open_vhost(),
        method(1, 20, 10, b"\x00"),
        method(1, 20, 40, short(200) + short_string("") + short(0) + short(0)),
        method(1, 40, 10, short(0) + short_string("x") + short_string("topic") + octet(2) + NO_ARGUMENTS),
        method(1, 50, 10, short(0) + short_string("q") + octet(2) + NO_ARGUMENTS),
        method(
            1, 50, 20, short(0) + short_string("q") + short_string("x") + short_string("#") + b"\x00" + NO_ARGUMENTS
        ),
        method(1, 50, 30, short(0) + short_string("q") + octet(0)),
        method(1, 50, 40, short(0) + short_string("q") + octet(0)),
        method(1, 60, 10, long(0) + short(3) + octet(0)),
        method(1, 60, 20, short(0) + short_string("q") + short_string("c") + octet(0) + NO_ARGUMENTS),
        method(1, 60, 30, short_string("c") + octet(0)),
        method(1, 60, 70, short(0) + short_string("q") + octet(0)),
        method(1, 60, 80, longlong(1) + octet(1)),
        method(1, 60, 90, longlong(1) + octet(1)),
        method(1, 60, 110, octet(1)),
        method(1, 60, 120, longlong(0) + octet(3)),
        method(1, 85, 10, b"\x00"),
        method(1, 90, 10),
        method(1, 90, 20),
        method(1, 90, 30),
        publish(1, "", "q", b"body"),
        publish(1, "x", "a.b", b"", b"\x20\x00\x00\x00\x00\x05\x01aI\x00\x00"),
        frame(8, 0, b""),
    )

    def make(self, rng: random.Random) -> bytes:
        head = bytes([rng.randrange(256) | 1])
        return head + b"".join(rng.choice(self.tokens[4:]) for _ in range(rng.randrange(1, 12)))

    def check(self, data: bytes) -> None:
        broker = Broker()
        peer = Peer(broker)
        at = data[0] if data else 0
        if at & 1:
            peer.send(_OPENED)
        for piece in pieces(data[1:], 1 + (at >> 1) * 8):
            peer.send(piece)
        broker.sync()
        broker.settle()
        sent = peer.received()
        if not sent.startswith(b"AMQP"):
            # all that was answered are whole frames; a peer with another protocol is told the name of this one
            list(frames(sent))
        peer.lose()
        assert not [event for event, _ in broker.log if event == "connection_failed"], broker.log
        assert not broker.face.connections
        assert broker.face.partial_bytes == 0
        assert broker.turn.parked_bytes == 0
        for queue in broker.tenant.queues.values():
            assert queue.leased == 0

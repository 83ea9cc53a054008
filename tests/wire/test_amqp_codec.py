"""Reading method arguments and writing frames, against the byte layouts of AMQP 0-9-1."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.format.bytes import BytesWriter
from rookery.wire.amqp import codec
from tests.wire.amqp_peer import Broker, Peer, frames

# clause, how it is read, bytes, value
READ: list[tuple[str, str, bytes, object]] = [
    ("4.2.5.1 octet", "octet", b"\xff", 255),
    ("4.2.5.1 short", "short", b"\xff\xfe", 65534),
    ("4.2.5.1 long", "long", b"\xff\xff\xff\xfe", 4294967294),
    ("4.2.5.1 longlong", "longlong", b"\x00\x00\x00\x01\x00\x00\x00\x02", 4294967298),
    ("4.2.5.3 short string, empty", "short_string", b"\x00", ""),
    ("4.2.5.3 short string", "short_string", b"\x04\xc3\xa4x.", "äx."),
    ("4.2.5.3 short string of 255", "short_string", b"\xff" + b"k" * 255, "k" * 255),
    ("4.2.5.3 short string that is not UTF-8", "short_string", b"\x01\xff", "\udcff"),
    ("4.2.5.3 long string", "long_string", b"\x00\x00\x00\x02\x00\xff", b"\x00\xff"),
    ("4.2.5.5 table, empty", "table", b"\x00\x00\x00\x00", {}),
    ("4.2.5.5 table", "table", b"\x00\x00\x00\x04\x01at\x01", {"a": True}),
]


@pytest.mark.parametrize(("how", "data", "value"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_read(how: str, data: bytes, value: object) -> None:
    around = b"\xaa" + data + b"\xbb"
    arguments = codec.Arguments(around, 1, 1 + len(data))
    assert getattr(arguments, how)() == value
    with pytest.raises(codec.Fault):
        arguments.octet()


@pytest.mark.parametrize(("how", "data"), [row[1:3] for row in READ], ids=[row[0] for row in READ])
def test_read_cut_off_at_every_byte(how: str, data: bytes) -> None:
    for end in range(len(data)):
        arguments = codec.Arguments(data + b"\x00" * 16, 0, end)
        with pytest.raises(codec.Fault) as caught:
            getattr(arguments, how)()
        assert caught.value.code == 502
        assert caught.value.hard


def test_read_malformed_table() -> None:
    arguments = codec.Arguments(b"\x00\x00\x00\x03\x01a?", 0, 7)
    with pytest.raises(codec.Fault) as caught:
        arguments.table()
    assert caught.value.code == 502


def test_reply_codes_are_hard_or_soft_as_specified() -> None:
    soft = {311, 312, 313, 403, 404, 405, 406}
    for code in codec.REPLY_NAMES:
        assert codec.Fault(code, "x").hard == (code not in soft | {200})
    assert codec.Fault(404, "no queue 'q'").reply_text() == "NOT_FOUND - no queue 'q'"
    assert codec.Fault(540, "x", 5).hard


class Sink:
    """A connection that is only written to."""

    def __init__(self) -> None:
        self.peer = Peer(Broker())
        self.transport = self.peer.transport
        self.out = self.peer.connection.out

    def written(self) -> bytes:
        self.peer.broker.take_turn()
        return b"".join(self.transport.sent)


# clause, what is written, bytes
WRITTEN: list[tuple[str, Any, bytes]] = [
    ("4.2.3 method without arguments", lambda o: codec.put_method(o, 1, codec.CHANNEL_CLOSE_OK), b"\x00\x14\x00\x29"),
    (
        "1.8.3.13 ack",
        lambda o: codec.put_settled(o, 1, codec.BASIC_ACK, 258, 1),
        b"\x00\x3c\x00\x50" + b"\x00" * 6 + b"\x01\x02\x01",
    ),
]


@pytest.mark.parametrize(("write", "payload"), [row[1:] for row in WRITTEN], ids=[row[0] for row in WRITTEN])
def test_write(write: Any, payload: bytes) -> None:
    sink = Sink()
    write(sink.out)
    assert sink.written() == b"\x01\x00\x01" + struct.pack(">I", len(payload)) + payload + b"\xce"


@pytest.mark.parametrize("channel", [0, 1, 255, 256, 0x7FFF, 0x8000, 0xFFFF])
def test_write_channel_number(channel: int) -> None:
    w = BytesWriter()
    codec.put_channel(w, channel)
    assert w.getvalue() == struct.pack(">H", channel)


def test_write_short_string_is_cut_at_255_bytes() -> None:
    w = BytesWriter()
    codec.put_short_string(w, "k" * 300)
    assert w.getvalue() == b"\xff" + b"k" * 255


def test_method_size_is_patched_in() -> None:
    sink = Sink()
    start = codec.begin_method(sink.out, 3, codec.BASIC_CONSUME_OK)
    codec.put_short_string(sink.out.w, "x" * 200)
    codec.put_long_string(sink.out.w, b"y" * 70000)
    codec.end_method(sink.out, start)
    (only,) = frames(sink.written())
    assert only.channel == 3
    assert only.payload == b"\x00\x3c\x00\x15\xc8" + b"x" * 200 + struct.pack(">I", 70000) + b"y" * 70000


@given(
    size=st.integers(0, 30_000),
    payload_max=st.integers(4088, 9000),
    channel=st.integers(1, 65535),
    props=st.binary(min_size=2, max_size=50),
)
def test_content_is_cut_into_frames_and_nothing_is_lost(
    size: int, payload_max: int, channel: int, props: bytes
) -> None:
    body = bytes(i * 7 & 0xFF for i in range(size))
    sink = Sink()
    sink.out.touch()
    codec.put_content(sink.out, channel, payload_max, props, body)
    sink.out.w.write(codec.HEARTBEAT_FRAME)
    head, *parts, beat = frames(sink.written())
    assert (head.kind, head.channel) == (2, channel)
    assert head.payload == b"\x00\x3c\x00\x00" + struct.pack(">Q", size) + props
    assert beat.kind == 8
    assert all(each.kind == 3 and each.channel == channel and 0 < len(each.payload) <= payload_max for each in parts)
    assert b"".join(each.payload for each in parts) == body
    assert len(parts) == -(-size // payload_max)


def test_large_bodies_are_not_copied() -> None:
    body = b"z" * 5000
    given_away: list[Any] = []
    sink = Sink()
    sink.transport.writelines = given_away.extend  # type: ignore[method-assign, assignment]
    sink.out.touch()
    codec.put_content(sink.out, 1, 131064, b"\x00\x00", body)
    sink.written()
    assert any(each is body for each in given_away)

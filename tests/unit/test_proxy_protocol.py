"""PROXY headers: tables of good and bad ones, fed whole, byte by byte and with a tail."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.errors import InvalidArgument
from rookery.server.proxy import HEADER_MAX_BYTES, LINE_MAX_BYTES, SIGNATURE, Reader, Source

FOUR = bytes([192, 0, 2, 7]) + bytes([198, 51, 100, 1]) + struct.pack(">HH", 40_000, 5672)
SIX = ipaddress.IPv6Address("2001:db8::7").packed * 2 + struct.pack(">HH", 40_000, 5672)


def second(command: int, family: int, rest: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + struct.pack(">H", len(rest)) + rest


GOOD = [
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 5672\r\n", Source("192.0.2.7", False)),
    (b"PROXY TCP6 2001:db8::7 2001:DB8::1 40000 5672\r\n", Source("2001:db8::7", False)),
    (b"PROXY UNKNOWN\r\n", Source("", False)),
    (b"PROXY UNKNOWN whatever a proxy says here\r\n", Source("", False)),
    (second(0x21, 0x11, FOUR), Source("192.0.2.7", False)),
    (second(0x21, 0x21, SIX), Source("2001:db8::7", False)),
    (second(0x21, 0x11, FOUR + b"\x20\x00\x05\x01\x00\x00\x00\x00"), Source("192.0.2.7", False)),
    (second(0x21, 0x31, bytes(216)), Source("", False)),
    (second(0x21, 0x00, b""), Source("", False)),
    (second(0x20, 0x00, b""), Source("", True)),
    (second(0x20, 0x11, FOUR), Source("", True)),
]

BAD = [
    b"AMQP\x00\x00\x09\x01",
    b"GET / HTTP/1.1\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 40000\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 70000\r\n",
    b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 -1\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8::1 40000 5672\r\n",
    b"PROXY TCP6 192.0.2.7 198.51.100.1 40000 5672\r\n",
    b"PROXY TCP6 fe80::7%eth0 2001:db8::1 40000 5672\r\n",
    b"PROXY TCP4 192.0.2.7 nonsense 40000 5672\r\n",
    b"PROXY TCP4  192.0.2.7 198.51.100.1 40000 5672\r\n",
    b"PROXY TCP5 192.0.2.7 198.51.100.1 40000 5672\r\n",
    b"PROXY \r\n",
    b"PROXY UNKNOWN" + b"x" * LINE_MAX_BYTES,
    b"PROXY UNKNOWN" + b"x" * LINE_MAX_BYTES + b"\r\n",
    second(0x11, 0x11, FOUR),
    second(0x22, 0x11, FOUR),
    second(0x21, 0x11, FOUR[:-1]),
    second(0x21, 0x21, SIX[:-1]),
    second(0x21, 0x31, bytes(215)),
    second(0x21, 0x41, FOUR),
    second(0x21, 0x11, FOUR + bytes(HEADER_MAX_BYTES)),
]


@pytest.mark.parametrize(("header", "source"), GOOD)
@pytest.mark.parametrize("tail", [b"", b"AMQP\x00\x00\x09\x01", b"\r\n", b"PROXY "])
def test_the_header_is_taken_and_nothing_behind_it(header: bytes, source: Source, tail: bytes) -> None:
    reader = Reader()
    assert reader.take(header + tail) == len(header)
    assert reader.source == source
    slow = Reader()
    for at in range(len(header)):
        assert slow.source is None
        assert slow.take(header[at : at + 1]) == 1
    assert slow.source == source


@pytest.mark.parametrize("header", BAD)
def test_malformed(header: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Reader().take(header)
    slow = Reader()
    with pytest.raises(InvalidArgument):
        for at in range(len(header)):
            slow.take(header[at : at + 1])


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda tail: SIGNATURE + tail)))
def test_anything_is_a_header_or_refused_or_wants_more(data: bytes) -> None:
    reader = Reader()
    try:
        taken = reader.take(data)
    except InvalidArgument:
        return
    assert 0 <= taken <= len(data)
    assert reader.source is not None or (taken == len(data) and taken < HEADER_MAX_BYTES)

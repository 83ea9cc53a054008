"""The frames of RFC 6455, byte by byte."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from rookery.client.websocket import Frames
from rookery.wire import websocket
from rookery.wire.http.answers import BrokenAnswer
from rookery.wire.websocket import BINARY, CLOSE, PING, PONG, TEXT, Decoder

KEY = b"\x37\xfa\x21\x3d"


def masked(first: int, payload: bytes, size: bytes | None = None) -> bytes:
    """A client's frame, with its length in its shortest form unless said."""
    if size is None:
        n = len(payload)
        size = (
            bytes([n]) if n < 126 else b"\x7e" + n.to_bytes(2, "big") if n < 65536 else b"\x7f" + n.to_bytes(8, "big")
        )
    return bytes([first, size[0] | 0x80]) + size[1:] + KEY + websocket.unmask(payload, KEY)


def plain(frames: bytes) -> bytes:
    """The same frames as a server sends them: without mask."""
    at = 0
    found = b""
    while at < len(frames):
        size, head = frames[at + 1] & 0x7F, 2
        if size >= 126:
            head = 4 if size == 126 else 10
            size = min(int.from_bytes(frames[at + 2 : at + head], "big"), len(frames))
        body = at + head + 4
        payload = websocket.unmask(frames[body : body + size], frames[body - 4 : body])
        found += frames[at : at + 1] + bytes([frames[at + 1] & 0x7F]) + frames[at + 2 : at + head] + payload
        at = body + size
    return found


def fed(data: bytes, step: int, limit: int = 1 << 20, masked: bool = True) -> tuple[list[tuple[int, bytes]], Decoder]:
    decoder = Decoder(limit, masked)
    found: list[tuple[int, bytes]] = []
    for at in range(0, len(data), step):
        found += decoder.receive(data[at : at + step])
    return found, decoder


GOOD: list[tuple[str, bytes, list[tuple[int, bytes]]]] = [
    ("5.7 a single-frame masked text message", b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", [(TEXT, b"Hello")]),
    ("5.4 a fragmented text message", masked(0x01, b"Hel") + masked(0x80, b"lo"), [(TEXT, b"Hello")]),
    ("5.7 a masked pong", b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", [(PONG, b"Hello")]),
    (
        "5.4 a control frame between fragments",
        masked(0x01, b"a") + masked(0x89, b"p") + masked(0x80, b"b"),
        [(PING, b"p"), (TEXT, b"ab")],
    ),
    ("5.6 nothing at all", masked(0x82, b""), [(BINARY, b"")]),
    ("5.4 empty fragments", masked(0x02, b"") + masked(0x00, b"") + masked(0x80, b""), [(BINARY, b"")]),
    ("5.2 a length of 125", masked(0x82, b"x" * 125), [(BINARY, b"x" * 125)]),
    ("5.2 a length of 126", masked(0x82, b"x" * 126), [(BINARY, b"x" * 126)]),
    ("5.2 a length of 65535", masked(0x82, b"x" * 65535), [(BINARY, b"x" * 65535)]),
    ("5.2 a length of 65536", masked(0x82, b"x" * 65536), [(BINARY, b"x" * 65536)]),
    ("5.5.1 a close frame without a code", masked(0x88, b""), [(CLOSE, b"")]),
    ("5.5.1 a close frame with a code", masked(0x88, b"\x03\xe8bye"), [(CLOSE, b"\x03\xe8bye")]),
    ("5.6 UTF-8 divided inside of a character", masked(0x01, b"\xc3") + masked(0x80, b"\xa4"), [(TEXT, b"\xc3\xa4")]),
]

BAD: list[tuple[str, bytes, int]] = [
    ("5.1 a frame that is not masked", b"\x81\x05Hello", 1002),
    ("5.2 a reserved bit", masked(0xC1, b"x"), 1002),
    ("5.2 a reserved opcode", masked(0x83, b"x"), 1002),
    ("5.2 a reserved control opcode", masked(0x8B, b"x"), 1002),
    ("5.2 126 where 7 bits would do", masked(0x81, b"x" * 125, b"\x7e\x00\x7d"), 1002),
    ("5.2 127 where 16 bits would do", masked(0x81, b"x" * 65535, b"\x7f" + (65535).to_bytes(8, "big")), 1002),
    ("5.2 a length with its first bit set", masked(0x82, b"", b"\x7f" + b"\xff" * 8), 1009),
    ("5.4 a continuation of nothing", masked(0x80, b"x"), 1002),
    ("5.4 a message inside of another", masked(0x01, b"x") + masked(0x81, b"y"), 1002),
    ("5.5 a control frame in pieces", masked(0x09, b"x"), 1002),
    ("5.5 a control frame that is too long", masked(0x89, b"x" * 126), 1002),
    ("5.5.1 half a code", masked(0x88, b"\x03"), 1002),
    ("7.4.1 a code that is never sent", masked(0x88, b"\x03\xed"), 1002),
    ("7.4.2 a code out of range", masked(0x88, b"\x13\x88"), 1002),
    ("7.4.2 a code that is reserved", masked(0x88, b"\x03\xec"), 1002),
    ("5.5.1 a reason that is not UTF-8", masked(0x88, b"\x03\xe8\xff"), 1007),
    ("8.1 a text that is not UTF-8", masked(0x81, b"\xff"), 1007),
    ("8.1 a text that is not UTF-8 as a whole", masked(0x01, b"\xc3") + masked(0x80, b"x"), 1007),
    ("10.4 a message that is too large", masked(0x82, b"x" * 200_001), 1009),
    ("10.4 parts that are too large together", masked(0x02, b"x" * 150_000) + masked(0x80, b"x" * 50_001), 1009),
]


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(("name", "data", "expected"), GOOD, ids=[case[0] for case in GOOD])
def test_frames_are_read_in_whatever_pieces_they_come(
    name: str, data: bytes, expected: list[tuple[int, bytes]], step: int
) -> None:
    tail = masked(0x89, b"tail")
    found, decoder = fed(data + tail, step)
    assert decoder.fault_code == 0
    assert found == [*expected, (PING, b"tail")]
    assert decoder.held_bytes == 0


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(("name", "data", "code"), BAD, ids=[case[0] for case in BAD])
def test_a_fault_has_its_code_and_nothing_behind_it_is_believed(name: str, data: bytes, code: int, step: int) -> None:
    found, decoder = fed(masked(0x89, b"before") + data + masked(0x89, b"behind"), step, 200_000)
    assert decoder.fault_code == code
    assert found[0] == (PING, b"before")
    assert (PING, b"behind") not in found
    assert decoder.receive(masked(0x89, b"later")) == []


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(("name", "data", "expected"), GOOD, ids=[case[0] for case in GOOD])
def test_a_client_reads_the_same_frames_without_mask(
    name: str, data: bytes, expected: list[tuple[int, bytes]], step: int
) -> None:
    found, decoder = fed(plain(data + masked(0x89, b"tail")), step, masked=False)
    assert (decoder.fault_code, decoder.held_bytes) == (0, 0)
    assert found == [*expected, (PING, b"tail")]


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(("name", "data", "code"), BAD[1:], ids=[case[0] for case in BAD[1:]])
def test_a_client_refuses_the_same_faults(name: str, data: bytes, code: int, step: int) -> None:
    found, decoder = fed(plain(masked(0x89, b"before") + data), step, 200_000, masked=False)
    assert decoder.fault_code == code
    assert found[0] == (PING, b"before")
    assert decoder.receive(plain(masked(0x89, b"later"))) == []


def test_a_client_refuses_a_masked_frame() -> None:
    found, decoder = fed(masked(0x81, b"x"), 1 << 20, masked=False)
    assert (found, decoder.fault_code, decoder.fault) == ([], 1002, "a server does not mask its frames")
    with pytest.raises(BrokenAnswer, match="a server does not mask its frames"):
        Frames().receive(masked(0x81, b"x"))


def test_what_says_it_is_too_large_is_refused_before_it_comes() -> None:
    decoder = Decoder(1_000)
    assert decoder.receive(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + KEY) == []
    assert decoder.fault_code == 1009


def test_a_control_frame_is_taken_when_a_message_has_reached_its_limit() -> None:
    found, decoder = fed(masked(0x02, b"x" * 1_000) + masked(0x89, b"p" * 125) + masked(0x80, b""), 1 << 20, 1_000)
    assert decoder.fault_code == 0
    assert found == [(PING, b"p" * 125), (BINARY, b"x" * 1_000)]


def test_empty_parts_without_end_are_refused() -> None:
    decoder = Decoder(1_000)
    decoder.receive(masked(0x02, b""))
    for _ in range(int(websocket.PARTS_MAX)):
        decoder.receive(masked(0x00, b""))
    assert decoder.fault_code == 1009


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 32_767, 32_768, 65_535, 65_536, 100_000])
def test_frames_are_written_as_a_stock_library_writes_them(size: int) -> None:
    payload = os.urandom(size)
    assert websocket.frame(BINARY, payload) == Frame(Opcode.BINARY, payload).serialize(mask=False)
    assert websocket.masked_frame(BINARY, payload, KEY) == masked(0x82, payload)


def test_the_key_of_the_specification_is_answered_as_there() -> None:
    # 1.3
    assert websocket.accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    for bad in (b"", b"x", b"dGhlIHNhbXBsZSBub25j", b"dGhlIHNhbXBsZSBub25jZQ", b"\xff" * 24):
        assert websocket.accept_key(bad) is None


def test_a_farewell_is_read_as_it_was_written() -> None:
    assert websocket.read_close(websocket.close_payload(1001, "ends")) == (1001, "ends")
    assert websocket.read_close(b"") == (1005, "")
    long = websocket.close_payload(1000, "ä" * 100)
    assert len(long) <= 125
    assert websocket.read_close(long)[1] == "ä" * 61


@given(
    st.lists(st.tuples(st.sampled_from([TEXT, BINARY, PING, PONG]), st.binary(max_size=300)), max_size=12), st.data()
)
@settings(max_examples=150)
def test_whatever_a_stock_library_sends_arrives(messages: list[tuple[int, bytes]], data: st.DataObject) -> None:
    sent = []
    wire = b""
    for opcode, payload in messages:
        if opcode == TEXT:
            payload = payload.hex().encode()
        elif opcode != BINARY:
            payload = payload[:125]
        sent.append((opcode, payload))
        wire += Frame(Opcode(int(opcode)), payload).serialize(mask=True)
    step = data.draw(st.integers(1, 40))
    found, decoder = fed(wire, step)
    assert (found, decoder.fault_code) == (sent, 0)
    found, decoder = fed(plain(wire), step, masked=False)
    assert (found, decoder.fault_code) == (sent, 0)


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([case[1][:300] for case in GOOD + BAD])), max_size=8))
@settings(max_examples=300)
def test_no_bytes_whatsoever_are_a_defect_and_pieces_make_no_difference(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    for role in (True, False):
        whole, one = fed(data, 1 << 20, 500, role)
        apart, other = fed(data, 1, 500, role)
        assert whole == apart
        assert one.fault_code == other.fault_code
        assert one.held_bytes <= len(data)

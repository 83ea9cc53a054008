"""Bodies in chunks: many small ones cost little more than their bytes, and headers behind them do not count."""

from __future__ import annotations

from rookery.wire.http.connection import PARTS_MAX
from tests.fuzz.targets_http import Face

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_small_chunks_are_joined_while_they_arrive() -> None:
    face = Face()
    connection = face.connect()
    count = 20 * int(PARTS_MAX)
    connection.data_received(HEAD + b"2\r\nab\r\n" * count)
    assert len(connection._parts) < 2 * PARTS_MAX
    connection.data_received(b"0\r\n\r\n")
    ((_, _, _, body, *_),) = face.calls
    assert body == b"ab" * count
    connection.data_received(HEAD + b"2\r\ncd\r\n0\r\n\r\n")
    assert face.calls[1][3] == b"cd"
    assert not face.defects


def test_headers_behind_a_body_are_left_out() -> None:
    face = Face()
    (call,) = face.feed(HEAD + b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\nHost: b\r\n\r\n", 1_000)
    assert call[2] == {b"host": b"a", b"transfer-encoding": b"chunked"}


def test_headers_behind_a_body_are_limited() -> None:
    (call,) = Face().feed(HEAD + b"1\r\na\r\n0\r\n" + b"A: b\r\n" * 200 + b"\r\n", 1_000_000)
    assert call == (431,)

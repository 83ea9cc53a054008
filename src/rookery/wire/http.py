"""HTTP/1.1 in the broker's own loop: requests in, JSON out. So far it answers `GET /health`; all else is 404.

One `HttpConnection` per peer of the `HttpFace`, over httptools' parser. Requests of one connection are answered in
order, each before the next is parsed, and what a peer may send is bounded: the head of a request and its body.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec

from rookery.wire.turn import Face, Peer

HEAD_MAX_BYTES: Final = 64 * 1024

Answer = tuple[int, object]
"""Status, and what the body is made of as JSON."""


class HttpFace(Face):
    """What all HTTP connections share. `answer(method, path)` says what is sent back."""

    def __init__(self, answer: Callable[[str, str], Answer], body_max_bytes: int) -> None:
        super().__init__()
        self.answer = answer
        self.body_max_bytes = body_max_bytes
        self.connections: set[HttpConnection] = set()

    def connect(self) -> Peer:
        return HttpConnection(self)

    def close_all(self, reason: str) -> None:
        for connection in list(self.connections):
            connection.close()

    def abort_all(self) -> None:
        for connection in list(self.connections):
            connection.broken()


class HttpConnection(Peer):
    """One connection, as asyncio's protocol."""

    def __init__(self, face: HttpFace) -> None:
        super().__init__()
        self._face = face
        self._transport: Any = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._start()

    def _start(self) -> None:
        self._url = b""
        self._head_bytes = 0
        self._body_bytes = 0

    # What a transport calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        face = self._face
        if face.admit is not None and not face.admit(self, transport):
            transport.abort()
            return
        face.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        # the parser refers back to this object
        self._parser = None
        face = self._face
        if self in face.connections:
            face.connections.discard(self)
            if face.left is not None:
                face.left(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The peer does not read its answers: it is not asked for more requests."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._transport.is_closing():
            return
        try:
            self._parser.feed_data(data)
        except _TooLarge as error:
            self._send(error.status, {"error": str(error)}, keep=False)
        except httptools.HttpParserUpgrade:
            self._transport.close()
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _TooLarge):
                self._send(cause.status, {"error": str(cause)}, keep=False)
            else:
                self._send(400, {"error": "this is not HTTP/1.1"}, keep=False)

    def close(self) -> None:
        """Answers are written as requests come, so nothing is under way but what the transport still sends."""
        if self._transport is not None:
            self._transport.close()

    def broken(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._start()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head(len(name) + len(value))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._face.body_max_bytes:
            raise _TooLarge(413, f"the body is larger than {self._face.body_max_bytes} bytes")

    def on_message_complete(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        method = self._parser.get_method().decode("ascii", "replace")
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        status, body = self._face.answer(method, path)
        self._send(status, body, keep=self._parser.should_keep_alive(), bare=method == "HEAD")

    def _head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_MAX_BYTES:
            raise _TooLarge(431, f"the head of the request is larger than {HEAD_MAX_BYTES} bytes")

    def _send(self, status: int, body: object, *, keep: bool, bare: bool = False) -> None:
        content = msgspec.json.encode(body)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n"
            f"{'' if keep else 'Connection: close' + chr(13) + chr(10)}\r\n"
        )
        self._transport.write(head.encode() + (b"" if bare else content))
        if not keep:
            self._transport.close()


class _TooLarge(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

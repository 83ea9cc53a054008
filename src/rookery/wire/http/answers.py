"""HTTP/1.1 answers without I/O, for whatever asks: the client and the calls of webhooks. Heads, lengths and chunks are
httptools' business; here are the limits, informational answers, and what comes behind an answer.
"""

from __future__ import annotations

import http.client
from typing import Any, Final

import httptools

HEAD_MAX_BYTES: Final = 64 * 1024
HEADERS_MAX: Final = 200
"""Of the head of an answer, and of the heads of informational answers before it, together."""


class BrokenAnswer(http.client.HTTPException, OSError):
    """What came is no answer, or not the whole of one: as when the connection breaks."""


class Incoming:
    """An answer as it comes: `feed` it until it is `done`; `take` what of its content is there.

    `keep` says that the connection may serve another request, `heard` that something came at all. An answer that
    changes the protocol (101) is done with `behind` set to what already came in the new one.
    """

    __slots__ = (
        "_chunks",
        "_head_bytes",
        "_headers",
        "_parser",
        "behind",
        "done",
        "head_done",
        "headers",
        "heard",
        "keep",
        "status",
    )

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self.heard = False
        self.keep = False
        self.done = False
        # what came behind an answer that changes the protocol
        self.behind: bytes | None = None
        self._head_bytes = 0
        self._headers = 0
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.head_done = False
        self._chunks: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take in bytes; none at all mean that the connection has ended."""
        if not data:
            raise BrokenAnswer("the connection was closed before the answer was whole")
        self.heard = True
        if not self.head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.done = True
            if self.status == 101:
                self.behind = data[upgrade.args[0] :]
            else:
                self.keep = False
        except httptools.HttpParserError as error:
            if not self.done:
                raise BrokenAnswer(f"the answer is not HTTP: {error}") from None
            # the answer was whole; what came behind it is nobody's, and so is the connection from now on
            self.keep = False
        if not self.head_done and self._head_bytes > HEAD_MAX_BYTES:
            raise BrokenAnswer("the head of the answer is too long")
        if self._headers > HEADERS_MAX:
            raise BrokenAnswer(f"the answer has more than {HEADERS_MAX} headers")

    def take(self) -> bytes:
        """The content that came since the last call."""
        chunks = self._chunks
        if not chunks:
            return b""
        self._chunks = []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def header(self, name: bytes) -> str:
        """A header by its name in lower case; empty when there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    # httptools calls these, also for what comes behind the answer: nothing was asked that it would answer

    def on_message_begin(self) -> None:
        if self.done:
            self.keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.done:
            return
        self._headers += 1
        # headers behind the content (trailers) are left out
        if not self.head_done and self._headers <= HEADERS_MAX:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if not self.done:
            self.status = self._parser.get_status_code()
            # of an informational answer nothing is shown: the head that counts is still to come
            self.head_done = self.status >= 200 or self.status == 101

    def on_body(self, body: bytes) -> None:
        if not self.done and self.head_done:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self.done:
            return
        if self.status < 200 and self.status != 101:
            # the answer proper is still to come
            self._begin()
            return
        self.keep = self._parser.should_keep_alive()
        self.done = True

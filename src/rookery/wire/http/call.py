"""One request and the answer to it, and the bytes of an answer's head.

Whoever handles a call ends with `answer`, or with `suspend` when the answer comes later. An answer that speaks of a
change which must last says `lasting` first, in the turn of the change: it is then held until the journal has it.
"""

from __future__ import annotations

import gzip
from http import HTTPStatus
from time import gmtime
from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from rookery.errors import RookeryError
from rookery.format.bytes import BytesWriter

if TYPE_CHECKING:
    from rookery.wire.http.connection import HttpConnection

JSON: Final = b"application/json"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNK_END: Final = b"0\r\n\r\n"

GZIP_MIN_BYTES: Final[i64] = 1_024
GZIP_MAX_BYTES: Final[i64] = 1 << 20
"""A larger answer would hold up the loop for longer than it saves the network."""

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PHRASES: Final[dict[int, bytes]] = {int(status): status.phrase.encode() for status in HTTPStatus}
_EXPOSED: Final = b"X-Request-ID, X-Lease, Retry-After"
_NOSNIFF: Final = b"X-Content-Type-Options: nosniff\r\n"
"""On every answer: a browser must not take a message for a page or a script."""
_PAGE: Final = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'\r\n"
    b"X-Frame-Options: DENY\r\n"
    b"Referrer-Policy: no-referrer\r\n"
)
"""On every page: only what comes from here is shown or run, and in nobody's frame."""
_UNSAFE: Final = frozenset(chr(c) for c in (*range(32), 127))


class HttpFault(Exception):
    """A request that cannot be read to its end: its connection is closed after the answer. `cause` words it, if any."""

    def __init__(self, status: int, code: str, text: str, cause: RookeryError | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.cause = cause


@final
class Call:
    """See the module's docstring."""

    def __init__(self, connection: HttpConnection, began_ms: i64) -> None:
        self.connection: HttpConnection | None = connection
        self.began_ms: i64 = began_ms
        # the request
        self.method = ""
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.old = False
        self.keep = True
        self.refusal: HttpFault | None = None
        self.vetted = False
        # the head it came with, if that was known
        self.head: Any = None
        self.request_id = ""
        self.route: Any = None
        self.path: tuple[str, ...] = ()
        self.principal: Any = None
        self.tag = ""
        # the span that is recorded of it, and the trace of the message that it is answered with
        self.span: Any = None
        self.linked = ""
        # the answer
        self.begun = False
        self.ready = False
        self.status = 200
        self.content = b""
        self.content_type = JSON
        self.lines = b""
        self.batch: i64 = 0
        self.then: Any = None
        self.poll: Any = None
        self.undo: Any = None
        self.streaming = False
        self.head_sent = False
        self.ended = False
        self.on_room: Any = None
        # whether another protocol is asked for, and, once that was agreed to, who speaks it
        self.upgrading = False
        self.tunnel: Any = None

    @property
    def query(self) -> bytes:
        cut = self.url.find(b"?")
        return b"" if cut < 0 else self.url[cut + 1 :]

    def header(self, name: bytes) -> str:
        """A header's text, empty when there is none."""
        value = self.headers.get(name)
        return "" if value is None else value.decode("latin-1")

    def settled(self) -> bool:
        """Whether those behind it may begin: nothing is left to be done but to wait for the journal."""
        return self.ready and self.then is None and not self.streaming and self.keep

    def add_header(self, name: str, value: str) -> None:
        """Add a header to the answer; what would end its line is left out."""
        clean = "".join([c for c in value if c not in _UNSAFE])
        self.lines += f"{name}: {clean}\r\n".encode("latin-1", "replace")

    def lasting(self) -> None:
        """What has happened so far must be in the journal before the answer goes out."""
        connection = self.connection
        if connection is not None:
            log = connection.shard.log
            if log.active:
                self.batch = log.horizon()
                log.urgent = True

    def answer(self, status: int, content: bytes, content_type: bytes) -> None:
        """This is the answer."""
        self.status = status
        self.content = content
        self.content_type = content_type
        self.ready = True
        self.streaming = False
        self.tunnel = None
        self.undo = None
        self.poll = None
        self.touch()

    def upgrade(self, tunnel: Any) -> None:
        """Change to another protocol: behind the answer, what the peer sends is the tunnel's, which answers by itself.

        Within turns it is told `opened()`, then `received(data)` and, at the end, `lost()`. `finish()` is that of a
        peer. `stalled()` and `room()` say that the peer stopped to read, and that it goes on or took what a turn gave
        it; `recheck(still_valid)` and `close()` that rights have changed, and that the server ends.
        """
        self.status = 101
        self.content_type = b""
        self.tunnel = tunnel
        self.undo = tunnel.lost
        self.ready = True
        self.touch()

    def suspend(self, undo: Any, poll: Any = None) -> None:
        """The answer comes later; `undo` is called instead when nobody waits for it any more.

        `poll` is called at the end of a turn that follows a `touch`.
        """
        self.undo = undo
        self.poll = poll

    def stream(self, content_type: bytes, undo: Any, poll: Any, on_room: Any) -> None:
        """The answer comes in pieces, looked for by `poll`; `on_room` is called when the peer has taken what it was
        given.
        """
        self.content_type = content_type
        self.streaming = True
        self.ready = True
        self.undo = undo
        self.poll = poll
        self.on_room = on_room
        self.touch()

    def send(self, piece: bytes) -> None:
        """One more piece of a stream."""
        self.content += piece
        self.touch()

    def end(self) -> None:
        """The stream is whole."""
        self.ended = True
        self.undo = None
        self.poll = None
        self.touch()

    def cancel(self) -> None:
        """Stop waiting: the credential behind the call is no longer good."""
        undo = self.undo
        self.undo = None
        connection = self.connection
        if undo is not None:
            undo()
        if connection is None:
            return
        if self.streaming:
            self.keep = False
            self.end()
        else:
            connection.face.resume(self, HttpFault(401, "unauthenticated", "the credential is no longer valid"))

    def touch(self) -> None:
        """There may be something to say: see to a turn, and look at its end."""
        connection = self.connection
        if connection is not None:
            connection.turn.expect(connection)
            if not connection.turn.running:
                connection.out.touch()


@final
class DateLine:
    """The Date header, made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def at(self, wall_ms: int) -> bytes:
        second = wall_ms // 1000
        if second != self._second:
            t = gmtime(second)
            day, month = _DAYS[t.tm_wday], _MONTHS[t.tm_mon - 1]
            clock = f"{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02}"
            self._line = f"Date: {day}, {t.tm_mday:02} {month} {t.tm_year} {clock} GMT\r\n".encode()
            self._second = second
        return self._line


_date: Final = DateLine()


_plain_heads: Final[dict[i64, bytes]] = {}
"""What an answer of JSON without anything special begins with, by status and length."""


def write_head(w: BytesWriter, call: Call, wall_ms: int, keep: bool) -> None:
    """Write the head of an answer, as `render` makes it."""
    size: i64 = len(call.content)
    special = call.lines or not keep or call.old or call.content_type is not JSON or b"origin" in call.headers
    if special or size >= GZIP_MIN_BYTES or call.status == 204 or call.status == 304:
        w.write(render(call, wall_ms, keep))
        return
    key = i64(call.status) << 32 | size
    begin = _plain_heads.get(key)
    if begin is None:
        phrase = _PHRASES.get(call.status, b"")
        begin = b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\nContent-Type: %b\r\n%b" % (
            call.status,
            phrase,
            size,
            JSON,
            _NOSNIFF,
        )
        _plain_heads[key] = begin
    w.write(begin)
    w.write(_date.at(wall_ms))
    w.write(b"X-Request-ID: ")
    w.write(call.request_id.encode())
    w.write(b"\r\n\r\n")


def render(call: Call, wall_ms: int, keep: bool) -> bytes:
    """The head of an answer; the content may become smaller by it."""
    lines = call.lines
    headers = call.headers
    if b"origin" in headers and call.connection is not None:
        lines += _cors(headers[b"origin"], call.connection.face.origins)
    content = call.content
    if len(content) >= GZIP_MIN_BYTES and not call.streaming:
        lines += b"Vary: Accept-Encoding\r\n"
        accepted = headers.get(b"accept-encoding", b"")
        wanted = b"gzip" in accepted and b"gzip;q=0" not in accepted.replace(b" ", b"")
        if wanted and len(content) <= GZIP_MAX_BYTES:
            call.content = content = gzip.compress(content, 1, mtime=0)
            lines += b"Content-Encoding: gzip\r\n"
    if call.streaming:
        if not call.old:
            lines += b"Transfer-Encoding: chunked\r\n"
    elif call.status != 204 and call.status != 304 and call.status != 101:
        lines += b"Content-Length: %d\r\n" % len(content)
    if not keep:
        lines += b"Connection: close\r\n"
    elif call.old:
        lines += b"Connection: keep-alive\r\n"
    if call.content_type and call.status != 204 and call.status != 304:
        lines += b"Content-Type: %b\r\n%b" % (call.content_type, _NOSNIFF)
        if call.content_type.startswith(b"text/html"):
            lines += _PAGE
    phrase = _PHRASES.get(call.status, b"")
    return b"HTTP/1.1 %d %b\r\n%b%bX-Request-ID: %b\r\n\r\n" % (
        call.status,
        phrase,
        _date.at(wall_ms),
        lines,
        call.request_id.encode(),
    )


def _cors(origin: bytes, allowed: frozenset[bytes]) -> bytes:
    if origin not in allowed and b"*" not in allowed:
        return b"Vary: Origin\r\n" if allowed else b""
    return b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\nVary: Origin\r\n" % (
        origin,
        _EXPOSED,
    )


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def failed(error: object) -> bool:
    """Whether a call goes on with an error, and not with more to do."""
    return isinstance(error, RookeryError | HttpFault)

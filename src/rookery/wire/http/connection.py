"""HTTP/1.1 in the broker's own loop: requests in, answers out, over httptools' parser. No sockets: a transport only has
to take bytes.

Each request becomes a `Call`, which is handed to `HttpFace.handle` and answered then or later: a claim may wait, a
publish waits for the journal. Calls of one connection are begun in order, one that waits for something other than the
journal holds up those behind it, and answers leave in order, all of a turn in one write.

What a peer may send is bounded (head, body, time, calls ahead of their answers), and one that does not read its answers
is not read from. After the first fault of framing nothing more of the connection is believed; what still comes is read
and thrown away for a while, as closing at once would make the peer's system drop the answer with a reset.

A call may change the connection to another protocol (`Call.upgrade`); from then on a tunnel has its bytes.
"""

from __future__ import annotations

from typing import Any, Final, final

import httptools
from mypy_extensions import i64

from rookery.errors import RookeryError
from rookery.wire.http.bodies import BodyPool, unverified_pool, verified_pool
from rookery.wire.http.call import CHUNK_END, CONTINUE, Call, HttpFault, chunk, render, write_head
from rookery.wire.http.heads import HEAD_KNOWN_MAX_BYTES, Heads, Recent
from rookery.wire.turn import SHUTDOWN, SPLICE_BYTES, UNREAD, Face, Outlet, Peer, Turn

HEAD_MAX_BYTES: Final[i64] = 64 * 1024
URL_MAX_BYTES: Final[i64] = 16 * 1024
HEADERS_MAX: Final[i64] = 100
PARTS_MAX: Final[i64] = 1_024
"""Pieces of a body that are kept apart: a chunk of two bytes would take fifty as one."""
CALLS_MAX: Final[i64] = 256
"""Requests of one connection that may wait for their answers before it is read no further."""

TURN_MAX_BYTES: Final[i64] = 256 * 1024
CALL_COST_BYTES: Final[i64] = 1_024
"""How much of what a peer asks for is done in one turn, counted in bytes of bodies and answers, and so many for each
request. What it sent beyond that waits for a turn of its own, so that others are served in between.
"""

STALL_MAX_MS: Final[i64] = 15_000
"""How long a request may make no progress, or a peer read nothing of its answers."""
REQUEST_MAX_MS: Final[i64] = 300_000
BODY_WINDOW_MIN_BYTES: Final[i64] = 15 * 1024
"""How much of a body must arrive in each `STALL_MAX_MS`: 1 KiB a second."""
VETTED_BYTES: Final[i64] = 64 * 1024
"""The credential of a larger body is looked at before the body is read."""
IDLE_MAX_MS: Final[i64] = 75_000
LINGER_MAX_MS: Final[i64] = 10_000
LINGER_MAX_BYTES: Final[i64] = 64 << 20
"""What a peer may still send behind a request that was refused, before its connection is closed on it."""

METHODS: Final[dict[bytes, str]] = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
}


class HttpFace(Face):
    """What all HTTP connections of a server share.

    `handle(call)` must answer a call, at once or later. `later(delay_ms, work)` runs work in a turn of its own and
    gives something to cancel. `resume(call, event)` goes on with a call: `event` is what to do next, or what went
    wrong. `done(call)` is told of each answer whose status is at least `told_from`, and `defect(error, call)` of what
    should not have happened. `vet(call)` says, of a call whose body is still arriving, on whose account that is: an
    owner's name, empty if that is not known yet; it raises for a credential that is wrong. `is_own_user(transport)`
    says whether a connection from this machine was made by the user of this process. The first request, and the head
    of each, must come within `handshake_ms`.
    """

    def __init__(self, turn: Turn, handle: Any, request_prefix: str) -> None:
        super().__init__("http", turn)
        self.handle = handle
        self.resume: Any = None
        self.later: Any = None
        self.done: Any = None
        self.told_from: i64 = 1_000
        self.spans: Any = None
        self.defect: Any = None
        self.vet: Any = None
        self.is_own_user: Any = None
        self.origins: frozenset[bytes] = frozenset()
        self.body_max_bytes: i64 = 16 << 20
        self.bodies: BodyPool = verified_pool(16 << 20)
        self.unverified: BodyPool = unverified_pool(16 << 20)
        self.closing = False
        self.requests: i64 = 0
        self.refused: i64 = 0
        self.heads = Heads()
        self._prefix = request_prefix

    def set_body_max(self, body_max_bytes: int) -> None:
        """Limit the body of one request, and what bodies take together accordingly."""
        self.body_max_bytes = body_max_bytes
        self.bodies = verified_pool(body_max_bytes)
        self.unverified = unverified_pool(body_max_bytes)

    @property
    def body_bytes(self) -> int:
        """What bodies that are still arriving take together."""
        return self.bodies.used + self.unverified.used

    def connect(self) -> Peer:
        return HttpConnection(self)

    def next_id(self) -> str:
        self.requests += 1
        return f"{self._prefix}-{self.requests}"

    def close_all(self, reason: str) -> None:
        self.closing = True
        super().close_all(reason)


@final
class HttpConnection(Peer):
    """One connection, as its transport's protocol."""

    def __init__(self, face: HttpFace) -> None:
        super().__init__()
        self.face = face
        self.turn = face.turn
        self.shard = face.shard
        self.out = Outlet(face.turn, self)
        # the last credential shown; `principal` is who it was, as long as `credential_generation` is that of the access
        self.credential = b""
        self.credential_generation: i64 = -1
        self._parser: Any = httptools.HttpRequestParser(self)
        self._calls: list[Call] = []
        self._arrived: list[Call] = []
        self._parts: list[bytes] = []
        self._joined: i64 = 0
        self._part_bytes: i64 = 0
        # bytes of bodies whose calls have not begun, how many of them are accounted for, and on whose account
        self._held_bytes: i64 = 0
        self._counted_bytes: i64 = 0
        self._owner = ""
        self._large = False
        self._window_ms: i64 = 0
        self._window_bytes: i64 = 0
        self._call: Call | None = None
        self._recent = Recent(face.heads)
        self._in_head = False
        self._head_bytes: i64 = 0
        self._fed_bytes: i64 = 0
        self._headers: i64 = 0
        self._fault: HttpFault | None = None
        self._continue = False
        self._deaf = False
        self._linger_until_ms: i64 = 0
        self._linger_bytes: i64 = 0
        self._write_paused = False
        self._began_ms: i64 = 0
        self._seen_ms: i64 = 0
        self._paused_ms: i64 = 0
        # what was done for the peer in this turn, and whether a turn for the rest is on its way
        self._done_bytes: i64 = 0
        self._going_on = False
        self._own: bool | None = None
        # what came behind a request for another protocol, and who speaks that one
        self._upgrading = False
        self._tail = b""
        self._tunnel: Any = None

    # What a transport calls

    def connection_made(self, transport: Any) -> None:
        self.out.transport = transport
        self._seen_ms = self.shard.mono_ms
        if not self.face.add(self, transport):
            self._deaf = True
            self._parser = None

    def connection_lost(self, error: Any) -> None:
        if not self.face.remove(self):
            return
        self._deaf = True
        if self.turn.begin():
            try:
                self._forget_all()
            finally:
                self.turn.end()
        # the parser, the outlet and this object refer to one another
        self._parser = None
        self.out.peer = None
        self.out.transport = None

    def eof_received(self) -> bool:
        """A peer that closed its sending side still gets answers that the journal holds up; it waits for no more."""
        if self._upgrading or not self._calls or not all(call.settled() for call in self._calls if call.begun):
            return False
        self._deaf = True
        self._calls[len(self._calls) - 1].keep = False
        return True

    def pause_writing(self) -> None:
        """The peer does not read its answers: it is not asked for more requests."""
        self._write_paused = True
        self._paused_ms = self.shard.mono_ms
        if self._tunnel is not None:
            # its acknowledgements must get through
            self._tunnel.stalled()
        else:
            self._set_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._tunnel is not None:
            self._tunnel.room()
            return
        self._set_reading()
        for call in self._calls:
            if call.on_room is not None:
                call.on_room()

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._parser is None:
            if self._linger_until_ms:
                self._linger_bytes += len(data)
                if self._linger_bytes > LINGER_MAX_BYTES:
                    self.broken()
            return
        if not self.turn.begin():
            self.broken()
            return
        try:
            if self._upgrading:
                self._pass_on(data)
            else:
                self._receive(data)
        except Exception as error:  # noqa: BLE001 - a defect met by one peer must not reach the others
            if self.face.defect is not None:
                self.face.defect(error, None)
            self.broken()
        finally:
            self.turn.end()

    def made_by_own_user(self) -> bool:
        """Whether the peer, on this machine, is a program of the user who runs the server: a proxy rarely is."""
        if self._own is None:
            self._own = self.face.is_own_user is None or bool(self.face.is_own_user(self.out.transport))
        return self._own

    @property
    def write_paused(self) -> bool:
        return self._write_paused

    # Reading

    def _receive(self, data: bytes) -> None:
        self._seen_ms = self.shard.mono_ms
        self._done_bytes = 0
        taken: i64 = 0 if self._call is not None else self._take_known(data)
        if taken < len(data):
            self._parse(data[taken:] if taken else data)
        arrived = self._arrived
        if arrived:
            self._arrived = []
            for call in arrived:
                self._enqueue(call)
        if self._fault is None and (self._large or self._held_bytes != self._counted_bytes):
            self._count_bodies()
        if self._fault is not None:
            self._refuse(self._fault)

    def _take_known(self, data: bytes) -> i64:
        """Take the requests that `data` begins with, as long as their heads are known and they are whole; how many of
        its bytes that were.
        """
        start: i64 = 0
        while True:
            known = self._recent.find(data, start)
            if known is None:
                return start
            end = start + len(known.text)
            if end + known.body_bytes > len(data):
                return start
            call = Call(self, self._seen_ms)
            call.head = known
            call.method = known.method
            call.url = known.url
            call.headers = known.headers
            start = end + known.body_bytes
            call.body = data[end:start]
            self._held_bytes += known.body_bytes
            self._began_ms = self._seen_ms
            self._arrived.append(call)
            if start == len(data):
                return start

    def _parse(self, data: bytes) -> None:
        first = self._call is None
        if self._in_head or first:
            self._fed_bytes += len(data)
        before = len(self._arrived)
        try:
            self._parser.feed_data(data)
            if self._in_head and self._fed_bytes > HEAD_MAX_BYTES:
                self._fault = too_large_head()
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrading = True
            self._tail = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if self._fault is None:
                self._fault = HttpFault(400, "bad_request", f"this is not HTTP/1.1: {error}")
        if first and self._fault is None and self._call is None and len(self._arrived) == before + 1:
            self._learn(data, self._arrived[before])

    def _learn(self, data: bytes, call: Call) -> None:
        """Know the head of this one request, if it is the second time that it came."""
        size: i64 = len(data) - len(call.body)
        if size <= HEAD_KNOWN_MAX_BYTES:
            self.face.heads.learn(data[:size], call)

    def _count_bodies(self) -> None:
        """Account for the bodies that are held; find a fault if there is no room for them."""
        if self._held_bytes < self._counted_bytes:
            self._pool().give(self._account(), self._counted_bytes - self._held_bytes)
            self._counted_bytes = self._held_bytes
            return
        if not self._owner and self.principal is not None:
            self._settle_account(self.principal.tenant)
        if (self._large or self._part_bytes > VETTED_BYTES) and not self._vet():
            return
        if not self._find_room() and self._vet() and not self._find_room():
            self._fault = HttpFault(503, "busy", "too many request bodies are arriving; try again later")

    def _find_room(self) -> bool:
        more = self._held_bytes - self._counted_bytes
        if more and not self._pool().take(self._account(), more):
            return False
        self._counted_bytes = self._held_bytes
        return True

    def _vet(self) -> bool:
        """Find out on whose account the body is that is arriving, once; False, with a fault, if it is not wanted."""
        self._large = False
        call = self._call
        if self._owner or call is None or self._in_head or call.vetted or self.face.vet is None:
            return True
        call.vetted = True
        try:
            owner: str = self.face.vet(call)
        except RookeryError as error:
            self._fault = HttpFault(error.http, error.code, str(error), error)
            return False
        if owner:
            self._settle_account(owner)
        return True

    def _settle_account(self, owner: str) -> None:
        """What is held is on the account of somebody who is known, from now on."""
        counted = self._counted_bytes
        self._pool().give(self._account(), counted)
        self._owner = owner
        if not self._pool().take(owner, counted):
            self._counted_bytes = 0

    def _pool(self) -> BodyPool:
        return self.face.bodies if self._owner else self.face.unverified

    def _account(self) -> str:
        return self._owner or self.network

    def _pass_on(self, data: bytes) -> None:
        """Hand bytes to the tunnel, or keep them until there is one."""
        data = self._tail + data
        self._tail = b""
        if self._tunnel is not None:
            if data:
                self._tunnel.received(data)
        elif len(data) <= HEAD_MAX_BYTES:
            self._tail = data
        else:
            # nobody sends so much before the other side has agreed
            self.broken()

    def _feed_tail(self) -> None:
        if self._tunnel is not None and not self._deaf:
            self._pass_on(b"")

    def _refuse(self, fault: HttpFault) -> None:
        """Say what was wrong with the request that is being read, after all earlier answers, and listen no more."""
        self._deaf = True
        self._drop_parts()
        call = self._call
        self._call = None
        self._in_head = False
        if call is None:
            call = Call(self, self.shard.mono_ms)
        call.keep = False
        call.refusal = fault
        self.face.refused += 1
        self._enqueue(call)

    def on_message_begin(self) -> None:
        self._call = Call(self, self.shard.mono_ms)
        self._began_ms = self.shard.mono_ms
        self._in_head = True
        self._head_bytes = 0
        self._headers = 0

    def on_url(self, url: bytes) -> None:
        call = self._call
        if call is None:
            return
        call.url += url
        self._head_bytes += len(url)
        if len(call.url) > URL_MAX_BYTES:
            self._stop(HttpFault(414, "uri_too_long", f"the URL is longer than {int(URL_MAX_BYTES)} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        call = self._call
        if call is None:
            return
        self._head_bytes += len(name) + len(value) + 4
        self._headers += 1
        if self._head_bytes > HEAD_MAX_BYTES or self._headers > HEADERS_MAX:
            self._stop(too_large_head())
        if not self._in_head:
            # it stands behind a chunked body (RFC 9110, 6.5.1), and must not pass for one of the head
            return
        name = name.lower()
        if name in call.headers:
            if name == b"host" or name == b"authorization" or name == b"content-length":
                self._stop(HttpFault(400, "bad_request", f"there is more than one {name.decode()} header"))
            value = call.headers[name] + b", " + value
        call.headers[name] = value

    def on_headers_complete(self) -> None:
        call = self._call
        if call is None:
            return
        self._in_head = False
        self._fed_bytes = 0
        method: bytes = self._parser.get_method()
        call.method = METHODS.get(method) or method.decode("latin-1")
        headers = call.headers
        call.keep = self._parser.should_keep_alive()
        # HTTP/1.0 is kept alive only where a Connection header says so; asking for the version takes much longer
        call.old = (not call.keep or b"connection" in headers) and self._parser.get_http_version() != "1.1"
        self._window_ms = self.shard.mono_ms
        self._window_bytes = 0
        length = headers.get(b"content-length")
        if length is not None:
            declared: i64 = int(length)
            if declared > self.face.body_max_bytes:
                self._stop(self._too_large_body())
            self._large = declared > VETTED_BYTES
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            # to take the rest for what was sent would let two servers see two requests
            self._stop(HttpFault(501, "not_implemented", "the only transfer coding understood is chunked, by itself"))
        if coding is not None and call.old:
            # a proxy that speaks HTTP/1.0 has not understood it (RFC 9112, 6.1)
            self._stop(HttpFault(400, "bad_request", "HTTP/1.0 has no transfer codings"))
        if not call.old and b"host" not in headers:
            self._stop(HttpFault(400, "bad_request", "a request needs a Host header"))
        expect = headers.get(b"expect")
        if expect is not None:
            if expect.lower() != b"100-continue":
                self._stop(HttpFault(417, "expectation_failed", "only 100-continue can be expected"))
            if not call.old:
                self._continue = True
                self.turn.expect(self)

    def on_body(self, body: bytes) -> None:
        if self._call is None:
            return
        self._part_bytes += len(body)
        self._held_bytes += len(body)
        self._parts.append(body)
        if len(self._parts) - self._joined >= PARTS_MAX:
            self._parts[self._joined :] = [b"".join(self._parts[self._joined :])]
            self._joined += 1
        self._continue = False
        if self._part_bytes > self.face.body_max_bytes:
            self._stop(self._too_large_body())

    def on_message_complete(self) -> None:
        call = self._call
        if call is None:
            return
        self._call = None
        self._continue = False
        self._large = False
        parts = self._parts
        if parts:
            call.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
            self._joined = 0
            self._part_bytes = 0
        if b"upgrade" in call.headers or call.method == "CONNECT":
            call.upgrading = self._parser.should_upgrade()
            call.keep = call.keep and not call.upgrading
        self._arrived.append(call)

    def _stop(self, fault: HttpFault) -> None:
        self._fault = fault
        raise fault

    def _too_large_body(self) -> HttpFault:
        return HttpFault(413, "message_too_large", f"the body is larger than {int(self.face.body_max_bytes)} bytes")

    def _drop_parts(self) -> None:
        self._held_bytes -= self._part_bytes
        self._parts = []
        self._joined = 0
        self._part_bytes = 0

    def _set_reading(self) -> None:
        """Read, unless the peer has too many answers to come or does not take them."""
        if self._write_paused or len(self._calls) >= CALLS_MAX:
            self.out.pause(UNREAD)
        else:
            self.out.resume(UNREAD)

    # Answering

    def _enqueue(self, call: Call) -> None:
        free = not self._calls or self._calls[len(self._calls) - 1].settled()
        self._calls.append(call)
        if free and self._done_bytes < TURN_MAX_BYTES:
            self._begin(call)
        elif free:
            self._go_on_later()
        if len(self._calls) >= CALLS_MAX:
            self._set_reading()

    def _begin(self, call: Call) -> None:
        call.begun = True
        self.turn.expect(self)
        if call.refusal is None and not call.ready:
            self.face.handle(call)
        elif call.refusal is not None:
            self.face.resume(call, None)
        size: i64 = len(call.body)
        self._held_bytes -= size
        self._done_bytes += CALL_COST_BYTES + size + len(call.content)
        call.body = b""

    def _go_on_later(self) -> None:
        if not self._going_on:
            self._going_on = True
            self.face.later(0, self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        self._done_bytes = 0
        if self._calls:
            self.turn.expect(self)

    def finish(self) -> bool:
        """Send the answers that are there, in order; True when the next one waits for the journal."""
        if self._tunnel is not None:
            return self._finish_tunnel()
        calls = self._calls
        sent: i64 = 0
        waits = False
        while sent < len(calls):
            call = calls[sent]
            if not call.begun:
                if self._done_bytes >= TURN_MAX_BYTES:
                    self._go_on_later()
                    break
                self._begin(call)
            if call.poll is not None:
                call.poll()
            if not call.ready:
                break
            if call.batch:
                log = self.shard.log
                if log.failure is not None:
                    self.face.resume(call, log.failure)
                elif call.batch > log.durable:
                    waits = True
                    break
                call.batch = 0
            if call.then is not None:
                then = call.then
                call.then = None
                call.ready = False
                self.face.resume(call, then)
                continue
            if not self._send(call):
                break
            sent += 1
            if not call.keep:
                self._forget(calls[sent:])
                calls = []
                break
        if sent:
            self._calls = calls[sent:] if sent < len(calls) else []
            self._seen_ms = self.shard.mono_ms
            if self.out.paused:
                self._set_reading()
        if self._held_bytes < self._counted_bytes:
            self._count_bodies()
        if self._continue and not self._calls:
            self._continue = False
            self.out.w.write(CONTINUE)
            self.out.touch()
        return self._finish_tunnel() or waits

    def _finish_tunnel(self) -> bool:
        return self._tunnel is not None and bool(self._tunnel.finish())

    def _send(self, call: Call) -> bool:
        """Write an answer, or as much of it as there is; whether it is whole."""
        keep = call.keep and not self.face.closing
        out = self.out
        if call.tunnel is not None:
            self._change(call)
            return True
        if call.streaming:
            if not call.head_sent:
                call.keep = keep and not call.old
                call.head_sent = True
                out.w.write(render(call, self.shard.wall_ms, call.keep))
                out.touch()
            if call.content and call.method != "HEAD":
                out.w.write(call.content if call.old else chunk(call.content))
                call.content = b""
                out.touch()
            if not call.ended and call.method != "HEAD":
                return False
            if not call.old and call.method != "HEAD":
                out.w.write(CHUNK_END)
        else:
            call.keep = keep
            write_head(out.w, call, self.shard.wall_ms, keep)
            if call.method != "HEAD" and call.status != 204 and call.status != 304:
                content = call.content
                size: i64 = len(content)
                if size >= SPLICE_BYTES:
                    out.splice(content, size)
                else:
                    out.w.write(content)
        out.touch()
        self._tell(call)
        call.connection = None
        if not call.keep:
            self._deaf = True
            if call.refusal is None or self.face.closing:
                out.close()
            else:
                self._linger_until_ms = self.shard.mono_ms + LINGER_MAX_MS
                out.end()
        return True

    def _change(self, call: Call) -> None:
        """Agree to another protocol. What came behind the request is for the turn after this one."""
        self.out.w.write(render(call, self.shard.wall_ms, True))
        self.out.touch()
        self._tell(call)
        call.undo = None
        self._tunnel = call.tunnel
        # the tunnel holds the call
        call.tunnel = None
        self.out.resume(UNREAD)
        self._tunnel.opened()
        if self.face.closing:
            self._tunnel.close()
        if self._tail:
            self.face.later(0, self._feed_tail)

    def _tell(self, call: Call) -> None:
        """Whoever watches learns of an answer."""
        if call.status >= self.face.told_from:
            self.face.done(call)
        if call.span is not None:
            self.face.spans.end(call)

    # The end

    def _forget(self, calls: list[Call]) -> None:
        """The peer will not hear the answers to these."""
        for call in calls:
            if not call.begun:
                self._held_bytes -= len(call.body)
            undo = call.undo
            call.undo = None
            call.connection = None
            if undo is not None:
                undo()
            if call.span is not None:
                self.face.spans.end(call)

    def _forget_all(self) -> None:
        calls = self._calls
        self._calls = []
        self._forget(calls)
        tunnel = self._tunnel
        self._tunnel = None
        if tunnel is not None:
            tunnel.lost()
        for call in self._arrived:
            self._held_bytes -= len(call.body)
        self._arrived = []
        self._drop_parts()
        if self._counted_bytes:
            self._count_bodies()

    def broken(self) -> None:
        self._deaf = True
        if self.out.transport is not None:
            self.out.transport.abort()

    def uncork(self) -> None:
        if self._tunnel is not None:
            self._tunnel.room()
        for call in self._calls:
            if call.on_room is not None:
                call.on_room()

    def dismiss(self, why: i64, reason: str) -> None:
        """At a shutdown what is under way is answered first; HTTP has no word for anything else."""
        if why == SHUTDOWN:
            self.close_when_done()
        else:
            self.broken()

    def close_when_done(self) -> None:
        """Answer what is under way, and close then; a connection that asks for nothing is closed now."""
        if self._tunnel is not None:
            self._tunnel.close()
            return
        for call in self._calls:
            if call.streaming:
                # it would go on for as long as its reader likes
                call.cancel()
        if not self._calls and self._call is None:
            self._deaf = True
            self.out.close()

    def recheck(self, still_valid: Any, everyone: bool) -> None:
        """End the calls that wait with a credential which is no longer good. The connection itself may go on: each
        request shows its credential.
        """
        if self._tunnel is not None:
            self._tunnel.recheck(still_valid)
        for call in self._calls:
            principal = call.principal
            if call.undo is None or principal is None or not (everyone or principal.expires_ms is not None):
                continue
            if not still_valid(principal):
                call.cancel()

    def tick(self, now_ms: i64) -> None:
        """End what takes too long."""
        now = now_ms
        if self._write_paused:
            if now - self._paused_ms > STALL_MAX_MS * 4:
                self.broken()
        elif self._linger_until_ms:
            if now >= self._linger_until_ms:
                self.out.close()
        elif self._tunnel is not None:
            # whose own business time is
            return
        elif self._call is not None and not self._deaf:
            if self.out.paused:
                # it is not for the peer to hurry
                self._seen_ms = now
                self._window_ms = now
                return
            late = self._is_late(now)
            if late or now - self._seen_ms > STALL_MAX_MS or now - self._began_ms > REQUEST_MAX_MS:
                self._refuse(HttpFault(408, "request_timeout", "the request took too long to arrive"))
        elif not self._calls and now - self._seen_ms > (IDLE_MAX_MS if self._began_ms else self.face.handshake_ms):
            self._deaf = True
            self.out.close()

    def _is_late(self, now: i64) -> bool:
        """Whether a head is not there in time, or a body comes too slowly."""
        if self._in_head:
            return now - self._began_ms > self.face.handshake_ms
        if now - self._window_ms <= STALL_MAX_MS:
            return False
        slow = self._part_bytes - self._window_bytes < BODY_WINDOW_MIN_BYTES
        self._window_ms = now
        self._window_bytes = self._part_bytes
        return slow


def too_large_head() -> HttpFault:
    return HttpFault(431, "head_too_large", f"the head of the request is larger than {int(HEAD_MAX_BYTES)} bytes")

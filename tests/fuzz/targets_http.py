"""HTTP: requests and answers, URLs, credentials, tokens, and bodies that publish."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import random
from typing import Any

import msgspec

from rookery.client.answers import error_of
from rookery.clock import ManualClock
from rookery.core.access import Access
from rookery.core.definitions import plain_table
from rookery.errors import InvalidArgument, RookeryError, Unauthenticated
from rookery.format import properties
from rookery.webhooks import calls, network
from rookery.webhooks.network import CallFailed
from rookery.wire.api import bodies
from rookery.wire.http import routes
from rookery.wire.http.answers import BrokenAnswer, Incoming
from rookery.wire.http.auth import Gatekeeper, forwarded, is_loopback_name
from rookery.wire.http.call import JSON, Call
from rookery.wire.http.connection import HttpConnection, HttpFace
from rookery.wire.http.routes import Router, encode_json, parse_query
from rookery.wire.http.tokens import Tokens
from rookery.wire.turn import Turn
from tests.fuzz.target import Target, pieces, words
from tests.wire.amqp_peer import Driver, Transport

NOW_MS = 1_800_000_000_000


class Face:
    """An HTTP face that answers each call at once, and notes it."""

    def __init__(self) -> None:
        self.driver = Driver(ManualClock())
        self.calls: list[tuple[object, ...]] = []
        self.defects: list[BaseException] = []
        self.face = HttpFace(Turn(self.driver, lambda: None), self._handle, "x")
        self.face.resume = self._resume
        self.face.defect = lambda error, _call: self.defects.append(error)

    def _handle(self, call: Call) -> None:
        parse = (call.method, call.url, dict(call.headers), call.body, call.old, call.upgrading)
        self.calls.append(parse)
        call.answer(200, b"", JSON)

    def _resume(self, call: Call, _event: object) -> None:
        fault = call.refusal
        assert fault is not None
        # of several faults, which one is met first depends on how the bytes came
        self.calls.append((fault.status,))
        call.answer(fault.status, b"", JSON)

    def connect(self) -> HttpConnection:
        connection = HttpConnection(self.face)
        transport = Transport()
        transport.get_extra_info = lambda *_: None  # type: ignore[attr-defined]
        connection.connection_made(transport)
        return connection

    def feed(self, data: bytes, step: int) -> list[tuple[object, ...]]:
        """What a new connection makes of these bytes."""
        self.calls = []
        connection = self.connect()
        for piece in pieces(data, step):
            connection.data_received(piece)
        connection.connection_lost(None)
        assert not self.defects, self.defects
        assert not self.face.connections
        assert self.face.body_bytes == 0, self.face.body_bytes
        return self.calls


class Requests(Target):
    """The same requests and the same refusal, whole, in pieces, and when their heads are known already."""

    tokens = (
        b"GET / HTTP/1.1\r\n",
        b"POST /x HTTP/1.1\r\n",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"HTTP/1.0",
        b"\r\n\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )

    def make(self, rng: random.Random) -> bytes:
        return b"".join(self._one(rng) for _ in range(rng.randrange(1, 4)))

    def _one(self, rng: random.Random) -> bytes:
        body = rng.randbytes(rng.randrange(12))
        method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"))
        head = f"{method} /a/b?c={rng.randrange(9)} HTTP/1.1\r\nHost: localhost\r\nX-{rng.randrange(3)}: y\r\n".encode()
        if rng.random() < 0.4:
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in pieces(body, 3))
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)

    def check(self, data: bytes) -> None:
        face = Face()
        whole = face.feed(data, len(data) or 1)
        assert face.feed(data, 1) == whole
        assert Face().feed(data, 1) == whole
        assert Face().feed(data, 5) == whole
        for _ in range(2):
            assert face.feed(data, len(data) or 1) == whole


class Urls(Target):
    """Paths and queries: the first line is the path, the rest the query."""

    tokens = (b"%", b"%00", b"%2F", b"%C3%A9", b"%ff", b"+", b"&", b"=", b"?", b"#", b"/queues/", b"../", b"\xc3\xa9")

    def __init__(self) -> None:
        self._router = Router(None, lambda _error, _call: None)

        def handler(call: Call, name: str = "", count: int = 1) -> None:
            """Nothing."""

        for template in ("/queues/{name}", "/queues/{name}/messages", "/topics/{name}/x/{count}", "/"):
            self._router.add("GET POST", template, handler, {200: None}, "server.health")

    def make(self, rng: random.Random) -> bytes:
        path = rng.choice(("/queues/", "/topics/", "/")) + rng.choice(("a", "a%20b", "%C3%A9", "x/x/1", "a/messages"))
        query = "&".join(f"{words(rng, 4)}={words(rng, 6)}" for _ in range(rng.randrange(4)))
        return path.encode() + b"\n" + query.encode("utf-8", "replace")

    def check(self, data: bytes) -> None:
        path, _, query = data.partition(b"\n")
        for work in (
            lambda: self._router.find("GET", path),
            lambda: self._router.find("PUT", path + b"?" + query),
            lambda: parse_query(query),
        ):
            try:
                found: Any = work()
            except RookeryError as error:
                encode_json(str(error))
                continue
            if isinstance(found, dict):
                for name, value in found.items():
                    (name + value).encode()
        is_loopback_name(data.decode("latin-1"))


class Credentials(Target):
    """Headers that say who asks: lines of `name: value`."""

    tokens = (
        b"authorization: Basic ",
        b"authorization: Bearer ",
        b"authorization: ApiKey ",
        b"sec-websocket-protocol: rookery.v1, ",
        b"host: localhost:1",
        b"host: [::1]:80",
        b"origin: http://a",
        b"x-forwarded-for: 1.2.3.4",
        b"Z3Vlc3Q6Z3Vlc3Q=",
        b"rk_",
        b"..",
    )

    def __init__(self) -> None:
        self._access = Access(lambda size: bytes(size))
        self._face = Face()
        self._connection = self._face.connect()
        self._connection.loopback = True
        self._gatekeepers = [
            Gatekeeper(self._access, ManualClock(), open_to_all=open_to_all, tokens=Tokens.by_secret("s" * 32))
            for open_to_all in (False, True)
        ]
        for gatekeeper in self._gatekeepers:
            gatekeeper.verify = lambda _peer, _user, _check, _done: None

    def make(self, rng: random.Random) -> bytes:
        basic = base64.b64encode(f"{words(rng)}:{words(rng)}".encode())
        values = [b"authorization: Basic " + basic, b"authorization: Bearer rk_abc_" + basic, *self.tokens]
        return b"\n".join(rng.sample(values, 3))

    def check(self, data: bytes) -> None:
        for gatekeeper in self._gatekeepers:
            call = Call(self._connection, 0)
            call.upgrading = b"websocket" in data
            call.route = _Route()
            for line in data.split(b"\n"):
                name, _, value = line.partition(b":")
                call.headers[name.strip().lower()] = value.strip()
            self._connection.credential = b""
            try:
                gatekeeper.identify(call, lambda _call: None)
            except RookeryError as error:
                encode_json(str(error))
            forwarded(call)


class _Route:
    """A route that needs a credential, and changes something."""

    open = False
    errors = None
    changes = True


class WebTokens(Target):
    """A token as it is, or, behind a byte 0, its header and payload on two lines, signed with the right key."""

    tokens = (
        b'"alg":"HS256"',
        b'"alg":"none"',
        b'"exp":1',
        b'"aud":"x"',
        b'"sub":"a"',
        b'"rights":{',
        b'"kid":"k"',
        b"[",
    )
    _SECRET = "s" * 32

    def __init__(self) -> None:
        self._tokens = [Tokens.by_secret(self._SECRET), Tokens.by_secret(self._SECRET, "x")]

    def make(self, rng: random.Random) -> bytes:
        claims: dict[str, Any] = {"sub": words(rng), "exp": rng.choice((1, 4_000_000_000, 1e300, -5, "x"))}
        claims |= rng.choice(({}, {"aud": "x"}, {"aud": ["x", 3]}, {"tenant": "t", "admin": True}, {"nbf": "q"}))
        claims |= rng.choice(({}, {"rights": {"configure": "^a", "write": ".*", "read": ""}}, {"rights": [1]}))
        header: dict[str, Any] = {"alg": rng.choice(("HS256", "HS256", "none", "RS256")), "typ": "JWT"}
        header |= rng.choice(({}, {"kid": "k"}, {"kid": 5}, {"b64": False, "crit": ["b64"]}))
        both = json.dumps(header).encode(), json.dumps(claims).encode()
        return b"\0" + b"\n".join(both) if rng.random() < 0.7 else self._signed(*both)

    def _signed(self, header: bytes, claims: bytes) -> bytes:
        signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, claims))
        digest = hmac.digest(self._SECRET.encode(), signed, hashlib.sha256)
        return signed + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")

    def check(self, data: bytes) -> None:
        if data[:1] == b"\0":
            header, _, claims = data[1:].partition(b"\n")
            data = self._signed(header, claims)
        for tokens in self._tokens:
            try:
                tokens.principal(data.decode("latin-1"), NOW_MS)
            except Unauthenticated:
                pass


_KINDS = (
    "application/json",
    "application/x-ndjson",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/x-rookery-packed",
    "text/plain",
    "",
)


class Publishes(Target):
    """Bodies that publish, behind a byte for their type. What is accepted has properties that every face can read."""

    tokens = (
        b'{"message":',
        b'"message_base64":"AA=="',
        b'"headers":{"a":',
        b'"idempotency_key":"',
        b'"delay_ms":',
        b'"specversion":"1.0"',
        b'"data_base64":"',
        b'"time":"2026-01-01T00:00:00Z"',
        b"[[[[[[[[",
        b'"\\ud800"',
        b"1e999",
        b"123456789012345678901234567890",
        b"\xff",
        b"ce-specversion: 1.0\n",
    )

    def __init__(self) -> None:
        self._connection = Face().connect()

    def make(self, rng: random.Random) -> bytes:
        kind = rng.randrange(8)
        item: dict[str, Any] = {"message": json_value(rng, 0), "priority": rng.randrange(9)}
        item |= rng.choice(
            ({}, {"headers": {words(rng): json_value(rng, 3)}}, {"delay_ms": 5, "ttl_ms": 7}, {"key": "k"})
        )
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": json_value(rng, 0)}
        event |= rng.choice(({}, {"time": "2026-01-01T00:00:00Z"}, {"datacontenttype": "text/plain"}, {"n": 1 << 70}))
        props = properties.encode(properties.Properties(headers={"a": 1}))
        body: bytes
        if kind == 0:
            body = encode_json(rng.choice((item, [item, item])))
        elif kind == 1:
            body = encode_json(item) + b"\n" + encode_json(item)
        elif kind in (2, 3):
            body = json.dumps(event if kind == 2 else [event]).encode()
        elif kind == 4:
            body = msgspec.msgpack.encode([[props, b"body"], [props, b"x", rng.randrange(99)]])
        elif kind == 7:
            body = b"ce-specversion: 1.0\nce-id: 1\nce-source: /s\nce-type: t\nx-header-a: b\n\nbody"
        else:
            body = words(rng, 40).encode()
        return bytes([kind]) + body

    def check(self, data: bytes) -> None:
        kind = data[0] % 8 if data else 0
        body = data[1:]
        call = Call(self._connection, 0)
        if kind == 7:
            head, _, body = body.partition(b"\n\n")
            for line in head.split(b"\n"):
                name, _, value = line.partition(b":")
                call.headers[name.strip().lower()] = value.strip()
        else:
            call.headers[b"content-type"] = _KINDS[kind].encode()
        try:
            found = bodies.read(call, body, NOW_MS)
        except RookeryError as error:
            encode_json(str(error))
            return
        for each in found.all():
            headers = properties.decode(each.props).headers or {}
            encode_json(plain_table(headers))
            assert isinstance(each.body, bytes)
            try:
                each.row("key", True)
            except InvalidArgument:
                pass


def json_value(rng: random.Random, depth: int) -> Any:
    """A value as JSON has it."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 6:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind > 6:
        return {words(rng): json_value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return (None, True, rng.randrange(-(1 << 40), 1 << 40), rng.random(), words(rng), "é😀")[kind]


class Answers(Target):
    """Answers as the client reads them: the same whole and in pieces, or broken in both."""

    tokens = (
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.0 204\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b'{"code":"queue_not_found","message":"x","argument":"q"}',
    )

    def make(self, rng: random.Random) -> bytes:
        body = rng.choice((b"", b"abc", self.tokens[-1], b'{"code":[1]}'))
        head = b"HTTP/1.1 %d X\r\nX-A: b\r\n" % rng.choice((200, 201, 404, 503))
        if rng.random() < 0.4:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + body
        return rng.choice((b"", self.tokens[1])) + head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)

    def check(self, data: bytes) -> None:
        whole = self._read(data, len(data) or 1)
        for step in (1, 7):
            assert self._read(data, step) == whole
        error_of(500, data)

    def _read(self, data: bytes, step: int) -> tuple[object, ...] | None:
        incoming = Incoming()
        content = b""
        behind = b""
        try:
            for piece in pieces(data, step):
                if incoming.done:
                    behind += piece if incoming.behind is not None else b""
                    continue
                incoming.feed(piece)
                content += incoming.take()
        except BrokenAnswer:
            return None
        if not incoming.head_done:
            return ()
        answer = (incoming.status, incoming.headers, content, incoming.done)
        return (*answer, None if incoming.behind is None else incoming.behind + behind)


class Endpoints(Target):
    """Answers of endpoints that webhooks call, with their Retry-After and Location: the same whole and in pieces."""

    tokens = (
        *Answers.tokens[:-1],
        b"Retry-After: 5\r\n",
        b"Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n",
        b"Location: https://example.com/x\r\n",
        b"Location: //[::1/\r\n",
    )

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.close()

    def make(self, rng: random.Random) -> bytes:
        extra = rng.choice((b"", *self.tokens[-4:]))
        head = b"HTTP/1.1 %d X\r\n" % rng.choice((200, 302, 410, 429, 503)) + extra
        return head + b"Content-Length: 3\r\n\r\nabc" + rng.choice((b"", b"HTTP/1.1 200 X\r\n\r\n"))

    def check(self, data: bytes) -> None:
        whole = self._loop.run_until_complete(self._read(data, len(data) or 1))
        assert self._loop.run_until_complete(self._read(data, 1)) == whole
        if whole is None:
            return
        assert len(whole.content) <= network.CONTENT_MAX_BYTES
        wait_ms = calls._wait_ms(whole.headers.get(b"retry-after"), NOW_MS / 1000)
        assert 0 <= wait_ms <= calls.RETRY_AFTER_MAX_MS
        try:
            calls._redirected("http://example.com/a", whole.headers.get(b"location", b"").decode("latin-1"))
        except (RookeryError, CallFailed):
            pass

    async def _read(self, data: bytes, step: int) -> network.Answer | None:
        connection = network._Connection()
        transport = Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        asked = asyncio.ensure_future(connection.ask(b""))
        await asyncio.sleep(0)
        for piece in pieces(data, step):
            if transport.closed:
                break
            connection.data_received(piece)
        connection.connection_lost(None)
        try:
            return await asked
        except CallFailed:
            return None


class JsonBodies(Target):
    """JSON that requests and frames of operations bring, behind a byte for its type."""

    tokens = (
        b"[" * 50,
        b'{"a":' * 50,
        b'"op":"settle"',
        b'"outcome":"ack"',
        b'"ref":',
        b"1e400",
        b"\xed\xa0\x80",
        b"\\u0000",
    )

    def __init__(self) -> None:
        from rookery.wire.api import shapes as api_shapes
        from rookery.wire.api import transactions
        from rookery.wire.api.compat import legacy
        from rookery.wire.push import ops

        shapes = [kind for kind in vars(api_shapes).values() if isinstance(kind, type)]
        shapes = [kind for kind in shapes if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct]
        self._types: list[Any] = [
            transactions.Work,
            ops.Operation,
            legacy.LegacyPublish,
            dict[str, Any],
            Any,
            *sorted(shapes, key=lambda kind: kind.__name__),
        ]
        self._decoders = [msgspec.json.Decoder(kind).decode for kind in self._types]
        self._ref_of = ops.ref_of

    def make(self, rng: random.Random) -> bytes:
        made: Any = json_value(rng, 0)
        at = rng.randrange(len(self._types))
        fields = [*getattr(self._types[at], "__struct_fields__", ()), "op", "ref"]
        if fields and rng.random() < 0.8:
            made = {rng.choice(fields): json_value(rng, 1) for _ in range(3)}
        return bytes([at]) + msgspec.json.encode(made)

    def check(self, data: bytes) -> None:
        decode = self._decoders[(data[0] if data else 0) % len(self._decoders)]
        self._ref_of(data[1:])
        try:
            found = routes.decode_json(decode, data[1:])
        except InvalidArgument as error:
            encode_json(str(error))
            return
        encode_json(found)

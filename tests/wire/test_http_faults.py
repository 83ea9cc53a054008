"""What HTTP says when things go wrong below it, and that no request, however odd, harms the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rookery.clock import SystemClock
from rookery.core.access import Access
from rookery.core.shard import Shard
from rookery.errors import StoreFailed
from rookery.wire.http.auth import Gatekeeper
from rookery.wire.http.connection import LINGER_MAX_BYTES, LINGER_MAX_MS, HttpFace
from rookery.wire.http.routes import Router
from rookery.wire.turn import Turn
from tests.wire.http_world import ADMIN, World, request, world

AUTH = {"Authorization": f"Bearer {ADMIN}"}
PUBLISH = "/api/v1/queues/q/publish"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("faults")) as made:
        yield made


def hold(web: World, held: bool) -> None:
    """Let the journal take nothing for a while, as a slow disk does."""

    def work(server: Any) -> None:
        journal = server.engine.journal
        if held:
            journal.pump = lambda: None
        else:
            del journal.pump

    web.inside(work)


def test_an_answer_waits_for_the_journal(tmp_path: Path) -> None:
    """Publishes, acks and new keys are answered when they are written; what only reads is not held up by it."""
    with world(tmp_path, store_backend="journal") as web:
        web.admin.post(PUBLISH, json={"message": 1})
        tag = web.admin.post("/api/v1/queues/q/pull").json()["delivery_tag"]
        hold(web, True)
        body = json.dumps({"message": 2}).encode()
        ack = json.dumps({"delivery_tag": tag}).encode()
        raws = [web.connect() for _ in range(3)]
        raws[0].send(request("POST", PUBLISH, body, **AUTH))
        raws[1].send(request("POST", "/api/v1/queues/q/ack", ack, **AUTH))
        raws[2].send(request("GET", "/create_key?tenant=new"))
        while web.admin.get("/api/v1/queues/q/stats").json()["published"] < 2:
            pass
        while not web.inside(lambda s: "new" in s.engine.shard.tenants):
            pass
        while web.admin.get("/api/v1/queues/q/stats").json()["acked"] < 1:
            pass
        for raw in raws:
            raw.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                raw.sock.recv(1)
            raw.sock.settimeout(30)
        hold(web, False)
        web.admin.post(PUBLISH, json={"message": 3})
        assert [raw.answer()[0] for raw in raws] == [201, 200, 200]
        for raw in raws:
            raw.__exit__()


def test_when_the_journal_fails_nothing_is_confirmed(tmp_path: Path) -> None:
    with world(tmp_path, store_backend="journal") as web:
        web.admin.post(PUBLISH, json={"message": 1})
        hold(web, True)
        with web.connect() as raw:
            raw.send(request("POST", PUBLISH, json.dumps({"message": 2}).encode(), **AUTH))
            while web.admin.get("/api/v1/queues/q/stats").json()["published"] < 2:
                pass

            def fail(server: Any) -> None:
                log = server.engine.shard.log
                log.failure = StoreFailed("the disk is gone")
                log.refuse(log.failure)

            web.inside(fail)
            # any later turn tells those who wait
            refused = web.admin.post(PUBLISH, json={"message": 3})
            assert (refused.status_code, refused.json()["code"]) == (503, "store_failed")
            status, headers, content = raw.answer()
            assert (status, json.loads(content)["code"]) == (503, "store_failed")
            assert headers["retry-after"] == "1"

        def mend(server: Any) -> None:
            server.engine.shard.log.failure = None
            server.engine.shard.log.accept()

        web.inside(mend)
        hold(web, False)


def test_publishers_are_told_to_come_back_when_memory_is_short(tmp_path: Path) -> None:
    with world(tmp_path, store_backend="journal", memory_max_bytes="100000") as web:
        body = {"message": "x" * 8_000}
        answers: list[httpx.Response] = []
        while not answers or (answers[-1].status_code == 201 and len(answers) < 100):
            answers.append(web.admin.post(PUBLISH, json=body))
            web.admin.post("/api/v1/queues/q/pull")  # what is leased stays in memory
        assert (answers[-1].status_code, answers[-1].json()["code"]) == (503, "memory_limit_exceeded")
        assert answers[-1].headers["retry-after"] == "1"
        assert web.admin.get("/api/v1/queues/q/stats").status_code == 200


# Odd requests


class Transport:
    """Takes bytes, as a transport does."""

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False
        self.ended = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.sent += b"".join(bytes(part) for part in parts)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class Engine:
    def __init__(self) -> None:
        self.shard = Shard(b"\x00" * 16, 1)
        self.shard.turn(1_700_000_000_000, 1_000_000)

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


def face(defects: list[BaseException], verify: Callable[..., None] | None = None) -> HttpFace:
    """A face without a server. Passwords are given to `verify`."""
    clock = SystemClock()
    access = Access(lambda n: b"\x01" * n)
    gatekeeper = Gatekeeper(access, clock, open_to_all=True)
    router = Router(gatekeeper, lambda error, call: defects.append(error))
    gatekeeper.fail = router.fail
    gatekeeper.verify = verify
    router.add("GET", "/echo/{name}", _echo, {200: dict}, "session")
    router.add("POST", "/size", _size, {200: int}, "session")
    made = HttpFace(Turn(Engine(), lambda: None), router.handle, "test")
    made.resume = router.resume
    made.defect = lambda error, call: defects.append(error)
    made.body_max_bytes = 1_000
    return made


def _echo(call: Any, name: str) -> dict[str, str]:
    return {"name": name}


def _size(call: Any, body: bytes) -> int:
    return len(body)


PIECES = st.sampled_from(
    [
        b"GET /echo/a HTTP/1.1\r\n",
        b"POST /size HTTP/1.1\r\n",
        b"OPTIONS * HTTP/1.1\r\n",
        b"HEAD /echo/%41 HTTP/1.0\r\n",
        b"Host: localhost\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"Authorization: Basic Og==\r\n",
        b"X-Request-ID: \xff\r\n",
        b"\r\n",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"\x00",
    ]
)


@given(st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=30), st.integers(1, 50))
@example([b"HEAD /echo/%41 HTTP/1.0\r\n", b"Authorization: Basic Og==\r\n", b"\r\n"], 1)
@settings(max_examples=200)
def test_no_bytes_whatsoever_are_a_defect(pieces: list[bytes], step: int) -> None:
    """Fed in steps of any size, the same bytes get the same answers, no defect, and nothing stays behind."""
    data = b"".join(pieces)
    answers = []
    slow: list[tuple[Any, Any]] = []
    for size in (len(data) or 1, step):
        defects: list[BaseException] = []
        http = face(defects, lambda peer, user, check, done: slow.append((check, done)))
        transport = Transport()
        connection: Any = http.connect()
        connection.connection_made(transport)
        for at in range(0, len(data), size):
            connection.data_received(data[at : at + size])
            while slow:
                check, done = slow.pop()
                check.run()
                done("checked")
        assert not defects
        assert b"HTTP/1.1 5" not in transport.sent
        answers.append([line.split()[1] for line in transport.sent.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")])
        connection.connection_lost(None)
        assert http.body_bytes == 0
        assert not http.connections
    whole, pieces_of_it = ([status for status in each if status != b"100"] for each in answers)
    assert whole == pieces_of_it


def test_what_comes_behind_a_refused_request_is_thrown_away_for_a_while() -> None:
    head = b"POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n"
    http = face([])
    transports = Transport(), Transport()
    connections: list[Any] = [http.connect() for _ in transports]
    sending, silent = connections
    for connection, transport in zip(connections, transports, strict=True):
        connection.connection_made(transport)
        connection.data_received(head)
        assert transport.sent.startswith(b"HTTP/1.1 413 ")
        assert transport.ended and not transport.closed
    piece = bytes(1 << 20)
    for _ in range(LINGER_MAX_BYTES // len(piece)):
        sending.data_received(piece)
    assert not transports[0].closed
    sending.data_received(b"x")
    assert transports[0].closed
    for ms, closed in ((LINGER_MAX_MS - 1, False), (LINGER_MAX_MS, True)):
        http.turn.shard.turn(1_700_000_000_000, 1_000_000 + int(ms))
        http.turn.begin()
        http.tick()
        http.turn.end()
        assert transports[1].closed == closed
    assert silent.out.size() == 0


JSON_BODIES = st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)


@given(
    st.sampled_from(["POST", "PUT", "GET", "DELETE"]),
    st.text(max_size=40),
    st.one_of(st.binary(max_size=60), JSON_BODIES),
)
@settings(max_examples=60)
def test_no_request_is_a_defect(web: World, method: str, name: str, body: bytes) -> None:
    """Any name and any body: a clear answer, and never a 500."""
    quoted = "".join(f"%{byte:02X}" for byte in name.encode("utf-8", "replace"))
    paths = (f"/api/v1/queues/{quoted}/publish", f"/api/v1/topics/{quoted}", "/keys", f"/publish?queue={quoted}")
    for path in paths:
        answer = web.admin.request(method, path, content=body)
        assert answer.status_code < 500, answer.text
        assert answer.json() is not None

"""HTTP itself: framing, order, limits, and what is said when a request is wrong."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.http_world import ADMIN, World, request, world

AUTH = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("http")
    with world(folder, cors_origins="https://good.example", http_body_max_bytes="64KiB") as made:
        yield made


def post(path: str, value: object, **headers: str) -> bytes:
    return request("POST", path, json.dumps(value).encode(), Content_Type="application/json", **AUTH, **headers)


def test_a_connection_is_kept_and_answers_come_in_order(web: World) -> None:
    with web.connect() as raw:
        for _ in range(3):
            raw.send(request("GET", "/health"))
            status, headers, content = raw.answer()
            assert (status, headers["content-type"]) == (200, "application/json")
            assert json.loads(content)["status"] == "ok"
        many = [post("/api/v1/queues/order/publish", {"message": n}) for n in range(300)]
        raw.send(b"".join(many) + request("GET", "/nothing"))
        answers = [raw.answer() for _ in range(301)]
    assert [status for status, _, _ in answers] == [201] * 300 + [404]
    pulled = web.admin.post("/api/v1/queues/order/pull", params={"max": 300}).json()["messages"]
    assert [each["message"] for each in pulled] == list(range(300))
    ids = [json.loads(content)["message_id"] for _, _, content in answers[:-1]]
    assert ids == [each["message_id"] for each in pulled]


def test_heads_that_come_again_are_known(web: World) -> None:
    """Also when two requests take turns, as pulls and acks do, and in a read with others or without its end."""
    one = request("GET", "/health", X_Turn="one")
    other = post("/api/v1/queues/turns/publish", {"message": 1}, X_Turn="other")
    ending = request("GET", "/health", X_Turn="one", Connection="close")
    find = web.face.heads.find
    assert not find(one, 0)
    with web.connect() as raw:
        for _ in range(4):
            for each, status in ((one, 200), (other, 201)):
                raw.send(each)
                assert raw.answer()[0] == status
        raw.send(one + other + other + one[:20], one[20:] + other[:-3], other[-3:])
        assert [raw.answer()[0] for _ in range(5)] == [200, 201, 201, 200, 201]
    for _ in range(3):
        with web.connect() as raw:
            raw.send(ending)
            assert raw.answer()[1]["connection"] == "close"
    known = [find(each, 0) for each in (one, other, ending)]
    assert [each and (each.url, each.body_bytes) for each in known] == [
        (b"/health", 0),
        (b"/api/v1/queues/turns/publish", len(b'{"message": 1}')),
        None,
    ]
    assert find(one + other, len(one)) is known[1]
    assert find(one[:-1], 0) is None


def test_a_request_may_come_byte_by_byte_and_with_a_tail(web: World) -> None:
    one = post("/api/v1/queues/pieces/publish", {"message": {"n": 1}})
    with web.connect() as raw:
        for at in range(len(one)):
            raw.send(one[at : at + 1])
        assert raw.answer()[0] == 201
        raw.send(one + one[:40])
        assert raw.answer()[0] == 201
        raw.send(one[40:])
        assert raw.answer()[0] == 201


def test_a_body_may_come_in_chunks(web: World) -> None:
    body = json.dumps({"message": "x" * 1000}).encode()
    head = request("POST", "/api/v1/queues/chunks/publish", Transfer_Encoding="chunked", **AUTH)
    with web.connect() as raw:
        raw.send(head, b"%x\r\n%b\r\n" % (100, body[:100]), b"%x;a=b\r\n%b\r\n" % (len(body) - 100, body[100:]))
        raw.send(b"0\r\nTrailer: x\r\n\r\n")
        assert raw.answer()[0] == 201
    assert web.admin.post("/api/v1/queues/chunks/pull").json()["message"] == "x" * 1000


def test_what_waits_holds_up_what_is_behind_it_on_its_own_connection_only(web: World) -> None:
    with web.connect() as raw:
        raw.send(request("POST", "/api/v1/queues/slow/pull?wait=20", **AUTH) + request("GET", "/health"))
        assert web.client.get("/health").status_code == 200
        assert web.admin.post("/api/v1/queues/slow/publish", json={"message": "at last"}).status_code == 201
        _, _, content = raw.answer()
        assert json.loads(content)["message"] == "at last"
        assert json.loads(raw.answer()[2])["status"] == "ok"


def test_a_client_that_leaves_while_it_waits_takes_no_message_with_it(web: World) -> None:
    with web.connect() as raw:
        raw.send(request("POST", "/api/v1/queues/leaving/pull?wait=20", **AUTH))
        while not web.inside(lambda s: _waiting(s, "leaving")):
            pass
    while web.inside(lambda s: _waiting(s, "leaving")):
        pass
    web.admin.post("/api/v1/queues/leaving/publish", json={"message": 1})
    assert web.admin.post("/api/v1/queues/leaving/pull").json()["retry"] == 0


def _waiting(server: Any, name: str) -> int:
    queue = server.engine.shard.tenants["default"].queues.get(name)
    return 0 if queue is None else int(queue.waiting_claims())


def test_head_and_options(web: World) -> None:
    head = web.client.head("/health")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(web.client.get("/health").content)
    options = web.client.options("/api/v1/queues/q/publish")
    assert (options.status_code, options.headers["allow"]) == (204, "POST, OPTIONS")
    assert web.client.options("/nothing").status_code == 404
    wrong = web.admin.get("/api/v1/queues/q/publish")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST, OPTIONS")
    assert wrong.json()["code"] == "method_not_allowed"


@pytest.mark.row("S2-24")
def test_only_listed_origins_are_let_in_by_browsers(web: World) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    path = "/api/v1/queues/q/publish"
    good = web.client.options(path, headers={"Origin": "https://good.example", **asks})
    assert good.status_code == 204
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    assert "POST" in good.headers["access-control-allow-methods"]
    assert good.headers["access-control-allow-headers"] == "authorization,content-type"
    bad = web.client.options(path, headers={"Origin": "https://bad.example", **asks})
    assert not [name for name in bad.headers if name.startswith("access-control")]
    simple = web.client.get("/health", headers={"Origin": "https://good.example"})
    assert simple.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-origin" not in web.client.get("/health", headers={"Origin": "null"}).headers


def test_long_answers_are_compressed_where_that_is_asked_for(web: World) -> None:
    web.admin.post("/api/v1/queues/gz/publish", json={"message": "y" * 5000})
    plain = web.admin.get("/api/v1/queues/gz/peek", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with web.connect() as raw:
        raw.send(request("GET", "/api/v1/queues/gz/peek", Accept_Encoding="br, gzip", **AUTH))
        _, headers, content = raw.answer()
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(content) == plain.content
    refused = web.admin.get("/api/v1/queues/gz/peek", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_a_client_that_expects_to_be_told_to_go_on_is_told(web: World) -> None:
    body = b'{"message": 1}'
    head = request("POST", "/api/v1/queues/go/publish", Expect="100-continue", Content_Length=str(len(body)), **AUTH)
    with web.connect() as raw:
        raw.send(head)
        assert raw.line() == b"HTTP/1.1 100 Continue\r\n"
        assert raw.line() == b"\r\n"
        raw.send(body)
        assert raw.answer()[0] == 201
        raw.send(request("POST", "/api/v1/queues/go/publish", Expect="100-continue", Content_Length="70000", **AUTH))
        assert raw.answer()[0] == 413
    with web.connect() as raw:
        raw.send(request("GET", "/health", Expect="miracles"))
        assert raw.answer()[0] == 417


def test_an_old_client_is_answered_and_its_connection_closed(web: World) -> None:
    with web.connect() as raw:
        raw.send(b"GET /health HTTP/1.0\r\n\r\n")
        status, headers, _ = raw.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert raw.rest() == b""
    with web.connect() as raw:
        raw.send(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert raw.answer()[1]["connection"] == "keep-alive"
        raw.send(request("GET", "/health", Connection="close"))
        assert raw.answer()[1]["connection"] == "close"
        assert raw.rest() == b""


@pytest.mark.parametrize(
    ("name", "sent", "status"),
    [
        ("not HTTP", b"hello\r\n\r\n", 400),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ("no host", b"GET /health HTTP/1.1\r\n\r\n", 400),
        ("two hosts", b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("two lengths", b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (
            "length and chunks",
            b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "unknown coding",
            b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "chunks of HTTP/1.0",
            b"POST /x HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("negative length", b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        ("bad chunk", b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        ("space before colon", b"GET /health HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("folded header", b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        ("null byte", b"GET /health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        ("body too long", b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n", 413),
        ("endless URL", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        ("endless header", b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000, 431),
        ("headers without end", b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-N: 1\r\n" * 200, 431),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_and_the_connection_closed(
    web: World, name: str, sent: bytes, status: int
) -> None:
    with web.connect() as raw:
        raw.send(sent)
        answered, headers, content = raw.answer()
        assert (answered, headers["connection"]) == (status, "close"), content
        error = json.loads(content)
        assert error["request_id"] == headers["x-request-id"]
        assert error["code"]
        assert error["message"]
        assert raw.rest() == b""
    assert web.client.get("/health").status_code == 200


def test_chunks_beyond_the_limit_are_refused_and_earlier_requests_answered_first(web: World) -> None:
    head = request("POST", "/api/v1/queues/q/publish", Transfer_Encoding="chunked", **AUTH)
    with web.connect() as raw:
        raw.send(request("GET", "/health") + head + b"11000\r\n" + b"x" * 0x11000)
        assert raw.answer()[0] == 200
        assert raw.answer()[0] == 413
        assert raw.rest() == b""
    assert web.inside(lambda _: web.face.body_bytes) == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_whoever_sends_a_large_body_to_its_end_gets_the_answer(web: World, chunked: bool) -> None:
    """And no reset, as he would if the connection were closed while something of him is unread."""
    body = bytes(8 << 20)
    for _ in range(5):
        with web.connect() as raw:
            if chunked:
                head = request("POST", "/api/v1/queues/q/publish", Transfer_Encoding="chunked", **AUTH)
                raw.send(head, b"%x\r\n" % len(body), body, b"\r\n0\r\n\r\n")
            else:
                raw.send(request("POST", "/api/v1/queues/q/publish", body, **AUTH))
            status, headers, content = raw.answer()
            assert (status, headers["connection"]) == (413, "close")
            assert json.loads(content)["code"] == "message_too_large"
            assert raw.rest() == b""


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"message": 1, "priority": "high"}', "priority"),
        (b'{"message": "\xff\xfe"}', "body"),
        (b'{"idempotency_key": "k"}', "body"),
        (b'{"message": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", "message"),
        (b'{"message": 1, "priority": 99999999999999999999}', "priority"),
        (b'{"message": 1, "delay_ms": -1}', "delay_ms"),
        (b'{"message": nan}', "body"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_the_part_that_is(web: World, body: bytes, argument: str) -> None:
    answer = web.admin.post("/api/v1/queues/wrong/publish", content=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["argument"] in (argument, "body")
    assert error["request_id"] == answer.headers["x-request-id"]
    assert web.admin.get("/api/v1/queues/wrong/stats").json()["ready"] == 0


@pytest.mark.row("S2-29")
def test_a_request_keeps_the_id_it_came_with(web: World) -> None:
    named = web.client.get("/health", headers={"X-Request-ID": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"
    first, second = (web.client.get("/nothing").headers["x-request-id"] for _ in range(2))
    assert first != second
    odd = web.client.get("/health", headers={"X-Request-ID": "a" * 500})
    assert odd.headers["x-request-id"] != "a" * 500
    web.admin.post("/api/v1/queues/named/publish", json={"message": 1})
    pulled = web.admin.post("/api/v1/queues/named/pull", headers={"X-Request-ID": "mine-2"}).json()
    (line,) = [line for line in web.lines() if line["request_id"] == "mine-2"]
    assert line["delivery_tag"] == pulled["delivery_tag"]
    assert line["status"] == 200


def test_names_may_hold_anything_that_a_url_can_spell(web: World) -> None:
    for name in ("a/b", "ü.ö", "a b", "50%", "x?y"):
        quoted = "".join(f"%{byte:02X}" for byte in name.encode())
        made = web.admin.put(f"/api/v1/queues/{quoted}")
        assert made.json()["name"] == name
    assert web.admin.put("/api/v1/queues/%ff").status_code == 400
    assert web.admin.put("/api/v1/queues/%00").json()["code"] == "invalid_name"
    assert web.admin.put("/api/v1/queues/" + "n" * 256).json()["code"] == "invalid_name"
    assert web.client.get("/..//etc/passwd").status_code == 404


def test_slow_requests_end(web: World) -> None:
    with web.connect() as raw, web.connect() as silent:
        raw.send(b"GET /health HT")

        def late(server: Any) -> None:
            for connection in list(web.face.connections.values()):
                connection.tick(server.engine.shard.mono_ms + 11_000)

        while not web.inside(lambda _: [c for c in web.face.connections.values() if c._call is not None]):
            pass
        while not web.inside(lambda _: [c for c in web.face.connections.values() if not c._began_ms]):
            pass
        web.run(_in_turn(web, late))
        status, _, content = raw.answer()
        assert (status, json.loads(content)["code"]) == (408, "request_timeout")
        assert raw.rest() == b""
        assert silent.rest() == b""


async def _in_turn(web: World, work: Any) -> None:
    turns: Any = web.server._turns
    turns.run(lambda: work(web.server))


def test_many_clients_at_once(web: World) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        with web.connect() as raw:
            for n in range(20):
                raw.send(post(f"/api/v1/queues/crowd{number % 3}/publish", {"message": n}))
                if raw.answer()[0] != 201:
                    failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    counts = [web.admin.get(f"/api/v1/queues/crowd{n}/stats").json()["ready"] for n in range(3)]
    assert sum(counts) == 400


def test_a_defect_is_answered_with_500_and_logged_under_the_request(tmp_path: Path) -> None:
    with world(tmp_path) as web:

        def broken(server: Any) -> None:
            (route,) = [r for r in server._web.router.routes if r.template == "/api/v1/queues/{name}/publish"]
            route.handler = None

        web.inside(broken)
        answer = web.admin.post("/api/v1/queues/q/publish", json={"message": "not in the log"})
        assert (answer.status_code, answer.json()["code"]) == (500, "error")
        (line,) = web.lines("defect")
        assert line["request_id"] == answer.json()["request_id"]
        assert ADMIN not in web.log.getvalue()

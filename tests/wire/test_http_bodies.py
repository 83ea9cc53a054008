"""Bodies that arrive slowly: whose memory they take, and who is refused when there is no more of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.access import FULL
from rookery.wire.http.bodies import BodyPool, unverified_pool, verified_pool
from rookery.wire.http.connection import BODY_WINDOW_MIN_BYTES, REQUEST_MAX_MS, STALL_MAX_MS, VETTED_BYTES
from tests.wire.http_world import ADMIN, Raw, World, world
from tests.wire.test_http_faults import Transport, face

PUBLISH = "/api/v1/queues/q/publish"
LARGE = 8 << 20
POOL = 1 << 20


@pytest.fixture
def web(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:

        def shrink(_: Any) -> None:
            made.face.bodies = BodyPool(POOL, POOL * 3 // 4)
            made.face.unverified = BodyPool(POOL // 4, POOL // 16)

        made.inside(shrink)
        yield made


def head(path: str = PUBLISH, length: int = LARGE, **headers: Any) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def held(web: World) -> int:
    return int(web.inside(lambda _: web.face.body_bytes))


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({}, PUBLISH, 401),
        ({"Authorization": "Bearer wrong"}, PUBLISH, 401),
        ({"Authorization": "ApiKey wrong"}, PUBLISH, 401),
        ({"Authorization": basic("API_KEY", "wrong")}, PUBLISH, 401),
        ({"Authorization": f"Bearer {ADMIN}"}, "/nowhere", 404),
        ({"Expect": "100-continue"}, PUBLISH, 401),
    ],
)
def test_a_large_body_that_is_not_wanted_is_refused_before_it_is_read(
    web: World, headers: dict[str, Any], path: str, status: int
) -> None:
    with web.connect() as raw:
        raw.send(head(path, **headers))
        answer = raw.answer()
        assert answer[0] == status
        assert answer[1]["connection"] == "close"
        if status == 401:
            assert answer[1]["www-authenticate"] == 'Bearer realm="rookery"'
    assert held(web) == 0


def test_a_small_body_with_a_wrong_credential_keeps_its_connection(web: World) -> None:
    with web.connect() as raw:
        for _ in range(2):
            raw.send(head(length=10), b"12345")
            raw.send(b"67890")
            status, headers, _ = raw.answer()
            assert (status, headers.get("connection")) == (401, None)


def test_bodies_of_strangers_do_not_keep_out_who_is_known(web: World) -> None:
    with ExitStack() as stack:
        strangers: list[Raw] = []
        for number in range(40):
            raw = stack.enter_context(web.connect())
            # whose password is not known yet, so that it is not refused by its head
            raw.send(head(length=VETTED_BYTES, Authorization=basic("ada", f"guess {number}")), b"x" * 4_000)
            strangers.append(raw)
        statuses = set()
        for raw in strangers[-5:]:
            status, headers, content = raw.answer()
            statuses.add((status, json.loads(content)["code"], headers["retry-after"]))
        assert statuses == {(503, "busy", "1")}
        assert held(web) <= POOL // 16  # all of them have one address
        client = web.large("shop")
        for size in (10, 100_000, 500_000):
            made = client.post(PUBLISH, json={"message": "x" * size})
            assert made.status_code == 201
        # also in pieces
        key = web.key("shop")
        with web.connect() as raw:
            body = json.dumps({"message": "y" * 50_000}).encode()
            raw.send(head(length=len(body), Authorization=f"Bearer {key}"))
            for at in range(0, len(body), 10_000):
                raw.send(body[at : at + 10_000])
            assert raw.answer()[0] == 201
    while held(web):
        pass


def test_a_tenant_leaves_room_for_others(web: World) -> None:
    greedy, modest = web.key("greedy"), web.key("modest")
    with ExitStack() as stack:
        raws = []
        for _ in range(20):
            raw = stack.enter_context(web.connect())
            raw.send(head(length=200_000, Authorization=f"Bearer {greedy}"), b"x" * 100_000)
            raws.append(raw)
        assert raws[-1].answer()[0] == 503
        assert held(web) <= POOL * 3 // 4
        raw = stack.enter_context(web.connect())
        body = json.dumps({"message": "y" * 200_000}).encode()
        raw.send(head(length=len(body), Authorization=f"Bearer {modest}"), body[:100_000])
        raw.send(body[100_000:])
        assert raw.answer()[0] == 201
    while held(web):
        pass


def test_bodies_behind_a_request_that_waits_are_counted_too(web: World) -> None:
    web.inside(lambda s: s.access.set_user("ada", password="pw", tenants={"default": FULL}))
    with web.connect() as raw:
        one = head(length=30_000, Authorization=basic("ada", "wrong"))
        raw.send((one + b"x" * 30_000) * 20)
        rest = raw.rest()
    assert b"HTTP/1.1 503 " in rest
    while held(web):
        pass


def test_a_body_that_drips_is_not_waited_for() -> None:
    http = face([])
    http.body_max_bytes = 1 << 20
    fates = {}
    a_second = BODY_WINDOW_MIN_BYTES * 1_000 // STALL_MAX_MS
    for step in (a_second - 100, a_second + 100):
        transport = Transport()
        connection: Any = http.connect()
        connection.connection_made(transport)
        connection.data_received(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        began = int(http.shard.mono_ms)
        for number in range(1, 40):
            connection.data_received(b"x" * step)
            http.shard.mono_ms = began + number * 1_000
            http.turn.begin()
            connection.tick(http.shard.mono_ms)
            http.turn.end()
        fates[step] = transport.sent[:12]
        connection.connection_lost(None)
    assert list(fates.values()) == [b"HTTP/1.1 408", b""]
    assert STALL_MAX_MS < REQUEST_MAX_MS


@pytest.mark.parametrize("coding", ["gzip, chunked", "chunked, gzip", "gzip", "identity, chunked", "chunked, chunked"])
def test_a_transfer_coding_other_than_chunked_is_refused(web: World, coding: str) -> None:
    with web.connect() as raw:
        lines = [f"POST {PUBLISH} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {ADMIN}"]
        lines += [f"Transfer-Encoding: {coding}", "", ""]
        raw.send("\r\n".join(lines).encode() + b'f\r\n{"message": "x"}\r\n0\r\n\r\n')
        assert raw.answer()[0] in (400, 501)
        assert raw.rest() == b""
    assert web.admin.get("/api/v1/queues/q/stats").json()["published"] == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=60))
def test_a_pool_never_goes_beyond_its_limits_and_forgets_nothing(asked: list[tuple[str, int]]) -> None:
    pool = BodyPool(100, 60)
    taken: list[tuple[str, int]] = []
    for owner, count in asked:
        own = sum(size for name, size in taken if name == owner)
        fits = pool.used + count <= 100 and own + count <= 60
        assert pool.take(owner, count) is fits
        if fits:
            taken.append((owner, count))
        assert pool.used == sum(size for _, size in taken) <= 100
        if len(taken) > 3:
            pool.give(*taken.pop(0))
    for owner, count in taken:
        pool.give(owner, count)
    assert (pool.used, pool._owners) == (0, {})


@pytest.mark.parametrize("body_max", [1, 16 << 20, 1 << 30])
def test_one_body_fits_whatever_its_limit_is(body_max: int) -> None:
    for pool in (verified_pool(body_max), unverified_pool(body_max)):
        assert body_max <= pool.share_max < pool.bytes_max

"""API keys over HTTP: who makes, lists and revokes them, and that a key never grants more than its maker has."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.wire.http_world import World, world

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
NOTHING = {"configure": "", "write": "", "read": ""}
SOME = {"configure": "^$", "write": "^orders", "read": ".*"}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("keys")) as made:
        yield made


def kid_of(client: httpx.Client) -> str:
    return client.headers["authorization"].removeprefix("Bearer ").partition(".")[0]


def kids(client: httpx.Client) -> list[str]:
    answer = client.get("/keys")
    assert answer.status_code == 200, answer.text
    return [key["kid"] for key in answer.json()["keys"]]


@pytest.mark.row("S0-38")
@pytest.mark.parametrize("rights", [NOTHING, SOME, {**ALL, "read": "^$"}, {**ALL, "configure": "^.*$"}])
def test_a_key_without_full_rights_reaches_no_key_but_itself(web: World, rights: dict[str, str]) -> None:
    other, own = web.large("reach"), web.large("reach", rights=rights)
    assert own.get("/keys").status_code == 403
    assert own.delete(f"/keys/{kid_of(other)}").status_code == 403
    assert other.get("/api/v1/queues").status_code == 200
    assert own.delete(f"/keys/{kid_of(own)}").status_code == 200
    assert own.get("/api/v1/queues").status_code == 401


@pytest.mark.row("S0-38")
def test_a_full_key_sees_and_revokes_the_others_but_no_admins(web: World) -> None:
    admin, full, small = web.large("ranks", admin=True), web.large("ranks"), web.large("ranks", rights=NOTHING)
    assert kids(full) == [kid_of(full), kid_of(small)]
    assert sorted(kids(admin)) == sorted([kid_of(admin), kid_of(full), kid_of(small)])
    assert full.delete(f"/keys/{kid_of(small)}").status_code == 200
    # as if there were none: that there is an admin's is not told
    assert full.delete(f"/keys/{kid_of(admin)}").status_code == 404
    assert full.delete("/keys/AAAAAAAAAAA").status_code == 404
    assert admin.get("/api/v1/queues").status_code == 200
    elsewhere = web.large("elsewhere")
    assert full.delete(f"/keys/{kid_of(elsewhere)}").status_code == 404
    assert admin.delete(f"/keys/{kid_of(elsewhere)}").status_code == 200


def test_the_guest_and_the_anonymous_have_nothing_to_do_with_keys(web: World, tmp_path: Path) -> None:
    ours = web.large("default")
    guest = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    with world(tmp_path, auth_mode="none") as open_world:
        theirs = open_world.large("default")
        for where, key, headers in ((web, ours, guest), (open_world, theirs, {})):
            assert where.client.get("/api/v1/queues", headers=headers).status_code == 200
            assert where.client.get("/keys", headers=headers).status_code == 403
            assert where.client.delete(f"/keys/{kid_of(key)}", headers=headers).status_code == 403
            assert where.client.post("/keys", json={}, headers=headers).status_code == 403
            assert key.get("/api/v1/queues").status_code == 200


@pytest.mark.row("S0-17", "S0-19")
def test_a_key_of_a_tenant_that_exists_takes_a_full_one(web: World) -> None:
    full = web.large("exists")
    some = web.large("exists", rights=SOME)
    other = web.large("another")
    for client, status in ((web.client, 403), (some, 403), (other, 403), (full, 201), (web.admin, 201)):
        made = client.post("/keys", json={"tenant": "exists"})
        assert made.status_code == status, made.text
        assert client.get("/create_key?tenant=exists").status_code == (200 if status == 201 else 403)
    # a tenant that is new is nobody's yet
    assert web.client.post("/keys", json={"tenant": "quite-new"}).status_code == 201
    assert web.client.post("/keys", json={"tenant": "quite-new"}).status_code == 403


@pytest.mark.parametrize(
    ("maker", "wanted", "allowed"),
    [
        (SOME, SOME, True),
        (SOME, NOTHING, True),
        (SOME, {**NOTHING, "read": "^any$"}, True),
        (SOME, ALL, False),
        (SOME, {**SOME, "write": ".*"}, False),
        (SOME, {**SOME, "write": "^orders|^secret"}, False),
        (SOME, {**SOME, "configure": "^orders$"}, False),
        (NOTHING, {**NOTHING, "read": "x"}, False),
        (ALL, SOME, True),
        (ALL, ALL, True),
    ],
)
def test_a_key_has_no_more_rights_than_its_maker(
    tmp_path: Path, maker: dict[str, str], wanted: dict[str, str], allowed: bool
) -> None:
    # under `open`, the one mode in which a restricted key may make others at all
    with world(tmp_path, key_creation="open") as web:
        client = web.large("t", rights=maker)
        made = client.post("/keys", json={"rights": wanted})
        assert made.status_code == (201 if allowed else 403), made.text


def test_a_key_does_not_outlive_its_maker(web: World) -> None:
    maker = web.large("mortal", expires_in_sec=1_000)
    assert maker.post("/keys", json={"expires_in_sec": 10_000}).status_code == 403
    expires = web.admin.get("/keys?tenant=mortal").json()["keys"][0]["expires_ms"]
    made: dict[str, Any] = maker.post("/keys", json={}).json()
    assert made["expires_ms"] == expires
    sooner = maker.post("/keys", json={"expires_in_sec": 10}).json()
    assert sooner["expires_ms"] < expires
    for_ever = web.large("mortal").post("/keys", json={}).json()
    assert for_ever["expires_ms"] is None


NGINX = (
    "GET /create_key?tenant={tenant} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\nUser-Agent: curl/7.88.1\r\n\r\n"
)


@pytest.mark.row("S0-19")
def test_a_proxy_that_was_told_nothing_is_not_local(web: World) -> None:
    """What nginx sends upstream with `proxy_pass http://127.0.0.1:8080;` and nothing else."""
    for host in (web.address, "127.0.0.1", "localhost"):
        with web.connect() as raw:
            raw.send(NGINX.format(tenant="by-nginx", host=host).encode())
            assert raw.answer()[0] == 403
    assert not web.inside(lambda server: "by-nginx" in server.engine.shard.tenants)


@pytest.mark.row("S0-19")
@pytest.mark.parametrize(
    "header",
    [
        ("Origin", "http://localhost"),
        ("Forwarded", "for=192.0.2.1"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "127.0.0.1"),
        ("True-Client-IP", "192.0.2.1"),
        ("X-Client-IP", "192.0.2.1"),
        ("X-Original-Forwarded-For", "192.0.2.1"),
        ("X_Forwarded_For", "192.0.2.1"),
        ("X-Envoy-External-Address", "192.0.2.1"),
        ("CF-Connecting-IP", "192.0.2.1"),
        ("CF-Ray", "x"),
        ("Via", "1.1 proxy"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Host", "broker.example"),
    ],
)
def test_what_was_passed_on_is_not_local(web: World, header: tuple[str, str]) -> None:
    guest = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    made = web.client.get("/create_key?tenant=passed-on", headers=dict([header]))
    assert made.status_code == 403
    assert web.client.get("/api/v1/queues", headers={**guest, **dict([header])}).status_code == 401


@pytest.mark.row("S0-19")
@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_an_own_page_is_local(web: World, site: str) -> None:
    answer = web.client.get(f"/create_key?tenant=own-{site}", headers={"Sec-Fetch-Site": site})
    assert answer.status_code == 200

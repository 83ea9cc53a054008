"""What belongs to somebody else of the same tenant is not reached by guessing its name or id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jwt
import pytest

from rookery.core.access import FULL
from tests.wire.http_world import World, world

SECRET = "a secret of more than thirty-two bytes"
MINE = {"configure": "^mine", "write": "^mine", "read": "^mine"}
names = itertools.count(1)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("others"), auth_mode="bearer", jwt_secret=SECRET) as made:
        yield made


@pytest.fixture
def owner(web: World) -> httpx.Client:
    return web.large("shop")


@pytest.fixture
def other(web: World) -> httpx.Client:
    """Somebody of the same tenant, with all rights on other names."""
    return web.large("shop", rights=MINE)


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}


# Chunks and producers


@pytest.mark.parametrize("kind", ["queues", "streams", "exchanges"])
def test_chunks_of_others(owner: httpx.Client, other: httpx.Client, kind: str) -> None:
    target, chunk = f"theirs-{next(names)}", f"chunk-{next(names)}"
    body = {"kind": "fanout"} if kind == "exchanges" else {}
    assert owner.put(f"/api/v1/{kind}/{target}", json=body).status_code == 201
    staged = owner.post(f"/api/v1/{kind}/{target}/stage?chunk={chunk}", json=[{"message": 1}])
    assert staged.status_code == 201, staged.text
    assert chunk not in other.get("/api/v1/chunks").text
    assert other.delete(f"/api/v1/chunks/{chunk}").status_code == 403
    assert other.post("/api/v1/producers/mine/commit", json={"epoch": 1, "chunks": [chunk]}).status_code == 403
    assert chunk in owner.get("/api/v1/chunks").text
    done = owner.post("/api/v1/producers/theirs/commit", json={"epoch": next(names), "chunks": [chunk]})
    assert done.json()["rows"] == 1


def test_nobody_ends_the_epochs_of_another_producer(owner: httpx.Client, other: httpx.Client) -> None:
    producer, queue = f"sink-{next(names)}", f"theirs-{next(names)}"

    def stage(client: httpx.Client, target: str, epoch: int) -> httpx.Response:
        path = f"/api/v1/queues/{target}/stage?producer={producer}&epoch={epoch}&chunk={producer}-{target}-{epoch}"
        return client.post(path, json=[{"message": epoch}])

    def commit(client: httpx.Client, epoch: int, *chunks: str) -> httpx.Response:
        return client.post(f"/api/v1/producers/{producer}/commit", json={"epoch": epoch, "chunks": list(chunks)})

    # before its first commit, by what it has staged, and after it, by what that was for
    assert stage(owner, queue, 1).status_code == 201
    for _ in range(2):
        assert commit(other, 1_000).status_code == 403
        assert stage(other, "mine", 2).status_code == 403
        assert other.get(f"/api/v1/producers/{producer}").status_code == 403
        if _ == 0:
            assert commit(owner, 1, f"{producer}-{queue}-1").json()["rows"] == 1
            assert commit(owner, 2).json()["rows"] == 0
    assert owner.get(f"/api/v1/producers/{producer}").json()["epoch"] == 2
    # whoever may write the same goes on with it: a job whose key was changed
    assert stage(owner, queue, 3).status_code == 201
    another = owner.post("/keys", json={"rights": {"configure": "", "write": f"^{queue}$", "read": ""}}).json()
    renewed = {"Authorization": f"Bearer {another['api_key']}"}
    body = {"epoch": 3, "chunks": [f"{producer}-{queue}-3"]}
    assert owner.post(f"/api/v1/producers/{producer}/commit", json=body, headers=renewed).json()["rows"] == 1


def test_what_a_producer_wrote_to_is_known_after_a_restart(tmp_path: Path) -> None:
    path = "/api/v1/producers/p/commit"
    with world(tmp_path, store_backend="journal") as web:
        key, limited = web.key("shop"), web.key("shop", rights=MINE)
        owner = {"Authorization": f"Bearer {key}"}
        web.client.post("/api/v1/queues/theirs/stage?chunk=a", json=[{"message": 1}], headers=owner)
        web.client.post("/api/v1/queues/theirs/stage?chunk=b", json=[{"message": 2}], headers=owner)
        assert web.client.post(path, json={"epoch": 1, "chunks": ["a"]}, headers=owner).json()["rows"] == 1
    with world(tmp_path, store_backend="journal") as web:
        other = {"Authorization": f"Bearer {limited}"}
        assert web.client.post(path, json={"epoch": 9, "chunks": []}, headers=other).status_code == 403
        assert web.client.delete("/api/v1/chunks/b", headers=other).status_code == 403
        assert web.client.get("/api/v1/chunks", headers=other).json()["chunks"] == []
        assert web.client.post(path, json={"epoch": 2, "chunks": ["b"]}, headers=owner).json()["rows"] == 1


# Where messages end


def test_dead_letters_go_only_where_their_declarer_may_write(owner: httpx.Client, other: httpx.Client) -> None:
    owner.put("/api/v1/exchanges/theirs.x", json={"kind": "fanout"})
    owner.put("/api/v1/queues/theirs.q")
    for said in (
        {"dead_letter_exchange": "theirs.x"},
        {"dead_letter_exchange": "", "dead_letter_key": "theirs.q"},
        {"dead_letter_queue": "theirs.q"},
        {"dead_letter_queue": "theirs.{queue}"},
    ):
        refused = other.put(f"/api/v1/queues/mine-{next(names)}", json=said)
        assert refused.status_code == 403, (said, refused.text)
        assert owner.put(f"/api/v1/queues/mine-{next(names)}", json=said).status_code == 201
    assert other.put("/api/v1/queues/mine.a", json={"dead_letter_queue": "mine.b"}).status_code == 201
    # what the settings of the server say of every queue is no wish of its declarer
    assert other.put("/api/v1/queues/mine.c").status_code == 201
    assert other.put("/api/v1/exchanges/mine.x", json={"kind": "topic", "alternate": "theirs.x"}).status_code == 403
    assert other.put("/api/v1/exchanges/mine.y", json={"kind": "topic", "alternate": "mine.z"}).status_code == 201


@pytest.mark.parametrize(
    ("part", "needs"),
    [
        ({"policies": [{"name": "p", "pattern": "x", "settings": {"dead_letter_exchange": "e"}}]}, "read write"),
        ({"policies": [{"name": "p", "pattern": "x", "settings": {"dead_letter_queue": "{queue}.d"}}]}, "read write"),
        ({"policies": [{"name": "p", "pattern": "x", "settings": {"ttl_ms": 1}}]}, ""),
        ({"face_defaults": {"http": {"dead_letter_queue": "d"}}}, "read write"),
        ({"queues": [{"name": "a", "face": "http", "settings": {"dead_letter_queue": "d"}}]}, "read write"),
        ({"queues": [{"name": "a", "face": "http", "settings": {"dead_letter_exchange": "e"}}]}, "read write"),
        ({"queues": [{"name": "a", "face": "http", "settings": {}}]}, ""),
        ({"exchanges": [{"name": "e", "kind": "topic", "alternate": "f"}]}, "read write"),
        ({"bindings": [{"source": "amq.topic", "target": "amq.fanout", "target_kind": "exchange"}]}, "read write"),
    ],
)
def test_definitions_need_what_declaring_them_needs(web: World, part: dict[str, Any], needs: str) -> None:
    for granted in ("", "read", "write", "read write"):
        rights = {
            right: ".*" if right in granted.split() or right == "configure" else "" for right in FULL.__struct_fields__
        }
        tenant = f"load-{next(names)}"
        client = web.large(tenant, rights=rights)
        loaded = client.post("/api/v1/definitions", json={"rookery": 1, "tenants": [{"name": tenant, **part}]})
        allowed = set(needs.split()) <= set(granted.split())
        assert loaded.status_code == (200 if allowed else 403), (granted, loaded.text)
        for policy in part.get("policies", ()):
            body = {name: policy[name] for name in ("pattern", "settings")}
            assert client.put("/api/v1/policies/p", json=body).status_code == (200 if allowed else 403)


def test_only_exchanges_publish_to_an_internal_one(owner: httpx.Client) -> None:
    owner.put("/api/v1/exchanges/inside", json={"kind": "topic", "internal": True})
    message = {"message": 1}
    for path, body in (
        ("/api/v1/exchanges/inside/messages", message),
        ("/api/v1/topics/inside/publish", message),
        ("/publish", {"exchange": "inside", "routing_key": "", "body": "x"}),
        ("/api/v1/transactions", {"publish": [{"exchange": "inside", **message}]}),
        ("/api/v1/exchanges/inside/stage", [message]),
    ):
        assert owner.post(path, json=body).status_code == 400, path


# Webhooks and subscriptions


def test_a_subscription_ends_only_its_own_webhook(owner: httpx.Client, other: httpx.Client) -> None:
    owner.put("/api/v1/topics/theirs")
    calling = {"endpoint": "https://hooks.example.invalid/secret-path"}
    made = owner.post("/api/v1/topics/theirs/subscriptions", json=calling).json()
    hook = made["subscription_id"]
    # a queue whose name looks like that of the same subscription, to a topic of one's own
    assert other.put("/api/v1/topics/mine").status_code == 201
    assert other.put(f"/api/v1/queues/mine.sub.{hook}").status_code == 201
    bound = {"source": "mine", "target": f"mine.sub.{hook}", "arguments": {"x-subscriber": "me"}}
    assert other.post("/api/v1/bindings", json=bound).status_code == 201
    assert "secret-path" not in other.get("/api/v1/topics/mine/subscriptions").text
    assert other.delete(f"/api/v1/topics/mine/subscriptions/{hook}").status_code == 200
    assert owner.get(f"/api/v1/webhooks/{hook}").status_code == 200


def test_plans_are_held_by_whoever_may_read_the_stream(owner: httpx.Client, other: httpx.Client) -> None:
    owner.put("/api/v1/streams/theirs")
    plan = owner.post("/api/v1/streams/theirs/plan", json={}).json()["plan"]
    assert other.post(f"/api/v1/plans/{plan}/renew", json={}).status_code == 403
    assert other.delete(f"/api/v1/plans/{plan}").status_code == 403
    assert owner.post(f"/api/v1/plans/{plan}/renew", json={}).status_code == 200


# Names that are put together


def test_transactions_of_others_do_not_collide(web: World) -> None:
    """`a` with `b/c`, and `a/b` with `c`."""
    one, two = bearer(sub="a"), bearer(sub="a/b")
    first, second = quote("b/c", safe=""), "c"
    assert web.client.put(f"/api/v1/transactions/{first}", json={}, headers=one).status_code == 201
    assert web.client.get(f"/api/v1/transactions/{second}", headers=two).status_code == 404
    assert web.client.post(f"/api/v1/transactions/{second}/rollback", headers=two).status_code == 404
    assert web.client.put(f"/api/v1/transactions/{second}", json={}, headers=two).status_code == 201
    assert web.client.post(f"/api/v1/transactions/{first}/rollback", headers=one).status_code == 200


def test_repeated_requests_of_others_do_not_collide(web: World) -> None:
    path = f"/api/v1/queues/q-{next(names)}/messages"
    for who, key in (("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c")):
        sent = web.client.post(path, json={"message": 1}, headers={**bearer(sub=who), "Idempotency-Key": key})
        assert sent.status_code == 201, (who, key)
        again = web.client.post(path, json={"message": 1}, headers={**bearer(sub=who), "Idempotency-Key": key})
        assert again.status_code == 200


@pytest.mark.parametrize("name", ["anonymous", "guest"])
def test_a_token_is_not_taken_for_somebody_without_one(web: World, tmp_path: Path, name: str) -> None:
    """The anonymous may call private endpoints, from this machine; a token of that name is a token."""
    private = {"endpoint": "http://127.0.0.1:9/hook"}
    web.client.put("/api/v1/queues/hooked", headers=bearer(sub=name))
    refused = web.client.post("/api/v1/queues/hooked/webhooks", json=private, headers=bearer(sub=name))
    assert refused.status_code == 403
    with world(tmp_path, auth_mode="bearer", jwt_secret=SECRET, rate_limit="3") as limited:
        # its rate is its own, not that of an address
        one, two = bearer(sub=name), bearer(sub=name, exp=4_000_000_000)
        statuses = [limited.client.get("/api/v1/queues", headers=h).status_code for h in (one, two, one, two)]
        assert statuses == [200, 200, 200, 429]
        assert limited.client.get("/keys", headers=one).status_code == 429

"""Who may do what over HTTP: keys, passwords, tokens, rights, rates."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from rookery.clock import ManualClock
from rookery.core.access import FULL
from rookery.errors import InvalidConfig
from rookery.wire.http.auth import is_loopback_name
from tests.wire.amqp_peer import PROTOCOL, start_ok
from tests.wire.http_world import ADMIN, World, request, world

SECRET = "a secret of more than thirty-two bytes"
STATS = "/api/v1/queues/q/stats"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # whoever asks for every route with a wrong credential would be refused unheard soon
    with world(tmp_path_factory.mktemp("auth"), login_failures_max="0") as made:
        yield made


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_a_key_works_with_every_scheme(web: World) -> None:
    key = web.key("schemes")
    kid, _, secret = key.partition(".")
    for headers in (bearer(key), {"Authorization": f"ApiKey {key}"}, basic(kid, secret), basic("API_KEY", ADMIN)):
        assert web.client.get(STATS, headers=headers).status_code == 200
    for headers in (bearer(secret), basic(kid, secret + "x"), basic(kid, ""), basic("API_KEY", "x")):
        assert web.client.get(STATS, headers=headers).status_code == 401
    for shown in (b"Basic !!!", b"Basic " + base64.b64encode(b"nocolon"), b"Digest x", b"Basic \xff", b"Basic /w=="):
        assert web.client.get(STATS, headers={b"Authorization": shown}).status_code == 401


@pytest.mark.row("S0-10")
def test_keys_are_compared_in_constant_time(web: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    from rookery.core import access

    compared: list[tuple[bytes, bytes]] = []

    def compare(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    spy = type("spy", (), {"compare_digest": staticmethod(compare), "digest": staticmethod(hmac.digest)})
    monkeypatch.setattr(access, "hmac", spy)
    assert web.client.get(STATS, headers=bearer(web.key("timed"))).status_code == 200
    # the fixed key's digest and the key's own: always both, and whole digests
    assert len(compared) >= 2
    assert all(len(a) == len(b) == 32 for a, b in compared)


def test_users_by_password(web: World) -> None:
    def add(server: Any) -> None:
        server.engine.shard.create_tenant("shop")
        server.access.set_user("ada", password="pw", tenants={"shop": FULL})
        server.access.set_user("eve", password="pw", tenants={})

    web.inside(add)
    answers: list[int] = []
    # verified in a thread, while others are served
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                httpx.get(web.base + STATS, headers=basic("ada", "pw"), verify=False, timeout=60).status_code
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert web.client.get("/health").status_code == 200
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
    assert web.client.get(STATS, headers=basic("ada", "wrong")).status_code == 401
    assert web.client.get(STATS, headers=basic("nobody", "pw")).status_code == 401
    assert web.client.get(STATS, headers=basic("eve", "pw")).status_code == 403
    assert web.client.get("/api/v1/stats", headers=basic("ada", "pw")).json()["tenant"] == "shop"
    assert web.client.get(STATS, headers=basic("guest", "guest")).status_code == 200
    assert web.client.get(STATS, headers={**basic("guest", "guest"), "Via": "proxy"}).status_code == 401


def test_rights_are_asked_for(web: World) -> None:
    reader = web.large("rights", rights={"configure": "", "write": "", "read": "^q$"})
    owner = web.large("rights")
    owner.post("/api/v1/queues/q/publish", json={"message": 1})
    tag = reader.post("/api/v1/queues/q/pull").json()["delivery_tag"]
    assert tag
    refused = [
        reader.post("/api/v1/queues/q/publish", json={"message": 1}),
        reader.put("/api/v1/queues/new"),
        reader.post("/api/v1/queues/q2/pull"),
        reader.post("/publish?queue=q", content="x"),
        reader.put("/api/v1/topics/t"),
        reader.post("/api/v1/topics/t/publish", json={"message": 1}),
        reader.post("/api/v1/topics/t/subscriptions", json={"mode": "pull"}),
        reader.post("/create", json={"exchange": "e", "exchange_type": "direct", "queue": "z", "routing_key": ""}),
        reader.get("/keys?tenant=default"),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    owner.put("/api/v1/queues/hidden")
    assert list(reader.get("/api/v1/stats").json()["queues"]) == ["q"]
    assert 'queue="hidden"' not in reader.get("/metrics").text
    writer = web.large("rights", rights={"configure": "", "write": "^q$", "read": ""})
    assert writer.post("/api/v1/queues/q/publish", json={"message": 2}).status_code == 201
    assert writer.post("/api/v1/queues/q/ack", json={"delivery_tag": tag}).status_code == 403
    assert writer.post("/ack?queue=q&message_id=x").status_code == 403


def test_every_route_but_the_open_ones_needs_a_credential(web: World) -> None:
    """Each route is tried without a credential, with a wrong one, and with one that has no rights."""
    none = web.large("rightless", rights={"configure": "", "write": "", "read": ""})
    # which rights a webhook asks for depends on what it is on, and it is a consumer too
    owner = web.large("rightless")
    webhook = owner.post("/api/v1/queues/q/webhooks", json={"endpoint": "https://example.org/hook"}).json()["id"]
    (consumer,) = owner.get("/api/v1/consumers").json()["consumers"]
    document = web.client.get("/openapi.json").json()
    tried = 0
    for path, operations in document["paths"].items():
        url = path.replace("/webhooks/{id}", f"/webhooks/{webhook}")
        url = url.replace("/consumers/{id}", f"/consumers/{consumer['id']}").replace("{cut}", "1")
        url = url.replace("{", "").replace("}", "")
        for method, operation in operations.items():
            tried += 1
            missing = web.client.request(method, url, json={})
            wrong = web.client.request(method, url, json={}, headers=bearer("wrong"))
            security = operation.get("security", [])
            assert wrong.status_code == (401 if security else 200), (method, path)
            if security and {} not in security:
                assert missing.status_code == 401, (method, path)
                query = "?queue=q&message_id=x&seconds=1&source=x&target=y&topic=t"
                rightless = none.request(method, url + query, json=_fitting(method, path))
                # these show everyone what is theirs
                lists = ("queues", "exchanges", "streams", "bindings", "webhooks")
                shown = path in ("/add_publisher", "/add_consumer", "/api/v1/stats", "/api/v1/insights")
                allowed = shown or (method == "get" and path.removeprefix("/api/v1/") in lists)
                assert (rightless.status_code == 403) is not allowed, (method, path, rightless.text)
    assert tried > 30


_BODIES: dict[str, dict[str, Any]] = {
    "put /api/v1/exchanges/{name}": {"kind": "topic"},
    "post /api/v1/bindings": {"source": "x", "target": "y"},
    "put /api/v1/policies/{name}": {"pattern": "x", "settings": {}},
    "post /api/v1/queues/{name}/claim": {},
    "post /api/v1/queues/{name}/settle": {"leases": ["x"]},
    "post /api/v1/queues/{name}/extend": {"leases": ["x"], "lease_ms": 1},
    "post /api/v1/queues/{name}/move": {"to": "y"},
    "post /api/v1/queues/{name}/redrive": {},
    "post /api/v1/queues/{name}/cuts": {"consumer": "c"},
    "post /api/v1/queues/{name}/cuts/{consumer}/ack": {"upto": 1},
    "post /api/v1/receipts/settle": {"topic": "t", "ack_id": "a"},
    "post /api/v1/kept/replay": {"topic": "t"},
    "post /api/v1/transactions": {"publish": [{"queue": "q", "message": 1}]},
    "put /api/v1/transactions/{id}": {},
    "post /api/v1/transactions/{id}/add": {},
    "patch /api/v1/streams/{name}": {},
    "post /api/v1/streams/{name}/replay": {},
    "post /api/v1/streams/{name}/trim": {"offset": 0},
    "post /api/v1/streams/{name}/plan": {},
    "post /api/v1/plans/{plan}/renew": {},
    "post /api/v1/producers/{producer}/commit": {"epoch": 1, "chunks": []},
    "post /api/v1/streams/{name}/groups/{group}/commit": {"offsets": {"0": 0}},
    "post /api/v1/streams/{name}/groups/{group}/reset": {"to": "first"},
    "post /api/v1/streams/{name}/groups/{group}/join": {},
    "post /api/v1/streams/{name}/groups/{group}/heartbeat": {"member": "m"},
    "post /api/v1/streams/{name}/groups/{group}/leave": {"member": "m"},
    "put /api/v1/tenants/{tenant}": {},
    "put /api/v1/tenants/{tenant}/limits": {},
    "put /api/v1/users/{user}": {},
    "post /api/v1/definitions": {"rookery": 1, "tenants": []},
    "post /api/v1/queues/{name}/webhooks": {"endpoint": "https://example.org/hook"},
    "post /api/v1/streams/{name}/webhooks": {"endpoint": "https://example.org/hook"},
}


def _fitting(method: str, path: str) -> dict[str, Any]:
    """A body that gets as far as the question of rights."""
    known = _BODIES.get(f"{method} {path}")
    if known is not None:
        return known
    if path.endswith(("{name}", "subscriptions")):
        return {}
    body = {"message": 1, "delivery_tag": "name.sub.x/1/1/1", "exchange": "e", "queue": "q"}
    return {**body, "exchange_type": "direct"}


def test_what_is_revoked_while_it_waits_ends(web: World) -> None:
    key = web.key("waits")
    got: list[httpx.Response] = []
    url = f"{web.base}/api/v1/queues/q/pull?wait=60"
    waiting = threading.Thread(
        target=lambda: got.append(httpx.post(url, headers=bearer(key), timeout=70, verify=False))
    )
    waiting.start()
    while not web.inside(lambda s: _waiting(s, "waits")):
        pass
    assert web.admin.delete(f"/keys/{key.partition('.')[0]}").status_code == 200
    waiting.join(30)
    assert got[0].status_code == 401
    assert not web.inside(lambda s: _waiting(s, "waits"))


def _waiting(server: Any, tenant: str) -> int:
    return sum(int(q.waiting_claims()) for q in server.engine.shard.tenants[tenant].queues.values())


def test_keys_are_listed_without_their_secrets(web: World) -> None:
    client = web.large("listing", note="mine")
    (key,) = client.get("/keys").json()["keys"]
    assert (key["tenant"], key["note"], key["admin"]) == ("listing", "mine", False)
    assert client.headers["authorization"].partition(".")[2] not in client.get("/keys").text
    assert web.admin.get("/keys?tenant=listing").json()["keys"] == [key]
    past = web.admin.post("/keys", json={"tenant": "listing", "expires_in_sec": 0})
    assert (past.status_code, past.json()["argument"]) == (400, "expires_in_sec")
    assert web.admin.post("/keys", json={"tenant": "listing", "rights": {"read": "("}}).status_code == 400
    assert web.admin.post("/keys", json={"tenant": ""}).status_code == 400


def test_a_key_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    with world(tmp_path, clock) as web:
        client = web.large("t", expires_in_sec=1)
        assert client.get(STATS).status_code == 200
        clock.advance(1_000)
        assert client.get(STATS).status_code == 401


@pytest.mark.row("S2-25")
def test_rates_are_limited_by_key(tmp_path: Path) -> None:
    clock = ManualClock()
    with world(tmp_path, clock, rate_limit="3") as web:
        one, two = web.large("t"), web.large("t")
        assert [one.get(STATS).status_code for _ in range(4)] == [200, 200, 200, 429]
        over = one.get(STATS)
        assert (over.json()["code"], over.headers["retry-after"]) == ("rate_limited", "1")
        assert two.get(STATS).status_code == 200
        assert one.get("/health").status_code == 200
        clock.advance(334)
        assert [one.get(STATS).status_code for _ in range(2)] == [200, 429]


# Authentication switched off


@pytest.mark.row("S2-23")
def test_with_authentication_off_everyone_is_let_in_but_no_foreign_page(tmp_path: Path) -> None:
    with world(tmp_path, auth_mode="none") as web:
        assert web.client.post("/api/v1/queues/q/publish", json={"message": 1}).status_code == 201
        assert web.client.post("/publish?queue=q", content="x").status_code == 200
        foreign = web.client.post(
            "/api/v1/queues/q/publish", content='{"message": 1}', headers={"Origin": "https://evil.example"}
        )
        assert foreign.status_code == 403
        # a page whose name was made to lead here, so that its browser takes it for this site
        rebound = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
        assert web.client.get(STATS, headers=rebound).status_code == 403
        assert web.client.get(STATS, headers={"Host": "evil.example"}).status_code == 403
        own = web.client.get(STATS, headers={"Origin": web.base})
        assert own.json()["ready"] == 2
        assert web.client.get("/keys?tenant=other").status_code == 403
        assert web.client.get(STATS, headers=bearer("wrong")).status_code == 401


# Tokens


def sign(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **more: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jwt.encode(claims, key, algorithm, **more)


@pytest.fixture(scope="module")
def by_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("jwt"), auth_mode="bearer", jwt_secret=SECRET) as made:
        yield made


@pytest.mark.row("S2-23")
def test_tokens_by_secret(by_secret: World) -> None:
    web = by_secret
    now = int(time.time())

    def status(token: str) -> int:
        return web.client.get(STATS, headers=bearer(token)).status_code

    assert status(sign({"sub": "ada", "exp": now + 60})) == 200
    assert status(sign({})) == 200
    assert status(ADMIN) == 200
    assert status(web.key("keyed")) == 200
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    claims = base64.urlsafe_b64encode(b'{"sub":"eve"}').rstrip(b"=").decode()
    head, body, signature = sign({"sub": "ada"}).split(".")
    for token in (
        sign({"exp": now - 1}),
        sign({"nbf": now + 60}),
        sign({"sub": "ada"}, "another secret, long enough to be one"),
        sign({"sub": "ada"}, algorithm="HS512"),
        f"{none}.{claims}.",
        f"{none}.{body}.{signature}",
        f"{head}.{claims}.{signature}",
        sign({"tenant": 5}),
        sign({"rights": {"read": ".*"}}),
        sign({"rights": {"configure": "(", "write": "", "read": ""}}),
        "a.b.c",
        "..",
        "x" * 20_000 + ".y.z",
    ):
        answer = web.client.get(STATS, headers=bearer(token))
        assert (answer.status_code, answer.json()["message"]) == (401, "invalid token"), token


@pytest.mark.row("S2-23")
def test_claims_say_what_the_bearer_may(by_secret: World) -> None:
    web = by_secret
    web.key("shop")
    token = sign({"sub": "ada", "tenant": "shop", "rights": {"configure": "", "write": "", "read": "^q$"}})
    owner = web.large("shop")
    owner.put("/api/v1/queues/q")
    assert web.client.get(STATS, headers=bearer(token)).status_code == 200
    assert web.client.put("/api/v1/queues/z", headers=bearer(token)).status_code == 403
    assert web.client.get("/keys?tenant=default", headers=bearer(token)).status_code == 403
    assert web.client.get("/keys?tenant=shop", headers=bearer(sign({"admin": True}))).status_code == 200
    assert web.client.get(STATS, headers=bearer(sign({"tenant": "nowhere"}))).status_code == 403


def test_a_token_that_expires_on_an_open_connection(tmp_path: Path) -> None:
    clock = ManualClock(wall_ms=int(time.time() * 1000))
    with world(tmp_path, clock, auth_mode="bearer", jwt_secret=SECRET) as web:
        headers = bearer(sign({"exp": int(time.time()) + 300}))
        assert web.client.get(STATS, headers=headers).status_code == 200
        clock.advance(301_000)
        assert web.client.get(STATS, headers=headers).status_code == 401


def test_tokens_for_an_audience(tmp_path: Path) -> None:
    with world(tmp_path, auth_mode="bearer", jwt_secret="change_me", jwt_audience="rookery") as web:
        for claims, status in (
            ({"aud": "rookery"}, 200),
            ({"aud": ["x", "rookery"]}, 200),
            ({"aud": "x"}, 401),
            ({}, 401),
        ):
            assert web.client.get(STATS, headers=bearer(sign(claims, "change_me"))).status_code == status


RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> str:
    public = key.public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return str(public.public_bytes(serialization.Encoding.PEM, form).decode())


@pytest.mark.parametrize(("key", "algorithm", "other"), [(RSA_KEY, "RS256", EC_KEY), (EC_KEY, "ES256", RSA_KEY)])
def test_tokens_by_public_key(tmp_path: Path, key: Any, algorithm: str, other: Any) -> None:
    (tmp_path / "key.pem").write_text(pem(key))
    with world(tmp_path, auth_mode="bearer", jwt_key_file="key.pem") as web:
        assert web.client.get(STATS, headers=bearer(sign({"sub": "a"}, key, algorithm))).status_code == 200
        wrong = "ES256" if algorithm == "RS256" else "RS256"
        assert web.client.get(STATS, headers=bearer(sign({"sub": "a"}, other, wrong))).status_code == 401
        # the public key must not do as a secret
        head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
        body = base64.urlsafe_b64encode(b'{"sub":"a"}').rstrip(b"=")
        import hmac

        signature = base64.urlsafe_b64encode(hmac.digest(pem(key).encode(), head + b"." + body, "sha256")).rstrip(b"=")
        forged = b".".join([head, body, signature]).decode()
        assert web.client.get(STATS, headers=bearer(forged)).status_code == 401


def test_tokens_by_a_set_of_keys(tmp_path: Path) -> None:
    keys = []
    for kid, key in (("one", RSA_KEY), ("two", EC_KEY)):
        algorithm: Any = jwt.algorithms.RSAAlgorithm if key is RSA_KEY else jwt.algorithms.ECAlgorithm
        keys.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": keys}))
    with world(tmp_path, auth_mode="bearer", jwt_key_file="jwks.json") as web:
        for token, status in (
            (sign({}, RSA_KEY, "RS256", headers={"kid": "one"}), 200),
            (sign({}, EC_KEY, "ES256", headers={"kid": "two"}), 200),
            (sign({}, EC_KEY, "ES256"), 200),
            (sign({}, EC_KEY, "ES256", headers={"kid": "one"}), 401),
        ):
            assert web.client.get(STATS, headers=bearer(token)).status_code == status


@pytest.mark.parametrize("text", ["", "{", '{"keys": []}', "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----"])
def test_a_key_file_that_holds_no_key_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(InvalidConfig) as caught, world(tmp_path, auth_mode="bearer", jwt_key_file="key"):
        pass
    assert caught.value.argument == "ROOKERY_JWT_KEY_FILE"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("127.0.0.1:1", True),
        ("[::1]:80", True),
        ("localhost.evil.example", False),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_names_of_this_machine(host: str, expected: bool) -> None:
    assert is_loopback_name(host) is expected


def test_no_secret_is_logged(web: World) -> None:
    key = web.key("logged")
    web.client.get(STATS, headers=bearer(key))
    web.client.get(f"{STATS}?token={key}", headers=basic("nobody", "hunter2-secret"))
    log = web.log.getvalue()
    assert key.partition(".")[2] not in log
    assert "hunter2" not in log
    assert ADMIN not in log


def test_too_many_wrong_passwords_are_not_listened_to(tmp_path: Path) -> None:
    clock = ManualClock()
    with world(tmp_path, clock, login_failures_max="3") as web:
        web.inside(lambda s: s.access.set_user("ada", password="pw", tenants={"default": FULL}))
        statuses = [web.client.get(STATS, headers=basic("ada", f"guess {n}")).status_code for n in range(4)]
        assert statuses == [401, 401, 401, 429]
        assert web.client.get(STATS, headers=basic("ada", "pw")).status_code == 429
        assert web.admin.get(STATS).status_code == 200
        clock.advance(60_000)
        assert web.client.get(STATS, headers=basic("ada", "pw")).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "ApiKey"])
def test_keys_cannot_be_guessed_without_limit(tmp_path: Path, scheme: str) -> None:
    clock = ManualClock()
    with world(tmp_path, clock, login_failures_max="3") as web:
        key = web.key("shop")
        with web.connect() as kept:
            # one that is shown on an open connection goes on
            kept.send(request("GET", STATS, Authorization=f"{scheme} {key}"))
            assert kept.answer()[0] == 200
            wrong = [{"Authorization": f"{scheme} guess-{n}"} for n in range(31)]
            answers = [web.client.get(STATS, headers=headers) for headers in wrong]
            assert [answer.status_code for answer in answers] == [401] * 30 + [429]
            assert answers[-1].headers["Retry-After"] == "60"
            kept.send(request("GET", STATS, Authorization=f"{scheme} {key}"))
            assert kept.answer()[0] == 200
        # a right one is not told from a wrong one meanwhile
        fresh = {"Authorization": f"{scheme} {key}", "Connection": "close"}
        assert web.client.get(STATS, headers=fresh).status_code == 429
        clock.advance(60_000)
        assert web.client.get(STATS, headers=fresh).status_code == 200


def test_one_who_repeats_an_old_key_does_not_lock_out_the_others(tmp_path: Path) -> None:
    with world(tmp_path, login_failures_max="3") as web:
        statuses = [web.client.get(STATS, headers=bearer("revoked-long-ago")).status_code for _ in range(100)]
        assert statuses == [401] * 3 + [429] * 97
        assert web.large("shop").get(STATS).status_code == 200


def test_wrong_keys_over_the_line_protocol_do_not_lock_out_right_ones(tmp_path: Path) -> None:
    with world(tmp_path, login_failures_max="3", line_port=0) as web:
        line = int(web.server.addresses["line"].rpartition(":")[2])

        def log_in(key: str) -> str:
            with socket.create_connection(("127.0.0.1", line), 30) as peer:
                peer.sendall(f"AUTH {key}\n".encode())
                return peer.makefile().readline().strip()

        refused = "Error: too many logins failed; try again later"
        assert [log_in("old.key") for _ in range(5)] == ["Error: invalid API key"] * 3 + [refused] * 2
        assert log_in("other.key") == "Error: invalid API key"
        assert log_in(web.key("shop")) == "Authenticated successfully"
        # one count serves all protocols
        assert web.client.get(STATS, headers=bearer("old.key")).status_code == 429


def test_leaving_before_the_answer_counts_as_a_failure(tmp_path: Path) -> None:
    with world(tmp_path, login_failures_max="3") as web:
        web.inside(lambda s: s.access.set_user("ada", password="pw", tenants={"default": FULL}))
        for number in range(3):
            with web.connect() as peer:
                peer.send(request("GET", STATS, **basic("ada", f"guess {number}")))
        end = time.monotonic() + 30
        while not web.inside(lambda s: s._logins.failed.refused("127.0.0.1", "ada", s.clock.mono_ms())):
            assert time.monotonic() < end
        assert web.client.get(STATS, headers=basic("ada", "pw")).status_code == 429


def test_a_user_name_that_is_no_text_is_a_failure_like_others(tmp_path: Path) -> None:
    with world(tmp_path, login_failures_max="3", line_port=0) as web:
        line = int(web.server.addresses["line"].rpartition(":")[2])
        answers = []
        for _ in range(4):
            with socket.create_connection(("127.0.0.1", line), 30) as peer:
                peer.sendall(b"AUTH caf\xe9 secret\n")
                answers.append(peer.makefile().readline().strip())
        assert answers == ["Error: invalid user name or password"] * 3 + [
            "Error: too many logins failed; try again later"
        ]
        assert len(web.lines("login_failed")) == 3
        amqp = int(web.server.addresses["amqp"].rpartition(":")[2])
        for number in range(4):
            with socket.create_connection(("127.0.0.1", amqp), 30) as peer:
                peer.sendall(PROTOCOL + start_ok("gr\xfcn", "wrong").replace(b"gr\xc3\xbcn", b"gr\xfc\xfcn"))
                while peer.recv(4096):
                    pass
            assert len(web.lines("login_failed")) == 3 + min(number + 1, 3)

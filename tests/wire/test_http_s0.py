"""The small queue API at the root, as its clients know it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rookery.clock import ManualClock
from tests.wire.http_world import World, request, world

KEY = re.compile(r"[A-Za-z0-9_-]{11}\.[A-Za-z0-9_-]{22}")
ID = re.compile(r"[A-Za-z0-9_-]{22}")


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[World]:
    """Leases and delays pass when the clock is told to; an empty queue is waited for a moment only."""
    with world(tmp_path_factory.mktemp("s0"), clock, claim_wait_sec="0.05") as made:
        yield made


class Small:
    """One tenant's client."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def publish(self, queue: str, body: str | bytes) -> str:
        answer = self.client.post("/publish", params={"queue": queue}, content=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["message_id"])

    def claim(self, queue: str) -> httpx.Response:
        return self.client.get("/claim", params={"queue": queue})

    def ack(self, queue: str, message_id: str, **more: str) -> httpx.Response:
        return self.client.post("/ack", params={"queue": queue, "message_id": message_id, **more})

    def stats(self, queue: str) -> tuple[int, int, int]:
        answer = self.client.get("/stats", params={"queue": queue})
        assert answer.status_code == 200
        assert list(answer.json()) == ["Pending", "InFlight", "DeadLetter"]
        pending, in_flight, dead = answer.json().values()
        return pending, in_flight, dead


@pytest.fixture
def small(web: World, request: pytest.FixtureRequest) -> Small:
    return Small(web.small(f"t-{request.node.name}"[:100]))


@pytest.mark.row("S0-1")
def test_tenants_do_not_see_each_other(web: World) -> None:
    a, b = Small(web.small("tenant-a")), Small(web.small("tenant-b"))
    a.publish("q", "secret")
    assert b.stats("q") == (0, 0, 0)
    assert b.claim("q").status_code == 404
    assert a.stats("q") == (1, 0, 0)


@pytest.mark.row("S0-2", "S0-24", "S0-11")
def test_a_message_is_in_flight_until_it_is_acked(small: Small) -> None:
    message_id = small.publish("q", "x")
    assert small.claim("q").json()["message_id"] == message_id
    assert small.stats("q") == (0, 1, 0)
    acked = small.ack("q", message_id)
    assert (acked.status_code, acked.content) == (200, b'{"status":"ok"}')
    assert small.stats("q") == (0, 0, 0)


@pytest.mark.row("S0-3", "S0-32", "S0-35")
def test_a_message_that_is_not_acked_in_time_comes_back_to_its_place(small: Small, clock: ManualClock) -> None:
    first, second = small.publish("q", "1"), small.publish("q", "2")
    assert small.claim("q").json()["message_id"] == first
    clock.advance(4_900)
    assert small.stats("q") == (1, 1, 0)
    clock.advance(100)
    assert small.claim("q").json()["message_id"] == first
    assert small.claim("q").json()["message_id"] == second


@pytest.mark.row("S0-4", "S0-5", "S0-33")
def test_three_deliveries_and_no_more(small: Small, clock: ManualClock) -> None:
    message_id = small.publish("q", "x")
    for _ in range(3):
        assert small.claim("q").json()["message_id"] == message_id
        clock.advance(5_000)
    # the third lapse moves it, nobody needs to claim once more
    assert small.stats("q") == (0, 0, 1)
    assert small.claim("q").status_code == 404


@pytest.mark.row("S0-7", "S0-40", "S0-30")
def test_nothing_to_claim(small: Small) -> None:
    answer = small.claim("unheard-of")
    assert (answer.status_code, answer.content) == (404, b'{"error":"timeout: no messages available"}')
    assert answer.headers["content-type"] == "application/json"
    assert small.stats("never used") == (0, 0, 0)
    assert small.ack("also new", "A" * 22).status_code == 404


@pytest.mark.row("S0-6", "S0-32")
def test_the_defaults(tmp_path: Path) -> None:
    with world(tmp_path) as web:
        settings = web.settings
        assert (settings.claim_wait_sec, settings.claim_lease_sec, settings.claim_max_attempts) == (5.0, 5.0, 3)
        waits: list[int] = []
        later = web.face.later

        def spy(delay_ms: int, work: Any) -> Any:
            waits.append(delay_ms)
            return later(0, work)

        web.face.later = spy
        assert Small(web.small("t")).claim("q").status_code == 404
        assert waits == [5_000]


@pytest.mark.row("S0-8")
def test_a_waiting_claim_is_woken_by_a_publish(tmp_path: Path) -> None:
    with world(tmp_path, claim_wait_sec="600") as web:
        small = Small(web.small("t"))
        got: list[httpx.Response] = []
        other = Small(web.small("t"))
        waiting = threading.Thread(target=lambda: got.append(other.claim("q")))
        waiting.start()
        while not web.inside(lambda s: _waiting(s)):
            pass
        message_id = small.publish("q", "wake up")
        waiting.join(30)
        assert got[0].json() == {"message_id": message_id, "payload": "wake up"}


def _waiting(server: Any) -> int:
    queue = server.engine.shard.tenants["t"].queues.get("q")
    return 0 if queue is None else int(queue.waiting_claims())


@pytest.mark.row("S0-14", "S0-27")
@pytest.mark.parametrize("shown", [None, "", "ApiKey", "apikey {key}", "APIKEY {key}", "ApiKey  {key}", "Token {key}"])
@pytest.mark.parametrize("path", ["/publish", "/claim", "/ack", "/stats"])
def test_without_a_key_nothing_else_is_looked_at(web: World, shown: str | None, path: str) -> None:
    headers = {} if shown is None else {"Authorization": shown.format(key=web.key("keyless"))}
    for query in ("", "?queue=q"):
        answer = web.client.post(path + (query or "?queue="), headers=headers)
        assert (answer.status_code, answer.content) == (401, b'{"error":"missing api key"}')


@pytest.mark.row("S0-14")
def test_the_key_is_trimmed(web: World) -> None:
    key = web.key("trimmed")
    with web.connect() as raw:
        raw.send(request("GET", "/stats?queue=q", Authorization=f"ApiKey {key} \t"))
        assert raw.answer()[0] == 200


@pytest.mark.row("S0-28")
def test_a_wrong_key_is_401_everywhere(web: World) -> None:
    kid, _, secret = web.key("wronged").partition(".")
    swapped = secret[:-2] + ("AA" if secret[-2:] != "AA" else "BA")
    for key in (f"{kid}.{swapped}", f"{'A' * 11}.{secret}", "nonsense", f"{kid}.", f"{kid}.{secret}x"):
        for path in ("/publish", "/claim", "/ack", "/stats"):
            answer = web.client.get(f"{path}?queue=q&message_id=x", headers={"Authorization": f"ApiKey {key}"})
            assert (answer.status_code, answer.content) == (401, b'{"error":"unauthorized: invalid API key"}')


@pytest.mark.row("S0-15", "S0-16", "S0-17")
def test_keys_are_made_from_this_machine(web: World) -> None:
    answer = web.client.get("/create_key", params={"tenant": "my-tenant"})
    assert answer.status_code == 200
    assert list(answer.json()) == ["api_key", "tenant"]
    assert answer.json()["tenant"] == "my-tenant"
    first = answer.json()["api_key"]
    # one more key of a tenant that exists takes a key of it, or an admin's
    assert web.client.get("/create_key", params={"tenant": "my-tenant"}).status_code == 403
    own = {"Authorization": f"ApiKey {first}"}
    second = web.client.get("/create_key", params={"tenant": "my-tenant"}, headers=own).json()["api_key"]
    assert KEY.fullmatch(first)
    assert KEY.fullmatch(second)
    assert first != second
    one, two = ({"Authorization": f"ApiKey {key}"} for key in (first, second))
    web.client.post("/publish?queue=q", content="x", headers=one)
    assert web.client.get("/stats?queue=q", headers=two).json()["Pending"] == 1


@pytest.mark.row("S0-18")
def test_a_key_needs_a_tenant(web: World) -> None:
    for path in ("/create_key", "/create_key?tenant="):
        answer = web.client.get(path)
        assert (answer.status_code, answer.content) == (400, b'{"error":"tenant ID required"}')


@pytest.mark.row("S0-19")
def test_who_may_make_keys(web: World, tmp_path: Path) -> None:
    for header in ("Origin", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Via"):
        refused = web.client.get("/create_key?tenant=x", headers={header: "127.0.0.1"})
        assert refused.status_code == 403, header
    assert web.client.get("/create_key?tenant=x", headers={"Host": "broker.example"}).status_code == 403
    assert web.client.get("/create_key?tenant=default").status_code == 403
    assert web.admin.get("/create_key?tenant=default", headers={"Via": "proxy"}).status_code == 200
    made = web.client.get("/create_key?tenant=x").json()["api_key"]
    theirs = {"Authorization": f"Bearer {made}"}
    assert web.client.post("/keys", json={"tenant": "x", "admin": True}, headers=theirs).status_code == 403
    for mode, statuses in (("admin", (401, 200)), ("closed", (403, 403)), ("open", (200, 200))):
        with world(tmp_path, key_creation=mode) as other:
            by_nobody = other.client.get("/create_key?tenant=x", headers={"Via": "proxy"}).status_code
            assert (by_nobody, other.admin.get("/create_key?tenant=y").status_code) == statuses, mode


@pytest.mark.row("S0-20")
def test_message_ids(small: Small) -> None:
    ids = {small.publish("q", "same") for _ in range(50)}
    assert len(ids) == 50
    assert all(ID.fullmatch(message_id) for message_id in ids)


@pytest.mark.row("S0-21", "S0-23")
@pytest.mark.parametrize("body", ["plain text", '{"a": [1, 2.50, null]}', "ümläut ☃ \u0000 \t", "  spaces  ", '"'])
def test_a_body_comes_back_unchanged(small: Small, body: str) -> None:
    message_id = small.publish("q", body)
    answer = small.claim("q")
    assert answer.json() == {"message_id": message_id, "payload": body}
    assert answer.headers["x-lease"]


@pytest.mark.row("S0-21")
def test_a_body_that_is_no_text_comes_in_base64_too(small: Small) -> None:
    small.publish("q", b"\xff\x00\xfe")
    answer = small.claim("q").json()
    assert answer["payload_base64"] == "/wD+"
    assert answer["payload"] == "\ufffd\x00\ufffd"


@pytest.mark.row("S0-22", "S0-26")
def test_what_must_be_said(small: Small) -> None:
    client = small.client
    empty = client.post("/publish?queue=q")
    assert (empty.status_code, empty.content) == (400, b'{"error":"request body required"}')
    for method, path in (("POST", "/publish"), ("GET", "/claim"), ("GET", "/stats")):
        answer = client.request(method, path, content="x")
        assert (answer.status_code, answer.content) == (400, b'{"error":"queue name required"}'), path
    for query in ("", "?queue=q", "?message_id=x"):
        answer = client.post("/ack" + query)
        assert (answer.status_code, answer.content) == (400, b'{"error":"queue name and message_id required"}')


@pytest.mark.row("S0-25")
def test_an_ack_that_finds_nothing(small: Small, clock: ManualClock) -> None:
    message_id = small.publish("q", "x")
    unclaimed = small.ack("q", message_id)
    text = f'{{"error":"message not found in-flight: {message_id}"}}'.encode()
    assert (unclaimed.status_code, unclaimed.content) == (404, text)
    small.claim("q")
    assert small.ack("elsewhere", message_id).content == text
    clock.advance(5_000)
    assert small.ack("q", message_id).content == text
    small.claim("q")
    assert small.ack("q", message_id).status_code == 200
    assert (small.ack("q", message_id).status_code, small.ack("q", message_id).content) == (404, text)
    odd = small.ack("q", 'a"b')
    assert odd.json() == {"error": 'message not found in-flight: a"b'}


def test_a_lease_fences_late_acks(small: Small, clock: ManualClock) -> None:
    message_id = small.publish("q", "x")
    old = small.claim("q").headers["x-lease"]
    clock.advance(5_000)
    new = small.claim("q").headers["x-lease"]
    assert small.ack("q", message_id, lease=old).status_code == 404
    assert small.ack("q", message_id, lease=new).status_code == 200
    # also where a header cannot spell the queue's name
    message_id = small.publish("ü☃", "x")
    lease = small.claim("ü☃").headers["x-lease"]
    assert lease.isascii()
    assert small.ack("ü☃", message_id, lease=lease).status_code == 200


@pytest.mark.row("S0-29")
def test_get_and_post_are_the_same(small: Small) -> None:
    client = small.client
    assert client.post("/create_key?tenant=any-verb").status_code == 200
    message_id = client.request("GET", "/publish?queue=q", content="x").json()["message_id"]
    assert client.post("/claim?queue=q").json()["message_id"] == message_id
    assert client.post("/stats?queue=q").json()["InFlight"] == 1
    assert client.get("/ack", params={"queue": "q", "message_id": message_id}).json() == {"status": "ok"}
    assert client.delete("/claim?queue=q").status_code == 405


@pytest.mark.row("S0-31")
def test_a_colon_in_a_name_reaches_nobody_else(web: World) -> None:
    one, two = Small(web.small("a")), Small(web.small("a:b"))
    one.publish("b:c", "for a")
    assert two.stats("c") == (0, 0, 0)
    assert two.claim("c").status_code == 404
    two.publish("c", "for a:b")
    assert one.stats("b:c") == (1, 0, 0)
    assert one.claim("b:c").json()["payload"] == "for a"


def test_to_look_at_a_queue_does_not_make_it(web: World) -> None:
    client = web.large("looks")
    assert Small(client).stats("unknown") == (0, 0, 0)
    assert client.get("/dead_letters?queue=unknown").json()["dead_letters"] == []
    assert client.get("/api/v1/queues/unknown/stats").json()["ready"] == 0
    assert client.get("/api/v1/queues/unknown/peek").json() == {"message": None, "messages": []}
    assert client.get("/api/v1/topics/unknown/stats").json()["published"] == 0
    assert client.get("/api/v1/queues").json()["queues"] == []
    assert "unknown" not in [exchange["name"] for exchange in client.get("/api/v1/exchanges").json()["exchanges"]]


@pytest.mark.row("S0-36")
def test_ten_thousand_lapses_at_once(small: Small, web: World, clock: ManualClock) -> None:
    def fill(server: Any) -> None:
        tenant = next(t for name, t in server.engine.shard.tenants.items() if "ten_thousand" in name)
        for n in range(10_000):
            server.engine.shard.publish(tenant, "", "q", b"\x00\x00", str(n).encode())
        assert len(tenant.queues["q"].claim(10_000, 5_000)) == 10_000

    assert small.claim("q").status_code == 404
    web.inside(fill)
    assert small.stats("q") == (0, 10_000, 0)
    clock.advance(5_000)
    assert small.stats("q") == (10_000, 0, 0)
    assert small.claim("q").json()["payload"] == "0"


@pytest.mark.row("S0-37")
def test_dead_letters_are_listed_redriven_and_purged(small: Small, clock: ManualClock) -> None:
    ids = [small.publish("q", f"m{n}") for n in range(3)]
    for _ in range(3):
        for message_id in ids:
            assert small.claim("q").json()["message_id"] == message_id
            clock.advance(1)
        clock.advance(5_000)
    assert small.stats("q") == (0, 0, 3)
    client = small.client
    letters = client.get("/dead_letters?queue=q").json()["dead_letters"]
    assert [(letter["message_id"], letter["payload"], letter["attempts"]) for letter in letters] == [
        (ids[n], f"m{n}", 3) for n in range(3)
    ]
    assert letters[0]["reason"].startswith("ack timeout")
    assert len(client.get("/dead_letters?queue=q&limit=1").json()["dead_letters"]) == 1
    assert client.get("/dead_letters?queue=other").json()["dead_letters"] == []
    one = client.post("/dead_letters/redrive", params={"queue": "q", "message_id": ids[1]})
    assert one.json() == {"count": 1}
    assert small.stats("q") == (1, 0, 2)
    assert small.claim("q").json() == {"message_id": ids[1], "payload": "m1"}
    assert client.post("/dead_letters/redrive?queue=q&limit=1").json() == {"count": 1}
    assert client.delete("/dead_letters?queue=q").json() == {"count": 1}
    assert small.stats("q") == (1, 1, 0)
    # the dead-letter queue is a queue like any other
    assert small.stats("q.DLQ") == (0, 0, 0)


@pytest.mark.row("S0-38")
def test_a_revoked_key_is_dead_at_once(web: World) -> None:
    kept, lost = web.small("revoking"), web.small("revoking")
    assert lost.get("/stats?queue=q").status_code == 200
    kid = lost.headers["authorization"].removeprefix("ApiKey ").partition(".")[0]
    assert web.small("another").delete(f"/keys/{kid}").status_code == 404
    assert web.client.delete(f"/keys/{kid}").status_code == 401
    assert kept.delete(f"/keys/{kid}").json() == {"status": "ok", "kid": kid}
    assert lost.get("/stats?queue=q").status_code == 401
    assert kept.delete(f"/keys/{kid}").status_code == 404


@pytest.mark.row("S0-39")
def test_a_lease_is_extended(small: Small, clock: ManualClock) -> None:
    message_id = small.publish("q", "x")
    small.claim("q")
    clock.advance(4_000)
    extend = {"queue": "q", "message_id": message_id, "seconds": "60"}
    assert small.client.post("/extend", params=extend).json() == {"status": "ok"}
    clock.advance(59_000)
    assert small.stats("q") == (0, 1, 0)
    clock.advance(1_000)
    assert small.stats("q") == (1, 0, 0)
    assert small.client.post("/extend", params=extend).status_code == 404
    assert small.client.post("/extend", params={**extend, "seconds": "0"}).status_code == 400
    assert small.client.post("/extend", params={**extend, "seconds": "long"}).status_code == 400


def test_messages_of_other_faces_are_acked_by_their_id(small: Small, web: World) -> None:
    """An id settles the lease that the message is under now, whoever claimed it."""
    message_id = small.publish("q", "x")
    key = small.client.headers["authorization"].replace("ApiKey", "Bearer")
    pulled = web.client.post("/api/v1/queues/q/pull", headers={"Authorization": key}).json()
    assert pulled["message"] == "x"
    assert small.ack("q", message_id).status_code == 200

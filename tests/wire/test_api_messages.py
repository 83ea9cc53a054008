"""Messages of queues and exchanges over the native API: batches, claims, settling, dead letters, transactions."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rookery.clock import ManualClock
from rookery.format import properties
from rookery.format.properties import Properties
from rookery.wire.packed import PACKED
from tests.wire.api_client import API, LINES, claim, ok, publish, refused
from tests.wire.http_world import World, world

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("api"), clock, store_backend="journal") as made:
        yield made


@pytest.fixture
def client(web: World, request: pytest.FixtureRequest) -> httpx.Client:
    return web.large(f"t-{request.node.name}"[:100])


# Publishing


def test_a_batch_is_published_whole(client: httpx.Client) -> None:
    ids = publish(client, "q", 1, {"two": 2}, "three")
    got = claim(client, "q")
    assert [row["message"] for row in got] == [1, {"two": 2}, "three"]
    assert [row["message_id"] for row in got] == ids
    few = ok(client.post(f"{API}/queues/q/messages?ids=false", json=[{"message": 1}] * 3), 201)
    assert few == {"count": 3}
    one = ok(client.post(f"{API}/queues/q/messages", json={"message": 1}), 201)
    assert list(one) == ["message_id"]


def test_lines_of_json_are_messages(client: httpx.Client) -> None:
    body = '{"message": 1}\n\n{"message": "two"}\n'
    assert ok(client.post(f"{API}/queues/q/messages", content=body, headers=LINES), 201)["count"] == 2
    more = '{"message": 3, "priority": 5}\n{"message": 4, "headers": {"a": 1}}'
    assert ok(client.post(f"{API}/queues/q/messages", content=more, headers=LINES), 201)["count"] == 2
    got = claim(client, "q")
    assert [row["message"] for row in got] == [3, 1, "two", 4]
    assert got[0]["priority"] == 5
    assert got[3]["headers"] == {"a": 1}


def test_bytes_are_a_message_as_they_are(client: httpx.Client) -> None:
    body = bytes(range(256))
    sent = client.post(
        f"{API}/queues/q/messages?priority=3&correlation_id=c&message_id=mine",
        content=body,
        headers={"Content-Type": "application/octet-stream", "X-Header-Colour": "red"},
    )
    assert ok(sent, 201) == {"message_id": "mine"}
    (got,) = claim(client, "q")
    assert base64.b64decode(got["message_base64"]) == body
    assert got["message"] is None
    assert (got["headers"], got["content_type"]) == ({"colour": "red"}, "application/octet-stream")
    assert (got["priority"], got["correlation_id"], got["message_id"]) == (3, "c", "mine")
    ok(client.post(f"{API}/queues/q/messages", content="text", headers={"Content-Type": "text/plain"}), 201)
    assert claim(client, "q")[0]["message"] == "text"
    assert refused(client.post(f"{API}/queues/q/messages", content=b""), 400, "body") == "invalid_argument"


def test_what_a_message_says_is_kept(client: httpx.Client, clock: ManualClock) -> None:
    said = {
        "message": "plain text",
        "content_type": "text/plain",
        "message_id": "m-1",
        "correlation_id": "c-1",
        "reply_to": "r",
        "type": "t",
        "headers": {"n": 1, "deep": {"x": [1, 2]}},
        "timestamp_ms": 1_700_000_000_000,
        "ttl_ms": 60_000,
    }
    ok(client.post(f"{API}/queues/q/messages", json=[said, {"message_base64": "AAE="}]), 201)
    got = claim(client, "q")
    for field in ("message", "content_type", "message_id", "correlation_id", "reply_to", "type", "headers"):
        assert got[0][field] == said[field]
    assert got[0]["timestamp_ms"] == 1_700_000_000_000
    assert got[0]["expires_ms"] == clock.wall_ms() + 60_000
    assert got[1]["message"] == "\x00\x01"
    assert "content_type" not in got[1]


def test_a_wrong_message_refuses_the_batch(client: httpx.Client) -> None:
    def post(*items: Any) -> httpx.Response:
        return client.post(f"{API}/queues/q/messages", json=list(items))

    good = {"message": 1}
    refused(post(good, {"message": 2, "colour": 1}), 400)
    refused(post(good, {}), 400, "[1].message")
    refused(post(good, {"message": 1, "message_base64": ""}), 400, "[1].message_base64")
    refused(post(good, {"message_base64": "%"}), 400, "[1].message_base64")
    refused(post(good, {"message": 1, "delay_ms": 1, "deliver_at": 1}), 400, "[1].delay_ms")
    refused(post(good, {"message": 1, "headers": {"x": 1 << 70}}), 400, "[1].headers")
    refused(post(good, {"message": 1, "idempotency_key": "ü" * 200}), 400, "[1].idempotency_key")
    refused(post(good, {"message": 1, "routing_key": "other"}), 400, "[1].routing_key")
    refused(post(), 400, "body")
    refused(post(*[good] * 10_001), 400, "body")
    for bad in (
        b"[",
        b'[{"message": 1}',
        b'[{"message": 01}]',
        b'{"message": "\xff"}',
        b'[{"message": "\xff"}]',
        b"[1]",
        b'"x"',
    ):
        headers = {"Content-Type": "application/json"}
        refused(client.post(f"{API}/queues/q/messages", content=bad, headers=headers), 400)
    deep = b'{"message": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    for bad in (b'{"message": 1}\n{', b'{"message": "\xff"}\n', b'{"message": 1}\n' + deep):
        refused(client.post(f"{API}/queues/q/messages", content=bad, headers=LINES), 400)
        refused(client.post(f"{API}/queues/q/messages", content=b"[" + bad.partition(b"\n")[2] + b"]"), 400)
    assert claim(client, "q") == []


def test_json_that_is_nested_too_deeply_is_refused_or_shown_as_text(client: httpx.Client) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    said = b'{"message": ' + deep + b"}"
    for path in ("messages", "publish"):
        answer = client.post(f"{API}/queues/q/{path}", content=said, headers={"Content-Type": "application/json"})
        refused(answer, 400, "body")
    sent = client.post(f"{API}/queues/q/messages", content=deep, headers={"Content-Type": "application/x+json"})
    ok(sent, 201)
    assert claim(client, "q")[0]["message"] == deep.decode()
    shallow: Any = [{"n": n} for n in range(2_000)]
    publish(client, "q", shallow, shallow)
    assert [row["message"] for row in claim(client, "q")] == [shallow, shallow]


def test_a_batch_that_does_not_fit_is_refused_whole(client: httpx.Client) -> None:
    ok(client.put(f"{API}/queues/small", json={"length_max": 2, "overflow": "reject-publish"}), 201)
    refused(client.post(f"{API}/queues/small/messages", json=[{"message": n} for n in range(3)]), 429)
    keyed = [{"message": n, "idempotency_key": str(n)} for n in range(3)]
    refused(client.post(f"{API}/queues/small/messages", json=keyed), 429)
    assert claim(client, "small") == []


def test_what_there_is_no_room_for_is_refused_for_now(web: World, client: httpx.Client) -> None:
    tenant = ok(client.get(f"{API}/stats"))["tenant"]
    ok(client.put(f"{API}/streams/s"), 201)
    ok(web.admin.put(f"{API}/tenants/{tenant}/limits", json={"memory_bytes_max": 10_000}))
    large = [{"message": "x" * 5_000}] * 3
    for url in ("queues/q/messages", "streams/s/publish"):
        answer = client.post(f"{API}/{url}", json=large)
        assert refused(answer, 503) == "memory_limit_exceeded"
        assert answer.headers["retry-after"]
    ok(web.admin.put(f"{API}/tenants/{tenant}/limits", json={"message_bytes_max": 1_000, "memory_bytes_max": 0}))
    assert refused(client.post(f"{API}/queues/q/messages", json=large), 413) == "message_too_large"
    assert claim(client, "q") == []
    refused(client.post(f"{API}/queues/q/claim", json={"max": 1_001}), 400, "max")


def test_a_repeated_key_of_a_batch_adds_nothing(client: httpx.Client) -> None:
    batch = [{"message": n, "idempotency_key": key} for n, key in enumerate("aba")]
    first = ok(client.post(f"{API}/queues/q/messages", json=batch), 201)["messages"]
    assert [row.get("duplicate", False) for row in first] == [False, False, True]
    assert first[2]["message_id"] == first[0]["message_id"]
    again = ok(client.post(f"{API}/queues/q/messages", json=batch), 201)["messages"]
    assert [row["duplicate"] for row in again] == [True] * 3
    one = client.post(f"{API}/queues/q/messages", json=batch[0])
    assert ok(one, 200) == {"message_id": first[0]["message_id"], "duplicate": True}
    assert [row["message"] for row in claim(client, "q")] == [0, 1]


def test_delays_and_priorities_hold(client: httpx.Client, clock: ManualClock) -> None:
    items = [{"message": "late", "delay_ms": 1_000}, {"message": "low"}, {"message": "high", "priority": 9}]
    ok(client.post(f"{API}/queues/q/messages", json=items), 201)
    assert [row["message"] for row in claim(client, "q")] == ["high", "low"]
    clock.advance(1_000)
    assert [row["message"] for row in claim(client, "q")] == ["late"]


def test_an_exchange_routes_a_batch(client: httpx.Client) -> None:
    ok(client.put(f"{API}/exchanges/x", json={"kind": "topic"}), 201)
    ok(client.put(f"{API}/queues/a"), 201)
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "a", "key": "a.*"}), 201)
    batch = [{"message": 1, "routing_key": "a.b"}, {"message": 2, "routing_key": "c"}, {"message": 3}]
    assert ok(client.post(f"{API}/exchanges/x/messages?routing_key=a.c", json=batch), 201)["count"] == 3
    plain = [{"message": 4}, {"message": 5}]
    ok(client.post(f"{API}/exchanges/x/messages?routing_key=a.d", json=plain), 201)
    got = claim(client, "a")
    assert [(row["message"], row["routing_key"]) for row in got] == [(1, "a.b"), (3, "a.c"), (4, "a.d"), (5, "a.d")]
    assert {row["exchange"] for row in got} == {"x"}
    lost = client.post(f"{API}/exchanges/x/messages?routing_key=c&mandatory=true", json=[{"message": 1}])
    assert refused(lost, 422) == "unroutable"
    assert refused(client.post(f"{API}/exchanges/none/messages", json=[{"message": 1}]), 404) == "exchange_not_found"
    ok(client.put(f"{API}/exchanges/i", json={"kind": "fanout", "internal": True}), 201)
    refused(client.post(f"{API}/exchanges/i/messages", json=[{"message": 1}]), 400, "exchange")


# CloudEvents and traces

EVENT = {"specversion": "1.0", "id": "e-1", "source": "/here", "type": "made", "time": "2026-01-02T03:04:05Z"}


def test_events_are_understood_in_binary_mode(client: httpx.Client) -> None:
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    headers |= {"ce-comment": "Z%C3%BCrich", "Content-Type": "application/json"}
    ok(client.post(f"{API}/queues/q/messages", content=b'{"n": 1}', headers=headers), 201)
    (got,) = claim(client, "q")
    assert got["message"] == {"n": 1}
    assert got["message_id"] == "e-1"
    assert got["type"] == "made"
    assert got["timestamp_ms"] == 1_767_323_045_000
    assert got["headers"]["cloudEvents:source"] == "/here"
    assert got["headers"]["cloudEvents:comment"] == "Zürich"


def test_events_are_understood_in_structured_mode(client: httpx.Client) -> None:
    kind = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    url = f"{API}/queues/q/messages"
    ok(client.post(url, json={**EVENT, "data": {"n": 1}}, headers=kind), 201)
    ok(client.post(url, json={**EVENT, "data_base64": "AAH/", "datacontenttype": "image/png"}, headers=kind), 201)
    ok(client.post(url, json={**EVENT, "data": "hi", "datacontenttype": "text/plain"}, headers=kind), 201)
    ok(client.post(url, json=EVENT, headers=kind), 201)
    many = {"Content-Type": "application/cloudevents-batch+json"}
    assert ok(client.post(url, json=[{**EVENT, "data": 5}] * 2, headers=many), 201)["count"] == 2
    got = claim(client, "q")
    assert [row["message"] for row in got] == [{"n": 1}, None, "hi", "", 5, 5]
    assert (got[1]["message_base64"], got[1]["content_type"]) == ("AAH/", "image/png")
    assert all(row["headers"]["cloudEvents:type"] == "made" for row in got)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"id": ""}, "id"),
        ({"source": None}, "source"),
        ({"specversion": "0.3"}, "specversion"),
        ({"Bad-Name": "x"}, "event"),
        ({"own": [1]}, "own"),
        ({"time": "yesterday"}, "time"),
        ({"data_base64": "%"}, "data_base64"),
        ({"data": 1, "data_base64": ""}, "data_base64"),
        ({"datacontenttype": 1, "data": 1}, "datacontenttype"),
    ],
)
def test_events_that_are_none_are_refused(client: httpx.Client, change: dict[str, Any], argument: str) -> None:
    headers = {"Content-Type": "application/cloudevents+json"}
    refused(client.post(f"{API}/queues/q/messages", json={**EVENT, **change}, headers=headers), 400, argument)
    headers = {"Content-Type": "application/cloudevents+avro"}
    refused(client.post(f"{API}/queues/q/messages", content=b"x", headers=headers), 415)


def test_traces_are_carried_from_publish_to_claim(client: httpx.Client) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    ok(client.post(f"{API}/queues/q/messages", json=[{"message": 1}], headers=headers), 201)
    answer = client.post(f"{API}/queues/q/claim")
    assert (answer.headers["traceparent"], answer.headers["tracestate"]) == (PARENT, "vendor=1")
    assert ok(answer)["deliveries"][0]["headers"] == headers
    own = {"message": 1, "headers": {"traceparent": "mine"}}
    ok(client.post(f"{API}/queues/q/messages", json=[own], headers=headers), 201)
    assert claim(client, "q")[0]["headers"] == {"traceparent": "mine", "tracestate": "vendor=1"}
    ok(client.post(f"{API}/queues/q/messages", json=[{"message": 1}], headers={"traceparent": "nonsense"}), 201)
    answer = client.post(f"{API}/queues/q/claim")
    assert "traceparent" not in answer.headers
    assert "headers" not in ok(answer)["deliveries"][0]


def test_traces_are_carried_by_the_other_apis_too(web: World, client: httpx.Client) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    ok(client.post(f"{API}/queues/q/publish", json={"message": 1}, headers=headers), 201)
    answer = client.post(f"{API}/queues/q/pull")
    assert (answer.headers["traceparent"], ok(answer)["headers"]) == (PARENT, headers)
    ok(client.post(f"{API}/topics/t/subscriptions", json={}), 201)
    ok(client.post(f"{API}/topics/t/publish", json={"message": 1}, headers=headers), 201)
    assert client.post(f"{API}/topics/t/pull").headers["tracestate"] == "vendor=1"
    small = web.small("t-small-traces")
    ok(small.post("/publish?queue=q", content=b"x", headers=headers))
    assert small.get("/claim?queue=q").headers["traceparent"] == PARENT


# Claiming and settling


def test_a_claim_waits_for_the_first(web: World, client: httpx.Client) -> None:
    tenant = ok(client.get(f"{API}/stats"))["tenant"]
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(claim(client, "q", wait_ms=20_000)))
    waiting.start()

    def waits(server: Any) -> int:
        found = server.engine.shard.tenants[tenant].queues
        return int(found["q"].waiting_claims()) if "q" in found else 0

    while not web.inside(waits):
        pass
    publish(web.large(tenant), "q", "here")
    waiting.join(20)
    assert [row["message"] for row in got[0]] == ["here"]
    assert claim(client, "q") == []


def test_leases_are_settled_each_in_its_way(client: httpx.Client, clock: ManualClock) -> None:
    publish(client, "q", "ack", "retry", "release", "reject", "kept")
    got = claim(client, "q")
    tokens = {row["message"]: row["lease"] for row in got}
    settle: list[dict[str, Any]] = [{"lease": tokens[o], "outcome": o} for o in ("ack", "release")]
    settle.append({"lease": tokens["retry"], "outcome": "retry", "delay_ms": 500, "reason": "later"})
    settle.append({"lease": tokens["reject"], "outcome": "reject", "reason": "bad"})
    settle.append({"lease": "q/99/1/1"})
    answer = ok(client.post(f"{API}/queues/q/settle", json={"settle": settle}))
    assert answer == {"settled": 4, "lost": ["q/99/1/1"]}
    (released,) = claim(client, "q")
    assert (released["message"], released["attempt"], released["redelivered"]) == ("release", 1, True)
    clock.advance(500)
    (retried,) = claim(client, "q")
    assert (retried["message"], retried["attempt"]) == ("retry", 2)
    (dead,) = ok(client.get(f"{API}/queues/q.DLQ/messages"))["messages"]
    assert (dead["message"], dead["deaths"][0]["detail"]) == ("reject", "bad")
    same = {"leases": [tokens["kept"], tokens["ack"]], "outcome": "ack"}
    assert ok(client.post(f"{API}/queues/q/settle", json=same)) == {"settled": 1, "lost": [tokens["ack"]]}
    assert ok(client.post(f"{API}/queues/q/settle", json={})) == {"settled": 0, "lost": []}
    refused(client.post(f"{API}/queues/{'x' * 300}/settle", json={}), 400, "name")
    refused(client.post(f"{API}/queues/q/settle", json={"settle": [{"lease": "x", "outcome": "eat"}]}), 400)
    # a lease is of its queue
    assert ok(client.post(f"{API}/queues/other/settle", json={"leases": [retried["lease"]]}))["settled"] == 0


def test_leases_are_extended(client: httpx.Client, clock: ManualClock) -> None:
    publish(client, "q", 1, 2)
    one, two = claim(client, "q", lease_ms=1_000)
    extended = ok(client.post(f"{API}/queues/q/extend", json={"leases": [one["lease"], "q/9/9/9"], "lease_ms": 5_000}))
    assert extended == {"extended": 1, "lost": ["q/9/9/9"]}
    clock.advance(2_000)
    answer = ok(client.post(f"{API}/queues/q/settle", json={"leases": [one["lease"], two["lease"]]}))
    assert answer == {"settled": 1, "lost": [two["lease"]]}
    refused(client.post(f"{API}/queues/q/extend", json={"leases": [], "lease_ms": 1}), 400, "leases")
    refused(client.post(f"{API}/queues/q/extend", json={"leases": ["x"], "lease_ms": 0}), 400, "lease_ms")


def test_looking_changes_nothing(client: httpx.Client) -> None:
    publish(client, "q", 1, 2, 3)
    ok(client.post(f"{API}/queues/q/messages", json=[{"message": 4, "delay_ms": 60_000}]), 201)
    claim(client, "q", max=1)
    before = ok(client.get(f"{API}/queues/q"))
    seen = {
        state: [row["message"] for row in ok(client.get(f"{API}/queues/q/messages?state={state}"))["messages"]]
        for state in ("ready", "delayed", "leased")
    }
    assert seen == {"ready": [2, 3], "delayed": [4], "leased": [1]}
    short = ok(client.get(f"{API}/queues/q/messages?limit=1"))
    assert (short["count"], len(short["messages"])) == (2, 1)
    assert ok(client.get(f"{API}/queues/q")) == before
    assert refused(client.get(f"{API}/queues/none/messages"), 404) == "queue_not_found"


def test_looking_goes_on_where_the_page_before_ended(client: httpx.Client) -> None:
    for priority in (0, 5, -3):
        items = [{"message": f"{priority}/{n}", "priority": priority} for n in range(4)]
        ok(client.post(f"{API}/queues/paged/messages", json=items), 201)
    later = [{"message": n, "delay_ms": 60_000 * (1 + n % 2)} for n in range(5)]
    ok(client.post(f"{API}/queues/paged/messages", json=later), 201)
    held = claim(client, "paged", max=3)

    def pages(state: str) -> list[object]:
        found: list[object] = []
        after = ""
        while after is not None:
            page = ok(client.get(f"{API}/queues/paged/messages?state={state}&limit=2&after={after}"))
            assert len(page["messages"]) <= 2
            found += [row["message"] for row in page["messages"]]
            after = page["next"]
        return found

    in_order = [f"{priority}/{n}" for priority in (5, 0, -3) for n in range(4)]
    assert pages("ready") == in_order[3:]
    assert pages("delayed") == [0, 2, 4, 1, 3]
    assert pages("leased") == [row["message"] for row in held] == in_order[:3]
    # whoever looks does not lose its place when what it saw last is gone
    page = ok(client.get(f"{API}/queues/paged/messages?limit=2"))
    claim(client, "paged", max=2)
    rest = ok(client.get(f"{API}/queues/paged/messages?after={page['next']}"))
    assert [row["message"] for row in rest["messages"]] == in_order[5:]
    refused(client.get(f"{API}/queues/paged/messages?after=nix"), 400, "after")


# Purging, moving, redriving


def test_a_queue_is_purged_and_moved(client: httpx.Client) -> None:
    publish(client, "a", 1, 2, 3)
    ok(client.put(f"{API}/queues/b"), 201)
    assert ok(client.post(f"{API}/queues/a/move", json={"to": "b", "limit": 2})) == {"moved": 2}
    assert ok(client.post(f"{API}/queues/a/purge")) == {"purged": 1}
    assert [row["message"] for row in claim(client, "b")] == [1, 2]
    refused(client.post(f"{API}/queues/a/move", json={"to": "a"}), 400, "to")
    refused(client.post(f"{API}/queues/a/move", json={"to": "none"}), 404)


def bury(client: httpx.Client, queue: str, reason: str, *items: dict[str, Any]) -> None:
    ok(client.post(f"{API}/queues/{queue}/messages", json=list(items)), 201)
    leases = [row["lease"] for row in claim(client, queue)]
    ok(client.post(f"{API}/queues/{queue}/settle", json={"leases": leases, "outcome": "reject", "reason": reason}))


def test_dead_letters_are_redriven_by_what_they_are(client: httpx.Client) -> None:
    bury(client, "q", "no stock", {"message": 1, "headers": {"eu": True}}, {"message": 2})
    bury(client, "q", "no money", {"message": 3})
    dead = ok(client.get(f"{API}/queues/q.DLQ/messages"))["messages"]
    url = f"{API}/queues/q.DLQ/redrive"
    tried = ok(client.post(url, json={"dry_run": True, "where": {"detail": "stock"}}))
    assert (tried["redriven"], tried["dry_run"]) == (2, True)
    assert {letter["to"] for letter in tried["letters"]} == {"q"}
    assert ok(client.get(f"{API}/queues/q.DLQ/messages"))["count"] == 3
    assert ok(client.post(url, json={"where": {"headers": {"eu": True}, "origin": "q"}}))["redriven"] == 1
    assert ok(client.post(url, json={"where": {"origin": "other"}}))["redriven"] == 0
    assert ok(client.post(url, json={"where": {"routing_key": "x.#"}}))["redriven"] == 0
    assert ok(client.post(url, json={"where": {"died_before_ms": 1}}))["redriven"] == 0
    ok(client.put(f"{API}/queues/elsewhere"), 201)
    named = {"to": "elsewhere", "where": {"message_ids": [dead[2]["message_id"]]}}
    assert ok(client.post(url, json=named))["letters"][0]["to"] == "elsewhere"
    assert ok(client.post(url))["redriven"] == 1
    assert [row["message"] for row in claim(client, "q")] == [1, 2]
    assert [row["message"] for row in claim(client, "elsewhere")] == [3]
    refused(client.post(url, json={"to": "none"}), 404)
    refused(client.post(url, json={"where": {"colour": 1}}), 400)


# Transactions


def test_a_transaction_in_one_request_is_all_or_nothing(client: httpx.Client) -> None:
    publish(client, "in", 1, 2)
    one, two = claim(client, "in")
    ok(client.put(f"{API}/exchanges/x", json={"kind": "fanout"}), 201)
    ok(client.put(f"{API}/queues/bound"), 201)
    ok(client.post(f"{API}/bindings", json={"source": "x", "target": "bound"}), 201)
    work = {
        "settle": [{"lease": one["lease"]}],
        "publish": [{"queue": "out", "message": "a"}, {"exchange": "x", "message": "b"}],
    }
    done = ok(client.post(f"{API}/transactions", json=work))
    assert (done["status"], done["settled"], len(done["messages"])) == ("committed", 1, 2)
    assert [row["message"] for q in ("out", "bound") for row in claim(client, q)] == ["a", "b"]
    # the lease has ended: nothing happens
    assert refused(client.post(f"{API}/transactions", json=work), 404, "settle[0].lease") == "lease_lost"
    assert claim(client, "out") == []
    ok(client.put(f"{API}/queues/full", json={"length_max": 0, "overflow": "reject-publish"}), 201)
    work = {"settle": [{"lease": two["lease"]}], "publish": [{"queue": "out", "message": 1}]}
    work["publish"].append({"queue": "full", "message": 1})
    refused(client.post(f"{API}/transactions", json=work), 429)
    assert claim(client, "out") == []
    assert ok(client.post(f"{API}/queues/in/settle", json={"leases": [two["lease"]]}))["settled"] == 1
    both = {"publish": [{"queue": "q", "exchange": "x", "message": 1}]}
    refused(client.post(f"{API}/transactions", json=both), 400, "publish[0].queue")
    refused(client.post(f"{API}/transactions", json={"publish": [{"queue": "q"}]}), 400, "publish[0].message")
    refused(client.post(f"{API}/transactions", json={}), 400, "publish")


def test_a_transaction_by_id_is_collected_and_committed(web: World, client: httpx.Client, clock: ManualClock) -> None:
    publish(client, "in", 1)
    (got,) = claim(client, "in")
    refused(client.put(f"{API}/transactions/{'x' * 300}"), 400, "id")
    url = f"{API}/transactions/tx-1"
    assert ok(client.put(url), 201) == {"transaction": "tx-1", "status": "open", "operations": 0}
    refused(client.put(url), 400, "transaction")
    assert ok(client.post(f"{url}/add", json={"publish": [{"queue": "out", "message": 1}]}))["operations"] == 1
    bad = {"publish": [{"queue": "out", "message": 1}, {"exchange": "none", "message": 1}]}
    refused(client.post(f"{url}/add", json=bad), 404)
    assert ok(client.post(f"{url}/add", json={"settle": [{"lease": got["lease"]}]}))["operations"] == 2
    assert ok(client.get(url))["operations"] == 2
    assert claim(client, "out") == []
    # another user of the tenant does not meet it
    other = web.large(ok(client.get(f"{API}/stats"))["tenant"])
    assert refused(other.post(f"{url}/commit"), 404) == "transaction_not_found"
    done = ok(client.post(f"{url}/commit"))
    assert (done["status"], len(done["messages"])) == ("committed", 1)
    assert len(claim(client, "out")) == 1
    assert refused(client.post(f"{url}/commit"), 409) == "transaction_committed"
    ok(client.put(f"{API}/transactions/tx-2"), 201)
    ok(client.post(f"{API}/transactions/tx-2/add", json={"publish": [{"queue": "out", "message": 1}]}))
    assert ok(client.post(f"{API}/transactions/tx-2/rollback"))["status"] == "rolled back"
    assert refused(client.get(f"{API}/transactions/tx-2"), 409) == "transaction_rolled_back"
    ok(client.put(f"{API}/transactions/tx-3", json={"timeout_ms": 100}), 201)
    clock.advance(100)
    assert refused(client.post(f"{API}/transactions/tx-3/commit"), 408) == "transaction_timeout"
    assert claim(client, "out") == []


def test_names_that_are_not_utf8_are_shown_as_far_as_they_are(web: World, client: httpx.Client) -> None:
    """Over AMQP, keys and properties are bytes; whoever looks gets an answer, and the broker's own events go on."""
    ok(client.put(f"{API}/queues/odd"), 201)
    strange = properties.encode(Properties(message_id="m\udcff", correlation_id="c\udcff", headers={"h\udcff": 1}))

    def work(server: Any) -> None:
        shard = server.engine.shard
        tenant = next(t for t in shard.tenants.values() if "odd" in t.queues)
        tenant.declare_exchange("x", "fanout")
        tenant.bind("x", tenant.queues["odd"], "")
        for _ in range(3):
            shard.publish(tenant, "x", "k\udcff", strange, b"x")

    web.inside(work)
    (one,) = claim(client, "odd", max=1)
    assert (one["routing_key"], one["message_id"], one["headers"]) == ("k�", "m�", {"h�": 1})
    assert ok(client.post(f"{API}/queues/odd/pull"))["routing_key"] == "k�"
    assert ok(client.get(f"{API}/queues/odd/peek"))["messages"][0]["correlation_id"] == "c�"
    packed = client.post(f"{API}/queues/odd/claim", json={}, headers={"Accept": PACKED})
    assert packed.status_code == 200, packed.text

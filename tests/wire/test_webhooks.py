"""Webhooks of a server, with real endpoints on loopback."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rookery import webhooks
from rookery.core import definitions, streams
from rookery.core.shard import Shard
from rookery.format import properties
from rookery.format.properties import Properties
from rookery.webhooks import dispatcher, network
from tests.wire.http_world import World, world
from tests.wire.receiver import Arrived, Receiver, receiving

QUEUES = "/api/v1/queues"
TOPICS = "/api/v1/topics"
STREAMS = "/api/v1/streams"
HOOKS = "/api/v1/webhooks"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, backoff_base_ms="1") as made:
        made.web.webhooks.pace = 0.002
        yield made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def on_queue(web: World, endpoint: str, **more: Any) -> Any:
    made = web.admin.post(f"{QUEUES}/q/webhooks", json={"endpoint": endpoint, **more})
    assert made.status_code == 201, made.text
    return made.json()


def publish(web: World, path: str, *messages: Any, **more: Any) -> list[str]:
    answers = [web.admin.post(f"{path}/publish", json={"message": message, **more}) for message in messages]
    assert {answer.status_code for answer in answers} <= {200, 201}, answers[0].text
    return [str(answer.json().get("message_id")) for answer in answers]


def stats(web: World, queue: str) -> Any:
    return web.admin.get(f"{QUEUES}/{queue}/stats").json()


def until(what: Any) -> Any:
    """Wait until something is so, and give it."""
    for _ in range(3_000):
        found = what()
        if found:
            return found
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


@pytest.mark.row("S2-17")
def test_a_topic_s_messages_that_match_are_posted_to_the_endpoint(web: World, receiver: Receiver) -> None:
    wanted = {"endpoint": receiver.url, "routing_key": "order.*"}
    made = web.admin.post(f"{TOPICS}/shop/subscriptions", json=wanted)
    assert made.status_code == 201
    found = made.json()
    assert found["subscription_id"]
    assert (found["mode"], found["endpoint"], found["queue"]) == (
        "webhook",
        receiver.url,
        f"shop.sub.{found['subscription_id']}",
    )
    publish(web, f"{TOPICS}/shop", "no", routing_key="invoice.made")
    (message_id,) = publish(web, f"{TOPICS}/shop", {"order": 1}, routing_key="order.made")
    call = receiver.next()
    assert call.path == "/hook"
    assert json.loads(call.body) == {"order": 1}
    assert call.headers["content-type"] == "application/json"
    assert call.headers["x-rookery-routing-key"] == "order.made"
    assert call.headers["x-rookery-attempt"] == "1"
    assert call.headers["x-rookery-topic"] == "shop"
    assert call.headers["webhook-id"] == message_id
    webhooks.verify(found["secret"], call.headers, call.body)
    until(lambda: stats(web, found["queue"])["acked"] == 1)
    assert receiver.calls.empty()


def test_subscriptions_are_listed_and_ended_as_those_that_are_pulled(web: World, receiver: Receiver) -> None:
    made = web.admin.post(f"{TOPICS}/t/subscriptions", json={"endpoint": receiver.url}).json()
    pulled = web.admin.post(f"{TOPICS}/t/subscriptions", json={"routing_key": "a"}).json()
    listed = web.admin.get(f"{TOPICS}/t/subscriptions").json()["subscriptions"]
    assert {(row["subscription_id"], row["mode"]) for row in listed} == {
        (made["subscription_id"], "webhook"),
        (pulled["subscription_id"], "pull"),
    }
    assert "secret" not in json.dumps(listed)
    # whoever pulls means the one that is pulled
    assert web.admin.post(f"{TOPICS}/t/pull").status_code == 200
    ended = web.admin.delete(f"{TOPICS}/t/subscriptions/{made['subscription_id']}")
    assert ended.status_code == 200
    assert web.admin.get(HOOKS).json() == {"webhooks": []}
    publish(web, f"{TOPICS}/t", 1, routing_key="a")
    assert web.admin.post(f"{TOPICS}/t/pull").json()["message"] == 1
    assert receiver.calls.empty()


@pytest.mark.parametrize(
    "body",
    [
        {"endpoint": "ftp://example.org/x"},
        {"endpoint": "http://user:pass@example.org/"},
        {"endpoint": "http:///nowhere"},
        {"endpoint": "http://example.org:0/"},
        {"endpoint": "http://example.org:99999/"},
        {"endpoint": "http://[::1/"},
        {"endpoint": "http://exa mple.org/"},
        {"endpoint": "http://example.org/", "mode": "pull"},
        {"endpoint": "http://example.org/", "concurrency": 0},
        {"endpoint": "http://example.org/", "timeout_ms": 600_000},
        {"endpoint": "http://example.org/", "secret": "short"},
        {"endpoint": "http://example.org/", "format": "xml"},
        {"mode": "webhook"},
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(web: World, body: Any) -> None:
    assert web.admin.post(f"{TOPICS}/t/subscriptions", json=body).status_code == 400
    assert web.inside(lambda server: len(server.engine.shard.tenants["default"].queues)) == 0
    assert web.admin.get(HOOKS).json() == {"webhooks": []}


# What an answer means


def test_a_failed_call_is_tried_again_and_then_a_dead_letter(web: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: (400, {})
    web.admin.put(f"{QUEUES}/q", json={"max_attempts": 3})
    made = on_queue(web, receiver.url)
    publish(web, f"{QUEUES}/q", "x")
    assert [receiver.next().headers["x-rookery-attempt"] for _ in range(3)] == ["1", "2", "3"]
    until(lambda: stats(web, "q")["dlq_size"] == 1)
    dead = web.admin.post(f"{QUEUES}/q.DLQ/pull").json()
    assert dead["message"] == "x"
    assert "400" in dead["deaths"][0]["detail"]
    shown = web.admin.get(f"{HOOKS}/{made['id']}").json()
    # 4xx is about the message: the endpoint is well
    assert (shown["state"], shown["failed"], shown["delivered"]) == ("active", 3, 0)


def test_gone_ends_the_subscription(web: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: (410, {})
    made = web.admin.post(f"{TOPICS}/t/subscriptions", json={"endpoint": receiver.url}).json()
    publish(web, f"{TOPICS}/t", 1)
    until(lambda: web.admin.get(HOOKS).json() == {"webhooks": []})
    assert web.admin.get(f"{TOPICS}/t/subscriptions").json() == {"subscriptions": []}
    assert made["queue"] not in web.inside(lambda server: list(server.engine.shard.tenants["default"].queues))


def test_gone_leaves_a_queue_s_messages_to_others(web: World, receiver: Receiver) -> None:
    receiver.answer = lambda call: (410, {})
    on_queue(web, receiver.url)
    publish(web, f"{QUEUES}/q", 1)
    until(lambda: web.admin.get(HOOKS).json() == {"webhooks": []})
    pulled = web.admin.post(f"{QUEUES}/q/pull").json()
    assert (pulled["message"], pulled["retry"]) == (1, 0)


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_that_asks_to_wait_is_left_alone_and_the_attempt_does_not_count(
    web: World, receiver: Receiver, status: int
) -> None:
    answers = iter([(status, {"Retry-After": "100"}), (status, {"Retry-After": later(100)}), (200, {})])
    receiver.answer = lambda call: next(answers)
    made = on_queue(web, receiver.url)
    publish(web, f"{QUEUES}/q", 1)
    # the pace of the test makes two tenths of a second of a hundred
    began = time.monotonic()
    assert [receiver.next().headers["x-rookery-attempt"] for _ in range(3)] == ["1", "1", "1"]
    assert time.monotonic() - began > 0.3
    until(lambda: stats(web, "q")["acked"] == 1)
    log = web.admin.get(f"{HOOKS}/{made['id']}/deliveries").json()["deliveries"]
    assert [row["outcome"] for row in log] == ["ack", "wait", "wait"]
    assert until(lambda: web.admin.get(f"{HOOKS}/{made['id']}").json()["state"] == "active")


def test_a_message_that_is_asked_to_wait_for_ever_is_a_dead_letter_in_the_end(
    web: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "WAIT_MAX_MS", -1)
    web.admin.put(f"{QUEUES}/q", json={"max_attempts": 2, "backoff_base_ms": 0})
    receiver.answer = lambda call: (429, {"Retry-After": "100"})
    on_queue(web, receiver.url)
    publish(web, f"{QUEUES}/q", 1)
    assert [receiver.next().headers["x-rookery-attempt"] for _ in range(2)] == ["1", "2"]
    until(lambda: stats(web, "q")["dlq_size"] == 1)


def later(seconds: int) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + seconds))


def test_an_endpoint_that_fails_again_and_again_is_left_alone_until_one_call_succeeds(
    web: World, receiver: Receiver
) -> None:
    web.web.webhooks.pace = 0.05
    web.admin.put(f"{QUEUES}/q", json={"max_attempts": 0})
    healthy = threading.Event()
    receiver.answer = lambda call: (200 if healthy.is_set() else 500, {})
    made = on_queue(web, receiver.url)
    publish(web, f"{QUEUES}/q", *range(20))
    shown = until(lambda: found if (found := get(web, made))["state"] == "resting" else None)
    assert shown["failures"] >= 5
    healthy.set()
    until(lambda: stats(web, "q")["acked"] == 20)
    assert (get(web, made)["state"], get(web, made)["failures"]) == ("active", 0)


def get(web: World, made: Any) -> Any:
    return web.admin.get(f"{HOOKS}/{made['id']}").json()


def test_an_endpoint_that_hangs_costs_its_own_time_only(web: World, receiver: Receiver) -> None:
    over = threading.Event()

    def hang(call: Arrived) -> tuple[int, dict[str, str]]:
        over.wait(30)
        return 200, {}

    receiver.answer = hang
    web.admin.put(f"{QUEUES}/q", json={"max_attempts": 1})
    made = on_queue(web, receiver.url, timeout_ms=100)
    publish(web, f"{QUEUES}/q", 1)
    log = until(lambda: web.admin.get(f"{HOOKS}/{made['id']}/deliveries").json()["deliveries"])
    assert (log[0]["status"], log[0]["text"], log[0]["outcome"]) == (None, "no answer in 100 ms", "failed")
    until(lambda: stats(web, "q")["dlq_size"] == 1)
    over.set()


def test_no_more_calls_are_under_way_than_allowed(web: World, receiver: Receiver) -> None:
    go = threading.Event()
    under_way = 0
    most = 0
    lock = threading.Lock()

    def answer(call: Arrived) -> tuple[int, dict[str, str]]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        go.wait(30)
        with lock:
            under_way -= 1
        return 200, {}

    receiver.answer = answer
    on_queue(web, receiver.url, concurrency=3)
    publish(web, f"{QUEUES}/q", *range(10))
    for _ in range(3):
        receiver.next()
    assert stats(web, "q")["in_flight"] == 3
    go.set()
    until(lambda: stats(web, "q")["acked"] == 10)
    assert most == 3


def test_an_endpoint_that_nobody_listens_at_or_that_speaks_no_http(web: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def babble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"hello\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        made = on_queue(web, f"http://127.0.0.1:{port}/")
        first = web.admin.post(f"{HOOKS}/{made['id']}/test").json()
        thread.join()
    assert (first["outcome"], first["status"]) == ("failed", None)
    second = web.admin.post(f"{HOOKS}/{made['id']}/test").json()
    assert (second["outcome"], second["status"]) == ("failed", None)


def test_a_test_call_tells_how_it_went_and_touches_no_message(web: World, receiver: Receiver) -> None:
    made = on_queue(web, receiver.url)
    answer = web.admin.post(f"{HOOKS}/{made['id']}/test")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["outcome"], found["status"], found["text"]) == ("ack", 200, "ok")
    call = receiver.next()
    assert json.loads(call.body) == {"test": True}
    webhooks.verify(made["secret"], call.headers, call.body)
    assert stats(web, "q")["published"] == 0
    assert web.admin.get(f"{HOOKS}/{made['id']}/deliveries").json()["deliveries"][0]["attempt"] == 1


# Formats


def test_cloud_events(web: World, receiver: Receiver) -> None:
    made = on_queue(web, receiver.url, format="cloudevents")
    (message_id,) = publish(web, f"{QUEUES}/q", {"n": 1}, type="order.made")
    call = receiver.next()
    webhooks.verify(made["secret"], call.headers, call.body)
    assert call.headers["content-type"] == "application/cloudevents+json"
    event = json.loads(call.body)
    assert event.pop("time").endswith("Z")
    assert event == {
        "specversion": "1.0",
        "id": message_id,
        "source": "/tenants/default/queues/q",
        "type": "order.made",
        "subject": "q",
        "datacontenttype": "application/json",
        "attempt": 1,
        "data": {"n": 1},
    }

    def binary(server: Any) -> None:
        shard = server.engine.shard
        props = properties.encode(Properties(content_type="image/png", message_id="ä\n1"))
        shard.publish(shard.tenants["default"], "", "q", props, b"\xff\x00")

    web.inside(binary)
    call = receiver.next()
    event = json.loads(call.body)
    assert base64.b64decode(event["data_base64"]) == b"\xff\x00"
    assert event["id"] == "ä\n1"
    webhooks.verify(made["secret"], call.headers, call.body)


def test_a_body_that_only_says_it_is_json_is_called_with_all_the_same(web: World, receiver: Receiver) -> None:
    on_queue(web, receiver.url, format="cloudevents")

    def work(server: Any) -> None:
        shard = server.engine.shard
        props = properties.encode(Properties(content_type="application/json"))
        shard.publish(shard.tenants["default"], "", "q", props, b'{"a":"\xff"}')

    web.inside(work)
    event = json.loads(receiver.next().body)
    assert base64.b64decode(event["data_base64"]) == b'{"a":"\xff"}'
    until(lambda: stats(web, "q")["acked"] == 1)


def test_cloud_events_in_headers(web: World, receiver: Receiver) -> None:
    on_queue(web, receiver.url, format="cloudevents-binary")
    (message_id,) = publish(web, f"{QUEUES}/q", {"n": 1})
    call = receiver.next()
    assert call.headers["content-type"] == "application/json"
    assert (call.headers["ce-specversion"], call.headers["ce-id"]) == ("1.0", message_id)
    assert (call.headers["ce-type"], call.headers["ce-source"]) == ("rookery.message", "/tenants/default/queues/q")
    assert json.loads(call.body) == {"n": 1}


# Where calls may lead


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:9/",
        "http://[::1]:9/",
        "http://10.1.2.3/",
        "http://192.168.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fd00::1]/",
        "http://169.254.169.254/latest",
        "http://0.0.0.0/",
        "http://100.64.1.1/",
        "http://[fe80::1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://224.0.0.1/",
    ],
)
def test_whoever_is_no_admin_names_public_addresses_only(web: World, endpoint: str) -> None:
    tenant = web.large("t")
    refused = tenant.post(f"{TOPICS}/t/subscriptions", json={"endpoint": endpoint})
    assert (refused.status_code, "public" in refused.text or "do not call" in refused.text) == (403, True)
    assert tenant.get(HOOKS).json() == {"webhooks": []}


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "0.0.0.0", "[fe80::1]", "100.100.100.200"])
def test_an_admin_does_not_name_metadata_either(web: World, host: str) -> None:
    assert web.admin.post(f"{QUEUES}/q/webhooks", json={"endpoint": f"http://{host}/"}).status_code == 403


def test_the_server_does_not_call_itself(web: World) -> None:
    for host in ("127.0.0.1", "[::ffff:127.0.0.1]", "localhost"):
        answer = web.admin.post(f"{QUEUES}/q/webhooks", json={"endpoint": f"http://{host}:{web.port}/health"})
        if answer.status_code == 201:
            found = web.admin.post(f"{HOOKS}/{answer.json()['id']}/test").json()
            assert "this server itself" in found["text"]
        else:
            assert answer.status_code == 403


def test_a_name_is_checked_where_it_leads_when_it_is_called(
    web: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it led elsewhere a moment before."""
    asked: list[str] = []
    answers = iter([["203.0.113.9", "127.0.0.1"], ["127.0.0.1"], ["::ffff:127.0.0.1"]])

    async def resolve(self: Any, host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    monkeypatch.setattr(network.Connections, "resolve", resolve)
    tenant = web.large("t")
    made = tenant.post(f"{QUEUES}/q/webhooks", json={"endpoint": f"http://rebind.example:{receiver.port}/"}).json()
    for _ in range(3):
        found = tenant.post(f"{HOOKS}/{made['id']}/test").json()
        assert (found["outcome"], found["status"]) == ("failed", None)
        assert "only an admin's webhook may call it" in found["text"]
    assert asked == ["rebind.example"] * 3
    assert receiver.calls.empty()


def test_what_was_checked_is_what_is_connected_to(
    web: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(self: Any, host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(network.Connections, "resolve", resolve)
    made = on_queue(web, f"http://no-such-name.invalid:{receiver.port}/x")
    assert web.admin.post(f"{HOOKS}/{made['id']}/test").json()["outcome"] == "ack"
    assert receiver.next().headers["host"] == f"no-such-name.invalid:{receiver.port}"


def test_redirects_are_followed_where_calls_may_lead(web: World, receiver: Receiver) -> None:
    with receiving(lambda call: (307, {"Location": receiver.url})) as first:
        made = on_queue(web, first.url)
        publish(web, f"{QUEUES}/q", {"n": 1})
        assert json.loads(receiver.next().body) == {"n": 1}
        until(lambda: stats(web, "q")["acked"] == 1)
        for to in (f"http://127.0.0.1:{web.port}/health", "http://169.254.169.254/", "file:///etc/passwd", first.url):
            first.answer = lambda call, to=to: (308, {"Location": to})  # type: ignore[misc]
            found = web.admin.post(f"{HOOKS}/{made['id']}/test").json()
            assert found["outcome"] == "failed", to


def test_a_redirect_does_not_lead_past_the_rules(tmp_path: Path, receiver: Receiver) -> None:
    with world(tmp_path, webhook_allow="127.0.0.2/32") as web:
        guard = web.web.webhooks.guard
        assert str(guard._allow[0]) == "127.0.0.2/32"
        with receiving(lambda call: (307, {"Location": receiver.url})) as first:
            tenant = web.large("t")
            refused = tenant.post(f"{QUEUES}/q/webhooks", json={"endpoint": first.url})
            assert refused.status_code == 403
            with socket.create_server(("127.0.0.2", 0)) as allowed:
                answer = b"HTTP/1.1 307 x\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % receiver.url.encode()

                def redirect() -> None:
                    connection, _ = allowed.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(answer)

                thread = threading.Thread(target=redirect)
                thread.start()
                endpoint = f"http://127.0.0.2:{allowed.getsockname()[1]}/"
                made = tenant.post(f"{QUEUES}/q/webhooks", json={"endpoint": endpoint})
                assert made.status_code == 201, made.text
                found = tenant.post(f"{HOOKS}/{made.json()['id']}/test").json()
                thread.join()
    assert (found["outcome"], found["status"]) == ("failed", None)
    assert "127.0.0.1 is not public" in found["text"]
    assert receiver.calls.empty()


def test_without_authentication_a_program_of_this_machine_may_name_it(tmp_path: Path, receiver: Receiver) -> None:
    with world(tmp_path, auth_mode="none") as web:
        made = web.client.post(f"{TOPICS}/t/subscriptions", json={"endpoint": receiver.url})
        assert made.status_code == 201
        web.client.post(f"{TOPICS}/t/publish", json={"message": 1})
        assert receiver.next().body == b"1"
        via = web.client.post(
            f"{TOPICS}/t/subscriptions", json={"endpoint": receiver.url}, headers={"X-Forwarded-For": "203.0.113.1"}
        )
        assert via.status_code == 403


def test_a_document_does_not_bring_private_endpoints_without_the_admin_right(web: World, receiver: Receiver) -> None:
    tenant = web.large("t")
    tenant.put(f"{QUEUES}/q")
    document = tenant.get("/api/v1/definitions").json()
    hook = {"id": "h", "kind": "queue", "target": "q", "endpoint": receiver.url, "secret": "x" * 16}
    document["tenants"][0]["webhooks"] = [{**hook, "private": True}]
    assert tenant.post("/api/v1/definitions", json=document).status_code == 403
    document["tenants"][0]["webhooks"] = [hook]
    assert tenant.post("/api/v1/definitions", json=document).status_code == 200
    until(lambda: tenant.get(f"{HOOKS}/h").status_code == 200)
    assert "not public" in tenant.post(f"{HOOKS}/h/test").json()["text"]


# Rights


def test_webhooks_belong_to_their_tenant_and_to_whoever_may_read(web: World, receiver: Receiver) -> None:
    made = on_queue(web, receiver.url)
    other = web.large("t")
    path = f"{HOOKS}/{made['id']}"
    assert other.get(HOOKS).json() == {"webhooks": []}
    answers = [other.get(path), other.delete(path), other.post(f"{path}/test"), other.get(f"{path}/deliveries")]
    assert [answer.status_code for answer in answers] == [404] * 4
    reader = web.large("default", rights={"configure": "", "write": "", "read": "^q$"})
    assert [row["id"] for row in reader.get(HOOKS).json()["webhooks"]] == [made["id"]]
    assert "secret" not in reader.get(path).json()
    assert reader.delete(path).status_code == 403
    assert reader.post(f"{QUEUES}/q/webhooks", json={"endpoint": "http://example.org/"}).status_code == 403
    assert web.admin.delete(path).status_code == 200
    assert web.admin.get(path).status_code == 404


# Restarts, deletions, streams


def test_subscriptions_and_what_waits_for_them_survive_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda call: (500, {})
    with world(tmp_path, store_backend="journal") as web:
        made = web.admin.post(f"{TOPICS}/t/subscriptions", json={"endpoint": receiver.url}).json()
        (message_id,) = publish(web, f"{TOPICS}/t", "kept")
        receiver.next()
    receiver.answer = lambda call: (200, {})
    with world(tmp_path, store_backend="journal", backoff_base_ms="1") as web:
        call = until(lambda: receiver.next())
        assert call.headers["webhook-id"] == message_id
        webhooks.verify(made["secret"], call.headers, call.body)
        until(lambda: stats(web, made["queue"])["acked"] == 1)
        shown = web.admin.get(f"{HOOKS}/{made['subscription_id']}").json()
        assert (shown["endpoint"], shown["routing_key"], shown["state"]) == (receiver.url, "#", "active")
        assert web.admin.delete(f"{HOOKS}/{made['subscription_id']}").status_code == 200
    with world(tmp_path, store_backend="journal") as web:
        assert web.admin.get(HOOKS).json() == {"webhooks": []}


def test_definitions_carry_webhooks_from_shard_to_shard(web: World, receiver: Receiver) -> None:
    on_queue(web, receiver.url)
    document = web.inside(lambda server: definitions.export(server.engine.shard))
    other = Shard(b"", 1)
    definitions.load(other, document)
    assert definitions.export(other) == document
    definitions.load(other, document)
    assert definitions.export(other) == document
    other.delete_tenant("default")
    assert other.webhooks.all() == []


def test_a_queue_that_is_deleted_and_comes_back_is_consumed_again(web: World, receiver: Receiver) -> None:
    made = on_queue(web, receiver.url)
    web.inside(lambda server: server.engine.shard.tenants["default"].delete_queue("q"))
    until(lambda: get(web, made)["state"] == "waiting")
    publish(web, f"{QUEUES}/q", "again")
    assert receiver.next().body == b'"again"'


def test_a_deleted_tenant_takes_its_webhooks_along(web: World, receiver: Receiver) -> None:
    tenant = web.large("t")
    tenant.post(f"{QUEUES}/q/webhooks", json={"endpoint": "http://example.org/"})
    until(lambda: web.web.webhooks._hooks)
    web.inside(lambda server: server.engine.shard.delete_tenant("t"))
    until(lambda: not web.web.webhooks._hooks)


def records(web: World, *bodies: bytes) -> None:
    def append(server: Any) -> None:
        shard = server.engine.shard
        tenant = shard.tenants["default"]
        streams.declare(tenant, "s", {"partitions": 2})
        for body in bodies:
            shard.publish(tenant, "", "s", properties.encode(Properties()), body)

    def shown(server: Any) -> bool:
        parts = server.engine.shard.tenants["default"].streams["s"].partitions
        return all(part.visible == part.end for part in parts)

    web.inside(append)
    until(lambda: web.inside(shown))


def test_a_stream_s_records_are_posted_from_now_on_and_on_after_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    with world(tmp_path, store_backend="journal") as web:
        records(web, b"before")
        made = web.admin.post(f"{STREAMS}/s/webhooks", json={"endpoint": receiver.url})
        assert made.status_code == 201, made.text
        records(web, b"1", b"2", b"3")
        calls = [receiver.next() for _ in range(3)]
        assert {call.body for call in calls} == {b"1", b"2", b"3"}
        assert calls[0].headers["x-rookery-stream"] == "s"
        until(lambda: get(web, made.json())["delivered"] == 3)
    with world(tmp_path, store_backend="journal") as web:
        records(web, b"4")
        assert receiver.next().body == b"4"
        until(lambda: get(web, made.json())["delivered"] == 1)
        assert receiver.calls.empty()
        web.admin.delete(f"{HOOKS}/{made.json()['id']}")
        assert web.inside(lambda server: server.engine.shard.tenants["default"].streams["s"].groups) == {}


def test_a_record_that_is_never_taken_becomes_a_dead_letter(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda call: (400 if call.body == b"bad" else 200, {})
    with world(tmp_path, store_backend="journal", backoff_base_ms="1", max_retries="1") as web:
        records(web)
        made = web.admin.post(f"{STREAMS}/s/webhooks", json={"endpoint": receiver.url}).json()
        records(web, b"bad", b"good")
        dead = f"s.sub.{made['id']}.DLQ"
        until(lambda: dead in web.inside(lambda server: list(server.engine.shard.tenants["default"].queues)))
    with world(tmp_path, store_backend="journal") as web:
        # it is kept, and the webhook is past it
        assert web.admin.post(f"{QUEUES}/{dead}/pull").json()["message"] == "bad"
        records(web, b"next")
        assert {receiver.next().body for _ in range(4)} == {b"bad", b"good", b"next"}


def test_a_stopping_server_lets_calls_under_way_end(tmp_path: Path, receiver: Receiver) -> None:
    go = threading.Event()

    def slow(call: Arrived) -> tuple[int, dict[str, str]]:
        go.wait(30)
        return 200, {}

    receiver.answer = slow
    with world(tmp_path, store_backend="journal") as web:
        on_queue(web, receiver.url)
        publish(web, f"{QUEUES}/q", 1)
        receiver.next()
        threading.Timer(0.2, go.set).start()
    with world(tmp_path, store_backend="journal") as web:
        assert stats(web, "q")["ready"] == 0


def test_a_thousand_messages_reach_the_endpoint(web: World, receiver: Receiver) -> None:
    on_queue(web, receiver.url, concurrency=50)

    def fill(server: Any) -> None:
        shard = server.engine.shard
        for number in range(1_000):
            shard.publish(shard.tenants["default"], "", "q", properties.encode(Properties()), b"%d" % number)

    web.inside(fill)
    assert {receiver.next().body for _ in range(1_000)} == {b"%d" % number for number in range(1_000)}
    until(lambda: stats(web, "q")["acked"] == 1_000)


def test_an_answer_is_read_no_further_than_needed(web: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def flood() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                    while True:
                        connection.sendall(b"x" * 65_536)
                except OSError:
                    pass

        thread = threading.Thread(target=flood)
        thread.start()
        made = on_queue(web, f"http://127.0.0.1:{server.getsockname()[1]}/")
        found = web.admin.post(f"{HOOKS}/{made['id']}/test").json()
        thread.join()
    assert (found["outcome"], len(found["text"])) == ("ack", 200)


def test_the_routes_are_in_the_document(web: World) -> None:
    paths = httpx.get(f"{web.base}/openapi.json", trust_env=False).json()["paths"]
    assert {HOOKS, f"{HOOKS}/{{id}}", f"{HOOKS}/{{id}}/test", f"{HOOKS}/{{id}}/deliveries"} <= set(paths)


@pytest.mark.parametrize("kind", ["queue", "topic", "stream"])
def test_a_webhook_that_is_changed_acts_so_at_once(web: World, receiver: Receiver, kind: str) -> None:
    path = {"queue": QUEUES, "topic": TOPICS, "stream": STREAMS}[kind] + "/q"
    if kind == "stream":
        web.admin.put(f"{STREAMS}/q", json={})
    way = "subscriptions" if kind == "topic" else "webhooks"
    made = web.admin.post(f"{path}/{way}", json={"endpoint": receiver.url}).json()
    publish(web, path, "before")
    assert json.loads(receiver.next().body) == "before"
    until(lambda: web.admin.get(HOOKS).json()["webhooks"][0]["delivered"] == 1)
    document = web.admin.get("/api/v1/definitions").json()
    (tenant,) = [each for each in document["tenants"] if each["webhooks"]]
    (hook,) = tenant["webhooks"]
    with receiving() as other:
        hook |= {"endpoint": other.url, "secret": "another secret of the webhook"}
        loaded = web.admin.post("/api/v1/definitions", json=document)
        assert loaded.status_code in (200, 204), loaded.text
        shown = web.admin.get(f"{HOOKS}/{made.get('id') or made['subscription_id']}").json()
        assert shown["endpoint"] == other.url
        publish(web, path, "after")
        call = other.next()
        assert json.loads(call.body) == "after"
        webhooks.verify("another secret of the webhook", call.headers, call.body)
        assert receiver.calls.empty()
        until(lambda: web.admin.get(f"{HOOKS}/{shown['id']}").json()["delivered"] == 1)


class Tarpit:
    """Takes connections, and never says a word. `open` counts those that are there."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1_000)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for sock in self.taken:
            sock.close()


def test_endpoints_that_never_answer_hold_up_no_other_tenant(tmp_path: Path, receiver: Receiver) -> None:
    tarpits = [Tarpit() for _ in range(3)]
    settings: dict[str, Any] = {"store_backend": "journal", "webhook_calls_max": "50", "shutdown_sec": "0"}
    settings["webhook_allow"] = "127.0.0.0/8"
    try:
        for start in ("first", "again"):
            with world(tmp_path, **settings) as web:
                slow = web.large("slow")
                if start == "first":
                    for number in range(30):
                        queue = f"{QUEUES}/q{number}"
                        wanted = {"endpoint": tarpits[number % 3].url, "concurrency": 100, "timeout_ms": 60_000}
                        assert slow.post(f"{queue}/webhooks", json=wanted).status_code == 201
                        for n in range(20):
                            assert slow.post(f"{queue}/publish", json={"message": n}).status_code < 300
                before = sum(len(tarpit.taken) for tarpit in tarpits)
                until(lambda web=web: web.inside(lambda s: s._web.webhooks.slots.used) >= 10)
                quick = web.large("quick")
                if start == "first":
                    assert quick.post(f"{QUEUES}/q/webhooks", json={"endpoint": receiver.url}).status_code == 201
                for number in range(20):
                    quick.post(f"{QUEUES}/q/publish", json={"message": number})
                for _ in range(20):
                    receiver.next()
                slots = web.web.webhooks.slots
                assert slots._tenants["slow"] == slots.tenant_max == 10
                assert max(slots._hosts.values()) <= slots.host_max == 5
                until(lambda slots=slots: slots.waiting == 30 * 20 - 10)
                shown = slow.get(HOOKS).json()["webhooks"]
                assert sum(row["in_flight"] for row in shown) == 10
                assert sum(row["waiting"] for row in shown) == 30 * 20 - 10
                until(lambda web=web: "rookery_webhook_calls_waiting 590" in web.client.get("/metrics").text)
                assert sum(len(tarpit.taken) for tarpit in tarpits) - before <= 10
                if start == "again":
                    # one that is deleted gives back what waits, at once
                    gone = next(row for row in shown if not row["in_flight"])
                    slow.delete(f"{HOOKS}/{gone['id']}")
                    until(lambda slots=slots: slots.waiting == 590 - 20)
                    assert slow.get(f"{QUEUES}/{gone['target']}/stats").json()["ready"] == 20
    finally:
        for tarpit in tarpits:
            tarpit.close()

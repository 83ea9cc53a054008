"""Queues and topics under /api/v1, as their clients know them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rookery.clock import ManualClock
from tests.wire.http_world import ADMIN, World, world

QUEUES = "/api/v1/queues"
TOPICS = "/api/v1/topics"


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("s2"), clock) as made:
        yield made


class Large:
    """One tenant's client."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def publish(self, queue: str, message: object, **more: Any) -> str:
        answer = self.client.post(f"{QUEUES}/{queue}/publish", json={"message": message, **more})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["message_id"])

    def pull(self, queue: str, **query: Any) -> Any:
        answer = self.client.post(f"{QUEUES}/{queue}/pull", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def settle(self, queue: str, outcome: str, tag: str, **more: Any) -> httpx.Response:
        return self.client.post(f"{QUEUES}/{queue}/{outcome}", json={"delivery_tag": tag, **more})

    def stats(self, queue: str) -> Any:
        return self.client.get(f"{QUEUES}/{queue}/stats").json()

    def subscribe(self, topic: str, key: str) -> Any:
        answer = self.client.post(f"{TOPICS}/{topic}/subscriptions", json={"mode": "pull", "routing_key": key})
        assert answer.status_code == 201, answer.text
        return answer.json()


@pytest.fixture
def large(web: World, request: pytest.FixtureRequest) -> Large:
    return Large(web.large(f"t-{request.node.name}"[:100]))


@pytest.mark.row("S2-1", "S2-48")
def test_competing_pullers_share_the_messages(web: World) -> None:
    publisher = Large(web.large("competing"))
    for n in range(100):
        publisher.publish("q", n)
    got: list[list[int]] = [[], []]

    def work(mine: list[int], puller: Large) -> None:
        while (pulled := puller.pull("q"))["message"] is not None:
            mine.append(pulled["message"])
            assert puller.settle("q", "ack", pulled["delivery_tag"]).status_code == 200

    threads = [threading.Thread(target=work, args=(mine, Large(web.large("competing")))) for mine in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got[0] + got[1]) == list(range(100))


@pytest.mark.row("S2-2", "S2-16", "S2-18", "S2-19", "S2-20")
def test_each_subscription_gets_each_matching_message(large: Large) -> None:
    assert large.client.put(f"{TOPICS}/events").status_code == 201
    assert large.client.put(f"{TOPICS}/events").status_code == 200
    subscriptions = [large.subscribe("events", "order.*")["subscription_id"] for _ in range(3)]
    body = {"routing_key": "order.created", "message": {"order_id": 42}}
    sent = large.client.post(f"{TOPICS}/events/publish", json=body)
    assert sent.status_code == 201
    for subscription in subscriptions:
        pull = {"subscription": subscription}
        pulled = large.client.post(f"{TOPICS}/events/pull", params=pull).json()
        assert pulled["message"] == {"order_id": 42}
        assert pulled["routing_key"] == "order.created"
        assert pulled["message_id"] == sent.json()["message_id"]
        tag = {"delivery_tag": pulled["delivery_tag"]}
        assert large.client.post(f"{TOPICS}/other/ack", json=tag).status_code == 404
        assert large.client.post(f"{TOPICS}/events/ack", json=tag).status_code == 200
        assert large.client.post(f"{TOPICS}/events/pull", params=pull).json()["message"] is None
    # which of three is meant?
    assert large.client.post(f"{TOPICS}/events/pull").status_code == 409


@pytest.mark.row("S2-18", "S2-19")
def test_the_callers_only_subscription_is_the_one_pulled_from(web: World, large: Large) -> None:
    tenant = web.inside(lambda s: next(t for t in s.engine.shard.tenants if "callers_only" in t))
    other = Large(web.large(tenant))
    assert large.client.post(f"{TOPICS}/t/pull").status_code == 404
    mine = large.subscribe("t", "#")
    assert other.client.post(f"{TOPICS}/t/pull").status_code == 404
    other.subscribe("t", "b.#")
    large.client.post(f"{TOPICS}/t/publish", json={"routing_key": "a.b", "message": 1})
    assert other.client.post(f"{TOPICS}/t/pull").json()["message"] is None
    pulled = large.client.post(f"{TOPICS}/t/pull").json()
    assert pulled["message"] == 1
    tag = {"delivery_tag": pulled["delivery_tag"], "requeue": True}
    assert large.client.post(f"{TOPICS}/t/nack", json=tag).status_code == 200
    # and by way of the queue behind it
    again = large.pull(mine["queue"])
    assert (again["message"], again["retry"]) == (1, 1)
    assert large.settle(mine["queue"], "ack", again["delivery_tag"]).status_code == 200
    shown = large.client.get(f"{TOPICS}/t/subscriptions").json()["subscriptions"]
    assert [(each["routing_key"], each["mode"]) for each in shown] == [("#", "pull"), ("b.#", "pull")]
    path = f"{TOPICS}/t/subscriptions/{mine['subscription_id']}"
    assert large.client.delete(path).status_code == 200
    assert large.client.delete(path).status_code == 404


@pytest.mark.row("S2-3")
@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("order.*", ["order.created"], ["order.a.b", "order", "x.order.y"]),
        ("*.created", ["x.created"], ["created", "a.b.created"]),
        ("payment.#", ["payment", "payment.a", "payment.a.b"], ["payments", "a.payment"]),
    ],
)
def test_wildcards(large: Large, pattern: str, matching: list[str], others: list[str]) -> None:
    queue = large.subscribe("t", pattern)["queue"]
    for key in matching + others:
        large.client.post(f"{TOPICS}/t/publish", json={"routing_key": key, "message": key})
    assert [each["message"] for each in large.pull(queue, max=100)["messages"]] == matching


@pytest.mark.row("S2-21")
def test_the_routing_key_may_stand_in_the_query(large: Large) -> None:
    large.subscribe("events", "#")
    path = f"{TOPICS}/events/publish?routing_key=webhook.created"
    assert large.client.post(path, json={"message": {"event": "webhook"}}).status_code == 201
    assert large.client.post(f"{TOPICS}/events/pull").json()["routing_key"] == "webhook.created"
    large.client.post(path, json={"message": 2, "routing_key": "body.wins"})
    assert large.client.post(f"{TOPICS}/events/pull").json()["routing_key"] == "body.wins"


@pytest.mark.row("S2-17")
def test_a_subscription_to_an_endpoint_is_made_wherever_that_is(large: Large) -> None:
    body = {"endpoint": "http://consumer:5000/hook", "routing_key": "order.*"}
    answer = large.client.post(f"{TOPICS}/t/subscriptions", json=body)
    assert answer.status_code == 201
    assert answer.json()["subscription_id"]
    assert large.client.put(f"{TOPICS}/amq.direct").status_code == 409


@pytest.mark.row("S2-4", "S2-11", "S2-12")
def test_ack_modes(large: Large) -> None:
    for n in range(3):
        large.publish("q", n)
    first = large.pull("q")
    assert large.settle("q", "ack", first["delivery_tag"]).json() == {"status": "ok"}
    assert large.settle("q", "ack", first["delivery_tag"]).status_code == 404
    for tag in ("nonsense", "q/1/1/999", "other/1/1/1", "q/x/y/z"):
        answer = large.settle("q", "ack", tag)
        assert (answer.status_code, answer.json()["code"]) == (404, "lease_lost")
    automatic = large.pull("q", auto_ack="true")
    assert (automatic["message"], automatic["delivery_tag"]) == (1, None)
    stats = large.stats("q")
    assert (stats["ready"], stats["in_flight"], stats["acked"]) == (1, 0, 2)
    held = large.pull("q")
    assert large.settle("elsewhere", "ack", held["delivery_tag"]).status_code == 404
    assert large.settle("q", "nack", held["delivery_tag"], requeue=True).status_code == 200
    assert large.pull("q")["message"] == 2


@pytest.mark.row("S2-5")
def test_creating_a_queue(large: Large) -> None:
    path = f"{QUEUES}/payments"
    created = large.client.put(path)
    assert (created.status_code, created.json()["created"]) == (201, True)
    assert large.client.put(path).status_code == 200
    assert large.client.put(path, json={}).status_code == 200
    conflict = large.client.put(path, json={"ttl_ms": 5})
    assert (conflict.status_code, conflict.json()["argument"]) == (409, "ttl_ms")
    other = {"max_attempts": 2, "backoff": "linear", "length_max": 10}
    made = large.client.put(f"{QUEUES}/other", json=other)
    assert made.status_code == 201
    assert other.items() <= made.json()["settings"].items()
    assert large.client.put(f"{QUEUES}/other", json=other).status_code == 200
    assert large.client.put(f"{QUEUES}/other", json={**other, "max_attempts": 3}).status_code == 409
    for bad in ({"max_attempts": -1}, {"colour": "red"}, {"backoff": "random"}, {"ttl_ms": 1.5}, [1]):
        assert large.client.put(f"{QUEUES}/bad", json=bad).status_code == 400, bad


@pytest.mark.row("S2-6", "S2-7")
def test_a_repeated_idempotency_key_adds_nothing(large: Large) -> None:
    body = {"message": {"order_id": 42}, "idempotency_key": "abc-42"}
    first = large.client.post(f"{QUEUES}/payments/publish", json=body)
    assert (first.status_code, list(first.json())) == (201, ["message_id"])
    second = large.client.post(f"{QUEUES}/payments/publish", json={**body, "message": "other"})
    assert second.status_code == 200
    assert second.json() == {"message_id": first.json()["message_id"], "duplicate": True}
    assert large.stats("payments")["ready"] == 1
    elsewhere = large.client.post(f"{QUEUES}/elsewhere/publish", json=body)
    assert elsewhere.status_code == 201
    assert large.stats("elsewhere")["ready"] == 1


@pytest.mark.row("S2-8", "S2-10", "S2-36", "S2-33")
def test_a_pulled_message_is_hidden_until_its_lease_lapses(large: Large, clock: ManualClock) -> None:
    large.publish("q", {"order_id": 42})
    pulled = large.pull("q")
    assert {"message": {"order_id": 42}, "retry": 0}.items() <= pulled.items()
    assert large.pull("q")["message"] is None
    clock.advance(29_999)
    assert large.pull("q")["message"] is None
    clock.advance(1)
    again = large.pull("q")
    assert (again["message"], again["retry"], again["redelivered"]) == ({"order_id": 42}, 1, True)
    assert large.settle("q", "ack", pulled["delivery_tag"]).status_code == 404
    assert large.settle("q", "ack", again["delivery_tag"]).status_code == 200


@pytest.mark.row("S2-9")
def test_pulling_from_an_empty_queue(large: Large) -> None:
    answer = large.client.post(f"{QUEUES}/empty/pull")
    assert (answer.status_code, answer.json()) == (200, {"delivery_tag": None, "message": None, "retry": 0})
    nothing = large.client.post(f"{QUEUES}/empty/pull?empty=204")
    assert (nothing.status_code, nothing.content) == (204, b"")
    assert large.pull("empty", max=5) == {"messages": []}
    waited = large.client.post(f"{QUEUES}/empty/pull?wait=0.01&empty=204")
    assert waited.status_code == 204
    for n in range(5):
        large.publish("empty", n)
    assert [each["message"] for each in large.pull("empty", max=3)["messages"]] == [0, 1, 2]
    for query in ("wait=61", "wait=-1", "max=0", "max=1001", "max=x", "wait=nan", "empty=maybe"):
        assert large.client.post(f"{QUEUES}/empty/pull?{query}").status_code == 400, query


@pytest.mark.row("S2-9")
def test_a_pull_that_waits_is_woken(web: World, large: Large) -> None:
    key = large.client.headers["authorization"]
    got: list[Any] = []
    url = f"{web.base}{QUEUES}/q/pull?wait=60"
    waiting = threading.Thread(
        target=lambda: got.append(httpx.post(url, headers={"Authorization": key}, timeout=70, verify=False))
    )
    waiting.start()
    while not any(
        web.inside(lambda s: [q.waiting_claims() for t in s.engine.shard.tenants.values() for q in t.queues.values()])
    ):
        pass
    large.publish("q", "now")
    waiting.join(30)
    assert got[0].json()["message"] == "now"


@pytest.mark.row("S2-13", "S2-34")
@pytest.mark.parametrize(
    ("strategy", "delays"),
    [("fixed", [500, 500, 500]), ("linear", [500, 1000, 1500]), ("exponential", [500, 1000, 2000])],
)
def test_backoff(tmp_path: Path, strategy: str, delays: list[int]) -> None:
    clock = ManualClock()
    with world(tmp_path, clock, backoff_strategy=strategy, max_retries="3") as web:
        large = Large(web.admin)
        large.publish("q", "x")
        for retry, delay in enumerate(delays):
            pulled = large.pull("q")
            assert pulled["retry"] == retry
            assert large.settle("q", "nack", pulled["delivery_tag"], requeue=False).status_code == 200
            clock.advance(delay - 1)
            assert large.pull("q")["message"] is None
            assert large.stats("q")["delayed"] == 1
            clock.advance(1)
        pulled = large.pull("q")
        assert pulled["retry"] == 3
        large.settle("q", "nack", pulled["delivery_tag"], requeue=False)
        clock.advance(100_000)
        assert large.pull("q")["message"] is None
        assert large.stats("q")["dlq_size"] == 1


@pytest.mark.row("S2-13")
def test_the_meaning_of_requeue(large: Large, clock: ManualClock) -> None:
    large.publish("q", "x")
    for retry in range(6):
        pulled = large.pull("q")
        assert pulled["retry"] == retry
        large.settle("q", "nack", pulled["delivery_tag"], requeue=True)
    assert large.pull("q")["message"] is None
    assert large.pull("q.DLQ")["message"] == "x"
    large.publish("q", "unfit")
    pulled = large.pull("q")
    large.settle("q", "nack", pulled["delivery_tag"], dead_letter=True, reason="no such order")
    letter = large.pull("q.DLQ")
    assert letter["message"] == "unfit"
    assert letter["deaths"][0]["detail"] == "no such order"
    large.publish("q", "later")
    large.settle("q", "nack", large.pull("q")["delivery_tag"], delay_ms=7_000)
    clock.advance(6_999)
    assert large.pull("q")["message"] is None
    clock.advance(1)
    assert large.pull("q")["message"] == "later"


@pytest.mark.row("S2-14")
def test_a_peek_changes_nothing(large: Large) -> None:
    for n in range(3):
        large.publish("q", n)
    for _ in range(2):
        peeked = large.client.get(f"{QUEUES}/q/peek").json()
        assert peeked["message"] == 0
        assert [each["message"] for each in peeked["messages"]] == [0]
    more = large.client.get(f"{QUEUES}/q/peek?max=10").json()
    assert [(each["message"], each["delivery_tag"], each["retry"]) for each in more["messages"]] == [
        (n, None, 0) for n in range(3)
    ]
    stats = large.stats("q")
    assert (stats["ready"], stats["in_flight"], stats["delivered"]) == (3, 0, 0)
    assert [large.pull("q")["message"] for _ in range(3)] == [0, 1, 2]
    assert large.client.get(f"{QUEUES}/q/peek").json() == {"message": None, "messages": []}


@pytest.mark.row("S2-15")
def test_stats_of_a_queue(large: Large, clock: ManualClock) -> None:
    for n in range(4):
        large.publish("q", n)
    large.publish("q", "later", delay_ms=50_000)
    large.pull("q")
    large.settle("q", "nack", large.pull("q")["delivery_tag"], requeue=True)
    large.settle("q", "nack", large.pull("q")["delivery_tag"], dead_letter=True)
    clock.advance(2_000)
    stats = large.stats("q")
    assert (stats["ready"], stats["delayed"], stats["in_flight"]) == (2, 1, 1)
    assert (stats["retries"], stats["dlq_size"]) == (1, 1)
    assert (stats["consumer_lag"], stats["oldest_age_ms"]) == (3, 2_000)
    assert large.stats("unknown")["ready"] == 0


@pytest.mark.row("S2-22")
def test_the_key_is_a_bearer_token(web: World) -> None:
    assert web.client.put(f"{QUEUES}/q", headers={"Authorization": f"Bearer {ADMIN}"}).status_code in (200, 201)
    for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ADMIN}, {"Authorization": "Bearer"}):
        answer = web.client.put(f"{QUEUES}/q", headers=shown)
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthenticated"
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.row("S2-35")
def test_failed_messages_are_in_the_queue_with_the_suffix(tmp_path: Path) -> None:
    with world(tmp_path, dlq_suffix="-failed", max_retries="0") as web:
        large = Large(web.admin)
        assert large.pull("payments-failed")["message"] is None
        large.publish("payments", {"n": 1})
        large.settle("payments", "nack", large.pull("payments")["delivery_tag"])
        letter = large.pull("payments-failed")
        assert (letter["message"], letter["deaths"][0]["queue"]) == ({"n": 1}, "payments")
        # a dead-letter queue has no dead-letter queue, whoever used it first
        large.settle("payments-failed", "nack", letter["delivery_tag"])
        assert large.pull("payments-failed")["retry"] == 1


@pytest.mark.row("S2-42")
def test_an_ack_with_a_key_may_be_repeated(large: Large) -> None:
    large.publish("q", 1)
    tag = large.pull("q")["delivery_tag"]
    assert large.settle("q", "ack", tag, idempotency_key="done-1").json() == {"status": "ok"}
    assert large.settle("q", "ack", tag, idempotency_key="done-1").json() == {"status": "ok", "duplicate": True}
    assert large.settle("q", "ack", tag, idempotency_key="done-2").status_code == 404
    assert large.settle("other", "ack", tag, idempotency_key="done-1").status_code == 404
    assert large.stats("q")["acked"] == 1
    # the keys of acks and of publishes are apart
    assert large.client.post(f"{QUEUES}/q/publish", json={"message": 2, "idempotency_key": "done-1"}).status_code == 201


@pytest.mark.row("S2-44")
def test_higher_priority_first(large: Large) -> None:
    for priority in (0, 5, -3, 5, 1 << 40):
        large.publish("q", priority, priority=priority)
    assert [each["message"] for each in large.pull("q", max=9)["messages"]] == [1 << 40, 5, 5, 0, -3]


@pytest.mark.row("S2-45")
def test_delayed_messages_wait_each_for_its_own_time(large: Large, clock: ManualClock) -> None:
    large.publish("q", "late", delay_ms=3_000)
    large.publish("q", "soon", delay_ms=1_000)
    large.publish("q", "then", deliver_at=clock.wall_ms() + 2_000)
    assert large.pull("q")["message"] is None
    for expected in ("soon", "then", "late"):
        clock.advance(999)
        assert large.pull("q")["message"] is None
        clock.advance(1)
        assert large.pull("q")["message"] == expected
    both = {"message": 1, "delay_ms": 1, "deliver_at": 1}
    assert large.client.post(f"{QUEUES}/q/publish", json=both).status_code == 400


@pytest.mark.row("S2-46")
def test_messages_expire(large: Large, clock: ManualClock) -> None:
    large.client.put(f"{QUEUES}/buried", json={"ttl_ms": 1_000, "dead_letter_queue": "graves"})
    large.publish("buried", "by the queue")
    large.publish("buried", "by itself", ttl_ms=500)
    large.publish("dropped", "gone", ttl_ms=500)
    clock.advance(500)
    assert large.stats("buried")["ready"] == 1
    assert (large.stats("dropped")["ready"], large.stats("dropped")["expired"]) == (0, 1)
    clock.advance(500)
    assert large.stats("buried")["ready"] == 0
    letters = large.pull("graves", max=5)["messages"]
    assert [(letter["message"], letter["deaths"][0]["reason"]) for letter in letters] == [
        ("by itself", "expired"),
        ("by the queue", "expired"),
    ]
    assert large.client.post(f"{QUEUES}/q/publish", json={"message": 1, "ttl_ms": 0}).status_code == 400


def test_what_is_said_about_a_message_comes_back(large: Large) -> None:
    said = {"headers": {"a": 1, "b": "ü"}, "correlation_id": "c", "reply_to": "r", "priority": 3}
    large.publish("q", None, **said, type="t", group="g")
    pulled = large.pull("q")
    assert {"correlation_id": "c", "reply_to": "r", "priority": 3, "message": None}.items() <= pulled.items()
    assert said["headers"].items() <= pulled["headers"].items()  # type: ignore[attr-defined]
    assert pulled["delivery_tag"]


@pytest.mark.parametrize("text", ["1.50", "{}", '{"b":1,"a":  [ ]}', '"\\u00fc"', "12345678901234567890123"])
def test_json_keeps_its_spelling(large: Large, text: str) -> None:
    sent = large.client.post(f"{QUEUES}/q/publish", content=f'{{"message":{text}}}')
    assert sent.status_code == 201, sent.text
    assert f'"message":{text},'.encode() in large.client.post(f"{QUEUES}/q/pull").content


def test_a_full_queue_and_full_memory_say_so(tmp_path: Path) -> None:
    with world(tmp_path, memory_max_bytes="20000") as web:
        large = Large(web.admin)
        large.client.put(f"{QUEUES}/bounded", json={"length_max": 1, "overflow": "reject-publish"})
        large.publish("bounded", 1)
        full = large.client.post(f"{QUEUES}/bounded/publish", json={"message": 2})
        assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (429, "queue_full", "1")
        answers = [large.client.post(f"{QUEUES}/q/publish", json={"message": "x" * 5_000}) for _ in range(6)]
        assert answers[0].status_code == 201
        assert (answers[-1].status_code, answers[-1].headers["retry-after"]) == (503, "1")
        pulled = large.pull("q")
        assert large.settle("q", "ack", pulled["delivery_tag"]).status_code == 200
        assert large.client.post(f"{QUEUES}/q/publish", json={"message": 1}).status_code == 201

"""Messages as Rookery's own client sends and gets them, and requests that are made again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from rookery.clock import ManualClock
from rookery.format import properties
from rookery.format.properties import Properties
from rookery.wire.packed import (
    DONE,
    KEY,
    PACKED,
    PackedMessage,
    PackedPublish,
    PackedSettle,
    PackedWork,
    decode_messages,
    decode_page,
    encode,
)
from tests.wire.http_world import World, world

API = "/api/v1"
PLAIN = properties.encode(Properties(delivery_mode=2))
RICH = properties.encode(
    Properties(content_type="x/y", headers={"b": b"\xff", "n": [1, {"a": None}]}, message_id="mine", delivery_mode=2)
)
SEND = {"Content-Type": PACKED}
TAKE = {"Accept": PACKED}
_names = itertools.count()


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("web"), clock) as made:
        yield made


@pytest.fixture
def queue(web: World) -> str:
    name = f"q{next(_names)}"
    assert web.admin.put(f"{API}/queues/{name}").status_code == 201
    return name


def publish(web: World, path: str, *messages: PackedPublish, key: str = "", done: str = "") -> httpx.Response:
    more = {name: value for name, value in ((KEY, key), (DONE, done)) if value}
    return web.admin.post(f"{API}/{path}", content=encode(list(messages)), headers={**SEND, **more})


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code in (200, 201), answer.text
    return [each["message_id"] for each in answer.json()["messages"]]


def claim(web: World, queue: str, count: int = 100) -> list[PackedMessage]:
    answer = web.admin.post(f"{API}/queues/{queue}/claim", json={"max": count}, headers=TAKE)
    assert answer.status_code == 200, answer.text
    return decode_messages(answer.content)


def ready(web: World, queue: str) -> int:
    return int(web.admin.get(f"{API}/queues/{queue}").json()["stats"]["ready"])


def refused(answer: httpx.Response) -> tuple[int, str, str | None]:
    found = answer.json()
    return answer.status_code, found["code"], found.get("argument")


def test_what_was_packed_comes_back_as_it_was(web: World, queue: str, clock: ManualClock) -> None:
    sent = ids(
        publish(
            web,
            f"queues/{queue}/messages",
            PackedPublish(PLAIN, b"\x00\xff"),
            PackedPublish(RICH, b"", priority=-7, ttl_ms=5_000),
        )
    )
    first, second = claim(web, queue)
    assert (first.id, first.props, first.body, first.key, first.exchange) == (sent[0], PLAIN, b"\x00\xff", queue, "")
    assert (second.id, second.props, second.body, second.priority) == ("mine", RICH, b"", -7)
    assert sent[1] == "mine"
    assert second.expires_ms == clock.wall_ms() + 5_000
    assert (first.attempt, first.redelivered, first.deaths) == (1, False, [])
    assert second.seq == first.seq + 1
    settled = web.admin.post(f"{API}/queues/{queue}/settle", json={"leases": [first.lease], "outcome": "reject"})
    assert settled.json() == {"settled": 1, "lost": []}
    (letter,) = claim(web, f"{queue}.DLQ")
    assert (letter.body, letter.deaths[0]["queue"]) == (b"\x00\xff", queue)


def test_many_of_one_kind_are_one_batch(web: World, queue: str) -> None:
    sent = ids(publish(web, f"queues/{queue}/messages", *[PackedPublish(PLAIN, b"%d" % i) for i in range(500)]))
    got = claim(web, queue, 1_000)
    assert [each.id for each in got] == sent
    assert [each.body for each in got] == [b"%d" % i for i in range(500)]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"\xc1", (400, "invalid_argument", "body")),
        (encode([]), (400, "invalid_argument", "body")),
        (encode([PackedPublish(b"\xff\xff\xff", b"")]), (400, "invalid_argument", None)),
        (encode([PackedPublish(PLAIN, b"", dedup_key="\0x")]), (400, "invalid_argument", "dedup_key")),
        (encode([PackedPublish(PLAIN, b"", expires_at=1)]), (410, "message_expired", "expires_at")),
        (encode([[PLAIN, b"", 1 << 63]]), (400, "invalid_argument", "body")),
        (msgspec.msgpack.encode([["not bytes", b""]]), (400, "invalid_argument", "body")),
    ],
)
def test_what_is_not_so_packed_is_refused_whole(
    web: World, queue: str, body: bytes, wanted: tuple[int, str, str | None]
) -> None:
    found = refused(web.admin.post(f"{API}/queues/{queue}/messages", content=body, headers=SEND))
    assert found[:2] == wanted[:2]
    assert wanted[2] is None or found[2] == wanted[2]
    assert ready(web, queue) == 0


def test_without_create_a_queue_must_be_there(web: World) -> None:
    for answer in (
        publish(web, "queues/nowhere/messages?create=false", PackedPublish(PLAIN, b"")),
        web.admin.post(f"{API}/queues/nowhere/claim", json={"create": False}),
        web.admin.post(
            f"{API}/queues/nowhere/stage?create=false", content=encode([PackedPublish(PLAIN, b"")]), headers=SEND
        ),
    ):
        assert refused(answer) == (404, "queue_not_found", "queue")
    assert web.admin.put(f"{API}/queues/made?new=true").status_code == 201
    assert refused(web.admin.put(f"{API}/queues/made?new=true")) == (409, "already_exists", "queue")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("priority", [0, 1])
def test_a_publish_that_is_made_again_adds_nothing(web: World, queue: str, count: int, priority: int) -> None:
    messages = [PackedPublish(PLAIN, b"%d" % i, priority=priority) for i in range(count)]
    path = f"queues/{queue}/messages"
    first = ids(publish(web, path, *messages, key="k1"))
    again = publish(web, path, *messages, key="k1")
    assert again.status_code == 200
    assert ids(again) == first
    assert ready(web, queue) == count
    assert ids(publish(web, path, *messages, key="k2")) != first
    assert ready(web, queue) == 2 * count


def test_a_key_that_is_done_with_is_forgotten_and_all_are_in_time(web: World, queue: str, clock: ManualClock) -> None:
    path, message = f"queues/{queue}/messages", PackedPublish(PLAIN, b"")
    publish(web, path, message, key="k1")
    publish(web, path, message, key="k2", done="k0,k1")
    publish(web, path, message, key="k1")
    assert ready(web, queue) == 3
    clock.advance(600_000)
    publish(web, path, message, key="k2")
    assert ready(web, queue) == 4


def test_keys_of_requests_are_each_callers_own(web: World) -> None:
    callers = [web.large("tenants-k"), web.large("tenants-k")]
    for caller in callers:
        headers = {**SEND, KEY: "same"}
        answer = caller.post(f"{API}/queues/q/messages", content=encode([PackedPublish(PLAIN, b"")]), headers=headers)
        assert answer.status_code == 201
    assert callers[0].get(f"{API}/queues/q").json()["stats"]["ready"] == 2


def test_a_batch_has_keys_for_all_or_for_none(web: World, queue: str) -> None:
    mixed = [PackedPublish(PLAIN, b"a", dedup_key="a"), PackedPublish(PLAIN, b"b")]
    assert refused(publish(web, f"queues/{queue}/messages", *mixed, key="k"))[:2] == (400, "invalid_argument")
    assert ready(web, queue) == 0
    keyed = [PackedPublish(PLAIN, b"a", dedup_key="a"), PackedPublish(PLAIN, b"b", dedup_key="b")]
    first = ids(publish(web, f"queues/{queue}/messages", *keyed, key="k"))
    assert ids(publish(web, f"queues/{queue}/messages", *keyed, key="k")) == first
    assert ready(web, queue) == 2


def test_a_settle_that_is_made_again_is_done_already(web: World, queue: str) -> None:
    publish(web, f"queues/{queue}/messages", PackedPublish(PLAIN, b"a"), PackedPublish(PLAIN, b"b"))
    first, second = (each.lease for each in claim(web, queue))
    path = f"{API}/queues/{queue}/settle"
    for _ in range(2):
        answer = web.admin.post(path, json={"leases": [first]}, headers={KEY: "s1"})
        assert answer.json() == {"settled": 1, "lost": []}
    answer = web.admin.post(path, json={"leases": [first]}, headers={KEY: "s2"})
    assert answer.json() == {"settled": 0, "lost": [first]}
    together = web.admin.post(path, json={"leases": [second, first], "together": True})
    assert refused(together) == (404, "lease_lost", "lease")
    assert web.admin.post(path, json={"leases": [second]}).json() == {"settled": 1, "lost": []}


def test_a_transaction_that_is_made_again_is_done_already(web: World, queue: str) -> None:
    publish(web, f"queues/{queue}/messages", PackedPublish(PLAIN, b"a"))
    (held,) = claim(web, queue)
    work = encode(
        PackedWork(
            [PackedPublish(PLAIN, b"b", routing_key=queue), PackedPublish(RICH, b"c", routing_key=queue)],
            [PackedSettle(held.lease, "ack")],
        )
    )
    headers = {**SEND, KEY: f"t-{queue}"}
    first = web.admin.post(f"{API}/transactions", content=work, headers=headers)
    assert first.status_code == 200, first.text
    again = web.admin.post(f"{API}/transactions", content=work, headers=headers)
    assert again.json()["status"] == "committed"
    assert again.json()["settled"] == 1
    assert ready(web, queue) == 2
    other = web.admin.post(f"{API}/transactions", content=work, headers={**SEND, KEY: "other"})
    assert refused(other)[:2] == (404, "lease_lost")
    assert ready(web, queue) == 2


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (PackedWork([PackedPublish(PLAIN, b"", routing_key="nowhere", mandatory=True)], []), "unroutable"),
        (PackedWork([PackedPublish(PLAIN, b"", exchange="nowhere")], []), "exchange_not_found"),
        (PackedWork([PackedPublish(PLAIN, b"", exchange="amq.topic", mandatory=True)], []), "unroutable"),
        (PackedWork([], [PackedSettle("q/1/1/1", "ack")]), "lease_lost"),
        (PackedWork([], []), "invalid_argument"),
    ],
)
def test_a_transaction_that_cannot_be_is_refused(web: World, work: PackedWork, code: str) -> None:
    answer = web.admin.post(f"{API}/transactions", content=encode(work), headers=SEND)
    assert refused(answer)[1] == code


def test_records_and_cuts_and_looks_are_packed_too(web: World, queue: str) -> None:
    stream = f"s{next(_names)}"
    web.admin.put(f"{API}/streams/{stream}")
    publish(web, f"streams/{stream}/publish", PackedPublish(RICH, b"r"), key="s")
    answer = publish(web, f"streams/{stream}/publish", PackedPublish(RICH, b"r"), key="s")
    assert answer.json()["positions"] == [{"partition": None, "offset": None, "duplicate": True}]
    page = decode_page(web.admin.get(f"{API}/streams/{stream}/records", headers=TAKE).content)
    assert (page.partition, page.next, page.end) == (0, 1, 1)
    assert [(each.offset, each.message.id, each.message.props) for each in page.records] == [(0, "mine", RICH)]

    publish(web, f"queues/{queue}/messages", PackedPublish(RICH, b"1"), PackedPublish(PLAIN, b"2"))
    looked: list[Any] = decode_messages(web.admin.get(f"{API}/queues/{queue}/messages", headers=TAKE).content)
    assert [(each.body, each.lease) for each in looked] == [(b"1", ""), (b"2", "")]
    web.admin.put(f"{API}/queues/{queue}-other")
    moving = {"to": f"{queue}-other", "where": {"seqs": [looked[1].seq]}}
    assert web.admin.post(f"{API}/queues/{queue}/move", json=moving).json() == {"moved": 1}
    web.admin.post(f"{API}/queues/{queue}/cuts", json={"consumer": "c"})
    cut = decode_messages(web.admin.get(f"{API}/queues/{queue}/cuts/c/1", headers=TAKE).content)
    assert [each.body for each in cut] == [b"1"]

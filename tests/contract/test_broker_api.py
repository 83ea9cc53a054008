"""What every face of the broker API does, async or blocking, embedded or (later) over the network."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery import errors
from rookery.embed import Message
from tests.contract.faces import ALL_FACES, FACES, Face, counts, faced, until

face = pytest.fixture(faced, params=ALL_FACES)

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture
def broker(face: Face) -> Any:
    return face.make()


async def data(queue: Any, count: int = 100) -> list[Any]:
    """Claim and ack what is there; the values."""
    deliveries = await queue.claim(count)
    await queue.settle(deliveries)
    return [d.data for d in deliveries]


# Publishing and claiming


@pytest.mark.row("S3-2")
async def test_what_is_published_waits_until_somebody_comes(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish("early")
    async with await jobs.subscribe() as subscription:
        delivery = await subscription.get(1000)
        assert delivery.data == "early"
        await delivery.ack()


@pytest.mark.parametrize(
    ("value", "body", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", None),
        (bytearray(b"abc"), b"abc", None),
        (memoryview(b"abc"), b"abc", None),
        ("Grüße", "Grüße".encode(), "text/plain"),
        ({"a": [1, 2.5, None]}, b'{"a":[1,2.5,null]}', "application/json"),
        (7, b"7", "application/json"),
        (True, b"true", "application/json"),
        (b"", b"", None),
    ],
)
async def test_a_value_comes_out_as_it_went_in(broker: Any, value: Any, body: bytes, content_type: str | None) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish(value)
    (delivery,) = await jobs.claim()
    assert delivery.body == body
    assert delivery.message.content_type == content_type
    assert delivery.data == (bytes(value) if isinstance(value, bytearray | memoryview) else value)


@pytest.mark.row("S3-16")
async def test_a_message_without_an_id_gets_a_uuid_and_a_time(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs")
    first, second = await jobs.publish("a"), await jobs.publish("b")
    assert UUID4.fullmatch(first)
    assert UUID4.fullmatch(second)
    assert first != second
    deliveries = await jobs.claim(2)
    assert [d.id for d in deliveries] == [first, second]
    message = deliveries[0].message
    assert message.id == first
    assert message.time == datetime.fromtimestamp(face.clock.wall_ms() / 1000, UTC)


async def test_all_that_a_message_carries_arrives(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs")
    when = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    sent = Message(
        {"n": 1},
        id="mine",
        type="order",
        time=when,
        meta={"tries": 3, "who": "me"},
        priority=7,
        ttl_ms=5_000,
        group="g",
        content_type="application/vnd.order+json",
        correlation_id="c",
        reply_to="answers",
        persistent=False,
    )
    assert await jobs.publish(sent) == "mine"
    got = (await jobs.claim())[0].message
    assert (got.data, got.id, got.topic, got.type, got.time) == ({"n": 1}, "mine", "jobs", "order", when)
    assert (got.meta, got.priority, got.group) == ({"tries": 3, "who": "me"}, 7, "g")
    assert got.expires_at == face.clock.wall_ms() + 5_000
    assert (got.content_type, got.correlation_id, got.reply_to) == ("application/vnd.order+json", "c", "answers")
    assert (got.persistent, got.deaths, got.reason, got.ack_id) == (False, [], None, None)


async def test_publishing_many_is_one_step_and_keeps_the_order(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    ids = await jobs.publish_many([b"0", Message(b"1", id="mine"), b"2"])
    assert len(ids) == 3
    assert ids[1] == "mine"
    assert ids[-2] == "mine"
    assert list(ids[1:]) == [ids[1], ids[2]]
    deliveries = await jobs.claim(10)
    assert [d.body for d in deliveries] == [b"0", b"1", b"2"]
    assert [d.id for d in deliveries] == list(ids)
    assert list(await jobs.publish_many([])) == []


async def test_one_invalid_message_and_none_is_published(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    with pytest.raises(errors.InvalidType) as failure:
        await jobs.publish_many([b"fine", object()])
    assert failure.value.argument == "body"
    assert (await jobs.stats())["published"] == 0


@pytest.mark.row("S3-18")
async def test_a_queue_is_first_in_first_out_and_says_how_long_it_is(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    assert await jobs.claim() == []
    assert (await jobs.stats())["ready"] == 0
    for n in range(5):
        await jobs.publish(n)
    assert (await jobs.stats())["ready"] == 5
    assert await data(jobs) == [0, 1, 2, 3, 4]
    assert await jobs.claim() == []


@pytest.mark.row("S3-17")
@pytest.mark.parametrize("name", ["jobs", "Ünïcode9", "a.b-c_d/e", "名前"])
async def test_names_hold_more_than_letters_and_are_taken_once(broker: Any, name: str) -> None:
    queue = await broker.create_queue(name)
    await queue.publish("x")
    with pytest.raises(errors.AlreadyExists, match="already exists"):
        await broker.create_queue(name)
    assert await broker.queues() == [name]
    assert await data(queue) == ["x"]


async def test_declaring_again_must_agree(broker: Any) -> None:
    await broker.queue("jobs", max_attempts=2)
    await broker.queue("jobs")
    await broker.queue("jobs", max_attempts=2)
    with pytest.raises(errors.Conflict) as failure:
        await broker.queue("jobs", max_attempts=3)
    assert failure.value.argument == "max_attempts"


async def test_a_claim_waits_for_the_first_message(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    waiting = asyncio.create_task(jobs.claim(5, wait_ms=10_000))
    await until(lambda: counts(jobs, waiting_claims=1))
    await jobs.publish_many(["a", "b"])
    assert [d.data for d in await waiting] == ["a", "b"]
    assert (await jobs.stats())["waiting_claims"] == 0


async def test_a_claim_that_waits_in_vain_is_empty(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    assert await jobs.claim(wait_ms=1) == []
    assert (await jobs.stats())["waiting_claims"] == 0


async def test_whoever_waits_on_a_queue_learns_that_it_is_deleted(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    claim = asyncio.create_task(jobs.claim(wait_ms=10_000))
    subscription = await jobs.subscribe()
    get = asyncio.create_task(subscription.get(10_000))
    await until(lambda: counts(jobs, waiting_claims=1))
    assert await jobs.delete() == 0
    with pytest.raises(errors.QueueNotFound):
        await claim
    with pytest.raises(errors.NotFound):
        await get
    assert subscription.done
    with pytest.raises(errors.QueueNotFound) as failure:
        await jobs.publish("late")
    assert failure.value.argument == "queue"


# Settling


async def test_an_acked_message_is_gone(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", lease_ms=1_000)
    await jobs.publish("x")
    (delivery,) = await jobs.claim()
    assert (delivery.attempt, delivery.redelivered, delivery.queue, delivery.key) == (1, False, "jobs", "jobs")
    await delivery.ack()
    await face.advance(2_000)
    assert await jobs.claim() == []
    stats = await jobs.stats()
    assert (stats["acked"], stats["leased"], stats["ready"]) == (1, 0, 0)


@pytest.mark.row("S3-8")
async def test_a_failed_delivery_comes_again_and_in_the_end_dies(broker: Any) -> None:
    jobs = await broker.queue("jobs", max_attempts=2, dead_letter_queue="jobs.dead")
    await jobs.publish("x")
    (delivery,) = await jobs.claim()
    await delivery.retry(reason="first")
    (delivery,) = await jobs.claim()
    assert (delivery.attempt, delivery.redelivered) == (2, True)
    await delivery.retry(reason="second")
    assert await jobs.claim() == []
    (letter,) = await (await broker.queue("jobs.dead")).claim()
    assert letter.message.reason == "second"
    assert letter.message.topic == "jobs"
    (death,) = letter.message.deaths
    assert (death["queue"], death["reason"], death["attempts"]) == ("jobs", "delivery_limit", 2)
    assert (await jobs.stats())["dead"] == 1


@pytest.mark.row("S3-7", "S3-12")
async def test_a_lapsed_lease_means_redelivery_and_its_holder_is_too_late(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", lease_ms=1_000)
    await jobs.publish("x")
    (late,) = await jobs.claim()
    await face.advance(999)
    assert await jobs.claim() == []
    await face.advance(1)
    (again,) = await jobs.claim(lease_ms=5_000)
    assert (again.attempt, again.redelivered, again.data) == (2, True, "x")
    for settle in (late.ack, late.retry, late.release, late.reject):
        with pytest.raises(errors.LeaseLost):
            await settle()
    with pytest.raises(errors.LeaseLost):
        await late.extend(1_000)
    assert not late.live
    await again.extend(10_000)
    await face.advance(9_999)
    await again.ack()
    stats = await jobs.stats()
    assert (stats["lapsed"], stats["redelivered"], stats["acked"]) == (1, 1, 1)


@pytest.mark.row("S4-30")
async def test_unacked_messages_are_sent_again_every_30_seconds_at_most_5_times(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", max_attempts=6, dead_letter_queue="jobs.DLQ")
    await jobs.publish("x")
    seen = 0
    while await jobs.claim():
        seen += 1
        assert await jobs.claim() == []
        await face.advance(30_000)
    assert seen == 1 + 5
    (letter,) = await (await broker.queue("jobs.DLQ")).claim()
    assert letter.message.reason == "ack timeout after 30000 ms"


async def test_released_messages_return_to_their_place_uncounted(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish_many(["a", "b", "c"])
    deliveries = await jobs.claim(2)
    await jobs.settle(list(reversed(deliveries)), "release")
    again = await jobs.claim(3)
    assert [(d.data, d.attempt, d.redelivered) for d in again] == [("a", 1, True), ("b", 1, True), ("c", 1, False)]


async def test_a_retry_waits_for_its_delay_or_the_queue_s_backoff(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", backoff="exponential", backoff_base_ms=100)
    await jobs.publish("x")
    for wait in (100, 200):
        (delivery,) = await jobs.claim()
        await delivery.retry()
        assert (await jobs.stats())["delayed"] == 1
        await face.advance(wait - 1)
        assert await jobs.claim() == []
        await face.advance(1)
    (delivery,) = await jobs.claim()
    await delivery.retry(7)
    await face.advance(7)
    (delivery,) = await jobs.claim()
    assert delivery.attempt == 4


async def test_a_rejected_message_is_a_dead_letter_at_once(broker: Any) -> None:
    jobs = await broker.queue("jobs", dead_letter_queue="dead")
    await jobs.publish(Message("x", id="bad"))
    (delivery,) = await jobs.claim()
    await delivery.reject("no such customer")
    (letter,) = await (await broker.queue("dead")).peek()
    assert (letter.id, letter.reason) == ("bad", "no such customer")
    assert letter.deaths[0]["reason"] == "rejected"


async def test_settling_many_is_all_or_none(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", lease_ms=1_000)
    await jobs.publish_many(["a", "b"])
    (early,) = await jobs.claim(lease_ms=500)
    (later,) = await jobs.claim()
    await face.advance(500)
    with pytest.raises(errors.LeaseLost):
        await jobs.settle([later, early])
    assert later.live
    assert (await jobs.stats())["acked"] == 0
    await jobs.settle([later, later])
    assert (await jobs.stats())["acked"] == 1


# Order


async def test_higher_priority_goes_first(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 2**63 - 1), ("f", -(2**63))):
        await jobs.publish(Message(name, priority=priority))
    assert await data(jobs) == ["e", "b", "d", "a", "c", "f"]


@pytest.mark.parametrize("kind", ["delay_ms", "deliver_at datetime", "deliver_at ms"])
async def test_a_delayed_message_comes_when_it_is_due_and_holds_nobody_up(face: Face, broker: Any, kind: str) -> None:
    jobs = await broker.queue("jobs")
    now = face.clock.wall_ms()
    moments: dict[str, dict[str, Any]] = {
        "delay_ms": {"delay_ms": 1_500},
        "deliver_at datetime": {"deliver_at": datetime.fromtimestamp(now / 1000, UTC) + timedelta(seconds=1.5)},
        "deliver_at ms": {"deliver_at": now + 1_500},
    }
    when = moments[kind]
    await jobs.publish(Message("later", **when))
    await jobs.publish("now")
    assert (await jobs.stats())["delayed"] == 1
    assert await data(jobs) == ["now"]
    await face.advance(1_499)
    assert await data(jobs) == []
    await face.advance(1)
    assert await data(jobs) == ["later"]


@pytest.mark.parametrize("kind", ["ttl_ms", "expires_at datetime", "expires_at ms"])
async def test_an_expired_message_is_never_delivered(face: Face, broker: Any, kind: str) -> None:
    jobs = await broker.queue("jobs")
    now = face.clock.wall_ms()
    moments: dict[str, dict[str, Any]] = {
        "ttl_ms": {"ttl_ms": 1_500},
        "expires_at datetime": {"expires_at": datetime.fromtimestamp(now / 1000, UTC) + timedelta(seconds=1.5)},
        "expires_at ms": {"expires_at": now + 1_500},
    }
    when = moments[kind]
    await jobs.publish_many(["first", Message("short", **when), Message("lives", expires_at=0)])
    (first,) = await jobs.claim()
    await face.advance(1_499)
    assert (await jobs.stats())["ready"] == 2
    await face.advance(1)
    stats = await jobs.stats()
    assert (stats["ready"], stats["expired"]) == (1, 1)
    await first.release()
    assert await data(jobs) == ["first", "lives"]


async def test_time_to_live_counts_from_when_a_message_is_due(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish(Message("x", delay_ms=1_000, ttl_ms=500))
    await face.advance(1_499)
    assert [m.data for m in await jobs.peek()] == ["x"]
    await face.advance(1)
    assert await jobs.peek() == []


async def test_messages_of_a_group_are_handled_one_after_the_other(broker: Any) -> None:
    jobs = await broker.queue("jobs", grouped=True)
    for n in range(3):
        await jobs.publish(Message(f"a{n}", group="a"))
    await jobs.publish(Message("b0", group="b"))
    await jobs.publish("free")
    first = await jobs.claim(10)
    assert [d.data for d in first] == ["a0", "b0", "free"]
    assert await jobs.claim(10) == []
    await first[0].retry()
    (again,) = await jobs.claim(10)
    assert again.data == "a0"
    await again.ack()
    (following,) = await jobs.claim(10)
    assert (following.data, following.message.group) == ("a1", "a")


async def test_groups_keep_their_order_with_consumers_in_parallel(broker: Any) -> None:
    jobs = await broker.queue("jobs", grouped=True)
    groups, each = 5, 8
    await jobs.publish_many([Message([g, n], group=str(g)) for n in range(each) for g in range(groups)])
    done: dict[int, list[int]] = {g: [] for g in range(groups)}
    busy: Counter[int] = Counter()

    async def work() -> None:
        while True:
            deliveries = await jobs.claim(2)
            if not deliveries:
                return
            for delivery in deliveries:
                group = delivery.data[0]
                busy[group] += 1
                assert busy[group] == 1
                await asyncio.sleep(0)
            for delivery in deliveries:
                group, n = delivery.data
                done[group].append(n)
                busy[group] -= 1
                await delivery.ack()

    await asyncio.gather(*(work() for _ in range(4)))
    while await jobs.peek():
        await work()
    assert done == {g: list(range(each)) for g in range(groups)}


async def test_a_repeated_dedup_key_adds_nothing_and_answers_with_the_first_id(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", dedup_window_ms=60_000)
    first = await jobs.publish(Message("once", dedup_key="k"))
    assert await jobs.publish(Message("twice", dedup_key="k")) == first
    ids = await jobs.publish_many(
        [
            Message("thrice", dedup_key="k", id="not published"),
            Message("new", dedup_key="n", id="mine"),
            "x",
            Message("new again", dedup_key="x", id="first of its key"),
            Message("and again", dedup_key="x", id="second of its key"),
        ]
    )
    assert ids[0] == first
    assert ids[1] == "mine"
    assert ids[3] == "first of its key"
    assert ids[4] != "second of its key"
    (again,) = await jobs.publish_many([Message("once more", dedup_key="n", id="not published")])
    assert again != "not published"
    other = await broker.queue("other")
    assert await other.publish(Message("elsewhere", dedup_key="k")) != first
    assert await data(jobs) == ["once", "new", "x", "new again"]
    assert await jobs.publish(Message("acked long ago", dedup_key="k")) == first
    await face.advance(60_000)
    assert await jobs.publish(Message("later", dedup_key="k")) != first
    assert await data(jobs) == ["later"]
    assert (await broker.metrics())["tenant"]["dedup_duplicates"] == 5


# Subscriptions to queues


@pytest.mark.row("S3-3")
async def test_a_subscription_is_pushed_to_and_holds_no_more_than_its_credit(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    async with await jobs.subscribe(credit=2) as subscription:
        get = asyncio.create_task(subscription.get(10_000))
        await asyncio.sleep(0)
        await jobs.publish_many([0, 1, 2, 3])
        first = await get
        assert first.data == 0
        second = (await subscription.get_many(10, 1_000))[0]
        assert second.data == 1
        assert (await jobs.stats())["leased"] == 2
        with pytest.raises(TimeoutError):
            await subscription.get(1)
        assert await subscription.get_many(5, 1) == []
        await first.ack()
        third = await subscription.get(1_000)
        assert third.data == 2
        await second.ack()
        assert subscription.queue == "jobs"
    assert subscription.done
    # what it had been sent but not handed out went back
    assert sorted(m.data for m in await jobs.peek(10)) == [3]
    await third.ack()
    with pytest.raises(errors.NotFound):
        await subscription.get(0)
    await subscription.cancel()


async def test_iteration_ends_when_a_subscription_is_cancelled(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    subscription = await jobs.subscribe(credit=10)
    await jobs.publish_many([1, 2])
    seen = []

    async def consume() -> None:
        async for delivery in subscription:
            seen.append(delivery.data)
            await delivery.ack()

    consumer = asyncio.create_task(consume())
    await until(lambda: counts(jobs, acked=2))
    await subscription.cancel()
    await consumer
    assert seen == [1, 2]


@pytest.mark.row("S3-13")
async def test_who_gets_a_message_is_a_setting_of_the_queue(broker: Any) -> None:
    async def shares(queue: Any, names: list[str], count: int, ack: str, **priorities: int) -> dict[str, int]:
        """How many deliveries each consumer has when `count` messages come and only `ack` settles what it gets."""
        subscriptions = {
            name: await queue.subscribe(credit=count, name=name, priority=priorities.get(name, 0)) for name in names
        }
        taken: Counter[str] = Counter()
        for n in range(count):
            await queue.publish(Message(n, group=str(n % 3)))
            async with asyncio.timeout(30):
                while taken.total() <= n:
                    for name, subscription in subscriptions.items():
                        for delivery in await subscription.get_many(count, 0):
                            taken[name] += 1
                            if name == ack:
                                await delivery.ack()
                    await asyncio.sleep(0)
        for subscription in subscriptions.values():
            await subscription.cancel()
        return dict(taken)

    turns = await broker.queue("turns")
    assert await shares(turns, ["a", "b"], 6, ack="a") == {"a": 3, "b": 3}
    busy = await broker.queue("busy", distribution="least-busy")
    assert await shares(busy, ["a", "b"], 6, ack="a") == {"a": 5, "b": 1}
    ranked = await broker.queue("ranked", distribution="priority")
    assert await shares(ranked, ["a", "b"], 6, ack="a", b=1) == {"b": 6}
    hashed = await broker.queue("hashed", distribution="key-hash")
    one = await shares(hashed, ["a", "b"], 6, ack="a")
    assert sum(one.values()) == 6
    assert all(n % 2 == 0 for n in one.values())
    # the same queue, told otherwise while it is there
    await broker.set_policy("busy", "^turns$", distribution="least-busy")
    assert await shares(turns, ["a", "b"], 6, ack="a") == {"a": 5, "b": 1}


async def test_one_active_consumer_at_a_time(broker: Any) -> None:
    jobs = await broker.queue("jobs", single_active=True)
    active = await jobs.subscribe(credit=10)
    spare = await jobs.subscribe(credit=10)
    await jobs.publish_many([1, 2])
    assert [d.data for d in await active.get_many(5, 10_000)] == [1, 2]
    assert await spare.get_many(5, 0) == []
    await active.cancel()
    await jobs.publish(3)
    assert (await spare.get(1_000)).data == 3


# Exchanges


@pytest.mark.row("S3-4")
async def test_a_direct_exchange_has_one_target_per_key(broker: Any) -> None:
    exchange = await broker.exchange("x", "direct")
    a, b = await broker.queue("a"), await broker.queue("b")
    await a.bind("x", "a")
    await exchange.bind(b, "b")
    await exchange.publish("b", "for b")
    await exchange.publish("nobody", "lost")
    with pytest.raises(errors.Unroutable):
        await exchange.publish("nobody", "refused", mandatory=True)
    assert await data(a) == []
    assert await data(b) == ["for b"]


@pytest.mark.row("S3-5")
async def test_a_fanout_exchange_gives_everyone_a_copy(broker: Any) -> None:
    exchange = await broker.exchange("x", "fanout")
    queues = [await broker.queue(name) for name in "abc"]
    for queue in queues:
        await exchange.bind(queue)
    first = await exchange.publish("any", "news")
    await exchange.publish_many("any", ["more", "still more"])
    for queue in queues:
        deliveries = await queue.claim(3)
        assert [d.data for d in deliveries] == ["news", "more", "still more"]
        assert deliveries[0].id == first


async def test_topic_headers_and_hash_exchanges(broker: Any) -> None:
    topic = await broker.exchange("topic")
    a, b = await broker.queue("a"), await broker.queue("b")
    await a.bind("topic", "order.*.paid")
    await b.bind("topic", "order.#")
    await topic.publish("order.7.paid", 1)
    await topic.publish("order.7.late.notice", 2)
    assert (await data(a), await data(b)) == ([1], [1, 2])
    headers = await broker.exchange("headers", "headers")
    await a.bind("headers", headers={"x-match": "all", "kind": "new", "size": 3})
    await b.bind("headers", headers={"x-match": "any", "kind": "new", "size": 3})
    await headers.publish("", Message("both", meta={"kind": "new", "size": 3}))
    await headers.publish("", Message("one", meta={"kind": "new"}))
    assert (await data(a), await data(b)) == (["both"], ["both", "one"])
    spread = await broker.exchange("spread", "consistent-hash")
    for queue in (a, b):
        await queue.bind("spread", "1")
    for n in range(50):
        await spread.publish(f"key {n}", n)
    taken = await data(a), await data(b)
    assert sorted(taken[0] + taken[1]) == list(range(50))
    assert taken[0]
    assert taken[1]


async def test_exchanges_route_on_to_exchanges_and_to_an_alternate(broker: Any) -> None:
    source = await broker.exchange("source", "direct", alternate="rest")
    rest = await broker.exchange("rest", "fanout")
    inner = await broker.exchange("inner", "fanout")
    a, b = await broker.queue("a"), await broker.queue("b")
    await source.bind(inner, "in")
    await inner.bind(a)
    await rest.bind("b")
    await source.publish("in", 1)
    await source.publish("out", 2)
    assert (await data(a), await data(b)) == ([1], [2])
    assert await source.unbind(inner, "in")
    assert not await source.unbind(inner, "in")
    await source.publish("in", 3)
    assert (await data(a), await data(b)) == ([], [3])
    with pytest.raises(errors.InUse):
        await rest.delete(if_unused=True)
    await rest.delete()
    await source.publish("out", 4)
    assert await data(b) == []


async def test_a_fan_out_reaches_all_queues_or_none(broker: Any) -> None:
    exchange = await broker.exchange("x", "fanout")
    roomy = await broker.queue("roomy")
    small = await broker.queue("small", length_max=1, overflow="reject-publish")
    for queue in (roomy, small):
        await queue.bind("x")
    await exchange.publish("", 1)
    with pytest.raises(errors.QueueFull):
        await exchange.publish("", 2)
    with pytest.raises(errors.QueueFull):
        await small.publish(3)
    with pytest.raises(errors.QueueFull):
        await small.publish_many([4])
    assert (await data(roomy), await data(small)) == ([1], [1])


@pytest.mark.parametrize(
    ("overflow", "kept", "dead"),
    [("drop-head", [2, 3], [1]), ("drop-new", [1, 2], []), ("reject-publish-dead-letter", [1, 2], [3])],
)
async def test_what_a_full_queue_does_with_one_more(
    broker: Any, overflow: str, kept: list[int], dead: list[int]
) -> None:
    await broker.queue("dead")
    jobs = await broker.queue("jobs", length_max=2, overflow=overflow, dead_letter_queue="dead")
    for n in (1, 2, 3):
        try:
            await jobs.publish(n)
        except errors.QueueFull:
            assert (n, overflow) == (3, "reject-publish-dead-letter")
    assert await data(jobs) == kept
    assert await data(await broker.queue("dead")) == dead


# Topics


@pytest.mark.row("S3-5", "S1-3")
async def test_every_subscriber_of_a_topic_gets_each_message_once(broker: Any) -> None:
    subscriptions = [await broker.subscribe("news") for _ in range(3)]
    for n in range(5):
        await broker.publish("news", n)
    for subscription in subscriptions:
        assert [(await subscription.get(0)).data for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(TimeoutError):
            await subscription.get(0)


@pytest.mark.row("S1-57")
@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("user.*", ["user.1", "user.x"], ["user", "user.1.name"]),
        ("user.#", ["user", "user.1", "user.1.name"], ["users"]),
        ("user/+", ["user/1", "user.1"], ["user/1/name"]),
        ("home/#", ["home", "home/kitchen/light"], ["away/home"]),
        ("+/light", ["kitchen/light"], ["light", "a/b/light"]),
        ("+", ["one"], ["one/two"]),
        ("#", ["a", "a.b"], []),
        ("plain", ["plain"], ["plain.er"]),
    ],
)
async def test_patterns_with_dots_and_with_slashes(
    broker: Any, pattern: str, matching: list[str], other: list[str]
) -> None:
    subscription = await broker.subscribe(pattern)
    for topic in matching + other:
        await broker.publish(topic, topic)
    for topic in matching:
        message = await subscription.get(0)
        assert message.data == topic
        assert message.topic == topic.replace("/", ".")
    with pytest.raises(TimeoutError):
        await subscription.get(0)


async def test_a_queue_may_listen_to_topics_too(broker: Any) -> None:
    log = await broker.queue("log")
    await log.bind("amq.topic", "app.#")
    await broker.publish("app.start", "up", mandatory=True)
    with pytest.raises(errors.Unroutable):
        await broker.publish("nobody", "x", mandatory=True)
    assert await data(log) == ["up"]


# Looking into a queue, moving, redriving


async def test_a_peek_changes_nothing(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish_many([Message(n, priority=n % 2) for n in range(4)])
    (delivery,) = await jobs.claim()
    await delivery.release()
    before = await jobs.stats()
    for _ in range(2):
        assert [m.data for m in await jobs.peek(10)] == [1, 3, 0, 2]
        assert [m.data for m in await jobs.peek()] == [1]
    assert await jobs.stats() == before
    assert [(d.data, d.attempt) for d in await jobs.claim(4)] == [(1, 1), (3, 1), (0, 1), (2, 1)]


async def test_purge_and_delete(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish_many([1, 2, 3])
    (held,) = await jobs.claim()
    assert await jobs.purge() == 2
    await held.ack()
    assert await jobs.purge() == 0
    await jobs.publish(4)
    with pytest.raises(errors.NotEmpty):
        await jobs.delete(if_empty=True)
    subscription = await jobs.subscribe()
    with pytest.raises(errors.InUse):
        await jobs.delete(if_unused=True)
    await subscription.cancel()
    assert await jobs.delete() == 1
    assert await broker.queues() == []


async def test_move_takes_ready_messages_to_another_queue_in_order(broker: Any) -> None:
    source, target = await broker.queue("source"), await broker.queue("target", length_max=3, overflow="drop-new")
    await source.publish_many(range(6))
    assert await source.move("target", filter=lambda m: m.data % 2 == 1, limit=2) == 2
    assert [m.data for m in await source.peek(9)] == [0, 2, 4, 5]
    assert await source.move("target") == 1
    assert await data(target) == [1, 3, 0]
    assert await data(source) == [2, 4, 5]
    with pytest.raises(errors.InvalidArgument):
        await source.move("source")
    with pytest.raises(errors.QueueNotFound):
        await source.move("nowhere")


async def test_redrive_sends_dead_letters_back_to_where_they_died(broker: Any) -> None:
    jobs = await broker.queue("jobs", dead_letter_queue="dead")
    await broker.queue("spare")
    await jobs.publish_many([Message(n, id=f"id-{n}", meta={"n": n}) for n in range(5)])
    for delivery in await jobs.claim(5):
        await delivery.reject(f"bad {delivery.data % 2}")
    dead = await broker.queue("dead")
    assert (await jobs.stats())["dead"] == 5
    chosen = await dead.redrive(filter=lambda m: m.reason == "bad 0", limit=2, dry_run=True)
    assert [m.data for m in chosen] == [0, 2]
    assert (await dead.stats())["ready"] == 5
    assert [m.data for m in await dead.redrive(filter=lambda m: m.reason == "bad 0", limit=2)] == [0, 2]
    assert [m.data for m in await dead.redrive(limit=1, target="spare")] == [1]
    with pytest.raises(errors.QueueNotFound):
        await dead.redrive(target="nowhere")
    back = await jobs.claim(5)
    assert [(d.data, d.id, d.attempt, d.message.meta) for d in back] == [
        (0, "id-0", 1, {"n": 0}),
        (2, "id-2", 1, {"n": 2}),
    ]
    assert [d.message.reason for d in back] == ["bad 0", "bad 0"]
    assert await data(await broker.queue("spare")) == [1]
    assert await data(dead) == [3, 4]


async def test_a_filter_may_use_the_broker(broker: Any, face: Face) -> None:
    jobs = await broker.queue("jobs")
    await broker.queue("other")
    await jobs.publish_many([1, 2])
    inner = broker.inner if face.name == "blocking" else None

    def chosen(message: Message) -> bool:
        if inner is not None:
            inner.queue("jobs").purge()
        return True

    assert await jobs.move("other", filter=chosen) == (2 if inner is None else 0)


# Policies, definitions, meters


async def test_a_policy_applies_to_queues_that_exist_and_gives_way_to_what_was_said(broker: Any) -> None:
    a = await broker.queue("jobs.a")
    b = await broker.queue("jobs.b", length_max=3)
    await a.publish_many(range(5))
    await b.publish_many(range(5))
    await broker.set_policy("small", r"^jobs\.", length_max=2)
    assert [(await q.stats())["ready"] for q in (a, b)] == [2, 3]
    await broker.set_policy("smaller", r"^jobs\.a", priority=1, length_max=1)
    assert [m.data for m in await a.peek(5)] == [4]
    await broker.delete_policy("smaller")
    await broker.delete_policy("small")
    await a.publish_many(range(5))
    assert (await a.stats())["ready"] == 6
    with pytest.raises(errors.NotFound):
        await broker.delete_policy("small")


async def test_definitions_make_the_same_broker_elsewhere(face: Face, broker: Any) -> None:
    if face.is_client:
        pytest.skip("definitions are those of a tenant, and here each broker is another")
    await broker.queue("jobs", max_attempts=2, dead_letter_queue="dead")
    await broker.exchange("x", "direct", arguments={"note": b"\x00bytes"})
    await (await broker.queue("log")).bind("x", "k")
    await (await broker.queue("log")).publish("not a definition")
    await broker.set_policy("p", "log", priority=3, ttl_ms=500)
    await broker.subscribe("mine.alone")
    document = json.loads(json.dumps(await broker.export_definitions()))
    other = face.make()
    await other.import_definitions(document)
    assert await other.export_definitions() == document
    assert await other.queues() == ["jobs", "log"]
    await (await other.exchange("x", "direct", arguments={"note": b"\x00bytes"})).publish("k", 1)
    await face.advance(500)
    assert (await (await other.queue("log")).stats())["expired"] == 1
    await other.import_definitions(document)
    bad = json.loads(json.dumps(document))
    bad["tenants"][0]["queues"].append({"name": "new", "face": "embedded", "settings": {"max_attempts": "many"}})
    with pytest.raises(errors.InvalidArgument):
        await other.import_definitions(bad)
    assert await other.export_definitions() == document


async def test_importing_definitions_leaves_the_broker_s_own_settings(face: Face) -> None:
    strict = face.make(memory_bytes_max=1_000)
    loose = face.make()
    await strict.import_definitions(await loose.export_definitions())
    queue = await strict.queue("jobs")
    with pytest.raises(errors.MemoryLimitExceeded):
        await queue.publish_many([b"x" * 500, b"y" * 500])


async def test_the_shape_of_metrics(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", dead_letter_queue="dead")
    await jobs.publish_many([1, 2, 3])
    deliveries = await jobs.claim(2)
    await deliveries[0].ack()
    await deliveries[1].reject()
    metrics = json.loads(json.dumps(await broker.metrics()))
    assert metrics.keys() == {"tenant", "queues", "exchanges"}
    queue = metrics["queues"]["jobs"]
    assert queue == json.loads(json.dumps(await jobs.stats()))
    entered = queue["published"] + queue["dead_lettered_in"] + queue["moved_in"]
    left = sum(queue[name] for name in ("acked", "expired", "dead_lettered", "dropped", "purged", "moved_out"))
    assert entered == left + queue["ready"] + queue["delayed"] + queue["leased"] == 3
    assert (queue["dead"], queue["consumer_lag"], queue["wait_ms"]["count"], queue["work_ms"]["count"]) == (1, 1, 2, 2)
    assert metrics["tenant"]["totals"]["ready"] == 2
    assert metrics["tenant"]["published"] == 3
    assert {"amq.topic", "amq.direct"} <= metrics["exchanges"].keys()
    if not face.is_client:
        assert metrics["exchanges"][""]["published"] == 3


# Transactions


async def test_a_transaction_happens_at_its_end_and_wholly(broker: Any) -> None:
    jobs, done = await broker.queue("jobs", dead_letter_queue="dead"), await broker.queue("done")
    await broker.exchange("x", "fanout")
    await done.bind("x")
    news = await broker.subscribe("news")
    await jobs.publish_many(["ack", "retry", "release", "reject"])
    deliveries = {d.data: d for d in await jobs.claim(4)}
    async with broker.transaction() as transaction:
        await transaction.publish_to_queue("done", Message("to queue", priority=1))
        await transaction.publish_to_exchange("x", "", "to exchange")
        await transaction.publish("news", "to topic")
        await transaction.ack(deliveries["ack"])
        await transaction.retry(deliveries["retry"], 0, "once more")
        await transaction.release(deliveries["release"])
        await transaction.reject(deliveries["reject"], "unfit")
        assert (await done.stats())["ready"] == 0
        assert (await jobs.stats())["leased"] == 4
        with pytest.raises(TimeoutError):
            await news.get(0)
    assert [d.data for d in await done.claim(5)] == ["to queue", "to exchange"]
    assert (await news.get(0)).data == "to topic"
    again = await jobs.claim(5)
    assert [(d.data, d.attempt) for d in again] == [("retry", 2), ("release", 1)]
    assert [m.reason for m in await (await broker.queue("dead")).peek(5)] == ["unfit"]
    with pytest.raises(errors.TransactionCommitted):
        await transaction.publish("news", "late")


async def test_an_exception_rolls_a_transaction_back(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish("x")
    (delivery,) = await jobs.claim()
    with pytest.raises(KeyError):
        async with broker.transaction() as transaction:
            await transaction.publish_to_queue("jobs", "never")
            await transaction.ack(delivery)
            raise KeyError("mine")
    assert delivery.live
    await delivery.ack()
    async with broker.transaction() as transaction:
        await transaction.publish_to_queue("jobs", "never")
        await transaction.rollback()
    with pytest.raises(errors.TransactionRolledBack):
        await transaction.commit()
    assert (await jobs.stats())["published"] == 1


async def test_a_lost_lease_undoes_the_whole_transaction(face: Face, broker: Any) -> None:
    jobs = await broker.queue("jobs", lease_ms=1_000)
    await jobs.publish("x")
    (delivery,) = await jobs.claim()
    transaction = broker.transaction()
    with pytest.raises(errors.LeaseLost):
        async with transaction:
            await transaction.publish_to_queue("jobs", "never")
            await transaction.ack(delivery)
            await face.advance(1_000)
    assert [m.data for m in await jobs.peek(5)] == ["x"]
    with pytest.raises(errors.LeaseLost):
        async with transaction:
            await transaction.ack(delivery)
    # the same object may be used for another transaction
    async with transaction:
        await transaction.publish_to_queue("jobs", "now")
    assert [m.data for m in await jobs.peek(5)] == ["x", "now"]


async def test_a_transaction_to_a_queue_that_goes_away_does_nothing(broker: Any) -> None:
    kept, gone = await broker.queue("kept"), await broker.queue("gone")
    with pytest.raises(errors.Unroutable):
        async with broker.transaction() as transaction:
            await transaction.publish_to_queue("kept", 1)
            await transaction.publish_to_queue("gone", 2)
            await gone.delete()
    assert (await kept.stats())["published"] == 0


async def test_a_transaction_has_its_time(face: Face, broker: Any) -> None:
    if face.is_client:
        pytest.skip("a client keeps its own time")
    jobs = await broker.queue("jobs")
    with pytest.raises(errors.TransactionTimeout):
        async with broker.transaction(timeout_ms=100) as transaction:
            await transaction.publish_to_queue("jobs", "x")
            await face.advance(100)
    assert (await jobs.stats())["published"] == 0


# Request and reply


async def test_a_request_is_answered(broker: Any) -> None:
    @broker.handler("double")
    def double(n: int) -> int:
        return 2 * n

    @broker.handler("nothing")
    def nothing(n: int) -> None:
        pass

    async with broker:
        assert await broker.request("double", 21) == 42
        assert await asyncio.gather(*(broker.request("double", n) for n in range(10))) == list(range(0, 20, 2))
        assert await broker.request("nothing", 1) is None
        question = Message(4, correlation_id="mine")
        assert await broker.request("double", question) == 8
        assert question.reply_to is None
        assert await broker.queues() == ["double", "nothing"]


async def test_a_request_nobody_answers_times_out(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    with pytest.raises(errors.ReplyTimeout) as failure:
        await broker.request("jobs", "hello?", timeout_ms=5)
    assert isinstance(failure.value, TimeoutError)
    (delivery,) = await jobs.claim()
    # too late, and harmless
    await delivery.reply("here!")
    with pytest.raises(errors.LeaseLost):
        await delivery.reply("here?")
    with pytest.raises(errors.QueueNotFound):
        await broker.request("nowhere", 1)
    assert await broker.queues() == ["jobs"]


async def test_only_a_request_can_be_answered(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish("no question")
    (delivery,) = await jobs.claim()
    with pytest.raises(errors.InvalidArgument):
        await delivery.reply("answer")
    assert delivery.live


# The whole, at random


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(0, 3), st.integers(0, 200)),
            st.tuples(st.just("claim"), st.integers(1, 3), st.just(0)),
            st.tuples(st.sampled_from(["ack", "retry", "release", "reject"]), st.integers(0, 5), st.integers(0, 100)),
            st.tuples(st.just("advance"), st.just(0), st.integers(0, 700)),
            st.tuples(st.just("purge"), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
async def test_counts_are_conserved_and_order_is_kept(steps: list[tuple[str, int, int]]) -> None:
    for name in FACES:
        face = Face(name)
        broker = face.make()
        jobs = await broker.queue("jobs", max_attempts=2, dead_letter_queue="dead", lease_ms=500, length_max=6)
        held: list[Any] = []
        for step, n, ms in steps:
            if step == "publish":
                await jobs.publish(Message(n, priority=n, ttl_ms=ms * 10 or None, delay_ms=ms if n == 3 else None))
            elif step == "claim":
                taken = await jobs.claim(n)
                priorities = [d.message.priority for d in taken]
                assert priorities == sorted(priorities, reverse=True)
                held.extend(taken)
            elif step == "advance":
                await face.advance(ms)
            elif step == "purge":
                await jobs.purge()
            elif held:
                delivery = held.pop(n % len(held))
                try:
                    await jobs.settle([delivery], step, delay_ms=ms if step == "retry" else None)
                except errors.LeaseLost:
                    assert not delivery.live
            stats = await jobs.stats()
            left = sum(stats[w] for w in ("acked", "expired", "dead_lettered", "dropped", "purged", "moved_out"))
            assert stats["published"] == left + stats["ready"] + stats["delayed"] + stats["leased"]
            assert stats["ready"] + stats["delayed"] <= 6
        await face.close()

"""Topics of the embedded broker: subscriptions, their buffers, priority, expiry, filters, batches."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import rookery
from rookery import errors
from rookery.embed import HIGH, HIGHEST, LOW, LOWEST, NORMAL, Message, SubOptions
from tests.contract.faces import ALL_FACES, Face, embedded_only, faced

face = pytest.fixture(faced, params=ALL_FACES)


async def drain(subscription: Any) -> list[Any]:
    """The data of what is in the buffer now."""
    found = []
    while True:
        try:
            found.append((await subscription.get(0)).data)
        except TimeoutError:
            return found


@pytest.mark.row("S1-1", "S3-19")
def test_a_broker_needs_no_server_no_socket_and_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """There is no wire protocol to be compatible with: nothing here opens a connection."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("it opened something")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    broker = rookery.Broker()
    queue = broker.queue("jobs")
    queue.publish("x")
    queue.claim()[0].ack()
    broker.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("S1-2")
def test_the_quick_start() -> None:
    b = rookery.Broker()
    sub = b.subscribe("events", SubOptions(buffer_size=10))
    b.publish("events", Message(id="msg-1", data="Hello World"))
    received = sub.get()
    assert received.data == "Hello World"
    assert received.id == "msg-1"
    b.close()


@pytest.mark.row("S1-3")
async def test_three_subscriptions_each_get_each_message_once(face: Face) -> None:
    broker = face.make()
    subscriptions = [await broker.subscribe("t", buffer_size=100) for _ in range(3)]
    for n in range(50):
        await broker.publish("t", n)
    assert [await drain(s) for s in subscriptions] == [list(range(50))] * 3


@pytest.mark.row("S1-4")
async def test_iteration_ends_after_cancel_and_cancelling_twice_is_harmless(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    await broker.publish("t", 1)
    seen = []
    got_one = asyncio.Event()

    async def consume() -> None:
        async for message in subscription:
            seen.append(message.data)
            got_one.set()

    consumer = asyncio.create_task(consume())
    await got_one.wait()
    assert not subscription.done
    await subscription.cancel()
    await consumer
    await subscription.cancel()
    assert seen == [1]
    assert subscription.done
    await broker.publish("t", 2)
    assert [m.data async for m in subscription] == []
    with pytest.raises(errors.NotFound):
        await subscription.get(0)


@pytest.mark.row("S1-4")
async def test_a_subscription_is_a_context_manager(face: Face) -> None:
    broker = face.make()
    async with await broker.subscribe("t") as subscription:
        await broker.publish("t", 1)
        assert (await subscription.get(0)).data == 1
    assert subscription.done
    if not face.is_client:
        assert (await broker.health())["total_subscribers"] == 0


@pytest.mark.row("S1-5")
async def test_what_a_subscription_says_of_itself(face: Face) -> None:
    broker = face.make()
    a, b = await broker.subscribe("t", buffer_size=2), await broker.subscribe("t", buffer_size=9)
    assert a.topic == b.topic == "t"
    assert isinstance(a.id, str)
    assert a.id != b.id
    assert await a.stats() == {"received": 0, "dropped": 0, "queue_len": 0, "queue_cap": 2}
    for n in range(3):
        await broker.publish("t", n)
    await a.get(0)
    assert await a.stats() == {"received": 1, "dropped": 1, "queue_len": 1, "queue_cap": 2}
    assert await b.stats() == {"received": 0, "dropped": 0, "queue_len": 3, "queue_cap": 9}
    assert (a.done, b.done) == (False, False)
    await a.cancel()
    assert (a.done, b.done) == (True, False)


# One more than the buffer holds


@pytest.mark.row("S1-6")
def test_the_options_of_a_subscription() -> None:
    options = SubOptions()
    assert (options.buffer_size, options.policy, options.block_timeout_ms) == (0, "drop_oldest", 50)
    assert (options.filter, options.zero_copy) == (None, False)
    with rookery.Broker() as broker:
        assert broker.subscribe("t").stats()["queue_cap"] == 16
    with rookery.Broker(buffer_size=3) as broker:
        assert broker.subscribe("t").stats()["queue_cap"] == 3


@pytest.mark.row("S1-6")
async def test_drop_oldest(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=3)
    for n in range(4):
        await broker.publish("t", n)
    assert (await subscription.stats())["dropped"] == 1
    assert await drain(subscription) == [1, 2, 3]


@pytest.mark.row("S1-6")
async def test_drop_newest(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=3, policy="drop_newest")
    for n in range(4):
        await broker.publish("t", n)
    assert (await subscription.stats())["dropped"] == 1
    assert await drain(subscription) == [0, 1, 2]


@pytest.mark.row("S1-6")
@embedded_only
async def test_block_with_timeout_waits_and_then_drops_the_newest(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=3, policy="block_with_timeout", block_timeout_ms=20)
    other = await broker.subscribe("t")
    for n in range(3):
        await broker.publish("t", n)
    began = time.monotonic()
    await broker.publish("t", 3)
    assert 0.019 <= time.monotonic() - began < 5
    assert (await subscription.stats())["dropped"] == 1
    assert await drain(subscription) == [0, 1, 2]
    assert await drain(other) == [0, 1, 2, 3]


@pytest.mark.row("S1-6")
@embedded_only
async def test_block_with_timeout_goes_on_as_soon_as_there_is_room(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=3, policy="block_with_timeout", block_timeout_ms=60_000)
    for n in range(3):
        await broker.publish("t", n)
    publishing = asyncio.create_task(broker.publish("t", 3))
    await asyncio.sleep(0)
    assert not publishing.done()
    assert (await subscription.get(0)).data == 0
    await publishing
    assert await drain(subscription) == [1, 2, 3]


@pytest.mark.row("S1-6")
@embedded_only
async def test_a_batch_waits_for_room_for_all_of_it(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=3, policy="block_with_timeout", block_timeout_ms=60_000)
    await broker.publish_many("t", [0, 1])
    publishing = asyncio.create_task(broker.publish_many("t", [2, 3]))
    await asyncio.sleep(0)
    assert (await subscription.stats())["queue_len"] == 2
    assert (await subscription.get(0)).data == 0
    await publishing
    assert await drain(subscription) == [1, 2, 3]


@pytest.mark.row("S1-6")
async def test_close_subscriber(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=3, policy="close_subscriber")
    other = await broker.subscribe("t")
    for n in range(4):
        await broker.publish("t", n)
    assert [m async for m in subscription] == []
    assert subscription.done
    with pytest.raises(errors.NotFound):
        await subscription.get(0)
    await subscription.cancel()
    assert await drain(other) == [0, 1, 2, 3]
    if not face.is_client:
        assert (await broker.health())["total_subscribers"] == 1


@pytest.mark.row("S1-6")
async def test_a_filter_chooses_and_one_that_fails_lets_nothing_through(face: Face) -> None:
    broker = face.make()
    even = await broker.subscribe("t", filter=lambda m: m.data % 2 == 0)
    broken = await broker.subscribe("t", filter=lambda m: m.data / 0)
    for n in range(4):
        await broker.publish("t", n)
    assert await drain(even) == [0, 2]
    assert (await even.stats())["received"] == 2
    assert await drain(broken) == []
    assert (await broker.health())["metrics"]["last_panic"].startswith("ZeroDivisionError")


@pytest.mark.row("S1-6")
def test_a_filter_may_use_the_broker() -> None:
    with rookery.Broker() as broker:
        seen = broker.queue("seen")
        subscription = broker.subscribe("t", filter=lambda m: bool(seen.publish(m.data)))
        broker.publish("t", 1)
        assert subscription.get(0).data == 1
        assert [d.data for d in seen.claim()] == [1]


async def test_a_message_the_filter_refuses_waits_for_no_ack(face: Face) -> None:
    broker = face.make(enable_ack_support=True)
    subscription = await broker.subscribe("t", filter=lambda m: False)
    await broker.publish("t", "x", ack="required", ack_id="a")
    assert await drain(subscription) == []
    await face.advance(60_000)
    assert await drain(subscription) == []
    with pytest.raises(errors.MessageNotAcked):
        await broker.ack("t", "a")


# What a message is


@pytest.mark.row("S1-7")
async def test_the_fields_of_a_message(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("orders/new")
    when = datetime(2025, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    sent = Message({"n": 1}, id="o-1", type="order", time=when, meta={"by": "me"})
    assert await broker.publish("orders/new", sent) == "o-1"
    message = await subscription.get(0)
    assert (message.id, message.topic, message.type, message.time) == ("o-1", "orders.new", "order", when)
    assert (message.data, message.meta) == ({"n": 1}, {"by": "me"})
    # a message that was received can be published on
    other = await broker.subscribe("copies")
    assert await broker.publish("copies", message) == "o-1"
    copy = await other.get(0)
    assert (copy.data, copy.meta, copy.time, copy.topic) == ({"n": 1}, {"by": "me"}, when, "copies")


# Priority


@pytest.mark.row("S1-8")
async def test_100_mixed_messages_leave_strictly_by_priority_and_in_order_inside_a_level(face: Face) -> None:
    assert (LOWEST, LOW, NORMAL, HIGH, HIGHEST) == (0, 10, 20, 30, 40)
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=100)
    chance = random.Random(8)
    levels = [chance.choice([LOWEST, LOW, NORMAL, HIGH, HIGHEST, 25, -3]) for _ in range(100)]
    for n, level in enumerate(levels):
        await broker.publish("t", Message(n, priority=level))
    received = [await subscription.get(0) for _ in range(100)]
    assert [(m.priority, m.data) for m in received] == sorted(
        ((level, n) for n, level in enumerate(levels)), key=lambda pair: (-pair[0], pair[1])
    )


@pytest.mark.row("S1-9")
async def test_without_the_priority_queue_priority_is_no_error_and_no_order(face: Face) -> None:
    broker = face.make(enable_priority_queue=False)
    subscription = await broker.subscribe("t")
    for n, level in enumerate([LOW, HIGHEST, LOWEST, HIGH]):
        await broker.publish("t", Message(n, priority=level))
    assert await drain(subscription) == [0, 1, 2, 3]


# Expiry


@pytest.mark.row("S1-10")
async def test_a_message_whose_time_passes_in_the_buffer_is_never_delivered(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    now = face.clock.wall_ms()
    await broker.publish("t", Message("ms", expires_at=now + 100))
    await broker.publish("t", Message("datetime", expires_at=datetime.fromtimestamp((now + 100) / 1000, UTC)))
    await broker.publish("t", Message("later", ttl_ms=101))
    await broker.publish("t", "for ever")
    await face.advance(100)
    assert await subscription.stats() == {"received": 0, "dropped": 2, "queue_len": 2, "queue_cap": 16}
    assert await drain(subscription) == ["later", "for ever"]


@pytest.mark.row("S1-10")
async def test_expiry_needs_no_call_in_real_time() -> None:
    async with rookery.AsyncBroker() as broker:
        subscription = await broker.subscribe("t")
        await broker.publish("t", Message("short", ttl_ms=1))
        while (await subscription.stats())["queue_len"]:
            await asyncio.sleep(0.001)
        assert (await subscription.stats())["dropped"] == 1


@pytest.mark.row("S1-11", "S1-44")
async def test_a_message_that_is_expired_already_is_refused(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    now = face.clock.wall_ms()
    for over in ({"expires_at": now}, {"expires_at": datetime(2001, 1, 1, tzinfo=UTC)}, {"ttl_ms": 0}):
        with pytest.raises(errors.MessageExpired):
            await broker.publish("t", Message("x", **over))
    assert await drain(subscription) == []
    await broker.publish("t", Message("zero", expires_at=0))
    await broker.publish("t", Message("none", expires_at=None))
    # a client's subscription is not kept for longer than five minutes without a look at it
    await face.advance(200_000 if face.is_client else 10**9)
    assert await drain(subscription) == ["zero", "none"]


@pytest.mark.row("S1-12")
async def test_the_default_time_to_live_applies_to_plain_publishes(face: Face) -> None:
    broker = face.make(message_ttl_ms=500)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "plain")
    await broker.publish("t", Message("a message"))
    await broker.publish_many("t", ["many"])
    await broker.publish("t", Message("its own", ttl_ms=501))
    await broker.publish("t", Message("none", expires_at=0))
    await face.advance(500)
    assert await drain(subscription) == ["its own", "none"]


@pytest.mark.row("S1-43")
async def test_priority_and_expiry_hold_at_once(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    for name, priority, ttl_ms in (("low", LOW, 1000), ("high, short", HIGH, 10), ("high", HIGH, 1000)):
        await broker.publish("t", Message(name, priority=priority, ttl_ms=ttl_ms))
    await face.advance(10)
    assert await drain(subscription) == ["high", "low"]


# Batches


@pytest.mark.row("S1-20")
async def test_a_batch_with_one_invalid_message_publishes_none(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    for bad in (object(), None, Message("x", id=""), Message("x", ttl_ms=0), Message("x", priority=1 << 63)):
        with pytest.raises(errors.RookeryError):
            await broker.publish_many("t", ["fine", bad])
    assert await drain(subscription) == []
    ids = await broker.publish_many("t", ["a", Message("b", id="mine")])
    received = [await subscription.get(0), await subscription.get(0)]
    assert [m.data for m in received] == ["a", "b"]
    assert [m.id for m in received] == list(ids)


@pytest.mark.row("S1-21")
async def test_subscribing_to_many_topics_is_all_or_nothing(face: Face) -> None:
    broker = face.make(topics_max=3)
    made = await broker.subscribe_many(["a", "b"], SubOptions(buffer_size=5))
    assert [(s.topic, (await s.stats())["queue_cap"]) for s in made] == [("a", 5), ("b", 5)]
    for topics, error in ((["c", "d"], errors.LimitExceeded), (["c", ""], errors.InvalidTopic)):
        with pytest.raises(error):
            await broker.subscribe_many(topics)
        health = await broker.health()
        assert (health["total_topics"], health["total_subscribers"]) == (2, 2)
    await broker.subscribe("c")


# Limits, names


@pytest.mark.row("S1-40")
async def test_limits_on_topics_and_subscribers(face: Face) -> None:
    broker = face.make(topics_max=2, subscribers_max=1)
    first = await broker.subscribe("a")
    second = await broker.subscribe("b", buffer_size=1, policy="close_subscriber")
    with pytest.raises(errors.LimitExceeded):
        await broker.subscribe("c")
    with pytest.raises(errors.LimitExceeded):
        await broker.subscribe("a")
    await first.cancel()
    await broker.subscribe("a")
    await broker.publish_many("b", [1, 2])
    assert second.done
    await broker.subscribe("c")
    unlimited = face.make()
    for n in range(20):
        await unlimited.subscribe("a")
        await unlimited.subscribe(f"topic {n}")


@pytest.mark.row("S1-46", "S1-44", "S1-45")
async def test_what_is_no_topic_and_what_is_no_message(face: Face) -> None:
    broker = face.make()
    for topic in ("", "   ", "\t\n", "x" * 1025):
        for call in (broker.publish(topic, "x"), broker.publish_many(topic, ["x"]), broker.subscribe(topic)):
            with pytest.raises(errors.InvalidTopic) as refused:
                await call
            assert refused.value.argument == "topic"
    # over HTTP a topic has no more bytes than a routing key
    longest = "x" * 255 if face.is_client else "ü" * 1024
    subscription = await broker.subscribe(longest)
    await broker.publish(longest, "x")
    assert (await subscription.get(0)).topic == longest
    for nothing in (None, Message(None), Message(), Message("x", id=""), Message("x", id="  ")):
        with pytest.raises(errors.NilMessage):
            await broker.publish("t", nothing)


@pytest.mark.row("S3-16")
async def test_a_broker_may_insist_on_a_body(face: Face) -> None:
    broker = face.make(require_body=True)
    jobs = await broker.queue("jobs")
    for blank in ("", "  \n", b"", Message(""), Message(b" ")):
        with pytest.raises(errors.EmptyBody, match="body cannot be empty"):
            await jobs.publish(blank)
        with pytest.raises(errors.EmptyBody):
            await broker.publish("t", blank)
    assert (await jobs.stats())["published"] == 0
    await jobs.publish("x")


@embedded_only
async def test_many_subscriptions_come_and_go_without_a_trace(face: Face) -> None:
    broker = face.make()
    for _ in range(200):
        subscription = await broker.subscribe("t", buffer_size=1, policy="close_subscriber")
        await broker.publish_many("t", [1, 2])
        assert subscription.done
    inner = getattr(broker, "inner", broker)
    assert len(inner._topics.subscriptions) <= 70
    assert await broker.queues() == []


# Threads


@pytest.mark.row("S1-49")
def test_16_threads_publish_1000_each_to_4_subscribers_and_nothing_is_lost_or_doubled() -> None:
    threads, each, subscribers = 16, 1000, 4
    with rookery.Broker() as broker:
        options = SubOptions(policy="block_with_timeout", block_timeout_ms=60_000, buffer_size=500)
        subscriptions = [broker.subscribe("t", options) for _ in range(subscribers)]
        received: list[list[int]] = [[] for _ in subscriptions]

        def publish(thread: int) -> None:
            for n in range(each):
                broker.publish("t", thread * each + n)

        def consume(subscription: Any, into: list[int]) -> None:
            for message in subscription:
                into.append(message.data)
                if len(into) == threads * each:
                    return

        workers = [threading.Thread(target=publish, args=(n,)) for n in range(threads)]
        readers = [threading.Thread(target=consume, args=pair) for pair in zip(subscriptions, received, strict=True)]
        for thread in readers + workers:
            thread.start()
        for thread in workers + readers:
            thread.join()
        for subscription in subscriptions:
            assert subscription.stats() == {"received": threads * each, "dropped": 0, "queue_len": 0, "queue_cap": 500}
        for got in received:
            assert sorted(got) == list(range(threads * each))
            # and each publisher's messages are in its order
            for number in range(threads):
                mine = [n for n in got if n // each == number]
                assert mine == sorted(mine)


def test_several_threads_share_one_subscription() -> None:
    with rookery.Broker() as broker:
        subscription = broker.subscribe("t", policy="block_with_timeout", block_timeout_ms=60_000, buffer_size=4)
        received: list[int] = []

        def consume() -> None:
            for message in subscription:
                if message.data is False:
                    return
                received.append(message.data)

        readers = [threading.Thread(target=consume) for _ in range(4)]
        for thread in readers:
            thread.start()
        for n in range(2000):
            broker.publish("t", n)
        for _ in readers:
            broker.publish("t", False)
        for thread in readers:
            thread.join()
        assert sorted(received) == list(range(2000))

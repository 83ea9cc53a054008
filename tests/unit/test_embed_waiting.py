"""Waiting in the embedded broker: giving up, being interrupted, being closed, many threads, several loops, time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import rookery
from rookery import errors
from rookery.clock import ManualClock
from rookery.embed import Message
from rookery.engine.workers import AsyncSignal, Signal
from tests.contract.faces import ALL_FACES, Face, counts, embedded_only, faced, until

face = pytest.fixture(faced, params=ALL_FACES)


# A caller who gives up


@pytest.mark.row("S1-48")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
@pytest.mark.parametrize("many", [False, True])
async def test_a_publish_that_is_cancelled_while_it_waits_publishes_nothing(how: str, many: bool) -> None:
    async with rookery.AsyncBroker() as broker:
        full = await broker.subscribe("t", buffer_size=1, policy="block_with_timeout", block_timeout_ms=60_000)
        other = await broker.subscribe("t")
        await broker.publish("t", "fills the buffer")
        call: Any = broker.publish_many("t", ["never"]) if many else broker.publish("t", "never")
        if how == "cancel":
            publishing = asyncio.create_task(call)
            await asyncio.sleep(0)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await call
        assert (await full.get(0)).data == "fills the buffer"
        assert (await other.get(0)).data == "fills the buffer"
        for subscription in (full, other):
            assert await subscription.stats() == {
                **await subscription.stats(),
                "received": 1,
                "dropped": 0,
                "queue_len": 0,
            }
        assert (await broker.health())["metrics"]["total_published"] == 1
        assert (await broker.health())["metrics"]["last_error"] is None


@pytest.mark.row("S1-48")
async def test_cancelling_before_the_call_begins_publishes_nothing() -> None:
    async with rookery.AsyncBroker() as broker:
        subscription = await broker.subscribe("t")
        publishing = asyncio.create_task(broker.publish("t", "never"))
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert (await subscription.stats())["queue_len"] == 0


async def test_a_cancelled_claim_gives_back_what_came_for_it() -> None:
    async with rookery.AsyncBroker(clock=ManualClock()) as broker:
        jobs = await broker.queue("jobs")
        claim = asyncio.create_task(jobs.claim(3, wait_ms=60_000))
        await until(lambda: counts(jobs, waiting_claims=1))
        # the claim has been served, and is cancelled before it can say so
        await jobs.publish_many([1, 2])
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        stats = await jobs.stats()
        assert (stats["ready"], stats["leased"], stats["waiting_claims"]) == (2, 0, 0)
        assert [(d.data, d.attempt) for d in await jobs.claim(3)] == [(1, 1), (2, 1)]


async def test_a_cancelled_get_loses_nothing() -> None:
    async with rookery.AsyncBroker(clock=ManualClock()) as broker:
        jobs = await broker.queue("jobs")
        consumer = await jobs.subscribe()
        subscription = await broker.subscribe("t")
        gets = [asyncio.create_task(consumer.get()), asyncio.create_task(subscription.get())]
        await asyncio.sleep(0)
        await jobs.publish("from the queue")
        await broker.publish("t", "from the topic")
        for get in gets:
            get.cancel()
        for get in gets:
            with pytest.raises(asyncio.CancelledError):
                await get
        assert (await consumer.get(0)).data == "from the queue"
        message = await subscription.get(0)
        assert message.data == "from the topic"
        assert await subscription.stats() == {"received": 1, "dropped": 0, "queue_len": 0, "queue_cap": 16}


async def test_a_cancelled_request_leaves_no_queue_behind() -> None:
    async with rookery.AsyncBroker(clock=ManualClock()) as broker:
        jobs = await broker.queue("jobs")
        request = asyncio.create_task(broker.request("jobs", "question"))
        await until(lambda: counts(jobs, ready=1))
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert set((await broker.metrics())["queues"]) == {"jobs"}
        (delivery,) = await jobs.claim()
        await delivery.reply("late")


def test_an_interrupted_claim_of_a_thread_gives_back_what_came_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with rookery.Broker(clock=ManualClock()) as broker:
        jobs = broker.queue("jobs")

        def interrupted(signal: Signal, timeout_ms: float | None) -> bool:
            broker.queue("jobs").publish("came for it")
            raise KeyboardInterrupt

        monkeypatch.setattr(Signal, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            jobs.claim(wait_ms=60_000)
        stats = jobs.stats()
        assert (stats["ready"], stats["leased"], stats["waiting_claims"]) == (1, 0, 0)


async def test_reply_queues_are_used_again_and_answers_are_not_mixed_up(face: Face) -> None:
    broker = face.make()
    jobs = await broker.queue("jobs")

    async def answer_twice() -> None:
        (delivery,) = await jobs.claim(wait_ms=10_000)
        await (await broker.exchange("amq.direct", "direct")).publish("nowhere", "x")
        await delivery.reply(delivery.data)

    versions = set()
    for n in range(5):
        answering = asyncio.create_task(answer_twice())
        assert await broker.request("jobs", n) == n
        await answering
        versions.add(frozenset((await broker.metrics())["queues"]))
    assert len(versions) == 1


async def test_a_foreign_answer_is_passed_over() -> None:
    async with rookery.AsyncBroker(clock=ManualClock()) as broker:
        jobs = await broker.queue("jobs")
        request = asyncio.create_task(broker.request("jobs", 1))
        (delivery,) = await jobs.claim(wait_ms=10_000)
        reply_to = delivery.message.reply_to
        assert reply_to is not None
        async with broker.transaction() as transaction:
            await transaction.publish_to_queue(reply_to, Message("not mine", correlation_id="other"))
        await delivery.reply("mine")
        assert await request == "mine"


# Closing while others wait


async def test_closing_wakes_whoever_waits(face: Face) -> None:
    broker = face.make()
    jobs = await broker.queue("jobs")
    consumer = await jobs.subscribe()
    subscription = await broker.subscribe("t")
    if not face.is_client:
        await broker.subscribe("full", buffer_size=1, policy="block_with_timeout", block_timeout_ms=60_000)
        await broker.publish("full", 1)

    async def iterate(items: Any) -> list[Any]:
        return [item async for item in items]

    other = await broker.queue("other")
    await broker.queue("unanswered")
    blocked = [
        asyncio.create_task(call)
        for call in (
            other.claim(wait_ms=60_000),
            consumer.get(60_000),
            consumer.get_many(5, 60_000),
            subscription.get(60_000),
            broker.request("unanswered", 3, timeout_ms=60_000),
            *([] if face.is_client else [broker.publish("full", 2)]),
        )
    ]
    iterating = [asyncio.create_task(iterate(items)) for items in (consumer, subscription)]
    await until(lambda: _waiting_claims(broker, 4))
    await broker.close()
    async with asyncio.timeout(10):
        for task in blocked:
            with pytest.raises(errors.BrokerClosed):
                await task
        for iteration in iterating:
            assert await iteration == []


async def _waiting_claims(broker: Any, count: int) -> bool:
    queues = (await broker.metrics())["queues"]
    return sum(stats["waiting_claims"] for stats in queues.values()) == count


async def test_cancelling_a_subscription_wakes_all_who_wait_on_it(face: Face) -> None:
    broker = face.make()
    jobs = await broker.queue("jobs")
    consumer = await jobs.subscribe()
    subscription = await broker.subscribe("t")
    waiting = [asyncio.create_task(s.get(60_000)) for s in (consumer, consumer, subscription, subscription)]
    await until(lambda: _waiting_claims(broker, 2))
    await consumer.cancel()
    await subscription.cancel()
    async with asyncio.timeout(10):
        for task in waiting:
            with pytest.raises(errors.NotFound):
                await task


def test_closing_from_another_thread_ends_iteration() -> None:
    broker = rookery.Broker()
    jobs = broker.queue("jobs")
    jobs.publish(1)
    seen = []
    got_one = threading.Event()

    def consume() -> None:
        for delivery in jobs.subscribe():
            delivery.ack()
            seen.append(delivery.data)
            got_one.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert got_one.wait(10)
    broker.close()
    consumer.join(10)
    assert not consumer.is_alive()
    assert seen == [1]


# Many threads on one queue


@pytest.mark.row("S1-49")
def test_threads_share_a_queue_a_subscription_and_a_credit_without_loss() -> None:
    count, each = 8, 250
    with rookery.Broker() as broker:
        jobs = broker.queue("jobs")
        shared = jobs.subscribe(credit=4)
        taken: list[int] = []

        def publish(thread: int) -> None:
            for n in range(each):
                jobs.publish(thread * each + n)

        def take_from_subscription() -> None:
            for delivery in shared:
                delivery.ack()
                if delivery.data is False:
                    return
                taken.append(delivery.data)

        publishers = [threading.Thread(target=publish, args=(n,)) for n in range(count)]
        readers = [threading.Thread(target=take_from_subscription) for _ in range(3)]
        for thread in publishers + readers:
            thread.start()
        for thread in publishers:
            thread.join()
        for _ in readers:
            jobs.publish(False)
        for thread in readers:
            thread.join()
        assert sorted(taken) == list(range(count * each))
        stats = jobs.stats()
        assert stats["acked"] == count * each + len(readers)
        shared.cancel()


def test_what_came_before_a_thread_began_to_wait_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others who share the subscription take theirs, and leave the signal set for what remains."""
    with rookery.Broker(clock=ManualClock()) as broker:
        jobs = broker.queue("jobs")
        shared = jobs.subscribe(credit=3)
        looked, go_on = threading.Event(), threading.Event()
        wait = shared._signal.wait
        got = []

        def late(timeout_ms: float | None) -> bool:
            looked.set()
            assert go_on.wait(10)
            return wait(timeout_ms)

        monkeypatch.setattr(shared._signal, "wait", late)
        waiter = threading.Thread(target=lambda: got.append(shared.get(1_000).data))
        waiter.start()
        assert looked.wait(10)
        jobs.publish_many([1, 2, 3])
        assert [shared.get(0).data, shared.get(0).data] == [1, 2]
        go_on.set()
        waiter.join()
        assert got == [3]


def test_threads_claim_side_by_side() -> None:
    with rookery.Broker() as broker:
        jobs = broker.queue("jobs")
        taken: list[int] = []

        def work() -> None:
            while True:
                for delivery in jobs.claim(1, wait_ms=60_000):
                    delivery.ack()
                    if delivery.data is False:
                        return
                    taken.append(delivery.data)

        workers = [threading.Thread(target=work) for _ in range(6)]
        for worker in workers:
            worker.start()
        for n in range(1000):
            jobs.publish(n)
        jobs.publish_many([False] * len(workers))
        for worker in workers:
            worker.join()
        assert sorted(taken) == list(range(1000))


# Loops


def test_a_broker_may_be_made_outside_of_a_loop_and_used_in_one_after_the_other() -> None:
    broker = rookery.AsyncBroker()

    async def first() -> None:
        jobs = await broker.queue("jobs", lease_ms=20)
        await jobs.publish(Message("later", delay_ms=10))
        await jobs.publish("now")
        assert (await jobs.claim())[0].data == "now"

    async def second() -> None:
        jobs = await broker.queue("jobs")
        # on a busy machine one of them may lapse, and come again, before the other is due
        seen: set[object] = set()
        while seen != {"later", "now"}:
            deliveries = await jobs.claim(5, wait_ms=10_000)
            assert deliveries
            seen |= {delivery.data for delivery in deliveries}
        await broker.close()

    asyncio.run(first())
    asyncio.run(second())


def test_a_broker_is_not_shared_between_loops_that_run() -> None:
    broker = rookery.AsyncBroker()
    refused: list[BaseException] = []

    async def elsewhere() -> None:
        with pytest.raises(errors.NotInitialized, match="another event loop") as failure:
            await broker.queue("jobs")
        refused.append(failure.value)

    async def main() -> None:
        async with broker:
            await broker.queue("jobs")
            await asyncio.to_thread(asyncio.run, elsewhere())

    asyncio.run(main())
    assert len(refused) == 1


# Real time


@pytest.mark.row("S3-7")
def test_a_timer_thread_keeps_the_time_for_those_who_wait() -> None:
    with rookery.Broker() as broker:
        jobs = broker.queue("jobs", lease_ms=10)
        began = time.monotonic()
        jobs.publish(Message("later", delay_ms=20))
        (delivery,) = jobs.claim(wait_ms=10_000)
        assert 0.018 <= time.monotonic() - began < 5
        (again,) = jobs.claim(wait_ms=10_000)
        assert again.attempt == 2
        with pytest.raises(errors.LeaseLost):
            delivery.ack()


async def test_the_loop_keeps_the_time_for_those_who_wait() -> None:
    async with rookery.AsyncBroker() as broker:
        jobs = await broker.queue("jobs", lease_ms=10)
        await jobs.publish(Message("later", delay_ms=20))
        (first,) = await jobs.claim(wait_ms=10_000)
        consumer = await jobs.subscribe()
        again = await consumer.get(10_000)
        assert (first.attempt, again.attempt) == (1, 2)


def test_waiting_in_vain_takes_its_time_and_no_longer() -> None:
    with rookery.Broker() as broker:
        jobs, subscription = broker.queue("jobs"), broker.subscribe("t")
        consumer = jobs.subscribe()
        calls: list[Callable[[], object]] = [
            lambda: jobs.claim(wait_ms=20),
            lambda: consumer.get_many(1, 20),
            lambda: subscription.get(20),
            lambda: consumer.get(20),
        ]
        for call in calls:
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                assert call() == []
            assert 0.019 <= time.monotonic() - began < 5


def test_a_broker_without_anything_due_needs_no_timer_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with rookery.Broker() as broker:
        broker.queue("jobs").publish("x")
        assert threading.active_count() == before
        broker.queue("jobs").claim()
        assert threading.active_count() == before + 1
        timer = broker.engine._thread
    assert timer is not None
    timer.join(10)
    assert not timer.is_alive()


# Signals


async def test_a_signal_that_is_set_stays_set_until_cleared() -> None:
    signal = AsyncSignal()
    assert not await signal.wait(0)
    waiting = [asyncio.create_task(signal.wait(10_000)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.set()
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert await signal.wait(None)
    signal.clear()
    assert not await signal.wait(1)
    assert signal._waiters == []


@embedded_only
async def test_waiting_leaves_nothing_behind(face: Face) -> None:
    broker = face.make()
    jobs = await broker.queue("jobs")
    for _ in range(20):
        await jobs.claim(wait_ms=1)
    gc.collect()
    inner = getattr(broker, "inner", broker)
    assert len(inner._context._signals) <= 3
    assert (await jobs.stats())["waiting_claims"] == 0

"""The embedded broker through its async and blocking faces: in batches, and one message at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvloop

from bench.harness import BATCH, BODY_BYTES, Case, measure, show, start, title
from bench.world import bodies
from rookery import AsyncBroker, Broker
from rookery.embed.aio.queues import AsyncQueue

BATCHED = 100_000
SINGLE = 10_000


async def by_claim(queue: AsyncQueue) -> int:
    """publish_many, claim, settle."""
    payloads = bodies(BATCH)
    for _ in range(BATCHED // BATCH):
        await queue.publish_many(payloads)
        await queue.settle(await queue.claim(BATCH))
    return BATCHED


async def by_subscription(queue: AsyncQueue) -> int:
    """publish_many, get_many from a subscription, settle."""
    payloads = bodies(BATCH)
    async with await queue.subscribe(credit=BATCH) as subscription:
        for _ in range(BATCHED // BATCH):
            await queue.publish_many(payloads)
            await queue.settle(await subscription.get_many(BATCH))
    return BATCHED


async def one_claim(queue: AsyncQueue) -> int:
    """publish, claim, ack: three calls for each message."""
    body = bytes(BODY_BYTES)
    for _ in range(SINGLE):
        await queue.publish(body)
        (delivery,) = await queue.claim()
        await delivery.ack()
    return SINGLE


async def one_subscription(queue: AsyncQueue) -> int:
    """publish, get from a subscription, ack."""
    body = bytes(BODY_BYTES)
    async with await queue.subscribe(credit=10) as subscription:
        for _ in range(SINGLE):
            await queue.publish(body)
            delivery = await subscription.get()
            await delivery.ack()
    return SINGLE


async def two_tasks(queue: AsyncQueue) -> int:
    """One task publishes one at a time and yields, another waits for each delivery and acks it."""

    async def consume(subscribed: asyncio.Event) -> None:
        taken = 0
        async with await queue.subscribe(credit=10) as subscription:
            subscribed.set()
            async for delivery in subscription:
                await delivery.ack()
                taken += 1
                if taken == SINGLE:
                    return

    body = bytes(BODY_BYTES)
    subscribed = asyncio.Event()
    consumer = asyncio.create_task(consume(subscribed))
    await subscribed.wait()
    for _ in range(SINGLE):
        await queue.publish(body)
        await asyncio.sleep(0)
    await consumer
    return SINGLE


def async_case(
    name: str,
    work: Callable[[AsyncQueue], Awaitable[int]],
    loop: Callable[[], asyncio.AbstractEventLoop],
    aim_us: float,
) -> Case:
    async def go() -> int:
        async with AsyncBroker() as broker:
            return await work(await broker.queue("q"))

    def run() -> int:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(go())

    return Case(name, run, aim_us)


def blocking_batches() -> int:
    payloads = bodies(BATCH)
    with Broker() as broker:
        queue = broker.queue("q")
        for _ in range(BATCHED // BATCH):
            queue.publish_many(payloads)
            queue.settle(queue.claim(BATCH))
    return BATCHED


def blocking_single() -> int:
    body = bytes(BODY_BYTES)
    with Broker() as broker:
        queue = broker.queue("q")
        for _ in range(SINGLE):
            queue.publish(body)
            (delivery,) = queue.claim()
            delivery.ack()
    return SINGLE


def main() -> None:
    arguments = start("embedded")
    title(
        "Embedded broker, in batches",
        f"""{BATCHED:,} messages of {BODY_BYTES} B a round, {BATCH} a call: publish_many, then claim or get_many, then
        settle. The whole program is in the number: broker, loop and the loop that calls them.""",
    )
    cases = [
        async_case("async, claim (uvloop)", by_claim, uvloop.new_event_loop, 3),
        async_case("async, subscription (uvloop)", by_subscription, uvloop.new_event_loop, 3),
        async_case("async, claim (asyncio)", by_claim, asyncio.new_event_loop, 3),
        Case("blocking, claim", blocking_batches),
    ]
    measure(cases, arguments.rounds)
    show(cases)
    title(
        "Embedded broker, one at a time",
        f"""{SINGLE:,} messages of {BODY_BYTES} B a round: publish, then claim or get, then ack, each a call of its own.
        Two tasks: one publishes and yields to the loop after each, the other waits for every delivery and is woken.""",
    )
    cases = [
        async_case("async, claim (uvloop)", one_claim, uvloop.new_event_loop, 15),
        async_case("async, subscription (uvloop)", one_subscription, uvloop.new_event_loop, 15),
        async_case("async, two tasks (uvloop)", two_tasks, uvloop.new_event_loop, 15),
        async_case("async, two tasks (asyncio)", two_tasks, asyncio.new_event_loop, 15),
        Case("blocking, claim", blocking_single),
    ]
    measure(cases, arguments.rounds)
    show(cases)


if __name__ == "__main__":
    main()

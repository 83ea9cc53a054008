"""The process that test_kill.py kills: a durable broker at work, which tells its parent what it tries and what it was
answered.

A line goes out before each operation (`try`) and, once its await has returned, after it (`ok`), in one write each, so
that the parent knows whatever this process knew when it died. An operation is what must happen wholly or not at all:
messages (`queue:id`) that it adds (`+`) and takes away (`-`). Before all that, the process dumps what it has found.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import sys
from collections.abc import Awaitable, Iterable
from typing import Any

from rookery import AsyncBroker
from rookery.embed import AsyncDelivery, AsyncQueue, Message
from rookery.embed.aio import broker as broker_module
from rookery.engine import engine
from rookery.store.file import FileMedium
from rookery.store.journal import Journal

SEGMENT_BYTES = 48 << 10
PAGE_BYTES = 48 << 10
MAX_ATTEMPTS = 3
TOPIC = "news"
QUEUES = ("single", "batch", "left", "right", "in", "out", "keys", "single.dead")


def say(*words: object) -> None:
    """One line to the parent, which has it even when this process dies at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def id_of(message: Message) -> int:
    return int(message.data[:12])


class Flow:
    """Lets a queue fill up and be drained again, with its publisher going on meanwhile."""

    def __init__(self, name: str, depth: int, high: int) -> None:
        self.name = name
        self.depth = depth
        self._high = high
        self.room = asyncio.Event()
        self.work = asyncio.Event()
        self.add(0)

    def add(self, count: int) -> None:
        self.depth += count
        if self.depth >= self._high:
            self.work.set()
        elif self.depth <= self._high // 8:
            self.work.clear()
        if self.depth < 2 * self._high:
            self.room.set()
        else:
            self.room.clear()


class Child:
    """One life of the process."""

    def __init__(self, broker: AsyncBroker, plan: dict[str, Any]) -> None:
        self.broker = broker
        self.rng = random.Random(plan["seed"])
        self.last_id = plan["first_id"]
        self.operations = 0
        self.queues: dict[str, AsyncQueue] = {}
        self.flows: dict[str, Flow] = {}

    # What it found

    async def dump(self) -> None:
        """Tell which queues and messages are there, each queue in its order."""
        names = await self.broker.queues()
        say("queues", *names)
        for name in names:
            queue = await self.broker.queue(name)
            ready = (await queue.stats())["ready"]
            for message in await queue.peek(ready) if ready else []:
                say("has", f"{name}:{id_of(message)}")
        for message in await self.broker.recover(TOPIC):
            say("has", f"{TOPIC}:{id_of(message)}")
        say("dumped")

    async def declare(self) -> None:
        for name in QUEUES:
            dead = {"max_attempts": MAX_ATTEMPTS, "dead_letter_queue": "single.dead"} if name == "single" else {}
            queue = await self.broker.queue(name, **dead)  # type: ignore[arg-type]
            self.queues[name] = queue
            depth = (await queue.stats())["ready"]
            self.flows[name] = Flow(name, depth, self.rng.randrange(20, 400))
        say("declared")

    async def repeat(self, ids: Iterable[int]) -> None:
        """Publish messages with dedup keys of earlier lives once more."""
        queue = self.queues["keys"]
        for id in ids:
            before = (await queue.stats())["ready"]
            say("repeat", id)
            uuid = await queue.publish(self._keyed(id))
            grew = (await queue.stats())["ready"] - before
            self.flows["keys"].add(grew)
            say("again", id, uuid, grew)

    # Operations

    def new_ids(self, count: int) -> list[int]:
        self.last_id += count
        return list(range(self.last_id - count + 1, self.last_id + 1))

    def body(self, id: int) -> bytes:
        size = self.rng.choice((0, 50, 200, 200, 900))
        return b"%012d" % id + self.rng.randbytes(size)

    def _keyed(self, id: int) -> Message:
        return Message(self.body(id), dedup_key=f"key-{id}")

    async def operation(self, work: Awaitable[Any], changes: Iterable[str]) -> None:
        self.operations += 1
        number = self.operations
        say("try", number, *changes)
        result = await work
        say("ok", number, result if isinstance(result, str) else "")

    async def publish_single(self) -> None:
        """Several publishes at once, each confirmed by itself."""
        flow, queue = self.flows["single"], self.queues["single"]
        while True:
            await flow.room.wait()
            ids = self.new_ids(self.rng.randrange(1, 30))
            await asyncio.gather(*(self.operation(queue.publish(self.body(id)), [f"+single:{id}"]) for id in ids))
            flow.add(len(ids))

    async def publish_batches(self, name: str) -> None:
        flow, queue = self.flows[name], self.queues[name]
        while True:
            await flow.room.wait()
            ids = self.new_ids(self.rng.randrange(1, 60))
            await self.operation(queue.publish_many([self.body(id) for id in ids]), [f"+{name}:{id}" for id in ids])
            flow.add(len(ids))

    async def publish_pairs(self) -> None:
        """A transaction over two queues; several are open at once."""

        async def pair(id: int) -> None:
            async with self.broker.transaction() as transaction:
                await transaction.publish_to_queue("left", self.body(id))
                await transaction.publish_to_queue("right", self.body(id))

        flow = self.flows["left"]
        while True:
            await flow.room.wait()
            ids = self.new_ids(self.rng.randrange(1, 8))
            await asyncio.gather(*(self.operation(pair(id), [f"+left:{id}", f"+right:{id}"]) for id in ids))
            flow.add(len(ids))

    async def publish_keys(self) -> None:
        flow, queue = self.flows["keys"], self.queues["keys"]
        while True:
            await flow.room.wait()
            ids = self.new_ids(self.rng.randrange(1, 6))
            await asyncio.gather(*(self.operation(queue.publish(self._keyed(id)), [f"+keys:{id}"]) for id in ids))
            flow.add(len(ids))

    async def publish_news(self) -> None:
        """A topic without subscribers: what is published to it is kept."""
        for id in self.new_ids(300):
            await self.operation(self.broker.publish(TOPIC, self.body(id)), [f"+{TOPIC}:{id}"])
            await asyncio.sleep(0.002)

    async def claim(self, name: str, count: int) -> list[AsyncDelivery]:
        await self.flows[name].work.wait()
        deliveries = await self.queues[name].claim(count, wait_ms=20)
        for delivery in deliveries:
            say("got", f"{name}:{int(delivery.body[:12])}", delivery.attempt)
        return deliveries

    async def settle_single(self) -> None:
        while True:
            deliveries = await self.claim("single", self.rng.randrange(1, 20))
            await asyncio.gather(*map(self._settle, deliveries))

    async def _settle(self, delivery: AsyncDelivery) -> None:
        id = int(delivery.body[:12])
        away, dead = f"-single:{id}", f"+single.dead:{id}"
        fate = self.rng.random()
        if fate < 0.6:
            await self.operation(delivery.ack(), [away])
        elif fate < 0.7:
            await self.operation(delivery.reject("unfit"), [away, dead])
        elif fate < 0.9:
            last = delivery.attempt == MAX_ATTEMPTS
            await self.operation(delivery.retry(0), [away, dead] if last else [f"~single:{id}"])
            if not last:
                return
        else:
            await delivery.release()
            return
        self.flows["single"].add(-1)

    async def ack_batches(self, name: str) -> None:
        """Settle what was claimed in one step."""
        queue = self.queues[name]
        while True:
            deliveries = await self.claim(name, self.rng.randrange(1, 50))
            if deliveries:
                gone = [f"-{name}:{int(d.body[:12])}" for d in deliveries]
                await self.operation(queue.settle(deliveries), gone)
                self.flows[name].add(-len(deliveries))

    async def ack_pairs(self) -> None:
        """Take both halves of some pairs in one transaction."""

        async def both(deliveries: list[AsyncDelivery]) -> None:
            async with self.broker.transaction() as transaction:
                for delivery in deliveries:
                    await transaction.ack(delivery)

        while True:
            lefts = await self.claim("left", self.rng.randrange(1, 10))
            if lefts:
                rights = await self.queues["right"].claim(len(lefts))
                deliveries = [*lefts, *rights]
                await self.operation(both(deliveries), [f"-{d.queue}:{int(d.body[:12])}" for d in deliveries])
                self.flows["left"].add(-len(lefts))

    async def move(self) -> None:
        """Publish on and ack, in one transaction for each message; several are open at once."""

        async def on(delivery: AsyncDelivery) -> None:
            async with self.broker.transaction() as transaction:
                await transaction.publish_to_queue("out", delivery.body)
                await transaction.ack(delivery)

        while True:
            await self.flows["out"].room.wait()
            deliveries = await self.claim("in", self.rng.randrange(1, 20))
            ids = [int(delivery.body[:12]) for delivery in deliveries]
            pairs = zip(deliveries, ids, strict=True)
            await asyncio.gather(*(self.operation(on(d), [f"-in:{id}", f"+out:{id}"]) for d, id in pairs))
            self.flows["in"].add(-len(ids))
            self.flows["out"].add(len(ids))

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for task in (
                self.publish_single(),
                self.publish_batches("batch"),
                self.publish_batches("in"),
                self.publish_pairs(),
                self.publish_keys(),
                self.publish_news(),
                self.settle_single(),
                self.ack_batches("batch"),
                self.ack_batches("keys"),
                self.ack_batches("out"),
                self.ack_pairs(),
                self.move(),
            ):
                group.create_task(task)


async def main() -> None:
    plan = json.loads(sys.argv[1])
    # small segments, so that they fill up and are compacted all the time
    vars(engine).update(Journal=functools.partial(Journal, segment_bytes=SEGMENT_BYTES))
    vars(broker_module).update(FileMedium=functools.partial(FileMedium, segment_bytes=SEGMENT_BYTES, reserve_bytes=0))
    broker = AsyncBroker(
        enable_persistence=True,
        persistence_path=plan["directory"],
        page_bytes=PAGE_BYTES,
        compress_min_bytes=512,
        compression=("zlib", "zstd")[plan["seed"] % 2],
    )
    child = Child(broker, plan)
    await child.dump()
    await child.declare()
    await child.repeat(plan["keys"])
    say("working")
    if not plan["work"]:
        await broker.close()
        say("closed")
        return
    # what compacting, rolling and paging did while the process lived
    journal = broker.engine.journal
    assert journal is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(child.work())
        while True:
            await asyncio.sleep(0.05)
            paged = sum(queue.paged_out for queue in broker.engine.shard.numbered.values())
            say("journal", journal.retired, len(journal.segments), paged)


if __name__ == "__main__":
    asyncio.run(main())

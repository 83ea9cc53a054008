"""The process that test_kill_streams.py kills: a durable broker with a stream, which it publishes to, stages for,
commits, seals, merges, trims and compacts, while it tells its parent what it tries and what it was answered.

Before that it tells every record it has found. A line goes out in one write, so the parent knows what this process
knew when it died.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import random
import sys
from typing import Any

from rookery import AsyncBroker
from rookery.core.staging import Row
from rookery.embed import AsyncStream
from rookery.embed.aio import broker as broker_module
from rookery.engine import engine
from rookery.errors import ChunkNotFound
from rookery.format.properties import EMPTY
from rookery.sealed import history, sealing
from rookery.store.file import FileMedium
from rookery.store.journal import Journal

SEGMENT_BYTES = 48 << 10
PARTITIONS = 2
STREAM = "log"
GROUP = "readers"


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Child:
    """One life of the process."""

    def __init__(self, broker: AsyncBroker, stream: AsyncStream, plan: dict[str, Any]) -> None:
        self.broker = broker
        self.stream = stream
        self.rng = random.Random(plan["seed"])
        self.last_id = plan["first_id"]
        self.tries = 0
        self.ends: list[int] = []

    async def dump(self) -> None:
        """Tell each record that is there."""
        for partition in (await self.stream.info())["partitions"]:
            index, first, end = partition["partition"], partition["first"], partition["end"]
            say("range", index, first, end)
            self.ends.append(end)
            table = await self.stream.read_arrow(partition=index, columns=["offset", "value"])
            for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
                say("has", index, offset, int(value[:12]))
        if GROUP in await self.stream.groups():
            for row in (await self.stream.group(GROUP).info())["partitions"]:
                say("group", row["partition"], -1 if row["committed"] is None else row["committed"])
        say("dumped")

    def new_ids(self, count: int) -> list[int]:
        self.last_id += count
        return list(range(self.last_id - count + 1, self.last_id + 1))

    def body(self, id: int) -> bytes:
        return b"%012d" % id + self.rng.randbytes(self.rng.choice((0, 50, 300)))

    async def publish(self) -> None:
        while True:
            ids = self.new_ids(self.rng.randrange(1, 20))
            self.tries += 1
            number = self.tries
            say("try", number, *ids)
            positions = await self.stream.publish_many([self.body(id) for id in ids])
            say("ok", number, *(f"{p.partition}:{p.offset}" for p in positions))
            await asyncio.sleep(self.rng.choice((0, 0, 0.005)))

    async def commit(self, producer: str, epoch: int, ids: list[int]) -> None:
        """Do as a writer does that wants it exactly once: the same again until it is answered."""
        tenant = self.broker.engine.shard.tenants[self.broker.tenant]
        core = self.broker.engine
        staging = core.shard.staging
        half = len(ids) // 2
        chunks = {f"{producer}-{epoch}-{i}": part for i, part in enumerate((ids[:half], ids[half:])) if part}
        say("commit", producer, epoch, *ids)
        while True:
            try:
                async with core.change:
                    staging.commit(tenant, producer, epoch, list(chunks))
                break
            except ChunkNotFound:
                for chunk, part in chunks.items():
                    async with core.change:
                        rows = [Row(STREAM, EMPTY, self.body(id)) for id in part]
                        staging.stage(tenant, chunk, STREAM, "", rows)
        say("committed", producer, epoch)

    async def commits(self, producer: str, pending: list[Any]) -> None:
        epoch, ids = pending or (-1, [])
        if ids:
            await self.commit(producer, epoch, ids)
        while True:
            epoch += 1
            await self.commit(producer, epoch, self.new_ids(self.rng.randrange(1, 30)))
            await asyncio.sleep(0.01)

    async def trim(self) -> None:
        """Let go of what was there before this life; the parent has seen all of it."""
        while True:
            await asyncio.sleep(self.rng.random() * 0.4)
            index = self.rng.randrange(PARTITIONS)
            floor = self.ends[index] * 2 // 3
            info = (await self.stream.info())["partitions"][index]
            if info["first"] <= floor:
                say("trim", index, floor)
                await self.stream.trim(floor, partition=index)

    async def read(self) -> None:
        """A group that reads on; and plain reads over files and tail."""
        group = self.stream.group(GROUP)
        while True:
            for partition in (await self.stream.info())["partitions"]:
                offset = partition["end"]
                say("commit-group", partition["partition"], offset)
                await group.commit({partition["partition"]: offset})
                say("group", partition["partition"], offset)
            await asyncio.sleep(0.03)

    async def work(self, pending: dict[str, list[Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            for task in (self.publish(), self.trim(), self.read()):
                group.create_task(task)
            for producer in ("spark", "flink"):
                group.create_task(self.commits(producer, pending.get(producer, [])))


def seal(job: history.Job) -> dict[str, Any]:
    done = sealing.perform(io.BytesIO(job.input()))
    if job.replaced:
        say("merged")
    return done


async def main() -> None:
    plan = json.loads(sys.argv[1])
    vars(engine).update(Journal=functools.partial(Journal, segment_bytes=SEGMENT_BYTES))
    vars(broker_module).update(FileMedium=functools.partial(FileMedium, segment_bytes=SEGMENT_BYTES, reserve_bytes=0))
    vars(history).update(LOOK_MS=20, MERGE_FILES=3)
    broker = AsyncBroker(enable_persistence=True, persistence_path=plan["directory"])
    # small files, so that there is always one to seal and one to merge
    stream = await broker.stream(STREAM, partitions=PARTITIONS, seal_bytes=1 << 20, seal_ms=150)
    keeper, journal = broker.engine.history, broker.engine.journal
    assert keeper is not None and journal is not None
    if plan["seed"] % 3 or not plan["work"]:
        # a process of its own takes longer to start than most lives last
        keeper.helper = seal
    child = Child(broker, stream, plan)
    await child.dump()
    if not plan["work"]:
        await stream.seal()
        await broker.close()
        say("closed")
        return
    say("working")
    async with asyncio.TaskGroup() as group:
        group.create_task(child.work(plan["pending"]))
        while True:
            await asyncio.sleep(0.05)
            files = sum(len(partition.files) for partition in broker.engine.shard.partitions.values())
            say("did", journal.retired, keeper.sealed, keeper.failures, files)


if __name__ == "__main__":
    asyncio.run(main())

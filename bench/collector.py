"""The cyclic collector and long queues: pauses with millions queued, and the cost of a message by queue length."""

from __future__ import annotations

import gc
import time
from argparse import ArgumentParser
from typing import Self

from bench.harness import BATCH, BODY_BYTES, Case, measure, show, start, table, title
from bench.world import PLAIN_PROPS, World
from rookery.core.publishing import new_message, post

MESSAGES = 100_000
FORCED = 5


def fill(world: World, name: str, count: int) -> None:
    """Put that many messages into a queue, every body an object of its own."""
    world.queue(name)
    shard, tenant = world.shard, world.tenant
    way = tenant.way(tenant.default, name)
    for _ in range(count):
        post(shard, tenant, way, new_message(shard, tenant, way, PLAIN_PROPS, bytes(BODY_BYTES), 0, 0, 1), 0)


def drain(world: World, name: str, count: int) -> None:
    """Claim so many at once, then ack them."""
    queue = world.tenant.queue(name)
    for lease in world.shard.claim(queue, count, 30_000):
        queue.ack(lease)
    world.shard.flush()


def at_length(world: World, name: str) -> Case:
    """Publish a batch at the end of a queue, claim and ack a batch at its head: its length stays."""
    queue = world.tenant.queue(name)
    shard, tenant = world.shard, world.tenant

    def run() -> int:
        way = tenant.way(tenant.default, name)
        claim, ack = shard.claim, queue.ack
        for _ in range(MESSAGES // BATCH):
            world.turn()
            for _ in range(BATCH):
                post(shard, tenant, way, new_message(shard, tenant, way, PLAIN_PROPS, bytes(BODY_BYTES), 0, 0, 1), 0)
            for lease in claim(queue, BATCH, 30_000):
                ack(lease)
            shard.flush()
        return MESSAGES

    return Case(f"{queue.ready:,} queued", run)


class Pauses:
    """Within its block, notes how many collections of each generation there are, and the longest of each in ms."""

    def __init__(self) -> None:
        self.count = [0, 0, 0]
        self.longest_ms = [0.0, 0.0, 0.0]
        self._started = 0.0

    def _note(self, phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.thread_time()
            return
        took_ms = (time.thread_time() - self._started) * 1e3
        generation = facts["generation"]
        self.count[generation] += 1
        self.longest_ms[generation] = max(self.longest_ms[generation], took_ms)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def __str__(self) -> str:
        if not any(self.count):
            return "none"
        return ", ".join(
            f"{n} of generation {generation} ≤ {ms:.1f}"
            for generation, (n, ms) in enumerate(zip(self.count, self.longest_ms, strict=True))
            if n
        )


def forced() -> str:
    """The median and the longest of some full collections, in ms."""
    took = []
    for _ in range(FORCED):
        started = time.thread_time()
        gc.collect()
        took.append((time.thread_time() - started) * 1e3)
    took.sort()
    return f"{took[FORCED // 2]:.1f} (longest {took[-1]:.1f})"


def pauses(world: World, most: int) -> None:
    rows = [["nothing queued", forced(), ""]]
    world.queue("long")
    gc.freeze()
    with Pauses() as filling:
        fill(world, "long", most)
    rows.append([f"{most:,} queued; gc.freeze() before they came", forced(), str(filling)])
    gc.unfreeze()
    rows.append([f"{most:,} queued; nothing frozen", forced(), ""])
    gc.freeze()
    rows.append([f"{most:,} queued; gc.freeze() when they were there", forced(), ""])
    gc.unfreeze()
    with Pauses() as draining:
        drain(world, "long", most // 10)
    rows.append([f"{most // 10:,} of them claimed at once, then acked; nothing frozen", forced(), str(draining)])
    table(["state", "forced full collection, ms", "automatic collections on the way, ms"], rows)


def main() -> None:
    parser = ArgumentParser(prog="bench/run collector")
    parser.add_argument("--messages", type=int, default=5_000_000, help="the longest queue (5,000,000)")
    arguments = start("collector", parser)
    most = arguments.messages
    world = World()
    title(
        "Collector pauses",
        f"""A queue is filled with {most:,} messages of {BODY_BYTES} B. {FORCED} full collections are forced in each
        state, in CPU ms: with and without gc.freeze(), which a server calls once it has started. Automatic collections
        are noted by gc.callbacks. The aim is no pause above 20 ms.""",
    )
    pauses(world, most)
    title(
        "Cost by queue length",
        f"""{MESSAGES:,} messages a round in batches of {BATCH}: publish a batch at the end of a queue, claim and ack a
        batch at its head, so that its length stays. Bodies of {BODY_BYTES} B are made anew for each message.""",
    )
    fill(world, "long", most // 10)
    fill(world, "middle", 100_000)
    fill(world, "short", 1_000)
    cases = [at_length(world, name) for name in ("short", "middle", "long")]
    measure(cases, arguments.rounds)
    show(cases)


if __name__ == "__main__":
    main()

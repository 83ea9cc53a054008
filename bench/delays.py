"""A million delayed messages, each with a time of its own: what one costs, and that each comes at its time."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser
from statistics import median

from bench.harness import BATCH, start, table, title
from bench.world import PLAIN_PROPS, World, bodies
from rookery.core.publishing import new_message, post

ORDERS = ("shuffled", "rising", "falling")


class Cost:
    """CPU seconds of one run, by part, and what went wrong in it."""

    def __init__(self) -> None:
        self.publish = 0.0
        self.fire = 0.0
        self.take = 0.0
        self.delivered = 0
        self.early = 0
        self.late = 0
        self.longest_turn_ms = 0.0

    def parts(self, count: int) -> tuple[float, ...]:
        """Publish, fire, take and their sum, per message."""
        parts = (self.publish, self.fire, self.take, self.publish + self.fire + self.take)
        return tuple(part / count * 1e6 for part in parts)


def times(order: str, count: int) -> list[int]:
    """Delays of 1 to `count` ms, no two alike."""
    if order == "falling":
        return list(range(count, 0, -1))
    delays = list(range(1, count + 1))
    if order == "shuffled":
        random.Random(1).shuffle(delays)
    return delays


def run(order: str, count: int, step_ms: int) -> Cost:
    """Publish all of them, then let the clock run in steps and take and ack what has come, until none is left."""
    world = World()
    queue = world.queue()
    shard, tenant = world.shard, world.tenant
    way = tenant.way(tenant.default, "q")
    now = shard.wall_ms
    payloads = bodies(BATCH)
    delays = times(order, count)
    cost = Cost()

    started = time.process_time()
    for i, delay in enumerate(delays):
        post(
            shard, tenant, way, new_message(shard, tenant, way, PLAIN_PROPS, payloads[i % BATCH], 0, 0, 1), now + delay
        )
    cost.publish = time.process_time() - started

    claim, ack = shard.claim, queue.ack
    for _ in range(count // step_ms + 1):
        started = time.process_time()
        world.turn(step_ms)
        fired = time.process_time()
        leases = claim(queue, step_ms + 1, 30_000)
        for lease in leases:
            ack(lease)
        shard.flush()
        taken = time.process_time()
        cost.fire += fired - started
        cost.take += taken - fired
        cost.longest_turn_ms = max(cost.longest_turn_ms, (fired - started) * 1e3)
        for lease in leases:
            cost.early += lease.entry.due_ms > shard.wall_ms
            cost.late += lease.entry.due_ms <= shard.wall_ms - step_ms
        cost.delivered += len(leases)
    return cost


def main() -> None:
    parser = ArgumentParser(prog="bench/run delays")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages (1,000,000)")
    parser.add_argument("--step-ms", type=int, default=100, help="how far the clock moves per turn (100)")
    parser.set_defaults(rounds=3)
    arguments = start("delays", parser)
    count, step_ms = arguments.messages, arguments.step_ms
    title(
        "Delayed messages",
        f"""{count:,} messages of 200 B, delayed by 1 to {count:,} ms, no two alike, are published; then the clock moves
        in steps of {step_ms} ms, and after each the messages that have become ready are claimed and acked, in one
        batch. Publish is making and indexing the message, fire is Shard.turn (the delay ends, the message becomes
        ready), take is claim + ack; the total is all three per message. Early or late is a message delivered before
        its time, or not in the first turn after it.""",
    )
    rows = []
    for order in ORDERS:
        costs = [run(order, count, step_ms) for _ in range(arguments.rounds)]
        rows.append(
            [
                f"due times {order}",
                *(f"{median(part):.3f}" for part in zip(*(c.parts(count) for c in costs), strict=True)),
                "≤ 3",
                f"{min(c.delivered for c in costs):,}",
                str(sum(c.early for c in costs)),
                str(sum(c.late for c in costs)),
                f"{median(c.longest_turn_ms for c in costs):.2f}",
            ]
        )
    head = "CPU µs/message,publish,fire,take,total,aim,delivered,early,late,longest turn ms"
    table(head.split(","), rows)


if __name__ == "__main__":
    main()

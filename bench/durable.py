"""The embedded broker with its journal on disk: publishing, recovery, a large backlog, and the pauses of the loop.

Every part that measures memory or a restart runs in a process of its own. The disk is that of the temporary directory
(TMPDIR chooses it); every confirm waits for fdatasync.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import uvloop

from bench import pauses
from bench.harness import BODY_BYTES, rss_bytes, start, table, title
from rookery import AsyncBroker
from rookery.embed.aio.queues import AsyncQueue
from rookery.engine import engine
from rookery.store.journal import Journal

PUBLISHED = 100_000
BACKLOG_BYTES = 1_000
CHURN_S = 8.0
PAUSE_SEGMENT_BYTES = 4 << 20
PAIRS = 5
PAIR_COUNT = 500_000
SHOWN = ("publish", "recovery", "backlog", "pauses")


def opened(directory: str) -> AsyncBroker:
    return AsyncBroker(enable_persistence=True, persistence_path=directory)


def rss_mib() -> float:
    return rss_bytes() / (1 << 20)


def random_bodies(count: int, size: int) -> list[bytes]:
    """Bodies that do not compress, a few of them used again and again."""
    source = random.Random(1)
    return [source.randbytes(size) for _ in range(count)]


def copies(bodies: list[bytes]) -> list[bytes]:
    """The same bodies as objects of their own: what is kept takes its memory."""
    return [bytes(memoryview(body)) for body in bodies]


# Publishing


async def in_batches(queue: AsyncQueue, batch: int) -> None:
    """publish_many, one call after the other."""
    payloads = random_bodies(batch, BODY_BYTES)
    for _ in range(PUBLISHED // batch):
        await queue.publish_many(payloads)


async def in_window(queue: AsyncQueue, window: int) -> None:
    """One message a call, `window` calls waiting for their confirms at any time."""
    body = random_bodies(1, BODY_BYTES)[0]
    left = PUBLISHED

    async def publisher() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await queue.publish(body)

    await asyncio.gather(*(publisher() for _ in range(window)))


async def publish_part(kind: str, size: int) -> dict[str, float]:
    directory = tempfile.mkdtemp(prefix="rookery-bench-")
    try:
        async with opened(directory) as broker:
            queue = await broker.queue("q")
            journal = broker.engine.journal
            assert journal is not None
            work = in_batches if kind == "batch" else in_window
            await queue.publish(b"first")
            syncs, cpu, wall = journal.syncs, time.process_time(), time.perf_counter()
            await work(queue, size)
            return {
                "cpu_us": (time.process_time() - cpu) / PUBLISHED * 1e6,
                "wall_us": (time.perf_counter() - wall) / PUBLISHED * 1e6,
                "syncs": (journal.syncs - syncs) / PUBLISHED,
            }
    finally:
        shutil.rmtree(directory)


def show_publishing(rounds: int) -> None:
    title(
        "Durable publish, embedded",
        f"""{PUBLISHED:,} messages of {BODY_BYTES} B into one queue, async face on uvloop, sync=always, each round in a
        process of its own. CPU of the whole process with its writing thread; the median of {rounds} rounds by CPU.""",
    )
    rows = []
    for name, kind, size, aim in (
        ("publish_many of 100", "batch", 100, "≤ 2.5"),
        ("publish_many of 256", "batch", 256, "≤ 2.5"),
        ("publish_many of 2,000", "batch", 2000, "≤ 1.2"),
        ("256 tasks, one message a call", "window", 256, ""),
        ("2,000 tasks, one message a call", "window", 2000, ""),
    ):
        found = sorted((part("publish", kind, str(size)) for _ in range(rounds)), key=lambda f: float(f["cpu_us"]))
        middle = found[len(found) // 2]
        spread = f"{found[0]['cpu_us']:.2f} to {found[-1]['cpu_us']:.2f}"
        rows.append(
            [name, f"{middle['cpu_us']:.2f}", spread, aim, f"{middle['syncs']:.5f}", f"{middle['wall_us']:.1f}"]
        )
    table(["case", "CPU µs/message", "rounds from, to", "aim", "syncs/message", "wall µs/message"], rows)


# Recovery and backlog


async def fill_part(directory: str, count: int, size: int) -> dict[str, float]:
    """Fill a queue; the most memory that was seen meanwhile."""
    payloads = random_bodies(500, size)
    peak = 0.0
    started = time.perf_counter()
    async with opened(directory) as broker:
        queue = await broker.queue("q")
        for n in range(0, count, len(payloads)):
            await queue.publish_many(copies(payloads))
            if n % 10_000 == 0:
                peak = max(peak, rss_mib())
        wall = time.perf_counter() - started
    return {"rss_mib": max(peak, rss_mib()), "wall_s": wall}


async def recover_part(directory: str) -> dict[str, float]:
    """Open a directory; the time that takes, and the memory afterwards."""
    cpu, wall = time.process_time(), time.perf_counter()
    broker = opened(directory)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = {"wall_s": wall, "cpu_s": cpu, "rss_mib": rss_mib()}
    queue = await broker.queue("q")
    found["ready"] = (await queue.stats())["ready"]
    await broker.close()
    return found


async def drain(queue: AsyncQueue) -> dict[str, float]:
    """Claim and settle everything, as two consumers; the rate, and the most memory that was seen meanwhile."""
    taken, peak = 0, 0.0

    async def consume() -> None:
        nonlocal taken, peak
        while deliveries := await queue.claim(500):
            await queue.settle(deliveries)
            taken += len(deliveries)
            if taken % 10_000 == 0:
                peak = max(peak, rss_mib())

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(consume(), consume())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"taken": taken, "rate": taken / wall, "cpu_us": cpu / taken * 1e6, "rss_mib": peak}


async def drain_part(directory: str) -> dict[str, float]:
    async with opened(directory) as broker:
        return await drain(await broker.queue("q"))


async def memory_part(count: int, size: int) -> dict[str, float]:
    """Fill and drain without a journal."""
    payloads = random_bodies(500, size)
    async with AsyncBroker() as broker:
        queue = await broker.queue("q")
        for _ in range(0, count, len(payloads)):
            await queue.publish_many(copies(payloads))
        return await drain(queue)


def show_recovery(count: int) -> None:
    title(
        "Recovery",
        f"""{count:,} messages of {BODY_BYTES} B in one queue, written by one process and opened by another: the time
        until the broker is made. The files were just written, so they are in the system's cache.""",
    )
    directory = tempfile.mkdtemp(prefix="rookery-bench-")
    try:
        part("fill", directory, str(count), str(BODY_BYTES))
        found = part("recover", directory)
        assert found["ready"] == count
    finally:
        shutil.rmtree(directory)
    aim = "≤ 3" if count == 1_000_000 else ""
    table(
        ["messages", "wall s", "CPU s", "aim s", "RSS MiB"],
        [[f"{count:,}", f"{found['wall_s']:.2f}", f"{found['cpu_s']:.2f}", aim, f"{found['rss_mib']:.0f}"]],
    )


def pair_of_drains(count: int) -> tuple[dict[str, float], dict[str, float]]:
    """A drain from disk, and one from memory."""
    directory = tempfile.mkdtemp(prefix="rookery-bench-")
    try:
        part("fill", directory, str(count), str(BACKLOG_BYTES))
        found = part("drain", directory)
    finally:
        shutil.rmtree(directory)
    return found, part("memory", str(count), str(BACKLOG_BYTES))


def show_backlog(count: int) -> None:
    title(
        "Backlog",
        f"""{count:,} messages of {BACKLOG_BYTES:,} B in one queue with the default settings, every body an object of
        its own: filled with publish_many of 500, opened again, and drained by two consumers with claims of 500 (one
        works while the other waits for the disk), each step in a process of its own.
        The rates against memory are medians of {PAIRS} pairs that took turns, {min(count, PAIR_COUNT):,} messages each:
        filled, opened and drained from disk; filled and drained in one process without a journal. The aims are for
        5 million.""",
    )
    directory = tempfile.mkdtemp(prefix="rookery-bench-")
    try:
        filled = part("fill", directory, str(count), str(BACKLOG_BYTES))
        recovered = part("recover", directory)
        drained = part("drain", directory)
        assert recovered["ready"] == drained["taken"] == count
    finally:
        shutil.rmtree(directory)
    pairs = [pair_of_drains(min(count, PAIR_COUNT)) for _ in range(PAIRS)]
    disk, memory = (statistics.median(each["rate"] for each in side) for side in zip(*pairs, strict=True))
    ratios = sorted(mine["rate"] / other["rate"] for mine, other in pairs)
    cpu_ratio = statistics.median(other["cpu_us"] / mine["cpu_us"] for mine, other in pairs)
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    table(
        ["", "measured", "aim"],
        [
            ["RSS while filled, MiB", f"{filled['rss_mib']:.0f}", "≤ 400"],
            ["RSS after recovery, MiB", f"{recovered['rss_mib']:.0f}", "≤ 400"],
            ["RSS while drained, MiB", f"{drained['rss_mib']:.0f}", "≤ 400"],
            ["fill, messages/s", f"{count / filled['wall_s']:,.0f}", ""],
            ["recovery, s", f"{recovered['wall_s']:.2f} (CPU {recovered['cpu_s']:.2f})", "≤ 20"],
            ["drain, messages/s", f"{drained['rate']:,.0f}", ""],
            ["drain in pairs, messages/s", f"{disk:,.0f}", ""],
            ["drain in memory, messages/s", f"{memory:,.0f}", ""],
            ["drain against in memory, wall", spread, "≥ 0.5"],
            ["drain against in memory, CPU", f"{cpu_ratio:.2f}", ""],
        ],
    )


# Pauses


async def pauses_part() -> dict[str, Any]:
    """Publish and settle while segments are compacted."""
    directory = tempfile.mkdtemp(prefix="rookery-bench-")
    vars(engine)["Journal"] = functools.partial(Journal, segment_bytes=PAUSE_SEGMENT_BYTES)

    async def churn(queue: AsyncQueue, until: float) -> None:
        """Most messages are settled at once, every tenth stays: what compacting finds in each segment."""
        payloads = random_bodies(100, BACKLOG_BYTES)
        while time.perf_counter() < until:
            await queue.publish_many(payloads)
            deliveries = await queue.claim(100)
            await queue.settle([delivery for n, delivery in enumerate(deliveries) if n % 10])

    try:
        async with opened(directory) as broker:
            queue = await broker.queue("q", lease_ms=3_600_000)
            journal = broker.engine.journal
            assert journal is not None
            with pauses.watched() as found:
                await churn(queue, time.perf_counter() + CHURN_S)
            found["retired"], found["segments"] = journal.retired, len(journal.segments)
    finally:
        shutil.rmtree(directory)
    return found


def show_pauses() -> None:
    title(
        "Pauses of the loop while compacting",
        f"""{CHURN_S:g} s of publish_many of 100 × {BACKLOG_BYTES:,} B, claim, settle nine of ten (the tenth stays
        leased), in segments of {PAUSE_SEGMENT_BYTES >> 20} MiB, so that they are mostly dead and are compacted.
        {pauses.EXPLAINED}""",
    )
    found = part("pauses")
    pauses.show_pauses(found)
    print(f"  {found['retired']} segments were compacted, {found['segments']} are left\n")


# Parts in processes of their own

PARTS: dict[str, Callable[..., Any]] = {
    "publish": lambda kind, size: publish_part(kind, int(size)),
    "fill": lambda directory, count, size: fill_part(directory, int(count), int(size)),
    "recover": recover_part,
    "drain": drain_part,
    "memory": lambda count, size: memory_part(int(count), int(size)),
    "pauses": pauses_part,
}


def part(name: str, *arguments: str) -> dict[str, Any]:
    """Run a part in a process of its own; what it found."""
    command = [sys.executable, "-m", "bench.durable", "--part", name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--part"]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(PARTS[sys.argv[2]](*sys.argv[3:]))))
        return
    parser = argparse.ArgumentParser(prog="bench/run durable")
    parser.add_argument("--backlog", type=int, default=500_000, help="messages of the backlog (the aim: 5000000)")
    parser.add_argument("--recovery", type=int, default=1_000_000, help="messages to recover")
    parser.add_argument("--only", default=",".join(SHOWN), help=f"which parts of {', '.join(SHOWN)}")
    arguments = start("durable", parser)
    wanted = arguments.only.split(",")
    if "publish" in wanted:
        show_publishing(arguments.rounds)
    if "recovery" in wanted:
        show_recovery(arguments.recovery)
    if "backlog" in wanted:
        show_backlog(arguments.backlog)
    if "pauses" in wanted:
        show_pauses()


if __name__ == "__main__":
    main()

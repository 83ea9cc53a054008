"""Streams: appending beside a queue publish, Arrow from tail and files, sealing, staged commits, random reads."""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench import pauses
from bench.harness import BODY_BYTES, Case, cpu_us, measure, show, start, table, title
from rookery import AsyncBroker, Broker, Message
from rookery.core import publishing, ranges, streams
from rookery.core.shard import Shard
from rookery.core.staging import Row
from rookery.core.stream import Partition, SealedFile, Stream
from rookery.core.topology import Tenant
from rookery.format.model import PERSISTENT
from rookery.format.properties import Properties, encode
from rookery.sealed import arrow, parquet, sealing
from rookery.sealed.schema import SEALED_SCHEMA

ROWS = 200_000
STAGED = 1_000_000
CHUNK = 50_000
PROPS = encode(
    Properties(content_type="application/json", headers={"x-key": "k", "region": "eu"}, delivery_mode=2, message_id="m")
)
LOAD_S = 10.0
SEAL_BYTES = 8 << 20
FEW = ["offset", "timestamp", "routing_key", "value"]


def bodies(count: int) -> list[bytes]:
    source = random.Random(1)
    return [source.randbytes(BODY_BYTES) for _ in range(count)]


def appending(rounds: int) -> None:
    """The core alone, a journal's log taken every 100 messages: what a publish costs before the disk."""
    payloads = bodies(100)

    def case(target: str) -> Case:
        shard = Shard(b"", 1)
        shard.turn(1_700_000_000_000, 1)
        shard.log.active = True
        shard.log.open_segment(1)
        tenant: Tenant = shard.create_tenant("t")
        if target == "queue":
            queue = tenant.declare_queue("x", {}, "embedded")[0]
        else:
            streams.declare(tenant, "x", {})
        way = tenant.way(tenant.default, "x")
        offset = 0

        def run() -> int:
            nonlocal offset
            for _ in range(200):
                for body in payloads:
                    message = publishing.new_message(shard, tenant, way, PROPS, body, 0, 0, PERSISTENT)
                    publishing.post(shard, tenant, way, message, 0, publishing.EACH)
                offset += len(shard.log.take(1, offset))
                shard.log.durable = shard.log.batch - 1
                shard.log.settle()
                shard.log.take_changes()
            if target == "queue":
                queue.purge()
            return 200 * len(payloads)

        return Case(target, run)

    cases = [case("queue"), case("stream")]
    title("Appending", "Publish into a queue and into a stream, the records of a batch encoded for the journal.")
    measure(cases, rounds)
    show(cases)
    print(f"  ratio stream / queue: {cases[1].median_us() / cases[0].median_us():.2f} (aim ≤ 1.3)\n")


def telling(rounds: int) -> None:
    """The core at full load in real time, with and without the stream of events."""
    payloads = bodies(100)

    def case(name: str, rate: int) -> Case:
        shard = Shard(b"", 1)
        shard.turn(int(time.time() * 1000), int(time.monotonic() * 1000))
        tenant = shard.create_tenant("t")
        queue = tenant.declare_queue("x", {}, "embedded")[0]
        way = tenant.way(tenant.default, "x")
        if rate:
            shard.events.start(rate, {"max_bytes": 1 << 20})

        def run() -> int:
            for _ in range(1_000):
                shard.turn(int(time.time() * 1000), int(time.monotonic() * 1000))
                for body in payloads:
                    message = publishing.new_message(shard, tenant, way, PROPS, body, 0, 0, 0)
                    publishing.post(shard, tenant, way, message, 0, publishing.EACH)
                for lease in queue.claim(100, 30_000):
                    queue.ack(lease)
                shard.flush()
            return 1_000 * len(payloads)

        return Case(name, run)

    cases = [case("without events", 0), case("with events, 1,000 messages a second told of", 1_000)]
    title("Events", "Publish, claim and ack in the core, as fast as it goes, with and without rookery.events.")
    measure(cases, rounds)
    show(cases)
    print(f"  ratio: {cases[1].median_us() / cases[0].median_us():.2f} (aim ≤ 1.10, of a whole broker)\n")


def filled(broker: Broker, rows: int) -> Partition:
    orders = broker.stream("orders")
    payloads = bodies(1_000)
    batch = [Message(body, id="m", meta={"region": "eu"}, content_type="application/json") for body in payloads]
    for _ in range(rows // len(batch)):
        orders.publish_many(batch, key="k")
    return broker._context.tenant.stream("orders").partitions[0]


def tables(rows: int) -> None:
    with tempfile.TemporaryDirectory() as directory, Broker(enable_persistence=True, persistence_path=directory) as b:
        partition = filled(b, rows)
        orders = b.stream("orders")
        found = []

        def ipc(columns: list[str]) -> None:
            with b.engine as engine:
                reading = engine.reading(partition, 0, rows, columns)
            for _ in reading.ipc():
                pass
            with b.engine as engine:
                engine.done_reading(reading)

        def read(columns: list[str]) -> str:
            ipc(columns)
            return f"{1 / min(cpu_us(lambda: ipc(columns), rows) for _ in range(3)):.2f}"

        found.append(["tail, all columns", read([]), "≥ 0.5"])
        found.append(["tail, offset, timestamp, routing key, value", read(FEW), "≥ 1.5"])
        engine = b.engine
        with engine:
            job = sealing_job(b, partition)
        us = cpu_us(lambda: sealing.perform(io.BytesIO(job)), rows)
        found.append(["sealing", f"{1 / us:.2f}", "≥ 0.5"])
        orders.seal()
        found.append(["sealed, all columns", read([]), "≥ 1.5"])
        found.append(["sealed, four columns", read(FEW), ""])
        title(
            "Tables",
            f"""{rows:,} records of {BODY_BYTES} B with a key, a header, an id and a content type, as Arrow IPC;
            the best of three reads after one to warm up.""",
        )
        table(["case", "M rows / CPU-second", "aim"], found)


def sealing_job(broker: Broker, partition: Partition) -> bytes:
    history = broker.engine.history
    assert history is not None
    places, stamps = partition.run(partition.tail, partition.visible)
    directory = tempfile.mkdtemp()
    job = {
        "root": directory,
        "owner": os.getpid(),
        "segments": {s.number: history.journal.medium.name(s.number) for s in history.journal.segments},
        "tenant": "default",
        "stream": "orders",
        "partition": 0,
        "first": 0,
        "bytes": len(places),
    }
    return json.dumps(job).encode() + b"\n" + places + stamps


async def seal_under_load() -> dict[str, Any]:
    payloads = bodies(256)
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as directory:
        async with AsyncBroker(enable_persistence=True, persistence_path=directory) as broker:
            stream = await broker.stream("x", partitions=2, seal_bytes=SEAL_BYTES)
            # as a server does at its start
            gc.collect()
            gc.freeze()
            with pauses.watched() as found:
                until = time.perf_counter() + LOAD_S
                published = 0
                while time.perf_counter() < until:
                    await stream.publish_many(payloads)
                    published += len(payloads)
            found["published"] = published
            partitions = broker.engine.shard.tenants["default"].streams["x"].partitions
            found["files"] = sum(len(partition.files) for partition in partitions)
            found["sealed"] = sum(int(file.last - file.first + 1) for part in partitions for file in part.files)
    return found


def sealing_pauses() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(seal_under_load())
    title(
        "Pauses of the loop while sealing",
        f"""{LOAD_S:g} s of publish_many of 256 × {BODY_BYTES} B into a stream of two partitions on disk, as fast as it
        goes, sealed at every {SEAL_BYTES >> 20} MiB. {pauses.EXPLAINED}""",
    )
    pauses.show_pauses(found)
    print(
        f"  {found['published']:,} records were published, {found['sealed']:,} of them sealed, {found['files']} files\n"
    )


def staged(rows: int) -> None:
    shard = Shard(b"", 1)
    shard.turn(1_700_000_000_000, 1)
    shard.log.active = True
    shard.log.open_segment(1)
    tenant = shard.create_tenant("t")
    streams.declare(tenant, "x", {})
    payloads = bodies(1_000)
    offset = 0
    chunks = []
    started = time.process_time()
    for n in range(rows // CHUNK):
        chunk = [Row("x", PROPS, payloads[i % 1_000]) for i in range(CHUNK)]
        shard.staging.stage(tenant, f"c{n}", "x", "", chunk)
        offset += len(shard.log.take(1, offset))
        shard.log.durable = shard.log.batch - 1
        shard.log.settle()
        chunks.append(f"c{n}")
    staging_us = (time.process_time() - started) / rows * 1e6
    started = time.process_time()
    shard.staging.commit(tenant, "spark", 1, chunks)
    commit_ms = (time.process_time() - started) * 1e3
    title("Staged commit", f"{rows:,} rows in chunks of {CHUNK:,}, committed at once; CPU of the loop.")
    table(
        ["case", "measured", "aim"],
        [["stage, µs/row", f"{staging_us:.2f}", ""], ["commit, ms", f"{commit_ms:.2f}", "≤ 20"]],
    )


def random_reads(files: int, rows_per_file: int) -> None:
    """One record at a random offset of a long history."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        one = root / "one.parquet"
        make_file(one, rows_per_file)
        for count in (max(1, files // 100), files):
            shard = Shard(b"", 1)
            stream = streams.declare(shard.create_tenant("t"), "x", {})[0]
            partition = stream.partitions[0]
            for n in range(count):
                partition.files.append(sealed_file(n, rows_per_file))
            partition.begin_at(0, count * rows_per_file, count * rows_per_file, 1)
            source = random.Random(2)
            wall = []
            for _ in range(20):
                at = source.randrange(count * rows_per_file)
                started = time.perf_counter()
                (piece,) = ranges.plan(partition, at, at + 1)
                inside = piece.start % rows_per_file
                parquet.records_of(one, inside, inside + 1)
                wall.append((time.perf_counter() - started) * 1e3)
            wall.sort()
            records = f"{count * rows_per_file:>12,} records"
            print(f"  {records}: median {wall[10]:.1f} ms, longest {wall[-1]:.1f} ms (aim ≤ 50 ms)")
    print()


def sealed_file(n: int, rows: int) -> SealedFile:
    return SealedFile(
        {"path": "one.parquet", "first": n * rows, "last": (n + 1) * rows - 1, "first_ms": 1, "last_ms": 1, "bytes": 1}
    )


def make_file(path: Path, rows: int) -> None:
    stream = Stream("x", Shard(b"", 1).create_tenant("t"), streams.StreamSettings())
    partition = Partition(stream, 0, 1)
    stream.partitions.append(partition)
    shard = stream.tenant.shard
    shard.turn(1_700_000_000_000, 1)
    way_tenant = stream.tenant
    streams.declare(way_tenant, "x", {})
    payloads = bodies(1_000)
    target = way_tenant.stream("x").partitions[0]
    for i in range(rows):
        shard.publish(way_tenant, "", "x", PROPS, payloads[i % 1_000])
    places, stamps = target.run(0, rows)
    with sealing.sealed_writer(path) as writer:
        for columns in arrow.collect(places, stamps, 0, lambda place, _: shard.read_record(place), SEALED_SCHEMA, ""):
            batch = arrow.batch_of(columns, SEALED_SCHEMA, "t", "x", 0)
            writer.write_batch(batch, row_group_size=batch.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/run streams")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records in a table ({ROWS:,})")
    options = start("streams", parser)
    appending(options.rounds)
    telling(options.rounds)
    tables(options.rows)
    sealing_pauses()
    staged(STAGED)
    title("Random reads", "One record at a random offset; files of 500,000 records, the history as long as said.")
    random_reads(200, 500_000)


if __name__ == "__main__":
    main()

"""`rookery bench`: what a broker does on this machine, over the wire, with its own promises.

Producers publish batches that are confirmed, consumers claim and ack; then one message at a time is timed on its way.
The queue is made for the run and deleted after it. `bench/run` in the source compares with other brokers.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from rookery.cli.commands import command, single
from rookery.cli.output import progress
from rookery.cli.session import NDJSON, Session
from rookery.cli.where import Where
from rookery.errors import RookeryError

app = single()

CLAIM_MAX: Final = 1_000
START_SEC: Final = 60
TRIPS: Final = 200
"""How many messages are timed on their way."""


@command(
    app,
    "bench",
    "rookery bench --throw-away",
    "rookery bench --messages 100000 --size 1000 --producers 4 --consumers 4",
    "rookery bench --url http://broker:8080 --key KEY --json",
)
def bench(
    at: Session,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many.")] = 50_000,
    size: Annotated[int, typer.Option("--size", min=2, help="Bytes of a body.")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, max=1_000, help="Messages of a request.")] = 100,
    producers: Annotated[int, typer.Option("--producers", min=1, max=64, help="At a time.")] = 2,
    consumers: Annotated[int, typer.Option("--consumers", min=1, max=64, help="At a time.")] = 2,
    throw_away: Annotated[
        bool, typer.Option("--throw-away", help="Start a broker for this, on a free port, in a temporary directory.")
    ] = False,
) -> None:
    """Measure a broker over HTTP: messages a second published, claimed and acked, and how long one takes.

    Every publish is confirmed, so durable messages are on disk. Uses a queue of its own, which it deletes.
    """
    if throw_away:
        with _server() as where, Session(at.out, where, 30_000) as own:
            _measure(own, messages, size, batch, producers, consumers)
    else:
        _measure(at, messages, size, batch, producers, consumers)


def _measure(at: Session, messages: int, size: int, batch: int, producers: int, consumers: int) -> None:
    queue = f"rookery.bench.{uuid.uuid4().hex[:12]}"
    at.put("/queues/{}", queue, body={})
    try:
        body = "x" * (size - 2)
        with progress("publishing", messages) as more:
            publish_sec = _together(producers, _shares(messages, producers), _producer(at, queue, body, batch, more))
        with progress("consuming", messages) as more:
            consume_sec = _together(consumers, _shares(messages, consumers), _consumer(at, queue, batch, more))
        trips = sorted(_trip(at, queue, body) for _ in range(TRIPS))
    finally:
        at.delete("/queues/{}", queue)
    result: dict[str, Any] = {
        "url": at.transport.address.url,
        "messages": messages,
        "size": size,
        "batch": batch,
        "producers": producers,
        "consumers": consumers,
        "published_per_sec": round(messages / publish_sec),
        "consumed_per_sec": round(messages / consume_sec),
        "trip_ms": {f"p{p}": round(trips[len(trips) * p // 100] * 1000, 2) for p in (50, 90, 99)},
    }
    if at.out.as_json:
        at.out.json(result)
        return
    print(f"{messages} messages of {size} bytes, {batch} a request, at {result['url']}")
    print(f"  published and confirmed  {result['published_per_sec']:>9} a second, {producers} producers")
    print(f"  claimed and acked        {result['consumed_per_sec']:>9} a second, {consumers} consumers")
    shown = ", ".join(f"{name} {value} ms" for name, value in result["trip_ms"].items())
    print(f"  publish, claim and ack of one message: {shown}")


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (1 if index < total % parts else 0) for index in range(parts)]


def _together(count: int, shares: list[int], work: Callable[[int], None]) -> float:
    """Do shares of the work in threads; how long it took all of them."""
    failed: list[RookeryError] = []

    def run(share: int) -> None:
        try:
            work(share)
        except RookeryError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(share,), daemon=True) for share in shares[:count]]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - began


def _producer(at: Session, queue: str, body: str, batch: int, more: Callable[[int], None]) -> Callable[[int], None]:
    line = msgspec.json.encode({"message": body})

    def work(share: int) -> None:
        while share:
            count = min(share, batch)
            data = b"\n".join([line] * count)
            at.post("/queues/{}/messages", queue, body=data, content_type=NDJSON, ids=False)
            share -= count
            more(count)

    return work


def _consumer(at: Session, queue: str, batch: int, more: Callable[[int], None]) -> Callable[[int], None]:
    def work(share: int) -> None:
        while share:
            wish = {"max": min(share, batch, CLAIM_MAX), "wait_ms": 1_000}
            found = at.post("/queues/{}/claim", queue, body=wish, wait_ms=1_000)["deliveries"]
            if found:
                leases = [delivery["lease"] for delivery in found]
                at.post("/queues/{}/settle", queue, body={"leases": leases})
                share -= len(found)
                more(len(found))

    return work


def _trip(at: Session, queue: str, body: str) -> float:
    began = time.perf_counter()
    at.post("/queues/{}/messages", queue, body={"message": body})
    (delivery,) = at.post("/queues/{}/claim", queue, body={"wait_ms": 5_000}, wait_ms=5_000)["deliveries"]
    at.post("/queues/{}/settle", queue, body={"leases": [delivery["lease"]]})
    return time.perf_counter() - began


@contextmanager
def _server() -> Iterator[Where]:
    """A broker of this installation in a process of its own, which ends with the run."""
    import json
    import os
    import secrets
    import subprocess
    import sys

    from rookery.wire.protocols import PROTOCOLS

    key = secrets.token_urlsafe(24)
    off = [word for name in PROTOCOLS if name != "http" for word in (f"--{name}-port", "off")]
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        command = [sys.executable, "-m", "rookery", "serve", "--host", "127.0.0.1", "--http-port", "0", *off]
        environ = {**os.environ, "API_KEY": key, "ROOKERY_DATA_DIR": str(Path(folder, "data"))}
        process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE)  # noqa: S603  this package
        try:
            assert process.stderr is not None
            for line in process.stderr:
                said = json.loads(line)
                if said["event"] == "listening":
                    break
            else:
                raise RookeryError("the broker did not start")
            # whoever fills the pipe of a log that nobody reads waits for ever
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield Where(f"http://{said['http']}", key, "")
        finally:
            process.terminate()
            process.wait(START_SEC)

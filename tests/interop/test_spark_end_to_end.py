"""From producers over AMQP and HTTP through Spark to a consumer, while the broker is killed again and again: every id
once.

Producers send again what they had no answer to, under the same key, and the broker takes each key once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
import requests

from tests.interop.spark_gate import Broker, gated
from tests.interop.spark_process import driving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COUNT = 600
LONG_COUNT = 12_000
PATIENCE_SEC = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "server").mkdir()
    with gated(tmp_path / "server") as made:
        made.world.stream("in", partitions=2)
        made.world.stream("out")
        arguments = {"x-message-deduplication": True}
        with amqp(made) as channel:
            channel.exchange_declare("orders", "topic", durable=True, arguments=arguments)
            channel.queue_bind("in", "orders", "#")
        yield made


class amqp:  # noqa: N801  used like a function
    """A channel to whichever process the broker is now."""

    def __init__(self, broker: Broker) -> None:
        self._parameters = pika.ConnectionParameters("127.0.0.1", broker.server.amqp)

    def __enter__(self) -> Any:
        self._connection = pika.BlockingConnection(self._parameters)
        return self._connection.channel()

    def __exit__(self, *_: object) -> None:
        if self._connection.is_open:
            self._connection.close()


def persistently(step: Callable[[], bool]) -> None:
    """Do something again until it says that it is done, whatever breaks."""
    deadline = time.monotonic() + PATIENCE_SEC
    while True:
        try:
            if step():
                return
        except (pika.exceptions.AMQPError, OSError, requests.RequestException, AssertionError):
            assert time.monotonic() < deadline
        time.sleep(0.02)


def produce_amqp(broker: Broker, ids: list[str]) -> None:
    """One confirmed message after the other."""
    left = list(ids)

    def step() -> bool:
        with amqp(broker) as channel:
            channel.confirm_delivery()
            while left:
                properties = pika.BasicProperties(message_id=left[0], delivery_mode=2)
                channel.basic_publish("orders", "order.new", left[0].encode(), properties)
                left.pop(0)
        return True

    persistently(step)


def produce_http(broker: Broker, ids: list[str]) -> None:
    """Batches, each until it is answered."""
    for at in range(0, len(ids), 20):
        rows = [
            {"message": id, "content_type": "text/plain", "message_id": id, "idempotency_key": id}
            for id in ids[at : at + 20]
        ]
        persistently(partial(_sent, broker, rows))


def _sent(broker: Broker, rows: list[dict[str, str]]) -> bool:
    return bool(broker.world.call("POST", "/streams/in/publish", rows))


def consume(broker: Broker, count: int) -> list[str]:
    """Everything that is in the last stream, over AMQP."""
    found: list[str] = []

    def step() -> bool:
        found.clear()
        with amqp(broker) as channel:
            channel.basic_qos(prefetch_count=200)
            arguments = {"x-stream-offset": "first"}
            for method, _, body in channel.consume("out", arguments=arguments, inactivity_timeout=3):
                if method is None:
                    break
                found.append(body.decode())
                channel.basic_ack(method.delivery_tag)
            channel.cancel()
        return len(found) >= count

    persistently(step)
    return found


def start(spark: SparkSession, broker: Broker, folder: Path, **trigger: Any) -> StreamingQuery:
    source: dict[str, Any] = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": COUNT // 5}
    frame = spark.readStream.format("rookery").options(**broker.world.here, **source).load()
    rows = frame.selectExpr("value", "message_id", "cast(message_id AS binary) AS key").repartition(3)
    writer = rows.writeStream.format("rookery").options(**broker.world.here, topic="out")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()


def produce(broker: Broker, count: int) -> tuple[list[str], list[threading.Thread]]:
    half = count // 2
    ids = [f"a-{i}" for i in range(half)] + [f"h-{i}" for i in range(half)]
    threads = [
        threading.Thread(target=produce_amqp, args=(broker, ids[:half])),
        threading.Thread(target=produce_http, args=(broker, ids[half:])),
    ]
    for thread in threads:
        thread.start()
    return ids, threads


def written(broker: Broker) -> int:
    shown = broker.world.call("GET", "/streams/out")
    return sum(int(row["end"]) for row in shown["partitions"])


def until_written(broker: Broker, count: int) -> None:
    persistently(lambda: written(broker) >= count)


def kill_at(broker: Broker, *counts: int) -> None:
    """Kill the broker when so many rows have come through."""
    for count in counts:
        until_written(broker, count)
        broker.restart()


def check(found: list[str], ids: list[str]) -> None:
    """Count, distinct, checksum."""
    assert len(found) == len(set(found)) == len(ids)
    assert sum(zlib.crc32(id.encode()) for id in found) == sum(zlib.crc32(id.encode()) for id in ids)


def test_every_id_arrives_once_while_the_broker_is_killed(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    query = start(spark, broker, tmp_path, processingTime="100 milliseconds")
    ids, threads = produce(broker, COUNT)
    kill_at(broker, 1, COUNT // 2)
    for thread in threads:
        thread.join()
    persistently(lambda: written(broker) >= len(ids) or query.exception() is not None)
    query.stop()
    # whatever was left when it was stopped
    start(spark, broker, tmp_path, availableNow=True).awaitTermination()
    check(consume(broker, len(ids)), ids)


@pytest.mark.long
def test_every_id_arrives_once_while_everything_is_killed(broker: Broker, tmp_path: Path, need_java: str) -> None:
    ids, threads = produce(broker, LONG_COUNT)
    job = {"do": "copy", "here": broker.world.here, "source": "in", "target": "out", "rows": LONG_COUNT // 20}
    job |= {"checkpoint": str(tmp_path / "checkpoint")}
    for step in range(1, 6):
        with driving(tmp_path, "local[2]") as driver:
            driver.send(**job, trigger={"processingTime": "100 milliseconds"})
            until_written(broker, LONG_COUNT * step // 10)
            if step % 2:
                broker.restart()
                until_written(broker, LONG_COUNT * step // 10 + 1)
    for thread in threads:
        thread.join()
    with driving(tmp_path, "local[2]") as driver:
        driver.run(**job)
    check([value.strip() for value in consume(broker, len(ids))], ids)

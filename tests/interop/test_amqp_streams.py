"""Streams over AMQP with pika: the parts that RabbitMQ cannot be asked about, and records from sealed files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pika
import pytest

import rookery
from rookery.server import attach


def read(port: int, start: Any, count: int) -> list[tuple[int, bytes]]:
    """Records of `orders` from a place on, by a consumer with a small prefetch."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=3)
    found: list[tuple[int, bytes]] = []
    for method, properties, body in channel.consume("orders", arguments={"x-stream-offset": start}):
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    connection.close()
    return found


async def test_sealed_and_new_records_come_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    async with rookery.AsyncBroker(enable_persistence=True, persistence_path=str(tmp_path)) as broker:
        listeners = await attach(broker, amqp=0)
        orders = await broker.stream("orders")
        await orders.publish_many([b"%d" % n for n in range(20)])
        await orders.seal()
        await orders.publish_many([b"%d" % n for n in range(20, 25)])
        port = int(listeners.amqp.rpartition(":")[2])
        for start, first in (("first", 0), (7, 7), (22, 22), ("1h", 0), ("last", 24)):
            found = await asyncio.to_thread(read, port, start, 25 - first)
            assert found == [(n, b"%d" % n) for n in range(first, 25)]
        await listeners.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-queue-type": "stream", "x-max-age": "soon"}, "invalid_max_age"),
        ({"x-queue-type": "stream", "x-max-age": 5}, "unacceptable_type"),
    ],
)
async def test_a_wrong_age_is_refused(arguments: dict[str, Any], text: str) -> None:
    def declare(port: int) -> str:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            connection.channel().queue_declare("s", durable=True, arguments=arguments)
        connection.close()
        assert refused.value.reply_code == 406
        return str(refused.value.reply_text)

    async with rookery.AsyncBroker() as broker:
        listeners = await attach(broker, amqp=0)
        assert text in await asyncio.to_thread(declare, int(listeners.amqp.rpartition(":")[2]))
        assert await broker.streams() == []
        await listeners.close()


async def test_a_wrong_place_is_refused_and_costs_the_channel_only() -> None:
    def consume(port: int) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        for wrong in ("middle", True, "12x"):
            channel = connection.channel()
            channel.basic_qos(prefetch_count=1)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-stream-offset") as refused:
                channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": wrong})
            assert refused.value.reply_code == 406
        connection.close()

    async with rookery.AsyncBroker() as broker:
        await broker.stream("s")
        listeners = await attach(broker, amqp=0)
        await asyncio.to_thread(consume, int(listeners.amqp.rpartition(":")[2]))
        assert broker.engine.shard.feeds == []
        await listeners.close()

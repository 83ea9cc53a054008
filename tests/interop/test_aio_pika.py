"""aio-pika against a real server process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.patterns import RPC, Master

from tests.interop.server import ServerProcess, serving

PATIENCE_SEC = 20


def url_of(server: ServerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{server.amqp}/"


@pytest_asyncio.fixture
async def channel(server: ServerProcess) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(url_of(server)) as connection:
        yield await connection.channel(publisher_confirms=True, on_return_raises=True)


async def take(queue: AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    """Consume `count` messages, without settling them."""
    got: list[AbstractIncomingMessage] = []
    async with queue.iterator(timeout=PATIENCE_SEC) as messages:
        async for message in messages:
            got.append(message)
            if len(got) == count:
                break
    return got


async def test_concurrent_publishers_and_a_consumer_with_prefetch(channel: AbstractChannel) -> None:
    await channel.set_qos(prefetch_count=10)
    exchange = await channel.declare_exchange("news", aio_pika.ExchangeType.FANOUT, auto_delete=True)
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind(exchange)
    await asyncio.gather(*(exchange.publish(aio_pika.Message(b"%d" % n), "") for n in range(50)))
    seen: list[bytes] = []
    async with queue.iterator(timeout=PATIENCE_SEC) as messages:
        async for message in messages:
            async with message.process():
                seen.append(message.body)
            if len(seen) == 50:
                break
    assert sorted(seen, key=int) == [b"%d" % n for n in range(50)]


async def test_a_different_redeclaration_is_refused(channel: AbstractChannel) -> None:
    await channel.declare_queue("passing", exclusive=True)
    with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="inequivalent arg 'auto_delete'"):
        await channel.declare_queue("passing", exclusive=True, auto_delete=True)


async def test_a_failed_handler_returns_its_message(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    await channel.default_exchange.publish(aio_pika.Message(b"work"), queue.name)
    (message,) = await take(queue, 1)
    with pytest.raises(ZeroDivisionError):
        async with message.process(requeue=True):
            raise ZeroDivisionError
    again = await queue.get(timeout=PATIENCE_SEC)
    assert (again.body, again.redelivered) == (b"work", True)
    await again.ack()


async def test_an_unroutable_message_is_told(channel: AbstractChannel) -> None:
    with pytest.raises(aio_pika.exceptions.DeliveryError) as caught:
        await channel.default_exchange.publish(aio_pika.Message(b"lost"), "nowhere", mandatory=True)
    returned: Any = caught.value.message
    assert (returned.delivery.reply_code, returned.body) == (312, b"lost")


async def test_a_full_queue_refuses(channel: AbstractChannel) -> None:
    arguments: Any = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await channel.declare_queue(exclusive=True, arguments=arguments)
    await channel.default_exchange.publish(aio_pika.Message(b"fits"), queue.name)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b"does not"), queue.name)


async def test_properties_come_through(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(exclusive=True)
    sent = aio_pika.Message(
        b"{}",
        headers={"number": 7, "list": [1, "two"], "table": {"yes": True}},
        content_type="application/json",
        content_encoding="identity",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration=60,
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    await channel.default_exchange.publish(sent, queue.name)
    (got,) = await take(queue, 1)
    assert got.info()["headers"] == sent.headers
    assert got.properties == sent.properties


async def test_a_dead_letter_has_its_history(channel: AbstractChannel) -> None:
    dead = await channel.declare_queue(exclusive=True)
    arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    queue = await channel.declare_queue(exclusive=True, arguments=arguments)
    await channel.default_exchange.publish(aio_pika.Message(b"bad"), queue.name)
    (message,) = await take(queue, 1)
    await message.reject(requeue=False)
    (letter,) = await take(dead, 1)
    assert letter.headers["x-first-death-queue"] == queue.name
    assert letter.headers["x-first-death-reason"] == "rejected"


async def test_a_consumer_is_told_that_its_queue_is_deleted(server: ServerProcess, channel: AbstractChannel) -> None:
    queue = await channel.declare_queue("doomed", auto_delete=True)
    async with await aio_pika.connect(url_of(server)) as other, queue.iterator(timeout=PATIENCE_SEC):
        consuming: Any = await channel.get_underlay_channel()
        assert len(consuming.consumers) == 1
        await (await other.channel()).queue_delete("doomed")
        async with asyncio.timeout(PATIENCE_SEC):
            while consuming.consumers:
                await asyncio.sleep(0.01)


async def test_the_rpc_pattern(server: ServerProcess) -> None:
    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async with await aio_pika.connect(url_of(server)) as connection:
        serving_side = await RPC.create(await connection.channel())
        await serving_side.register("multiply", multiply, auto_delete=True)
        rpc = await RPC.create(await connection.channel())
        answers = await asyncio.gather(*(rpc.call("multiply", {"x": n, "y": 2}) for n in range(20)))
        assert answers == [2 * n for n in range(20)]
        with pytest.raises(aio_pika.exceptions.MessageProcessError):
            await rpc.call("divide", {"x": 1})
        await rpc.close()
        await serving_side.close()


async def test_the_worker_pattern(channel: AbstractChannel) -> None:
    done: list[int] = []

    async def work(*, number: int) -> None:
        done.append(number)

    master = Master(channel)
    worker = await master.create_worker("numbers", work, auto_delete=True)
    for number in range(10):
        await master.create_task("numbers", {"number": number})
    async with asyncio.timeout(PATIENCE_SEC):
        while len(done) < 10:
            await asyncio.sleep(0.01)
    assert sorted(done) == list(range(10))
    await worker.close()


async def test_a_robust_connection_comes_back_to_a_broker_that_was_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: AbstractIncomingMessage) -> None:
        await got.put(message.body)
        await message.ack()

    with serving(tmp_path, "--amqp-port", port) as first:
        connection = await aio_pika.connect_robust(url_of(first), reconnect_interval=0.1)
        channel = await connection.channel()
        queue = await channel.declare_queue("kept", durable=True)
        await queue.consume(handle)
        await channel.default_exchange.publish(aio_pika.Message(b"before"), "kept")
        assert await asyncio.wait_for(got.get(), PATIENCE_SEC) == b"before"
        first.signal(signal.SIGKILL)
        await asyncio.to_thread(first.wait)
    with serving(tmp_path, "--amqp-port", port) as second:
        async with await aio_pika.connect(url_of(second)) as other:
            message = aio_pika.Message(b"after", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await (await other.channel()).default_exchange.publish(message, "kept")
        assert await asyncio.wait_for(got.get(), PATIENCE_SEC) == b"after"
        await connection.close()

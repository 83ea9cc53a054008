"""pika's asyncio connection, driven by its callbacks, against a real server process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pika
import pytest
import pytest_asyncio
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exchange_type import ExchangeType

from tests.interop.server import ServerProcess

PATIENCE_SEC = 20


async def told(ask: Callable[..., Any]) -> Any:
    """What a call that takes a callback calls it with."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(lambda *what: answer.set_result(what[0] if len(what) == 1 else what))
    async with asyncio.timeout(PATIENCE_SEC):
        return await answer


async def connect(server: ServerProcess, **options: Any) -> AsyncioConnection:
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp, **options)
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    AsyncioConnection(
        parameters,
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _connection, error: opened.set_exception(error),
    )
    async with asyncio.timeout(PATIENCE_SEC):
        return await opened


async def close(connection: AsyncioConnection) -> tuple[Any, Any]:
    """Wait for its end, whoever began it; returns the connection and why it ended."""

    def end(callback: Callable[..., None]) -> None:
        connection.add_on_close_callback(callback)
        if connection.is_open:
            connection.close()

    return await told(end)


@pytest_asyncio.fixture
async def connection(server: ServerProcess) -> AsyncIterator[AsyncioConnection]:
    opened = await connect(server)
    yield opened
    if not opened.is_closed:
        await close(opened)


async def channel_of(connection: AsyncioConnection) -> Any:
    return await told(lambda callback: connection.channel(on_open_callback=callback))


async def queue_of(channel: Any, **options: Any) -> str:
    declared = await told(lambda callback: channel.queue_declare("", exclusive=True, callback=callback, **options))
    return str(declared.method.queue)


async def consume(channel: Any, queue: str, **options: Any) -> asyncio.Queue[tuple[Any, Any, bytes]]:
    got: asyncio.Queue[tuple[Any, Any, bytes]] = asyncio.Queue()
    await told(
        lambda callback: channel.basic_consume(
            queue, lambda _channel, *message: got.put_nowait(message), callback=callback, **options
        )
    )
    return got


async def take(got: asyncio.Queue[tuple[Any, Any, bytes]], count: int) -> list[tuple[Any, Any, bytes]]:
    async with asyncio.timeout(PATIENCE_SEC):
        return [await got.get() for _ in range(count)]


async def test_a_consumer_with_prefetch_gets_all_in_order(connection: AsyncioConnection) -> None:
    channel = await channel_of(connection)
    queue = await queue_of(channel)
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    await told(lambda callback: channel.basic_qos(prefetch_count=7, callback=callback))
    got = await consume(channel, queue)
    bodies = []
    for _ in range(100):
        ((method, _, body),) = await take(got, 1)
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
    assert bodies == [b"%d" % number for number in range(100)]


async def test_every_publish_is_confirmed(connection: AsyncioConnection) -> None:
    channel = await channel_of(connection)
    arguments = {"x-max-length": 90, "x-overflow": "reject-publish"}
    queue = await queue_of(channel, arguments=arguments)
    acked: set[int] = set()
    nacked: set[int] = set()
    done = asyncio.Event()

    def confirmed(frame: Any) -> None:
        named = acked if isinstance(frame.method, pika.spec.Basic.Ack) else nacked
        tag = frame.method.delivery_tag
        named.update(set(range(1, tag + 1)) - acked - nacked if frame.method.multiple else {tag})
        if len(acked | nacked) == 100:
            done.set()

    await told(lambda callback: channel.confirm_delivery(confirmed, callback))
    for _ in range(100):
        channel.basic_publish("", queue, b"x")
    async with asyncio.timeout(PATIENCE_SEC):
        await done.wait()
    assert (acked, nacked) == (set(range(1, 91)), set(range(91, 101)))


async def test_a_large_body_leaves_room_for_other_channels(connection: AsyncioConnection) -> None:
    large, small = await channel_of(connection), await channel_of(connection)
    queue = await queue_of(large)
    body = os.urandom(3_000_000)
    large.basic_publish("", queue, body)
    small.basic_publish("", queue, b"small")
    got = await take(await consume(small, queue, auto_ack=True), 2)
    assert [each[2] for each in got] == [body, b"small"]


async def test_returned_messages(connection: AsyncioConnection) -> None:
    channel = await channel_of(connection)

    def publish(callback: Callable[..., None]) -> None:
        channel.add_on_return_callback(callback)
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)

    _, method, _, body = await told(publish)
    assert (method.reply_code, method.reply_text, body) == (312, "NO_ROUTE", b"lost")


async def test_an_exchange_bound_to_an_exchange(connection: AsyncioConnection) -> None:
    channel = await channel_of(connection)
    queue = await queue_of(channel)
    for name, kind in (("outer", ExchangeType.topic), ("inner", ExchangeType.fanout)):
        await told(lambda done, n=name, k=kind: channel.exchange_declare(n, k, auto_delete=True, callback=done))
    await told(lambda done: channel.exchange_bind("inner", "outer", "a.*", callback=done))
    await told(lambda done: channel.queue_bind(queue, "inner", callback=done))
    for key in ("a.b", "b.a", "a.c"):
        channel.basic_publish("outer", key, key.encode())
    got = await take(await consume(channel, queue, auto_ack=True), 2)
    assert [each[2] for each in got] == [b"a.b", b"a.c"]


async def test_a_deleted_queue_cancels_its_consumers(connection: AsyncioConnection) -> None:
    channel, other = await channel_of(connection), await channel_of(connection)
    queue = await queue_of(channel)
    await consume(channel, queue)

    def delete(callback: Callable[..., None]) -> None:
        channel.add_on_cancel_callback(callback)
        other.queue_delete(queue)

    cancelled = await told(delete)
    assert isinstance(cancelled.method, pika.spec.Basic.Cancel)


async def test_an_error_closes_its_channel_and_no_other(connection: AsyncioConnection) -> None:
    broken, other = await channel_of(connection), await channel_of(connection)

    def fail(callback: Callable[..., None]) -> None:
        broken.add_on_close_callback(callback)
        broken.queue_declare("nowhere", passive=True)

    _, error = await told(fail)
    assert (error.reply_code, error.reply_text) == (404, "NOT_FOUND - no queue 'nowhere' in vhost '/'")
    assert (await queue_of(other)).startswith("amq.gen-")


async def test_an_error_of_the_connection_ends_it(connection: AsyncioConnection) -> None:
    channel = await channel_of(connection)

    def fail(callback: Callable[..., None]) -> None:
        connection.add_on_close_callback(callback)
        channel.exchange_declare("x", "square")

    _, error = await told(fail)
    assert (error.reply_code, connection.is_closed) == (503, True)


async def test_a_wrong_password(server: ServerProcess) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        await connect(server, credentials=pika.PlainCredentials("guest", "wrong"))

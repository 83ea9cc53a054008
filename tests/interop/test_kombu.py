"""kombu, and py-amqp under it, against a real server process."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import amqp.exceptions
import pytest
from kombu.common import Broadcast
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer, Producer
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from tests.interop.server import ServerProcess

PATIENCE_SEC = 20


def connect(server: ServerProcess, **options: Any) -> Connection:
    return Connection(f"amqp://guest:guest@127.0.0.1:{server.amqp}//", **options)


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with connect(server, transport_options={"confirm_publish": True}) as opened:
        yield opened


def take(connection: Connection, queue: Queue, count: int) -> list[Any]:
    """Consume and ack `count` messages."""
    got: list[Any] = []

    def received(message: Any) -> None:
        message.ack()
        got.append(message)

    with connection.channel() as channel, Consumer(channel, [queue], on_message=received):
        while len(got) < count:
            connection.drain_events(timeout=PATIENCE_SEC)
    return got


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_payloads(connection: Connection, serializer: str, compression: str | None) -> None:
    queue = Queue("payloads", Exchange("payloads", "direct", durable=False), "payload", auto_delete=True)
    sent = {"list": [1, 2.5, "three"], "text": "ä" * 10_000}
    producer = Producer(connection, serializer=serializer)
    producer.publish(sent, exchange=queue.exchange, routing_key="payload", declare=[queue], compression=compression)
    (got,) = take(connection, queue, 1)
    got.accept = {got.content_type}
    assert got.decode() == sent


def test_a_simple_queue(connection: Connection) -> None:
    with connection.SimpleQueue("simple") as queue:
        for number in range(10):
            queue.put({"number": number})
        got = []
        for _ in range(10):
            message = queue.get(timeout=PATIENCE_SEC)
            got.append(message.payload["number"])
            message.ack()
        assert got == list(range(10))
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_topics(connection: Connection) -> None:
    exchange = Exchange("kombu-events", "topic", durable=False, auto_delete=True)
    queue = Queue("kombu-users", exchange, "user.#", exclusive=True)(connection.default_channel)
    queue.declare()
    producer = Producer(connection, exchange)
    for key in ("user.created", "order.created", "user.1.deleted"):
        producer.publish(key, routing_key=key)
    assert [each.payload for each in take(connection, queue, 2)] == ["user.created", "user.1.deleted"]


def test_a_broadcast_reaches_all(connection: Connection, server: ServerProcess) -> None:
    with connect(server) as other:
        queues = [Broadcast("everyone")(each.default_channel) for each in (connection, other)]
        for queue in queues:
            queue.declare()
        Producer(connection, Exchange("everyone", "fanout")).publish("hello")
        assert [take(each, queue, 1)[0].payload for each, queue in zip((connection, other), queues, strict=True)] == [
            "hello",
            "hello",
        ]


def test_an_unroutable_message_comes_back(connection: Connection) -> None:
    returned: list[Any] = []
    producer = Producer(
        connection, on_return=lambda error, exchange, key, message: returned.append((error.reply_code, key))
    )
    producer.publish("lost", routing_key="nowhere", mandatory=True)
    assert returned == [(312, "nowhere")]


def test_a_full_queue_refuses(connection: Connection) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = Queue("", exclusive=True, queue_arguments=arguments)(connection.default_channel)
    queue.declare()
    producer = Producer(connection)
    producer.publish("fits", routing_key=queue.name)
    with pytest.raises(amqp.exceptions.MessageNacked):
        producer.publish("does not", routing_key=queue.name)


def test_requeue_reject_and_recover(connection: Connection) -> None:
    queue = Queue("", exclusive=True)(connection.default_channel)
    queue.declare()
    Producer(connection).publish("again", routing_key=queue.name)
    queue.get().requeue()
    second = queue.get()
    assert second.delivery_info["redelivered"]
    connection.default_channel.basic_recover(requeue=True)
    third = queue.get()
    assert third.payload == "again"
    third.reject()
    assert queue.get() is None


def test_a_missing_queue(connection: Connection) -> None:
    with pytest.raises(amqp.exceptions.NotFound, match="no queue 'nowhere' in vhost '/'"):
        Queue("nowhere")(connection.channel()).queue_declare(passive=True)


def test_a_different_redeclaration_is_refused(connection: Connection) -> None:
    Queue("passing", exclusive=True)(connection.channel()).queue_declare()
    with pytest.raises(amqp.exceptions.PreconditionFailed, match="inequivalent arg 'x-max-priority'"):
        Queue("passing", exclusive=True, max_priority=5)(connection.channel()).queue_declare()


def test_a_wrong_password(server: ServerProcess) -> None:
    with pytest.raises(amqp.exceptions.AccessRefused):
        Connection(f"amqp://guest:wrong@127.0.0.1:{server.amqp}//").connect()


def test_heartbeats_keep_a_silent_connection(server: ServerProcess) -> None:
    with connect(server, heartbeat=2) as connection:
        connection.connect()
        # longer than either side waits for a silent peer
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.2)
            connection.heartbeat_check()
        assert connection.default_channel.queue_declare(exclusive=True).message_count == 0


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_native_delay_passes_a_queue_for_each_bit(connection: Connection, queue_type: str) -> None:
    declare_native_delayed_delivery_exchanges_and_queues(connection, queue_type, prefix=queue_type)
    queue = Queue(f"{queue_type}-due", Exchange(f"{queue_type}-due", "topic"), routing_key="due")
    queue(connection.default_channel).declare()
    bind_queue_to_native_delayed_delivery_exchange(connection, queue, prefix=queue_type)
    Producer(connection).publish(
        "late",
        exchange=f"{queue_type}_celery_delayed_27",
        routing_key=calculate_routing_key(3, "due"),
        delivery_mode="persistent",
    )
    (got,) = take(connection, queue, 1)
    assert [(death["queue"], death["reason"]) for death in got.headers["x-death"]] == [
        (f"{queue_type}_celery_delayed_0", "expired"),
        (f"{queue_type}_celery_delayed_1", "expired"),
    ]

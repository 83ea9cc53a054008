"""What RabbitMQ adds to AMQP 0-9-1, as programs written with pika use it, against a real server process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.interop.server import ServerProcess

PATIENCE_SEC = 20
Connect = Callable[[], Any]


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    opened: list[Any] = []

    def begin() -> Any:
        opened.append(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp)))
        return opened[-1]

    yield begin
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> Any:
    return connect().channel()


def queue_of(channel: Any, **arguments: Any) -> str:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return str(channel.queue_declare("", exclusive=True, arguments=named).method.queue)


def take(channel: Any, queue: str, number: int) -> list[tuple[Any, Any, bytes]]:
    got: list[tuple[Any, Any, bytes]] = []
    for message in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE_SEC):
        assert message[0] is not None, f"only {len(got)} of {number} messages came"
        got.append(message)
        if len(got) == number:
            break
    channel.cancel()
    return got


def test_an_alternate_exchange(channel: Any) -> None:
    queue = queue_of(channel)
    channel.exchange_declare("unrouted", "fanout", auto_delete=True)
    channel.exchange_declare("routed", "direct", auto_delete=True, arguments={"alternate-exchange": "unrouted"})
    channel.queue_bind(queue, "unrouted")
    channel.queue_bind(queue_of(channel), "routed", "known")
    channel.basic_publish("routed", "known", b"1")
    channel.basic_publish("routed", "unknown", b"2")
    assert [body for _, _, body in take(channel, queue, 1)] == [b"2"]
    channel.exchange_delete("routed")


def test_one_consumer_at_a_time_and_the_next_when_it_leaves(channel: Any, connect: Connect) -> None:
    channel.queue_declare("single", auto_delete=True, arguments={"x-single-active-consumer": True})
    got: list[tuple[str, bytes]] = []
    consumers = {name: connect().channel() for name in ("first", "second")}
    for name, consumer in consumers.items():
        consumer.basic_consume("single", lambda _c, _m, _p, body, n=name: got.append((n, body)), auto_ack=True)
    for body in (b"1", b"2"):
        channel.basic_publish("", "single", body)
    while len(got) < 2:
        consumers["first"].connection.process_data_events(time_limit=PATIENCE_SEC)
    consumers["first"].close()
    channel.basic_publish("", "single", b"3")
    while len(got) < 3:
        consumers["second"].connection.process_data_events(time_limit=PATIENCE_SEC)
    assert got == [("first", b"1"), ("first", b"2"), ("second", b"3")]


def test_a_consumer_of_higher_priority_goes_first(channel: Any, connect: Connect) -> None:
    queue = channel.queue_declare("preferred", auto_delete=True).method.queue
    got: list[str] = []
    for priority in (1, 9):
        channel.basic_consume(
            queue,
            lambda _c, _m, _p, _b, p=priority: got.append(str(p)),
            auto_ack=True,
            arguments={"x-priority": priority},
        )
    publisher = connect().channel()
    for _ in range(5):
        publisher.basic_publish("", queue, b"x")
    while len(got) < 5:
        channel.connection.process_data_events(time_limit=PATIENCE_SEC)
    assert got == ["9"] * 5


def test_a_delivery_limit_ends_in_a_dead_letter(channel: Any) -> None:
    dead = queue_of(channel)
    arguments = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare("limited", durable=True, arguments=arguments | {"x-queue-type": "quorum"})
    channel.confirm_delivery()
    channel.basic_publish("", "limited", b"poison")
    for _ in range(3):
        method, _, _ = channel.basic_get("limited")
        channel.basic_nack(method.delivery_tag)
    ((_, properties, body),) = take(channel, dead, 1)
    assert (body, properties.headers["x-first-death-reason"]) == (b"poison", "delivery_limit")
    channel.queue_delete("limited")


def test_an_unused_queue_expires(channel: Any) -> None:
    channel.queue_declare("brief", arguments={"x-expires": 200})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        for _ in range(10 * PATIENCE_SEC):
            # a binding does not count as a use
            channel.queue_bind("brief", "amq.direct", "any")
            channel.connection.process_data_events(time_limit=0.1)
    assert caught.value.reply_code == 404

"""What RabbitMQ adds to AMQP 0-9-1, as programs with pika and aio-pika use it, against a real server process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import aio_pika
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


def count(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def take(channel: Any, queue: str, number: int) -> list[tuple[Any, Any, bytes]]:
    got: list[tuple[Any, Any, bytes]] = []
    for message in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE_SEC):
        assert message[0] is not None, f"only {len(got)} of {number} messages came"
        got.append(message)
        if len(got) == number:
            break
    channel.cancel()
    return got


def test_a_transaction_is_committed(channel: Any) -> None:
    source, target = queue_of(channel), queue_of(channel)
    channel.basic_publish("", source, b"in")
    method, _, _ = channel.basic_get(source)
    channel.tx_select()
    channel.basic_publish("", target, b"out")
    channel.basic_ack(method.delivery_tag)
    assert count(channel, target) == 0
    channel.tx_commit()
    assert count(channel, target) == 1
    channel.close()


def test_a_transaction_is_rolled_back(channel: Any, connect: Connect) -> None:
    channel.queue_declare("half-done", auto_delete=True)
    channel.basic_publish("", "half-done", b"in")
    other = connect().channel()
    method, _, _ = other.basic_get("half-done")
    other.tx_select()
    other.basic_publish("", "half-done", b"never")
    other.basic_ack(method.delivery_tag)
    other.tx_rollback()
    other.close()
    assert [body for _, _, body in take(channel, "half-done", 1)] == [b"in"]


async def test_a_transaction_of_aio_pika(server: ServerProcess) -> None:
    async with await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{server.amqp}/") as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(exclusive=True)
        for body, ends in ((b"kept", "commit"), (b"dropped", "rollback")):
            transaction = channel.transaction()
            await transaction.select()
            await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
            await getattr(transaction, ends)()
        message = await queue.get(timeout=PATIENCE_SEC, no_ack=True)
        assert (message.body, message.message_count) == (b"kept", 0)


def test_direct_reply_to(channel: Any, connect: Connect) -> None:
    client = connect().channel()
    answers: list[bytes] = []
    client.basic_consume("amq.rabbitmq.reply-to", lambda _c, _m, _p, body: answers.append(body), auto_ack=True)
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    channel.queue_declare("requests", auto_delete=True)
    client.basic_publish("", "requests", b"what time is it?", properties)
    ((_, got, _),) = take(channel, "requests", 1)
    channel.basic_publish("", got.reply_to, b"late", pika.BasicProperties(correlation_id=got.correlation_id))
    while not answers:
        client.connection.process_data_events(time_limit=PATIENCE_SEC)
    assert answers == [b"late"]


def test_copies_to_other_keys(channel: Any) -> None:
    to, copy, blind = queue_of(channel), queue_of(channel), queue_of(channel)
    channel.basic_publish("", to, b"news", pika.BasicProperties(headers={"CC": [copy], "BCC": [blind]}))
    for queue in (to, copy, blind):
        ((method, properties, body),) = take(channel, queue, 1)
        assert (method.routing_key, properties.headers, body) == (to, {"CC": [copy]}, b"news")


def test_an_exchange_that_delays(channel: Any) -> None:
    queue = queue_of(channel)
    channel.exchange_declare("later", "x-delayed-message", auto_delete=True, arguments={"x-delayed-type": "direct"})
    channel.queue_bind(queue, "later", "key")
    for delay in (1200, 500):
        channel.basic_publish("later", "key", b"%d" % delay, pika.BasicProperties(headers={"x-delay": delay}))
    channel.basic_publish("later", "key", b"now")
    assert [body for _, _, body in take(channel, queue, 3)] == [b"now", b"500", b"1200"]


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

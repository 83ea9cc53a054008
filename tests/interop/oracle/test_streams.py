"""Streams as queues of type `stream`: declaring, consuming from a place, and what they do not do."""

from __future__ import annotations

from tests.interop.oracle.scenario import scenario
from tests.interop.oracle.script import Channel, Script

STREAM = {"x-queue-type": "stream"}


def filled(channel: Channel, bodies: str) -> None:
    channel.queue("s", STREAM, durable=True)
    channel.call("confirm.select")
    for body in bodies:
        channel.publish(body, "s")
    channel.confirmed()


def reading(s: Script, offset: object, count: int, prefetch: int = 10) -> Channel:
    channel = s.channel()
    channel.call("basic.qos", count=prefetch)
    channel.consume("s", "c", {"x-stream-offset": offset})
    for _ in range(count):
        channel.events(1)
    return channel


@scenario
def test_stream_declare_and_again(s: Script) -> None:
    channel = s.channel()
    channel.queue("s", STREAM, durable=True)
    channel.queue("s", STREAM, durable=True)
    channel.queue("s", durable=True, passive=True)
    channel.call("queue.delete", queue="s")


@scenario
def test_stream_declare_refused(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("s", STREAM)
    connection.channel().queue("s", STREAM, durable=True, auto_delete=True)
    connection.channel().queue("s", STREAM, durable=True, exclusive=True)
    connection.channel().queue("s", {**STREAM, "x-max-length-bytes": -1}, durable=True)
    connection.channel().queue("s", {**STREAM, "x-max-length-bytes": "much"}, durable=True)


@scenario
def test_stream_redeclared_otherwise(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("s", {**STREAM, "x-max-age": "7D"}, durable=True)
    connection.channel().queue("s", durable=True)
    connection.channel().queue("s", {**STREAM, "x-max-age": "8D"}, durable=True)
    connection.channel().queue("s", STREAM, durable=True)
    connection.channel().queue("q", durable=True)
    connection.channel().queue("q", STREAM, durable=True)


@scenario
def test_stream_read_from_the_first(s: Script) -> None:
    filled(s.channel(), "abc")
    channel = reading(s, "first", 3)
    channel.ack(3, multiple=True)
    again = reading(s, "first", 3)
    again.close()


@scenario
def test_stream_read_from_an_offset(s: Script) -> None:
    filled(s.channel(), "abcde")
    reading(s, 2, 3)


@scenario
def test_stream_read_what_comes_next(s: Script) -> None:
    writer = s.channel()
    filled(writer, "abc")
    channel = s.channel()
    channel.call("basic.qos", count=10)
    channel.consume("s", "c")
    writer.publish("d", "s")
    writer.confirmed()
    channel.events(1)


@scenario
def test_stream_prefetch_is_the_pace(s: Script) -> None:
    filled(s.channel(), "abcde")
    channel = reading(s, "first", 2, prefetch=2)
    channel.ack(1)
    channel.events(1)
    channel.ack(3, multiple=True)
    channel.events(2)


@scenario
def test_stream_consume_refused(s: Script) -> None:
    filled(s.channel(), "a")
    connection = s.connect()
    connection.channel().consume("s", "c")
    channel = connection.channel()
    channel.call("basic.qos", count=1)
    channel.consume("s", "c", exclusive=True)


@scenario
def test_stream_consume_without_acks(s: Script) -> None:
    filled(s.channel(), "a")
    channel = s.channel()
    channel.call("basic.qos", count=1)
    channel.consume("s", "c", {"x-stream-offset": "first"}, no_ack=True)


@scenario
def test_stream_get(s: Script) -> None:
    filled(s.channel(), "a")
    s.channel().get("s")


@scenario
def test_stream_purge(s: Script) -> None:
    filled(s.channel(), "a")
    s.channel().call("queue.purge", queue="s")


@scenario
def test_stream_bound_to_an_exchange(s: Script) -> None:
    channel = s.channel()
    channel.queue("s", STREAM, durable=True)
    channel.bind("s", "amq.topic", "a.*")
    channel.call("confirm.select")
    channel.publish("1", "a.b", exchange="amq.topic")
    channel.publish("2", "b", exchange="amq.topic")
    channel.confirmed()
    reading(s, "first", 1)
    channel.call("queue.unbind", queue="s", exchange="amq.topic", key="a.*")


@scenario
def test_stream_deleted_under_a_consumer(s: Script) -> None:
    writer = s.channel()
    filled(writer, "a")
    channel = reading(s, "first", 1)
    writer.call("queue.delete", queue="s")
    channel.events(1)


@scenario
def test_stream_cancel(s: Script) -> None:
    filled(s.channel(), "ab")
    channel = reading(s, "first", 1, prefetch=1)
    channel.call("basic.cancel", tag="c")
    channel.ack(1)
    channel.close()

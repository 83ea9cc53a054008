"""pika's blocking connection against a real server process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from rookery.embed import Broker
from rookery.server import attach_thread
from tests.interop.server import ServerProcess, serving

PATIENCE_SEC = 20


Connect = Callable[..., Any]


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    opened: list[Any] = []

    def begin(**options: Any) -> Any:
        opened.append(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp, **options)))
        return opened[-1]

    yield begin
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> Any:
    return connect().channel()


def take(channel: Any, queue: str, count: int, **options: Any) -> list[tuple[Any, Any, bytes]]:
    """Consume `count` messages, without settling them."""
    got: list[tuple[Any, Any, bytes]] = []
    for message in channel.consume(queue, inactivity_timeout=PATIENCE_SEC, **options):
        assert message[0] is not None, f"only {len(got)} of {count} messages came"
        got.append(message)
        if len(got) == count:
            break
    return got


def test_publish_consume_ack(channel: Any) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    for n in range(1000):
        channel.basic_publish(
            "", queue, b"%d" % n, pika.BasicProperties(message_id=str(n), headers={"n": n, "t": ["a", 15]})
        )
    got = take(channel, queue, 1000)
    assert [body for _, _, body in got] == [b"%d" % n for n in range(1000)]
    assert [(each[1].message_id, each[1].headers["n"]) for each in got] == [(str(n), n) for n in range(1000)]
    assert got[0][1].headers["t"] == ["a", 15]
    channel.basic_ack(got[499][0].delivery_tag, multiple=True)
    for method, _, _ in got[500:]:
        channel.basic_ack(method.delivery_tag)
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_nack_and_reject(channel: Any) -> None:
    channel.queue_declare("dead", auto_delete=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    first, second, third = take(channel, queue, 3)
    channel.basic_nack(first[0].delivery_tag, requeue=True)
    channel.basic_reject(second[0].delivery_tag, requeue=False)
    channel.basic_ack(third[0].delivery_tag)
    ((method, _, body),) = take(channel, queue, 1)
    assert (body, method.redelivered) == (b"1", True)
    channel.basic_ack(method.delivery_tag)
    channel.cancel()
    method, properties, body = channel.basic_get("dead", auto_ack=True)
    assert body == b"2"
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", queue, 1)
    channel.queue_delete("dead")


def test_confirms_and_mandatory(channel: Any) -> None:
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for _ in range(100):
        channel.basic_publish("", queue, b"x", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    assert caught.value.messages[0].body == b"lost"
    assert channel.queue_declare(queue, passive=True).method.message_count == 100
    full = channel.queue_declare(
        "", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    ).method.queue
    channel.basic_publish("", full, b"fits")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", full, b"does not")


@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_large_bodies(connect: Connect, frame_max: int) -> None:
    channel = connect(frame_max=frame_max).channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    sizes = (0, 1, 4088, 4089, 131064, 131065, 1_000_000)
    sent = [os.urandom(size) for size in sizes]
    for body in sent:
        channel.basic_publish("", queue, body)
    assert [body for _, _, body in take(channel, queue, len(sizes), auto_ack=True)] == sent


def test_large_bodies_between_different_frame_sizes(connect: Connect) -> None:
    small, large = connect(frame_max=4096).channel(), connect().channel()
    small.queue_declare("between", auto_delete=True)
    body = os.urandom(300_000)
    large.basic_publish("", "between", body)
    assert take(small, "between", 1, auto_ack=True)[0][2] == body
    small.basic_publish("", "between", body)
    small.cancel()
    large.queue_declare("between", auto_delete=True)
    large.queue_delete("between")


def test_prefetch(channel: Any, connect: Connect) -> None:
    queue = channel.queue_declare("shared", auto_delete=True).method.queue
    for n in range(10):
        channel.basic_publish("", queue, b"%d" % n)
    other = connect().channel()
    other.basic_qos(prefetch_count=3)
    got: list[Any] = []
    other.basic_consume(queue, lambda _c, method, _p, body: got.append((method.delivery_tag, body)))
    while len(got) < 3:
        other.connection.process_data_events(time_limit=PATIENCE_SEC)
    assert [body for _, body in got] == [b"0", b"1", b"2"]
    assert channel.queue_declare(queue, passive=True).method.message_count == 7
    other.basic_ack(got[0][0])
    while len(got) < 4:
        other.connection.process_data_events(time_limit=PATIENCE_SEC)
    assert [body for _, body in got] == [b"0", b"1", b"2", b"3"]


def test_ttl_and_dead_letters(channel: Any) -> None:
    dead = channel.queue_declare("", exclusive=True).method.queue
    arguments = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    channel.basic_publish("", queue, b"long")
    channel.basic_publish("", queue, b"short", pika.BasicProperties(expiration="50"))
    # the short one does not wait behind the long one
    ((_, properties, body),) = take(channel, dead, 1, auto_ack=True)
    assert body == b"short"
    assert properties.expiration is None
    assert properties.headers["x-first-death-reason"] == "expired"
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_priorities(channel: Any) -> None:
    queue = channel.queue_declare("", exclusive=True, arguments={"x-max-priority": 5}).method.queue
    for priority in (0, 9, 3, 5):
        channel.basic_publish("", queue, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert [body for _, _, body in take(channel, queue, 4, auto_ack=True)] == [b"9", b"5", b"3", b"0"]


def test_exchanges(channel: Any) -> None:
    channel.exchange_declare("events", "topic", auto_delete=True)
    channel.exchange_declare("by-header", "headers", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "events", "user.*.created")
    channel.queue_bind(queue, "by-header", "", {"x-match": "all", "kind": "b"})
    for key in ("user.1.created", "user.1.deleted", "user.created"):
        channel.basic_publish("events", key, key.encode())
    for kind in ("a", "b"):
        channel.basic_publish("by-header", "", kind.encode(), pika.BasicProperties(headers={"kind": kind}))
    got = take(channel, queue, 2, auto_ack=True)
    assert [(each[0].exchange, each[2]) for each in got] == [("events", b"user.1.created"), ("by-header", b"b")]


CONSUMER = """
    import sys, pika
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    def received(channel, method, properties, body):
        print(body.decode(), flush=True)
    channel.basic_consume("killed", received)
    channel.start_consuming()
"""


def test_what_a_killed_consumer_held_is_redelivered(server: ServerProcess, channel: Any) -> None:
    channel.queue_declare("killed")
    for n in range(8):
        channel.basic_publish("", "killed", b"%d" % n)
    program = [sys.executable, "-c", textwrap.dedent(CONSUMER), str(server.amqp)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert [victim.stdout.readline().strip() for _ in range(5)] == list("01234")
        victim.kill()
    got = take(channel, "killed", 8, auto_ack=True)
    assert sorted(body for _, _, body in got) == [b"%d" % n for n in range(8)]
    assert {body for method, _, body in got if method.redelivered} == {b"0", b"1", b"2", b"3", b"4"}
    channel.cancel()
    channel.queue_delete("killed")


def test_errors_have_rabbitmqs_words(connect: Connect) -> None:
    connection = connect()
    for act, code, text in (
        (lambda c: c.queue_declare("none", passive=True), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.basic_get("none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.exchange_declare("none", passive=True), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (
            lambda c: c.queue_declare("amq.mine"),
            403,
            "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
    ):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            act(connection.channel())
        assert (caught.value.reply_code, caught.value.reply_text) == (code, text)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as hard:
        connection.channel().exchange_declare("x", "square")
    assert hard.value.reply_code == 503


@pytest.mark.parametrize(
    ("credentials", "vhost", "error"),
    [
        (("guest", "wrong"), "/", pika.exceptions.ProbableAuthenticationError),
        (("guest", "guest"), "nowhere", pika.exceptions.ProbableAccessDeniedError),
    ],
)
def test_refused_connections(
    connect: Connect, credentials: tuple[str, str], vhost: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        connect(credentials=pika.PlainCredentials(*credentials), virtual_host=vhost)


def test_many_connections_and_channels(connect: Connect) -> None:
    connections = [connect() for _ in range(30)]
    queue = connections[0].channel().queue_declare("many", auto_delete=True).method.queue
    for connection in connections:
        for _ in range(5):
            connection.channel().basic_publish("", queue, b"x")
    got = take(connections[0].channel(), queue, 150, auto_ack=True)
    assert len(got) == 150


def test_health(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/health") as answer:
        assert answer.read() == b'{"status":"ok"}'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping(tmp_path: Path, number: int) -> None:
    with serving(tmp_path, "--shutdown-sec", "30") as server:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))
        server.signal(number)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            connection.process_data_events(time_limit=PATIENCE_SEC)
        assert caught.value.reply_code == 320
        assert server.wait() == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-sec", "600") as server:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))
        assert connection.is_open
        server.signal(signal.SIGTERM)
        server.until("stopping")
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(time_limit=PATIENCE_SEC)


def test_memory_limit(tmp_path: Path) -> None:
    with serving(tmp_path, "--store-backend", "memory", "--memory-max-bytes", "1MiB") as server:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))
        channel = connection.channel()
        channel.queue_declare("q")
        told: list[str] = []
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        published = 0
        while not told:
            channel.basic_publish("", "q", bytes(100_000))
            published += 1
            connection.process_data_events(0.1)
        assert told == ["low on memory"]
        # who consumes is not held, and makes room
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp)) as other:
            taking = other.channel()
            taken = 0
            while taken < published:
                taken += taking.basic_get("q", auto_ack=True)[0] is not None
        while len(told) < 2:
            connection.process_data_events(0.1)
        assert told == ["low on memory", "unblocked"]
        connection.close()


def test_what_was_confirmed_survives_the_death_of_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        for n in range(50):
            channel.basic_publish("", "kept", b"%d" % n, pika.BasicProperties(delivery_mode=2))
        server.signal(signal.SIGKILL)
        server.wait()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(time_limit=PATIENCE_SEC)
    with serving(tmp_path) as server:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))
        got = take(connection.channel(), "kept", 50, auto_ack=True)
        assert [body for _, _, body in got] == [b"%d" % n for n in range(50)]
        connection.close()


def test_what_pika_was_confirmed_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with Broker(enable_persistence=True, persistence_path=folder) as broker:
        attached = attach_thread(broker, amqp=0)
        port = int(attached.amqp.rpartition(":")[2])
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        for n in range(20):
            channel.basic_publish("", "kept", b"%d" % n, pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "kept", b"passing")
        connection.close()
        attached.close()
    with Broker(enable_persistence=True, persistence_path=folder) as broker:
        got = broker.queue("kept").claim(100)
        assert [delivery.body for delivery in got] == [b"%d" % n for n in range(20)]


@pytest.mark.row("S1-55")
def test_pika_and_an_embedded_broker() -> None:
    with Broker() as broker:
        attached = attach_thread(broker, amqp=0)
        inbox = broker.queue("inbox")
        outbox = broker.queue("outbox")
        port = int(attached.amqp.rpartition(":")[2])
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "inbox", b"from pika")
        (delivery,) = inbox.claim(1, wait_ms=PATIENCE_SEC * 1000)
        assert delivery.body == b"from pika"
        delivery.ack()
        got: list[bytes] = []
        channel.basic_consume("outbox", lambda _c, _m, _p, body: got.append(body), auto_ack=True)
        outbox.publish("from the program")
        while not got:
            connection.process_data_events(time_limit=PATIENCE_SEC)
        assert got == [b"from the program"]
        connection.close()
        attached.close()

"""What a user without all rights is refused, and how."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rookery import Broker
from rookery.core.access import Access, Rights
from rookery.server import attach_thread
from tests.interop.oracle.brokers import LIMITED, OWN, STRANGER
from tests.interop.oracle.scenario import Brokers, scenario
from tests.interop.oracle.script import Connection, Script


@pytest.fixture(scope="module")
def brokers(brokers: Brokers) -> Iterator[Brokers]:
    """RabbitMQ, and a Rookery that knows the same users."""
    access = Access(os.urandom)
    access.set_user(LIMITED, password=LIMITED, tenants={"default": Rights(configure=OWN, write=OWN, read=OWN)})
    access.set_user(STRANGER, password=STRANGER)
    with Broker() as broker:
        attached = attach_thread(broker, amqp=0, access=access)
        yield Brokers(rabbitmq=brokers.rabbitmq, rookery=int(attached.amqp.rpartition(":")[2]))
        attached.close()


def limited(s: Script) -> Connection:
    return s.connect(user=LIMITED, password=LIMITED)


@scenario
def test_own_names_may_be_used(s: Script) -> None:
    channel = limited(s).channel()
    channel.queue("mine")
    channel.exchange("mine.x", "fanout")
    channel.bind("mine", "mine.x")
    channel.publish("hello", "", "mine.x")
    channel.get("mine")
    channel.call("queue.purge", queue="mine")
    channel.call("queue.delete", queue="mine")
    channel.call("exchange.delete", exchange="mine.x")


@scenario
def test_right_to_configure(s: Script) -> None:
    owner = s.channel()
    owner.queue("theirs")
    owner.exchange("theirs.x")
    connection = limited(s)
    connection.channel().queue("theirs")
    connection.channel().queue("new")
    connection.channel().queue("")
    connection.channel().exchange("theirs.x")
    connection.channel().call("queue.delete", queue="theirs")
    connection.channel().call("exchange.delete", exchange="theirs.x")
    connection.channel().call("queue.declare", queue="theirs", passive=True)
    connection.channel().call("exchange.declare", exchange="theirs.x", passive=True)


@scenario
def test_right_to_write(s: Script) -> None:
    owner = s.channel()
    owner.queue("theirs")
    owner.exchange("theirs.x")
    connection = limited(s)
    connection.channel().exchange("mine.x")
    connection.channel().bind("theirs", "mine.x")
    connection.channel().call("queue.unbind", queue="theirs", exchange="mine.x")
    connection.channel().call("exchange.bind", destination="theirs.x", source="mine.x")
    for exchange in ("theirs.x", ""):
        channel = connection.channel()
        channel.publish("hello", "theirs", exchange)
        channel.events(1)


@scenario
def test_right_to_read(s: Script) -> None:
    owner = s.channel()
    owner.queue("theirs")
    owner.exchange("theirs.x")
    connection = limited(s)
    connection.channel().queue("mine")
    connection.channel().get("theirs")
    connection.channel().consume("theirs", "c")
    connection.channel().call("queue.purge", queue="theirs")
    connection.channel().bind("mine", "theirs.x")
    connection.channel().exchange("mine.x")
    connection.channel().call("exchange.bind", destination="mine.x", source="theirs.x")


@scenario
def test_rights_that_arguments_need(s: Script) -> None:
    connection = limited(s)
    connection.channel().queue("mine", {"x-dead-letter-exchange": "theirs.x"})
    connection.channel().queue("mine", {"x-dead-letter-exchange": "mine.x"})
    connection.channel().exchange("mine.x", "fanout", {"alternate-exchange": "theirs.x"})
    connection.channel().exchange("mine.x", "fanout", {"alternate-exchange": "mine.y"})


@scenario
def test_vhost_without_rights(s: Script) -> None:
    connection = s.socket()
    connection.greet()
    connection.start_ok(STRANGER, STRANGER)
    connection.tune_ok(2047, 131072, 0)
    connection.zero.call("connection.open", vhost="/")
    connection.end()


@scenario
def test_missing_names_without_rights(s: Script) -> None:
    connection = limited(s)
    connection.channel().get("missing")
    connection.channel().call("queue.delete", queue="missing")
    channel = connection.channel()
    channel.publish("hello", "", "missing")
    channel.events(1)
    connection.channel().bind("missing", "missing too")

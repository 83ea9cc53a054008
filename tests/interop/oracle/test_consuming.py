"""Consumers and their credit: deliveries, tags, prefetch, cancellation, one active consumer, priorities."""

from __future__ import annotations

from tests.interop.oracle.frames import Typed
from tests.interop.oracle.scenario import differs, scenario
from tests.interop.oracle.script import CAPABILITIES, Channel, Script


def filled(channel: Channel, queue: str, bodies: str) -> None:
    for body in bodies:
        channel.publish(body, queue)
    channel.until(queue, messages=len(bodies))


@scenario
def test_deliveries_in_order(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "abc")
    channel.consume("q", "c")
    channel.expect("basic.deliver", 3)
    channel.publish("d", "q")
    channel.expect("basic.deliver")
    channel.ack(4, multiple=True)
    channel.quiet("q")


@scenario
def test_consumer_tags(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.consume("q")
    channel.consume("q", "mine")
    connection.channel().consume("q", "mine")
    channel.consume("q", "mine")
    channel.events(1)
    channel.connection.end()


@scenario
def test_consume_what_is_not_there(s: Script) -> None:
    connection = s.connect()
    connection.channel().consume("missing", "c")
    connection.channel().get("missing")
    connection.channel().call("basic.cancel", tag="unknown")


@scenario
def test_exclusive_consumer(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.consume("q", "only", exclusive=True)
    connection.channel().consume("q", "second")
    connection.channel().consume("q", "third", exclusive=True)
    connection.channel().get("q")
    channel.call("basic.cancel", tag="only")
    other = connection.channel()
    other.consume("q", "second")
    connection.channel().consume("q", "third", exclusive=True)


@scenario
def test_consumer_without_acknowledgement(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "ab")
    channel.consume("q", "c", no_ack=True)
    channel.expect("basic.deliver", 2)
    channel.quiet("q")
    channel.ack(1)
    channel.events(1)


@scenario
def test_no_local_is_passed_over(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.consume("q", "c", no_local=True, no_ack=True)
    channel.publish("mine", "q")
    channel.expect("basic.deliver")


@scenario
def test_round_robin(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.consume("q", "one", no_ack=True)
    channel.consume("q", "two", no_ack=True)
    channel.consume("q", "three", no_ack=True)
    for body in "abcdefg":
        channel.publish(body, "q")
    channel.expect("basic.deliver", 7)


@scenario
def test_cancel(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.consume("q", "c")
    channel.publish("held", "q")
    channel.expect("basic.deliver")
    channel.call("basic.cancel", tag="c")
    channel.publish("waits", "q")
    channel.quiet("q")
    channel.ack(1)
    channel.quiet("q")
    channel.get_all("q")


@scenario
def test_cancel_notification(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.consume("q", "c")
    channel.publish("held", "q")
    channel.expect("basic.deliver")
    connection.channel().call("queue.delete", queue="q")
    channel.expect("basic.cancel")
    channel.ack(1)
    channel.queue("q")
    channel.consume("q", "c")


@scenario
def test_cancel_notification_on_the_deleting_channel(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.consume("q", "c")
    channel.send("queue.delete", queue="q")
    channel.expect("queue.delete-ok")
    channel.expect("basic.cancel")


@scenario
def test_no_cancel_notification_for_who_does_not_know_it(s: Script) -> None:
    channel = s.channel(capabilities={**CAPABILITIES, "consumer_cancel_notify": False})
    channel.queue("q")
    channel.consume("q", "c")
    channel.call("queue.delete", queue="q")
    channel.queue("q")
    channel.consume("q", "d")


@scenario
def test_prefetch_per_consumer(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "abcdefgh")
    channel.call("basic.qos", count=2)
    channel.consume("q", "one")
    channel.expect("basic.deliver", 2)
    channel.quiet("q")
    channel.call("basic.qos", count=3)
    channel.consume("q", "two")
    channel.expect("basic.deliver", 3)
    channel.quiet("q")
    channel.ack(1)
    channel.expect("basic.deliver")
    channel.quiet("q")


@scenario
def test_prefetch_shared_by_the_channel(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "abcdef")
    channel.call("basic.qos", count=2, shared=True)
    channel.consume("q", "one")
    channel.expect("basic.deliver", 2)
    channel.consume("q", "two")
    channel.quiet("q")
    channel.ack(2, multiple=True)
    channel.quiet("q")


@scenario
def test_prefetch_shared_raised_and_lifted(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "abcdef")
    channel.call("basic.qos", count=1, shared=True)
    channel.consume("q", "c")
    channel.expect("basic.deliver")
    channel.call("basic.qos", count=3, shared=True)
    channel.expect("basic.deliver", 2)
    channel.quiet("q")
    channel.call("basic.qos", count=0, shared=True)
    channel.expect("basic.deliver", 3)


@scenario
def test_prefetch_both_ways(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.queue("r")
    filled(channel, "q", "abcdef")
    filled(channel, "r", "uvwxyz")
    channel.call("basic.qos", count=2)
    channel.call("basic.qos", count=3, shared=True)
    channel.consume("q", "one")
    channel.expect("basic.deliver", 2)
    channel.consume("r", "two")
    channel.expect("basic.deliver", 1)
    channel.quiet("q", "r")


@differs(
    "prefetch-kept",
    rabbitmq="""
        A1 < basic.deliver tag='two' delivery=4 exchange='' key='r' {} b'v'
        A1 = queue='r' messages=4 consumers=1
    """,
    rookery="A1 = queue='r' messages=5 consumers=1",
)
def test_prefetch_per_consumer_after_shared(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.queue("r")
    filled(channel, "q", "abcdef")
    filled(channel, "r", "uvwxyz")
    channel.call("basic.qos", count=3, shared=True)
    channel.call("basic.qos", count=2)
    channel.consume("q", "one")
    channel.expect("basic.deliver", 2)
    channel.consume("r", "two")
    channel.expect("basic.deliver", 1)
    channel.quiet("q", "r")


@differs(
    "py-amqp",
    rabbitmq="""
        A1 < basic.deliver tag='two' delivery=2 exchange='' key='q' {} b'b'
        A1 = queue='q' messages=2 consumers=2
    """,
    rookery="""
        A1 = queue='q' messages=3 consumers=2
        A1 < basic.deliver tag='one' delivery=2 exchange='' key='q' {} b'b'
    """,
)
def test_prefetch_of_py_amqp(s: Script) -> None:
    channel = s.channel(product="py-amqp")
    channel.queue("q")
    filled(channel, "q", "abcd")
    channel.call("basic.qos", count=1)
    channel.consume("q", "one")
    channel.consume("q", "two")
    channel.quiet("q")
    channel.call("basic.qos", count=2)
    channel.quiet("q")


@scenario
def test_prefetch_does_not_hold_back_what_needs_no_ack(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "abc")
    channel.call("basic.qos", count=1)
    channel.consume("q", "c", no_ack=True)
    channel.expect("basic.deliver", 3)


@scenario
def test_get_is_not_counted_by_prefetch(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    filled(channel, "q", "abcd")
    channel.call("basic.qos", count=1)
    channel.get("q", no_ack=False)
    channel.get("q", no_ack=False)
    channel.consume("q", "c")
    channel.expect("basic.deliver")
    channel.quiet("q")
    channel.get("q", no_ack=False)


@scenario
def test_prefetch_size_is_not_implemented(s: Script) -> None:
    channel = s.channel()
    channel.call("basic.qos", size=1000, count=1)
    channel.connection.end()


@scenario
def test_single_active_consumer(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-single-active-consumer": True})
    channel.consume("q", "first")
    channel.consume("q", "second")
    channel.consume("q", "third")
    for body in "abc":
        channel.publish(body, "q")
    channel.expect("basic.deliver", 3)
    channel.ack(3, multiple=True)
    channel.call("basic.cancel", tag="first")
    channel.publish("d", "q")
    channel.expect("basic.deliver")
    channel.call("basic.cancel", tag="third")
    channel.publish("e", "q")
    channel.expect("basic.deliver")


@scenario
def test_single_active_consumer_follows_one_that_was_full(s: Script) -> None:
    connection = s.connect()
    first, second = connection.channel(), connection.channel()
    first.queue("q", {"x-single-active-consumer": True})
    for channel, tag in ((first, "first"), (second, "second")):
        channel.call("basic.qos", count=1)
        channel.consume("q", tag)
    for body in "abc":
        first.publish(body, "q")
    first.expect("basic.deliver")
    first.quiet("q")
    second.quiet("q")
    first.close()
    second.expect("basic.deliver")
    second.quiet("q")
    second.ack(1)
    second.expect("basic.deliver")


@scenario
def test_single_active_consumer_is_not_exclusive(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-single-active-consumer": True})
    channel.consume("q", "c", exclusive=True)


@scenario
def test_consumer_priorities(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.call("basic.qos", count=2)
    channel.consume("q", "low", {"x-priority": -5})
    channel.consume("q", "high", {"x-priority": 10})
    channel.consume("q", "plain")
    for body in "abcdef":
        channel.publish(body, "q")
    channel.expect("basic.deliver", 6)


@scenario
def test_consumer_priority_of_wrong_type(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    connection.channel().consume("q", "c", {"x-priority": "high"})
    connection.channel().consume("q", "d", {"x-priority": Typed("s", 3)})
    connection.channel().consume("q", "e", {"x-priority": True})


@scenario
def test_message_priorities(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-priority": 5})
    for priority in (0, 3, 5, 1, 3, 9, 255):
        channel.publish(f"at {priority}", "q", priority=priority)
    channel.publish("none", "q")
    channel.until("q", messages=8)
    channel.get_all("q")


@scenario
def test_message_priorities_of_what_comes_back(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-priority": 5})
    channel.publish("low", "q", priority=1)
    channel.publish("high", "q", priority=4)
    channel.until("q", messages=2)
    channel.get("q", no_ack=False)
    channel.get("q", no_ack=False)
    channel.publish("middle", "q", priority=2)
    channel.nack(2, multiple=True)
    channel.until("q", messages=3)
    channel.get_all("q")


@scenario
def test_message_priorities_without_a_maximum_are_passed_over(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    for priority in (0, 9, 5):
        channel.publish(f"at {priority}", "q", priority=priority)
    channel.until("q", messages=3)
    channel.get_all("q")


@scenario
def test_get(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.get("q")
    filled(channel, "q", "abc")
    channel.get("q", no_ack=False)
    channel.get("q", no_ack=True)
    channel.ack(1)
    channel.get("q", no_ack=False)
    channel.get("q")
    channel.ack(3)


@scenario
def test_delivery_tags_count_per_channel(s: Script) -> None:
    connection = s.connect()
    one, two = connection.channel(), connection.channel()
    one.queue("q")
    filled(one, "q", "abcd")
    one.get("q", no_ack=False)
    two.get("q", no_ack=False)
    one.get("q", no_ack=False)
    two.ack(1)
    two.ack(2)
    two.events(1)
    one.ack(2, multiple=True)
    one.quiet("q")

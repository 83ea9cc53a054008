"""Acknowledging, refusing and recovering deliveries, what comes back and in which order, and transactions."""

from __future__ import annotations

from tests.interop.oracle.scenario import scenario
from tests.interop.oracle.script import Channel, Script


def filled(channel: Channel, queue: str, bodies: str) -> None:
    for body in bodies:
        channel.publish(body, queue)
    channel.until(queue, messages=len(bodies))


def taken(channel: Channel, queue: str, bodies: str) -> None:
    """The queue, filled, with all its messages delivered by basic.get and held."""
    channel.queue(queue)
    filled(channel, queue, bodies)
    for _ in bodies:
        channel.get(queue, no_ack=False)


@scenario
def test_ack_one_by_one_out_of_order(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abc")
    for delivery in (2, 3, 1):
        channel.ack(delivery)
    channel.quiet("q")
    channel.close()
    s.channel().get("q")


@scenario
def test_ack_multiple_leaves_later_ones(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abcd")
    channel.ack(2, multiple=True)
    channel.close()
    other = s.channel()
    other.until("q", messages=2)
    other.get_all("q")


@scenario
def test_ack_of_zero_with_multiple_is_all(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abc")
    channel.ack(0, multiple=True)
    channel.quiet("q")
    channel.ack(0, multiple=True)
    channel.quiet("q")
    channel.close()
    s.channel().get("q")


@scenario
def test_ack_twice(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "ab")
    channel.ack(1)
    channel.ack(1)
    channel.events(1)
    other = s.channel()
    other.until("q", messages=1)
    other.get_all("q")


@scenario
def test_unknown_delivery_tags(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    for name, values in (
        ("basic.ack", {"delivery": 1}),
        ("basic.ack", {"delivery": 0}),
        ("basic.ack", {"delivery": 5, "multiple": True}),
        ("basic.nack", {"delivery": 1, "requeue": True}),
        ("basic.nack", {"delivery": 1, "multiple": True}),
        ("basic.reject", {"delivery": 1, "requeue": True}),
        ("basic.reject", {"delivery": 0}),
    ):
        channel = connection.channel()
        channel.send(name, **values)
        channel.events(1)


@scenario
def test_ack_multiple_of_a_tag_already_settled(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abc")
    channel.ack(2)
    channel.ack(2, multiple=True)
    channel.events(1)
    other = s.channel()
    other.until("q", messages=2)
    other.get_all("q")


@scenario
def test_ack_multiple_beyond_the_last_tag(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "ab")
    channel.ack(7, multiple=True)
    channel.call("exchange.declare", exchange="amq.direct", passive=True)


@scenario
def test_ack_multiple_when_nothing_is_held_any_more(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "ab")
    channel.ack(2, multiple=True)
    channel.ack(2, multiple=True)
    channel.call("exchange.declare", exchange="amq.direct", passive=True)


@scenario
def test_ack_on_another_channel(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    taken(channel, "q", "a")
    other = connection.channel()
    other.ack(1)
    other.events(1)
    channel.ack(1)
    channel.quiet("q")


@scenario
def test_nack_keeps_the_place(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abc")
    channel.publish("d", "q")
    channel.nack(2)
    channel.nack(1)
    channel.until("q", messages=3)
    channel.get("q", no_ack=False)
    channel.get("q", no_ack=False)
    channel.get("q", no_ack=False)


@scenario
def test_nack_multiple(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abcd")
    channel.nack(3, multiple=True)
    channel.until("q", messages=3)
    channel.get_all("q")
    channel.nack(0, multiple=True)
    channel.until("q", messages=1)
    channel.get_all("q")


@scenario
def test_nack_without_requeue_drops(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "abc")
    channel.nack(2, multiple=True, requeue=False)
    channel.quiet("q")
    channel.send("basic.reject", delivery=3)
    channel.quiet("q")
    channel.close()
    s.channel().get("q")


@scenario
def test_reject_with_requeue_comes_back_to_the_same_consumer(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.consume("q", "c")
    channel.publish("again", "q")
    channel.expect("basic.deliver")
    channel.send("basic.reject", delivery=1, requeue=True)
    channel.expect("basic.deliver")
    channel.nack(2)
    channel.expect("basic.deliver")
    channel.ack(3)
    channel.quiet("q")


@scenario
def test_requeued_goes_to_another_consumer_in_turn(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.call("basic.qos", count=1)
    channel.consume("q", "one")
    channel.consume("q", "two")
    channel.publish("a", "q")
    channel.expect("basic.deliver")
    channel.send("basic.reject", delivery=1, requeue=True)
    channel.expect("basic.deliver")


@scenario
def test_recover(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.consume("q", "c")
    for body in "abc":
        channel.publish(body, "q")
    channel.expect("basic.deliver", 3)
    channel.ack(2)
    channel.call("basic.recover", requeue=True)
    channel.expect("basic.deliver", 2)
    channel.send("basic.recover-async", requeue=True)
    channel.expect("basic.deliver", 2)
    channel.ack(0, multiple=True)
    channel.quiet("q")


@scenario
def test_recover_without_requeue(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "a")
    channel.call("basic.recover", requeue=False)
    channel.connection.end()


@scenario
def test_recover_with_nothing_held(s: Script) -> None:
    channel = s.channel()
    channel.call("basic.recover", requeue=True)


@scenario
def test_closing_the_channel_returns_in_order(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    taken(channel, "q", "abcd")
    channel.publish("e", "q")
    channel.ack(2)
    channel.close()
    other = connection.channel()
    other.until("q", messages=4)
    other.get_all("q")


@scenario
def test_a_lost_connection_returns_in_order(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    taken(channel, "q", "abc")
    connection.drop()
    other = s.channel()
    other.until("q", messages=3)
    other.get_all("q")


@scenario
def test_what_a_lost_connection_returns_goes_to_waiting_consumers(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    filled(channel, "q", "ab")
    channel.consume("q", "lost")
    channel.expect("basic.deliver", 2)
    other = s.channel()
    other.consume("q", "waiting")
    connection.drop()
    other.expect("basic.deliver", 2)
    other.quiet("q")


@scenario
def test_redelivered_stays_with_the_message(s: Script) -> None:
    channel = s.channel()
    taken(channel, "q", "a")
    channel.nack(1)
    channel.get("q", no_ack=False)
    channel.nack(2)
    channel.consume("q", "c")
    channel.expect("basic.deliver")


@scenario
def test_delivery_limit_of_a_quorum_queue(s: Script) -> None:
    channel = s.channel()
    channel.queue("dead")
    channel.queue(
        "q",
        {
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
        durable=True,
    )
    channel.consume("q", "c")
    channel.publish("hello", "q")
    for _ in range(3):
        delivery = channel.expect("basic.deliver")
        channel.nack(delivery.arguments.get("delivery", 0))
    channel.until("dead", messages=1)
    channel.get("dead")


@scenario
def test_delivery_counts_of_a_quorum_queue(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-queue-type": "quorum"}, durable=True)
    channel.consume("q", "c")
    channel.publish("hello", "q", headers={"mine": "too"})
    channel.publish("again", "q")
    delivery = channel.expect("basic.deliver", 2)
    for _ in range(2):
        channel.nack(delivery.arguments.get("delivery", 0))
        delivery = channel.expect("basic.deliver")
    channel.nack(1)
    channel.expect("basic.deliver")


@scenario
def test_delivery_limit_of_a_quorum_queue_without_a_dead_letter_exchange(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-queue-type": "quorum", "x-delivery-limit": 1}, durable=True)
    channel.consume("q", "c")
    channel.publish("hello", "q")
    for _ in range(2):
        delivery = channel.expect("basic.deliver")
        channel.nack(delivery.arguments.get("delivery", 0))
    channel.publish("next", "q")
    channel.expect("basic.deliver")


@scenario
def test_transaction_of_publishes(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.call("tx.select")
    channel.publish("a", "q")
    channel.publish("b", "q")
    other = connection.channel()
    channel.call("queue.declare", queue="q", passive=True)
    other.get("q")
    channel.call("tx.commit")
    other.get_all("q")
    channel.publish("c", "q")
    channel.call("tx.rollback")
    channel.call("tx.commit")
    other.get("q")
    channel.publish("d", "q")
    channel.close()
    other.get("q")


@scenario
def test_transaction_of_acknowledgements(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    filled(channel, "q", "abc")
    channel.call("tx.select")
    for _ in range(3):
        channel.get("q", no_ack=False)
    channel.ack(1)
    channel.nack(2, requeue=True)
    channel.quiet("q")
    channel.call("tx.rollback")
    channel.ack(1)
    channel.nack(2, requeue=True)
    channel.call("tx.commit")
    channel.until("q", messages=1)
    channel.get("q")
    channel.close()
    other = connection.channel()
    other.until("q", messages=1)
    other.get_all("q")


@scenario
def test_transaction_returns_at_commit(s: Script) -> None:
    channel = s.channel()
    channel.call("tx.select")
    channel.publish("back", "nowhere", mandatory=True)
    channel.call("exchange.declare", exchange="amq.direct", passive=True)
    channel.send("tx.commit")
    channel.events(2)


@scenario
def test_transaction_with_unknown_tag(s: Script) -> None:
    channel = s.channel()
    channel.call("tx.select")
    channel.ack(1)
    channel.events(1)


@scenario
def test_transaction_publish_to_missing_exchange(s: Script) -> None:
    channel = s.channel()
    channel.call("tx.select")
    channel.publish("hello", "k", "missing")
    channel.events(1)


@scenario
def test_commit_and_rollback_without_a_transaction(s: Script) -> None:
    connection = s.connect()
    connection.channel().call("tx.commit")
    connection.channel().call("tx.rollback")
    channel = connection.channel()
    channel.call("tx.select")
    channel.call("tx.select")
    channel.call("tx.commit")
    channel.call("tx.rollback")

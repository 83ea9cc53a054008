"""How messages and queues end by themselves: expiry, length limits, dead-lettering and its history."""

from __future__ import annotations

from tests.interop.oracle.frames import Typed
from tests.interop.oracle.scenario import differs, scenario
from tests.interop.oracle.script import Channel, Script

Arguments = dict[str, object]


def dying(channel: Channel, queue: str, arguments: Arguments, dead: str = "dead") -> None:
    """A queue whose dead messages go to another one, by the default exchange."""
    channel.queue(dead)
    channel.queue(queue, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **arguments})


def pause(channel: Channel) -> None:
    """Let the broker's clock go on for longer than the short times used here: a message expires and rings."""
    dying(channel, "clock", {"x-message-ttl": 150}, "rings")
    channel.publish("tick", "clock")
    channel.until("rings", messages=1)


@scenario
def test_message_ttl_of_a_queue(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-message-ttl": 50})
    channel.publish("a", "q", headers={"mine": 1})
    channel.publish("b", "q")
    channel.until("dead", messages=2)
    channel.quiet("q")
    channel.get_all("dead")


@scenario
def test_message_ttl_of_a_message(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {})
    channel.publish("a", "q", expiration="50", message_id="m", delivery_mode=2)
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_message_ttl_the_lower_one_counts(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-message-ttl": 30})
    channel.publish("a", "q", expiration="60000")
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_message_ttl_zero_of_a_message(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {})
    channel.call("confirm.select")
    channel.publish("nobody waits", "q", expiration="0", mandatory=True)
    channel.confirmed()
    channel.until("dead", messages=1)
    channel.get_all("dead")
    channel.consume("q", "c")
    channel.publish("somebody waits", "q", expiration="0")
    channel.expect("basic.deliver")


@scenario
def test_message_ttl_zero_of_a_queue(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-message-ttl": 0})
    channel.publish("nobody waits", "q")
    channel.until("dead", messages=1)
    channel.get_all("dead")
    channel.consume("q", "c")
    channel.publish("somebody waits", "q")
    channel.expect("basic.deliver")
    channel.call("basic.cancel", tag="c")
    channel.nack(2)
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_message_ttl_without_a_dead_letter_exchange_drops(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-message-ttl": 20})
    channel.call("confirm.select")
    channel.publish("a", "q")
    channel.confirmed()
    channel.until("q", messages=0)
    channel.get("q")


@scenario
def test_what_is_held_does_not_expire_but_expires_when_it_comes_back(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-message-ttl": 200})
    channel.publish("held", "q")
    channel.get("q", no_ack=False)
    channel.publish("waits", "q")
    channel.until("dead", messages=1)
    channel.get_all("dead")
    channel.nack(1)
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_queue_expires_when_unused(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-expires": 50})
    channel.publish("lost", "q")
    channel.until_gone("q")


@scenario
def test_queue_with_a_consumer_does_not_expire(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-expires": 200})
    channel.consume("q", "c")
    channel.queue("clock", {"x-expires": 400})
    channel.until_gone("clock")
    channel.publish("still there", "q")
    channel.expect("basic.deliver")
    channel.call("basic.cancel", tag="c")
    channel.until_gone("q")


@scenario
def test_messages_of_an_expired_queue_are_not_dead_lettered(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-expires": 40})
    channel.publish("lost", "q")
    channel.until_gone("q")
    channel.quiet("dead")


@scenario
def test_messages_of_a_purged_or_deleted_queue_are_not_dead_lettered(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {})
    channel.publish("purged", "q")
    channel.call("queue.purge", queue="q")
    channel.publish("deleted", "q")
    channel.call("queue.delete", queue="q")
    channel.quiet("dead")


@scenario
def test_length_limit_drops_the_oldest(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-max-length": 2})
    for body in "abcd":
        channel.publish(body, "q")
    channel.until("dead", messages=2)
    channel.get_all("dead")
    channel.get_all("q")


@scenario
def test_length_limit_counts_ready_messages_only(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-length": 2})
    for body in "ab":
        channel.publish(body, "q")
    channel.get("q", no_ack=False)
    for body in "cd":
        channel.publish(body, "q")
    channel.until("q", messages=2)
    channel.get_all("q")


@differs(
    "return-over-limit",
    rabbitmq="A1 = queue='q' messages=2 consumers=0",
    rookery="A1 = queue='q' messages=3 consumers=0",
)
def test_length_limit_when_a_message_comes_back(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-length": 2})
    channel.publish("a", "q")
    channel.get("q", no_ack=False)
    for body in "bc":
        channel.publish(body, "q")
    channel.nack(1)
    channel.quiet("q")
    channel.publish("d", "q")
    channel.quiet("q")
    channel.get_all("q")


@scenario
def test_length_limit_of_nothing(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-max-length": 0})
    channel.call("confirm.select")
    channel.publish("dropped", "q")
    channel.confirmed()
    channel.until("dead", messages=1)
    channel.consume("q", "c")
    channel.publish("taken at once", "q")
    channel.expect("basic.deliver")


@scenario
def test_limit_in_bytes(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-length-bytes": 10})
    for body in ("aaaa", "bbbb", "cccc", "this is more than all", "dd"):
        channel.publish(body, "q", headers={"not": "counted"})
    channel.quiet("q")
    channel.get_all("q")


@scenario
def test_both_limits(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-length-bytes": 10, "x-max-length": 2})
    for body in ("a", "b", "c", "dddddddddd"):
        channel.publish(body, "q")
    channel.quiet("q")
    channel.get_all("q")


@scenario
def test_length_limit_that_rejects_to_the_dead_letter_exchange(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    channel.call("confirm.select")
    for body in "abc":
        channel.publish(body, "q")
        channel.confirmed()
    channel.until("dead", messages=2)
    channel.get_all("dead")
    channel.get_all("q")


@scenario
def test_length_limit_that_rejects_does_not_dead_letter(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.call("confirm.select")
    for body in "ab":
        channel.publish(body, "q")
        channel.confirmed()
    channel.quiet("dead")
    channel.get_all("q")


@scenario
def test_length_limit_with_priorities_drops_the_lowest(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-max-length": 2, "x-max-priority": 5})
    for body, priority in (("low", 1), ("high", 5), ("middle", 3), ("lowest", 0)):
        channel.publish(body, "q", priority=priority)
    channel.quiet("q")
    channel.get_all("q")


@scenario
def test_rejected_is_dead_lettered(s: Script) -> None:
    channel = s.channel()
    channel.exchange("dlx", "topic")
    channel.queue("dead")
    channel.bind("dead", "dlx", "#")
    channel.queue("q", {"x-dead-letter-exchange": "dlx"})
    channel.bind("q", "amq.direct", "some.key")
    channel.publish("a", "some.key", "amq.direct", content_type="text/plain", delivery_mode=2, priority=3)
    channel.publish("b", "q")
    channel.get("q", no_ack=False)
    channel.send("basic.reject", delivery=1)
    channel.get("q", no_ack=False)
    channel.nack(2, requeue=False)
    channel.until("dead", messages=2)
    channel.get_all("dead")


@scenario
def test_dead_letters_keep_other_headers(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {"x-max-length": 0})
    channel.publish("a", "q", headers={"z": 1, "x-death": "mine", "a": "text"})
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_dead_letter_history_grows(s: Script) -> None:
    channel = s.channel()
    channel.queue("third")
    channel.queue("second", {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "third"})
    channel.queue("first", {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "second"})
    channel.bind("first", "amq.fanout")
    channel.publish("a", "some.key", "amq.fanout")
    channel.until("third", messages=1)
    channel.get_all("third")


@scenario
def test_dead_letter_counts_repeat(s: Script) -> None:
    """A consumer rejects, the message waits in another queue and comes back: counted, newest first."""
    channel = s.channel()
    channel.queue("work", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    channel.queue("wait", {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"})
    channel.consume("work", "c")
    channel.publish("a", "work", expiration="60000")
    for _ in range(3):
        delivery = channel.expect("basic.deliver")
        channel.nack(delivery.arguments.get("delivery", 0), requeue=False)
    channel.expect("basic.deliver")


@scenario
def test_dead_letter_circle_without_rejection_ends(s: Script) -> None:
    channel = s.channel()
    channel.exchange("round", "fanout")
    channel.queue("one", {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "two"})
    channel.queue("two", {"x-message-ttl": 20, "x-dead-letter-exchange": "round"})
    channel.queue("watch")
    for queue in ("one", "watch"):
        channel.bind(queue, "round")
    channel.publish("a", "one")
    channel.until("watch", messages=1)
    pause(channel)
    channel.quiet("one", "two")
    channel.get_all("watch")


@scenario
def test_dead_letter_to_itself_by_rejection(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-dead-letter-exchange": ""})
    channel.publish("a", "q")
    channel.get("q", no_ack=False)
    channel.nack(1, requeue=False)
    channel.until("q", messages=1)
    channel.get("q", no_ack=False)
    channel.nack(2, requeue=False)
    channel.until("q", messages=1)
    channel.get("q")


@scenario
def test_dead_letter_to_itself_by_expiry_ends(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-dead-letter-exchange": "", "x-message-ttl": 20})
    channel.publish("a", "q")
    pause(channel)
    channel.quiet("q")


@scenario
def test_dead_letter_exchange_that_is_missing(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-dead-letter-exchange": "missing"})
    channel.publish("a", "q")
    channel.get("q", no_ack=False)
    channel.nack(1, requeue=False)
    channel.quiet("q")
    channel.get("q")


@scenario
def test_dead_letters_of_expiration_and_its_header(s: Script) -> None:
    """The expiration is removed, kept in the history, and does not count in the next queue."""
    channel = s.channel()
    channel.queue("later", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"})
    channel.queue("end")
    channel.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"})
    channel.publish("a", "q", expiration="20")
    channel.until("later", messages=1)
    channel.get("later", no_ack=False)
    channel.nack(1, requeue=False)
    channel.until("end", messages=1)
    channel.get_all("end")


@scenario
def test_dead_letters_of_cc(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", {"x-dead-letter-exchange": "amq.topic"})
    channel.queue("dead")
    channel.bind("dead", "amq.topic", "#")
    channel.publish("a", "q", headers={"CC": ["copy"], "BCC": ["hidden"]})
    channel.get("q", no_ack=False)
    channel.nack(1, requeue=False)
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_dead_letters_of_cc_with_a_key(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {})
    channel.publish("a", "q", headers={"CC": ["copy"]})
    channel.get("q", no_ack=False)
    channel.nack(1, requeue=False)
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_order_of_dead_letters(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {})
    for body in "abcde":
        channel.publish(body, "q")
    for _ in range(5):
        channel.get("q", no_ack=False)
    channel.nack(2, requeue=False)
    channel.nack(5, multiple=True, requeue=False)
    channel.until("dead", messages=5)
    channel.get_all("dead")


@scenario
def test_expired_messages_of_a_quorum_queue(s: Script) -> None:
    channel = s.channel()
    channel.queue("dead")
    channel.queue(
        "q",
        {
            "x-queue-type": "quorum",
            "x-message-ttl": 50,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
        durable=True,
    )
    channel.publish("a", "q", headers={"mine": 1})
    channel.until("dead", messages=1)
    channel.get_all("dead")


@scenario
def test_length_limit_of_a_quorum_queue(s: Script) -> None:
    channel = s.channel()
    channel.queue("dead")
    channel.queue(
        "q",
        {
            "x-queue-type": "quorum",
            "x-max-length": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
        durable=True,
    )
    channel.call("confirm.select")
    for body in "abc":
        channel.publish(body, "q")
        channel.confirmed()
    channel.until("dead", messages=2)
    channel.get_all("dead")
    channel.get_all("q")


@differs(
    "exact-expiry",
    rabbitmq="""
        A1 = queue='q' messages=2 consumers=0
        A1 = queue='dead' messages=0 consumers=0
    """,
    rookery="""
        A1 = queue='q' messages=1 consumers=0
        A1 = queue='dead' messages=1 consumers=0
    """,
)
def test_short_expiration_behind_a_long_one(s: Script) -> None:
    channel = s.channel()
    dying(channel, "q", {})
    channel.publish("long", "q", expiration="60000")
    channel.publish("short", "q", expiration="20")
    pause(channel)
    channel.quiet("q", "dead")


@differs(
    "delivery-limit",
    rabbitmq="""
        A1 < channel.close code=406 text="PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue 'q' in vhost
            '/' of queue type rabbit_classic_queue" class_id=50 method_id=10
    """,
    rookery="A1 < queue.declare-ok queue='q' messages=0 consumers=0",
)
def test_delivery_limit_of_a_classic_queue(s: Script) -> None:
    s.channel().queue("q", {"x-delivery-limit": 1})


@scenario
def test_history_that_a_client_publishes_again(s: Script) -> None:
    """A consumer that publishes a dead message again, with its headers, goes on with its history."""
    channel = s.channel()
    dying(channel, "q", {})
    channel.queue("other", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    history: dict[str, object] = {
        "count": 3,
        "reason": "rejected",
        "queue": "q",
        "time": Typed("T", 1000),
        "exchange": "",
        "routing-keys": ["q"],
    }
    headers = {"x-death": [history], "x-first-death-queue": "q", "x-first-death-reason": "rejected", "mine": 1}
    for queue in ("q", "other"):
        channel.publish("again", queue, headers=headers)
        delivery = channel.get(queue, no_ack=False)
        channel.nack(delivery.arguments.get("delivery", 0), requeue=False)
        channel.until("dead", messages=1)
        channel.get_all("dead")


@scenario
def test_history_of_a_message_that_died_in_two_queues(s: Script) -> None:
    channel = s.channel()
    for queue in ("one", "two"):
        dying(channel, queue, {})
        channel.bind(queue, "amq.fanout")
    channel.publish("twice", "k", "amq.fanout")
    for queue in ("one", "two"):
        delivery = channel.get(queue, no_ack=False)
        channel.nack(delivery.arguments.get("delivery", 0), requeue=False)
        channel.until("dead", messages=1)
        channel.get_all("dead")


@scenario
def test_dead_letters_to_a_full_queue_that_rejects(s: Script) -> None:
    channel = s.channel()
    channel.queue("dead", {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for body in "ab":
        channel.publish(body, "q")
    for delivery in (1, 2):
        channel.get("q", no_ack=False)
        channel.nack(delivery, requeue=False)
    channel.quiet("q", "dead")
    channel.get_all("dead")


@scenario
def test_dead_letters_by_fanout(s: Script) -> None:
    channel = s.channel()
    channel.exchange("dlx", "fanout")
    for queue in ("one", "two"):
        channel.queue(queue)
        channel.bind(queue, "dlx")
    channel.queue("q", {"x-dead-letter-exchange": "dlx", "x-max-length": 0})
    channel.publish("a", "q")
    for queue in ("one", "two"):
        channel.until(queue, messages=1)
        channel.get_all(queue)


@scenario
def test_dead_letters_with_an_alternate_exchange(s: Script) -> None:
    channel = s.channel()
    channel.exchange("rest", "fanout")
    channel.exchange("dlx", "direct", {"alternate-exchange": "rest"})
    channel.queue("dead")
    channel.bind("dead", "rest")
    channel.queue("q", {"x-dead-letter-exchange": "dlx", "x-max-length": 0})
    channel.publish("a", "q")
    channel.until("dead", messages=1)
    channel.get_all("dead")

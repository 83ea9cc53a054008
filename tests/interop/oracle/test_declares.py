"""Queues and exchanges: declaring, finding again, deleting, and what is refused."""

from __future__ import annotations

from tests.interop.oracle.frames import Typed
from tests.interop.oracle.scenario import differs, scenario
from tests.interop.oracle.script import Script


@scenario
def test_declare_twice_counts_messages_and_consumers(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", durable=True)
    channel.publish("one", "q")
    channel.publish("two", "q")
    channel.until("q", messages=2)
    channel.queue("q", durable=True)
    channel.call("basic.qos", count=1)
    channel.consume("q", "c")
    channel.expect("basic.deliver")
    channel.queue("q", durable=True)


@scenario
def test_redeclare_with_other_flags(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q", durable=True)
    for flags in ({}, {"durable": True, "auto_delete": True}, {"durable": True, "exclusive": True}):
        connection.channel().queue("q", None, **flags)
    connection.channel().queue("transient")
    connection.channel().queue("transient", durable=True)
    connection.channel().queue("gone", auto_delete=True)
    connection.channel().queue("gone")


@scenario
def test_redeclare_with_other_arguments(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q", {"x-message-ttl": 60000, "x-max-length": 10})
    for arguments in (
        {"x-message-ttl": 60000, "x-max-length": 10},
        {"x-max-length": 10, "x-message-ttl": 60000},
        {"x-message-ttl": Typed("I", 60000), "x-max-length": Typed("s", 10)},
        {"x-message-ttl": 60001, "x-max-length": 10},
        {"x-message-ttl": 60000},
        {"x-message-ttl": 60000, "x-max-length": 10, "x-max-length-bytes": 5},
        {"x-message-ttl": 60000, "x-max-length": 10, "x-expires": 5000},
        {},
    ):
        connection.channel().queue("q", arguments)


@scenario
def test_redeclare_with_other_text_arguments(s: Script) -> None:
    connection = s.connect()
    given: dict[str, object] = {
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "k",
        "x-overflow": "drop-head",
    }
    connection.channel().queue("q", given)
    connection.channel().queue("q", given)
    connection.channel().queue("q", {**given, "x-dead-letter-exchange": "other"})
    connection.channel().queue("q", {**given, "x-dead-letter-routing-key": "other"})
    connection.channel().queue("q", {**given, "x-overflow": "reject-publish"})
    connection.channel().queue("q", {**given, "x-max-priority": 3})
    connection.channel().queue("q", {**given, "x-single-active-consumer": True})


@scenario
def test_redeclare_with_other_queue_type(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q", durable=True)
    connection.channel().queue("q", {"x-queue-type": "classic"}, durable=True)
    connection.channel().queue("q", {"x-queue-type": "quorum"}, durable=True)
    connection.channel().queue("qq", {"x-queue-type": "quorum"}, durable=True)
    connection.channel().queue("qq", durable=True)


@differs(
    "unknown-arguments",
    rabbitmq="A3 < queue.declare-ok queue='q' messages=0 consumers=0",
    rookery="""
        A3 < channel.close code=406 text="PRECONDITION_FAILED - inequivalent arg 'x-something' for queue 'q' in vhost
            '/': received none but current is the value 'else' of type 'longstr'" class_id=50 method_id=10
    """,
)
def test_unknown_arguments_are_taken(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q", {"x-something": "else", "mine": 5})
    connection.channel().queue("q", {"x-something": "else", "mine": 5})
    connection.channel().queue("q")


@scenario
def test_arguments_of_wrong_type_or_value(s: Script) -> None:
    connection = s.connect()
    for arguments in (
        {"x-message-ttl": "soon"},
        {"x-message-ttl": -1},
        {"x-expires": 0},
        {"x-expires": -5},
        {"x-expires": "never"},
        {"x-max-length": -1},
        {"x-max-length": "many"},
        {"x-max-length-bytes": -1},
        {"x-max-length": True},
        {"x-message-ttl": 1.5},
    ):
        connection.channel().queue("q", arguments)


@scenario
def test_more_arguments_of_wrong_type_or_value(s: Script) -> None:
    connection = s.connect()
    for arguments in (
        {"x-overflow": "explode"},
        {"x-overflow": 5},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": 5},
        {"x-max-priority": -1},
        {"x-max-priority": 256},
        {"x-max-priority": "high"},
        {"x-single-active-consumer": "yes"},
        {"x-single-active-consumer": 1},
    ):
        connection.channel().queue("q", arguments)


@scenario
def test_queue_types_that_are_refused(s: Script) -> None:
    s.channel().queue("q", {"x-queue-type": "linked-list"})
    s.channel().queue("q", {"x-queue-type": 5})
    connection = s.connect()
    connection.channel().queue("q", {"x-queue-type": "quorum"})
    connection.channel().queue("q", {"x-queue-type": "quorum"}, durable=True, exclusive=True)
    connection.channel().queue("q", {"x-queue-type": "quorum"}, durable=True, auto_delete=True)
    connection.channel().queue("q", {"x-queue-type": "quorum", "x-max-priority": 5}, durable=True)


@differs(
    "delivery-limit",
    rabbitmq="A1 < queue.declare-ok queue='q' messages=0 consumers=0",
    rookery="""
        A1 < channel.close code=406 text="PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue 'q' in vhost
            '/': {value_negative,-1}" class_id=50 method_id=10
    """,
)
def test_negative_delivery_limit(s: Script) -> None:
    s.channel().queue("q", {"x-queue-type": "quorum", "x-delivery-limit": -1}, durable=True)


@scenario
def test_passive_declare(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q", durable=True)
    channel.call("queue.declare", queue="q", passive=True)
    channel.call("queue.declare", queue="q", passive=True, exclusive=True, auto_delete=True)
    channel.call("queue.declare", queue="q", passive=True, arguments={"x-max-length": 3})
    channel.call("queue.declare", queue="missing", passive=True)
    channel = connection.channel()
    channel.exchange("x", "fanout")
    channel.call("exchange.declare", exchange="x", type="direct", passive=True, durable=True)
    channel.call("exchange.declare", exchange="x", type="nonsense", passive=True)
    channel.call("exchange.declare", exchange="missing", passive=True)
    connection.channel().call("exchange.declare", exchange="", passive=True)
    connection.channel().call("exchange.declare", exchange="amq.topic", passive=True)


@scenario
def test_passive_declare_of_another_connections_exclusive_queue(s: Script) -> None:
    s.channel().queue("q", exclusive=True)
    connection = s.connect()
    connection.channel().call("queue.declare", queue="q", passive=True)
    connection.channel().queue("q", exclusive=True)
    connection.channel().queue("q")
    connection.channel().get("q")
    connection.channel().consume("q")
    connection.channel().bind("q", "amq.direct", "k")
    connection.channel().call("queue.purge", queue="q")
    connection.channel().call("queue.delete", queue="q")


@scenario
def test_another_connection_may_publish_to_an_exclusive_queue(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", exclusive=True)
    other = s.channel()
    other.call("confirm.select")
    other.publish("hello", "q", mandatory=True)
    other.confirmed()
    channel.get("q")


@scenario
def test_exclusive_queue_ends_with_its_connection(s: Script) -> None:
    first = s.connect()
    first.channel().queue("q", exclusive=True, durable=True)
    first.channel().queue("q", exclusive=True, durable=True)
    first.close()
    second = s.channel()
    second.until_gone("q")
    second.queue("q")


@scenario
def test_exclusive_queue_redeclared_without_exclusive(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q", exclusive=True)
    connection.channel().queue("q")
    connection.channel().queue("q", exclusive=True, durable=True)


@scenario
def test_auto_delete_queue_goes_with_its_last_consumer(s: Script) -> None:
    channel = s.channel()
    channel.queue("q", auto_delete=True)
    channel.publish("kept without consumers", "q")
    channel.get("q")
    channel.consume("q", "one")
    channel.consume("q", "two")
    channel.call("basic.cancel", tag="one")
    channel.queue("q", auto_delete=True)
    channel.call("basic.cancel", tag="two")
    channel.until_gone("q")


@scenario
def test_auto_delete_queue_goes_with_its_consumers_channel(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q", auto_delete=True)
    other = connection.channel()
    other.consume("q", "one")
    other.close()
    channel.until_gone("q")


@scenario
def test_auto_delete_queue_without_consumers_stays(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q", auto_delete=True)
    channel.close()
    connection.close()
    s.channel().queue("q", auto_delete=True)


@scenario
def test_server_named_queues(s: Script) -> None:
    channel = s.channel()
    first = channel.queue("")
    second = channel.queue("", exclusive=True)
    channel.publish("a", first)
    channel.publish("b", second)
    channel.get(first)
    channel.get(second)
    channel.call("queue.delete", queue=first)


@scenario
def test_no_name_means_the_queue_declared_last(s: Script) -> None:
    channel = s.channel()
    channel.queue("one")
    channel.queue("two")
    channel.bind("", "amq.direct", "k")
    channel.publish("hello", "k", "amq.direct")
    channel.get("")
    channel.get("two")
    channel.call("queue.purge", queue="")
    channel.consume("", "c")
    channel.call("queue.unbind", queue="", exchange="amq.direct", key="k")
    channel.call("queue.delete", queue="")
    channel.get("")


@scenario
def test_passive_declare_without_a_name(s: Script) -> None:
    channel = s.channel()
    channel.queue("one")
    channel.call("queue.declare", queue="", passive=True)


@scenario
def test_no_binding_key_and_no_queue_means_both_of_the_last_queue(s: Script) -> None:
    channel = s.channel()
    channel.queue("last")
    channel.bind("", "amq.direct", "")
    channel.publish("by its name", "last", "amq.direct")
    channel.publish("by no key", "", "amq.direct")
    channel.get_all("last")


@scenario
def test_no_name_and_none_declared(s: Script) -> None:
    connection = s.connect()
    connection.channel().get("")
    connection.channel().consume("")
    connection.channel().bind("", "amq.direct", "k")
    connection.channel().call("queue.purge", queue="")
    connection.channel().call("queue.delete", queue="")
    connection.channel().call("queue.declare", queue="", passive=True)


@scenario
def test_reserved_names(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("amq.mine")
    connection.channel().exchange("amq.mine")
    connection.channel().call("exchange.declare", exchange="amq.mine", passive=True)
    connection.channel().call("queue.declare", queue="amq.mine", passive=True)
    connection.channel().exchange("amq.direct", "direct", durable=True)
    connection.channel().exchange("amq.direct", "fanout", durable=True)
    connection.channel().exchange("amq.direct", "direct")
    connection.channel().call("exchange.delete", exchange="amq.direct")
    connection.channel().call("exchange.delete", exchange="amq.mine")
    connection.channel().call("queue.delete", queue="amq.mine")


@scenario
def test_default_exchange_cannot_be_touched(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    connection.channel().exchange("", "direct", durable=True)
    connection.channel().call("exchange.delete", exchange="")
    connection.channel().bind("q", "", "q")
    connection.channel().bind("q", "", "other")
    connection.channel().call("queue.unbind", queue="q", exchange="", key="q")
    connection.channel().call("exchange.bind", destination="", source="amq.direct", key="k")
    connection.channel().call("exchange.bind", destination="amq.direct", source="", key="k")
    connection.channel().call("exchange.unbind", destination="amq.direct", source="", key="k")


@scenario
def test_exchanges_that_differ(s: Script) -> None:
    connection = s.connect()
    connection.channel().exchange("x", "topic", durable=True)
    connection.channel().exchange("x", "topic", durable=True)
    connection.channel().exchange("x", "fanout", durable=True)
    connection.channel().exchange("x", "topic")
    connection.channel().exchange("x", "topic", durable=True, auto_delete=True)
    connection.channel().exchange("x", "topic", durable=True, internal=True)
    connection.channel().exchange("x", "topic", {"alternate-exchange": "amq.fanout"}, durable=True)
    connection.channel().exchange("with", "topic", {"alternate-exchange": "amq.fanout"})
    connection.channel().exchange("with", "topic")
    connection.channel().exchange("with", "topic", {"alternate-exchange": "amq.topic"})


@scenario
def test_exchange_types_that_are_unknown(s: Script) -> None:
    s.channel().exchange("x", "nonsense")
    s.channel().exchange("x", "x-nonsense")
    s.channel().exchange("x", "")


@scenario
def test_exchange_arguments(s: Script) -> None:
    connection = s.connect()
    connection.channel().exchange("x", "direct", {"anything": "goes"})
    connection.channel().exchange("x", "direct")
    connection.channel().exchange("y", "direct", {"alternate-exchange": 5})
    connection.channel().exchange("y", "direct", {"alternate-exchange": ""})
    connection.channel().exchange("y", "direct", {"alternate-exchange": "not there"})


@scenario
def test_delete_queue_if_unused_and_if_empty(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.publish("hello", "q")
    channel.until("q", messages=1)
    connection.channel().call("queue.delete", queue="q", if_empty=True)
    channel.consume("q", "c")
    channel.expect("basic.deliver")
    connection.channel().call("queue.delete", queue="q", if_unused=True)
    connection.channel().call("queue.delete", queue="q", if_unused=True, if_empty=True)
    channel.call("basic.cancel", tag="c")
    connection.channel().call("queue.delete", queue="q", if_unused=True, if_empty=True)


@scenario
def test_delete_what_is_not_there(s: Script) -> None:
    channel = s.channel()
    channel.call("queue.delete", queue="missing")
    channel.call("queue.delete", queue="missing", if_unused=True, if_empty=True)
    channel.call("exchange.delete", exchange="missing")
    channel.call("exchange.delete", exchange="missing", if_unused=True)
    channel.call("queue.purge", queue="missing")


@scenario
def test_delete_counts_ready_messages_only(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    for body in "abc":
        channel.publish(body, "q")
    channel.get("q", no_ack=False)
    channel.until("q", messages=2)
    channel.call("queue.delete", queue="q")
    channel.ack(1)
    channel.call("exchange.declare", exchange="amq.direct", passive=True)


@scenario
def test_delete_exchange_if_unused(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.exchange("x", "fanout")
    channel.queue("q")
    channel.bind("q", "x")
    connection.channel().call("exchange.delete", exchange="x", if_unused=True)
    channel.call("queue.unbind", queue="q", exchange="x")
    channel.call("exchange.delete", exchange="x", if_unused=True)
    connection.channel().call("exchange.declare", exchange="x", passive=True)


@scenario
def test_auto_delete_exchange_goes_with_its_last_binding(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.exchange("x", "direct", auto_delete=True)
    channel.call("exchange.declare", exchange="x", passive=True)
    channel.queue("q")
    channel.bind("q", "x", "one")
    channel.bind("q", "x", "two")
    channel.call("queue.unbind", queue="q", exchange="x", key="one")
    channel.call("exchange.declare", exchange="x", passive=True)
    channel.call("queue.unbind", queue="q", exchange="x", key="two")
    channel.call("exchange.declare", exchange="x", passive=True)


@scenario
def test_auto_delete_exchange_goes_with_the_queue_it_was_bound_to(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.exchange("x", "direct", auto_delete=True)
    channel.queue("q")
    channel.bind("q", "x", "one")
    channel.call("queue.delete", queue="q")
    channel.call("exchange.declare", exchange="x", passive=True)


@scenario
def test_auto_delete_exchange_goes_with_the_exchange_it_was_bound_to(s: Script) -> None:
    channel = s.channel()
    channel.exchange("source", "direct", auto_delete=True)
    channel.exchange("target", "direct")
    channel.call("exchange.bind", destination="target", source="source", key="k")
    channel.call("exchange.delete", exchange="target")
    channel.call("exchange.declare", exchange="source", passive=True)


@scenario
def test_purge_counts_and_keeps_what_is_unacknowledged(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.call("queue.purge", queue="q")
    for body in "abcd":
        channel.publish(body, "q")
    channel.get("q", no_ack=False)
    channel.until("q", messages=3)
    channel.call("queue.purge", queue="q")
    channel.nack(1)
    channel.get_all("q")


@scenario
def test_nowait_answers_nothing(s: Script) -> None:
    channel = s.channel()
    channel.call("exchange.declare", exchange="x", type="fanout", nowait=True)
    channel.call("queue.declare", queue="q", nowait=True)
    channel.call("queue.bind", queue="q", exchange="x", nowait=True)
    channel.call("exchange.bind", destination="x", source="amq.direct", key="k", nowait=True)
    channel.call("confirm.select", nowait=True)
    channel.publish("hello", "k", "amq.direct")
    channel.confirmed()
    channel.call("basic.consume", queue="q", tag="c", nowait=True)
    channel.expect("basic.deliver")
    channel.call("basic.cancel", tag="c", nowait=True)
    channel.call("queue.purge", queue="q", nowait=True)
    channel.call("exchange.unbind", destination="x", source="amq.direct", key="k", nowait=True)
    channel.call("queue.delete", queue="q", nowait=True)
    channel.call("exchange.delete", exchange="x", nowait=True)
    channel.call("queue.declare", queue="q", passive=True)


@scenario
def test_nowait_errors_still_close(s: Script) -> None:
    connection = s.connect()
    for name, values in (
        ("queue.declare", {"queue": "amq.no"}),
        ("queue.bind", {"queue": "missing", "exchange": "amq.direct"}),
        ("basic.consume", {"queue": "missing"}),
    ):
        channel = connection.channel()
        channel.call(name, nowait=True, **values)
        channel.expect("channel.close")


@scenario
def test_names_of_every_shape(s: Script) -> None:
    channel = s.channel()
    for name in ("q with spaces", "ünïcödé", "a" * 255, "amq", "AMQ.upper", "a/b:c?d#e"):
        channel.queue(name)
        channel.publish("hello", name)
        channel.get(name)
        channel.exchange(name, "fanout")
        channel.bind(name, name, name)


@differs(
    "plugins",
    rabbitmq="""
        A < connection.close code=503 text="COMMAND_INVALID - unknown exchange type 'x-delayed-message'"
            class_id=40 method_id=10
        B < connection.close code=503 text="COMMAND_INVALID - unknown exchange type 'x-consistent-hash'"
            class_id=40 method_id=10
    """,
    rookery="""
        A1 < exchange.declare-ok
        B1 < exchange.declare-ok
    """,
)
def test_exchange_types_of_plugins(s: Script) -> None:
    connections = [s.connect(), s.connect()]
    connections[0].channel().exchange("x", "x-delayed-message", {"x-delayed-type": "direct"})
    connections[1].channel().exchange("y", "x-consistent-hash")
    for connection in connections:
        connection.drop()

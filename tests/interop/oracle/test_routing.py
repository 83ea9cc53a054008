"""Bindings, and where each type of exchange sends a message."""

from __future__ import annotations

from typing import Any

from tests.interop.oracle.frames import Typed
from tests.interop.oracle.scenario import differs, scenario
from tests.interop.oracle.script import Channel, Script


def routed(channel: Channel, exchange: str, queues: tuple[str, ...], *keys: str, **properties: Any) -> None:
    """Publish one message per key and see which queues have it."""
    for key in keys:
        channel.publish(key, key, exchange, **properties)
        for queue in queues:
            channel.get(queue)


@scenario
def test_default_exchange_routes_by_queue_name(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.queue("q.other")
    routed(channel, "", ("q", "q.other"), "q", "q.other", "Q", "")


@scenario
def test_direct_exchange(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "direct")
    channel.queue("one")
    channel.queue("two")
    channel.bind("one", "x", "a")
    channel.bind("one", "x", "b")
    channel.bind("two", "x", "b")
    channel.bind("two", "x", "")
    routed(channel, "x", ("one", "two"), "a", "b", "c", "", "A")


@scenario
def test_fanout_exchange_ignores_keys_and_delivers_once(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "fanout")
    channel.queue("one")
    channel.queue("two")
    channel.bind("one", "x", "a")
    channel.bind("one", "x", "b")
    channel.bind("two", "x")
    routed(channel, "x", ("one", "one", "two"), "a", "z")


@scenario
def test_a_binding_exists_once(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "direct")
    channel.queue("q")
    channel.bind("q", "x", "k")
    channel.bind("q", "x", "k")
    routed(channel, "x", ("q", "q"), "k")
    channel.call("queue.unbind", queue="q", exchange="x", key="k")
    routed(channel, "x", ("q",), "k")


@scenario
def test_a_queue_bound_in_many_ways_gets_one_copy(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "topic")
    channel.queue("q")
    for key in ("a.*", "*.b", "#", "a.b"):
        channel.bind("q", "x", key)
    routed(channel, "x", ("q", "q"), "a.b")


@scenario
def test_topic_words(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "topic")
    patterns = {"star": "*", "a-star": "a.*", "star-b": "*.b", "middle": "a.*.c", "plain": "a.b.c"}
    for queue, pattern in patterns.items():
        channel.queue(queue)
        channel.bind(queue, "x", pattern)
    routed(channel, "x", tuple(patterns), "a", "a.b", "a.b.c", "a..c", "b", "", ".b", "a.", ".")


@scenario
def test_topic_hashes(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "topic")
    patterns = {"all": "#", "start": "a.#", "end": "#.z", "both": "a.#.z", "two": "#.m.#", "double": "#.#"}
    for queue, pattern in patterns.items():
        channel.queue(queue)
        channel.bind(queue, "x", pattern)
    routed(channel, "x", tuple(patterns), "a", "a.z", "z", "a.b.z", "a.m.z", "m", "", ".", "a.b.c.d.e.f", "az")


@scenario
def test_topic_corner_cases(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "topic")
    patterns = {
        "star-hash": "*.#",
        "hash-star": "#.*",
        "empty": "",
        "dots": "..",
        "stars": "*.*",
        "a*": "a*",
        "a#": "a#",
    }
    for queue, pattern in patterns.items():
        channel.queue(queue)
        channel.bind(queue, "x", pattern)
    routed(channel, "x", tuple(patterns), "", "a", "a.b", "..", "a*", "a#", "ab", "*.#", "*")


@scenario
def test_headers_exchange_all_and_any(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "headers")
    bindings: dict[str, dict[str, object]] = {
        "all": {"x-match": "all", "a": 1, "b": "two"},
        "any": {"x-match": "any", "a": 1, "b": "two"},
        "unsaid": {"a": 1, "b": "two"},
        "none": {"x-match": "all"},
        "none-any": {"x-match": "any"},
        "present": {"x-match": "all", "a": None},
    }
    for queue, arguments in bindings.items():
        channel.queue(queue)
        channel.bind(queue, "x", "", arguments)
    given: tuple[dict[str, object], ...] = (
        {"a": 1, "b": "two"},
        {"a": 1},
        {"b": "two"},
        {"a": 2, "b": "one"},
        {"a": "1", "b": "two"},
        {"a": Typed("I", 1), "b": "two", "c": 3},
        {"A": 1},
        {},
    )
    for headers in given:
        routed(channel, "x", tuple(bindings), "k", headers=headers)
    routed(channel, "x", tuple(bindings), "without headers")


@scenario
def test_headers_exchange_with_x_names(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "headers")
    bindings: dict[str, dict[str, object]] = {
        "all": {"x-match": "all", "x-a": 1, "b": 2},
        "all-with-x": {"x-match": "all-with-x", "x-a": 1, "b": 2},
        "any": {"x-match": "any", "x-a": 1, "b": 2},
        "any-with-x": {"x-match": "any-with-x", "x-a": 1, "b": 2},
    }
    for queue, arguments in bindings.items():
        channel.queue(queue)
        channel.bind(queue, "x", "", arguments)
    for headers in ({"x-a": 1, "b": 2}, {"x-a": 1}, {"b": 2}):
        routed(channel, "x", tuple(bindings), "k", headers=headers)


@scenario
def test_headers_binding_that_is_refused(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.exchange("x", "headers")
    channel.queue("q")
    for arguments in ({"x-match": "most"}, {"x-match": 5}):
        connection.channel().bind("q", "x", "", arguments)


@scenario
def test_headers_values_of_every_type(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "headers")
    values: dict[str, object] = {
        "bool": True,
        "float": Typed("d", 2.5),
        "time": Typed("T", 1000),
        "table": {"a": 1},
        "array": [1, "two"],
        "bytes": b"raw",
    }
    for name, value in values.items():
        channel.queue(name)
        channel.bind(name, "x", "", {"v": value})
    for value in (*values.values(), 1, "raw", Typed("T", 1001), {"a": 2}, ["two", 1]):
        routed(channel, "x", tuple(values), "k", headers={"v": value})


@scenario
def test_exchange_to_exchange(s: Script) -> None:
    channel = s.channel()
    channel.exchange("front", "topic")
    channel.exchange("back", "direct")
    channel.queue("q")
    channel.call("exchange.bind", destination="back", source="front", key="a.#")
    channel.bind("q", "back", "a.b")
    routed(channel, "front", ("q",), "a.b", "a.c", "b")
    channel.call("exchange.unbind", destination="back", source="front", key="a.#")
    routed(channel, "front", ("q",), "a.b")


@scenario
def test_exchanges_bound_in_a_circle(s: Script) -> None:
    channel = s.channel()
    for name in ("one", "two", "three"):
        channel.exchange(name, "fanout")
    channel.call("exchange.bind", destination="two", source="one")
    channel.call("exchange.bind", destination="three", source="two")
    channel.call("exchange.bind", destination="one", source="three")
    channel.call("exchange.bind", destination="one", source="one")
    for queue in ("q", "r"):
        channel.queue(queue)
    channel.bind("q", "three")
    channel.bind("r", "one")
    routed(channel, "two", ("q", "q", "r", "r"), "k")


@scenario
def test_bind_what_is_not_there(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    connection.channel().bind("q", "missing", "k")
    connection.channel().bind("missing", "amq.direct", "k")
    connection.channel().bind("missing", "missing too", "k")
    connection.channel().call("exchange.bind", destination="missing", source="amq.direct")
    connection.channel().call("exchange.bind", destination="amq.direct", source="missing")


@scenario
def test_unbind_what_is_not_there(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.queue("q")
    channel.call("queue.unbind", queue="q", exchange="amq.direct", key="never bound")
    channel.call("queue.unbind", queue="q", exchange="missing", key="k")
    connection.channel().call("queue.unbind", queue="missing", exchange="amq.direct", key="k")
    connection.channel().call("exchange.unbind", destination="amq.fanout", source="amq.direct", key="k")
    connection.channel().call("exchange.unbind", destination="missing", source="amq.direct", key="k")
    connection.channel().call("exchange.unbind", destination="amq.direct", source="missing", key="k")


@scenario
def test_bindings_with_other_arguments_are_others(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "direct")
    channel.queue("q")
    channel.bind("q", "x", "k", {"a": 1})
    channel.bind("q", "x", "k")
    channel.call("queue.unbind", queue="q", exchange="x", key="k")
    routed(channel, "x", ("q", "q"), "k")
    channel.call("queue.unbind", queue="q", exchange="x", key="k", arguments={"a": 1})
    routed(channel, "x", ("q",), "k")


@scenario
def test_bindings_go_with_queue_and_exchange(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "fanout")
    channel.queue("q")
    channel.bind("q", "x")
    channel.call("exchange.delete", exchange="x")
    channel.exchange("x", "fanout")
    routed(channel, "x", ("q",), "k")
    channel.bind("q", "x")
    channel.call("queue.delete", queue="q")
    channel.queue("q")
    routed(channel, "x", ("q",), "k")


@scenario
def test_alternate_exchange(s: Script) -> None:
    channel = s.channel()
    channel.exchange("rest", "fanout")
    channel.exchange("x", "direct", {"alternate-exchange": "rest"})
    channel.queue("q")
    channel.queue("lost")
    channel.bind("q", "x", "k")
    channel.bind("lost", "rest")
    routed(channel, "x", ("q", "lost"), "k", "other")
    channel.call("confirm.select")
    channel.publish("taken by the alternate", "other", "x", mandatory=True)
    channel.confirmed()
    channel.call("queue.unbind", queue="lost", exchange="rest")
    channel.publish("taken by none", "other", "x", mandatory=True)
    channel.events(1)
    channel.confirmed()


@scenario
def test_alternate_exchanges_in_a_chain_and_a_circle(s: Script) -> None:
    channel = s.channel()
    channel.exchange("one", "direct", {"alternate-exchange": "two"})
    channel.exchange("two", "direct", {"alternate-exchange": "three"})
    channel.exchange("three", "direct", {"alternate-exchange": "one"})
    channel.queue("q")
    channel.bind("q", "three", "k")
    routed(channel, "one", ("q", "q"), "k")
    channel.publish("in a circle", "nowhere", "one", mandatory=True)
    channel.expect("basic.return")


@scenario
def test_alternate_exchange_that_is_missing(s: Script) -> None:
    channel = s.channel()
    channel.exchange("x", "direct", {"alternate-exchange": "missing"})
    channel.publish("hello", "nowhere", "x", mandatory=True)
    channel.expect("basic.return")


@scenario
def test_alternate_exchange_is_the_default_one(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    channel.exchange("x", "fanout", {"alternate-exchange": ""})
    channel.publish("hello", "q", "x", mandatory=True)
    channel.events(1)
    channel.get("q")


@scenario
def test_alternate_exchange_behind_a_bound_exchange(s: Script) -> None:
    channel = s.channel()
    channel.exchange("front", "fanout")
    channel.exchange("back", "direct", {"alternate-exchange": "rest"})
    channel.exchange("rest", "fanout")
    channel.queue("lost")
    channel.bind("lost", "rest")
    channel.call("exchange.bind", destination="back", source="front")
    routed(channel, "front", ("lost",), "k")


@scenario
def test_internal_exchange(s: Script) -> None:
    connection = s.connect()
    channel = connection.channel()
    channel.exchange("inside", "fanout", internal=True)
    channel.exchange("x", "fanout")
    channel.queue("q")
    channel.bind("q", "inside")
    channel.call("exchange.bind", destination="inside", source="x")
    routed(channel, "x", ("q",), "k")
    channel.publish("refused", "k", "inside")
    channel.events(1)


@scenario
def test_predeclared_exchanges(s: Script) -> None:
    channel = s.channel()
    channel.queue("q")
    for name in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        channel.bind("q", name, "k")
        routed(channel, name, ("q",), "k", "other")
    channel.call("exchange.declare", exchange="amq.nothing", passive=True)


@differs(
    "trace",
    rabbitmq="A1 < exchange.declare-ok",
    rookery="""
        A1 < channel.close code=404 text="NOT_FOUND - no exchange 'amq.rabbitmq.trace' in vhost '/'" class_id=40
            method_id=10
    """,
)
def test_trace_exchange(s: Script) -> None:
    s.channel().call("exchange.declare", exchange="amq.rabbitmq.trace", passive=True)


@scenario
def test_cc_and_bcc(s: Script) -> None:
    channel = s.channel()
    queues = ("q", "copy", "hidden")
    for queue in queues:
        channel.queue(queue)
    routed(channel, "", queues, "q", headers={"CC": ["copy"], "BCC": ["hidden"], "other": 1})
    routed(channel, "", queues, "q", headers={"CC": ["copy", "q", "copy"]})
    routed(channel, "", queues, "nowhere", headers={"BCC": ["copy"]})
    channel.publish("nowhere at all", "nowhere", mandatory=True, headers={"BCC": ["nobody"], "CC": ["none"]})
    channel.expect("basic.return")


@scenario
def test_cc_that_is_no_list(s: Script) -> None:
    connection = s.connect()
    connection.channel().queue("q")
    for headers in ({"CC": "q"}, {"BCC": "q"}, {"CC": 5}, {"CC": [5]}):
        channel = connection.channel()
        channel.publish("hello", "q", headers=headers)
        channel.get("q")

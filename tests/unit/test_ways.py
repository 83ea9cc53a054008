"""The ways of messages: through exchanges, alternates and headers to queues, and the cache that must not hide any."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from rookery.core.queue import Queue
from rookery.core.topology import WAYS_MAX
from rookery.errors import InvalidArgument
from rookery.format.properties import Properties, encode
from tests.unit.core_world import BROKEN_HEADERS, World, a_world, waiting

world = pytest.fixture(a_world, name="world")


# Routing


@pytest.mark.row("S3-4")
def test_direct(world: World) -> None:
    red, blue = world.queue("red"), world.queue("blue")
    for queue in (red, blue):
        world.tenant.bind("amq.direct", queue, queue.name)
    assert world.reach(b"1", "red", "amq.direct")[1] == 1
    assert world.reach(b"2", "blue", "amq.direct")[1] == 1
    assert world.reach(b"3", "red")[1] == 1
    assert (waiting(red), waiting(blue)) == ([b"1", b"3"], [b"2"])


@pytest.mark.row("S3-5")
def test_fanout(world: World) -> None:
    queues = [world.queue(f"q{i}") for i in range(4)]
    for queue in queues:
        world.tenant.bind("amq.fanout", queue, "")
    assert world.reach(b"to all", "whatever", "amq.fanout")[1] == 4
    assert [waiting(queue) for queue in queues] == [[b"to all"]] * 4


def test_the_default_exchange_finds_queues_as_they_come_and_go(world: World) -> None:
    assert world.reach()[1] == 0
    world.queue()
    assert world.reach()[1] == 1
    world.tenant.delete_queue("jobs")
    assert world.reach()[1] == 0


def test_unroutable_is_counted(world: World) -> None:
    message, reached = world.reach(b"x", "nobody", "amq.topic")
    exchange = world.tenant.exchange("amq.topic")
    assert (reached, message.refs) == (0, 0)
    assert (exchange.published, exchange.unroutable, exchange.bytes) == (1, 1, 1)
    assert world.tenant.memory_bytes == 0


def test_a_changed_topology_changes_the_way(world: World) -> None:
    one, two = world.queue("one"), world.queue("two")
    inner = world.tenant.declare_exchange("inner", "topic")[0]
    world.tenant.bind("amq.topic", inner, "a.#")
    for step in range(4):
        if step == 1:
            world.tenant.bind("inner", one, "*.b")
        elif step == 2:
            world.tenant.bind("inner", two, "#")
        elif step == 3:
            world.tenant.unbind("inner", one, "*.b")
        assert world.reach(key="a.b", exchange="amq.topic")[1] == [0, 1, 2, 1][step]


def test_the_cache_of_ways_is_bounded(world: World) -> None:
    queue = world.queue(length_max=1)
    world.tenant.bind("amq.topic", queue, "#")
    exchange = world.tenant.exchange("amq.topic")
    for i in range(WAYS_MAX + 10):
        world.publish(key=f"k{i}", exchange="amq.topic")
    assert len(exchange.ways) <= WAYS_MAX
    assert queue.published == WAYS_MAX + 10


def test_messages_of_one_key_share_their_route(world: World) -> None:
    world.queue()
    first, second = world.publish(), world.publish()
    world.queue("other")
    third = world.publish()
    assert first.route is second.route is third.route


# Exchange to exchange


def chain(world: World, names: str) -> None:
    """Bind each exchange to the next."""
    for name in names:
        world.tenant.declare_exchange(name, "fanout")
    for source, target in pairwise(names):
        world.tenant.bind(source, world.tenant.exchange(target), "")


def test_a_queue_reached_by_many_ways_gets_one_copy(world: World) -> None:
    queue = world.queue()
    chain(world, "abc")
    for name in "abc":
        world.tenant.bind(name, queue, "")
        world.tenant.bind(name, queue, "again")
    assert world.reach(exchange="a")[1] == 1
    assert queue.ready == 1


def test_loops_between_exchanges_end(world: World) -> None:
    queue = world.queue()
    chain(world, "abcda")
    world.tenant.bind("a", world.tenant.exchange("a"), "")
    world.tenant.bind("d", queue, "")
    for name in "abcd":
        assert world.reach(exchange=name)[1] == 1


def test_the_key_counts_at_every_step(world: World) -> None:
    queue = world.queue()
    inner = world.tenant.declare_exchange("inner", "direct")[0]
    world.tenant.bind("amq.topic", inner, "a.*")
    world.tenant.bind("inner", queue, "a.b")
    assert world.reach(key="a.b", exchange="amq.topic")[1] == 1
    assert world.reach(key="a.c", exchange="amq.topic")[1] == 0


# Alternates


def test_an_alternate_gets_what_matches_nothing(world: World) -> None:
    queue, rest = world.queue(), world.queue("rest")
    world.tenant.declare_exchange("e", "direct", alternate="fallback")
    world.tenant.bind("e", queue, "known")
    assert world.reach(b"lost", "unknown", "e")[1] == 0
    world.tenant.declare_exchange("fallback", "fanout")
    world.tenant.bind("fallback", rest, "")
    assert world.reach(b"1", "known", "e")[1] == 1
    assert world.reach(b"2", "unknown", "e")[1] == 1
    assert (waiting(queue), waiting(rest)) == ([b"1"], [b"2"])
    assert world.tenant.exchange("e").unroutable == 1


def test_alternates_may_form_a_chain_or_a_circle(world: World) -> None:
    rest = world.queue("rest")
    world.tenant.declare_exchange("a", "direct", alternate="b")
    world.tenant.declare_exchange("b", "direct", alternate="c")
    world.tenant.declare_exchange("c", "direct", alternate="a")
    assert world.reach(key="x", exchange="a")[1] == 0
    world.tenant.bind("c", rest, "x")
    assert world.reach(key="x", exchange="a")[1] == 1


def test_an_exchange_in_the_middle_may_have_an_alternate(world: World) -> None:
    rest = world.queue("rest")
    inner = world.tenant.declare_exchange("inner", "direct", alternate="fallback")[0]
    world.tenant.declare_exchange("fallback", "fanout")
    world.tenant.bind("fallback", rest, "")
    world.tenant.bind("amq.fanout", inner, "")
    assert world.reach(key="nothing", exchange="amq.fanout")[1] == 1


# Headers


def test_the_cache_does_not_hide_headers_behind_a_topic_exchange(world: World) -> None:
    red, blue, all_of_it = world.queue("red"), world.queue("blue"), world.queue("all")
    world.tenant.bind("amq.topic", all_of_it, "#")
    world.tenant.bind("amq.topic", world.tenant.exchange("amq.headers"), "paint.*")
    for queue in (red, blue):
        world.tenant.bind("amq.headers", queue, "", {"colour": queue.name})
    for colour, reached in (("red", 2), ("blue", 2), ("green", 1), ("red", 2)):
        assert world.reach(colour.encode(), "paint.new", "amq.topic", headers={"colour": colour})[1] == reached
    assert world.reach(b"none", "paint.new", "amq.topic")[1] == 1
    assert world.reach(b"red", "other", "amq.topic", headers={"colour": "red"})[1] == 1
    assert (waiting(red), waiting(blue)) == ([b"red", b"red"], [b"blue"])


def test_the_cache_does_not_hide_headers_behind_an_alternate(world: World) -> None:
    red = world.queue("red")
    world.tenant.declare_exchange("e", "direct", alternate="amq.headers")
    world.tenant.bind("amq.headers", red, "", {"colour": "red"})
    assert world.reach(key="k", exchange="e", headers={"colour": "blue"})[1] == 0
    assert world.reach(key="k", exchange="e", headers={"colour": "red"})[1] == 1


def test_headers_that_cannot_be_read_are_refused_and_change_nothing(world: World) -> None:
    world.tenant.bind("amq.headers", world.queue(), "", {"x-match": "all", "a": 1})
    exchange = world.tenant.exchange("amq.headers")
    with pytest.raises(InvalidArgument):
        world.publish(key="", exchange="amq.headers", props=BROKEN_HEADERS)
    assert (exchange.published, exchange.bytes, world.tenant.published) == (0, 0, 0)


def test_an_alternate_of_a_headers_exchange_gets_the_rest(world: World) -> None:
    red, rest = world.queue("red"), world.queue("rest")
    world.tenant.declare_exchange("h", "headers", alternate="amq.fanout")
    world.tenant.bind("h", red, "", {"colour": "red"})
    world.tenant.bind("amq.fanout", rest, "")
    world.publish(b"1", "", "h", headers={"colour": "red"})
    world.publish(b"2", "", "h", headers={"colour": "blue"})
    assert (waiting(red), waiting(rest)) == ([b"1"], [b"2"])


# Consistent hashing


def spread(world: World, arguments: dict[str, object]) -> list[Queue]:
    world.tenant.declare_exchange("hash", "consistent-hash", arguments=arguments)
    queues = [world.queue(f"q{i}") for i in range(3)]
    for queue in queues:
        world.tenant.bind("hash", queue, "1")
    return queues


def test_consistent_hash_by_key(world: World) -> None:
    queues = spread(world, {})
    for i in range(90):
        assert world.reach(b"", f"k{i}", "hash")[1] == 1
    assert min(queue.ready for queue in queues) >= 15


def test_consistent_hash_by_header(world: World) -> None:
    queues = spread(world, {"hash-header": "customer"})
    for i in range(90):
        world.publish(b"", "same", "hash", headers={"customer": f"c{i}"})
    assert min(queue.ready for queue in queues) >= 15


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_consistent_hash_by_property(world: World, name: str) -> None:
    queues = spread(world, {"hash-property": name})
    for i in range(90):
        value: Any = i if name == "timestamp" else f"id {i}"
        world.publish(b"", "same", "hash", props=encode(Properties(**{name: value})))
    assert min(queue.ready for queue in queues) >= 15

"""Publishing a batch: all of it or nothing, as if its messages had been published one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rookery.core.publishing import Batch, publish_batch
from rookery.embed.messages import Message, pack_batch
from rookery.errors import EmptyBody, InvalidType, MemoryLimitExceeded, MessageTooLarge, QueueFull
from rookery.format.properties import EMPTY, Properties, encode
from tests.unit.core_world import World, a_world, waiting

world = pytest.fixture(a_world, name="world")

BODIES = [b"a", b"b", b"c"]


def publish(world: World, bodies: list[bytes], key: str = "jobs", exchange: str = "", props: bytes = EMPTY) -> int:
    numbers = publish_batch(world.shard, world.tenant, Batch(exchange, key, props, bodies, 0))
    world.shard.flush()
    assert len(numbers) == len(bodies)
    return numbers[0]


def test_messages_are_numbered_on_from_the_first(world: World) -> None:
    queue = world.queue()
    world.publish(b"before")
    first = publish(world, BODIES)
    assert [(e.message.id, e.message.body) for e in queue.ready_entries()[1:]] == [
        (first, b"a"),
        (first + 1, b"b"),
        (first + 2, b"c"),
    ]
    assert world.shard.last_id == first + 2


def test_every_queue_of_the_way_gets_it_and_shares_it(world: World) -> None:
    a, b = world.queue("a"), world.queue("b")
    world.tenant.bind("amq.fanout", a, "")
    world.tenant.bind("amq.fanout", b, "")
    publish(world, BODIES, "any", "amq.fanout")
    assert waiting(a) == waiting(b) == BODIES
    assert a.ready_entries()[1].message is b.ready_entries()[1].message
    assert world.tenant.exchange("amq.fanout").published == 3


def test_headers_decide_for_the_whole_batch(world: World) -> None:
    queue = world.queue()
    world.tenant.bind("amq.headers", queue, "", {"x-match": "all", "kind": "a"})
    publish(world, BODIES, "", "amq.headers", encode(Properties(headers={"kind": "a"})))
    publish(world, BODIES, "", "amq.headers", encode(Properties(headers={"kind": "b"})))
    assert waiting(queue) == BODIES
    assert world.tenant.exchange("amq.headers").unroutable == 3


def _leave_no_memory(world: World) -> None:
    world.queue()  # declaring takes memory too
    world.shard.memory_bytes_max = 300


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda world: setattr(world.tenant, "message_bytes_max", 3), MessageTooLarge),
        (lambda world: setattr(world.tenant, "memory_bytes_max", 300), MemoryLimitExceeded),
        (_leave_no_memory, MemoryLimitExceeded),
        (lambda world: world.queue("jobs", length_max=2, overflow="reject-publish"), QueueFull),
        (lambda world: world.queue("jobs", bytes_max=4, overflow="reject-publish-dead-letter"), QueueFull),
    ],
)
def test_a_batch_that_does_not_fit_changes_nothing(
    world: World, spoil: Callable[[World], Any], error: type[Exception]
) -> None:
    spoil(world)
    queue = world.queue()
    with pytest.raises(error):
        publish(world, [b"a", b"b", b"cccc"])
    assert (queue.ready, queue.published, queue.refused, world.shard.last_id) == (0, 0, 0, 0)


def test_the_overflow_rule_looks_at_each_message(world: World) -> None:
    queue = world.queue(length_max=2, overflow="drop-head")
    publish(world, BODIES)
    assert waiting(queue) == [b"b", b"c"]
    other = world.queue("other", length_max=2, overflow="drop-new")
    publish(world, BODIES, "other")
    assert waiting(other) == [b"a", b"b"]


def test_a_queue_that_closes_when_full_takes_no_more_of_the_batch(world: World) -> None:
    queue = world.queue(length_max=2, overflow="close")
    publish(world, [*BODIES, b"d"])
    assert queue.deleted
    assert world.tenant.exchange("").unroutable == 1


def test_a_waiting_subscriber_is_served_at_once(world: World) -> None:
    mailbox = world.mailbox(world.queue(), credit=2)
    publish(world, BODIES)
    assert [lease.entry.message.body for lease in mailbox.leases] == [b"a", b"b"]


def packed(values: list[object], require_body: bool = False) -> Batch | None:
    return pack_batch("", "jobs", values, World().clock, 0, require_body)


@pytest.mark.parametrize(
    ("values", "bodies"),
    [
        ([b"a", b"b"], [b"a", b"b"]),
        (["a", "b"], [b"a", b"b"]),
        ([1, [2]], [b"1", b"[2]"]),
        ([b"a", bytearray(b"b")], BODIES[:2]),
    ],
)
def test_values_of_one_kind_make_a_batch(values: list[object], bodies: list[bytes]) -> None:
    batch = packed(values)
    assert batch is not None
    assert batch.bodies == bodies


@pytest.mark.parametrize("values", [[], [b"a", "b"], ["a", 1], [b"a", Message(b"b")]])
def test_values_that_differ_do_not(values: list[object]) -> None:
    assert packed(values) is None


def test_what_cannot_be_a_body_is_refused() -> None:
    with pytest.raises(InvalidType):
        packed([1, object()])
    with pytest.raises(EmptyBody):
        packed([b"a", b" "], require_body=True)

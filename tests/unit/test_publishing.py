"""Publishing in the core: what its callers rely on beyond what all ways to publish are compared by."""

from __future__ import annotations

import pytest

from rookery.core import publishing, streams
from rookery.core.policy import Policy
from rookery.core.publishing import Append, Batch, Publish, append_all, publish_all, publish_batch
from rookery.errors import InvalidArgument, MemoryLimitExceeded, QueueFull
from rookery.format.properties import EMPTY, Properties, encode
from tests.unit.core_world import World, a_world, waiting

world = pytest.fixture(a_world, name="world")

KEYED = encode(Properties(headers={"x-deduplication-header": "same"}))


def publish(world: World, p: Publish) -> tuple[int, bool]:
    return publishing.publish(world.shard, world.tenant, p)


def test_a_limit_that_a_policy_sets_counts_at_once(world: World) -> None:
    """Although the way of the key is cached from before."""
    limited, other = world.queue("limited"), world.queue("other")
    for queue in (limited, other):
        world.tenant.bind("amq.fanout", queue, "")
    publish(world, Publish("amq.fanout", "k", EMPTY, b"1"))
    settings: dict[str, object] = {"length_max": 1, "overflow": "reject-publish"}
    world.tenant.set_policy(Policy("p", "^limited$", settings))
    with pytest.raises(QueueFull, match="'limited'"):
        publish(world, Publish("amq.fanout", "k", EMPTY, b"2"))
    assert waiting(limited) == waiting(other) == [b"1"]
    world.tenant.delete_policy("p")
    publish(world, Publish("amq.fanout", "k", EMPTY, b"3"))
    assert waiting(limited) == waiting(other) == [b"1", b"3"]


def test_messages_of_a_batch_with_one_dedup_key_are_repeats_of_the_first(world: World) -> None:
    queue = world.queue()
    world.tenant.declare_exchange("dedup", "fanout", arguments={"x-message-deduplication": True})
    world.tenant.bind("dedup", queue, "")
    numbers = publish_batch(world.shard, world.tenant, Batch("dedup", "", KEYED, [b"a", b"b", b"c"], 0))
    assert list(numbers) == [1, 1, 1]
    assert waiting(queue) == [b"a"]
    assert world.tenant.dedup.duplicates == 2


def test_a_batch_to_a_delaying_exchange_is_held_back(world: World) -> None:
    queue = world.queue()
    world.tenant.declare_exchange("later", "delayed-message", arguments={"x-delayed-type": "fanout"})
    world.tenant.bind("later", queue, "")
    props = encode(Properties(headers={"x-delay": 5_000}))
    publish_batch(world.shard, world.tenant, Batch("later", "", props, [b"a", b"b"], 0))
    assert (queue.ready, queue.delayed) == (0, 2)


def test_a_repeat_needs_no_room(world: World) -> None:
    queue = world.queue(length_max=1, overflow="reject-publish", dedup=True)
    p = Publish("", "jobs", KEYED, b"x")
    assert not publish(world, p)[1]
    publish(world, p)
    publish_all(world.shard, world.tenant, [p, p])
    assert waiting(queue) == [b"x"]
    with pytest.raises(QueueFull):
        publish_all(world.shard, world.tenant, [p, Publish("", "jobs", EMPTY, b"y")])
    assert waiting(queue) == [b"x"]


def test_a_consumer_with_credit_is_room_for_one(world: World) -> None:
    queue = world.queue(length_max=0, overflow="reject-publish")
    one = Publish("", "jobs", EMPTY, b"x")
    with pytest.raises(QueueFull):
        publish_all(world.shard, world.tenant, [one])
    world.shard.subscribe(queue, 10, 60_000)
    publish_all(world.shard, world.tenant, [one])
    publish(world, one)
    assert queue.leased == 2
    with pytest.raises(QueueFull):
        publish_all(world.shard, world.tenant, [one, one])
    assert queue.leased == 2


def test_records_are_appended_all_or_none(world: World) -> None:
    stream = streams.declare(world.tenant, "log", {"partitions": 2})[0]
    small, large = Append("log", EMPTY, b"x"), Append("log", EMPTY, bytes(5_000))
    world.tenant.set_limits({"memory_bytes_max": 1_000})
    with pytest.raises(MemoryLimitExceeded):
        append_all(world.shard, stream, [small, large])
    with pytest.raises(InvalidArgument) as caught:
        append_all(world.shard, stream, [small, Append("log", EMPTY, b"x", partition=2)], True)
    assert caught.value.argument == "[1].partition"
    with pytest.raises(InvalidArgument) as caught:
        append_all(world.shard, stream, [Append("log", EMPTY, b"x", due_ms=5)])
    assert caught.value.argument == "delay_ms"
    assert stream.appended == world.tenant.published == 0
    assert append_all(world.shard, stream, [Append("log", EMPTY, b"x", partition=1)]) == [(1, 0)]


def test_a_transient_message_is_taken_while_the_journal_takes_no_more(world: World) -> None:
    """Whether one queue or several would get it; but not if a quorum queue or a stream would."""
    for name in ("one", "two"):
        world.tenant.bind("amq.fanout", world.queue(name), "")
    world.shard.log.refuse(MemoryLimitExceeded())
    p = Publish("amq.fanout", "", EMPTY, b"x", persistent=False)
    publish(world, p)
    publish_all(world.shard, world.tenant, [p])
    world.tenant.bind("amq.fanout", world.queue("quorum", queue_type="quorum"), "")
    for refused in (lambda: publish(world, p), lambda: publish_all(world.shard, world.tenant, [p])):
        with pytest.raises(MemoryLimitExceeded):
            refused()
    assert [int(world.tenant.queues[name].ready) for name in ("one", "two", "quorum")] == [2, 2, 0]
    assert world.tenant.refused == 1

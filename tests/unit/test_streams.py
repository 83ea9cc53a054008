"""Streams in the core: offsets, keys, bindings, retention, and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core import retention, streams
from rookery.core.groups import Group, delete_group, group_of
from rookery.core.publishing import Publish
from rookery.core.stream import BLOCK_RECORDS, Follower, Partition, Stream, partition_of
from rookery.core.transactions import apply
from rookery.errors import (
    AlreadyExists,
    Conflict,
    GroupFenced,
    GroupNotFound,
    InUse,
    InvalidArgument,
    InvalidType,
    LimitExceeded,
    OffsetOutOfRange,
    StreamNotFound,
)
from tests.unit.core_world import World, a_world

world = pytest.fixture(a_world, name="world")


def stream_of(world: World, name: str = "log", **settings: object) -> Stream:
    return streams.declare(world.tenant, name, settings)[0]


def bodies(partition: Partition) -> list[bytes]:
    shard = partition.stream.tenant.shard
    return [shard.message_of(partition.record(o)).body for o in range(partition.tail, partition.visible)]


class Watching(Follower):
    def __init__(self) -> None:
        self.told = 0
        self.reason = ""

    def grown(self) -> None:
        self.told += 1

    def ended(self, reason: str) -> None:
        self.reason = reason


# Declaring


def test_a_stream_is_declared_once_and_means_the_same_afterwards(world: World) -> None:
    stream = stream_of(world, partitions=3)
    assert streams.declare(world.tenant, "log", {"partitions": 3}) == (stream, False)
    assert world.tenant.stream("log") is stream
    with pytest.raises(Conflict) as wrong:
        stream_of(world, partitions=4)
    assert wrong.value.argument == "partitions"
    with pytest.raises(AlreadyExists):
        streams.declare(world.tenant, "log", {}, create=True)


@pytest.mark.parametrize(
    ("settings", "argument", "error"),
    [
        ({"partitions": 0}, "partitions", InvalidArgument),
        ({"partitions": 257}, "partitions", InvalidArgument),
        ({"partitions": True}, "partitions", InvalidType),
        ({"max_age_ms": -1}, "max_age_ms", InvalidArgument),
        ({"until_committed": 1}, "until_committed", InvalidType),
        ({"partition": 1}, "partition", InvalidArgument),
    ],
)
def test_wrong_settings_are_named(world: World, settings: dict[str, object], argument: str, error: type) -> None:
    with pytest.raises(error) as wrong:
        streams.declare(world.tenant, "log", settings)
    assert wrong.value.argument == argument  # type: ignore[attr-defined]
    assert not world.tenant.streams


def test_a_name_is_a_queue_or_a_stream(world: World) -> None:
    world.queue("jobs")
    with pytest.raises(Conflict):
        stream_of(world, "jobs")
    stream_of(world, "log")
    with pytest.raises(Conflict):
        world.queue("log")


def test_partitions_are_for_good_and_the_rest_can_change(world: World) -> None:
    stream = stream_of(world)
    assert streams.alter(world.tenant, "log", {"max_bytes": 10}).settings.max_bytes == 10
    with pytest.raises(Conflict):
        streams.alter(world.tenant, "log", {"partitions": 2})
    assert stream.settings.partitions == 1


def test_streams_are_limited(world: World) -> None:
    world.tenant.set_limits({"streams_max": 1})
    stream_of(world, "a")
    with pytest.raises(LimitExceeded):
        stream_of(world, "b")


def test_a_deleted_stream_lets_go_of_everything(world: World) -> None:
    stream = stream_of(world)
    world.tenant.bind("amq.topic", stream, "#")
    world.publish(b"a", "log")
    watching = Watching()
    stream.partitions[0].followers.append(watching)
    with pytest.raises(InUse):
        streams.delete(world.tenant, "log", if_unused=True)
    assert streams.delete(world.tenant, "log") == 1
    assert watching.reason == "deleted"
    assert world.shard.memory_bytes == 0
    assert world.reach(b"b", "x", "amq.topic")[1] == 0
    with pytest.raises(StreamNotFound):
        world.tenant.stream("log")


# Publishing


def test_offsets_are_dense_and_the_default_exchange_knows_streams(world: World) -> None:
    stream = stream_of(world)
    for i in range(3):
        assert world.reach(b"%d" % i, "log")[1] == 1
    (partition,) = stream.partitions
    assert (partition.first, partition.visible, partition.end) == (0, 3, 3)
    assert bodies(partition) == [b"0", b"1", b"2"]


def test_a_bound_stream_gets_each_message_once_beside_the_queues(world: World) -> None:
    stream = stream_of(world)
    queue = world.queue("jobs")
    world.tenant.bind("amq.topic", stream, "a.*")
    world.tenant.bind("amq.topic", stream, "a.b")
    world.tenant.bind("amq.topic", queue, "a.b")
    assert world.reach(b"x", "a.b", "amq.topic")[1] == 2
    assert world.reach(b"y", "b", "amq.topic")[1] == 0
    assert bodies(stream.partitions[0]) == [b"x"]
    assert queue.ready == 1


def test_a_stream_bound_to_a_headers_exchange(world: World) -> None:
    stream = stream_of(world)
    world.tenant.bind("amq.headers", stream, "", {"x-match": "all", "kind": "a"})
    assert world.reach(b"x", "", "amq.headers", headers={"kind": "a"})[1] == 1
    assert world.reach(b"y", "", "amq.headers", headers={"kind": "b"})[1] == 0
    assert bodies(stream.partitions[0]) == [b"x"]


def test_a_key_decides_the_partition_and_records_without_one_take_turns(world: World) -> None:
    stream = stream_of(world, partitions=4)
    for i in range(20):
        world.publish(b"k", "log", headers={"x-key": f"user-{i % 3}"})
    counts = [int(p.visible) for p in stream.partitions]
    expected = [0, 0, 0, 0]
    for i in range(20):
        expected[partition_of(f"user-{i % 3}".encode(), 4)] += 1
    assert counts == expected
    for _ in range(8):
        world.publish(b"n", "log")
    assert [int(p.visible) for p in stream.partitions] == [n + 2 for n in expected]


def test_a_routing_key_decides_where_the_stream_says_so(world: World) -> None:
    stream = stream_of(world, partitions=4, by_routing_key=True)
    world.tenant.bind("amq.topic", stream, "#")
    for _ in range(3):
        world.publish(b"x", "a.b", "amq.topic")
    assert stream.partitions[int(partition_of(b"a.b", 4))].visible == 3


def test_a_transaction_appends_with_the_rest(world: World) -> None:
    stream = stream_of(world)
    world.queue("jobs")
    apply(world.shard, world.tenant, [Publish("", "log", b"\0\0", b"1"), Publish("", "jobs", b"\0\0", b"2")])
    assert bodies(stream.partitions[0]) == [b"1"]


def test_dead_letters_can_be_streamed(world: World) -> None:
    stream = stream_of(world, "graves")
    world.tenant.declare_exchange("dlx", "fanout")
    world.tenant.bind("dlx", stream, "")
    queue = world.queue("jobs", dead_letter_exchange="dlx")
    world.publish(b"x")
    (lease,) = world.shard.claim(queue, 1, 1000)
    queue.reject(lease, "no")
    message = world.shard.message_of(stream.partitions[0].record(0))
    assert message.body == b"x"
    assert message.route.deaths[0].reason == "rejected"


def test_followers_are_told_once_a_turn(world: World) -> None:
    stream = stream_of(world)
    watching = Watching()
    stream.partitions[0].followers.append(watching)
    world.publish(b"a", "log")
    world.publish(b"b", "log")
    assert watching.told == 0
    world.shard.flush()
    assert watching.told == 1


# Reading


def test_reading_beyond_what_is_there_is_refused(world: World) -> None:
    (partition,) = stream_of(world).partitions
    partition.check(0)
    with pytest.raises(OffsetOutOfRange):
        partition.check(1)


@given(pauses=st.lists(st.integers(0, 3), min_size=1, max_size=60), at=st.integers(-2, 200))
def test_a_time_leads_to_the_first_record_of_that_time_or_later(pauses: list[int], at: int) -> None:
    world = World()
    (partition,) = stream_of(world).partitions
    start = world.clock.wall_ms()
    stamps = []
    for pause in pauses:
        world.clock.advance(pause)
        world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
        world.publish(b"x", "log")
        stamps.append(world.clock.wall_ms())
    wanted = start + at
    assert partition.offset_at(wanted) == sum(1 for stamp in stamps if stamp < wanted)


def test_times_do_not_go_back_with_the_clock(world: World) -> None:
    (partition,) = stream_of(world).partitions
    world.publish(b"a", "log")
    before = partition.stamp(0)
    world.shard.turn(world.clock.wall_ms() - 60_000, world.clock.mono_ms() + 1)
    world.publish(b"b", "log")
    assert partition.stamp(1) == before


# Letting go


def test_size_is_a_cap_and_offsets_go_on(world: World) -> None:
    stream = stream_of(world, max_bytes=10_000_000)
    (partition,) = stream.partitions
    for _ in range(30):
        world.publish(b"x" * 500_000, "log")
    retention.trim(stream)
    assert partition.size_bytes() <= 10_000_000
    assert partition.visible == 30
    assert partition.first == partition.tail > 0
    with pytest.raises(OffsetOutOfRange):
        partition.check(partition.first - 1)
    assert len(bodies(partition)) == 30 - partition.first


def test_old_records_go_by_blocks_and_young_ones_stay(world: World) -> None:
    stream = stream_of(world, max_age_ms=1_000)
    (partition,) = stream.partitions
    for _ in range(BLOCK_RECORDS + 10):
        world.publish(b"x", "log")
    world.clock.advance(5_000)
    world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
    assert partition.first == BLOCK_RECORDS + 10
    world.publish(b"new", "log")
    world.clock.advance(999)
    world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
    assert bodies(partition) == [b"new"]


def test_what_every_group_has_read_may_go(world: World) -> None:
    stream = stream_of(world, until_committed=True)
    (partition,) = stream.partitions
    for _ in range(BLOCK_RECORDS * 2):
        world.publish(b"x", "log")
    retention.trim(stream)
    assert partition.first == 0
    group_of(stream, "a").commit({0: BLOCK_RECORDS * 2})
    group_of(stream, "b").commit({0: BLOCK_RECORDS + 1})
    retention.trim(stream)
    assert partition.first == BLOCK_RECORDS


# Groups


def fill(world: World, stream: Stream, count: int) -> None:
    for _ in range(count):
        world.publish(b"x", stream.name)


@pytest.mark.row("S4-35")
def test_each_group_has_its_own_position(world: World) -> None:
    stream = stream_of(world)
    fill(world, stream, 5)
    group_of(stream, "a").commit({0: 2})
    assert group_of(stream, "a").lag() == 3
    assert group_of(stream, "b").lag() == 5
    assert group_of(stream, "b").position(0) == -1


def test_a_commit_never_moves_back_and_a_reset_does(world: World) -> None:
    stream = stream_of(world)
    fill(world, stream, 5)
    group = group_of(stream, "a")
    group.commit({0: 4})
    group.commit({0: 2})
    assert group.position(0) == 4
    group.reset({0: 2})
    assert group.position(0) == 2
    group.commit({0: 3})
    assert group.position(0) == 3


@pytest.mark.parametrize(("index", "offset"), [(0, 6), (0, -1), (1, 0)])
def test_a_commit_of_what_is_not_there_changes_nothing(world: World, index: int, offset: int) -> None:
    stream = stream_of(world)
    fill(world, stream, 5)
    group = group_of(stream, "a")
    with pytest.raises(InvalidArgument):
        group.commit({0: 3, index: offset})
    assert group.position(0) == -1


def shares(group: Group) -> dict[str, list[int]]:
    return {name: member.partitions for name, member in group.members.items()}


@pytest.mark.row("S4-35")
def test_partitions_are_shared_out_and_surplus_members_idle(world: World) -> None:
    stream = stream_of(world, partitions=3)
    group = group_of(stream, "g")
    group.join("a")
    assert shares(group) == {"a": [0, 1, 2]}
    group.join("b")
    assert shares(group) == {"a": [0, 1], "b": [2]}
    group.join("c")
    group.join("d")
    assert shares(group) == {"a": [0], "b": [1], "c": [2], "d": []}
    group.leave("b")
    assert shares(group) == {"a": [0], "c": [1], "d": [2]}


def test_whoever_is_not_heard_of_loses_its_share(world: World) -> None:
    stream = stream_of(world, partitions=2)
    group = group_of(stream, "g")
    group.join("a", session_ms=1_000)
    group.join("b", session_ms=5_000)
    world.clock.advance(1_500)
    world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
    assert shares(group) == {"b": [0, 1]}
    with pytest.raises(GroupFenced):
        group.member("a")


def test_commits_of_another_generation_or_share_are_refused(world: World) -> None:
    stream = stream_of(world, partitions=2)
    fill(world, stream, 4)
    group = group_of(stream, "g")
    group.join("a")
    old = group.generation
    group.join("b")
    with pytest.raises(GroupFenced):
        group.commit({0: 1}, "a", old)
    with pytest.raises(GroupFenced):
        group.commit({1: 1}, "a", group.generation)
    with pytest.raises(GroupFenced):
        group.commit({0: 1})
    group.commit({0: 1}, "a", group.generation)
    assert group.committed == [1, -1]


def test_a_group_in_use_is_neither_reset_nor_deleted(world: World) -> None:
    stream = stream_of(world)
    group = group_of(stream, "g")
    group.join("a")
    with pytest.raises(InUse):
        group.reset({0: 0})
    with pytest.raises(InUse):
        delete_group(stream, "g")
    group.leave("a")
    delete_group(stream, "g")
    with pytest.raises(GroupNotFound):
        group_of(stream, "g", create=False)


def test_a_group_that_nobody_uses_is_forgotten(world: World) -> None:
    stream = stream_of(world)
    group_of(stream, "g").commit({0: 0})
    world.clock.advance(8 * 86_400_000)
    world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
    assert not stream.groups

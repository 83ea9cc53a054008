"""Streams and groups in the journal: what was shown is there again, nothing is shown before it is durable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core import retention, streams
from rookery.core.groups import group_of
from rookery.core.stream import BLOCK_RECORDS, Partition, Stream
from rookery.errors import StoreDamaged
from tests.contract.journal_world import SITES, FileSite, MemorySite, Site, World


@pytest.fixture(params=sorted(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = SITES[request.param](tmp_path)
    yield site
    site.stop()


def stream_of(world: World, name: str = "log", **said: object) -> Stream:
    return streams.declare(world.tenant(), name, said)[0]


def read(partition: Partition, start: int | None = None) -> list[tuple[int, bytes]]:
    shard = partition.stream.tenant.shard
    first = int(partition.tail) if start is None else start
    return [(o, shard.message_of(partition.record(o)).body) for o in range(first, int(partition.visible))]


def tail_of(world: World, name: str = "log") -> Partition:
    return world.tenant().stream(name).partitions[0]


def test_records_are_shown_when_they_are_durable_and_come_back(site: Site) -> None:
    world = site.start()
    stream = stream_of(world)
    for i in range(5):
        world.publish(b"%d" % i, "log")
    partition = stream.partitions[0]
    assert (partition.end, partition.visible) == (5, 0)
    world.write()
    assert partition.visible == 5
    expected = read(partition)
    assert expected == [(i, b"%d" % i) for i in range(5)]
    stamps = [int(partition.stamp(i)) for i in range(5)]
    world = site.restart(world)
    partition = tail_of(world)
    assert read(partition) == expected
    assert [int(partition.stamp(i)) for i in range(5)] == stamps
    world.publish(b"next", "log")
    world.write()
    assert read(partition)[-1] == (5, b"next")


def test_nothing_is_shown_when_the_power_fails_before_the_sync(tmp_path: Path) -> None:
    site = MemorySite(tmp_path)
    world = site.start()
    stream_of(world)
    world.publish(b"kept", "log")
    world.write()
    world.publish(b"lost", "log")
    world.shard.flush()
    assert tail_of(world).visible == 1
    site.cut_power(world)
    world = site.start()
    assert read(tail_of(world)) == [(0, b"kept")]
    world.publish(b"another", "log")
    world.write()
    assert read(tail_of(world)) == [(0, b"kept"), (1, b"another")]


def test_records_move_when_their_segment_retires(site: Site) -> None:
    world = site.start()
    stream_of(world, partitions=2)
    for i in range(50):
        world.publish(b"%d" % i, "log")
    world.roll()
    before = [read(p) for p in world.tenant().stream("log").partitions]
    world.retire_all()
    assert [read(p) for p in world.tenant().stream("log").partitions] == before
    world = site.restart(world)
    assert [read(p) for p in world.tenant().stream("log").partitions] == before


def test_what_was_let_go_of_stays_gone_and_its_offsets_are_not_used_again(site: Site) -> None:
    world = site.start()
    stream = stream_of(world, max_age_ms=1_000)
    for _ in range(BLOCK_RECORDS + 5):
        world.publish(b"x", "log")
    world.write()
    world.pass_ms(5_000)
    world.write()
    assert stream.partitions[0].first == BLOCK_RECORDS + 5
    world.roll()
    world.settle()
    assert len(world.journal.segments) == 1
    world = site.restart(world)
    partition = tail_of(world)
    assert (partition.first, partition.visible, partition.end) == (BLOCK_RECORDS + 5,) * 3
    world.publish(b"y", "log")
    world.write()
    assert read(partition) == [(BLOCK_RECORDS + 5, b"y")]


def test_trimming_without_a_roll_comes_back_too(site: Site) -> None:
    world = site.start()
    stream = stream_of(world)
    for i in range(BLOCK_RECORDS * 2):
        world.publish(b"%d" % i, "log")
    world.write()
    retention.release(stream.partitions[0], int(BLOCK_RECORDS) + 1)
    world.write()
    expected = read(stream.partitions[0])
    assert expected[0][0] == BLOCK_RECORDS
    world = site.restart(world)
    assert read(tail_of(world)) == expected
    assert tail_of(world).first == BLOCK_RECORDS


def test_group_offsets_are_shown_when_durable_and_survive(site: Site) -> None:
    world = site.start()
    stream = stream_of(world)
    for _ in range(10):
        world.publish(b"x", "log")
    world.write()
    group = group_of(stream, "g")
    group.commit({0: 7})
    assert group.position(0) == -1
    world.write()
    assert group.position(0) == 7
    world = site.restart(world)
    group = group_of(world.tenant().stream("log"), "g", create=False)
    assert group.position(0) == 7
    group.commit({0: 3})
    world.roll()
    group.reset({0: 2})
    world.roll()
    world = site.restart(world)
    assert group_of(world.tenant().stream("log"), "g", create=False).position(0) == 2


def test_a_commit_asked_for_in_the_batch_of_a_roll_is_in_its_state(site: Site) -> None:
    world = site.start()
    stream = stream_of(world)
    world.publish(b"x", "log")
    world.write()
    group_of(stream, "g").commit({0: 1})
    world.roll_now()
    world = site.restart(world)
    assert group_of(world.tenant().stream("log"), "g", create=False).position(0) == 1


def test_a_group_that_was_reset_stays_where_it_is(site: Site) -> None:
    world = site.start()
    stream = stream_of(world)
    for _ in range(10):
        world.publish(b"x", "log")
    world.write()
    group_of(stream, "g").commit({0: 7})
    group_of(stream, "g").reset({0: 2})
    world.write()
    for _ in range(2):
        # the counters of the new segment are those that were asked for last
        world.roll()
        world = site.restart(world)
        assert group_of(world.tenant().stream("log"), "g", create=False).position(0) == 2
    group_of(world.tenant().stream("log"), "g").commit({0: 3})
    world.write()
    assert group_of(world.tenant().stream("log"), "g").position(0) == 3


def test_a_deleted_stream_is_gone_and_its_name_starts_afresh(site: Site) -> None:
    world = site.start()
    stream_of(world)
    world.publish(b"old", "log")
    world.write()
    streams.delete(world.tenant(), "log")
    stream_of(world)
    world.publish(b"new", "log")
    world.write()
    assert read(tail_of(world)) == [(0, b"new")]
    world = site.restart(world)
    assert read(tail_of(world)) == [(0, b"new")]
    streams.delete(world.tenant(), "log")
    world.roll()
    world.settle()
    world = site.restart(world)
    assert not world.tenant().streams
    assert not world.shard.partitions


def test_a_stream_deleted_with_records_under_way_leaves_nothing(site: Site) -> None:
    world = site.start()
    stream_of(world)
    world.publish(b"x", "log")
    streams.delete(world.tenant(), "log")
    world.write()
    world = site.restart(world)
    assert not world.tenant().streams


def test_bindings_to_streams_survive(site: Site) -> None:
    world = site.start()
    world.tenant().bind("amq.topic", stream_of(world), "a.#")
    world.write()
    world = site.restart(world)
    world.publish(b"x", "a.b", "amq.topic")
    world.write()
    assert read(tail_of(world)) == [(0, b"x")]


def test_lost_records_are_never_skipped_silently(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    world = site.start()
    stream_of(world)
    world.queue("q")
    world.publish(b"1", "log")
    world.roll()
    world.publish(b"2", "log")
    world.roll()
    world.publish(b"3", "log")
    world.close()
    gone = sorted(site.directory.glob("*.log"))[1]
    gone.unlink()
    with pytest.raises(StoreDamaged):
        site.start()


@settings(deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["publish", "write", "roll", "retire", "trim", "commit", "restart"]), min_size=5, max_size=40
    )
)
def test_whatever_happens_a_record_shown_never_changes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    site = MemorySite(tmp_path_factory.mktemp("site"))
    world = site.start()
    stream_of(world)
    world.write()
    seen: dict[int, bytes] = {}
    count = 0
    committed = -1
    for step in steps:
        partition = tail_of(world)
        if step == "publish":
            count += 1
            world.publish(b"%d" % count, "log")
        elif step == "write":
            world.write()
        elif step == "roll":
            world.roll()
        elif step == "retire":
            world.retire_all()
        elif step == "trim":
            retention.release(partition, int(partition.visible))
        elif step == "commit":
            world.write()
            group_of(partition.stream, "g").commit({0: int(partition.visible)})
            world.write()
            committed = max(committed, int(partition.visible))
        else:
            site.cut_power(world)
            world = site.start()
            partition = tail_of(world)
            assert all(offset < partition.visible for offset in seen)
        for offset, body in read(partition):
            assert seen.setdefault(offset, body) == body
        assert [offset for offset, _ in read(partition)] == list(range(int(partition.tail), int(partition.visible)))
        if committed >= 0:
            assert group_of(partition.stream, "g").position(0) == committed
    site.stop()


def test_a_stream_is_told_from_another_that_has_its_name_later(site: Site) -> None:
    world = site.start()
    first = stream_of(world, partitions=2).id()
    assert stream_of(world).id() == first
    world.write()
    world = site.restart(world)
    assert stream_of(world).id() == first
    # a segment begins with all that is there
    world.retire_all()
    world = site.restart(world)
    assert stream_of(world).id() == first
    streams.delete(world.tenant(), "log")
    second = stream_of(world, partitions=2).id()
    assert second != first
    world.write()
    world = site.restart(world)
    assert stream_of(world).id() == second

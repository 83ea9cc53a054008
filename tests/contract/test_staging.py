"""Staged publishing: invisible until committed, all or nothing, once per epoch, whatever crashes on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core import streams
from rookery.core.staging import CHUNK_MS, EPOCH_MS, SLICE_ROWS, Filling, Row
from rookery.core.stream import Partition, Stream
from rookery.errors import ChunkNotFound, ExchangeNotFound, InvalidArgument, LimitExceeded, StaleEpoch, StreamNotFound
from rookery.format import records
from rookery.format.properties import Properties, encode
from tests.contract.journal_world import SITES, MemorySite, Site, World


@pytest.fixture(params=sorted(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = SITES[request.param](tmp_path)
    yield site
    site.stop()


def stream_of(world: World, **said: object) -> Stream:
    return streams.declare(world.tenant(), "log", said)[0]


def rows(*bodies: bytes, key: str = "log") -> list[Row]:
    return [Row(key, b"\0\0", body) for body in bodies]


def stage(world: World, chunk: str, *bodies: bytes, write: bool = True) -> None:
    world.shard.staging.stage(world.tenant(), chunk, "log", "", rows(*bodies))
    if write:
        world.write()


def commit(world: World, epoch: int, *chunks: str, producer: str = "spark") -> dict:
    return world.shard.staging.commit(world.tenant(), producer, epoch, chunks)


def bodies(partition: Partition) -> list[bytes]:
    shard = partition.stream.tenant.shard
    found = range(int(partition.tail), int(partition.visible))
    return [shard.message_of(partition.record(o)).body for o in found]


def tail(world: World) -> Partition:
    return world.tenant().stream("log").partitions[0]


def test_staged_rows_are_shown_all_at_once_when_the_commit_is_durable(site: Site) -> None:
    world = site.start()
    partition = stream_of(world).partitions[0]
    world.publish(b"before", "log")
    stage(world, "a", b"1", b"2")
    stage(world, "b", b"3")
    assert bodies(partition) == [b"before"]
    result = commit(world, 0, "a", "b")
    assert result == {
        "rows": 3,
        "positions": [
            {"stream": "log", "partition": 0, "first": 1, "last": 2},
            {"stream": "log", "partition": 0, "first": 3, "last": 3},
        ],
    }
    assert bodies(partition) == [b"before"]
    world.publish(b"after", "log")
    world.write()
    assert bodies(partition) == [b"before", b"1", b"2", b"3", b"after"]
    world = site.restart(world)
    assert bodies(tail(world)) == [b"before", b"1", b"2", b"3", b"after"]


def test_committed_rows_have_offsets_and_times_of_their_own(site: Site) -> None:
    world = site.start()
    stream_of(world)
    world.publish(b"before", "log")
    stage(world, "a", b"1", b"2")
    world.pass_ms(5_000)
    commit(world, 0, "a")
    world.write()
    for _ in range(2):
        partition = tail(world)
        view = records.RecordView()
        for offset in range(3):
            view.read(partition.record(offset), 0)
            assert (view.offset, view.stamp) == (offset, partition.stamp(offset))
        assert partition.stamp(1) == partition.stamp(0) + 5_000
        world = site.restart(world)


def test_what_is_appended_and_not_yet_written_goes_before(site: Site) -> None:
    world = site.start()
    stream_of(world)
    stage(world, "a", b"1", b"2")
    world.publish(b"x", "log")
    commit(world, 0, "a")
    world.publish(b"y", "log")
    world.write()
    assert bodies(tail(world)) == [b"x", b"1", b"2", b"y"]
    world = site.restart(world)
    assert bodies(tail(world)) == [b"x", b"1", b"2", b"y"]


def test_an_epoch_happens_once(site: Site) -> None:
    world = site.start()
    stream_of(world)
    stage(world, "a", b"1")
    first = commit(world, 5, "a")
    world.write()
    assert commit(world, 5, "a") == first
    assert commit(world, 5, "of a zombie") == first
    with pytest.raises(StaleEpoch):
        commit(world, 4, "a")
    world = site.restart(world)
    assert commit(world, 5, "a") == first
    with pytest.raises(StaleEpoch):
        commit(world, 4, "a")
    world.roll()
    world = site.restart(world)
    assert commit(world, 5, "a") == first
    stage(world, "b", b"2")
    commit(world, 6, "b")
    commit(world, 0, producer="another")
    world.write()
    assert bodies(tail(world)) == [b"1", b"2"]


def test_a_chunk_that_is_not_there_refuses_the_whole(site: Site) -> None:
    world = site.start()
    stream_of(world)
    stage(world, "a", b"1")
    stage(world, "half", b"2", write=False)
    for wrong in ("b", "half"):
        with pytest.raises(ChunkNotFound):
            commit(world, 0, "a", wrong)
    world.write()
    assert bodies(tail(world)) == []
    commit(world, 0, "a")
    world.write()
    assert bodies(tail(world)) == [b"1"]


def test_staging_again_is_the_same_chunk(site: Site) -> None:
    world = site.start()
    stream_of(world)
    stage(world, "a", b"1")
    stage(world, "a", b"1")
    with pytest.raises(InvalidArgument):
        stage(world, "a", b"1", b"2")
    commit(world, 0, "a", "a")
    world.write()
    assert bodies(tail(world)) == [b"1"]


def test_uncommitted_chunks_survive_retiring_and_restarts_and_expire(site: Site) -> None:
    world = site.start()
    stream_of(world)
    stage(world, "a", b"1")
    world.retire_all()
    world = site.restart(world)
    commit(world, 0, "a")
    stage(world, "late", b"2")
    world.write()
    world.retire_all()
    assert bodies(tail(world)) == [b"1"]
    world = site.restart(world)
    assert bodies(tail(world)) == [b"1"]
    world.pass_ms(CHUNK_MS)
    world.write()
    with pytest.raises(ChunkNotFound):
        commit(world, 1, "late")
    world = site.restart(world)
    assert not world.shard.staging.chunks
    world.pass_ms(EPOCH_MS)
    assert not world.shard.staging.producers


def test_what_was_staged_for_an_epoch_and_not_committed_with_it_is_dropped(site: Site) -> None:
    world = site.start()
    stream_of(world)
    staging, tenant = world.shard.staging, world.tenant()
    for chunk, epoch in (("won", 3), ("lost", 3), ("dead", 1), ("next", 4)):
        staging.stage(tenant, chunk, "log", "", rows(b"1"), ("spark", epoch))
    staging.stage(tenant, "other", "log", "", rows(b"2"), ("flink", 3))
    staging.stage(tenant, "free", "log", "", rows(b"3"))
    world.write()
    commit(world, 3, "won")
    world.write()
    world = site.restart(world)
    assert {id for _, id in world.shard.staging.chunks} == {"next", "other", "free"}
    assert bodies(tail(world)) == [b"1"]


def test_of_an_epoch_that_has_happened_nothing_is_kept(site: Site) -> None:
    world = site.start()
    stream_of(world)
    stage(world, "a", b"1")
    commit(world, 3, "a")
    world.write()
    world = site.restart(world)
    staging, tenant = world.shard.staging, world.tenant()
    late = staging.stage(tenant, "late", "log", "", rows(b"1", b"2"), ("spark", 3))
    assert (late.rows, late.bytes) == (2, 0)
    with pytest.raises(StaleEpoch):
        staging.stage(tenant, "zombie", "log", "", rows(b"1"), ("spark", 2))
    for wrong in (("", 3), ("spark", -1)):
        with pytest.raises(InvalidArgument):
            staging.stage(tenant, "wrong", "log", "", rows(b"1"), wrong)
    assert not staging.chunks
    commit(world, 3, "late")
    assert bodies(tail(world)) == [b"1"]


def test_a_chunk_waits_as_long_as_it_is_told(site: Site) -> None:
    world = site.start()
    stream_of(world)
    world.shard.staging.stage(world.tenant(), "short", "log", "", rows(b"1"), wait_ms=5_000)
    stage(world, "long", b"2")
    world.pass_ms(6_000)
    world.write()
    assert {id for _, id in world.shard.staging.chunks} == {"long"}


def test_keys_lead_to_their_partitions(site: Site) -> None:
    world = site.start()
    stream = stream_of(world, partitions=4)
    keyed = [Row("log", encode(Properties(headers={"x-key": f"k{n % 5}"})), b"%d" % n) for n in range(20)]
    world.shard.staging.stage(world.tenant(), "a", "log", "", keyed)
    world.write()
    commit(world, 0, "a")
    for n in range(20):
        world.shard.publish(world.tenant(), "", "log", keyed[n].props, b"again")
    world.write()
    sizes = [len(bodies(p)) for p in stream.partitions]
    assert sum(sizes) == 40
    assert all(size % 2 == 0 for size in sizes)
    world = site.restart(world)
    assert [len(bodies(p)) for p in world.tenant().stream("log").partitions] == sizes


def test_a_commit_to_an_exchange_is_enqueued_in_slices_exactly_once(site: Site) -> None:
    world = site.start()
    world.queue("q")
    count = SLICE_ROWS * 2 + 10
    staged = [Row("q", b"\0\0", b"%d" % n) for n in range(count)]
    world.shard.staging.stage(world.tenant(), "a", "", "", staged)
    world.write()
    assert world.bodies() == []
    assert commit(world, 0, "a")["rows"] == count
    world.write()
    world.pass_ms(1)
    world.write()
    assert len(world.bodies()) == SLICE_ROWS
    world = site.restart(world)
    world.pass_ms(1)
    world.write()
    world.roll()
    world = site.restart(world)
    for _ in range(3):
        world.pass_ms(1)
        world.write()
    assert world.bodies() == [b"%d" % n for n in range(count)]
    world = site.restart(world)
    world.pass_ms(1)
    world.write()
    assert world.bodies() == [b"%d" % n for n in range(count)]
    assert not world.shard.partitions


def test_wrong_targets_and_rows_change_nothing(site: Site) -> None:
    world = site.start()
    staging = world.shard.staging
    with pytest.raises(StreamNotFound):
        staging.stage(world.tenant(), "a", "nowhere", "", rows(b"1"))
    with pytest.raises(ExchangeNotFound):
        staging.stage(world.tenant(), "a", "", "nowhere", rows(b"1"))
    stream_of(world)
    with pytest.raises(InvalidArgument):
        staging.stage(world.tenant(), "a", "log", "", [])
    world.tenant().set_limits({"message_bytes_max": 10})
    with pytest.raises(LimitExceeded):
        staging.stage(world.tenant(), "a", "log", "", rows(b"1" * 20))
    assert not staging.chunks
    stage(world, "a", b"1")
    streams.delete(world.tenant(), "log")
    with pytest.raises(StreamNotFound):
        commit(world, 0, "a")
    assert staging.drop(world.tenant(), "a")
    world.roll()
    world.settle()
    world = site.restart(world)
    assert not world.shard.partitions


def test_a_chunk_that_was_not_finished_leaves_nothing(site: Site) -> None:
    world = site.start()
    stream_of(world)
    staging = world.shard.staging
    # so that the segment stays
    world.publish(b"before", "log")
    world.write()
    filling = staging.begin(world.tenant(), "a", "log", "", rows(b"1", b"2", b"3", b"4"))
    assert not filling.step(7)
    world.write()
    assert not staging.chunks_of(world.tenant())
    with pytest.raises(ChunkNotFound):
        commit(world, 0, "a")
    site.kill(world)
    world = site.start()
    assert not world.shard.staging.chunks_of(world.tenant())
    # nothing that comes later has the number of those rows
    streams.declare(world.tenant(), "other", {})
    stage(world, "b", b"5")
    commit(world, 0, "b")
    world.write()
    world = site.restart(world)
    assert bodies(tail(world)) == [b"before", b"5"]
    assert bodies(world.tenant().stream("other").partitions[0]) == []


def test_a_chunk_in_steps_ends_with_what_it_is_for(site: Site) -> None:
    world = site.start()
    stream_of(world)
    staging = world.shard.staging
    world.write()
    known = len(world.shard.partitions)
    gone = staging.begin(world.tenant(), "a", "log", "", rows(b"1", b"2"))
    twice = staging.begin(world.tenant(), "b", "log", "", rows(b"1", b"2"))
    late = staging.begin(world.tenant(), "c", "log", "", rows(b"1", b"2"), ("spark", 0))
    for filling in (gone, twice, late):
        assert not filling.step(3)
    stage(world, "b", b"3", b"4")
    assert twice.step(3)
    assert twice.chunk is staging.chunks["default", "b"]
    commit(world, 0, "b")
    assert late.step(3)
    assert (late.chunk.rows, late.chunk.bytes) == (2, 0)
    world.write()
    assert not staging.chunks_of(world.tenant())
    assert bodies(tail(world)) == [b"3", b"4"]
    assert len(world.shard.partitions) == known + 1
    streams.delete(world.tenant(), "log")
    stream_of(world)
    with pytest.raises(StreamNotFound):
        gone.step(3)
    world.write()
    assert len(world.shard.partitions) == known
    with pytest.raises(InvalidArgument):
        staging.begin(world.tenant(), "d", "log", "", [*rows(b"1"), Row("log", b"", b"", partition=9)]).step(9)
    world = site.restart(world)
    assert bodies(tail(world)) == []
    assert not world.shard.staging.chunks_of(world.tenant())


@settings(deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["publish", "stage", "begin", "step", "commit", "again", "write", "roll", "retire", "crash"]),
        min_size=5,
        max_size=40,
    )
)
def test_each_epoch_once_and_all_of_it(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    site = MemorySite(tmp_path_factory.mktemp("site"))
    world = site.start()
    stream_of(world)
    world.write()
    count = 0
    filling: Filling | None = None
    letters: dict[str, bytes] = {}
    open_chunks: list[str] = []
    committed: dict[int, list[bytes]] = {}
    seen: dict[int, bytes] = {}
    epoch = 0
    for step in steps:
        if step == "publish":
            world.publish(b"p", "log")
        elif step == "stage":
            count += 1
            stage(world, f"c{count}", b"%d-a" % count, b"%d-b" % count)
            letters[f"c{count}"] = b"ab"
            open_chunks.append(f"c{count}")
        elif step == "begin" and filling is None:
            count += 1
            more = rows(*(b"%d-%c" % (count, letter) for letter in b"abcdef"))
            letters[f"c{count}"] = b"abcdef"
            filling = world.shard.staging.begin(world.tenant(), f"c{count}", "log", "", more)
        elif step == "step" and filling is not None:
            if filling.step(4):
                open_chunks.append(filling.chunk.id)
                filling = None
            world.write()
        elif step == "commit" and open_chunks:
            if filling is not None:
                with pytest.raises(ChunkNotFound):
                    commit(world, epoch, *open_chunks, filling.chunk.id)
            commit(world, epoch, *open_chunks)
            world.write()
            committed[epoch] = [b"%s-%c" % (c[1:].encode(), x) for c in open_chunks for x in letters[c]]
            open_chunks = []
            epoch += 1
        elif step == "again" and epoch:
            commit(world, epoch - 1, "whatever")
        elif step == "write":
            world.write()
        elif step == "roll":
            world.roll()
        elif step == "retire":
            world.retire_all()
        elif step == "crash":
            site.cut_power(world)
            world = site.start()
            filling = None
            assert set(open_chunks) == {chunk.id for chunk in world.shard.staging.chunks_of(world.tenant())}
        partition = tail(world)
        found = bodies(partition)
        for offset, body in enumerate(found):
            assert seen.setdefault(offset, body) == body
        rows_found = [body for body in found if body != b"p"]
        assert rows_found == [body for n in sorted(committed) for body in committed[n]]
    site.stop()

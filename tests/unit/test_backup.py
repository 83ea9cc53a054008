"""A backup of a running broker is the broker as it was at one moment, and can be started on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery import Broker
from rookery.care.backup import backup
from rookery.care.repair import inspect, repair
from rookery.errors import InvalidArgument, StoreDamaged, StoreError
from rookery.store import segments
from rookery.store.segments import Segments
from tests.contract.journal_world import FileSite, World, batches, picture


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FileSite]:
    made = FileSite(tmp_path)
    yield made
    made.stop()


def start_on(directory: Path) -> World:
    site = FileSite(directory.parent)
    site.directory = directory
    return site.start()


def listed(world: World) -> list[int]:
    """The segments that are on the medium."""
    return [number for number, _ in world.medium.segments()]


def filled(site: FileSite, **options: Any) -> World:
    world = site.start(segment_bytes=2_000, **options)
    world.queue()
    for n in range(60):
        world.publish(b"%d " % n + b"x" * 150)
        world.write()
    return world


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_backup_has_everything_and_the_broker_goes_on(site: FileSite, tmp_path: Path) -> None:
    world = filled(site)
    world.publish_once("k", b"once")
    world.ack(5)
    world.write()
    before = picture(world)
    seen: list[tuple[int, int]] = []
    copied = backup(site.directory, tmp_path / "copy", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2 * copied.bytes, 2 * copied.bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (copied.source, copied.target) == (str(site.directory), str(tmp_path / "copy"))
    assert copied.segments == len(world.journal.segments)
    assert copied.batches == inspect(tmp_path / "copy").batches > 60
    other = start_on(tmp_path / "copy")
    assert before == picture(other)
    assert other.recovery.torn_bytes == 0
    other.publish(b"only here")
    other.close()
    world.ack(56)
    world.settle()
    assert world.queue().ready == 0
    assert len(listed(world)) == 1


def test_a_broker_that_is_stopped_or_has_nothing_can_be_backed_up(site: FileSite, tmp_path: Path) -> None:
    world = site.start()
    backup(site.directory, tmp_path / "nothing")
    assert not start_on(tmp_path / "nothing").shard.tenants
    world.queue()
    world.publish(b"x")
    world.close()
    (tmp_path / "empty").mkdir()
    backup(site.directory, tmp_path / "empty")
    other = start_on(tmp_path / "empty")
    assert other.bodies() == [b"x"]
    other.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_backup_while_everything_moves(site: FileSite, tmp_path: Path, seed: int) -> None:
    """Between any two slices the broker publishes, settles, rolls and retires; the copy is of one batch's end."""
    chance = random.Random(seed)
    world = filled(site)
    pictures = {world.journal._seq: picture(world)}
    first, retired = world.journal._seq, world.journal.retired

    def between(done: int, total: int) -> None:
        for _ in range(chance.randrange(1, 8)):
            world.publish(b"y" * chance.randrange(200))
        world.ack(chance.randrange(1, 9))
        world.settle()
        pictures[world.journal._seq] = picture(world)

    before = descriptors()
    backup(site.directory, tmp_path / "copy", between, slice_bytes=700)
    assert len(pictures) > 10
    assert world.journal.retired > retired + 3
    # what is not needed any more is deleted, whoever reads it, and nobody keeps it when the copy is done
    assert listed(world) == [segment.number for segment in world.journal.segments]
    assert abs(descriptors() - before) <= 2
    copied = start_on(tmp_path / "copy")
    assert copied.recovery.seq == first
    assert pictures[first] == picture(copied)
    copied.close()


def test_what_is_being_written_is_not_in_the_copy(site: FileSite, tmp_path: Path) -> None:
    """A batch of which only a part is there, as a writer leaves it while it works."""
    world = filled(site)
    last = listed(world)[-1]
    whole = site.segment(last)
    ends = [at + int(header.size) for at, header in batches(whole)]
    site.kill(world)
    # its last bytes are zeros, as is what follows
    for cut in range(ends[-2] + 1, len(whole[: ends[-1]].rstrip(b"\0")), 7):
        path = site.directory / f"{last:08d}.log"
        path.write_bytes(whole[:cut] + bytes(4_096))
        copied = backup(site.directory, tmp_path / f"copy-{cut}")
        report = inspect(tmp_path / f"copy-{cut}")
        assert (report.sound, report.unfinished, report.batches) == (True, None, copied.batches)
        assert (tmp_path / f"copy-{cut}" / path.name).stat().st_size == ends[-2]


def test_a_batch_that_is_written_while_it_is_read(
    site: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read sees the end of a batch missing and the next batch there; that is no damage."""
    world = filled(site)
    world.close()
    last = site.numbers()[-1]
    while len(list(batches(site.segment(last)))) < 3:
        world = site.start(segment_bytes=1 << 20)
        world.publish(b"more")
        world.close()
        last = site.numbers()[-1]
    whole = site.segment(last)
    *_, (_, torn), _ = [(at, at + int(header.size)) for at, header in batches(whole)]
    early = whole[: torn - 60] + bytes(60) + whole[torn:]
    reads: list[int] = []

    def read(self: Segments, number: int, offset: int, size: int) -> bytes:
        reads.append(number)
        return early if reads.count(last) == 1 and number == last else original(self, number, offset, size)

    original = Segments.read
    monkeypatch.setattr(Segments, "read", read)
    assert inspect(site.directory).sound
    assert reads.count(last) == 2
    # but what stays so is damage
    monkeypatch.undo()
    (site.directory / f"{last:08d}.log").write_bytes(early)
    assert not inspect(site.directory).sound


def test_segments_that_come_and_go_while_they_are_opened(site: FileSite, monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(site)
    gone = listed(world)[0]
    looks: list[set[int]] = []
    original = Segments._listed

    def look(self: Segments) -> set[int]:
        found = original(self)
        looks.append(found)
        if len(looks) in (1, 2, 5):
            # between a look and the opening, between two looks
            world.ack(12)
            world.publish(b"new")
            world.settle()
            # deletes are done in the order of the calls
            done = threading.Event()
            world.medium.sync(lambda _: done.set())
            assert done.wait(30)
        return found

    monkeypatch.setattr(Segments, "_listed", look)
    with Segments(site.directory) as opened:
        assert opened.numbers() == listed(world)
        assert gone not in opened.numbers()
        assert all(opened.read(number, 0, 4) == b"RKB1" for number in opened.numbers())
    assert len(looks) > 3


def test_a_damaged_journal_is_not_copied(site: FileSite, tmp_path: Path) -> None:
    world = filled(site)
    site.kill(world)
    path = site.directory / f"{site.numbers()[1]:08d}.log"
    good = path.read_bytes()
    path.write_bytes(good[:50] + b"\xff" + good[51:])
    with pytest.raises(StoreDamaged) as caught:
        backup(site.directory, tmp_path / "copy")
    assert (caught.value.file, caught.value.offset) == (str(path), 0)
    path.write_bytes(good)
    (site.directory / "epoch").unlink()
    with pytest.raises(StoreDamaged):
        backup(site.directory, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize("target", ["shard", "shard/copy", "full", "file"])
def test_a_target_that_cannot_be_used_is_refused(site: FileSite, tmp_path: Path, target: str) -> None:
    world = filled(site)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("")
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgument) as caught:
        backup(site.directory, tmp_path / target)
    assert caught.value.argument == "target"
    assert sorted(tmp_path.rglob("*")) == before
    world.close()


@pytest.mark.parametrize("source", ["nowhere", "full"])
def test_what_is_no_data_directory_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("")
    with pytest.raises(InvalidArgument) as caught:
        backup(tmp_path / source, tmp_path / "copy")
    assert caught.value.argument == "source"


def test_a_backup_that_fails_leaves_nothing(site: FileSite, tmp_path: Path) -> None:
    world = filled(site)
    (tmp_path / "a file").write_text("")
    with pytest.raises(StoreError):
        backup(site.directory, tmp_path / "a file" / "copy")

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(site.directory, tmp_path / "copy", interrupted)
    assert not list(tmp_path.glob("copy*"))
    # what a killed attempt left is in nobody's way
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial" / "00000001.log").write_bytes(b"half")
    backup(site.directory, tmp_path / "copy")
    assert inspect(tmp_path / "copy").sound
    world.close()


def test_more_segments_than_a_process_may_have_open(site: FileSite, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    world = filled(site)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(segments, "SPARE_FILES", 2_000)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, hard))
        with Segments(site.directory) as opened:
            assert opened.numbers() == listed(world)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 2_000 + len(listed(world))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if hard != resource.RLIM_INFINITY:
        monkeypatch.setattr(segments, "SPARE_FILES", hard)
        with pytest.raises(StoreError, match="ulimit"):
            Segments(site.directory)


def test_sealed_records_of_streams_are_in_the_copy_and_outlive_a_repair(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    data = tmp_path / "data"
    with Broker(enable_persistence=True, persistence_path=str(data)) as broker:
        orders = broker.stream("orders")
        orders.publish_many([f"record {n}" for n in range(5)])
        orders.seal()
        orders.publish("record 5")
        copied = backup(data, tmp_path / "copy")
        assert copied.sealed_files == 1
        orders.publish_many([f"record {n}" for n in range(6, 9)])
    path = data / "00000001.log"
    content = bytearray(path.read_bytes())
    content[content.index(b"record 5")] ^= 1
    path.write_bytes(content)
    assert repair(data).out == str(data)
    for directory, count in ((tmp_path / "copy", 6), (data, 9)):
        with Broker(enable_persistence=True, persistence_path=str(directory)) as broker:
            orders = broker.stream("orders")
            records = [*orders.read(0), *orders.read(5)]
            assert [record.data for record in records[:5]] == [f"record {n}" for n in range(5)]
            assert len(records) == count
    (file,) = (tmp_path / "copy").rglob("*.parquet")
    file.unlink()
    with pytest.raises(StoreError, match="sealed records"):
        backup(tmp_path / "copy", tmp_path / "another")

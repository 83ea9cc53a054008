"""One owner at a time, and a journal that ends where it was recorded to end.

The simulation takes a living owner over on a medium in memory. Here it is files, with locks that keep nobody out: the
new owner comes at every point of an append of the old one, and the old one goes on at every step of the new one.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rookery.care.repair import inspect, repair
from rookery.errors import Fenced, StoreDamaged, StoreLocked
from rookery.store import disk
from rookery.store.ownership import Ownership
from tests.contract.faulty import FaultyMedium
from tests.contract.journal_world import FileSite, MemorySite, Site, World, batches
from tests.contract.media import UnlockedMedium

# Two owners


class Crowd:
    """Several owners of one directory, and what each of them was confirmed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.worlds: list[World] = []
        self.confirmed: list[bytes] = []
        self.tried: set[bytes] = set()

    def start(self, kind: type[UnlockedMedium] = UnlockedMedium, **options: Any) -> World:
        world = World(kind(self.directory, segment_bytes=0, reserve_bytes=0, **options))
        self.worlds.append(world)
        return world

    def publish(self, world: World, body: bytes) -> bool:
        """Whether it was confirmed."""
        self.tried.add(body)
        try:
            world.queue()
            world.publish(body)
        except Fenced:
            return False
        world.write()
        if world.shard.log.failure is None:
            self.confirmed.append(body)
            return True
        assert isinstance(world.shard.log.failure, Fenced)
        return False

    def wrong(self) -> list[str]:
        """Let everybody die; then what the next one finds, held against what was confirmed."""
        for world in self.worlds:
            FileSite.kill(FileSite(self.directory.parent), world)
        last = self.start()
        found = Counter(last.bodies()) if "default" in last.shard.tenants else Counter()
        last.close()
        assert inspect(self.directory).sound
        return [
            *(f"{body!r} was confirmed and is lost" for body in self.confirmed if not found[body]),
            *(f"{body!r} is there {count} times" for body, count in found.items() if count > 1),
            *(f"{body!r} came from nowhere" for body in found.keys() - self.tried),
        ]


POINTS = ("before the write", "in the write", "after the write", "before the sync", "after the sync")


def take_over_at(point: str, crowd: Crowd, *, roll: bool, writes: bool) -> tuple[bool, World]:
    """The old owner appends, and at that point the new one comes; whether the old one confirms, and the new one."""
    heirs: list[World] = []
    armed = False

    def reach(here: str) -> None:
        nonlocal armed
        if armed and here == point:
            armed = False
            heirs.append(crowd.start())
            if writes:
                assert crowd.publish(heirs[0], b"by the new one, at once")

    def write(fd: int, data: memoryview, offset: int) -> int:
        reach("before the write")
        if armed and point == "in the write":
            done = disk.write_at(fd, data[: len(data) // 2], offset)
            reach("in the write")
            return done
        done = disk.write_at(fd, data, offset)
        reach("after the write")
        return done

    def sync(fd: int) -> None:
        reach("before the sync")
        disk.sync_data(fd)
        reach("after the sync")

    old = crowd.start(write_file=write, sync_file=sync)
    assert crowd.publish(old, b"by the old one")
    if roll:
        old.journal.segment_bytes = 0
    armed = True
    confirms = crowd.publish(old, b"by the old one, late")
    assert not armed
    return confirms, heirs[0]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("roll", [False, True], ids=["", "roll"])
@pytest.mark.parametrize("writes", [False, True], ids=["", "writes"])
def test_a_new_owner_comes_in_the_middle_of_an_append(tmp_path: Path, point: str, roll: bool, writes: bool) -> None:
    crowd = Crowd(tmp_path / "shard")
    confirms, heir = take_over_at(point, crowd, roll=roll, writes=writes)
    assert not confirms
    assert crowd.publish(heir, b"by the new one")
    old = crowd.worlds[0]
    assert not crowd.publish(old, b"by the old one, later still")
    old.journal.close()
    crowd.worlds.remove(old)
    assert crowd.wrong() == []


class Slow(UnlockedMedium):
    """A new owner; at one of its steps, the old one goes on."""

    meanwhile: Callable[[], None]
    steps = 0
    at = 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.meanwhile()

    def acquire(self) -> int:
        self._step()
        epoch = super().acquire()
        self._step()
        return epoch

    def segments(self) -> list[tuple[int, int]]:
        found = super().segments()
        # also called in the medium's own thread, in which the old owner cannot be waited for
        if threading.current_thread() is threading.main_thread():
            self._step()
        return found

    def recorded_end(self) -> tuple[int, int]:
        found = super().recorded_end()
        self._step()
        return found

    def read(self, segment: int, offset: int, size: int) -> bytes:
        self._step()
        found = super().read(segment, offset, size)
        self._step()
        return found

    def resume(self, segment: int, offset: int, seq: int) -> int:
        self._step()
        begun = super().resume(segment, offset, seq)
        self._step()
        return begun


def live_on_at(step: int, crowd: Crowd) -> tuple[bool, bool]:
    """The new owner starts, and at that step the old one publishes: whether it comes to that, and is confirmed."""
    old = crowd.start()
    assert crowd.publish(old, b"one")
    old.journal.segment_bytes = 0
    assert crowd.publish(old, b"two")
    old.journal.segment_bytes = 1 << 20
    outcome: list[bool] = []
    meanwhile = {"at": step, "meanwhile": lambda self: outcome.append(crowd.publish(old, b"late"))}
    new = crowd.start(type("SlowAtAStep", (Slow,), meanwhile))
    assert crowd.publish(new, b"three")
    assert not crowd.publish(old, b"later still")
    return bool(outcome), outcome == [True]


def test_the_old_owner_goes_on_at_every_step_of_the_new_one(tmp_path: Path) -> None:
    confirmed = []
    for step in range(1, 100):
        crowd = Crowd(tmp_path / str(step) / "shard")
        reached, confirms = live_on_at(step, crowd)
        assert crowd.wrong() == [], step
        if not reached:
            break
        confirmed.append(confirms)
    # until the epoch is raised, and never after that
    assert confirmed[0]
    assert len(confirmed) > 8
    assert confirmed == [True] * sum(confirmed) + [False] * (len(confirmed) - sum(confirmed))


def test_two_who_take_over_at_once_share_no_segment(tmp_path: Path) -> None:
    """The second comes while the first reads: the first has nothing to say when it is done."""
    for step in range(1, 60):
        crowd = Crowd(tmp_path / str(step) / "shard")
        old = crowd.start()
        assert crowd.publish(old, b"one")
        newest: list[World] = []

        def take_over(self: Slow, crowd: Crowd = crowd, newest: list[World] = newest) -> None:
            newest.append(crowd.start())
            assert crowd.publish(newest[0], b"by the newest")

        kind = type("SlowAtAStep", (Slow,), {"at": step, "meanwhile": take_over})
        try:
            first = crowd.start(kind)
        except (Fenced, StoreDamaged):
            first = None
        if not newest:
            break
        # it may begin after the other one, and so fence it: there is one owner in any case
        confirms = [crowd.publish(world, b"%d" % n) for n, world in enumerate([first, *newest]) if world is not None]
        assert sum(confirms) == 1, step
        assert crowd.wrong() == [], step
    assert step > 8


@pytest.mark.parametrize("point", POINTS)
def test_an_owner_that_does_not_look_at_the_epoch_would_be_noticed(tmp_path: Path, point: str) -> None:
    crowd = Crowd(tmp_path / "shard")
    with mock.patch.object(Ownership, "_look", return_value=None):
        confirms, heir = take_over_at(point, crowd, roll=False, writes=True)
        assert confirms
        crowd.publish(heir, b"by the new one")
    wrong = crowd.wrong()
    # what was written before the new one read the journal is found all the same
    assert any("lost" in text for text in wrong) == (point in ("before the write", "in the write"))


def _replace(epoch: Path, text: str) -> None:
    (epoch.parent / "other").write_text(text, encoding="ascii")
    (epoch.parent / "other").replace(epoch)


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "replaced by a later epoch": (lambda epoch: _replace(epoch, "2\n"), True),
    "rewritten in place": (lambda epoch: epoch.write_text("2\n", encoding="ascii"), True),
    "emptied": (lambda epoch: epoch.write_text("", encoding="ascii"), True),
    "removed": (lambda epoch: epoch.unlink(), True),
    "touched": (lambda epoch: os.utime(epoch, (1, 1)), False),
    "rewritten as it was": (lambda epoch: epoch.write_text("1\n", encoding="ascii"), False),
    "replaced by a copy": (lambda epoch: _replace(epoch, "1\n"), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_becomes_of_the_epoch_is_noticed_at_the_next_look(tmp_path: Path, change: str) -> None:
    """Who was fenced stays so; a file that was only touched fences nobody, then or when the epoch is raised later."""
    make, fences = CHANGES[change]
    owner = Ownership(tmp_path)
    owner.acquire(is_empty=True)
    assert owner.epoch == 1
    owner.check()
    os.utime(tmp_path / "epoch", (2, 2))  # so that what is written at the same moment has another time
    owner.check()
    make(tmp_path / "epoch")
    for _ in range(2):
        if fences:
            with pytest.raises(Fenced):
                owner.check()
        else:
            owner.check()
    _replace(tmp_path / "epoch", "2\n")
    with pytest.raises(Fenced):
        owner.check()
    owner.release()


def test_a_look_at_an_epoch_that_has_not_changed_reads_no_file(tmp_path: Path) -> None:
    owner = Ownership(tmp_path)
    owner.acquire(is_empty=True)
    with mock.patch.object(disk, "read_text", side_effect=disk.read_text) as read:
        owner.check()
        assert not read.called
        os.utime(tmp_path / "epoch", (1, 1))
        owner.check()
        owner.check()
        assert read.call_count == 1
    owner.release()


def test_a_directory_is_locked_without_its_lock_file_too(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    world = site.start()
    (site.directory / "lock").unlink()
    with pytest.raises(StoreLocked):
        FileSite(tmp_path).start()
    with pytest.raises(StoreLocked):
        repair(site.directory)
    world.close()


# The recorded end


@pytest.fixture(params=["memory", "file"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = (MemorySite if request.param == "memory" else FileSite)(tmp_path)
    yield made
    made.stop()


def fill(site: Site) -> World:
    """Three segments, and more than one batch in the last."""
    world = site.start()
    world.queue()
    for n in range(6):
        world.publish(b"%d" % n)
        world.write()
        if n in (1, 3):
            world.roll()
    assert len(world.journal.segments) == 3
    return world


class Copies:
    """A journal as it was left, to be damaged and started on."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.segments = {number: site.segment(number) for number in site.numbers()}
        if isinstance(site, FileSite):
            shutil.copytree(site.directory, site.directory.with_name("kept"))

    def start(self, segments: dict[int, bytes]) -> World:
        site = self._site
        if isinstance(site, FileSite):
            shutil.rmtree(site.directory)
            shutil.copytree(site.directory.with_name("kept"), site.directory)
            for path in site.directory.glob("*.log"):
                path.unlink()
            for number, data in segments.items():
                (site.directory / f"{number:08d}.log").write_bytes(data)
            return site.start()
        assert isinstance(site, MemorySite)
        found = FaultyMedium(site.disk).crash(tail=lambda unsynced: unsynced)
        for number in found.disk.pieces.keys() - segments.keys():
            del found.disk.pieces[number]
        for number, data in segments.items():
            piece = found.disk.pieces[number]
            piece.data[:] = data
            piece.end = piece.synced = len(data)
        return World(found)


def test_a_journal_that_is_cut_anywhere_after_a_clean_stop_is_refused(site: Site) -> None:
    fill(site).close()
    copies = Copies(site)
    newest = max(copies.segments)
    data = copies.segments[newest]
    # on files, each start is synced several times
    step = 1 if isinstance(site, MemorySite) else 11
    cuts = {*range(0, len(data), step), len(data) - 1, *(at for at, _ in batches(data))}
    for cut in sorted(cuts):
        with pytest.raises(StoreDamaged) as raised:
            copies.start({**copies.segments, newest: data[:cut]})
        assert "missing" in str(raised.value)
    assert copies.start(copies.segments).bodies() == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_a_journal_that_lacks_a_segment_is_refused(site: Site, stop: str) -> None:
    world = fill(site)
    if stop == "close":
        world.close()
    else:
        world.write()
        site.kill(world)
    copies = Copies(site)
    for gone in copies.segments:
        left = {number: data for number, data in copies.segments.items() if number != gone}
        with pytest.raises(StoreDamaged) as raised:
            copies.start(left)
        assert "missing" in str(raised.value)
    with pytest.raises(StoreDamaged):
        copies.start({})
    assert copies.start(copies.segments).bodies() == [b"%d" % n for n in range(6)]


def test_a_closed_segment_that_is_cut_after_a_kill_is_refused(site: Site) -> None:
    site.kill(fill(site))
    copies = Copies(site)
    for number, data in list(copies.segments.items())[:-1]:
        for cut in {0, len(data) - 1, *(at for at, _ in batches(data))}:
            with pytest.raises(StoreDamaged):
                copies.start({**copies.segments, number: data[:cut]})


def test_a_start_that_writes_nothing_keeps_the_recorded_end(site: Site) -> None:
    fill(site).close()
    for _ in range(3):
        world = site.start()
        assert world.bodies() == [b"%d" % n for n in range(6)]
        world.close()
    world = site.start()
    site.kill(world)
    assert site.start().bodies() == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("left", ["", "3", "3 1"])
def test_a_crash_while_the_end_is_recorded_changes_nothing(tmp_path: Path, left: str) -> None:
    site = FileSite(tmp_path)
    site.kill(fill(site))
    (site.directory / "end.1.new").write_text(left)
    world = site.start()
    assert world.bodies() == [b"%d" % n for n in range(6)]
    world.close()


def test_the_doctor_names_what_is_missing_and_accepts_the_loss(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    fill(site).close()
    newest = site.directory / f"{site.numbers()[-1]:08d}.log"
    data = newest.read_bytes()
    starts = [at for at, _ in batches(data)]
    newest.write_bytes(data[: starts[1]])
    found = inspect(site.directory)
    assert not found.sound
    assert found.batches_lost == len(starts) - 1
    assert any("ends with batch" in line for line in found.lines())
    report = repair(site.directory)
    assert report.batches_lost == len(starts) - 1
    world = site.start()
    assert world.bodies() == [b"%d" % n for n in range(world.queue().ready)]
    world.close()
    newest.unlink(missing_ok=True)
    for path in sorted(site.directory.glob("*.log"))[-1:]:
        path.unlink()
    found = inspect(site.directory)
    assert any("newest segment is missing" in line for line in found.lines())
    repair(site.directory)
    site.start().close()


def test_many_starts_leave_few_segments(site: Site) -> None:
    """Each start begins a segment: those that hold little are written together."""
    world = site.start()
    world.queue()
    for n in range(60):
        world.publish(b"%d" % n)
        world.write()
        world.settle()
        site.kill(world)
        world = site.start()
    world.publish(b"60")
    world.settle()
    assert len(world.journal.segments) < 45
    assert sorted(world.bodies(), key=int) == [b"%d" % n for n in range(61)]

"""A backup of a running broker is the broker as it was at one moment, and can be started on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import InvalidArgument, StoreError
from rookery.store.backup import Backup, backup
from rookery.store.repair import inspect
from tests.contract.faulty import Fault, FaultyMedium
from tests.contract.journal_world import SITES, FileSite, MemorySite, Site, World, picture


@pytest.fixture(params=list(SITES.values()), ids=list(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made: Site = request.param(tmp_path / "site")
    made.where.mkdir()
    yield made
    made.stop()


def start_on(directory: Path) -> World:
    site = FileSite(directory.parent)
    site.directory = directory
    return site.start()


def listed(world: World) -> list[int]:
    """The segments that are on the medium."""
    return [number for number, _ in world.medium.segments()]


def filled(site: Site, **options: Any) -> World:
    world = site.start(segment_bytes=2_000, **options)
    world.queue()
    for n in range(60):
        world.publish(b"%d " % n + b"x" * 150)
        world.write()
    return world


def test_a_backup_has_everything_and_the_broker_goes_on(site: Site, tmp_path: Path) -> None:
    world = filled(site)
    world.publish_once("k", b"once")
    world.ack(5)
    world.write()
    before = picture(world)
    seen: list[tuple[int, int]] = []
    backup(world.journal, tmp_path / "copy", lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 10_000
    assert inspect(tmp_path / "copy").sound
    copied = start_on(tmp_path / "copy")
    assert before == picture(copied)
    assert copied.recovery.torn_bytes == 0
    copied.publish(b"only here")
    copied.close()
    world.ack(56)
    world.settle()
    assert world.queue().ready == 0
    assert len(world.journal.segments) == 1


def test_an_empty_broker_can_be_backed_up(site: Site, tmp_path: Path) -> None:
    world = site.start()
    backup(world.journal, tmp_path / "copy")
    copied = start_on(tmp_path / "copy")
    assert not copied.shard.tenants
    copied.close()


def test_what_is_in_flight_is_not_in_the_backup(tmp_path: Path) -> None:
    site = MemorySite(tmp_path)
    world = filled(site)
    before = picture(world)
    assert isinstance(world.medium, FaultyMedium)
    world.medium.script(Fault.SLOW)
    world.publish(b"not answered yet")
    world.turn()
    assert world.busy
    backup(world.journal, tmp_path / "copy")
    copied = start_on(tmp_path / "copy")
    assert before == picture(copied)
    copied.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_backup_while_everything_moves(site: Site, tmp_path: Path, seed: int) -> None:
    """Between any two slices the broker publishes, settles, rolls and retires; the copy is of one batch's end."""
    chance = random.Random(seed)
    world = filled(site)
    pictures = {world.journal._seq: picture(world)}
    first = world.journal._seq
    turns: list[int] = []
    mine, theirs = threading.Semaphore(0), threading.Semaphore(0)

    def between(done: int, total: int) -> None:
        mine.release()
        assert theirs.acquire(timeout=30)

    copy = Backup(world.journal, tmp_path / "copy", between, slice_bytes=700)
    thread = threading.Thread(target=copy.run)
    thread.start()
    retired = world.journal.retired
    while thread.is_alive():
        if not mine.acquire(timeout=0.01):
            continue
        for _ in range(chance.randrange(1, 8)):
            world.publish(b"y" * chance.randrange(200))
        world.ack(chance.randrange(1, 9))
        world.settle()
        turns.append(world.journal._seq)
        pictures[world.journal._seq] = picture(world)
        theirs.release()
    thread.join()
    assert len(turns) > 10
    assert world.journal.retired > retired + 3
    assert len(listed(world)) > len(world.journal.segments)
    copy.close()
    world.settle()
    assert listed(world) == [segment.number for segment in world.journal.segments]
    copied = start_on(tmp_path / "copy")
    assert first <= copied.recovery.seq <= turns[-1]
    assert pictures[int(copied.recovery.seq)] == picture(copied)
    copied.close()
    before = picture(world)
    world = site.restart(world, segment_bytes=2_000)
    assert before == picture(world)


def test_a_crash_during_a_backup_is_harmless(site: Site, tmp_path: Path) -> None:
    world = filled(site)
    copy = Backup(world.journal, tmp_path / "copy")
    world.ack(40)
    world.settle()
    assert len(listed(world)) > len(world.journal.segments)
    before = picture(world)
    world = site.restart(world, segment_bytes=2_000)
    assert before == picture(world)
    world.settle()
    assert listed(world) == [segment.number for segment in world.journal.segments]
    assert not copy.target.exists()


def test_two_backups_at_once(site: Site, tmp_path: Path) -> None:
    world = filled(site)
    first = Backup(world.journal, tmp_path / "first")
    before = picture(world)
    world.ack(40)
    world.settle()
    second = Backup(world.journal, tmp_path / "second")
    after = picture(world)
    second.run()
    second.close()
    first.run()
    first.close()
    first.close()
    world.settle()
    assert listed(world) == [segment.number for segment in world.journal.segments]
    for name, expected in (("first", before), ("second", after)):
        copied = start_on(tmp_path / name)
        assert expected == picture(copied)
        copied.close()


def test_a_target_that_is_there_is_refused_and_nothing_is_held(site: Site, tmp_path: Path) -> None:
    world = filled(site)
    (tmp_path / "copy").mkdir()
    with pytest.raises(InvalidArgument):
        Backup(world.journal, tmp_path / "copy")
    world.ack(60)
    world.settle()
    assert len(listed(world)) == 1


def test_a_backup_that_fails_leaves_nothing(site: Site, tmp_path: Path) -> None:
    world = filled(site)
    (tmp_path / "a file").write_text("")
    copy = Backup(world.journal, tmp_path / "a file" / "copy")
    with pytest.raises(StoreError):
        copy.run()
    copy.close()

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    copy = Backup(world.journal, tmp_path / "copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    copy.close()
    assert not list(tmp_path.glob("copy*"))
    backup(world.journal, tmp_path / "copy")
    assert inspect(tmp_path / "copy").sound


def test_a_broker_that_closes_during_a_backup(site: Site, tmp_path: Path) -> None:
    world = filled(site)
    copy = Backup(world.journal, tmp_path / "copy")
    world.ack(40)
    world.close()
    with pytest.raises(StoreError):
        copy.run()
    copy.close()
    world = site.start(segment_bytes=2_000)
    assert world.queue().ready == 20

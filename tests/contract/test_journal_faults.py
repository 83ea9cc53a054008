"""A journal over a medium that fails: what is confirmed, what is refused, what the next process finds.

The table of promises in docs/durability.md is proven here, row by row (`PROMISES`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.core.publishing import Publish
from rookery.core.transactions import Settle, apply
from rookery.errors import Fenced, StoreFailed, StoreFull
from rookery.format.properties import EMPTY
from rookery.format.records import PUT
from tests.contract.faulty import PLENTY, Disk, Fault, FaultyMedium
from tests.contract.journal_world import MemorySite, World, batches, count_records, picture


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MemorySite]:
    made = MemorySite(tmp_path)
    yield made
    made.stop()


def faulty(world: World) -> FaultyMedium:
    assert isinstance(world.medium, FaultyMedium)
    return world.medium


def begun(site: MemorySite, **options: Any) -> World:
    world = site.start(**options)
    world.queue()
    world.publish(b"before")
    world.write()
    return world


def is_confirmed(world: World, horizon: int) -> bool:
    return bool(world.shard.log.durable >= horizon)


def publish(world: World, body: bytes, **options: Any) -> int:
    """Publish, end the turn, and say which batch a confirm waits for."""
    world.publish(body, **options)
    horizon = int(world.shard.log.horizon())
    world.turn()
    return horizon


# Each fault, and going on


def test_a_short_write_is_completed(site: MemorySite) -> None:
    world = begun(site)
    faulty(world).script(Fault.SHORT_WRITE)
    assert is_confirmed(world, publish(world, b"x" * 500))
    world = site.restart(world)
    assert world.bodies() == [b"before", b"x" * 500]


@pytest.mark.parametrize("fault", [Fault.WRITE_ERROR, Fault.SYNC_ERROR])
@pytest.mark.parametrize("power", [False, True])
def test_after_a_failed_write_or_sync_nothing_is_confirmed_and_a_restart_is_safe(
    site: MemorySite, fault: Fault, power: bool
) -> None:
    world = begun(site)
    progress = world.progress
    faulty(world).script(fault)
    horizon = publish(world, b"unknown")
    assert not is_confirmed(world, horizon)
    assert isinstance(world.shard.log.failure, StoreFailed)
    assert world.progress > progress
    with pytest.raises(StoreFailed):
        world.publish(b"refused")
    with pytest.raises(StoreFailed):
        apply(world.shard, world.tenant(), [Publish("", "q", EMPTY, b"refused")])
    later = publish(world, b"for now", persistent=False)
    assert world.ack(1) == [b"before"]
    for _ in range(20):
        world.pass_ms(1_000)
    assert not is_confirmed(world, horizon)
    assert later >= horizon
    assert world.journal.next_due_ms() is None
    if power:
        site.cut_power(world)
    else:
        site.kill(world)
    world = site.start()
    found = world.bodies()
    assert found[0] == b"before"
    assert found[1:] in ([], [b"unknown"])
    assert is_confirmed(world, publish(world, b"after"))
    world = site.restart(world)
    assert world.bodies() == [*found, b"after"]


def test_a_slow_sync_holds_the_confirm_back_and_lets_the_next_batch_grow(site: MemorySite) -> None:
    world = begun(site)
    medium = faulty(world)
    medium.script(Fault.SLOW)
    horizon = publish(world, b"slow")
    written = medium.writes
    later = horizon
    for n in range(10):
        later = publish(world, b"meanwhile %d" % n)
        world.pass_ms(100)
        assert not is_confirmed(world, horizon)
    assert len(world.claim(3)) == 3
    medium.release()
    world.turn()
    assert is_confirmed(world, horizon)
    assert is_confirmed(world, later)
    assert medium.writes == written + 1
    world = site.restart(world)
    assert world.queue().ready == 12


def test_a_sync_that_fails_late(site: MemorySite) -> None:
    world = begun(site)
    faulty(world).script(Fault.SLOW)
    horizon = publish(world, b"slow")
    faulty(world).release(Fault.SYNC_ERROR)
    world.turn()
    assert not is_confirmed(world, horizon)
    assert isinstance(world.shard.log.failure, StoreFailed)


def test_an_unknown_outcome_is_cleared_up_by_asking_again(site: MemorySite) -> None:
    for faults in (
        [Fault.ANSWER_LOST],
        [Fault.REQUEST_LOST],
        [Fault.REQUEST_LOST, Fault.ANSWER_LOST, Fault.ANSWER_LOST, Fault.REQUEST_LOST],
    ):
        world = begun(site)
        faulty(world).script(*faults)
        horizon = publish(world, b"once")
        publish(world, b"behind it")
        for _ in faults:
            assert not is_confirmed(world, horizon)
            assert world.journal.next_due_ms() == 100
            world.pass_ms(99)
            assert not is_confirmed(world, horizon)
            world.pass_ms(1)
        assert is_confirmed(world, horizon)
        world.write()
        count = world.queue().ready
        site.kill(world)
        written = [site.segment(number) for number in site.numbers()]
        assert sum(count_records(data, PUT) for data in written) == count
        seqs = [int(header.seq) for data in written for _, header in batches(data)]
        assert seqs == list(range(1, len(seqs) + 1))
    world = site.start()
    assert world.bodies().count(b"once") == 3


def test_an_owner_who_was_fenced_out_confirms_nothing(tmp_path: Path) -> None:
    disk = Disk()
    first = World(FaultyMedium(disk, exclusive=False))
    first.queue()
    first.publish(b"before")
    first.write()
    second = World(FaultyMedium(disk, exclusive=False))
    assert second.bodies() == [b"before"]
    horizon = publish(first, b"too late")
    assert not is_confirmed(first, horizon)
    assert isinstance(first.shard.log.failure, Fenced)
    with pytest.raises(Fenced):
        first.publish(b"refused")
    assert is_confirmed(second, publish(second, b"of the second"))


# A full disk


def filled(disk: Disk, **options: Any) -> World:
    """A broker that has published until it was refused."""
    options = {"segment_bytes": 2_000, "free_bytes_min": 6_000, **options}
    world = World(FaultyMedium(disk, segment_bytes=0, reserve_bytes=2_000), **options)
    world.queue()
    with pytest.raises(StoreFull):
        for n in range(1_000):
            world.publish(b"%d" % n + b"x" * 150)
            world.pass_ms(50)
    world.write()
    return world


def test_publishes_are_refused_before_the_disk_is_full_and_everything_else_goes_on() -> None:
    disk = Disk(capacity_bytes=40_000)
    world = filled(disk)
    accepted = world.queue().ready
    assert accepted > 50
    assert 0 < disk.free_bytes() < 6_000
    assert is_confirmed(world, int(world.shard.log.horizon()))
    with pytest.raises(StoreFull):
        apply(world.shard, world.tenant(), [Publish("", "q", EMPTY, b"refused")])
    world.publish(b"needs no room", persistent=False)
    for _ in range(10):
        assert world.ack(1)
        world.write()
    assert world.shard.log.failure is None
    medium = faulty(world).crash(tail=lambda unsynced: unsynced)
    assert World(medium).queue().ready == accepted - 10


def test_a_broker_takes_publishes_again_by_itself_when_there_is_room() -> None:
    disk = Disk(capacity_bytes=40_000)
    world = filled(disk)
    progress = world.progress
    while world.ack(10):
        world.write()
    world.settle()
    assert disk.free_bytes() > 20_000
    # nobody calls: the journal says when it wants to look
    wait = world.journal.next_due_ms()
    assert wait is not None
    assert wait <= 250
    world.pass_ms(wait)
    assert world.progress > progress
    assert is_confirmed(world, publish(world, b"there is room"))


def test_room_made_by_others_is_noticed() -> None:
    disk = Disk(capacity_bytes=40_000)
    world = filled(disk)
    disk.capacity_bytes = PLENTY
    world.pass_ms(250)
    assert is_confirmed(world, publish(world, b"there is room"))


def test_a_batch_that_meets_a_full_disk_waits_and_is_confirmed_when_there_is_room(site: MemorySite) -> None:
    world = begun(site)
    disk = faulty(world).disk
    disk.capacity_bytes = disk.used_bytes()
    world.publish(b"x" * 5_000)
    horizon = int(world.shard.log.horizon())
    world.turn()
    assert world.shard.log.refusing
    with pytest.raises(StoreFull):
        world.publish(b"refused")
    for _ in range(10):
        world.pass_ms(100)
        assert not is_confirmed(world, horizon)
    disk.capacity_bytes = PLENTY
    world.pass_ms(100)
    assert is_confirmed(world, horizon)
    world.pass_ms(250)
    assert is_confirmed(world, publish(world, b"there is room"))
    world = site.restart(world)
    assert world.bodies() == [b"before", b"x" * 5_000, b"there is room"]


def test_settles_use_the_reserve_when_the_disk_is_full() -> None:
    disk = Disk(capacity_bytes=40_000)
    world = filled(disk)
    disk.capacity_bytes = disk.used_bytes()
    assert disk.free_bytes() == 0
    for _ in range(5):
        assert world.ack(1)
        horizon = int(world.shard.log.horizon())
        world.shard.log.urgent = True
        world.pass_ms(100)
        assert is_confirmed(world, horizon)
    assert disk.reserve_bytes == 0
    assert world.shard.log.failure is None


def test_a_full_disk_can_be_drained() -> None:
    """Retiring needs room for what it carries: it may use the reserve."""
    disk = Disk(capacity_bytes=40_000)
    world = filled(disk)
    disk.capacity_bytes = disk.used_bytes()
    count = 0
    while world.queue().ready:
        count += len(world.ack(1))
        world.shard.log.urgent = True
        world.pass_ms(100)
    for _ in range(50):
        world.pass_ms(100)
    assert count > 50
    assert disk.free_bytes() > 20_000
    assert is_confirmed(world, publish(world, b"there is room"))


def test_a_single_fault_of_no_space(site: MemorySite) -> None:
    world = begun(site)
    faulty(world).script(Fault.NO_SPACE)
    horizon = publish(world, b"waits")
    assert not is_confirmed(world, horizon)
    world.pass_ms(100)
    assert is_confirmed(world, horizon)
    world.pass_ms(250)
    assert is_confirmed(world, publish(world, b"after"))
    world = site.restart(world)
    assert world.bodies() == [b"before", b"waits", b"after"]


# What is promised, by policy


PROMISES = [
    # sync, what was done, survives the process, survives the machine
    ("always", "publish", True, True),
    ("always", "ack", True, False),
    ("always", "transaction", True, True),
    ("always", "settling transaction", True, True),
    ("always", "declare", True, True),
    ("interval", "publish", True, False),
    ("interval", "declare", True, False),
    ("interval", "ack", True, False),
    ("interval", "transaction", True, False),
    ("interval", "publish, 1 s later", True, True),
    ("interval", "ack, 1 s later", True, True),
    ("interval", "transaction, 1 s later", True, True),
    ("os", "publish", True, False),
    ("os", "ack", True, False),
    ("os", "transaction", True, False),
]


@pytest.mark.parametrize(("sync", "done", "process", "machine"), PROMISES)
@pytest.mark.parametrize("dies", ["process", "machine"])
def test_promises(site: MemorySite, sync: str, done: str, process: bool, machine: bool, dies: str) -> None:
    """A confirm, an answered ack, a committed transaction: there after a death that the policy covers.

    Where nothing is promised, all of it is lost here, so that the table does not promise too little either.
    """
    world = begun(site, sync=sync)
    # what the deed is measured against is safe in any case
    world.pass_ms(1_000)
    world.journal.medium.sync(lambda error: None)
    before = picture(world)
    if done.startswith("publish"):
        world.publish(b"new")
    elif done == "declare":
        world.queue("another")
    elif done.startswith("ack"):
        world.ack(1)
    elif done.startswith("transaction"):
        (lease,) = world.claim(1)
        apply(world.shard, world.tenant(), [Settle(lease, "ack"), Publish("", "q", EMPTY, b"new")])
    else:
        (lease,) = world.claim(1)
        apply(world.shard, world.tenant(), [Settle(lease, "ack")])
    horizon = int(world.shard.log.horizon())
    # somebody waits for the answer
    world.shard.log.urgent = True
    world.turn()
    assert is_confirmed(world, horizon)
    if done.endswith("1 s later"):
        for _ in range(4):
            world.pass_ms(300)
    after = picture(world)
    assert before != after
    if dies == "machine":
        site.cut_power(world)
    else:
        site.kill(world)
    world = site.start(sync=sync)
    survives = machine if dies == "machine" else process
    assert (after if survives else before) == picture(world)


def test_an_ack_never_starts_a_sync(site: MemorySite) -> None:
    world = begun(site)
    for n in range(20):
        world.publish(b"%d" % n)
    world.write()
    syncs = faulty(world).syncs
    for _ in range(20):
        world.ack(1)
        world.write()
    assert faulty(world).syncs == syncs


def test_an_ack_that_nobody_waits_for_is_written_within_100_ms(site: MemorySite) -> None:
    world = begun(site)
    world.ack(1)
    world.turn()
    wait = world.journal.next_due_ms()
    assert wait is not None
    assert wait <= 100
    batches_before = world.journal.batches
    world.pass_ms(wait)
    assert world.journal.batches == batches_before + 1
    world = site.restart(world)
    assert world.queue().ready == 0


def test_interval_syncs_once_a_second_and_only_when_there_is_something(site: MemorySite) -> None:
    world = begun(site, sync="interval")
    world.pass_ms(2_000)
    syncs = faulty(world).syncs
    for n in range(50):
        publish(world, b"%d" % n)
        world.pass_ms(100)
    assert 4 <= faulty(world).syncs - syncs <= 6
    world.pass_ms(1_000)
    syncs = faulty(world).syncs
    for _ in range(50):
        world.pass_ms(1_000)
    assert faulty(world).syncs == syncs
    assert world.journal.next_due_ms() is None


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.SYNC_ERROR])
def test_a_sync_of_the_interval_policy_that_fails(site: MemorySite, fault: Fault) -> None:
    world = begun(site, sync="interval")
    world.pass_ms(1_000)
    publish(world, b"x")
    faulty(world).script(fault)
    world.pass_ms(1_000)
    if fault is Fault.SYNC_ERROR:
        with pytest.raises(StoreFailed):
            world.publish(b"refused")
        return
    publish(world, b"y")
    world.pass_ms(1_000)
    world.pass_ms(1_000)
    site.cut_power(world)
    assert site.start().bodies() == [b"before", b"x", b"y"]

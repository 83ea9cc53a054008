"""Segments: how a journal rolls, and how it gets rid of what nobody needs without losing what somebody does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import StoreDamaged, StoreFailed
from rookery.format.records import EXIT, PUT, RETIRED, STATE
from tests.contract.faulty import Fault, FaultyMedium
from tests.contract.journal_world import (
    HOUR_MS,
    SITES,
    FileSite,
    MemorySite,
    Site,
    World,
    count_records,
    picture,
    written_records,
)


@pytest.fixture(params=list(SITES.values()), ids=list(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made: Site = request.param(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[MemorySite]:
    made = MemorySite(tmp_path)
    yield made
    made.stop()


def killed(site: Site, world: World, **options: Any) -> World:
    world.settle()
    before = picture(world)
    again = site.restart(world, **options)
    assert before == picture(again)
    return again


def numbers(world: World) -> list[int]:
    return [segment.number for segment in world.journal.segments]


# Rolling


def test_every_segment_begins_with_the_state(site: Site) -> None:
    world = site.start(segment_bytes=500)
    for n in range(10):
        world.queue(f"q{n}")
        world.publish(b"x" * 300, f"q{n}")
        world.write()
    world.settle()
    before = picture(world)
    site.kill(world)
    assert len(site.numbers()) > 3
    for number in site.numbers():
        kinds = [int(reader.kind) for reader in written_records(site.segment(number))]
        assert kinds[0] == STATE
        assert STATE not in kinds[1:]
    world = site.start(segment_bytes=500)
    assert before == picture(world)


def test_definitions_outlive_every_segment_that_spoke_of_them(site: Site) -> None:
    world = site.start()
    world.queue("b", {"ttl_ms": HOUR_MS})
    world.queue("a")
    world.tenant().bind("amq.topic", world.queue("b"), "x.#")
    for _ in range(4):
        world.publish(b"x", "a")
        world.write()
        world.roll()
        world.ack(1, "a")
        world = killed(site, world)
    assert numbers(world)[0] > 1
    assert world.queue("b").settings.ttl_ms == HOUR_MS


def test_a_large_state_does_not_make_every_batch_begin_a_segment(site: Site) -> None:
    world = site.start(segment_bytes=2_000)
    for n in range(100):
        world.queue(f"q{n}")
    for n in range(10):
        world.publish(b"%d" % n, "q1")
        world.write()
    assert world.journal.segments[0].size > 5_000
    assert numbers(world) == [1]
    world = killed(site, world, segment_bytes=2_000)


def test_a_crash_while_a_segment_is_begun(memory: MemorySite) -> None:
    """The file is there and empty, or holds a part of its first batch: the next process begins it again."""
    for survives in (0, 40):
        world = memory.start()
        world.queue()
        world.publish(b"before")
        world.write()
        before = picture(world)
        count = len(numbers(world))
        assert isinstance(world.medium, FaultyMedium)
        world.medium.script(Fault.WRITE_ERROR)
        world.publish(b"not confirmed")
        world.roll_now()
        assert isinstance(world.shard.log.failure, StoreFailed)
        assert len(memory.numbers()) == count + 1
        memory.cut_power(world, tail=lambda unsynced, kept=survives: unsynced[:kept])
        world = memory.start()
        assert before == picture(world)
        assert len(numbers(world)) == count
        world.publish(b"after")
        world.write()
        world.roll()
        world.ack(2)
        world.write()
        memory.kill(world)
        assert count_records(memory.segment(memory.numbers()[-1]), STATE) == 1
        world = memory.start()
        assert world.queue().ready == 0
        memory.kill(world)


# Retiring


def test_a_dead_segment_goes(site: Site) -> None:
    world = site.start()
    world.queue()
    for _ in range(3):
        world.publish(b"x")
        world.write()
        world.roll()
        world.ack(1)
        world.settle()
        assert len(numbers(world)) == 1
    site.kill(world)
    assert site.numbers() == [4]


def test_a_settle_is_carried_forward_while_its_message_is_there(site: Site) -> None:
    world = site.start()
    world.queue()
    world.publish(b"acked")
    world.publish(b"stays")
    world.roll()
    world.publish(b"passes through")
    assert world.ack(1) == [b"acked"]
    world.roll()
    assert numbers(world) == [1, 2, 3]
    lease = world.claim(2)[1]
    assert lease.entry.message.body == b"passes through"
    world.queue().ack(lease)
    world.settle()
    assert numbers(world) == [1, 3]
    site.kill(world)
    assert count_records(site.segment(3), EXIT) == 2
    world = site.start()
    assert world.bodies() == [b"stays"]


def test_a_return_is_carried_forward_as_it_is_now(site: Site) -> None:
    world = site.start()
    queue = world.queue()
    world.publish(b"kept")
    world.roll()
    queue.retry(world.claim()[0], 0, "")
    world.roll()
    queue.retry(world.claim()[0], 0, "")
    world.publish(b"here too")
    world.roll()
    world.settle()
    assert numbers(world) == [1, 3, 4]
    world = killed(site, world)
    (kept, _) = world.queue().ready_entries()
    assert (kept.attempts, kept.redelivered) == (2, True)


def test_a_delay_is_carried_forward(site: Site) -> None:
    world = site.start()
    world.publish(b"unroutable")
    world.queue()
    world.publish(b"kept")
    world.roll()
    world.queue().retry(world.claim()[0], 60_000, "")
    world.roll()
    world.settle()
    assert numbers(world) == [1, 3]
    world = killed(site, world)
    assert [e.due_ms - world.wall_ms for e in world.queue().delayed_entries()] == [60_000]


def test_dedup_keys_are_carried_forward(site: Site) -> None:
    world = site.start()
    world.queue()
    assert world.publish_once("k", b"x")
    world.ack(1)
    world.roll()
    world.publish(b"makes the segment worth it" * 20)
    world.roll()
    world.ack(1)
    world.settle()
    world = killed(site, world)
    assert not world.publish_once("k", b"x")


def test_forgotten_keys_stay_forgotten_when_the_segment_that_said_so_is_gone(site: Site) -> None:
    world = site.start()
    world.queue()
    world.queue("other")
    world.publish(b"keeps the first segment", "other")
    assert world.publish_once("k", b"x")
    world.write()
    world.roll()
    world.tenant().delete_queue("q")
    world.queue()
    assert world.publish_once("later", b"x")
    world.publish(b"makes the segment worth it" * 20)
    world.roll()
    world.ack(2)
    world.roll()
    world.settle()
    assert 1 in numbers(world)
    assert 2 not in numbers(world)
    world = killed(site, world)
    assert world.publish_once("k", b"x")
    assert not world.publish_once("later", b"x")


def scattered(world: World, rounds: int, kept: int) -> None:
    """Many messages of which every `kept`-th stays, each round in segments of its own."""
    for n in range(rounds):
        for i in range(kept):
            world.publish(b"%d-%d " % (n, i) + b"x" * 150)
        world.write()
        for lease in world.claim(kept)[1:]:
            world.queue().ack(lease)
        world.write()


def test_a_segment_whose_owner_died_while_retiring_it_goes_first(site: Site) -> None:
    """What it holds was written again, and is settled there: without the later segment it would come back."""
    world = site.start()
    world.queue()
    for n in range(50):
        # keys in use: by themselves a reason to leave the segment alone
        assert world.publish_once(f"key {n}", b"x")
    world.ack(50)
    world.publish(b"old")
    world.write()
    world.roll()
    first = world.journal.segments[0]
    # it begins to retire that segment, and dies when the message is written again
    world.shard.log.move([(world.queue(), world.queue().ready_entries(1)[0])])
    world.shard.log.urgent = True
    world.write()
    site.kill(world)
    assert count_records(site.segment(2), PUT) == 1
    world = site.start()
    assert [segment.number for segment in world.journal.segments if segment.stale] == [first.number]
    assert world.ack(1) == [b"old"]
    world.write()
    for _ in range(2):
        # the segment that holds the message goes, then the one with its settle
        world.roll()
        world.settle()
    world = site.restart(world)
    assert world.bodies() == []
    assert not any(world.publish_once(f"key {n}", b"x") for n in range(50))


def test_mostly_dead_segments_are_written_together(site: Site) -> None:
    options = {"segment_bytes": 1_500}
    world = site.start(**options)
    world.queue()
    world.publish(b"delayed", due_ms=world.wall_ms + HOUR_MS)
    scattered(world, 40, 10)
    world.settle()
    spent = sum(segment.size for segment in world.journal.segments)
    assert world.journal.retired > 20
    assert spent < 20 * 1_500
    world = killed(site, world, **options)
    assert world.queue().ready == 40
    assert [e.message.body for e in world.queue().delayed_entries()] == [b"delayed"]


def test_what_was_restored_is_carried_forward_too(site: Site) -> None:
    """Ready, delayed, returned, prioritised, leased, and each once more after another restart."""
    options = {"segment_bytes": 1_500}
    world = site.start(**options)
    world.queue()
    keep = world.queue("keep")
    for n in range(3):
        world.publish(b"delayed %d" % n, "keep", due_ms=world.wall_ms + HOUR_MS + n)
        world.publish(b"urgent %d" % n, "keep", priority=n)
        world.publish(b"returned %d" % n, "keep")
    world.write()
    for lease in world.claim(6, "keep")[:5]:
        keep.retry(lease, 0, "")
    for _ in range(4):
        world = killed(site, world, **options)
        leases = world.claim(2, "keep")
        world.retire_all()
        world.queue("keep").release(leases[0])
        world.retire_all()
        world.queue("keep").release(leases[1])
    keep = world.queue("keep")
    assert (keep.ready, keep.delayed) == (6, 3)
    assert world.bodies("keep") == [b"urgent 2", b"urgent 1", b"urgent 0", b"returned 0", b"returned 1", b"returned 2"]


def test_a_fan_out_is_carried_for_those_that_still_hold_it(site: Site) -> None:
    options = {"segment_bytes": 1_500}
    world = site.start(**options)
    tenant = world.tenant()
    for name in ("a", "b", "c"):
        tenant.bind("amq.fanout", world.queue(name), "")
    world.queue()
    for n in range(5):
        world.publish(b"to all %d" % n, exchange="amq.fanout")
    for _ in range(50):
        world.publish(b"")
    world.write()
    world.ack(50)
    world.ack(3, "b")
    world.claim(1, "c")
    scattered(world, 25, 10)
    world.settle()
    assert 1 not in numbers(world)
    world = killed(site, world, **options)
    assert len(world.bodies("a")) == 5
    assert world.bodies("b") == [b"to all 3", b"to all 4"]
    assert world.queue("a").ready_entries()[4].message is world.queue("b").ready_entries()[1].message


def test_a_fan_out_that_was_paged_is_settled_where_it_was_moved_to(site: Site) -> None:
    """Read back from disk, each queue has a message of its own: all of them know their new segment."""
    world = site.start(page_bytes=1)
    for name in ("a", "b"):
        world.tenant().bind("amq.fanout", world.queue(name), "")
    world.publish(b"to both", exchange="amq.fanout")
    for name in ("a", "b"):
        for _ in range(3_000):
            world.shard.publish(world.tenant(), "", name, b"", b"in memory")
    world.publish(b"to both, paged", exchange="amq.fanout")
    world.write()
    held = []
    for name in ("a", "b"):
        leases = world.claim(3_002, name)
        assert leases[-1].entry.message.body == b"to both, paged"
        held.append((world.queue(name), leases[-1].entry))
        for lease in leases[:-1]:
            world.queue(name).ack(lease)
        world.queue(name).release(leases[-1])
    assert held[0][1].message is not held[1][1].message
    world.roll()
    world.shard.log.move(held)
    world.shard.log.urgent = True
    world.write()
    assert world.ack(1, "b") == [b"to both, paged"]
    world.write()
    world = site.restart(world)
    assert world.bodies("a") == [b"to both, paged"]
    assert world.bodies("b") == []


def test_a_restart_knows_how_dead_segments_are(site: Site) -> None:
    options = {"segment_bytes": 1_500}
    world = site.start(segment_bytes=1_500)
    world.queue()
    for n in range(60):
        world.publish(b"%d" % n + b"x" * 150)
        world.write()
    world = killed(site, world, **options)
    leases = world.claim(60)
    for n, lease in enumerate(leases):
        if n % 6:
            world.queue().ack(lease)
    world.settle()
    assert world.journal.retired > 3
    world = killed(site, world, **options)
    assert world.queue().ready == 10


def test_retiring_goes_on_under_load(memory: MemorySite) -> None:
    """There is always something to write; still the journal does not grow for ever."""
    world = memory.start(segment_bytes=1_500)
    world.queue()
    assert isinstance(world.medium, FaultyMedium)
    most = 0
    for n in range(600):
        world.medium.script(Fault.SLOW)
        world.publish(b"%d" % n + b"x" * 100)
        world.turn()
        if n >= 10:
            world.ack(1)
        assert world.busy
        assert world.shard.log.pending() or n < 10
        world.medium.release()
        most = max(most, len(numbers(world)))
    assert most < 12
    assert world.journal.retired > 30
    world.settle()
    killed(memory, world)


def test_keys_in_use_are_not_written_again_and_again(site: Site) -> None:
    """More dedup keys than a segment holds: the journal comes to rest, and the keys are there."""
    options = {"segment_bytes": 1_000}
    world = site.start(**options)
    world.queue()
    for n in range(100):
        assert world.publish_once(f"key {n}", b"x")
        world.ack(1)
        world.write()
    world.settle()
    written = world.journal.batches
    world.settle()
    for _ in range(50):
        world.pass_ms(1_000)
    world.settle()
    assert world.journal.batches - written < 10
    world = killed(site, world, **options)
    assert not any(world.publish_once(f"key {n}", b"x") for n in range(100))


def test_keys_that_are_over_are_not_kept(site: Site) -> None:
    options = {"segment_bytes": 1_000}
    world = site.start(**options)
    world.queue("q", {"dedup_window_ms": 1_000})
    for n in range(100):
        world.publish_once(f"key {n}", b"x")
        world.ack(1)
        world.write()
    world.settle()
    before = len(numbers(world))
    world.pass_ms(2 * HOUR_MS)
    world.publish(b"x")
    world.settle()
    assert len(numbers(world)) < min(before, 4)
    killed(site, world, **options)


def test_settles_that_are_needed_are_not_written_again_and_again(site: Site) -> None:
    options = {"segment_bytes": 1_000}
    world = site.start(**options)
    world.queue("keep")
    world.queue()
    for _ in range(3):
        for i in range(200):
            world.publish(b"")
            if i % 2:
                world.publish(b"", "keep")
        world.roll()
        for _ in range(200):
            world.ack(1)
            world.write()
    world.settle()
    written = world.journal.batches
    for _ in range(50):
        world.pass_ms(1_000)
    world.settle()
    assert world.journal.batches - written < 10
    world = killed(site, world, **options)
    assert world.queue().ready == 0
    assert world.queue("keep").ready == 300


def test_returns_are_not_written_again_and_again(site: Site) -> None:
    options = {"segment_bytes": 1_000}
    world = site.start(**options)
    queue = world.queue()
    for n in range(100):
        world.publish(b"%d" % n)
    world.roll()
    for _ in range(8):
        for lease in world.claim(100):
            queue.retry(lease, 0, "")
        world.write()
    world.settle()
    assert len(numbers(world)) < 5
    written = world.journal.batches
    for _ in range(50):
        world.pass_ms(1_000)
    world.settle()
    assert world.journal.batches - written < 10
    world = killed(site, world, **options)
    assert {int(entry.attempts) for entry in world.queue().ready_entries()} == {8}


# Crashes around a retirement


def retiring(memory: MemorySite) -> World:
    """The batch that says that segment 2 is not needed any more is written, and not yet answered."""
    world = memory.start()
    world.queue()
    world.publish(b"acked")
    world.publish(b"stays")
    world.roll()
    world.publish(b"passes through")
    world.ack(1)
    world.roll()
    assert numbers(world) == [1, 2, 3]
    world.queue().ack(world.claim(2)[1])
    assert isinstance(world.medium, FaultyMedium)
    world.medium.script(*[Fault.SLOW] * 10)
    for _ in range(100):
        world.shard.log.urgent = True
        world.journal._tidy_soon = True
        world.turn()
        if world.medium.held:
            if count_records(world.journal._in_flight[3], RETIRED):  # type: ignore[index]
                world.medium._script.clear()
                return world
            world.medium.release()
    raise AssertionError("nothing is retired")


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_between_the_note_and_the_delete(memory: MemorySite, power: bool) -> None:
    world = retiring(memory)
    if power:
        memory.cut_power(world)
    else:
        memory.kill(world)
        assert count_records(memory.segment(3), RETIRED) == 1
    assert memory.numbers() == [1, 2, 3]
    world = memory.start()
    assert (2 in numbers(world)) == power
    world.settle()
    assert world.bodies() == ([b"stays", b"passes through"] if power else [b"stays"])
    world.ack(2)
    world = killed(memory, world)
    assert world.queue().ready == 0


def test_a_delete_that_comes_undone(memory: MemorySite) -> None:
    world = retiring(memory)
    assert isinstance(world.medium, FaultyMedium)
    world.medium.release()
    world.turn()
    assert world.medium.disk.deletes
    memory.cut_power(world, undelete=1)
    assert memory.numbers() == [1, 2, 3]
    world = memory.start()
    assert numbers(world) == [1, 3]
    assert [number for number, _ in world.medium.segments()] == [1, 3]
    assert world.bodies() == [b"stays"]


def test_a_segment_is_deleted_only_when_the_note_is_safe(memory: MemorySite) -> None:
    """The process died with the note unsynced, and the machine dies while the next one starts."""

    class Dying(FaultyMedium):
        def resume(self, segment: int, offset: int, seq: int) -> int:
            raise StoreFailed("the machine dies")

    world = retiring(memory)
    memory.kill(world)
    piece = memory.disk.pieces[3]
    piece.synced = 0
    medium = Dying(memory.disk, segment_bytes=4096)
    with pytest.raises(StoreFailed):
        World(medium)
    memory.disk = medium.crash(tail=lambda unsynced: b"").disk
    world = memory.start()
    assert world.bodies() == [b"stays", b"passes through"]


# What is missing


def long_journal(site: Site) -> None:
    world = site.start(segment_bytes=400)
    world.queue()
    for n in range(8):
        world.publish(b"%d" % n * 300)
        world.write()
    world.close()


def test_a_missing_segment_is_noticed(tmp_path: Path) -> None:
    site = FileSite(tmp_path)
    long_journal(site)
    found = site.numbers()
    assert len(found) > 4
    for number in found[:-1]:
        path = site.directory / f"{number:08d}.log"
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(StoreDamaged) as caught:
            site.start()
        assert caught.value.file == str(path)
        path.write_bytes(b"")
        with pytest.raises(StoreDamaged) as caught:
            site.start()
        path.write_bytes(kept)
    world = site.start()
    assert world.queue().ready == 8
    world.close()


def test_an_epoch_that_went_back_is_noticed(tmp_path: Path) -> None:
    """And so is the marker of the epoch that was drawn last, which would be enough by itself."""
    site = FileSite(tmp_path)
    for _ in range(3):
        world = site.start()
        world.queue()
        world.publish(b"x")
        world.close()
    for marker in site.directory.glob("epoch.*.drawn"):
        marker.unlink()
    (site.directory / "epoch").write_text("1\n")
    with pytest.raises(StoreDamaged):
        site.start()
    (site.directory / "epoch").write_text("3\n")
    world = site.start()
    assert world.queue().ready == 3
    world.close()


# Long runs in small segments


@pytest.mark.parametrize("seed", range(4))
def test_many_rolls_and_restarts(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    options = {"segment_bytes": chance.choice([300, 1_000, 4_000])}
    world = site.start(**options)
    world.queue()
    model: dict[bytes, int] = {}
    n = 0
    for _ in range(60):
        for _ in range(chance.randrange(15)):
            n += 1
            text = b"%d " % n + b"x" * chance.randrange(200)
            world.publish(text, priority=chance.choice([0, 0, 0, 1]))
            model[text] = 0
        if chance.random() < 0.5:
            world.write()
        for lease in world.claim(chance.randrange(1, 20)):
            text = lease.entry.message.body
            fate = chance.random()
            if fate < 0.8:
                world.queue().ack(lease)
                del model[text]
            elif fate < 0.9:
                world.queue().retry(lease, 0, "")
                model[text] = int(lease.entry.attempts)
            else:
                world.queue().release(lease)
        if chance.random() < 0.1:
            world = killed(site, world, **options)
            found = {e.message.body: int(e.attempts) for e in world.queue().ready_entries()}
            assert found == model

"""Paging: a backlog is bounded by the medium, not by memory, and nobody can tell but by the memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.core.dead_letters import move
from rookery.core.entries import Entry
from rookery.core.lines import EXPIRE_ENTRIES
from rookery.core.policy import Policy
from rookery.store.pager import SPILL_BYTES, JournalPager
from tests.contract.faulty import Fault, FaultyMedium
from tests.contract.journal_world import HOUR_MS, SITES, MemorySite, Site, World, picture

PAGE_BYTES = 20_000
SLACK_BYTES = 10_000
"""What one batch may add before it is written and paged."""


@pytest.fixture(params=list(SITES.values()), ids=list(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made: Site = request.param(tmp_path)
    yield made
    made.stop()


def start(site: Site, **options: Any) -> World:
    world = site.start(page_bytes=PAGE_BYTES, **options)
    world.queue()
    return world


def restart(site: Site, world: World, **options: Any) -> World:
    site.kill(world)
    return start(site, **options)


def fill(world: World, count: int, queue: str = "q", **options: Any) -> list[bytes]:
    """Publish many messages, some to a batch; their bodies."""
    bodies = [b"%d of %d " % (n, count) + b"x" * 150 for n in range(count)]
    for n, body in enumerate(bodies):
        world.publish(body, queue, **options)
        if n % 20 == 19:
            world.write()
            assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    world.write()
    return bodies


def drain(world: World, queue: str = "q", step: int = 7) -> list[bytes]:
    bodies: list[bytes] = []
    while taken := world.ack(step, queue):
        bodies += taken
    return bodies


def spilled(site: Site) -> list[str]:
    return sorted(path.name for path in site.spills().iterdir())


@pytest.mark.row("S1-52")
def test_cold_messages_leave_memory_and_none_is_lost(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 1_000)
    queue = world.queue()
    assert queue.ready == 1_000
    assert queue.paged_out > 800
    assert queue.bytes == sum(map(len, bodies))
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    assert drain(world) == bodies
    assert (queue.ready, queue.bytes, world.shard.memory_bytes) == (0, 0, 0)
    world.write()
    world = restart(site, world)
    assert world.queue().ready == 0


def test_reading_back_does_not_fill_the_memory(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 3_000)
    seen = []
    while taken := world.ack(100):
        seen += taken
        # what is read ahead at once is 256 KiB
        assert world.shard.memory_bytes <= PAGE_BYTES + (300 << 10)
    assert seen == bodies


def test_a_page_that_is_read_can_be_given_back_in_order(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 500)
    queue = world.queue()
    leases = world.claim(300)
    assert [lease.entry.message.body for lease in leases] == bodies[:300]
    for lease in reversed(leases):
        if lease.entry.seq % 3:
            queue.release(lease)
        else:
            queue.ack(lease)
    left = [body for n, body in enumerate(bodies, 1) if n > 300 or n % 3]
    world.write()
    world = restart(site, world)
    assert drain(world) == left


def test_what_is_published_while_others_are_paged_waits_behind_them(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 300)
    chance = random.Random(1)
    seen: list[bytes] = []
    for n in range(2_000):
        for _ in range(chance.randrange(3)):
            bodies.append(b"late %d" % n + b"x" * 100)
            world.publish(bodies[-1])
        if chance.random() < 0.3:
            world.write()
        seen += world.ack(chance.randrange(1, 3))
    seen += drain(world)
    assert seen == bodies


def test_a_restart_leaves_the_backlog_on_the_medium(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 2_000)
    world.ack(10)
    world.write()
    before = picture(world)
    world = restart(site, world)
    assert world.queue().ready == 1_990
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    assert before == picture(world)
    world = restart(site, world)
    assert drain(world) == bodies[10:]


def test_publishing_goes_on_behind_a_backlog_of_an_earlier_process(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 400)
    world = restart(site, world)
    bodies += fill(world, 400)
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    world = restart(site, world)
    assert drain(world) == bodies


def test_attempts_of_paged_messages_survive(site: Site) -> None:
    """Also when the record of the return is carried forward, and when the message is written again."""
    world = start(site)
    fill(world, 400)
    world.roll()
    for lease in world.claim(400):
        world.queue().retry(lease, 0, "")
    world.roll()
    world = restart(site, world)
    assert world.queue().lines.place_of(400)
    world.retire(2)
    assert [segment.number for segment in world.journal.segments] == [1, 4]
    for _ in range(3):
        world = restart(site, world)
        assert world.queue().lines.place_of(400)
        world.retire_all()
    world = restart(site, world)
    entries = world.queue().ready_entries()
    assert {(int(e.attempts), e.redelivered) for e in entries} == {(1, True)}
    assert len(entries) == 400


def test_other_priorities_and_delays_are_not_in_the_way(site: Site) -> None:
    world = start(site)
    plain = fill(world, 200)
    urgent = [b"urgent %d" % n for n in range(5)]
    for body in urgent:
        world.publish(body, priority=1)
    world.publish(b"delayed", due_ms=world.wall_ms + 1_000)
    plain += fill(world, 200)
    before = picture(world)
    world = restart(site, world)
    assert before == picture(world)
    world.pass_ms(1_000)
    assert drain(world) == [*urgent, *plain[:200], b"delayed", *plain[200:]]


def test_a_message_that_expires_does_not_keep_others_in_memory(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 200)
    world.publish(b"expires", expires_ms=world.wall_ms + HOUR_MS)
    bodies += fill(world, 200)
    world.publish(b"expires", expires_ms=world.wall_ms + HOUR_MS)
    bodies += fill(world, 200)
    assert world.queue().paged_out > 400
    assert drain(world) == [*bodies[:200], b"expires", *bodies[200:400], b"expires", *bodies[400:]]


def test_an_expiring_message_behind_paged_ones_expires_in_time(site: Site) -> None:
    world = start(site)
    bodies = fill(world, 200)
    world.publish(b"expires", expires_ms=world.wall_ms + 1_000)
    bodies += fill(world, 200)
    world.pass_ms(1_000)
    assert world.queue().ready == 400
    assert drain(world) == bodies


def test_a_fan_out_of_which_one_queue_is_paged(site: Site) -> None:
    world = start(site)
    tenant = world.tenant()
    for name in ("a", "b"):
        tenant.bind("amq.fanout", world.queue(name), "")
    bodies = []
    for n in range(300):
        bodies.append(b"%d " % n + b"x" * 150)
        world.publish(bodies[-1], exchange="amq.fanout")
        if n % 3 == 0:
            world.ack(2, "b")
        world.write()
    before = picture(world)
    world = restart(site, world)
    assert before == picture(world)
    assert drain(world, "a") == bodies
    assert drain(world, "b") == bodies[-world.queue("b").acked :]
    world.write()
    world = restart(site, world)
    assert world.queue("a").ready == world.queue("b").ready == 0


@pytest.mark.parametrize("compression", ["zlib", "zstd"])
def test_compressed_messages_are_paged(site: Site, compression: str) -> None:
    world = start(site, compression=compression, compress_min=100)
    bodies = fill(world, 300)
    assert world.queue().paged_out > 100
    world = restart(site, world)
    assert world.queue().bytes == sum(map(len, bodies))
    world.retire_all()
    assert drain(world) == bodies


# Going away


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_paged_messages_go_with_the_rest(site: Site, how: str) -> None:
    world = start(site, segment_bytes=20_000)
    fill(world, 500)
    world.publish(b"", persistent=False)
    if how == "purge":
        assert world.queue().purge() == 501
    else:
        assert world.tenant().delete_queue("q") == 501
    world.settle()
    assert world.shard.memory_bytes == 0
    assert len(world.journal.segments) == 1
    assert world.queue().ready == 0
    bodies = fill(world, 3)
    world = restart(site, world)
    assert world.bodies() == bodies


def test_a_long_queue_is_trimmed_from_its_paged_head(site: Site) -> None:
    world = start(site)
    queue = world.queue("short", {"length_max": 150, "max_attempts": 0})
    bodies = [b"%d " % n + b"x" * 150 for n in range(500)]
    for body in bodies:
        world.publish(body, "short")
        world.write()
    assert queue.ready == 150
    assert queue.dropped == 350
    assert queue.paged_out > 0
    world = restart(site, world)
    assert drain(world, "short") == bodies[-150:]


@pytest.mark.parametrize("seed", range(3))
def test_segments_that_hold_paged_messages_are_retired(site: Site, seed: int) -> None:
    """Two queues share the segments; one is drained, the other one is paged and must be written again."""
    world = start(site, segment_bytes=8_000)
    world.queue("gone")
    chance = random.Random(seed)
    kept: list[bytes] = []
    for n in range(300):
        for i in range(6):
            body = b"%d-%d " % (n, i) + b"x" * chance.randrange(200)
            if chance.random() < 0.1:
                world.publish(body)
                kept.append(body)
            else:
                world.publish(body, "gone")
        world.write()
        drain(world, "gone")
        if n % 50 == 49:
            kept = kept[len(world.ack(20)) :]
    world.settle()
    assert world.queue().paged_out > 0
    assert world.journal.retired > 20
    before = picture(world)
    world = restart(site, world, segment_bytes=8_000)
    assert before == picture(world)
    world.retire_all()
    assert drain(world) == kept
    world.settle()
    assert len(world.journal.segments) == 1


def test_a_message_is_read_from_the_batch_in_flight(tmp_path: Path) -> None:
    site = MemorySite(tmp_path)
    world = start(site)
    assert isinstance(world.medium, FaultyMedium)
    bodies = fill(world, 300)
    world.medium.script(Fault.SLOW)
    for n in range(5):
        bodies.append(b"in flight %d" % n)
        world.publish(bodies[-1])
    world.turn()
    assert world.medium.held
    assert drain(world) == bodies
    world.medium.release()
    world.write()
    world = restart(site, world)
    assert world.queue().ready == 0


# Transient messages


@pytest.mark.parametrize("durable", [True, False])
def test_transient_messages_are_spilled(site: Site, durable: bool) -> None:
    world = start(site)
    world.queue("t", {"durable": durable, "max_attempts": 0})
    bodies = fill(world, 500, "t", persistent=False)
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    assert world.queue("t").paged_out > 300
    assert spilled(site)
    assert drain(world, "t") == bodies
    assert world.shard.memory_bytes == 0


def test_persistent_and_transient_messages_keep_their_order(site: Site) -> None:
    world = start(site)
    chance = random.Random(4)
    lasting = []
    bodies = []
    for n in range(600):
        body = b"%d " % n + b"x" * 150
        persistent = chance.random() < 0.5
        world.publish(body, persistent=persistent)
        bodies.append(body)
        if persistent:
            lasting.append(body)
        if n % 10 == 9:
            world.write()
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    taken = world.ack(100)
    assert taken == bodies[:100]
    world.write()
    world = restart(site, world)
    assert spilled(site) == []
    assert drain(world) == [body for body in lasting if body not in taken]


def test_spill_files_of_an_earlier_process_are_deleted(site: Site) -> None:
    world = start(site)
    fill(world, 300, persistent=False)
    assert spilled(site)
    world = restart(site, world)
    assert spilled(site) == []
    assert world.queue().ready == 0
    fill(world, 300, persistent=False)
    world.close()
    assert spilled(site) == []


def test_spill_files_that_nobody_needs_are_deleted(tmp_path: Path) -> None:
    pager = JournalPager(lambda segment, offset, size: b"", lambda segment, offset, size: None, tmp_path)
    record = b"\x01" + (1 << 20).to_bytes(4, "big") + bytes(1 << 20)
    for _ in range(3):
        places = [pager.spill(record) for _ in range(SPILL_BYTES // len(record) + 2)]
        assert pager.read(places[3] | 1 << 62).startswith(record)
        for place in places:
            pager.forget(place | 1 << 62)
    assert len(list(tmp_path.iterdir())) <= 1
    pager.close()
    assert not list(tmp_path.iterdir())


def test_paged_dead_letters_are_counted_by_origin_until_they_are_purged(site: Site) -> None:
    world = start(site)
    world.queue("from", {"dead_letter_queue": "q"})
    for _ in range(10):
        fill(world, 20, "from")
        for lease in world.claim(20, "from"):
            lease.queue.reject(lease, "")
        world.write()
    queue = world.queue()
    assert queue.paged_out
    assert queue.origins == {"from": 200}
    assert len(world.ack(50)) == 50
    assert queue.origins == {"from": 150}
    assert queue.purge() == 150
    assert queue.origins == {}


def test_what_came_back_waits_behind_what_is_paged_before_it(site: Site) -> None:
    """Entries that left out of turn are still in the line: that must not hide that the next one is paged."""
    world = start(site)
    fill(world, 400)
    queue = world.queue()
    # the line in memory begins with entries that are gone, and the next ones are paged out
    in_memory = queue.ready_in_memory()
    assert len(in_memory) < 400
    for entry in in_memory:
        queue.remove(entry)
        queue.purged += 1
    late = world.publish(b"late", expires_ms=world.wall_ms + HOUR_MS)
    world.write()
    assert late.body not in world.ack(1)
    assert drain(world)[-1] == b"late"


def test_a_queue_with_a_time_to_live_is_paged_and_expires_in_time(site: Site) -> None:
    world = start(site)
    world.queue("q2", {"ttl_ms": 10_000, "max_attempts": 0})
    early = fill(world, 300, "q2")
    world.pass_ms(4_000)
    late = fill(world, 300, "q2")
    queue = world.queue("q2")
    assert queue.paged_out > 400
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    world.pass_ms(5_999)
    assert queue.ready == 600
    world.pass_ms(1)
    assert (queue.ready, queue.expired) == (300, 300)
    assert len(early) == 300
    world.write()
    world = restart(site, world, wall_ms=world.wall_ms)
    world.pass_ms(0)
    assert world.queue("q2").ready == 300
    assert drain(world, "q2") == late
    world.write()


def test_paged_messages_with_an_expiry_of_their_own_leave_from_the_middle(site: Site) -> None:
    world = start(site)
    world.queue("dead")
    queue = world.queue("q2", {"dead_letter_queue": "dead", "max_attempts": 0})
    bodies = []
    for n in range(600):
        body = b"%d " % n + b"x" * 150
        bodies.append(body)
        world.publish(body, "q2", expires_ms=world.wall_ms + 5_000 if n % 3 == 1 else 0)
        if n % 20 == 19:
            world.write()
    assert queue.paged_out > 400
    world.pass_ms(5_000)
    world.write()
    assert (queue.ready, queue.dead_lettered, world.queue("dead").ready) == (400, 200, 200)
    world.settle()
    world = restart(site, world, wall_ms=world.wall_ms)
    assert world.queue("q2").ready == 400
    assert drain(world, "q2") == [body for n, body in enumerate(bodies) if n % 3 != 1]
    assert drain(world, "dead") == [body for n, body in enumerate(bodies) if n % 3 == 1]
    assert world.shard.memory_bytes == 0


def test_another_time_to_live_counts_for_what_is_paged(site: Site) -> None:
    world = start(site)
    fill(world, 500)
    queue = world.queue()
    world.pass_ms(3_000)
    world.tenant().set_policy(Policy("short", "q", {"ttl_ms": 5_000}))
    assert queue.ttl_ms == 5_000
    assert queue.paged_out > 300
    assert world.shard.memory_bytes <= PAGE_BYTES + SLACK_BYTES
    world.pass_ms(1_999)
    assert queue.ready == 500
    world.pass_ms(1)
    assert (queue.ready, queue.expired) == (0, 500)
    world.write()
    assert world.shard.memory_bytes == 0


def test_of_many_that_expire_at_once_none_is_handed_out(site: Site) -> None:
    world = start(site)
    world.queue("q2", {"ttl_ms": 1_000, "max_attempts": 0})
    count = 2 * EXPIRE_ENTRIES
    fill(world, count, "q2")
    queue = world.queue("q2")
    world.pass_ms(1_001)
    assert 0 < queue.ready < count
    assert world.claim(10, "q2") == []
    assert queue.expired == count
    world.write()
    assert world.shard.memory_bytes == 0


def test_all_are_moved_in_order_while_letters_come_back(site: Site) -> None:
    world = start(site)
    world.queue("target", {"length_max": 1, "overflow": "drop-head", "dead_letter_queue": "q"})
    published = fill(world, 300)
    for n in range(50):
        published.append(b"%d, not written yet" % n)
        world.publish(published[-1], persistent=n % 2 == 0)
    seen: list[bytes] = []

    def chosen(entry: Entry) -> bool:
        seen.append(bytes(entry.message.body))
        return True

    assert move(world.tenant(), world.queue(), world.queue("target"), chosen=chosen) == len(published)
    assert seen == published
    assert drain(world, "target") == published[-1:]
    assert drain(world) == published[:-1]

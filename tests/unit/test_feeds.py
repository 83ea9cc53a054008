"""Feeds: a stream consumed like a queue, record by record, at the pace of its consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rookery.core import retention, streams
from rookery.core.consumers import Mailbox
from rookery.core.feeds import AHEAD, OFFSET_HEADER, Feed
from rookery.core.stream import BLOCK_RECORDS, SealedFile, Stream
from rookery.format import properties
from tests.unit.core_world import World, a_world

world = pytest.fixture(a_world, name="world")


def stream_of(world: World, **said: object) -> Stream:
    return streams.declare(world.tenant, "log", said)[0]


def follow(world: World, stream: Stream, credit: int, **positions: int) -> tuple[Feed, Mailbox, list[str]]:
    ends: list[str] = []
    feed = Feed(stream, {int(name[1:]): at for name, at in positions.items()})
    feed.on_end = ends.append
    world._made.append(feed.queue)
    mailbox = world.shard.subscribe(feed.queue, credit, 60_000)
    world.shard.flush()
    return feed, mailbox, ends


def taken(mailbox: Mailbox) -> list[tuple[int, bytes]]:
    return [
        (int(str(properties.header(lease.entry.message.props, OFFSET_HEADER))), lease.entry.message.body)
        for lease in mailbox.leases
    ]


def test_credit_sets_the_pace_and_acks_make_room(world: World) -> None:
    stream = stream_of(world)
    for n in range(250):
        world.publish(b"%d" % n, "log")
    feed, mailbox, _ = follow(world, stream, 3, p0=5)
    assert taken(mailbox) == [(5, b"5"), (6, b"6"), (7, b"7")]
    assert feed.queue.ready <= AHEAD
    seen = []
    while mailbox.leases:
        for lease in mailbox.take():
            seen.append(lease.entry.message.body)
            feed.queue.ack(lease)
        world.shard.flush()
    assert seen == [b"%d" % n for n in range(5, 250)]
    world.publish(b"new", "log")
    world.shard.flush()
    assert taken(mailbox) == [(250, b"new")]
    assert world.shard.memory_bytes > 0


def test_all_partitions_get_their_turn(world: World) -> None:
    stream = stream_of(world, partitions=3)
    for n in range(30):
        world.publish(b"%d" % n, "log")
    _, mailbox, _ = follow(world, stream, 100, p0=0, p1=0, p2=0)
    assert sorted(int(body) for _, body in taken(mailbox)) == list(range(30))


def test_a_closed_feed_leaves_nothing(world: World) -> None:
    stream = stream_of(world)
    before = int(world.shard.memory_bytes)
    world.publish(b"x", "log")
    grown = int(world.shard.memory_bytes)
    feed, _, ends = follow(world, stream, 1, p0=0)
    feed.close()
    assert (world.shard.feeds, stream.partitions[0].followers) == ([], [])
    assert int(world.shard.memory_bytes) == grown > before
    assert ends == []


def test_the_end_of_the_stream_is_told(world: World) -> None:
    stream = stream_of(world)
    _, _, ends = follow(world, stream, 1, p0=0)
    streams.delete(world.tenant, "log")
    assert ends == ["deleted"]
    assert world.shard.feeds == []


def test_what_was_let_go_of_is_skipped_and_counted(world: World) -> None:
    stream = stream_of(world)
    for _ in range(BLOCK_RECORDS + 2):
        world.publish(b"x", "log")
    retention.release(stream.partitions[0], int(BLOCK_RECORDS))
    feed, mailbox, _ = follow(world, stream, 10, p0=0)
    assert [offset for offset, _ in taken(mailbox)] == [BLOCK_RECORDS, BLOCK_RECORDS + 1]
    assert feed.skipped == BLOCK_RECORDS


def test_sealed_records_come_when_they_were_read(world: World) -> None:
    stream = stream_of(world)
    for n in range(6):
        world.publish(b"%d" % n, "log")
    partition = stream.partitions[0]
    kept = [partition.record(o) for o in range(4)]
    partition.cut_tail(4)
    row = {"path": "f", "first": 0, "last": 3, "first_ms": 1, "last_ms": 1, "bytes": 1}
    partition.files.append(SealedFile(row))
    asked: list[tuple[str, int, int, Callable[[Sequence[bytes]], None]]] = []
    world.shard.read_sealed = lambda *call: asked.append(call)
    _, mailbox, _ = follow(world, stream, 10, p0=1)
    assert taken(mailbox) == []
    ((path, start, stop, arrived),) = asked
    assert (path, start, stop) == ("f", 1, 4)
    arrived(kept[1:])
    world.shard.flush()
    assert taken(mailbox) == [(n, b"%d" % n) for n in range(1, 6)]


def test_an_eager_consumer_is_served_in_bounded_turns(world: World) -> None:
    stream = stream_of(world)
    for n in range(AHEAD * 3):
        world.publish(b"%d" % n, "log")
    _, mailbox, _ = follow(world, stream, 10_000, p0=0)
    assert len(mailbox.leases) == AHEAD
    assert world.shard.next_due_ms() == 0
    for turns in (2, 3):
        world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
        world.shard.flush()
        assert len(mailbox.leases) == AHEAD * turns

"""A journal cut at every byte, with every byte flipped, and with tails that only partly reached the disk.

The rule: recovery gives the state after some batch, which is the last one there can be; or it raises StoreDamaged and
names the file and the offset. What may look like an unfinished end is only what no later batch knows to be synced.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import StoreDamaged, StoreError
from rookery.format import records
from rookery.store.file import FileMedium
from tests.contract.faulty import Disk, FaultyMedium, Piece
from tests.contract.journal_world import START_MS, MemorySite, World, as_of, batches, picture
from tests.unit.core_world import publish_once

LONG = os.environ.get("ROOKERY_LONG") == "1"


class Log:
    """The segments of a small journal, and what was true after each of its batches."""

    def __init__(self, where: Path, *, segment_bytes: int) -> None:
        self.pictures: list[dict[str, Any]] = [{}]
        self.site = MemorySite(where)
        self.world = self.site.start(segment_bytes=segment_bytes)
        self._live()
        self.world.settle()
        self.epoch = self.world.shard.epoch
        sizes = {segment.number: segment.size for segment in self.world.journal.segments}
        self.site.kill(self.world)
        self.segments = {number: self.site.segment(number)[:size] for number, size in sizes.items()}
        ends = {}
        for number, data in self.segments.items():
            for offset, header in batches(data):
                ends[int(header.seq)] = (number, int(offset), int(offset + header.size))
        self.ends = ends

    def _note(self) -> None:
        self.world.write()
        while len(self.pictures) <= self.world.journal._seq:
            self.pictures.append(picture(self.world))

    def _live(self) -> None:
        """Some of everything that a batch can hold, in as few bytes as possible."""
        world = self.world
        world.tenant("t").declare_queue("q", {}, "embedded")
        self._note()
        queue = world.tenant("t").queue("q")

        def publish(body: bytes, **options: Any) -> None:
            world.shard.publish(world.tenant("t"), "", "q", b"\0\0", body, **options)

        publish(b"a")
        self._note()
        publish(b"b", priority=2)
        publish(b"c", due_ms=START_MS + 9_000)
        self._note()
        publish_once(world.shard, world.tenant("t"), "", "q", "k", b"\0\0", b"d")
        self._note()
        (lease,) = world.shard.claim(queue, 1, 9_000)
        queue.retry(lease, 0, "")
        publish(b"e")
        self._note()
        (lease,) = world.shard.claim(queue, 1, 9_000)
        queue.ack(lease)
        publish(b"f")
        self._note()
        world.tenant("t").bind("amq.topic", queue, "#")
        self._note()
        publish(b"g")
        self._note()

    @property
    def last(self) -> int:
        return max(self.ends)

    def batch_at(self, segment: int, offset: int) -> int:
        """The batch that a byte belongs to, 0 for the space behind the last one."""
        for seq, (number, start, end) in self.ends.items():
            if number == segment and start <= offset < end:
                return seq
        return 0

    def open(self, segments: dict[int, bytes]) -> World:
        pieces = {number: Piece(bytearray(data), len(data), len(data)) for number, data in segments.items()}
        return World(FaultyMedium(Disk(epoch=int(self.epoch), pieces=pieces), segment_bytes=0))

    def check(self, segments: dict[int, bytes], seq: int) -> World:
        """The journal opens, with the state after that batch."""
        world = self.open(segments)
        assert world.recovery.seq == seq
        if seq:
            assert self.pictures[seq] == picture(world)
        else:
            assert not world.shard.tenants
        return world


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return Log(tmp_path_factory.mktemp("small"), segment_bytes=1 << 20)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Log:
    log = Log(tmp_path_factory.mktemp("split"), segment_bytes=100)
    assert len(log.segments) >= 3
    return log


def flips() -> Iterator[int]:
    yield 0xFF
    if LONG:
        yield from (1 << bit for bit in range(8))


def test_the_whole_journal_opens(small: Log, split: Log) -> None:
    for log in (small, split):
        assert len(log.ends) >= 8
        log.check(log.segments, log.last)


def test_cut_at_every_byte(small: Log) -> None:
    (data,) = small.segments.values()
    for cut in range(len(data) + 1):
        seq = sum(1 for _, _, end in small.ends.values() if end <= cut)
        small.check({1: data[:cut]}, seq)


def test_cut_at_every_byte_with_zeros_behind_it(small: Log) -> None:
    """As where the space of the segment was laid out in advance; a batch that ends in zeros is whole all the same."""
    (data,) = small.segments.values()
    for cut in range(0, len(data) + 1, 1 if LONG else 3):
        zeroed = data[:cut] + bytes(len(data) - cut + 100)
        whole = [seq for seq, (_, _, end) in small.ends.items() if zeroed[:end] == data[:end]]
        small.check({1: zeroed}, max(whole, default=0))


def test_every_byte_flipped(small: Log) -> None:
    (data,) = small.segments.values()
    for at in range(len(data)):
        for flip in flips():
            damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            seq = small.batch_at(1, at)
            if at == small.ends[seq][1] + 3 and damaged[at : at + 1].isdigit() and damaged[at] > data[at]:
                # it may as well be of a later version: nothing is overwritten
                with pytest.raises(StoreError, match="newer version"):
                    small.open({1: damaged})
                continue
            if seq == small.last:
                small.check({1: damaged}, small.last - 1)
                continue
            with pytest.raises(StoreDamaged) as caught:
                small.open({1: damaged})
            assert caught.value.file == "segment 1"
            assert caught.value.offset == small.ends[seq][1]


def test_every_byte_of_every_segment_flipped(split: Log) -> None:
    last = max(split.segments)
    for number, data in split.segments.items():
        for at in range(0, len(data), 1 if LONG else 7):
            damaged = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
            seq = split.batch_at(number, at)
            if number == last and seq == split.last:
                split.check({**split.segments, number: damaged}, split.last - 1)
                continue
            with pytest.raises(StoreDamaged) as caught:
                split.open({**split.segments, number: damaged})
            assert caught.value.file == f"segment {number}"
            assert caught.value.offset == split.ends[seq][1]


def test_a_segment_that_is_not_the_last_may_not_be_cut_anywhere(split: Log) -> None:
    for number, data in split.segments.items():
        if number == max(split.segments):
            continue
        for cut in range(0, len(data), 1 if LONG else 5):
            with pytest.raises(StoreDamaged):
                split.open({**split.segments, number: data[:cut]})


def test_what_stands_behind_the_end_of_a_closed_segment_does_not_count(split: Log) -> None:
    """The next segment says where it ends. An owner that was fenced may have written behind that."""
    first = min(split.segments)
    data = split.segments[first]
    (_, again), *_ = batches(data)
    for late in (bytes(50), bytes(50) + b"x", data[: int(again.size)], records.seal(b"", 1, 10**6, 10**6)):
        split.check({**split.segments, first: data + late}, split.last)


def test_a_closed_segment_that_ends_too_early_is_damage(split: Log) -> None:
    first = min(split.segments)
    data = split.segments[first]
    for at, _ in [*batches(data), (len(data) - 1, None)]:
        with pytest.raises(StoreDamaged) as caught:
            split.open({**split.segments, first: data[:at]})
        assert str(first) in str(caught.value)


def test_noise_behind_the_last_batch_is_an_unfinished_end(small: Log) -> None:
    chance = random.Random(5)
    for size in (1, 35, 36, 37, 500, 5_000):
        small.check({1: small.segments[1] + chance.randbytes(size)}, small.last)
    world = small.check({1: small.segments[1] + b"RKB1" * 50}, small.last)
    assert world.recovery.torn_bytes == 200


def test_batches_swapped_or_repeated_are_damage(small: Log) -> None:
    data = small.segments[1]
    _, start, end = small.ends[3]
    with pytest.raises(StoreDamaged):
        small.open({1: data[:end] + data[start:end] + data[end:]})
    with pytest.raises(StoreDamaged):
        small.open({1: data[:start] + data[end:]})
    _, next_start, next_end = small.ends[4]
    with pytest.raises(StoreDamaged):
        small.open({1: data[:start] + data[next_start:next_end] + data[start:end] + data[next_end:]})


def test_a_large_batch_behind_the_damage_is_found(tmp_path: Path) -> None:
    """Larger than what is read at once, and across the border of what is read at once."""
    for size in (100, 5 << 20, 9 << 20):
        site = MemorySite(tmp_path)
        world = site.start()
        world.queue()
        world.publish(b"first")
        world.write()
        world.publish(b"damaged")
        world.write()
        world.publish(bytes(range(256)) * (size // 256))
        world.write()
        site.kill(world)
        piece = site.disk.pieces[1]
        at = piece.data.index(b"damaged")
        piece.data[at] ^= 1
        with pytest.raises(StoreDamaged):
            site.start()


def test_a_cut_file_goes_on(tmp_path: Path, small: Log) -> None:
    """On real files: what is left of an unfinished batch never comes back, whatever is written over it."""
    data = small.segments[1]
    for seq in (2, 4, 7):
        _, start, end = small.ends[seq]
        directory = tmp_path / str(seq)
        directory.mkdir()
        (directory / "00000001.log").write_bytes(data[: end - 1])
        (directory / "epoch").write_text("7\n")
        world = World(FileMedium(directory, segment_bytes=4096, reserve_bytes=0))
        assert world.recovery.seq == seq - 1
        assert world.recovery.torn_bytes == end - 1 - start
        assert small.pictures[seq - 1] == picture(world)
        world.shard.publish(world.shard.tenant("t"), "", "q", b"\0\0", b"new")
        world.write()
        before = picture(world)
        world.close()
        world = World(FileMedium(directory, segment_bytes=4096, reserve_bytes=0))
        assert before == picture(world)
        assert world.recovery.torn_bytes == 0
        world.close()


# Tails of which the disk got some parts and not others


def losing(chance: random.Random) -> Any:
    """Of what was not synced, some blocks arrive and others do not, in no order."""
    block = chance.choice([16, 64, 200])

    def survive(unsynced: bytes) -> bytes:
        kept = bytearray(unsynced[: chance.randrange(len(unsynced) + 1)] if chance.random() < 0.3 else unsynced)
        for at in range(0, len(kept), block):
            if chance.random() < 0.4:
                kept[at : at + block] = bytes(len(kept[at : at + block]))
        return bytes(kept)

    return survive


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("seed", range(200 if LONG else 25))
def test_a_power_cut_leaves_a_state_that_was(tmp_path: Path, sync: str, seed: int) -> None:
    """Never damage, never less than what was synced, and never a mixture."""
    chance = random.Random(seed)
    site = MemorySite(tmp_path)
    options: dict[str, Any] = {"sync": sync, "segment_bytes": chance.choice([600, 1 << 20])}
    world = site.start(**options)
    world.queue()
    pictures: dict[int, dict[str, Any]] = {}
    synced = 0

    def note() -> None:
        nonlocal synced
        now = picture(world)
        for seq in range(max(pictures, default=0) + 1, world.journal._seq + 1):
            pictures[seq] = now
        synced = world.journal._synced

    for _ in range(chance.randrange(2, 40)):
        for _ in range(chance.randrange(3)):
            world.publish(b"x" * chance.randrange(100))
        for lease in world.claim(chance.randrange(1, 3)):
            if chance.random() < 0.7:
                world.queue().ack(lease)
            else:
                world.queue().release(lease)
        world.write()
        note()
        if chance.random() < 0.2:
            world.pass_ms(400)
            note()
    site.cut_power(world, tail=losing(chance))
    world = site.start(**options)
    seq = int(world.recovery.seq)
    assert seq >= synced
    if seq:
        assert as_of(pictures[seq], world.wall_ms) == picture(world)
    else:
        assert not world.shard.tenants
    world.queue()
    world.publish(b"and it goes on")
    world.write()
    before = picture(world)
    assert before == picture(site.restart(world, **options))


def test_a_batch_tells_what_was_synced(tmp_path: Path) -> None:
    site = MemorySite(tmp_path)
    world = site.start()
    world.queue()
    world.publish(b"1")
    world.publish(b"2")
    world.write()
    world.ack()
    world.write()
    world.ack()
    world.write()
    world.publish(b"3")
    world.write()
    world.publish(b"4")
    world.write()
    site.kill(world)
    headers = [header for _, header in batches(site.segment(1))]
    assert [(int(h.seq), int(h.synced)) for h in headers] == [(1, 0), (2, 1), (3, 1), (4, 1), (5, 4)]
    assert all(h.epoch == 1 for h in headers)
    assert records.BATCH_HEADER_BYTES == 36

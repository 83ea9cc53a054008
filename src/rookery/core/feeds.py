"""A stream for whoever is handed its records as they come.

A `Feed` is for whoever consumes queues: a queue of its own that is fed from the stream, as fast as it is emptied. A
protocol's consumer of a stream subscribes to the feed's queue, so credit, leases and acknowledgements are those of any
queue; what is settled makes room for the next records. The queue belongs to nobody else, holds few messages, and is
gone with its consumer. A `Tap` is for whoever only reads. Records of sealed files are read by the owner of the shard,
who hands them over later.

A compiled module: a tap is on the way of every record that is pushed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rookery.core import publishing
from rookery.core.policy import QueueSettings
from rookery.core.queue import Queue
from rookery.core.stream import Follower, Partition, Stream
from rookery.format import properties
from rookery.format.fieldtables import Long
from rookery.format.model import Message

if TYPE_CHECKING:
    from rookery.core.shard import Shard

OFFSET_HEADER: Final = "x-stream-offset"
AHEAD: Final[i64] = 100
"""How many records wait in a feed's queue beyond those that its consumer holds."""

AHEAD_BYTES: Final[i64] = 1 << 20
TAPPED: Final[i64] = 500
"""How many records a tap takes in one turn."""

SEALED: Final[i64] = 2_000

ReadSealed = Callable[[str, int, int, Callable[[Sequence[bytes]], None]], None]
"""Reads records of a file from one offset up to another, and hands them over in a later turn."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Following(Follower):
    """Records of some partitions, from positions on, for whoever has room. `skipped` counts those that were gone."""

    def __init__(self, stream: Stream, positions: dict[int, int]) -> None:
        self.stream = stream
        self.positions = positions
        self.skipped: i64 = 0
        self.on_end: Callable[[str], None] | None = None
        self._indexes = sorted(positions)
        self._turn: i64 = 0
        self._reading = False
        self._closed = False
        for index in positions:
            stream.partition(index).followers.append(self)
        stream.tenant.shard.feeds.append(self)

    def has_room(self, taken: i64) -> bool:
        """Whether one more record is wanted, after so many in this turn."""
        raise NotImplementedError

    def take(self, index: i64, offset: i64, record: bytes) -> None:
        """The next record of a partition."""
        raise NotImplementedError

    def take_sealed(self, index: i64, offset: i64, records: Sequence[bytes]) -> None:
        """The next records of a partition, from a file; there may be more of them than there is room for."""
        at = offset
        for record in records:
            self.positions[index] = at + 1
            self.take(index, at, record)
            at += 1

    def shut(self) -> None:
        """There will be no more."""

    def grown(self) -> None:
        self.fill()

    def ended(self, reason: str) -> None:
        self._shut()
        if self.on_end is not None:
            self.on_end(reason)

    def fill(self) -> None:
        """Take records over as long as there is room; within a turn, before queues are pumped."""
        if self._reading or self._closed:
            return
        indexes = self._indexes
        idle: i64 = 0
        taken: i64 = 0
        while idle < len(indexes) and self.has_room(taken):
            self._turn += 1
            taken += 1
            index: i64 = indexes[self._turn % len(indexes)]
            idle = 0 if self._next(index, self.stream.partitions[index]) else idle + 1
            if self._reading:
                return

    def _next(self, index: i64, partition: Partition) -> bool:
        """Take the next record of a partition; False when there is none."""
        position: i64 = self.positions[index]
        if position < partition.first:
            self.skipped += partition.first - position
            position = partition.first
            self.positions[index] = position
        if position >= partition.visible:
            return False
        if position < partition.tail:
            self._read_sealed(index, partition, position)
            return True
        self.positions[index] = position + 1
        self.take(index, position, partition.record(position))
        return True

    def _read_sealed(self, index: i64, partition: Partition, position: i64) -> None:
        file = partition.file_of(position)
        read = self.stream.tenant.shard.read_sealed
        assert file is not None
        if read is None:
            # nobody can: what is sealed is passed over, and counted
            self.skipped += partition.tail - position
            self.positions[index] = partition.tail
            return
        self._reading = True
        stop: i64 = min(position + SEALED, file.last + 1)

        def arrived(records: Sequence[bytes]) -> None:
            self._reading = False
            if self._closed:
                return
            self.take_sealed(index, position, records)
            if not records:
                # the file was let go of, or cannot be read
                self.skipped += stop - position
                self.positions[index] = stop
            self.fill()

        read(file.path, position, stop, arrived)

    def close(self) -> None:
        """The consumer is gone."""
        if not self._closed:
            for index in self.positions:
                followers = self.stream.partitions[index].followers
                if self in followers:
                    followers.remove(self)
            self._shut()

    def _shut(self) -> None:
        self._closed = True
        shard = self.stream.tenant.shard
        if self in shard.feeds:
            shard.feeds.remove(self)
        self.shut()

    def has_more(self) -> bool:
        """Whether there is room, and the stream has something for it."""
        if self._reading or self._closed or not self.is_empty():
            return False
        for index, position in self.positions.items():
            if position < self.stream.partitions[index].visible:
                return True
        return False

    def is_empty(self) -> bool:
        """Whether everything that was taken is used up."""
        raise NotImplementedError


@final
class Feed(Following):
    """Records as the messages of a queue, their offsets in a header."""

    def __init__(self, stream: Stream, positions: dict[int, int]) -> None:
        settings = QueueSettings()
        settings.durable = False
        settings.ordered = False
        self.queue = Queue(stream.name, stream.tenant, stream.tenant.shard, settings)
        self.queue.configure(settings)
        self.queue.owner = self
        super().__init__(stream, positions)

    def has_room(self, taken: i64) -> bool:
        queue = self.queue
        return taken < AHEAD and queue.ready < AHEAD and queue.bytes - queue.leased_bytes < AHEAD_BYTES

    def take(self, index: i64, offset: i64, record: bytes) -> None:
        stored = self.stream.tenant.shard.message_of(record)
        props = properties.with_headers(stored.props, {OFFSET_HEADER: Long(int(offset))})
        message = Message(stored.route, props, stored.body, stored.id, stored.priority, 0, 0)
        publishing.offer_again([self.queue], message)

    def is_empty(self) -> bool:
        return not self.queue.ready

    def shut(self) -> None:
        self.queue.empty()
        self.queue.deleted = True


@mypyc_attr(allow_interpreted_subclasses=True)
class Tap(Following):
    """Records as they are, handed over unless it is `paused`."""

    def __init__(self, stream: Stream, positions: dict[int, int]) -> None:
        self.paused = False
        # of a file, its records that there was no room for
        self._left: deque[tuple[i64, i64, bytes]] = deque()
        super().__init__(stream, positions)

    def has_room(self, taken: i64) -> bool:
        return not self.paused and taken < TAPPED

    def take(self, index: i64, offset: i64, record: bytes) -> None:
        self.hand(self.stream.tenant.shard.message_of(record), index, offset)

    def hand(self, message: Message, index: i64, offset: i64) -> None:
        """The next record of a partition, for whoever reads."""
        raise NotImplementedError

    def take_sealed(self, index: i64, offset: i64, records: Sequence[bytes]) -> None:
        self.positions[index] = offset + len(records)
        at = offset
        for record in records:
            self._left.append((index, at, record))
            at += 1

    def fill(self) -> None:
        while self._left and not self.paused and not self._closed:
            index, offset, record = self._left.popleft()
            self.take(index, offset, record)
        if not self._left:
            super().fill()

    def is_empty(self) -> bool:
        return not self.paused

    def shut(self) -> None:
        self._left.clear()


def fill_all(shard: Shard) -> None:
    """Fill the queues that were emptied. What is taken in one turn is bounded: if there is more, another one is due."""
    for feed in list(shard.feeds):
        feed.fill()


def go_on(shard: Shard) -> None:
    """Have another turn if a feed was emptied at once."""
    for feed in shard.feeds:
        if feed.has_more():
            shard.streams_due_ms = shard.mono_ms
            return

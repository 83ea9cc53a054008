"""A stream: records by offset, kept until they are too old, read by any number of readers at their own positions.

A stream has partitions, and an offset is dense in its partition. What was appended last is the *tail*: it stands in the
journal, with two packed numbers per record in memory (its place and its time). What is older may have been sealed into
files, which are named in `files`; the core knows where they begin and end and never opens one.

The invariant: nobody is shown a record before it is durable. `end` is the next offset to be given, `visible` the one
up to which everything is durable; between them is what the journal has not answered for yet.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64, mypyc_attr

from rookery.core.paging import PLACE_BITS
from rookery.errors import InvalidArgument, InvalidType, OffsetOutOfRange
from rookery.format import properties, records
from rookery.format.bytes import BytesWriter, append, read_i64_be, vec, write_i64_be
from rookery.format.model import Message

if TYPE_CHECKING:
    from rookery.core.groups import Group
    from rookery.core.topology import Tenant

PARTITIONS_MAX: Final = 256
BLOCK_RECORDS: Final[i64] = 4096
BLOCK_BYTES: Final[i64] = 1 << 20
"""A block is full at so many records or bytes; retention by size lets go of whole blocks."""

KEY_HEADER: Final = "x-key"
"""The header whose value is a record's key."""

# name -> (type, smallest, largest)
_SETTINGS: Final[dict[str, tuple[type, int, int]]] = {
    "partitions": (int, 1, PARTITIONS_MAX),
    "max_age_ms": (int, 0, 1 << 53),
    "max_bytes": (int, 0, 1 << 53),
    "until_committed": (bool, 0, 0),
    "by_routing_key": (bool, 0, 0),
    "seal_bytes": (int, 1 << 10, 1 << 40),
    "seal_ms": (int, 1, 1 << 53),
}


class StreamSettings:
    """What can be said about a stream. Ages and sizes of 0 mean "no limit".

    `max_bytes` counts each partition by itself. `until_committed` lets go of what every group has read.
    `by_routing_key` chooses the partition by routing key where a record has no key of its own.
    """

    def __init__(self) -> None:
        self.partitions = 1
        self.max_age_ms = 0
        self.max_bytes = 0
        self.until_committed = False
        self.by_routing_key = False
        self.seal_bytes = 128 << 20
        self.seal_ms = 600_000

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _SETTINGS}


def check_settings(said: Mapping[str, object]) -> dict[str, object]:
    """The settings as a dict of their own, or an error naming the one that is wrong."""
    for name, value in said.items():
        rule = _SETTINGS.get(name)
        if rule is None:
            raise InvalidArgument(f"unknown stream setting {name!r}", argument=name)
        kind, smallest, largest = rule
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidType(f"{name} must be {kind.__name__}, not {type(value).__name__}", argument=name)
        if isinstance(value, int) and not isinstance(value, bool) and not smallest <= value <= largest:
            raise InvalidArgument(f"{name} must be from {smallest} to {largest}", argument=name)
    return dict(said)


@final
class Block:
    """A run of the tail: the times of its records, and their places as far as they are written.

    `head` counts the records at its front that are not kept any more. Records that came all at once share one time,
    `same_ms`.
    """

    def __init__(self, first: i64) -> None:
        self.first: i64 = first
        self.count: i64 = 0
        self.head: i64 = 0
        self.bytes: i64 = 0
        self.same_ms: i64 = 0
        self.stamps: vec[i64] = vec[i64]()
        self.places: vec[i64] = vec[i64]()

    def add(self, stamp: i64, size: i64) -> None:
        self.stamps = append(self.stamps, stamp)
        self.count += 1
        self.bytes += size

    def end(self) -> i64:
        return self.first + self.count

    def is_full(self) -> bool:
        return self.count >= BLOCK_RECORDS or self.bytes >= BLOCK_BYTES or self.same_ms != 0

    def stamp(self, i: i64) -> i64:
        return self.same_ms or self.stamps[i]


@final
class SealedFile:
    """A run of a partition that stands in a file: offsets `first` to `last`, times `first_ms` to `last_ms`."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.path: str = row["path"]
        self.first: i64 = row["first"]
        self.last: i64 = row["last"]
        self.first_ms: i64 = row["first_ms"]
        self.last_ms: i64 = row["last_ms"]
        self.bytes: i64 = row["bytes"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "first": int(self.first),
            "last": int(self.last),
            "first_ms": int(self.first_ms),
            "last_ms": int(self.last_ms),
            "bytes": int(self.bytes),
        }


@mypyc_attr(allow_interpreted_subclasses=True)
class Follower:
    """Whoever wants to be told when a partition has something new to show."""

    def grown(self) -> None:
        """There may be records beyond those seen so far."""
        raise NotImplementedError

    def ended(self, reason: str) -> None:
        """The stream is gone."""


@final
class Partition:
    """One line of records of a stream."""

    def __init__(self, stream: Stream, index: i64, number: i64) -> None:
        self.stream = stream
        self.index: i64 = index
        # the journal's name for it, never used twice; 0 where there is no journal
        self.number: i64 = number
        # the oldest offset that is kept, the oldest that is not sealed, the end that is shown, the next to be given
        self.first: i64 = 0
        self.tail: i64 = 0
        self.visible: i64 = 0
        self.end: i64 = 0
        self.tail_bytes: i64 = 0
        self.last_ms: i64 = 0
        self.files: list[SealedFile] = []
        self.followers: list[Follower] = []
        self._blocks: list[Block] = []
        self._unplaced: i64 = 0
        self._is_stirred = False

    # Appending

    def append(self, message: Message) -> i64:
        """Give the message the next offset; it is shown when it is durable."""
        shard = self.stream.tenant.shard
        offset = self.end
        stamp = max(self.last_ms, shard.wall_ms)
        self.last_ms = stamp
        block = self._open_block()
        size: i64 = len(message.body) + len(message.props)
        block.add(stamp, size)
        self.tail_bytes += size
        self.end = offset + 1
        if shard.log.active:
            shard.log.append(self, message, offset, stamp)
        else:
            w = BytesWriter()
            records.write_record(w, self.number, offset, stamp, message, message.body, records.PLAIN)
            block.places = append(block.places, shard.keep_record(w.getvalue(), size))
            self._unplaced = self.end
            self.visible = self.end
            self.stir()
        return offset

    def _open_block(self) -> Block:
        if self._blocks:
            block = self._blocks[-1]
            if not block.is_full():
                return block
        block = Block(self.end)
        self._blocks.append(block)
        return block

    def placed(self, place: i64) -> None:
        """The oldest record without a place was written there."""
        block = self._block(self._unplaced)
        block.places = append(block.places, place)
        self._unplaced += 1
        self._skip_placed()

    def _skip_placed(self) -> None:
        """Go past blocks that came with their places."""
        while self._unplaced < self.end:
            block = self._block(self._unplaced)
            if len(block.places) < block.count:
                return
            self._unplaced = block.end()

    def adopt(self, part: Partition) -> tuple[i64, i64]:
        """Take all records of a part, where they stand, as one's own: the offset of the first, and their time."""
        shard = self.stream.tenant.shard
        base = self.end
        stamp = max(1, shard.wall_ms, self.last_ms)
        self.last_ms = stamp
        for block in part._blocks:
            taken = Block(self.end)
            taken.count = block.count
            taken.same_ms = stamp
            taken.places = block.places
            taken.bytes = block.bytes
            self._blocks.append(taken)
            self.end += block.count
            self.tail_bytes += block.bytes
        part._blocks = []
        self._skip_placed()
        return base, stamp

    def show(self, upto: i64) -> None:
        """Everything before this offset is durable."""
        if upto > self.visible:
            self.visible = upto
            self.stir()

    def stir(self) -> None:
        """Have the followers told at the end of the turn."""
        if not self._is_stirred and self.followers:
            self._is_stirred = True
            self.stream.tenant.shard.stirred.append(self)

    def tell(self) -> None:
        self._is_stirred = False
        for follower in list(self.followers):
            follower.grown()

    # Reading

    def _block_index(self, offset: i64) -> i64:
        low: i64 = 0
        high: i64 = len(self._blocks) - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if self._blocks[middle].first <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def _block(self, offset: i64) -> Block:
        return self._blocks[self._block_index(offset)]

    def check(self, offset: i64) -> None:
        """Refuse an offset that is not kept any more, or is not there yet."""
        if offset < self.first or offset > self.visible:
            raise OffsetOutOfRange(
                f"offset {offset} of partition {self.index} of stream {self.stream.name!r} is not there: "
                f"it has {self.first} to {self.visible - 1}",
                argument="offset",
            )

    def place(self, offset: i64) -> i64:
        """Where a record of the tail stands."""
        block = self._block(offset)
        return block.places[offset - block.first]

    def stamp(self, offset: i64) -> i64:
        """When a record of the tail was appended."""
        block = self._block(offset)
        return block.stamp(offset - block.first)

    def run(self, start: i64, stop: i64) -> tuple[bytes, bytes]:
        """The places and the times of a run of the tail, 64 bits each."""
        places = BytesWriter()
        stamps = BytesWriter()
        at = start
        while at < stop:
            block = self._block(at)
            i = at - block.first
            last = min(stop, block.end()) - block.first
            while i < last:
                write_i64_be(places, block.places[i])
                write_i64_be(stamps, block.stamp(i))
                i += 1
            at = block.first + last
        return places.getvalue(), stamps.getvalue()

    def record(self, offset: i64) -> bytes:
        """A record of the tail, with its own offset and time: what was staged stands in the journal under others."""
        raw: bytes = self.stream.tenant.shard.read_record(self.place(offset))
        if read_i64_be(raw, records.OFFSET_AT) == offset and read_i64_be(raw, records.STAMP_AT) == self.stamp(offset):
            return raw
        w = BytesWriter()
        records.write_record_again(w, raw, self.number, offset, self.stamp(offset))
        return w.getvalue()

    def offset_at(self, stamp: i64) -> i64:
        """The first offset of the tail that was appended at this time or later; `visible` when there is none."""
        low = max(self.tail, self.first)
        high = self.visible
        while low < high:
            middle = (low + high) >> 1
            if self.stamp(middle) < stamp:
                low = middle + 1
            else:
                high = middle
        return low

    def file_of(self, offset: i64) -> SealedFile | None:
        """The file that holds an offset."""
        low: i64 = 0
        high: i64 = len(self.files)
        while low < high:
            middle = (low + high) >> 1
            if self.files[middle].last < offset:
                low = middle + 1
            else:
                high = middle
        if low < len(self.files) and self.files[low].first <= offset:
            return self.files[low]
        return None

    # Letting go

    def cut_tail(self, upto: i64) -> None:
        """The tail begins later: what is before is sealed, or not kept any more."""
        if upto <= self.tail:
            return
        shard = self.stream.tenant.shard
        gone: i64 = 0
        for block in self._blocks:
            if block.first >= upto:
                break
            last = min(upto - block.first, block.count)
            size = block.bytes * (last - block.head) // max(1, block.count - block.head)
            i = block.head
            while i < last:
                shard.drop_record(block.places[i])
                i += 1
            block.head = last
            block.bytes -= size
            self.tail_bytes -= size
            if not shard.log.active:
                shard.memory_bytes -= size
            if last == block.count:
                gone += 1
        if gone:
            del self._blocks[:gone]
        self.tail = upto

    def block_floor(self, offset: i64) -> i64:
        """The start of the block that holds this offset: whole blocks are let go of."""
        floor = self.tail
        for block in self._blocks:
            if block.end() <= offset and block.end() <= self.visible:
                floor = block.end()
        return floor

    def offset_after(self, size: i64) -> i64:
        """The offset at the end of the blocks that hold the first so many bytes of the tail."""
        found = self.tail
        for block in self._blocks:
            if size <= 0 or block.end() > self.visible:
                break
            size -= block.bytes
            found = block.end()
        return found

    def size_bytes(self) -> i64:
        total = self.tail_bytes
        for file in self.files:
            total += file.bytes
        return total

    # Restoring

    def restore(self, offset: i64, stamp: i64, place: i64, size: i64) -> None:
        """Put the next record of the tail back."""
        block = self._open_block()
        block.add(stamp, size)
        block.places = append(block.places, place)
        self.tail_bytes += size
        self.end = offset + 1
        self._unplaced = self.end
        self.visible = self.end
        if stamp > self.last_ms:
            self.last_ms = stamp

    def move(self, offset: i64, place: i64) -> None:
        """A record of the tail stands elsewhere now."""
        block = self._block(offset)
        block.places[offset - block.first] = place

    def holds(self, offset: i64, place: i64) -> bool:
        """Whether the tail has this offset, and at this place."""
        if offset < self.tail or offset >= self._unplaced:
            return False
        return self.place(offset) == place

    def last_written(self) -> i64:
        """The offset before which every record has its place."""
        return self._unplaced

    def begin_at(self, first: i64, tail: i64, end: i64, last_ms: i64) -> None:
        """Bring the counters of an empty partition back."""
        self.first = first
        self.tail = tail
        self.end = end
        self.visible = end
        self._unplaced = end
        self.last_ms = last_ms


@final
class Stream:
    """A named, partitioned log of records."""

    def __init__(self, name: str, tenant: Tenant, settings: StreamSettings) -> None:
        self.name = name
        self.tenant = tenant
        self.settings = settings
        self.said: dict[str, object] = {}
        self.partitions: list[Partition] = []
        self.groups: dict[str, Group] = {}
        self.deleted = False
        # when it was declared; 0 when that was not written down
        self.made_ms: i64 = 0
        # its records are not for anybody to see (yet)
        self.hidden = False
        self.appended: i64 = 0
        self._turn: i64 = 0

    def id(self) -> str:
        """Tells a stream from another that has its name later."""
        return f"{int(self.made_ms):x}-{int(self.partitions[0].number)}"

    def append(self, message: Message, partition: Partition | None = None) -> tuple[int, int]:
        """Append to this partition, or that of the message's key, else to the next in turn; (partition, offset)."""
        if partition is None:
            partition = self.choose(message)
        offset = partition.append(message)
        self.appended += 1
        return int(partition.index), int(offset)

    def choose(self, message: Message) -> Partition:
        count: i64 = len(self.partitions)
        if count == 1:
            return self.partitions[0]
        index = self.keyed(message)
        return self.partitions[index if index >= 0 else self.next_in_turn()]

    def keyed(self, message: Message) -> i64:
        """The partition that the key of a message leads to, -1 when it has none."""
        key = properties.header(message.props, KEY_HEADER)
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogateescape")
        if isinstance(key, bytes):
            return partition_of(key, len(self.partitions))
        if self.settings.by_routing_key:
            return partition_of(message.route.key.encode("utf-8", "surrogateescape"), len(self.partitions))
        return -1

    def next_in_turn(self) -> i64:
        self._turn += 1
        return self._turn % len(self.partitions)

    def partition(self, index: int) -> Partition:
        if not 0 <= index < len(self.partitions):
            raise InvalidArgument(
                f"stream {self.name!r} has partitions 0 to {len(self.partitions) - 1}", argument="partition"
            )
        return self.partitions[index]

    def records(self) -> int:
        """How many records are kept."""
        return sum(int(p.visible - p.first) for p in self.partitions)

    def end(self, reason: str) -> None:
        """The stream is deleted."""
        self.deleted = True
        for partition in self.partitions:
            partition.files = []
            partition.cut_tail(partition.last_written())
            for follower in list(partition.followers):
                follower.ended(reason)
            partition.followers = []


def partition_of(key: bytes, count: i64) -> i64:
    """The partition that a key belongs to: the same in every process."""
    return i64(zlib.crc32(key)) % count


__all__ = ["PLACE_BITS", "Block", "Follower", "Partition", "SealedFile", "Stream", "StreamSettings", "check_settings"]

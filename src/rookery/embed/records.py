"""What readers of a stream get: records, positions, and where to begin."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

from rookery.core.shard import Shard
from rookery.core.stream import KEY_HEADER, Follower, Partition
from rookery.embed.messages import Message, unpack_message, wall_ms
from rookery.engine.workers import AsyncSignal, Signal
from rookery.errors import InvalidArgument, InvalidType
from rookery.format import properties
from rookery.format.model import Message as StoredMessage
from rookery.format.records import RecordView

Start = int | datetime | Literal["first", "last", "next"]
"""Where to begin to read: at an offset, at a time, with the oldest record, the newest, or the next to come."""

STARTS: Final = ("first", "last", "next")
AHEAD_RECORDS: Final = 1_000
AHEAD_BYTES: Final = 4 << 20
SEALED_RECORDS: Final = 8_192
"""How much a reader takes at a time, from the tail and from sealed files."""


class Position:
    """Where a record is. `repeated`: its dedup key was used before, so nothing was added."""

    __slots__ = ("offset", "partition", "repeated")

    def __init__(self, partition: int, offset: int, repeated: bool = False) -> None:
        self.partition = partition
        self.offset = offset
        self.repeated = repeated

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and (self.partition, self.offset) == (other.partition, other.offset)

    def __hash__(self) -> int:
        return hash((self.partition, self.offset))

    def __repr__(self) -> str:
        return f"Position(partition={self.partition}, offset={self.offset})"


class Record:
    """A message at an offset of a stream. `time` is when it was appended; `message` has all of it."""

    __slots__ = ("key", "message", "offset", "partition", "stored", "time")

    def __init__(
        self,
        partition: int,
        offset: int,
        time: datetime,
        key: bytes | None,
        message: Message,
        stored: StoredMessage | None = None,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.time = time
        self.key = key
        self.message = message
        # as the core has it, where the core is
        self.stored = stored

    @property
    def data(self) -> Any:
        return self.message.data

    def __repr__(self) -> str:
        return f"Record({self.partition}, {self.offset}, {self.message.data!r})"


def record_of(shard: Shard, partition: int, raw: bytes) -> Record:
    """The user's view of a record."""
    view = RecordView()
    view.read(raw, 0)
    stored = shard.message_of(raw)
    message = unpack_message(stored, int(view.stamp), shard.ids)
    key = properties.header(stored.props, KEY_HEADER)
    message.meta.pop(KEY_HEADER, None)
    return Record(
        partition,
        int(view.offset),
        datetime.fromtimestamp(view.stamp / 1000, UTC),
        key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key if isinstance(key, bytes) else None,
        message,
        stored,
    )


def tail_records(partition: Partition, position: int, count: int) -> list[bytes]:
    """Records of the tail from a position on, as many as there are, up to `count` and a few MiB (within a turn)."""
    found: list[bytes] = []
    size = 0
    while position < partition.visible and len(found) < count and size < AHEAD_BYTES:
        raw = partition.record(position)
        found.append(raw)
        size += len(raw)
        position += 1
    return found


def check_start(start: object) -> int | str:
    """An offset, or a word; a time is given as `@` and milliseconds."""
    if isinstance(start, datetime):
        return f"@{wall_ms(start, 'start')}"
    if isinstance(start, str) and start in STARTS:
        return start
    if type(start) is not int:
        raise InvalidType(f"start must be an offset, a datetime or one of {', '.join(STARTS)}", argument="start")
    if start < 0:
        raise InvalidArgument("start must not be negative", argument="start")
    return start


def check_stream_key(key: object) -> bytes | str | None:
    if key is not None and not isinstance(key, str | bytes):
        raise InvalidType(f"key must be str or bytes, not {type(key).__name__}", argument="key")
    return key


class Wake(Follower):
    """Sets a signal when a partition has something new to show."""

    def __init__(self, signal: Signal | AsyncSignal) -> None:
        self._signal = signal
        self.reason = ""

    def grown(self) -> None:
        self._signal.set()

    def ended(self, reason: str) -> None:
        self.reason = reason
        self._signal.set()

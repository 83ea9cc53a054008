"""What a micro-batch reads, and how that is shared out among tasks. Pure: positions in, positions and tasks out.

A position is the next offset to be read of a partition. The invariants: what is between two positions is read exactly
once, a batch has no more rows than its limit, and while there is something to be read it has at least one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from rookery.errors import InvalidArgument

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

Place = tuple[str, int]
"""A stream and one of its partitions."""

Positions = dict[Place, int]


@dataclass(frozen=True)
class Bounds:
    """What a partition has: offsets from `first` up to, not including, `end`, of so many bytes in all; those before
    `sealed` stand in files. The `id` is that of its stream.
    """

    first: int
    end: int
    bytes: int = 0
    sealed: int = 0
    id: str = ""

    @property
    def row_bytes(self) -> float:
        return self.bytes / (self.end - self.first) if self.end > self.first else 0.0


@dataclass(frozen=True)
class Range:
    """Offsets from `start` up to, not including, `stop`; with an `id`, of the stream that has it alone."""

    stream: str
    partition: int
    start: int
    stop: int
    id: str = ""

    def since(self, offset: int) -> Range:
        """What is left of it from an offset on."""
        return replace(self, start=offset)

    @property
    def rows(self) -> int:
        return self.stop - self.start


READER: Final = ""
"""The key in a checkpoint's positions, no stream's name, under which is who reads."""

ID: Final = "id"
"""The key beside the partitions of a stream under which is which stream of that name it was."""


def positions_of(found: Mapping[str, Any]) -> Positions:
    """Positions from their form in Spark's checkpoint, which is that of Kafka's source."""
    positions: Positions = {}
    for stream, partitions in found.items():
        if stream == READER:
            continue
        for partition, offset in partitions.items():
            if partition == ID:
                continue
            if not partition.isdecimal() or isinstance(offset, bool) or offset < EARLIEST_OFFSET:
                raise ValueError(f"{stream}: {partition!r}: {offset} is no offset of a partition")
            positions[(stream, int(partition))] = offset
    return positions


def ids_of(found: Mapping[str, Any]) -> dict[str, str]:
    """Of which streams the positions of a checkpoint are; those of older checkpoints do not say it."""
    return {stream: said[ID] for stream, said in found.items() if stream != READER and ID in said}


def as_json(positions: Mapping[Place, int], reader: str = "", ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The form in the checkpoint; equal positions have equal texts, which is how Spark compares them."""
    found: dict[str, Any] = {READER: reader} if reader else {}
    for (stream, partition), offset in sorted(positions.items()):
        if stream not in found:
            found[stream] = {ID: ids[stream]} if ids and ids.get(stream) else {}
        found[stream][str(partition)] = offset
    return found


def resolve(
    wanted: str | Mapping[Place, int], bounds: Mapping[Place, Bounds], argument: str = "startingOffsets"
) -> Positions:
    """Where earliest, latest or offsets given for each partition are."""
    if isinstance(wanted, str):
        return {place: each.first if wanted == EARLIEST else each.end for place, each in bounds.items()}
    missing = sorted(set(bounds) - set(wanted))
    unknown = sorted(set(wanted) - set(bounds))
    if missing or unknown:
        what = f"no offset for {_names(missing)}" if missing else f"there is no {_names(unknown)}"
        raise InvalidArgument(f"{argument}: {what}", argument=argument)
    named = {EARLIEST_OFFSET: "first", LATEST_OFFSET: "end"}
    return {
        place: getattr(bounds[place], named[offset]) if offset in named else offset for place, offset in wanted.items()
    }


def _names(places: Iterable[Place]) -> str:
    return ", ".join(f"partition {partition} of stream {stream!r}" for stream, partition in places)


def narrowed(positions: Mapping[Place, int], limits: Mapping[Place, int], upwards: bool) -> Positions:
    """Positions that are no lower, or no higher, than limits."""
    choose = max if upwards else min
    return {place: choose(offset, limits.get(place, offset)) for place, offset in positions.items()}


def rows_within(bytes_max: int, start: Mapping[Place, int], bounds: Mapping[Place, Bounds]) -> int:
    """About how many of the rows that wait have so many bytes, at least one; by the mean size in each partition."""
    rows = 0
    size = 0.0
    for place, each in bounds.items():
        waiting = max(0, each.end - start.get(place, each.first))
        rows += waiting
        size += waiting * each.row_bytes
    return max(1, int(rows * bytes_max / size)) if size > bytes_max else max(1, rows)


def advance(start: Mapping[Place, int], ends: Mapping[Place, int], rows_max: int) -> Positions:
    """How far a batch of up to `rows_max` rows gets from `start`: each partition by its share of what waits.

    A place that has no start yet waits for its first position to be given: the caller puts it in `start`.
    """
    waiting = {place: max(0, ends[place] - start[place]) for place in start if place in ends}
    waiting = {place: rows for place, rows in sorted(waiting.items()) if rows}
    total = sum(waiting.values())
    reached = dict(start)
    if total <= rows_max:
        return reached | {place: start[place] + rows for place, rows in waiting.items()}
    # one row for each, the longest first, so that nothing waits forever behind a partition that never ends
    longest = sorted(waiting, key=lambda place: (-waiting[place], place))
    share = dict.fromkeys(longest[:rows_max], 1)
    left = rows_max - len(share)
    for place in share:
        share[place] += min((waiting[place] * left) // total, waiting[place] - 1)
    rest = rows_max - sum(share.values())
    for place in share:
        more = min(rest, waiting[place] - share[place])
        share[place] += more
        rest -= more
    return reached | {place: start[place] + rows for place, rows in share.items()}


def share_out(ranges: Iterable[Range], parallelism: int, rows_max: int, tasks_min: int = 0) -> list[list[Range]]:
    """Ranges as tasks: few and fat. None has more than `rows_max` rows; there are `tasks_min` if there are that many
    rows, and small ranges are merged until there are no more than `parallelism` tasks, or than that size allows.
    """
    pieces = [piece for each in ranges if each.rows > 0 for piece in _split(each, -(-each.rows // rows_max))]
    if not pieces:
        return []
    total = sum(piece.rows for piece in pieces)
    if len(pieces) < tasks_min:
        size = max(1, total // tasks_min)
        pieces = [part for piece in pieces for part in _split(piece, -(-piece.rows // size))]
    wanted = max(parallelism, tasks_min, -(-total // rows_max))
    return _merge(pieces, wanted, rows_max)


def _split(each: Range, count: int) -> list[Range]:
    """A range in so many parts, as equal as can be."""
    cuts = [each.start + each.rows * i // count for i in range(count + 1)]
    return [replace(each, start=start, stop=stop) for start, stop in pairwise(cuts) if stop > start]


def _merge(pieces: list[Range], wanted: int, rows_max: int) -> list[list[Range]]:
    """Put the largest pieces first, each into the emptiest task that has room."""
    tasks: list[list[Range]] = [[] for _ in range(min(wanted, len(pieces)))]
    emptiest = [(0, index) for index in range(len(tasks))]
    for piece in sorted(pieces, key=lambda piece: -piece.rows):
        size, index = emptiest[0]
        if size and size + piece.rows > rows_max:
            heapq.heappush(emptiest, (piece.rows, len(tasks)))
            tasks.append([piece])
            continue
        heapq.heapreplace(emptiest, (size + piece.rows, index))
        tasks[index].append(piece)
    return [sorted(task, key=lambda piece: (piece.stream, piece.partition, piece.start)) for task in tasks]

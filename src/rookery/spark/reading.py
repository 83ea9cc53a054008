"""What is common to reading streams in a batch and as a stream: which partitions, what they have, tasks, rows.

Retention may overtake a reader, and a stream may be deleted and made anew under its name: what is gone is an error that
names it, or, with `failOnDataLoss=false`, is skipped.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from rookery.errors import InvalidArgument, OffsetOutOfRange, RookeryError, StreamNotFound
from rookery.spark.client import Client
from rookery.spark.filters import Limits
from rookery.spark.offsets import Bounds, Place, Positions, Range, narrowed, resolve, share_out
from rookery.spark.options import SourceOptions
from rookery.spark.schema import arrow_schema, check_schema, conform

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class Task(InputPartition):
    """Ranges that one task reads, one after the other; of each, whether some of it stands in files."""

    def __init__(self, ranges: list[Range], sealed: list[bool] | None = None) -> None:
        super().__init__(tuple(ranges))
        self.ranges = ranges
        self.sealed = sealed or [False] * len(ranges)


class StreamTable:
    """The streams of a query as a table. It is sent to executors, where `read` is called."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.client = Client(options.connection)
        check_schema(schema)
        self._schema = schema
        self._columns = tuple(schema.names)
        if options.headers and "headers" not in self._columns:
            self._columns = (*self._columns, "headers")
        self.limits = Limits()

    # On the driver

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Read only what passes these filters; those that this does not do, or not wholly."""
        if self.options.routing_key:
            self.limits.routing_key = self.options.routing_key
        left = self.limits.take(filters)
        self.options = replace(self.options, routing_key=self.limits.routing_key)
        return left

    def bounds(self) -> dict[Place, Bounds]:
        """What there is to be read now."""
        found: dict[Place, Bounds] = {}
        for stream in self._streams():
            try:
                found |= self.client.bounds(stream)
            except StreamNotFound:
                # a stream that was chosen by its name's pattern may go as it came
                if not self.options.pattern:
                    raise
        assigned = self.options.assigned
        if not assigned:
            return found
        chosen = {(stream, partition) for stream, partitions in assigned.items() for partition in partitions}
        for stream, partition in sorted(chosen - set(found)):
            raise InvalidArgument(f"stream {stream!r} has no partition {partition}", argument="assign")
        return {place: each for place, each in found.items() if place in chosen}

    def _streams(self) -> list[str]:
        if self.options.pattern:
            pattern = re.compile(self.options.pattern)
            return [name for name in self.client.stream_names() if pattern.fullmatch(name)]
        return list(self.options.streams or self.options.assigned)

    def start(self, bounds: Mapping[Place, Bounds], default: str) -> Positions:
        """Where the options say to begin."""
        if self.options.starting_ms is not None:
            return self._at(bounds, self.options.starting_ms)
        return resolve(self.options.starting or default, bounds)

    def stop(self, bounds: Mapping[Place, Bounds], default: str) -> Positions:
        """Where the options say to end."""
        if self.options.ending_ms is not None:
            return self._at(bounds, self.options.ending_ms)
        found = resolve(self.options.ending or default, bounds, "endingOffsets")
        for (stream, partition), offset in found.items():
            end = bounds[(stream, partition)].end
            if offset > end:
                raise InvalidArgument(
                    f"endingOffsets: partition {partition} of stream {stream!r} ends at {end}, not {offset}",
                    argument="endingOffsets",
                )
        return found

    def narrowed(self, start: Positions, stop: Positions) -> tuple[Positions, Positions]:
        """The same positions, without what filters leave out."""
        limits = self.limits
        stop = {place: offset for place, offset in stop.items() if limits.has(place)}
        start = {place: max(offset, limits.start) for place, offset in start.items()}
        if limits.stop is not None:
            stop = {place: min(offset, limits.stop) for place, offset in stop.items()}
        if limits.start_ms is not None:
            start = narrowed(start, self._times(start, limits.start_ms), upwards=True)
        if limits.stop_ms is not None:
            stop = narrowed(stop, self._times(stop, limits.stop_ms), upwards=False)
        return start, stop

    def _times(self, places: Iterable[Place], time_ms: int) -> Positions:
        found: Positions = {}
        for stream in sorted({stream for stream, _ in places}):
            found |= self.client.positions_at(stream, time_ms)
        return found

    def _at(self, bounds: Mapping[Place, Bounds], time_ms: int) -> Positions:
        found = self._times(bounds, time_ms)
        return {place: found[place] for place in bounds}

    def tasks(
        self,
        start: Mapping[Place, int],
        stop: Mapping[Place, int],
        bounds: Mapping[Place, Bounds],
        ids: Mapping[str, str] | None = None,
    ) -> list[Task]:
        """What is between positions, as tasks; `ids` are those that the streams had, as far as they are known."""
        ranges = []
        for place, until in stop.items():
            each = bounds.get(place)
            begin = start.get(place, 0 if each is None else each.first)
            if until <= begin:
                continue
            wanted = Range(*place, begin, until, (ids or {}).get(place[0], "" if each is None else each.id))
            if each is None or begin < each.first or until > each.end or wanted.id not in ("", each.id):
                wanted = wanted.since(self.lost(wanted, each))
            ranges.append(wanted)
        shared = share_out(ranges, os.cpu_count() or 1, self.options.rows_per_task, self.options.tasks_min)
        if self.options.mode == "broker":
            return [Task(found) for found in shared]
        # a range that was lost wholly is in no bounds
        sealed = {place: each.sealed for place, each in bounds.items()}
        return [Task(found, [each.start < sealed[(each.stream, each.partition)] for each in found]) for found in shared]

    def lost(self, wanted: Range, each: Bounds | None) -> int:
        """Records of a range are not there: raise, or say where what is left of it begins."""
        begin, until = wanted.start, wanted.stop
        is_other = each is not None and wanted.id not in ("", each.id)
        has = "it is not there" if each is None else f"it has {each.first} to {each.end - 1}"
        if is_other:
            has = "it was deleted and made anew"
        message = (
            f"offsets {begin} to {until - 1} of partition {wanted.partition} of stream {wanted.stream!r} are lost in "
            f"part: {has}"
        )
        if self.options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{message}; failOnDataLoss=false goes on without them", argument="failOnDataLoss")
        _log.warning("%s: they are skipped", message)
        if each is None or is_other or until > each.end:
            # made anew, or gone: what has these offsets now are other records
            return until
        return min(until, max(begin, each.first))

    # On executors

    @cached_property
    def _expected(self) -> pa.Schema:
        return arrow_schema(self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if not isinstance(partition, Task):
            # Spark's own partition, when there was nothing to plan
            return
        with closing(self.client):
            for each, sealed in zip(partition.ranges, partition.sealed, strict=True):
                for batch in self._records(each, sealed):
                    yield from self._fitting(batch)

    def _records(self, each: Range, sealed: bool) -> Iterator[pa.RecordBatch]:
        client, key = self.client, self.options.routing_key
        try:
            if sealed:
                # loads Arrow, as all that reads rows does
                from rookery.spark.sealed import SealedReader

                yield from SealedReader(client, self.options, self._columns).records(each)
            else:
                yield from client.records(each, self._columns, key)
            return
        except OffsetOutOfRange:
            found = client.bounds(each.stream).get((each.stream, each.partition))
            rest = each.since(self.lost(each, found))
        if rest.rows > 0:
            yield from client.records(rest, self._columns, key)

    def _fitting(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch as Spark expects it, without the rows whose headers are others."""
        if self.options.headers:
            batch = with_headers(batch, self.options.headers).select(self._expected.names)
        for at in range(0, batch.num_rows, self.options.batch_rows):
            yield conform(batch.slice(at, self.options.batch_rows), self._expected)


def with_headers(batch: pa.RecordBatch, wanted: Iterable[tuple[str, str]]) -> pa.RecordBatch:
    """The rows that have all these headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    headers = batch.column("headers")
    rows, items = pc.list_parent_indices(headers), headers.flatten()
    names, values = items.field("key"), items.field("value")
    chosen = pa.array(range(batch.num_rows), pa.int64())
    for name, value in wanted:
        found = pc.and_(pc.equal(names, name), pc.equal(values, pa.scalar(value.encode(), pa.binary())))
        having = rows.filter(found, null_selection_behavior="drop").cast(pa.int64())
        chosen = chosen.filter(pc.is_in(chosen, having))
    return batch.take(chosen)


def mirror(client: Client, group: str, positions: Mapping[Place, int]) -> bool:
    """Tell a consumer group how far has been read; whether it took it. That it did not is no reason to stop."""
    by_stream: dict[str, dict[int, int]] = {}
    for (stream, partition), offset in positions.items():
        by_stream.setdefault(stream, {})[partition] = offset
    done = True
    for stream, offsets in by_stream.items():
        done = told(partial(client.commit_group, stream, group, offsets)) and done
    return done


def told(tell: Callable[[], object]) -> bool:
    """Tell the broker something that can be told again later; whether it took it."""
    try:
        tell()
    except RookeryError as error:
        _log.warning("progress was not taken, it is told again: %s", error)
        return False
    return True

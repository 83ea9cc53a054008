"""What is common to reading streams in a batch and as a stream: which partitions, what they have, tasks, rows.

Retention may overtake a reader: what is gone is an error that names it, or, with `failOnDataLoss=false`, is skipped.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rookery.errors import InvalidArgument, OffsetOutOfRange, RookeryError, StreamNotFound
from rookery.spark.client import Client
from rookery.spark.offsets import Bounds, Place, Positions, Range, resolve, share_out
from rookery.spark.options import SourceOptions
from rookery.spark.schema import arrow_schema, conform

_log = logging.getLogger(__name__)


class Task(InputPartition):
    """Ranges that one task reads, one after the other."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = ranges


class StreamTable:
    """The streams of a query as a table. It is sent to executors, where `read` is called."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.client = Client(options.connection)
        self._expected = arrow_schema(schema)
        self._columns = tuple(self._expected.names)

    # On the driver

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

    def _at(self, bounds: Mapping[Place, Bounds], time_ms: int) -> Positions:
        found: Positions = {}
        for stream in sorted({stream for stream, _ in bounds}):
            found |= self.client.positions_at(stream, time_ms)
        return {place: found[place] for place in bounds}

    def tasks(
        self, start: Mapping[Place, int], stop: Mapping[Place, int], bounds: Mapping[Place, Bounds]
    ) -> list[Task]:
        """What is between positions, as tasks."""
        ranges = []
        for place, until in stop.items():
            each = bounds.get(place)
            begin = start.get(place, 0 if each is None else each.first)
            if until <= begin:
                continue
            if each is None or begin < each.first or until > each.end:
                begin = self._lost(place, begin, until, each)
            ranges.append(Range(*place, begin, until))
        cores = os.cpu_count() or 1
        return [Task(found) for found in share_out(ranges, cores, self.options.rows_per_task, self.options.tasks_min)]

    def _lost(self, place: Place, begin: int, until: int, each: Bounds | None) -> int:
        """Records of a range are not there: raise, or say where what is left of it begins."""
        stream, partition = place
        has = "it is not there" if each is None else f"it has {each.first} to {each.end - 1}"
        message = (
            f"offsets {begin} to {until - 1} of partition {partition} of stream {stream!r} are lost in part: {has}"
        )
        if self.options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{message}; failOnDataLoss=false goes on without them", argument="failOnDataLoss")
        _log.warning("%s: they are skipped", message)
        if each is None or until > each.end:
            # made anew, or gone: what has these offsets now are other records
            return until
        return min(until, max(begin, each.first))

    # On executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if not isinstance(partition, Task):
            # Spark's own partition, when there was nothing to plan
            return
        with closing(self.client):
            for each in partition.ranges:
                for batch in self._records(each):
                    yield conform(batch, self._expected)

    def _records(self, each: Range) -> Iterator[pa.RecordBatch]:
        client, key = self.client, self.options.routing_key
        try:
            yield from client.records(each, self._columns, key)
            return
        except OffsetOutOfRange:
            place = (each.stream, each.partition)
            begin = self._lost(place, each.start, each.stop, client.bounds(each.stream).get(place))
        rest = Range(each.stream, each.partition, begin, each.stop)
        if rest.rows > 0:
            yield from client.records(rest, self._columns, key)


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

"""`format("rookery")`: streams as tables, read once or as they grow.

Spark writes down where each micro-batch ends before it runs, and runs that range again until it is done; a range of a
stream is always the same records. So reading is exactly-once wherever writing is.

A stream reader tells its consumer group how far the query has come. Spark calls `latestOffset(start)` only when the
batch that ended at `start` is in its commit log, also after the last batch, for which it never calls `commit`: so it is
there that progress is told.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rookery.errors import InvalidArgument, OffsetOutOfRange
from rookery.spark import tables
from rookery.spark.filters import is_pushing
from rookery.spark.offsets import (
    EARLIEST,
    LATEST,
    READER,
    Bounds,
    Place,
    Positions,
    advance,
    as_json,
    ids_of,
    positions_of,
    rows_within,
)
from rookery.spark.options import KNOWN, Given, SourceOptions, sink_options, source_options
from rookery.spark.queue_source import QueueReader
from rookery.spark.reading import StreamTable, mirror
from rookery.spark.schema import table_schema
from rookery.spark.sink import BatchSink, StreamSink
from rookery.spark.tables import TableSink

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class RookeryDataSource(DataSource):
    """What Spark finds under the name `rookery`."""

    @classmethod
    def name(cls) -> str:
        return "rookery"

    def schema(self) -> StructType:
        made = tables.is_made(self.options)
        options = source_options(tables.for_reading(Given(self.options, KNOWN).said) if made else self.options)
        found = table_schema(options.columns, options.include_headers, options.include_value)
        return tables.kept(found, self.options) if made else found

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._reading(schema)
        if options.queue:
            raise InvalidArgument("a queue is read by spark.readStream: what is read leaves it", argument="queue")
        return PushingReader(options, schema) if options.pushdown and is_pushing() else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        options = self._reading(schema)
        for value, name in ((options.ending, "endingOffsets"), (options.ending_ms, "endingTimestamp")):
            if value is not None:
                raise InvalidArgument(f"a stream has no end: {name} is for spark.read", argument=name)
        return QueueReader(options, schema) if options.queue else StreamReader(options, schema)

    def _reading(self, schema: StructType) -> SourceOptions:
        said, of_table = tables.told(self.options, schema)
        return source_options(tables.for_reading(said) if of_table else said)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        said, of_table = tables.told(self.options, schema)
        if of_table:
            return TableSink(sink_options(tables.for_writing(said)), schema, overwrite)
        return BatchSink(sink_options(said), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  Spark's name
        return StreamSink(sink_options(self.options), schema, overwrite)


class BatchReader(DataSourceReader):
    """Everything between two positions, once."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._table = StreamTable(options, schema)

    def partitions(self) -> list[InputPartition]:
        table = self._table
        bounds = table.bounds()
        start, stop = table.narrowed(table.start(bounds, EARLIEST), table.stop(bounds, LATEST))
        return list(table.tasks(start, stop, bounds))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition)


class PushingReader(BatchReader):
    """The same, of what passes filters."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  Spark's name
        return self._table.push(filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams as they grow. One object lives on the driver as long as the query; copies of it read on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._table = StreamTable(options, schema)
        self._target: Positions | None = None
        self._told: Positions = {}
        self._ids: dict[str, str] = {}
        self._waits_since = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        # the checkpoint has who reads, so that it is the same group whenever the query goes on
        reader = self._options.group or f"spark-{uuid.uuid4()}"
        bounds = self._table.bounds()
        return as_json(self._table.start(bounds, LATEST), reader, _ids(bounds))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = {place: each.end for place, each in self._table.bounds().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxRows(self._options.rows_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        bounds = self._table.bounds()
        self._ids = _ids(bounds)
        self._tell(start)
        if self._target is not None:
            bounds = {place: each for place, each in bounds.items() if place in self._target}
        begun = self._kept(start, bounds)
        # what has come since is read from its beginning
        begun = {place: each.first for place, each in bounds.items()} | begun
        ends = {place: each.end for place, each in bounds.items()}
        if self._target is not None:
            ends = {place: min(end, self._target[place]) for place, end in ends.items()}
        rows = sum(max(0, end - begun[place]) for place, end in ends.items())
        if not self._is_enough(rows):
            return start
        if not isinstance(limit, ReadAllAvailable):
            rows = rows_within(self._options.bytes_per_trigger, begun, bounds)
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        return as_json(advance(begun, ends, rows), start.get(READER, ""), ids_of(start) | self._ids)

    def _kept(self, start: dict[str, Any], bounds: Mapping[Place, Bounds]) -> Positions:
        """The positions of streams that are what they were; another that has the name now is an error, or has none."""
        begun, before = positions_of(start), ids_of(start)
        anew = {
            stream
            for (stream, partition), offset in begun.items()
            if (each := bounds.get((stream, partition)))
            and (each.end < offset or before.get(stream, each.id) != each.id)
        }
        for stream in sorted(anew):
            message = f"stream {stream!r} was deleted and made anew since the query has read of it"
            if self._options.fail_on_data_loss:
                raise OffsetOutOfRange(
                    f"{message}: it needs a new checkpoint; failOnDataLoss=false goes on with the new one",
                    argument="failOnDataLoss",
                )
            _log.warning("%s: the new one is read from its beginning", message)
        return {place: offset for place, offset in begun.items() if place[0] not in anew}

    def _is_enough(self, rows: int) -> bool:
        """Whether so many rows are worth a batch: by their number, or since they have waited long."""
        now = time.monotonic()
        late = (now - self._waits_since) * 1000 >= self._options.delay_max_ms
        if self._target is None and rows < self._options.rows_min and not (rows and late):
            if not rows:
                self._waits_since = now
            return False
        self._waits_since = now
        return True

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return as_json({place: each.end for place, each in self._table.bounds().items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, reached, before, ids = positions_of(start), positions_of(end), ids_of(start), ids_of(end)
        # a stream that was made anew in between is read from its beginning
        begun = {
            place: offset
            for place, offset in begun.items()
            if offset <= reached.get(place, offset) and before.get(place[0]) in (None, ids.get(place[0]))
        }
        return list(self._table.tasks(begun, reached, self._table.bounds(), ids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._tell(end)

    def _tell(self, reached: dict[str, Any]) -> None:
        group = self._options.group or reached.get(READER, "")
        ids = ids_of(reached)
        positions = {
            (stream, partition): offset
            for (stream, partition), offset in positions_of(reached).items()
            if ids.get(stream) in (None, self._ids.get(stream))
        }
        if group and positions != self._told and mirror(self._table.client, group, positions):
            self._told = positions


def _ids(bounds: Mapping[Place, Bounds]) -> dict[str, str]:
    return {stream: each.id for (stream, _), each in bounds.items()}

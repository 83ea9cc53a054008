"""A stream as one DataFrame: Spark's own scan of its sealed files, and what stands in no file yet by the connector.

One plan of the broker says where each partition's files end and its tail begins, so that no record is missing or there
twice; the files stay as long as the plan is held.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import InvalidArgument, StoreDamaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rookery.spark.offsets import Positions
    from rookery.spark.options import SourceOptions
    from rookery.spark.sealed import File, Lease

HOLD_SEC: Final = 3600.0

_REFUSED: Final = ("subscribe", "subscribePattern", "assign", "queue", "routingKey", "headerFilter", "consumerGroup")
_log = logging.getLogger(__name__)


def history(spark: SparkSession, stream: str, *, hold_sec: float = HOLD_SEC, **options: object) -> DataFrame:
    """All records of a stream up to now, or those that the options choose, with the columns of `format("rookery")`.

    The options are those of reading: `endpoint`, `tokenEnv`, `columns`, `startingOffsets` … Spark reads sealed files
    by itself where this process finds them too, at the broker's path or below `segmentsRoot`; what it does not find is
    read through the broker, unless `mode` is segments. The broker keeps the files for `hold_sec`, as long as this
    process runs: whatever reads the frame must have begun with its last file by then.
    """
    from rookery.spark.options import source_options
    from rookery.spark.sealed import Lease

    for name in _REFUSED:
        if name.lower() in {given.lower() for given in options}:
            raise InvalidArgument(f"history has no option {name}: use where() and select()", argument=name)
    if hold_sec <= 0:
        raise InvalidArgument("hold_sec must be more than 0", argument="hold_sec")
    said = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    chosen = source_options({**said, "subscribe": stream})
    lease = Lease(chosen.connection, stream, hold_sec=hold_sec)
    try:
        return _united(spark, stream, chosen, said, lease)
    except BaseException:
        lease.close()
        raise


def _united(spark: SparkSession, stream: str, options: SourceOptions, said: dict[str, str], lease: Lease) -> DataFrame:
    from rookery.spark.schema import table_schema

    start, stop = _positions(options, stream, lease)
    schema = table_schema(options.columns, options.include_headers, options.include_value)
    files, sealed = _sealed(options, lease, start, stop)
    frames = []
    if files:
        frames.append(
            _scan(spark, stream, options.segments_root or lease.root, lease.tenant, files).select(*schema.names)
        )
    tail = {place: (offset, stop[place]) for place, offset in sealed.items() if offset < stop[place]}
    if tail or not frames:
        frames.append(_tail(spark, stream, said, tail or {place: (at, at) for place, at in stop.items()}))
    united = frames[0]
    for frame in frames[1:]:
        united = united.unionByName(frame)
    if not files:
        lease.close()
    return united


def _positions(options: SourceOptions, stream: str, lease: Lease) -> tuple[Positions, Positions]:
    """Where to begin and to end, within what the plan has."""
    from rookery.spark.offsets import EARLIEST, LATEST, Bounds, Range
    from rookery.spark.reading import StreamTable
    from rookery.spark.schema import table_schema

    bounds = {(stream, part["partition"]): Bounds(part["from"], part["to"]) for part in lease.partitions}
    table = StreamTable(replace(options, mode="broker"), table_schema())
    start, stop = table.start(bounds, EARLIEST), table.stop(bounds, LATEST)
    # what came after the plan was made is not part of it
    stop = {place: min(offset, bounds[place].end) for place, offset in stop.items()}
    start = {place: min(offset, stop[place]) for place, offset in start.items()}
    for place, each in bounds.items():
        if start[place] < each.first and start[place] < stop[place]:
            start[place] = min(stop[place], table.lost(Range(*place, start[place], stop[place]), each))
    table.client.close()
    return start, stop


def _sealed(
    options: SourceOptions, lease: Lease, start: Positions, stop: Positions
) -> tuple[list[tuple[File, int, int]], Positions]:
    """The files that Spark scans, each with the offsets wanted of it, and up to where they have each partition."""
    from rookery.spark.sealed import checked_size

    found: list[tuple[File, int, int]] = []
    reached = dict(start)
    if options.mode == "broker":
        return found, reached
    missing: set[int] = set()
    places = {partition: (name, partition) for name, partition in start}
    for file in lease.files:
        place = places[file.partition]
        begin, end = max(file.start, start[place]), min(file.stop, stop[place])
        if begin >= end or file.partition in missing:
            continue
        try:
            checked_size(options.segments_root or lease.root, file)
        except (OSError, StoreDamaged) as error:
            if options.mode == "segments":
                raise StoreDamaged(f"mode=segments, but {file.path} cannot be read: {error}", file=file.path) from None
            # the tail is one range: what follows is read with it
            _log.warning("from %s on partition %d is read through the broker: %s", file.path, file.partition, error)
            missing.add(file.partition)
            continue
        found.append((file, begin, end))
        reached[place] = end
    return found, reached


def _scan(spark: SparkSession, stream: str, root: str, tenant: str, files: list[tuple[File, int, int]]) -> DataFrame:
    """Spark's own scan. Tenant and stream are the same in all files, their partitions are in their paths."""
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import IntegerType

    from rookery.sealed.schema import SEALED_SCHEMA

    schema = from_arrow_schema(SEALED_SCHEMA).add("partition", IntegerType())
    base = f"{root}/{'/'.join(files[0][0].path.split('/')[:2])}"
    reader: Any = spark.read.schema(schema).option("basePath", base).option("__globPaths__", "false")
    frame: DataFrame = reader.parquet(*(f"{root}/{file.path}" for file, _, _ in files))
    for file, begin, end in files:
        if (begin, end) != (file.first, file.last + 1):
            frame = frame.where(
                f"partition <> {file.partition} OR offset NOT BETWEEN {file.first} AND {file.last} "
                f"OR offset BETWEEN {begin} AND {end - 1}"
            )
    return frame.withColumns({"tenant": functions.lit(tenant), "stream": functions.lit(stream)})


def _tail(spark: SparkSession, stream: str, said: dict[str, str], ranges: dict[Any, tuple[int, int]]) -> DataFrame:
    """What stands in no file, or in none that is found here."""
    replaced = ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp", "mode")
    options = {name: value for name, value in said.items() if name.lower() not in replaced}
    partitions = {partition: each for (_, partition), each in sorted(ranges.items())}
    options |= {
        "assign": json.dumps({stream: list(partitions)}),
        "startingOffsets": json.dumps({stream: {str(partition): each[0] for partition, each in partitions.items()}}),
        "endingOffsets": json.dumps({stream: {str(partition): each[1] for partition, each in partitions.items()}}),
    }
    return spark.read.format("rookery").options(**options).load()

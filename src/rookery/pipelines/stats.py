"""What a Delta commit says of a Parquet file so that readers can pass it over: rows, smallest and largest values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

TEXT_MAX: Final = 64
"""Longer values are not worth their place in the log."""


def file_stats(path: Path) -> tuple[int, str]:
    """How many rows a file has, and its statistics in the form that Delta has for them."""
    with pq.ParquetFile(path) as file:
        found, schema = file.metadata, file.schema_arrow
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, each in _columns(found).items():
        if any(stats is None or not stats.has_null_count for stats in each):
            continue
        nulls[name] = sum(stats.null_count for stats in each)
        full = [stats for stats in each if stats.num_values]
        if not full or not all(stats.has_min_max for stats in full) or not _ordered(schema.field(name).type):
            continue
        low, high = _shown(min(stats.min for stats in full)), _shown(max(stats.max for stats in full))
        if low is not None and high is not None:
            smallest[name], largest[name] = low, high
    stats = {"numRecords": found.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return found.num_rows, json.dumps(stats)


def null_keys(path: Path, keys: Sequence[str]) -> list[str]:
    """Which of these columns have a null in a file."""
    with pq.ParquetFile(path) as file:
        columns = _columns(file.metadata)
        unknown = [key for key in keys if any(s is None or not s.has_null_count for s in columns.get(key, [None]))]
        read = file.read(unknown) if unknown else None
    found = [key for key in unknown if read is not None and read.column(key).null_count]
    known = set(keys) - set(unknown)
    return found + [key for key in keys if key in known and sum(s.null_count for s in columns[key])]


def _columns(found: Any) -> dict[str, list[Any]]:
    """The statistics of each plain column, one for each row group."""
    columns: dict[str, list[Any]] = {}
    for i in range(found.num_row_groups):
        group = found.row_group(i)
        for j in range(group.num_columns):
            column = group.column(j)
            # columns inside of others have a dot in their path, and so may plain ones, which then have no statistics
            if "." not in column.path_in_schema:
                columns.setdefault(column.path_in_schema, []).append(column.statistics)
    return columns


def _ordered(kind: pa.DataType) -> bool:
    """Whether smallest and largest mean the same to Parquet and to readers of Delta."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


def _shown(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value.tzinfo else None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else None
    return value if isinstance(value, int) else None

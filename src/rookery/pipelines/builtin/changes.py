"""What was added to a lake table between two of its versions, from the table's own log.

Commits that only rearrange (compaction) or take away (retention) add nothing. A version whose log entry is gone is an
error: a reader that far behind starts anew from the whole table.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rookery.errors import NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def version(table: Path) -> int:
    from deltalake import DeltaTable

    return int(DeltaTable(str(table)).version())


def added(table: Path, start: int, stop: int) -> list[str]:
    """The files added after version `start`, up to `stop`; with a `start` of -1, all files of version `stop`."""
    if start < 0:
        return [row["path"] for row in _files(table, stop)]
    found: list[str] = []
    for number in range(start + 1, stop + 1):
        entry = table / "_delta_log" / f"{number:020}.json"
        if not entry.exists():
            raise NotFound(
                f"version {number} of the lake table {table} is not in its log any more: delete the tables that are "
                "made of it, and they are made anew",
                argument="table",
            )
        for line in entry.read_text().splitlines():
            action = json.loads(line).get("add")
            if action is not None and action["dataChange"]:
                found.append(unquote(action["path"]))
    return found


def rows(spark: SparkSession, table: Path, files: Collection[str]) -> DataFrame:
    """The rows of some files of a table."""
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(DeltaTable(str(table)).schema().to_json()))
    if not files:
        return spark.createDataFrame([], schema)
    paths = [str(table / file) for file in files]
    return spark.read.schema(schema).option("basePath", str(table)).parquet(*paths).select(*schema.names)


def largest(table: Path, column: str, stop: int, *, but: Collection[str] = (), only: Collection[str] = ()) -> Any:
    """The largest value of a column in the files of a version, by their statistics; None when there is none."""
    left_out, chosen = set(but), set(only)
    values = [
        row[f"max.{column}"]
        for row in _files(table, stop)
        if row["path"] not in left_out and (not chosen or row["path"] in chosen)
    ]
    return max((value for value in values if value is not None), default=None)


def _files(table: Path, stop: int) -> list[dict[str, Any]]:
    import pyarrow as pa
    from deltalake import DeltaTable

    found: list[dict[str, Any]] = pa.table(
        DeltaTable(str(table), version=stop).get_add_actions(flatten=True)
    ).to_pylist()
    return [{**row, "path": unquote(row["path"])} for row in found]

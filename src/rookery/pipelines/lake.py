"""Lake tables: Delta tables in directories, into which a micro-batch goes wholly and once.

Spark writes the rows as Parquet into a staging folder of the table; deltalake then makes them part of it with one
commit that also records (application, batch). A batch that is found there adds nothing when it is run again. What an
attempt left behind that died before its commit is in no version of the table: the next attempt, or `vacuum`, removes
it.

No Delta jar is needed, and any reader of Delta reads the tables. They are directories that the driver and the executors
reach under the same path.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from rookery.errors import InvalidArgument, NotFound
from rookery.pipelines.stats import file_stats, null_keys

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame, SparkSession

Slice = Mapping[str, str | None]
"""Values of partition columns, as texts; None is null."""

STAGE: Final = "_stage"
"""Inside a table's directory; readers skip names that begin so."""

WRITERS: Final = 20
"""Files that a task writes at a time; one with more partitions than that sorts the rest of its rows."""

_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


def append(
    frame: DataFrame,
    table: str | Path,
    app: str,
    batch: int,
    *,
    partition_by: Sequence[str] = (),
    revised: Callable[[DataFrame, Sequence[StagedFile]], DataFrame | None] | None = None,
) -> bool:
    """Add the rows of a batch; False when they are there already.

    Rows that were made once can be looked at before they count: `revised` is given them and their files, and may
    return others in their place.
    """
    path = _directory(table)
    if batch <= last_batch(path, app):
        return False
    _check_columns(frame, partition_by)
    with _Staging(path, app, batch) as stage:
        files = stage.write(frame, partition_by)
        if files and revised is not None:
            better = revised(stage.rows(frame), files)
            if better is not None:
                files = stage.write(better, partition_by)
        if files:
            found = _open(path, frame, partition_by)
            _commit(found, [*map(stage.place, files)], app, batch)
    return True


def replace(
    frame: DataFrame,
    table: str | Path,
    app: str,
    batch: int,
    *,
    slices: Sequence[Slice] | None = None,
    partition_by: Sequence[str] = (),
) -> bool:
    """Put the rows of a batch in the place of all rows, or of those in some slices; False when that was done already.

    A slice is values of partition columns. Rows outside of the slices are an error.
    """
    path = _directory(table)
    if batch <= last_batch(path, app):
        return False
    for each in slices or ():
        if not each or set(each) - set(partition_by):
            raise InvalidArgument(
                f"a slice has values of {', '.join(partition_by)}, not {dict(each)}", argument="slices"
            )
    found = _open(path, frame, partition_by)
    with _Staging(path, app, batch) as stage:
        files = stage.write(frame, partition_by)
        for file in files:
            if slices is not None and not any(_within(file.values, each) for each in slices):
                raise InvalidArgument(f"rows of {dict(file.values)} are in none of the slices", argument="slices")
        removed = _removals(found, slices)
        _commit(found, [*map(stage.place, files), *removed], app, batch)
    return True


def merge(
    frame: DataFrame, table: str | Path, app: str, batch: int, *, keys: Sequence[str], partition_by: Sequence[str] = ()
) -> bool:
    """Update the rows that have the keys of those in the batch, add the others; False when that was done already.

    No key is null, and no two rows of a batch have the same ones.
    """
    path = _directory(table)
    if not keys or set(keys) - set(frame.columns):
        raise InvalidArgument(f"keys must be some of the columns {', '.join(frame.columns)}", argument="keys")
    if batch <= last_batch(path, app):
        return False
    found = _open(path, frame, partition_by)
    with _Staging(path, app, batch) as stage:
        files = stage.write(frame, ())
        if not files:
            return True
        for file in files:
            for key in null_keys(file.path, keys):
                raise InvalidArgument(f"the key {key} of a row is null", argument="keys")
        import pyarrow.dataset as ds

        rows = ds.dataset([str(file.path) for file in files]).to_table()
        (
            found.merge(
                rows,
                " AND ".join(f"t.`{key}` = s.`{key}`" for key in keys),
                source_alias="s",
                target_alias="t",
                # so that statistics of the rows say which files they can be in
                streamed_exec=False,
                commit_properties=_properties(app, batch),
            )
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
    return True


def note(table: str | Path, app: str, batch: int) -> None:
    """Remember a batch that adds nothing to a table that is there."""
    found = _table(_directory(table))
    if found is not None and batch > last_batch(table, app):
        _commit(found, [], app, batch)


def read(spark: SparkSession, table: str | Path, *, where: str | None = None) -> DataFrame:
    """The table as it is now. `where` chooses files by their partitions and statistics, and then rows."""
    from pyspark.sql.types import StructType

    path = _directory(table)
    found = _table(path)
    if found is None:
        raise NotFound(f"there is no lake table at {path}", argument="table")
    schema = StructType.fromJson(json.loads(found.schema().to_json()))
    files = _files(found, where)
    if not files:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).option("basePath", str(path)).parquet(*files).select(*schema.names)
    return frame.where(where) if where else frame


def files(table: str | Path, where: str) -> list[str]:
    """The files of a table that may have rows of which a condition is true, by their partitions and statistics."""
    found = _table(_directory(table))
    return [] if found is None else _files(found, where)


def _files(found: DeltaTable, where: str | None) -> list[str]:
    return found.file_uris(file_pruning_predicate=where) if where else found.file_uris()


def exists(table: str | Path) -> bool:
    return _table(_directory(table)) is not None


def last_batch(table: str | Path, app: str) -> int:
    """The number of the last batch that an application committed, -1 when there is none."""
    found = _table(_directory(table))
    version = None if found is None else found.transaction_version(app)
    return -1 if version is None else version


class StagedFile:
    """A Parquet file that Spark wrote below a folder, with the values of its partition columns."""

    __slots__ = ("path", "relative", "rows", "stats", "values")

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.relative = path.relative_to(folder)
        self.values = _values(self.relative)
        self.rows, self.stats = file_stats(path)

    def span(self, column: str) -> tuple[Any, Any]:
        """The smallest and the largest value of a column that has statistics."""
        found = json.loads(self.stats)
        return found["minValues"][column], found["maxValues"][column]


class _Staging:
    """The staging folder of one attempt at a batch. Those of earlier attempts of the application go when it begins."""

    def __init__(self, table: Path, app: str, batch: int) -> None:
        self._table = table
        self._mine = table / STAGE / hashlib.sha256(app.encode()).hexdigest()[:24]
        self._attempt = self._mine / f"{batch}-{uuid.uuid4().hex}"
        self._writes = 0

    @property
    def _folder(self) -> Path:
        """Where the last writing went."""
        return self._attempt / str(self._writes)

    def __enter__(self) -> Self:
        shutil.rmtree(self._mine, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._mine, ignore_errors=True)

    def write(self, frame: DataFrame, partition_by: Sequence[str]) -> list[StagedFile]:
        """Have the rows written; the files that have any."""
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # else rows are sorted by their partitions first, which are few
        frame.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(WRITERS))
        writer = frame.write.mode("overwrite").option("compression", "zstd")
        self._writes += 1
        writer.partitionBy(*partition_by).parquet(str(self._folder))
        files = [StagedFile(path, self._folder) for path in _parquet_files(self._folder)]
        return [file for file in files if file.rows]

    def rows(self, frame: DataFrame) -> DataFrame:
        """What was written last, which is `frame`."""
        return frame.sparkSession.read.schema(frame.schema).parquet(str(self._folder)).select(*frame.columns)

    def place(self, file: StagedFile) -> Any:
        """Move a file to where it belongs in the table; what the commit has to say of it."""
        from deltalake.transaction import AddAction

        target = self._table / file.relative
        target.parent.mkdir(parents=True, exist_ok=True)
        file.path.replace(target)
        size, changed = target.stat().st_size, int(target.stat().st_mtime * 1000)
        return AddAction(str(file.relative), size, dict(file.values), changed, True, file.stats)


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_")))


def _values(relative: Path) -> Slice:
    """The partition values in a path as Spark writes it."""
    found: dict[str, str | None] = {}
    for part in relative.parent.parts:
        name, _, value = part.partition("=")
        found[unquote(name)] = None if value == _NO_VALUE else unquote(value)
    return found


def _within(values: Slice, chosen: Slice) -> bool:
    return all(values.get(name) == value for name, value in chosen.items())


def _removals(table: DeltaTable, slices: Sequence[Slice] | None) -> list[Any]:
    """The actions that take away the files of some slices, or all."""
    import pyarrow as pa
    from deltalake.transaction import RemoveAction

    rows = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    now = int(time.time() * 1000)
    found = []
    for row in rows:
        values = {name: _text(value) for name, value in (row.get("partition") or {}).items()}
        if slices is None or any(_within(values, each) for each in slices):
            # it is quoted here, and quoted by whoever writes it to the log
            found.append(RemoveAction(unquote(row["path"]), True, now, row["size_bytes"], values))
    return found


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _directory(table: str | Path) -> Path:
    if "://" in str(table):
        raise InvalidArgument(
            f"a lake table is a directory that driver and executors reach, not {table!r}", argument="table"
        )
    return Path(os.path.abspath(table))  # noqa: PTH100  links stay as they are


def _table(path: Path) -> DeltaTable | None:
    from deltalake import DeltaTable

    # cheaper than asking deltalake, and true of every table
    return DeltaTable(str(path)) if (path / "_delta_log").is_dir() else None


def _open(path: Path, frame: DataFrame, partition_by: Sequence[str]) -> DeltaTable:
    """The table, made if there is none, with all columns of the rows in it."""
    from deltalake import DeltaTable, Field, Schema

    _check_columns(frame, partition_by)
    schema = frame.schema.toNullable()
    wanted = Schema.from_json(_plain(schema.json()))
    found = _table(path)
    if found is None:
        path.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(str(path), wanted, mode="ignore", partition_by=list(partition_by) or None)
    has = list(found.metadata().partition_columns)
    if has != list(partition_by):
        raise InvalidArgument(
            f"the table {path} is partitioned by {has or 'nothing'}, not by {list(partition_by) or 'nothing'}",
            argument="partitionBy",
        )
    kinds: dict[str, Field] = {field.name: field for field in found.schema().fields}
    fresh = []
    for field in wanted.fields:
        known = kinds.get(field.name)
        if known is None:
            fresh.append(field)
        elif json.loads(known.type.to_json()) != json.loads(field.type.to_json()):
            raise InvalidArgument(
                f"the column {field.name} of the table {path} is {known.type.to_json()}, "
                f"not {field.type.to_json()}: cast it, or choose another name",
                argument=field.name,
            )
    if fresh:
        found.alter.add_columns(fresh)
    return found


def _check_columns(frame: DataFrame, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        if name not in frame.columns:
            raise InvalidArgument(f"there is no column {name!r} to partition by", argument="partitionBy")


def _plain(schema: str) -> str:
    """A schema without what Spark notes beside columns."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: {} if key == "metadata" else strip(inner) for key, inner in value.items()}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return json.dumps(strip(json.loads(schema)))


def _properties(app: str, batch: int) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(app, batch)])


def _commit(table: DeltaTable, actions: list[Any], app: str, batch: int) -> None:
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=_properties(app, batch),
    )

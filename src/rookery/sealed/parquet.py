"""Reading sealed files: the rows of a range of offsets, as batches or as records. Needs pyarrow.

Row groups are small and in order of offset, and their statistics say which offsets they hold, so a read decodes only
the groups that it needs, whatever the length of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rookery.core.ranges import FilePiece, TailPiece
from rookery.core.routing import matcher
from rookery.core.stream import Partition
from rookery.errors import RookeryError, StoreDamaged
from rookery.format import records
from rookery.sealed import arrow
from rookery.sealed.columns import ENVELOPE, check_columns
from rookery.sealed.schema import DIRECTORIES, schema_of

_UNREADABLE: Final = (OSError, pa.ArrowException, ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""What is met in a file that is damaged: pyarrow does not check all that it reads, and its parts need not agree."""


def groups_of(file: pq.ParquetFile, start: int, stop: int) -> Iterator[int]:
    """The row groups that hold offsets from `start` up to, not including, `stop`."""
    meta = file.metadata
    at = meta.schema.names.index("offset")
    for group in range(meta.num_row_groups):
        statistics = _statistics(meta, group, at)
        if statistics.max >= start and statistics.min < stop:
            yield group


def _statistics(meta: pq.FileMetaData, group: int, at: int) -> Any:
    """The statistics of a column in a row group. Where a damaged file says that the column has another type than its
    schema does, pyarrow would end the process.
    """
    column = meta.row_group(group).column(at)
    if column.physical_type != meta.schema.column(at).physical_type:
        raise ValueError(f"row group {group} has another type for {column.path_in_schema}")
    return column.statistics


def batches(
    path: Path, start: int, stop: int, schema: pa.Schema, same: dict[str, Any], pattern: str = ""
) -> Iterator[pa.RecordBatch]:
    """Rows of the sealed file at a path: see `batches_of`."""
    with _reading(path) as file:
        yield from batches_of(file, start, stop, schema, same, pattern)


def batches_of(
    file: pq.ParquetFile, start: int, stop: int, schema: pa.Schema, same: dict[str, Any], pattern: str = ""
) -> Iterator[pa.RecordBatch]:
    """Rows of a sealed file, in order, with the columns of `schema`; only those whose routing key matches.

    `same` has what the directories of the file say: tenant, stream and partition.
    """
    names = [name for name in schema.names if name not in same]
    inside = pa.schema([schema.field(name) for name in names])
    extras = ("offset", "routing_key") if pattern else ("offset",)
    needed = [*names, *(extra for extra in extras if extra not in names)]
    wanted = matcher("topic", {})
    if pattern:
        wanted.add(pattern, None, file)
    for group in groups_of(file, start, stop):
        table = file.read_row_group(group, columns=needed, use_threads=False)
        first = table.column("offset")[0].as_py()
        table = table.slice(max(0, start - first), max(0, stop - max(start, first)))
        if pattern:
            keys = table.column("routing_key").dictionary_encode().combine_chunks()
            chosen = [bool(wanted.match(key or "", None)) for key in keys.dictionary.to_pylist()]
            table = table.filter(pa.array(chosen, pa.bool_()).take(keys.indices))
        table = table.select(names)
        if table.schema != inside:
            table = table.cast(inside)
        for at, field in enumerate(schema):
            if field.name in same:
                table = table.add_column(at, field, arrow.repeated(same[field.name], field, table.num_rows))
        yield from table.to_batches()


class Range:
    """A range of a partition, planned: it can be read in any thread while its files and segments are kept.

    `read` gives bytes of the journal from a place on, `root` is the directory of the sealed files.
    """

    def __init__(
        self,
        partition: Partition,
        pieces: list[FilePiece | TailPiece],
        read: Callable[[int, int], bytes],
        root: Path,
        columns: Sequence[str] = (),
        pattern: str = "",
    ) -> None:
        self._tenant = partition.stream.tenant.name
        self._stream = partition.stream.name
        self._index = int(partition.index)
        self._pieces = pieces
        self._read = read
        self._root = root
        self._pattern = pattern
        self.schema = schema_of(check_columns(list(columns)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in order; batches without rows are left out."""
        for piece in self._pieces:
            if isinstance(piece, FilePiece):
                same = dict(zip(DIRECTORIES, (self._tenant, self._stream, self._index), strict=True))
                found = batches(self._root / piece.path, piece.start, piece.stop, self.schema, same, self._pattern)
            else:
                found = self._tail(piece)
            yield from (batch for batch in found if batch.num_rows)

    def _tail(self, piece: TailPiece) -> Iterator[pa.RecordBatch]:
        for columns in arrow.collect(piece.places, piece.stamps, piece.start, self._read, self.schema, self._pattern):
            yield arrow.batch_of(columns, self.schema, self._tenant, self._stream, self._index)

    def ipc(self) -> Iterator[bytes]:
        """The same as an Arrow IPC stream."""
        return arrow.ipc(self.batches(), self.schema)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(), self.schema)


def records_of(path: Path, start: int, stop: int) -> list[bytes]:
    """Records of a sealed file as they stood in the journal, but for the number of their partition."""
    found: list[bytes] = []
    with _reading(path) as file:
        for group in groups_of(file, start, stop):
            table = file.read_row_group(group, columns=["offset", "timestamp", "value", ENVELOPE])
            first = table.column("offset")[0].as_py()
            table = table.slice(max(0, start - first), max(0, stop - max(start, first)))
            stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
            rows: Any = zip(
                table.column("offset").to_pylist(),
                stamps,
                table.column("value").to_pylist(),
                table.column(ENVELOPE).to_pylist(),
                strict=True,
            )
            found.extend(
                records.join_record(envelope, value, 0, offset, stamp // 1000)
                for offset, stamp, value, envelope in rows
            )
    return found


def first_at(path: Path, stamp_ms: int) -> int | None:
    """The first offset in a file that was appended at this time or later."""
    with _reading(path) as file:
        meta = file.metadata
        at = meta.schema.names.index("timestamp")
        for group in range(meta.num_row_groups):
            last = _statistics(meta, group, at).max
            if int(last.timestamp() * 1_000_000 + 0.5) // 1000 < stamp_ms:
                continue
            table = file.read_row_group(group, columns=["offset", "timestamp"])
            stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
            for offset, stamp in zip(table.column("offset").to_pylist(), stamps, strict=True):
                if stamp // 1000 >= stamp_ms:
                    return int(offset)
    return None


@contextmanager
def _reading(path: Path) -> Iterator[pq.ParquetFile]:
    """A sealed file that is open; what cannot be read of it is damage."""
    with opened(path) as file:
        try:
            yield file
        except RookeryError:
            raise
        except _UNREADABLE as error:
            raise StoreDamaged(f"{path} cannot be read: {error}", file=str(path)) from error


def opened(path: Path) -> pq.ParquetFile:
    """A sealed file to be read."""
    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except _UNREADABLE as error:
        raise StoreDamaged(f"{path} cannot be read: {error}", file=str(path)) from error

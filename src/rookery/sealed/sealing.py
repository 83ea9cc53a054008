"""Sealing: the old part of a stream's tail becomes a Parquet file. Runs in a process of its own.

`python -m rookery.sealed.sealing` reads one job from its standard input: a line of JSON that names the files in which
the records stand (segments of the journal, or a copy where the medium has no files) and the run to be sealed, then the
places and times of its records. It writes the file under a temporary name, syncs it, renames it, and syncs the
directory. It answers with JSON and touches nothing else, so whatever happens to it costs nothing but the time. The
other kind of job merges small files into one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from rookery.core.paging import PLACE_BITS
from rookery.errors import StoreDamaged
from rookery.sealed.arrow import batch_of, collect
from rookery.sealed.columns import BYTES_MAX, ROWS_MAX
from rookery.sealed.layout import TEMPORARY, file_name, file_path, partition_directory
from rookery.sealed.schema import SEALED_SCHEMA

# What differs from row to row (offset, timestamp, value, message_id, envelope) is written plainly: to look for
# repetition in it is a third of the work of writing, for nothing.
DICTIONARIES: Final = [
    "producer_timestamp",
    "key",
    "headers.list.element.key",
    "headers.list.element.value",
    "exchange",
    "routing_key",
    "correlation_id",
    "reply_to",
    "content_type",
    "content_encoding",
    "priority",
    "expiration",
    "delivery_count",
    "protocol",
]


class Run:
    """Records of one partition from offset `first` on, all of one day: where each stands in the journal, and when it
    was appended (64 bits each).
    """

    def __init__(self, row: dict[str, Any], places: bytes, stamps: bytes) -> None:
        self.tenant: str = row["tenant"]
        self.stream: str = row["stream"]
        self.partition: int = row["partition"]
        self.first: int = row["first"]
        self.places = places
        self.stamps = stamps

    @property
    def last(self) -> int:
        return self.first + len(self.places) // 8 - 1

    def stamp(self, index: int) -> int:
        at = index * 8 if index >= 0 else len(self.stamps) + index * 8
        return int.from_bytes(self.stamps[at : at + 8], "big")

    def path(self) -> str:
        """Where its file belongs, below the directory of all streams."""
        directory = partition_directory(self.tenant, self.stream, self.partition)
        return file_path(directory, self.stamp(0), self.first, self.last)


def seal(root: Path, run: Run, segments: dict[int, str], owner: int) -> dict[str, Any]:
    """Write the file of one run; what it is."""
    where = run.path()
    target = root / where
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")
    files = Segments(segments)
    try:
        with sealed_writer(temporary) as writer:
            for batch in batches(run, files.read):
                writer.write_batch(batch, row_group_size=batch.num_rows)
        publish(temporary, target, owner)
    finally:
        files.close()
        temporary.unlink(missing_ok=True)
    return {
        "path": where,
        "first": run.first,
        "last": run.last,
        "first_ms": run.stamp(0),
        "last_ms": run.stamp(-1),
        "bytes": target.stat().st_size,
    }


def sealed_writer(path: Path) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, SEALED_SCHEMA, compression="zstd", use_dictionary=DICTIONARIES)


def batches(run: Run, read: Callable[[int, int], bytes]) -> Iterator[pa.RecordBatch]:
    """The records of a run in order, a row group at a time."""
    for columns in collect(run.places, run.stamps, run.first, read, SEALED_SCHEMA, ""):
        yield batch_of(columns, SEALED_SCHEMA, run.tenant, run.stream, run.partition)


class Segments:
    """Files of the journal, by number, to read from."""

    def __init__(self, paths: dict[int, str]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}

    def read(self, place: int, size: int) -> bytes:
        """Up to `size` bytes from a place on."""
        segment = place >> PLACE_BITS
        fd = self._open.get(segment)
        if fd is None:
            fd = self._open[segment] = os.open(self._paths[segment], os.O_RDONLY)
        return os.pread(fd, size, place & ((1 << PLACE_BITS) - 1))

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)


def publish(temporary: Path, target: Path, owner: int) -> None:
    """Give a finished file its name, so that it is there whole or not at all, also after a loss of power.

    Unless the process that wanted it is gone: its successor has looked at the directory already.
    """
    fd = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    if owner not in (os.getpid(), os.getppid()):
        raise OSError(f"process {owner}, which wanted {target}, is gone")
    temporary.replace(target)
    for directory in (target.parent, *list(target.parents)[1:5]):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def merge(root: Path, files: list[dict[str, Any]], owner: int) -> dict[str, Any]:
    """Write one file of several that follow one another in one directory; what it is."""
    for before, after in pairwise(files):
        if after["first"] != before["last"] + 1:
            raise StoreDamaged(f"{after['path']} does not follow {before['path']}", file=after["path"])
    first, last = files[0], files[-1]
    directory = (root / first["path"]).parent
    target = directory / file_name(first["first"], last["last"])
    temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")
    try:
        with sealed_writer(temporary) as writer:
            for table in regrouped(row_groups(root / file["path"] for file in files)):
                writer.write_table(table, row_group_size=table.num_rows)
        publish(temporary, target, owner)
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "path": target.relative_to(root).as_posix(),
        "first": first["first"],
        "last": last["last"],
        "first_ms": first["first_ms"],
        "last_ms": last["last_ms"],
        "bytes": target.stat().st_size,
    }


def row_groups(paths: Iterable[Path]) -> Iterator[pa.Table]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=SEALED_SCHEMA.names)


def regrouped(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in row groups of a good size."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        size += table.nbytes
        if rows >= ROWS_MAX or size >= BYTES_MAX:
            yield pa.concat_tables(waiting).cast(SEALED_SCHEMA)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting).cast(SEALED_SCHEMA)


def perform(source: BinaryIO) -> dict[str, Any]:
    """Do the job that is described there; the file that came of it."""
    job = cast(dict[str, Any], json.loads(source.readline()))
    root = Path(job["root"])
    if "merge" in job:
        return merge(root, job["merge"], job["owner"])
    segments = {int(number): path for number, path in job["segments"].items()}
    places, stamps = source.read(job["bytes"]), source.read(job["bytes"])
    return seal(root, Run(job, places, stamps), segments, job["owner"])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(perform(sys.stdin.buffer)))

"""Sealed ranges read from their files, where these can be reached: the broker only says which they are and keeps them.

A plan names the files of a range, and holds as long as it is renewed. A file is read only if it is what the plan says
it is: its size, its rows, its first and last offset. One that is not there, or differs, is left to the broker, which
has the records in any case.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rookery.errors import NotFound, RookeryError, StoreDamaged
from rookery.sealed.schema import DIRECTORIES, schema_of
from rookery.spark.client import Client
from rookery.spark.offsets import Range
from rookery.spark.options import Connection, SourceOptions

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LEASE_MS: Final = 60_000
ENDING_SEC: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class File:
    """Of the file at `path`, below the directory of all streams, offsets `start` up to `stop`."""

    partition: int
    path: str
    start: int
    stop: int
    first: int
    last: int
    bytes: int


class Lease:
    """A plan of a whole stream, or of a range of one of its partitions, kept in a thread until it is closed.

    `files` are in order of their offsets. A broker that was started anew knows no plans: it is asked for the same
    again; `lost` is set when that fails, or names other files.
    """

    def __init__(self, connection: Connection, stream: str, each: Range | None = None, hold_sec: float = 0) -> None:
        self._client = Client(connection)
        self._stream = stream
        self._range = each
        self._left_sec = hold_sec or float("inf")
        self._over = threading.Event()
        self.lost = False
        made = self._make()
        self.root: str = made["root"] or ""
        self.tenant: str = made["tenant"]
        self.partitions: list[dict[str, Any]] = made["partitions"]
        self.files = _files(made)
        self._name: str = made["plan"]
        self._thread = threading.Thread(target=self._keep, name="rookery-plan", daemon=True)
        if self.files:
            self._thread.start()
        else:
            self._release()

    def _make(self) -> Any:
        wanted: dict[str, object] = {"lease_ms": LEASE_MS}
        if self._range is not None:
            wanted |= {"partition": self._range.partition, "from": self._range.start, "to": self._range.stop}
            wanted |= {"id": self._range.id} if self._range.id else {}
        return self._client.make_plan(self._stream, wanted)

    def _keep(self) -> None:
        step = LEASE_MS / 3000
        while self._left_sec > 0 and not self._over.wait(min(step, self._left_sec)):
            self._left_sec -= step
            try:
                self._renew()
            except RookeryError as error:
                _log.warning("the files of stream %r are not kept any more: %s", self._stream, error)
                self.lost = True
                break
        self._release()

    def _renew(self) -> None:
        try:
            self._client.renew_plan(self._name, LEASE_MS)
        except NotFound:
            made = self._make()
            self._name = made["plan"]
            if not {file.path for file in self.files} <= {file.path for file in _files(made)}:
                raise NotFound("they have been replaced by others", argument="plan") from None

    def _release(self) -> None:
        try:
            if not self.lost:
                self._client.release_plan(self._name)
        except RookeryError as error:
            # its time ends without us
            _log.info("plan %s: %s", self._name, error)
        finally:
            self._client.close()

    def close(self) -> None:
        self._over.set()
        if self.files:
            self._thread.join(ENDING_SEC)


def _files(made: Any) -> list[File]:
    return [
        File(part["partition"], row["path"], row["from"], row["to"], row["first"], row["last"], row["bytes"])
        for part in made["partitions"]
        for row in part["files"]
    ]


def checked_size(root: str, file: File) -> Path:
    """Where a file is; raises when it is not there, or is another."""
    path = Path(root) / file.path
    size = path.stat().st_size
    if size != file.bytes:
        raise StoreDamaged(f"{path} has {size} bytes, not {file.bytes}", file=str(path))
    return path


class SealedReader:
    """Reads ranges of streams on an executor, from files as far as there are some. Not shared by threads."""

    def __init__(self, client: Client, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._client = client
        self._options = options
        self._columns = columns
        # where to go on is known by the offsets, so they are always read
        self._asked = columns if "offset" in columns else (*columns, "offset")
        self._schema = schema_of(self._asked)

    def records(self, each: Range) -> Iterator[pa.RecordBatch]:
        """The records of a range: each once, in order."""
        at = each.start
        while at < each.stop:
            with closing(Lease(self._options.connection, each.stream, each.since(at))) as lease:
                for file in lease.files:
                    yield from self._file(each, lease, file)
                    at = file.stop
                    if lease.lost:
                        break
                else:
                    break
        if at < each.stop:
            yield from self._broker(each, at, each.stop)

    def _broker(self, each: Range, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        rest = replace(each, start=start, stop=stop)
        return self._client.records(rest, self._columns, self._options.routing_key)

    def _file(self, each: Range, lease: Lease, file: File) -> Iterator[pa.RecordBatch]:
        at = file.start
        try:
            for batch in self._batches(each, lease, file):
                at = batch.column("offset")[-1].as_py() + 1
                yield batch if self._asked is self._columns else batch.select(list(self._columns))
            return
        except (OSError, pa.ArrowException, StoreDamaged, ImportError) as error:
            if self._options.mode == "segments":
                raise StoreDamaged(f"mode=segments, but {file.path} cannot be read: {error}", file=file.path) from error
            _log.info("%s is read by the broker: %s", file.path, error)
        if at < file.stop:
            yield from self._broker(each, at, file.stop)

    def _batches(self, each: Range, lease: Lease, file: File) -> Iterator[pa.RecordBatch]:
        path = checked_size(self._options.segments_root or lease.root, file)
        # of no use to those workers that read no files; an executor may lack what it needs
        from rookery.sealed import parquet

        pattern = self._options.routing_key
        same = dict(zip(DIRECTORIES, (lease.tenant, each.stream, each.partition), strict=True))
        at = file.start
        with parquet.opened(path) as opened:
            check_offsets(opened, path, file)
            for batch in parquet.batches_of(opened, file.start, file.stop, self._schema, same, pattern):
                if not batch.num_rows:
                    continue
                offsets = batch.column("offset")
                if not pattern:
                    if (offsets[0].as_py(), offsets[-1].as_py()) != (at, at + batch.num_rows - 1):
                        raise StoreDamaged(f"{path} does not go on with offset {at}", file=str(path))
                    at += batch.num_rows
                yield batch
        if not pattern and at != file.stop:
            raise StoreDamaged(f"{path} ends before offset {at}", file=str(path))


def check_offsets(opened: pq.ParquetFile, path: Path, file: File) -> None:
    """Raise unless a file has the rows that it should, by what it says of itself."""
    meta = opened.metadata
    at = meta.schema.names.index("offset")
    found = [meta.row_group(group).column(at).statistics for group in (0, meta.num_row_groups - 1)]
    has = (found[0].min, found[1].max, meta.num_rows)
    if has != (file.first, file.last, file.last - file.first + 1):
        raise StoreDamaged(
            f"{path} has offsets {has[0]} to {has[1]} in {has[2]} rows, not {file.first} to {file.last}", file=str(path)
        )

"""Writing to streams, exchanges and queues, each row exactly once, whatever is killed and tried again.

A task stages its rows in chunks, which nobody sees, under names of its own attempt; the driver then commits the chunks
of the attempts that Spark chose, all in one step, under the query's id and the number of the micro-batch. The broker
takes each number once: a batch that is run again after a crash adds nothing. Chunks of attempts that lost are dropped
by that commit, and those that come after it are not kept.

With `exactlyOnce=false` tasks commit each chunk themselves, at once: rows are seen earlier, and again when they are
written again.
"""

from __future__ import annotations

import difflib
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from rookery.errors import (
    ChunkNotFound,
    ExchangeNotFound,
    InvalidArgument,
    InvalidType,
    MessageTooLarge,
    StaleEpoch,
    StreamNotFound,
)
from rookery.spark.client import Client
from rookery.spark.options import TARGETS, SinkOptions
from rookery.spark.session import import_ahead

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES: Final = ("binary or string", (BinaryType, StringType))
_TEXT: Final = ("string", (StringType,))
_NUMBER: Final = ("a whole number", (IntegralType,))

COLUMNS: Final[dict[str, tuple[str, tuple[type[DataType], ...]]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("a map, or an array of structs of key and value", (MapType, ArrayType)),
    "routing_key": _TEXT,
    "partition": _NUMBER,
    "timestamp": ("a timestamp", (TimestampType,)),
    "priority": _NUMBER,
    "expiration_ms": _NUMBER,
    "delay_ms": _NUMBER,
    "message_id": _TEXT,
    "correlation_id": _TEXT,
    "content_type": _TEXT,
}
"""What a row may have, and of which types; only `value` must be there."""

LETTERS: Final = ".DLQ"
"""What stands after the name of a target in that of the queue which has its rows that are too large."""

SHOWN_BYTES: Final = 4_096
"""How much of a row that is too large is kept."""

SIZE_HEADER: Final = "x-oversize-bytes"
AT_ONCE: Final = "spark-at-once"
"""Under what name tasks of jobs commit with `exactlyOnce=false`: few names, since the broker keeps them for a while."""

_KEPT: Final = ("message_id", "correlation_id", "content_type")


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged: the chunks in the order of its rows, and the query that it belongs to."""

    query: str
    chunks: list[str] = field(default_factory=list)
    rows: int = 0


class Stager:
    """Stages the rows of one task, for an epoch of a producer; with `exactlyOnce=false`, each chunk happens at once,
    under epochs of a producer that only such tasks have.
    """

    def __init__(self, options: SinkOptions, name: str, producer: str, epoch: int) -> None:
        self._options = options
        self._client = Client(options.connection)
        self._name = name
        self._producer = producer
        self._owner: dict[str, object] = {"wait_ms": options.staging_ms}
        if options.exactly_once:
            self._owner |= {"producer": producer, "epoch": epoch}
        self._kinds: dict[str, str] = {}
        self._waiting: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._made = 0
        self.chunks: list[str] = []
        self.rows = 0

    def close(self) -> None:
        self._client.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows to be staged, now or with those to come."""
        for target, rows in self._by_target(batch):
            # a batch of Spark may be larger than what the broker takes at once
            for part in pieces(rows, self._options.batch_bytes):
                size = part.nbytes
                if target in self._waiting and self._sizes[target] + size > self._options.batch_bytes:
                    self._stage(target)
                self._waiting.setdefault(target, []).append(part)
                self._sizes[target] = self._sizes.get(target, 0) + size

    def finish(self) -> None:
        for target in list(self._waiting):
            self._stage(target)

    def _by_target(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
        named = [kind for kind in TARGETS if kind in batch.schema.names]
        if not named:
            yield self._options.target, batch
            return
        import pyarrow.compute as pc

        (kind,) = named
        column = batch.column(kind)
        if column.null_count:
            raise InvalidArgument(f"the column {kind} has a null", argument=kind)
        rest = batch.drop_columns([kind])
        for name in pc.unique(column).to_pylist():
            yield (kind, name), rest.filter(pc.equal(column, name))

    def _stage(self, target: tuple[str, str]) -> None:
        self._sizes.pop(target)
        self._send(target, self._waiting.pop(target))

    def _send(self, target: tuple[str, str], batches: list[pa.RecordBatch]) -> None:
        """Stage rows, those that are too large elsewhere if that was asked for."""
        try:
            self._chunk(target, batches)
        except MessageTooLarge:
            if self._options.oversize == "fail":
                raise
            rows = sum(batch.num_rows for batch in batches)
            if rows == 1:
                self._chunk(("queue", target[1] + LETTERS), [shortened(batches[0])])
                return
            # one of them is, or all of them are too many for a request
            import pyarrow as pa

            table = pa.Table.from_batches(batches)
            for half in (table.slice(0, rows // 2), table.slice(rows // 2)):
                self._send(target, half.to_batches())

    def _chunk(self, target: tuple[str, str], batches: list[pa.RecordBatch]) -> None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._made += 1
        name = f"{self._name}-{self._made}"
        self.rows += self._post(*target, sink.getvalue().to_pybytes(), name)["rows"]
        if self._options.exactly_once:
            self.chunks.append(name)
        else:
            self._commit_now(name)

    def _commit_now(self, chunk: str) -> None:
        """Let a chunk happen, under whichever epoch comes next: there may be others that write under the same name."""
        path = _producer(self._producer)
        epoch = time.time_ns()
        while True:
            try:
                self._client.post(f"{path}/commit", {"epoch": epoch, "chunks": [chunk]})
                return
            except StaleEpoch:
                epoch = max(time.time_ns(), self._client.get(path)["epoch"] + 1)

    def _post(self, kind: str, name: str, body: bytes, chunk: str) -> Any:
        """Stage a chunk; a topic is the stream of that name, or else the exchange."""
        known = kind if len(TARGETS[kind]) == 1 else self._kinds.get(name)
        if known:
            return self._client.post(_path(known, name), body, chunk=chunk, **self._owner)
        for each in TARGETS[kind]:
            try:
                staged = self._client.post(_path(each, name), body, chunk=chunk, **self._owner)
            except (StreamNotFound, ExchangeNotFound):
                continue
            self._kinds[name] = each
            return staged
        raise StreamNotFound(f"there is no stream and no exchange {name!r}", argument="topic")


def pieces(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in order, in batches of at most so many bytes, or of one row."""
    if rows.num_rows <= 1 or rows.nbytes <= most_bytes:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from pieces(rows.slice(0, half), most_bytes)
    yield from pieces(rows.slice(half), most_bytes)


def shortened(row: pa.RecordBatch) -> pa.RecordBatch:
    """A row that is too large, as a dead letter: the beginning of its value, how large that was, and what it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    value = row.column("value").cast(pa.binary())
    size = str(len(value[0].as_py())).encode()
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {name: row.column(name) for name in _KEPT if name in row.schema.names}
    columns["value"] = pc.binary_slice(value, 0, SHOWN_BYTES)
    columns["headers"] = pa.array([[{"key": SIZE_HEADER, "value": size}]], kind)
    return pa.record_batch(columns)


class _Writing:
    """What batch and stream writers have in common."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_rows(options, schema)
        if overwrite:
            raise InvalidArgument("what was published cannot be overwritten: use the mode append", argument="mode")
        self._options = options

    def _staged(self, batches: Iterator[pa.RecordBatch], producer: str, epoch: int) -> Staged:
        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        # Spark needs it at the end of the task, and the first rows are not there yet
        import_ahead("pandas")
        # no other attempt has this in its name, not even one of the same task that is thought dead
        attempt = f"{task.partitionId()}-{task.attemptNumber()}-{uuid.uuid4().hex}"
        if not self._options.exactly_once:
            producer = f"{producer}-{task.partitionId()}"
        with closing(Stager(self._options, f"{producer[:100]}-{epoch}-{attempt}", producer, epoch)) as stager:
            for batch in batches:
                stager.add(batch)
            stager.finish()
            return Staged(producer, stager.chunks, stager.rows)

    def _commit(self, producer: str, epoch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        if not self._options.exactly_once:
            return
        with closing(Client(self._options.connection)) as client:
            client.post(f"{_producer(producer)}/commit", {"epoch": epoch, "chunks": _chunks(messages)})

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with closing(Client(self._options.connection)) as client:
            for chunk in _chunks(messages):
                try:
                    client.delete(f"/api/v1/chunks/{quote(chunk, safe='')}")
                except ChunkNotFound:
                    pass


class StreamSink(_Writing, DataSourceStreamArrowWriter):
    """Micro-batches: the producer is the query, its epochs are the numbers of the batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        query = self._options.producer or task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        assert query is not None, "a stream is written by a query"
        assert batch is not None, "a query writes micro-batches"
        return self._staged(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        queries = {message.query for message in messages if isinstance(message, Staged)}
        if queries:
            (query,) = queries
            self._commit(query, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        self._abort(messages)


class BatchSink(_Writing, DataSourceArrowWriter):
    """One job: with `jobId`, or `producerId` and `epoch`, it can be repeated and happens once; without, wholly or
    not at all.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._job = options.job or options.producer or (uuid.uuid4().hex if options.exactly_once else AT_ONCE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._staged(iterator, self._job, self._options.epoch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(self._job, self._options.epoch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


def check_rows(options: SinkOptions, schema: StructType) -> None:
    """Raise unless rows of this schema can be published under these options."""
    _, named = options.target
    known = (*COLUMNS, *TARGETS)
    targets = [name for name in schema.names if name in TARGETS]
    for name in schema.names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidArgument(f"a message has no column {name!r}{hint}", argument=name)
        said, kinds = COLUMNS.get(name, _TEXT)
        if not isinstance(schema[name].dataType, kinds):
            found = schema[name].dataType.simpleString()
            raise InvalidType(f"the column {name} must be {said}, not {found}", argument=name)
    if "value" not in schema.names:
        raise InvalidArgument("the column value is missing: it is the body of the message", argument="value")
    if targets and named:
        raise InvalidArgument(
            f"the column {targets[0]} and the option that names {named!r} exclude each other", argument=targets[0]
        )
    if len(targets) > 1:
        raise InvalidArgument(f"the columns {' and '.join(targets)} exclude each other", argument=targets[1])
    if not targets and not named:
        raise InvalidArgument(f"one of {', '.join(TARGETS)} is needed, as an option or a column", argument="topic")


def _producer(name: str) -> str:
    return f"/api/v1/producers/{quote(name, safe='')}"


def _path(kind: str, name: str) -> str:
    return f"/api/v1/{kind}s/{quote(name, safe='')}/stage"


def _chunks(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [chunk for message in messages if isinstance(message, Staged) for chunk in message.chunks]

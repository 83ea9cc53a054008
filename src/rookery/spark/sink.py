"""Writing to streams, exchanges and queues, each row exactly once, whatever is killed and tried again.

A task stages its rows in chunks, which nobody sees, under names of its own attempt; the driver then commits the chunks
of the attempts that Spark chose, all in one step, under the query's id and the number of the micro-batch. The broker
takes each number once: a batch that is run again after a crash adds nothing. Chunks of attempts that lost are dropped,
here where that is known, else by the broker when their time is over.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from rookery.errors import ChunkNotFound, InvalidArgument, InvalidType, StreamNotFound
from rookery.spark.client import Client
from rookery.spark.options import SinkOptions

COLUMNS: Final = (
    "value",
    "key",
    "headers",
    "routing_key",
    "partition",
    "timestamp",
    "priority",
    "expiration_ms",
    "delay_ms",
    "message_id",
    "correlation_id",
    "content_type",
)
"""What a row may have beside `topic`; only `value` must be there."""

TOPIC: Final = "topic"


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged: the chunks in the order of its rows, and the query that it belongs to."""

    query: str
    chunks: list[str] = field(default_factory=list)
    rows: int = 0


class Stager:
    """Stages the rows of one task."""

    def __init__(self, options: SinkOptions, name: str) -> None:
        self._options = options
        self._client = Client(options.connection)
        self._name = name
        self._paths: dict[str, str] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self.chunks: list[str] = []
        self.rows = 0

    def close(self) -> None:
        self._client.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows to be staged, now or with those to come."""
        for topic, rows in self._by_topic(batch):
            # a batch of Spark may be larger than what the broker takes at once
            size = max(1, rows.nbytes)
            step = max(1, rows.num_rows * self._options.batch_bytes // size)
            for at in range(0, rows.num_rows, step):
                part = rows.slice(at, step)
                self._waiting.setdefault(topic, []).append(part)
                self._sizes[topic] = self._sizes.get(topic, 0) + size * part.num_rows // rows.num_rows
                if self._sizes[topic] >= self._options.batch_bytes:
                    self._stage(topic)

    def finish(self) -> None:
        for topic in list(self._waiting):
            self._stage(topic)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if TOPIC not in batch.schema.names:
            yield "", batch
            return
        column = batch.column(TOPIC)
        if column.null_count:
            raise InvalidArgument("the column topic has a null", argument=TOPIC)
        rest = batch.drop_columns([TOPIC])
        for topic in pc.unique(column).to_pylist():
            yield topic, rest.filter(pc.equal(column, topic))

    def _stage(self, topic: str) -> None:
        batches = self._waiting.pop(topic)
        self._sizes.pop(topic)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        name = f"{self._name}-{len(self.chunks)}"
        staged = self._client.post(self._path(topic), sink.getvalue().to_pybytes(), chunk=name)
        self.chunks.append(name)
        self.rows += staged["rows"]

    def _path(self, topic: str) -> str:
        """Where rows for a topic are staged: it is the stream of that name, or else the exchange."""
        options = self._options
        if options.stream:
            return f"/api/v1/streams/{quote(options.stream, safe='')}/stage"
        if options.exchange:
            return f"/api/v1/exchanges/{quote(options.exchange, safe='')}/stage"
        if options.queue:
            return f"/api/v1/queues/{quote(options.queue, safe='')}/stage"
        name = topic or options.topic
        if name not in self._paths:
            try:
                self._client.bounds(name)
                kind = "streams"
            except StreamNotFound:
                kind = "exchanges"
            self._paths[name] = f"/api/v1/{kind}/{quote(name, safe='')}/stage"
        return self._paths[name]


class _Writing:
    """What batch and stream writers have in common."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_rows(options, schema)
        if overwrite:
            raise InvalidArgument("what was published cannot be overwritten: use the mode append", argument="mode")
        self._options = options

    def _staged(self, batches: Iterator[pa.RecordBatch], query: str, name: str) -> Staged:
        with closing(Stager(self._options, name)) as stager:
            for batch in batches:
                stager.add(batch)
            stager.finish()
            return Staged(query, stager.chunks, stager.rows)

    def _commit(self, producer: str, epoch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        chunks = _chunks(messages)
        with closing(Client(self._options.connection)) as client:
            path = f"/api/v1/producers/{quote(producer, safe='')}/commit"
            done = client.post(path, {"epoch": epoch, "chunks": chunks})
            if done["duplicate"]:
                # it was committed before by chunks of another attempt, or by these, which are gone then
                _drop(client, chunks)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with closing(Client(self._options.connection)) as client:
            _drop(client, _chunks(messages))


class StreamSink(_Writing, DataSourceStreamArrowWriter):
    """Micro-batches: the producer is the query, its epochs are the numbers of the batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        query = self._options.producer or task.getLocalProperty("sql.streaming.queryId") or ""
        number = task.getLocalProperty("streaming.sql.batchId")
        return self._staged(iterator, query, f"{query[:100]}-{number}-{_attempt(task)}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        queries = {message.query for message in messages if isinstance(message, Staged)}
        if queries:
            (query,) = queries
            self._commit(query, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        self._abort(messages)


class BatchSink(_Writing, DataSourceArrowWriter):
    """One job: with `jobId` it can be repeated and happens once, without it happens wholly or not at all.

    With `producerId` and `epoch` it is one of many batches, each of which happens once, as `foreachBatch` needs it.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._job = options.job or options.producer or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        return self._staged(iterator, self._job, f"{self._job[:100]}-{_attempt(task)}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(self._job, self._options.epoch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


def check_rows(options: SinkOptions, schema: StructType) -> None:
    """Raise unless rows of this schema can be published under these options."""
    named = options.topic or options.stream or options.exchange or options.queue
    known = COLUMNS if named else (*COLUMNS, TOPIC)
    for name in schema.names:
        if name == TOPIC and named:
            raise InvalidArgument(
                f"the column topic and the option that names {named!r} exclude each other", argument=TOPIC
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidArgument(f"a message has no column {name!r}{hint}", argument=name)
    if "value" not in schema.names:
        raise InvalidArgument("the column value is missing: it is the body of the message", argument="value")
    if not isinstance(schema["value"].dataType, BinaryType | StringType):
        raise InvalidType(
            f"the column value must be binary or string, not {schema['value'].dataType.simpleString()}",
            argument="value",
        )
    if not named and TOPIC not in schema.names:
        raise InvalidArgument("one of topic, stream, exchange, queue, or a column topic, is needed", argument=TOPIC)


def _attempt(task: TaskContext) -> str:
    """What no other attempt has in its name, not even one of the same task that is thought dead."""
    return f"{task.partitionId()}-{task.attemptNumber()}-{uuid.uuid4().hex}"


def _chunks(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [chunk for message in messages if isinstance(message, Staged) for chunk in message.chunks]


def _drop(client: Client, chunks: list[str]) -> None:
    for chunk in chunks:
        try:
            client.delete(f"/api/v1/chunks/{quote(chunk, safe='')}")
        except ChunkNotFound:
            pass

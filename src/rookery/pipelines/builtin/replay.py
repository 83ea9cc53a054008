"""Records of a stream or of the archive published again: chosen by SQL, each once, as fast as wanted, resumable.

Spark chooses the rows and writes them down in the folder of the replay; from then on what is replayed is fixed,
whatever happens to its source. The rows are published from there in chunks, each staged and committed under its
number: the broker takes each number once, so a replay that died goes on, under the same id, where it was.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec

from rookery.errors import InvalidArgument, NotFound
from rookery.sealed.table import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rookery.spark.options import Connection

CHUNK_ROWS: Final = 10_000
COMMITS_PER_SEC: Final = 5
"""With a rate, chunks are so small that there are so many a second."""

AHEAD: Final = 2
"""How many chunks are staged at a time, while the one before them is committed; none with a rate: none waits long."""

SAMPLES: Final = 5
TOLD: Final = ("x-replay-id", "x-original-stream", "x-original-partition", "x-original-offset")
"""The headers that say what a replayed message is."""

_PLACE: Final = ("original_partition", "original_offset")
_PARTITION, _OFFSET = _PLACE
_PUBLISHED: Final = frozenset(
    (
        "value",
        "key",
        "headers",
        "routing_key",
        "timestamp",
        "producer_timestamp",
        "message_id",
        "correlation_id",
        "content_type",
        "partition",
        "offset",
    )
)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Kind = Literal["queue", "exchange", "stream"]


class Replay(msgspec.Struct):
    """What is replayed, and how far it has come. `rows` is -1 until they are chosen."""

    id: str
    origin: Literal["lake", "stream"]
    name: str
    where: str
    kind: Kind
    to: str
    chunk_rows: int = CHUNK_ROWS
    rows: int = -1
    chunks_done: int = 0
    rows_done: int = 0

    @property
    def producer(self) -> str:
        return f"replay-{self.id}"


class Folder:
    """Where a replay keeps what it needs to go on."""

    def __init__(self, root: Path, id: str) -> None:
        if not _ID.fullmatch(id):
            raise InvalidArgument(f"an id has letters, digits, dots, dashes and underscores, not {id!r}", argument="id")
        self.path = root / "replays" / id
        self.rows = self.path / "rows"
        self._file = self.path / "replay.json"

    def load(self) -> Replay | None:
        return msgspec.json.decode(self._file.read_bytes(), type=Replay) if self._file.exists() else None

    def save(self, replay: Replay) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(replay))
        fresh.replace(self._file)

    def files(self) -> list[Path]:
        return sorted(self.rows.glob("part-*.parquet"))


def new_id() -> str:
    return uuid.uuid4().hex[:12]


def begin(root: Path, wanted: Replay) -> tuple[Folder, Replay]:
    """A new replay, or the one of that id as far as it has come, which must be the same."""
    folder = Folder(root, wanted.id)
    found = folder.load()
    if found is None:
        folder.save(wanted)
        return folder, wanted
    for name in ("origin", "name", "where", "kind", "to"):
        if getattr(found, name) != getattr(wanted, name):
            raise InvalidArgument(
                f"replay {wanted.id} has {name} {getattr(found, name)!r}: go on with that, or choose another id",
                argument=name,
            )
    return folder, found


def source(spark: SparkSession, replay: Replay, root: Path, broker: dict[str, str]) -> DataFrame:
    """The rows to choose from, in the order of each partition, with `body`, the value as text."""
    from rookery.lake.insights import ARCHIVE
    from rookery.pipelines import lake
    from rookery.pipelines.builtin.archive import Archive

    if replay.origin == "lake":
        path = Archive(str(root / ARCHIVE)).path(replay.name)
        if not lake.exists(path):
            raise NotFound(f"stream {replay.name!r} is not in the archive below {root}", argument="name")
        frame = lake.read(spark, path).repartition("partition").sortWithinPartitions("partition", "offset")
    else:
        # one task reads a partition to its end, in order
        reader = spark.read.format("rookery").options(**broker, subscribe=replay.name, maxRecordsPerTask=1 << 53)
        frame = reader.option("columns", ",".join(_needed(replay.where))).load()
    return frame.selectExpr("*", "cast(value AS STRING) AS body")


def _needed(where: str) -> list[str]:
    """The columns of a stream that are published, or could be meant by a condition."""
    words = set(re.findall(r"\w+", where.lower()))
    return [name for name in COLUMNS if name in _PUBLISHED or name in words]


def chosen(frame: DataFrame, replay: Replay) -> DataFrame:
    """The rows as they are kept: as they were, and where that was."""
    from pyspark.errors import PySparkException

    try:
        rows = frame.where(replay.where) if replay.where else frame
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        # those that nobody needs are not in the frame, but could be
        names = ", ".join(dict.fromkeys((*COLUMNS, *frame.columns)))
        raise InvalidArgument(f"where: {first}; columns are {names}", argument="where") from None
    return rows.selectExpr(
        "value",
        "key",
        "headers",
        "routing_key",
        "coalesce(producer_timestamp, timestamp) AS timestamp",
        "message_id",
        "correlation_id",
        "content_type",
        f"partition AS {_PARTITION}",
        f"offset AS {_OFFSET}",
    )


def choose(frame: DataFrame, replay: Replay, folder: Folder) -> Replay:
    """Write the rows down, if that was not done; after it, what is replayed is fixed."""
    import pyarrow.parquet as pq

    if replay.rows >= 0:
        return replay
    shutil.rmtree(folder.rows, ignore_errors=True)
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # Java and Arrow do not agree on how large pages are compressed with lz4, and few values are there twice
    writer = chosen(frame, replay).write.option("compression", "snappy").option("parquet.enable.dictionary", "false")
    writer.parquet(str(folder.rows))
    replay.rows = sum(pq.read_metadata(file).num_rows for file in folder.files())
    folder.save(replay)
    return replay


def look(frame: DataFrame, replay: Replay) -> tuple[int, list[dict[str, Any]]]:
    """How many rows there are to replay, and the first of them; nothing is done."""
    rows = chosen(frame, replay)
    first = rows.selectExpr("routing_key", "message_id", "timestamp", "substring(cast(value AS STRING), 1, 80) AS body")
    return rows.count(), [row.asDict() for row in first.take(SAMPLES)]


def publish(
    replay: Replay,
    folder: Folder,
    connection: Connection,
    *,
    rate: float = 0.0,
    heard: Callable[[Replay], None] = lambda _: None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Replay:
    """Publish what is left of the chosen rows, no faster than `rate` a second; 0 is as fast as it goes."""
    from rookery.spark.client import Client
    from rookery.spark.options import SinkOptions
    from rookery.spark.sink import Stager

    options = SinkOptions(connection, (replay.kind, replay.to), replay.producer)
    path = f"/api/v1/producers/{quote(replay.producer, safe='')}/commit"
    began, before = clock(), replay.rows_done

    def stage(number: int, batch: pa.RecordBatch) -> list[str]:
        # a name of its own for each attempt: what one that died has staged is dropped with the commit
        name = f"{replay.producer}-{number}-{uuid.uuid4().hex[:8]}"
        with closing(Stager(options, name, replay.producer, number)) as stager:
            stager.add(labelled(batch, replay))
            stager.finish()
            return stager.chunks

    def commit(number: int, rows: int, staged: Future[list[str]]) -> None:
        client.post(path, {"epoch": number, "chunks": staged.result()})
        replay.chunks_done = number + 1
        replay.rows_done += rows
        folder.save(replay)
        heard(replay)

    with closing(Client(connection)) as client, ThreadPoolExecutor(AHEAD, "replay") as pool:
        ahead: deque[tuple[int, int, Future[list[str]]]] = deque()
        for number, batch in islice(enumerate(chunks(folder, replay.chunk_rows)), replay.chunks_done, None):
            if rate:
                due = began + (replay.rows_done - before) / rate
                wait(max(0.0, due - clock()))
            ahead.append((number, batch.num_rows, pool.submit(stage, number, batch)))
            if len(ahead) > (0 if rate else AHEAD):
                commit(*ahead.popleft())
        while ahead:
            commit(*ahead.popleft())
    return replay


def chunks(folder: Folder, rows: int) -> Iterator[pa.RecordBatch]:
    """The chosen rows, in order, always in the same chunks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in folder.files():
        with pq.ParquetFile(path) as file:
            waiting: list[pa.RecordBatch] = []
            for batch in file.iter_batches(batch_size=rows):
                # the reader ends a batch where a row group ends
                waiting.append(batch)
                while sum(each.num_rows for each in waiting) >= rows:
                    joined = pa.Table.from_batches(waiting).combine_chunks()
                    yield joined.slice(0, rows).combine_chunks().to_batches()[0]
                    rest = joined.slice(rows)
                    waiting = rest.combine_chunks().to_batches() if rest.num_rows else []
            if waiting:
                yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]


def labelled(batch: pa.RecordBatch, replay: Replay) -> pa.RecordBatch:
    """Chosen rows as they are published: with headers that say what they are."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = batch.num_rows
    headers = batch.column("headers")
    keys, values = headers.flatten().flatten()
    count = len(keys)
    # replaying what was replayed replaces what was said then
    stay = np.flatnonzero(~np.asarray(pc.is_in(keys, pa.array(TOLD)), bool))
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    of_row = np.repeat(np.arange(rows), lengths)[stay]
    ends = np.cumsum(np.bincount(of_row, minlength=rows) + len(TOLD))
    # where each header is found: among those that were there, or behind them
    find_key, find_value = (np.empty(ends[-1] if rows else 0, np.int64) for _ in range(2))
    for find in (find_key, find_value):
        find[np.arange(len(stay)) + len(TOLD) * of_row] = stay
    each = np.arange(rows)
    for place, at in enumerate((0, 1, 2 + each, 2 + rows + each)):
        find_key[ends - len(TOLD) + place] = count + place
        find_value[ends - len(TOLD) + place] = count + at
    told = [pa.array([replay.id, replay.name]), *(batch.column(name).cast(pa.string()) for name in _PLACE)]
    all_keys = pa.concat_arrays([keys.cast(pa.string()), pa.array(TOLD)])
    all_values = pa.concat_arrays([values, *(each.cast(pa.binary()) for each in told)])
    pairs = pa.StructArray.from_arrays([all_keys.take(find_key), all_values.take(find_value)], ["key", "value"])
    made = pa.ListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int32), pairs)
    rest = batch.drop_columns(["headers", *_PLACE])
    return rest.append_column("headers", made)


def chunk_rows(rate: float) -> int:
    return max(1, min(CHUNK_ROWS, int(rate / COMMITS_PER_SEC))) if rate else CHUNK_ROWS

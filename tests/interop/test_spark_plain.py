"""A sealed stream is a table to those who know nothing of the broker: Spark, pandas, pyarrow and DuckDB read the same
rows from its files as the broker itself gives, column by column.
"""

from __future__ import annotations

import io
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rookery import Broker
from rookery.clock import ManualClock
from rookery.embed import Message
from rookery.sealed import sealing
from tests.examples.test_streams_page import BLOCKS, SPARK, run_blocks

STREAM = "shop/orders é"
DAY_MS = 86_400_000

Row = dict[str, Any]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """The directory of all streams, and every row as the broker gives it."""
    directory = tmp_path_factory.mktemp("spark")
    clock = ManualClock()
    with Broker(enable_persistence=True, persistence_path=str(directory / "data"), clock=clock) as broker:
        history = broker._context.engine.history
        assert history is not None
        history.helper = lambda job: sealing.perform(io.BytesIO(job.input()))
        for name in (STREAM, "007"):
            stream = broker.stream(name, partitions=3 if name == STREAM else 1)
            for day in range(3 if name == STREAM else 1):
                for body in (b"", b"\0\xff", "text é", {"n": day}, b"x" * 300_000, [1, None]):
                    stream.publish(body, key=f"key-{day}")
                    stream.publish(body)
                stream.publish(Message("all", id=f"m{day}", meta={"n": 1, "s": "é", "b": True}, ttl_ms=DAY_MS * 9))
                stream.publish(Message("some", correlation_id="c", reply_to="r", priority=7), key=b"\xfe")
                if day < 2:
                    stream.seal()
                clock.advance(DAY_MS)
            stream.seal()
        stream = broker.stream(STREAM)
        tables = [stream.read_arrow(partition=index) for index in range(3)]
        assert all(table.num_rows for table in tables)
        rows = in_order(pa.concat_tables(tables).to_pylist())
        assert broker.stream(STREAM).info()["records"] == len(rows) == 3 * 14
    return directory / "data" / "streams", rows


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def of_the_stream(streams: Path) -> Path:
    return streams / "tenant=default" / "stream=shop%2Forders%20é"


def test_the_rows_are_worth_comparing(sealed: tuple[Path, list[Row]]) -> None:
    streams, rows = sealed
    assert len(list(of_the_stream(streams).glob("partition=*/date=*/*.parquet"))) == 9
    assert {row["stream"] for row in rows} == {STREAM}
    for column in ("key", "message_id", "correlation_id", "expiration", "content_type"):
        assert 0 < sum(row[column] is None for row in rows) < len(rows), column
    assert {len(row["value"]) for row in rows} >= {0, 2, 300_000}
    assert {len(row["headers"]) for row in rows} >= {0, 3}


def test_pyarrow_reads_the_directory(sealed: tuple[Path, list[Row]]) -> None:
    streams, rows = sealed
    table = pq.read_table(of_the_stream(streams))
    found = [{**row, "tenant": "default", "stream": STREAM} for row in table.to_pylist()]
    for row in found:
        assert row["timestamp"].date().isoformat() == row.pop("date")
        del row["envelope"]
    assert in_order(found) == rows


def test_pandas_reads_the_directory(sealed: tuple[Path, list[Row]]) -> None:
    pandas = pytest.importorskip("pandas")
    streams, rows = sealed
    frame = pandas.read_parquet(of_the_stream(streams)).sort_values(["partition", "offset"])
    assert [int(partition) for partition in frame["partition"]] == [row["partition"] for row in rows]
    for column in ("offset", "value", "key", "routing_key", "message_id"):
        assert list(frame[column]) == [row[column] for row in rows], column
    assert [stamp.to_pydatetime() for stamp in frame["timestamp"]] == [row["timestamp"] for row in rows]


def test_duckdb_reads_the_directory(sealed: tuple[Path, list[Row]]) -> None:
    duckdb = pytest.importorskip("duckdb")
    streams, rows = sealed
    query = f"""
        SELECT tenant, stream, partition, "offset", key, value, headers, routing_key, message_id, priority
        FROM read_parquet('{streams}/**/*.parquet', hive_partitioning = true)
        WHERE stream = '{STREAM}' ORDER BY partition, "offset"
    """
    cursor = duckdb.execute(query)
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    assert found == [{name: row[name] for name in names} for row in rows]


def rows_of(frame: Any) -> list[Row]:
    found: list[Row] = in_order([row.asDict(recursive=True) for row in frame.collect()])
    for row in found:
        for column in ("key", "value", "envelope"):
            row[column] = None if row[column] is None else bytes(row[column])
        row["headers"] = [{**header, "value": bytes(header["value"])} for header in row["headers"]]
        for column in ("timestamp", "producer_timestamp", "expiration"):
            # naive, in the time zone of this process
            row[column] = None if row[column] is None else row[column].astimezone(UTC)
    return found


def test_plain_spark_reads_the_directory(spark: Any, sealed: tuple[Path, list[Row]]) -> None:
    streams, rows = sealed
    frame = spark.read.parquet(str(of_the_stream(streams)))
    types = dict(frame.dtypes)
    assert (types["partition"], types["offset"], types["date"]) == ("int", "bigint", "date")
    assert (types["timestamp"], types["key"], types["value"]) == ("timestamp", "binary", "binary")
    found = rows_of(frame)
    for row in found:
        assert row["timestamp"].date() == row.pop("date")
        del row["envelope"]
        row.update(tenant="default", stream=STREAM)
    assert found == rows
    assert frame.where("partition = 1 AND offset < 3").count() == 3
    assert frame.where("date = '2023-11-15'").count() == 14


def test_plain_spark_reads_all_streams_as_one_table(spark: Any, sealed: tuple[Path, list[Row]]) -> None:
    streams, rows = sealed
    frame = spark.read.parquet(str(streams))
    counts = {
        (row["tenant"], row["stream"]): row["count"] for row in frame.groupBy("tenant", "stream").count().collect()
    }
    assert counts == {("default", STREAM): len(rows), ("default", "007"): 14}


def test_the_page_about_streams_is_right_about_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks up to the one for Spark; the session is the one that is there."""
    monkeypatch.chdir(tmp_path)
    (at,) = (number for number, block in enumerate(BLOCKS) if SPARK in block)
    # Spark's process has a directory of its own
    here = BLOCKS[at].replace("data/streams", f"{tmp_path}/data/streams")
    run_blocks([*BLOCKS[:at], here])

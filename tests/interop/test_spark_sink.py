"""Spark writes to a real server: every row exactly once, whatever is run again, and nothing before its commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.interop.server import serving
from tests.interop.spark_gate import committing, gated
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


def write(frame: DataFrame, world: World, **options: Any) -> None:
    frame.write.format("rookery").mode("append").options(**{**world.here, **options}).save()


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("concat('m', id) AS value")


def numbers(count: int) -> list[str]:
    return sorted(f"m{i}" for i in range(count))


def staged(world: World) -> list[Any]:
    return list(world.call("GET", "/chunks")["chunks"])


def test_a_batch_with_all_columns_comes_out_as_it_went_in(spark: SparkSession, world: World) -> None:
    world.stream("full", partitions=2)
    frame = spark.range(20).selectExpr(
        "cast(concat('m', id) AS binary) AS value",
        "cast(concat('k', id % 3) AS binary) AS key",
        "array(named_struct('key', 'n', 'value', cast(id AS string))) AS headers",
        "concat('order.', id) AS routing_key",
        "timestamp_seconds(1700000000 + id) AS timestamp",
        "'text/plain' AS content_type",
        "concat('id-', id) AS message_id",
        "'c' AS correlation_id",
    )
    write(frame, world, topic="full", maxBatchBytes="1k")
    back = spark.read.format("rookery").options(**world.here, subscribe="full").load().orderBy("producer_timestamp")
    found = back.collect()
    assert [bytes(row.value) for row in found] == [b"m%d" % i for i in range(20)]
    assert {row.partition for row in found if bytes(row.key) == b"k1"} <= {0, 1}
    assert len({row.partition for row in found if bytes(row.key) == b"k1"}) == 1
    one = found[7]
    assert (one.routing_key, one.content_type, one.message_id, one.correlation_id) == (
        "order.7",
        "text/plain",
        "id-7",
        "c",
    )
    assert [(pair.key, bytes(pair.value)) for pair in one.headers] == [("n", b"7")]
    assert staged(world) == []


def test_a_job_happens_once_however_often_it_is_run(spark: SparkSession, world: World) -> None:
    world.stream("job")
    for _ in range(2):
        write(rows(spark, 100).repartition(3), world, topic="job", jobId="j-1")
        assert sorted(world.values("job")) == numbers(100)
        assert staged(world) == []
    write(rows(spark, 100), world, topic="job", jobId="j-2")
    assert len(world.values("job")) == 200


def test_each_epoch_of_a_producer_happens_once(spark: SparkSession, world: World) -> None:
    world.stream("epochs")
    for epoch in ("0", "1", "1", "2"):
        frame = spark.range(2).selectExpr(f"concat('{epoch}-', id) AS value")
        write(frame, world, topic="epochs", producerId="p", epoch=epoch)
    assert sorted(world.values("epochs")) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]


def test_without_exactly_once_rows_are_there_as_often_as_they_are_written(spark: SparkSession, world: World) -> None:
    world.stream("at-once")
    for _ in range(2):
        write(rows(spark, 10), world, topic="at-once", exactlyOnce="false")
    assert sorted(world.values("at-once")) == sorted(numbers(10) * 2)
    assert staged(world) == []


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, world: World) -> None:
    world.stream("failed")
    bad = (
        spark.range(100).selectExpr("if(id = 99, raise_error('out of paper'), concat('m', id)) AS value").repartition(1)
    )
    with pytest.raises(Exception, match="out of paper"):
        write(bad, world, topic="failed")
    assert world.values("failed") == []


def test_exchanges_queues_and_topics_of_each_row(spark: SparkSession, world: World) -> None:
    world.call("PUT", "/exchanges/routed", {"kind": "topic"})
    world.call("PUT", "/queues/eu")
    world.call("POST", "/bindings", {"source": "routed", "target": "eu", "key": "*.eu"})
    frame = spark.range(10).selectExpr("concat('m', id) AS value", "if(id % 2 = 0, 'a.eu', 'a.us') AS routing_key")
    write(frame, world, exchange="routed")
    write(rows(spark, 3), world, queue="direct-jobs")
    world.stream("one")
    write(spark.sql("SELECT 'a' AS value, 'direct-jobs' AS queue"), world)
    both = spark.range(10).selectExpr(
        "concat('m', id) AS value", "if(id < 4, 'one', 'routed') AS topic", "'b.eu' AS routing_key"
    )
    write(both, world)
    assert sorted(world.values("one")) == numbers(4)
    assert world.ready("eu", 5 + 6) == 11
    assert world.ready("direct-jobs", 4) == 4


@pytest.mark.parametrize(
    ("select", "options", "words"),
    [
        ("'a' AS valeu", {"topic": "x"}, "no column 'valeu'; did you mean value"),
        ("'a' AS key", {"topic": "x"}, "the column value is missing"),
        ("1 AS value", {"topic": "x"}, "must be binary or string, not int"),
        ("'a' AS value", {}, "is needed, as an option or a column"),
        ("'a' AS value, 'x' AS topic", {"topic": "x"}, "exclude each other"),
        ("'a' AS value", {"topik": "y"}, "did you mean topic"),
        ("'a' AS value", {"topic": "nowhere"}, "there is no stream and no exchange 'nowhere'"),
        ("'a' AS value", {"stream": "nowhere"}, "no stream 'nowhere'"),
        ("'a' AS value", {"topic": "written", "token": "revoked"}, "API key|token|credential"),
        ("repeat('x', 20000000) AS value", {"topic": "written"}, "too large|at most|larger"),
        ("cast(null AS string) AS value", {"topic": "written"}, "the column value has a null"),
    ],
)
def test_a_mistake_is_told_in_words(
    spark: SparkSession, world: World, select: str, options: dict[str, str], words: str
) -> None:
    world.stream("written")
    with pytest.raises(Exception, match=words):
        write(spark.sql(f"SELECT {select}"), world, **options)
    assert world.values("written") == []


def copying(spark: SparkSession, world: World, source: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("rookery").options(**world.here, subscribe=source, startingOffsets="earliest")
    return reader.options(**options).load()


def run(frame: DataFrame, world: World, folder: Path, target: str, **options: Any) -> None:
    writer = frame.writeStream.format("rookery").options(**world.here, topic=target, **options)
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()


def test_rows_of_a_task_keep_their_order_in_each_partition(spark: SparkSession, world: World) -> None:
    world.stream("ordered", partitions=2)
    frame = spark.range(0, 2_000, 1, 1).selectExpr("concat('m', id) AS value", "cast(id % 2 AS int) AS partition")
    write(frame, world, topic="ordered", maxBatchBytes="1k")
    evens, odds = ([f"m{i}" for i in range(first, 2_000, 2)] for first in (0, 1))
    assert world.values("ordered") == evens + odds


def test_rows_of_very_different_sizes(spark: SparkSession, world: World) -> None:
    """A batch of Spark is divided by what its rows really take, not by their mean."""
    world.stream("uneven")
    wide = spark.range(0, 1_000, 1, 1).selectExpr("if(id % 100 = 99, repeat('x', 2000000), 'small') AS value")
    write(wide, world, topic="uneven")
    found = spark.read.format("rookery").options(**world.here, subscribe="uneven").load()
    sizes = found.selectExpr("length(value) AS bytes").groupBy("bytes").count().orderBy("bytes").collect()
    assert [tuple(row) for row in sizes] == [(5, 990), (2_000_000, 10)]


def test_two_queries_write_to_one_topic(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.stream("shared")
    queries = []
    for name in ("left", "right"):
        world.stream(name, 200)
        frame = copying(spark, world, name, maxOffsetsPerTrigger=100)
        rows = frame.selectExpr(f"concat('{name}-', cast(value AS string)) AS value").repartition(2)
        writer = rows.writeStream.format("rookery").options(**world.here, topic="shared")
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()
    expected = [f'{name}-"m{i}"' for name in ("left", "right") for i in range(200)]
    assert sorted(world.values("shared")) == sorted(expected)


def test_a_stream_is_copied_exactly_once(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.stream("from", ROWS, 2)
    world.stream("to", partitions=2)
    # a shuffle: another attempt would have other rows in each task
    frame = copying(spark, world, "from", maxOffsetsPerTrigger=1_000).selectExpr("value").repartition(3)
    run(frame, world, tmp_path, "to", maxBatchBytes="8k")
    # the bodies are JSON, and nobody said so of the copies
    assert sorted(world.values("to")) == sorted(f'"m{i}"' for i in range(ROWS))
    assert staged(world) == []


def test_a_batch_that_is_run_again_after_its_commit_adds_nothing(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("again", 30)
    world.stream("copied")
    frame = copying(spark, world, "again", maxOffsetsPerTrigger=10).selectExpr("value").repartition(2)
    run(frame, world, tmp_path, "copied")
    before = world.values("copied")
    assert len(before) == 30
    # as if the driver had died between the broker's commit and its own
    for name in ("2", ".2.crc"):
        (tmp_path / "commits" / name).unlink()
    world.fill("again", 30, 35)
    run(frame, world, tmp_path, "copied")
    assert world.values("copied")[:30] == before
    assert len(world.values("copied")) == 35
    assert staged(world) == []


def test_rows_of_a_batch_that_fails_are_seen_once_it_succeeds(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("trouble", 20)
    world.stream("mended")
    flag = tmp_path / "fail"
    flag.touch()

    def mend(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if flag.exists():
            raise RuntimeError("out of paper")

    frame = copying(spark, world, "trouble", columns="value").mapInArrow(mend, "value binary")
    with pytest.raises(StreamingQueryException, match="out of paper"):
        run(frame, world, tmp_path / "checkpoint", "mended")
    assert world.values("mended") == []
    flag.unlink()
    run(frame, world, tmp_path / "checkpoint", "mended")
    assert len(world.values("mended")) == len(set(world.values("mended"))) == 20


def test_what_waited_too_long_for_its_commit_is_gone_and_the_batch_is_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    with gated(tmp_path / "server") as broker:
        world = broker.world
        world.stream("slow", 20)
        world.stream("late")
        stop = broker.gate.stop(committing(0), "request")
        frame = copying(spark, world, "slow").selectExpr("value")
        writer = frame.writeStream.format("rookery").options(**world.here, topic="late", stagingTtlMs=1_000)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start()
        stop.wait()
        deadline = time.monotonic() + 60
        while staged(world):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert world.values("late") == []
        stop.release()
        with pytest.raises(StreamingQueryException, match=r"no chunk .* \(any more\): nothing was committed"):
            query.awaitTermination()
        writer.start().awaitTermination()
        assert len(world.values("late")) == 20

"""Spark reads streams and queues of a real server: every record once, from where it was asked, and the broker knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from rookery.spark.session import STREAMS_PUT, prepare
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


class Reading:
    """Reads with Spark, once or as a stream that ends with what there is."""

    def __init__(self, spark: SparkSession, world: World, folder: Path) -> None:
        self.spark = spark
        self.here = world.here
        self.folder = folder

    def table(self, **options: Any) -> DataFrame:
        return self.spark.read.format("rookery").options(**self.here, **options).load()

    def values(self, **options: Any) -> list[str]:
        return texts(self.table(columns="value", **options).collect())

    def run(self, name: str, **options: Any) -> list[list[str]]:
        """The values of each micro-batch of one run."""
        batches: dict[int, list[str]] = {}
        stream = self.spark.readStream.format("rookery").options(**self.here, **options).load()

        def keep(frame: DataFrame, number: int) -> None:
            batches[number] = texts(frame.select("value").collect())

        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.folder / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [batches[number] for number in sorted(batches)]


def texts(rows: list[Any]) -> list[str]:
    return [str(json.loads(bytes(row.value))) for row in rows]


def numbers(*values: int) -> set[str]:
    return {f"m{i}" for i in range(*values)}


@pytest.fixture
def reading(spark: SparkSession, world: World, tmp_path: Path) -> Reading:
    return Reading(spark, world, tmp_path)


def test_a_batch_has_every_record_with_its_columns(reading: Reading, world: World) -> None:
    world.stream("whole", 300, 3)
    rows = reading.table(subscribe="whole").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(p, o) for p in range(3) for o in range(100)]
    assert set(texts(rows)) == numbers(300)
    one = next(row for row in rows if (row.partition, row.offset) == (1, 2))
    assert (one.tenant, one.stream, bytes(one.value), one.content_type) == (
        "default",
        "whole",
        b'"m7"',
        "application/json",
    )
    assert [(pair.key, bytes(pair.value)) for pair in one.headers] == [("n", b"7")]


def test_places_to_begin_and_to_end(reading: Reading, world: World) -> None:
    world.stream("places", 20, 2)
    start, stop = '{"places":{"0":4,"1":-2}}', '{"places":{"0":6,"1":-1}}'
    found = reading.table(subscribe="places", startingOffsets=start, endingOffsets=stop, columns="partition,offset")
    assert sorted(found.collect()) == [(0, 4), (0, 5)] + [(1, offset) for offset in range(10)]
    assert reading.values(subscribe="places", startingOffsets="latest") == []
    assert reading.values(assign='{"places":[1]}') == [f"m{i}" for i in range(1, 20, 2)]
    assert len(reading.values(subscribePattern="pla.es", minPartitions=5)) == 20


def test_times_to_begin_and_to_end(reading: Reading, world: World) -> None:
    world.stream("times", 5)
    world.fill("times", 5, 10)
    rows = reading.table(subscribe="times", columns="offset,timestamp").collect()
    moments = sorted({int(row.timestamp.timestamp() * 1000) for row in rows})
    since = {row.offset for row in rows if int(row.timestamp.timestamp() * 1000) >= moments[-1]}
    assert len(reading.values(subscribe="times", startingTimestamp=moments[-1])) == len(since)
    assert len(reading.values(subscribe="times", endingTimestamp=moments[-1])) == 10 - len(since)


def test_columns_and_keys_are_chosen_by_the_broker(reading: Reading, world: World) -> None:
    world.stream("chosen")
    rows = [{"message": i, "routing_key": f"order.{'eu' if i % 2 else 'us'}"} for i in range(10)]
    world.call("POST", "/streams/chosen/publish", rows)
    found = reading.table(subscribe="chosen", columns="routing_key,offset", routingKey="*.eu")
    assert found.columns == ["routing_key", "offset"]
    assert sorted(found.collect()) == [("order.eu", i) for i in range(1, 10, 2)]
    narrow = reading.spark.read.schema("offset long").format("rookery").options(**reading.here, subscribe="chosen")
    assert sorted(row.offset for row in narrow.load().collect()) == list(range(10))


def test_sealed_records_are_read_like_the_others(reading: Reading, world: World) -> None:
    world.stream("sealed", 50)
    world.call("POST", "/streams/sealed/seal")
    world.fill("sealed", 50, 60)
    assert reading.values(subscribe="sealed") == [f"m{i}" for i in range(60)]


def test_a_view_of_sql(reading: Reading, world: World) -> None:
    world.stream("tabled", 7)
    said = ", ".join(f"{name} '{value}'" for name, value in {**reading.here, "subscribe": "tabled"}.items())
    reading.spark.sql(f"CREATE TEMPORARY VIEW tabled USING rookery OPTIONS ({said})")
    try:
        assert reading.spark.sql("SELECT count(*) AS n, max(offset) AS last FROM tabled").collect() == [(7, 6)]
    finally:
        reading.spark.sql("DROP VIEW tabled")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "x", "startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"subscribe": "no-such-stream"}, "no-such-stream"),
        ({"subscribe": "x", "token": "wrong"}, "unauthenticated|invalid"),
        ({"queue": "q"}, "spark.readStream"),
    ],
)
def test_a_mistake_is_told_in_words(reading: Reading, options: dict[str, str], words: str) -> None:
    reading.here = {**reading.here, **{name: options[name] for name in options if name == "token"}}
    with pytest.raises(Exception, match=f"(?i){words}"):
        reading.table(**{name: value for name, value in options.items() if name != "token"}).collect()


def test_a_stream_is_read_in_batches_and_goes_on_where_it_ended(reading: Reading, world: World) -> None:
    world.stream("flow", 100, 3)
    options = {"subscribe": "flow", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40, "consumerGroup": "g"}
    first = reading.run("flow", **options)
    assert [len(batch) for batch in first] == [40, 40, 20]
    assert {value for batch in first for value in batch} == numbers(100)
    # Spark never calls `commit` for the last batch of a run
    assert world.lag("flow", "g") == 0
    world.fill("flow", 100, 130, 3)
    assert world.lag("flow", "g") == 30
    assert {value for batch in reading.run("flow", **options) for value in batch} == numbers(100, 130)
    assert world.lag("flow", "g") == 0


def test_what_failed_is_not_told_and_read_again(reading: Reading, world: World) -> None:
    world.stream("failing", 10)
    options: dict[str, Any] = {
        "subscribe": "failing",
        "startingOffsets": "earliest",
        "consumerGroup": "g",
        "maxOffsetsPerTrigger": 5,
    }
    stream = reading.spark.readStream.format("rookery").options(**reading.here, **options).load()

    def fail(frame: DataFrame, number: int) -> None:
        if number == 1:
            raise RuntimeError("out of paper")

    writer = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(reading.folder / "failing"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="out of paper"):
        query.awaitTermination()
    assert world.lag("failing", "g") == 5
    assert reading.run("failing", **options) == [[f"m{i}" for i in range(5, 10)]]
    assert world.lag("failing", "g") == 0


def test_records_that_retention_took_are_named_or_skipped(reading: Reading, world: World) -> None:
    world.stream("lost", 10)
    options = {"subscribe": "lost", "startingOffsets": '{"lost":{"0":2}}', "failOnDataLoss": "true"}
    assert len(reading.run("lost", **options)[0]) == 8
    # without consumerGroup the query has one of its own
    ((group, lag),) = world.call("GET", "/streams/lost")["groups"].items()
    assert (group.startswith("spark-"), lag) == (True, 0)
    world.call("POST", "/streams/lost/seal")
    world.fill("lost", 10, 12)
    world.call("POST", "/streams/lost/seal")
    world.fill("lost", 12, 15)
    world.call("POST", "/streams/lost/trim", {"offset": 12})
    with pytest.raises(
        StreamingQueryException, match=r"offsets 10 to 14 .*lost in part: it has 12 to 14; failOnDataLoss"
    ):
        reading.run("lost", **options)
    assert reading.run("lost", **options | {"failOnDataLoss": "false"}) == [["m12", "m13", "m14"]]
    assert world.call("GET", "/streams/lost")["groups"] == {group: 0}


@pytest.mark.parametrize(
    ("trigger", "words"),
    [({"continuous": "1 second"}, "continuous"), ({"realTime": "5 seconds"}, "STREAMING_REAL_TIME_MODE")],
)
def test_other_triggers_are_refused(reading: Reading, world: World, trigger: dict[str, str], words: str) -> None:
    world.stream("triggered", 3)
    stream = reading.spark.readStream.format("rookery").options(**reading.here, subscribe="triggered").load()
    folder = str(reading.folder / words)
    mode = "update" if "realTime" in trigger else "append"
    writer = stream.writeStream.format("console").outputMode(mode).option("checkpointLocation", folder)
    with pytest.raises(Exception, match=f"(?i){words}"):
        writer.trigger(**trigger).start().awaitTermination()


def test_a_queue_is_read_by_cuts_and_settled(reading: Reading, world: World) -> None:
    world.call("PUT", "/queues/jobs")
    world.call("POST", "/queues/jobs/messages", [{"message": f"m{i}"} for i in range(50)])
    options = {"queue": "jobs", "consumerGroup": "spark", "maxOffsetsPerTrigger": 20}
    batches = reading.run("jobs", **options)
    assert [len(batch) for batch in batches] == [20, 20, 10]
    assert {value for batch in batches for value in batch} == numbers(50)
    shown = world.call("GET", "/queues/jobs/cuts")["consumers"]
    assert shown == [{"consumer": "spark", "acked": 3, "cuts": {}}]
    assert world.call("GET", "/queues/jobs")["stats"]["ready"] == 0
    assert reading.run("jobs", **options) == []


def test_a_cut_that_failed_is_read_again(reading: Reading, world: World) -> None:
    world.call("PUT", "/queues/retried")
    world.call("POST", "/queues/retried/messages", [{"message": f"m{i}"} for i in range(6)])
    options = {"queue": "retried", "consumerGroup": "spark"}
    stream = reading.spark.readStream.format("rookery").options(**reading.here, **options).load()

    def fail(frame: DataFrame, number: int) -> None:
        raise RuntimeError("out of paper")

    writer = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(reading.folder / "retried"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="out of paper"):
        query.awaitTermination()
    assert world.call("GET", "/queues/retried/cuts")["consumers"] == [
        {"consumer": "spark", "acked": 0, "cuts": {"1": 6}}
    ]
    assert reading.run("retried", **options) == [[f"m{i}" for i in range(6)]]
    assert world.call("GET", "/queues/retried/cuts")["consumers"] == [{"consumer": "spark", "acked": 1, "cuts": {}}]


def test_options_of_a_stream_and_of_a_batch_are_kept_apart(reading: Reading) -> None:
    with pytest.raises(Exception, match=r"endingOffsets is for spark.read"):
        reading.run("ends", subscribe="x", endingOffsets="latest")
    with pytest.raises(Exception, match="a queue needs consumerGroup"):
        reading.run("nameless", queue="x")


def test_streams_that_begin_at_once_change_no_map_that_they_share(
    spark: SparkSession, reading: Reading, world: World
) -> None:
    # Spark counts what it puts there without a lock, and two at once can spoil the source for the life of Java
    world.stream("shared", 3)
    inside: Any = spark._jsparkSession
    shared = inside.sessionState().dataSourceManager().lookupDataSource("rookery").dataSourceCls().envVars()
    first = {"PYTHONPATH"}
    for name in set(shared) - first:
        del shared[name]
    reading.run("unprepared", subscribe="shared", startingOffsets="earliest")
    # these are all that a stream puts there
    assert set(shared) == first | set(STREAMS_PUT)
    for name in STREAMS_PUT:
        del shared[name]
    assert prepare(spark) is spark
    assert dict(shared) == {"PYTHONPATH": shared["PYTHONPATH"], **STREAMS_PUT}
    assert reading.run("prepared", subscribe="shared", startingOffsets="earliest") == [[f"m{i}" for i in range(3)]]
    assert set(shared) == first | set(STREAMS_PUT)

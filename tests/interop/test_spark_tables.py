"""Streams as tables of Spark: in SQL, as history over sealed files, and with their bodies as columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rookery.spark
from rookery.errors import InvalidArgument, OffsetOutOfRange
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VARIABLE = "ROOKERY_TESTS_TOKEN"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server [1]")


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[World]:
    with serving(folder, "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


@pytest.fixture(scope="module")
def sealed(world: World) -> str:
    """Three partitions of 40 records: 20 and 10 in files, 10 in none."""
    name = "shop/orders é"
    path = "shop%2Forders%20%C3%A9"
    world.stream(path, 60, 3)
    world.call("POST", f"/streams/{path}/seal")
    world.fill(path, 60, 90, 3)
    world.call("POST", f"/streams/{path}/seal")
    world.fill(path, 90, 120, 3)
    return name


# History


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def values(frame: DataFrame) -> list[str]:
    return sorted((json.loads(bytes(row.value)) for row in frame.select("value").collect()), key=lambda v: int(v[1:]))


def test_history_is_spark_s_scan_and_the_tail(spark: SparkSession, world: World, sealed: str) -> None:
    frame = rookery.spark.history(spark, sealed, **world.here)
    plan = plan_of(frame)
    assert "FileScan parquet" in plan
    assert "Union" in plan
    assert values(frame) == [f"m{i}" for i in range(120)]
    # the same rows as through the broker, column by column
    through = spark.read.format("rookery").options(**world.here, subscribe=sealed, mode="broker").load()
    assert frame.columns == through.columns
    assert frame.exceptAll(through).count() == through.exceptAll(frame).count() == 0
    narrow = rookery.spark.history(spark, sealed, **world.here, columns="offset,partition")
    assert narrow.columns == ["offset", "partition"]
    assert narrow.where("partition = 1 AND offset >= 28").count() == 12


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ((0, 0, 0), (40, 40, 40), 120),
        ((5, 20, 25), (19, 30, 40), 14 + 10 + 15),
        ((35, 40, 30), (40, 40, 31), 5 + 0 + 1),
        ((3, 3, 3), (4, 3, 3), 1),
    ],
)
def test_history_is_exact_at_its_seams(
    spark: SparkSession, world: World, sealed: str, start: tuple[int, ...], stop: tuple[int, ...], expected: int
) -> None:
    said: dict[str, Any] = {
        "startingOffsets": json.dumps({sealed: dict(zip("012", start, strict=True))}),
        "endingOffsets": json.dumps({sealed: dict(zip("012", stop, strict=True))}),
    }
    frame = rookery.spark.history(spark, sealed, **world.here, **said, columns="partition,offset")
    wanted = [(p, offset) for p in range(3) for offset in range(start[p], stop[p])]
    assert sorted(tuple(row) for row in frame.collect()) == wanted
    assert len(wanted) == expected


def test_history_does_not_change_while_the_stream_goes_on(spark: SparkSession, world: World) -> None:
    world.stream("moving", 20)
    world.call("POST", "/streams/moving/seal")
    world.fill("moving", 20, 30)
    frame = rookery.spark.history(spark, "moving", **world.here)
    # the tail is sealed, more comes, and retention takes the file that the frame reads
    world.call("POST", "/streams/moving/seal")
    world.fill("moving", 30, 40)
    world.call("POST", "/streams/moving/trim", {"offset": 20})
    assert values(frame) == [f"m{i}" for i in range(30)]
    with pytest.raises(OffsetOutOfRange, match=r"offsets 5 to 39 .* lost in part: it has 20 to 39"):
        rookery.spark.history(spark, "moving", **world.here, startingOffsets='{"moving":{"0":5}}')
    assert values(rookery.spark.history(spark, "moving", **world.here)) == [f"m{i}" for i in range(20, 40)]


def test_history_without_files_goes_through_the_broker(
    spark: SparkSession, world: World, sealed: str, tmp_path: Path
) -> None:
    frame = rookery.spark.history(spark, sealed, **world.here, segmentsRoot=tmp_path)
    assert "FileScan" not in plan_of(frame)
    assert frame.count() == 120
    world.stream("nothing")
    assert rookery.spark.history(spark, "nothing", **world.here).count() == 0
    with pytest.raises(InvalidArgument, match="history has no option routingKey"):
        rookery.spark.history(spark, sealed, **world.here, routingKey="a")


# SQL


def test_a_table_of_sql_is_read_and_inserted_into(spark: SparkSession, world: World) -> None:
    world.stream("ledger", 10, 2)
    options = f"endpoint '{world.url}', tokenEnv '{VARIABLE}', subscribe 'ledger'"
    spark.sql(f"CREATE TABLE ledger USING rookery OPTIONS ({options})")
    try:
        assert spark.sql("SELECT count(*) AS n, max(offset) AS last FROM ledger").collect() == [(10, 4)]
        chosen = spark.sql("SELECT offset FROM ledger WHERE partition = 1 AND offset > 2")
        assert sorted(row.offset for row in chosen.collect()) == [3, 4]
        spark.sql(
            "INSERT INTO ledger (value, key) SELECT cast(concat('i', id) AS binary), cast('k' AS binary) FROM range(5)"
        )
        assert sorted(world.values("ledger"))[:5] == [f"i{i}" for i in range(5)]
        assert spark.table("ledger").where("cast(key AS string) = 'k'").count() == 5
        with pytest.raises(Exception, match="the broker says what offset is"):
            spark.sql("INSERT INTO ledger (value, offset) VALUES (cast('x' AS binary), 7)")
        with pytest.raises(Exception, match="cannot be overwritten"):
            spark.sql("INSERT OVERWRITE ledger (value) VALUES (cast('x' AS binary))")
        assert spark.read.option("startingOffsets", "latest").table("ledger").count() == 0
    finally:
        spark.sql("DROP TABLE ledger")


def test_filters_are_pushed_down_where_spark_is_told_to(spark: SparkSession, world: World) -> None:
    world.stream("filtered", 100, 2)
    table = spark.read.format("rookery").options(**world.here, subscribe="filtered").load()
    wanted = table.where("partition = 1 AND offset >= 40 AND stream = 'filtered'")
    assert wanted.count() == 10
    # nothing is left for Spark to filter
    assert "Filter (" not in plan_of(wanted.select("offset"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        again = spark.read.format("rookery").options(**world.here, subscribe="filtered").load()
        assert again.where("partition = 1 AND offset >= 40").count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# Bodies


def test_json_bodies_become_columns_and_others_are_kept(spark: SparkSession, world: World) -> None:
    world.call("PUT", "/streams/bodies")
    bodies: list[Any] = [{"id": 1, "who": {"name": "ann"}}, {"id": 2, "more": True}, {"id": "x"}, [1], "text", None]
    world.call("POST", "/streams/bodies/publish", [{"message": body} for body in bodies])
    table = spark.read.format("rookery").options(**world.here, subscribe="bodies").load()
    found = rookery.spark.decode(table, "id long, who struct<name: string>", keep=["offset"])
    assert found.columns == ["offset", "id", "who", "_corrupt_record"]
    rows = sorted(tuple(row) for row in found.selectExpr("offset", "id", "who.name", "_corrupt_record").collect())
    assert rows == [
        (0, 1, "ann", None),
        (1, 2, None, None),
        (2, None, None, '{"id": "x"}'),
        (3, None, None, "[1]"),
        (4, None, None, '"text"'),
        (5, None, None, "null"),
    ]
    with pytest.raises(InvalidArgument, match="'offset' would be there twice"):
        rookery.spark.decode(table, "offset long", keep=["offset"])
    with pytest.raises(InvalidArgument, match="no column 'body'"):
        rookery.spark.decode(table, "id long", column="body")


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def test_avro_bodies_become_columns_and_others_are_kept(spark: SparkSession) -> None:
    import io
    from datetime import UTC, datetime

    fastavro = pytest.importorskip("fastavro")
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    body = io.BytesIO()
    order = {"id": 7, "at": at, "tags": ["a", "b"], "note": None}
    fastavro.schemaless_writer(body, fastavro.parse_schema(AVRO), order)
    whole = body.getvalue()
    rows = [(0, bytearray(whole)), (1, bytearray(whole + b"x")), (2, bytearray(b"")), (3, None)]
    frame = spark.createDataFrame(rows, "offset long, value binary")
    found = rookery.spark.decode(frame, json.dumps(AVRO), format="avro", keep=["offset"])
    assert found.columns == ["offset", "id", "at", "tags", "note", "_corrupt_record"]
    first, *others = found.selectExpr("offset", "id", "unix_millis(at)", "tags", "note", "_corrupt_record").collect()
    assert tuple(first) == (0, 7, int(at.timestamp() * 1000), ["a", "b"], None, None)
    assert [(row.offset, row.id, row._corrupt_record) for row in others] == [
        (1, None, whole + b"x"),
        (2, None, b""),
        (3, None, None),
    ]
    with pytest.raises(InvalidArgument, match="no schema of Avro"):
        rookery.spark.decode(frame, "{}", format="avro")


def test_the_lease_of_a_history_ends_with_its_time(
    spark: SparkSession, world: World, sealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rookery.spark.client import Client

    released: list[str] = []
    release = Client.release_plan

    def noted(client: Client, plan: str) -> None:
        release(client, plan)
        released.append(plan)

    monkeypatch.setattr(Client, "release_plan", noted)
    rookery.spark.history(spark, sealed, hold_sec=0.2, **world.here)
    eventually(lambda: len(released) == 1)
    with pytest.raises(InvalidArgument, match="hold_sec must be more than 0"):
        rookery.spark.history(spark, sealed, hold_sec=0, **world.here)

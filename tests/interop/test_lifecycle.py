"""The tables of the lifecycle: exact for known events, and the same however events come and whatever dies between."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from deltalake import DeltaTable

from rookery.errors import InvalidArgument
from rookery.pipelines import lake
from rookery.pipelines.builtin import gold
from rookery.pipelines.builtin.events import parsed
from rookery.pipelines.builtin.lifecycle import BRONZE, JOURNEYS, OPEN, Lifecycle
from rookery.pipelines.builtin.tables import gold_tables, measured, sla_breaches
from tests.interop.lifecycle_events import NOON, Teller, frame, golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLA = ({"queue": "jobs", "end_to_end_ms": 10_000, "process_ms": 300}, {"queue": "%", "queue_ms": 90})
GOLD = [table.name for table in gold_tables(SLA)]
ALL = [BRONZE, JOURNEYS, OPEN, *GOLD]

Row = dict[str, Any]

SMALL = {
    # what Spark does to be quick with much costs more than it brings with so little
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module", autouse=True)
def small(spark: SparkSession) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def rows(path: Path) -> list[Row]:
    """All rows of a table in an order of their own."""
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    for row in found:
        for name in ("changes", "counters"):
            if row.get(name) is not None:
                row[name] = dict(row[name])
    return sorted(found, key=repr)


def everything(here: Lifecycle) -> dict[str, list[Row]]:
    return {table: rows(here.path(table)) for table in ALL}


def chosen(found: list[Row], *columns: str, **where: Any) -> list[tuple[Any, ...]]:
    """Some columns of the rows that have these values, in order."""
    kept = [row for row in found if all(row[name] == value for name, value in where.items())]
    return sorted(tuple(row[column] for column in columns) for row in kept)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lifecycle, dict[str, list[Row]]]:
    """The tables of the golden events, taken in one batch."""
    here = Lifecycle(str(tmp_path_factory.mktemp("lake")), SLA)
    here.take(frame(spark, golden()), "app", 0)
    here.refresh(spark)
    return here, everything(here)


def test_bronze_has_each_event_as_it_was_told(whole: tuple[Lifecycle, dict[str, list[Row]]]) -> None:
    found = whole[1][BRONZE]
    told = golden()
    assert sorted(row["event_id"] for row in found) == sorted(row["event_id"] for row in told)
    by_id = {row["event_id"]: row for row in found}
    for row in told:
        for name, value in row.items():
            assert by_id[row["event_id"]][name] == value, (row["event_id"], name)


def test_journeys(whole: tuple[Lifecycle, dict[str, list[Row]]]) -> None:
    found = whole[1][JOURNEYS]
    columns = ("message_id", "queue", "outcome", "deliveries", "failures", "queue_ms", "process_ms", "end_to_end_ms")
    assert chosen(found, *columns) == [
        ("m1", "jobs", "acked", 1, 0, 10, 30, 40),
        ("m2", "jobs", "acked", 2, 1, 20, 900, 60_400),
        ("m3", "mail", "dead_lettered", 1, 0, 100, None, 300),
        ("m4", "mail", "expired", 0, 0, None, None, 60_000),
        ("m5", "jobs", "acked", 1, 0, 10_500, 100, 10_600),
    ]
    assert chosen(found, "consumer", "reason", "weight", "routing_key", message_id="m2") == [
        ("bob", "timeout after 500 ms", 4, "orders.new")
    ]
    (first,) = (row for row in found if row["message_id"] == "m1")
    assert first["settled_at"].astimezone(UTC) == datetime.fromtimestamp((NOON + 40) / 1000, UTC)
    assert chosen(whole[1][OPEN], "message_id", "queue", "entered_ms", "deliveries") == [
        ("m7", "mail", NOON + 3_611_000, 1)
    ]


def test_queue_stats(whole: tuple[Lifecycle, dict[str, list[Row]]]) -> None:
    found = whole[1]["queue_stats"]
    stats = ("published", "delivered", "acked", "retried", "queue_ms_p50", "process_ms_p99", "end_to_end_ms_p95")
    minutes = {
        row["window_start"].astimezone(UTC).strftime("%H:%M"): row
        for row in found
        if row["grain"] == "minute" and row["queue"] == "jobs"
    }
    assert {time: tuple(row[name] for name in stats) for time, row in minutes.items()} == {
        # 5 messages at 10, 20, 20, 20, 20 ms: m2 stands for four
        "12:00": (5, 2, 1, 1, 20, 30, 40),
        "12:01": (0, 0, 0, 0, None, 400, 60_160),
        "13:00": (1, 5, 5, 0, 10_496, 100, 10_560),
    }
    hours = [row for row in found if row["grain"] == "hour" and row["queue"] == "jobs"]
    assert chosen(hours, *stats) == [
        (1, 5, 5, 0, 10_496, 100, 10_560),
        (5, 2, 1, 1, 20, 400, 60_160),
    ]
    (noon,) = [row for row in hours if row["published"] == 5]
    assert noon["end_to_end_ms"] == [{"ms": 40, "weight": 1}, {"ms": 60_160, "weight": 4}]
    assert (noon["ready"], noon["delayed"], noon["bytes"], noon["slice"]) == (0, 1, 100, "2026-09-01-12")
    assert chosen(found, "queue_ms_p50", "published", queue="mail", grain="hour") == [(50, 0), (100, 0)]


def test_usage_routing_and_consumers(whole: tuple[Lifecycle, dict[str, list[Row]]]) -> None:
    tables = whole[1]
    usage = ("published", "published_bytes", "unroutable", "queued", "delivered", "acked")
    assert chosen(tables["tenant_usage"], "grain", *usage) == [
        ("day", 9, 814, 2, 6, 7, 6),
        ("hour", 0, 0, 0, 5, 2, 1),
        ("hour", 9, 814, 2, 1, 5, 5),
    ]
    routing = ("exchange", "scope", "routing_key", "published", "unroutable", "bytes", "fan_out")
    assert chosen(tables["routing_stats"], *routing, grain="day") == [
        ("shop", "exchange", "", 9, 2, 814, None),
        ("shop", "key", "mail.bad", 1, 0, 100, 1.0),
        ("shop", "key", "mail.late", 1, 0, 100, 1.0),
        ("shop", "key", "nowhere", 2, 2, 14, 0.0),
        ("shop", "key", "orders.new", 7, 0, 700, 1.0),
    ]
    consumers = ("queue", "consumer", "delivered", "redelivered", "acked", "retried", "process_ms_p50")
    assert sorted(chosen(tables["consumer_stats"], *consumers, grain="hour"), key=repr) == sorted(
        [
            ("jobs", "ann", 5, 0, 1, 4, 30),
            ("jobs", "ann", 1, 0, 1, 0, 100),
            ("jobs", "bob", 4, 4, 4, 0, 400),
            ("mail", "bob", 1, 0, 0, 0, None),
            ("mail", "bob", 1, 0, 0, 0, None),
        ],
        key=repr,
    )


def test_dead_letters_and_broken_promises(whole: tuple[Lifecycle, dict[str, list[Row]]]) -> None:
    tables = whole[1]
    columns = ("queue", "outcome", "reason", "signature", "routing_key", "messages", "first_seen_ms", "last_seen_ms")
    assert chosen(tables["dlq_summary"], *columns) == [
        ("mail", "dead_lettered", "rejected", "no address # in order #", "mail.bad", 1, NOON + 2_300, NOON + 2_300),
        ("mail", "expired", "expired", "", "mail.late", 1, NOON + 63_000, NOON + 63_000),
    ]
    assert chosen(tables["sla_breaches"], "queue", "measure", "messages", "worst_ms", "limit_ms", grain="hour") == [
        ("jobs", "end_to_end_ms", 1, 10_600, 10_000),
        ("jobs", "end_to_end_ms", 4, 60_400, 10_000),
        ("jobs", "process_ms", 4, 400, 300),
        ("mail", "queue_ms", 1, 100, 90),
    ]
    (worst,) = [row for row in tables["sla_breaches"] if row["worst_ms"] == 60_400 and row["grain"] == "hour"]
    assert worst["examples"] == [{"ms": NOON + 61_400, "id": "m2"}]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_late_repeated_and_disordered_events_make_the_same_tables(
    spark: SparkSession, whole: tuple[Lifecycle, dict[str, list[Row]]], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    told = golden()
    told += chance.sample(told, 10)
    chance.shuffle(told)
    here = Lifecycle(str(tmp_path), SLA)
    cuts = [0, *sorted(chance.sample(range(1, len(told)), 2)), len(told)]
    for number, (start, stop) in enumerate(pairwise(cuts)):
        here.take(frame(spark, told[start:stop]), "app", number)
        # a batch that Spark runs again, and events that come once more under another checkpoint
        here.take(frame(spark, told[start:stop]), "app", number)
        if number == 1:
            here.take(frame(spark, told[:stop]), "another", 0)
        here.refresh(spark)
    here.refresh(spark)
    assert everything(here) == whole[1]


def test_a_run_that_died_between_any_two_commits_is_finished(
    spark: SparkSession,
    whole: tuple[Lifecycle, dict[str, list[Row]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = golden()
    here = Lifecycle(str(tmp_path), SLA)

    def dying(made: Any, at: Collection[str]) -> Any:
        def write(rows: Any, path: Path, *said: Any, **more: Any) -> bool:
            if path.name in at:
                raise KeyboardInterrupt
            return bool(made(rows, path, *said, **more))

        return write

    for number, part in enumerate((told[:14], told[14:])):
        here.take(frame(spark, part), "app", number)
        for at in ({"queue_stats", "tenant_usage", OPEN}, {"tenant_usage", OPEN}):
            with monkeypatch.context() as patched:
                for name in ("append", "replace", "merge"):
                    patched.setattr(lake, name, dying(getattr(lake, name), at))
                with pytest.raises(KeyboardInterrupt):
                    here.refresh(spark)
        here.refresh(spark)
    assert everything(here) == whole[1]


def test_a_table_that_is_deleted_is_made_anew(
    spark: SparkSession, whole: tuple[Lifecycle, dict[str, list[Row]]], tmp_path: Path
) -> None:
    here = Lifecycle(str(tmp_path), SLA)
    here.take(frame(spark, golden()), "app", 0)
    (table,) = (table for table in gold_tables(SLA) if table.name == "queue_stats")
    found = table.updated(measured(lake.read(spark, here.path(BRONZE))), None)
    lake.replace(found, tmp_path / "made", "app", 0, partition_by=(gold.SLICE,))
    assert rows(tmp_path / "made") == whole[1]["queue_stats"]


def test_routing_keys_beyond_the_cap_share_a_row(spark: SparkSession, tmp_path: Path) -> None:
    (table,) = (table for table in gold_tables(SLA) if table.name == "routing_stats")
    assert table.cap is not None
    small = replace(table, cap=replace(table.cap, most=3))
    teller = Teller()
    for number, key in enumerate("cabdefaaghc"):
        teller.message(f"m{number}", "jobs", entered=number, key=key)
    events = parsed(frame(spark, teller.rows))
    found: list[list[Row]] = []
    # at once, and in batches that the keys are divided by in different ways
    for name, cuts in (("whole", [0, 11]), ("parts", [0, 2, 4, 7, 11])):
        for batch, (start, stop) in enumerate(pairwise(cuts)):
            part = events.where(f"event_time_ms >= {NOON + start} AND event_time_ms < {NOON + stop}")
            old = lake.read(spark, tmp_path / name) if batch else None
            lake.replace(small.updated(part, old), tmp_path / name, "app", batch, partition_by=(gold.SLICE,))
        found.append(rows(tmp_path / name))
    assert found[0] == found[1]
    assert chosen(found[0], "scope", "routing_key", "published", "bytes", "fan_out", grain="hour") == [
        ("key", "a", 3, 300, 1.0),
        ("key", "b", 1, 100, 1.0),
        ("key", "c", 2, 200, 1.0),
        ("other", "", 5, 500, 1.0),
    ]


def test_other_tools_read_the_tables(spark: SparkSession, whole: tuple[Lifecycle, dict[str, list[Row]]]) -> None:
    here, tables = whole
    path = here.path("queue_stats")
    acked = sum(row["acked"] for row in tables["queue_stats"])
    table = DeltaTable(str(path))
    files = table.file_uris()
    assert int(table.to_pandas()["acked"].sum()) == acked
    assert duckdb.execute(f"SELECT sum(acked) FROM read_parquet({files!r})").fetchall() == [(acked,)]
    assert spark.read.parquet(*files).selectExpr("sum(acked) AS n").collect()[0].n == acked


def test_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no 'speed'"):
        sla_breaches([{"queue": "%", "speed": 1}])
    with pytest.raises(InvalidArgument, match="above 0"):
        sla_breaches([{"queue": "%", "queue_ms": 0}])
    with pytest.raises(InvalidArgument, match="must be a text"):
        sla_breaches([{"queue": 7, "queue_ms": 1}])

"""The pipelines of examples/pipelines run, over what their generator makes, and the tables are what they must be."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from rookery.lake.pipelines import Place, Status
from rookery.pipelines import backfill, lake
from rookery.pipelines.jobs import PipelineJob
from rookery.pipelines.planning import plan, validate
from rookery.pipelines.runner import Runner
from rookery.pipelines.spec import Pipeline, load, load_folder
from tests.interop.pipeline_world import documents
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
COUNT = 600


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A broker with what the generator makes."""
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        found = World(server.http)
        environ = {**os.environ, "ROOKERY_API_KEY": KEY}
        command = [sys.executable, str(FOLDER / "generate.py"), found.url, "--count", str(COUNT)]
        said = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
        assert f"{COUNT} orders" in said
        yield found
        assert server.stop() == 0


@pytest.fixture(autouse=True)
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_URL", world.url)
    monkeypatch.setenv("ROOKERY_API_KEY", KEY)


@pytest.fixture(scope="module")
def data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(name: str) -> Pipeline:
    return load(FOLDER / f"{name}.yaml")


def run(spark: SparkSession, name: str, root: Path) -> Status:
    status = Runner(PipelineJob(example(name)), root, spark, once=True).run()
    assert status.state == "finished", status.error
    return status


def rows(spark: SparkSession, root: Path, name: str) -> list[Any]:
    return lake.read(spark, Place(root, "any").table(name)).collect()


def test_all_of_them_are_valid_and_have_a_test() -> None:
    good, bad = load_folder(FOLDER)
    assert bad == []
    for pipeline in good:
        validate(pipeline)
    assert {each.name for each in good} == {"orders-enriched", "sensor-minutes", "paid-orders", "dead-letter-triage"}


def enriched(data: ModuleType) -> list[dict[str, Any]]:
    rates = {"eu": 0.2, "us": 0.07}
    found = []
    for order in data.orders(COUNT):
        if order["customer"] is not None:
            tax = int(order["amount_cents"] * rates.get(order["region"], 0.0) + 0.5)
            at = datetime.fromisoformat(order["at"]).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            found.append({**order, "tax_cents": tax, "at": at})
    return found


def test_orders_are_enriched_and_can_be_backfilled(
    spark: SparkSession, world: World, data: ModuleType, tmp_path: Path
) -> None:
    world.stream("orders-enriched", partitions=2)
    world.stream("orders-quarantine")
    shown = plan(example("orders-enriched"), tmp_path, spark)
    assert shown.columns == {
        "value": "string",
        "routing_key": "string",
        "key": "binary",
        "content_type": "string",
    }
    assert "== Physical Plan ==" in shown.physical
    status = run(spark, "orders-enriched", tmp_path)
    assert (status.progress.total_rows, status.progress.lag) == (COUNT, 0)
    expected = enriched(data)
    by_id = lambda row: row["order_id"]  # noqa: E731
    assert sorted(documents(world, "orders-enriched"), key=by_id) == expected
    held = [order["order_id"] for order in data.orders(COUNT) if order["customer"] is None]
    assert sorted(row["order_id"] for row in documents(world, "orders-quarantine")) == held
    assert status.progress.failed_expectations == {"has_customer": len(held), "has_amount": 0}

    job = backfill.prepare(example("orders-enriched"), tmp_path)
    assert job.rows == COUNT
    for _ in range(2):
        backfill.run(example("orders-enriched"), tmp_path, spark, job)
        assert sorted(documents(world, "orders-enriched"), key=by_id) == sorted(expected * 2, key=by_id)
    assert backfill.prepare(example("orders-enriched"), tmp_path) == job


def test_minutes_of_sensors_are_written_once_they_are_over(
    spark: SparkSession, data: ModuleType, tmp_path: Path
) -> None:
    run(spark, "sensor-minutes", tmp_path)
    minutes: dict[tuple[datetime, str], list[float]] = defaultdict(list)
    times = []
    for reading in data.readings(COUNT):
        at = datetime.fromisoformat(reading["at"])
        times.append(at)
        minutes[(at.replace(second=0), reading["sensor"])].append(reading["celsius"])
    watermark = max(times) - timedelta(minutes=2)
    expected = {
        key: (len(found), min(found), max(found))
        for key, found in minutes.items()
        if key[0] + timedelta(minutes=1) <= watermark
    }
    found = rows(spark, tmp_path, "sensor_minutes")
    shown = {
        (row.minute.replace(tzinfo=data.UTC), row.sensor): (row.readings, row.coldest, row.warmest) for row in found
    }
    assert shown == expected
    assert len(found) == len(expected) > 10
    for row in found:
        readings = minutes[(row.minute.replace(tzinfo=data.UTC), row.sensor)]
        assert abs(row["mean"] - sum(readings) / len(readings)) < 0.006


def test_orders_meet_their_payments(spark: SparkSession, data: ModuleType, tmp_path: Path) -> None:
    run(spark, "paid-orders", tmp_path)
    ordered = {order["order_id"]: order for order in data.orders(COUNT)}
    expected = []
    for payment in data.payments(COUNT):
        order = ordered[payment["order_id"]]
        seconds = datetime.fromisoformat(payment["at"]) - datetime.fromisoformat(order["at"])
        expected.append((order["order_id"], order["region"], payment["paid_cents"], int(seconds.total_seconds())))
    found = [(row.order_id, row.region, row.paid_cents, row.seconds) for row in rows(spark, tmp_path, "paid_orders")]
    assert sorted(found) == sorted(expected)


def test_dead_letters_go_back_or_into_a_table(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.call("PUT", "/queues/jobs")
    world.call("PUT", "/queues/jobs.DLQ")
    kinds = ["timeout", "syntax", "busy", "syntax", "timeout"]
    for number, kind in enumerate(kinds):
        world.call("POST", "/queues/jobs.DLQ/messages", {"message": {"n": number, "kind": kind}})
    run(spark, "dead-letter-triage", tmp_path)
    assert world.ready("jobs", 3) == 3
    assert world.ready("jobs.DLQ", 0) == 0
    kept = rows(spark, tmp_path, "dead_jobs")
    assert sorted(row.row.count("syntax") for row in kept) == [1, 1]
    assert {tuple(row.expectations) for row in kept} == {("retryable",)}
    assert {row.pipeline for row in kept} == {"dead-letter-triage"}

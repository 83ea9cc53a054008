"""Pipelines run against a real server: what their files say is what comes out, each row once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rookery.errors import InvalidArgument, InvalidPipeline, PipelineRunning
from rookery.lake.pipelines import Place, Status
from rookery.pipelines import lake
from rookery.pipelines.jobs import PipelineJob
from rookery.pipelines.planning import plan
from rookery.pipelines.runner import Runner
from rookery.pipelines.spec import load
from rookery.pipelines.worker import DOUBTED_AFTER, LOST, Worker
from tests.interop.pipeline_world import documents, publish, write
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


def run(spark: SparkSession, path: Path, root: Path) -> Status:
    status = Runner(PipelineJob(load(path)), root, spark, once=True).run()
    assert status.state == "finished", status.error
    return status


def test_rows_go_to_a_table_once_and_bad_ones_into_quarantine(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("orders", partitions=2)
    world.stream("held")
    publish(world, "orders", [{"id": i, "region": None if i % 5 == 0 else f"r{i % 2}"} for i in range(20)])
    path = write(
        tmp_path,
        world,
        """
source: {stream: orders, startingOffsets: earliest}
transform:
  - sql: |
      SELECT get_json_object(CAST(value AS STRING), '$.id')::INT AS id,
             get_json_object(CAST(value AS STRING), '$.region') AS region
      FROM {input}
expect:
  - {name: has_region, check: region IS NOT NULL, on_fail: quarantine}
  - {name: not_seven, check: id <> 7, on_fail: drop}
quarantine: {stream: held}
sink: {table: orders, partitionBy: [region]}
""",
    )
    status = run(spark, path, tmp_path)
    assert status.progress.total_rows == 20
    assert status.progress.failed_expectations == {"has_region": 4, "not_seven": 1}
    assert status.progress.lag == 0
    table = Place(tmp_path, "p").table("orders")
    good = sorted(row.id for row in lake.read(spark, table).collect())
    assert good == [i for i in range(20) if i % 5 and i != 7]
    assert sorted(row["id"] for row in documents(world, "held")) == [0, 5, 10, 15]
    publish(world, "orders", [{"id": 100, "region": "r9"}, {"id": 101}])
    assert run(spark, path, tmp_path).progress.total_rows == 22
    assert sorted(row.id for row in lake.read(spark, table).collect()) == [*good, 100]
    assert len(world.values("held")) == 5
    assert world.lag("orders", "pipeline-p") == 0


def test_aggregates_are_merged_by_key_or_replace_the_table(spark: SparkSession, world: World, tmp_path: Path) -> None:
    """A table of the lake is a source too, and a batch's rows meet it."""
    world.stream("clicks", partitions=2)
    names = spark.createDataFrame([(0, "even"), (1, "odd")], "rest INT, name STRING")
    lake.append(names, Place(tmp_path, "any").table("names"), "test", 0)
    text = """
sources:
  clicks: {stream: clicks, startingOffsets: earliest, maxOffsetsPerTrigger: 60}
  names: {table: names}
transform:
  - sql: SELECT get_json_object(CAST(value AS STRING), '$.n')::INT % 2 AS rest FROM {clicks}
  - sql: SELECT name, count(*) AS clicks FROM {input} JOIN {names} USING (rest) GROUP BY name
"""
    merged = write(tmp_path, world, text + "sink: {table: merged, mode: merge, keys: [name]}\n", "merged")
    whole = write(tmp_path, world, text + "sink: {table: whole, mode: replace}\n", "whole")
    for count in (100, 150):
        publish(world, "clicks", [{"n": n} for n in range(count)])
    for path in (merged, whole):
        status = run(spark, path, tmp_path)
        assert status.progress.batch > 1
        table = lake.read(spark, Place(tmp_path, "any").table(path.stem))
        assert sorted(tuple(row) for row in table.collect()) == [("even", 125), ("odd", 125)]


def test_rows_are_routed_by_an_exchange(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.stream("mixed", 20)
    world.call("PUT", "/exchanges/routed", {"kind": "topic"})
    world.call("PUT", "/queues/eu")
    world.call("POST", "/bindings", {"source": "routed", "target": "eu", "key": "*.eu"})
    path = write(
        tmp_path,
        world,
        """
source: {stream: mixed, startingOffsets: earliest}
transform:
  - sql: SELECT value, if(offset % 2 = 0, 'a.eu', 'a.us') AS routing_key FROM {input}
sink: {exchange: routed}
""",
    )
    run(spark, path, tmp_path)
    assert world.ready("eu", 10) == 10


def test_where_once_is_not_asked_for_rows_still_come_and_a_quarantine_is_made(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("loose", 20)
    text = "source: {stream: loose, startingOffsets: earliest}\nsink: {stream: copied, exactlyOnce: false}\n"
    text += "transform: [{sql: 'SELECT value, content_type FROM {input}'}]\n"
    world.stream("copied")
    run(spark, write(tmp_path, world, text, "plain"), tmp_path)
    assert sorted(world.values("copied")) == sorted(world.values("loose"))
    text += "expect: [{name: short, check: length(value) = 4, on_fail: quarantine}]\n"
    path = write(tmp_path, world, text, "held")
    run(spark, path, tmp_path)
    assert len(world.values("held.quarantine")) == 10
    world.fill("loose", 20, 25)
    run(spark, path, tmp_path)
    assert len(world.values("held.quarantine")) == 15


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "transform: [{sql: 'SELECT valeu AS value FROM {input}'}]\nsink: {stream: b}",
            r"p.yaml:3: step 1 \(sql\): .*valeu",
        ),
        (
            "transform: [{sql: 'SELEC value FROM {input}'}]\nsink: {stream: b}",
            r"p.yaml:3: step 1 \(sql\): (.|\n)*SELEC",
        ),
        (
            "transform: [{sql: 'SELECT offset FROM {input}'}]\nsink: {stream: b}",
            r"p.yaml:4: sink: .*offset.*format: json",
        ),
        ("expect: [{name: x, check: 'no_column > 1'}]\nsink: {stream: b}", r"p.yaml:3: expectation x: .*no_column"),
        ("sink: {table: t, mode: merge, keys: [id]}", r"p.yaml:3: sink: there is no column 'id'"),
        ("transform: [{python: 'beside:wrong'}]\nsink: {table: t}", r"p.yaml:3: .*must return a DataFrame, not int"),
        ("transform: [{python: 'beside:broken'}]\nsink: {table: t}", r"p.yaml:3: .*KeyError: 'limit'"),
        ("transform: [{python: 'beside:absent'}]\nsink: {table: t}", r"p.yaml:3: beside has no function absent"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(
    spark: SparkSession, world: World, tmp_path: Path, text: str, words: str
) -> None:
    """Without a broker, too."""
    program = "def wrong(frame, params):\n    return 1\n\n\n"
    program += "def broken(frame, params):\n    return frame.limit(params['limit'])\n"
    (tmp_path / "beside.py").write_text(program)
    sys.modules.pop("beside", None)
    path = write(tmp_path, World(9), f"source: {{stream: a}}\n{text}\n")
    with pytest.raises(InvalidPipeline, match=words):
        plan(load(path), tmp_path, spark)


def test_a_failure_is_tried_again_and_then_told(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.stream("fine", 10)
    path = write(
        tmp_path,
        world,
        """
source: {stream: fine, startingOffsets: earliest}
expect: [{name: early, check: offset < 5, on_fail: fail}]
transform: [{sql: "SELECT value, offset FROM {input}"}]
sink: {table: fine}
restart: {retries: 1, backoff: 10ms}
""",
    )
    heard: list[str] = []
    runner = Runner(PipelineJob(load(path)), tmp_path, spark, heard=lambda status: heard.append(status.state))
    status = runner.run()
    assert (status.state, status.restarts) == ("failed", 2)
    assert (heard[0], heard.count("restarting"), heard[-1]) == ("starting", 1, "failed")
    assert status.error is not None
    assert "p.yaml:4: a row fails the expectation early: offset < 5" in status.error.message
    # what failed for good does so in the eyes of others, too, and can be mended
    assert Place(tmp_path, "p").status().error == status.error
    path.write_text(path.read_text().replace("offset < 5", "offset < 50"))
    run(spark, path, tmp_path)
    assert lake.read(spark, Place(tmp_path, "p").table("fine")).count() == 10


def test_what_is_not_there_is_waited_for_but_not_by_who_runs_once(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    text = "source: {stream: later, startingOffsets: earliest}\nsink: {table: later}\nrestart: {backoff: 10ms}\n"
    path = write(tmp_path, world, text)
    status = Runner(PipelineJob(load(path)), tmp_path, spark, once=True).run()
    assert (status.state, status.restarts) == ("failed", 1)
    assert status.error is not None
    assert "p.yaml:2: source: there is no stream 'later'" in status.error.message

    def heard(status: Status) -> None:
        if status.state == "restarting":
            world.stream("later", 7)
        if status.progress.total_rows == 7:
            runner.stop()

    runner = Runner(PipelineJob(load(path)), tmp_path, spark, heard=heard)
    assert runner.run().state == "stopped"
    assert lake.read(spark, Place(tmp_path, "p").table("later")).count() == 7


def test_where_every_job_keeps_failing_another_spark_is_asked_for(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("hard", 10)
    names = ("first", "second")
    text = (
        "source: {stream: hard, startingOffsets: earliest}\nexpect: [{name: never, check: offset < 0, on_fail: fail}]\n"
        "sink: {table: hard}\nrestart: {retries: 50, backoff: 10ms}\n"
    )
    jobs = [PipelineJob(load(write(tmp_path, world, text, name))) for name in names]
    assert Worker(jobs, tmp_path, supervised=True).run() == LOST
    before = [Place(tmp_path, name).status() for name in names]
    assert max(status.restarts for status in before) >= DOUBTED_AFTER
    told = str([status.error for status in before])
    assert "a row fails the expectation never: offset < 0" in told
    assert "(trying again with a new Spark)" in told
    # who takes over goes on counting
    assert Worker(jobs, tmp_path, supervised=True, again=True).run() == LOST
    for name, earlier in zip(names, before, strict=True):
        assert Place(tmp_path, name).status().restarts >= earlier.restarts + DOUBTED_AFTER
    assert spark.range(3).count() == 3


def test_a_running_pipeline_can_be_stopped_and_is_the_only_one(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("long", 10)
    path = write(tmp_path, world, "source: {stream: long, startingOffsets: earliest}\nsink: {table: long}\n")
    done = threading.Event()
    runner = Runner(
        PipelineJob(load(path)),
        tmp_path,
        spark,
        heard=lambda status: done.set() if status.progress.total_rows else None,
    )
    thread = threading.Thread(target=runner.run)
    thread.start()
    assert done.wait(120)
    with pytest.raises(PipelineRunning):
        run(spark, path, tmp_path)
    with pytest.raises(PipelineRunning):
        Place(tmp_path, "p").reset()
    Place(tmp_path, "p").want_stop(True)
    thread.join(120)
    assert runner.status.state == "stopped"
    changed = path.read_text().replace("stream: long", "stream: other")
    path.write_text(changed)
    with pytest.raises(InvalidArgument, match="rookery pipelines reset p"):
        run(spark, path, tmp_path)
    assert "rookery pipelines reset p" in str(Place(tmp_path, "p").status().error)


def test_a_pipeline_by_the_clock_runs_again(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.stream("hourly", 5)
    path = write(
        tmp_path,
        world,
        "source: {stream: hourly, startingOffsets: earliest}\nsink: {table: hourly}\n"
        "trigger: {availableNow: true, every: 100ms}\n",
    )
    states: list[str] = []
    runner = Runner(PipelineJob(load(path)), tmp_path, spark)

    def heard(status: Status) -> None:
        states.append(status.state)
        if states.count("waiting") == 1 and status.state == "waiting":
            world.fill("hourly", 5, 9)
        if states.count("waiting") >= 2 and status.progress.total_rows == 9:
            runner.stop()

    runner._heard = heard
    assert runner.run().state == "stopped"
    assert lake.read(spark, Place(tmp_path, "p").table("hourly")).count() == 9

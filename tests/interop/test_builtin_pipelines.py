"""The built-in pipelines against a real server: what they keep is what happened, whatever is killed meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rookery.core.snapshots import COUNTERS
from rookery.lake.insights import ARCHIVE, BUILTIN, gold_rows
from rookery.pipelines import lake
from rookery.pipelines.builtin import letters, replay, report
from rookery.pipelines.builtin.archive import Archive
from rookery.pipelines.builtin.care import Care
from rookery.pipelines.builtin.jobs import ARCHIVING, LIFECYCLE, BuiltinJob, find
from rookery.pipelines.runner import Runner
from rookery.pipelines.spec import Restart
from rookery.spark.options import sink_options
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World
from tests.interop.test_lifecycle import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXITS = ("acked", "expired", "dead_lettered", "dropped", "purged", "moved_out")
ENTRIES = ("published", "dead_lettered_in", "moved_in", "restored")


@pytest.fixture(scope="module", autouse=True)
def small(spark: SparkSession) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def world(root: Path) -> Iterator[World]:
    (root / "server").mkdir()
    with serving(root / "server", "--api-key", KEY, "--pipelines-dir", str(root)) as server:
        yield World(server.http)
        assert server.stop() == 0


def run(spark: SparkSession, world: World, root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_API_KEY", KEY)
    # on a slow machine Spark's own processes may not come up in their time
    patient = Restart(retries=50, backoff_ms=200, backoff_max_ms=1_000)
    job: BuiltinJob = replace(find(name, root, world.url), restart=patient)
    # the session was started without the variable, so its processes do not have it
    monkeypatch.setattr("rookery.pipelines.builtin.jobs._key", lambda: {"token": KEY})
    status = Runner(job, root, spark, once=True).run()
    assert status.state == "finished", status.error


def settle(world: World, queue: str, outcomes: list[str]) -> None:
    """Claim as many messages as there are outcomes, and settle each."""
    claimed = world.call("POST", f"/queues/{queue}/claim", {"max": len(outcomes)})["deliveries"]
    assert len(claimed) == len(outcomes)
    for message, outcome in zip(claimed, outcomes, strict=True):
        body = {"lease": message["lease"], "outcome": outcome}
        if outcome in ("retry", "reject"):
            body["reason"] = f"no stock of item {message['attempt']}"
        world.call("POST", f"/queues/{queue}/settle", {"settle": [body]})


def snapshots_told(world: World, queues: list[str]) -> None:
    """Wait until the broker has told the counts of these queues as they are."""
    deadline = time.monotonic() + 60
    while True:
        last: dict[str, Any] = {}
        for row in world.call("GET", "/streams/rookery.events")["partitions"]:
            at = row["first"]
            while at < row["end"]:
                page = world.call("GET", f"/streams/rookery.events/records?partition={row['partition']}&from={at}")
                for record in page["records"]:
                    event = record["value"] if isinstance(record["value"], dict) else json.loads(record["value"])
                    if event["event_type"] == "snapshot" and event.get("queue"):
                        last[event["queue"]] = event["counters"]
                at = page["next"]
        now = {name: world.call("GET", f"/queues/{name}")["stats"] for name in queues}
        if all(name in last and all(last[name][c] == now[name][c] for c in COUNTERS) for name in queues):
            return
        assert time.monotonic() < deadline, (last, now)
        time.sleep(0.2)


def test_gold_adds_up_to_the_meters_of_the_broker(
    spark: SparkSession, world: World, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("jobs", "mail"):
        world.call("PUT", f"/queues/{queue}", {"max_attempts": 2})
    for i in range(12):
        world.call("POST", "/queues/jobs/publish", {"message": {"id": i}})
    for i in range(5):
        world.call("POST", "/queues/mail/publish", {"message": f"m{i}"})
    settle(world, "jobs", ["ack"] * 4 + ["reject"] * 2 + ["release", "retry"])
    settle(world, "mail", ["ack", "reject"])
    run(spark, world, root, LIFECYCLE, monkeypatch)
    settle(world, "jobs", ["ack"] * 3)
    world.call("POST", "/queues/mail/purge")
    names = ["jobs", "mail", "jobs.DLQ", "mail.DLQ"]
    snapshots_told(world, names)
    run(spark, world, root, LIFECYCLE, monkeypatch)
    for name in names:
        stats = world.call("GET", f"/queues/{name}")["stats"]
        rows = gold_rows(root, "queue_stats", queue=name, grain="minute")
        summed = {counter: sum(row[counter] for row in rows) for counter in COUNTERS}
        assert summed == {counter: stats[counter] for counter in COUNTERS}, name
        # counts are conserved: what entered a queue is in it or left it by exactly one way
        newest = max(rows, key=lambda row: row["window_start"] if row["ready"] is not None else "")
        inside = newest["ready"] + newest["delayed"] + newest["leased"]
        assert sum(summed[way] for way in ENTRIES) == inside + sum(summed[way] for way in EXITS), name
        hours = gold_rows(root, "queue_stats", queue=name, grain="hour")
        assert {counter: sum(row[counter] for row in hours) for counter in COUNTERS} == summed
    journeys = lake.read(spark, root / BUILTIN / "message_journeys")
    counts = {(row.queue, row.outcome): row["count"] for row in journeys.groupBy("queue", "outcome").count().collect()}
    assert counts == {
        ("jobs", "acked"): 7,
        ("jobs", "dead_lettered"): 2,
        ("mail", "acked"): 1,
        ("mail", "dead_lettered"): 1,
    }
    assert {row["signature"] for row in gold_rows(root, "dlq_summary")} == {"no stock of item #"}


def test_the_server_shows_gold_and_the_page_needs_nothing_else(world: World, root: Path, tmp_path: Path) -> None:
    shown = world.call("GET", "/insights/queue_stats?grain=hour&queue=jobs")["rows"]
    assert shown == gold_rows(root, "queue_stats", grain="hour", queue="jobs")
    assert sum(row["acked"] for row in shown) == 7
    page = tmp_path / "page.html"
    written = report.write(root, page, since_ms=0)
    text = page.read_text()
    assert written["plots"] == 7
    assert "Why messages died" in text
    assert "no stock of item #" in text
    assert 'src="http' not in text


def test_a_plan_brings_back_what_is_worth_another_try(world: World, root: Path, tmp_path: Path) -> None:
    found = letters.groups(root, "default")
    assert [(group.queue, group.reason, group.messages, group.verdict) for group in found] == [
        ("jobs", "rejected", 2, "look"),
        ("mail", "rejected", 1, "look"),
    ]
    plan = letters.propose(found, "default", everything=True)
    letters.write_plan(plan, tmp_path / "plan.json")
    before = world.call("GET", "/queues/jobs")["stats"]["ready"]
    cli(world, "dead-letters", "redrive", "--plan", str(tmp_path / "plan.json"), "--dry-run")
    assert world.call("GET", "/queues/jobs.DLQ")["stats"]["ready"] == 2
    done = cli(world, "dead-letters", "redrive", "--plan", str(tmp_path / "plan.json"))
    assert [row["redriven"] for row in json.loads(done)] == [2, 1]
    assert world.call("GET", "/queues/jobs")["stats"]["ready"] == before + 2
    assert world.call("GET", "/queues/jobs.DLQ")["stats"]["ready"] == 0


def cli(world: World, *words: str) -> str:
    """What a command prints."""
    import contextlib
    import io

    from rookery.cli import app

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app([*words, "--url", world.url, "--key", KEY, "--json"], standalone_mode=False)
    return out.getvalue()


def test_streams_are_archived_once_and_replayed_once(
    spark: SparkSession, world: World, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream("orders é", 300, 2)
    world.stream("other", 10)
    run(spark, world, root, ARCHIVING, monkeypatch)
    world.fill("orders é", 300, 400, 2)
    run(spark, world, root, ARCHIVING, monkeypatch)
    archive = Archive(str(root / ARCHIVE))
    rows = lake.read(spark, archive.path("orders é"))
    assert sorted(bytes(row.value) for row in rows.collect()) == sorted(b'"m%d"' % i for i in range(400))
    assert lake.read(spark, archive.path("other")).count() == 10
    assert not archive.path("rookery.events").exists()
    tended = Care("date").tend(archive.path("orders é"), force=True)
    assert tended["merged_files"] >= 2
    assert lake.read(spark, archive.path("orders é")).count() == 400

    wanted = replay.Replay("again", "lake", "orders é", "offset < 100 AND body LIKE '%1%'", "queue", "replayed", 30)
    world.call("PUT", "/queues/replayed")
    folder, found = replay.begin(tmp_path, wanted)
    source = replay.source(spark, found, root, {})
    count, first = replay.look(source, found)
    assert (count, len(first)) == (sum("1" in str(i) for i in range(200)), 5)
    found = replay.choose(source, found, folder)
    assert found.rows == count
    done = replay.publish(found, folder, sink_options(world.here).connection)
    assert done.rows_done == count
    assert world.ready("replayed", count) == count
    messages = world.call("GET", "/queues/replayed/messages?limit=1000")["messages"]
    headers = [message["headers"] for message in messages]
    assert len({(each["x-original-partition"], each["x-original-offset"]) for each in headers}) == count
    assert {message["headers"]["x-replay-id"] for message in messages} == {"again"}

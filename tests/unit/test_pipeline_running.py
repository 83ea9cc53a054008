"""What running pipelines rests on, without Spark: times, state below a root, and what Spark's reports mean."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import InvalidArgument, NotFound, PipelineRunning
from rookery.lake.pipelines import Place, Progress, Status, statuses
from rookery.pipelines.cron import Cron
from rookery.pipelines.jobs import PipelineJob
from rookery.pipelines.runner import Runner, lag, progress, reason
from rookery.pipelines.spec import load


@pytest.mark.parametrize(
    ("text", "now", "then"),
    [
        ("*/10 * * * *", "2026-01-31T12:00:30", "2026-01-31T12:10"),
        ("0 3 * * *", "2026-01-31T03:00", "2026-02-01T03:00"),
        ("30 8-10/2 * * mon-fri", "2026-01-30T10:31", "2026-02-02T08:30"),
        ("0 0 1 * 0", "2026-01-30T00:00", "2026-02-01T00:00"),
        ("0 0 29 feb *", "2026-01-30T00:00", "2028-02-29T00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59", "2027-12-31T23:59"),
        ("0 12 * * 7", "2026-01-31T12:00", "2026-02-01T12:00"),
    ],
)
def test_the_next_time_of_cron(text: str, now: str, then: str) -> None:
    found = Cron.parse(text).next_after(datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert found == datetime.fromisoformat(then).replace(tzinfo=UTC)


@pytest.mark.parametrize("text", ["* * * *", "60 * * * *", "x * * * *", "5-1 * * * *", "*/0 * * * *", "0 0 31 2 *", ""])
def test_what_cron_is_not(text: str) -> None:
    with pytest.raises(InvalidArgument, match="cron"):
        Cron.parse(text)


def test_an_identity_is_kept_until_it_is_reset(tmp_path: Path) -> None:
    place = Place(tmp_path, "p")
    first = place.claim("f1", "p.yaml")
    assert place.claim("f1", "p.yaml") == first
    assert place.checkpoint.is_relative_to(tmp_path)
    with pytest.raises(InvalidArgument, match="rookery pipelines reset p"):
        place.claim("f2", "p.yaml")
    place.checkpoint.mkdir(parents=True)
    old = place.checkpoint
    place.reset()
    again = place.claim("f2", "p.yaml")
    assert again.app != first.app
    assert not old.exists()
    assert place.checkpoint != old


def test_only_one_runs_a_pipeline_and_its_death_sets_it_free(tmp_path: Path) -> None:
    program = (
        "import sys; from rookery.lake.pipelines import Place\n"
        f"with Place({str(tmp_path)!r}, 'p').lock():\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(PipelineRunning, match="rookery pipelines stop p"), Place(tmp_path, "p").lock():
        pass
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with Place(tmp_path, "p").lock():
        pass


def test_places_of_tables_and_names_that_are_none(tmp_path: Path) -> None:
    place = Place(tmp_path, "p")
    assert place.table("lake.orders") == place.table("orders") == tmp_path / "lake" / "orders"
    assert place.table("/data/orders") == Path("/data/orders")
    for name in ("../x", "", "_delta_log"):
        with pytest.raises(InvalidArgument):
            place.table(name)
    for name in ("../x", "", ".hidden", "a/b"):
        with pytest.raises(InvalidArgument):
            Place(tmp_path, name)
    with pytest.raises(NotFound):
        place.status()


def test_statuses_by_name(tmp_path: Path) -> None:
    for name, state in (("b", "finished"), ("a", "running")):
        Place(tmp_path, name).tell(Status(name, state))
    assert [(each.name, each.state) for each in statuses(tmp_path)] == [("a", "running"), ("b", "finished")]
    assert statuses(tmp_path / "nowhere") == []


def test_lag_is_what_waits_behind_a_batch() -> None:
    source = {"endOffset": {"a": {"0": 5, "1": 7}}, "latestOffset": {"a": {"0": 9, "1": 7, "2": 3}}}
    assert lag([source]) == 4 + 3
    text = {"endOffset": '{"a":{"0":5}}', "latestOffset": '{"a":{"0":6}}'}
    assert lag([source, text]) == 8
    assert lag([{"endOffset": {"cut": 3}, "latestOffset": None}]) is None
    assert lag([]) is None


def test_progress_adds_up() -> None:
    report = {
        "batchId": 4,
        "timestamp": "2026-01-31T12:00:00.500Z",
        "numInputRows": 100,
        "durationMs": {"triggerExecution": 250, "addBatch": 200},
        "sources": [],
        "observedMetrics": {"expectations": {"has_id": 3}},
    }
    found = progress(report, Progress(total_rows=50, failed_expectations={"has_id": 1}))
    assert (found.batch, found.rows, found.rows_per_sec, found.batch_ms, found.total_rows) == (4, 100, 400.0, 250, 150)
    assert found.failed_expectations == {"has_id": 4}
    assert found.at_ms == 1769860800500


def test_what_was_stopped_stays_so_when_others_get_a_new_spark(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("source: {stream: a}\nsink: {table: a}\n")
    no_spark: Any = None
    place = Place(tmp_path, "p")
    place.tell(Status("p", "stopped", restarts=2, progress=Progress(total_rows=7)))
    place.want_stop(True)
    status = Runner(PipelineJob(load(tmp_path / "p.yaml")), tmp_path, no_spark, again=True).run()
    assert (status.state, status.restarts, status.progress.total_rows) == ("stopped", 2, 7)
    assert place.status().state == "stopped"


def test_an_error_is_told_by_its_last_words() -> None:
    traced = (
        "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n"
        '  File "x.py", line 3, in write\n    raise StreamNotFound(…)\n'
        "rookery.errors.StreamNotFound: there is no stream 'orders'\n\n\tat org.apache.spark\n"
    )
    assert reason(RuntimeError(traced)) == "StreamNotFound: there is no stream 'orders'"
    java = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] py4j.Py4JException: Traceback (most recent call last):\n  File x\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o1182.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task serialization failed: out of luck\n"
        "java.io.IOException: out of luck\n\tat java.base/java.io.A.b(A.java:1)\n"
    )
    expected = "SparkException: Job aborted due to stage failure: Task serialization failed: out of luck"
    assert reason(RuntimeError(java)) == expected
    inner = f"{java}\nCaused by: org.apache.spark.api.python.PythonException: {traced}"
    assert reason(RuntimeError(inner)) == "StreamNotFound: there is no stream 'orders'"
    assert reason(RuntimeError("plain\n\nJVM stacktrace:\nx")) == "plain"
    assert reason(RuntimeError("[STREAM_FAILED] why\n=== Streaming Query ===\nIdentifier: p")) == "[STREAM_FAILED] why"
    assert reason(RuntimeError()) == "RuntimeError"

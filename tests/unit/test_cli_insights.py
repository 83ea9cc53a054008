"""`rookery insights` over small gold tables: what is shown, the page, the plan."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from rookery.cli import insights
from rookery.core.snapshots import COUNTERS
from rookery.errors import NotFound
from rookery.lake.insights import BUILTIN
from rookery.pipelines.builtin.events import GAUGES

HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
DAY = HOUR.replace(hour=0)
EXAMPLES = [{"ms": 5, "id": "m1"}]


def stats(grain: str) -> dict[str, Any]:
    times = {
        f"{name}_ms_{label}": 7 for name in ("queue", "process", "end_to_end") for label in ("p50", "p95", "p99", "n")
    }
    counts = dict.fromkeys(COUNTERS, 3) | dict.fromkeys(GAUGES, 1)
    return {"tenant": "acme", "queue": "jobs", "grain": grain, "window_start": HOUR, **counts, **times}


TABLES: dict[str, list[dict[str, Any]]] = {
    "queue_stats": [stats("minute"), stats("hour")],
    "tenant_usage": [
        {"tenant": "acme", "grain": "hour", "window_start": HOUR, "published": 4, "published_bytes": 2_000}
        | dict.fromkeys(("unroutable", "queued", "delivered", "acked", "expired", "dead_lettered", "dropped"), 1)
    ],
    "dlq_summary": [
        {"tenant": "acme", "queue": "jobs", "outcome": "dead_lettered", "reason": "delivery_limit", "grain": "day"}
        | {"signature": "timed out after # ms", "routing_key": "a.b", "window_start": DAY, "messages": 9}
        | {"first_seen_ms": 1, "last_seen_ms": 2, "examples": EXAMPLES}
    ],
    "route_outcomes": [
        {"tenant": "acme", "queue": "jobs", "routing_key": "a.b", "grain": "day", "window_start": DAY}
        | {"acked": 5, "died": 9, "last_acked_ms": 3, "last_died_ms": 2}
    ],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("root")
    for name, rows in TABLES.items():
        write_deltalake(str(made / BUILTIN / name), pa.Table.from_pylist(rows))
    return made


def run(*words: str) -> str:
    result = CliRunner().invoke(insights.app, [*words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_all_tables_are_shown(root: Path) -> None:
    found = json.loads(run("show", "--root", str(root), "--json"))
    assert [row["published"] for row in found["queue_stats"]] == [3]
    assert found["dlq_summary"][0]["signature"] == "timed out after # ms"
    assert found["sla_breaches"] == []
    text = run("show", "--root", str(root))
    assert "counts of each queue" in text
    assert "sla_breaches: messages that took longer" in text
    assert "2 kB" in text


def test_without_a_command_all_tables_are_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_PIPELINES_DIR", str(root))
    assert run() == run("show")
    assert "2 kB" in run()


def test_where_there_is_nothing_it_is_said_what_makes_it(tmp_path: Path) -> None:
    for words in (["show"], ["report", "--out", str(tmp_path / "page.html")], ["plan"]):
        result = CliRunner().invoke(insights.app, [*words, "--root", str(tmp_path)])
        assert isinstance(result.exception, NotFound)
        assert "rookery pipelines up --builtin" in str(result.exception)


def test_one_table_in_the_grain_that_is_wanted(root: Path) -> None:
    found = json.loads(run("show", "queue_stats", "--grain", "minute", "--root", str(root), "--json"))
    assert [row["grain"] for row in found["queue_stats"]] == ["minute"]
    assert json.loads(run("show", "queue_stats", "--queue", "none", "--root", str(root), "--json")) == {
        "queue_stats": []
    }


def test_a_page_and_a_plan_are_written(root: Path, tmp_path: Path) -> None:
    run("report", "--root", str(root), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "timed out after # ms" in page
    assert 'src="http' not in page
    text = run("plan", "--tenant", "acme", "--root", str(root), "--out", str(tmp_path / "plan.json"))
    assert "1 of 1 groups to redrive" in text
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["steps"][0]["where"] == {
        "origin": "jobs",
        "reason": "delivery_limit",
        "detail": "timed out after",
        "routing_key": "a.b",
        "died_before_ms": 3,
    }

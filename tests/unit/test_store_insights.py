"""Gold tables are read without Spark: by tenant, queue, grain and time, newest first."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rookery.errors import InvalidArgument, NotFound
from rookery.lake.insights import BUILTIN, gold_rows

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def row(queue: str, minute: int, grain: str = "minute", tenant: str = "a") -> dict[str, Any]:
    return {
        "tenant": tenant,
        "queue": queue,
        "grain": grain,
        "window_start": NOON.replace(minute=minute),
        "acked": minute,
        "queue_ms": [{"ms": 1, "weight": 2}],
        "slice": "2026-09-01-12",
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = [row("q", 1), row("q", 2), row("r", 2), row("q", 0, "hour"), row("q", 3, tenant="b")]
    write_deltalake(str(tmp_path / BUILTIN / "queue_stats"), pa.Table.from_pylist(rows), partition_by=["slice"])
    return tmp_path


def test_rows_are_chosen_and_the_newest_come_first(root: Path) -> None:
    assert [(r["tenant"], r["queue"], r["acked"]) for r in gold_rows(root, "queue_stats", grain="minute")] == [
        ("b", "q", 3),
        ("a", "q", 2),
        ("a", "r", 2),
        ("a", "q", 1),
    ]
    (one,) = gold_rows(root, "queue_stats", tenant="a", queue="q", grain="hour")
    assert one == {
        "tenant": "a",
        "queue": "q",
        "grain": "hour",
        "window_start": "2026-09-01T12:00:00.000+00:00",
        "acked": 0,
    }
    later = gold_rows(root, "queue_stats", since_ms=NOON_MS + 60_000, until_ms=NOON_MS + 120_000)
    assert [r["acked"] for r in later] == [1]
    assert len(gold_rows(root, "queue_stats", limit=2)) == 2
    (with_buckets,) = gold_rows(root, "queue_stats", queue="r", histograms=True)
    assert with_buckets["queue_ms"] == [{"ms": 1, "weight": 2}]


def test_a_table_that_is_not_made_yet_has_no_rows(root: Path) -> None:
    assert gold_rows(root, "sla_breaches") == []


def test_what_cannot_be_asked_is_refused(root: Path) -> None:
    with pytest.raises(NotFound, match="there are queue_stats"):
        gold_rows(root, "../../etc")
    with pytest.raises(InvalidArgument, match="limit"):
        gold_rows(root, "queue_stats", limit=0)
    write_deltalake(
        str(root / BUILTIN / "tenant_usage"), pa.table({"tenant": ["a"], "grain": ["day"], "window_start": [NOON]})
    )
    with pytest.raises(InvalidArgument, match="has no queue"):
        gold_rows(root, "tenant_usage", queue="q")

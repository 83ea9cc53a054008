"""Gold tables over HTTP: for admins all, for others what is of their tenant and queues."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rookery.lake.insights import BUILTIN
from tests.wire.api_client import API, ok, refused
from tests.wire.http_world import World, world

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[World]:
    rows = [
        {"tenant": tenant, "queue": "q", "grain": grain, "window_start": NOON, "acked": acked, "slice": "2026-09-01-12"}
        for tenant, grain, acked in (("default", "minute", 1), ("default", "hour", 2), ("t", "hour", 3))
    ]
    write_deltalake(
        str(tmp_path / "root" / BUILTIN / "queue_stats"), pa.Table.from_pylist(rows), partition_by=["slice"]
    )
    with world(tmp_path, pipelines_dir=str(tmp_path / "root")) as made:
        yield made


def test_an_admin_sees_all_of_it(web: World) -> None:
    assert "queue_stats" in ok(web.admin.get(f"{API}/insights"))["tables"]
    shown = ok(web.admin.get(f"{API}/insights/queue_stats?grain=hour"))
    assert shown["table"] == "queue_stats"
    assert [(row["tenant"], row["acked"]) for row in shown["rows"]] == [("default", 2), ("t", 3)]
    assert ok(web.admin.get(f"{API}/insights/queue_stats?tenant=t&limit=1"))["rows"][0]["acked"] == 3
    assert ok(web.admin.get(f"{API}/insights/dlq_summary"))["rows"] == []


def test_others_see_what_is_theirs(web: World) -> None:
    mine = web.large("t")
    assert [row["acked"] for row in ok(mine.get(f"{API}/insights/queue_stats"))["rows"]] == [3]
    assert refused(mine.get(f"{API}/insights/queue_stats?tenant=default"), 403) == "access_refused"


def test_what_is_not_there_is_said(web: World) -> None:
    assert refused(web.admin.get(f"{API}/insights/nothing"), 404) == "not_found"
    assert refused(web.admin.get(f"{API}/insights/queue_stats?grain=year"), 400) == "invalid_argument"

"""How pipelines are doing, over HTTP: as their runners have left word below the root, for admins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.lake.pipelines import LastError, Place, Progress, Status
from tests.wire.api_client import API, ok, refused
from tests.wire.http_world import World, world


@pytest.fixture
def web(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, pipelines_dir=str(tmp_path / "root")) as made:
        yield made


def test_statuses_and_last_errors_are_shown(web: World, tmp_path: Path) -> None:
    assert ok(web.admin.get(f"{API}/pipelines")) == {"pipelines": []}
    root = tmp_path / "root"
    done = Status("b", "running", "b.yaml", "local[2]", progress=Progress(batch=7, rows=10, lag=3, total_rows=70))
    Place(root, "b").tell(done)
    Place(root, "a").tell(Status("a", "failed", error=LastError("no such stream", 5)))
    shown = ok(web.admin.get(f"{API}/pipelines"))["pipelines"]
    assert [(row["name"], row["state"]) for row in shown] == [("a", "failed"), ("b", "running")]
    assert shown[0]["error"] == {"message": "no such stream", "at_ms": 5}
    one = ok(web.admin.get(f"{API}/pipelines/b"))
    assert (one["pid"], one["progress"]["batch"], one["progress"]["lag"]) == (os.getpid(), 7, 3)


def test_one_whose_process_is_gone_is_dead(web: World, tmp_path: Path) -> None:
    place = Place(tmp_path / "root", "gone")
    status = Status("gone", "running")
    place.tell(status)
    text = (place.folder / "status.json").read_text()
    (place.folder / "status.json").write_text(text.replace(f'"pid":{os.getpid()}', '"pid":999999999'))
    assert ok(web.admin.get(f"{API}/pipelines/gone"))["state"] == "dead"


def test_what_is_not_there_and_who_may_not(web: World) -> None:
    assert refused(web.admin.get(f"{API}/pipelines/nobody"), 404) == "not_found"
    assert refused(web.admin.get(f"{API}/pipelines/..%2F..%2Fetc"), 400) == "invalid_argument"
    assert refused(web.large("t").get(f"{API}/pipelines"), 403) == "access_refused"

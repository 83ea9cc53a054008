"""What of the built-in pipelines can be set, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.errors import InvalidArgument, InvalidPipeline
from rookery.pipelines.builtin.jobs import ARCHIVING, LIFECYCLE, NAMES, Options, find, options
from rookery.pipelines.worker import find_job


def test_without_a_file_there_are_defaults(tmp_path: Path) -> None:
    assert options(tmp_path) == Options()
    assert [find(name, tmp_path).name for name in NAMES] == [LIFECYCLE, ARCHIVING]
    assert find(LIFECYCLE, tmp_path).trigger.interval_ms == 10_000
    assert find(ARCHIVING, tmp_path, "http://b:1", "local[2]").engine.master == "local[2]"


def test_the_file_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "builtin.yaml").write_text(
        "lifecycle: {interval: 3s, keep_days: 7, batch_rows: 9, sla: [{queue: a%, queue_ms: 5}]}\n"
        "archive: {interval: 1m, pattern: 'orders|bills', keep_days: 1}\n"
    )
    found = options(tmp_path)
    assert (found.lifecycle_interval_ms, found.lifecycle_keep_days, found.lifecycle_batch_rows) == (3_000, 7, 9)
    assert found.sla == ({"queue": "a%", "queue_ms": 5},)
    assert (found.archive_interval_ms, found.archive_pattern, found.archive_keep_days) == (60_000, "orders|bills", 1)
    job = find_job(f"builtin:{ARCHIVING}", str(tmp_path), "http://b:1")
    assert (job.name, job.trigger.interval_ms) == (ARCHIVING, 60_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lifecycle: {speed: 1}", "builtin.yaml:1: .*speed"),
        ("lifecycle:\n  keep_days: -1", "builtin.yaml:2: .*at least 0"),
        ("archive: {batch_rows: many}", "at least 1"),
        ("lifecycle:\n  sla:\n    - {queue: a, queue_ms: 0}", "above 0"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "builtin.yaml").write_text(text)
    with pytest.raises(InvalidPipeline, match=words):
        options(tmp_path)


def test_there_is_no_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"there are rookery.lifecycle, rookery.archive"):
        find("nothing", tmp_path)

"""Lake tables stay small and in few files, and who reads what was added is not disturbed by that."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from rookery.errors import NotFound
from rookery.pipelines.builtin import changes
from rookery.pipelines.builtin.care import Care

NOW_MS = int(datetime(2026, 9, 10, 12, tzinfo=UTC).timestamp() * 1000)


def add(table: Path, day: str, *numbers: int) -> None:
    write_deltalake(
        str(table), pa.table({"date": [day] * len(numbers), "n": list(numbers)}), mode="append", partition_by=["date"]
    )


def numbers(table: Path, files: list[str] | None = None) -> list[int]:
    if files is None:
        found = DeltaTable(str(table)).to_pyarrow_table()
    else:
        found = ds.dataset([str(table / file) for file in files]).to_table()
    return sorted(found.column("n").to_pylist())


def test_files_are_merged_old_rows_go_and_nothing_else_changes(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for n in range(3):
        add(table, "2026-09-10", n)
    add(table, "2026-08-01", 9)
    care = Care("date", days=30, kept_hours=0)
    assert care.tend(table, now_ms=NOW_MS) == {}, "it was only just begun"
    done = care.tend(table, now_ms=NOW_MS + care.every_ms)
    assert (done["deleted_rows"], done["merged_files"]) == (1, 3)
    assert done["removed_files"] >= 4
    assert numbers(table) == [0, 1, 2]
    assert len(list(table.rglob("*.parquet"))) >= 1
    assert care.tend(table, now_ms=NOW_MS + care.every_ms + 1) == {}


def test_what_was_added_is_told_apart_from_what_was_rearranged(tmp_path: Path) -> None:
    table = tmp_path / "t"
    add(table, "2026-09-10", 1)
    add(table, "2026-09-10", 2)
    first = changes.version(table)
    DeltaTable(str(table)).optimize.compact()
    add(table, "2026-09-11", 3, 4)
    now = changes.version(table)
    assert now == first + 2
    assert numbers(table, changes.added(table, first, now)) == [3, 4]
    assert numbers(table, changes.added(table, 0, now)) == [2, 3, 4]
    assert numbers(table, changes.added(table, -1, now)) == [1, 2, 3, 4]
    assert changes.added(table, now, now) == []
    fresh = changes.added(table, first, now)
    assert changes.largest(table, "n", now, but=fresh) == 2
    assert changes.largest(table, "n", now, only=fresh) == 4


def test_a_version_that_is_not_in_the_log_any_more_is_an_error(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for n in range(3):
        add(table, "2026-09-10", n)
    (table / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(NotFound, match="version 1 "):
        changes.added(table, 0, 2)

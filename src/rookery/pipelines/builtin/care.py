"""The care of lake tables: small files of a day become large ones, old rows go, and so do files nobody needs any more.

All of it is done by whoever writes the table, between two batches, so nothing else commits meanwhile. Files that a
commit took away stay for readers that opened the table before, and for those who read what was added (`changes`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

EVERY_MS: Final = 600_000
KEPT_HOURS: Final = 24
"""How long files stay that were replaced; who reads what was added may be behind by so much."""

TARGET_BYTES: Final = 128 << 20
MARK: Final = "_care.json"


class Done(msgspec.Struct):
    """When a table was last cared for."""

    at_ms: int = 0


@dataclass(frozen=True)
class Care:
    """How a table is cared for: `column` is the date or slice that rows are kept by, `days` of 0 keep all."""

    column: str
    days: int = 0
    every_ms: int = EVERY_MS
    kept_hours: int = KEPT_HOURS

    def due(self, table: Path, now_ms: int) -> bool:
        mark = table / MARK
        found = msgspec.json.decode(mark.read_bytes(), type=Done) if mark.exists() else None
        if found is None:
            _mark(mark, now_ms)
            return False
        return now_ms - found.at_ms >= self.every_ms

    def tend(self, table: Path, *, now_ms: int | None = None, force: bool = False) -> dict[str, int]:
        """Do what is due; what was done: rows deleted, files merged, files removed."""
        now = int(time.time() * 1000) if now_ms is None else now_ms
        if not (table / "_delta_log").is_dir() or not (force or self.due(table, now)):
            return {}
        from deltalake import DeltaTable

        found = DeltaTable(str(table))
        deleted = 0
        if self.days:
            before = (datetime.fromtimestamp(now / 1000, UTC) - timedelta(days=self.days)).strftime("%Y-%m-%d")
            deleted = found.delete(f"{self.column} < '{before}'").get("num_deleted_rows") or 0
        merged = found.optimize.compact(target_size=TARGET_BYTES)["numFilesRemoved"]
        removed = found.vacuum(retention_hours=self.kept_hours, enforce_retention_duration=False, dry_run=False)
        found.create_checkpoint()
        found.cleanup_metadata()
        _mark(table / MARK, now)
        return {"deleted_rows": int(deleted), "merged_files": int(merged), "removed_files": len(removed)}


def _mark(path: Path, now_ms: int) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(Done(now_ms)))
    fresh.replace(path)

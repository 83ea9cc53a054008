"""The tables about messages in a lake, read with deltalake: no Spark, no JVM, so the broker itself can serve them.

<root>/lake/rookery/<table>      what the lifecycle pipeline makes
<root>/lake/archive/<stream>     what the archive pipeline keeps
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from rookery.errors import InvalidArgument, NotFound, SparkUnavailable

BUILTIN: Final = Path("lake") / "rookery"
ARCHIVE: Final = Path("lake") / "archive"

GOLD: Final = {
    "queue_stats": "counts of each queue, and how long messages waited, were worked on and took in all",
    "tenant_usage": "what each tenant published and consumed",
    "routing_stats": "what was published to exchanges, how it was routed, and what reached nobody",
    "consumer_stats": "what each consumer was given, what became of it, and how long it took",
    "dlq_summary": "why messages died, with examples",
    "sla_breaches": "messages that took longer than promised",
    "route_outcomes": "what became of messages by queue and routing key",
}
"""The gold tables, and what is in each."""

ROWS_MAX: Final = 10_000
_HIDDEN: Final = ("slice", "last_snapshot")


def lake_folder(root: Path) -> Path:
    return root / BUILTIN


def gold_rows(
    root: Path,
    table: str,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    grain: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    limit: int = ROWS_MAX,
    histograms: bool = False,
) -> list[dict[str, Any]]:
    """Rows of a gold table, the newest windows first; files that cannot have any are not opened.

    Times are texts in ISO 8601, UTC. With `histograms` the distributions come along, as lists of (ms, weight).
    """
    if table not in GOLD:
        raise NotFound(f"there is no table {table!r}; there are {', '.join(GOLD)}", argument="table")
    if not 1 <= limit <= ROWS_MAX:
        raise InvalidArgument(f"limit must be from 1 to {ROWS_MAX}, not {limit}", argument="limit")
    dataset = _dataset(lake_folder(root) / table)
    if dataset is None:
        return []
    import pyarrow.compute as pc

    names = set(dataset.schema.names)
    chosen: Any = pc.scalar(True)
    for name, value in (("tenant", tenant), ("queue", queue), ("grain", grain)):
        if value is not None:
            if name not in names:
                raise InvalidArgument(f"the table {table} has no {name}", argument=name)
            chosen = chosen & (pc.field(name) == value)
    if since_ms is not None:
        chosen = chosen & (pc.field("window_start") >= _time(since_ms))
    if until_ms is not None:
        chosen = chosen & (pc.field("window_start") < _time(until_ms))
    kept = [
        name for name in dataset.schema.names if name not in _HIDDEN and (histograms or not _is_list(dataset, name))
    ]
    found = dataset.to_table(columns=kept, filter=chosen)
    order = [("window_start", "descending"), *((name, "ascending") for name in kept if name in ("tenant", "queue"))]
    return [_plain(row) for row in found.sort_by(order).slice(0, limit).to_pylist()]


def _is_list(dataset: Any, name: str) -> bool:
    import pyarrow as pa

    # examples are few; the buckets of a distribution are many
    kind = dataset.schema.field(name).type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and name != "examples"


def _dataset(path: Path) -> Any:
    """The table at a path as a dataset of pyarrow, None when there is none yet."""
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise SparkUnavailable("tables of the lake need deltalake: pip install 'rookery[spark]'") from None
    if not (path / "_delta_log").is_dir():
        return None
    return DeltaTable(str(path)).to_pyarrow_dataset()


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _said(value) for name, value in row.items()}


def _said(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        return [_said(each) for each in value]
    return _plain(value) if isinstance(value, dict) else value

"""Silver: one row for each journey of a message through a queue, made of fragments that can be joined in any order.

A fragment is what some events tell of a journey. Joining takes minima, maxima and sums, so it does not matter which
events come first or in which batch. A journey with a way out is settled, for good unless something is told late; the
others are open, and as few as there are messages under way.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from rookery.pipelines.builtin.events import LEASE_ENDS, STEPS, WAYS_OUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY: Final = ("tenant", "queue", "message_id", "entered_ms")

UNKNOWN: Final = "unknown"
"""The outcome of a journey that was given up: its end was not told (a purge, a move, a lost event)."""

_MEASURES: Final = (
    ("first_delivered_ms", "min", "CASE WHEN event_type = 'delivered' THEN event_time_ms END"),
    ("settled_ms", "max", f"CASE WHEN event_type IN {WAYS_OUT!r} THEN event_time_ms END"),
    ("last_seen_ms", "max", "event_time_ms"),
    ("deliveries", "sum", "CASE WHEN event_type = 'delivered' THEN 1L ELSE 0L END"),
    ("failures", "sum", "CASE WHEN event_type IN ('retried', 'lapsed') THEN 1L ELSE 0L END"),
    ("attempts", "max", "delivery_count"),
    ("process_ms", "sum", f"CASE WHEN event_type IN {LEASE_ENDS!r} THEN process_ms END"),
    ("size_bytes", "max", "size_bytes"),
    ("weight", "max", "weight"),
    ("exchange", "max", "exchange"),
    ("routing_key", "max", "routing_key"),
)
"""Columns of a fragment: how they are joined, and what one event says."""

_LAST: Final = (
    ("last_consumer", "CASE WHEN consumer IS NOT NULL THEN struct(event_time_ms, delivery_count, consumer) END"),
    (
        "last_failure",
        "CASE WHEN event_type IN ('retried', 'dead_lettered', 'dropped') THEN struct(event_time_ms, reason) END",
    ),
    ("way_out", f"CASE WHEN event_type IN {WAYS_OUT!r} THEN struct(event_time_ms, event_type) END"),
)
"""Columns in which the latest wins: structs that begin with the time."""


def fragments(events: DataFrame) -> DataFrame:
    """What each of some events tells of its journey."""
    steps = events.where(f"event_type IN {STEPS!r} AND queue IS NOT NULL AND message_id IS NOT NULL")
    return steps.selectExpr(
        *KEY,
        *(
            f"cast({said} AS BIGINT) AS {name}" if kind == "sum" else f"{said} AS {name}"
            for name, kind, said in _MEASURES
        ),
        *(f"{said} AS {name}" for name, said in _LAST),
    )


def joined(*parts: DataFrame) -> DataFrame:
    """Fragments of the same journeys as one row for each."""
    from pyspark.sql import functions as f

    rows = reduce(lambda left, right: left.unionByName(right), parts)
    chosen = [f"{kind}({name}) AS {name}" for name, kind, _ in _MEASURES]
    chosen += [f"max({name}) AS {name}" for name, _ in _LAST]
    return rows.groupBy(*KEY).agg(*map(f.expr, chosen))


def settled(found: DataFrame, given_up_ms: int = 0) -> DataFrame:
    """The fragments that make up a whole journey, or of which nothing was heard since `given_up_ms`."""
    return found.where(f"way_out IS NOT NULL OR last_seen_ms < {given_up_ms}")


def still_open(found: DataFrame, given_up_ms: int = 0) -> DataFrame:
    return found.where(f"way_out IS NULL AND last_seen_ms >= {given_up_ms}")


def shown(found: DataFrame) -> DataFrame:
    """Fragments as the table of journeys has them: times and durations first, the parts they are made of last."""
    return found.selectExpr(
        "tenant",
        "queue",
        "message_id",
        "exchange",
        "routing_key",
        "timestamp_millis(entered_ms) AS entered_at",
        "timestamp_millis(first_delivered_ms) AS first_delivered_at",
        "timestamp_millis(settled_ms) AS settled_at",
        f"coalesce(way_out.event_type, '{UNKNOWN}') AS outcome",
        "last_failure.reason AS reason",
        "last_consumer.consumer AS consumer",
        "first_delivered_ms - entered_ms AS queue_ms",
        "settled_ms - entered_ms AS end_to_end_ms",
        "entered_ms",
        "first_delivered_ms",
        "settled_ms",
        "last_seen_ms",
        "deliveries",
        "failures",
        "attempts",
        "process_ms",
        "size_bytes",
        "weight",
        "last_consumer",
        "last_failure",
        "way_out",
        "to_date(timestamp_millis(entered_ms)) AS date",
    )


def parts(rows: DataFrame) -> DataFrame:
    """Rows of the table of journeys as the fragments they were made of."""
    names = [*KEY, *(name for name, _, _ in _MEASURES), *(name for name, _ in _LAST)]
    return rows.select(*names)

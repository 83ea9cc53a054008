"""Distributions that add up: how many messages, by weight, took how many milliseconds, as expressions of Spark's SQL.

A histogram is an array of (ms, weight) in order. Below 256 ms each millisecond has its own bucket; above, buckets grow
with the value, and a quantile is less than 1 % below the true one. Histograms of minutes add up to that of the hour.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 8
"""How many leading bits of a duration are kept."""

QUANTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def bucket(value: str) -> str:
    """The bucket that a duration belongs to: its smallest value."""
    # how many bits there are is told by a text, which most values can do without
    shift = f"(length(bin({value})) - {BITS})"
    return f"CASE WHEN {value} < {1 << BITS} THEN {value} ELSE shiftleft(shiftright({value}, {shift}), {shift}) END"


def total(histogram: str) -> str:
    return f"aggregate({histogram}, 0L, (sum, each) -> sum + each.weight)"


def quantiles(histogram: str, total: str) -> str:
    """A struct of the smallest durations that at least these shares of `total` did not exceed; nulls without any."""
    start = ", ".join(f"'{label}', cast(NULL AS BIGINT)" for label, _ in QUANTILES)
    step = ", ".join(
        f"'{label}', coalesce(so_far.{label}, CASE WHEN so_far.seen + each.weight >= {q}D * {total} THEN each.ms END)"
        for label, q in QUANTILES
    )
    return (
        f"aggregate({histogram}, named_struct('seen', 0L, {start}), "
        f"(so_far, each) -> named_struct('seen', so_far.seen + each.weight, {step}))"
    )

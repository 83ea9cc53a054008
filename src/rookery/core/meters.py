"""Meters: plain integers that the core adds to as it goes, and histograms of waiting times.

Nothing here is read on the hot path; a snapshot is taken when somebody asks.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rookery.format.bytes import append, vec

BUCKETS: Final[i64] = 44


@final
class Histogram:
    """Counts of durations in milliseconds by power of two: bucket 0 holds 0 ms, bucket n holds [2**(n-1), 2**n)."""

    def __init__(self) -> None:
        counts = vec[i64]()
        i: i64 = 0
        while i < BUCKETS:
            counts = append(counts, 0)
            i += 1
        self._counts: vec[i64] = counts
        self.count: i64 = 0
        self.total_ms: i64 = 0

    def record(self, ms: i64) -> None:
        bucket: i64 = 0
        if ms > 0:
            self.total_ms += ms
            while ms and bucket < BUCKETS - 1:
                ms >>= 1
                bucket += 1
        self._counts[bucket] += 1
        self.count += 1

    def quantile_ms(self, q: float) -> float:
        """An upper bound for the q-quantile (0 when nothing was recorded)."""
        if not self.count:
            return 0.0
        need = q * int(self.count)
        seen = 0
        for bucket in range(BUCKETS):
            seen += self._counts[bucket]
            if seen >= need and seen:
                return float((1 << int(bucket)) - 1) if bucket else 0.0
        return float(1 << int(BUCKETS))

    def as_dict(self) -> dict[str, object]:
        mean = int(self.total_ms) / int(self.count) if self.count else 0.0
        return {
            "count": self.count,
            "total_ms": self.total_ms,
            "mean_ms": mean,
            "p50_ms": self.quantile_ms(0.5),
            "p95_ms": self.quantile_ms(0.95),
            "p99_ms": self.quantile_ms(0.99),
        }

    def buckets(self) -> list[tuple[int, int]]:
        """(upper bound in ms, count) for every bucket that is not empty."""
        rows: list[tuple[int, int]] = []
        for bucket in range(BUCKETS):
            n = self._counts[bucket]
            if n:
                rows.append(((1 << int(bucket)) - 1, int(n)))
        return rows

"""Histograms: what a power-of-two bucket can promise about quantiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core.meters import BUCKETS, Histogram

durations = st.lists(st.integers(0, 1 << 41) | st.integers(0, 10), min_size=1)


def filled(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


def test_an_empty_histogram_says_nothing() -> None:
    histogram = Histogram()
    assert histogram.quantile_ms(0.5) == 0.0
    assert histogram.buckets() == []
    assert histogram.as_dict() == {
        "count": 0,
        "total_ms": 0,
        "mean_ms": 0.0,
        "p50_ms": 0.0,
        "p95_ms": 0.0,
        "p99_ms": 0.0,
    }


@pytest.mark.parametrize(
    ("ms", "bound"), [(0, 0), (1, 1), (2, 3), (3, 3), (4, 7), (7, 7), (8, 15), (1000, 1023), (1024, 2047)]
)
def test_a_duration_falls_into_the_bucket_of_its_power(ms: int, bound: int) -> None:
    assert filled([ms]).buckets() == [(bound, 1)]


@given(durations, st.floats(0.01, 1.0))
def test_a_quantile_is_an_upper_bound_and_at_most_twice_too_large(values: list[int], q: float) -> None:
    exact = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    assert exact <= filled(values).quantile_ms(q) <= 2 * exact


@given(durations)
def test_sums_are_exact(values: list[int]) -> None:
    histogram = filled(values)
    shown = histogram.as_dict()
    assert shown["count"] == len(values)
    assert shown["total_ms"] == sum(values)
    assert shown["mean_ms"] == pytest.approx(sum(values) / len(values))
    assert sum(count for _, count in histogram.buckets()) == len(values)


def test_quantiles_of_a_mixed_load() -> None:
    histogram = filled([1] * 90 + [100] * 9 + [5_000])
    shown = histogram.as_dict()
    assert (shown["p50_ms"], shown["p95_ms"], shown["p99_ms"]) == (1.0, 127.0, 127.0)
    assert histogram.quantile_ms(1.0) == 8191.0


def test_a_clock_that_jumped_back_counts_as_no_wait() -> None:
    histogram = filled([-5_000])
    assert histogram.buckets() == [(0, 1)]
    assert histogram.as_dict()["total_ms"] == 0


def test_the_longest_durations_share_the_last_bucket() -> None:
    histogram = filled([1 << 50, 1 << 60])
    assert histogram.buckets() == [((1 << (BUCKETS - 1)) - 1, 2)]

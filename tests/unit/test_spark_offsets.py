"""Planning of Spark's batches: every record in exactly one task, limits kept, always some progress."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.errors import InvalidArgument
from rookery.spark.offsets import (
    Bounds,
    Positions,
    Range,
    advance,
    as_json,
    positions_of,
    resolve,
    rows_within,
    share_out,
)

places = st.tuples(st.sampled_from(["orders", "refunds", "a b"]), st.integers(0, 12))
starts = st.dictionaries(places, st.integers(0, 1 << 40), max_size=12)


@given(starts)
def test_positions_are_the_same_after_a_checkpoint_and_equal_ones_have_equal_texts(positions: Positions) -> None:
    text = json.dumps(as_json(positions))
    assert positions_of(json.loads(text)) == positions
    assert json.dumps(as_json(dict(reversed(positions.items())))) == text


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    assert list(as_json({("s", 10): 1, ("s", 9): 2})["s"]) == ["9", "10"]


@given(starts, st.data(), st.integers(1, 500))
def test_a_batch_keeps_its_limit_and_gets_on(start: Positions, data: st.DataObject, rows_max: int) -> None:
    ends = {place: offset + data.draw(st.integers(-5, 400)) for place, offset in start.items()}
    reached = advance(start, ends, rows_max)
    waiting = sum(max(0, ends[place] - start[place]) for place in start)
    assert set(reached) == set(start)
    assert all(start[place] <= reached[place] <= max(start[place], ends[place]) for place in start)
    assert sum(reached[place] - start[place] for place in start) == min(waiting, rows_max)


@given(st.dictionaries(places, st.integers(1, 10_000), min_size=1, max_size=12), st.data())
def test_nobody_with_something_to_read_is_left_out(waiting: Positions, data: st.DataObject) -> None:
    rows_max = data.draw(st.integers(len(waiting), 5_000))
    reached = advance(dict.fromkeys(waiting, 0), waiting, rows_max)
    assert all(reached.values())


def test_shares_are_in_proportion() -> None:
    ends = {("s", 0): 9_000, ("s", 1): 1_000}
    reached = advance(dict.fromkeys(ends, 0), ends, 1_000)
    assert reached == {("s", 0): pytest.approx(900, abs=2), ("s", 1): pytest.approx(100, abs=2)}


def test_a_stream_that_is_gone_keeps_its_position() -> None:
    assert advance({("gone", 0): 7, ("s", 0): 1}, {("s", 0): 3}, 10) == {("gone", 0): 7, ("s", 0): 3}


def test_bytes_become_rows_by_the_mean_size() -> None:
    bounds = {("s", 0): Bounds(0, 1_000, 100_000), ("s", 1): Bounds(0, 1_000, 300_000)}
    assert rows_within(20_000, {}, bounds) == 100
    assert rows_within(1, {}, bounds) == 1
    assert rows_within(1 << 30, {}, bounds) == 2_000
    assert rows_within(20_000, {("s", 0): 1_000, ("s", 1): 1_000}, bounds) == 1


@given(
    st.dictionaries(places, st.tuples(st.integers(0, 1 << 40), st.integers(0, 5_000)), max_size=12),
    st.integers(1, 16),
    st.integers(1, 3_000),
    st.integers(0, 40),
)
def test_tasks_have_every_record_exactly_once(
    chosen: dict[tuple[str, int], tuple[int, int]], parallelism: int, rows_max: int, tasks_min: int
) -> None:
    ranges = [Range(*place, start, start + rows) for place, (start, rows) in chosen.items()]
    tasks = share_out(ranges, parallelism, rows_max, tasks_min)
    pieces = sorted((piece for task in tasks for piece in task), key=lambda p: (p.stream, p.partition, p.start))
    joined: list[Range] = []
    for piece in pieces:
        assert piece.rows > 0
        last = joined[-1] if joined else None
        if last is not None and (last.stream, last.partition, last.stop) == (
            piece.stream,
            piece.partition,
            piece.start,
        ):
            joined[-1] = Range(last.stream, last.partition, last.start, piece.stop)
        else:
            joined.append(piece)
    assert set(joined) == {each for each in ranges if each.rows}
    total = sum(each.rows for each in ranges)
    assert all(0 < sum(piece.rows for piece in task) <= rows_max for task in tasks)
    assert len(tasks) >= min(tasks_min, total)


def test_small_ranges_are_merged_and_large_ones_split() -> None:
    small = [Range("s", i, 0, 100) for i in range(16)]
    assert [sum(piece.rows for piece in task) for task in share_out(small, 2, 200_000)] == [800, 800]
    large = share_out([Range("s", 0, 0, 1_000_000)], 2, 200_000)
    assert [task[0].rows for task in large] == [200_000] * 5
    assert share_out([Range("s", 0, 5, 5)], 2, 10) == []


def test_starts_by_name_and_by_number() -> None:
    bounds = {("s", 0): Bounds(3, 9), ("s", 1): Bounds(0, 4)}
    assert resolve("earliest", bounds) == {("s", 0): 3, ("s", 1): 0}
    assert resolve("latest", bounds) == {("s", 0): 9, ("s", 1): 4}
    assert resolve({("s", 0): -1, ("s", 1): -2}, bounds) == {("s", 0): 9, ("s", 1): 0}
    assert resolve({("s", 0): 5, ("s", 1): 4}, bounds) == {("s", 0): 5, ("s", 1): 4}


def test_starts_must_be_those_of_the_partitions_there_are() -> None:
    bounds = {("s", 0): Bounds(0, 9), ("s", 1): Bounds(0, 4)}
    with pytest.raises(InvalidArgument, match="no offset for partition 1 of stream 's'"):
        resolve({("s", 0): 5}, bounds)
    with pytest.raises(InvalidArgument, match="there is no partition 2 of stream 's'"):
        resolve({("s", 0): 5, ("s", 1): 5, ("s", 2): 5}, bounds, "endingOffsets")

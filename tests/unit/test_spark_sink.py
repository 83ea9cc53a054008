"""Rows for the broker: which columns they may have, and how they are divided."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from rookery.arrow import kinds as arrow_kinds
from rookery.arrow import rows as arrow_rows
from rookery.core.staging import DUE_HEADER, Row
from rookery.core.stream import KEY_HEADER
from rookery.errors import InvalidArgument, InvalidType
from rookery.format import properties
from rookery.spark.options import sink_options
from rookery.spark.sink import COLUMNS, check_rows, pieces

HERE = {"endpoint": "http://localhost:8080"}
TO_STREAM = sink_options({**HERE, "stream": "out"})
BY_COLUMN = sink_options(HERE)


def schema(**columns: DataType) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def test_the_columns_are_those_that_the_broker_knows() -> None:
    assert tuple(COLUMNS) == arrow_kinds.COLUMNS


def test_rows_with_every_kind_of_column() -> None:
    headers = MapType(StringType(), BinaryType())
    more = schema(
        value=StringType(), key=BinaryType(), headers=headers, partition=LongType(), timestamp=TimestampType()
    )
    check_rows(TO_STREAM, more)
    for target in ("topic", "stream", "exchange", "queue"):
        check_rows(BY_COLUMN, schema(value=BinaryType(), **{target: StringType()}))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (schema(valeu=StringType()), "no column 'valeu'; did you mean value"),
        (schema(key=StringType()), "the column value is missing"),
        (schema(value=IntegerType()), "value must be binary or string, not int"),
        (schema(value=StringType(), partition=StringType()), "partition must be a whole number, not string"),
        (schema(value=StringType(), delay_ms=DoubleType()), "delay_ms must be a whole number, not double"),
        (schema(value=StringType(), timestamp=LongType()), "timestamp must be a timestamp, not bigint"),
        (schema(value=StringType(), headers=StringType()), "headers must be a map, or an array"),
        (schema(value=StringType(), queue=StringType()), "exclude each other"),
    ],
)
def test_what_does_not_fit_is_named(columns: StructType, words: str) -> None:
    with pytest.raises((InvalidArgument, InvalidType), match=words):
        check_rows(TO_STREAM, columns)


def test_there_is_one_target() -> None:
    with pytest.raises(InvalidArgument, match="as an option or a column"):
        check_rows(BY_COLUMN, schema(value=StringType()))
    with pytest.raises(InvalidArgument, match="queue and topic exclude each other"):
        check_rows(BY_COLUMN, schema(value=StringType(), queue=StringType(), topic=StringType()))


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 500))
def test_pieces_are_the_same_rows_and_none_is_too_large(sizes: list[int], most: int) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * size for size in sizes], pa.binary())})
    found = list(pieces(rows, most))
    assert [len(value) for part in found for value in part.column("value").to_pylist()] == sizes
    assert all(part.num_rows == 1 or part.nbytes <= most for part in found)
    assert all(part.num_rows for part in found)


def test_headers_come_as_maps_or_as_lists_of_pairs() -> None:
    wanted = [{"a": "1", "b": None}, {}, {}, {"c": b"\xff"}]
    pairs = [[("a", b"1"), ("b", None)], None, [], [("c", b"\xff")]]
    structs = [each and [{"key": key, "value": value} for key, value in each] for each in pairs]
    kinds = (pa.map_(pa.string(), pa.binary()), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    for rows, kind in zip((pairs, structs), kinds, strict=True):
        column = pa.array(rows, kind)
        # also where batches do not begin at the beginning of their memory
        table = pa.table({"value": ["x"] * 4, "headers": pa.chunked_array([column.slice(0, 1), column.slice(1)])})
        assert [properties.decode(row.props).headers or {} for row in rows_of(table)] == wanted


def rows_of(table: pa.Table, **names: str) -> list[Row]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    where = dict.fromkeys(arrow_kinds.TARGETS, "out") | names
    parts = arrow_rows.parts_of(sink.getvalue().to_pybytes(), "out", where, 1_000, 1 << 20)
    return [row for part in parts for row in part.rows()]


NAME = st.sampled_from(["a", "b", KEY_HEADER, DUE_HEADER])
VALUE = st.none() | st.binary(max_size=2) | st.text(max_size=2).map(str.encode)
LINE = st.tuples(st.none() | st.lists(st.tuples(NAME, VALUE), max_size=4), VALUE, st.none() | st.integers(0, 5))


@given(st.lists(LINE, min_size=1, max_size=5))
def test_columns_count_more_than_headers_and_the_last_of_a_name(lines: list[tuple[Any, bytes | None, Any]]) -> None:
    """Headers are those of a dict that is filled from left to right, and then from the columns."""
    table = pa.table(
        {
            "value": pa.array([b"x"] * len(lines), pa.binary()),
            "headers": pa.array([line[0] for line in lines], pa.list_(pa.list_(pa.binary()))),
            "key": pa.array([line[1] for line in lines], pa.binary()),
            "delay_ms": pa.array([line[2] for line in lines], pa.int64()),
        }
    )
    for (pairs, key, delay_ms), row in zip(lines, rows_of(table, stream=""), strict=True):
        wanted: dict[str, object] = dict(pairs or [])
        if key is not None:
            wanted[KEY_HEADER] = key
        if delay_ms:
            wanted[DUE_HEADER] = 1_000 + delay_ms
        assert (properties.decode(row.props).headers or {}) == {name: text(value) for name, value in wanted.items()}


def text(value: object) -> object:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value

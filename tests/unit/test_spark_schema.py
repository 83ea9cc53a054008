"""The table that Spark sees has exactly the Arrow schema that Spark expects of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rookery.errors import InvalidArgument
from rookery.sealed.schema import SCHEMA
from rookery.spark.schema import arrow_schema, check_schema, conform, table_schema

ROW: dict[str, Any] = {
    "tenant": "t",
    "stream": "s",
    "partition": 1,
    "offset": 2,
    "timestamp": 3,
    "value": b"",
    "headers": [{"key": "k", "value": b"v"}, {"key": "k", "value": None}],
}


def batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: ROW.get(name) for name in schema.names}], schema=schema)


def nullable(schema: StructType) -> StructType:
    """As a catalog gives it back: everything may be null."""
    text = (
        schema.json()
        .replace('"nullable":false', '"nullable":true')
        .replace('"containsNull":false', '"containsNull":true')
    )
    return StructType.fromJson(json.loads(text))


def test_the_whole_table_is_what_the_broker_sends() -> None:
    assert to_arrow_schema(table_schema(), timezone="UTC").equals(SCHEMA)
    assert arrow_schema(table_schema()).equals(SCHEMA)


@pytest.mark.parametrize(
    "columns", [("offset",), ("value", "offset"), ("headers", "tenant"), ("timestamp", "expiration")]
)
def test_some_columns_in_the_order_asked_for(columns: tuple[str, ...]) -> None:
    expected = arrow_schema(table_schema(columns))
    assert tuple(expected.names) == columns
    assert conform(batch(expected), expected).schema.equals(expected)


def test_headers_can_be_left_out() -> None:
    assert "headers" not in table_schema(include_headers=False).names
    assert table_schema(("value", "headers"), include_headers=False).names == ["value"]


def test_values_stay_when_nullability_differs() -> None:
    expected = arrow_schema(nullable(table_schema()))
    assert not expected.equals(SCHEMA)
    found = conform(batch(SCHEMA), expected)
    assert found.schema.equals(expected)
    assert found.to_pylist() == batch(SCHEMA).to_pylist()


def test_a_column_that_is_not_there_or_of_another_type_is_named() -> None:
    with pytest.raises(InvalidArgument, match="no column 'offest'"):
        table_schema(("offest",))
    with pytest.raises(InvalidArgument, match="no column 'body'"):
        check_schema(StructType().add("body", "binary"))
    with pytest.raises(InvalidArgument, match="the column value is binary, not string"):
        check_schema(StructType().add("value", "string"))


def test_what_only_plans_does_without_arrow() -> None:
    """Spark starts a process of Python for each step of planning, and Arrow is most of what ours would load."""
    code = "import sys; import pyspark_rookery; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The table that Spark sees: the columns of `store.arrow`, spelled as Spark spells them. Needs pyspark and pyarrow.

Spark takes a batch only if its Arrow schema is exactly the one it expects, nullability included; `conform` sees to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from rookery.errors import InvalidArgument
from rookery.store.schema import SCHEMA


def table_schema(columns: Sequence[str] = (), include_headers: bool = True, include_value: bool = True) -> StructType:
    """The schema of these columns, in this order; of all when none is named."""
    left_out = {name for name, included in (("headers", include_headers), ("value", include_value)) if not included}
    chosen = [name for name in columns or SCHEMA.names if name not in left_out]
    if not chosen:
        raise InvalidArgument("all columns are left out", argument="columns")
    return from_arrow_schema(pa.schema([_field(name) for name in chosen]))


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of batches of this schema, which may be the user's own: some of the columns, as they are."""
    expected = to_arrow_schema(schema, timezone="UTC")
    for field in expected:
        kind = _field(field.name).type
        if _loose(field.type) != _loose(kind):
            raise InvalidArgument(f"the column {field.name} is {kind}, not {field.type}", argument=field.name)
    return expected


def conform(batch: pa.RecordBatch, expected: pa.Schema) -> pa.RecordBatch:
    """The same values under the expected schema, which differs in nullability at most."""
    if batch.schema.equals(expected):
        return batch
    arrays = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, expected, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=expected)


def _field(name: str) -> pa.Field:
    if name not in SCHEMA.names:
        raise InvalidArgument(f"no column {name!r}; there are {', '.join(SCHEMA.names)}", argument=name)
    return SCHEMA.field(name)


def _loose(kind: pa.DataType) -> object:
    """A type without its nullability."""
    if pa.types.is_list(kind):
        return ("list", _loose(kind.value_type))
    if pa.types.is_struct(kind):
        return ("struct", tuple((field.name, _loose(field.type)) for field in kind))
    return kind

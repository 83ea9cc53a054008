"""The table that Spark sees: the columns of `store.table`, spelled as Spark spells them. Needs pyspark.

Spark takes a batch only if its Arrow schema is exactly the one it expects, nullability included; `conform` sees to it.
Arrow is loaded where there are rows, and not where a read or a write is only planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rookery.errors import InvalidArgument
from rookery.sealed.table import COLUMNS, Kind

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER: Final = StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), True)])
_KINDS: Final[dict[Kind, DataType]] = {
    "text": StringType(),
    "bytes": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "time": TimestampType(),
    "headers": ArrayType(_HEADER, False),
}


def table_schema(columns: Sequence[str] = (), include_headers: bool = True, include_value: bool = True) -> StructType:
    """The schema of these columns, in this order; of all when none is named."""
    left_out = {name for name, included in (("headers", include_headers), ("value", include_value)) if not included}
    chosen = [name for name in columns or COLUMNS if name not in left_out]
    if not chosen:
        raise InvalidArgument("all columns are left out", argument="columns")
    return StructType([_field(name) for name in chosen])


def check_schema(schema: StructType) -> None:
    """Raise unless this schema, which may be the user's own, has some of the columns as they are."""
    for field in schema.fields:
        # the names of types say nothing of what may be null
        found, wanted = field.dataType.simpleString(), _field(field.name).dataType.simpleString()
        if found != wanted:
            raise InvalidArgument(f"the column {field.name} is {wanted}, not {found}", argument=field.name)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of batches of this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, expected: pa.Schema) -> pa.RecordBatch:
    """The same values under the expected schema, which differs in nullability at most."""
    import pyarrow as pa

    if batch.schema.equals(expected):
        return batch
    arrays = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, expected, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=expected)


def _field(name: str) -> StructField:
    if name not in COLUMNS:
        raise InvalidArgument(f"no column {name!r}; there are {', '.join(COLUMNS)}", argument=name)
    kind, nullable = COLUMNS[name]
    return StructField(name, _KINDS[kind], nullable)

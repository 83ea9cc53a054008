"""Bodies as columns: JSON by Spark itself, Avro by fastavro. What cannot be read is kept in a column of its own.

Importing this module imports no Spark; only calling `decode` does.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from rookery.errors import InvalidArgument, SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

CORRUPT: Final = "_corrupt_record"


def decode(
    frame: DataFrame,
    schema: str | StructType | Mapping[str, Any],
    *,
    format: Literal["json", "avro"] = "json",
    column: str = "value",
    corrupt: str = CORRUPT,
    keep: Sequence[str] = (),
) -> DataFrame:
    """The fields of the bodies in `column` as columns, after those of the frame that are named in `keep`.

    The schema of JSON is Spark's, such as `"id long, amount double"`; that of Avro is Avro's, as text or parsed. A body
    that is not of that format has nulls, and is itself in the column `corrupt` (a string for JSON, bytes for Avro),
    which is null for all others. Fields that a body has beyond the schema are left out.
    """
    if format not in ("json", "avro"):
        raise InvalidArgument(f"format must be json or avro, not {format!r}", argument="format")
    for name in (column, *keep):
        if name not in frame.columns:
            raise InvalidArgument(f"the frame has no column {name!r}", argument="column" if name == column else "keep")
    from pyspark.sql import functions

    fields = _json_fields(schema) if format == "json" else avro_fields(schema)
    taken = [*keep, corrupt, *fields.names]
    for name in taken:
        if taken.count(name) > 1:
            raise InvalidArgument(f"the column {name!r} would be there twice", argument=name)
    body = functions.col(f"`{column}`")
    text = body.cast("string")
    parsed = _json(text, fields, corrupt) if format == "json" else _avro(body, schema, fields, corrupt)
    whole = text if format == "json" else body
    # a frame of its own, so that each body is parsed once
    kept = [functions.col(f"`{name}`") for name in keep]
    found = frame.select(*kept, whole.alias("__body"), parsed.alias("__parsed"))
    broken = functions.col("__parsed").isNull() | functions.col(f"__parsed.`{corrupt}`").isNotNull()
    columns = [functions.col(f"__parsed.`{name}`") for name in fields.names]
    return found.select(*kept, *columns, functions.when(broken, functions.col("__body")).alias(corrupt))


def _json_fields(schema: str | StructType | Mapping[str, Any]) -> StructType:
    from pyspark.sql.types import StructType

    if isinstance(schema, str):
        found = StructType.fromDDL(schema)
        assert isinstance(found, StructType)
        return found
    if not isinstance(schema, StructType):
        raise InvalidArgument("the schema of JSON is a text such as 'id long', or a StructType", argument="schema")
    return schema


def _json(text: Column, fields: StructType, corrupt: str) -> Column:
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructType

    whole = StructType([*fields.fields]).add(corrupt, StringType())
    return functions.from_json(text, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt})


# Avro


def _avro(body: Column, schema: Any, fields: StructType, corrupt: str) -> Column:
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import BinaryType, StructType

    text = schema if isinstance(schema, str) else json.dumps(schema)
    whole = StructType([*fields.fields]).add(corrupt, BinaryType())

    def read(bodies: pa.Array) -> pa.Array:
        rows = avro_rows(bodies.to_pylist(), text, corrupt)
        return pa.array(rows, to_arrow_type(whole, timezone="UTC"))

    # Spark looks for the types themselves
    read.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    made: Column = arrow_udf(read, whole)(body)  # type: ignore[call-overload]
    return made


def avro_rows(bodies: Sequence[bytes | None], schema: str, corrupt: str) -> list[dict[str, Any] | None]:
    """Bodies as records, or, where they are none, as themselves under the name `corrupt`."""
    fastavro = _fastavro()
    parsed = fastavro.parse_schema(json.loads(schema))
    rows: list[dict[str, Any] | None] = []
    for body in bodies:
        row: dict[str, Any] | None = None
        source = io.BytesIO(body or b"")
        try:
            row = fastavro.schemaless_reader(source, parsed)
        except Exception:  # noqa: BLE001, S110  whatever it is that fastavro meets in foreign bytes
            pass
        rows.append({corrupt: body} if row is None or source.read(1) else row)
    return rows


def avro_fields(schema: Any) -> StructType:
    """The columns of an Avro record."""
    from pyspark.sql.types import StructType

    _fastavro()
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        kind = _avro_type(found, {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"this is no schema of Avro: {error}", argument="schema") from None
    if not isinstance(kind, StructType):
        raise InvalidArgument("the schema of a body is a record", argument="schema")
    return kind


def _avro_type(schema: Any, named: dict[str, DataType]) -> DataType:
    from pyspark.sql import types

    if isinstance(schema, list):
        rest = [each for each in schema if each != "null"]
        if len(rest) != 1:
            raise ValueError(f"a union of {schema} is no type of a column: one type, and null, can be")
        return _avro_type(rest[0], named)
    if isinstance(schema, str):
        if schema in named:
            return named[schema]
        return getattr(types, _AVRO[schema])()  # type: ignore[no-any-return]
    logical = schema.get("logicalType")
    if logical == "decimal":
        return types.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return getattr(types, _LOGICAL[logical])()  # type: ignore[no-any-return]
    kind = schema["type"]
    if kind == "record":
        fields = [
            types.StructField(field["name"], _avro_type(field["type"], named), True) for field in schema["fields"]
        ]
        made: DataType = types.StructType(fields)
    elif kind == "array":
        made = types.ArrayType(_avro_type(schema["items"], named))
    elif kind == "map":
        made = types.MapType(types.StringType(), _avro_type(schema["values"], named))
    elif kind in ("enum", "fixed"):
        made = types.StringType() if kind == "enum" else types.BinaryType()
    else:
        return _avro_type(kind, named)
    if "name" in schema:
        named[schema["name"]] = made
    return made


_AVRO: Final = {
    "null": "NullType",
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "bytes": "BinaryType",
    "string": "StringType",
}
_LOGICAL: Final = {
    "date": "DateType",
    "timestamp-millis": "TimestampType",
    "timestamp-micros": "TimestampType",
    "local-timestamp-millis": "TimestampNTZType",
    "local-timestamp-micros": "TimestampNTZType",
}


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise SparkUnavailable("reading Avro needs fastavro: pip install 'rookery[avro]'") from None
    return fastavro

"""Tables of SQL: `CREATE TABLE … USING rookery OPTIONS (…)`, read and inserted into.

Spark tells a Python source the options of a table only when the table is made, and later none. So they are kept in what
the catalog does give back: as metadata of the table's first column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from rookery.errors import InvalidArgument
from rookery.spark.options import KNOWN, SINK, SOURCE, Given, SinkOptions
from rookery.spark.sink import COLUMNS, BatchSink, Staged

if TYPE_CHECKING:
    import pyarrow as pa

KEPT: Final = "rookery"
TARGETS: Final = ("topic", "stream", "exchange", "queue")
SOURCES: Final = ("subscribe", "subscribePattern", "assign", "queue")


def is_made(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a table that is being made."""
    return "provider" in options


def kept(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a new table, with its options in it. Every column may be null: rows to insert lack most."""
    said = Given(options, KNOWN).said
    if "token" in said:
        raise InvalidArgument(
            "whoever sees a table sees its options: use tokenEnv, the name of a variable, instead of token",
            argument="token",
        )
    fields = [StructField(field.name, field.dataType, True) for field in schema.fields]
    fields[0].metadata = {KEPT: said}
    return StructType(fields)


def told(options: Mapping[str, str], schema: StructType) -> tuple[dict[str, str], bool]:
    """The options of a read or write, and whether they are those of a table."""
    found: Any = schema.fields[0].metadata.get(KEPT) if schema.fields else None
    names = {name.lower() for name in options}
    if found is not None and "endpoint" not in names:
        rest = {name: value for name, value in found.items() if name.lower() not in names}
        return rest | dict(options), True
    if not names:
        raise InvalidArgument(
            "Spark does not hand on the OPTIONS of a table that names its columns or is made from a query: name them "
            "in the option columns instead, and INSERT afterwards",
            argument="columns",
        )
    return dict(options), False


def for_reading(said: Mapping[str, str]) -> dict[str, str]:
    """What of a table's options concerns reading; the stream that is written to is also read."""
    found = {name: value for name, value in said.items() if name not in SINK or name in SOURCE}
    if not any(name in said for name in SOURCES):
        target = said.get("stream") or said.get("topic")
        if target:
            found["subscribe"] = target
    return found


def for_writing(said: Mapping[str, str]) -> dict[str, str]:
    """What of a table's options concerns writing; the stream that is read is also written to."""
    found = {name: value for name, value in said.items() if name not in SOURCE or name in SINK}
    if not any(name in said for name in TARGETS) and "subscribe" in said:
        if "," in said["subscribe"]:
            raise InvalidArgument(
                "the table has several streams: the option stream says which one rows are inserted into",
                argument="stream",
            )
        found["stream"] = said["subscribe"]
    return found


class TableSink(BatchSink):
    """Rows inserted into a table: what only the broker can say, such as the offset, must be null."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self._given_by_broker = [name for name in schema.names if name not in (*COLUMNS, "topic")]
        fields = [field for field in schema.fields if field.name not in self._given_by_broker]
        super().__init__(options, StructType(fields), overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return super().write(self._narrowed(batch) for batch in iterator)

    def _narrowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self._given_by_broker:
            if batch.column(name).null_count < batch.num_rows:
                raise InvalidArgument(f"the broker says what {name} is: insert null, or leave it out", argument=name)
        return batch.drop_columns(self._given_by_broker) if self._given_by_broker else batch

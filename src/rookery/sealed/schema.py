"""The table of a stream's records for Arrow. Needs nothing but pyarrow: Spark's workers load it again and again.

Spark's spelling is followed: times are microseconds in UTC, headers a list of (key, value). What the directories of a
sealed file say (tenant, stream, partition) is not in the file: tools that read a tree of directories as one table make
columns of their names, and refuse or hide those that the files have too. A sealed file has one more column, `envelope`:
what the journal keeps of a message beside its value, so that nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rookery.sealed.table import COLUMNS, Kind

_TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)

_KINDS: Final[dict[Kind, pa.DataType]] = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "time": _TIME,
    "headers": HEADERS,
}
SCHEMA = pa.schema([pa.field(name, _KINDS[kind], nullable) for name, (kind, nullable) in COLUMNS.items()])
DIRECTORIES: Final = ("tenant", "stream", "partition")
SEALED_SCHEMA = pa.schema(
    [*(field for field in SCHEMA if field.name not in DIRECTORIES), pa.field("envelope", pa.binary(), nullable=False)]
)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order; of all when none is named."""
    return pa.schema([SCHEMA.field(name) for name in columns]) if columns else SCHEMA

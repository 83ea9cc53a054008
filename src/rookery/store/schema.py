"""The one schema of a stream's records as a table. Needs nothing but pyarrow: Spark's workers load it again and again.

Spark's spelling is followed: times are microseconds in UTC, headers a list of (key, value). What the directories of a
sealed file say (tenant, stream, partition) is not in the file: tools that read a tree of directories as one table make
columns of their names, and refuse or hide those that the files have too. A sealed file has one more column, `envelope`:
what the journal keeps of a message beside its value, so that nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)

SCHEMA = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIME, nullable=False),
        pa.field("producer_timestamp", _TIME),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", HEADERS),
        pa.field("exchange", pa.string()),
        pa.field("routing_key", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("content_encoding", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("expiration", _TIME),
        pa.field("delivery_count", pa.int32()),
        pa.field("protocol", pa.string()),
    ]
)
DIRECTORIES: Final = ("tenant", "stream", "partition")
SEALED_SCHEMA = pa.schema(
    [*(field for field in SCHEMA if field.name not in DIRECTORIES), pa.field("envelope", pa.binary(), nullable=False)]
)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order; of all when none is named."""
    return pa.schema([SCHEMA.field(name) for name in columns]) if columns else SCHEMA

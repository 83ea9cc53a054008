"""The columns of a stream's records as a table: names, kinds, and which may be null. Needs nothing.

`store.schema` spells them for Arrow, `spark.schema` for Spark: whatever Spark starts on the driver knows the table
without loading Arrow.
"""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["text", "bytes", "int32", "int64", "time", "headers"]

COLUMNS: Final[dict[str, tuple[Kind, bool]]] = {
    "tenant": ("text", False),
    "stream": ("text", False),
    "partition": ("int32", False),
    "offset": ("int64", False),
    "timestamp": ("time", False),
    "producer_timestamp": ("time", True),
    "key": ("bytes", True),
    "value": ("bytes", False),
    "headers": ("headers", True),
    "exchange": ("text", True),
    "routing_key": ("text", True),
    "message_id": ("text", True),
    "correlation_id": ("text", True),
    "reply_to": ("text", True),
    "content_type": ("text", True),
    "content_encoding": ("text", True),
    "priority": ("int32", True),
    "expiration": ("time", True),
    "delivery_count": ("int32", True),
    "protocol": ("text", True),
}
"""Each column's kind, and whether it may be null, in order."""

"""Streams kept for good: the records of each in a Delta table of its own, each record once.

A micro-batch may have records of many streams; each stream's part is one commit under the batch's number. A batch that
is run again adds what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from rookery.pipelines import lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = (
    "tenant",
    "stream",
    "partition",
    "offset",
    "timestamp",
    "producer_timestamp",
    "key",
    "value",
    "headers",
    "exchange",
    "routing_key",
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "content_encoding",
    "priority",
)


def table_name(stream: str) -> str:
    """The folder of a stream's table: percent-encoded with `~` for `%`, which deltalake would decode."""
    name = quote(stream, safe="").replace("~", "%7E")
    if name[0] in "._":
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return name.replace("%", "~")


@dataclass(frozen=True)
class Archive:
    """The tables in a directory. It holds plain values only, so that it can be sent to wherever Spark runs it."""

    root: str

    def path(self, stream: str) -> Path:
        return Path(self.root) / table_name(stream)

    def take(self, records: DataFrame, app: str, batch: int) -> list[str]:
        """Add the records of a micro-batch to the tables of their streams; returns the streams."""
        rows = records.select(*COLUMNS).selectExpr("*", "to_date(timestamp) AS date").persist()
        try:
            streams = sorted(row.stream for row in rows.select("stream").distinct().collect())
            for stream in streams:
                mine = rows.where(rows.stream == stream)
                lake.append(mine, self.path(stream), app, batch, partition_by=("date",))
            return streams
        finally:
            rows.unpersist()

"""A queue read by Spark: cut by cut, each the same when it is read again, and settled when Spark has it for good.

The offset of a micro-batch is the number of its last cut. `latestOffset(start)` settles the cuts up to `start`, which
are in Spark's commit log by then, and takes the next one; asked again after a crash it gets the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rookery.errors import InvalidArgument, NotFound
from rookery.spark.client import Client, cuts_path
from rookery.spark.offsets import Range, share_out
from rookery.spark.options import SourceOptions
from rookery.spark.reading import Task, told
from rookery.spark.schema import arrow_schema, check_schema, conform

if TYPE_CHECKING:
    import pyarrow as pa

CUT_MAX: Final = 100_000
"""The most messages of one cut, which is one micro-batch."""


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object lives on the driver as long as the query; copies of it read on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if not options.group:
            raise InvalidArgument(
                "a queue needs consumerGroup: the name under which its messages are held for this query",
                argument="consumerGroup",
            )
        self._options = options
        self._client = Client(options.connection)
        check_schema(schema)
        self._schema = schema
        self._path = cuts_path(options.queue)
        self._one = f"{self._path}/{quote(options.group, safe='')}"
        self._told = 0
        # how many messages AvailableNow may still take, None without it
        self._left: int | None = None
        self._taken = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return {"cut": self._known()[0]}

    def _known(self) -> tuple[int, dict[int, int]]:
        """Up to which cut all is settled, and how many messages each open one has."""
        for row in self._client.get(self._path)["consumers"]:
            if row["consumer"] == self._options.group:
                return row["acked"], {int(number): count for number, count in row["cuts"].items()}
        return 0, {}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        shown = self._client.get(f"/api/v1/queues/{quote(self._options.queue, safe='')}")
        self._left = shown["stats"]["ready"] + sum(self._known()[1].values())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxRows(self._options.rows_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        after = start["cut"]
        self._tell(after)
        most = min(CUT_MAX, self._options.rows_per_trigger)
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        if self._left is not None:
            most = min(most, self._left)
            if most <= 0:
                return start
        made = self._client.post(self._path, {"consumer": self._options.group, "after": after, "max": most})
        if self._left is not None and made["cut"] > self._taken:
            self._taken = made["cut"]
            self._left -= made["messages"]
        return {"cut": made["cut"]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        cuts = self._known()[1]
        ranges = []
        for number in range(start["cut"] + 1, end["cut"] + 1):
            if number in cuts:
                ranges.append(Range(self._options.queue, number, 0, cuts[number]))
            elif self._options.fail_on_data_loss:
                raise NotFound(
                    f"cut {number} of queue {self._options.queue!r} is not there (any more): somebody released it; "
                    "failOnDataLoss=false goes on without it",
                    argument="failOnDataLoss",
                )
        cores = os.cpu_count() or 1
        return [Task(found) for found in share_out(ranges, cores, self._options.rows_per_task, self._options.tasks_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):
            return
        queue, group, columns = self._options.queue, self._options.group, tuple(self._schema.names)
        expected = arrow_schema(self._schema)
        with closing(self._client):
            for each in partition.ranges:
                for batch in self._client.cut_messages(queue, group, each, columns):
                    yield conform(batch, expected)

    def commit(self, end: dict[str, Any]) -> None:
        self._tell(end["cut"])

    def _tell(self, cut: int) -> None:
        if cut > self._told and told(lambda: self._client.post(f"{self._one}/ack", {"upto": cut})):
            self._told = cut

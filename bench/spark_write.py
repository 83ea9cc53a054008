"""Spark writes to a stream, exactly once: rows a second, and per CPU-second of Spark's processes and of the broker."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.asking import Server
from bench.harness import BODY_BYTES, start
from bench.sparking import HEAD, PAGE, Broker, Load, Meter, Report
from rookery.spark.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
PLAIN_ROWS = 50_000
PLAIN_PAGE = 1_000
TASKS = 4
AIM = "≥ 0.15 M rows/s"


def discarding() -> type[Any]:
    """A sink of Python that takes Arrow batches and keeps nothing: what any such sink costs."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: Any) -> None:
            """There is nothing to commit."""

    class Discard(DataSource):
        @classmethod
        def name(cls) -> str:
            return "discard"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer()

    return Discard


def publishing(client: Client, stream: str) -> Callable[[Iterator[Any]], None]:
    """What a task does that knows the HTTP API alone: pages of JSON, which a task that is run again repeats."""

    def publish(rows: Iterator[Any]) -> None:
        page: list[dict[str, str]] = []
        for row in rows:
            page.append({"message": bytes(row.value).decode()})
            if len(page) == PLAIN_PAGE:
                client.post(f"/api/v1/streams/{stream}/publish", page)
                page = []
        if page:
            client.post(f"/api/v1/streams/{stream}/publish", page)

    return publish


def loads(spark: SparkSession, broker: Broker, rows: int, folder: Path) -> list[Load]:
    """The same rows, written in several ways."""
    value = f"cast(concat(repeat('x', {BODY_BYTES - 20}), lpad(cast(id AS string), 20, '0')) AS binary) AS value"
    more = (
        "cast(concat('k', id % 1000) AS binary) AS key",
        "concat('id-', id) AS message_id",
        "array(named_struct('key', 'region', 'value', cast('eu' AS binary))) AS headers",
    )
    plain = spark.range(0, rows, 1, TASKS).selectExpr(value)
    full = spark.range(0, rows, 1, TASKS).selectExpr(value, *more)
    few = spark.range(0, min(rows, PLAIN_ROWS), 1, TASKS).selectExpr(value)
    here = broker.here

    def write(frame: DataFrame, form: str, **options: Any) -> Callable[[], None]:
        return lambda: frame.write.format(form).mode("append").options(**options).save()

    def parquet() -> None:
        plain.write.mode("overwrite").parquet(str(folder / "parquet"))

    def copy() -> None:
        reading = {"subscribe": "in", "startingOffsets": "earliest", "columns": "value"}
        limits = {"maxOffsetsPerTrigger": str(rows), "maxBytesPerTrigger": "100g"}
        frame = spark.readStream.format("rookery").options(**here, **reading, **limits).load()
        writer = frame.writeStream.format("rookery").options(**here, topic="out")
        writer = writer.option("checkpointLocation", str(folder / uuid.uuid4().hex))
        writer.trigger(availableNow=True).start().awaitTermination()

    write(plain, "rookery", **here, topic="in")()
    return [
        Load("rows made, and dropped by Spark", rows, write(plain, "noop")),
        Load("dropped by a sink of Python", rows, write(plain, "discard")),
        Load("written by Spark to Parquet files", rows, parquet),
        Load("the connector, value only", rows, write(plain, "rookery", **here, topic="out"), AIM),
        Load("the connector, with key, header and id", rows, write(full, "rookery", **here, topic="out"), AIM),
        Load("the connector, stream to stream, one micro-batch", rows, copy, AIM),
        Load(
            "a plain producer in each task, pages of JSON",
            min(rows, PLAIN_ROWS),
            lambda: few.rdd.foreachPartition(publishing(broker.client, "out")),
        ),
    ]


def main() -> None:
    parser = ArgumentParser(prog="bench/run spark_write")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of each run ({ROWS:,})")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = start("spark_write", parser)
    import rookery.spark

    server = Server()
    broker = Broker(server)
    report = Report("spark_write")
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), closing(broker.client):
            warnings.simplefilter("ignore")
            for name in ("in", "out"):
                # what is measured is writing: nothing is kept for long
                wanted = {"partitions": 2, "max_bytes": 1 << 30}
                broker.client.put(f"/api/v1/streams/{name}", wanted)
            spark = rookery.spark.session("local[2]", spark_driver_memory="2g", spark_ui_enabled=False)
            spark.dataSource.register(discarding())
            found = loads(spark, broker, options.rows, Path(folder))
            Meter(spark, server).measure(found, options.rounds)
            spark.stop()
    finally:
        server.stop()
    report.tell(
        "Writing to a stream",
        f"""{options.rows:,} rows of {BODY_BYTES} B in {TASKS} tasks on `local[2]`; the broker is one process with its
        journal on disk, on the same two cores; medians of {options.rounds} rounds after three to warm up. CPU of Spark
        is that of its JVM, its Python workers and the driver. The plain producer writes
        {min(options.rows, PLAIN_ROWS):,}, each at least once.""",
        HEAD,
        [load.row() for load in found],
    )
    if options.write:
        report.write()


if __name__ == "__main__":
    main()

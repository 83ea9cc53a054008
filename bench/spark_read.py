"""Spark reads a stream: rows per CPU-second beside Spark's own scan and a plain consumer, overhead of a micro-batch.

The broker is a process of its own. CPU of Spark is that of its JVM, its Python workers and the driver's Python, all in
`local[…]`; the broker's stands beside it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from bench.asking import Server
from bench.harness import BODY_BYTES, start
from bench.plots import Line, Plot
from bench.sparking import HEAD, PAGE, Broker, Load, Meter, Report, drop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
PLAIN_ROWS = 50_000
BATCHES = 30
PARTS = ("reads", "batches", "partitions", "lengths", "executors")
PASSES = 2
LONG_WARM_UP = 10
"""Rounds before any counts where a number has an aim: Java still finds better code after twenty million rows."""
PARTITIONS = (1, 2, 4, 8)
LENGTHS = (1, 10, 100)
NEWEST_SHARE = 40
USUAL = "stream,partition,offset,timestamp,key,value,routing_key"
"""The columns that most jobs want, and that Kafka's source has."""
MASTERS = ("local[1]", "local[2]", "local-cluster[1,1,1024]", "local-cluster[2,1,1024]")


def reads(spark: SparkSession, broker: Broker, tail: str, sealed: str, rows: int) -> list[Load]:
    """The same rows, read in several ways."""
    import rookery.spark

    def source(stream: str, **options: str) -> DataFrame:
        return spark.read.format("rookery").options(**broker.here, subscribe=stream, **options).load()

    plan = broker.client.make_plan(sealed, {})
    broker.client.release_plan(plan["plan"])
    folder = str(Path(plan["root"]) / Path(plan["partitions"][0]["files"][0]["path"]).parents[2])

    def own() -> DataFrame:
        from pyspark.sql import functions

        same = {"tenant": functions.lit("default"), "stream": functions.lit(sealed)}
        return spark.read.parquet(folder).withColumns(same).select(source(sealed).columns)

    few_rows = min(rows, PLAIN_ROWS)

    def plain() -> None:
        drop(spark.createDataFrame(pages(broker, tail, few_rows)))

    def history(**options: str) -> DataFrame:
        return rookery.spark.history(spark, sealed, hold_sec=600, **broker.here, **options)

    few, usual = "count by routing key", "7 columns → noop"
    return [
        Load(f"ready batches, no broker, {usual}", rows, lambda: drop(ready(spark, rows))),
        Load(f"tail, through the broker, {usual}", rows, lambda: drop(source(tail, columns=USUAL)), "≥ 0.9"),
        Load(f"sealed, files read by tasks, {usual}", rows, lambda: drop(source(sealed, columns=USUAL))),
        Load(f"Spark's own scan, {usual}", rows, lambda: drop(own().select(USUAL.split(",")))),
        Load("tail, through the broker → noop", rows, lambda: drop(source(tail))),
        Load("sealed, files read by tasks → noop", rows, lambda: drop(source(sealed))),
        Load("sealed, through the broker → noop", rows, lambda: drop(source(sealed, mode="broker"))),
        Load("history() → noop", rows, lambda: drop(history()), "≥ 0.9 of Spark's own"),
        Load("Spark's own scan → noop", rows, lambda: drop(own())),
        Load(
            f"sealed, {few}", rows, lambda: drop(source(sealed, columns="routing_key").groupBy("routing_key").count())
        ),
        Load(f"history(), {few}", rows, lambda: drop(history().groupBy("routing_key").count())),
        Load(f"Spark's own scan, {few}", rows, lambda: drop(own().groupBy("routing_key").count())),
        Load("a plain consumer, JSON pages → DataFrame → noop", few_rows, plain),
    ]


@dataclass
class Place:
    """Where a process of its own finds the broker, and what to read there."""

    port: int
    pid: int
    tail: str
    sealed: str
    rows: int


def alone(place: Place, index: int, rounds: int) -> tuple[Load, int]:
    """One of the reads in a Spark of its own, and how many there are."""
    import rookery.spark

    broker = Broker(cast(Server, SimpleNamespace(port=place.port, process=SimpleNamespace(pid=place.pid))))
    spark = rookery.spark.session("local[2]", spark_driver_memory="2g", spark_ui_enabled=False)
    with warnings.catch_warnings(), closing(broker.client):
        warnings.simplefilter("ignore")
        loads = reads(spark, broker, place.tail, place.sealed, place.rows)
        Meter(spark, broker.server).measure([loads[index]], rounds, LONG_WARM_UP)
        spark.stop()
    # what it runs is of no use elsewhere
    return replace(loads[index], run=dict), len(loads)


def by_turns(place: Place, rounds: int) -> list[Load]:
    """All reads, each in a Spark of its own, as a job has it."""
    found: list[Load] = []
    for _ in range(PASSES):
        index, count = 0, 1
        while index < count:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                load, count = pool.submit(alone, place, index, -(-rounds // PASSES)).result()
            if index < len(found):
                found[index].add(load)
            else:
                found.append(load)
            index += 1
    return found


def ready(spark: SparkSession, rows: int) -> DataFrame:
    """A source of Python whose tasks hand over the same batch again and again: what none can undercut."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    columns, tasks, size = USUAL, 4, 10_000

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(tasks)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            from bench.sparking import batch_of

            made = batch_of(size).select(columns.split(","))
            for at in range(0, rows // tasks, size):
                yield made.slice(0, min(size, rows // tasks - at))

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> Any:
            from rookery.spark.schema import table_schema

            return table_schema(columns.split(","))

        def reader(self, schema: Any) -> Any:
            return Reader()

    spark.dataSource.register(Ready)
    return spark.read.format("ready").load()


def pages(broker: Broker, stream: str, rows: int) -> list[tuple[Any, ...]]:
    """What a consumer that knows nothing of Spark has read: values and where they are."""
    found: list[tuple[Any, ...]] = []
    for shown in broker.client.get(f"/api/v1/streams/{stream}")["partitions"]:
        at = shown["first"]
        while at < shown["end"] and len(found) < rows:
            page = broker.client.get(
                f"/api/v1/streams/{stream}/records", **{"partition": shown["partition"], "from": at}
            )
            found += [
                (shown["partition"], each["offset"], each["timestamp"], each["routing_key"], each["value"])
                for each in page["records"]
            ]
            at = page["next"]
    return found[:rows]


# Micro-batches


def nothing() -> type[Any]:
    """A stream source of Python whose batches are empty: what any such source costs."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
            return {"at": 0}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
            """There are as many batches as there are."""

        def getDefaultReadLimit(self) -> Any:  # noqa: N802  Spark's name
            return ReadAllAvailable()

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802  Spark's name
            return {"at": min(BATCHES, start["at"] + 1)}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return iter(())

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def schema(self) -> str:
            return "value binary"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802  Spark's name
            return Reader()

    return Nothing


def batch_ms(spark: SparkSession, frame: DataFrame, folder: str) -> list[int]:
    """How long each micro-batch took, but for the first ones."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["batchId"] >= 5]
    return [int(each) for each in found if each]


def overhead(spark: SparkSession, broker: Broker, rounds: int) -> list[list[str]]:
    spark.dataSource.register(nothing())
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(BATCHES * 2))
    broker.stream("drops", BATCHES * 10, 1, False)
    options = {"subscribe": "drops", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    found: dict[str, list[int]] = {"a source that returns nothing": [], "the connector, 10 records": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            empty = spark.readStream.format("nothing").load()
            found["a source that returns nothing"] += batch_ms(spark, empty, f"{folder}/n{number}")
            ours = spark.readStream.format("rookery").options(**broker.here, **options).load()
            found["the connector, 10 records"] += batch_ms(spark, ours, f"{folder}/r{number}")
    base, own = (statistics.median(each) for each in found.values())
    rows = [
        [name, str(len(each)), f"{statistics.median(each):.0f}", f"{min(each)}", ""] for name, each in found.items()
    ]
    rows.append(["ratio of the medians", "", f"{own / base:.2f}", "", "≤ 1.3"])
    return rows


# Scaling


def scaling(
    spark: SparkSession, broker: Broker, meter: Meter, rows: int, rounds: int
) -> tuple[list[list[str]], list[Line]]:
    """The same rows in more partitions, in the tail and in files."""
    shown: list[list[str]] = []
    lines = [Line("tail, through the broker"), Line("sealed, files read by tasks")]
    for partitions in PARTITIONS:
        row = [str(partitions)]
        for line, sealed in zip(lines, (False, True), strict=True):
            name = broker.stream(f"scale-{partitions}-{'sealed' if sealed else 'tail'}", rows, partitions, sealed)
            frame = spark.read.format("rookery").options(**broker.here, subscribe=name).load()
            load = Load(name, rows, lambda frame=frame: drop(frame))  # type: ignore[misc]
            meter.measure([load], rounds)
            row += [f"{load.per_sec():.2f}", f"{load.per_cpu():.2f}"]
            line.points.append((partitions, load.per_cpu()))
        shown.append(row)
    return shown, lines


def lengths(
    spark: SparkSession, broker: Broker, meter: Meter, newest: int, rounds: int
) -> tuple[list[list[str]], list[Line]]:
    """The newest rows of ever longer histories."""
    shown: list[list[str]] = []
    lines = [Line("the connector"), Line("history()")]
    import rookery.spark

    for times in LENGTHS:
        length = newest * times
        name = broker.stream(f"length-{length}", length, 1, True)
        options = {**broker.here, "startingOffsets": json.dumps({name: {"0": length - newest}})}

        def direct(name: str = name, options: dict[str, Any] = options) -> None:
            drop(spark.read.format("rookery").options(**options, subscribe=name).load())

        def history(name: str = name, options: dict[str, Any] = options) -> None:
            drop(rookery.spark.history(spark, name, hold_sec=60, **options))

        loads = [Load("", newest, direct), Load("", newest, history)]
        meter.measure(loads, rounds)
        cpu = [statistics.median(load.spark_sec) * 1000 for load in loads]
        wall = [statistics.median(load.wall_sec) * 1000 for load in loads]
        shown.append([f"{length:,}", *(f"{value:.0f}" for pair in zip(cpu, wall, strict=True) for value in pair)])
        for line, value in zip(lines, cpu, strict=True):
            line.points.append((length, value))
    return shown, lines


def executors(broker: Broker, sealed: str, rows: int, rounds: int) -> list[list[str]]:
    """The same rows with more tasks at once, in one process or in several: each is a session of its own."""
    import rookery.spark

    shown = []
    for master in MASTERS:
        spark = rookery.spark.session(master, spark_driver_memory="2g", spark_ui_enabled=False)
        frame = spark.read.format("rookery").options(**broker.here, subscribe=sealed).load()
        load = Load("", rows, lambda frame=frame: drop(frame))  # type: ignore[misc]
        Meter(spark, broker.server).measure([load], rounds)
        shown.append([f"`{master}`", f"{load.per_sec():.2f}", f"{load.per_cpu():.2f}"])
        spark.stop()
    return shown


def main() -> None:
    parser = ArgumentParser(prog="bench/run spark_read")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of each read ({ROWS:,})")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help=f"put tables and plot into {PAGE.name}")
    options = start("spark_read", parser)
    server = Server()
    broker = Broker(server)
    try:
        with warnings.catch_warnings(), closing(broker.client):
            warnings.simplefilter("ignore")
            report = Report("spark_read", "Reading by partitions and by length of history")
            run(broker, options.rows, options.rounds, options.only.split(","), report)
            if options.write:
                report.write()
    finally:
        server.stop()


def run(broker: Broker, rows: int, rounds: int, only: list[str], report: Report) -> None:
    import rookery.spark

    sealed = broker.stream("sealed", rows, 4, True)
    if "reads" in only:
        tail = broker.stream("tail", rows, 4, False)
        loads = by_turns(Place(broker.server.port, broker.server.process.pid, tail, sealed, rows), rounds)
        report.tell(
            "Reading a stream",
            f"""{rows:,} records of {BODY_BYTES} B in 4 partitions, all columns unless said otherwise, on `local[2]`,
            each way in a Spark of its own, {PASSES} times by turns; medians of {len(loads[0].wall_sec)} rounds, each
            after {LONG_WARM_UP} to warm up. CPU of Spark is that of its JVM, its Python workers and
            the driver; the broker is one process on the same machine. The plain consumer reads
            {min(rows, PLAIN_ROWS):,}.""",
            HEAD,
            [load.row() for load in loads],
        )
    spark = rookery.spark.session("local[2]", spark_driver_memory="2g", spark_ui_enabled=False)
    meter = Meter(spark, broker.server)
    if "batches" in only:
        report.tell(
            "A micro-batch",
            f"Time of a whole trigger, `AvailableNow`, {BATCHES} batches of one task → noop, but for the first five.",
            ["case", "batches", "median ms", "least", "aim"],
            overhead(spark, broker, max(2, rounds // 2)),
        )
    if "partitions" in only:
        shown, lines = scaling(spark, broker, meter, rows // 4, rounds)
        report.plots.append(Plot("M rows per CPU-second of Spark, by partitions (more is better)", lines))
        report.tell(
            "By partitions",
            f"{rows // 4:,} records in so many partitions → noop, on `local[2]`; CPU-seconds are those of Spark.",
            ["partitions", "tail, M rows/s", "per CPU-s", "sealed, M rows/s", "per CPU-s "],
            shown,
        )
    if "lengths" in only:
        newest = max(1, rows // NEWEST_SHARE)
        shown, lines = lengths(spark, broker, meter, newest, rounds)
        heading = f"CPU ms for the newest {newest:,} records, by length of history (less is better)"
        report.plots.append(Plot(heading, lines))
        report.tell(
            "By length of history",
            f"The newest {newest:,} records of a stream that has so many → noop: ms of CPU, and ms on the clock.",
            ["records", "connector, CPU ms", "ms", "history(), CPU ms", "ms "],
            shown,
        )
    spark.stop()
    if "executors" in only:
        report.tell(
            "By cores and executors",
            f"""{rows:,} sealed records in 4 partitions → noop: one process with so many cores, or so many executors
            with a core each.""",
            ["master", "M rows/s", "M rows / CPU-s of Spark"],
            executors(broker, sealed, rows, rounds),
        )


if __name__ == "__main__":
    main()

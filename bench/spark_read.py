"""Spark reads a stream: rows per CPU-second beside Spark's own scan and a plain consumer, overhead of a micro-batch.

The broker is a process of its own. CPU of Spark is that of its JVM, its Python workers and the driver's Python, all in
`local[…]`; the broker's stands beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.asking import KEY, Server
from bench.harness import BODY_BYTES, start, table, title
from bench.plots import Line, Plot, draw, put
from rookery.spark.client import Client
from rookery.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 400_000
PLAIN_ROWS = 50_000
CHUNK = 20_000
BATCHES = 30
PARTS = ("reads", "batches", "partitions", "lengths", "cores")
LOOK_SEC = 0.2
PARTITIONS = (1, 2, 4, 8)
LENGTHS = (10_000, 100_000, 1_000_000)
BEGIN = "<!-- bench/run spark_read --write puts its report between here -->"
END = "<!-- and here -->"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"
PLOT = PAGE.parent / "img" / "spark.svg"

_TICKS = os.sysconf("SC_CLK_TCK")


# The broker's side


class Broker:
    """A server, and streams in it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.here: dict[str, Any] = {"endpoint": f"http://127.0.0.1:{server.port}", "token": KEY}
        self.client = Client(Connection((self.here["endpoint"],), KEY, timeout_sec=600))

    def stream(self, name: str, rows: int, partitions: int, sealed: bool) -> str:
        """A stream of so many rows in all, in files or in the tail. Staged chunks are the quick way to many."""
        client = self.client
        wanted = {"partitions": partitions, "seal_ms": 1 << 40, "seal_bytes": 1 << 40}
        client._json("PUT", f"/api/v1/streams/{name}", json.dumps(wanted).encode(), "application/json")
        for number, at in enumerate(range(0, rows, CHUNK)):
            chunk = chunk_of(at, min(CHUNK, rows - at), partitions)
            client.post(f"/api/v1/streams/{name}/stage", chunk, chunk=f"{name}-{number}")
            client.post(f"/api/v1/producers/{name}/commit", {"epoch": number, "chunks": [f"{name}-{number}"]})
        if sealed:
            client.post(f"/api/v1/streams/{name}/seal")
        return name


def chunk_of(first: int, rows: int, partitions: int) -> bytes:
    """Rows as an Arrow stream: half of each value is random, half is constant."""
    noise = os.urandom(rows * BODY_BYTES // 4).hex()
    step = BODY_BYTES // 2
    values = [(noise[i * step : i * step + step] + "x" * step).encode() for i in range(rows)]
    columns = {
        "value": pa.array(values, pa.binary()),
        "routing_key": pa.array([f"orders.{i % 10}" for i in range(first, first + rows)]),
        "partition": pa.array([i % partitions for i in range(first, first + rows)], pa.int32()),
        "content_type": pa.array(["application/json"] * rows),
    }
    made = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    return bytes(sink.getvalue().to_pybytes())


# What is measured


@dataclass
class Load:
    """Something that reads rows: what it costs, round by round."""

    name: str
    rows: int
    run: Callable[[], object]
    aim: str = ""
    wall_sec: list[float] = field(default_factory=list)
    spark_sec: list[float] = field(default_factory=list)
    broker_sec: list[float] = field(default_factory=list)

    def per_cpu(self) -> float:
        return self.rows / statistics.median(self.spark_sec) / 1e6

    def per_sec(self) -> float:
        return self.rows / statistics.median(self.wall_sec) / 1e6

    def row(self) -> list[str]:
        broker = statistics.median(self.broker_sec)
        beside = f"{self.rows / broker / 1e6:.2f}" if broker > 0.1 else "–"
        spread = f"{self.rows / max(self.spark_sec) / 1e6:.2f} to {self.rows / min(self.spark_sec) / 1e6:.2f}"
        return [self.name, f"{self.per_sec():.2f}", f"{self.per_cpu():.2f}", spread, beside, self.aim]


HEAD = ["case", "M rows/s", "M rows / CPU-s of Spark", "rounds from, to", "of the broker", "aim"]


class Meter:
    """CPU of Spark and of the broker. Workers of Spark come and go, so they are looked at all the time."""

    def __init__(self, spark: SparkSession, server: Server) -> None:
        self._jvm: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        self._server = server
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while Path(f"/proc/{self._jvm}").exists():
            self._look()
            time.sleep(LOOK_SEC)

    def _look(self) -> float:
        with self._lock:
            found = [self._jvm]
            for each in found:
                try:
                    numbers = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13]
                    for task in Path(f"/proc/{each}/task").iterdir():
                        found += map(int, (task / "children").read_text().split())
                except OSError:
                    continue
                self._seen[each] = sum(map(int, numbers))
            return sum(self._seen.values()) / _TICKS

    def spark_sec(self) -> float:
        return self._look() + time.process_time()

    def measure(self, loads: list[Load], rounds: int) -> None:
        for load in loads:
            load.run()
        for _ in range(rounds):
            for load in loads:
                spark, served, began = self.spark_sec(), self._server.cpu_sec(), time.perf_counter()
                load.run()
                load.wall_sec.append(time.perf_counter() - began)
                load.spark_sec.append(self.spark_sec() - spark)
                load.broker_sec.append(self._server.cpu_sec() - served)


def drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


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

    def plain() -> None:
        drop(spark.createDataFrame(pages(broker, tail, PLAIN_ROWS)))

    def history(**options: str) -> DataFrame:
        return rookery.spark.history(spark, sealed, hold_sec=600, **broker.here, **options)

    few = "count by routing key"
    return [
        Load("tail, through the broker → noop", rows, lambda: drop(source(tail)), "≥ 0.9"),
        Load("sealed, files read by tasks → noop", rows, lambda: drop(source(sealed)), "≥ 0.9"),
        Load("sealed, through the broker → noop", rows, lambda: drop(source(sealed, mode="broker"))),
        Load("history() → noop", rows, lambda: drop(history()), "≥ 0.9 of Spark's own"),
        Load("Spark's own scan → noop", rows, lambda: drop(own())),
        Load(
            f"sealed, {few}", rows, lambda: drop(source(sealed, columns="routing_key").groupBy("routing_key").count())
        ),
        Load(f"history(), {few}", rows, lambda: drop(history().groupBy("routing_key").count())),
        Load(f"Spark's own scan, {few}", rows, lambda: drop(own().groupBy("routing_key").count())),
        Load("a plain consumer, JSON pages → DataFrame → noop", PLAIN_ROWS, plain),
    ]


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


def lengths(spark: SparkSession, broker: Broker, meter: Meter, rounds: int) -> tuple[list[list[str]], list[Line]]:
    """The newest rows of ever longer histories."""
    shown: list[list[str]] = []
    lines = [Line("the connector"), Line("history()")]
    import rookery.spark

    for length in LENGTHS:
        name = broker.stream(f"length-{length}", length, 1, True)
        newest = json.dumps({name: {"0": length - LENGTHS[0]}})
        options = {**broker.here, "startingOffsets": newest}

        def direct(name: str = name, options: dict[str, Any] = options) -> None:
            drop(spark.read.format("rookery").options(**options, subscribe=name).load())

        def history(name: str = name, options: dict[str, Any] = options) -> None:
            drop(rookery.spark.history(spark, name, hold_sec=60, **options))

        loads = [Load("", LENGTHS[0], direct), Load("", LENGTHS[0], history)]
        meter.measure(loads, rounds)
        cpu = [statistics.median(load.spark_sec) * 1000 for load in loads]
        wall = [statistics.median(load.wall_sec) * 1000 for load in loads]
        shown.append([f"{length:,}", *(f"{value:.0f}" for pair in zip(cpu, wall, strict=True) for value in pair)])
        for line, value in zip(lines, cpu, strict=True):
            line.points.append((length, value))
    return shown, lines


def cores(broker: Broker, sealed: str, rows: int, rounds: int, counts: tuple[int, ...]) -> list[list[str]]:
    """The same rows with more tasks at once: each number of cores is a session of its own."""
    import rookery.spark

    shown = []
    for count in counts:
        spark = rookery.spark.session(f"local[{count}]", spark_driver_memory="2g", spark_ui_enabled=False)
        frame = spark.read.format("rookery").options(**broker.here, subscribe=sealed).load()
        load = Load("", rows, lambda frame=frame: drop(frame))  # type: ignore[misc]
        Meter(spark, broker.server).measure([load], rounds)
        shown.append([f"local[{count}]", f"{load.per_sec():.2f}", f"{load.per_cpu():.2f}"])
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
            report = Report()
            run(broker, options.rows, options.rounds, options.only.split(","), report)
            if options.write:
                report.write()
    finally:
        server.stop()


class Report:
    """What is told, and at the end put into the page."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.plots: list[Plot] = []

    def tell(self, heading: str, how: str, head: list[str], rows: list[list[str]]) -> None:
        title(heading, how)
        table(head, rows)
        self._parts += [f"### {heading}", " ".join(how.split()), markdown(head, rows)]

    def write(self) -> None:
        if self.plots:
            PLOT.write_text(draw(self.plots))
            self._parts.insert(0, "![Reading by partitions and by length of history](img/spark.svg)")
        put(PAGE, BEGIN, END, ["spark_read"], self._parts)


def run(broker: Broker, rows: int, rounds: int, only: list[str], report: Report) -> None:
    import rookery.spark

    sealed = broker.stream("sealed", rows, 4, True)
    spark = rookery.spark.session("local[2]", spark_driver_memory="2g", spark_ui_enabled=False)
    meter = Meter(spark, broker.server)
    if "reads" in only:
        loads = reads(spark, broker, broker.stream("tail", rows, 4, False), sealed, rows)
        meter.measure(loads, rounds)
        report.tell(
            "Reading a stream",
            f"""{rows:,} records of {BODY_BYTES} B in 4 partitions, all columns unless said otherwise, on `local[2]`;
            medians of {rounds} rounds after one to warm up. CPU of Spark is that of its JVM, its Python workers and the
            driver; the broker is one process on the same machine. The plain consumer reads {PLAIN_ROWS:,}.""",
            HEAD,
            [load.row() for load in loads],
        )
    if "batches" in only:
        report.tell(
            "A micro-batch",
            f"Time of a whole trigger, `AvailableNow`, {BATCHES} batches of one task → noop, but for the first five.",
            ["case", "batches", "median ms", "least", "aim"],
            overhead(spark, broker, max(2, rounds // 2)),
        )
    if "partitions" in only:
        shown, lines = scaling(spark, broker, meter, rows // 2, rounds)
        report.plots.append(Plot("M rows per CPU-second of Spark, by partitions (more is better)", lines))
        report.tell(
            "By partitions",
            f"{rows // 2:,} records in so many partitions → noop, on `local[2]`; CPU-seconds are those of Spark.",
            ["partitions", "tail, M rows/s", "per CPU-s", "sealed, M rows/s", "per CPU-s "],
            shown,
        )
    if "lengths" in only:
        shown, lines = lengths(spark, broker, meter, rounds)
        heading = f"CPU ms for the newest {LENGTHS[0]:,} records, by length of history (less is better)"
        report.plots.append(Plot(heading, lines))
        report.tell(
            "By length of history",
            f"The newest {LENGTHS[0]:,} records of a stream that has so many → noop: ms of CPU, and ms on the clock.",
            ["records", "connector, CPU ms", "ms", "history(), CPU ms", "ms "],
            shown,
        )
    spark.stop()
    if "cores" in only:
        report.tell(
            "By cores",
            f"{rows:,} sealed records in 4 partitions → noop, each row a session of its own.",
            ["master", "M rows/s", "M rows / CPU-s of Spark"],
            cores(broker, sealed, rows, rounds, (1, 2, 4)),
        )


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


if __name__ == "__main__":
    main()

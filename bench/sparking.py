"""What the benchmarks of Spark share: a broker with streams in it, what a load costs Spark and the broker, a report.

CPU of Spark is that of its JVM, its Python workers and the driver's Python, all in `local[…]`; the broker is a process
of its own, and its CPU stands beside.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.asking import KEY, Server
from bench.harness import BODY_BYTES, table, title
from bench.plots import Plot, draw, put
from rookery.spark.client import Client
from rookery.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 20_000
WARM_UP = 3
"""Rounds before any counts: Java compiles what it runs often, and that is CPU, too."""
PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"
END = "<!-- and here -->"
HEAD = ["case", "M rows/s", "M rows / CPU-s of Spark", "rounds from, to", "of the broker", "aim"]

_TICKS = os.sysconf("SC_CLK_TCK")


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
        client.put(f"/api/v1/streams/{name}", wanted)
        for number, at in enumerate(range(0, rows, CHUNK)):
            chunk = chunk_of(at, min(CHUNK, rows - at), partitions)
            client.post(f"/api/v1/streams/{name}/stage", chunk, chunk=f"{name}-{number}")
            client.post(f"/api/v1/producers/{name}/commit", {"epoch": number, "chunks": [f"{name}-{number}"]})
        if sealed:
            client.post(f"/api/v1/streams/{name}/seal")
        return name


def values_of(rows: int) -> pa.Array:
    """Values half of which is random, half constant."""
    noise = os.urandom(rows * BODY_BYTES // 4).hex()
    step = BODY_BYTES // 2
    return pa.array([(noise[i * step : i * step + step] + "x" * step).encode() for i in range(rows)], pa.binary())


def batch_of(rows: int) -> pa.RecordBatch:
    """Records as a stream has them, in the columns that Kafka's source has."""
    columns = {
        "stream": pa.array(["orders"] * rows),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array(range(rows), pa.timestamp("us", tz="UTC")),
        "key": pa.nulls(rows, pa.binary()),
        "value": values_of(rows),
        "routing_key": pa.array([f"orders.{i % 10}" for i in range(rows)]),
    }
    nullable = {"key", "routing_key"}
    made = pa.record_batch(columns)
    return made.cast(pa.schema([pa.field(each.name, each.type, each.name in nullable) for each in made.schema]))


def chunk_of(first: int, rows: int, partitions: int) -> bytes:
    """Rows as an Arrow stream."""
    columns = {
        "value": values_of(rows),
        "routing_key": pa.array([f"orders.{i % 10}" for i in range(first, first + rows)]),
        "partition": pa.array([i % partitions for i in range(first, first + rows)], pa.int32()),
        "content_type": pa.array(["application/json"] * rows),
    }
    made = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    return bytes(sink.getvalue().to_pybytes())


@dataclass
class Load:
    """Something that reads or writes rows: what it costs, round by round."""

    name: str
    rows: int
    run: Callable[[], object]
    aim: str = ""
    wall_sec: list[float] = field(default_factory=list)
    spark_sec: list[float] = field(default_factory=list)
    broker_sec: list[float] = field(default_factory=list)

    def add(self, more: Load) -> None:
        """Count the rounds of another, of the same."""
        self.wall_sec += more.wall_sec
        self.spark_sec += more.spark_sec
        self.broker_sec += more.broker_sec

    def per_cpu(self) -> float:
        return self.rows / statistics.median(self.spark_sec) / 1e6

    def per_sec(self) -> float:
        return self.rows / statistics.median(self.wall_sec) / 1e6

    def row(self) -> list[str]:
        broker = statistics.median(self.broker_sec)
        beside = f"{self.rows / broker / 1e6:.2f}" if broker > 0.1 else "–"
        spread = f"{self.rows / max(self.spark_sec) / 1e6:.2f} to {self.rows / min(self.spark_sec) / 1e6:.2f}"
        return [self.name, f"{self.per_sec():.2f}", f"{self.per_cpu():.2f}", spread, beside, self.aim]


class Meter:
    """CPU of Spark and of the broker."""

    def __init__(self, spark: SparkSession, server: Server) -> None:
        self._jvm: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        self._server = server.process.pid

    def spark_sec(self) -> float:
        return tree_cpu_sec(self._jvm) + time.process_time()

    def broker_sec(self) -> float:
        return tree_cpu_sec(self._server)

    def measure(self, loads: list[Load], rounds: int, warm_up: int = WARM_UP) -> None:
        for _ in range(warm_up):
            for load in loads:
                load.run()
        for _ in range(rounds):
            for load in loads:
                spark, served, began = self.spark_sec(), self.broker_sec(), time.perf_counter()
                load.run()
                load.wall_sec.append(time.perf_counter() - began)
                load.spark_sec.append(self.spark_sec() - spark)
                load.broker_sec.append(self.broker_sec() - served)


def tree_cpu_sec(pid: int) -> float:
    """CPU time of a process and of all that it started, also of those that have ended and were waited for."""
    while True:
        seen = _processes()
        found = [pid]
        for each in found:
            found += [child for child, (parent, _) in seen.items() if parent == each]
        # who ends while one looks is counted by nobody, or twice
        if seen.keys() == _processes().keys():
            return sum(seen[each][1] for each in found if each in seen) / _TICKS


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the ticks of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(folder.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return found


def drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Report:
    """What a benchmark tells, and at the end puts into the page about Spark."""

    def __init__(self, name: str, plot: str = "") -> None:
        self._name = name
        self._plot = plot
        self._parts: list[str] = []
        self.plots: list[Plot] = []

    def tell(self, heading: str, how: str, head: list[str], rows: list[list[str]]) -> None:
        title(heading, how)
        table(head, rows)
        self._parts += [f"### {heading}", " ".join(how.split()), markdown(head, rows)]

    def write(self) -> None:
        if self.plots:
            path = PAGE.parent / "img" / f"{self._name}.svg"
            path.parent.mkdir(exist_ok=True)
            path.write_text(draw(self.plots))
            self._parts.insert(0, f"![{self._plot}](img/{path.name})")
        begin = f"<!-- bench/run {self._name} --write puts its report between here -->"
        put(PAGE, begin, END, [self._name], self._parts)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

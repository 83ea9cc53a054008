"""Built-in pipelines on Spark: events a second the lifecycle keeps up with, cost against history, replay, start.

Events are those of messages that are published, delivered and acked, and now and then a snapshot. For the cost against
history they are written down before anything is measured, and CPU is that of Spark's process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rookery
from bench.asking import KEY, Server
from bench.harness import start, table, title
from bench.plots import Line, Plot, draw, put
from bench.sparking import tree_cpu_sec
from rookery.lake.pipelines import Status, statuses
from rookery.pipelines.builtin import replay
from rookery.pipelines.builtin.jobs import BATCH_ROWS as BATCH_MAX
from rookery.pipelines.builtin.jobs import ENGINE, EVENTS, LIFECYCLE
from rookery.pipelines.builtin.lifecycle import Lifecycle
from rookery.spark import session
from rookery.spark.client import Client
from rookery.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS = ("history", "replay", "start", "rate")
TIMES = (1, 10, 100)
START_MS = 1_788_264_000_000
DAY_MS = 86_400_000
QUEUES = 20
PATIENCE_SEC = 300
LINES_MAX = 12
ROUNDS_A_SEC = 4
CONF: dict[str, Any] = {**ENGINE.conf, "spark.ui.enabled": False, "spark.driver.memory": "3g"}
BEGIN = "<!-- bench/run lifecycle --write puts its report between here -->"
END = "<!-- and here -->"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "insights.md"
PLOT = PAGE.parent / "img" / "lifecycle.svg"

_TICKS = os.sysconf("SC_CLK_TCK")
_EVENT = f"""to_json(named_struct(
  'event_id', concat('1-', id), 'schema_version', 1, 'tenant', 'acme', 'exchange', 'shop',
  'event_type', element_at(array('published', 'delivered', 'acked', 'snapshot'), cast(step + 1 AS INT)),
  'event_time_ms', at + CASE step WHEN 0 THEN 0 WHEN 1 THEN waited ELSE waited + worked END,
  'routing_key', concat('order.', message % 50), 'queue', CASE WHEN step > 0 THEN concat('q', message % {QUEUES}) END,
  'message_id', concat('m', message), 'size_bytes', 200, 'delivery_count', CASE WHEN step > 0 THEN 1 ELSE 0 END,
  'weight', CASE WHEN step < 3 THEN 1 END, 'reached', CASE WHEN step = 0 THEN 1 END,
  'consumer', CASE WHEN step IN (1, 2) THEN concat('c', message % 8) END,
  'latency_ms', CASE step WHEN 1 THEN waited WHEN 2 THEN waited + worked END,
  'process_ms', CASE WHEN step = 2 THEN worked END,
  'changes', CASE WHEN step = 3 THEN map('published', 1L, 'acked', 1L) END))"""
PIPELINE = """
broker: {{endpoint: "{url}", token: {key}}}
source: {{stream: from, startingOffsets: earliest}}
transform: [{{sql: "SELECT value FROM {{input}}"}}]
sink: {{stream: first}}
engine: {{master: "{master}"}}
"""


class Bench:
    """A session, and events in files."""

    def __init__(self, master: str, folder: Path) -> None:
        self.master = master
        self.folder = folder
        self.spark = session(master, name="bench", **CONF)
        context: Any = self.spark.sparkContext
        self._pid = int(context._jvm.java.lang.ProcessHandle.current().pid())

    def events(self, name: str, first: int, count: int, at: str, files: int = 2) -> list[str]:
        """Write down so many events from number `first` on, `at` a moment each; the files, in order."""
        numbered = self.spark.range(first, first + count, 1, files).selectExpr(
            "id",
            "CASE WHEN id % 1000 = 999 THEN 3 ELSE id % 3 END AS step",
            "id div 3 AS message",
            f"cast({at} AS BIGINT) AS at",
            "pmod(hash(id div 3), 300) AS waited",
            "pmod(hash(id div 3, 7), 80) AS worked",
        )
        made = self.folder / "events" / name
        numbered.selectExpr(f"cast({_EVENT} AS BINARY) AS value").write.parquet(str(made))
        return sorted(map(str, made.glob("part-*.parquet")))

    def read(self, files: list[str]) -> DataFrame:
        return self.spark.read.schema("value BINARY").parquet(*files)

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Seconds on the wall and on the CPU."""
        wall, cpu = time.perf_counter(), self._cpu()
        work()
        return time.perf_counter() - wall, self._cpu() - cpu

    def batch(self, here: Lifecycle, files: list[str], number: int) -> tuple[float, float]:
        def work() -> None:
            here.take(self.read(files), "bench", number)
            here.refresh(self.spark)

        return self.timed(work)

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


class Report:
    """What is told, and at the end put into the page."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.plots: list[Plot] = []

    def tell(self, heading: str, how: str, head: list[str], rows: list[list[str]]) -> None:
        title(heading, how)
        table(head, rows)
        lines = ["| " + " | ".join(head) + " |", "|---:" * len(head) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        self._parts += [f"#### {heading}", " ".join(how.split()), "\n".join(lines)]

    def write(self) -> None:
        if self.plots:
            PLOT.parent.mkdir(exist_ok=True)
            PLOT.write_text(draw(self.plots))
            self._parts.insert(0, "![Events that wait behind each batch](img/lifecycle.svg)")
        put(PAGE, BEGIN, END, ["lifecycle"], self._parts)


class Load(threading.Thread):
    """Messages that are published, delivered and acked at a rate, a few hundred at a time, for some seconds."""

    def __init__(self, url: str, rate: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._client = Client(Connection((url,), KEY))
        self._each = rate // ROUNDS_A_SEC // QUEUES * QUEUES
        self._seconds = seconds
        self._client.put("/api/v1/exchanges/shop", {"kind": "topic"})
        for number in range(QUEUES):
            self._client.put(f"/api/v1/queues/q{number}", {"durable": False})
            self._client.post("/api/v1/bindings", {"source": "shop", "target": f"q{number}", "key": f"order.{number}"})

    def run(self) -> None:
        rows = [
            {"message": {"n": i, "pad": "x" * 100}, "routing_key": f"order.{i % QUEUES}"} for i in range(self._each)
        ]
        wanted = {"max": self._each // QUEUES, "lease_ms": 60_000, "wait_ms": 0}
        began = time.monotonic()
        for number in range(int(self._seconds * ROUNDS_A_SEC)):
            time.sleep(max(0.0, began + number / ROUNDS_A_SEC - time.monotonic()))
            self._client.post("/api/v1/exchanges/shop/messages", rows)
            for queue in range(QUEUES):
                found = self._client.post(f"/api/v1/queues/q{queue}/claim", wanted)["deliveries"]
                done = [{"lease": each["lease"], "outcome": "ack"} for each in found]
                self._client.post(f"/api/v1/queues/q{queue}/settle", {"settle": done})


def rate(bench: Bench, report: Report, said: Namespace) -> None:
    """A broker tells of all that happens to messages; `rookery pipelines up --builtin` makes tables of it meanwhile."""
    bench.spark.stop()
    # a burst of messages is told of in full only if it would not be too much for a second
    server = Server("--events-rate", str(said.rate * ROUNDS_A_SEC))
    url, root = f"http://127.0.0.1:{server.port}", bench.folder / "rate"
    environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1]), "ROOKERY_API_KEY": KEY}
    command = [sys.executable, "-m", "rookery", "pipelines", "up", "--builtin", "--url", url, "--master", bench.master]
    rows: list[list[str]] = []
    points: list[tuple[float, float]] = []
    with closing(Client(Connection((url,), KEY))) as client:
        load = Load(url, said.rate // 3, said.seconds)
        up = subprocess.Popen([*command, "--root", str(root)], env=environ, stdout=subprocess.DEVNULL)
        try:
            while _lifecycle(root).state != "running":
                assert up.poll() is None, "the pipelines do not start"
                time.sleep(0.1)
            load.start()
            began, cpu, told, last = time.perf_counter(), tree_cpu_sec(up.pid), _rows(client, EVENTS), -1
            served, first = server.cpu_sec(), told
            while load.is_alive() or told > _lifecycle(root).progress.total_rows:
                time.sleep(0.2)
                found, now = _lifecycle(root).progress, time.perf_counter() - began
                assert now < said.seconds + PATIENCE_SEC, "the tables do not catch up"
                if load.is_alive():
                    told = _rows(client, EVENTS)
                    spent, busy = tree_cpu_sec(up.pid) - cpu, server.cpu_sec() - served
                if found.at_ms == last or not found.rows:
                    continue
                last = found.at_ms
                waiting = max(0, _rows(client, EVENTS) - found.total_rows)
                points.append((now, float(waiting)))
                rows.append([f"{now:.0f}", f"{found.rows:,}", f"{found.batch_ms / 1000:.1f}", f"{waiting:,}"])
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(PATIENCE_SEC)
            server.stop()
    step = -(-len(rows) // LINES_MAX)
    shown = [row for number, row in enumerate(rows) if number % step == 0 or number == len(rows) - 1]
    each = (told - first) / said.seconds
    report.tell(
        f"{each:,.0f} events a second",
        f"""A broker and `rookery pipelines up --builtin --master {bench.master}` on this machine, for {said.seconds} s
        from the start of the pipelines on: messages are published, delivered and acked, and all of them are told of. In
        that time Spark used {spent / said.seconds:.2f} cores, the broker {busy / said.seconds:.2f}, the rest is the
        load's. A batch takes what has come since the last began, {BATCH_MAX:,} at most, into all tables.""",
        ["s", "events", "batch s", "waiting after it"],
        shown,
    )
    report.plots.append(Plot("Events that wait behind each batch, by seconds", [Line(f"{each:,.0f}/s", points)]))


def _lifecycle(root: Path) -> Status:
    found = [status for status in statuses(root) if status.name == LIFECYCLE]
    return found[0] if found else Status(LIFECYCLE, "")


def history(bench: Bench, report: Report, said: Namespace) -> None:
    """The cost of the same new events behind more and more history, which is so much in each of the days before."""
    count = said.events // 3 * 3
    rows = []
    for times in TIMES:
        here = Lifecycle(str(bench.folder / f"history-{times}"))
        day = f"id div {count}"
        moment = f"{START_MS} - ({times} - {day}) * {DAY_MS} + (id % {count}) * 600000 / {count}"
        bench.batch(here, bench.events(f"history-{times}", 0, times * count, moment, max(2, times // 10)), 0)
        costs = []
        for again in range(said.rounds):
            first = (times + again) * count
            files = bench.events(f"new-{times}-{again}", first, count, f"{START_MS} + {again * 60_000} + id % 60000")
            costs.append(bench.batch(here, files, again + 1))
        best = min(costs, key=lambda pair: pair[1])
        rows.append([f"{times * count:,}", f"{best[0]:.1f}", f"{best[1]:.1f}"])
    report.tell(
        "New events behind history",
        f"{count:,} new events into all tables, the best of {said.rounds}.",
        ["history", "batch s", "CPU s"],
        rows,
    )


def replaying(bench: Bench, report: Report, said: Namespace) -> None:
    """Records of a stream, chosen by Spark and published to another stream, and to a queue, of a real server."""
    server = Server("--events-rate", "0")
    rows = []
    try:
        url = f"http://127.0.0.1:{server.port}"
        broker, connection = {"endpoint": url, "token": KEY}, Connection((url,), KEY)
        with closing(Client(connection)) as client:
            for name in ("from", "to-stream"):
                client.put(f"/api/v1/streams/{name}", {"partitions": 2})
            client.put("/api/v1/queues/to-queue", {})
        made = bench.spark.range(said.records).selectExpr("rpad(cast(id AS STRING), 200, 'x') AS value")
        made.write.format("rookery").mode("append").options(**broker, stream="from").save()
        targets: tuple[replay.Kind, ...] = ("stream", "queue")
        for kind in targets:
            folder, found = replay.begin(bench.folder, replay.Replay(kind, "stream", "from", "", kind, f"to-{kind}"))
            source = replay.source(bench.spark, found, bench.folder, broker)
            chosen, cpu = bench.timed(lambda f=found, d=folder, s=source: replay.choose(s, f, d))  # type: ignore[misc]
            used, began = server.cpu_sec(), time.perf_counter()
            done = replay.publish(found, folder, connection)
            took = time.perf_counter() - began
            assert done.rows_done == said.records
            speeds = (said.records / chosen, said.records / took, said.records / (chosen + took))
            per = (cpu, server.cpu_sec() - used)
            rows.append([kind, *(f"{each:,.0f}" for each in speeds), *(f"{each:.1f}" for each in per)])
    finally:
        server.stop()
    report.tell(
        "Replay",
        f"{said.records:,} records of 200 B of a stream, to a stream and to a queue. The aim is 100,000 a second.",
        ["to", "chosen/s", "published/s", "both/s", "CPU s of Spark", "CPU s of the broker"],
        rows,
    )


def starting(bench: Bench, report: Report, said: Namespace) -> None:
    """From the command to the first row, with what Java keeps between two starts."""
    server = Server("--events-rate", "0")
    times = []
    try:
        url = f"http://127.0.0.1:{server.port}"
        with closing(Client(Connection((url,), KEY))) as client:
            client.put("/api/v1/streams/from", {})
            client.post("/api/v1/streams/from/publish", [{"message": "x"}])
            file = bench.folder / "first.yaml"
            file.write_text(PIPELINE.format(url=url, key=KEY, master=bench.master))
            command = [sys.executable, "-m", "rookery", "pipelines", "run", str(file), "--root"]
            environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
            for again in range(said.rounds + 1):
                # a new root is a pipeline that has not read anything, with the classes of the one before
                root = bench.folder / f"root-{again}"
                root.mkdir()
                (bench.folder / "classes").mkdir(exist_ok=True)
                (root / "cache").symlink_to(bench.folder / "classes")
                client.put("/api/v1/streams/first", {})
                began = time.perf_counter()
                process = subprocess.Popen([*command, str(root)], env=environ, stdout=subprocess.DEVNULL)
                while not _rows(client, "first") and process.poll() is None:
                    assert time.perf_counter() - began < PATIENCE_SEC, "no row comes"
                    time.sleep(0.02)
                assert process.poll() is None, f"the pipeline ended with {process.returncode}"
                times.append(time.perf_counter() - began)
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE_SEC)
                _wait_for_java(root)
                client.delete("/api/v1/streams/first")
    finally:
        server.stop()
    warm = sorted(times[1:])
    report.tell(
        "Start to the first row",
        "From the command `rookery pipelines run` to the first row in the target stream. The aim is 10 s, warm.",
        ["cold s", "warm s, median", "least"],
        [[f"{times[0]:.1f}", f"{warm[len(warm) // 2]:.1f}", f"{warm[0]:.1f}"]],
    )


def _wait_for_java(root: Path) -> None:
    """Java ends after its driver: the first time it writes down its classes, which takes both cores for a while."""
    until = time.perf_counter() + PATIENCE_SEC
    while any(str(root).encode() in _command(each) for each in Path("/proc").glob("[0-9]*")):
        assert time.perf_counter() < until, "Java does not end"
        time.sleep(0.2)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _rows(client: Client, stream: str) -> int:
    found = client.get(f"/api/v1/streams/{stream}")["partitions"]
    return sum(int(row["end"]) for row in found)


def main() -> None:
    parser = ArgumentParser(prog="bench/run lifecycle")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rate", type=int, default=20_000, help="events a second (20,000)")
    parser.add_argument("--seconds", type=int, default=300, help="for which they come (300)")
    parser.add_argument("--events", type=int, default=20_000, help="of a batch in the measurement of history (20,000)")
    parser.add_argument("--records", type=int, default=1_000_000, help="to be replayed (1,000,000)")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--write", action="store_true", help=f"put tables and plot into {PAGE.name}")
    said = start("lifecycle", parser)
    folder, report = Path(tempfile.mkdtemp(prefix="rookery-bench-")), Report()
    parts = {"history": history, "replay": replaying, "start": starting, "rate": rate}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bench = Bench(said.master, folder)
            chosen = said.only.split(",")
            for name in PARTS:
                if name in chosen:
                    parts[name](bench, report, said)
            bench.spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if said.write:
        report.write()


if __name__ == "__main__":
    main()

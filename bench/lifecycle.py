"""Built-in pipelines on Spark: events a second the lifecycle keeps up with, cost against history, replay.

`bench/run lifecycle --what rate` lets events come at a rate in real time and shows, batch by batch, how long each took
and how many waited behind it. `--what history` measures the same batch of new events behind 1, 10 and 100 times as much
history. `--what replay` replays records of a stream of a real server. CPU is that of Spark's process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery.pipelines.builtin import replay
from rookery.pipelines.builtin.lifecycle import Lifecycle
from rookery.spark import session
from rookery.spark.client import Client
from rookery.spark.options import Connection

START_MS = 1_788_264_000_000
QUEUES = 20
CONF: dict[str, Any] = {"spark.sql.shuffle.partitions": 4, "spark.ui.enabled": False, "spark.driver.memory": "3g"}

_EVENT = """to_json(named_struct(
  'event_id', concat('1-', id), 'schema_version', 1, 'tenant', 'acme', 'exchange', 'shop',
  'event_type', element_at(array('published', 'delivered', 'acked', 'snapshot'), cast(step + 1 AS INT)),
  'event_time_ms', {start} + at + CASE step WHEN 0 THEN 0 WHEN 1 THEN waited ELSE waited + worked END,
  'routing_key', concat('order.', message % 50), 'queue', CASE WHEN step > 0 THEN concat('q', message % {queues}) END,
  'message_id', concat('m', message), 'size_bytes', 200, 'delivery_count', CASE WHEN step > 0 THEN 1 ELSE 0 END,
  'weight', CASE WHEN step < 3 THEN 1 END, 'reached', CASE WHEN step = 0 THEN 1 END,
  'consumer', CASE WHEN step IN (1, 2) THEN concat('c', message % 8) END,
  'latency_ms', CASE step WHEN 1 THEN waited WHEN 2 THEN waited + worked END,
  'process_ms', CASE WHEN step = 2 THEN worked END,
  'changes', CASE WHEN step = 3 THEN map('published', 1L, 'acked', 1L) END))"""


class Bench:
    """A session, and events as the stream has them: three of each message, and now and then a snapshot."""

    def __init__(self, master: str) -> None:
        self.spark = session(master, name="bench", **CONF)
        context: Any = self.spark.sparkContext
        self._pid = int(context._jvm.java.lang.ProcessHandle.current().pid())

    def events(self, first: int, count: int, rate: float, start_ms: int = START_MS) -> Any:
        """So many events from number `first` on, as they come at a rate."""
        made = _EVENT.format(start=start_ms, queues=QUEUES)
        numbered = self.spark.range(first, first + count, 1, 2).selectExpr(
            "id",
            "CASE WHEN id % 1000 = 999 THEN 3 ELSE id % 3 END AS step",
            "id div 3 AS message",
            f"cast((id div 3) * 3 * 1000 / {rate} AS BIGINT) AS at",
            "pmod(hash(id div 3), 300) AS waited",
            "pmod(hash(id div 3, 7), 80) AS worked",
        )
        return numbered.selectExpr(f"cast({made} AS BINARY) AS value")

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Seconds on the wall and on the CPU."""
        wall, cpu = time.perf_counter(), self._cpu()
        work()
        return time.perf_counter() - wall, self._cpu() - cpu

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(bench: Bench, folder: Path, wanted: float, seconds: float) -> None:
    """Events come at a rate; each batch takes what has come since the one before began."""
    here = Lifecycle(str(folder))
    done, number = 0, 0
    print(f"{'s':>6} {'events':>9} {'wall s':>7} {'CPU s':>7} {'waiting':>9} {'events/CPU s':>13}")
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        come = int((time.perf_counter() - began) * wanted)
        if come - done < wanted:
            time.sleep(1)
            continue
        count = min(come - done, 1_000_000)
        frame = bench.events(done, count, wanted)

        def batch(frame: Any = frame, number: int = number) -> None:
            here.take(frame, "bench", number)
            here.refresh(bench.spark)

        wall, cpu = bench.timed(batch)
        done += count
        number += 1
        now = time.perf_counter() - began
        print(
            f"{now:6.0f} {count:9,} {wall:7.1f} {cpu:7.1f} {int(now * wanted) - done:9,} {count / cpu:13,.0f}",
            flush=True,
        )


def history(bench: Bench, folder: Path, count: int, rounds: int) -> None:
    """The cost of the same new events behind more and more history."""
    print(f"{'history':>12} {'wall s':>8} {'CPU s':>8}   of a batch of {count:,} events, the best of {rounds}")
    day_ms = 86_400_000
    for times in (1, 10, 100):
        here = Lifecycle(str(folder / str(times)))
        # so much in each of the days before, in batches of a day
        for day in range(times):
            frame = bench.events(day * count, count, count / 600, START_MS - (times - day) * day_ms)
            here.take(frame, "bench", day)
        here.refresh(bench.spark)
        best: tuple[float, float] = (1e9, 1e9)
        for again in range(rounds):
            first = (times + again) * count
            frame = bench.events(first, count, count / 60, START_MS - int(first * 60_000 / count) + again * 60_000)

            def batch(frame: Any = frame, number: int = times + again, here: Lifecycle = here) -> None:
                here.take(frame, "bench", number)
                here.refresh(bench.spark)

            best = min(best, bench.timed(batch), key=lambda pair: pair[1])
        print(f"{times * count:12,} {best[0]:8.1f} {best[1]:8.1f}", flush=True)


def replaying(bench: Bench, folder: Path, count: int) -> None:
    """Records of a stream, chosen by Spark and published to another stream of a real server."""
    words = ["serve", "--host", "127.0.0.1", "--http-port", "0", "--amqp-port", "off", "--line-port", "off"]
    words += ["--mqtt-port", "off", "--api-key", "bench", "--data-dir", str(folder / "data"), "--events-rate", "0"]
    log = folder / "log"
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-m", "rookery", *words], stderr=file)
    try:
        while '"listening"' not in log.read_text():
            time.sleep(0.1)
        (line,) = (line for line in log.read_text().splitlines() if '"listening"' in line)
        url = f"http://{json.loads(line)['http']}"
        client = Client(Connection((url,), "bench"))
        for name in ("from", "to"):
            client._json("PUT", f"/api/v1/streams/{name}", b'{"partitions": 2}', "application/json")
        broker = {"endpoint": url, "token": "bench"}
        rows = bench.spark.range(count).selectExpr("rpad(cast(id AS STRING), 200, 'x') AS value")
        rows.write.format("rookery").mode("append").options(**broker, stream="from").save()
        folder_, found = replay.begin(folder, replay.Replay("bench", "stream", "from", "", "stream", "to"))
        chosen = bench.timed(lambda: replay.choose(replay.source(bench.spark, found, folder, broker), found, folder_))
        began = time.perf_counter()
        replay.publish(found, folder_, Connection((url,), "bench"))
        published = time.perf_counter() - began
        print(f"choose  {count / chosen[0]:12,.0f} records/s   {count / chosen[1]:12,.0f} a CPU-second of Spark")
        print(f"publish {count / published:12,.0f} records/s")
        print(f"both    {count / (published + chosen[0]):12,.0f} records/s")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--what", choices=("rate", "history", "replay"), nargs="*", default=["rate", "history", "replay"]
    )
    parser.add_argument("--rate", type=float, default=20_000)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--events", type=int, default=20_000, help="of a batch in the measurement of history")
    parser.add_argument("--records", type=int, default=1_000_000, help="to be replayed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    said = parser.parse_args()
    bench = Bench(said.master)
    for what in said.what:
        folder = Path(tempfile.mkdtemp(prefix="rookery-bench-"))
        print(f"\n{what}")
        try:
            if what == "rate":
                rate(bench, folder, said.rate, said.seconds)
            elif what == "history":
                history(bench, folder, said.events, said.rounds)
            else:
                replaying(bench, folder, said.records)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    bench.spark.stop()


if __name__ == "__main__":
    main()

"""Driver and broker die in the middle of pipelines, and the tables end as those of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.errors import NotFound
from rookery.lake.pipelines import Place
from tests.interop.pipeline_world import documents, publish, write
from tests.interop.server import ServerProcess
from tests.interop.spark_world import KEY, World

ROWS = 3_000
PATIENCE_SEC = 500
CONF = """
engine:
  master: local[2]
  conf:
    spark.sql.shuffle.partitions: 1
    spark.driver.memory: 1g
    spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
TABLE = f"""
source: {{stream: orders, startingOffsets: earliest, maxOffsetsPerTrigger: 500}}
transform:
  - sql: SELECT get_json_object(CAST(value AS STRING), '$.n')::INT AS n, offset, partition FROM {{input}}
expect: [{{name: not_tenth, check: n % 10 <> 0, on_fail: quarantine}}]
quarantine: {{stream: held}}
sink: {{table: orders}}
restart: {{retries: 30, backoff: 500ms, backoffMax: 2s}}
{CONF}"""
COUNTS = f"""
source: {{stream: orders, startingOffsets: earliest, maxOffsetsPerTrigger: 500}}
transform:
  - sql: SELECT get_json_object(CAST(value AS STRING), '$.n')::INT % 7 AS rest FROM {{input}}
  - sql: SELECT rest, count(*) AS orders FROM {{input}} GROUP BY rest
sink: {{table: counts, mode: merge, keys: [rest]}}
restart: {{retries: 30, backoff: 500ms, backoffMax: 2s}}
{CONF}"""
COPY = f"""
source: {{stream: orders, startingOffsets: earliest, maxOffsetsPerTrigger: 500}}
transform:
  - sql: SELECT value, key FROM {{input}} DISTRIBUTE BY rand()
sink: {{stream: copied}}
restart: {{retries: 30, backoff: 500ms, backoffMax: 2s}}
{CONF}"""


PIPELINES = {"table": TABLE, "counts": COUNTS, "copy": COPY}


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}


class Scene:
    """A broker that can be killed and comes back at its address, and a worker with some of the pipelines."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.names = names
        self.folder = folder
        self.server = ServerProcess(folder, "--api-key", KEY)
        self.port = self.server.http
        self.world = World(self.port)
        self.files = [write(folder, self.world, PIPELINES[name], name) for name in names]
        self.worker: subprocess.Popen[bytes] | None = None

    def prepare(self, count: int) -> None:
        self.world.stream("orders", partitions=2)
        self.world.stream("held")
        self.world.stream("copied", partitions=2)
        publish(self.world, "orders", [{"n": n} for n in range(count)])

    def start_worker(self) -> None:
        command = [sys.executable, "-m", "rookery.pipelines.worker", "--root", str(self.folder / "root"), "--once"]
        self.worker = subprocess.Popen([*command, *map(str, self.files)], env=environ(), start_new_session=True)

    def kill_worker(self, *, with_java: bool) -> None:
        assert self.worker is not None
        if with_java:
            os.killpg(self.worker.pid, signal.SIGKILL)
        else:
            # Java goes by itself when it notices, and until then a second one may be at work
            self.worker.kill()
        self.worker.wait()

    def kill_server(self) -> None:
        self.server.process.kill()
        self.server.wait()
        self.server = ServerProcess(self.folder, "--api-key", KEY, "--http-port", str(self.port))

    def done(self) -> int:
        """How many batches they have done."""
        found = 0
        for name in self.names:
            try:
                found += Place(self.folder / "root", name).status().progress.batch + 1
            except NotFound:
                pass
        return found

    def until(self, what: Callable[[], bool], seconds: float = PATIENCE_SEC) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, [self.done(), self.worker and self.worker.poll()]
            assert self.worker is not None
            if self.worker.poll() is not None and not what():
                raise AssertionError(f"the worker ended with {self.worker.returncode}")
            time.sleep(0.1)

    def finish(self) -> None:
        assert self.worker is not None
        assert self.worker.wait(PATIENCE_SEC) == 0
        assert self.server.stop() == 0

    def close(self) -> None:
        if self.worker is not None and self.worker.poll() is None:
            os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait()
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.wait()


def rows_of(folder: Path, name: str) -> list[Any]:
    from deltalake import DeltaTable

    found: list[Any] = DeltaTable(str(folder / "root" / "lake" / name)).to_pyarrow_table().to_pylist()
    return found


def check(scene: Scene, held: list[Any], copied: list[Any]) -> None:
    """What an undisturbed run gives."""
    table = rows_of(scene.folder, "orders")
    assert Counter(row["n"] for row in table) == Counter(n for n in range(ROWS) if n % 10)
    assert len({(row["partition"], row["offset"]) for row in table}) == len(table)
    assert Counter(row["n"] for row in held) == Counter(range(0, ROWS, 10))
    if "counts" in scene.names:
        counts = {row["rest"]: row["orders"] for row in rows_of(scene.folder, "counts")}
        assert counts == Counter(n % 7 for n in range(ROWS))
    if "copy" in scene.names:
        assert Counter(row["n"] for row in copied) == Counter(range(ROWS))


def disturbed(folder: Path, disturb: Callable[[Scene], None], *names: str) -> None:
    scene = Scene(folder, names)
    try:
        scene.prepare(ROWS)
        scene.start_worker()
        disturb(scene)
        assert scene.worker is not None
        assert scene.worker.wait(PATIENCE_SEC) == 0
        held, copied = documents(scene.world, "held"), documents(scene.world, "copied")
        scene.finish()
        check(scene, held, copied)
    finally:
        scene.close()


def rookery_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rookery", "pipelines", *words, "--root", str(folder / "root")]
    return subprocess.run(command, env=environ(), capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)


def test_one_command_keeps_pipelines_alive_over_the_deaths_of_driver_and_broker(
    tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    need_program("java")
    scene = Scene(tmp_path, ("table",))
    folder, place = tmp_path / "files", Place(tmp_path / "root", "table")
    folder.mkdir()
    scene.files[0].rename(folder / "table.yaml")
    (folder / "bad.yaml").write_text("source: {stream: orders}\nsinc: {table: x}\n")
    try:
        scene.prepare(ROWS // 2)
        command = [sys.executable, "-m", "rookery", "pipelines", "up", str(folder), "--root", str(tmp_path / "root")]
        scene.worker = subprocess.Popen(command, env=environ(), start_new_session=True)
        scene.until(lambda: scene.done() >= 2)
        first = place.status().pid
        os.kill(first, signal.SIGKILL)
        before = scene.done()
        scene.until(lambda: place.status().pid != first and scene.done() > before)
        scene.kill_server()
        publish(scene.world, "orders", [{"n": n} for n in range(ROWS // 2, ROWS)])
        scene.until(lambda: len(rows_of(tmp_path, "orders")) >= ROWS - ROWS // 10)

        shown = rookery_command(tmp_path, "status", "--json")
        states = {row["name"]: row for row in json.loads(shown.stdout)}
        assert states["table"]["state"] == "running"
        assert (states["bad"]["state"], "bad.yaml:2: sinc" in states["bad"]["error"]["message"]) == ("failed", True)
        assert rookery_command(tmp_path, "reset", "table", "--yes").returncode == 5
        stopped = rookery_command(tmp_path, "stop", "table", "--wait", "5m")
        assert (stopped.returncode, stopped.stdout) == (0, "table is stopped\n")
        scene.worker.terminate()
        # a file of the folder is bad, and the exit code says so
        assert scene.worker.wait(PATIENCE_SEC) == 1
        check(scene, documents(scene.world, "held"), [])
        assert rookery_command(tmp_path, "reset", "table", "--yes").returncode == 0
        assert place.identity() is None
        assert scene.server.stop() == 0
    finally:
        scene.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_deaths_at_any_moment_change_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    def disturb(scene: Scene) -> None:
        for _ in range(3):
            before = scene.done()
            more = chance.randrange(1, 6)
            scene.until(lambda: scene.done() >= min(before + more, 18))  # noqa: B023  called at once
            time.sleep(chance.random())
            if chance.random() < 0.6:
                scene.kill_worker(with_java=chance.random() < 0.5)
                scene.start_worker()
            else:
                scene.kill_server()

    disturbed(tmp_path, disturb, "table", "counts", "copy")

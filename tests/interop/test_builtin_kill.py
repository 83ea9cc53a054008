"""Driver and broker die at chosen moments of the built-in pipelines: what they leave is that of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rookery
from rookery.lake.insights import ARCHIVE, BUILTIN
from rookery.lake.pipelines import Place
from rookery.pipelines.builtin import letters
from rookery.pipelines.builtin.archive import Archive
from rookery.pipelines.builtin.jobs import ARCHIVING, LIFECYCLE
from rookery.pipelines.builtin.lifecycle import BRONZE, JOURNEYS, OPEN
from rookery.pipelines.builtin.replay import Folder
from rookery.pipelines.builtin.tables import gold_tables
from rookery.spark.session import QUICK_FLAGS
from tests.interop.pipeline_world import write
from tests.interop.server import ServerProcess
from tests.interop.spark_process import CLASSES
from tests.interop.spark_world import KEY, World
from tests.interop.test_builtin_pipelines import run, settle, snapshots_told
from tests.interop.test_lifecycle import SMALL, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 60
RECORDS = 600
PATIENCE_SEC = 500
TABLES = (BRONZE, JOURNEYS, OPEN, *(each.name for each in gold_tables()))
VICTIMS = ("driver", "broker")
PAST = """
source: {stream: orders, startingOffsets: earliest}
transform:
  - sql: SELECT CAST(value AS STRING) AS said, partition, offset FROM {input}
sink: {table: past}
engine: {master: "local[1]"}
"""

Moment = Callable[[Path], Callable[[], bool]]
"""Given the root when it begins to be waited for, says whether it has come."""


def committed(table: Path) -> Moment:
    """A table got one more version."""

    def begin(root: Path) -> Callable[[], bool]:
        log = root / table / "_delta_log"
        before = len(list(log.glob("*.json")))
        # the first version is that of the empty table
        return lambda: len(list(log.glob("*.json"))) > max(before, 1)

    return begin


def staged(table: Path) -> Moment:
    """Rows of a table are being written, and are not in it yet."""

    def begin(root: Path) -> Callable[[], bool]:
        stage = root / table / "_stage"
        return lambda: any(stage.glob("*/*/*"))

    return begin


def planned(name: str) -> Moment:
    """Spark has noted what a batch reads."""

    def begin(root: Path) -> Callable[[], bool]:
        folder = root / "pipelines" / name / "checkpoints"
        before = len(list(folder.glob("*/offsets/[0-9]*")))
        return lambda: len(list(folder.glob("*/offsets/[0-9]*"))) > before

    return begin


def chosen(root: Path) -> Callable[[], bool]:
    """Records that will be replayed are being written down."""
    folder = Folder(root, "again").rows
    return lambda: folder.exists()


def published(chunks: int) -> Moment:
    """So many chunks of a replay are told to be done."""

    def begin(root: Path) -> Callable[[], bool]:
        def come() -> bool:
            found = Folder(root, "again").load()
            return found is not None and found.chunks_done >= chunks

        return come

    return begin


LIFECYCLE_MOMENTS: tuple[Moment, ...] = (
    planned(LIFECYCLE),
    staged(BUILTIN / BRONZE),
    committed(BUILTIN / BRONZE),
    staged(BUILTIN / "queue_stats"),
    committed(BUILTIN / "dlq_summary"),
    committed(BUILTIN / JOURNEYS),
    committed(BUILTIN / OPEN),
)


class Scene:
    """A broker that can be killed and comes back at its address, and a process that can be killed beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        CLASSES.mkdir(parents=True, exist_ok=True)
        (self.root / "cache").symlink_to(CLASSES)
        self.server = ServerProcess(folder, "--api-key", KEY)
        self.world = World(self.server.http)
        self.driver: subprocess.Popen[bytes] | None = None
        self._words: list[str] = []

    def start(self, *words: str) -> None:
        """Start a driver, or the same again."""
        self._words = list(words) or self._words
        environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1]), "ROOKERY_API_KEY": KEY}
        # starts of Java matter more here than how fast it gets
        settings = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
        environ |= {
            "PYSPARK_SUBMIT_ARGS": f"{settings} --driver-memory 1g pyspark-shell",
            "JAVA_TOOL_OPTIONS": QUICK_FLAGS,
        }
        environ["ROOKERY_URL"] = self.world.url
        self.driver = subprocess.Popen(
            [sys.executable, "-m", *self._words], cwd=self.folder, env=environ, start_new_session=True
        )

    def start_worker(self, name: str) -> None:
        words = ["rookery.pipelines.worker", "--root", str(self.root), "--once", "--endpoint", self.world.url]
        self.start(*words, "--master", "local[2]", f"builtin:{name}")

    def kill(self, victim: str) -> None:
        if victim == "driver":
            self._kill_driver()
            self.start()
        else:
            self.server.process.kill()
            self.server.wait()
            self.server = ServerProcess(self.folder, "--api-key", KEY, "--http-port", str(self.world.port))

    def _kill_driver(self) -> None:
        assert self.driver is not None
        # Java is in its group
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()

    def disturb(self, victim: str, moments: tuple[Moment, ...]) -> None:
        """Kill at one moment after the other, and let what was started come to its end."""
        for number, moment in enumerate(moments):
            come = moment(self.root)
            deadline = time.monotonic() + PATIENCE_SEC
            while not come():
                assert self.driver is not None
                assert time.monotonic() < deadline, number
                code = self.driver.poll()
                if code is not None and not come():
                    assert code != 0, f"it ended before moment {number}"
                    # Spark's own processes may not come up in their time on a slow machine
                    self.start()
                time.sleep(0.002)
            self.kill(victim)
        self.finish()

    def finish(self) -> None:
        """Let the driver end well; one that gave up on its broker is started again, as a person would."""
        deadline = time.monotonic() + PATIENCE_SEC
        assert self.driver is not None
        while self.driver.wait(PATIENCE_SEC) != 0:
            assert time.monotonic() < deadline
            self.start()

    def told(self) -> list[Any]:
        """How far the stream of events goes."""
        found: list[Any] = self.world.call("GET", "/streams/rookery.events")["partitions"]
        return [row["end"] for row in found]

    def close(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self._kill_driver()
        if self.server.process.poll() is None:
            self.server.process.kill()
            self.server.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@pytest.fixture
def small(spark: SparkSession) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def traffic(world: World) -> None:
    world.call("PUT", "/queues/jobs", {"max_attempts": 2})
    world.call("POST", "/queues/jobs/messages", [{"message": {"n": n}} for n in range(MESSAGES)])
    settle(world, "jobs", (["ack"] * 4 + ["reject"]) * 10)
    snapshots_told(world, ["jobs", "jobs.DLQ"])


def end_as_undisturbed(spark: SparkSession, scene: Scene, calm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables, the groups of dead letters and the plan for them are those of a run that nobody disturbed."""
    while True:
        # a broker that was killed tells its counts anew, maybe while the first of the two runs has read it all
        before = scene.told()
        run(spark, scene.world, scene.root, LIFECYCLE, monkeypatch)
        run(spark, scene.world, calm, LIFECYCLE, monkeypatch)
        if scene.told() == before:
            break
    for table in TABLES:
        assert rows(scene.root / BUILTIN / table) == rows(calm / BUILTIN / table), table
    assert len(rows(calm / BUILTIN / JOURNEYS)) == 50
    found, expected = letters.groups(scene.root, "default"), letters.groups(calm, "default")
    assert found == expected
    assert sum(group.messages for group in found) == 10


@pytest.mark.usefixtures("small")
def test_the_lifecycle_survives_the_death_of_its_driver_between_two_tables(
    spark: SparkSession, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.root / "builtin.yaml").write_text("lifecycle: {batch_rows: 150}\n")
    traffic(scene.world)
    scene.start_worker(LIFECYCLE)
    scene.disturb("driver", (committed(BUILTIN / "dlq_summary"),))
    end_as_undisturbed(spark, scene, tmp_path / "calm", monkeypatch)


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("victim", VICTIMS)
def test_lifecycle_and_dead_letters_survive(
    spark: SparkSession, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    (scene.root / "builtin.yaml").write_text("lifecycle: {batch_rows: 15}\n")
    traffic(scene.world)
    scene.start_worker(LIFECYCLE)
    scene.disturb(victim, LIFECYCLE_MOMENTS)
    end_as_undisturbed(spark, scene, tmp_path / "calm", monkeypatch)


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_archive_survives(
    spark: SparkSession, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    (scene.root / "builtin.yaml").write_text("archive: {batch_rows: 60}\n")
    scene.world.stream("orders", RECORDS, 2)
    scene.world.stream("other", 100)
    scene.start_worker(ARCHIVING)
    orders, other = ARCHIVE / "orders", ARCHIVE / "other"
    scene.disturb(victim, (planned(ARCHIVING), staged(orders), committed(orders), staged(other), committed(other)))
    calm = tmp_path / "calm"
    run(spark, scene.world, calm, ARCHIVING, monkeypatch)
    for stream, count in (("orders", RECORDS), ("other", 100)):
        found, expected = (rows(Archive(str(root / ARCHIVE)).path(stream)) for root in (scene.root, calm))
        assert found == expected
        assert len(found) == count


def letters_of(world: World, queue: str) -> list[Any]:
    found: list[Any] = world.call("GET", f"/queues/{queue}/messages?limit=1000")["messages"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("pause_sec", [0.3, 0.6, 1.2])
def test_a_plan_for_dead_letters_is_followed_once(scene: Scene, victim: str, pause_sec: float) -> None:
    world = scene.world
    world.call("PUT", "/queues/jobs", {"max_attempts": 1})
    world.call("POST", "/queues/jobs/messages", [{"message": n} for n in range(900)])
    claimed = world.call("POST", "/queues/jobs/claim", {"max": 900, "lease_ms": 600_000})["deliveries"]
    refused = [
        {"lease": row["lease"], "outcome": "reject", "reason": f"no stock of item {n}"} for n, row in enumerate(claimed)
    ]
    world.call("POST", "/queues/jobs/settle", {"settle": refused})
    before = sorted(letter["message_id"] for letter in letters_of(world, "jobs.DLQ"))
    deaths = [
        letters.Group(
            "default", "jobs", "rejected", "no stock of item #", "jobs", 900, 0, 1 << 50, [], 0, "redrive", ""
        )
    ]
    letters.write_plan(letters.propose(deaths, "default"), scene.folder / "plan.json")
    scene.start("rookery", "dead-letters", "redrive", "--plan", "plan.json")
    time.sleep(pause_sec)
    scene.kill(victim)
    scene.finish()
    # whoever died may have done all, some or nothing of it
    scene.start("rookery", "dead-letters", "redrive", "--plan", "plan.json")
    scene.finish()
    assert sorted(message["message_id"] for message in letters_of(world, "jobs")) == before
    assert letters_of(world, "jobs.DLQ") == []


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("target", ["stream", "queue"])
def test_a_replay_survives(scene: Scene, victim: str, target: str) -> None:
    world = scene.world
    world.stream("orders", RECORDS, 2)
    world.call("PUT", f"/{target}s/copy", {})
    words = ["orders", "--to", f"{target}:copy", "--rate", "300", "--id", "again", "--master", "local[1]"]
    scene.start("rookery", "replay", *words, "--root", str(scene.root))
    scene.disturb(victim, (chosen, published(1), published(4), published(9)))
    if target == "stream":
        values = world.values("copy")
    else:
        assert world.ready("copy", RECORDS) == RECORDS
        values = [str(message["message"]) for message in letters_of(world, "copy")]
    # each once, and in the order of its partition
    numbers = [int(value.removeprefix("m")) for value in values]
    for partition in range(2):
        assert [n for n in numbers if n % 2 == partition] == list(range(partition, RECORDS, 2))


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_backfill_survives(scene: Scene, victim: str) -> None:
    scene.world.stream("orders", RECORDS, 2)
    file = write(scene.folder, scene.world, PAST, "past")
    scene.start("rookery", "pipelines", "backfill", str(file), "--root", str(scene.root))
    job = Place(scene.root, "past").folder / "backfills"
    moments: tuple[Moment, ...] = (lambda _: lambda: any(job.glob("*.json")), staged(Path("lake") / "past"))
    scene.disturb(victim, moments)
    found = rows(scene.root / "lake" / "past")
    assert sorted(json.loads(row["said"]) for row in found) == sorted(f"m{n}" for n in range(RECORDS))
    scene.start()
    scene.finish()
    assert rows(scene.root / "lake" / "past") == found

"""Each row exactly once, whatever is killed: drivers, executors, the broker, attempts of tasks, between any two steps.

Every job copies a stream in micro-batches through a shuffle into another stream. Wherever it was stopped, in the end
the rows that are seen are as many as the distinct ones, and those that are expected.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.spark_driver import run
from tests.interop.spark_gate import Broker, Stop, committing, gated, reading, staging
from tests.interop.spark_process import Driver, driving, until_there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.interop.spark_world import World

BATCH = 90
BATCHES = 4
ROWS = BATCH * BATCHES

long = pytest.mark.long


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "server").mkdir()
    with gated(tmp_path / "server") as made:
        made.world.stream("in", ROWS, 2)
        made.world.stream("out", partitions=2)
        yield made


def job(world: World, folder: Path, **more: Any) -> dict[str, Any]:
    told = {"source": "in", "target": "out", "rows": BATCH, "checkpoint": str(folder / "checkpoint")}
    return {"do": "copy", "here": world.here, **told, **more}


def check(world: World, target: str = "out", rows: int = ROWS) -> None:
    """Visible = distinct = expected, and nothing is left of those who lost."""
    found = [value.strip() for value in world.values(target)]
    assert len(found) == len(set(found)) == rows
    assert set(found) == {f'"m{i}"' for i in range(rows)}
    assert world.call("GET", "/chunks")["chunks"] == []


DRIVER_POINTS = ("in a task", "staged", "before the commit", "after the commit")


def kill_driver(broker: Broker, driver: Driver, folder: Path, point: str, batch: int) -> Stop | None:
    """Kill it at a point of a micro-batch; what is held of it at the gate."""
    world = broker.world
    if point == "in a task":
        trouble = {"batch": batch, "do": "wait", "folder": str(folder)}
        driver.send(**job(world, folder, trouble=trouble))
        until_there(folder / "wait")
        driver.kill()
        (folder / "wait").rename(folder / f"wait-{batch}")
        return None
    patterns = {
        "staged": (staging(batch), "answer"),
        "before the commit": (committing(batch), "request"),
        "after the commit": (committing(batch), "answer"),
    }
    pattern, when = patterns[point]
    stop = broker.gate.stop(pattern, when)  # type: ignore[arg-type]
    driver.send(**job(world, folder))
    stop.wait()
    driver.kill()
    return stop


@pytest.mark.parametrize(
    "kills",
    [
        [("after the commit", 1)],
        pytest.param([(point, batch) for batch in (0, 1, 3) for point in DRIVER_POINTS], marks=long),
    ],
    ids=["one", "all"],
)
def test_drivers_are_killed(broker: Broker, tmp_path: Path, need_java: str, kills: list[tuple[str, int]]) -> None:
    held = []
    for point, batch in kills:
        with driving(tmp_path, "local[2]") as driver:
            held.append(kill_driver(broker, driver, tmp_path, point, batch))
    with driving(tmp_path, "local[2]") as driver:
        driver.run(**job(broker.world, tmp_path))
    check(broker.world)
    # the dead drivers' commits arrive after all: they are too late
    for stop in held:
        if stop is not None:
            stop.release()
    assert broker.world.call("GET", "/streams/out")["partitions"]
    check(broker.world)


BROKER_POINTS = ("read", "stage, unheard", "stage, unanswered", "commit, unheard", "commit, unanswered")


@pytest.mark.parametrize(
    "kills",
    [
        [("stage, unheard", 0), ("commit, unanswered", 1)],
        pytest.param([(point, batch) for batch in (0, 1, 3) for point in BROKER_POINTS], marks=long),
    ],
    ids=["two", "all"],
)
def test_the_broker_is_killed(
    spark: SparkSession, broker: Broker, tmp_path: Path, kills: list[tuple[str, int]]
) -> None:
    stops = []
    for point, batch in kills:
        pattern = {
            "read": reading(batch * BATCH // 2, BATCH // 2),
            "stage": staging(batch),
            "commit": committing(batch),
        }
        stops.append(
            broker.gate.stop(pattern[point.partition(",")[0]], "answer" if "unanswered" in point else "request")
        )

    def restart() -> None:
        for stop in stops:
            stop.wait()
            broker.restart()
            stop.cut()

    killer = threading.Thread(target=restart)
    killer.start()
    assert "error" not in run(spark, job(broker.world, tmp_path))
    killer.join()
    check(broker.world)
    assert all(stop.reached() for stop in stops)


BATCH_NUMBERS = [1, pytest.param(0, marks=long), pytest.param(3, marks=long)]


@pytest.mark.parametrize("batch", BATCH_NUMBERS)
def test_a_task_fails(cluster: Driver, broker: Broker, tmp_path: Path, batch: int) -> None:
    cluster.run(**job(broker.world, tmp_path, trouble={"batch": batch, "do": "fail", "folder": str(tmp_path)}))
    assert (tmp_path / "fail").exists()
    check(broker.world)


@pytest.mark.parametrize("batch", BATCH_NUMBERS)
def test_an_executor_is_killed(cluster: Driver, broker: Broker, tmp_path: Path, batch: int) -> None:
    cluster.send(**job(broker.world, tmp_path, trouble={"batch": batch, "do": "wait", "folder": str(tmp_path)}))
    os.kill(until_there(tmp_path / "wait")["executor"], signal.SIGKILL)
    assert "error" not in cluster.result()
    check(broker.world)


@pytest.mark.parametrize("batch", BATCH_NUMBERS)
def test_an_attempt_is_overtaken_and_comes_after_the_commit(
    cluster: Driver, broker: Broker, tmp_path: Path, batch: int
) -> None:
    stop = broker.gate.stop(staging(batch, 0, 0), "request")
    cluster.send(**job(broker.world, tmp_path))
    stop.wait()
    assert len(broker.world.values("out")) % BATCH == 0
    # the attempt is held up, so another one is started, wins, and all batches are done
    assert "error" not in cluster.result()
    assert broker.gate.saw(staging(batch, 0, 1))
    check(broker.world)
    stop.release()
    check(broker.world)

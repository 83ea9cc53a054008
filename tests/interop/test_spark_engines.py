"""The same job on every engine that the pip package can start gives the same results, the connector brought along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.server import serving
from tests.interop.spark_cluster import EXECUTORS, connect_server
from tests.interop.spark_driver import run as run_job
from tests.interop.spark_process import Driver, driving
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        made = World(server.http)
        made.stream("in", ROWS, 4)
        yield made
        assert server.stop() == 0


def jobs(world: World, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    target = world.stream(folder.name, partitions=2)
    told = {"here": world.here, "source": "in", "rows": 150, "target": target, "checkpoint": str(folder / "checkpoint")}
    return {"do": "copy", **told}, {"do": "count", **told, "source": target}


def check(world: World, target: str, copied: dict[str, Any], counted: dict[str, Any]) -> None:
    """What the job comes to, worked out by hand."""
    assert "error" not in counted | copied, counted | copied
    assert copied["batches"] >= 3
    assert sorted(value.strip() for value in world.values(target)) == sorted(f'"m{i}"' for i in range(ROWS))
    sums = {rest: [i for i in range(ROWS) if i % 7 == rest] for rest in range(7)}
    assert counted["rows"] == [[rest, len(found), sum(found)] for rest, found in sums.items()]


def run(driver: Driver, world: World, folder: Path) -> None:
    copying, counting = jobs(world, folder)
    copied, counted = driver.run(**copying), driver.run(**counting)
    check(world, copying["target"], copied, counted)
    # executors have the connector that was brought to them, whatever is installed where they are
    for place in counted["places"]:
        assert ".zip" in place, place


def test_local(spark: SparkSession, world: World, tmp_path: Path) -> None:
    copying, counting = jobs(world, tmp_path)
    check(world, copying["target"], run_job(spark, copying), run_job(spark, counting))


def test_local_cluster(world: World, tmp_path: Path, need_java: str) -> None:
    with driving(tmp_path, "local-cluster[2,1,1024]", **EXECUTORS) as driver:
        run(driver, world, tmp_path)


def test_standalone(cluster: Driver, world: World, tmp_path: Path) -> None:
    run(cluster, world, tmp_path)


def test_connect(world: World, tmp_path: Path, need_java: str) -> None:
    with connect_server(tmp_path) as address, driving(tmp_path, address) as driver:
        run(driver, world, tmp_path)

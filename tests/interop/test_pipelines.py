"""Pipelines run against a real server: what their files say is what comes out, each row once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rookery.pipelines import lake
from rookery.pipelines.jobs import PipelineJob
from rookery.pipelines.runner import Runner
from rookery.pipelines.spec import load
from rookery.store.pipelines import Place, Status
from tests.interop.pipeline_world import documents, publish, write
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


def run(spark: SparkSession, path: Path, root: Path) -> Status:
    return Runner(PipelineJob(load(path)), root, spark, once=True).run()


def test_rows_go_to_a_table_once_and_bad_ones_into_quarantine(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.stream("orders", partitions=2)
    world.stream("held")
    publish(world, "orders", [{"id": i, "region": None if i % 5 == 0 else f"r{i % 2}"} for i in range(20)])
    path = write(
        tmp_path,
        world,
        """
source: {stream: orders, startingOffsets: earliest}
transform:
  - sql: |
      SELECT get_json_object(CAST(value AS STRING), '$.id')::INT AS id,
             get_json_object(CAST(value AS STRING), '$.region') AS region
      FROM {input}
expect:
  - {name: has_region, check: region IS NOT NULL, on_fail: quarantine}
  - {name: not_seven, check: id <> 7, on_fail: drop}
quarantine: {stream: held}
sink: {table: orders, partitionBy: [region]}
""",
    )
    status = run(spark, path, tmp_path)
    assert (status.state, status.error, status.progress.total_rows) == ("finished", None, 20)
    assert status.progress.failed_expectations == {"has_region": 4, "not_seven": 1}
    assert status.progress.lag == 0
    table = Place(tmp_path, "p").table("orders")
    good = sorted(row.id for row in lake.read(spark, table).collect())
    assert good == [i for i in range(20) if i % 5 and i != 7]
    assert sorted(row["id"] for row in documents(world, "held")) == [0, 5, 10, 15]
    publish(world, "orders", [{"id": 100, "region": "r9"}, {"id": 101}])
    assert run(spark, path, tmp_path).progress.total_rows == 22
    assert sorted(row.id for row in lake.read(spark, table).collect()) == [*good, 100]
    assert len(world.values("held")) == 5
    assert world.lag("orders", "pipeline-p") == 0

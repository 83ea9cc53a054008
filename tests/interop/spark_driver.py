"""A driver of Spark in a process of its own, which tests can kill: jobs come as lines of JSON, and so do their results.

The rows of a job pass a shuffle and `interfere`, which fails or waits in a chosen task of a chosen micro-batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_SEC = 400
WIDTH = 100
"""How wide rows are, so that a task stages several chunks of the smallest size."""


def interfere(trouble: dict[str, Any] | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What a task does with its rows: passes them on, and where there is trouble half of them first."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        batch = int(task.getLocalProperty("streaming.sql.batchId") or -1)
        found = list(batches)
        for number, each in enumerate(found):
            if trouble and number == len(found) // 2 and trouble["batch"] == batch and task.partitionId() == 0:
                note = Path(trouble["folder"]) / trouble["do"]
                if not note.exists():
                    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
                    note.with_suffix(".new").write_text(
                        json.dumps({"executor": int(stat.rpartition(")")[2].split()[1])})
                    )
                    note.with_suffix(".new").rename(note)
                    if trouble["do"] == "fail":
                        raise RuntimeError("out of paper")
                    while not note.with_suffix(".over").exists():
                        time.sleep(0.05)
            yield each

    return pass_on


def copying(spark: SparkSession, job: dict[str, Any]) -> DataFrame:
    """The source of a job as values in the order of a shuffle."""
    reader = spark.readStream.format("rookery").options(**job["here"], subscribe=job["source"])
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=job["rows"]).load()
    wide = frame.selectExpr(f"rpad(cast(value AS string), {WIDTH}, ' ') AS value")
    return wide.repartition(3).mapInArrow(interfere(job.get("trouble")), "value string")


def copy(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Copy a stream to another, to its end unless there is another trigger; how many micro-batches there were."""
    writer = copying(spark, job).writeStream.format("rookery").options(**job["here"], topic=job["target"])
    writer = writer.options(maxBatchBytes="1k", checkpointLocation=job["checkpoint"])
    query = writer.trigger(**job.get("trigger", {"availableNow": True})).start()
    query.awaitTermination()
    progress = query.lastProgress
    return {"batches": 0 if progress is None else progress["batchId"] + 1}


def count(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """A table of a stream: how many rows there are of each remainder, their sum, and where the connector came from."""
    table = spark.read.format("rookery").options(**job["here"], subscribe=job["source"], minPartitions=4).load()
    numbers = table.selectExpr("cast(regexp_extract(cast(value AS string), '[0-9]+', 0) AS bigint) AS n")
    rows = numbers.groupBy((numbers.n % 7).alias("k")).agg({"*": "count", "n": "sum"}).orderBy("k").collect()

    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        import rookery

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"at": [str(rookery.__file__)]})

    places = spark.range(4).repartition(4).mapInArrow(where, "at string").collect()
    return {"rows": [list(row) for row in rows], "places": sorted({row["at"] for row in places})}


def pipeline(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Run a pipeline's file once; how it ended."""
    from rookery.pipelines.jobs import PipelineJob
    from rookery.pipelines.runner import Runner
    from rookery.pipelines.spec import load

    os.environ.update(job["environ"])
    status = Runner(PipelineJob(load(job["file"])), job["root"], spark, once=True).run()
    return {"state": status.state, "failure": status.error and status.error.message}


JOBS = {"copy": copy, "count": count, "pipeline": pipeline}


def run(spark: SparkSession, job: dict[str, Any]) -> dict[str, Any]:
    """Do a job, again when a worker of Spark took more than the ten seconds that Spark gives it to start."""
    deadline = time.monotonic() + PATIENCE_SEC
    while True:
        try:
            return JOBS[job["do"]](spark, job)
        except Exception as error:  # noqa: BLE001  Spark wraps what it has to say in several ways
            said = f"{type(error).__name__}: {error}"
            if "failed to connect back" not in said or time.monotonic() > deadline:
                return {"error": said}


def main() -> None:
    import rookery.spark

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    spark = rookery.spark.session(
        first["master"], profile="test", class_cache=first["class_cache"], **first["settings"]
    )
    print(json.dumps({"ready": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(run(spark, job)), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

"""A pipeline over the past: everything between two positions of its streams, as one job that happens once.

The positions are resolved when the job is first started and written down under its id; started again, after a failure
or by mistake, it is the same job, and sinks that have it already take nothing.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.errors import InvalidArgument
from rookery.lake.pipelines import Place
from rookery.pipelines import frames
from rookery.pipelines.ends import make_ready
from rookery.pipelines.spec import Pipeline
from rookery.pipelines.writing import Writer, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Backfill:
    """A job: from where to where each source is read, as `{"stream": {"partition": offset}}`."""

    id: str
    start: dict[str, dict[str, dict[str, int]]]
    stop: dict[str, dict[str, dict[str, int]]]

    @property
    def rows(self) -> int:
        """How many records are between."""
        return sum(
            until - self.start[source][stream][partition]
            for source, streams in self.stop.items()
            for stream, partitions in streams.items()
            for partition, until in partitions.items()
        )


def prepare(
    pipeline: Pipeline, root: str | Path, *, start: str = "earliest", stop: str = "latest", id: str = ""
) -> Backfill:
    """The job between two positions: earliest, latest, a time, or offsets as JSON. One with this id is as it was."""
    folder = Place(root, pipeline.name).folder / "backfills"
    if id and (folder / f"{id}.json").exists():
        found = json.loads((folder / f"{id}.json").read_text())
        return Backfill(id, found["start"], found["stop"])
    begins: dict[str, Any] = {}
    ends: dict[str, Any] = {}
    for name, source in pipeline.sources.items():
        if source.table:
            continue
        if "queue" in source.options:
            raise InvalidArgument("a queue has no past to be read again: only streams have", argument="source")
        begins[name], ends[name] = _resolved(pipeline, source.options, start, stop)
    text = json.dumps({"start": begins, "stop": ends}, sort_keys=True)
    what = [text, pipeline.fingerprint, [step.sql or step.function for step in pipeline.steps], pipeline.sink.target]
    made = id or hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    if "/" in made or made.startswith("."):
        raise InvalidArgument(f"{made!r} is no id", argument="id")
    folder.mkdir(parents=True, exist_ok=True)
    # whole or not at all: a job that was killed is found again by its id
    fresh = folder / f"{made}.new"
    fresh.write_text(text)
    fresh.replace(folder / f"{made}.json")
    return Backfill(made, begins, ends)


def _resolved(pipeline: Pipeline, options: Any, start: str, stop: str) -> tuple[Any, Any]:
    from rookery.spark.offsets import EARLIEST, LATEST, as_json
    from rookery.spark.options import source_options
    from rookery.spark.reading import StreamTable
    from rookery.spark.schema import table_schema

    chosen = {key: value for key, value in options.items() if not key.startswith("starting")}
    said = {**pipeline.connection(), **chosen, **_position("starting", start), **_position("ending", stop)}
    read = source_options(said)
    table = StreamTable(read, table_schema(("offset",)))
    with closing(table.client):
        bounds = table.bounds()
        return as_json(table.start(bounds, EARLIEST)), as_json(table.stop(bounds, LATEST))


def _position(which: str, text: str) -> dict[str, str]:
    """The option for what a person says: a word, offsets or a time."""
    if text in ("earliest", "latest") or text.startswith("{"):
        return {f"{which}Offsets": text}
    return {f"{which}Timestamp": text}


def run(pipeline: Pipeline, root: str | Path, spark: SparkSession, job: Backfill) -> None:
    """Do it. The pipeline itself may be running meanwhile."""
    place = Place(root, pipeline.name)
    ranges = {
        name: {"startingOffsets": json.dumps(job.start[name]), "endingOffsets": json.dumps(job.stop[name])}
        for name in job.start
    }
    frame = frames.build(spark, pipeline, frames.batch(spark, pipeline, place, ranges))
    check(pipeline, frame)
    make_ready(pipeline)
    Writer.of(pipeline, place, f"{pipeline.name}-backfill-{job.id}")(frame, 0)

"""What can be known of a pipeline before it runs: whether Spark accepts its steps, what comes out, and its plan."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.lake.pipelines import Place
from rookery.pipelines import frames
from rookery.pipelines.spec import Pipeline
from rookery.pipelines.writing import check, message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Plan:
    """Columns with their types: of each source, of the rows, of what goes to the sink; and how Spark will make it."""

    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    physical: str = ""


def validate(pipeline: Pipeline) -> None:
    """Check what needs no session and no broker, beyond what reading the file has checked: functions."""
    for step in pipeline.steps:
        if step.function:
            frames.function(pipeline, step)


def plan(pipeline: Pipeline, root: str | Path, spark: SparkSession) -> Plan:
    """Have Spark look at the whole pipeline over tables without rows. Needs no broker."""
    read = frames.empty(spark, pipeline, Place(root, pipeline.name))
    frame = frames.build(spark, pipeline, read)
    check(pipeline, frame)
    rows = frame.drop(frames.FAILED)
    sent = message(rows, pipeline.sink)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        sent.explain()
    sources = {name: _columns(read(name, source)) for name, source in pipeline.sources.items()}
    return Plan(sources, _columns(rows), _columns(sent), shown.getvalue().strip())


def _columns(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema}

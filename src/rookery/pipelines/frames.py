"""What Spark makes of a pipeline: its sources as tables, its steps one after the other, its expectations.

The same code builds the running stream, the batch of a backfill and the empty tables over which `plan` asks Spark
whether all of it fits. Nothing here is of one engine: no contexts, no temporary views.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import InvalidPipeline
from rookery.lake.pipelines import Place
from rookery.pipelines import lake
from rookery.pipelines.spec import INPUT, Pipeline, Source, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAILED: Final = "_failed"
"""The column with the names of the expectations that a row fails, of those with quarantine."""

OBSERVED: Final = "expectations"

Reader = Callable[[str, Source], "DataFrame"]


def streaming(spark: SparkSession, pipeline: Pipeline, place: Place) -> Reader:
    """Sources as they grow, and tables as they are now."""

    def read(name: str, source: Source) -> DataFrame:
        if source.table:
            return lake.read(spark, place.table(source.table))
        options = {"consumerGroup": f"pipeline-{pipeline.name}", **pipeline.connection(), **source.options}
        return spark.readStream.format("rookery").options(**options).load()

    return read


def batch(spark: SparkSession, pipeline: Pipeline, place: Place, ranges: Mapping[str, Mapping[str, str]]) -> Reader:
    """Sources between two positions; `ranges` has the options that say which, by the name of the source."""

    def read(name: str, source: Source) -> DataFrame:
        if source.table:
            return lake.read(spark, place.table(source.table))
        chosen = {key: value for key, value in source.options.items() if not key.startswith("starting")}
        options: dict[str, Any] = {**pipeline.connection(), **chosen, **ranges[name]}
        options.pop("consumerGroup", None)
        return spark.read.format("rookery").options(**options).load()

    return read


def empty(spark: SparkSession, pipeline: Pipeline, place: Place) -> Reader:
    """Sources without rows. Needs no broker."""
    from rookery.spark.options import source_options
    from rookery.spark.schema import table_schema

    def read(name: str, source: Source) -> DataFrame:
        if source.table:
            return lake.read(spark, place.table(source.table)).limit(0)
        known = {key: value for key, value in pipeline.broker.items() if key != "tokenEnv"}
        options = source_options({**known, **source.options})
        return spark.createDataFrame([], table_schema(options.columns, options.include_headers, options.include_value))

    return read


def build(spark: SparkSession, pipeline: Pipeline, read: Reader) -> DataFrame:
    """The rows for the sink; with expectations that put rows into quarantine, also the column `_failed`."""
    tables = {}
    for name, source in pipeline.sources.items():
        tables[name] = _told(pipeline, source.line, f"source {name}", partial(read, name, source))
    for number, step in enumerate(pipeline.steps, 1):
        what = f"step {number} ({'sql' if step.sql else 'python'})"
        made = _told(pipeline, step.line, what, partial(_apply, spark, pipeline, step, tables))
        tables[INPUT] = made
        if step.name:
            tables[step.name] = made
    return _expected(pipeline, tables[INPUT])


def _told(pipeline: Pipeline, line: int, what: str, make: Callable[[], DataFrame]) -> DataFrame:
    """Have a part made, and tell its error with the line of the file."""
    from pyspark.errors import PySparkException

    try:
        made = make()
        # Spark Connect looks at a plan only when it is asked about it
        assert made.columns is not None
        return made
    except InvalidPipeline:
        raise
    except PySparkException as error:
        raise InvalidPipeline(f"{pipeline.file}:{line}: {what}: {_first(str(error))}") from error
    except Exception as error:
        raise InvalidPipeline(
            f"{pipeline.file}:{line}: {what}: {type(error).__name__}: {_first(str(error))}"
        ) from error


def _first(text: str) -> str:
    """What Spark says, without the plan and the trace behind it."""
    kept: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(("JVM stacktrace", "'Project", "== ", "\tat ", "+-")) or (kept and line.startswith(";")):
            break
        kept.append(line.rstrip(";"))
    return "\n".join(kept).strip()


def _apply(spark: SparkSession, pipeline: Pipeline, step: Step, tables: Mapping[str, DataFrame]) -> DataFrame:
    if step.sql:
        named: dict[str, Any] = {name: frame for name, frame in tables.items() if f"{{{name}}}" in step.sql}
        made = spark.sql(step.sql, **named)
    else:
        from pyspark.sql import DataFrame

        call = function(pipeline, step)
        _send_along(pipeline, step.function.partition(":")[0])
        made = call(tables[INPUT], dict(step.params))
        if not isinstance(made, DataFrame):
            raise TypeError(f"{step.function} must return a DataFrame, not {type(made).__name__}")
    return made.withWatermark(*step.watermark) if step.watermark else made


def function(pipeline: Pipeline, step: Step) -> Callable[[DataFrame, dict[str, Any]], DataFrame]:
    """The function of a step: from an installed package, or a module beside the file of the pipeline."""
    module, _, name = step.function.partition(":")
    beside = str(Path(pipeline.file).resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidPipeline(
            f"{pipeline.file}:{step.line}: {error}: put {module.partition('.')[0]}.py beside the file, or install it"
        ) from None
    made = getattr(found, name, None)
    if not callable(made):
        raise InvalidPipeline(f"{pipeline.file}:{step.line}: {module} has no function {name}")
    return made  # type: ignore[no-any-return]


def _send_along(pipeline: Pipeline, module: str) -> None:
    """Executors do not have what is beside the file, so what of it they need is sent with the plan."""
    from pyspark import cloudpickle

    found = sys.modules[module]
    if str(getattr(found, "__file__", "")).startswith(str(Path(pipeline.file).resolve().parent)):
        cloudpickle.register_pickle_by_value(found)  # type: ignore[no-untyped-call]


def _expected(pipeline: Pipeline, frame: DataFrame) -> DataFrame:
    """Rows that fail an expectation are dropped, or marked for quarantine, or end the query; all are counted."""
    from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it

    if not pipeline.expectations:
        return frame
    failed = {}
    for each in pipeline.expectations:
        holds = F.coalesce(F.expr(each.check), F.lit(False))
        _told(pipeline, each.line, f"expectation {each.name}", partial(frame.where, holds))
        failed[each.name] = ~holds
    for each in pipeline.expectations:
        if each.on_fail == "fail":
            message = f"{pipeline.file}:{each.line}: a row fails the expectation {each.name}: {each.check}"
            frame = frame.where(
                F.when(failed[each.name], F.raise_error(F.lit(message)).cast("boolean")).otherwise(True)
            )
    counts = [F.count_if(failed[each.name]).alias(each.name) for each in pipeline.expectations]
    frame = frame.observe(OBSERVED, *counts)
    marks = [F.when(failed[each.name], each.name) for each in pipeline.expectations if each.on_fail == "quarantine"]
    dropped = [failed[each.name] for each in pipeline.expectations if each.on_fail == "drop"]
    # marked before others are dropped: a row that fails both is dropped
    if marks:
        frame = frame.withColumn(FAILED, F.array_compact(F.array(*marks)))
    for fails in dropped:
        frame = frame.where(~fails)
    return frame

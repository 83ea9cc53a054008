"""Where the rows of a pipeline go: each micro-batch once, under the identity of the pipeline and the batch's number.

The broker and the lake both refuse a number that they have seen, so a batch with two targets, rows and quarantine, is
run again until both have it, and neither has it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rookery.errors import InvalidPipeline
from rookery.lake.pipelines import Place
from rookery.pipelines import lake
from rookery.pipelines.frames import FAILED
from rookery.pipelines.spec import Pipeline, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGE: Final = (
    "key",
    "headers",
    "routing_key",
    "topic",
    "priority",
    "expiration_ms",
    "delay_ms",
    "message_id",
    "correlation_id",
    "content_type",
)
"""With `format: json`, the columns that are not part of the value but of the message around it."""


@dataclass(frozen=True)
class Writer:
    """Writes one batch. It is sent to wherever Spark runs it, so it holds plain values only."""

    name: str
    sink: Sink
    quarantine: Sink | None
    broker: Mapping[str, str]
    tables: Mapping[str, str]
    app: str

    @classmethod
    def of(cls, pipeline: Pipeline, place: Place, app: str) -> Writer:
        sinks = [each for each in (pipeline.sink, pipeline.quarantine) if each is not None and each.kind == "table"]
        tables = {each.target: str(place.table(each.target)) for each in sinks}
        quarantine = pipeline.quarantine if any(e.on_fail == "quarantine" for e in pipeline.expectations) else None
        return cls(pipeline.name, pipeline.sink, quarantine, pipeline.connection(), tables, app)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if self.quarantine is None:
            self._write(self.sink, message(frame, self.sink), self.app, batch)
            return
        # both targets are to see the same rows, and the steps are to run once
        frame = frame.persist()
        try:
            held = self._held(frame.where(f"size({FAILED}) > 0"))
            self._write(self.quarantine, held, f"{self.app}-quarantine", batch)
            good = frame.where(f"size({FAILED}) = 0").drop(FAILED)
            self._write(self.sink, message(good, self.sink), self.app, batch)
        finally:
            frame.unpersist()

    def _held(self, frame: DataFrame) -> DataFrame:
        """Rows as they are put into quarantine: as JSON, with the reason."""
        from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it

        assert self.quarantine is not None
        row = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns if name != FAILED)))
        reasons = F.col(FAILED)
        if self.quarantine.kind == "table":
            return frame.select(F.lit(self.name).alias("pipeline"), reasons.alias("expectations"), row.alias("row"))
        said = {"x-pipeline": F.lit(self.name), "x-expectations": F.array_join(reasons, ",")}
        headers = [
            F.struct(F.lit(key).alias("key"), value.cast("binary").alias("value")) for key, value in said.items()
        ]
        return frame.select(
            row.alias("value"), F.array(*headers).alias("headers"), F.lit("application/json").alias("content_type")
        )

    def _write(self, sink: Sink, frame: DataFrame, app: str, batch: int) -> None:
        if sink.kind != "table":
            options = broker_options(self.broker, sink, producerId=app, epoch=str(batch))
            frame.write.format("rookery").mode("append").options(**options).save()
            return
        table = self.tables[sink.target]
        if sink.mode == "merge":
            lake.merge(frame, table, app, batch, keys=sink.keys, partition_by=sink.partition_by)
        elif sink.mode == "replace":
            lake.replace(frame, table, app, batch, partition_by=sink.partition_by)
        else:
            lake.append(frame, table, app, batch, partition_by=sink.partition_by)


def broker_options(broker: Mapping[str, str], sink: Sink, **identity: str) -> dict[str, str]:
    """The options of Spark's sink; what batches are known by is of use only where each is to happen once."""
    known = {} if sink.options.get("exactlyOnce", "").lower() == "false" else identity
    return {**broker, **sink.options, sink.kind: sink.target, **known}


def message(frame: DataFrame, sink: Sink) -> DataFrame:
    """The rows as messages: with `format: json` their columns are an object in `value`."""
    from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it

    if not sink.json:
        return frame
    kept = [name for name in frame.columns if name in MESSAGE]
    inside = [F.col(f"`{name}`") for name in frame.columns if name not in MESSAGE]
    made = frame.select(F.to_json(F.struct(*inside)).alias("value"), *kept)
    return made if "content_type" in kept else made.withColumn("content_type", F.lit("application/json"))


def check(pipeline: Pipeline, frame: DataFrame) -> None:
    """Raise unless rows like these fit the sink."""
    from rookery.errors import InvalidArgument
    from rookery.spark.options import sink_options
    from rookery.spark.sink import check_rows

    sink = pipeline.sink
    rows = frame.drop(FAILED)
    here = f"{pipeline.file}:{sink.line}: sink"
    if sink.kind == "table":
        for name in (*sink.keys, *sink.partition_by):
            if name not in rows.columns:
                raise InvalidPipeline(f"{here}: there is no column {name!r}; there are {', '.join(rows.columns)}")
        return
    known = {key: value for key, value in pipeline.broker.items() if key != "tokenEnv"}
    try:
        check_rows(sink_options({**known, sink.kind: sink.target}), message(rows, sink).schema)
    except InvalidArgument as error:
        hint = "" if sink.json else "; `format: json` makes a JSON object of the columns"
        raise InvalidPipeline(f"{here}: {error}{hint}") from None

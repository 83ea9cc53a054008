"""What a runner runs: a job, which starts one streaming query. A pipeline's file is one; those built in are others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rookery.lake.pipelines import Place
from rookery.pipelines import frames
from rookery.pipelines.ends import make_ready
from rookery.pipelines.spec import Engine, Pipeline, Restart, Trigger
from rookery.pipelines.writing import Writer, broker_options, check, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Job(Protocol):
    """`start` begins the query with the checkpoint of the place; `app` is its identity at sinks."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> str: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def trigger(self) -> Trigger: ...

    @property
    def restart(self) -> Restart: ...

    @property
    def fingerprint(self) -> str: ...

    def start(self, spark: SparkSession, place: Place, app: str, *, once: bool) -> StreamingQuery: ...


@dataclass(frozen=True)
class PipelineJob:
    """A pipeline as its file describes it."""

    pipeline: Pipeline

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def file(self) -> str:
        return str(self.pipeline.file)

    @property
    def engine(self) -> Engine:
        return self.pipeline.engine

    @property
    def trigger(self) -> Trigger:
        return self.pipeline.trigger

    @property
    def restart(self) -> Restart:
        return self.pipeline.restart

    @property
    def fingerprint(self) -> str:
        return self.pipeline.fingerprint

    def start(self, spark: SparkSession, place: Place, app: str, *, once: bool) -> StreamingQuery:
        pipeline, sink = self.pipeline, self.pipeline.sink
        make_ready(pipeline)
        frame = frames.build(spark, pipeline, frames.streaming(spark, pipeline, place))
        check(pipeline, frame)
        writer = Writer.of(pipeline, place, app)
        if sink.kind == "table" or writer.quarantine is not None:
            query = frame.writeStream.foreachBatch(writer)
        else:
            options = broker_options(pipeline.connection(), sink, producerId=app)
            query = message(frame, sink).writeStream.format("rookery").options(**options)
        query = query.outputMode(sink.output_mode).queryName(pipeline.name)
        return triggered(query.option("checkpointLocation", str(place.checkpoint)), self.trigger, once).start()


def triggered(query: DataStreamWriter, trigger: Trigger, once: bool) -> DataStreamWriter:
    """The query with its trigger; `once` is all that is available, and then an end."""
    if once or trigger.available_now:
        return query.trigger(availableNow=True)
    return query.trigger(processingTime=f"{trigger.interval_ms} milliseconds")

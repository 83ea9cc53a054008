"""The built-in pipelines as jobs of a runner, and what of them can be set: `builtin.yaml` in the root of pipelines.

lifecycle: {interval: 10s, keep_days: 90, sla: [{queue: "orders%", end_to_end_ms: 5000}]}
archive: {interval: 30s, pattern: "orders|payments", keep_days: 0}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import InvalidArgument
from rookery.lake.insights import ARCHIVE, BUILTIN
from rookery.pipelines.builtin.archive import Archive
from rookery.pipelines.builtin.care import Care
from rookery.pipelines.builtin.gold import SLICE
from rookery.pipelines.builtin.lifecycle import BRONZE, JOURNEYS, OPEN, Lifecycle
from rookery.pipelines.builtin.tables import SLA, gold_tables
from rookery.pipelines.document import Value, read
from rookery.pipelines.jobs import triggered
from rookery.pipelines.spec import ENDPOINT, Engine, Restart, Trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rookery.lake.pipelines import Place

SETTINGS: Final = "builtin.yaml"
EVENTS: Final = "rookery.events"
BATCH_ROWS: Final = 500_000
ENGINE: Final = Engine(conf={"spark.sql.shuffle.partitions": "4", "spark.sql.codegen.cache.maxEntries": "1000"})
"""Their tables are small: many tasks would cost more than they bring. What Spark has compiled for a batch serves the
next one, if it is kept: all tables together need more than the hundred plans that are kept otherwise.
"""

KEYS: Final = ("ROOKERY_API_KEY", "API_KEY")
"""Variables that may hold the key with which the broker is read."""


@dataclass(frozen=True)
class Options:
    """What of the built-in pipelines can be set."""

    lifecycle_interval_ms: int = 10_000
    lifecycle_keep_days: int = 90
    lifecycle_batch_rows: int = BATCH_ROWS
    sla: tuple[Mapping[str, Any], ...] = SLA
    archive_interval_ms: int = 30_000
    archive_pattern: str = ".*"
    archive_keep_days: int = 0
    archive_batch_rows: int = BATCH_ROWS


def options(root: Path) -> Options:
    """What the file in the root says, or the defaults where there is none."""
    path = root / SETTINGS
    if not path.exists():
        return Options()
    found = read(path).fields("lifecycle", "archive")
    said = Options()
    if "lifecycle" in found:
        mine = found["lifecycle"].fields("interval", "keep_days", "batch_rows", "sla")
        said = replace(
            said,
            lifecycle_interval_ms=_interval(mine, said.lifecycle_interval_ms),
            lifecycle_keep_days=_number(mine, "keep_days", said.lifecycle_keep_days, 0),
            lifecycle_batch_rows=_number(mine, "batch_rows", said.lifecycle_batch_rows, 1),
            sla=_sla(mine.get("sla")),
        )
    if "archive" in found:
        mine = found["archive"].fields("interval", "keep_days", "batch_rows", "pattern")
        said = replace(
            said,
            archive_interval_ms=_interval(mine, said.archive_interval_ms),
            archive_keep_days=_number(mine, "keep_days", said.archive_keep_days, 0),
            archive_batch_rows=_number(mine, "batch_rows", said.archive_batch_rows, 1),
            archive_pattern=mine["pattern"].text() if "pattern" in mine else said.archive_pattern,
        )
    return said


def _interval(found: Mapping[str, Value], default: int) -> int:
    return found["interval"].duration_ms() if "interval" in found else default


def _number(found: Mapping[str, Value], name: str, default: int, smallest: int) -> int:
    if name not in found:
        return default
    value = found[name].plain()
    if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
        found[name].fail(f"must be a number, at least {smallest}, not {value!r}")
    return int(value)


def _sla(value: Value | None) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return SLA
    rules = tuple(value.plain())
    try:
        gold_tables(rules)
    except InvalidArgument as error:
        value.fail(str(error))
    return rules


@dataclass(frozen=True)
class LifecycleBatch:
    """What is done with a micro-batch of events. Plain values only."""

    tables: Lifecycle
    app: str
    keep_days: int

    def __call__(self, records: DataFrame, batch: int) -> None:
        self.tables.take(records, self.app, batch)
        self.tables.refresh(records.sparkSession)
        for name in (BRONZE, JOURNEYS):
            Care("date", self.keep_days).tend(self.tables.path(name))
        Care("date").tend(self.tables.path(OPEN))
        for table in gold_tables(self.tables.sla):
            Care(SLICE, self.keep_days).tend(self.tables.path(table.name))


@dataclass(frozen=True)
class ArchiveBatch:
    """What is done with a micro-batch of records. Plain values only."""

    tables: Archive
    app: str
    keep_days: int

    def __call__(self, records: DataFrame, batch: int) -> None:
        for stream in self.tables.take(records, self.app, batch):
            Care("date", self.keep_days).tend(self.tables.path(stream))


@dataclass(frozen=True)
class BuiltinJob:
    """A built-in pipeline."""

    name: str
    endpoint: str = ENDPOINT
    engine: Engine = ENGINE
    restart: Restart = field(default_factory=Restart)
    trigger: Trigger = field(default_factory=Trigger)
    file: str = ""
    options: Options = field(default_factory=Options)

    @property
    def fingerprint(self) -> str:
        return self.name

    def start(self, spark: SparkSession, place: Place, app: str, *, once: bool) -> StreamingQuery:
        said = {"endpoint": self.endpoint, "startingOffsets": "earliest", "consumerGroup": self.name}
        said |= {"failOnDataLoss": "false", **_key()}
        write: LifecycleBatch | ArchiveBatch
        if self.name == LIFECYCLE:
            said |= {"subscribe": EVENTS, "columns": "value"}
            said["maxOffsetsPerTrigger"] = str(self.options.lifecycle_batch_rows)
            tables = Lifecycle(str(place.root / BUILTIN), self.options.sla)
            write = LifecycleBatch(tables, app, self.options.lifecycle_keep_days)
        else:
            # a stream may come and go, and what the broker tells of itself is the other pipeline's
            said |= {"subscribePattern": f"(?!{EVENTS}$)(?:{self.options.archive_pattern})"}
            said["maxOffsetsPerTrigger"] = str(self.options.archive_batch_rows)
            write = ArchiveBatch(Archive(str(place.root / ARCHIVE)), app, self.options.archive_keep_days)
        frame = spark.readStream.format("rookery").options(**said).load()
        query = frame.writeStream.foreachBatch(write).queryName(self.name)
        return triggered(query.option("checkpointLocation", str(place.checkpoint)), self.trigger, once).start()


LIFECYCLE: Final = "rookery.lifecycle"
ARCHIVING: Final = "rookery.archive"
NAMES: Final = (LIFECYCLE, ARCHIVING)


def find(name: str, root: str | Path, endpoint: str = "", master: str = "") -> BuiltinJob:
    """The built-in pipeline of that name, as the file in the root has it."""
    if name not in NAMES:
        raise InvalidArgument(f"there is no built-in pipeline {name!r}; there are {', '.join(NAMES)}", argument="name")
    found = options(Path(root))
    interval = found.lifecycle_interval_ms if name == LIFECYCLE else found.archive_interval_ms
    return BuiltinJob(
        name,
        endpoint or ENDPOINT,
        replace(ENGINE, master=master) if master else ENGINE,
        trigger=Trigger(interval_ms=interval),
        options=found,
    )


def _key() -> dict[str, str]:
    return next(({"tokenEnv": name} for name in KEYS if os.environ.get(name)), {})

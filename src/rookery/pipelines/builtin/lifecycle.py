"""From `rookery.events` to tables of what became of messages: bronze, silver and gold, each batch once.

Events go into bronze as they are, each once, also when they come twice. Everything else is made of what was added to
bronze since the table was last written: a table's own commits name the version of bronze up to which it has everything,
so each goes on from there after a crash, and none needs another to be finished. Nothing looks at more than the new
events, the slices of gold they fall into, and the journeys that are open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rookery.pipelines import lake
from rookery.pipelines.builtin import changes, events, gold, journeys
from rookery.pipelines.builtin.tables import SLA, gold_tables, measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP: Final = "rookery.lifecycle"
"""Under this name tables remember how much of bronze they have."""

BRONZE: Final = "lifecycle_events"
JOURNEYS: Final = "message_journeys"
OPEN: Final = "open_journeys"

LANES: Final = 2
"""So many tables are made at a time: while one is planned or committed, another is computed."""

HOUR_MS: Final = 3_600_000
GIVEN_UP_MS: Final = 7 * 24 * HOUR_MS
"""A journey of which nothing was heard for so long is given up."""


@dataclass(frozen=True)
class Lifecycle:
    """The tables in a directory. It holds plain values only, so that it can be sent to wherever Spark runs it."""

    root: str
    sla: Sequence[Mapping[str, Any]] = SLA

    def path(self, table: str) -> Path:
        return Path(self.root) / table

    def take(self, records: DataFrame, app: str, batch: int) -> None:
        """Put the events of a micro-batch into bronze."""
        bronze = self.path(BRONZE)
        if batch <= lake.last_batch(bronze, app):
            return
        found = events.parsed(records)
        lake.append(found, bronze, app, batch, partition_by=("date",), revised=self._without_repeats)

    def _without_repeats(self, found: DataFrame, files: Sequence[lake.StagedFile]) -> DataFrame | None:
        """Events without those that are there twice or already; None when there are none of these, as is usual."""
        bronze = self.path(BRONZE)
        firsts, lasts = zip(*(file.span("event_time_ms") for file in files), strict=True)
        where = f"event_time_ms >= {min(firsts)} AND event_time_ms <= {max(lasts)}"
        known = lake.files(bronze, where)
        if events.are_new([str(file.path) for file in files], known, (min(firsts), max(lasts))):
            return None
        return events.once(found, lake.read(found.sparkSession, bronze, where=where) if known else None)

    def refresh(self, spark: SparkSession) -> int:
        """Bring all other tables up to bronze; the version of bronze that they have then, -1 without any."""
        from pyspark import inheritable_thread_target

        bronze = self.path(BRONZE)
        if not lake.exists(bronze):
            return -1
        stop = changes.version(bronze)
        work: list[Callable[[], None]] = [partial(self._journeys, spark, stop)]
        tables = gold_tables(self.sla)
        starts = {table.name: lake.last_batch(self.path(table.name), APP) for table in tables}
        for start in sorted({each for each in starts.values() if each < stop}):
            added = Added(spark, bronze, start, stop)
            seen = gold.seen(added.events)
            behind = [table for table in tables if starts[table.name] == start]
            work += [partial(self._gold, spark, table, added, table.slices(seen)) for table in behind]
        with ThreadPoolExecutor(LANES, "lifecycle") as pool:
            # each with what Spark knows of this thread: its query, its pool
            for done in [pool.submit(inheritable_thread_target(spark)(each)) for each in work]:
                done.result()
        return stop

    def _gold(self, spark: SparkSession, table: gold.Gold, added: Added, slices: Sequence[str]) -> None:
        path = self.path(table.name)
        old = None
        if lake.exists(path):
            if not slices:
                lake.note(path, APP, added.stop)
                return
            names = ", ".join(f"'{each}'" for each in slices)
            old = lake.read(spark, path, where=f"{gold.SLICE} IN ({names})")
        rows = table.updated(added.events, old).coalesce(1)
        chosen = [{gold.SLICE: each} for each in slices]
        lake.replace(rows, path, APP, added.stop, slices=chosen, partition_by=(gold.SLICE,))

    def _journeys(self, spark: SparkSession, stop: int) -> None:
        """What is settled is written before what is open: a run that died in between is finished first."""
        start = lake.last_batch(self.path(OPEN), APP)
        ahead = lake.last_batch(self.path(JOURNEYS), APP)
        for upto in (ahead, stop):
            if start < upto:
                self._settle(spark, Added(spark, self.path(BRONZE), start, upto))
                start = upto

    def _settle(self, spark: SparkSession, added: Added) -> None:
        done, opened = self.path(JOURNEYS), self.path(OPEN)
        parts = [journeys.fragments(added.events)]
        if lake.exists(opened):
            parts.append(lake.read(spark, opened))
        found = kept = journeys.joined(*parts).persist()
        # full hours: Spark compiles a number in a condition, and each time anew when it is another
        given_up = ((added.last_ms() or 0) - GIVEN_UP_MS) // HOUR_MS * HOUR_MS
        late = self._late(spark, added, given_up)
        if late is None:
            rows = journeys.shown(journeys.settled(found, given_up))
            lake.append(rows.coalesce(1), done, APP, added.stop, partition_by=("date",))
        else:
            mended = journeys.joined(found.join(late, list(journeys.KEY), "left_semi"), late)
            found = found.join(late, list(journeys.KEY), "left_anti")
            rows = journeys.shown(journeys.settled(found, given_up).unionByName(mended))
            lake.merge(rows, done, APP, added.stop, keys=journeys.KEY, partition_by=("date",))
        lake.replace(journeys.still_open(found, given_up).coalesce(1), opened, APP, added.stop)
        kept.unpersist()
        if late is not None:
            late.unpersist()

    def _late(self, spark: SparkSession, added: Added, given_up: int) -> DataFrame | None:
        """Settled journeys of which something more is told now, as the fragments they were made of; None without any.

        Events that are newer than all before them cannot be about settled journeys, but about those given up.
        """
        done = self.path(JOURNEYS)
        before = added.before_ms()
        if before is None or not lake.exists(done):
            return None
        told = f"entered_ms IS NOT NULL AND (event_time_ms <= {before} OR entered_ms < {given_up})"
        keys = added.events.where(told).select(*journeys.KEY).distinct()
        span = keys.selectExpr("min(entered_ms) AS first", "max(entered_ms) AS last").collect()[0]
        if span.first is None:
            return None
        where = f"entered_ms >= {span.first} AND entered_ms <= {span.last}"
        late = journeys.parts(lake.read(spark, done, where=where)).join(keys, list(journeys.KEY), "left_semi").persist()
        if late.take(1):
            return late
        late.unpersist()
        return None


class Added:
    """The events that were added to bronze after version `start`, up to `stop`.

    They are read from their files as often as they are wanted, each time only the columns that are: keeping them at
    hand would cost more.
    """

    def __init__(self, spark: SparkSession, bronze: Path, start: int, stop: int) -> None:
        self._bronze = bronze
        self.stop = stop
        self.files = changes.added(bronze, start, stop)
        self.events = measured(changes.rows(spark, bronze, self.files))

    def last_ms(self) -> int | None:
        """The time of the newest of them."""
        found: int | None = changes.largest(self._bronze, "event_time_ms", self.stop, only=self.files)
        return found

    def before_ms(self) -> int | None:
        """The time of the newest that was there before."""
        found: int | None = changes.largest(self._bronze, "event_time_ms", self.stop, but=self.files)
        return found

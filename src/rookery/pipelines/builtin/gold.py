"""Gold: tables that add up. What events add to a table is joined with what the table has of the same slices.

A table is written down as what one event adds to it: keys, sums, minima, maxima, the last of something, durations, ids
kept as examples. All of these can be joined in any order, so late events are nothing special, and the cost is that of
the new events and of the slices they fall into, never of history. Each event counts once: bronze sees to that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rookery.pipelines.builtin import histograms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SLICE: Final = "slice"
"""The partition of a gold table: the day or hour that its rows are of, as text."""

EXAMPLES_MAX: Final = 5
GRAINS: Final = ("minute", "hour", "day")

_FORMATS: Final = {"hour": "yyyy-MM-dd-HH", "day": "yyyy-MM-dd"}
_WINDOW: Final = "_window"
"""The smallest window that an event falls into."""


@dataclass(frozen=True)
class Cap:
    """How many values of a key have rows of their own in a window, beside the same other keys: those that came first.

    The others share a row. What is in it stays there, so with late events it may depend on their order which values
    those are; sums over all rows never do.
    """

    key: str
    most: int
    first: str
    """The column, one of the minima, that says when a value came."""
    where: str
    """Which rows it is about."""
    others: Mapping[str, str]
    """The keys of the row that the others share."""


@dataclass(frozen=True)
class Gold:
    """One table. The values of the mappings are expressions over an event of one of some kinds.

    A duration is the bucket of a histogram, and counts for as many messages as the event's `weight`.
    """

    name: str
    kinds: tuple[str, ...]
    keys: Mapping[str, str]
    grains: tuple[str, ...]
    where: str = "true"
    each: str = ""
    """An array of the event, for each of whose elements, called `each`, it adds something; else it adds once."""
    sums: Mapping[str, str] = field(default_factory=dict)
    firsts: Mapping[str, str] = field(default_factory=dict)
    mosts: Mapping[str, str] = field(default_factory=dict)
    lasts: Mapping[str, str] = field(default_factory=dict)
    durations: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    """Columns that follow from the others."""
    cap: Cap | None = None
    """For tables without durations."""

    @property
    def slice_grain(self) -> str:
        return max(self.grains, key=GRAINS.index)

    @property
    def key(self) -> tuple[str, ...]:
        return (*self.keys, "grain", "window_start")

    @property
    def plain(self) -> tuple[str, ...]:
        """The columns that are joined one by one."""
        groups = (self.sums, self.firsts, self.mosts, self.lasts, self.examples)
        return tuple(name for group in groups for name in group)

    def slices(self, seen: Iterable[tuple[str, str]]) -> list[str]:
        """The slices that events fall into, of which the hours and kinds are given."""
        hours = {hour for hour, kind in seen if kind in self.kinds}
        return sorted({hour if self.slice_grain == "hour" else hour.rpartition("-")[0] for hour in hours})

    def updated(self, events: DataFrame, old: DataFrame | None) -> DataFrame:
        """The rows of the slices that events fall into: what the table has of them in `old`, and what is added.

        Numbers, what is not a number, and durations are added up over the smallest windows first, each by itself and
        with few columns, so that Spark can do it by hashing; windows are made of smaller ones when little is left.
        """
        from pyspark.sql import functions as f

        kinds = ", ".join(f"'{kind}'" for kind in self.kinds)
        chosen = events.where(f"event_type IN ({kinds}) AND ({self.where})")
        if self.each:
            chosen = chosen.selectExpr("*", f"explode({self.each}) AS each")
        added = self._numbers(chosen)
        if self.lasts or self.examples:
            added = added.unionByName(self._texts(chosen), allowMissingColumns=True)
        rows = self._in_grains(added, *self.plain)
        if old is not None:
            rows = rows.unionByName(old.select(*self.key, *self.plain))
        if self.durations:
            rows = rows.unionByName(self._histograms(chosen, old), allowMissingColumns=True)
        # of each histogram there is one
        spread = [f.expr(f"coalesce(max({name}), array()) AS {name}") for name in self.durations]
        found = rows.groupBy(*self.key).agg(*self._joins(self.plain), *spread)
        return self._finished(found if self.cap is None else self._capped(found, self.cap))

    def _in_grains(self, rows: DataFrame, *columns: str) -> DataFrame:
        """Rows of the smallest windows, for each window that they are part of."""
        grains = ", ".join(f"'{grain}'" for grain in self.grains)
        return rows.selectExpr("*", f"explode(array({grains})) AS grain").selectExpr(
            *self.keys, "grain", f"date_trunc(grain, {_WINDOW}) AS window_start", *columns
        )

    def _grouped_by(self) -> list[str]:
        """What events are added up by first, as expressions."""
        smallest = min(self.grains, key=GRAINS.index)
        window = f"date_trunc('{smallest}', timestamp_millis(event_time_ms)) AS {_WINDOW}"
        return [*(f"{said} AS {name}" for name, said in self.keys.items()), window]

    def _numbers(self, chosen: DataFrame) -> DataFrame:
        numbers = {**self.sums, **self.firsts, **self.mosts}
        said = [f"cast({said} AS BIGINT) AS {name}" for name, said in numbers.items()]
        rows = chosen.selectExpr(*self._grouped_by(), *said)
        return rows.groupBy(*self.keys, _WINDOW).agg(*self._joins(numbers))

    def _texts(self, chosen: DataFrame) -> DataFrame:
        rows = chosen.selectExpr(
            *self._grouped_by(),
            *(f"{said} AS {name}" for name, said in self.lasts.items()),
            *(
                f"array(named_struct('ms', event_time_ms, 'id', {said})) AS {name}"
                for name, said in self.examples.items()
            ),
        )
        names = (*self.lasts, *self.examples)
        told = rows.where(" OR ".join(f"{name} IS NOT NULL" for name in names))
        return told.groupBy(*self.keys, _WINDOW).agg(*self._joins(names))

    def _histograms(self, chosen: DataFrame, old: DataFrame | None) -> DataFrame:
        """The whole histograms of each key: what the table has of them, and the durations of events."""
        from pyspark.sql import functions as f

        pairs = ", ".join(f"'{name}', {said}" for name, said in self.durations.items())
        stacked = f"stack({len(self.durations)}, {pairs}) AS (measure, ms)"
        rows = chosen.selectExpr(*self._grouped_by(), "coalesce(weight, 1L) AS weight", stacked).where("ms IS NOT NULL")
        summed = rows.groupBy(*self.keys, _WINDOW, "measure", "ms").agg(f.expr("sum(weight) AS weight"))
        parts = self._in_grains(summed, "measure", "ms", "weight")
        if old is not None:
            known = ", ".join(f"'{name}', {name}" for name in self.durations)
            kept = old.selectExpr(*self.key, f"stack({len(self.durations)}, {known}) AS (measure, parts)")
            parts = parts.unionByName(kept.selectExpr(*self.key, "measure", "inline(parts)"))
        added = parts.groupBy(*self.key, "measure", "ms").agg(f.expr("sum(weight) AS weight"))
        pair = "named_struct('ms', ms, 'weight', weight)"
        arrays = [
            f.expr(f"sort_array(collect_list(CASE WHEN measure = '{name}' THEN {pair} END)) AS {name}")
            for name in self.durations
        ]
        return added.groupBy(*self.key).agg(*arrays)

    def _capped(self, rows: DataFrame, cap: Cap) -> DataFrame:
        """Rows with those of too many values as one."""
        within = ", ".join(name for name in self.key if name != cap.key)
        place = f"row_number() OVER (PARTITION BY {within} ORDER BY {cap.first}, {cap.key})"
        shared = {name: f"CASE WHEN too_many THEN {said} ELSE {name} END" for name, said in cap.others.items()}
        named = rows.selectExpr("*", f"{place} > {cap.most} AND {cap.where} AS too_many").selectExpr(
            *(f"{shared.get(name, name)} AS {name}" for name in self.key), *self.plain
        )
        return named.groupBy(*self.key).agg(*self._joins(self.plain))

    def _joins(self, names: Collection[str]) -> list[Column]:
        """How these columns are joined."""
        from pyspark.sql import functions as f

        said = {name: f"sum({name})" for name in self.sums}
        said |= {name: f"min({name})" for name in self.firsts}
        said |= {name: f"max({name})" for name in (*self.mosts, *self.lasts)}
        said |= {name: f"slice(sort_array(flatten(collect_list({name}))), 1, {EXAMPLES_MAX})" for name in self.examples}
        return [f.expr(f"{text} AS {name}") for name, text in said.items() if name in names]

    def _finished(self, rows: DataFrame) -> DataFrame:
        """With the columns that follow from the others, and the slice."""
        totals = [f"{histograms.total(name)} AS {name}_n" for name in self.durations]
        quantiles = [f"{histograms.quantiles(name, f'{name}_n')} AS {name}_q" for name in self.durations]
        found = rows.selectExpr("*", *totals).selectExpr("*", *quantiles) if self.durations else rows
        return found.selectExpr(
            *rows.columns,
            *(f"{name}_n" for name in self.durations),
            *(f"{name}_q.{label} AS {name}_{label}" for name in self.durations for label, _ in histograms.QUANTILES),
            *(f"{said} AS {name}" for name, said in self.shown.items()),
            f"date_format(window_start, '{_FORMATS[self.slice_grain]}') AS {SLICE}",
        )


def seen(events: DataFrame) -> list[tuple[str, str]]:
    """The hours that events are of, as slices are named, and their kinds."""
    # few quarters of an hour are to be named, not each event's; zones differ by quarters
    quarters = events.selectExpr("event_time_ms div 900000 AS quarter", "event_type AS kind").distinct()
    named = quarters.selectExpr(
        f"date_format(timestamp_millis(quarter * 900000), '{_FORMATS['hour']}') AS hour", "kind"
    )
    return sorted((row.hour, row.kind) for row in named.distinct().collect())

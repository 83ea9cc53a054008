"""Filters of a query that a batch read can do itself: fewer offsets, fewer partitions, only some routing keys.

Spark pushes filters down only where `spark.sql.python.filterPushdown.enabled` is set, and fails a reader that could
take them where it is not; so the reader for them is chosen in the process that Spark starts for pushing down.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from rookery.sealed.table import COLUMNS
from rookery.spark.offsets import Place

PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
KEY_BYTES_MAX: Final = 255
TIME_MS_MAX: Final = 10**15

_NEVER_NULL: Final = frozenset(name for name, (_, nullable) in COLUMNS.items() if not nullable)


def is_pushing() -> bool:
    """Whether this process was started to push filters down."""
    return PUSHING in sys.modules


@dataclass
class Limits:
    """What filters leave to be read: offsets and times from … up to, not including; None is no limit."""

    partitions: frozenset[int] | None = None
    streams: frozenset[str] | None = None
    start: int = 0
    stop: int | None = None
    start_ms: int | None = None
    stop_ms: int | None = None
    routing_key: str = ""

    def has(self, place: Place) -> bool:
        stream, partition = place
        return (self.streams is None or stream in self.streams) and (
            self.partitions is None or partition in self.partitions
        )

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Narrow the limits by filters; those that Spark has to look at all the same."""
        return [each for each in filters if not self._take(each)]

    def _take(self, each: Filter) -> bool:
        """Whether everything that a filter refuses is left out."""
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) != 1:
            return False
        name = attribute[0]
        if isinstance(each, IsNotNull):
            return name in _NEVER_NULL
        value = getattr(each, "value", None)
        if name == "offset":
            return self._offset(each, value)
        if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            self._time(each, value)
            return False
        if name in ("partition", "stream"):
            return self._place(name, each, value)
        if name == "routing_key" and isinstance(value, str):
            return self._key(each, value)
        return False

    def _offset(self, each: Filter, value: Any) -> bool:
        values = value if isinstance(each, In) else [value]
        if not values or not all(isinstance(number, int) for number in values):
            return False
        if isinstance(each, EqualTo | In | GreaterThan | GreaterThanOrEqual):
            self.start = max(self.start, min(values) + isinstance(each, GreaterThan))
        if isinstance(each, EqualTo | In | LessThan | LessThanOrEqual):
            stop = max(values) + (not isinstance(each, LessThan))
            self.stop = stop if self.stop is None else min(self.stop, stop)
        return isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)

    def _time(self, each: Filter, value: datetime) -> None:
        """Times of records are whole milliseconds."""
        whole = int(value.timestamp()) * 1000 + value.microsecond // 1000
        inside = value.microsecond % 1000 > 0
        if isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
            start = max(0, whole + (inside or isinstance(each, GreaterThan)))
            self.start_ms = start if self.start_ms is None else max(self.start_ms, start)
        if isinstance(each, EqualTo | LessThan | LessThanOrEqual):
            stop = max(0, whole + (inside or not isinstance(each, LessThan)))
            if stop < TIME_MS_MAX:
                self.stop_ms = stop if self.stop_ms is None else min(self.stop_ms, stop)
        if self.start_ms is not None:
            self.start_ms = min(self.start_ms, TIME_MS_MAX)

    def _place(self, name: str, each: Filter, value: Any) -> bool:
        if not isinstance(each, EqualTo | In):
            return False
        chosen = frozenset(value if isinstance(each, In) else [value])
        if name == "partition":
            self.partitions = chosen if self.partitions is None else self.partitions & chosen
        else:
            self.streams = chosen if self.streams is None else self.streams & chosen
        return True

    def _key(self, each: Filter, value: str) -> bool:
        """One key, or those below a prefix; the pattern for the latter takes a little more than that."""
        if self.routing_key or not value or "*" in value or "#" in value or len(value.encode()) > KEY_BYTES_MAX - 2:
            return False
        if isinstance(each, EqualTo):
            self.routing_key = value
            return True
        words, dot, _ = value.rpartition(".")
        if isinstance(each, StringStartsWith) and dot:
            self.routing_key = f"{words}.#"
        return False

"""Bronze: what `rookery.events` tells, as a table of typed columns, each event once.

Every event about a queue says how long the message had been in it, so when it entered is known from any of them, to the
millisecond: message, queue and that moment name a journey, also where ids repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rookery.core.event_kinds import EVENT_FIELDS, EVENT_KINDS, FieldType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAUGES: Final = ("ready", "delayed", "leased", "dead", "bytes")

WAYS_OUT: Final = tuple(kind.name for kind in EVENT_KINDS if kind.ends_stay)
"""Events after which there is no other of a journey."""

DEATHS: Final = tuple(kind.name for kind in EVENT_KINDS if kind.ends_stay and not kind.ends_lease)
"""Ways out without an ack."""

LEASE_ENDS: Final = tuple(kind.name for kind in EVENT_KINDS if kind.ends_lease)
"""Events that say how long a delivery was worked on."""

STEPS: Final = tuple(kind.name for kind in EVENT_KINDS if kind.in_queue)
"""Events of a message in a queue."""

LOOKED_AT_MAX: Final = 5_000_000
"""How many events are looked at outside of Spark, which is quicker for a batch and what is around it in time."""

_TYPES: Final[Mapping[FieldType, str]] = {
    "text": "STRING",
    "int": "INT",
    "long": "BIGINT",
    "place": "STRUCT<queue: STRING, exchange: STRING, routing_key: STRING>",
    "counts": "MAP<STRING, BIGINT>",
}
EVENT: Final = ", ".join(f"{field.name} {_TYPES[field.type]}" for field in EVENT_FIELDS)
"""The schema of an event, in Spark's words."""


def parsed(records: DataFrame) -> DataFrame:
    """Events from records of the stream (`value`); what is no event is left out.

    Times are timestamps, `entered_ms` is when the message entered its queue, `date` is the day of the event.
    """
    # a condition on columns of the result would be moved below it, and have every value parsed again for each of them
    told = "event_id IS NOT NULL AND event.event_type IS NOT NULL AND event.event_time_ms IS NOT NULL"
    event = f"from_json(cast(value AS STRING), '{EVENT}')"
    found = records.selectExpr(f"inline(filter(array({event}), event -> event.{told}))")
    return found.selectExpr(
        "*",
        f"CASE WHEN event_type IN {STEPS!r} AND queue IS NOT NULL THEN event_time_ms - coalesce(latency_ms, 0) END "
        "AS entered_ms",
        "to_date(timestamp_millis(event_time_ms)) AS date",
    )


def are_new(files: Sequence[str], known: Sequence[str], span: tuple[int, int]) -> bool:
    """Whether no event is twice in some files, nor in the known ones, of which those in a span of time may count.

    Where they are too many to be looked at here, they are not said to be.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    fresh, old = ds.dataset(list(files)), ds.dataset(list(known))
    if fresh.count_rows() + old.count_rows() > LOOKED_AT_MAX:
        return False
    ids = fresh.to_table(columns=["event_id"])
    if known:
        within = (ds.field("event_time_ms") >= span[0]) & (ds.field("event_time_ms") <= span[1])
        ids = pa.concat_tables([ids, old.to_table(columns=["event_id"], filter=within)])
    return bool(pc.count_distinct(ids["event_id"]).as_py() == ids.num_rows)


def once(events: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """The events without repetitions, and without those that are `known` already."""
    fresh = events.dropDuplicates(["event_id"])
    return fresh if known is None else fresh.join(known.select("event_id"), "event_id", "left_anti")

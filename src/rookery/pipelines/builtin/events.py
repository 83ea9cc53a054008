"""Bronze: what `rookery.events` tells, as a table of typed columns, each event once.

Every event about a queue says how long the message had been in it, so when it entered is known from any of them, to the
millisecond: message, queue and that moment name a journey, also where ids repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTERS: Final = (
    "published",
    "dead_lettered_in",
    "moved_in",
    "restored",
    "delivered",
    "redelivered",
    "acked",
    "retried",
    "released",
    "rejected",
    "lapsed",
    "expired",
    "dead_lettered",
    "dropped",
    "purged",
    "moved_out",
    "refused",
)
"""The counters of a queue in a snapshot, as `core.snapshots` has them."""

GAUGES: Final = ("ready", "delayed", "leased", "dead", "bytes")

WAYS_OUT: Final = ("acked", "expired", "dead_lettered", "dropped")
"""Events after which there is no other of a journey."""

STEPS: Final = ("delivered", "retried", "released", "lapsed", *WAYS_OUT)
"""Events of a message in a queue."""

LOOKED_AT_MAX: Final = 5_000_000
"""How many events are looked at outside of Spark, which is quicker for a batch and what is around it in time."""

_EVENT: Final = (
    "event_id STRING, event_type STRING, event_time_ms BIGINT, schema_version INT, "
    "tenant STRING, exchange STRING, routing_key STRING, queue STRING, consumer STRING, message_id STRING, "
    "size_bytes BIGINT, delivery_count INT, weight BIGINT, reached BIGINT, latency_ms BIGINT, process_ms BIGINT, "
    "reason STRING, dlq_source STRUCT<queue: STRING, exchange: STRING, routing_key: STRING>, "
    "ready BIGINT, delayed BIGINT, leased BIGINT, dead BIGINT, bytes BIGINT, "
    "counters MAP<STRING, BIGINT>, changes MAP<STRING, BIGINT>, dropped_events BIGINT"
)


def parsed(records: DataFrame) -> DataFrame:
    """Events from records of the stream (`value`); what is no event is left out.

    Times are timestamps, `entered_ms` is when the message entered its queue, `date` is the day of the event.
    """
    # a condition on columns of the result would be moved below it, and have every value parsed again for each of them
    told = "event_id IS NOT NULL AND event.event_type IS NOT NULL AND event.event_time_ms IS NOT NULL"
    event = f"from_json(cast(value AS STRING), '{_EVENT}')"
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

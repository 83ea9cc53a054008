"""Bronze: what `rookery.events` tells, as a table of typed columns, each event once.

Every event about a queue says how long the message had been in it, so when it entered is known from any of them, to the
millisecond: message, queue and that moment name a journey, also where ids repeat.
"""

from __future__ import annotations

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
    found = records.selectExpr(f"from_json(cast(value AS STRING), '{_EVENT}') AS event").selectExpr("event.*")
    return found.where("event_id IS NOT NULL AND event_type IS NOT NULL AND event_time_ms IS NOT NULL").selectExpr(
        "*",
        f"CASE WHEN event_type IN {STEPS!r} AND queue IS NOT NULL THEN event_time_ms - coalesce(latency_ms, 0) END "
        "AS entered_ms",
        "to_date(timestamp_millis(event_time_ms)) AS date",
    )


def once(events: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """The events without repetitions, and without those that are `known` already."""
    fresh = events.dropDuplicates(["event_id"])
    return fresh if known is None else fresh.join(known.select("event_id"), "event_id", "left_anti")

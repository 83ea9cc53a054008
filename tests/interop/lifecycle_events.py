"""Events as the broker tells them, made by hand: a small world of messages whose tables are known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = 1_788_264_000_000
"""2026-09-01 12:00 UTC."""


class Teller:
    """Tells events, numbered in order."""

    def __init__(self, epoch: int = 1) -> None:
        self.rows: list[dict[str, Any]] = []
        self._epoch = epoch

    def tell(self, kind: str, at: int, **said: Any) -> None:
        base = {"event_id": f"{self._epoch}-{len(self.rows)}", "schema_version": 1, "tenant": "acme"}
        self.rows.append({**base, "event_type": kind, "event_time_ms": NOON + at, **said})

    def message(self, id: str, queue: str, *, entered: int, key: str = "orders.new", weight: int = 1) -> Told:
        self.tell(
            "published",
            entered,
            exchange="shop",
            routing_key=key,
            message_id=id,
            size_bytes=100,
            delivery_count=0,
            weight=weight,
            reached=1,
        )
        return Told(self, id, queue, entered, key, weight)


class Told:
    """One message in one queue."""

    def __init__(self, teller: Teller, id: str, queue: str, entered: int, key: str, weight: int) -> None:
        self._teller = teller
        self._entered = entered
        self._delivered = 0
        self._attempts = 0
        self._said = {
            "exchange": "shop",
            "routing_key": key,
            "queue": queue,
            "message_id": id,
            "size_bytes": 100,
            "weight": weight,
        }

    def delivered(self, at: int, consumer: str = "ann") -> Told:
        self._attempts += 1
        self._delivered = at
        self._tell("delivered", at, consumer=consumer)
        return self

    def ended(self, kind: str, at: int, consumer: str | None = "ann", reason: str | None = None) -> Told:
        worked = 0 if kind in ("dead_lettered", "expired", "dropped") else at - self._delivered
        self._tell(kind, at, consumer=consumer, process_ms=worked, reason=reason)
        return self

    def _tell(self, kind: str, at: int, **said: Any) -> None:
        latency = {"delivery_count": self._attempts, "latency_ms": at - self._entered}
        self._teller.tell(kind, at, **self._said, **latency, **said)


def golden() -> list[dict[str, Any]]:
    """Five messages of two queues over a little more than an hour, with every way to end, and exact snapshots."""
    teller = Teller()
    teller.message("m1", "jobs", entered=0).delivered(10).ended("acked", 40)
    second = teller.message("m2", "jobs", entered=1_000, weight=4).delivered(1_020)
    second.ended("retried", 1_520, reason="timeout after 500 ms")
    teller.message("m3", "mail", entered=2_000, key="mail.bad").delivered(2_100, "bob").ended(
        "dead_lettered", 2_300, None, "rejected: no address 'x@y' in order 17"
    )
    teller.message("m4", "mail", entered=3_000, key="mail.late").ended("expired", 63_000, None, "expired")
    teller.tell(
        "unroutable",
        4_000,
        exchange="shop",
        routing_key="nowhere",
        message_id="m6",
        size_bytes=7,
        delivery_count=0,
        weight=2,
        reached=0,
    )
    changes = {"published": 5, "delivered": 2, "acked": 1, "retried": 1}
    teller.tell(
        "snapshot",
        10_000,
        queue="jobs",
        ready=0,
        delayed=1,
        leased=0,
        dead=0,
        bytes=100,
        counters=changes,
        changes=changes,
        dropped_events=0,
    )
    second.delivered(61_000, "bob").ended("acked", 61_400, "bob")
    teller.message("m5", "jobs", entered=3_590_000).delivered(3_600_500).ended("acked", 3_600_600)
    teller.tell(
        "snapshot",
        3_610_000,
        queue="jobs",
        ready=0,
        delayed=0,
        leased=0,
        dead=0,
        bytes=0,
        counters={"published": 6, "delivered": 7, "acked": 6, "retried": 1},
        changes={"published": 1, "delivered": 5, "acked": 5},
        dropped_events=0,
    )
    teller.tell(
        "snapshot",
        3_610_000,
        exchange="shop",
        counters={"published": 9, "unroutable": 2, "bytes": 814},
        changes={"published": 9, "unroutable": 2, "bytes": 814},
    )
    teller.message("m7", "mail", entered=3_611_000).delivered(3_611_050, "bob")
    return teller.rows


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Events as records of the stream."""
    return spark.createDataFrame([(json.dumps(row).encode(),) for row in rows], "value BINARY")

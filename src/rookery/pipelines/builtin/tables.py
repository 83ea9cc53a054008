"""The gold tables of the lifecycle: what each is keyed by and what an event adds to it.

Counts of queues, tenants and exchanges are exact: they come from the snapshots that the broker takes of its meters.
What is told of single messages is a sample above a rate; each stands for `weight` messages, and is counted so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rookery.core.snapshots import COUNTERS
from rookery.errors import InvalidArgument
from rookery.pipelines.builtin.events import DEATHS, GAUGES, LEASE_ENDS, WAYS_OUT
from rookery.pipelines.builtin.gold import Cap, Gold
from rookery.pipelines.builtin.histograms import bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FINE: Final = ("minute", "hour")
COARSE: Final = ("hour", "day")

MEASURES: Final = {
    "queue_ms": "CASE WHEN event_type = 'delivered' AND delivery_count = 1 THEN latency_ms END",
    "process_ms": "CASE WHEN event_type = 'acked' THEN process_ms END",
    "end_to_end_ms": "CASE WHEN event_type = 'acked' THEN latency_ms END",
}
"""How long a message waited for its first delivery, was worked on, and was in its queue in all."""


def measured(events: DataFrame) -> DataFrame:
    """Events with what they say of each measure, and its bucket, which the tables below are made of."""
    said = {f"took_{name}": text for name, text in MEASURES.items()}
    found = events.selectExpr("*", *(f"{text} AS {name}" for name, text in said.items()))
    return found.selectExpr("*", *(f"cast({bucket(name)} AS BIGINT) AS {name}_bucket" for name in said))


def _buckets(*names: str) -> dict[str, str]:
    return {name: f"took_{name}_bucket" for name in names}


SLA: Final[tuple[Mapping[str, Any], ...]] = ({"queue": "%", "end_to_end_ms": 60_000},)
"""What is promised unless something else is configured: a message is done within a minute."""

_SIGNED: Final = (
    r"regexp_replace(regexp_replace(regexp_replace(regexp_replace(trim(regexp_replace(reason, '^[a-z_]+(: )?', '')), "
    r"'[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '#'), "
    r"'0x[0-9a-fA-F]+', '#'), '\'[^\']*\'|\"[^\"]*\"', '#'), '[0-9]+', '#')"
)

REASON: Final = "regexp_extract(reason, '^([a-z_]+)', 1)"
SIGNATURE: Final = f"substring({_SIGNED}, 1, 200)"
"""What was said of a death without what differs from case to case: numbers, ids, quoted texts."""


def _change(name: str) -> str:
    return f"coalesce(changes['{name}'], 0L)"


def _if(condition: str, value: str = "weight") -> str:
    return f"CASE WHEN {condition} THEN {value} ELSE 0L END"


QUEUE_STATS: Final = Gold(
    name="queue_stats",
    kinds=("snapshot", "delivered", "acked"),
    keys={"tenant": "tenant", "queue": "queue"},
    grains=FINE,
    where="queue IS NOT NULL",
    sums={name: _change(name) for name in COUNTERS},
    lasts={
        "last_snapshot": "CASE WHEN event_type = 'snapshot' THEN named_struct('ms', event_time_ms, 'id', event_id, "
        + ", ".join(f"'{name}', {name}" for name in GAUGES)
        + ") END"
    },
    durations=_buckets(*MEASURES),
    shown={name: f"last_snapshot.{name}" for name in GAUGES},
)

_EXCHANGE: Final = "event_type = 'snapshot' AND queue IS NULL"
_QUEUED: Final = ("delivered", *WAYS_OUT)

TENANT_USAGE: Final = Gold(
    name="tenant_usage",
    kinds=("snapshot",),
    keys={"tenant": "tenant"},
    grains=COARSE,
    sums={
        "published": _if(_EXCHANGE, _change("published")),
        "published_bytes": _if(_EXCHANGE, _change("bytes")),
        "unroutable": _if(_EXCHANGE, _change("unroutable")),
        "queued": _if("queue IS NOT NULL", _change("published")),
        **{name: _if("queue IS NOT NULL", _change(name)) for name in _QUEUED},
    },
)

ROUTING_KEYS_MAX: Final = 1_000
"""Routing keys of an exchange, in an hour or day, that have a row of their own: keys may have ids in them."""

ROUTING_STATS: Final = Gold(
    name="routing_stats",
    kinds=("published", "unroutable", "snapshot"),
    keys={
        "tenant": "tenant",
        "exchange": "coalesce(exchange, '')",
        "scope": f"CASE WHEN {_EXCHANGE} THEN 'exchange' ELSE 'key' END",
        "routing_key": f"CASE WHEN {_EXCHANGE} THEN '' ELSE coalesce(routing_key, '') END",
    },
    grains=COARSE,
    where="queue IS NULL",
    sums={
        "published": f"CASE WHEN {_EXCHANGE} THEN {_change('published')} ELSE weight END",
        "unroutable": f"CASE WHEN {_EXCHANGE} THEN {_change('unroutable')} WHEN event_type = 'unroutable' THEN weight "
        "ELSE 0L END",
        "bytes": f"CASE WHEN {_EXCHANGE} THEN {_change('bytes')} ELSE weight * size_bytes END",
        "reached": f"CASE WHEN {_EXCHANGE} THEN 0L ELSE weight * coalesce(reached, 0L) END",
    },
    firsts={"first_seen_ms": "event_time_ms"},
    shown={"fan_out": "CASE WHEN scope <> 'exchange' AND published > 0 THEN reached / cast(published AS DOUBLE) END"},
    cap=Cap(
        "routing_key", ROUTING_KEYS_MAX, "first_seen_ms", "scope = 'key'", {"scope": "'other'", "routing_key": "''"}
    ),
)

CONSUMER_STATS: Final = Gold(
    name="consumer_stats",
    kinds=("delivered", *LEASE_ENDS),
    keys={"tenant": "tenant", "queue": "queue", "consumer": "consumer"},
    grains=FINE,
    where="consumer IS NOT NULL AND queue IS NOT NULL",
    sums={
        "delivered": _if("event_type = 'delivered'"),
        "redelivered": _if("event_type = 'delivered' AND delivery_count > 1"),
        **{name: _if(f"event_type = '{name}'") for name in LEASE_ENDS},
    },
    durations=_buckets("process_ms"),
)

DLQ_SUMMARY: Final = Gold(
    name="dlq_summary",
    kinds=DEATHS,
    keys={
        "tenant": "tenant",
        "queue": "queue",
        "outcome": "event_type",
        "reason": f"coalesce({REASON}, '')",
        "signature": f"coalesce({SIGNATURE}, '')",
        "routing_key": "coalesce(routing_key, '')",
    },
    grains=("day",),
    where="queue IS NOT NULL",
    sums={"messages": "weight"},
    firsts={"first_seen_ms": "event_time_ms"},
    mosts={"last_seen_ms": "event_time_ms", "attempts_max": "delivery_count"},
    examples={"examples": "message_id"},
)

ROUTE_OUTCOMES: Final = Gold(
    name="route_outcomes",
    kinds=("acked", "dead_lettered", "dropped"),
    keys={"tenant": "tenant", "queue": "queue", "routing_key": "coalesce(routing_key, '')"},
    grains=("day",),
    where="queue IS NOT NULL",
    sums={"acked": _if("event_type = 'acked'"), "died": _if("event_type <> 'acked'")},
    mosts={
        "last_acked_ms": "CASE WHEN event_type = 'acked' THEN event_time_ms END",
        "last_died_ms": "CASE WHEN event_type <> 'acked' THEN event_time_ms END",
    },
)
"""What became of messages by queue and routing key: whether what once failed works again."""

GOLD: Final = (QUEUE_STATS, TENANT_USAGE, ROUTING_STATS, CONSUMER_STATS, DLQ_SUMMARY, ROUTE_OUTCOMES)


def sla_breaches(rules: Sequence[Mapping[str, Any]] = SLA) -> Gold:
    """The table of messages that took longer than promised; the first rule whose patterns match a queue counts.

    A rule has `queue`, and maybe `tenant`, as patterns of SQL's LIKE, and any of `queue_ms`, `process_ms` and
    `end_to_end_ms`.
    """
    limits = "CASE " + " ".join(map(_case, rules)) + " END" if rules else "cast(NULL AS MAP<STRING, BIGINT>)"
    took = ", ".join(
        f"named_struct('measure', '{name}', 'took_ms', took_{name}, 'limit_ms', ({limits})['{name}'])"
        for name in MEASURES
    )
    return Gold(
        name="sla_breaches",
        kinds=("delivered", "acked"),
        keys={"tenant": "tenant", "queue": "queue", "measure": "each.measure"},
        grains=FINE,
        where="queue IS NOT NULL",
        each=f"filter(array({took}), one -> one.took_ms > one.limit_ms)",
        sums={"messages": "weight"},
        mosts={"worst_ms": "each.took_ms", "limit_ms": "each.limit_ms"},
        examples={"examples": "message_id"},
    )


def _case(rule: Mapping[str, Any]) -> str:
    """What a rule allows, as a map from measures to milliseconds."""
    unknown = sorted(set(rule) - {"tenant", "queue", *MEASURES})
    if unknown:
        raise InvalidArgument(f"a rule of sla has no {unknown[0]!r}", argument="sla")
    limits = {name: rule[name] for name in MEASURES if rule.get(name) is not None}
    for name, limit in limits.items():
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidArgument(f"{name} of a rule of sla must be a number above 0, not {limit!r}", argument="sla")
    matches = " AND ".join(f"{name} LIKE {_quoted(rule.get(name, '%'))}" for name in ("tenant", "queue"))
    pairs = ", ".join(f"'{name}', {limit}L" for name, limit in limits.items())
    return f"WHEN {matches} THEN cast(map({pairs}) AS MAP<STRING, BIGINT>)"


def _quoted(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"a pattern of a rule of sla must be a text, not {text!r}", argument="sla")
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def gold_tables(sla: Sequence[Mapping[str, Any]] = SLA) -> tuple[Gold, ...]:
    return (*GOLD, sla_breaches(sla))

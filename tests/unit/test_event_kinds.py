"""The tables of events: what the broker writes, what Spark reads and what the tables of the lifecycle are made of."""

from __future__ import annotations

from typing import get_args

import pytest

from rookery.core.event_kinds import EVENT_FIELDS, EVENT_KINDS, Kind, LeaseEnd
from rookery.pipelines.builtin import events as bronze
from rookery.pipelines.builtin.tables import gold_tables
from tests.unit.core_world import World, a_world
from tests.unit.test_events import events, pass_ms, start

world = pytest.fixture(a_world, name="world")

NAMES = tuple(kind.name for kind in EVENT_KINDS)


def live_through_everything(world: World) -> None:
    """Let something happen to messages of every kind."""
    start(world)
    world.tenant.declare_exchange("orders", "topic")
    world.publish(b"x", "nobody", "orders")
    world.queue("graves")
    queue = world.queue("jobs", dead_letter_queue="graves", max_attempts=5)
    for body in (b"acked", b"retried", b"released", b"lapsed", b"dead"):
        world.publish(body)
    acked, retried, released, _, dead = world.shard.claim(queue, 5, 40)
    queue.ack(acked)
    queue.retry(retried, 0, "")
    queue.release(released)
    queue.reject(dead, "")
    pass_ms(world, 60)
    short = world.queue("short", length_max=1)
    world.publish(b"first", "short")
    world.publish(b"second", "short")
    world.publish(b"brief", "graves", ttl_ms=10)
    world.shard.flush()
    pass_ms(world, 20_000)
    assert short.dropped == 1


def test_the_broker_writes_every_kind_with_its_fields_and_no_other(world: World) -> None:
    live_through_everything(world)
    rows = events(world)
    assert {row["event_type"] for row in rows} == set(NAMES)
    allowed = {name: {field.name for field in EVENT_FIELDS if name in field.kinds} for name in NAMES}
    seen: dict[str, set[str]] = {name: set() for name in NAMES}
    for row in rows:
        assert row.keys() <= allowed[row["event_type"]], row
        seen[row["event_type"]] |= row.keys()
    for field in EVENT_FIELDS:
        kinds = {name for name, fields in seen.items() if field.name in fields}
        # only a message that died before has the place where it did
        assert kinds == set(field.kinds) or (field.name == "dlq_source" and kinds <= set(field.kinds)), field.name


def test_the_names_for_type_checkers_are_those_of_the_table() -> None:
    assert get_args(Kind) == NAMES
    assert get_args(LeaseEnd) == tuple(kind.name for kind in EVENT_KINDS if kind.ends_lease)
    assert len(set(NAMES)) == len(NAMES)
    assert len({field.name for field in EVENT_FIELDS}) == len(EVENT_FIELDS)


def test_what_ends_a_lease_or_a_stay_happens_in_a_queue() -> None:
    for kind in EVENT_KINDS:
        assert kind.in_queue or not (kind.ends_lease or kind.ends_stay)
        assert kind.help.endswith(".")


def test_spark_reads_the_fields_of_the_table() -> None:
    columns = [
        column.split()[0] for column in bronze.EVENT.replace("<queue: STRING, exchange: STRING,", "<").split(", ")
    ]
    assert [name for name in columns if name not in ("routing_key:", "BIGINT>")] == [f.name for f in EVENT_FIELDS]
    assert set(bronze.GAUGES) <= {field.name for field in EVENT_FIELDS}


def test_tables_are_made_of_kinds_that_exist() -> None:
    for table in gold_tables():
        assert set(table.kinds) <= set(NAMES), table.name
    assert set(bronze.STEPS) == {*bronze.LEASE_ENDS, *bronze.WAYS_OUT, "delivered"}

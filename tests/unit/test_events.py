"""The stream of events: whole journeys, honest weights, exact snapshots, and no events about itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from rookery.core.events import STREAM, SYSTEM
from rookery.format import properties
from tests.unit.core_world import World, a_world

world = pytest.fixture(a_world, name="world")


def start(world: World, rate_max: int = 1_000) -> None:
    world.shard.events.start(rate_max, {})


def events(world: World, kind: str = "") -> list[dict[str, Any]]:
    """All events so far, after the next tick."""
    pass_ms(world, 100)
    partition = world.shard.tenant(SYSTEM).stream(STREAM).partitions[0]
    rows = [
        msgspec.json.decode(world.shard.message_of(partition.record(o)).body)
        for o in range(partition.first, partition.visible)
    ]
    return [row for row in rows if kind in ("", row["event_type"])]


def pass_ms(world: World, ms: int) -> None:
    world.clock.advance(ms)
    world.shard.turn(world.clock.wall_ms(), world.clock.mono_ms())
    world.shard.flush()


def test_nothing_is_told_unless_it_was_asked_for(world: World) -> None:
    world.queue()
    world.publish(b"x")
    pass_ms(world, 10_000)
    assert SYSTEM not in world.shard.tenants


def test_a_journey_is_told_from_its_beginning_to_its_end(world: World) -> None:
    start(world)
    queue = world.queue()
    message = world.publish(b"hello")
    pass_ms(world, 30)
    (lease,) = world.shard.claim(queue, 1, 60_000)
    pass_ms(world, 20)
    queue.ack(lease)
    told = events(world)
    assert [row["event_type"] for row in told] == ["published", "delivered", "acked"]
    assert {row["message_id"] for row in told} == {world.shard.ids.uuid(message.id)}
    assert len({row["event_id"] for row in told}) == 3
    published, delivered, acked = told
    assert (published["tenant"], published["routing_key"], published["reached"]) == ("acme", "jobs", 1)
    assert (published["size_bytes"], published["weight"]) == (5, 1)
    assert (delivered["queue"], delivered["latency_ms"], delivered["delivery_count"]) == ("jobs", 30, 1)
    assert (acked["latency_ms"], acked["process_ms"]) == (50, 20)


def test_every_way_to_end_has_its_event(world: World) -> None:
    start(world)
    queue = world.queue("jobs", max_attempts=2, dead_letter_queue="graves")
    for way in ("retry", "release", "reject", "lapse"):
        world.publish(way.encode())
        (lease,) = world.shard.claim(queue, 1, 1_000)
        if way == "retry":
            queue.retry(lease, 0, "no luck")
        elif way == "release":
            queue.release(lease)
        elif way == "reject":
            queue.reject(lease, "unfit")
        else:
            pass_ms(world, 1_000)
        queue.purge()
    world.publish(b"late", ttl_ms=10)
    world.publish(b"nowhere", "no such queue")
    pass_ms(world, 10)
    counts = Counter(row["event_type"] for row in events(world))
    assert counts == {
        "published": 5,
        "unroutable": 1,
        "delivered": 4,
        "retried": 1,
        "released": 1,
        "dead_lettered": 2,
        "lapsed": 1,
    }
    assert [row["reason"] for row in events(world, "dead_lettered")] == ["rejected: unfit", "expired"]
    (retried,) = events(world, "retried")
    assert retried["reason"] == "no luck"


def test_above_the_rate_a_sample_of_whole_journeys_counts_for_all(world: World) -> None:
    start(world, rate_max=40)
    queue = world.queue()

    def second(count: int) -> None:
        for _ in range(10):
            for _ in range(count // 10):
                world.publish(b"x")
            for lease in world.shard.claim(queue, count, 60_000):
                queue.ack(lease)
            pass_ms(world, 100)

    second(5_000)
    before = len(events(world, "published"))
    second(5_000)
    second(5_000)
    published = events(world, "published")[before:]
    acked = events(world, "acked")
    assert len(published) < 200
    total = sum(row["weight"] for row in published)
    assert 0.7 * 10_000 < total < 1.3 * 10_000
    told = {row["message_id"] for row in events(world, "published")}
    assert {row["message_id"] for row in acked} == told
    weights: dict[str, set[int]] = {}
    for row in events(world, "published") + acked:
        weights.setdefault(row["message_id"], set()).add(row["weight"])
    assert all(len(weight) == 1 for weight in weights.values())
    assert max(row["weight"] for row in published) >= 128


def test_a_burst_is_sampled_before_its_first_second_is_over(world: World) -> None:
    start(world, rate_max=160)
    world.queue()
    for _ in range(160):
        world.publish(b"calm")
    for _ in range(20_000):
        world.publish(b"burst")
    told = events(world, "published")
    assert [row["weight"] for row in told[:160]] == [1] * 160
    assert len(told) < 320
    assert 0.5 * 20_160 < sum(row["weight"] for row in told) < 1.5 * 20_160


def test_snapshots_are_exact_and_only_of_what_changed(world: World) -> None:
    start(world, rate_max=1)
    queue = world.queue()
    world.queue("idle")
    for _ in range(50):
        world.publish(b"x")
    for lease in world.shard.claim(queue, 20, 60_000):
        queue.ack(lease)
    pass_ms(world, 10_000)
    rows = events(world, "snapshot")
    (jobs,) = [row for row in rows if row.get("queue") == "jobs"]
    assert (jobs["ready"], jobs["counters"]["published"], jobs["counters"]["acked"]) == (30, 50, 20)
    (default,) = [row for row in rows if "queue" not in row]
    assert (default["tenant"], default["exchange"]) == ("acme", "")
    assert default["counters"] == {"published": 50, "unroutable": 0, "bytes": 50}
    pass_ms(world, 10_000)
    assert len(events(world, "snapshot")) == len(rows)
    world.publish(b"xyz")
    pass_ms(world, 10_000)
    queue_row, exchange_row = events(world, "snapshot")[len(rows) :]
    if "queue" in exchange_row:
        queue_row, exchange_row = exchange_row, queue_row
    assert (queue_row["queue"], queue_row["changes"]) == ("jobs", {"published": 1})
    assert exchange_row["changes"] == {"published": 1, "bytes": 3}


def test_what_snapshots_say_has_changed_adds_up_to_the_counters(world: World) -> None:
    start(world, rate_max=1)
    for _ in range(3):
        queue = world.queue()
        for count in (5, 2):
            for _ in range(count):
                world.publish(b"x")
            for lease in world.shard.claim(queue, 2, 60_000):
                queue.ack(lease)
            pass_ms(world, 10_000)
        world.shard.tenant("acme").delete(queue, "deleted")
    summed: Counter[str] = Counter()
    for row in events(world, "snapshot"):
        if "queue" in row:
            summed.update(row["changes"])
    assert summed == {"published": 21, "delivered": 12, "acked": 12}


def test_who_settled_is_told(world: World) -> None:
    start(world)
    queue = world.queue()
    mailbox = world.mailbox(queue, name="ann")
    world.publish(b"x")
    world.turn()
    lease = mailbox.leases[0]
    queue.ack(lease)
    assert [row.get("consumer") for row in events(world)] == [None, "ann", "ann"]


def test_there_are_no_events_about_events(world: World) -> None:
    start(world)
    for _ in range(5):
        pass_ms(world, 10_000)
    assert events(world) == []


def test_without_its_stream_events_are_dropped_and_counted(world: World) -> None:
    start(world)
    world.shard.delete_tenant(SYSTEM)
    world.queue()
    world.publish(b"x")
    pass_ms(world, 100)
    assert world.shard.events.dropped == 1


def test_a_name_that_is_not_utf8_is_told_as_far_as_it_is(world: World) -> None:
    start(world)
    queue = world.queue()
    props = properties.encode(properties.Properties(message_id="m\udcff"))
    world.shard.publish(queue.tenant, "", queue.name, props, b"x")
    world.publish(b"y")
    assert [row["message_id"][:2] for row in events(world, "published")][:1] == ["m�"]
    assert len(events(world, "published")) == 2

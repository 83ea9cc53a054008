"""Snapshots: what is shown is what is so."""

from __future__ import annotations

import json

import pytest

from rookery.core.snapshots import COUNTERS, dead_count, exchange_stats, queue_stats, tenant_stats
from tests.unit.core_world import World, a_world, publish_once

world = pytest.fixture(a_world, name="world")

EMPTY_HISTOGRAM = {
    "count": 0,
    "total_ms": 0,
    "mean_ms": 0.0,
    "p50_ms": 0.0,
    "p95_ms": 0.0,
    "p99_ms": 0.0,
    "buckets": [],
}


def test_an_empty_queue(world: World) -> None:
    stats = queue_stats(world.queue())
    assert stats == {
        "name": "jobs",
        "ready": 0,
        "delayed": 0,
        "leased": 0,
        "dead": 0,
        "published": 0,
        "dead_lettered_in": 0,
        "moved_in": 0,
        "restored": 0,
        "delivered": 0,
        "redelivered": 0,
        "acked": 0,
        "retried": 0,
        "released": 0,
        "rejected": 0,
        "lapsed": 0,
        "expired": 0,
        "dead_lettered": 0,
        "dropped": 0,
        "purged": 0,
        "moved_out": 0,
        "refused": 0,
        "bytes": 0,
        "consumers": 0,
        "waiting_claims": 0,
        "oldest_age_ms": 0,
        "consumer_lag": 0,
        "wait_ms": EMPTY_HISTOGRAM,
        "work_ms": EMPTY_HISTOGRAM,
    }


def test_a_busy_queue(world: World) -> None:
    queue = world.queue(face="http")
    for i in range(7):
        world.publish(b"1234567890", delay_ms=10_000 if i == 6 else 0)
    world.advance(100)
    leases = world.claim(queue, 5)
    world.advance(3)
    for lease, outcome in zip(leases, ["ack", "reject", "release", "retry"], strict=False):
        world.settle(lease, outcome)
    stats = queue_stats(queue)
    shown = {name: stats[name] for name in ("ready", "delayed", "leased", "dead", "consumer_lag", "bytes")}
    assert shown == {"ready": 2, "delayed": 2, "leased": 1, "dead": 1, "consumer_lag": 3, "bytes": 50}
    assert (stats["acked"], stats["rejected"], stats["released"], stats["retried"]) == (1, 1, 1, 1)
    assert (stats["delivered"], stats["dead_lettered"], stats["oldest_age_ms"]) == (5, 1, 103)
    assert stats["wait_ms"]["buckets"] == [[127, 5]]
    assert stats["work_ms"]["mean_ms"] == 3.0
    assert json.loads(json.dumps(stats)) == stats


def test_counts_are_conserved_in_a_snapshot(world: World) -> None:
    queue = world.queue(face="s0", length_max=3)
    world.fill(6)
    world.settle(world.one(queue), "reject")
    world.publish(ttl_ms=5)
    world.advance(5)
    queue.purge()
    world.publish(delay_ms=5)
    stats = queue_stats(queue)
    here = stats["ready"] + stats["delayed"] + stats["leased"]
    left = sum(stats[way] for way in ("acked", "expired", "dead_lettered", "dropped", "purged", "moved_out"))
    assert stats["published"] + stats["dead_lettered_in"] + stats["moved_in"] == here + left == 8


def test_consumers_and_waiting_claims_are_told_apart(world: World) -> None:
    queue = world.queue()
    world.mailbox(queue)
    for _ in range(2):
        world.shard.wait_claim(queue, 1, 1_000)
    stats = queue_stats(queue)
    assert (stats["consumers"], stats["waiting_claims"]) == (1, 2)


def test_dead_counts_what_died_here_and_is_still_buried(world: World) -> None:
    one = world.queue("one", "http", dead_letter_queue="graves")
    two = world.queue("two", "http", dead_letter_queue="graves")
    for queue, count in ((one, 3), (two, 1)):
        for _ in range(count):
            world.publish(key=queue.name)
            world.settle(world.one(queue), "reject")
    graves = world.tenant.queue("graves")
    world.publish(key="graves")
    assert (dead_count(one), dead_count(two), dead_count(graves)) == (3, 1, 0)
    lease = world.one(graves)
    assert dead_count(one) == 3
    world.settle(lease)
    assert dead_count(one) == 2
    graves.purge()
    assert (dead_count(one), dead_count(two)) == (0, 0)
    assert one.dead_lettered == 3


def test_a_queue_without_a_dead_letter_queue_has_no_dead(world: World) -> None:
    world.queue("graves")
    queue = world.queue(dead_letter_exchange="", dead_letter_key="graves")
    world.publish()
    world.settle(world.one(queue), "reject")
    assert dead_count(queue) == 0
    assert dead_count(world.queue("quiet", "http")) == 0


def test_an_exchange(world: World) -> None:
    world.tenant.bind("amq.topic", world.queue(), "a.*")
    world.publish(b"12345", "a.b", "amq.topic")
    world.publish(b"123", "b", "amq.topic")
    assert exchange_stats(world.tenant.exchange("amq.topic")) == {
        "name": "amq.topic",
        "kind": "topic",
        "bindings": 1,
        "published": 2,
        "unroutable": 1,
        "bytes": 8,
    }


def test_a_tenant(world: World) -> None:
    one, two = world.queue("one", "http"), world.queue("two")
    world.tenant.bind("amq.fanout", one, "")
    world.tenant.bind("amq.fanout", two, "")
    world.publish(b"12345", "", "amq.fanout")
    world.settle(world.one(one), "reject")
    for _ in range(2):
        publish_once(world.shard, world.tenant, "", "two", "k", b"\0\0", b"1")
    world.mailbox(two, credit=1)
    stats = tenant_stats(world.tenant)
    totals = stats.pop("totals")
    assert stats == {
        "name": "acme",
        "queues": 3,
        "exchanges": 6,
        "bindings": 2,
        "policies": 0,
        "published": 2,
        "refused": 0,
        "dead_letters_lost": 0,
        "memory_bytes": int(world.tenant.memory_bytes),
        "memory_bytes_max": 0,
        "definition_bytes": int(world.tenant.definition_bytes),
        "dedup_keys": 1,
        "dedup_bytes": world.tenant.dedup.bytes,
        "dedup_duplicates": 1,
        "dedup_evicted": 0,
    }
    rows = [queue_stats(queue) for queue in world.tenant.queues.values()]
    assert set(totals) - {"dead"} >= set(COUNTERS)
    for name, total in totals.items():
        assert total == sum(row[name] for row in rows), name
    assert (totals["ready"], totals["leased"], totals["dead"], totals["consumers"]) == (2, 1, 1, 1)
    assert json.loads(json.dumps(totals)) == totals

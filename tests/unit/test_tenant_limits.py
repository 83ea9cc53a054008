"""What one tenant may have: each limit refuses one more and says its name, and memory of definitions is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rookery.core import definitions, keeping, streams
from rookery.core.groups import group_of
from rookery.core.publishing import Publish
from rookery.core.shard import OPEN_TENANTS_MAX
from rookery.core.staging import Row
from rookery.errors import LimitExceeded, Locked, MemoryLimitExceeded
from rookery.format.properties import EMPTY, Properties, encode
from tests.unit.core_world import World, a_world, publish_once

world = pytest.fixture(a_world, name="world")

MORE: dict[str, Callable[[World, int], object]] = {
    "queues_max": lambda world, i: world.queue(f"q{i}"),
    "streams_max": lambda world, i: streams.declare(world.tenant, f"s{i}", {}),
    "bindings_max": lambda world, i: world.tenant.bind("amq.direct", world.queue("jobs"), "k", {"n": i}),
    "groups_max": lambda world, i: group_of(streams.declare(world.tenant, f"s{i // 2}", {})[0], f"g{i}"),
    "producers_max": lambda world, i: world.shard.staging.commit(world.tenant, f"p{i}", 1, []),
    "transactions_max": lambda world, i: world.shard.transactions.begin(world.tenant, f"t{i}"),
    "kept_topics_max": lambda world, i: keeping.keep(world.tenant, f"topic{i}"),
    "receipts_max": lambda world, i: _receipt(world, i),
}


def _receipt(world: World, i: int) -> None:
    world.tenant.bind("amq.topic", world.queue("jobs"), "#")
    props = encode(Properties(headers={"x-ack-id": f"a{i}", "x-ack-timeout-ms": 1_000}))
    world.tenant.receipts.publish(world.tenant, Publish("amq.topic", "t", props, b"x"), f"a{i}")


@pytest.mark.parametrize("limit", MORE)
def test_one_more_than_a_limit_is_refused_by_name(world: World, limit: str) -> None:
    world.tenant.set_limits({limit: 3})
    for i in range(3):
        MORE[limit](world, i)
    with pytest.raises(LimitExceeded, match=rf"reached its limit of 3 .*\({limit}\)"):
        MORE[limit](world, 3)
    world.tenant.set_limits({limit: 0})
    MORE[limit](world, 4)


def test_another_tenant_is_not_affected_by_producers_of_one(world: World) -> None:
    other = world.shard.create_tenant("other")
    world.shard.staging.commit(other, "p", 7, [])
    world.tenant.set_limits({"producers_max": 5})
    for i in range(5):
        world.shard.staging.commit(world.tenant, f"p{i}", 1, [])
    with pytest.raises(LimitExceeded):
        world.shard.staging.commit(world.tenant, "more", 1, [])
    # one that is known goes on
    world.shard.staging.commit(world.tenant, "p0", 2, [])
    assert world.shard.staging.producers[("other", "p")]["epoch"] == 7
    world.shard.delete_tenant("other")
    assert all(tenant == "acme" for tenant, _ in world.shard.staging.producers)


def test_chunks_are_counted_by_tenant(world: World) -> None:
    other = world.shard.create_tenant("other")
    for tenant in (world.tenant, other):
        tenant.declare_queue("jobs", {}, "embedded")
        for i in range(3):
            world.shard.staging.stage(tenant, f"c{i}", "", "", [Row("jobs", EMPTY, b"x")])
    assert [chunk.id for chunk in world.shard.staging.chunks_of(other)] == ["c0", "c1", "c2"]
    world.shard.staging.drop(other, "c1")
    world.shard.delete_tenant("acme")
    assert [chunk.id for chunk in world.shard.staging.chunks_of(other)] == ["c0", "c2"]
    world.shard.delete_tenant("other")
    assert (world.shard.staging._held, world.shard.staging._held_bytes) == ({}, {})


def test_tenants_made_by_anybody_leave_room_for_those_of_admins(world: World) -> None:
    for i in range(OPEN_TENANTS_MAX - len(world.shard.tenants)):
        world.shard.create_open_tenant(f"t{i}")
    with pytest.raises(LimitExceeded, match="only an admin"):
        world.shard.create_open_tenant("more")
    world.shard.create_tenant("more")


# Memory


def everything(world: World) -> None:
    tenant = world.tenant
    queue = tenant.declare_queue("one", {"max_attempts": 3, "dead_letter_queue": "two"}, "embedded")[0]
    tenant.declare_queue("two", {}, "embedded")
    tenant.declare_exchange("e", "headers", arguments={"x": "y"})
    tenant.declare_exchange("gone", "fanout", auto_delete=True)
    stream = streams.declare(tenant, "s", {"partitions": 3})[0]
    tenant.bind("e", queue, "", {"a": 1})
    tenant.bind("e", queue, "", {"a": 2})
    tenant.bind("e", stream, "", {"a": 2})
    tenant.bind("gone", queue, "k")
    tenant.bind("amq.topic", tenant.exchange("e"), "a.#")


def test_memory_of_definitions_is_counted_and_given_back(world: World) -> None:
    tenant = world.tenant
    before = int(tenant.definition_bytes)
    everything(world)
    assert tenant.definition_bytes == world.shard.definition_bytes > before
    tenant.unbind("e", tenant.queue("one"), "", {"a": 1})
    tenant.delete_queue("one")
    assert "gone" not in tenant.exchanges
    streams.delete(tenant, "s")
    tenant.delete_exchange("e")
    tenant.delete_queue("two")
    assert (tenant.definition_bytes, world.shard.definition_bytes, tenant.bindings) == (before, before, 0)
    assert not tenant._sources
    everything(world)
    world.shard.delete_tenant("acme")
    assert world.shard.definition_bytes == 0


def test_definitions_have_a_limit_of_memory(world: World) -> None:
    tenant = world.tenant
    queue = world.queue()
    tenant.set_limits({"definition_bytes_max": int(tenant.definition_bytes) + 50_000})
    for declare in (
        lambda i: tenant.declare_queue(f"q{i}", {}, "embedded"),
        lambda i: tenant.declare_exchange(f"e{i}", "direct"),
        lambda i: tenant.bind("amq.direct", queue, f"k{i}", {"x": "y" * 100}),
        lambda i: streams.declare(tenant, f"s{i}", {"partitions": 9}),
    ):
        with pytest.raises(LimitExceeded, match="definition_bytes_max"):
            for i in range(1_000):
                declare(i)
        assert tenant.definition_bytes <= tenant.limits.definition_bytes_max
    assert tenant.bindings == sum(int(e.matcher.count) for e in tenant.exchanges.values())
    world.shard.memory_bytes_max = int(world.shard.definition_bytes)
    tenant.set_limits({"definition_bytes_max": 0})
    with pytest.raises(MemoryLimitExceeded):
        tenant.declare_queue("more", {}, "embedded")


def test_dedup_keys_are_counted_and_given_back(world: World) -> None:
    world.queue()
    dedup = world.tenant.dedup
    for i in range(10):
        publish_once(world.shard, world.tenant, "", "jobs", f"k{i}", EMPTY, b"x")
    assert dedup.bytes > 10 * 100
    world.tenant.delete_queue("jobs")
    assert len(dedup) == 0
    dedup.remember("queue:other", "k", 1, int(world.shard.wall_ms), 1_000)
    assert len(dedup) == 1
    assert dedup.bytes < 2 * 500


# Loading in steps


def test_a_document_is_loaded_in_steps_and_nobody_else_changes_definitions(world: World) -> None:
    world.queue("there")
    rows = [{"name": f"q{i}", "face": "embedded"} for i in range(10)]
    wanted = definitions.parse({"rookery": 1, "tenants": [{"name": "acme", "queues": rows}]})
    loading = definitions.Loading(world.shard, wanted)
    tenant = world.tenant
    blocked: list[Callable[[], Any]] = [
        lambda: tenant.declare_queue("mine", {}, "embedded"),
        lambda: tenant.delete_queue("there"),
        lambda: tenant.bind("amq.direct", tenant.queue("there"), "k"),
        lambda: tenant.declare_exchange("mine", "direct"),
        lambda: streams.declare(tenant, "mine", {}),
        lambda: world.shard.delete_tenant("acme"),
        lambda: definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme"}]}),
    ]
    steps = 0
    while not loading.step(3):
        steps += 1
        for change in blocked:
            with pytest.raises(Locked):
                change()
        # what is there goes on
        world.publish(key="there")
        assert tenant.declare_queue("there", {}, "embedded")[1] is False
    assert steps > 5
    assert {f"q{i}" for i in range(10)} < set(tenant.queues)
    assert tenant.declare_queue("mine", {}, "embedded")[1]


def test_a_document_in_steps_that_fails_changes_nothing_and_unlocks(world: World) -> None:
    world.queue("there")
    before = definitions.export(world.shard)
    rows = [{"name": f"q{i}", "face": "embedded"} for i in range(10)]
    bindings = [{"source": "amq.direct", "target": "nowhere"}]
    wanted = definitions.parse(
        {"rookery": 1, "tenants": [{"name": "acme", "queues": rows, "bindings": bindings}, {"name": "new"}]}
    )
    loading = definitions.Loading(world.shard, wanted)
    with pytest.raises(Exception, match="nowhere"):
        for _ in loading.steps(2):
            assert definitions.export(world.shard) == before
    assert definitions.export(world.shard) == before
    assert world.tenant.declare_queue("mine", {}, "embedded")[1]


def test_what_is_there_already_does_not_count_as_new(world: World) -> None:
    queue = world.queue("there")
    world.tenant.bind("amq.direct", queue, "k", {"a": 1})
    world.tenant.set_limits({"bindings_max": 1, "queues_max": 1})
    binding = {"source": "amq.direct", "target": "there", "key": "k", "arguments": {"a": 1}}
    rows = [{"name": "there", "face": "embedded"}]
    definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme", "queues": rows, "bindings": [binding]}]})
    other = {**binding, "arguments": {"a": 2}}
    with pytest.raises(LimitExceeded, match="bindings_max"):
        definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme", "bindings": [binding, other]}]})
    assert world.tenant.bindings == 1

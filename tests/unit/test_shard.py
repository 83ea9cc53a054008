"""The shard: tenants, the turn, limits on size and memory, lease tokens, and that equal calls give equal states."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rookery.core.consumers import Mailbox
from rookery.core.dead_letters import redrive
from rookery.core.queue import REFUSED, Queue
from rookery.core.shard import TENANTS_MAX, Shard
from rookery.errors import (
    AlreadyExists,
    ExchangeNotFound,
    InvalidArgument,
    LimitExceeded,
    MemoryLimitExceeded,
    MessageTooLarge,
    TenantNotFound,
)
from rookery.format.model import MESSAGE_OVERHEAD_BYTES, NEVER, PERSISTENT, PRIORITY_MAX, PRIORITY_MIN
from rookery.format.properties import EMPTY
from tests.unit.core_world import Recorder, World, a_world, bodies, waiting

world = pytest.fixture(a_world, name="world")


# Tenants


def test_tenants_come_and_go(world: World) -> None:
    tenant = world.shard.create_tenant("other", {"queues_max": 5})
    assert world.shard.tenant("other") is tenant
    assert tenant.limits.queues_max == 5
    with pytest.raises(AlreadyExists) as caught:
        world.shard.create_tenant("other")
    assert caught.value.argument == "tenant"
    tenant.declare_queue("jobs", {}, "http")
    world.shard.publish(tenant, "", "jobs", EMPTY, b"x")
    world.shard.delete_tenant("other")
    assert world.shard.memory_bytes == 0
    for call in (world.shard.tenant, world.shard.delete_tenant):
        with pytest.raises(TenantNotFound) as missing:
            call("other")
        assert missing.value.argument == "tenant"


def test_a_limit_on_tenants(world: World) -> None:
    assert world.shard.tenants_max == TENANTS_MAX == 10_000
    world.shard.tenants_max = 1
    with pytest.raises(LimitExceeded) as caught:
        world.shard.create_tenant("other")
    assert caught.value.argument == "tenant"
    assert list(world.shard.tenants) == ["acme"]


# The turn


def test_an_idle_shard_need_not_be_woken(world: World) -> None:
    world.queue()
    world.publish()
    assert world.shard.next_due_ms() == NEVER


def test_the_shard_says_when_to_wake_it(world: World) -> None:
    queue = world.queue()
    world.publish(delay_ms=700)
    assert world.shard.next_due_ms() == 700
    world.publish(ttl_ms=600)
    assert world.shard.next_due_ms() == 600
    world.one(queue, 500)
    assert world.shard.next_due_ms() == 500
    world.shard.transactions.begin(world.tenant, "t", 400)
    assert world.shard.next_due_ms() == 400
    world.advance(399)
    assert world.shard.next_due_ms() == 1
    world.clock.advance(5_000)
    world.shard.wall_ms = world.clock.wall_ms()
    assert world.shard.next_due_ms() == 0


def test_the_monotonic_clock_never_goes_back(world: World) -> None:
    queue = world.queue()
    world.publish()
    world.one(queue, 1_000)
    now = world.shard.mono_ms
    world.shard.turn(world.shard.wall_ms, now - 500)
    assert world.shard.mono_ms == now
    world.shard.turn(world.shard.wall_ms, now + 1_000)
    assert queue.lapsed == 1


def test_a_turn_does_all_that_is_due_in_every_queue(world: World) -> None:
    queues = [world.queue(f"q{i}") for i in range(5)]
    for i, queue in enumerate(queues):
        world.publish(b"delayed", queue.name, delay_ms=10 * i + 1)
        world.publish(b"brief", queue.name, ttl_ms=10 * i + 1)
    world.advance(25)
    assert [waiting(queue) for queue in queues] == [[b"delayed"]] * 3 + [[b"brief"]] * 2
    world.advance(25)
    assert [waiting(queue) for queue in queues] == [[b"delayed"]] * 5


def test_what_was_deleted_leaves_nothing_to_wake_for(world: World) -> None:
    """Queues that come and go must not pile up in the shard's indexes until their far-off times."""
    year = 365 * 86_400_000
    for _ in range(5_000):
        world.tenant.declare_queue("temp", {"expires_ms": year}, "amqp")
        world.publish(key="temp", delay_ms=year)
        world.tenant.delete_queue("temp")
    assert len(world.shard.mono_index) < 2_500
    assert len(world.shard.wall_index) < 2_500


# Publishing


def test_a_message_carries_what_was_published(world: World) -> None:
    world.queue()
    now = world.shard.wall_ms
    message, reached = world.shard.publish(world.tenant, "", "jobs", EMPTY, b"body", 5, now + 100, 0, False)
    assert reached == 1
    assert (message.body, message.props, message.priority, message.expires_ms) == (b"body", EMPTY, 5, now + 100)
    assert (message.route.exchange, message.route.key) == ("", "jobs")
    assert not message.flags & PERSISTENT
    assert world.publish().flags & PERSISTENT
    assert world.publish().id == message.id + 2


def test_publishing_to_no_exchange_changes_nothing(world: World) -> None:
    with pytest.raises(ExchangeNotFound) as caught:
        world.publish(exchange="nowhere")
    assert caught.value.argument == "exchange"
    assert (world.shard.last_id, world.tenant.published) == (0, 0)


def test_a_refusal_by_one_queue_is_told(world: World) -> None:
    full = world.queue("full", length_max=0, overflow="reject-publish")
    free = world.queue("free")
    for queue in (full, free):
        world.tenant.bind("amq.fanout", queue, "")
    assert world.reach(exchange="amq.fanout")[1] == REFUSED
    assert (full.refused, free.ready) == (1, 1)


@pytest.mark.parametrize("priority", [PRIORITY_MIN - 1, PRIORITY_MAX + 1, 1 << 80])
def test_a_priority_out_of_range_is_an_error(world: World, priority: int) -> None:
    queue = world.queue()
    with pytest.raises((InvalidArgument, OverflowError, TypeError)):
        world.publish(priority=priority)
    assert (queue.published, world.tenant.published, world.tenant.memory_bytes) == (0, 0, 0)


@pytest.mark.parametrize("argument", ["delay_ms", "ttl_ms"])
def test_a_time_out_of_range_is_an_error(world: World, argument: str) -> None:
    queue = world.queue()
    with pytest.raises((InvalidArgument, OverflowError, TypeError)):
        world.publish(**{argument: 1 << 63})  # type: ignore[arg-type]
    assert (queue.published, world.tenant.published, world.tenant.memory_bytes) == (0, 0, 0)
    assert (queue.ready, queue.delayed) == (0, 0)


# Size and memory


def test_a_message_too_large_is_refused(world: World) -> None:
    queue = world.queue()
    assert world.tenant.message_bytes_max == 128 * 1024 * 1024
    world.tenant.set_limits({"message_bytes_max": 10})
    world.publish(b"x" * (10 - len(EMPTY)))
    with pytest.raises(MessageTooLarge) as caught:
        world.publish(b"x" * (11 - len(EMPTY)))
    assert caught.value.argument == "body"
    assert (queue.published, world.tenant.published) == (1, 1)


@pytest.mark.parametrize("whose", ["tenant", "shard"])
def test_at_the_memory_limit_publishing_waits_for_consuming(world: World, whose: str) -> None:
    queue = world.queue()
    limit = 3 * (1_000 + len(EMPTY) + MESSAGE_OVERHEAD_BYTES)
    if whose == "tenant":
        world.tenant.set_limits({"memory_bytes_max": int(limit)})
    else:
        world.shard.memory_bytes_max = limit
    for _ in range(3):
        world.publish(b"x" * 1_000)
    with pytest.raises(MemoryLimitExceeded):
        world.publish(b"x" * 1_000)
    assert (queue.published, world.tenant.refused) == (3, 1)
    world.settle(world.one(queue))
    world.publish(b"x" * 1_000)
    assert queue.ready == 3


def test_a_body_is_counted_once_however_many_queues_hold_it(world: World) -> None:
    queues = [world.queue(f"q{i}") for i in range(3)]
    for queue in queues:
        world.tenant.bind("amq.fanout", queue, "")
    message = world.publish(b"x" * 500, exchange="amq.fanout")
    assert message.refs == 3
    assert world.shard.memory_bytes == world.tenant.memory_bytes == message.size_bytes()
    leases = [world.one(queue) for queue in queues]
    world.settle(leases[0])
    world.settle(leases[1], "reject")
    assert world.tenant.memory_bytes == message.size_bytes()
    world.settle(leases[2])
    assert (world.tenant.memory_bytes, world.shard.memory_bytes, message.refs) == (0, 0, 0)


@pytest.mark.parametrize(
    "way_out", ["ack", "reject", "purge", "expire", "overflow", "delete", "no ack", "dead letter", "delete tenant"]
)
def test_every_way_out_gives_the_memory_back(world: World, way_out: str) -> None:
    settings: dict[str, Any] = {"length_max": 1}
    if way_out == "dead letter":
        settings["dead_letter_queue"] = "graves"
    queue = world.queue(**settings)
    if way_out == "no ack":
        queue.subscribe(Recorder(queue, no_ack=True))
    world.publish(b"x" * 1_000, ttl_ms=50)
    if way_out in ("ack", "reject"):
        world.settle(world.one(queue), way_out)
    elif way_out == "purge":
        queue.purge()
    elif way_out == "expire":
        world.advance(50)
    elif way_out == "overflow":
        world.publish(b"")
        assert world.tenant.memory_bytes == len(EMPTY) + MESSAGE_OVERHEAD_BYTES
        queue.purge()
    elif way_out == "delete":
        world.tenant.delete_queue("jobs")
    elif way_out == "dead letter":
        world.settle(world.one(queue), "reject")
        graves = world.tenant.queue("graves")
        assert world.tenant.memory_bytes == 1_000 + len(EMPTY) + MESSAGE_OVERHEAD_BYTES
        world.drain(graves)
    elif way_out == "delete tenant":
        world.shard.delete_tenant("acme")
    assert (world.tenant.memory_bytes, world.shard.memory_bytes) == (0, 0)


@pytest.mark.parametrize("outcome", ["ack", "retry", "release", "reject", "extend"])
@pytest.mark.parametrize("tracked", [True, False])
def test_a_queue_deleted_under_its_leases(world: World, tracked: bool, outcome: str) -> None:
    """Tracked leases end at once; the others when their holder settles them, to no effect but on memory and credit."""
    queue, other = world.queue(face="http"), world.queue("other")
    mailbox = Mailbox(queue, 2, 1_000, 0, world.shard.touched, False)
    mailbox.tracked = tracked
    queue.subscribe(mailbox)
    for target in (queue, other):
        world.tenant.bind("amq.fanout", target, "")
    world.publish(b"x" * 100)
    shared = world.publish(b"y" * 100, exchange="amq.fanout")
    world.publish(b"z" * 100)
    world.tenant.delete_queue("jobs")
    assert mailbox.ended == "deleted"
    assert queue.purged == 3
    leases = list(mailbox.leases)
    assert [lease.live for lease in leases] == [not tracked] * 2
    assert mailbox.inflight == (0 if tracked else 2)
    world.advance(2_000)
    assert queue.lapsed == 0
    for lease in leases:
        if outcome == "extend":
            assert not queue.extend(lease, 1_000)
        else:
            assert not world.settle(lease, outcome)
        assert not lease.live
    assert mailbox.inflight == 0
    assert shared.refs == 1
    assert world.tenant.memory_bytes == shared.size_bytes()
    assert (queue.leased, queue.acked, queue.purged) == (0, 0, 3)
    assert "jobs.DLQ" not in world.tenant.queues


# Leases by token


def test_a_token_finds_its_lease_while_it_lives(world: World) -> None:
    queue = world.queue("a/b")
    world.publish(key="a/b")
    lease = world.one(queue)
    token = lease.token()
    assert token == "a/b/1/7/1"
    assert world.shard.lease(world.tenant, token) is lease
    world.settle(lease)
    assert world.shard.lease(world.tenant, token) is None


@pytest.mark.parametrize("how", ["lapse", "retry", "release", "redrive", "recreate"])
def test_a_token_never_repeats(world: World, how: str) -> None:
    queue = world.queue(face="http", backoff_base_ms=0)
    world.publish()
    tokens = set()
    for _ in range(4):
        lease = world.one(queue, 1_000)
        tokens.add(lease.token())
        if how == "lapse":
            world.advance(1_000)
        elif how == "redrive":
            world.settle(lease, "reject")
            redrive(world.tenant, world.tenant.queue("jobs.DLQ"))
        elif how == "recreate":
            world.tenant.delete_queue("jobs")
            queue = world.queue(face="http", backoff_base_ms=0)
            world.publish()
        else:
            world.settle(lease, how)
    assert len(tokens) == 4
    current = world.one(queue)
    for token in tokens - {current.token()}:
        assert world.shard.lease(world.tenant, token) is None


@pytest.mark.parametrize(
    "token",
    ["", "jobs", "jobs/1", "jobs/1/7", "jobs/1/6/1", "jobs/2/7/1", "jobs/1/7/2", "other/1/7/1", "jobs/x/7/1", "////"],
)
def test_a_token_of_another_lease_finds_nothing(world: World, token: str) -> None:
    queue = world.queue()
    world.publish()
    assert world.one(queue).token() == "jobs/1/7/1"
    assert world.shard.lease(world.tenant, token) is None


def test_a_token_of_an_earlier_owner_finds_nothing() -> None:
    tokens: list[str] = []
    for epoch in (7, 8):
        shard = Shard(b"s", epoch)
        tenant = shard.create_tenant("acme")
        queue = tenant.declare_queue("jobs", {}, "embedded")[0]
        shard.publish(tenant, "", "jobs", EMPTY, b"x")
        (lease,) = shard.claim(queue, 1, 1_000)
        assert [shard.lease(tenant, token) for token in tokens] == [None] * len(tokens)
        tokens.append(lease.token())
    assert len(set(tokens)) == 2


# Determinism


def play(seed: int) -> list[object]:
    """A random life of three queues; everything that can be seen of it."""
    dice = random.Random(seed)
    world = World()
    queues: list[Queue] = [
        world.queue("a", "http", backoff_jitter=0.5),
        world.queue("b", "s0", length_max=5, dead_letter_queue="graves"),
        world.queue("c", "line", ttl_ms=400),
    ]
    for queue in queues:
        world.tenant.bind("amq.fanout", queue, "")
    mailbox = world.mailbox(queues[0], credit=2, lease_ms=300)
    seen: list[object] = []
    for step in range(300):
        match dice.randrange(5):
            case 0:
                world.publish(b"%d" % step, exchange="amq.fanout", priority=dice.randrange(3))
            case 1:
                world.publish(b"%d" % step, "c", delay_ms=dice.randrange(500), ttl_ms=dice.randrange(900))
            case 2:
                world.advance(dice.randrange(200))
            case 3:
                leases = world.claim(queues[1 + dice.randrange(2)], 2, 250) + mailbox.take()
                seen.append([lease.token() for lease in leases])
                for lease in leases:
                    world.settle(lease, dice.choice(["ack", "retry", "release", "reject"]))
            case _:
                seen.append(world.shard.next_due_ms())
        seen.append([(q.name, waiting(q), q.delayed, q.leased) for q in world.tenant.queues.values()])
        world.check()
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_equal_calls_give_equal_states(seed: int) -> None:
    assert play(seed) == play(seed)


def test_deliveries_wait_for_no_flush_when_somebody_listens(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue, credit=1)
    world.fill(2)
    (lease,) = mailbox.take()
    queue.ack(lease)
    assert mailbox.take() == []
    world.shard.flush()
    assert bodies(mailbox.take()) == [b"1"]

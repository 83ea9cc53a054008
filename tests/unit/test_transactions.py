"""Transactions: wholly or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rookery.core.publishing import Publish
from rookery.core.topology import Limits
from rookery.core.transactions import TIMEOUT_MS, TOMBSTONES_MAX, Settle, Transaction
from rookery.errors import (
    ExchangeNotFound,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    MemoryLimitExceeded,
    MessageTooLarge,
    QueueFull,
    RookeryError,
    TransactionCommitted,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionTooLarge,
    Unroutable,
)
from rookery.format.properties import EMPTY
from tests.unit.core_world import BROKEN_HEADERS, World, a_world, publish_once, waiting

world = pytest.fixture(a_world, name="world")


def begin(world: World, id: str = "t", timeout_ms: int = TIMEOUT_MS) -> Transaction:
    return world.shard.transactions.begin(world.tenant, id, timeout_ms)


def add(world: World, *operations: Publish | Settle, id: str = "t") -> None:
    transaction = world.shard.transactions.get(world.tenant, id)
    for operation in operations:
        world.shard.transactions.add(transaction, operation)


def commit(world: World, id: str = "t") -> list[int]:
    numbers = world.shard.transactions.commit(world.tenant, id)
    world.shard.flush()
    return numbers


def put(body: bytes, key: str = "jobs", **more: int | bool | str) -> Publish:
    return Publish(more.pop("exchange", ""), key, EMPTY, body, **more)  # type: ignore[arg-type]


def test_nothing_is_visible_before_commit_and_all_of_it_after(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    world.publish(b"old")
    lease = world.one(queue)
    begin(world)
    add(world, put(b"a"), put(b"b", "other"), Settle(lease, "ack"), put(b"c"))
    assert (queue.ready, queue.leased, other.ready) == (0, 1, 0)
    numbers = commit(world)
    assert len(numbers) == len(set(numbers)) == 3
    assert waiting(queue) == [b"a", b"c"]
    assert waiting(other) == [b"b"]
    assert (queue.leased, queue.acked) == (0, 1)
    assert world.tenant.published == 4


def test_every_outcome_can_be_part_of_it(world: World) -> None:
    queue = world.queue(face="http")
    world.fill(4)
    leases = world.claim(queue, 4)
    begin(world)
    outcomes = ("ack", "retry", "release", "reject")
    add(world, *(Settle(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)))
    commit(world)
    assert (queue.acked, queue.retried, queue.released, queue.rejected) == (1, 1, 1, 1)
    assert (queue.ready, queue.delayed, world.tenant.queue("jobs.DLQ").ready) == (1, 1, 1)
    with pytest.raises(InvalidArgument) as caught:
        Settle(leases[0], "nack")
    assert caught.value.argument == "outcome"


def test_priority_delay_and_expiry_are_kept(world: World) -> None:
    queue = world.queue()
    now = world.shard.wall_ms
    begin(world)
    add(world, put(b"low"), put(b"high", priority=5), put(b"later", due_ms=now + 50), put(b"brief", expires_ms=now + 9))
    commit(world)
    assert waiting(queue) == [b"high", b"low", b"brief"]
    world.advance(9)
    assert (queue.expired, queue.delayed) == (1, 1)
    world.advance(41)
    assert waiting(queue) == [b"high", b"low", b"later"]


def test_rollback_forgets_it(world: World) -> None:
    queue = world.queue()
    world.publish(b"old")
    lease = world.one(queue)
    begin(world)
    add(world, put(b"new"), Settle(lease, "ack"))
    world.shard.transactions.rollback(world.tenant, "t")
    assert (queue.ready, queue.leased, queue.acked) == (0, 1, 0)
    assert lease.live
    assert len(world.shard.transactions) == 0


# A failing member


def fail_lease(world: World) -> Settle:
    world.queue("leases")
    world.publish(b"x", "leases")
    lease = world.one(world.tenant.queue("leases"))
    world.settle(lease)
    return Settle(lease, "ack")


def fail_full(world: World) -> Publish:
    world.queue("full", length_max=1, overflow="reject-publish")
    world.publish(b"x", "full")
    return put(b"y", "full")


def fail_memory(world: World) -> Publish:
    world.tenant.set_limits({"memory_bytes_max": int(world.tenant.memory_bytes) + 500})
    return put(b"y" * 400)


def fail_size(world: World) -> Publish:
    world.tenant.set_limits({"message_bytes_max": 5})
    return put(b"123456")


def fail_exchange(world: World) -> Publish:
    world.tenant.declare_exchange("gone", "fanout")
    return put(b"x", exchange="gone")


def fail_route(world: World) -> Publish:
    return put(b"x", "nowhere", mandatory=True)


def fail_priority(world: World) -> Publish:
    return put(b"x", priority=1 << 63)


def fail_time(world: World) -> Publish:
    return put(b"x", due_ms=1 << 63)


def fail_headers(world: World) -> Publish:
    world.tenant.bind("amq.headers", world.queue("h"), "", {"a": 1})
    return Publish("amq.headers", "", BROKEN_HEADERS, b"x")


FAILURES = [
    (fail_lease, LeaseLost, "lease"),
    (fail_full, QueueFull, "queue"),
    (fail_memory, MemoryLimitExceeded, None),
    (fail_size, MessageTooLarge, "body"),
    (fail_exchange, ExchangeNotFound, "exchange"),
    (fail_route, Unroutable, "key"),
    (fail_priority, InvalidArgument, "priority"),
    (fail_time, InvalidArgument, "due_ms"),
    (fail_headers, InvalidArgument, "table"),
]


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(("make", "error", "argument"), FAILURES, ids=lambda f: getattr(f, "__name__", ""))
def test_one_failing_member_means_that_nothing_happens(
    world: World,
    make: Callable[[World], Publish | Settle],
    error: type[RookeryError],
    argument: str | None,
    position: int,
) -> None:
    queue = world.queue()
    world.publish(b"old")
    lease = world.one(queue)
    operations: list[Publish | Settle] = [put(b"new"), Settle(lease, "ack")]
    operations.insert(position, make(world))
    begin(world)
    add(world, *operations)
    if "gone" in world.tenant.exchanges:
        world.tenant.delete_exchange("gone")
    before = (queue.ready, queue.leased, queue.acked, queue.published, world.tenant.published, world.shard.last_id)
    for _ in range(2):
        with pytest.raises(error) as caught:
            commit(world)
        assert caught.value.argument == argument
        after = (queue.ready, queue.leased, queue.acked, queue.published, world.tenant.published, world.shard.last_id)
        assert after == before
        assert lease.live
    assert len(world.shard.transactions) == 1


def test_a_failed_commit_can_be_repeated_when_the_reason_is_gone(world: World) -> None:
    queue = world.queue(length_max=1, overflow="reject-publish")
    world.publish(b"old")
    begin(world)
    add(world, put(b"new"))
    with pytest.raises(QueueFull):
        commit(world)
    world.drain(queue)
    commit(world)
    assert waiting(queue) == [b"new"]


def test_room_is_counted_for_the_whole_transaction(world: World) -> None:
    queue = world.queue(length_max=3, bytes_max=6, overflow="reject-publish")
    begin(world)
    add(world, put(b"11"), put(b"22"), put(b"333"))
    with pytest.raises(QueueFull):
        commit(world)
    begin(world, "u")
    add(world, put(b"1"), put(b"2"), put(b"3"), put(b"4"), id="u")
    with pytest.raises(QueueFull):
        commit(world, "u")
    begin(world, "v")
    add(world, put(b"11"), put(b"22"), put(b"33"), id="v")
    commit(world, "v")
    assert queue.ready == 3


def test_a_lease_can_be_settled_once_in_a_transaction(world: World) -> None:
    queue = world.queue()
    world.publish()
    lease = world.one(queue)
    begin(world)
    add(world, Settle(lease, "ack"), Settle(lease, "release"))
    with pytest.raises(LeaseLost):
        commit(world)
    assert lease.live


def test_a_lease_that_lapsed_meanwhile_fails_the_commit(world: World) -> None:
    queue = world.queue()
    world.publish()
    lease = world.one(queue, 1_000)
    begin(world)
    add(world, put(b"result"), Settle(lease, "ack"))
    world.advance(1_000)
    with pytest.raises(LeaseLost):
        commit(world)
    assert waiting(queue) == [b"x"]


def test_a_transaction_stays_within_its_tenant(world: World) -> None:
    other = world.shard.create_tenant("other")
    queue = other.declare_queue("jobs", {}, "embedded")[0]
    world.shard.publish(other, "", "jobs", EMPTY, b"x")
    (lease,) = world.claim(queue)
    begin(world)
    add(world, Settle(lease, "ack"))
    with pytest.raises(InvalidArgument) as caught:
        commit(world)
    assert caught.value.argument == "lease"
    assert lease.live


def test_a_dead_letter_target_that_cannot_be_made_does_not_break_it(world: World) -> None:
    name = "q" * 255
    queue = world.queue(name, "http")
    world.publish(b"x", name)
    lease = world.one(queue)
    begin(world)
    add(world, put(b"a", name), Settle(lease, "reject"), put(b"b", name))
    commit(world)
    assert waiting(queue) == [b"a", b"b"]
    assert queue.dropped == 1


# Dedup keys


def test_a_dedup_key_counts_within_and_across_transactions(world: World) -> None:
    queue = world.queue()
    begin(world)
    add(world, put(b"a", dedup_key="k"), put(b"b", dedup_key="k"))
    first, second = commit(world)
    assert first == second
    begin(world, "u")
    add(world, put(b"c", dedup_key="k"), id="u")
    assert commit(world, "u") == [first]
    assert waiting(queue) == [b"a"]
    assert world.tenant.dedup.duplicates == 2


def test_a_repeat_needs_no_room(world: World) -> None:
    """A repeated key is confirmed and adds nothing, so a full queue is no reason to refuse it."""
    queue = world.queue(length_max=1, overflow="reject-publish")
    begin(world)
    add(world, put(b"a", dedup_key="k"))
    (first,) = commit(world)
    begin(world, "u")
    add(world, put(b"a", dedup_key="k"), id="u")
    assert commit(world, "u") == [first]
    assert queue.ready == 1


def test_keys_of_a_failed_commit_are_not_used_up(world: World) -> None:
    queue = world.queue()
    begin(world)
    add(world, put(b"a", dedup_key="k"), put(b"x", "nowhere", mandatory=True))
    with pytest.raises(Unroutable):
        commit(world)
    assert not publish_once(world.shard, world.tenant, "", "jobs", "k", EMPTY, b"a")[1]
    assert queue.ready == 1


# Ids, ends, limits


def test_an_id_that_never_was(world: World) -> None:
    for call in (world.shard.transactions.get, world.shard.transactions.commit, world.shard.transactions.rollback):
        with pytest.raises(TransactionNotFound) as caught:
            call(world.tenant, "t")
        assert caught.value.argument == "transaction"


def test_an_id_that_ended_is_remembered(world: World) -> None:
    begin(world, "done")
    commit(world, "done")
    begin(world, "undone")
    world.shard.transactions.rollback(world.tenant, "undone")
    begin(world, "late", timeout_ms=100)
    world.advance(100)
    for name, error in (
        ("done", TransactionCommitted),
        ("undone", TransactionRolledBack),
        ("late", TransactionTimeout),
    ):
        for call in (world.shard.transactions.commit, world.shard.transactions.rollback, world.shard.transactions.get):
            with pytest.raises(error):
                call(world.tenant, name)
        with pytest.raises(error):
            begin(world, name)


def test_the_last_tombstones_are_kept(world: World) -> None:
    for i in range(TOMBSTONES_MAX + 1):
        begin(world, f"t{i}")
        world.shard.transactions.rollback(world.tenant, f"t{i}")
    with pytest.raises(TransactionNotFound):
        world.shard.transactions.get(world.tenant, "t0")
    with pytest.raises(TransactionRolledBack):
        world.shard.transactions.get(world.tenant, "t1")


def test_a_transaction_lives_a_minute_and_not_longer(world: World) -> None:
    queue = world.queue()
    assert TIMEOUT_MS == 60_000
    begin(world)
    add(world, put(b"a"))
    assert world.shard.next_due_ms() == 60_000
    world.jump_wall(10_000_000)
    world.advance(59_999)
    world.shard.transactions.get(world.tenant, "t")
    world.advance(1)
    with pytest.raises(TransactionTimeout):
        commit(world)
    assert (queue.published, len(world.shard.transactions)) == (0, 0)


def test_each_transaction_has_its_own_time(world: World) -> None:
    begin(world, "short", timeout_ms=10)
    begin(world, "long", timeout_ms=50)
    world.advance(10)
    with pytest.raises(TransactionTimeout):
        world.shard.transactions.get(world.tenant, "short")
    assert world.shard.next_due_ms() == 40
    world.advance(40)
    with pytest.raises(TransactionTimeout):
        world.shard.transactions.get(world.tenant, "long")


@pytest.mark.parametrize(
    ("id", "timeout_ms", "argument"), [("", 1, "transaction"), ("t", 0, "timeout_ms"), ("t", -1, "timeout_ms")]
)
def test_bad_arguments_begin_nothing(world: World, id: str, timeout_ms: int, argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        begin(world, id, timeout_ms)
    assert caught.value.argument == argument
    assert len(world.shard.transactions) == 0


def test_an_open_id_cannot_be_begun_again(world: World) -> None:
    begin(world)
    with pytest.raises(InvalidArgument) as caught:
        begin(world)
    assert caught.value.argument == "transaction"


def test_default_limits() -> None:
    limits = Limits()
    assert limits.transaction_operations_max == 10_000
    assert limits.transaction_bytes_max == 64 * 1024 * 1024
    assert limits.transactions_max == 1_000


def test_limits_on_operations_and_bytes(world: World) -> None:
    world.queue()
    world.tenant.set_limits({"transaction_operations_max": 2, "transaction_bytes_max": 20})
    transaction = begin(world)
    with pytest.raises(TransactionTooLarge) as caught:
        add(world, put(b"x" * 19))
    assert caught.value.argument == "transaction"
    add(world, put(b"x" * 10), put(b"y"))
    with pytest.raises(TransactionTooLarge):
        add(world, put(b""))
    assert (len(transaction.operations), transaction.bytes) == (2, 11 + 2 * len(EMPTY))
    assert len(commit(world)) == 2


def test_a_tenant_has_so_many_transactions(world: World) -> None:
    world.tenant.set_limits({"transactions_max": 1})
    other = world.shard.create_tenant("other")
    begin(world, "a")
    with pytest.raises(LimitExceeded) as caught:
        begin(world, "b")
    assert caught.value.argument == "transaction"
    world.shard.transactions.begin(other, "a")
    commit(world, "a")
    begin(world, "b")


def test_an_unknown_exchange_is_refused_at_once(world: World) -> None:
    transaction = begin(world)
    with pytest.raises(ExchangeNotFound):
        add(world, put(b"x", exchange="nowhere"))
    assert transaction.operations == []


def test_transactions_go_with_their_tenant(world: World) -> None:
    other = world.shard.create_tenant("other")
    world.shard.transactions.begin(other, "a")
    world.shard.transactions.begin(other, "b")
    world.shard.transactions.rollback(other, "b")
    world.shard.delete_tenant("other")
    other = world.shard.create_tenant("other")
    for name in ("a", "b"):
        with pytest.raises(TransactionNotFound):
            world.shard.transactions.get(other, name)

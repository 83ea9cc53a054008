"""Names and ways: declaring, binding, routing and deleting within one tenant."""

from __future__ import annotations

from typing import Any

import pytest

from rookery import _compiled
from rookery.core.topology import NAME_MAX_BYTES, Limits, Tenant, check_name
from rookery.errors import (
    AlreadyExists,
    Conflict,
    ExchangeNotFound,
    InUse,
    InvalidArgument,
    InvalidName,
    InvalidType,
    LimitExceeded,
    Locked,
    NotEmpty,
    QueueNotFound,
    RookeryError,
)
from tests.unit.core_world import World, a_world

world = pytest.fixture(a_world, name="world")


def state(tenant: Tenant) -> tuple[object, ...]:
    return (sorted(tenant.queues), sorted(tenant.exchanges), tenant.bindings, tenant.version, tenant.limits.as_dict())


# A compiled function refuses a wrong type before it can say which argument it was.
wrong_type: type[Exception] = TypeError if _compiled.compiled else InvalidType


# Names

BAD_NAMES: list[tuple[object, type[RookeryError]]] = [
    ("", InvalidName),
    ("   ", InvalidName),
    ("x" * 256, InvalidName),
    ("é" * 128, InvalidName),
    ("a\nb", InvalidName),
    ("a\x00b", InvalidName),
    ("a\x7fb", InvalidName),
    ("\ud800", InvalidName),
    (5, InvalidType),
    (None, InvalidType),
    (b"jobs", InvalidType),
]


@pytest.mark.parametrize(("name", "error"), BAD_NAMES)
def test_a_bad_name_is_refused_and_nothing_is_made(world: World, name: Any, error: type[RookeryError]) -> None:
    before = state(world.tenant)
    calls = {
        "queue": lambda: world.tenant.declare_queue(name, {}, "http"),
        "exchange": lambda: world.tenant.declare_exchange(name, "topic"),
        "tenant": lambda: world.shard.create_tenant(name),
    }
    for argument, call in calls.items():
        with pytest.raises(wrong_type if error is InvalidType else error) as caught:
            call()
        if isinstance(caught.value, RookeryError):
            assert caught.value.argument == argument
    assert state(world.tenant) == before
    assert list(world.shard.tenants) == ["acme"]


@pytest.mark.parametrize("name", ["a", "x" * 255, "é" * 127, "a b/c#d", "\udc80", "日本語"])
def test_good_names(name: str) -> None:
    assert check_name(name, "queue") == name
    assert NAME_MAX_BYTES == 255


# Declaring queues


def test_declaring_again_gives_the_same_queue(world: World) -> None:
    queue, made = world.tenant.declare_queue("jobs", {"ttl_ms": 5}, "http")
    assert made
    assert world.tenant.declare_queue("jobs", {"ttl_ms": 5}, "http", exact=True) == (queue, False)
    assert world.tenant.declare_queue("jobs", {}, "http") == (queue, False)
    assert world.tenant.declare_queue("jobs", {"ttl_ms": None}, "amqp") == (queue, False)


@pytest.mark.parametrize(
    ("settings", "exact", "argument"),
    [
        ({"ttl_ms": 6}, False, "ttl_ms"),
        ({"ttl_ms": 5, "length_max": 1}, False, "length_max"),
        ({}, True, "ttl_ms"),
        ({"ttl_ms": 5, "length_max": 1}, True, "length_max"),
    ],
)
def test_declaring_otherwise_is_a_conflict(
    world: World, settings: dict[str, object], exact: bool, argument: str
) -> None:
    queue = world.queue(ttl_ms=5)
    before = state(world.tenant)
    with pytest.raises(Conflict) as caught:
        world.tenant.declare_queue("jobs", settings, "embedded", exact=exact)
    assert caught.value.argument == argument
    assert (state(world.tenant), queue.ttl_ms) == (before, 5)


def test_defaults_of_another_face_are_no_conflict(world: World) -> None:
    queue = world.queue(face="http")
    assert world.tenant.declare_queue("jobs", {}, "amqp", exact=True) == (queue, False)
    assert queue.max_attempts == 6


def test_create_insists_on_a_new_one(world: World) -> None:
    world.tenant.declare_queue("jobs", {}, "http", create=True)
    with pytest.raises(AlreadyExists) as caught:
        world.tenant.declare_queue("jobs", {}, "http", create=True)
    assert caught.value.argument == "queue"


def test_an_unknown_face_makes_no_queue(world: World) -> None:
    before = state(world.tenant)
    with pytest.raises(InvalidArgument) as caught:
        world.tenant.declare_queue("jobs", {}, "carrier pigeon")
    assert caught.value.argument == "face"
    assert state(world.tenant) == before


def test_what_is_not_there(world: World) -> None:
    with pytest.raises(QueueNotFound) as queue:
        world.tenant.queue("nowhere")
    with pytest.raises(ExchangeNotFound) as exchange:
        world.tenant.exchange("nowhere")
    assert (queue.value.argument, exchange.value.argument) == ("queue", "exchange")


# Exclusive, auto-delete, expiry


def test_an_exclusive_queue_serves_its_owner_only(world: World) -> None:
    mine, other = object(), object()
    queue = world.tenant.declare_queue("mine", {}, "amqp", owner=mine)[0]
    assert world.tenant.declare_queue("mine", {}, "amqp", exact=True, owner=mine) == (queue, False)
    for stranger in (other, None):
        with pytest.raises(Locked) as caught:
            world.tenant.declare_queue("mine", {}, "amqp", owner=stranger)
        assert caught.value.argument == "queue"
        with pytest.raises(Locked):
            world.tenant.delete_queue("mine", owner=stranger)
    world.tenant.delete_queue("mine", owner=mine)


def test_a_shared_queue_does_not_become_exclusive(world: World) -> None:
    world.queue("shared")
    with pytest.raises(Conflict) as caught:
        world.tenant.declare_queue("shared", {}, "amqp", exact=True, owner=object())
    assert caught.value.argument == "exclusive"
    assert world.tenant.queue("shared").owner is None


def test_auto_delete_waits_for_the_last_consumer(world: World) -> None:
    queue = world.queue(auto_delete=True)
    world.publish()
    world.advance(1_000_000)
    assert not queue.deleted
    claim = world.shard.wait_claim(queue, 1, 1_000)
    queue.unsubscribe(claim)
    assert not queue.deleted
    first, second = world.mailbox(queue), world.mailbox(queue)
    queue.unsubscribe(first)
    assert not queue.deleted
    queue.unsubscribe(second)
    assert queue.deleted
    assert "jobs" not in world.tenant.queues
    assert world.tenant.memory_bytes == 0


def test_a_queue_expires_when_unused(world: World) -> None:
    queue = world.queue(expires_ms=1_000)
    world.advance(900)
    world.tenant.declare_queue("jobs", {}, "embedded")
    world.advance(900)
    world.claim(queue)
    world.advance(900)
    world.publish()
    world.advance(99)
    assert not queue.deleted
    assert world.shard.next_due_ms() == 1
    world.advance(1)
    assert queue.deleted


def test_a_queue_with_a_consumer_does_not_expire(world: World) -> None:
    queue = world.queue(expires_ms=1_000)
    mailbox = world.mailbox(queue)
    world.advance(50_000)
    queue.unsubscribe(mailbox)
    world.advance(999)
    assert not queue.deleted
    world.jump_wall(10_000_000)
    assert not queue.deleted
    world.advance(1)
    assert queue.deleted


# Deleting


def test_delete_if_unused_and_if_empty(world: World) -> None:
    queue = world.queue()
    mailbox = world.mailbox(queue, credit=1)
    with pytest.raises(InUse) as used:
        world.tenant.delete_queue("jobs", if_unused=True)
    queue.unsubscribe(mailbox)
    world.publish(delay_ms=5)
    with pytest.raises(NotEmpty) as full:
        world.tenant.delete_queue("jobs", if_empty=True)
    assert (used.value.argument, full.value.argument) == ("queue", "queue")
    world.fill(3)
    assert world.tenant.delete_queue("jobs") == 3
    assert queue.purged == 4
    with pytest.raises(QueueNotFound):
        world.tenant.delete_queue("jobs")


def test_deleting_a_queue_takes_its_bindings_along(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    for key in ("a", "b"):
        world.tenant.bind("amq.topic", queue, key)
    world.tenant.bind("amq.topic", other, "a")
    world.tenant.delete_queue("jobs")
    assert world.tenant.bindings == 1
    assert world.reach(key="a", exchange="amq.topic")[1] == 1


def test_a_new_queue_of_an_old_name_starts_afresh(world: World) -> None:
    old = world.queue()
    world.tenant.bind("amq.fanout", old, "")
    world.fill(3)
    lease = world.one(old)
    world.tenant.delete_queue("jobs")
    new = world.queue()
    assert new is not old
    assert world.reach(exchange="amq.fanout")[1] == 0
    assert (new.ready, lease.live) == (0, False)
    assert not old.ack(lease)


# Exchanges


def test_standard_exchanges_are_there_and_stay(world: World) -> None:
    kinds = {name: exchange.kind for name, exchange in world.tenant.exchanges.items()}
    assert kinds == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
    }
    for name in kinds:
        with pytest.raises(InvalidArgument) as caught:
            world.tenant.delete_exchange(name)
        assert caught.value.argument == "exchange"
    assert not world.tenant.declare_exchange("amq.topic", "topic")[1]


def test_declaring_an_exchange_again(world: World) -> None:
    exchange, made = world.tenant.declare_exchange("e", "topic", alternate="amq.fanout", arguments={"x": 1})
    assert made
    assert exchange.as_dict() == {
        "name": "e",
        "kind": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "alternate": "amq.fanout",
        "arguments": {"x": 1},
    }
    again = world.tenant.declare_exchange("e", "topic", alternate="amq.fanout", arguments={"x": 1})
    assert again == (exchange, False)
    with pytest.raises(AlreadyExists):
        world.tenant.declare_exchange("e", "topic", create=True)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"kind": "direct"}, "kind"),
        ({"durable": False}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"internal": True}, "internal"),
        ({"alternate": "x"}, "alternate"),
        ({"arguments": {"x": 1}}, "arguments"),
    ],
)
def test_declaring_an_exchange_otherwise_is_a_conflict(world: World, change: dict[str, Any], argument: str) -> None:
    world.tenant.declare_exchange("e", "topic")
    before = state(world.tenant)
    with pytest.raises(Conflict) as caught:
        world.tenant.declare_exchange("e", **{"kind": "topic", **change})
    assert caught.value.argument == argument
    assert state(world.tenant) == before


@pytest.mark.parametrize(
    ("kind", "arguments", "argument"),
    [
        ("square", {}, "kind"),
        ("", {}, "kind"),
        ("consistent-hash", {"hash-header": 5}, "hash-header"),
        ("consistent-hash", {"hash-property": "colour"}, "hash-property"),
    ],
)
def test_a_bad_kind_makes_no_exchange(world: World, kind: str, arguments: dict[str, object], argument: str) -> None:
    before = state(world.tenant)
    with pytest.raises(InvalidArgument) as caught:
        world.tenant.declare_exchange("e", kind, arguments=arguments)
    assert caught.value.argument == argument
    assert state(world.tenant) == before


def test_deleting_an_exchange(world: World) -> None:
    queue = world.queue()
    source = world.tenant.declare_exchange("source", "fanout")[0]
    target = world.tenant.declare_exchange("target", "fanout")[0]
    world.tenant.bind("source", target, "")
    world.tenant.bind("target", queue, "")
    world.tenant.bind("target", source, "")
    assert world.reach(exchange="source")[1] == 1
    with pytest.raises(InUse) as caught:
        world.tenant.delete_exchange("target", if_unused=True)
    assert caught.value.argument == "exchange"
    world.tenant.delete_exchange("target")
    assert world.tenant.bindings == 0
    assert world.reach(exchange="source")[1] == 0
    with pytest.raises(ExchangeNotFound):
        world.publish(exchange="target")


def test_an_auto_delete_exchange_goes_with_its_last_binding(world: World) -> None:
    one, two = world.queue("one"), world.queue("two")
    inner = world.tenant.declare_exchange("inner", "fanout", auto_delete=True)[0]
    world.tenant.declare_exchange("outer", "fanout", auto_delete=True)
    world.tenant.bind("outer", inner, "")
    world.tenant.bind("inner", one, "")
    world.tenant.bind("inner", two, "")
    assert world.tenant.unbind("inner", one, "")
    assert "inner" in world.tenant.exchanges
    world.tenant.delete_queue("two")
    assert "inner" not in world.tenant.exchanges
    assert "outer" not in world.tenant.exchanges
    assert world.tenant.bindings == 0


# Bindings


def test_binding_twice_is_once(world: World) -> None:
    queue = world.queue()
    assert world.tenant.bind("amq.topic", queue, "a")
    assert not world.tenant.bind("amq.topic", queue, "a")
    assert world.tenant.bind("amq.topic", queue, "a", {"x": 1})
    assert world.tenant.bindings == 2
    assert world.reach(key="a", exchange="amq.topic")[1] == 1
    assert world.tenant.unbind("amq.topic", queue, "a")
    assert not world.tenant.unbind("amq.topic", queue, "a")
    assert world.tenant.unbind("amq.topic", queue, "a", {"x": 1})
    assert (world.tenant.bindings, world.reach(key="a", exchange="amq.topic")[1]) == (0, 0)


def test_bad_bindings_bind_nothing(world: World) -> None:
    queue = world.queue()
    world.tenant.declare_exchange("hash", "consistent-hash")
    before = state(world.tenant)
    table: list[tuple[str, Any, Any, Any, str]] = [
        ("", queue, "a", None, "exchange"),
        ("amq.direct", world.tenant.default, "a", None, "exchange"),
        ("amq.direct", queue, "k" * 256, None, "key"),
        ("amq.direct", queue, "\ud800", None, "key"),
        ("amq.headers", queue, "", {"x-match": "some"}, "x-match"),
        ("hash", queue, "heavy", None, "key"),
        ("hash", queue, "0", None, "key"),
    ]
    for source, target, key, arguments, argument in table:
        with pytest.raises(InvalidArgument) as caught:
            world.tenant.bind(source, target, key, arguments)
        assert caught.value.argument == argument
    with pytest.raises(ExchangeNotFound):
        world.tenant.bind("nowhere", queue, "a")
    no_text: Any
    for no_text in (5, None, b"key"):
        with pytest.raises(wrong_type):
            world.tenant.bind("amq.direct", queue, no_text)
    assert state(world.tenant) == before


# Limits


def test_limits_have_names_and_defaults() -> None:
    assert Limits().as_dict() == {
        "connections_max": 0,
        "queues_max": 20_000,
        "exchanges_max": 10_000,
        "streams_max": 10_000,
        "bindings_max": 100_000,
        "subscriptions_max": 100_000,
        "queue_subscriptions_max": 0,
        "waiting_claims_max": 1_000,
        "message_bytes_max": 128 * 1024 * 1024,
        "memory_bytes_max": 0,
        "transaction_operations_max": 10_000,
        "transaction_bytes_max": 64 * 1024 * 1024,
        "transactions_max": 1_000,
        "dedup_keys_max": 1_000_000,
        "definition_bytes_max": 256 * 1024 * 1024,
        "groups_max": 10_000,
        "producers_max": 10_000,
        "plans_max": 1_000,
        "receipts_max": 100_000,
        "kept_topics_max": 10_000,
        "policies_max": 500,
        "policy_states_max": 4_096,
    }


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("colours_max", 1, InvalidArgument),
        ("queues_max", -1, InvalidArgument),
        ("queues_max", "5", InvalidType),
        ("queues_max", 1.5, InvalidType),
        ("queues_max", None, InvalidType),
        ("queues_max", True, InvalidType),
        ("set", 1, InvalidArgument),
        ("as_dict", 1, InvalidArgument),
        ("__class__", 1, InvalidArgument),
    ],
)
def test_a_bad_limit_is_refused_and_no_limit_changes(
    world: World, name: str, value: object, error: type[RookeryError]
) -> None:
    before = world.tenant.limits.as_dict()
    with pytest.raises(error) as caught:
        world.tenant.set_limits({"exchanges_max": 3, name: value})
    assert getattr(caught.value, "argument", None) == name
    assert world.tenant.limits.as_dict() == before
    with pytest.raises(error):
        world.shard.create_tenant("other", {name: value})
    assert "other" not in world.shard.tenants


def test_limits_on_names(world: World) -> None:
    queue = world.queue("one")
    world.tenant.set_limits({"queues_max": 1, "exchanges_max": 7, "bindings_max": 1})
    world.tenant.declare_exchange("e", "fanout")
    assert world.tenant.bind("e", queue, "")
    before = state(world.tenant)
    with pytest.raises(LimitExceeded) as queues:
        world.queue("two")
    with pytest.raises(LimitExceeded) as exchanges:
        world.tenant.declare_exchange("f", "fanout")
    with pytest.raises(LimitExceeded) as bindings:
        world.tenant.bind("e", queue, "other")
    arguments = [caught.value.argument for caught in (queues, exchanges, bindings)]
    assert arguments == ["queue", "exchange", "key"]
    assert state(world.tenant) == before
    assert world.queue("one") is queue
    assert not world.tenant.declare_exchange("e", "fanout")[1]


def test_a_binding_that_is_there_needs_no_room(world: World) -> None:
    queue = world.queue()
    world.tenant.set_limits({"bindings_max": 1})
    world.tenant.bind("amq.topic", queue, "a")
    assert not world.tenant.bind("amq.topic", queue, "a")


def test_zero_means_no_limit(world: World) -> None:
    world.tenant.set_limits(dict.fromkeys(world.tenant.limits.as_dict(), 0))
    queue = world.queue()
    world.tenant.declare_exchange("e", "fanout")
    world.tenant.bind("e", queue, "")
    world.shard.wait_claim(queue, 1, 1_000)
    world.publish(b"x" * 1_000)
    world.shard.transactions.begin(world.tenant, "t")
    assert queue.leased == 1


def test_tenants_do_not_see_each_other(world: World) -> None:
    other = world.shard.create_tenant("other")
    queue = world.queue()
    assert other.queues == {}
    theirs = other.declare_queue("jobs", {"ttl_ms": 5}, "http")[0]
    world.publish()
    assert (queue.ready, theirs.ready) == (1, 0)
    world.shard.delete_tenant("other")
    assert theirs.deleted
    assert not queue.deleted

"""Definitions written down and read back."""

from __future__ import annotations

import copy
import json
import random
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.core import definitions, streams
from rookery.core.access import Access
from rookery.core.policy import Policy
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.topology import Exchange, Tenant
from rookery.errors import (
    Conflict,
    ExchangeNotFound,
    InvalidArgument,
    InvalidName,
    InvalidType,
    LimitExceeded,
    Locked,
    QueueNotFound,
    RookeryError,
)
from rookery.format.properties import EMPTY, Timestamp
from tests.unit.core_world import World, a_world, waiting

world = pytest.fixture(a_world, name="world")


def furnish(tenant: Tenant) -> None:
    """One of everything."""
    tenant.set_limits({"queues_max": 50})
    tenant.set_face_defaults("http", {"max_attempts": 9})
    tenant.set_policy(Policy("short", "^tmp", {"ttl_ms": 1_000}, priority=3))
    jobs = tenant.declare_queue("jobs", {"length_max": 10, "backoff_jitter": 0.5}, "http")[0]
    tenant.declare_queue("tmp.x", {"auto_delete": True}, "amqp")
    exchange = tenant.declare_exchange("orders", "topic", False, True, True, "amq.fanout", {"note": b"\xff"})[0]
    tenant.bind("orders", jobs, "eu.#")
    tenant.bind("orders", streams.declare(tenant, "history", {"partitions": 3, "max_age_ms": 5})[0], "#")
    tenant.bind("amq.headers", exchange, "", {"x-match": "any", "at": Timestamp(5), "n": 1})
    tenant.bind("amq.headers", jobs, "", {"$bytes": 5})


def empty_shard() -> Shard:
    return Shard(b"", 1)


def change(tenant: Tenant, draw: random.Random) -> None:
    """Declare, bind or delete something among a few names."""
    name = draw.choice("abcdefgh")
    try:
        action = draw.randrange(7)
        if action == 0:
            tenant.declare_queue(name, {}, "http")
        elif action == 1:
            tenant.declare_exchange("x" + name, draw.choice(["direct", "topic", "fanout"]))
        elif action == 2:
            streams.declare(tenant, "s" + name, {})
        elif action == 3:
            tenant.delete_queue(name)
        elif action == 4:
            tenant.delete_exchange("x" + name)
        elif action == 5:
            streams.delete(tenant, "s" + name)
        else:
            kind = draw.choice(["queue", "stream", "exchange"])
            prefix = {"queue": "", "stream": "s", "exchange": "x"}[kind]
            target = definitions.target_of(tenant, kind, prefix + draw.choice("abcdefgh"))
            tenant.bind(draw.choice(["amq.direct", "x" + name]), target, draw.choice("kl"))
    except RookeryError:
        pass


@pytest.mark.parametrize("seed", range(40))
def test_a_document_made_in_steps_can_be_loaded_whatever_changes_meanwhile(world: World, seed: int) -> None:
    draw = random.Random(seed)
    tenant = world.tenant
    for _ in range(200):
        change(tenant, draw)
    document: dict[str, Any] = definitions.head(tenant)
    for section, rows in definitions.sections(tenant).items():
        document[section] = []
        for row in rows:
            if row is not None:
                document[section].append(row)
            for _ in range(draw.randrange(4)):
                change(tenant, draw)
    other = empty_shard()
    definitions.load(other, {"rookery": 1, "tenants": [document]})
    loaded = definitions.export(other)["tenants"][0]
    assert {row["name"] for row in loaded["queues"]} == {row["name"] for row in document["queues"]}
    assert len(loaded["bindings"]) == len(document["bindings"])


@pytest.mark.parametrize("seed", range(10))
def test_a_tenant_that_is_deleted_in_steps_is_locked_until_it_is_gone(world: World, seed: int) -> None:
    draw = random.Random(seed)
    tenant = world.tenant
    for _ in range(200):
        change(tenant, draw)
    for _ in range(1_000):
        world.shard.publish(tenant, "", draw.choice(list(tenant.queues)), EMPTY, b"x")
    for _ in definitions.deleting(world.shard, tenant):
        for refused in (
            lambda: tenant.declare_queue("new", {}, "http"),
            lambda: definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": tenant.name}]}),
            lambda: next(definitions.deleting(world.shard, tenant)),
        ):
            with pytest.raises(Locked):
                refused()
    assert tenant.name not in world.shard.tenants
    assert (world.shard.queue_count, world.shard.memory_bytes, world.shard.definition_bytes) == (0, 0, 0)
    again = world.shard.create_tenant(tenant.name)
    again.declare_queue("new", {}, "http")


def test_a_document_says_all_of_it(world: World) -> None:
    furnish(world.tenant)
    document = definitions.export(world.shard)
    (tenant,) = document["tenants"]
    assert document["rookery"] == 1
    assert tenant["limits"]["queues_max"] == 50
    del tenant["limits"]
    assert tenant == {
        "name": "acme",
        "webhooks": [],
        "face_defaults": {
            "http": {
                "max_attempts": 9,
                "backoff": "exponential",
                "backoff_base_ms": 500,
                "dead_letter_queue": "{queue}.DLQ",
            }
        },
        "policies": [{"name": "short", "pattern": "^tmp", "priority": 3, "settings": {"ttl_ms": 1_000}}],
        "exchanges": [
            {
                "name": "orders",
                "kind": "topic",
                "durable": False,
                "auto_delete": True,
                "internal": True,
                "alternate": "amq.fanout",
                "arguments": {"note": {"$bytes": "/w=="}},
            }
        ],
        "queues": [
            {"name": "jobs", "face": "http", "settings": {"length_max": 10, "backoff_jitter": 0.5}},
            {"name": "tmp.x", "face": "amqp", "settings": {"auto_delete": True}},
        ],
        "streams": [{"name": "history", "settings": {"partitions": 3, "max_age_ms": 5}}],
        "bindings": [
            {
                "source": "amq.headers",
                "target": "orders",
                "target_kind": "exchange",
                "key": "",
                "arguments": {"x-match": "any", "at": {"$timestamp": 5}, "n": 1},
            },
            {
                "source": "amq.headers",
                "target": "jobs",
                "target_kind": "queue",
                "key": "",
                "arguments": {"$bytes": 5},
            },
            {"source": "orders", "target": "jobs", "target_kind": "queue", "key": "eu.#", "arguments": {}},
            {"source": "orders", "target": "history", "target_kind": "stream", "key": "#", "arguments": {}},
        ],
    }


def test_what_is_loaded_works_as_what_was_exported(world: World) -> None:
    furnish(world.tenant)
    document = json.loads(json.dumps(definitions.export(world.tenant)))
    shard = empty_shard()
    definitions.load(shard, document)
    tenant = shard.tenant("acme")
    queue = tenant.queue("jobs")
    assert (queue.max_attempts, queue.settings.length_max, tenant.queue("tmp.x").ttl_ms) == (9, 10, 1_000)
    assert shard.publish(tenant, "orders", "eu.x", b"\0\0", b"1")[1] == 2  # the queue and the stream
    assert waiting(queue) == [b"1"]
    assert tenant.bindings == 4
    assert not tenant.bind("amq.headers", tenant.exchange("orders"), "", {"x-match": "any", "at": Timestamp(5), "n": 1})


def test_loading_twice_changes_nothing(world: World) -> None:
    furnish(world.tenant)
    world.publish(b"kept")
    document = definitions.export(world.shard)
    version, queue = world.tenant.version, world.tenant.queue("jobs")
    definitions.load(world.shard, document)
    assert world.tenant.version == version
    assert world.tenant.queue("jobs") is queue
    assert waiting(queue) == [b"kept"]
    assert definitions.export(world.shard) == document


def test_loading_adds_to_what_is_there(world: World) -> None:
    furnish(world.tenant)
    document = definitions.export(world.tenant)
    shard = empty_shard()
    tenant = shard.create_tenant("acme")
    mine = tenant.declare_queue("mine", {}, "http")[0]
    tenant.set_policy(Policy("short", "^long", {"ttl_ms": 9}))
    definitions.load(shard, document)
    assert tenant.queue("mine") is mine
    assert mine.max_attempts == 9
    assert tenant.policies["short"].pattern == "^tmp"


def test_a_policy_that_is_loaded_reaches_queues_that_exist(world: World) -> None:
    queue = world.queue()
    world.fill(3)
    policy = {"name": "p", "pattern": "jobs", "settings": {"length_max": 1}}
    definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme", "policies": [policy]}]})
    assert waiting(queue) == [b"2"]


def test_exclusive_queues_are_left_out(world: World) -> None:
    owner = object()
    mine = world.tenant.declare_queue("mine", {}, "amqp", owner=owner)[0]
    world.tenant.bind("amq.topic", mine, "a")
    (tenant,) = definitions.export(world.shard)["tenants"]
    assert (tenant["queues"], tenant["bindings"]) == ([], [])
    definitions.load(world.shard, {"rookery": 1, "tenants": [tenant]})
    assert world.tenant.queue("mine") is mine
    queues = [{"name": name, "face": "amqp"} for name in ("new", "mine")]
    with pytest.raises(Locked):
        definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme", "queues": queues}]})
    assert list(world.tenant.queues) == ["mine"]


def test_one_tenant_or_all(world: World) -> None:
    other = world.shard.create_tenant("a")
    assert [tenant["name"] for tenant in definitions.export(world.shard)["tenants"]] == ["a", "acme"]
    assert [tenant["name"] for tenant in definitions.export(other)["tenants"]] == ["a"]


def test_equal_definitions_give_equal_documents() -> None:
    documents = []
    for names in (["a", "b", "c"], ["c", "a", "b"]):
        shard = empty_shard()
        for name in names:
            shard.create_tenant(name)
        tenant = shard.tenant("a")
        for name in names:
            tenant.declare_queue(name, {}, "http")
            tenant.declare_exchange(f"{name}x", "topic")
        for name in names:
            tenant.bind(f"{name}x", tenant.queue(name), "k")
        documents.append(json.dumps(definitions.export(shard)))
    assert documents[0] == documents[1]


def test_a_tenant_that_outgrew_its_limits_can_be_loaded(world: World) -> None:
    for name in ("one", "two", "three"):
        world.tenant.bind("amq.topic", world.queue(name), "k")
    world.tenant.set_limits({"queues_max": 1, "exchanges_max": 1, "bindings_max": 1})
    document = definitions.export(world.shard)
    shard = empty_shard()
    definitions.load(shard, document)
    assert definitions.export(shard) == document
    with pytest.raises(LimitExceeded):
        shard.tenant("acme").declare_queue("four", {}, "http")


# Keys and users


def test_keys_and_users_go_along_when_asked(world: World) -> None:
    access = Access(random.Random(1).randbytes)
    issued = access.create_key("acme", 1_000)
    document = json.loads(json.dumps(definitions.export(world.shard, access)))
    other = Access(random.Random(2).randbytes)
    definitions.load(empty_shard(), document, other)
    assert other.check_key(issued.text, 2_000).tenant == "acme"
    assert issued.text.partition(".")[2] not in json.dumps(document)
    assert "access" not in definitions.export(world.shard)
    definitions.load(empty_shard(), document)


def test_bad_keys_change_nothing(world: World) -> None:
    access = Access(random.Random(1).randbytes)
    issued = access.create_key("acme", 1_000)
    document = {"rookery": 1, "tenants": [{"name": "new"}], "access": {"version": 1, "keys": 5, "users": []}}
    with pytest.raises(InvalidArgument) as caught:
        definitions.load(world.shard, document, access)
    assert caught.value.argument == "keys"
    assert list(world.shard.tenants) == ["acme"]
    assert access.check_key(issued.text, 2_000).tenant == "acme"


def test_a_bad_tenant_changes_no_keys(world: World) -> None:
    access = Access(random.Random(1).randbytes)
    access.create_key("acme", 1_000)
    before = access.export()
    document = {"rookery": 1, "tenants": [{"name": ""}], "access": {"version": 1, "keys": [], "users": []}}
    with pytest.raises(InvalidName):
        definitions.load(world.shard, document, access)
    assert access.export() == before


# Bad documents


def tenant_with(**parts: Any) -> dict[str, Any]:
    return {"rookery": 1, "tenants": [{"name": "first"}, {"name": "acme", **parts}]}


QUEUE = {"name": "q", "face": "http"}

BAD: list[tuple[Any, type[RookeryError], str]] = [
    ([], InvalidArgument, "document"),
    ({}, InvalidArgument, "document"),
    ({"rookery": 2, "tenants": []}, InvalidArgument, "rookery"),
    ({"rookery": 1}, InvalidArgument, "document"),
    ({"rookery": 1, "tenants": {}}, InvalidArgument, "tenants"),
    ({"rookery": 1, "tenants": [], "colours": []}, InvalidArgument, "document"),
    ({"rookery": 1, "tenants": [{"name": "x"}, {"name": "x"}]}, InvalidArgument, "tenants"),
    ({"rookery": 1, "tenants": [{"name": 5}]}, InvalidArgument, "tenants[...].name"),
    ({"rookery": 1, "tenants": [{"name": "x"}, {"name": ""}]}, InvalidName, "tenant"),
    (tenant_with(colour="red"), InvalidArgument, "tenants[...]"),
    (tenant_with(limits={"queues_max": -1}), InvalidArgument, "queues_max"),
    (tenant_with(limits={"colours_max": 1}), InvalidArgument, "colours_max"),
    (tenant_with(face_defaults={"pigeon": {}}), InvalidArgument, "face"),
    (tenant_with(face_defaults={"http": {"ttl_ms": -1}}), InvalidArgument, "ttl_ms"),
    (tenant_with(policies=[{"name": "p", "pattern": "("}]), InvalidArgument, "pattern"),
    (tenant_with(policies=[{"name": "", "pattern": "x"}]), InvalidName, "policy"),
    (tenant_with(policies=[{"name": "p", "pattern": "x"}] * 2), InvalidArgument, "policies"),
    (tenant_with(policies=[{"name": "p", "pattern": "x", "settings": {"durable": True}}]), InvalidArgument, "durable"),
    (tenant_with(exchanges=[{"name": "e", "kind": "square"}]), InvalidArgument, "kind"),
    (tenant_with(exchanges=[{"name": "", "kind": "topic"}]), InvalidName, "exchange"),
    (tenant_with(exchanges=[{"name": "amq.topic", "kind": "direct"}]), Conflict, "kind"),
    (tenant_with(exchanges=[{"name": "e", "kind": "topic"}] * 2), InvalidArgument, "exchanges"),
    (tenant_with(exchanges=[{"name": "e"}]), InvalidArgument, "tenants[...].exchanges[...]"),
    (tenant_with(queues=[{"name": "q"}]), InvalidArgument, "tenants[...].queues[...]"),
    (tenant_with(queues=[{"name": "q", "face": "pigeon"}]), InvalidArgument, "face"),
    (tenant_with(queues=[QUEUE, QUEUE]), InvalidArgument, "queues"),
    (tenant_with(queues=[{**QUEUE, "settings": {"ttl_ms": "5"}}]), InvalidType, "ttl_ms"),
    (tenant_with(queues=[{**QUEUE, "name": "jobs", "settings": {"ttl_ms": 6}}]), Conflict, "ttl_ms"),
    (tenant_with(queues=[QUEUE], bindings=[{"source": "nowhere", "target": "q"}]), ExchangeNotFound, "exchange"),
    (tenant_with(queues=[QUEUE], bindings=[{"source": "amq.topic", "target": "r"}]), QueueNotFound, "queue"),
    (tenant_with(queues=[QUEUE], bindings=[{"source": "", "target": "q"}]), InvalidArgument, "exchange"),
    (
        tenant_with(bindings=[{"source": "amq.topic", "target": "jobs", "key": "k" * 300}])
        | {"rookery": 1, "tenants": [{"name": "acme", "bindings": [{"source": "amq.direct", "target": "nobody"}]}]},
        QueueNotFound,
        "queue",
    ),
    (
        tenant_with(bindings=[{"source": "amq.direct", "target": "jobs", "key": "k" * 256}]),
        InvalidArgument,
        "key",
    ),
    (
        tenant_with(bindings=[{"source": "amq.direct", "target": "jobs", "arguments": {"x": {"$bytes": "?"}}}]),
        InvalidArgument,
        "arguments",
    ),
    (
        tenant_with(bindings=[{"source": "amq.direct", "target": "jobs", "arguments": {"x": {"$colour": "red"}}}]),
        InvalidArgument,
        "arguments",
    ),
    (tenant_with(queues=[{"name": f"q{i}", "face": "http"} for i in range(5)]), LimitExceeded, "queue"),
]


@pytest.mark.parametrize(("document", "error", "argument"), BAD)
def test_a_bad_document_changes_nothing(world: World, document: Any, error: type[RookeryError], argument: str) -> None:
    world.queue(ttl_ms=5)
    world.tenant.set_limits({"queues_max": 4})
    before = definitions.export(world.shard)
    version = world.tenant.version
    given_document = copy.deepcopy(document)
    with pytest.raises(error) as caught:
        definitions.load(world.shard, document)
    assert re.sub(r"\[\d+\]", "[...]", str(getattr(caught.value, "argument", None))) == argument
    assert definitions.export(world.shard) == before
    assert world.tenant.version == version
    assert document == given_document


def test_too_many_tenants_change_nothing(world: World) -> None:
    world.shard.tenants_max = 2
    with pytest.raises(LimitExceeded):
        definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "b"}, {"name": "c"}]})
    assert list(world.shard.tenants) == ["acme"]
    definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "b"}, {"name": "acme"}]})


# Values that JSON lacks

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(max_size=8)
    | st.floats(allow_nan=False)
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.integers(0, 1 << 40).map(Timestamp)
    | st.datetimes(timezones=st.just(UTC), allow_imaginary=False).map(lambda moment: moment.replace(fold=0))
)
names = st.text("abc$", max_size=6) | st.sampled_from(["$table", "$bytes"])
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
tables = st.dictionaries(names, values, max_size=4)
small_tables = st.dictionaries(names, plain, max_size=1)


@given(tables)
def test_every_argument_survives(arguments: dict[str, object]) -> None:
    shard = empty_shard()
    tenant = shard.create_tenant("t")
    tenant.bind("amq.fanout", tenant.declare_queue("q", {}, "amqp")[0], "k", arguments)
    document = json.loads(json.dumps(definitions.export(shard)))
    other = empty_shard()
    definitions.load(other, document)
    ((_, loaded, _),) = other.tenant("t").exchange("amq.fanout").matcher.bindings()
    assert (loaded or {}) == arguments
    assert repr(loaded or {}) == repr(arguments)


def test_what_cannot_be_a_number_survives_too(world: World) -> None:
    world.tenant.declare_exchange("e", "topic", arguments={"nan": float("nan"), "inf": float("-inf"), "d": Decimal(1)})
    document = definitions.export(world.shard)
    shard = empty_shard()
    definitions.load(shard, json.loads(json.dumps(document, allow_nan=False)))
    assert definitions.export(shard) == document


def test_times_survive(world: World) -> None:
    moment = datetime(2026, 11, 15, 20, 30, tzinfo=UTC)
    world.tenant.declare_exchange("e", "topic", arguments={"since": moment})
    shard = empty_shard()
    definitions.load(shard, definitions.export(world.shard))
    assert shard.tenant("acme").exchange("e").arguments == {"since": moment}


def test_a_foreign_object_cannot_be_written_down(world: World) -> None:
    world.tenant.declare_exchange("e", "topic", arguments={"x": object()})
    with pytest.raises(InvalidType) as caught:
        definitions.export(world.shard)
    assert caught.value.argument == "arguments"


# Any definitions at all

short_names = st.sampled_from(["a", "b", "c", "d.e", "ü"])
queue_settings = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.integers(0, 1 << 50),
        "length_max": st.integers(0, 100),
        "overflow": st.sampled_from(["drop-head", "reject-publish", "drop-new"]),
        "max_attempts": st.integers(0, 9),
        "durable": st.booleans(),
        "backoff_jitter": st.floats(0, 1),
        "dead_letter_queue": st.sampled_from(["graves", "{queue}.DLQ"]),
        "grouped": st.booleans(),
    },
)
faces = st.sampled_from(["http", "amqp", "line", "s0", "mqtt", "embedded", "dead-letter"])
policy_settings = st.fixed_dictionaries({}, optional={"ttl_ms": st.integers(0, 99), "max_attempts": st.integers(0, 9)})


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    shard = empty_shard()
    for tenant_name in draw(st.lists(short_names, unique=True, max_size=3)):
        tenant = shard.create_tenant(tenant_name)
        if draw(st.booleans()):
            tenant.set_limits({"queues_max": draw(st.integers(3, 9)), "dedup_keys_max": draw(st.integers(0, 9))})
        for face, settings in draw(st.dictionaries(faces, policy_settings, max_size=2)).items():
            tenant.set_face_defaults(face, settings)
        for name in draw(st.lists(short_names, max_size=3)):
            tenant.set_policy(Policy(name, draw(short_names), draw(policy_settings), draw(st.integers(-3, 3))))
        for name in draw(st.lists(short_names, unique=True, max_size=3)):
            owner = object() if draw(st.integers(0, 4)) == 0 else None
            tenant.declare_queue(name, draw(queue_settings), draw(faces), owner=owner)
        for name in draw(st.lists(short_names, unique=True, max_size=3)):
            kind = draw(st.sampled_from(["direct", "fanout", "topic", "headers", "consistent-hash"]))
            flags = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
            alternate = draw(st.just("") | short_names)
            tenant.declare_exchange(name, kind, *flags, alternate, draw(small_tables))
        ends: list[Queue | Exchange] = [*tenant.queues.values(), *(e for e in tenant.exchanges.values() if e.name)]
        for _ in range(draw(st.integers(0, 5))):
            source = draw(st.sampled_from([e for e in tenant.exchanges.values() if e.name]))
            key = "3" if source.kind == "consistent-hash" else draw(short_names | st.just("a.#"))
            tenant.bind(source.name, draw(st.sampled_from(ends)), key, draw(small_tables))
    return shard


def in_force(shard: Shard) -> dict[str, dict[str, dict[str, object]]]:
    return {
        tenant.name: {q.name: q.settings.as_dict() for q in tenant.queues.values() if q.owner is None}
        for tenant in shard.tenants.values()
    }


@given(shards())
def test_export_of_load_of_export_is_export(shard: Shard) -> None:
    document = definitions.export(shard)
    other = empty_shard()
    definitions.load(other, json.loads(json.dumps(document)))
    assert definitions.export(other) == document
    assert in_force(other) == in_force(shard)
    definitions.load(other, document)
    definitions.load(shard, document)
    assert definitions.export(other) == definitions.export(shard) == document


@given(shards(), shards())
def test_loading_onto_something_else_is_all_or_nothing(shard: Shard, other: Shard) -> None:
    document = definitions.export(shard)
    before = definitions.export(other)
    try:
        definitions.load(other, document)
    except RookeryError:
        assert definitions.export(other) == before
    else:
        after = definitions.export(other)
        definitions.load(other, document)
        assert definitions.export(other) == after


def test_an_import_names_all_policies_whose_patterns_are_refused(world: World) -> None:
    rows = [
        {"name": "fine", "pattern": "^a"},
        {"name": "one", "pattern": r"(a)\1"},
        {"name": "two", "pattern": "(?>a)"},
    ]
    before = definitions.export(world.shard)
    with pytest.raises(InvalidArgument) as caught:
        definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme", "policies": rows}]})
    assert caught.value.argument == "pattern"
    assert "policy 'one' of tenant 'acme': the backreference" in str(caught.value)
    assert "policy 'two' of tenant 'acme': the atomic group" in str(caught.value)
    assert definitions.export(world.shard) == before


def test_a_stored_policy_that_is_refused_now_does_not_stop_imports(world: World) -> None:
    world.tenant.set_policy(Policy("old", r"(a)\1", {"ttl_ms": 5}, stored=True))
    document = definitions.export(world.shard)
    definitions.load(world.shard, document)
    assert definitions.export(world.shard) == document
    assert [row["name"] for row in definitions.problems(world.shard)] == ["old"]


def test_too_many_policies_change_nothing(world: World) -> None:
    world.tenant.set_limits({"policies_max": 3})
    rows = [{"name": f"p{number}", "pattern": "^a"} for number in range(4)]
    before = definitions.export(world.shard)
    with pytest.raises(LimitExceeded):
        definitions.load(world.shard, {"rookery": 1, "tenants": [{"name": "acme", "policies": rows}]})
    assert definitions.export(world.shard) == before

"""Bad input to the embedded broker: a specific error that names the argument, and nothing changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery import errors
from rookery.embed import Config, Message, SubOptions
from tests.contract.faces import ALL_FACES, FACES, Face, embedded_only, faced

face = pytest.fixture(faced, params=ALL_FACES)

Call = Callable[["Things"], Awaitable[object]]
LONG = "x" * 256
HUGE = 1 << 70


class Things:
    """A broker with one of everything."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker

    async def fill(self) -> Things:
        broker = self.broker
        self.queue = await broker.queue("jobs", max_attempts=3)
        await broker.queue("dead")
        self.exchange = await broker.exchange("x", "direct")
        self.subscription = await broker.subscribe("t")
        await self.queue.publish_many(["ready", "leased", Message("delayed", delay_ms=1_000)])
        await broker.publish("t", "buffered")
        (self.delivery,) = await self.queue.claim()
        self.consumer = await self.queue.subscribe(credit=1)
        self.transaction = broker.transaction(timeout_ms=3_600_000)
        await self.transaction.__aenter__()
        return self


def of_message(argument: str, *values: Any) -> list[tuple[str, type[errors.RookeryError], Call]]:
    """A message with a wrong field is refused, the first of them wherever a message is published."""

    def message(value: Any) -> Message:
        return Message("x", **{argument: value})

    first = values[0]
    calls: list[Call] = [
        lambda t: t.queue.publish_many(["fine", message(first)]),
        lambda t: t.exchange.publish("k", message(first)),
        lambda t: t.broker.publish("t", message(first)),
        lambda t: t.broker.publish("t", message(first), transaction="tx"),
        lambda t: t.transaction.publish_to_queue("jobs", message(first)),
    ]
    calls += [lambda t, value=value: t.queue.publish(message(value)) for value in values]  # type: ignore[misc]
    return [(argument, errors.InvalidArgument, call) for call in calls]


TABLE: list[tuple[str, type[errors.RookeryError], Call]] = [
    # names
    ("queue", errors.InvalidName, lambda t: t.broker.queue("")),
    ("queue", errors.InvalidName, lambda t: t.broker.queue("  ")),
    ("queue", errors.InvalidName, lambda t: t.broker.queue(LONG)),
    ("queue", errors.InvalidName, lambda t: t.broker.queue("a\nb")),
    ("queue", errors.InvalidType, lambda t: t.broker.queue(5)),
    ("queue", errors.InvalidType, lambda t: t.broker.create_queue(None)),
    ("exchange", errors.InvalidName, lambda t: t.broker.exchange("")),
    ("exchange", errors.InvalidName, lambda t: t.broker.exchange("ü" * 128)),
    ("exchange", errors.InvalidType, lambda t: t.broker.exchange(b"x")),
    ("name", errors.InvalidName, lambda t: t.broker.set_policy("", "p")),
    ("topic", errors.InvalidType, lambda t: t.broker.publish(5, "x")),
    ("topic", errors.InvalidType, lambda t: t.broker.publish_many(None, ["x"])),
    ("topic", errors.InvalidType, lambda t: t.broker.subscribe(b"t")),
    ("topic", errors.InvalidTopic, lambda t: t.broker.ack("", "a")),
    ("topic", errors.InvalidTopic, lambda t: t.transaction.publish(" ", "x")),
    ("queue", errors.InvalidName, lambda t: t.broker.request("", 1)),
    ("queue", errors.QueueNotFound, lambda t: t.broker.request("nowhere", 1)),
    ("exchange", errors.ExchangeNotFound, lambda t: t.queue.bind("nowhere", "k")),
    ("queue", errors.QueueNotFound, lambda t: t.exchange.bind("nowhere", "k")),
    ("queue", errors.QueueNotFound, lambda t: t.queue.move("nowhere")),
    ("policy", errors.NotFound, lambda t: t.broker.delete_policy("nowhere")),
    ("policy", errors.InvalidType, lambda t: t.broker.delete_policy(5)),
    ("transaction", errors.InvalidName, lambda t: t.broker.publish("t", 1, transaction="")),
    ("transaction", errors.InvalidType, lambda t: t.broker.publish("t", 1, transaction=5)),
    ("transaction", errors.InvalidType, lambda t: t.broker.commit(None)),
    ("transaction", errors.TransactionNotFound, lambda t: t.broker.rollback("nowhere")),
    # settings
    ("unheard_of", errors.InvalidArgument, lambda t: t.broker.queue("new", unheard_of=1)),
    ("max_attempts", errors.InvalidArgument, lambda t: t.broker.queue("new", max_attempts=-1)),
    ("max_attempts", errors.InvalidType, lambda t: t.broker.queue("new", max_attempts="3")),
    ("max_attempts", errors.Conflict, lambda t: t.broker.queue("jobs", max_attempts=4)),
    ("lease_ms", errors.InvalidArgument, lambda t: t.broker.queue("new", lease_ms=0)),
    ("lease_ms", errors.InvalidArgument, lambda t: t.broker.queue("new", lease_ms=HUGE)),
    ("ttl_ms", errors.InvalidArgument, lambda t: t.broker.queue("new", ttl_ms=-1)),
    ("backoff_jitter", errors.InvalidArgument, lambda t: t.broker.queue("new", backoff_jitter=1.5)),
    ("backoff", errors.InvalidArgument, lambda t: t.broker.queue("new", backoff="square")),
    ("overflow", errors.InvalidArgument, lambda t: t.broker.queue("new", overflow="explode")),
    ("durable", errors.InvalidType, lambda t: t.broker.queue("new", durable="yes")),
    ("dead_letter_queue", errors.InvalidArgument, lambda t: t.broker.queue("new", dead_letter_queue=LONG)),
    (
        "dead_letter_queue",
        errors.InvalidArgument,
        lambda t: t.broker.queue("new", dead_letter_queue="a", dead_letter_exchange="b"),
    ),
    ("dead_letter_key", errors.InvalidArgument, lambda t: t.broker.queue("new", dead_letter_key="k")),
    ("kind", errors.InvalidArgument, lambda t: t.broker.exchange("new", "round")),
    ("kind", errors.InvalidType, lambda t: t.broker.exchange("new", 5)),
    ("kind", errors.Conflict, lambda t: t.broker.exchange("x", "fanout")),
    ("durable", errors.InvalidType, lambda t: t.broker.exchange("new", durable="no")),
    ("alternate", errors.InvalidType, lambda t: t.broker.exchange("new", alternate=None)),
    ("arguments", errors.InvalidType, lambda t: t.broker.exchange("new", arguments=[1])),
    ("pattern", errors.InvalidArgument, lambda t: t.broker.set_policy("new", "(")),
    ("pattern", errors.InvalidType, lambda t: t.broker.set_policy("new", 5)),
    ("priority", errors.InvalidType, lambda t: t.broker.set_policy("new", "p", priority="high")),
    ("unheard_of", errors.InvalidArgument, lambda t: t.broker.set_policy("new", "p", unheard_of=1)),
    ("ordered", errors.InvalidArgument, lambda t: t.broker.set_policy("new", "p", ordered=False)),
    ("exchange", errors.InvalidArgument, lambda t: t.queue.bind("", "k")),
    ("exchange", errors.InvalidType, lambda t: t.queue.bind(None, "k")),
    ("key", errors.InvalidType, lambda t: t.queue.bind("x", 5)),
    ("key", errors.InvalidArgument, lambda t: t.queue.bind("x", LONG)),
    ("headers", errors.InvalidType, lambda t: t.queue.bind("x", headers=[1])),
    ("headers", errors.InvalidType, lambda t: t.exchange.unbind("jobs", headers="a")),
    ("target", errors.InvalidType, lambda t: t.exchange.bind(5)),
    ("document", errors.InvalidType, lambda t: t.broker.import_definitions([1])),
    ("tenants", errors.InvalidArgument, lambda t: t.broker.import_definitions({"rookery": 1, "tenants": 5})),
    # subscriptions to topics
    ("unheard_of", errors.InvalidConfig, lambda t: t.broker.subscribe("t", unheard_of=1)),
    ("buffer_size", errors.InvalidConfig, lambda t: t.broker.subscribe("t", buffer_size=-1)),
    ("buffer_size", errors.InvalidConfig, lambda t: t.broker.subscribe("t", buffer_size=2.0)),
    ("policy", errors.InvalidConfig, lambda t: t.broker.subscribe("t", policy="explode")),
    ("block_timeout_ms", errors.InvalidConfig, lambda t: t.broker.subscribe("t", block_timeout_ms=-1)),
    ("filter", errors.InvalidConfig, lambda t: t.broker.subscribe("t", filter="all")),
    ("zero_copy", errors.InvalidConfig, lambda t: t.broker.subscribe("t", zero_copy=1)),
    ("options", errors.InvalidArgument, lambda t: t.broker.subscribe("t", SubOptions(), buffer_size=5)),
    ("options", errors.InvalidType, lambda t: t.broker.subscribe("t", {"buffer_size": 5})),
    ("topics", errors.InvalidType, lambda t: t.broker.subscribe_many("t")),
    ("topics", errors.InvalidType, lambda t: t.broker.subscribe_many(5)),
    ("timeout_ms", errors.InvalidArgument, lambda t: t.subscription.get(-1)),
    ("timeout_ms", errors.InvalidType, lambda t: t.subscription.get(1.5)),
    # publishing
    ("body", errors.InvalidType, lambda t: t.queue.publish(object())),
    ("body", errors.InvalidType, lambda t: t.queue.publish({"a": object()})),
    ("body", errors.InvalidType, lambda t: t.queue.publish("\ud800")),
    ("body", errors.NilMessage, lambda t: t.queue.publish(None)),
    ("body", errors.NilMessage, lambda t: t.broker.publish("t", None)),
    ("bodies", errors.InvalidType, lambda t: t.queue.publish_many("text")),
    ("bodies", errors.InvalidType, lambda t: t.queue.publish_many(b"bytes")),
    ("bodies", errors.InvalidType, lambda t: t.queue.publish_many({"a": 1})),
    ("bodies", errors.InvalidType, lambda t: t.queue.publish_many(5)),
    ("bodies", errors.InvalidType, lambda t: t.exchange.publish_many("k", 5)),
    ("bodies", errors.InvalidType, lambda t: t.broker.publish_many("t", "text")),
    ("key", errors.InvalidType, lambda t: t.exchange.publish(5, "x")),
    ("key", errors.InvalidArgument, lambda t: t.exchange.publish(LONG, "x")),
    ("key", errors.InvalidType, lambda t: t.exchange.publish_many(None, ["x"])),
    ("key", errors.InvalidType, lambda t: t.transaction.publish_to_exchange("x", 5, "x")),
    ("key", errors.Unroutable, lambda t: t.exchange.publish("k", "x", mandatory=True)),
    ("id", errors.NilMessage, lambda t: t.queue.publish(Message("x", id=" "))),
    *of_message("id", 5, LONG, "\ud800"),
    *of_message("type", 5, LONG),
    *of_message("content_type", 5, LONG),
    *of_message("correlation_id", 5, LONG),
    *of_message("reply_to", 5, LONG),
    *of_message("priority", "high", 1.0, True, 1 << 63, -(1 << 63) - 1),
    *of_message("persistent", 1),
    *of_message("group", 5, LONG),
    *of_message("dedup_key", 5, LONG),
    *of_message("meta", {"a": object()}, {5: 1}, {LONG: 1}, {"a": HUGE}),
    *of_message("ttl_ms", -1, 1.5, "1", HUGE, True),
    *of_message("delay_ms", -1, 1.5, "1", HUGE),
    *of_message("expires_at", -1, 1.5, "soon", HUGE, datetime(2030, 1, 1)),  # noqa: DTZ001 (that is the point)
    *of_message("deliver_at", -1, 1.5, "soon", HUGE, datetime(2030, 1, 1)),  # noqa: DTZ001
    *of_message("time", 5, "now", datetime(2030, 1, 1)),  # noqa: DTZ001
    ("ttl_ms", errors.InvalidArgument, lambda t: t.queue.publish(Message("x", ttl_ms=1, expires_at=HUGE))),
    ("delay_ms", errors.InvalidArgument, lambda t: t.queue.publish(Message("x", delay_ms=1, deliver_at=HUGE))),
    # acks
    ("ack", errors.InvalidConfig, lambda t: t.broker.publish("t", "x", ack="maybe")),
    ("ack_id", errors.InvalidType, lambda t: t.broker.publish("t", "x", ack="required", ack_id=5)),
    ("ack_id", errors.InvalidArgument, lambda t: t.broker.publish("t", "x", ack="required", ack_id=" ")),
    ("ack_timeout_ms", errors.InvalidConfig, lambda t: t.broker.publish("t", "x", ack="required", ack_timeout_ms=0)),
    ("ack_timeout_ms", errors.InvalidConfig, lambda t: t.broker.publish("t", "x", ack="timeout", ack_timeout_ms="1")),
    ("ack_id", errors.InvalidType, lambda t: t.broker.ack("t", 5)),
    ("ack_id", errors.MessageNotAcked, lambda t: t.broker.nack("t", "unknown")),
    ("reason", errors.InvalidType, lambda t: t.broker.publish_dead_letter("t", "x", None)),
    ("limit", errors.InvalidArgument, lambda t: t.broker.drain_dead_letters(-1)),
    ("limit", errors.InvalidType, lambda t: t.broker.replay_dead_letters("all")),
    # claiming, settling
    ("count", errors.InvalidArgument, lambda t: t.queue.claim(0)),
    ("count", errors.InvalidArgument, lambda t: t.queue.claim(HUGE)),
    ("count", errors.InvalidType, lambda t: t.queue.claim("1")),
    ("count", errors.InvalidType, lambda t: t.queue.claim(True)),
    ("wait_ms", errors.InvalidArgument, lambda t: t.queue.claim(wait_ms=-1)),
    ("wait_ms", errors.InvalidType, lambda t: t.queue.claim(wait_ms=0.5)),
    ("lease_ms", errors.InvalidArgument, lambda t: t.queue.claim(lease_ms=0)),
    ("lease_ms", errors.InvalidType, lambda t: t.queue.claim(lease_ms="30s")),
    ("credit", errors.InvalidArgument, lambda t: t.queue.subscribe(credit=0)),
    ("credit", errors.InvalidType, lambda t: t.queue.subscribe(credit=None)),
    ("lease_ms", errors.InvalidArgument, lambda t: t.queue.subscribe(lease_ms=-5)),
    ("priority", errors.InvalidArgument, lambda t: t.queue.subscribe(priority="first")),
    ("priority", errors.InvalidArgument, lambda t: t.queue.subscribe(priority=HUGE)),
    ("name", errors.InvalidType, lambda t: t.queue.subscribe(name=5)),
    ("count", errors.InvalidArgument, lambda t: t.consumer.get_many(0)),
    ("timeout_ms", errors.InvalidArgument, lambda t: t.consumer.get(-1)),
    ("timeout_ms", errors.InvalidType, lambda t: t.consumer.get_many(1, "soon")),
    ("delay_ms", errors.InvalidArgument, lambda t: t.delivery.retry(-1)),
    ("delay_ms", errors.InvalidType, lambda t: t.delivery.retry("later")),
    ("reason", errors.InvalidType, lambda t: t.delivery.retry(reason=5)),
    ("reason", errors.InvalidType, lambda t: t.delivery.reject(None)),
    ("lease_ms", errors.InvalidArgument, lambda t: t.delivery.extend(0)),
    ("reply_to", errors.InvalidArgument, lambda t: t.delivery.reply("nobody asked")),
    ("outcome", errors.InvalidArgument, lambda t: t.queue.settle([t.delivery], "forget")),
    ("delay_ms", errors.InvalidArgument, lambda t: t.queue.settle([t.delivery], "retry", delay_ms=-1)),
    ("delivery", errors.InvalidType, lambda t: t.queue.settle([t.delivery, 5])),
    ("delivery", errors.InvalidType, lambda t: t.transaction.ack("it")),
    ("delay_ms", errors.InvalidType, lambda t: t.transaction.retry(t.delivery, "soon")),
    ("reason", errors.InvalidType, lambda t: t.transaction.reject(t.delivery, 5)),
    ("timeout_ms", errors.InvalidArgument, lambda t: t.broker.request("jobs", 1, timeout_ms=0)),
    ("timeout_ms", errors.InvalidType, lambda t: t.broker.request("jobs", 1, timeout_ms=None)),
    ("body", errors.NilMessage, lambda t: t.broker.request("jobs", None)),
    # looking, moving
    ("count", errors.InvalidArgument, lambda t: t.queue.peek(0)),
    ("target", errors.InvalidType, lambda t: t.queue.move(5)),
    ("target", errors.InvalidArgument, lambda t: t.queue.move("jobs")),
    ("limit", errors.InvalidArgument, lambda t: t.queue.move("dead", limit=-1)),
    ("filter", errors.InvalidType, lambda t: t.queue.move("dead", filter="all")),
    ("limit", errors.InvalidType, lambda t: t.queue.redrive(limit="all")),
    ("target", errors.InvalidType, lambda t: t.queue.redrive(target=5)),
    ("queue", errors.QueueNotFound, lambda t: t.queue.redrive(target="nowhere")),
    ("grace_ms", errors.InvalidArgument, lambda t: t.broker.close(grace_ms=-1)),
]

HERE: list[tuple[str, type[errors.RookeryError], Call]] = [
    # a client is told of these when it commits
    ("queue", errors.QueueNotFound, lambda t: t.transaction.publish_to_queue("nowhere", 1)),
    ("exchange", errors.ExchangeNotFound, lambda t: t.transaction.publish_to_exchange("nowhere", "k", 1)),
    # this is too large for a request, whatever is in it
    ("body", errors.MessageTooLarge, lambda t: t.queue.publish(b"x" * (128 * 1024 * 1024 + 1))),
    # over HTTP this is a conflict
    ("exchange", errors.InvalidArgument, lambda t: delete_standard(t)),
]


async def delete_standard(things: Things) -> None:
    await (await things.broker.exchange("amq.direct", "direct")).delete()


async def state(things: Things) -> str:
    """All there is to see: definitions, meters, what waits in every queue."""
    broker = things.broker
    metrics = await broker.metrics()
    for stats in metrics["queues"].values():
        del stats["oldest_age_ms"]
    metrics["tenant"].pop("refused")
    for stats in metrics["exchanges"].values():
        # a mandatory message that nobody gets is counted, and nothing else
        unroutable = stats.pop("unroutable")
        stats["published"] -= unroutable
        metrics["tenant"]["published"] -= unroutable
        del stats["bytes"]
    peeks = {name: [str(m) for m in await (await broker.queue(name)).peek(9)] for name in await broker.queues()}
    return json.dumps([await broker.export_definitions(), metrics, peeks, things.delivery.live], sort_keys=True)


def rows(table: list[tuple[str, type[errors.RookeryError], Call]]) -> pytest.MarkDecorator:
    names = [f"{i}-{row[0]}" for i, row in enumerate(table)]
    return pytest.mark.parametrize(("argument", "error", "call"), table, ids=names)


@embedded_only
@pytest.mark.row("S4-27")
@rows(TABLE + HERE)
async def test_bad_input_is_refused_by_name_and_changes_nothing(
    face: Face, argument: str, error: type[errors.RookeryError], call: Call
) -> None:
    config = Config(
        enable_ack_support=True, enable_transactions=True, enable_dead_letter_queue=True, dead_letter_topic="d"
    )
    things = await Things(face.make(config)).fill()
    await check_refused(things, argument, error, call)


async def check_refused(things: Things, argument: str, error: type[errors.RookeryError], call: Call) -> None:
    before = await state(things)
    with pytest.raises(error) as refused:
        await call(things)
    assert refused.value.argument == argument
    assert str(refused.value)
    assert await state(things) == before


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Things]:
    """One client for all rows: none of them changes anything."""

    async def fill() -> Things:
        return await Things(client.make()).fill()

    client = Face("blocking client")
    yield asyncio.run(fill())
    asyncio.run(client.close())


@pytest.mark.row("S4-27")
@rows(TABLE)
async def test_a_client_refuses_it_too(
    elsewhere: Things, argument: str, error: type[errors.RookeryError], call: Call
) -> None:
    await check_refused(elsewhere, argument, error, call)


def test_a_message_needs_a_mapping_for_meta() -> None:
    with pytest.raises(errors.InvalidType) as refused:
        Message("x", meta=[("a", 1)])  # type: ignore[arg-type]
    assert refused.value.argument == "meta"


async def test_a_timeout_is_given_by_name_and_positive(face: Face) -> None:
    broker = face.make()
    for bad in (0, -1, "1", 1.5):
        with pytest.raises(errors.InvalidArgument) as refused:
            broker.transaction(timeout_ms=bad)
        assert refused.value.argument == "timeout_ms"


async def test_a_delivery_belongs_to_its_broker(face: Face) -> None:
    one, other = face.make(), face.make()
    jobs = await one.queue("jobs")
    await jobs.publish("x")
    (delivery,) = await jobs.claim()
    with pytest.raises(errors.InvalidArgument, match="another broker"):
        await (await other.queue("jobs")).settle([delivery])
    with pytest.raises(errors.InvalidArgument, match="another broker"):
        async with other.transaction() as transaction:
            await transaction.ack(delivery)
    await delivery.ack()


@embedded_only
async def test_what_is_exclusive_to_a_subscription_stays_so(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t")
    with pytest.raises(errors.Locked):
        await broker.queue(subscription.id)
    assert await broker.queues() == []


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=50) | st.text(max_size=50) | json_values.filter(lambda v: v is not None))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_value_comes_back_as_it_was(value: Any) -> None:
    for name in FACES:
        face = Face(name)
        broker = face.make()
        jobs, subscription = await broker.queue("jobs"), await broker.subscribe("t")
        await jobs.publish(value)
        await broker.publish("t", Message(value))
        (delivery,) = await jobs.claim()
        for received in (delivery.data, (await subscription.get(0)).data):
            assert received == value
            assert type(received) is type(value)
        await face.close()


header_values = st.text(max_size=20) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.binary(max_size=20)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda k: not k.startswith("x-")), header_values, max_size=4
    ),
    st.none() | st.text(min_size=1, max_size=50).filter(str.strip),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(min_size=1, max_size=60),
)
async def test_any_field_comes_back_as_it_was(
    meta: dict[str, Any], id: str | None, priority: int, group: str | None
) -> None:
    face = Face("async")
    broker = face.make()
    jobs = await broker.queue("jobs")
    meta.pop("timestamp_in_ms", None)
    await jobs.publish(Message(b"", meta=meta, id=id, priority=priority, group=group))
    got = (await jobs.claim())[0].message
    assert (got.meta, got.priority, got.group) == (meta, priority, group)
    assert id is None or got.id == id
    await face.close()

"""Settings, limits, health, observers, errors and the end of an embedded broker."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import signal
import threading
import traceback
from typing import Any, get_type_hints

import pytest

import rookery
from rookery import errors
from rookery.core.policy import SETTINGS
from rookery.embed import Config, Observation, SubOptions, options
from tests.contract.faces import FACES, Face, faced

face = pytest.fixture(faced, params=FACES)


# Settings


@pytest.mark.row("S1-39")
def test_the_defaults() -> None:
    assert dataclasses.asdict(Config()) == {
        "topics_max": 0,
        "subscribers_max": 0,
        "buffer_size": 16,
        "enable_metrics": True,
        "enable_health_check": True,
        "health_check_interval_ms": 30_000,
        "message_ttl_ms": 0,
        "enable_priority_queue": True,
        "enable_ack_support": False,
        "ack_timeout_ms": 30_000,
        "memory_bytes_max": 0,
        "enable_transactions": False,
        "transaction_timeout_ms": 30_000,
        "enable_dead_letter_queue": False,
        "dead_letter_topic": "",
        "enable_persistence": False,
        "persistence_path": "",
        "sync": "always",
        "page_bytes": 128 << 20,
        "compression": "zlib",
        "compress_min_bytes": 4096,
        "require_body": False,
    }


@pytest.mark.row("S1-41", "S1-45")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("buffer_size", 0),
        ("buffer_size", -1),
        ("buffer_size", 1.5),
        ("buffer_size", True),
        ("buffer_size", 1 << 53),
        ("topics_max", -1),
        ("subscribers_max", -1),
        ("memory_bytes_max", -1),
        ("memory_bytes_max", "1 MB"),
        ("message_ttl_ms", -1),
        ("health_check_interval_ms", 0),
        ("health_check_interval_ms", -1),
        ("ack_timeout_ms", 0),
        ("ack_timeout_ms", -5),
        ("transaction_timeout_ms", 0),
        ("transaction_timeout_ms", -5),
        ("enable_metrics", 1),
        ("dead_letter_topic", None),
        ("dead_letter_topic", "x" * 256),
        ("unheard_of", 1),
    ],
)
async def test_invalid_settings_are_refused_at_construction_and_later(face: Face, setting: str, value: Any) -> None:
    with pytest.raises(errors.InvalidConfig) as refused:
        face.make(**{setting: value})
    assert refused.value.argument == setting
    broker = face.make()
    before = broker.config
    with pytest.raises(errors.InvalidConfig) as refused:
        await broker.update_config(**{setting: value})
    assert refused.value.argument == setting
    assert broker.config is before


@pytest.mark.row("S1-42")
async def test_settings_change_while_it_runs(face: Face) -> None:
    broker = face.make(Config(buffer_size=4), topics_max=1)
    assert (broker.config.buffer_size, broker.config.topics_max) == (4, 1)
    old = await broker.subscribe("a")
    with pytest.raises(errors.LimitExceeded):
        await broker.subscribe("b")
    changed = await broker.update_config(topics_max=2, buffer_size=8, message_ttl_ms=100, memory_bytes_max=1_000)
    assert broker.config == changed == Config(buffer_size=8, topics_max=2, message_ttl_ms=100, memory_bytes_max=1_000)
    new = await broker.subscribe("b")
    assert ((await old.stats())["queue_cap"], (await new.stats())["queue_cap"]) == (4, 8)
    with pytest.raises(errors.MemoryLimitExceeded):
        await broker.publish("a", b"x" * 1_000)
    await broker.publish("a", "short")
    await face.advance(100)
    assert (await old.stats())["dropped"] == 1


def test_a_config_can_be_given_whole_and_by_name() -> None:
    with rookery.Broker(Config(buffer_size=4), buffer_size=5) as broker:
        assert broker.config.buffer_size == 5
        assert broker.tenant == "default"
    with pytest.raises(errors.InvalidConfig) as refused:
        rookery.Broker({"buffer_size": 4})  # type: ignore[arg-type]
    assert refused.value.argument == "config"


def test_the_types_of_keyword_arguments_are_those_of_the_settings() -> None:
    assert get_type_hints(options.ConfigArguments).keys() == {f.name for f in dataclasses.fields(Config)}
    assert options.SubArguments.__annotations__.keys() == {f.name for f in dataclasses.fields(SubOptions)}
    assert options.QueueArguments.__annotations__.keys() == SETTINGS.keys()


# Limits on memory


@pytest.mark.row("S1-22", "S1-44")
async def test_the_memory_limit_refuses_and_recovers(face: Face) -> None:
    broker = face.make(memory_bytes_max=5_000)
    jobs = await broker.queue("jobs")
    subscription = await broker.subscribe("t")
    published = 0
    with pytest.raises(errors.MemoryLimitExceeded):
        for _ in range(100):
            await jobs.publish(b"x" * 1_000)
            published += 1
    assert 3 <= published <= 5
    for call in (broker.publish("t", b"x" * 1_000), jobs.publish_many([b"x" * 1_000])):
        with pytest.raises(errors.MemoryLimitExceeded):
            await call
    health = await broker.health()
    assert published * 1_000 <= health["memory_usage"] <= 5_000
    assert health["memory_limit"] == 5_000
    assert (await jobs.stats())["ready"] == published
    for delivery in await jobs.claim(100):
        await delivery.ack()
    assert (await broker.health())["memory_usage"] == 0
    await broker.publish("t", b"x" * 1_000)
    assert (await subscription.get(0)).data == b"x" * 1_000


# Observers


@pytest.mark.row("S1-23")
async def test_an_observer_is_told_of_every_operation(face: Face) -> None:
    told: list[Observation] = []
    broker = face.make(observer=told.append, enable_ack_support=True)
    subscription = await broker.subscribe("t")
    await broker.publish("t", "x", ack="required", ack_id="a")
    await subscription.get(0)
    await broker.nack("t", "a")
    await subscription.get(0)
    await broker.ack("t", "a")
    await broker.publish_many("t", ["y"])
    await broker.metrics()
    with pytest.raises(errors.MessageNotAcked):
        await broker.ack("t", "a")
    with pytest.raises(errors.InvalidTopic):
        await broker.subscribe("")
    with pytest.raises(errors.NilMessage):
        await broker.publish("t", None)
    await broker.close()
    assert [(o.operation, o.topic, type(o.error), o.panicked) for o in told] == [
        ("subscribe", "t", type(None), False),
        ("publish", "t", type(None), False),
        ("nack", "t", type(None), False),
        ("redeliver", "t", type(None), False),
        ("ack", "t", type(None), False),
        ("publish", "t", type(None), False),
        ("metrics", "", type(None), False),
        ("ack", "t", errors.MessageNotAcked, False),
        ("subscribe", "['']", errors.InvalidTopic, False),
        ("publish", "t", errors.NilMessage, False),
        ("close", "", type(None), False),
    ]
    assert all(0 <= o.duration_ms < 60_000 for o in told)


@pytest.mark.row("S3-12")
async def test_an_observer_is_told_of_redeliveries_from_queues(face: Face) -> None:
    told: list[Observation] = []
    broker = face.make(observer=told.append)
    jobs = await broker.queue("jobs", lease_ms=100)
    await jobs.publish("x")
    await jobs.claim()
    assert told == []
    await face.advance(100)
    async with await jobs.subscribe() as subscription:
        await subscription.get(1_000)
        await face.advance(100)
        assert [(o.operation, o.topic) for o in told] == [("redeliver", "jobs")]
    (again,) = await jobs.claim()
    assert again.attempt == 3
    assert len(told) == 2


@pytest.mark.row("S1-23")
async def test_an_error_that_is_not_the_broker_s_own_is_a_panic(face: Face) -> None:
    told: list[Observation] = []
    broker = face.make(observer=told.append)
    with pytest.raises(ZeroDivisionError):
        await broker.publish_many("t", (1 // n for n in (1, 0)))
    assert [(o.operation, o.panicked, type(o.error)) for o in told] == [("publish", True, ZeroDivisionError)]
    assert (await broker.health())["metrics"]["last_error"].startswith("ZeroDivisionError")


async def test_an_observer_that_fails_harms_nobody_and_metrics_can_be_off(face: Face) -> None:
    def broken(observation: Observation) -> None:
        raise KeyError("observer")

    broker = face.make(observer=broken)
    await broker.publish("t", "x")
    metrics = (await broker.health())["metrics"]
    assert metrics["last_panic"] == "KeyError: 'observer'"
    assert metrics["last_panic_time"] == face.clock.wall_ms()
    told: list[Observation] = []
    silent = face.make(observer=told.append, enable_metrics=False)
    await silent.publish("t", "x")
    assert told == []


@pytest.mark.row("S1-23", "S1-24")
def test_a_started_broker_tells_its_observer_of_its_metrics_at_intervals() -> None:
    twice = threading.Event()
    told: list[str] = []

    def observer(observation: Observation) -> None:
        told.append(observation.operation)
        if len(told) == 2:
            twice.set()

    with rookery.Broker(observer=observer, health_check_interval_ms=1):
        assert twice.wait(10)
    assert told[:2] == ["metrics", "metrics"]


# Health


@pytest.mark.row("S1-24")
async def test_health_has_exactly_these_keys(face: Face) -> None:
    broker = face.make(memory_bytes_max=1_500)
    a = await broker.subscribe("a", buffer_size=2)
    await broker.subscribe("a")
    await broker.subscribe("b")
    await face.advance(250)
    for n in range(3):
        await broker.publish("a", n)
    await face.advance(100)
    await a.get(0)
    health = json.loads(json.dumps(await broker.health()))
    metrics = health.pop("metrics")
    assert health == {
        "status": "healthy",
        "timestamp": face.clock.wall_ms(),
        "uptime": 350,
        "total_topics": 2,
        "total_subscribers": 3,
        "memory_usage": health["memory_usage"],
        "memory_limit": 1_500,
    }
    assert metrics == {
        "total_published": 3,
        "total_delivered": 1,
        "total_dropped": 1,
        "active_topics": 2,
        "active_subscribers": 3,
        "average_latency": 100.0,
        "last_error": None,
        "last_panic": None,
        "last_panic_time": None,
    }
    with pytest.raises(errors.MemoryLimitExceeded):
        for _ in range(20):
            await broker.publish("b", b"x" * 100)
    await broker.update_config(memory_bytes_max=(await broker.health())["memory_usage"])
    unwell = await broker.health()
    assert unwell["status"] == "unhealthy"
    assert unwell["metrics"]["last_error"].startswith("MemoryLimitExceeded")


async def test_what_a_subscription_counted_stays_counted(face: Face) -> None:
    broker = face.make()
    subscription = await broker.subscribe("t", buffer_size=1)
    for n in range(3):
        await broker.publish("t", n)
    await subscription.get(0)
    await subscription.cancel()
    metrics = (await broker.health())["metrics"]
    assert (metrics["total_published"], metrics["total_delivered"], metrics["total_dropped"]) == (3, 1, 2)


# Errors


@pytest.mark.row("S1-44", "S1-45")
def test_every_error_of_the_seed_is_a_class() -> None:
    names = """NotInitialized BrokerClosed InvalidTopic MessageExpired TransactionNotFound TransactionTimeout
        MemoryLimitExceeded DeadLetterNotSupported RecoveredPanic NilMessage InvalidConfig MessageAcknowledged
        MessageNotAcked ClusterDisabled NodeNotFound TransactionNotSupported TransactionCommitted
        TransactionRolledBack DuplicateTask TaskNotFound LeaseLost TaskExpired"""
    for name in names.split():
        error = getattr(errors, name)
        assert issubclass(error, errors.RookeryError)
        assert str(error())


@pytest.mark.row("S1-44")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_use_its_parent_s_broker() -> None:
    with rookery.Broker() as broker:
        jobs = broker.queue("jobs")
        jobs.publish("x")
        (delivery,) = jobs.claim()
        locked, release = threading.Event(), threading.Event()

        def hold() -> None:
            with broker.engine:
                locked.set()
                release.wait(10)

        # the child must not wait for a lock whose holder did not come along
        holder = threading.Thread(target=hold)
        holder.start()
        locked.wait(10)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            code = 1
            try:
                calls: list[Any] = [
                    lambda: broker.publish("t", "x"),
                    lambda: broker.queue("jobs"),
                    jobs.claim,
                    jobs.stats,
                    delivery.ack,
                    broker.health,
                ]
                for call in calls:
                    try:
                        call()
                    except errors.NotInitialized:
                        code = 0
                    else:
                        code = 2
                        break
                broker.close()
                with rookery.Broker() as own:
                    own.queue("mine").publish("works")
            except BaseException:  # noqa: BLE001 (a child of pytest must not go on as pytest)
                traceback.print_exc()
                code = 3
            os._exit(code)
        _, status = os.waitpid(child, 0)
        release.set()
        holder.join()
        assert os.waitstatus_to_exitcode(status) == 0
        delivery.ack()


# The end


@pytest.mark.row("S1-47", "S1-44")
async def test_after_close_every_call_raises_broker_closed(face: Face) -> None:
    broker = face.make(enable_ack_support=True, enable_transactions=True)
    jobs, exchange = await broker.queue("jobs"), await broker.exchange("x")
    subscription, consumer = await broker.subscribe("t"), await jobs.subscribe()
    await jobs.publish("x")
    delivery = await consumer.get(1_000)
    transaction = broker.transaction()
    await transaction.__aenter__()
    log = await broker.stream("log")
    streaming = (log, log.group("g"), await log.reader(), broker.producer("p"), broker.cuts("jobs", "c"))
    await broker.close()
    await broker.close()
    given: dict[str, Any] = {
        "name": "n",
        "topic": "t",
        "topics": ["t"],
        "queue": "jobs",
        "target": "jobs",
        "body": "x",
        "bodies": ["x"],
        "key": "k",
        "pattern": "p",
        "exchange": "x",
        "ack_id": "a",
        "transaction": "tx",
        "reason": "r",
        "document": {},
        "deliveries": [delivery],
        "delivery": delivery,
        "lease_ms": 1,
        "count": 1,
        "value": "answer",
        "consumer": "c",
        "offset": 0,
        "offsets": {},
        "moment": 0,
        "to": "first",
        "epoch": 0,
        "chunk": "c",
        "chunks": [],
        "cut": 0,
        "upto": 0,
    }
    calls = 0
    harmless = {"close", "cancel", "lifespan"}
    handles = (broker, jobs, exchange, delivery, transaction, subscription, consumer, *streaming)
    for handle in handles:
        kind = type(getattr(handle, "inner", handle))
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in harmless:
                continue
            parameters = list(inspect.signature(method).parameters.values())[1:]
            arguments = [
                log if p.name == "target" and handle is streaming[3] else given[p.name]
                for p in parameters
                if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            with pytest.raises(errors.BrokerClosed):
                result = getattr(handle, name)(*arguments)
                if inspect.isawaitable(result):
                    await result
            calls += 1
    assert calls > 45
    for handle in (subscription, consumer):
        await handle.cancel()
        assert handle.done
        assert [item async for item in handle] == []


@pytest.mark.row("S1-47")
async def test_a_broker_is_a_context_manager(face: Face) -> None:
    async with face.make() as broker:
        await broker.queue("jobs")
    with pytest.raises(errors.BrokerClosed):
        await broker.queue("jobs")


@pytest.mark.row("S1-41")
def test_what_a_broker_is_made_of_is_checked() -> None:
    wrong: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("tenant", {"tenant": ""}, errors.InvalidName),
        ("tenant", {"tenant": 5}, errors.InvalidType),
        ("observer", {"observer": 5}, errors.InvalidType),
        ("secret", {"secret": "text"}, errors.InvalidType),
    ]
    for argument, arguments, error in wrong:
        with pytest.raises(error) as refused:
            rookery.Broker(**arguments)
        assert refused.value.argument == argument  # type: ignore[attr-defined]

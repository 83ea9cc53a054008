"""The embedded broker with a journal under it: what is there after a restart, recover and replay, and what is refused.

A crash is a copy of the data directory taken while its broker runs: what the process had written by then is in it, as
after a kill. Real kills are in tests/interop/test_kill.py.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery import errors
from rookery.core.keeping import KEEP_MS
from rookery.embed import Message
from rookery.embed.aio import broker as aio_broker
from rookery.embed.blocking import broker as blocking_broker
from rookery.engine import engine
from rookery.format import compression
from rookery.store.file import FileMedium
from rookery.store.journal import Journal
from tests.contract.faces import FACES, Face, faced

face = pytest.fixture(faced, params=FACES)


def opened(face: Face, directory: Path, **settings: Any) -> Any:
    return face.make(enable_persistence=True, persistence_path=str(directory), **settings)


async def reopened(face: Face, broker: Any, **settings: Any) -> Any:
    """Another broker on the directory of this one, which is closed."""
    await broker.close()
    return opened(face, Path(broker.config.persistence_path), **settings)


def crashed(directory: Path, into: Path) -> Path:
    """What a process that dies now leaves behind."""
    into.mkdir()
    for file in directory.iterdir():
        if file.name == "epoch":
            shutil.copy(file, into)
        elif file.suffix == ".log":
            (into / file.name).write_bytes(written(file))
    return into


def written(segment: Path) -> bytes:
    """The segment without the zeros that were laid out in advance, or as many of them as a batch may end with."""
    with segment.open("rb") as file:
        data = file.read(4 << 20)
    return data.rstrip(b"\0") + bytes(64)


def journal_bytes(directory: Path) -> int:
    """The size of a closed broker's journal."""
    return sum(file.stat().st_size for file in directory.glob("*.log"))


async def advance(face: Face, broker: Any, ms: int) -> None:
    """Let time pass for one broker; others of the test may be closed."""
    face.clock.advance(ms)
    await broker.tick()


async def data_of(queue: Any) -> list[Any]:
    return [message.data for message in await queue.peek(10_000)]


async def received(subscription: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append((await subscription.get(0)).data)
        except TimeoutError:
            return found


async def recovered(broker: Any, topic: str, limit: int = 0) -> list[Any]:
    return [message.data for message in await broker.recover(topic, limit)]


# Recover and replay


@pytest.mark.row("S1-35")
async def test_what_was_published_to_a_topic_is_recovered_after_a_restart(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    id = await broker.publish("orders", Message({"n": 1}, meta={"who": "me"}, priority=7))
    broker = await reopened(face, broker)
    (message,) = await broker.recover("orders", 100)
    assert (message.data, message.topic, message.priority) == ({"n": 1}, "orders", 7)
    assert message.meta == {"who": "me"}
    assert message.id == id
    assert await broker.recover("other", 100) == []
    assert await broker.queues() == []


@pytest.mark.row("S1-36")
async def test_recover_gives_the_oldest_first_up_to_the_limit(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    for n in range(10):
        await broker.publish("t", Message(n, priority=n))
    await broker.publish_many("t", range(10, 20))
    broker = await reopened(face, broker)
    assert await recovered(broker, "t", 7) == list(range(7))
    assert await recovered(broker, "t", 100) == await recovered(broker, "t") == list(range(20))
    with pytest.raises(errors.InvalidArgument) as caught:
        await broker.recover("t", -1)
    assert caught.value.argument == "limit"


@pytest.mark.row("S1-36")
async def test_recover_leaves_out_what_has_expired(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    await broker.publish("t", Message("short", ttl_ms=1_000))
    await broker.publish("t", Message("long", ttl_ms=100_000))
    await broker.publish("t", "forever")
    await face.advance(999)
    assert await recovered(broker, "t") == ["short", "long", "forever"]
    await face.advance(1)
    assert await recovered(broker, "t", 1) == ["long"]
    await broker.close()
    # expiry goes on while nobody runs
    face.clock.advance(99_000)
    broker = opened(face, tmp_path)
    assert await recovered(broker, "t") == ["forever"]
    await advance(face, broker, KEEP_MS)
    assert await recovered(broker, "t") == []


@pytest.mark.row("S1-37")
async def test_replay_reaches_the_subscribers_of_today_and_stores_nothing_again(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    before = await broker.subscribe("t")
    await broker.publish_many("t", range(5))
    assert await received(before) == list(range(5))
    broker = await reopened(face, broker)
    assert await broker.replay("t", 100) == 5
    one, two, other = [await broker.subscribe(topic) for topic in ("t", "#", "u")]
    assert await broker.replay("t", 3) == 3
    assert await received(one) == await received(two) == [0, 1, 2]
    assert await broker.replay("t", 100) == 5
    assert await received(one) == await received(two) == list(range(5))
    assert await received(other) == []
    assert await recovered(broker, "t") == list(range(5))
    broker = await reopened(face, broker)
    assert await recovered(broker, "t") == list(range(5))
    assert await broker.replay("nothing", 100) == 0


@pytest.mark.row("S1-38")
async def test_without_persistence_recover_and_replay_are_refused(face: Face) -> None:
    broker = face.make()
    await broker.publish("t", 1)
    for refused in (broker.recover, broker.replay):
        with pytest.raises(errors.PersistenceDisabled, match="persistence"):
            await refused("t", 100)


@pytest.mark.row("S1-38")
async def test_persistence_needs_a_path_and_known_settings(face: Face, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        face.make(enable_persistence=True)
    assert caught.value.argument == "persistence_path"
    for argument, value in (
        ("sync", "sometimes"),
        ("page_bytes", -1),
        ("compress_min_bytes", -1),
        ("compression", "lz4"),
    ):
        with pytest.raises(errors.InvalidConfig) as caught:
            opened(face, tmp_path / "d", **{argument: value})
        assert caught.value.argument == argument
    assert not (tmp_path / "d").exists()
    broker = opened(face, tmp_path / "d")
    with pytest.raises(errors.InvalidConfig) as caught:
        await broker.update_config(sync="os")
    assert caught.value.argument == "sync"


# Transactions


@pytest.mark.row("S1-30")
async def test_a_transaction_over_several_topics_survives_whole(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path / "data")
    subscriptions = [await broker.subscribe(topic) for topic in "abc"]
    async with broker.transaction() as transaction:
        for topic in "abc":
            await transaction.publish(topic, topic * 2)
    assert [await received(s) for s in subscriptions] == [["aa"], ["bb"], ["cc"]]
    after = opened(face, crashed(tmp_path / "data", tmp_path / "crashed"))
    assert [await recovered(after, topic) for topic in "abc"] == [["aa"], ["bb"], ["cc"]]


@pytest.mark.row("S1-30")
async def test_a_failing_member_leaves_nothing_of_a_transaction(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path, enable_transactions=True)
    subscription = await broker.subscribe("a")
    full = await broker.queue("full", length_max=1, overflow="reject-publish")
    await full.publish("there")
    with pytest.raises(errors.QueueFull):
        async with broker.transaction() as transaction:
            await transaction.publish("a", 1)
            await transaction.publish_to_queue("full", 2)
    with pytest.raises(ValueError, match="no"):
        async with broker.transaction() as transaction:
            await transaction.publish("a", 3)
            raise ValueError("no")
    await broker.publish("a", 4, transaction="named")
    broker = await reopened(face, broker, enable_transactions=True)
    assert subscription.done
    assert await recovered(broker, "a") == []
    assert await data_of(await broker.queue("full", length_max=1, overflow="reject-publish")) == ["there"]


@pytest.mark.row("S1-30")
async def test_a_crash_between_the_members_of_a_transaction_leaves_all_or_none(face: Face, tmp_path: Path) -> None:
    """The journal ends anywhere within what the transaction wrote."""
    broker = opened(face, tmp_path / "data")
    jobs = await broker.queue("jobs")
    await broker.queue("done")
    await jobs.publish("job")
    (delivery,) = await jobs.claim()
    whole = crashed(tmp_path / "data", tmp_path / "before")
    before = len(written(whole / "00000001.log"))
    async with broker.transaction() as transaction:
        await transaction.publish("a", 1)
        await transaction.publish("b", 2)
        await transaction.publish_to_queue("done", 3)
        await transaction.ack(delivery)
    data = written(tmp_path / "data" / "00000001.log")
    seen = set()
    for cut in [*range(before - 64, len(data) - 64, 37), len(data)]:
        case = tmp_path / f"cut-{cut}"
        shutil.copytree(whole, case)
        (case / "00000001.log").write_bytes(data[:cut] + bytes(4096))
        after = opened(face, case)
        found = [await data_of(await after.queue(name)) for name in ("jobs", "done")]
        found += [await recovered(after, topic) for topic in "ab"]
        seen.add(repr(found))
        await after.close()
    assert seen == {repr([["job"], [], [], []]), repr([[], [3], [1], [2]])}


# What is on disk


@pytest.mark.row("S1-51")
async def test_large_bodies_are_compressed_on_disk_unless_that_is_off(face: Face, tmp_path: Path) -> None:
    body = b"the same again and again. " * 400
    sizes = {}
    for name, settings, payload in (
        ("none", {}, b""),
        ("on", {}, body),
        ("zstd", {"compression": "zstd"}, body),
        ("off", {"compression": "none"}, body),
        ("never", {"compress_min_bytes": 0}, body),
        ("small", {"compress_min_bytes": len(body) + 1}, body),
    ):
        broker = opened(face, tmp_path / name, **settings)
        queue = await broker.queue("q")
        await queue.publish(payload)
        await broker.close()
        sizes[name] = journal_bytes(tmp_path / name)
        broker = opened(face, tmp_path / name)
        assert await data_of(await broker.queue("q")) == [payload]
    assert sizes["on"] - sizes["none"] < 2_000
    assert sizes["on"] < 2_000 + 1_000
    assert sizes["zstd"] < sizes["on"]
    assert sizes["off"] == sizes["never"] == sizes["small"] == sizes["none"] + len(body)


@pytest.mark.row("S1-51")
async def test_zstd_without_its_library_is_told(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = opened(face, tmp_path / "d", compression="zstd")
    await (await broker.queue("q")).publish(b"the same again and again. " * 400)
    await broker.close()

    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    compression._zstd.cache_clear()
    try:
        with pytest.raises(errors.InvalidConfig, match=r"rookery\[zstd\]") as caught:
            opened(face, tmp_path / "other", compression="zstd")
        assert caught.value.argument == "compression"
        assert not (tmp_path / "other").exists()
        # also where the message would not be read before somebody wants it
        for page_bytes in (256 << 20, 1):
            with pytest.raises(errors.StoreError, match=r"00000001.log holds at offset \d+ .*rookery\[zstd\]"):
                opened(face, tmp_path / "d", page_bytes=page_bytes)
    finally:
        compression._zstd.cache_clear()
    monkeypatch.undo()
    broker = opened(face, tmp_path / "d")
    assert len(await data_of(await broker.queue("q"))) == 1


@pytest.mark.row("S1-52")
async def test_a_backlog_beyond_the_memory_limit_is_left_on_disk_in_order(face: Face, tmp_path: Path) -> None:
    count, size, batch = 7_000, 4_000, 100
    # what may stay in memory (of two brokers: one is closed), batches under way, and what is read of a segment at once
    limit = 12 << 20
    assert limit < count * size / 2
    broker = opened(face, tmp_path, page_bytes=1 << 20)
    queue = await broker.queue("q")
    tracemalloc.start()
    peak = 0
    try:
        for first in range(0, count, batch):
            await queue.publish_many([b"%06d" % n + os.urandom(size) for n in range(first, first + batch)])
            peak = max(peak, tracemalloc.get_traced_memory()[0])
        assert peak < limit
        taken = []
        while deliveries := await queue.claim(batch):
            taken += [int(delivery.body[:6]) for delivery in deliveries]
            peak = max(peak, tracemalloc.get_traced_memory()[0])
            if len(taken) == count // 2:
                await queue.settle(deliveries)
                break
            await queue.settle(deliveries)
        del deliveries
        broker = await reopened(face, broker, page_bytes=1 << 20)
        queue = await broker.queue("q")
        assert (await queue.stats())["ready"] == count // 2
        assert tracemalloc.get_traced_memory()[0] < limit
        while deliveries := await queue.claim(batch):
            taken += [int(delivery.body[:6]) for delivery in deliveries]
            await queue.settle(deliveries)
            peak = max(peak, tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken == list(range(count))
    assert peak < limit


@pytest.mark.row("S1-52")
async def test_transient_messages_are_paged_too_and_forgotten_at_a_restart(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path, page_bytes=100_000)
    queue = await broker.queue("q")
    kept = await broker.queue("kept")
    for first in range(0, 1_000, 50):
        numbers = range(first, first + 50)
        await queue.publish_many([Message(b"%06d" % n + bytes(1_000), persistent=False) for n in numbers])
    await kept.publish("kept")
    taken: list[int] = []
    while deliveries := await queue.claim(70):
        taken += [int(delivery.body[:6]) for delivery in deliveries]
        await queue.settle(deliveries)
    assert taken == list(range(1_000))
    await queue.publish(Message("gone", persistent=False))
    broker = await reopened(face, broker)
    assert await data_of(await broker.queue("q")) == []
    assert await data_of(await broker.queue("kept")) == ["kept"]
    assert list(tmp_path.glob("spill*")) == []


@pytest.mark.row("S1-53")
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
async def test_a_confirmed_publish_is_there_after_a_crash(face: Face, tmp_path: Path, sync: str) -> None:
    broker = opened(face, tmp_path / "data", sync=sync)
    queue = await broker.queue("q")
    for n in range(5):
        id = await queue.publish(n)
        directory = crashed(tmp_path / "data", tmp_path / str(n))
        after = opened(face, directory, sync=sync)
        found = await (await after.queue("q")).peek(100)
        assert [message.data for message in found] == list(range(n + 1))
        assert found[-1].id == id
        await after.close()


@pytest.mark.row("S3-6")
async def test_what_was_acked_never_comes_back(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path / "data")
    queue = await broker.queue("q")
    await queue.publish_many(range(10))
    deliveries = await queue.claim(6)
    await deliveries[1].ack()
    await queue.settle(deliveries[3:5])
    after = opened(face, crashed(tmp_path / "data", tmp_path / "crashed"))
    # what was leased is back at its place
    assert await data_of(await after.queue("q")) == [0, 2, 5, 6, 7, 8, 9]
    await deliveries[0].ack()
    broker = await reopened(face, broker)
    queue = await broker.queue("q")
    assert await data_of(queue) == [2, 5, 6, 7, 8, 9]
    await queue.settle(await queue.claim(10))
    broker = await reopened(face, broker)
    assert (await (await broker.queue("q")).stats())["ready"] == 0


@pytest.mark.row("S3-6", "S4-29")
@pytest.mark.parametrize("page_bytes", [0, 2_000])
async def test_compacting_after_a_restart_loses_nothing(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    """Messages in every state, restored and written again, outlive the segments they stood in."""
    monkeypatch.setattr(engine, "Journal", functools.partial(Journal, segment_bytes=4_096))
    for module in (aio_broker, blocking_broker):
        monkeypatch.setattr(module, "FileMedium", functools.partial(FileMedium, segment_bytes=0, reserve_bytes=0))
    settings: dict[str, Any] = {"page_bytes": page_bytes, "sync": "os"}
    broker = opened(face, tmp_path, **settings)
    names = ("line", "late", "brief", "urgent", "grouped", "pins", "churn")
    queues = {name: await broker.queue(name) for name in names}

    async def churn(times: int) -> None:
        """Segments that are dead but for a little."""
        for _ in range(times):
            await queues["churn"].publish_many([bytes(300)] * 10)
            await queues["pins"].publish("pin")
            await queues["churn"].settle(await queues["churn"].claim(10))

    first = await queues["line"].publish(Message("first", dedup_key="k"))
    await churn(3)
    for name, message in (
        ("late", Message("late", delay_ms=10**9)),
        ("brief", Message("brief", ttl_ms=10**9)),
        ("urgent", "low"),
        ("urgent", Message("high", priority=9)),
        *(("grouped", Message(n, group="g")) for n in range(3)),
    ):
        await queues[name].publish(message)
        await churn(1)
    await broker.publish("news", "kept")
    # whole segments that stay: once the first is written again, it stands behind those that follow it
    await queues["line"].publish_many([bytes(300)] * 30)
    for _ in range(3):
        await queues["grouped"].claim()
        retired = broker.engine.journal.retired
        await churn(60)
        assert broker.engine.journal.retired > retired + 20
        broker = await reopened(face, broker, **settings)
        queues = {name: await broker.queue(name) for name in names}
        assert (await queues["late"].stats())["delayed"] == 1
        assert await data_of(queues["brief"]) == ["brief"]
        assert await data_of(queues["urgent"]) == ["high", "low"]
        assert await data_of(queues["grouped"]) == [0, 1, 2]
        assert await recovered(broker, "news") == ["kept"]
        assert await data_of(queues["line"]) == ["first"] + [bytes(300)] * 30
        assert set(await data_of(queues["pins"])) == {"pin"}
        assert await queues["line"].publish(Message("again", dedup_key="k")) == first


@pytest.mark.row("S2-42")
async def test_a_dedup_key_is_remembered_after_a_restart(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path / "data")
    queue = await broker.queue("q")
    waiting = await queue.publish(Message("waits", dedup_key="k1"))
    acked = await queue.publish(Message("acked", dedup_key="k2"))
    news = await broker.publish("t", Message("news", dedup_key="k1"))
    deliveries = await queue.claim(2)
    await deliveries[1].ack()
    after = opened(face, crashed(tmp_path / "data", tmp_path / "crashed"))
    broker = await reopened(face, broker)
    for again in (after, broker):
        queue = await again.queue("q")
        assert await queue.publish(Message("other", dedup_key="k1")) == waiting
        assert await queue.publish(Message("other", dedup_key="k2")) == acked
        assert await again.publish("t", Message("other", dedup_key="k1")) == news
        assert await data_of(queue) == ["waits"]
        assert await recovered(again, "t") == ["news"]
    await advance(face, broker, 25 * 3_600_000)
    assert await queue.publish(Message("a day later", dedup_key="k1")) != waiting


@pytest.mark.row("S4-28", "S4-29")
async def test_everything_that_was_declared_is_restored(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path / "data")
    first, second = await broker.queue("first", max_attempts=2, dead_letter_queue="dead"), await broker.queue("second")
    await broker.queue("dead")
    await broker.queue("transient", durable=False)
    direct, headers = await broker.exchange("direct", "direct"), await broker.exchange("headers", "headers")
    topic = await broker.exchange("topic", "topic", alternate="direct")
    await direct.bind(first, "one")
    await direct.bind(second, "two")
    await direct.unbind(second, "two")
    await headers.bind(second, headers={"colour": "red"})
    await topic.bind(direct, "to.#")
    await broker.set_policy("short", "^sec", length_max=3)
    await direct.publish("one", Message("late", delay_ms=60_000))
    await direct.publish("one", "now")
    await headers.publish("", Message("red", meta={"colour": "red"}))
    (delivery,) = await first.claim()
    await delivery.retry(0, "once")
    definitions = await broker.export_definitions()
    brokers = [opened(face, crashed(tmp_path / "data", tmp_path / "crashed")), await reopened(face, broker)]
    (tenant,) = definitions["tenants"]
    tenant["queues"] = [queue for queue in tenant["queues"] if queue["name"] != "transient"]
    for again in brokers:
        assert await again.export_definitions() == definitions
        assert await again.queues() == ["dead", "first", "second"]
        with pytest.raises(errors.Unroutable):
            await (await again.exchange("direct", "direct")).publish("two", "x", mandatory=True)
        first, second = await again.queue("first"), await again.queue("second")
        assert await data_of(second) == ["red"]
        stats = await first.stats()
        assert (stats["ready"], stats["delayed"]) == (1, 1)
        (delivery,) = await first.claim()
        assert (delivery.data, delivery.attempt, delivery.redelivered) == ("now", 2, True)
        await delivery.retry(0, "twice")
        (dead,) = await (await again.queue("dead")).peek()
        assert (dead.data, dead.reason) == ("now", "twice")
        await (await again.exchange("topic", alternate="direct")).publish("one", "by the alternate")
    face.clock.advance(60_000)
    for again in brokers:
        await again.tick()
        assert set(await data_of(await again.queue("first"))) == {"late", "by the alternate"}


# Memory and files alike


async def publish_and_settle(broker: Any) -> list[Any]:
    queue = await broker.queue("q", max_attempts=2, dead_letter_queue="dead")
    await broker.queue("dead")
    await queue.publish_many([Message(n, priority=n % 2) for n in range(6)])
    deliveries = await queue.claim(6)
    order = [delivery.data for delivery in deliveries]
    await deliveries[0].ack()
    await deliveries[1].reject("bad")
    await deliveries[2].retry(0)
    await deliveries[3].release()
    with pytest.raises(errors.LeaseLost):
        await deliveries[0].ack()
    again = [(delivery.data, delivery.attempt) for delivery in await queue.claim(6)]
    return [order, again, await data_of(await broker.queue("dead"))]


async def delay_and_expire(broker: Any) -> list[Any]:
    queue = await broker.queue("q")
    await queue.publish(Message("later", delay_ms=1_000))
    await queue.publish(Message("brief", ttl_ms=500))
    await queue.publish("plain")
    first = await data_of(queue)
    broker.clock.advance(1_000)
    await broker.tick()
    stats = await queue.stats()
    return [first, await data_of(queue), stats["expired"]]


async def route_and_repeat(broker: Any) -> list[Any]:
    exchange = await broker.exchange("x", "topic")
    one, two = await broker.queue("one"), await broker.queue("two", length_max=1, overflow="reject-publish")
    await one.bind("x", "a.*")
    await two.bind("x", "a.b")
    await exchange.publish("a.b", Message("both", dedup_key="k"))
    await exchange.publish("a.b", Message("again", dedup_key="k"))
    with pytest.raises(errors.QueueFull):
        await exchange.publish("a.b", "too much")
    await exchange.publish("a.c", "one")
    return [await data_of(one), await data_of(two), await one.purge()]


async def transact(broker: Any) -> list[Any]:
    queue, out = await broker.queue("q"), await broker.queue("out")
    await queue.publish("x")
    (delivery,) = await queue.claim()
    async with broker.transaction() as transaction:
        await transaction.publish_to_queue("out", "y")
        await transaction.ack(delivery)
    async with broker.transaction() as transaction:
        await transaction.publish_to_queue("out", "z")
        await transaction.rollback()
    with pytest.raises(errors.QueueNotFound):
        async with broker.transaction() as transaction:
            await transaction.publish_to_queue("missing", "z")
    return [await data_of(queue), await data_of(out), (await queue.stats())["acked"]]


async def publish_to_topics(broker: Any) -> list[Any]:
    one, two = await broker.subscribe("a.*", buffer_size=2), await broker.subscribe("a.b", buffer_size=10)
    for n in range(4):
        await broker.publish("a.b", n)
    await one.cancel()
    await broker.publish_many("a.b", ["x", "y"])
    return [one.done, await received(two), (await two.stats())["dropped"], await broker.queues()]


@pytest.mark.row("S3-9")
@pytest.mark.parametrize(
    "behaviour", [publish_and_settle, delay_and_expire, route_and_repeat, transact, publish_to_topics]
)
async def test_memory_and_files_behave_alike(face: Face, tmp_path: Path, behaviour: Any) -> None:
    in_memory = await behaviour(face.make())
    assert await behaviour(opened(face, tmp_path / "plain")) == in_memory
    assert await behaviour(opened(face, tmp_path / "paged", page_bytes=1, sync="os")) == in_memory


# Opening and closing


async def test_a_second_broker_on_the_directory_is_refused(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    with pytest.raises(errors.StoreLocked, match=re.escape(str(tmp_path)) + f".*pid {os.getpid()}"):
        opened(face, tmp_path)
    program = "import sys, rookery; rookery.Broker(enable_persistence=True, persistence_path=sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, str(tmp_path)]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert re.search(f"StoreLocked: .*{re.escape(str(tmp_path))} is in use by process {os.getpid()}", refused.stderr)
    # the first is none the worse for it
    await (await broker.queue("q")).publish(1)
    broker = await reopened(face, broker)
    assert await data_of(await broker.queue("q")) == [1]


async def test_close_writes_what_nobody_waited_for(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    queue = await broker.queue("q", lease_ms=1_000)
    await queue.publish_many(range(3))
    (first,) = await queue.claim()
    # lapses and their attempts are noted without an answer to anyone
    await face.advance(1_000)
    assert not first.live
    await broker.close()
    await broker.close()
    broker = opened(face, tmp_path)
    deliveries = await (await broker.queue("q")).claim(3)
    assert [(d.data, d.attempt) for d in deliveries] == [(0, 2), (1, 1), (2, 1)]
    with pytest.raises(errors.BrokerClosed):
        await queue.publish(4)


async def test_a_broker_that_cannot_open_leaves_no_lock(face: Face, tmp_path: Path) -> None:
    broker = opened(face, tmp_path)
    queue = await broker.queue("q")
    for n in range(3):
        await queue.publish(n)
    await broker.close()
    segment = tmp_path / "00000001.log"
    whole = segment.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 0xFF
    segment.write_bytes(damaged)
    with pytest.raises(errors.StoreDamaged) as caught:
        opened(face, tmp_path)
    assert caught.value.file == str(segment)
    segment.write_bytes(whole)
    broker = opened(face, tmp_path)
    assert await data_of(await broker.queue("q")) == [0, 1, 2]


async def test_a_path_that_cannot_be_used_is_an_error_that_names_it(face: Face, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.StoreError, match=re.escape(str(path))):
            opened(face, path)


def test_the_package_example_of_persistence(tmp_path: Path) -> None:
    """As a user writes it, without anything of the tests' in between."""
    with rookery.Broker(enable_persistence=True, persistence_path=str(tmp_path)) as broker:
        broker.publish("orders", {"n": 1})
        broker.queue("jobs").publish("job")
    with rookery.Broker(enable_persistence=True, persistence_path=str(tmp_path)) as broker:
        assert [message.data for message in broker.recover("orders", 100)] == [{"n": 1}]
        with broker.queue("jobs").subscribe() as jobs:
            jobs.get(1_000).ack()
    with rookery.Broker(enable_persistence=True, persistence_path=str(tmp_path)) as broker:
        assert broker.queue("jobs").stats()["ready"] == 0


@pytest.mark.parametrize("topic", ["quiet", "a.#"])
def test_what_is_kept_is_no_subscriber(tmp_path: Path, topic: str) -> None:
    """Keeping a topic's messages does not make a mandatory publish arrive, and a pattern is no topic to keep."""
    with rookery.Broker(enable_persistence=True, persistence_path=str(tmp_path / "data")) as broker:
        broker.publish(topic, "kept if it can be")
        assert len(broker.recover(topic)) == (topic == "quiet")
        with pytest.raises(errors.Unroutable):
            broker.publish(topic, "for somebody", mandatory=True)

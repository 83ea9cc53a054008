"""Streams as users of a broker see them: in memory, on disk and sealed, through every face."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rookery import errors
from rookery.embed import Message
from tests.contract.faces import ALL_FACES, Face, faced, until

face = pytest.fixture(faced, params=ALL_FACES)


@pytest.fixture(params=["memory", "journal"])
def broker(face: Face, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return face.make()
    return face.make(enable_persistence=True, persistence_path=str(tmp_path / "data"))


@pytest.fixture
def durable(face: Face, tmp_path: Path) -> Any:
    return face.make(enable_persistence=True, persistence_path=str(tmp_path / "data"))


async def test_records_have_offsets_and_are_read_again_and_again(broker: Any) -> None:
    orders = await broker.stream("orders")
    first = await orders.publish({"id": 1}, key="ann")
    assert (first.partition, first.offset) == (0, 0)
    positions = await orders.publish_many([{"id": 2}, "text", b"raw"])
    assert [p.offset for p in positions] == [1, 2, 3]
    assert [r.offset for r in await orders.read(0)] == [0, 1, 2, 3]
    records = await orders.read(0)
    assert [r.data for r in records] == [{"id": 1}, {"id": 2}, "text", b"raw"]
    assert records[0].key == b"ann"
    assert records[1].key is None
    assert "x-key" not in records[0].message.meta
    assert [r.offset for r in await orders.read(2, 1)] == [2]
    assert await orders.read(4) == []
    with pytest.raises(errors.OffsetOutOfRange):
        await orders.read(5)
    assert await broker.streams() == ["orders"]


async def test_a_message_keeps_what_it_says(broker: Any) -> None:
    orders = await broker.stream("orders")
    await orders.publish(Message("x", id="m1", meta={"a": 1}, type="t", correlation_id="c", priority=7))
    (record,) = await orders.read()
    message = record.message
    assert (message.id, message.meta, message.type, message.correlation_id) == ("m1", {"a": 1}, "t", "c")
    assert (message.priority, message.topic) == (7, "orders")


async def test_dedup_keys_of_a_stream_outlive_a_restart_and_go_with_it(face: Face, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"enable_persistence": True, "persistence_path": str(tmp_path / "data")}
    message = Message("x", dedup_key="k")
    before = face.make(**kept)
    assert not (await (await before.stream("orders")).publish(message)).repeated
    await before.close()
    broker = face.make(**kept)
    orders = await broker.stream("orders")
    assert (await orders.publish(message)).repeated
    await orders.delete()
    assert not (await (await broker.stream("orders")).publish(message)).repeated


async def test_a_dedup_key_counts_in_streams_too(broker: Any) -> None:
    orders = await broker.stream("orders")
    assert not (await orders.publish(Message("x", dedup_key="k"))).repeated
    assert (await orders.publish(Message("x", dedup_key="k"))).repeated
    assert len(await orders.read()) == 1


async def test_exchanges_and_topics_lead_to_streams(broker: Any) -> None:
    orders = await broker.stream("orders")
    exchange = await broker.exchange("shop", "topic")
    await orders.bind("shop", "eu.#")
    await exchange.publish("eu.de", "yes")
    await exchange.publish("us.ca", "no")
    (record,) = await orders.read()
    assert (record.data, record.message.topic) == ("yes", "eu.de")
    assert await orders.unbind("shop", "eu.#")
    await exchange.publish("eu.de", "late")
    assert len(await orders.read()) == 1


@pytest.mark.parametrize(
    ("start", "expected"),
    [("first", [0, 1, 2, 3]), ("last", [2, 3]), ("next", [3]), (1, [1, 2, 3])],
)
async def test_readers_begin_where_they_like_and_follow(broker: Any, start: Any, expected: list[int]) -> None:
    orders = await broker.stream("orders")
    await orders.publish_many([0, 1, 2])
    async with await orders.reader(start) as reader:
        await orders.publish(3)
        found = [(await reader.get(5_000)).data for _ in expected]
        assert found == expected
        with pytest.raises(TimeoutError):
            await reader.get(0)


async def test_a_time_leads_to_its_records(broker: Any, face: Face) -> None:
    orders = await broker.stream("orders")
    await orders.publish("old")
    await face.advance(10_000)
    moment = datetime.fromtimestamp(face.clock.wall_ms() / 1000, UTC)
    await orders.publish("new")
    assert await orders.offset_at(moment) == 1
    assert await orders.offset_at(moment - timedelta(hours=1)) == 0
    assert await orders.offset_at(moment + timedelta(hours=1)) == 2
    async with await orders.reader(moment) as reader:
        assert (await reader.get(1000)).data == "new"


@pytest.mark.row("S3-3")
async def test_a_waiting_reader_is_told_at_once(broker: Any) -> None:
    orders = await broker.stream("orders", partitions=3)
    reader = await orders.reader()
    waiting = asyncio.create_task(reader.get(10_000))
    await asyncio.sleep(0)
    await orders.publish("x", partition=2)
    record = await waiting
    assert (record.partition, record.data) == (2, "x")
    await reader.close()
    with pytest.raises(errors.NotFound):
        await reader.get(0)


async def test_a_reader_ends_with_its_stream(broker: Any) -> None:
    orders = await broker.stream("orders")
    reader = await orders.reader()
    await orders.publish("x")
    found: list[Any] = []

    async def follow() -> None:
        async for record in reader:
            found.insert(0, record.data)

    following = asyncio.create_task(follow())

    async def read_it() -> bool:
        return found == ["x"]

    await until(read_it)
    assert await orders.delete() == 1
    await asyncio.wait_for(following, 10)
    with pytest.raises(errors.StreamNotFound):
        await orders.publish("y")


async def test_what_is_too_old_is_skipped_and_counted(broker: Any, face: Face) -> None:
    orders = await broker.stream("orders", max_age_ms=1_000)
    reader = await orders.reader("first")
    await orders.publish("old")
    await face.advance(5_000)
    await orders.publish("new")
    assert (await reader.get(1_000)).data == "new"
    assert reader.skipped == 1
    assert (await orders.info())["partitions"][0]["first"] == 1
    with pytest.raises(errors.OffsetOutOfRange):
        await orders.read(0)


# Groups


@pytest.mark.row("S4-35")
async def test_two_groups_get_everything_and_members_share(broker: Any) -> None:
    orders = await broker.stream("orders", partitions=2)
    for n in range(10):
        await orders.publish(n, partition=n % 2)
    group = orders.group("billing")
    a = await group.join("a")
    b = await group.join("b")
    await a.get_many(1, 0)
    assert (a.partitions, b.partitions) == ([0], [1])
    got_a = [(await a.get(1_000)).data for _ in range(4)]
    got_b = [(await b.get(1_000)).data for _ in range(5)]
    assert got_a == [2, 4, 6, 8]
    assert got_b == [1, 3, 5, 7, 9]
    await a.commit()
    await b.commit()
    info = await group.info()
    assert (info["lag"], info["members"]) == (0, {"a": [0], "b": [1]})
    other = await orders.group("audit").join()
    assert sorted(r.data for r in await other.get_many(20, 1_000)) == list(range(10))
    assert await orders.groups() == ["audit", "billing"]


async def test_a_member_that_leaves_hands_over_what_it_did_not_commit(broker: Any) -> None:
    orders = await broker.stream("orders", partitions=2)
    for n in range(4):
        await orders.publish(n, partition=n % 2)
    group = orders.group("g")
    a = await group.join("a")
    assert [r.data for r in await a.get_many(4, 1_000)] == [0, 2, 1, 3]
    await a.commit()
    await orders.publish(4, partition=0)
    assert (await a.get(1_000)).data == 4
    await a.close()
    b = await group.join("b")
    assert (await b.get(1_000)).data == 4


async def test_a_member_that_is_not_heard_of_cannot_commit(broker: Any, face: Face) -> None:
    orders = await broker.stream("orders")
    await orders.publish("x")
    group = orders.group("g")
    a = await group.join("a", session_ms=1_000)
    await a.get(1_000)
    await face.advance(1_500)
    with pytest.raises(errors.GroupFenced):
        await a.commit()
    b = await group.join("b")
    assert (await b.get(1_000)).data == "x"
    await b.commit()
    assert (await group.info())["lag"] == 0


async def test_a_group_can_be_reset(broker: Any) -> None:
    orders = await broker.stream("orders")
    await orders.publish_many([0, 1, 2])
    group = orders.group("g")
    await group.commit({0: 3})
    await group.commit({0: 1})
    assert (await group.info())["lag"] == 0
    for to, lag in (("first", 3), ("last", 1), ("next", 0), (1, 2), ({0: 2}, 1)):
        await group.reset(to)
        assert (await group.info())["lag"] == lag
    await group.delete()
    with pytest.raises(errors.GroupNotFound):
        await group.info()


# On disk


async def test_everything_is_there_after_a_restart(durable: Any, face: Face, tmp_path: Path) -> None:
    orders = await durable.stream("orders", partitions=2)
    await orders.publish_many(range(10), key="k")
    await orders.group("g").commit({0: 0, 1: 0})
    before = await orders.info()
    await durable.close()
    again = face.make(enable_persistence=True, persistence_path=str(tmp_path / "data"))
    orders = await again.stream("orders")
    assert (await orders.info())["partitions"] == before["partitions"]
    records = [r for p in range(2) for r in await orders.read(partition=p)]
    assert [r.data for r in records] == list(range(10))


async def test_sealed_records_are_read_like_others(durable: Any, face: Face, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    orders = await durable.stream("orders")
    await orders.publish_many(range(5), key="k")
    await face.advance(60_000)
    moment = datetime.fromtimestamp(face.clock.wall_ms() / 1000, UTC)
    await orders.publish_many(range(5, 10))
    await orders.seal()
    await orders.publish(10)
    info = (await orders.info())["partitions"][0]
    assert (info["first"], info["sealed_before"], info["end"], info["files"]) == (0, 10, 11, 1)
    records = await orders.read(0)
    async with await orders.reader("first") as reader:
        followed = [await reader.get(5_000) for _ in range(11)]
    assert [r.data for r in followed] == list(range(11))
    assert records[4].key == b"k"
    assert records[4].time < records[5].time
    assert await orders.offset_at(moment) == 5
    await durable.close()
    again = face.make(enable_persistence=True, persistence_path=str(tmp_path / "data"))
    assert [r.data for r in await (await again.stream("orders")).read(3, 4)] == [3, 4, 5, 6]


async def test_a_range_is_a_table(broker: Any) -> None:
    pytest.importorskip("pyarrow")
    orders = await broker.stream("orders")
    exchange = await broker.exchange("shop", "topic")
    await orders.bind("shop", "#")
    for n in range(6):
        await exchange.publish("even" if n % 2 == 0 else "odd.one", str(n))
    table = await orders.read_arrow()
    assert table.column("value").to_pylist() == [b"%d" % n for n in range(6)]
    assert table.column("exchange").to_pylist() == ["shop"] * 6
    narrow = await orders.read_arrow(1, 5, columns=["offset", "value"], routing_key="odd.*")
    assert narrow.to_pylist() == [{"offset": 1, "value": b"1"}, {"offset": 3, "value": b"3"}]
    with pytest.raises(errors.InvalidArgument, match="no column 'nope'"):
        await orders.read_arrow(columns=["nope"])
    with pytest.raises(errors.OffsetOutOfRange):
        await orders.read_arrow(0, 7)


async def test_a_table_of_sealed_records_is_the_same(durable: Any) -> None:
    pytest.importorskip("pyarrow")
    orders = await durable.stream("orders")
    await orders.publish_many(range(5), key="k")
    before = await orders.read_arrow()
    await orders.seal()
    await orders.publish(5)
    after = await orders.read_arrow()
    assert after.slice(0, 5) == before
    assert after.column("offset").to_pylist() == list(range(6))


# Recovering and replaying


@pytest.mark.row("S1-36")
async def test_what_is_kept_is_recovered_oldest_first_without_what_expired(broker: Any, face: Face) -> None:
    if face.is_client:
        pytest.skip("a client goes by the system's clock, and this server does not")
    orders = await broker.stream("orders")
    await orders.publish("first")
    await orders.publish(Message("short", ttl_ms=1_000))
    await orders.publish("last")
    assert [m.data for m in await orders.recover()] == ["first", "short", "last"]
    await face.advance(1_000)
    assert [m.data for m in await orders.recover()] == ["first", "last"]
    assert [m.data for m in await orders.recover(1)] == ["first"]


@pytest.mark.row("S1-37")
async def test_what_is_replayed_reaches_who_listens_today_and_is_not_stored_again(broker: Any) -> None:
    orders = await broker.stream("orders")
    exchange = await broker.exchange("shop", "topic")
    await orders.bind("shop", "#")
    for n in range(3):
        await exchange.publish("eu", str(n))
    late = await broker.queue("late")
    await late.bind("shop", "eu")
    assert await orders.replay(2) == 2
    assert [d.data for d in await late.claim(10)] == ["0", "1"]
    assert (await orders.info())["records"] == 3


# Exactly once


async def test_a_producer_commits_each_epoch_once(broker: Any) -> None:
    orders = await broker.stream("orders")
    spark = broker.producer("spark")
    assert await spark.epoch() is None
    a = await spark.stage(orders, ["1", "2"], key="k")
    b = await spark.stage(orders, ["3"])
    unused = await spark.stage(orders, ["4"])
    assert await orders.read() == []
    result = await spark.commit(0, [a, b])
    assert result["rows"] == 3
    assert await spark.commit(0, [a, b]) == result
    assert [r.data for r in await orders.read()] == ["1", "2", "3"]
    assert [r.key for r in await orders.read()] == [b"k", b"k", None]
    assert await spark.drop(unused)
    with pytest.raises(errors.ChunkNotFound):
        await spark.commit(1, [unused])
    assert await spark.epoch() == 0
    await spark.commit(7, [])
    with pytest.raises(errors.StaleEpoch):
        await spark.commit(6, [])


async def test_a_commit_to_queues_and_exchanges_arrives(broker: Any, face: Face) -> None:
    jobs = await broker.queue("jobs")
    shop = await broker.exchange("shop", "direct")
    await jobs.bind("shop", "eu")
    spark = broker.producer("spark")
    chunks = [await spark.stage(jobs, ["a"]), await spark.stage(shop, ["b"], routing_key="eu")]
    assert await jobs.claim() == []
    await spark.commit(0, chunks)
    for _ in range(3):
        await face.advance(1)
    assert [d.data for d in await jobs.claim(9)] == ["a", "b"]
    with pytest.raises(errors.InvalidType):
        await spark.stage("jobs", ["x"])


async def test_cuts_are_the_same_until_they_are_acknowledged(broker: Any) -> None:
    jobs = await broker.queue("jobs")
    await jobs.publish_many(["1", "2", "3"])
    cuts = broker.cuts("jobs", "spark")
    number, first = await cuts.after(0, 2)
    assert (number, [m.data for m in first]) == (1, ["1", "2"])
    assert [m.data for m in (await cuts.after(0, 9))[1]] == ["1", "2"]
    assert [m.data for m in await cuts.read(1)] == ["1", "2"]
    assert [m.data for m in (await cuts.after(1, 9))[1]] == ["3"]
    assert await cuts.ack(1) == 2
    assert await cuts.release() == 1
    assert [m.data for m in await jobs.peek(9)] == ["3"]
    with pytest.raises(errors.NotFound):
        await cuts.read(1)


async def test_nothing_can_be_sealed_in_memory(face: Face) -> None:
    orders = await face.make().stream("orders")
    with pytest.raises(errors.StoreError):
        await orders.seal()


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda s: s.publish("x", partition=5), "partition"),
        (lambda s: s.publish("x", key=5), "key"),
        (lambda s: s.read(-1), "offset"),
        (lambda s: s.read(0, 0), "count"),
        (lambda s: s.reader("middle"), "start"),
        (lambda s: s.reader(-1), "start"),
        (lambda s: s.reader(partitions=[9]), "partition"),
        (lambda s: s.alter(partitions=9), "partitions"),
        (lambda s: s.group("g").join(session_ms=0), "session_ms"),
        (lambda s: s.group("g").commit({0: 99}), "offset"),
    ],
)
async def test_wrong_arguments_are_named_and_change_nothing(broker: Any, call: Any, argument: str) -> None:
    orders = await broker.stream("orders")
    with pytest.raises(errors.RookeryError) as wrong:
        await call(orders)
    assert wrong.value.argument == argument
    assert (await orders.info())["records"] == 0

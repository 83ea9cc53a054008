"""The readers that Spark drives, driven by hand against a real server: files or broker, each record once, whatever
breaks; who has read how far.
"""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from rookery.errors import (
    BrokerUnreachable,
    InvalidArgument,
    OffsetOutOfRange,
    RookeryError,
    StoreDamaged,
    Unauthenticated,
)
from rookery.spark import sealed
from rookery.spark.client import Client
from rookery.spark.offsets import Range
from rookery.spark.options import source_options
from rookery.spark.source import BatchReader, PushingReader, RookeryDataSource, StreamReader
from tests.interop.server import ServerProcess, serving
from tests.interop.spark_gate import Gate
from tests.interop.spark_world import KEY, World, eventually, proxy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with serving(folder, "--api-key", KEY) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def world(server: ServerProcess) -> World:
    return World(server.http)


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Readers live as long as their process; here their connections end with the test."""
    made: list[Client] = []
    connect = Client._connect

    def noted(client: Client) -> Any:
        made.append(client)
        return connect(client)

    monkeypatch.setattr(Client, "_connect", noted)
    yield
    for client in made:
        client.close()


def schema(**options: Any) -> StructType:
    found = RookeryDataSource({name: str(value) for name, value in options.items()}).schema()
    assert isinstance(found, StructType)
    return found


def batch(world: World, reader: type[BatchReader] = BatchReader, **options: Any) -> BatchReader:
    said = {name: str(value) for name, value in (world.here | options).items()}
    return reader(source_options(said), schema(**said))


def stream(world: World, **options: Any) -> StreamReader:
    said = {name: str(value) for name, value in (world.here | options).items()}
    return StreamReader(source_options(said), schema(**said))


def rows(reader: BatchReader | StreamReader, tasks: list[Any] | None = None) -> list[dict[str, Any]]:
    """What tasks read, each after a way through pickle as Spark sends it."""
    if tasks is None:
        assert isinstance(reader, BatchReader)
        tasks = reader.partitions()
    found: list[dict[str, Any]] = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for each in pickle.loads(pickle.dumps(reader)).read(task):
            found += each.to_pylist()
    return found


def offsets(reader: BatchReader) -> list[int]:
    return [row["offset"] for row in rows(reader)]


def at(positions: dict[str, Any], name: str) -> dict[str, int]:
    """Where a checkpoint is in a stream, without which stream that is."""
    return {partition: offset for partition, offset in positions[name].items() if partition != "id"}


def in_files(world: World, name: str, files: int = 2, partitions: int = 1) -> str:
    """A stream with 30 records in each file of each partition, and 10 that stand in none."""
    world.stream(name, 0, partitions)
    for at in range(files + 1):
        begin = at * 30 * partitions
        world.fill(name, begin, begin + (30 if at < files else 10) * partitions, partitions)
        if at < files:
            world.call("POST", f"/streams/{name}/seal")
    return name


@pytest.fixture(scope="module")
def files(world: World) -> str:
    """Offsets 0 to 29 and 30 to 59 are in two files, 60 to 69 in none."""
    return in_files(world, "files")


@pytest.fixture(scope="module")
def pair(world: World) -> str:
    """In each of two partitions offsets 0 to 29 are in a file, 30 to 39 in none."""
    return in_files(world, "pair", 1, 2)


def files_of(folder: Path, name: str) -> list[Path]:
    return sorted(folder.rglob(f"stream={name}/**/*.parquet"))


# Sealed files


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """The ranges that the broker was asked for."""
    found: list[Range] = []
    whole = Client.records

    def records(client: Client, each: Range, *rest: Any) -> Any:
        found.append(each)
        return whole(client, each, *rest)

    monkeypatch.setattr(Client, "records", records)
    return found


@pytest.mark.parametrize("columns", ["offset,value", "value,tenant", "headers,partition,stream,timestamp,offset"])
def test_sealed_records_come_from_their_files(world: World, pair: str, asked: list[Range], columns: str) -> None:
    by_files = rows(batch(world, subscribe=pair, columns=columns))
    assert sorted((each.partition, each.start, each.stop) for each in asked) == [(0, 30, 40), (1, 30, 40)]
    assert by_files == rows(batch(world, subscribe=pair, columns=columns, mode="broker"))
    assert len(by_files) == 80


def test_a_range_may_begin_and_end_within_files(world: World, files: str, asked: list[Range]) -> None:
    start, stop = json.dumps({files: {"0": 7}}), json.dumps({files: {"0": 41}})
    found = rows(batch(world, subscribe=files, startingOffsets=start, endingOffsets=stop, columns="value"))
    assert [row["value"] for row in found] == [b'"m%d"' % i for i in range(7, 41)]
    assert asked == []


def test_keys_are_chosen_in_files_too(world: World) -> None:
    world.call("PUT", "/streams/keyed")
    keys = [{"message": i, "routing_key": f"order.{'eu' if i % 3 else 'us'}"} for i in range(9)]
    for _ in range(2):
        world.call("POST", "/streams/keyed/publish", keys)
    world.call("POST", "/streams/keyed/seal")
    assert offsets(batch(world, subscribe="keyed", routingKey="*.us", mode="segments")) == [0, 3, 6, 9, 12, 15]


@pytest.mark.parametrize("damage", ["gone", "another", "cut", "swapped"])
def test_a_file_that_is_not_what_the_broker_says_is_left_to_the_broker(
    world: World, files: str, folder: Path, tmp_path: Path, asked: list[Range], damage: str
) -> None:
    """A directory that looks like the broker's, as executors elsewhere may have it."""
    (streams,) = folder.rglob("streams")
    shutil.copytree(streams, tmp_path / "copy")
    first, second = files_of(tmp_path, files)
    if damage == "gone":
        first.unlink()
    elif damage == "another":
        first.write_bytes(second.read_bytes())
    elif damage == "cut":
        first.write_bytes(first.read_bytes()[:-1] + b"x")
    else:
        # the same size, other offsets
        data = bytearray(second.read_bytes())
        first.write_bytes(bytes(data[: first.stat().st_size].ljust(first.stat().st_size, b"\0")))
    root = tmp_path / "copy"
    assert offsets(batch(world, subscribe=files, segmentsRoot=root)) == list(range(70))
    assert [(each.start, each.stop) for each in asked] == [(0, 30), (60, 70)]
    with pytest.raises(StoreDamaged, match=r"mode=segments, but tenant=default/.* cannot be read"):
        offsets(batch(world, subscribe=files, segmentsRoot=root, mode="segments"))


def test_files_are_kept_while_they_are_read_and_let_go_of_after(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is trimmed while a task is within its first file: the second is still there for it."""
    made: list[str] = []
    released: list[str] = []
    make, release = Client.make_plan, Client.release_plan

    def noted(*arguments: Any) -> Any:
        plan = make(*arguments)
        made.append(plan["plan"])
        return plan

    def noted_end(client: Client, plan: str) -> None:
        release(client, plan)
        released.append(plan)

    monkeypatch.setattr(Client, "make_plan", noted)
    monkeypatch.setattr(Client, "release_plan", noted_end)
    name = in_files(world, "kept")
    (task,) = batch(world, subscribe=name, columns="offset").partitions()
    reading = batch(world, subscribe=name, columns="offset", fetchBatchRows=10).read(task)
    found = next(reading).to_pylist()
    assert len(made) == 1
    assert released == []
    world.call("POST", f"/plans/{made[0]}/renew")
    world.call("POST", f"/streams/{name}/trim", {"offset": 60})
    found += [row for each in reading for row in each.to_pylist()]
    assert [row["offset"] for row in found] == list(range(70))
    assert released == made


def test_a_lease_is_renewed_and_made_anew_when_it_was_forgotten(
    world: World, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "LEASE_MS", 1_500)
    options = source_options({**world.here, "subscribe": files})
    with closing(sealed.Lease(options.connection, files)) as lease:
        first = lease._name
        # as a broker that was started anew
        world.call("DELETE", f"/plans/{first}")
        eventually(lambda: lease._name != first)
        second = lease._name
        done = threading.Event()
        renewals: list[str] = []
        renew = lease._client.renew_plan

        def counted(plan: str, lease_ms: int) -> None:
            renew(plan, lease_ms)
            renewals.append(plan)
            if len(renewals) == 4:
                done.set()

        monkeypatch.setattr(lease._client, "renew_plan", counted)
        assert done.wait(60)
        assert set(renewals) == {second}
        assert not lease.lost
    with pytest.raises(AssertionError, match="404"):
        world.call("POST", f"/plans/{second}/renew")


def test_a_task_goes_on_with_the_broker_when_its_files_are_not_kept_any_more(
    world: World, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sealed.Lease] = []
    start = sealed.Lease.__init__

    def remember(lease: sealed.Lease, *args: Any, **more: Any) -> None:
        start(lease, *args, **more)
        made.append(lease)

    monkeypatch.setattr(sealed.Lease, "__init__", remember)
    (task,) = batch(world, subscribe=files, columns="offset").partitions()
    reading = batch(world, subscribe=files, columns="offset").read(task)
    found = next(reading).to_pylist()
    made[0].lost = True
    found += [row for each in reading for row in each.to_pylist()]
    assert [row["offset"] for row in found] == list(range(70))
    assert len(made) == 2


# Filters


@pytest.mark.parametrize(
    ("filters", "expected", "left"),
    [
        ([GreaterThan(("offset",), 25), LessThanOrEqual(("offset",), 28)], [26, 27, 28] * 2, 0),
        ([GreaterThanOrEqual(("offset",), 38), LessThan(("offset",), 99)], [38, 39] * 2, 0),
        ([EqualTo(("offset",), 3), EqualTo(("partition",), 1), IsNotNull(("offset",))], [3], 0),
        ([In(("partition",), (0, 7)), LessThan(("offset",), 2)], [0, 1], 0),
        ([EqualTo(("stream",), "other")], [], 0),
        ([In(("offset",), (5, 8)), EqualTo(("partition",), 0)], [5, 6, 7, 8], 1),
        ([Not(EqualTo(("partition",), 0)), LessThan(("offset",), 1)], [0, 0], 1),
        ([EqualTo(("routing_key",), "a.b")], [], 0),
        ([EqualTo(("routing_key",), "a.*"), LessThan(("offset",), 1)], [0, 0], 1),
        ([StringStartsWith(("routing_key",), "pair"), LessThan(("offset",), 1)], [0, 0], 1),
        ([EqualTo(("value",), b"x"), LessThan(("offset",), 1)], [0, 0], 1),
        ([LessThan(("offset",), -4)], [], 0),
    ],
)
def test_filters_leave_out_what_they_can(
    world: World, pair: str, filters: list[Filter], expected: list[int], left: int
) -> None:
    starting = json.dumps({pair: {"0": -2, "1": -2}})
    reader = batch(world, PushingReader, subscribe=pair, columns="offset", startingOffsets=starting)
    assert isinstance(reader, PushingReader)
    assert len(list(reader.pushFilters(filters))) == left
    assert sorted(offsets(reader)) == sorted(expected)


def test_times_become_offsets(world: World, files: str) -> None:
    stamps = {
        row["offset"]: row["timestamp"] for row in rows(batch(world, subscribe=files, columns="offset,timestamp"))
    }
    last = stamps[69]
    for kind, passes in (
        (GreaterThanOrEqual, lambda stamp: stamp >= last),
        (GreaterThan, lambda stamp: stamp > last),
        (LessThan, lambda stamp: stamp < last),
        (LessThanOrEqual, lambda stamp: stamp <= last),
        (EqualTo, lambda stamp: stamp == last),
    ):
        reader = batch(world, PushingReader, subscribe=files, columns="offset")
        assert isinstance(reader, PushingReader)
        each = kind(("timestamp",), last)
        # Spark looks again, which costs little
        assert reader.pushFilters([each]) == [each]
        assert offsets(reader) == [offset for offset, stamp in stamps.items() if passes(stamp)]


# Options


def test_headers_are_filtered_before_spark_sees_the_rows(world: World) -> None:
    world.call("PUT", "/streams/headed")
    regions = [{"message": i, "headers": {"region": "eu" if i % 2 else "us", "n": str(i % 3)}} for i in range(12)]
    world.call("POST", "/streams/headed/publish", [*regions, {"message": 12}])
    assert offsets(batch(world, subscribe="headed", columns="offset", headerFilter="region=eu,n=0")) == [3, 9]
    assert offsets(batch(world, subscribe="headed", headerFilter="region=no")) == []


def test_batches_have_no_more_rows_than_asked_for(world: World, files: str) -> None:
    reader = batch(world, subscribe=files, fetchBatchRows=25, includeValue="false", includeHeaders="false")
    (task,) = reader.partitions()
    found = list(reader.read(task))
    assert [each.num_rows for each in found] == [25, 5, 25, 5, 10]
    assert {"value", "headers"}.isdisjoint(found[0].schema.names)


def test_small_ranges_are_merged_and_large_ones_split(world: World) -> None:
    world.stream("shared", 64, 8)
    import os

    assert len(batch(world, subscribe="shared").partitions()) == min(8, os.cpu_count() or 1)
    assert len(batch(world, subscribe="shared", minPartitions=16).partitions()) == 16
    assert len(batch(world, subscribe="shared", maxRecordsPerTask=4).partitions()) == 16


def test_a_batch_waits_for_enough_rows_but_not_forever(world: World) -> None:
    world.stream("patient", 5)
    first = {"patient": {"0": 0}}
    limit = ReadMaxRows(1_000)
    waiting = stream(world, subscribe="patient", minOffsetsPerTrigger=10)
    assert waiting.latestOffset(first, limit) == first
    world.fill("patient", 5, 11)
    assert at(waiting.latestOffset(first, limit), "patient") == {"0": 11}
    hasty = stream(world, subscribe="patient", minOffsetsPerTrigger=100, maxTriggerDelay="0s")
    reached = hasty.latestOffset(first, limit)
    assert at(reached, "patient") == {"0": 11}
    assert hasty.latestOffset(reached, limit) == reached
    # AvailableNow reads what there is
    ending = stream(world, subscribe="patient", minOffsetsPerTrigger=100)
    ending.prepareForTriggerAvailableNow()
    assert at(ending.latestOffset(first, limit), "patient") == {"0": 11}


def test_a_batch_has_no_more_bytes_than_asked_for(world: World) -> None:
    world.call("PUT", "/streams/heavy")
    world.call("POST", "/streams/heavy/publish", [{"message": "x" * 1_000} for _ in range(100)])
    reader = stream(world, subscribe="heavy", maxBytesPerTrigger="20k")
    reached = reader.latestOffset({"heavy": {"0": 0}}, ReadMaxRows(1_000))["heavy"]["0"]
    assert 10 <= reached <= 20


def test_a_pattern_takes_in_streams_that_come_later_from_their_beginning(world: World) -> None:
    world.stream("late-1", 3)
    reader = stream(world, subscribePattern="late-.*", startingOffsets="latest")
    start = reader.initialOffset()
    assert at(start, "late-1") == {"0": 3}
    world.stream("late-2", 4)
    reached = reader.latestOffset(start, ReadMaxRows(100))
    assert at(reached, "late-2") == {"0": 4}
    found = rows(reader, reader.partitions(start, reached))
    assert [(row["stream"], row["offset"]) for row in found] == [("late-2", offset) for offset in range(4)]
    world.call("DELETE", "/streams/late-1")
    assert reader.latestOffset(reached, ReadMaxRows(100)) == reached


def test_available_now_ends_while_a_producer_goes_on(world: World) -> None:
    world.stream("growing", 10)
    reader = stream(world, subscribe="growing", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    for expected in (4, 8, 10, 10):
        world.fill("growing", 0, 7)
        at = reader.latestOffset(at, ReadMaxRows(4))
        assert at["growing"]["0"] == expected


# Progress


def test_without_a_group_the_query_has_one_of_its_own_from_its_checkpoint(world: World) -> None:
    world.stream("own", 10)
    first = stream(world, subscribe="own", startingOffsets="earliest")
    start = first.initialOffset()
    group = start[""]
    assert group.startswith("spark-")
    reached = first.latestOffset(start, ReadMaxRows(6))
    assert (reached[""], at(reached, "own")) == (group, {"0": 6})
    assert world.lag("own", group) == 10
    # the batch is in Spark's commit log when the next one is asked for
    again = stream(world, subscribe="own", startingOffsets="earliest")
    assert at(again.latestOffset(reached, ReadMaxRows(6)), "own") == {"0": 10}
    assert world.lag("own", group) == 4
    again.commit({"": group, "own": {"0": 10}})
    assert world.lag("own", group) == 0
    assert stream(world, subscribe="own").initialOffset()[""] != group


def test_progress_that_the_broker_does_not_take_is_told_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.stream("told", 10)
    gate = Gate()
    gate.target = world.port
    gate.stop(r"^POST \S+/groups/g/commit", "request").cut()
    with closing(gate):
        where = f"http://127.0.0.1:{gate.port}"
        reader = stream(world, subscribe="told", consumerGroup="g", endpoint=where, retries=0)
        start = {"told": {"0": 4}}
        assert at(reader.latestOffset(start, ReadMaxRows(2)), "told") == {"0": 6}
        assert "progress was not taken" in caplog.text
        assert reader._told == {}
        assert at(reader.latestOffset(start, ReadMaxRows(2)), "told") == {"0": 6}
        assert reader._told == {("told", 0): 4}
        assert world.lag("told", "g") == 6


# What breaks


def test_a_range_is_read_whole_although_the_server_is_killed_within_it(tmp_path: Path) -> None:
    # more than a batch, and more than sockets hold
    count, page = 36_000, [{"message": "x" * 1_000} for _ in range(6_000)]
    with serving(tmp_path, "--api-key", KEY) as server:
        world = World(server.http)
        world.stream("large")
        for _ in range(count // len(page)):
            world.call("POST", "/streams/large/publish", page)
        reader = batch(world, subscribe="large", columns="offset,value", retries=40)
        (task,) = reader.partitions()
        reading = reader.read(task)
        found = next(reading).column("offset").to_pylist()
        server.process.kill()
        server.wait()
        with serving(tmp_path, "--api-key", KEY, "--http-port", str(server.http)):
            for each in reading:
                found += each.column("offset").to_pylist()
    assert found == list(range(count))


def test_a_broker_that_does_not_answer_is_asked_again_and_then_named(world: World) -> None:
    world.stream("slow", 100)
    with proxy(world.port) as between:
        where = f"http://127.0.0.1:{between.port}"
        reader = batch(world, subscribe="slow", columns="offset", endpoint=where, fetchTimeoutMs=300, retries=3)
        between.stall(2)
        assert offsets(reader) == list(range(100))
        assert between.connections >= 3
        between.stall(100)
        with pytest.raises(BrokerUnreachable, match=r"failed 4 times, last with TimeoutError"):
            offsets(reader)


@pytest.mark.parametrize("when", ["planning", "reading", "streaming"])
def test_a_key_that_was_revoked_is_named(world: World, when: str) -> None:
    world.stream("guarded", 10)
    made = world.call("POST", "/keys", {"rights": {"configure": "", "write": "", "read": ".*"}})
    options = {"subscribe": "guarded", "token": made["api_key"], "startingOffsets": "earliest"}
    reader, live = batch(world, **options), stream(world, **options)
    tasks, start = reader.partitions(), live.initialOffset()
    world.call("DELETE", f"/keys/{made['kid']}")
    work: dict[str, Callable[[], object]] = {
        "planning": reader.partitions,
        "reading": lambda: rows(reader, tasks),
        "streaming": lambda: live.latestOffset(start, ReadMaxRows(5)),
    }
    with pytest.raises(Unauthenticated):
        work[when]()


def test_what_retention_takes_while_tasks_wait_is_named_or_skipped(world: World) -> None:
    name = in_files(world, "overtaken", 1)
    readers = [
        (batch(world, subscribe=name, columns="offset", mode=mode, failOnDataLoss=strict), strict)
        for mode in ("auto", "broker")
        for strict in ("true", "false")
    ]
    planned = [(reader, reader.partitions(), strict) for reader, strict in readers]
    world.call("POST", f"/streams/{name}/trim", {"offset": 30})
    for reader, tasks, strict in planned:
        if strict == "false":
            assert [row["offset"] for row in rows(reader, tasks)] == list(range(30, 40))
            continue
        with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to 39 of partition 0 .* lost in part: it has 30 to 39"):
            rows(reader, tasks)


ANEW = r"stream 'anew-\w+' was deleted and made anew since the query has read of it: it needs a new checkpoint"


@pytest.mark.parametrize("count", [3, 10, 20])
def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(world: World, count: int) -> None:
    """Shorter than what was read, as long, or longer: it is told by its id, not by its offsets."""
    name = world.stream(f"anew-{count}", 10)
    reader = stream(world, subscribe=name, startingOffsets="earliest", consumerGroup="g")
    start = reader.initialOffset()
    reached = reader.latestOffset(start, ReadMaxRows(100))
    tasks = reader.partitions(start, reached)
    world.call("DELETE", f"/streams/{name}")
    world.stream(name, count)
    with pytest.raises(OffsetOutOfRange, match=ANEW):
        reader.latestOffset(reached, ReadMaxRows(100))
    # what is still to be read of the old one is not read from the new one, however far it has come
    for work in (lambda: reader.partitions(start, reached), lambda: rows(reader, tasks)):
        with pytest.raises(
            OffsetOutOfRange, match=r"offsets 0 to 9 of .* are lost in part: it was deleted and made anew"
        ):
            work()
    lasting = stream(world, subscribe=name, consumerGroup="g", failOnDataLoss="false")
    assert rows(lasting, tasks) == []
    assert lasting.partitions(start, reached) == []
    further = lasting.latestOffset(reached, ReadMaxRows(100))
    assert at(further, name) == {"0": count}
    found = rows(lasting, lasting.partitions(reached, further))
    assert [row["offset"] for row in found] == list(range(count))
    # the group of the new one was not told where the old one was
    assert "g" not in world.call("GET", f"/streams/{name}")["groups"]
    lasting.latestOffset(further, ReadMaxRows(100))
    assert world.lag(name, "g") == 0


def test_a_checkpoint_that_does_not_say_which_stream_it_was(world: World) -> None:
    """As older ones: a stream that ends before what was read of it is another."""
    world.stream("anew-old", 3)
    with pytest.raises(OffsetOutOfRange, match=ANEW):
        stream(world, subscribe="anew-old").latestOffset({"anew-old": {"0": 10}}, ReadMaxRows(5))
    lasting = stream(world, subscribe="anew-old", failOnDataLoss="false")
    start = {"anew-old": {"0": 10}}
    reached = lasting.latestOffset(start, ReadMaxRows(5))
    assert [row["offset"] for row in rows(lasting, lasting.partitions(start, reached))] == [0, 1, 2]


def test_files_of_a_stream_that_was_made_anew_are_not_those_of_the_old_one(world: World) -> None:
    name = in_files(world, "anew-files", 1)
    reader = batch(world, subscribe=name, columns="offset", mode="segments")
    lasting = batch(world, subscribe=name, columns="offset", failOnDataLoss="false")
    tasks = reader.partitions()
    world.call("DELETE", f"/streams/{name}")
    in_files(world, "anew-files", 1)
    with pytest.raises(OffsetOutOfRange, match="it was deleted and made anew"):
        rows(reader, tasks)
    assert rows(lasting, tasks) == []


def test_answers_that_lack_records_are_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stream("lacking", 10)
    reader = batch(world, subscribe="lacking", columns="offset")
    whole = Client._batches
    monkeypatch.setattr(Client, "_batches", lambda client, url: (each.slice(0, 9) for each in whole(client, url)))
    with pytest.raises(StoreDamaged, match="has 9 records from 0 on, not 10"):
        offsets(reader)


# Tables


def test_the_options_of_a_table_are_kept_in_its_schema(world: World) -> None:
    made = {**{f"option.{name}": value for name, value in {"endpoint": world.url}.items()}, "provider": "rookery"}
    table = schema(**made, subscribe="t", columns="value,offset")
    assert table.names == ["value", "offset"]
    assert all(field.nullable for field in table.fields)
    assert table.fields[0].metadata == {"rookery": {"endpoint": world.url, "subscribe": "t", "columns": "value,offset"}}
    reader = RookeryDataSource({}).reader(table)
    assert isinstance(reader, BatchReader)
    assert reader._table.options.streams == ("t",)
    other = RookeryDataSource({"startingOffsets": "latest"}).reader(table)
    assert isinstance(other, BatchReader)
    assert other._table.options.starting == "latest"
    with pytest.raises(InvalidArgument, match="use tokenEnv"):
        schema(**made, subscribe="t", token="x")
    with pytest.raises(InvalidArgument, match="did you mean subscribe"):
        schema(**made, subscribed="t")
    with pytest.raises(InvalidArgument, match="name them in the option columns"):
        RookeryDataSource({}).reader(StructType().add("value", "binary"))


def test_errors_are_those_of_the_broker(world: World) -> None:
    with pytest.raises(RookeryError, match="nowhere"):
        batch(world, subscribe="nowhere").partitions()

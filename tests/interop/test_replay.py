"""Chosen records are published once each, at a rate, also by a replay that died and goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rookery.errors import InvalidArgument
from rookery.pipelines.builtin import replay
from rookery.spark.options import Connection, sink_options
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

ROWS = 1_000
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        yield World(server.http)
        assert server.stop() == 0


@pytest.fixture
def connection(world: World) -> Connection:
    return sink_options(world.here).connection


def chosen(root: Path, wanted: replay.Replay, rows: int = ROWS) -> tuple[replay.Folder, replay.Replay]:
    """A replay whose records have been chosen, as Spark writes them: in two files of several row groups."""
    folder, found = replay.begin(root, wanted)
    folder.rows.mkdir(parents=True)
    for part in range(2):
        numbers = range(part * rows // 2, (part + 1) * rows // 2)
        table = pa.table(
            {
                "value": pa.array([b"m%d" % n for n in numbers], pa.binary()),
                "key": pa.array([None for _ in numbers], pa.binary()),
                "headers": pa.array([[{"key": "kind", "value": b"%d" % (n % 2)}] for n in numbers], pa.list_(HEADER)),
                "routing_key": pa.array([f"k.{n % 3}" for n in numbers], pa.string()),
                "timestamp": pa.array([datetime(2026, 9, 1, tzinfo=UTC)] * len(numbers), pa.timestamp("us", "UTC")),
                "message_id": pa.array([f"id-{n}" for n in numbers], pa.string()),
                "correlation_id": pa.array([None for _ in numbers], pa.string()),
                "content_type": pa.array(["text/plain" for _ in numbers], pa.string()),
                "original_partition": pa.array([part for _ in numbers], pa.int32()),
                "original_offset": pa.array(numbers, pa.int64()),
            }
        )
        pq.write_table(table, folder.rows / f"part-{part:05}-x.parquet", row_group_size=77)
    found.rows = rows
    folder.save(found)
    return folder, found


def test_chunks_are_always_the_same(tmp_path: Path) -> None:
    folder, _ = chosen(tmp_path, replay.Replay("r", "stream", "s", "", "queue", "q"))
    for rows in (1, 30, 77, 500, 20_000):
        found = list(replay.chunks(folder, rows))
        assert [value for batch in found for value in batch.column("value").to_pylist()] == [
            b"m%d" % n for n in range(ROWS)
        ]
        assert all(batch.num_rows <= rows for batch in found)
        assert len(found) == 2 * -(-500 // rows)


def test_a_replay_that_dies_at_any_moment_goes_on(world: World, connection: Connection, tmp_path: Path) -> None:
    world.call("PUT", "/queues/again")
    wanted = replay.Replay("dying", "lake", "s", "", "queue", "again", chunk_rows=100)
    folder, found = chosen(tmp_path, wanted)

    class Died(Exception):
        pass

    heard = []
    while found.rows_done < ROWS:

        def die(news: replay.Replay) -> None:
            heard.append(news.rows_done)
            if news.chunks_done % 3 == 1:
                # it was committed, and nobody wrote that down
                before = msgspec.structs.replace(news, chunks_done=news.chunks_done - 1, rows_done=news.rows_done - 100)
                if len(heard) < 5:
                    folder.save(before)
                raise Died

        try:
            found = replay.publish(found, folder, connection, heard=die)
        except Died:
            pass
        _, found = replay.begin(tmp_path, wanted)
    assert len(heard) > ROWS // 100
    assert world.ready("again", ROWS) == ROWS
    claimed = world.call("POST", "/queues/again/claim", {"max": 1_000})["deliveries"]
    assert Counter(row["message"] for row in claimed) == Counter(f"m{n}" for n in range(ROWS))
    assert [row["message_id"] for row in claimed] == [f"id-{n}" for n in range(ROWS)]
    assert claimed[ROWS - 1]["headers"] == {
        "kind": "1",
        "x-replay-id": "dying",
        "x-original-stream": "s",
        "x-original-partition": "1",
        "x-original-offset": str(ROWS - 1),
    }
    # nothing more comes of another try
    assert replay.publish(found, folder, connection).rows_done == ROWS
    assert world.call("GET", "/queues/again")["stats"]["ready"] == 0


def test_exchanges_route_by_the_original_key(world: World, connection: Connection, tmp_path: Path) -> None:
    world.call("PUT", "/exchanges/shop", {"kind": "topic"})
    world.call("PUT", "/queues/ones")
    world.call("POST", "/bindings", {"source": "shop", "target": "ones", "key": "*.1"})
    folder, found = chosen(tmp_path, replay.Replay("routed", "stream", "s", "", "exchange", "shop"), rows=30)
    replay.publish(found, folder, connection)
    assert world.ready("ones", 10) == 10


def test_a_rate_is_kept(world: World, connection: Connection, tmp_path: Path) -> None:
    world.stream("slow")
    rate = 1_000
    folder, found = chosen(
        tmp_path, replay.Replay("slow", "stream", "s", "", "stream", "slow", chunk_rows=replay.chunk_rows(rate))
    )
    waits: list[float] = []

    def wait(seconds: float) -> None:
        # what is staged is kept for an hour: at a low rate that would be over
        assert world.call("GET", "/chunks")["chunks"] == []
        waits.append(seconds)

    # publishing takes no time here but what is waited
    replay.publish(found, folder, connection, rate=rate, wait=wait, clock=lambda: sum(waits))
    assert [round(wait, 6) for wait in waits] == [0, 0.2, 0.2, 0.1, 0.2, 0.2]
    assert len(world.values("slow")) == ROWS


def test_another_replay_under_the_same_id_is_refused(tmp_path: Path) -> None:
    wanted = replay.Replay("same", "lake", "s", "offset > 3", "queue", "q")
    replay.begin(tmp_path, wanted)
    with pytest.raises(InvalidArgument, match="where 'offset > 3'"):
        replay.begin(tmp_path, msgspec.structs.replace(wanted, where=""))
    with pytest.raises(InvalidArgument, match="an id has"):
        replay.begin(tmp_path, msgspec.structs.replace(wanted, id="../x"))

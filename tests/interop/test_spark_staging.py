"""What a task of the sink does with its rows, done by hand against a real server: chunks, rows that are too large,
chunks that happen at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from rookery.errors import MessageTooLarge
from rookery.spark.client import Client
from rookery.spark.options import Connection, sink_options
from rookery.spark.sink import SHOWN_BYTES, SIZE_HEADER, Stager
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World

BODY_MAX = 200_000
LARGE = b"L" * (BODY_MAX + 10_000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    limit = ("--http-body-max-bytes", str(BODY_MAX))
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY, *limit) as server:
        yield World(server.http)
        assert server.stop() == 0


def staged(world: World, values: list[bytes], name: str = "task", **options: Any) -> list[str]:
    """Stage rows as one task does, for epoch 0 of a producer; the chunks that the driver is to commit."""
    said = {key: str(value) for key, value in (world.here | options).items()}
    rows = pa.record_batch(
        {"value": pa.array(values, pa.binary()), "message_id": [f"id{i}" for i in range(len(values))]}
    )
    with closing(Stager(sink_options(said), name, f"{name}-query", 0)) as stager:
        stager.add(rows)
        stager.finish()
        assert stager.rows == len(values)
        return stager.chunks


def commit(world: World, name: str, chunks: list[str]) -> None:
    world.call("POST", f"/producers/{name}-query/commit", {"epoch": 0, "chunks": chunks})


def letters(world: World, queue: str) -> list[dict[str, Any]]:
    return list(world.call("GET", f"/queues/{queue}/messages")["messages"])


@pytest.mark.parametrize("kind", ["topic", "exchange"])
def test_a_row_that_is_too_large_becomes_a_dead_letter_and_the_others_keep_their_order(world: World, kind: str) -> None:
    name = f"large-{kind}"
    if kind == "topic":
        world.stream(name)
    else:
        world.call("PUT", f"/exchanges/{name}", {"kind": "fanout"})
        world.call("PUT", f"/streams/{name}-kept")
        world.call("POST", "/bindings", {"source": name, "target": f"{name}-kept", "target_kind": "stream"})
    values = [b"m%d" % i for i in range(20)]
    values[7] = LARGE
    # the rows are many for one request as well
    chunks = staged(world, [*values, *[b"x" * 50_000] * 6], name, **{kind: name}, onOversize="dlq")
    assert world.ready(f"{name}.DLQ", 0) == 0
    commit(world, name, chunks)
    assert world.ready(f"{name}.DLQ", 1) == 1
    kept = name if kind == "topic" else f"{name}-kept"
    deadline = time.monotonic() + 60
    while len(found := world.values(kept)) < 25 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == [f"m{i}" for i in range(20) if i != 7] + ["x" * 50_000] * 6
    (letter,) = letters(world, f"{name}.DLQ")
    assert letter["message"] == "L" * SHOWN_BYTES
    assert letter["headers"] == {SIZE_HEADER: str(len(LARGE))}
    assert letter["message_id"] == "id7"


def test_a_row_that_is_too_large_fails_its_task_unless_it_was_said_what_to_do(world: World) -> None:
    world.stream("strict")
    with pytest.raises(MessageTooLarge, match="larger than"):
        staged(world, [b"small", LARGE], topic="strict")
    assert world.values("strict") == []


def test_without_exactly_once_chunks_happen_at_once_and_again_when_they_are_written_again(world: World) -> None:
    world.stream("at-once")
    for _ in range(2):
        assert staged(world, [b"a" * 600, b"b" * 600], topic="at-once", exactlyOnce="false", maxBatchBytes="1k") == []
    assert world.values("at-once") == ["a" * 600, "b" * 600] * 2
    assert world.call("GET", "/chunks")["chunks"] == []


def test_without_exactly_once_the_clocks_of_executors_may_differ(world: World) -> None:
    """Another task has committed under the same name, with a clock that is ahead."""
    world.stream("clocks")
    ahead = time.time_ns() + 3_600_000_000_000
    with closing(Client(Connection((world.url,), KEY))) as client:
        client.post("/api/v1/producers/late-query/commit", {"epoch": ahead, "chunks": []})
    staged(world, [b"one"], "late", topic="clocks", exactlyOnce="false")
    assert world.values("clocks") == ["one"]
    assert world.call("GET", "/producers/late-query")["epoch"] == ahead + 1

"""The connector's own HTTP client against a real server: ranges over broken connections, errors by their class."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from rookery.errors import BrokerUnreachable, OffsetOutOfRange, StreamNotFound, Unauthenticated
from rookery.spark.client import Client
from rookery.spark.offsets import Range
from rookery.spark.options import Connection
from tests.interop.server import serving
from tests.interop.spark_world import KEY, World, proxy

ROWS = 20_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as server:
        world = World(server.http)
        world.stream("numbers", ROWS)
        yield world


@contextmanager
def client(*ports: int, retries: int = 5, token: str = KEY) -> Iterator[Client]:
    found = Client(Connection(tuple(f"http://127.0.0.1:{port}" for port in ports), token, retries=retries))
    with closing(found):
        yield found


def offsets(reader: Client, each: Range, columns: tuple[str, ...] = ("offset",)) -> list[int]:
    found: list[int] = []
    for batch in reader.records(each, columns):
        assert tuple(batch.schema.names) == columns
        found += batch.column("offset").to_pylist()
    return found


def test_a_range_is_read_whole_on_one_connection(world: World) -> None:
    with proxy(world.port) as between, client(between.port) as reader:
        for _ in range(3):
            assert offsets(reader, Range("numbers", 0, 10, ROWS)) == list(range(10, ROWS))
        assert between.connections == 1


@pytest.mark.parametrize("after_bytes", [0, 100, 5_000, 200_000])
def test_a_range_is_read_once_over_broken_connections(world: World, after_bytes: int) -> None:
    with proxy(world.port) as between, client(between.port) as reader:
        between.cut(3, after_bytes)
        values = [
            value.as_py()
            for batch in reader.records(Range("numbers", 0, 0, ROWS), ("value",))
            for value in batch.column("value")
        ]
        assert between.cuts_left == 0
    assert values == [b'"m%d"' % i for i in range(ROWS)]


def test_who_gives_up_says_so(world: World) -> None:
    with proxy(world.port) as between, client(between.port, retries=1) as reader:
        between.cut(100, 0)
        with pytest.raises(BrokerUnreachable, match=r"GET http://127.0.0.1:\d+/api/v1/streams/numbers failed 2 times"):
            reader.bounds("numbers")


def test_the_next_endpoint_is_tried(world: World) -> None:
    with proxy(world.port) as between, client(between.port, world.port) as reader:
        between.close()
        assert set(reader.bounds("numbers")) == {("numbers", 0)}


def test_a_connection_that_was_closed_while_idle_is_no_failure(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with proxy(world.port) as between, client(between.port, retries=0) as reader:
        found = reader.bounds("numbers")
        between.hang_up()
        assert reader.bounds("numbers") == found
        assert between.connections == 2
    assert not caplog.records


def test_errors_have_the_class_that_they_have_in_the_broker(world: World) -> None:
    with client(world.port) as reader:
        with pytest.raises(StreamNotFound):
            reader.bounds("no/such stream")
        with pytest.raises(OffsetOutOfRange, match=r"offset 30000 .* is not there"):
            offsets(reader, Range("numbers", 0, 30_000, 30_001))
    with client(world.port, token="wrong") as stranger, pytest.raises(Unauthenticated):
        stranger.bounds("numbers")


def test_a_client_is_sent_to_executors_without_its_connection(world: World) -> None:
    with client(world.port) as reader:
        found = reader.bounds("numbers")
        with closing(pickle.loads(pickle.dumps(reader))) as copy:
            assert copy.bounds("numbers") == found

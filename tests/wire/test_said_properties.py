"""What a publisher says of a message becomes the same property list, whichever way it says it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from rookery.embed.messages import Message, encode_message
from rookery.errors import InvalidArgument
from rookery.format import properties
from tests.wire.api_client import API
from tests.wire.http_world import World, world
from tests.wire.socket_reader import SocketReader

WAYS = ("small", "topic", "native", "many", "lines", "exchange", "transaction", "staged", "stream", "socket")
FIELDS: dict[str, tuple[Any, ...]] = {
    "priority": (0, 1, 255, 256, -1, 1 << 40),
    "headers": ({}, {"a": 1, "b": [True, None, 1.5]}, {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}),
    "group": ("", "g", "\u00e4" * 100),
    "correlation_id": ("", "c", "x" * 255),
    "reply_to": ("", "r"),
    "type": ("", "order.placed"),
    "persistent": (True, False),
}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("said"), log_level="error") as made:
        yield made


def said(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(sorted(FIELDS), rng.randrange(len(FIELDS) + 1))
    return {name: rng.choice(FIELDS[name]) for name in names}


def embedded(fields: dict[str, Any]) -> bytes:
    """The property list that the embedded broker makes."""
    more = dict(fields)
    meta = more.pop("headers", {})
    return encode_message(Message({"n": 1}, meta=meta, **more), None)[0]


def send(web: World, client: httpx.Client, way: str, queue: str, fields: dict[str, Any]) -> httpx.Response:
    """Publish `{"n": 1}` with these fields, so that it gets into the queue or stream of that name."""
    item = {"message": {"n": 1}, **fields}
    if way == "small":
        return client.post(f"{API}/queues/{queue}/publish", json=item)
    if way == "topic":
        return client.post(f"{API}/topics/t-{queue}/publish?routing_key=k", json=item)
    if way == "native":
        return client.post(f"{API}/queues/{queue}/messages", json=item)
    if way == "many":
        return client.post(f"{API}/queues/{queue}/messages", json=[item])
    if way == "lines":
        kind = {"Content-Type": "application/x-ndjson"}
        return client.post(f"{API}/queues/{queue}/messages", content=json.dumps(item), headers=kind)
    if way == "exchange":
        return client.post(f"{API}/exchanges/t-{queue}/messages?routing_key=k", json=item)
    if way == "transaction":
        return client.post(f"{API}/transactions", json={"publish": [{"queue": queue, **item}]})
    if way == "stream":
        return client.post(f"{API}/streams/s-{queue}/publish", json=item)
    assert way == "staged"
    made = client.post(f"{API}/queues/{queue}/stage", json=[item])
    if made.is_error:
        return made
    body = {"epoch": 1, "chunks": [made.json()["chunk"]]}
    return client.post(f"{API}/producers/p-{queue}/commit", json=body)


def stored(web: World, tenant: str, queue: str) -> list[bytes]:
    """The property lists of what is in a queue, or in the stream beside it."""

    def look(server: Any) -> list[bytes]:
        found = server.engine.shard.tenants[tenant]
        entries = [entry.message.props for entry in found.queues[queue].ready_entries()]
        partition = found.streams[f"s-{queue}"].partition(0)
        shard = server.engine.shard
        return entries + [shard.message_of(partition.record(at)).props for at in range(int(partition.end))]

    found: list[bytes] = web.inside(look)
    return found


@pytest.fixture(scope="module")
def client(web: World) -> httpx.Client:
    return web.large("said")


def prepare(client: httpx.Client, queue: str) -> None:
    assert client.put(f"{API}/queues/{queue}").status_code == 201
    assert client.put(f"{API}/streams/s-{queue}").status_code == 201
    assert client.put(f"{API}/topics/t-{queue}").status_code == 201
    binding = {"source": f"t-{queue}", "target": queue, "key": "#"}
    assert client.post(f"{API}/bindings", json=binding).status_code == 201


@pytest.mark.parametrize("seed", range(12))
def test_all_ways_make_the_same_property_list(web: World, client: httpx.Client, seed: int) -> None:
    fields = said(random.Random(seed)) if seed else {}
    queue = f"q{seed}"
    prepare(client, queue)
    for way in WAYS:
        if way == "socket":
            key = client.headers["Authorization"].partition(" ")[2]
            with SocketReader(web.address, f"{API}/streams/s-{queue}", key) as reader:
                assert "code" not in reader.ask("publish", messages={"message": {"n": 1}, **fields})
            continue
        answer = send(web, client, way, queue, fields)
        assert answer.is_success, (way, answer.text)
    lists = stored(web, "said", queue)
    assert len(lists) == len(WAYS)
    assert set(lists) == {embedded(fields)}, fields


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"headers": {"x" * 300: 1}}, "headers"),
        ({"headers": {"a": 1 << 70}}, "headers"),
        ({"correlation_id": "\u00e4" * 200}, "correlation_id"),
        ({"reply_to": "\u00e4" * 200}, "reply_to"),
        ({"type": "\u00e4" * 200}, "type"),
        ({"idempotency_key": "\u00e4" * 200}, "idempotency_key"),
    ],
)
def test_all_ways_name_what_does_not_fit(
    web: World, client: httpx.Client, fields: dict[str, Any], argument: str
) -> None:
    queue = f"bad-{argument}"
    client.put(f"{API}/queues/{queue}")
    client.put(f"{API}/topics/t-{queue}")
    for way in ("small", "topic", "native", "many", "exchange", "transaction"):
        answer = send(web, client, way, queue, fields)
        assert answer.status_code == 400, (way, answer.text)
        named = answer.json()["argument"].rpartition(".")[2]
        assert named == argument, (way, answer.text)


def test_the_embedded_broker_names_them_as_it_calls_them() -> None:
    for more, argument in (({"id": "\u00e4" * 200}, "id"), ({"meta": {"a": 1 << 70}}, "meta")):
        with pytest.raises(InvalidArgument) as caught:
            encode_message(Message("x", **more), None)
        assert caught.value.argument == argument


def test_time_is_said_in_milliseconds_and_kept_in_seconds(web: World, client: httpx.Client) -> None:
    prepare(client, "timed")
    stamp = datetime(2024, 5, 6, 7, 8, 9, 123_000, UTC)
    item = {"message": 1, "timestamp_ms": int(stamp.timestamp() * 1000), "message_id": "m-1"}
    assert client.post(f"{API}/queues/timed/messages", json=item).status_code == 201
    (props,) = stored(web, "said", "timed")
    found = properties.decode(props)
    own = properties.decode(encode_message(Message(1, id="m-1", time=stamp), None)[0])
    assert (found.timestamp, found.message_id) == (own.timestamp, own.message_id) == (int(stamp.timestamp()), "m-1")

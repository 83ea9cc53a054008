"""The client has the methods of the embedded broker, and topics that are kept or acked by id are alike in both."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rookery import client, embed, errors
from rookery.core.keeping import KEEP_MS
from rookery.embed import Message
from tests.contract.faces import ALL_FACES, Face, faced

ROOT = Path(__file__).resolve().parents[2]
face = pytest.fixture(faced, params=ALL_FACES)

HERE_ONLY = {
    "AsyncBroker": {"clock", "config", "engine", "tick", "update_config"},
    # the core's own object
    "AsyncDelivery": {"lease"},
    # there it is an attribute of each
    "AsyncQueueSubscription": {"queue"},
}
"""What an embedded broker has in a class and a client has not."""

THERE_ONLY = {
    "AsyncBroker": {"consume", "define_queue_and_exchange"},
    # how a client's parts speak with one another
    "AsyncDelivery": {"check_live", "ended"},
    "AsyncQueueSubscription": {"open", "settled"},
}
MORE = {("AsyncQueue", "subscribe"): {"skip_duplicates"}}
"""Parameters that only a client's method has."""


def twin(name: str) -> type:
    if name == "AsyncBroker":
        return client.AsyncClient
    for module in ("deliveries", "producers", "queues", "streams", "subscriptions", "topics", "transactions"):
        found = getattr(import_module(f"rookery.client.aio.{module}"), name, None)
        if isinstance(found, type) and found.__module__.endswith(module):
            return found
    raise AssertionError(f"a client has no {name}")


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def parameters(method: Any) -> dict[str, tuple[Any, Any]]:
    return {p.name: (p.kind, p.default) for p in inspect.signature(method).parameters.values()}


@pytest.mark.parametrize("name", [name for name in embed.__all__ if name.startswith("Async")])
def test_a_client_has_the_methods_of_an_embedded_broker(name: str) -> None:
    ours, theirs = getattr(embed, name), twin(name)
    assert public(ours) - public(theirs) == HERE_ONLY.get(name, set())
    assert public(theirs) - public(ours) == THERE_ONLY.get(name, set())
    for method in public(ours) & public(theirs):
        here, there = getattr(ours, method), getattr(theirs, method)
        assert inspect.iscoroutinefunction(here) == inspect.iscoroutinefunction(there), method
        if inspect.isfunction(here):
            said = parameters(there)
            for more in MORE.get((name, method), ()):
                del said[more]
            assert parameters(here) == said, method


def test_what_is_different_is_written_down() -> None:
    page = (ROOT / "docs" / "client.md").read_text()
    for name in (*HERE_ONLY["AsyncBroker"], *THERE_ONLY["AsyncBroker"], "skip_duplicates"):
        assert name in page, name


# What is kept of topics


def keeper(face: Face, folder: Path) -> Any:
    if face.is_client:
        return face.connect(keep_topics=True)
    return face.make(enable_persistence=True, persistence_path=str(folder / "data"), enable_transactions=True)


async def recovered(broker: Any, topic: str, limit: int = 0) -> list[Any]:
    return [message.data for message in await broker.recover(topic, limit)]


async def received(subscription: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append((await subscription.get(0)).data)
        except TimeoutError:
            return found


@pytest.mark.row("S1-35", "S1-36", "S1-37")
async def test_what_is_kept_is_recovered_and_replayed(face: Face, tmp_path: Path) -> None:
    broker = keeper(face, tmp_path)
    id = await broker.publish("orders", Message({"n": 1}, meta={"who": "me"}, priority=7))
    (message,) = await broker.recover("orders", 100)
    assert (message.id, message.data, message.topic, message.priority) == (id, {"n": 1}, "orders", 7)
    assert message.meta == {"who": "me"}
    await broker.publish_many("t", range(4))
    await broker.publish("t", 4, transaction="tx")
    await broker.commit("tx")
    assert await recovered(broker, "t", 2) == [0, 1]
    one, two, other = [await broker.subscribe(topic) for topic in ("t", "#", "u")]
    assert await broker.replay("t", 3) == 3
    assert await received(one) == await received(two) == [0, 1, 2]
    assert await broker.replay("t") == 5
    assert await received(one) == await received(two) == list(range(5))
    assert await received(other) == []
    assert await recovered(broker, "t") == list(range(5))
    assert await broker.queues() == []
    assert (await broker.recover("nothing"), await broker.replay("nothing")) == ([], 0)
    with pytest.raises(errors.InvalidArgument) as caught:
        await broker.recover("t", -1)
    assert caught.value.argument == "limit"


@pytest.mark.row("S1-36")
async def test_what_is_kept_is_kept_for_a_week(face: Face, tmp_path: Path) -> None:
    broker = keeper(face, tmp_path)
    await broker.publish("t", Message("short", ttl_ms=1_000))
    await broker.publish("t", "forever")
    await face.advance(1_000)
    assert await recovered(broker, "t", 1) == ["forever"]
    await face.advance(KEEP_MS - 1_000)
    assert await recovered(broker, "t") == []


@pytest.mark.row("S1-38")
async def test_who_keeps_nothing_is_told(face: Face) -> None:
    broker = face.make()
    for call in (broker.recover("t"), broker.replay("t")):
        with pytest.raises(errors.PersistenceDisabled):
            await call


@pytest.mark.row("S1-33")
async def test_a_dead_letter_topic_that_is_not_there(face: Face) -> None:
    broker = face.make()
    nothing = {"total_messages": 0, "current_count": 0, "last_message_time": None}
    assert await broker.dead_letter_stats() == {"enabled": False, "topic": "", **nothing}
    for call in (
        broker.publish_dead_letter("t", "x", "broken"),
        broker.drain_dead_letters(),
        broker.replay_dead_letters(),
    ):
        with pytest.raises(errors.DeadLetterNotSupported):
            await call


@pytest.mark.parametrize("face", [name for name in ALL_FACES if name.endswith("client")], indirect=True)
@pytest.mark.row("S1-17", "S1-18")
async def test_who_acks_need_not_be_who_received(face: Face) -> None:
    """Of several clients, one publishes, one receives, and another acks."""
    publisher = face.connect()
    receiver, settler = face.beside(publisher), face.beside(publisher)
    subscription = await receiver.subscribe("t")
    given = await publisher.publish("t", "x", ack="required", ack_timeout_ms=1_000)
    assert (await subscription.get(0)).ack_id == given
    await settler.nack("t", given)
    assert (await subscription.get(0)).ack_id == given
    await settler.ack("t", given)
    await face.advance(1_000)
    assert await received(subscription) == []
    with pytest.raises(errors.MessageNotAcked):
        await publisher.ack("t", given)

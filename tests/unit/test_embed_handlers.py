"""Handlers: what they are called with, what becomes of the message, and when they run."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import threading
from typing import Any

import msgspec
import pytest

import rookery
from rookery import errors
from rookery.embed import Message
from tests.contract.faces import ALL_FACES, Face, counts, faced, in_thread, until

face = pytest.fixture(faced, params=ALL_FACES)


class Order(msgspec.Struct):
    id: int
    items: list[str] = []


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Box:
    """Collects what handlers got; `filled` waits for it, whichever thread fills it."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = threading.Condition()

    def put(self, item: Any) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    async def filled(self, count: int) -> list[Any]:
        def wait() -> None:
            with self._changed:
                assert self._changed.wait_for(lambda: len(self.items) >= count, 10)

        await in_thread(wait)
        return self.items


async def idle(queue: Any) -> dict[str, Any]:
    """The queue's stats once everything in it is settled."""
    await until(lambda: counts(queue, ready=0, leased=0, delayed=0))
    stats: dict[str, Any] = await queue.stats()
    return stats


@pytest.mark.parametrize(
    ("wanted", "published", "expected"),
    [
        (Order, {"id": 7, "items": ["a"]}, Order(7, ["a"])),
        (Order, b'{"id": 8}', Order(8)),
        (Point, {"x": 1, "y": 2.5}, Point(1.0, 2.5)),
        (int, 42, 42),
        (int, "43", 43),
        (bytes, {"a": 1}, b'{"a":1}'),
        (str, "text", "text"),
        (str, b"bytes", "bytes"),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (int | None, 5, 5),
        (Any, "any", "any"),
        (None, {"plain": True}, {"plain": True}),
    ],
)
async def test_a_handler_gets_the_type_it_asks_for(face: Face, wanted: Any, published: Any, expected: Any) -> None:
    broker = face.make()
    box = Box()

    def handle(argument: Any) -> None:
        box.put(argument)

    if wanted is None:
        del handle.__annotations__["argument"]
    else:
        handle.__annotations__["argument"] = wanted
    assert broker.handler("jobs")(handle) is handle
    async with broker:
        await (await broker.queue("jobs")).publish(published)
        (got,) = await box.filled(1)
        assert got == expected
        assert type(got) is type(expected)
        assert (await idle(await broker.queue("jobs")))["acked"] == 1


async def test_a_handler_may_ask_for_the_message_or_the_delivery(face: Face) -> None:
    broker = face.make()
    box = Box()

    @broker.handler("messages")
    def on_message(message: Message) -> None:
        box.put((message.id, message.data))

    def on_delivery(delivery: Any) -> Any:
        box.put(delivery)
        return delivery.release() if delivery.attempt == 1 and not delivery.redelivered else None

    on_delivery.__annotations__["delivery"] = face.delivery
    broker.handler("deliveries")(on_delivery)
    async with broker:
        await (await broker.queue("messages")).publish(Message("x", id="mine"))
        assert (await box.filled(1))[0] == ("mine", "x")
        deliveries = await broker.queue("deliveries")
        await deliveries.publish("y")
        first, second = (await box.filled(3))[1:]
        # it settled the first itself; the second, which it only looked at, is acked for it
        assert (first.attempt, second.attempt, second.redelivered) == (1, 1, True)
        stats = await idle(deliveries)
        assert (stats["released"], stats["acked"]) == (1, 1)


async def test_types_local_to_a_function_are_found(face: Face) -> None:
    class Local(msgspec.Struct):
        n: int

    broker = face.make()
    box = Box()

    @broker.handler("jobs")
    def handle(local: Local) -> None:
        box.put(local)

    async with broker:
        await (await broker.queue("jobs")).publish({"n": 1})
        assert await box.filled(1) == [Local(1)]


async def test_anything_callable_with_one_argument_is_a_handler(face: Face) -> None:
    broker = face.make()
    box = Box()

    class Worker:
        def __call__(self, n: int) -> None:
            box.put(("object", n))

        def method(self, n: int, more: str = "") -> None:
            box.put(("method", n))

    def both(kind: str, n: int) -> None:
        box.put((kind, n))

    broker.handler("a")(Worker())
    broker.handler("b")(Worker().method)
    broker.handler("c")(functools.partial(both, "partial"))
    broker.handler("d")(box.put)
    async with broker:
        for n, name in enumerate("abcd"):
            await (await broker.queue(name)).publish(n)
        got = await box.filled(4)
        assert sorted(got, key=str) == [("method", 1), ("object", 0), ("partial", 2), 3]


@pytest.mark.parametrize("unfit", [{"id": "seven"}, b"no json", "text"])
async def test_a_body_of_another_type_is_rejected(face: Face, unfit: Any) -> None:
    broker = face.make()

    @broker.handler("jobs", dead_letter_queue="dead")
    def handle(order: Order) -> None:
        raise AssertionError("not for me")

    async with broker:
        jobs = await broker.queue("jobs")
        await jobs.publish(unfit)
        stats = await idle(jobs)
        assert (stats["rejected"], stats["delivered"]) == (1, 1)
        (letter,) = await (await broker.queue("dead")).peek()
        assert "Error: " in str(letter.reason)


async def test_raising_means_retry_and_in_the_end_a_dead_letter(face: Face) -> None:
    broker = face.make()
    box = Box()

    @broker.handler("jobs", max_attempts=3, dead_letter_queue="dead")
    def handle(n: int) -> None:
        box.put(n)
        raise LookupError(f"no {n}")

    async with broker:
        jobs = await broker.queue("jobs")
        await jobs.publish(7)
        assert await box.filled(3) == [7, 7, 7]
        await idle(jobs)
        (letter,) = await (await broker.queue("dead")).peek()
        assert letter.reason == "LookupError: no 7"
        assert letter.deaths[0]["attempts"] == 3
        assert (await broker.health())["metrics"]["last_panic"] == "LookupError: no 7"


async def test_a_retry_waits_for_the_backoff(face: Face) -> None:
    broker = face.make()
    box = Box()

    @broker.handler("jobs", backoff_base_ms=1_000)
    def handle(n: int) -> None:
        box.put(n)
        if len(box.items) == 1:
            raise ValueError

    async with broker:
        jobs = await broker.queue("jobs")
        await jobs.publish(1)
        await box.filled(1)
        await until(lambda: counts(jobs, delayed=1))
        await face.advance(1_000)
        await box.filled(2)
        assert (await idle(jobs))["retried"] == 1


async def test_reject_means_a_dead_letter_at_once(face: Face) -> None:
    broker = face.make()

    @broker.handler("jobs", dead_letter_queue="dead")
    def handle(n: int) -> None:
        raise rookery.Reject("no such customer")

    async with broker:
        jobs = await broker.queue("jobs")
        await jobs.publish(7)
        assert (await idle(jobs))["delivered"] == 1
        (letter,) = await (await broker.queue("dead")).peek()
        assert letter.reason == "no such customer"


async def test_a_result_that_cannot_be_sent_is_a_failure_and_the_handler_goes_on(face: Face) -> None:
    broker = face.make()

    @broker.handler("ask", max_attempts=1)
    def handle(n: int) -> Any:
        return object() if n == 0 else n

    async with broker:
        with pytest.raises(errors.ReplyTimeout):
            await broker.request("ask", 0, timeout_ms=50)
        assert await broker.request("ask", 1) == 1
        stats = await (await broker.queue("ask")).stats()
        assert stats["dead" if face.is_client else "dropped"] == 1


async def test_concurrency_is_how_many_run_at_once(face: Face) -> None:
    broker = face.make()
    together = threading.Barrier(3)
    meeting = asyncio.Barrier(3)
    box = Box()

    if face.is_async:

        @broker.handler("jobs", concurrency=3)
        async def handle(n: int) -> None:
            async with asyncio.timeout(10):
                await meeting.wait()
            box.put(n)
    else:

        @broker.handler("jobs", concurrency=3)
        def handle_in_thread(n: int) -> None:
            together.wait(10)
            box.put(n)

    async with broker:
        jobs = await broker.queue("jobs")
        assert (await jobs.stats())["consumers"] == 3
        await jobs.publish_many(range(6))
        assert sorted(await box.filled(6)) == list(range(6))


async def test_a_handler_registered_while_the_broker_runs_starts_at_once(face: Face) -> None:
    broker = face.make()
    box = Box()
    async with broker:
        jobs = await broker.queue("jobs")
        await jobs.publish(1)

        @broker.handler("jobs")
        def handle(n: int) -> None:
            box.put(n)

        assert await box.filled(1) == [1]
        if not face.is_client:
            with pytest.raises(errors.Conflict):
                broker.handler("jobs", max_attempts=9)(handle)
        await broker.start()
        assert (await jobs.stats())["consumers"] == 1


async def test_handlers_start_with_the_broker_and_only_once(face: Face) -> None:
    broker = face.make()
    box = Box()

    @broker.handler("jobs")
    def handle(n: int) -> None:
        box.put(n)

    jobs = await broker.queue("jobs")
    await jobs.publish(1)
    assert (await jobs.stats())["consumers"] == 0
    await broker.start()
    await broker.start()
    assert (await jobs.stats())["consumers"] == 1
    assert await box.filled(1) == [1]


async def test_closing_lets_a_handler_finish_what_it_holds(face: Face) -> None:
    broker = face.make()
    began, go_on = threading.Event(), threading.Event()
    results = []

    if face.is_async:

        @broker.handler("jobs")
        async def handle(delivery: rookery.AsyncDelivery) -> None:
            began.set()
            await in_thread(go_on.wait, 10)
            await delivery.ack()
            results.append("acked")
    else:

        @broker.handler("jobs")
        def handle_in_thread(delivery: rookery.Delivery) -> None:
            began.set()
            go_on.wait(10)
            delivery.ack()
            results.append("acked")

    await broker.start()
    jobs = await broker.queue("jobs")
    await jobs.publish_many([1, 2])
    await in_thread(began.wait, 10)
    closing = asyncio.create_task(broker.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert results == ["acked"]
    with pytest.raises(errors.BrokerClosed):
        await jobs.stats()


async def test_closing_waits_no_longer_than_its_grace(face: Face) -> None:
    broker = face.make()
    began, stuck = threading.Event(), threading.Event()
    cancelled = []

    if face.is_async:

        @broker.handler("jobs")
        async def handle(n: int) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(n)
                raise
    else:

        @broker.handler("jobs")
        def handle_in_thread(n: int) -> None:
            began.set()
            stuck.wait(10)

    await broker.start()
    await (await broker.queue("jobs")).publish(1)
    await in_thread(began.wait, 10)
    await broker.close(grace_ms=1)
    with pytest.raises(errors.BrokerClosed):
        await broker.queue("jobs")
    stuck.set()
    assert cancelled == ([1] if face.is_async else [])


async def test_a_handler_may_close_the_broker(face: Face) -> None:
    broker = face.make()
    closed = threading.Event()

    if face.is_async:

        @broker.handler("jobs")
        async def handle(n: int) -> None:
            await broker.close()
            closed.set()
    else:

        @broker.handler("jobs")
        def handle_in_thread(n: int) -> None:
            broker.inner.close()
            closed.set()

    await broker.start()
    # a client may be closed before it has heard that its publish arrived
    with contextlib.suppress(errors.BrokerClosed):
        await (await broker.queue("jobs")).publish(1)
    assert await in_thread(closed.wait, 30)


async def test_a_coroutine_that_cancels_itself_has_failed() -> None:
    async with rookery.AsyncBroker() as broker:
        box = Box()

        @broker.handler("jobs")
        async def handle(n: int) -> None:
            box.put(n)
            if len(box.items) == 1:
                raise asyncio.CancelledError

        await (await broker.queue("jobs")).publish(1)
        assert await box.filled(2) == [1, 1]


async def test_a_plain_function_may_return_what_is_to_be_awaited() -> None:
    async with rookery.AsyncBroker() as broker:

        async def later(n: int) -> int:
            return n + 1

        @broker.handler("jobs")
        def handle(n: int) -> Any:
            return later(n)

        assert await broker.request("jobs", 1) == 2


async def test_a_cancelled_handler_gives_its_message_back() -> None:
    broker = rookery.AsyncBroker(clock=rookery.ManualClock())
    began = asyncio.Event()

    @broker.handler("jobs")
    async def handle(n: int) -> None:
        began.set()
        await asyncio.Event().wait()

    await broker.start()
    jobs = await broker.queue("jobs")
    await jobs.publish(1)
    await began.wait()
    (task,) = broker.engine._tasks
    task.cancel()
    await asyncio.wait([task])
    assert (await jobs.stats())["released"] == 1
    await broker.close()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": 5}, "queue"),
        ({"queue": "q", "concurrency": 0}, "concurrency"),
        ({"queue": "q", "concurrency": "two"}, "concurrency"),
        ({"queue": "q", "unheard_of": 1}, "unheard_of"),
        ({"queue": "q", "max_attempts": -1}, "max_attempts"),
    ],
)
async def test_a_handler_s_arguments_are_checked_when_it_is_registered(
    face: Face, arguments: dict[str, Any], argument: str
) -> None:
    broker = face.make()
    with pytest.raises(errors.InvalidArgument) as refused:
        broker.handler(**arguments)
    assert refused.value.argument == argument


async def test_a_handler_s_function_is_checked_when_it_is_registered(face: Face) -> None:
    broker = face.make()

    def none() -> None: ...

    def two(a: int, b: int) -> None: ...

    def unknown(a: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def other_face(a: Any) -> None: ...

    other_face.__annotations__["a"] = rookery.Delivery if face.is_async else rookery.AsyncDelivery

    def unfit(a: Any) -> None: ...

    unfit.__annotations__["a"] = 5
    for function in (none, two, unknown, other_face, unfit, "no function"):
        with pytest.raises(errors.InvalidType) as refused:
            broker.handler("jobs")(function)
        assert refused.value.argument == "handler"
    if not face.is_async:

        async def coroutine(n: int) -> None: ...

        class Caller:
            async def __call__(self, n: int) -> None: ...

        for asynchronous in (coroutine, Caller()):
            with pytest.raises(errors.InvalidType, match="AsyncBroker"):
                broker.handler("jobs")(asynchronous)
    await broker.start()
    assert await broker.queues() == []


# Frameworks


class Application:
    """As much of a web framework as starts and stops with `lifespan(app)`."""

    def __init__(self, lifespan: Any) -> None:
        self._lifespan = lifespan

    async def serve(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        async with self._lifespan(self):
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.complete"})


async def test_the_broker_lives_as_long_as_the_application() -> None:
    broker = rookery.AsyncBroker()

    @broker.handler("double")
    async def double(n: int) -> int:
        return 2 * n

    to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    serving = asyncio.create_task(Application(broker.lifespan).serve(to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert await from_app.get() == {"type": "lifespan.startup.complete"}
    assert await broker.request("double", 21) == 42
    await to_app.put({"type": "lifespan.shutdown"})
    assert await from_app.get() == {"type": "lifespan.shutdown.complete"}
    await serving
    with pytest.raises(errors.BrokerClosed):
        await broker.request("double", 21)

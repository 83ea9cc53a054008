"""The faces of the broker API under one roof, so that a test is written once: as for the async face.

A face that is not async is wrapped: each call that would be awaited runs in a thread of its own. `FACES` are those of
the embedded broker, `ALL_FACES` also the client's, which speaks to a server on a real socket: there each broker of a
test is a tenant of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import itertools
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery import client, embed
from rookery.clock import ManualClock
from tests.wire.http_world import World

FACES = ("async", "blocking")
ALL_FACES = (*FACES, "async client", "blocking client")

embedded_only = pytest.mark.parametrize("face", FACES, indirect=True)
"""For a test, in a module of all faces, of what a client cannot do."""

ALWAYS_ON = {"enable_ack_support": True, "enable_transactions": True}
"""Settings of an embedded broker that every client has."""

NOT_TRIED_AGAIN = client.RetryPolicy(tries=0)
_tenants = itertools.count()

_ASYNC_OF: dict[type, type] = {
    embed.Broker: embed.AsyncBroker,
    embed.Queue: embed.AsyncQueue,
    embed.Exchange: embed.AsyncExchange,
    embed.Delivery: embed.AsyncDelivery,
    embed.QueueSubscription: embed.AsyncQueueSubscription,
    embed.TopicSubscription: embed.AsyncTopicSubscription,
    embed.Transaction: embed.AsyncTransaction,
    embed.Stream: embed.AsyncStream,
    embed.StreamReader: embed.AsyncStreamReader,
    embed.Group: embed.AsyncGroup,
    embed.GroupMember: embed.AsyncGroupMember,
    embed.Producer: embed.AsyncProducer,
    embed.Cuts: embed.AsyncCuts,
}
for _module in (
    "admin",
    "client",
    "consuming",
    "deliveries",
    "producers",
    "queues",
    "streams",
    "subscriptions",
    "topics",
    "transactions",
):
    _theirs = vars(import_module(f"rookery.client.aio.{_module}"))
    for _name, _kind in vars(import_module(f"rookery.client.blocking.{_module}")).items():
        if isinstance(_kind, type) and f"Async{_name}" in _theirs and _kind not in _ASYNC_OF:
            _ASYNC_OF[_kind] = _theirs[f"Async{_name}"]


class Served:
    """A server for all tests of a process, in memory and on a clock of the tests."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self._folder.name), self.clock, max_retries="3", backoff_base_ms="0")
        atexit.register(self.close)

    def url(self) -> str:
        """With the key of a new tenant."""
        key = self.world.key(f"tenant-{next(_tenants)}")
        return f"http://{key}@{self.world.address}"

    def close(self) -> None:
        self.world.close()
        self._folder.cleanup()


@lru_cache(maxsize=1)
def served() -> Served:
    return Served()


class Face:
    """One face of the API, and the clock that its brokers run on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_client = name.endswith("client")
        self.is_async = name.startswith("async")
        self.clock = served().clock if self.is_client else ManualClock()
        self.delivery: Any = embed.AsyncDelivery if self.is_async else embed.Delivery
        self._made: list[Any] = []
        self._urls: dict[int, str] = {}

    def make(self, config: rookery.Config | None = None, **settings: Any) -> Any:
        """A broker in the async way, closed at the end of the test."""
        if self.is_client:
            if config is not None or settings.items() - ALWAYS_ON.items():
                pytest.skip("these are settings of an embedded broker")
            return self.connect()
        settings.setdefault("clock", self.clock)
        settings.setdefault("secret", b"testing")
        made: Any
        if self.name == "async":
            made = embed.AsyncBroker(config, **settings)
        else:
            made = wrapped(embed.Broker(config, **settings))
        self._made.append(made)
        return made

    def connect(self, url: str = "", **settings: Any) -> Any:
        """A client, of a tenant of its own unless a URL says whose."""
        url = url or served().url()
        made: Any
        if self.name == "async client":
            made = client.AsyncClient(url, retry=NOT_TRIED_AGAIN, **settings)
        else:
            made = wrapped(client.Client(url, retry=NOT_TRIED_AGAIN, **settings))
        self._made.append(made)
        self._urls[id(made)] = url
        return made

    def beside(self, other: Any) -> Any:
        """Another client of the same tenant."""
        return self.connect(self._urls[id(other)])

    async def advance(self, ms: int) -> None:
        """Let time pass, and let the brokers notice."""
        self.clock.advance(ms)
        if self.is_client:
            served().world.inside(lambda server: None)
            return
        for broker in self._made:
            await broker.tick()

    async def close(self) -> None:
        for broker in self._made:
            await broker.close()


async def faced(request: pytest.FixtureRequest) -> AsyncIterator[Face]:
    """Use as `face = pytest.fixture(faced, params=FACES)`."""
    face = Face(request.param)
    yield face
    await face.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Let others run until it holds."""
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0)


async def counts(queue: Any, **wanted: int) -> bool:
    """Whether a queue's stats say so: `await until(lambda: counts(queue, ready=1))`."""
    stats = await queue.stats()
    return all(stats[name] == value for name, value in wanted.items())


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a thread of its own, so that any number of them may wait."""
    loop = asyncio.get_running_loop()
    result = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = function(*arguments, **named)
        except BaseException as error:  # noqa: BLE001 (it is raised again where it is waited for)
            failure = error
        loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, daemon=True).start()
    return await result


class Wrapped:
    """A handle of the blocking face, to be used like its async twin."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if inspect.iscoroutinefunction(getattr(_ASYNC_OF[type(self.inner)], name, None)):

            async def waiting(*arguments: Any, **named: Any) -> Any:
                named = {key: unwrapped(item) for key, item in named.items()}
                return wrapped(await in_thread(value, *map(unwrapped, arguments), **named))

            return waiting
        if inspect.ismethod(value):
            return lambda *arguments, **named: wrapped(value(*map(unwrapped, arguments), **named))
        return wrapped(value)

    def __repr__(self) -> str:
        return repr(self.inner)

    async def __aenter__(self) -> Any:
        return wrapped(await in_thread(self.inner.__enter__))

    async def __aexit__(self, *exc: object) -> Any:
        return await in_thread(self.inner.__exit__, *exc)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        end = object()
        item = await in_thread(next, self.inner, end)
        if item is end:
            raise StopAsyncIteration
        return wrapped(item)


def wrapped(value: Any) -> Any:
    if type(value) in _ASYNC_OF:
        return Wrapped(value)
    if type(value) is list:
        return [wrapped(item) for item in value]
    return value


def unwrapped(value: Any) -> Any:
    if isinstance(value, Wrapped):
        return value.inner
    if type(value) is list:
        return [unwrapped(item) for item in value]
    return value

"""Waiting and working beside others, once for threads and once for asyncio: signals, and what runs until it returns.

Engines of the embedded broker and the client's connections are workers: they call users' functions, and run handlers.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rookery.errors import InvalidType, RecoveredPanic

WAIT_MAX_MS: Final = 1_000_000_000_000
"""The longest single wait that every platform can express, about 31 years."""


class Signal:
    """Wakes every thread that waits on it.

    Several may wait on one signal as long as it is cleared within a turn, and only when there is nothing to be had.
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def wait(self, timeout_ms: float | None) -> bool:
        """Whether it was set in time."""
        return self._event.wait(None if timeout_ms is None else min(max(0.0, timeout_ms), WAIT_MAX_MS) / 1000)


class Workers:
    """Threads that run until they return."""

    def __init__(self) -> None:
        self._workers: list[threading.Thread] = []

    def check_handler(self, function: Callable[..., object]) -> None:
        """Refuse what `call` cannot call."""
        if is_coroutine_function(function):
            raise InvalidType("a coroutine function needs an AsyncBroker", argument="handler")

    def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a user's function."""
        return function(*arguments)

    def spawn(self, work: Callable[..., None], *arguments: object) -> None:
        """Run `work` in a thread of its own until it returns."""
        worker = threading.Thread(target=work, args=arguments, name="rookery-worker", daemon=True)
        self._workers = [w for w in self._workers if w.is_alive()]
        worker.start()
        self._workers.append(worker)

    def join(self, grace_ms: int) -> None:
        """Wait for all that was spawned; what has not ended in time is left to itself."""
        until = time.monotonic() + grace_ms / 1000
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join(max(0.0, until - time.monotonic()))


class AsyncSignal:
    """Wakes every task that waits on it."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[bool]] = []

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)
        self._waiters.clear()

    def clear(self) -> None:
        self._set = False

    async def wait(self, timeout_ms: float | None) -> bool:
        """Whether it was set in time."""
        if self._set:
            return True
        loop = get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        timer = None
        if timeout_ms is not None:
            timer = loop.call_later(min(max(0.0, timeout_ms), WAIT_MAX_MS) / 1000, _give_up, waiter)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            # whoever was woken is off the list; to look for him there would cost as much as there are others
            if (waiter.cancelled() or not waiter.done() or not waiter.result()) and waiter in self._waiters:
                self._waiters.remove(waiter)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class AsyncWorkers:
    """Tasks that run until they return."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def check_handler(self, function: Callable[..., object]) -> None:
        """Plain functions and coroutine functions both will do; a plain one holds up the loop while it runs."""

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a user's function, and wait for it when it is a coroutine function."""
        result = function(*arguments)
        if not inspect.isawaitable(result):
            return result
        try:
            return await result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RecoveredPanic("it cancelled itself") from None

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Run `work` in a task of its own until it returns."""
        task = get_running_loop().create_task(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self, grace_ms: int) -> None:
        """Wait for all that was spawned; what has not ended in time is cancelled."""
        current = asyncio.current_task()
        loop = get_running_loop()
        pending = {task for task in self._tasks if task is not current and task.get_loop() is loop}
        if pending:
            _, late = await asyncio.wait(pending, timeout=grace_ms / 1000)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)


def is_coroutine_function(function: object) -> bool:
    """Whether calling it gives a coroutine: a coroutine function, or an object that is called by one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

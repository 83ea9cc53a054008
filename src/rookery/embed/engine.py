"""What drives an embedded shard: the time, the timer, and waking those who wait, once for asyncio and once for threads.

`with engine:` is one turn: time is read and passed in, the caller works on `engine.shard`, and at the end what became
deliverable is delivered, whoever waits for it is woken, and the timer is set for what is due next. The threaded engine
holds its lock meanwhile, so turns of different threads do not mix; the asyncio engine belongs to one loop and needs
none. Listeners attached to a broker use the same turn through `begin` and `end`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, cast

from rookery.clock import Clock, ManualClock
from rookery.core.shard import Shard
from rookery.errors import InvalidArgument, NotInitialized
from rookery.model import NEVER

TIMER_MAX_MS: Final = 1_000
"""The longest sleep while something is due later: a jump of the wall clock is noticed within this time."""


class _Forks:
    """Counts the forks between the first process and this one."""

    count = 0


def _forked() -> None:
    _Forks.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Engine:
    """The turn, without a timer."""

    def __init__(self, clock: Clock, secret: bytes) -> None:
        self.clock = clock
        self.shard = Shard(secret, 1)
        self.closed = False
        self._forks = _Forks.count
        self._ticking = not isinstance(clock, ManualClock)
        self._armed_ms: int = NEVER

    def begin(self) -> None:
        """Start a turn: pass the time in and do what is due."""
        if self._forks != _Forks.count:
            raise NotInitialized("this broker belongs to the process that this one was forked from")
        self.shard.turn(self.clock.wall_ms(), self.clock.mono_ms())

    def end(self) -> None:
        """End a turn: deliver, wake whoever waits, set the timer."""
        shard = self.shard
        shard.flush()
        touched = shard.touched
        if touched:
            for mailbox in touched:
                signal = mailbox.on_event
                if signal is not None:
                    cast(Signal, signal).set()
            touched.clear()
        if self._ticking:
            wait = shard.next_due_ms()
            if wait != NEVER:
                due = shard.mono_ms + min(wait, TIMER_MAX_MS)
                if due < self._armed_ms:
                    self._armed_ms = due
                    self._arm(due - shard.mono_ms)

    def _arm(self, wait_ms: int) -> None:
        raise NotImplementedError


class Signal:
    """Wakes every thread that waits on it. Clear it, look, and wait only if there was nothing to see."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def wait(self, timeout_ms: float | None) -> bool:
        return self._event.wait(None if timeout_ms is None else max(0.0, timeout_ms) / 1000)


class Engine(_Engine):
    """The engine of the blocking face: any thread may take a turn, a thread of its own keeps the time."""

    signal = Signal

    def __init__(self, clock: Clock, secret: bytes) -> None:
        super().__init__(clock, secret)
        self._lock = threading.RLock()
        self._timer = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._workers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            self.begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.end()
        finally:
            self._lock.release()

    def _arm(self, wait_ms: int) -> None:
        if self._thread is None and not self.closed:
            self._thread = threading.Thread(target=self._keep_time, name="rookery-timer", daemon=True)
            self._thread.start()
        self._timer.notify()

    def _keep_time(self) -> None:
        with self._lock:
            while not self.closed:
                wait_ms = self._armed_ms - self.clock.mono_ms()
                if wait_ms > 0:
                    self._timer.wait(min(wait_ms, TIMER_MAX_MS) / 1000)
                else:
                    self._armed_ms = NEVER
                    self.begin()
                    self.end()

    def start(self) -> None:
        """Nothing to do: threads start when they are needed."""

    def spawn(self, work: Callable[..., None], *arguments: object) -> None:
        """Run `work` in a thread of its own until it returns."""
        worker = threading.Thread(target=work, args=arguments, name="rookery-handler", daemon=True)
        self._workers.append(worker)
        worker.start()

    def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a user's function."""
        result = function(*arguments)
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidArgument("a coroutine function needs an AsyncBroker", argument="handler")
        return result

    def stop(self) -> None:
        """End the timer and wait for the workers, which have been told."""
        with self._lock:
            self.closed = True
            self._timer.notify()
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join()


class AsyncSignal:
    """Wakes every task that waits on it."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def clear(self) -> None:
        self._set = False

    async def wait(self, timeout_ms: float | None) -> bool:
        if self._set:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, None if timeout_ms is None else max(0.0, timeout_ms) / 1000)
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True


class AsyncEngine(_Engine):
    """The engine of the async face: everything happens in one event loop."""

    signal = AsyncSignal

    def __init__(self, clock: Clock, secret: bytes) -> None:
        super().__init__(clock, secret)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def _arm(self, wait_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(max(0, wait_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        self._armed_ms = NEVER
        if not self.closed:
            self.begin()
            self.end()

    async def start(self) -> None:
        """Belong to the running loop."""
        self._loop = asyncio.get_running_loop()

    def spawn(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run `work` in a task of its own until it returns."""
        task = asyncio.ensure_future(work(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a user's function, and wait for it when it is a coroutine function."""
        result = function(*arguments)
        if inspect.isawaitable(result):
            return await result
        return result

    async def stop(self) -> None:
        """End the timer and wait for the tasks, which have been told."""
        self.closed = True
        if self._handle is not None:
            self._handle.cancel()
        current = asyncio.current_task()
        pending = [task for task in self._tasks if task is not current]
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

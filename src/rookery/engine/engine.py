"""What drives a shard: the time, the timer, and waking those who wait, once for asyncio and once for threads.

`with engine:` is one turn: time is read and passed in, the caller works on `engine.shard`, and at the end what became
deliverable is delivered, whoever waits for it is woken, and the timer is set for what is due next. The threaded engine
holds its lock meanwhile, so turns of different threads do not mix; the asyncio engine belongs to one loop and needs
none. Listeners attached to a broker use the same turn through `begin` and `end`, flush the shard in between by
themselves, and are told when the journal has answered (`attach`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar, cast

from rookery.clock import Clock, ManualClock
from rookery.core import ranges
from rookery.core.access import Access
from rookery.core.shard import Shard
from rookery.core.stream import Partition
from rookery.engine.workers import AsyncWorkers, Signal, Workers
from rookery.errors import (
    NotInitialized,
    OffsetOutOfRange,
    RookeryError,
    StoreDamaged,
    StoreError,
)
from rookery.format.model import NEVER
from rookery.sealed.history import History, Reading
from rookery.store.journal import FREE_BYTES_MIN, Journal
from rookery.store.medium import Medium

Result = TypeVar("Result")

READING_MS: Final = 3_600_000
"""The longest that the files of one read are kept."""

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
        self.journal: Journal | None = None
        self.history: History | None = None
        # of listeners: who takes turns for what the journal hands over, and who is told that it has answered
        self._take_turn: Callable[[Callable[[], None]], None] | None = None
        self._told: list[Callable[[], None]] = []
        self.shard.turn(clock.wall_ms(), clock.mono_ms())

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that the engine belongs to."""
        return self._forks != _Forks.count

    def begin(self) -> None:
        """Start a turn: pass the time in and do what is due."""
        if self._forks != _Forks.count:
            raise NotInitialized("this broker belongs to the process that this one was forked from")
        clock = self.clock
        self.shard.turn(clock.wall_ms(), clock.mono_ms())

    def flush(self, *exc: object) -> None:
        """End a turn of the engine's own: deliver, then as `end`."""
        self.shard.flush()
        self.end()

    def end(self) -> None:
        """End a turn whose deliveries were made: wake whoever waits, hand a batch to the journal, set the timer."""
        shard = self.shard
        touched = shard.touched
        if touched:
            for mailbox in touched:
                signal = mailbox.on_event
                if signal is not None:
                    cast(Signal, signal).set()
            touched.clear()
        wait = shard.next_due_ms() if self._ticking else NEVER
        if self.journal is not None:
            self.journal.retry()
            self.journal.pump()
            lazy = self.journal.next_due_ms()
            if lazy is not None:
                wait = min(wait, lazy)
            if self.history is not None and (shard.partitions or shard.condemned):
                wait = min(wait, self.history.tick())
        # what is far off is not armed for until it is near, so a timer that is set never comes later than that
        if shard.mono_ms + wait < self._armed_ms and self._ticking:
            wait = min(wait, TIMER_MAX_MS)
            self._armed_ms = shard.mono_ms + wait
            self._arm(wait)

    def _arm(self, wait_ms: int) -> None:
        raise NotImplementedError

    def open_journal(
        self,
        medium: Medium,
        directory: Path,
        *,
        sync: str,
        page_bytes: int,
        compression: str,
        compress_min_bytes: int,
        free_bytes_min: int = FREE_BYTES_MIN,
        access: Access | None = None,
    ) -> None:
        """Keep what is durable on the medium, and begin with what is there.

        Whatever the medium is, `directory` is on this machine: sealed streams and spilled messages are kept in it.
        """
        self.shard.page_bytes = page_bytes or NEVER
        journal = Journal(
            self.shard,
            medium,
            post=self._post,
            access=access,
            sync=sync,
            compression=compression,
            compress_min=compress_min_bytes,
            on_progress=self._progressed,
            spill_directory=directory,
            free_bytes_min=free_bytes_min,
        )
        try:
            journal.open()
        except StoreDamaged as error:
            medium.close()
            advice = f"; {medium.repair_advice}" if medium.repair_advice else ""
            raise StoreDamaged(f"{error}{advice}", file=error.file, offset=error.offset) from error
        except BaseException:
            medium.close()
            raise
        self.journal = journal
        self.history = History(self.shard, journal, directory / "streams", self._post)
        try:
            self.history.open()
            self.shard.read_sealed = self._read_sealed
        except BaseException:
            journal.close()
            self.journal = None
            raise

    def _read_sealed(self, path: str, start: int, stop: int, arrived: Callable[[Sequence[bytes]], None]) -> None:
        """Read sealed records in a thread, and hand them over in a turn."""
        history = self.sealing()

        def work() -> None:
            try:
                records = history.records(path, start, stop)
            except RookeryError:
                # let go of meanwhile: the reader goes on behind it
                records = []
            self._post(lambda: arrived(records))

        threading.Thread(target=work, name="rookery-history", daemon=True).start()

    def reading(
        self, partition: Partition, start: int, stop: int, columns: Sequence[str] = (), routing_key: str = ""
    ) -> Reading:
        """A range that can be read in any thread until `done_reading` (within a turn)."""
        pieces = ranges.plan(partition, start, stop)
        history = self.history
        if history is None:
            return Reading(partition, pieces, self._record_at, Path(), columns, routing_key)
        reading = Reading(partition, pieces, history.read, history.root, columns, routing_key)
        history.journal.hold()
        history.lease(reading.plan, reading.paths(), READING_MS)
        return reading

    def done_reading(self, reading: Reading) -> None:
        """The end of a `reading`."""
        if self.history is not None and self.journal is not None:
            self.history.release(reading.plan)
            self.history.journal.release()

    def _record_at(self, place: int, size: int) -> bytes:
        """A record of a stream that is kept in memory; past the shard's window, which belongs to the turn."""
        pager = self.shard.pager
        assert pager is not None
        try:
            return pager.read(place)
        except KeyError:
            raise OffsetOutOfRange("a record was let go of while it was read", argument="offset") from None

    def sealing(self) -> History:
        """What seals streams; StoreError where nothing does."""
        if self.history is None:
            raise StoreError("a broker in memory has no files to seal streams into")
        return self.history

    def _post(self, work: Callable[[], None]) -> None:
        """Run what the medium's thread hands over, within a turn of our own."""
        raise NotImplementedError

    def _progressed(self) -> None:
        """The journal has answered, or publishes are refused or taken again; within a turn."""
        for told in self._told:
            told()

    def attach(self, run: Callable[[Callable[[], None]], None], progressed: Callable[[], None]) -> None:
        """Tell listeners when the journal has answered, and let them take the turns for its answers, where these come
        in their own thread: so what waits for an answer goes out in the turn that learns of it.
        """
        if self._take_turn is None:
            self._take_turn = run
        self._told.append(progressed)

    def detach(self, progressed: Callable[[], None]) -> None:
        """The listeners are gone; twice is harmless."""
        if progressed in self._told:
            self._told.remove(progressed)
            self._take_turn = None


class Engine(_Engine, Workers):
    """The engine of the blocking face: any thread may take a turn, a thread of its own keeps the time."""

    def __init__(self, clock: Clock, secret: bytes) -> None:
        _Engine.__init__(self, clock, secret)
        Workers.__init__(self)
        self._lock = threading.RLock()
        self._timer = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._progress = threading.Condition(self._lock)
        self.change = Change(self)

    def __enter__(self) -> Self:
        # asked before the lock: in a forked child, a thread that is not there may hold it
        if self._forks != _Forks.count:
            raise NotInitialized("this broker belongs to the process that this one was forked from")
        self._lock.acquire()
        try:
            self.begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.flush()
        finally:
            self._lock.release()

    def leave(self) -> None:
        """As `end`, and let other threads in."""
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
                if self._armed_ms == NEVER:
                    self._timer.wait()
                    continue
                wait_ms = self._armed_ms - self.clock.mono_ms()
                if wait_ms > 0:
                    self._timer.wait(wait_ms / 1000)
                else:
                    self._armed_ms = NEVER
                    self.begin()
                    self.flush()

    def _post(self, work: Callable[[], None]) -> None:
        with self:
            # an answer that comes while the journal is being closed is for nobody
            if self.journal is not None:
                work()

    def _progressed(self) -> None:
        self._progress.notify_all()
        super()._progressed()

    def lasting(self) -> None:
        """Wait until everything that happened so far is on disk, as far as the sync policy promises."""
        log = self.shard.log
        with self._lock:
            batch = log.horizon()
            if log.written < batch:
                with self:
                    log.urgent = True
            while log.written < batch:
                if log.failure is not None:
                    raise log.failure
                self._progress.wait()

    def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Do something slow: whoever calls is in a thread of its own already."""
        return function(*arguments)

    def start(self) -> None:
        """Nothing to do: threads start when they are needed."""

    def stop(self) -> None:
        """Write what is not written yet, and end the timer."""
        journal = self.journal
        if self.history is not None:
            self.history.close()
        if journal is not None:
            with self:
                self.shard.log.urgent = True
            try:
                self.lasting()
            finally:
                with self._lock:
                    self.journal = None
                journal.close()
        with self._lock:
            self.closed = True
            self.shard.let_go()
            self._timer.notify()


class Change:
    """`with engine.change:` is a turn whose effects are on disk when it has been left."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Engine:
        return self._engine.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        engine = self._engine
        if engine.journal is None:
            engine.__exit__()
            return
        engine.shard.log.urgent = True
        engine.__exit__()
        if kind is None:
            engine.lasting()


class AsyncEngine(_Engine, AsyncWorkers):
    """The engine of the async face: everything happens in one event loop, the first that uses it."""

    def __init__(self, clock: Clock, secret: bytes) -> None:
        _Engine.__init__(self, clock, secret)
        AsyncWorkers.__init__(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._lasting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.change = AsyncChange(self)

    def begin(self) -> None:
        loop = get_running_loop()
        if loop is not self._loop:
            self._adopt(loop)
        # the rest written out, as below: there is a turn for every call
        if self._forks != _Forks.count:
            super().begin()
        clock = self.clock
        self.shard.turn(clock.wall_ms(), clock.mono_ms())

    def __enter__(self) -> Self:
        if get_running_loop() is not self._loop or self._forks != _Forks.count:
            self.begin()
        else:
            clock = self.clock
            self.shard.turn(clock.wall_ms(), clock.mono_ms())
        return self

    __exit__ = _Engine.flush

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move to another loop, which is possible once the old one has stopped."""
        if self._loop is not None:
            if self._loop.is_running():
                raise NotInitialized("this broker belongs to another event loop; a Broker serves any number of threads")
            if self._handle is not None:
                self._handle.cancel()
                self._handle = None
            self._armed_ms = NEVER
            # whoever waited is gone with the loop
            self._lasting.clear()
        self._loop = loop

    def _arm(self, wait_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        assert self._loop is not None
        self._handle = self._loop.call_later(max(0, wait_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        self._armed_ms = NEVER
        if not self.closed and not self.forked:
            self.begin()
            self.flush()

    def _post(self, work: Callable[[], None]) -> None:
        loop = self._loop
        assert loop is not None
        try:
            loop.call_soon_threadsafe(self._run, work)
        except RuntimeError:
            # the loop is gone, and whoever waited in it: what is on disk is found at the next start
            return

    def _run(self, work: Callable[[], None]) -> None:
        if self.journal is None:
            return
        if self._take_turn is not None:
            self._take_turn(work)
        else:
            with self:
                work()

    def _progressed(self) -> None:
        """Wake those whose batch is written, or all when nothing will be."""
        log = self.shard.log
        waiting = self._lasting
        while waiting and (waiting[0][0] <= log.written or log.failure is not None):
            _, waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
        super()._progressed()

    async def lasting(self) -> None:
        """Wait until everything that happened so far is on disk, as far as the sync policy promises."""
        log = self.shard.log
        batch = log.horizon()
        if log.pending() and not log.urgent:
            with self:
                log.urgent = True
        while log.written < batch:
            if log.failure is not None:
                raise log.failure
            waiter: asyncio.Future[None] = get_running_loop().create_future()
            self._lasting.append((int(batch), waiter))
            await waiter

    async def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Do something slow without holding up the loop."""
        return await get_running_loop().run_in_executor(None, function, *arguments)

    async def start(self) -> None:
        """Belong to the running loop."""
        loop = get_running_loop()
        if loop is not self._loop:
            self._adopt(loop)

    async def stop(self) -> None:
        """Write what is not written yet, and end the timer."""
        journal = self.journal
        if self.history is not None:
            self.history.close()
        if journal is not None:
            with self:
                self.shard.log.urgent = True
            try:
                await self.lasting()
            finally:
                self.journal = None
                journal.close()
        self.closed = True
        self.shard.let_go()
        if self._handle is not None:
            self._handle.cancel()


class ServerEngine(AsyncEngine):
    """The engine of a server, which stays in the loop that it was started in: no turn has to ask which loop runs, which
    is a system call before Python 3.12.
    """

    begin = _Engine.begin


class AsyncChange:
    """`async with engine.change:` is a turn whose effects are on disk when it has been left."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def __aenter__(self) -> AsyncEngine:
        return self._engine.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        engine = self._engine
        if engine.journal is None:
            engine.__exit__()
            return
        engine.shard.log.urgent = True
        engine.__exit__()
        if kind is None:
            await engine.lasting()

"""What the HTTP face has done outside of the loop: ranges of streams and Arrow tables, in threads of their own.

Slow readers take turns: a thread makes one piece of an answer at a time and never waits for a peer. Arrow bodies have
threads that only wait for the process that decodes them; tenants take turns there, so that one tenant's slow bodies
delay its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from rookery.arrow.decoder import ArrowDecoder
from rookery.core.staging import Row
from rookery.core.stream import Partition
from rookery.engine.engine import AsyncEngine, Engine
from rookery.errors import LimitExceeded, StoreError
from rookery.format.model import Message
from rookery.sealed.history import Reading, can_seal

if TYPE_CHECKING:
    from rookery.server.logs import Log
    from rookery.server.turns import Turns

THREADS: Final = 2
DECODING_MAX: Final = 4
"""How many Arrow bodies are decoded at the same time, and of them DECODING_TENANT_MAX for one tenant."""

DECODING_TENANT_MAX: Final = 2
WAITING_MAX: Final = 64
"""How many Arrow bodies of one tenant wait to be decoded."""

WAITING_BODIES: Final = 8
"""How many bodies of the largest size may wait: so many for one tenant, twice as many for all."""

Done = Callable[[Any, BaseException | None], None]


class EngineArchive:
    """The archive of an engine, as `wire.api.Archive` describes it."""

    def __init__(self, engine: AsyncEngine | Engine, turns: Turns, log: Log, body_max_bytes: int) -> None:
        self._engine = engine
        self._turns = turns
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="rookery-archive")
        self.decoder = ArrowDecoder(body_max_bytes, self._report)
        self._decoding = _Decoding(self._start_decoding, WAITING_BODIES * body_max_bytes)
        self._decoders = ThreadPoolExecutor(max_workers=DECODING_MAX, thread_name_prefix="rookery-arrow")
        turns.on_tick.append(self.decoder.tick)

    @property
    def root(self) -> str | None:
        history = self._engine.history
        return None if history is None else str(history.root.absolute())

    def run(self, work: Callable[[], Any], done: Done) -> None:
        self._run(self._pool, work, done)

    def _run(self, pool: ThreadPoolExecutor, work: Callable[[], Any], done: Done) -> None:
        future = self._loop.run_in_executor(pool, work)

        def finished(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            result = None if error is not None else future.result()
            self._turns.run(lambda: done(result, error))

        future.add_done_callback(finished)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._decoders.shutdown(wait=False, cancel_futures=True)
        self.decoder.close()

    # Arrow

    def load(self) -> None:
        """Import pyarrow, which takes a while the first time."""
        if not can_seal():
            raise StoreError("Arrow needs pyarrow: pip install 'rookery[streams]'")
        from rookery.sealed import parquet

        assert parquet is not None

    def reading(self, partition: Partition, start: int, stop: int, columns: Sequence[str], routing_key: str) -> Reading:
        return self._engine.reading(partition, start, stop, columns, routing_key)

    def done_reading(self, reading: Reading) -> None:
        self._engine.done_reading(reading)

    def decode(self, tenant: str, size: int, work: Callable[[], Any], done: Done) -> None:
        self._decoding.add(tenant, size, work, done)

    def _start_decoding(self, work: Callable[[], Any], done: Done) -> None:
        self._run(self._decoders, work, done)

    def rows(self, body: bytes, key: str, names: Mapping[str, str], now_ms: int) -> list[Row]:
        return self.decoder.rows(body, key, names, now_ms)

    def _report(self, reason: str, size: int) -> None:
        """Log that a body ended the process that decoded it; in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            self._loop.call_soon_threadsafe(lambda: self._log.warning("arrow body", reason=reason, bytes=size))

    def table(
        self, tenant: str, queue: str, found: list[tuple[int, int, int, Message]], columns: Sequence[str]
    ) -> Iterator[bytes]:
        from rookery.arrow import rows as arrow_rows

        return arrow_rows.messages_ipc(tenant, queue, found, columns)

    # Sealed files

    def records(self, path: str, start: int, stop: int) -> list[bytes]:
        return self._engine.sealing().records(path, start, stop)

    def first_at(self, path: str, stamp_ms: int) -> int:
        return self._engine.sealing().first_at(path, stamp_ms)

    def seal(self, partition: Partition, done: Callable[[BaseException | None], None]) -> None:
        self._engine.sealing().seal(partition, done)

    def lease(self, plan: str, paths: frozenset[str], lease_ms: int) -> None:
        if self._engine.history is not None:
            self._engine.history.lease(plan, paths, lease_ms)

    def renew(self, plan: str, lease_ms: int) -> None:
        if self._engine.history is not None:
            self._engine.history.renew(plan, lease_ms)

    def release(self, plan: str) -> None:
        if self._engine.history is not None:
            self._engine.history.release(plan)


class _Decoding:
    """Bodies that wait to be decoded. Tenants take turns; `start` does the work in a thread. Used in the loop only."""

    def __init__(self, start: Callable[[Callable[[], Any], Done], None], tenant_bytes_max: int) -> None:
        self._start = start
        self._tenant_bytes_max = tenant_bytes_max
        # the tenants whose turn it will be, in order
        self._waiting: dict[str, deque[tuple[int, Callable[[], Any], Done]]] = {}
        self._running: dict[str, int] = {}

    def add(self, tenant: str, size: int, work: Callable[[], Any], done: Done) -> None:
        """Do the work when it is the tenant's turn; refuse it when too much waits already."""
        mine = self._waiting.get(tenant, ())
        held = sum(each[0] for each in mine)
        if len(mine) >= WAITING_MAX or (mine and held + size > self._tenant_bytes_max):
            raise LimitExceeded(
                f"{len(mine)} Arrow bodies of tenant {tenant!r} wait to be decoded, with {held} bytes; at most "
                f"{WAITING_MAX} bodies and {self._tenant_bytes_max} bytes may wait: try again later",
                argument="body",
            )
        everything = sum(each[0] for bodies in self._waiting.values() for each in bodies)
        if everything and everything + size > 2 * self._tenant_bytes_max:
            raise LimitExceeded(
                f"{everything} bytes of Arrow bodies wait to be decoded; at most {2 * self._tenant_bytes_max} may: "
                "try again later",
                argument="body",
            )
        self._waiting.setdefault(tenant, deque()).append((size, work, done))
        self._go_on()

    def _go_on(self) -> None:
        for tenant in list(self._waiting):
            if sum(self._running.values()) >= DECODING_MAX:
                return
            if self._running.get(tenant, 0) < DECODING_TENANT_MAX:
                self._begin(tenant)

    def _begin(self, tenant: str) -> None:
        # whoever has had a turn is the last to have the next
        mine = self._waiting.pop(tenant)
        _, work, done = mine.popleft()
        if mine:
            self._waiting[tenant] = mine
        self._running[tenant] = self._running.get(tenant, 0) + 1

        def finished(result: Any, error: BaseException | None) -> None:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._go_on()
            done(result, error)

        self._start(work, finished)


__all__ = ["EngineArchive"]

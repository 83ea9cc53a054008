"""What the HTTP face has done outside of the loop: ranges of streams and Arrow tables, in threads of their own.

Slow readers take turns: a thread makes one piece of an answer at a time and never waits for a peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from rookery.core.staging import Row
from rookery.core.stream import Partition
from rookery.embed.engine import AsyncEngine, Engine
from rookery.errors import StoreError
from rookery.model import Message
from rookery.store.history import Reading, can_seal

if TYPE_CHECKING:
    from rookery.turns import Turns

THREADS: Final = 2


class EngineArchive:
    """The archive of an engine, as `wire.api.Archive` describes it."""

    def __init__(self, engine: AsyncEngine | Engine, turns: Turns) -> None:
        self._engine = engine
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="rookery-archive")

    @property
    def root(self) -> str | None:
        history = self._engine.history
        return None if history is None else str(history.root.absolute())

    def run(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        future = self._loop.run_in_executor(self._pool, work)

        def finished(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            result = None if error is not None else future.result()
            self._turns.run(lambda: done(result, error))

        future.add_done_callback(finished)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Arrow

    def load(self) -> None:
        """Import pyarrow, which takes a while the first time."""
        if not can_seal():
            raise StoreError("Arrow needs pyarrow: pip install 'rookery[streams]'")
        from rookery.store import parquet

        assert parquet is not None

    def reading(self, partition: Partition, start: int, stop: int, columns: Sequence[str], routing_key: str) -> Reading:
        return self._engine.reading(partition, start, stop, columns, routing_key)

    def done_reading(self, reading: Reading) -> None:
        self._engine.done_reading(reading)

    def rows(self, body: bytes, key: str, names: Mapping[str, str], now_ms: int) -> list[Row]:
        self.load()
        from rookery.store import arrow_rows

        return arrow_rows.rows_of(body, key, names, now_ms)

    def table(
        self, tenant: str, queue: str, found: list[tuple[int, int, int, Message]], columns: Sequence[str]
    ) -> Iterator[bytes]:
        from rookery.store import arrow_rows

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


__all__ = ["EngineArchive"]

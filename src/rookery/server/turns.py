"""Takes turns in the event loop: for the journal's answers, for peers that were touched from outside, when publishers
may go on, when rights were taken away, and once a second for what time asks of each face. All faces of a server share
the one `Turn` in here.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from rookery.wire.turn import FREE, FULL, REASONS, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.core.shard import Shard
    from rookery.server.logs import Log

TICK_SEC: Final = 1.0


class Driver(Protocol):
    """What a listener needs of whoever owns the shard.

    `begin` passes the time in, `end` wakes whoever waits. A driver in the loop of the transports does what the journal
    and the threads of the shard have for it in turns taken with `run`; any driver calls `progressed` when the journal
    has answered.
    """

    shard: Shard

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def attach(self, run: Callable[[Callable[[], None]], None], progressed: Callable[[], None]) -> None: ...

    def detach(self, progressed: Callable[[], None]) -> None: ...


class Turns:
    """The turn of a driver, and who takes it.

    `on_tick` holds what is done once a second, `on_revoked` what is done right after a turn in which somebody lost
    rights; both in a turn.
    """

    def __init__(self, driver: Driver, log: Log) -> None:
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self._log = log
        self._ticker: asyncio.TimerHandle | None = None
        self._held_long = False
        self.on_tick: list[Callable[[], None]] = []
        self.on_revoked: list[Callable[[], None]] = []
        self._rechecking = False
        self.turn = Turn(driver, self._wake)
        self.turn.on_held = self._held
        self._progressed = self.turn.progressed
        driver.attach(self.run, self._progressed)

    def start(self) -> None:
        self._ticker = self._loop.call_later(TICK_SEC, self._tick)

    def stop(self) -> None:
        self._driver.detach(self._progressed)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def run(self, work: Callable[[], None] | None = None) -> None:
        """Take a turn, unless the driver takes no more of them."""
        if self.turn.begin():
            try:
                if work is not None:
                    work()
            finally:
                self.turn.end()

    def revoked(self) -> None:
        """Somebody lost rights, in a turn that is not over yet: see to it that they notice at once."""
        if not self._rechecking:
            self._rechecking = True
            with contextlib.suppress(RuntimeError):  # as below
                self._loop.call_soon_threadsafe(self.run, self._recheck)

    def _recheck(self) -> None:
        self._rechecking = False
        for work in self.on_revoked:
            work()

    def _wake(self) -> None:
        """Somebody else's turn, perhaps in another thread, left something for a peer."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every peer
            self._loop.call_soon_threadsafe(self.run)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SEC, self._tick)
        self.run(self._do_all)

    def _do_all(self) -> None:
        for work in self.on_tick:
            work()

    def _held(self, held: int) -> None:
        """Publishers are held, or let go. That the journal is behind for a moment is no news."""
        if held >= FULL:
            self._held_long = True
            self._log.warning("publishers_held", reason=REASONS[held])
        elif held == FREE and self._held_long:
            self._held_long = False
            self._log.info("publishers_released")

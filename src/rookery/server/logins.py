"""Logins of all faces: how often they may fail, and the queue of passwords to verify.

To verify a password takes tens of milliseconds of CPU, so it is done by a few threads. What waits for them is limited,
in all and for each address, and addresses take turns: one that floods the queue is refused, and delays others by no
more than the checks that are running. The same credential shown many times at once is verified once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from rookery.server.limits import FailedLogins, network_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.core.access import PasswordCheck
    from rookery.server.turns import Turns

THREADS: Final = 2
PENDING_MAX: Final = 1_024
ADDRESS_PENDING_MAX: Final = 64
"""Passwords that wait to be verified, in all and from one address."""

Outcome = Literal["checked", "busy", "failed"]

TOO_MANY_FAILED: Final = "too many logins failed; try again later"
TOO_MANY_PENDING: Final = "too many logins are waiting to be verified; try again later"


class _Pending:
    """A password to verify, and who wants to know."""

    __slots__ = ("address", "check", "key", "waiting")

    def __init__(self, key: object, address: str, check: PasswordCheck) -> None:
        self.key = key
        self.address = address
        self.check = check
        self.waiting: list[Callable[[Outcome], None]] = []


class Logins:
    """See the module's docstring. `refused` counts the passwords that were not verified for want of room."""

    def __init__(self, turns: Turns, failures_max: int = 10) -> None:
        self.failed = FailedLogins(failures_max)
        self.refused = 0
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="rookery-login")
        self._running = 0
        self._pending: dict[object, _Pending] = {}
        self._lines: OrderedDict[str, deque[_Pending]] = OrderedDict()
        self._closed = False

    @property
    def pending(self) -> int:
        """How many passwords are being verified or wait for that."""
        return len(self._pending)

    def verify(self, host: str, user: str, check: PasswordCheck, done: Callable[[Outcome], None]) -> None:
        """Run a check in a thread, then `done` in a turn: with "checked" when the check knows its outcome, "failed"
        when it could not be made, and "busy", perhaps at once, when too many wait.
        """
        key = (user, check.key)
        known = self._pending.get(key)
        if known is not None:
            known.waiting.append(done)
            return
        address = network_of(host)
        if self._closed or not self._make_room(address):
            self.refused += 1
            done("busy")
            return
        pending = _Pending(key, address, check)
        pending.waiting.append(done)
        self._pending[key] = pending
        self._lines.setdefault(address, deque()).append(pending)
        self._start()

    def _make_room(self, address: str) -> bool:
        own = len(self._lines.get(address, ()))
        if own >= ADDRESS_PENDING_MAX:
            return False
        if len(self._pending) < PENDING_MAX:
            return True
        longest = max(self._lines, key=lambda each: len(self._lines[each]), default="")
        if len(self._lines.get(longest, ())) <= own + 1:
            return False
        # whoever has most gives way to whoever has less
        last = self._lines[longest].pop()
        self.refused += 1
        self._finish(last, "busy")
        return True

    def _start(self) -> None:
        while self._running < THREADS and self._lines:
            address, line = self._lines.popitem(last=False)
            pending = line.popleft()
            if line:
                self._lines[address] = line
            self._running += 1
            verified = self._loop.run_in_executor(self._pool, pending.check.run)
            verified.add_done_callback(partial(self._verified, pending))

    def _verified(self, pending: _Pending, future: asyncio.Future[bool]) -> None:
        self._running -= 1
        good = not future.cancelled() and future.exception() is None
        self._finish(pending, "checked" if good else "failed")
        if not self._closed:
            self._start()

    def _finish(self, pending: _Pending, outcome: Outcome) -> None:
        del self._pending[pending.key]
        for done in pending.waiting:
            self._loop.call_soon(self._turns.run, partial(done, outcome))

    def close(self) -> None:
        self._closed = True
        self._lines.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

"""What the handles of one client share: the way to the broker, keys of requests, and what it has declared.

Whatever changes something goes out under a key by which the broker knows it again, so that a request whose answer was
lost is made once more and happens once. What this client declared is declared again when the broker, after a break of
the connection, does not know it any more.
"""

from __future__ import annotations

import uuid
import weakref
from collections import deque
from typing import Any, Final, TypeVar

from rookery.client.aio.transport import NOTHING, AsyncTransport
from rookery.client.sockets import AsyncSlots, Hold
from rookery.engine.workers import AsyncSignal, AsyncWorkers, Signal
from rookery.errors import BrokerClosed, InvalidArgument, NotFound
from rookery.wire.packed import DONE, KEY, PACKED

DONE_MAX: Final = 32
PATHS_MAX: Final = 1_000

SignalT = TypeVar("SignalT", Signal, AsyncSignal)

_NAMES: Final = {"source": "exchange", "to": "target"}
"""What some fields of requests are called by users of a client."""

_PACKED_BODY: Final = {"Accept": PACKED}


class AsyncLink:
    """Shared by a client and all handles it gave out."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport
        self.workers = AsyncWorkers()
        self.id = uuid.uuid4().hex[:16]
        self.closed = False
        self.panic: str | None = None
        self._count = 0
        self.redeclared = 0
        self._breaks = 0
        self._declaring = AsyncSlots(1)
        self._declared: dict[str, tuple[str, str, object]] = {}
        self._done: dict[str, deque[str]] = {}
        self._signals: weakref.WeakSet[Signal | AsyncSignal] = weakref.WeakSet()

    def watch(self, signal: SignalT) -> SignalT:
        """Have a signal set when the client closes, so that whoever waits on it learns of it."""
        self._signals.add(signal)
        return signal

    def note_panic(self, error: BaseException) -> None:
        """A function of the user's failed."""
        self.panic = f"{type(error).__name__}: {error}"

    def check_open(self) -> None:
        if self.closed:
            raise BrokerClosed("the client is closed")

    async def close(self) -> None:
        """No call is taken any more; whoever waits is woken."""
        self.closed = True
        for signal in list(self._signals):
            signal.set()
        await self.transport.close()

    def next_name(self, kind: str) -> str:
        """A name for something of ours that users do not name."""
        self._count += 1
        return f"amq.{kind}-{self.id}-{self._count}"

    # Requests

    async def get(self, path: str, *, wait_ms: int = 0, **query: object) -> Any:
        return await self._ask("GET", path, NOTHING, query, None, wait_ms)

    async def get_packed(
        self, path: str, query: dict[str, object], *, wait_ms: int = 0, hold: Hold | None = None
    ) -> bytes:
        """What is shown as the core has it."""
        return bytes(await self._ask("GET", path, NOTHING, query, _PACKED_BODY, wait_ms, hold=hold) or b"")

    async def post(self, path: str, body: object = NOTHING, **query: object) -> Any:
        return await self._ask("POST", path, body, query, None, 0)

    async def post_packed(self, path: str, body: object, *, wait_ms: int = 0, **query: object) -> bytes:
        return bytes(await self._ask("POST", path, body, query, _PACKED_BODY, wait_ms) or b"")

    async def put(self, path: str, body: object = NOTHING, **query: object) -> Any:
        return await self._ask("PUT", path, body, query, None, 0)

    async def patch(self, path: str, body: object) -> Any:
        return await self._ask("PATCH", path, body, None, None, 0)

    async def delete(self, path: str, **query: object) -> Any:
        return await self._ask("DELETE", path, NOTHING, query, None, 0)

    async def once(self, path: str, body: object, *, packed: bool = False, **query: object) -> Any:
        """POST what must happen once, however often it has to be sent."""
        self._count += 1
        key = f"{self.id}-{self._count}"
        done = self._done.get(path)
        headers = {KEY: key}
        if done:
            headers[DONE] = ",".join([done.popleft() for _ in range(min(len(done), DONE_MAX))])
        answer = await self._ask("POST", path, body, query, headers, 0, PACKED if packed else "")
        if done is None:
            if len(self._done) >= PATHS_MAX:
                self._done.clear()
            done = self._done[path] = deque(maxlen=DONE_MAX)
        done.append(key)
        return answer

    async def _ask(
        self,
        method: str,
        path: str,
        body: object,
        query: dict[str, object] | None,
        headers: dict[str, str] | None,
        wait_ms: int,
        content_type: str = "",
        hold: Hold | None = None,
    ) -> Any:
        self.check_open()
        more: dict[str, Any] = {"hold": hold}
        if content_type:
            more["content_type"] = content_type
        redeclared = self.redeclared
        try:
            return await self.transport.request(
                method, path, body, query=query, headers=headers, wait_ms=wait_ms, **more
            )
        except NotFound:
            if not await self.declare_again(redeclared):
                raise
        except InvalidArgument as error:
            # of a batch, the broker says also of which message
            if error.argument is not None and error.argument.startswith("["):
                error.argument = error.argument.partition("].")[2]
            error.argument = _NAMES.get(error.argument or "", error.argument)
            raise
        return await self.transport.request(method, path, body, query=query, headers=headers, wait_ms=wait_ms, **more)

    # Declarations

    def declared(self, name: str, method: str, path: str, body: object) -> None:
        """Something was declared, under a name of its own here."""
        self._declared[name] = (method, path, body)

    def forget(self, name: str) -> None:
        """Something was deleted, with everything whose name begins so."""
        for known in [known for known in self._declared if known == name or known.startswith(f"{name} ")]:
            del self._declared[known]

    async def declare_again(self, redeclared: int) -> bool:
        """Declare everything once more if the connection broke since the last time; whether that was done since the
        caller, before its own request, saw this count of `redeclared`.

        One at a time: all that met a broker that forgot wait for the one that declares, and then try again.
        """
        async with self._declaring:
            if self.redeclared != redeclared:
                return True
            breaks = self.transport.breaks
            if breaks == self._breaks or not self._declared:
                return False
            for method, path, body in list(self._declared.values()):
                await self.transport.request(method, path, body)
            self._breaks = breaks
            self.redeclared += 1
            return True

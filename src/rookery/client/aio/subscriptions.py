"""A subscription to a queue: pushed over a WebSocket of its own, and continued over breaks of the connection.

The broker keeps no more than `credit` of its deliveries out. A reader of its own takes frames as they come and answers
heartbeats, so that a slow consumer is not taken for a dead one. After a break it says what it has seen last: what it
has not seen comes again, what it holds stays its own until its lease lapses. Settling goes by HTTP.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, Self

from rookery.client.aio.deliveries import AsyncDelivery, settle
from rookery.client.aio.link import AsyncLink
from rookery.client.http import part
from rookery.client.messages import read_frame
from rookery.client.seen import Seen
from rookery.client.sockets import AsyncSocket
from rookery.client.websocket import Frames, handshake, masked
from rookery.embed.context import check_positive, check_timeout
from rookery.engine.workers import AsyncSignal
from rookery.errors import BrokerClosed, BrokerUnreachable, LeaseLost, NotFound, RookeryError
from rookery.wire.http.answers import BrokenAnswer
from rookery.wire.packed import NONE_SEEN
from rookery.wire.websocket import CLOSE, NORMAL, PING, PONG, TEXT, close_payload, read_close

SILENCE_SEC: Final = 60.0
"""A broker that was not heard of for so long is gone: it pings every 15 seconds."""

SEND_SEC: Final = 10.0
CLOSE_MS: Final = 5_000
"""How long the broker may take to agree to the end."""

CREDIT_MAX: Final = 1_000


class AsyncQueueSubscription:
    """A standing demand for deliveries from one queue. Iterate it, or call `get`; `cancel` ends it.

    It holds at most `credit` unsettled deliveries. After `cancel`, iteration ends and deliveries that were not taken
    yet go back to their places.
    """

    def __init__(
        self,
        link: AsyncLink,
        queue: str,
        credit: int,
        lease_ms: int | None,
        priority: int,
        name: str,
        seen: Seen | None,
    ) -> None:
        self._link = link
        self._path = f"/api/v1/queues/{part(queue)}/stream"
        self._query: dict[str, object] = {
            "ack": "explicit",
            "packed": True,
            "create": False,
            "credit": min(credit, CREDIT_MAX),
            "lease_ms": lease_ms,
            "priority": priority,
            "consumer": name,
        }
        self._name = name
        self._seen = seen
        self._signal = link.watch(AsyncSignal())
        # not held while something is waited for
        self._lock = threading.Lock()
        self._inbox: deque[AsyncDelivery] = deque()
        self._socket: AsyncSocket | None = None
        self._frames = Frames()
        self._last = ""
        self._done = False
        self._finished = False
        self._over = link.watch(AsyncSignal())
        self._error: RookeryError | None = None
        self.queue = queue

    def __repr__(self) -> str:
        return f"QueueSubscription({self.queue!r}, {self._name!r})"

    @property
    def done(self) -> bool:
        """Whether it has ended: cancelled, or with its queue or its client."""
        return self._done or self._link.closed

    def settled(self, id: str, outcome: str) -> None:
        """One of its deliveries was settled."""
        if self._seen is not None and outcome == "ack":
            self._seen.add(id)

    # Taking

    async def get(self, timeout_ms: int | None = None) -> AsyncDelivery:
        """The next delivery; TimeoutError when none came in time, NotFound when the subscription has ended."""
        found = await self._get(1, check_timeout(timeout_ms))
        if not found:
            raise TimeoutError(f"no delivery from {self.queue!r} within {timeout_ms} ms")
        return found[0]

    async def get_many(self, count: int, timeout_ms: int | None = None) -> list[AsyncDelivery]:
        """At least one and up to `count` deliveries; an empty list when none came in time."""
        check_positive(count, "count")
        return await self._get(count, check_timeout(timeout_ms))

    async def _get(self, count: int, timeout_ms: int | None) -> list[AsyncDelivery]:
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            self._link.check_open()
            with self._lock:
                if self._done:
                    raise self._error or NotFound(
                        f"the subscription to {self.queue!r} has ended", argument="subscription"
                    )
                found = [self._inbox.popleft() for _ in range(min(count, len(self._inbox)))]
                if not found:
                    self._signal.clear()
            if found:
                found = await self._new(found)
                if found:
                    return found
                continue
            left = None if until is None else (until - time.monotonic()) * 1000
            if not await self._signal.wait(left):
                return []

    async def _new(self, found: list[AsyncDelivery]) -> list[AsyncDelivery]:
        """Those that were not dealt with before; the others are acked."""
        if self._seen is None:
            return found
        again = [delivery for delivery in found if delivery.id in self._seen]
        try:
            await settle(self._link, again, "ack", None, "")
        except LeaseLost:
            pass
        return [delivery for delivery in found if delivery not in again]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncDelivery:
        try:
            found = await self._get(1, None)
        except (NotFound, BrokerClosed):
            raise StopAsyncIteration from None
        return found[0]

    # The connection

    async def open(self) -> None:
        """Connect, and read from then on."""
        pauses = self._link.transport.retry.pauses()
        while True:
            try:
                await self._connect()
                break
            except OSError as error:
                if not await self._link.transport.rest(pauses):
                    self._link.check_open()
                    raise self._unreachable(error) from error
        self._link.workers.spawn(self._read)

    async def _connect(self) -> None:
        query = {**self._query, "after": self._last or None}
        redeclared = self._link.redeclared
        try:
            socket, behind = await self._link.transport.upgrade(self._path, query, handshake())
        except NotFound:
            if not await self._link.declare_again(redeclared):
                raise
            socket, behind = await self._link.transport.upgrade(self._path, query, handshake())
        self._frames = Frames()
        self._socket = socket
        if behind:
            await self._heed(socket, behind)

    async def _read(self) -> None:
        """Take frames until the end, over as many connections as it takes."""
        pauses = self._link.transport.retry.pauses()
        while not self._finished and not self._link.closed:
            socket = self._socket
            try:
                if self._done and socket is None:
                    break
                if socket is None:
                    await self._connect()
                    pauses = self._link.transport.retry.pauses()
                else:
                    await self._heed(socket, await socket.receive(SILENCE_SEC))
            except OSError as error:
                self._drop()
                if not self._done and not await self._link.transport.rest(pauses):
                    self._end(self._unreachable(error))
            except RookeryError as error:
                self._end(None if isinstance(error, NotFound) else error)
        self._drop()
        self._over.set()

    async def _heed(self, socket: AsyncSocket, data: bytes) -> None:
        if not data:
            raise BrokenAnswer("the broker closed the connection")
        for opcode, payload in self._frames.receive(data):
            if opcode == TEXT:
                self._arrived(payload)
            elif opcode == PING:
                await socket.send(masked(PONG, payload), SEND_SEC)
            elif opcode == CLOSE:
                code, reason = read_close(payload)
                if code == NORMAL:
                    self._finished = True
                    self._end(None)
                    return
                raise BrokenAnswer(f"the broker closed the connection: {code} {reason}")

    def _arrived(self, payload: bytes) -> None:
        last, got = read_frame(payload)
        with self._lock:
            if self._done or not last:
                return
            self._inbox.extend(AsyncDelivery(self._link, self.queue, each, self) for each in got)
            self._last = last
        self._signal.set()

    def _unreachable(self, error: OSError) -> BrokerUnreachable:
        where = self._link.transport.address.url
        return BrokerUnreachable(f"the subscription to {self.queue!r} at {where} broke: {error}", argument="url")

    def _drop(self) -> None:
        socket = self._socket
        self._socket = None
        if socket is not None:
            self._link.transport.release(socket)

    # The end

    def _end(self, error: RookeryError | None) -> None:
        with self._lock:
            self._finished = True
            if not self._done:
                self._done = True
                self._error = error
        self._signal.set()

    async def cancel(self) -> None:
        """End the subscription; a second call does nothing."""
        with self._lock:
            if self.done:
                return
            self._done = True
            left = list(self._inbox)
            self._inbox.clear()
            last = self._last
        self._signal.set()
        socket = self._socket
        try:
            if socket is not None:
                # what it has not seen goes back at once
                await socket.send(masked(CLOSE, close_payload(NORMAL, last or NONE_SEEN)), SEND_SEC)
                await self._over.wait(CLOSE_MS)
        except OSError:
            pass
        if left:
            try:
                await settle(self._link, left, "release", None, "")
            except LeaseLost:
                await self._release_each(left)
        self._drop()

    async def _release_each(self, left: list[AsyncDelivery]) -> None:
        for delivery in left:
            try:
                await delivery.release()
            except LeaseLost:
                continue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cancel()


__all__ = ["AsyncQueueSubscription"]

"""Requests to a broker: kept connections, tries after pauses, errors by their class, answers of any length.

Everything that is asked for here may be asked for again: whoever makes a request that must not happen twice gives it a
key or a name by which the broker knows it. So a request whose answer was lost is simply repeated, at the next endpoint
when there are several.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

import msgspec

from rookery.client.address import Address, addresses
from rookery.client.answers import error_of, is_passing, read_json
from rookery.client.http import Request, target_of
from rookery.client.retrying import RetryPolicy
from rookery.client.sockets import AsyncPause, AsyncSlots, AsyncSocket, GivenUp, Hold
from rookery.errors import BrokerClosed, BrokerUnreachable, InvalidArgument, InvalidType, NotInitialized
from rookery.wire.http.answers import BrokenAnswer, Incoming

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
NOTHING: Final = object()
"""No body, where None is one."""

RETRY_AFTER_MAX_SEC: Final = 60
LINE_MAX_BYTES: Final = 64 << 20

_log = logging.getLogger(__name__)


class AsyncTransport:
    """The way to a broker. At most `requests_max` requests are under way at a time, but for those that wait long."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        api_key: str | None = None,
        ca_file: str = "",
        tls: ssl.SSLContext | None = None,
        timeout_ms: int = 30_000,
        retry: RetryPolicy | None = None,
        requests_max: int = 32,
    ) -> None:
        for argument, value in (("timeout_ms", timeout_ms), ("requests_max", requests_max)):
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{argument} must be an int of at least 1", argument=argument)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InvalidType(f"retry must be a RetryPolicy, not {type(retry).__name__}", argument="retry")
        self.retry = retry or RetryPolicy()
        # how often a connection broke
        self.breaks = 0
        self._addresses = addresses(url, api_key=api_key, ca_file=ca_file, tls=tls)
        self._at = 0
        self._timeout_sec = timeout_ms / 1000
        self._slots = AsyncSlots(requests_max)
        self._idle: list[AsyncSocket] = []
        self._open: set[AsyncSocket] = set()
        self._stopping = AsyncPause()
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.url!r})"

    @property
    def address(self) -> Address:
        """The endpoint that is spoken to now."""
        return self._addresses[self._at]

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """End all connections; whoever waits for an answer gets BrokerClosed."""
        self._closed = True
        self._stopping.end()
        if self._pid == os.getpid():
            for socket in list(self._open):
                socket.close()
        self._open.clear()
        self._idle.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Requests

    async def get(self, path: str, **query: object) -> Any:
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: object = NOTHING, **query: object) -> Any:
        return await self.request("POST", path, body, query=query)

    async def put(self, path: str, body: object = NOTHING, **query: object) -> Any:
        return await self.request("PUT", path, body, query=query)

    async def patch(self, path: str, body: object = NOTHING, **query: object) -> Any:
        return await self.request("PATCH", path, body, query=query)

    async def delete(self, path: str, **query: object) -> Any:
        return await self.request("DELETE", path, query=query)

    async def request(
        self,
        method: str,
        path: str,
        body: object = NOTHING,
        *,
        query: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
        content_type: str = JSON,
        wait_ms: int = 0,
        retry: RetryPolicy | None = None,
        hold: Hold | None = None,
    ) -> Any:
        """Ask, again if need be, and return the answer's value: JSON decoded, anything else as bytes.

        `body` is sent as JSON, or, when it is bytes, as it is. `wait_ms` is how long the broker may wait by itself; by
        its `hold`, such a request can be given up from elsewhere.
        """
        asked = self._request(method, path, body, query, headers, content_type)
        policy = retry or self.retry
        pauses = policy.pauses()
        while True:
            try:
                if wait_ms:
                    answer = await self._ask(asked, wait_ms / 1000, hold)
                else:
                    async with self._slots:
                        answer = await self._ask(asked, 0)
            except OSError as error:
                if hold is not None and hold.over:
                    raise GivenUp from None
                await self._wait(pauses, asked, error, policy)
                continue
            content = answer.take()
            if answer.status < 400:
                return _value(answer, content)
            refused = error_of(answer.status, content)
            if not is_passing(answer.status, refused, policy.for_room) or not await self._pause(pauses, answer):
                raise refused

    async def open(
        self,
        method: str,
        path: str,
        body: object = NOTHING,
        *,
        query: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
        content_type: str = JSON,
        retry: RetryPolicy | None = None,
    ) -> AsyncAnswer:
        """Ask, again if need be, for an answer that is read piece by piece; `close` it, or leave its block."""
        asked = self._request(method, path, body, query, headers, content_type)
        policy = retry or self.retry
        pauses = policy.pauses()
        while True:
            try:
                answer = await self._begin(asked)
                if answer.status < 400:
                    return answer
                content = await answer.read()
            except OSError as error:
                await self._wait(pauses, asked, error, policy)
                continue
            refused = error_of(answer.status, content)
            if not is_passing(answer.status, refused, policy.for_room) or not await self._pause(
                pauses, answer.incoming
            ):
                raise refused

    async def upgrade(self, path: str, query: dict[str, object], headers: dict[str, str]) -> tuple[AsyncSocket, bytes]:
        """Ask once for another protocol: a connection that speaks it from now on, and what came already.

        OSError when the connection breaks, and the broker's error when it refuses. `release` it in the end.
        """
        asked = self._request("GET", path, NOTHING, query, headers, JSON)
        socket = await self._fresh()
        answer = Incoming()
        try:
            await socket.send(asked.encode(socket.address), self._timeout_sec)
            while not answer.done:
                answer.feed(await socket.receive(self._timeout_sec))
        except BaseException:
            self._leave(socket, False)
            raise
        if answer.behind is None or answer.status != 101:
            self._leave(socket, answer.keep)
            raise error_of(answer.status, answer.take())
        return socket, answer.behind

    def release(self, socket: AsyncSocket) -> None:
        """Have done with a connection that was upgraded."""
        self._leave(socket, False)

    async def rest(self, pauses: Iterator[float]) -> bool:
        """The next pause after a break, at the next endpoint; False when there is none left."""
        self.breaks += 1
        pause = next(pauses, None)
        if pause is None:
            return False
        self._turn_away()
        await self._stopping.sleep(pause)
        return not self._closed

    def _request(
        self,
        method: str,
        path: str,
        body: object,
        query: dict[str, object] | None,
        headers: dict[str, str] | None,
        content_type: str,
    ) -> Request:
        self._check_open()
        said = {"Accept": JSON, **(headers or {})}
        content = b""
        if body is not NOTHING:
            content = body if isinstance(body, bytes) else msgspec.json.encode(body)
            said["Content-Type"] = content_type
        return Request(method, target_of(path, query), said, content)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerClosed("the client is closed")
        if self._pid != os.getpid():
            raise NotInitialized("this client belongs to the process that this one was forked from")

    # One try

    async def _ask(self, asked: Request, wait_sec: float, hold: Hold | None = None) -> Incoming:
        """Send a request and take its whole answer."""
        while True:
            socket, kept = await self._connection()
            answer = Incoming()
            if hold is not None:
                hold.take(socket)
            try:
                await socket.send(asked.encode(socket.address), self._timeout_sec)
                while not answer.done:
                    answer.feed(await socket.receive(self._timeout_sec + wait_sec))
            except (ConnectionError, BrokenAnswer):
                self.breaks += 1
                if kept and not answer.heard and not self._closed and (hold is None or not hold.over):
                    # closed while it was idle
                    continue
                raise
            finally:
                if hold is not None:
                    hold.leave(socket)
                self._leave(socket, answer.done and answer.keep)
            return answer

    async def _begin(self, asked: Request) -> AsyncAnswer:
        """Send a request and take the head of its answer."""
        while True:
            socket, kept = await self._connection()
            answer = AsyncAnswer(self, socket, self._timeout_sec)
            begun = False
            try:
                await socket.send(asked.encode(socket.address), self._timeout_sec)
                while not answer.incoming.head_done:
                    answer.incoming.feed(await socket.receive(self._timeout_sec))
                begun = True
            except (ConnectionError, BrokenAnswer):
                if kept and not answer.incoming.heard and not self._closed:
                    self.breaks += 1
                    continue
                raise
            finally:
                if not begun:
                    self._leave(socket, False)
            return answer

    async def _connection(self) -> tuple[AsyncSocket, bool]:
        """A connection, and whether it was kept from an earlier request."""
        while (kept := self._kept()) is not None:
            if not kept.stale:
                return kept, True
            self.breaks += 1
            self._leave(kept, False)
        return await self._fresh(), False

    async def _fresh(self) -> AsyncSocket:
        socket = await AsyncSocket.open(self.address, self._timeout_sec)
        self._open.add(socket)
        if self._closed:
            self._leave(socket, False)
            raise ConnectionAbortedError("the client was closed")
        return socket

    def _kept(self) -> AsyncSocket | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _leave(self, socket: AsyncSocket, keep: bool) -> None:
        if keep and not self._closed:
            self._idle.append(socket)
        else:
            self._open.discard(socket)
            socket.close()

    # Between tries

    async def _wait(self, pauses: Iterator[float], asked: Request, error: OSError, policy: RetryPolicy) -> None:
        """The connection broke: go on with the next endpoint after a pause, or give up."""
        self._check_open()
        self.breaks += 1
        pause = next(pauses, None)
        where = self.address.url
        if pause is None:
            raise BrokerUnreachable(
                f"{asked.method} {where}{asked.path} failed {policy.tries + 1} times, "
                f"last with {type(error).__name__}: {error}",
                argument="url",
            ) from error
        _log.warning("%s: %s: trying again", where, error)
        self._turn_away()
        await self._stopping.sleep(pause)
        self._check_open()

    def _turn_away(self) -> None:
        """Go on with the next endpoint, and without the connections to the one that failed."""
        self._at = (self._at + 1) % len(self._addresses)
        while (kept := self._kept()) is not None:
            self._leave(kept, False)

    async def _pause(self, pauses: Iterator[float], answer: Incoming) -> bool:
        """The broker asks for patience; False when it has had all there is."""
        pause = next(pauses, None)
        if pause is None:
            return False
        asked = answer.header(b"retry-after")
        await self._stopping.sleep(max(pause, min(int(asked[:9]), RETRY_AFTER_MAX_SEC) if asked.isdecimal() else 0))
        self._check_open()
        return True


class AsyncAnswer:
    """An answer that is read piece by piece. `timeout_sec` bounds the silence before each piece."""

    def __init__(self, transport: AsyncTransport, socket: AsyncSocket, timeout_sec: float) -> None:
        self._transport = transport
        self._socket = socket
        self._rest = b""
        self._left = False
        self.timeout_sec = timeout_sec
        self.incoming = Incoming()

    @property
    def status(self) -> int:
        return self.incoming.status

    async def chunk(self) -> bytes:
        """The next piece of the content; nothing at its end. OSError when the connection breaks before that."""
        while True:
            data = self.incoming.take()
            if data:
                return data
            if self.incoming.done:
                await self.close()
                return b""
            try:
                self.incoming.feed(await self._socket.receive(self.timeout_sec))
            except BaseException:
                await self.close()
                raise

    async def read(self) -> bytes:
        """All of the content that is left."""
        pieces = []
        while data := await self.chunk():
            pieces.append(data)
        return b"".join(pieces)

    async def line(self) -> bytes | None:
        """The next line, without its end; None at the end of the content."""
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                return line.removesuffix(b"\r")
            if len(self._rest) > LINE_MAX_BYTES:
                await self.close()
                raise BrokenAnswer("a line of the answer is too long")
            data = await self.chunk()
            if not data:
                self._rest = b""
                return line or None
            self._rest += data

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The values of an answer that is lines of JSON."""
        while True:
            line = await self.line()
            if line is None:
                raise StopAsyncIteration
            if line:
                return read_json(line)

    async def close(self) -> None:
        """Have done with it; what was read to its end leaves the connection for others."""
        if not self._left:
            self._left = True
            self._transport._leave(self._socket, self.incoming.done and self.incoming.keep)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _value(answer: Incoming, content: bytes) -> Any:
    if not content:
        return None
    if answer.headers.get(b"content-type", b"").startswith(b"application/json"):
        return read_json(content)
    return content

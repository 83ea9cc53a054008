"""The connections of webhooks: HTTP/1.1 requests to checked addresses only; `wire.http.answers` reads the answers.

A name is resolved here, each of its addresses is checked (`addresses`), and what was checked is what is connected to.
A connection makes one request at a time and is kept for the next. One that turns out to be closed before anything of an
answer came was closed while it was idle: the request is made again on a new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from rookery.wire.http.answers import BrokenAnswer, Incoming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rookery.webhooks.addresses import Guard
    from rookery.webhooks.slots import CallSlots

IDLE_SEC: Final = 30.0
CONTENT_MAX_BYTES: Final = 16 * 1024
"""More of an answer than this is not read; it costs its connection."""

Origin = tuple[str, str, int]


class CallFailed(Exception):
    """There was no answer, or none that is HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with names in lower case, and the beginning of the content."""

    status: int
    headers: dict[bytes, bytes]
    content: bytes


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


class Connections:
    """The connections of one webhook. How many of all webhooks are kept though idle is counted in `slots`."""

    def __init__(self, guard: Guard, private: bool, keep: int, slots: CallSlots) -> None:
        self._guard = guard
        self._private = private
        self._keep = keep
        self._slots = slots
        self._idle: dict[Origin, list[_Connection]] = {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Make a request, and wait for its answer for as long as that takes."""
        parts = urlsplit(url)
        origin = (parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {target} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = "\r\n".join([*lines, "\r\n"]).encode("ascii") + body
        connection = self._take(origin)
        if connection is not None:
            try:
                return await self._ask(origin, connection, request)
            except CallFailed:
                if connection.heard:
                    raise
        return await self._ask(origin, await self._connect(origin), request)

    async def _ask(self, origin: Origin, connection: _Connection, request: bytes) -> Answer:
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.transport.abort()
            raise
        idle = self._idle.setdefault(origin, [])
        if connection.reusable and len(idle) < self._keep and self._slots.keep():
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.transport.close()
        return answer

    def _take(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            self._slots.idle -= 1
            if connection.reusable and time.monotonic() - connection.idle_since < IDLE_SEC:
                return connection
            connection.transport.close()
        return None

    async def _connect(self, origin: Origin) -> _Connection:
        scheme, host, port = origin
        addresses = [ipaddress.ip_address(text) for text in await self.resolve(host, port)]
        for address in addresses:
            # one that is not allowed taints its name: whoever chose it is not to be trusted with the others
            self._guard.check(address, port, self._private)
        secure: dict[str, Any] = {"ssl": tls_context(), "server_hostname": host} if scheme == "https" else {}
        why: Exception | None = None
        for address in addresses:
            try:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, str(address), port, **secure)
                return connection
            except OSError as error:
                why = error
        raise CallFailed(f"no connection to {host}: {why}")

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a name."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise CallFailed(f"{host} cannot be resolved: {error}") from None
        return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))

    def tick(self) -> None:
        """Close what has been idle for long."""
        before = time.monotonic() - IDLE_SEC
        for idle in self._idle.values():
            while idle and idle[0].idle_since < before:
                idle.pop(0).transport.close()
                self._slots.idle -= 1

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.transport.close()
                self._slots.idle -= 1
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection. `heard` says that something of the answer to the last request came."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.idle_since = 0.0
        self.reusable = False
        self._incoming = Incoming()
        self._content = b""
        self._waiter: asyncio.Future[Answer] | None = None

    @property
    def heard(self) -> bool:
        return self._incoming.heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    async def ask(self, request: bytes) -> Answer:
        self._incoming = Incoming()
        self._content = b""
        self._waiter = asyncio.get_running_loop().create_future()
        self.reusable = False
        self.transport.write(request)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if self._waiter is None or self._waiter.done():
            # nothing was asked
            self.reusable = False
            self.transport.abort()
            return
        try:
            incoming.feed(data)
        except BrokenAnswer as error:
            self._fail(str(error))
            return
        self._content += incoming.take()
        if incoming.behind is not None:
            self._fail("the answer changes the protocol, which nobody asked for")
        elif incoming.done:
            self.reusable = incoming.keep
            self._answer()
        elif len(self._content) > CONTENT_MAX_BYTES:
            self._answer()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self._incoming.head_done:
            # an answer that ends with its connection, or whose end nobody needs
            self._answer()
        else:
            self._fail(f"the connection was lost: {error}" if error else "the connection was closed without an answer")

    def _answer(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            incoming = self._incoming
            self._waiter.set_result(Answer(incoming.status, incoming.headers, self._content[:CONTENT_MAX_BYTES]))

    def _fail(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(CallFailed(why))

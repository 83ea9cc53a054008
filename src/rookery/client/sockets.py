"""Connected sockets, for asyncio and for threads, and pauses: all the waiting that the client does is in here.

Both kinds send everything or raise, receive what there is, and raise OSError for whatever is wrong, TimeoutError when
nothing came in time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import Any, Final, cast

from rookery.client.address import Address

HELD_MAX_BYTES: Final = 1 << 20
"""What is received beyond this is left in the system's buffer until somebody takes it."""

CHUNK_BYTES: Final = 256 * 1024

Slots = threading.Semaphore
AsyncSlots = asyncio.Semaphore
"""At most so many at a time."""


class Socket:
    """A connection for blocking use by one thread at a time; any thread may close it."""

    def __init__(self, address: Address, connected: socket.socket) -> None:
        self.address = address
        self._socket = connected
        self._closed = False

    @classmethod
    def open(cls, address: Address, timeout_sec: float) -> Socket:
        connected = socket.create_connection((address.host, address.port), timeout_sec)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                connected = address.tls.wrap_socket(connected, server_hostname=address.host)
        except BaseException:
            connected.close()
            raise
        return cls(address, connected)

    @property
    def stale(self) -> bool:
        """Whether it was closed by the other side, or got what nobody asked for, while it was not in use."""
        if isinstance(self._socket, ssl.SSLSocket):
            return self._closed
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return self._closed
        except OSError:
            return True
        return True

    def send(self, data: bytes, timeout_sec: float) -> None:
        self._socket.settimeout(timeout_sec)
        self._socket.sendall(data)

    def receive(self, timeout_sec: float) -> bytes:
        """What came, at least something; nothing when the other side has closed."""
        self._socket.settimeout(timeout_sec)
        data = self._socket.recv(CHUNK_BYTES)
        if self._closed:
            raise ConnectionAbortedError("the connection was closed here")
        return data

    def close(self) -> None:
        """Close it, also under a thread that waits for something to come."""
        self._closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


class AsyncSocket(asyncio.Protocol):
    """A connection in an event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._held = 0
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._full = False
        self._paused = False

    @classmethod
    async def open(cls, address: Address, timeout_sec: float) -> AsyncSocket:
        loop = asyncio.get_running_loop()
        secure: dict[str, Any] = {"ssl": address.tls, "server_hostname": address.host} if address.tls else {}
        async with asyncio.timeout(timeout_sec):
            _, connected = await loop.create_connection(lambda: cls(address), address.host, address.port, **secure)
        return connected

    @property
    def stale(self) -> bool:
        """Whether it was closed by the other side, or got what nobody asked for, while it was not in use."""
        return self._ended or bool(self._chunks) or self._loop is not asyncio.get_running_loop()

    async def send(self, data: bytes, timeout_sec: float) -> None:
        if self._ended:
            raise self._error or ConnectionResetError("the connection was closed")
        assert self._transport is not None
        self._transport.write(data)
        if self._full:
            self._writer = self._loop.create_future()
            await self._wait(self._writer, timeout_sec)

    async def receive(self, timeout_sec: float) -> bytes:
        """What came, at least something; nothing when the other side has closed."""
        if not self._chunks and not self._ended:
            self._reader = self._loop.create_future()
            await self._wait(self._reader, timeout_sec)
        chunks = self._chunks
        if chunks:
            self._chunks = []
            self._held = 0
            if self._paused and self._transport is not None:
                self._paused = False
                self._transport.resume_reading()
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._error is not None:
            raise self._error
        return b""

    async def _wait(self, waiter: asyncio.Future[None], timeout_sec: float) -> None:
        timer = self._loop.call_later(timeout_sec, _give_up, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def close(self) -> None:
        if not self._ended:
            self._end(ConnectionAbortedError("the connection was closed here"))
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    def _end(self, error: Exception | None) -> None:
        self._ended = True
        self._error = error if error is None or isinstance(error, OSError) else ConnectionError(str(error))
        self._wake()

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer if not self._full or self._ended else None):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # The event loop calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held += len(data)
        if self._held > HELD_MAX_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended:
            self._end(error)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("nothing came in time"))


class Pause:
    """A pause that can be ended early, for good."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def end(self) -> None:
        self._event.set()

    def sleep(self, seconds: float) -> None:
        self._event.wait(seconds)


class AsyncPause:
    """A pause that can be ended early, for good."""

    def __init__(self) -> None:
        self._ended = False
        self._waiters: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        self._ended = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def sleep(self, seconds: float) -> None:
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(seconds, _over, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


def _over(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class GivenUp(Exception):
    """A request that waited was given up from elsewhere."""


class Hold:
    """By which requests of one waiter are given up, now and from now on: their connections are closed under them."""

    def __init__(self) -> None:
        self.over = False
        self._sockets: set[Socket | AsyncSocket] = set()

    def take(self, socket: Socket | AsyncSocket) -> None:
        self._sockets.add(socket)
        if self.over:
            socket.close()

    def leave(self, socket: Socket | AsyncSocket) -> None:
        self._sockets.discard(socket)

    def end(self) -> None:
        self.over = True
        for held in list(self._sockets):
            held.close()

"""The process around the core: listeners, logins, the time, signals.

A `Server` owns an engine (the shard and its clock) and serves it; `attach` opens the same listeners on the engine of a
broker that a program embeds. Nothing here decides what a message's fate is: bytes go from transports to `wire`, and
come back once a turn. Slow things (passwords) run in a thread and come back as a turn of their own.

Stopping: the first SIGTERM or SIGINT closes the listeners, tells every peer, and waits up to `ROOKERY_SHUTDOWN_SEC` for
them to go; a second one does not wait.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import gc
import ipaddress
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

import structlog

from rookery import __version__
from rookery._compiled import compiled
from rookery.clock import SystemClock
from rookery.core.access import DEFAULT_TENANT, FULL, Access, PasswordCheck, Principal
from rookery.embed.engine import AsyncEngine, Engine
from rookery.errors import AccessRefused, InvalidConfig, RookeryError
from rookery.wire.amqp import AmqpConnection, AmqpFace
from rookery.wire.http import Answer, HttpConnection
from rookery.wire.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.config import Settings
    from rookery.core.shard import Shard
    from rookery.embed import AsyncBroker, Broker

TICK_SEC: Final = 1.0
BACKLOG: Final = 1_024
WRITE_HIGH_BYTES: Final = 256 * 1024
"""What a socket may hold back before its consumers are told to wait."""

CAPABILITIES: Final[dict[str, object]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
}


class Driver(Protocol):
    """What a listener needs of whoever owns the shard.

    `begin` passes the time in, `end` wakes whoever waits, `progress` returns when more is durable than before.
    """

    shard: Shard

    def begin(self) -> None: ...

    def end(self) -> None: ...

    async def progress(self) -> None: ...


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...


def make_log(level: str, stream: TextIO) -> Log:
    """A logger that writes one JSON object a line."""
    import logging

    import msgspec

    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda row, **_: msgspec.json.encode(row).decode()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
    )
    return log


def is_local(host: str) -> bool:
    """Whether a peer with this address is on this machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Gate:
    """Says who a peer is. With authentication off everyone has full rights, and nobody the admin right."""

    def __init__(self, access: Access, turn: Turn, clock: Clock, *, open_to_all: bool) -> None:
        self._access = access
        self._turn = turn
        self._clock = clock
        self._open = open_to_all
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rookery-login")

    def login(self, connection: AmqpConnection, user: str, password: str) -> None:
        """Verify the two, outside of the loop if that is slow, and tell the connection."""
        check = None if self._open else self._access.password_check(user, password)
        if check is None:
            connection.login_done(self._accepts(connection, user, password, None))
            return
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._pool, check.run)
        done.add_done_callback(lambda _: self._later(connection, user, password, check))

    def _later(self, connection: AmqpConnection, user: str, password: str, check: PasswordCheck) -> None:
        if self._turn.begin():
            try:
                connection.login_done(self._accepts(connection, user, password, check))
            finally:
                self._turn.end()

    def _accepts(self, connection: AmqpConnection, user: str, password: str, check: PasswordCheck | None) -> bool:
        try:
            self._principal(connection, user, password, None, check)
        except AccessRefused:
            return True  # who it is, is clear; which tenant it may enter is asked later
        except RookeryError:
            return False
        return True

    def enter(self, connection: AmqpConnection, user: str, password: str, tenant: str) -> Principal:
        return self._principal(connection, user, password, tenant, None)

    def _principal(
        self, connection: AmqpConnection, user: str, password: str, tenant: str | None, check: PasswordCheck | None
    ) -> Principal:
        if self._open:
            return Principal(user, tenant or DEFAULT_TENANT, FULL)
        loopback = connection.loopback
        now_ms = self._clock.wall_ms()
        return self._access.check_user(user, password, tenant, loopback=loopback, now_ms=now_ms, check=check)

    def still_valid(self, principal: Principal) -> bool:
        return self._access.still_valid(principal, self._clock.wall_ms())

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class AmqpListener:
    """AMQP on one address, over a driver that others may use too."""

    def __init__(
        self,
        driver: Driver,
        access: Access,
        clock: Clock,
        log: Log,
        *,
        open_to_all: bool = False,
        channels_max: int = 2_047,
        heartbeat_sec: int = 60,
        connections_max: int = 10_000,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver = driver
        self._access = access
        self._log = log
        self._connections_max = connections_max
        self._generation = access.generation
        self.turn = Turn(driver, self._wake, self._watch)
        self.gate = Gate(access, self.turn, clock, open_to_all=open_to_all)
        self.face = AmqpFace(self.turn, self.gate.login, self.gate.enter, _random_text)
        self.face.admit = self._admit
        self.face.left = self._left
        self.face.log = self._report
        self.face.channels_max = channels_max
        self.face.heartbeat_sec = heartbeat_sec
        self.face.server_properties = {
            "product": "Rookery",
            "version": __version__,
            "platform": "Python",
            "capabilities": CAPABILITIES,
        }
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int) -> str:
        """Listen; returns the address in use."""
        factory: Any = self.face.connect  # a protocol by its methods, not by its class
        self._server = await self._loop.create_server(factory, host, port, backlog=BACKLOG)
        self._ticker = self._loop.call_later(TICK_SEC, self._tick)
        return address_of(self._server.sockets[0])

    async def close(self, patience_sec: float, reason: str = "shutdown") -> None:
        """Accept no more, tell every peer, and drop those that are still there after a while."""
        if self._server is not None:
            self._server.close()
        self._run(lambda: self.face.close_all(reason))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_sec)
        self.abort()
        if self._ticker is not None:
            self._ticker.cancel()
        self.gate.close()

    def abort(self) -> None:
        self.face.abort_all()

    def _admit(self, connection: AmqpConnection, transport: Any) -> bool:
        if len(self.face.connections) >= self._connections_max:
            self._log.warning("connection_refused", reason=f"there are {self._connections_max} connections")
            return False
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        connection.peer_name = host
        # a Unix socket has no peer name, and its peer is on this machine
        connection.loopback = not host or is_local(host)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._empty.clear()
        return True

    def _left(self, _connection: AmqpConnection) -> None:
        if not self.face.connections:
            self._empty.set()

    def _report(self, event: str, peer: str, reason: str) -> None:
        self._log.warning(event, peer=peer, reason=reason)

    def _wake(self) -> None:
        """Somebody else's turn, perhaps in another thread, left something for a peer."""
        self._loop.call_soon_threadsafe(self._run, None)

    def _watch(self) -> None:
        """Confirms wait for the journal: take a turn when it has more."""
        task = self._loop.create_task(self._until_durable())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_durable(self) -> None:
        with contextlib.suppress(RookeryError):  # the turn sees for itself that the store failed
            await self._driver.progress()
        self.turn.watched()
        self._run(None)

    def _run(self, work: Callable[[], None] | None) -> None:
        if self.turn.begin():
            try:
                if work is not None:
                    work()
            finally:
                self.turn.end()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SEC, self._tick)
        self._run(self._look_around)

    def _look_around(self) -> None:
        self.face.tick()
        moved = self._access.generation != self._generation
        self._generation = self._access.generation
        self.face.recheck(self.gate.still_valid, moved)


class Server:
    """A broker that listens. `start`, then `stop`; `addresses` says where it is reached meanwhile."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, log: Log | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.log: Log = log or make_log(settings.log_level, sys.stderr)
        self.engine = AsyncEngine(self.clock, os.urandom(16))
        self.access = Access(os.urandom, guest=settings.guest)
        self.addresses: dict[str, str] = {}
        self._amqp: AmqpListener | None = None
        self._http: asyncio.Server | None = None

    async def start(self) -> None:
        """Open every listener, or none: an address that cannot be had is an error."""
        settings = self.settings
        await self.engine.start()
        shard = self.engine.shard
        if settings.store_backend == "journal":
            self._open_journal()
        elif settings.store_backend == "memory":
            shard.memory_bytes_max = settings.memory_max_bytes
        else:
            raise InvalidConfig(f"the store {settings.store_backend} is not built in yet", argument="STORE_BACKEND")
        self.engine.begin()
        limits = {"message_bytes_max": settings.message_max_bytes}
        if DEFAULT_TENANT in shard.tenants:
            shard.tenants[DEFAULT_TENANT].set_limits(limits)
        else:
            shard.create_tenant(DEFAULT_TENANT, limits)
        self.engine.end()
        if settings.api_key is not None:
            self.access.set_fixed_key(settings.api_key)
        try:
            await self._listen()
        except OSError as error:
            await self.stop(0)
            raise InvalidConfig(f"cannot listen: {error.strerror or error}", argument="APP_HOST") from None

    def _open_journal(self) -> None:
        """Begin with what the data directory holds; what does not fit into memory stays there."""
        settings = self.settings
        self.engine.open_journal(
            settings.data_dir,
            sync=settings.sync,
            page_bytes=settings.memory_max_bytes // 2,
            compress_min_bytes=0,
            free_bytes_min=settings.disk_free_min_bytes,
            access=self.access,
        )
        self.log.info("store", backend="journal", directory=str(settings.data_dir), sync=settings.sync)

    async def _listen(self) -> None:
        settings = self.settings
        if settings.http_port is not None:
            loop = asyncio.get_running_loop()
            factory: Any = self._http_connection
            self._http = await loop.create_server(factory, settings.host, settings.http_port, backlog=BACKLOG)
            self.addresses["http"] = address_of(self._http.sockets[0])
        if settings.amqp_port is not None:
            self._amqp = AmqpListener(
                self.engine,
                self.access,
                self.clock,
                self.log,
                open_to_all=settings.auth_mode == "none",
                channels_max=settings.channels_max,
                heartbeat_sec=settings.heartbeat_sec,
                connections_max=settings.connections_max,
            )
            self.addresses["amqp"] = await self._amqp.open(settings.host, settings.amqp_port)

    async def stop(self, patience_sec: float | None = None) -> None:
        """Close the listeners and let peers go, for as long as is configured unless said otherwise."""
        patience = self.settings.shutdown_sec if patience_sec is None else patience_sec
        if self._http is not None:
            self._http.close()
        if self._amqp is not None:
            await self._amqp.close(patience)
        await self.engine.stop()

    def abort(self) -> None:
        """Do not wait for anybody any longer."""
        if self._amqp is not None:
            self._amqp.abort()

    def _http_connection(self) -> HttpConnection:
        return HttpConnection(self._answer, self.settings.http_body_max_bytes)

    def _answer(self, method: str, path: str) -> Answer:
        if path in ("/health", "/api/v1/health"):
            if method in ("GET", "HEAD"):
                return 200, {"status": "ok"}
            return 405, {"error": f"{path} is read with GET"}
        return 404, {"error": f"no such path: {path}"}


# Attaching listeners to a broker that a program embeds


class _Locking:
    """A driver over the engine of a blocking broker, whose turns exclude one another only as context managers."""

    def __init__(self, engine: Engine) -> None:
        self.shard = engine.shard
        self._engine = engine

    def begin(self) -> None:
        self._engine.__enter__()

    def end(self) -> None:
        self._engine.__exit__(None, None, None)

    async def progress(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._engine.progress)


class Attached:
    """Listeners on a broker's engine; `close` ends them and leaves the broker as it is."""

    def __init__(self, listener: AmqpListener, address: str) -> None:
        self.amqp = address
        self._listener = listener

    async def close(self) -> None:
        await self._listener.close(1.0)


async def attach(broker: AsyncBroker, *, amqp: int, host: str = "127.0.0.1", access: Access | None = None) -> Attached:
    """Serve an async broker's tenants over AMQP, in the broker's own loop. `amqp` is a port, 0 for any free one."""
    return await _attach(broker.engine, broker.clock, amqp, host, access)


async def _attach(driver: Driver, clock: Clock, port: int, host: str, access: Access | None) -> Attached:
    listener = AmqpListener(driver, access or Access(os.urandom), clock, make_log("warning", sys.stderr))
    return Attached(listener, await listener.open(host, port))


class AttachedThread:
    """Listeners on a blocking broker's engine, in a thread with a loop of its own."""

    def __init__(self, broker: Broker, *, amqp: int, host: str = "127.0.0.1", access: Access | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rookery-amqp", daemon=True)
        self._thread.start()
        opening = _attach(_Locking(broker.engine), broker.clock, amqp, host, access)
        try:
            self._attached = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        except BaseException:
            self._end()
            raise
        self.amqp = self._attached.amqp

    def close(self) -> None:
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._attached.close(), self._loop).result()
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def attach_thread(
    broker: Broker, *, amqp: int, host: str = "127.0.0.1", access: Access | None = None
) -> AttachedThread:
    """Serve a blocking broker's tenants over AMQP, in a thread. `amqp` is a port, 0 for any free one."""
    return AttachedThread(broker, amqp=amqp, host=host, access=access)


# The process


def serve(settings: Settings) -> int:
    """Run a server until a signal ends it; returns the exit code."""
    keep_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; None stands for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(settings: Settings) -> int:
    server = Server(settings)
    signals = _Signals(asyncio.get_running_loop())
    for warning in settings.warnings:
        server.log.warning("setting", text=warning)
    await server.start()
    first = not any(key.admin for tenant in server.engine.shard.tenants for key in server.access.keys(tenant))
    if settings.auth_mode != "none" and settings.api_key is None and first:
        announce_admin_key(server, sys.stderr)
    # what exists now stays: the collector need not look at it again
    gc.collect()
    gc.freeze()
    server.log.info("listening", **server.addresses, pid=os.getpid(), compiled=compiled)
    await signals.first.wait()
    server.log.info("stopping")
    stopping = asyncio.ensure_future(server.stop())
    hard = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait({stopping, hard}, return_when=asyncio.FIRST_COMPLETED)
    hard.cancel()
    if not stopping.done():
        server.log.warning("stopped", how="at once")
        server.abort()
        stopping.cancel()
        return 1
    server.log.info("stopped", how="in order")
    return 0


class _Signals:
    """The first and the second wish to end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def announce_admin_key(server: Server, terminal: TextIO) -> None:
    """Make the first admin key; it goes to the terminal, or, without one, to a file that only its owner reads."""
    issued = server.access.create_key(
        DEFAULT_TENANT, server.clock.wall_ms(), admin=True, note="made at the first start of this server"
    )
    if terminal.isatty():
        terminal.write(f"\nAdmin API key of this server (shown once): {issued.text}\n\n")
        terminal.flush()
        return
    path = key_file(server.settings.data_dir)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with os.fdopen(handle, "w") as file:
            os.fchmod(handle, 0o600)
            file.write(issued.text + "\n")
    except OSError as error:
        server.access.revoke_key(issued.record.kid)
        server.log.warning("admin_key", text=f"not made: {path} cannot be written ({error.strerror}); set API_KEY")
        return
    server.log.info("admin_key", kid=issued.record.kid, file=str(path))


def key_file(data_dir: Path) -> Path:
    """Beside the data directory, never in it: whoever copies the data does not copy the key."""
    return data_dir.with_name(data_dir.name + ".admin-key")


def address_of(sock: Any) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed for the next batch, instead of giving it back and asking for it again."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((-3, 32 << 20), (-1, 64 << 20), (-2, 1 << 20)):  # mmap and trim threshold, top pad
            mallopt(option, value)


def _random_text() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()

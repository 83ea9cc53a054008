"""The process around the core: its listeners and faces, what they share, and signals.

A `Server` owns an engine (the shard and its clock) and serves it over every protocol of `rookery.wire.protocols`;
`attach` opens listeners on the engine of a broker that a program embeds. Nothing here decides what a message's fate is:
bytes go from transports to `wire`, and come back once a turn.

Stopping: the first SIGTERM or SIGINT closes the listeners, tells every peer, and waits up to `ROOKERY_SHUTDOWN_SEC` for
them to go; then everything is written and synced. A second one waits for nothing. SIGHUP reads the certificates again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from rookery._compiled import compiled, speed
from rookery.clock import SystemClock
from rookery.config.kinds import is_loopback
from rookery.config.settings import LOG_FILE
from rookery.core import definitions
from rookery.core.access import DEFAULT_TENANT, Access
from rookery.engine.engine import ServerEngine
from rookery.errors import Fenced, InvalidConfig
from rookery.server.attached import attach, attach_thread
from rookery.server.faces import Faces
from rookery.server.gate import Gate
from rookery.server.limits import FILES_SPARE, MEMORY_SHARE, allow_open_files, machine_memory_bytes
from rookery.server.listeners import Attendance, Listener
from rookery.server.logins import Logins
from rookery.server.logs import LibraryLog, Log, LogOutput, make_log
from rookery.server.tls import Certificates, TlsFiles
from rookery.server.turns import Turns
from rookery.server.web import Web
from rookery.store.file import FileMedium
from rookery.wire.protocols import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.config.settings import Settings
    from rookery.wire.face import WireProtocol

__all__ = ["Server", "announce_admin_key", "attach", "attach_thread", "key_file", "loop_factory", "serve"]

CERTIFICATES_SEC: Final = 5.0
"""How often the files of certificates are looked at."""

LOOPBACK: Final = "127.0.0.1"

TLS_BUFFER_BYTES: Final = 32 * 1024

EVENTS_AGE_MS: Final = 7 * 86_400_000
EVENTS_BYTES: Final = 1 << 30
EVENTS_MEMORY_BYTES: Final = 64 << 20
"""What is kept of the stream of events, on disk and in memory."""

OVERSHOOT: Final = 8
"""Beyond the memory at which publishers are held, one in so many parts of it may still be taken, and then nothing."""


class Server:
    """A broker that listens. `start`, then `stop`; `addresses` says where it is reached meanwhile."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, log: Log | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.log_output = _log_output(settings) if log is None else LogOutput(None)
        self.log: Log = log or make_log(settings.log_level, self.log_output, settings.secrets(), settings.env)
        self.engine = ServerEngine(self.clock, os.urandom(16))
        self.access = Access(os.urandom, guest=settings.guest)
        self.addresses: dict[str, str] = {}
        self._turns: Turns | None = None
        self._logins: Logins | None = None
        self._gate: Gate | None = None
        self._web: Web | None = None
        self._attendance: Attendance | None = None
        self._certificates: Certificates | None = None
        self._look: asyncio.TimerHandle | None = None
        self._faces: Faces | None = None
        self._listeners: list[Listener] = []
        self.fenced = asyncio.Event()
        """Set when another process has taken over the data directory: this one must end."""
        self._store_failed = False

    async def start(self) -> None:
        """Open every listener, or none: an address that cannot be had is an error."""
        settings = self.settings
        self._certificates = _certificates(settings)
        await self.engine.start()
        memory = settings.memory_max_bytes or int(machine_memory_bytes() * MEMORY_SHARE)
        if settings.store_backend == "journal":
            self._open_journal(memory)
        shard = self.engine.shard
        shard.memory_bytes_max = memory + memory // OVERSHOOT
        with self.engine:
            self._furnish()
        if settings.api_key is not None:
            self.access.set_fixed_key(settings.api_key)
        try:
            await self._listen(memory)
        except (OSError, UnicodeError) as error:  # the latter for a host name that cannot be one
            await self.stop(0)
            reason = getattr(error, "strerror", None) or error
            raise InvalidConfig(f"cannot listen: {reason}", argument="APP_HOST") from None

    def _furnish(self) -> None:
        """Have what every server has: the default tenant, and the stream of events if it is asked for."""
        settings = self.settings
        shard = self.engine.shard
        limits = {"message_bytes_max": settings.message_max_bytes}
        if DEFAULT_TENANT in shard.tenants:
            shard.tenants[DEFAULT_TENANT].set_limits(limits)
        else:
            shard.create_tenant(DEFAULT_TENANT, limits)
        if settings.events_rate:
            kept = EVENTS_BYTES if settings.store_backend == "journal" else EVENTS_MEMORY_BYTES
            shard.events.start(settings.events_rate, {"max_age_ms": EVENTS_AGE_MS, "max_bytes": kept})

    def _open_journal(self, memory_bytes: int) -> None:
        """Begin with what the data directory holds; what does not fit into memory stays there."""
        settings = self.settings
        self.engine.open_journal(
            FileMedium(settings.data_dir),
            settings.data_dir,
            sync=settings.sync,
            page_bytes=memory_bytes // 2,
            compression=settings.compression,
            compress_min_bytes=settings.compress_min_bytes,
            free_bytes_min=settings.disk_free_min_bytes,
            access=self.access,
        )
        self.log.info("store", backend="journal", directory=str(settings.data_dir), sync=settings.sync)
        for problem in definitions.problems(self.engine.shard, self.access):
            effect = "the policy applies to no queue" if problem["kind"] == "policy" else "the right is denied"
            self.log.warning("pattern_not_supported", **problem, effect=effect)

    async def _listen(self, memory_bytes: int) -> None:
        settings = self.settings
        wanted = settings.connections_max + settings.webhook_calls_max * 3 // 2 + FILES_SPARE
        files = allow_open_files(wanted)
        if files < wanted:
            text = f"the system allows {files} open files, too few for {settings.connections_max} connections"
            self.log.warning("setting", text=text)
        self._attendance = Attendance(settings.connections_max, self.log, settings.address_connections_max)
        self._turns = Turns(self.engine, self.log)
        self._turns.turn.hold_above(memory_bytes)
        self._logins = Logins(self._turns, settings.login_failures_max)
        self._web = Web(self.engine, self._turns, self.access, self.clock, self.log, self._logins, settings)
        self._count(self._web.values, self._logins, self._attendance)
        self._gate = self._make_gate(self._turns, self._logins)
        self._faces = Faces(self._web, self._gate, self._turns, self.log, settings)
        for protocol in PROTOCOLS.values():
            await self._open(protocol, protocol.name, None)
        if self._certificates is not None:
            for protocol in PROTOCOLS.values():
                await self._open(protocol, protocol.tls_name, self._certificates)
            self._look_at_certificates()
        self._turns.on_tick.append(self._look_at_store)
        self._turns.start()

    def _count(
        self, values: list[Callable[[], tuple[str, str, str, int]]], logins: Logins, attendance: Attendance
    ) -> None:
        """Show in /metrics what only the process knows."""
        lines = self.log_output
        refused = "passwords not verified since too many waited"
        values += [
            lambda: ("log_lines_dropped_total", "counter", "log lines that were lost", lines.dropped),
            lambda: ("connections", "gauge", "open connections", attendance.present),
            lambda: ("connections_refused_total", "counter", "connections refused at a limit", attendance.refused),
            lambda: ("logins_pending", "gauge", "passwords that wait to be verified", logins.pending),
            lambda: ("logins_refused_total", "counter", refused, logins.refused),
        ]

    def _make_gate(self, turns: Turns, logins: Logins) -> Gate:
        settings = self.settings
        return Gate(
            self.access,
            turns,
            self.clock,
            self.log,
            logins,
            open_to_all=settings.auth_mode == "none",
            tenant_connections_max=settings.tenant_connections_max,
        )

    async def _open(self, protocol: WireProtocol, name: str, certificates: Certificates | None) -> None:
        """Listen for a protocol, unless the port of that listener is off."""
        settings = self.settings
        port = settings.ports.get(name)
        if port is None:
            return
        assert self._attendance is not None
        assert self._faces is not None
        face = self._faces[protocol.name]
        self._attendance.attend(face)
        listener = Listener(
            face,
            self._attendance,
            self.log,
            certificates=certificates,
            proxied=name in settings.proxy_protocol,
            handshake_sec=settings.handshake_sec,
        )
        self._listeners.append(listener)
        host = settings.host
        if settings.auth_mode == "none" and protocol.local_if_open and not is_loopback(host):
            # nobody from elsewhere, even if that is allowed
            host = LOOPBACK
        self.addresses[name] = await listener.open(host, port)
        assert self._web is not None
        self._web.own_ports.add(int(self.addresses[name].rpartition(":")[2]))

    # Files that others may have changed

    def reload(self) -> None:
        """Look again at what others may have replaced: certificates, and the file of the log."""
        self.reload_certificates()
        try:
            self.log_output.reopen()
        except OSError as error:
            self.log.warning("log_file", text=f"not opened again: {error.strerror}")

    def reload_certificates(self) -> None:
        """Begin new connections with what the files hold now. Those there are go on with what they began with."""
        if self._certificates is None:
            return
        try:
            self._certificates.reload()
        except InvalidConfig as error:
            self.log.warning("certificates", text=f"not reloaded: {error}")
        else:
            self.log.info("certificates", text="reloaded")

    def _look_at_certificates(self) -> None:
        assert self._certificates is not None
        if self._certificates.changed():
            self.reload_certificates()
        self._look = asyncio.get_running_loop().call_later(CERTIFICATES_SEC, self._look_at_certificates)

    def _look_at_store(self) -> None:
        """Say once that nothing more is confirmed, and why."""
        failure = self.engine.shard.log.failure
        if failure is not None and not self._store_failed:
            self._store_failed = True
            self.log.error("store_failed", code=failure.code, text=str(failure))
            if isinstance(failure, Fenced):
                self.fenced.set()

    # Ending

    async def stop(self, patience_sec: float | None = None) -> None:
        """Close the listeners and let peers go, for as long as is configured unless said otherwise; then sync."""
        patience = self.settings.shutdown_sec if patience_sec is None else patience_sec
        if self._look is not None:
            self._look.cancel()
        for listener in self._listeners:
            listener.close()
        if self._turns is not None and self._attendance is not None:
            self._turns.run(self._take_leave)
            calls = asyncio.ensure_future(self._web.webhooks.close(patience)) if self._web is not None else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._attendance.empty.wait(), patience)
            if calls is not None:
                await calls
            self.abort()
            self._turns.stop()
        if self._gate is not None:
            self._gate.close()
        if self._web is not None:
            self._web.close()
        if self._logins is not None:
            self._logins.close()
        await self.engine.stop()

    def abort(self) -> None:
        """Do not wait for anybody any longer."""
        if self._faces is not None:
            self._faces.abort_all()

    def _take_leave(self) -> None:
        if self._faces is not None:
            self._faces.close_all("shutdown")


def _log_output(settings: Settings) -> LogOutput:
    if settings.log_dir is None:
        return LogOutput(sys.stderr)
    path = settings.log_dir / LOG_FILE
    try:
        return LogOutput(sys.stderr, path)
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be written: {error.strerror}", argument="RAVENMQ_LOG_DIR") from None


def _certificates(settings: Settings) -> Certificates | None:
    if settings.tls_cert is None:
        return None
    return Certificates(
        TlsFiles(
            settings.tls_cert,
            settings.tls_key,
            settings.tls_key_password,
            settings.tls_ca,
            settings.tls_clients,
            settings.tls_min_version,
        )
    )


# The process


def serve(settings: Settings) -> int:
    """Run a server until a signal ends it; returns the exit code."""
    open_standard_streams()
    keep_freed_memory()
    slim_tls_buffers()
    with asyncio.Runner(loop_factory=loop_factory(settings.loop)) as runner:
        return runner.run(_serve(settings))


def loop_factory(name: str = "auto") -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, unless another is named; None stands for asyncio's own."""
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise InvalidConfig("uvloop is not installed", argument="ROOKERY_LOOP") from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(settings: Settings) -> int:
    server = Server(settings)
    take_library_logs(server.log)
    try:
        return await _run(server)
    finally:
        server.log_output.close()


async def _run(server: Server) -> int:
    settings = server.settings
    loop = asyncio.get_running_loop()
    signals = _Signals(loop)
    for warning in settings.warnings:
        server.log.warning("setting", text=warning)
    await server.start()
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    first = not any(key.admin for tenant in server.engine.shard.tenants for key in server.access.keys(tenant))
    if settings.auth_mode != "none" and settings.api_key is None and first:
        announce_admin_key(server, sys.stderr)
    # what exists now stays: the collector need not look at it again
    gc.collect()
    gc.freeze()
    loop_name = type(loop).__module__.partition(".")[0]
    if not compiled:
        server.log.warning("uncompiled", text=speed())
    server.log.info("listening", **server.addresses, pid=os.getpid(), compiled=compiled, loop=loop_name)
    if await _is_fenced(server, signals):
        # what this process still holds belongs to the other one: it writes nothing more, and lets go of its peers
        server.abort()
        server.log.error("stopped", how="fenced: another process has taken over the data directory")
        return 1
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
    stopping.result()
    server.log.info("stopped", how="in order")
    return 0


async def _is_fenced(server: Server, signals: _Signals) -> bool:
    """Wait for a reason to end; whether it is that another process has taken over."""
    waits = [asyncio.ensure_future(event.wait()) for event in (signals.first, server.fenced)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return server.fenced.is_set()


def take_library_logs(log: Log) -> None:
    """Have what libraries and the event loop report go to the log: their own way to stderr may block."""
    logging.getLogger().addHandler(LibraryLog(log))
    logging.captureWarnings(True)


def open_standard_streams() -> None:
    """Give a process that was started without standard streams empty ones.

    Otherwise the next file to be opened, perhaps of the journal, gets the number of stderr and is written to as such.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


class _Signals:
    """The first and the second wish to end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._received)
            except NotImplementedError:
                # Windows: the handler runs between two steps of the program, and must wake the loop
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._received))

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
            if hasattr(os, "fchmod"):
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


def slim_tls_buffers() -> None:
    """Have asyncio's own loop keep a buffer of two TLS records for each connection, and not one of 256 KiB."""
    from asyncio import sslproto

    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed for the next batch, instead of giving it back and asking for it again."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((-3, 32 << 20), (-1, 64 << 20), (-2, 1 << 20)):  # mmap and trim threshold, top pad
            mallopt(option, value)

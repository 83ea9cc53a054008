"""Faces over the loop's turns: how a server, or a program that embeds a broker, comes to serve them.

`attach` opens listeners on the engine of an async broker, in the broker's own loop; `attach_thread` on that of a
blocking one, in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from rookery import __version__
from rookery.config import Settings
from rookery.core.access import Access
from rookery.embed.engine import AsyncEngine, Engine
from rookery.errors import InvalidArgument
from rookery.gate import Gate
from rookery.listeners import Attendance, Listener
from rookery.logins import Logins
from rookery.logs import LogOutput, make_log
from rookery.turns import Driver, Turns
from rookery.web import Web
from rookery.wire.amqp import AmqpFace
from rookery.wire.line import LineFace
from rookery.wire.turn import Face

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.embed import AsyncBroker, Broker
    from rookery.logs import Log

CONNECTIONS_MAX: Final = 10_000
PATIENCE_SEC: Final = 1.0

CAPABILITIES: Final[dict[str, object]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "connection.blocked": True,
    "direct_reply_to": True,
}


def amqp_face(turns: Turns, gate: Gate, log: Log) -> AmqpFace:
    """A face that logs in at the gate, and ends the connections of those who lose their rights."""
    face = AmqpFace(turns.turn, gate.login, gate.enter, _random_text)
    face.log = lambda event, peer, reason: log.warning(event, peer=peer, reason=reason)
    face.server_properties = {
        "product": "Rookery",
        "version": __version__,
        "platform": "Python",
        "capabilities": CAPABILITIES,
    }
    _look_around(face, turns, gate)
    return face


def line_face(turns: Turns, gate: Gate, log: Log) -> LineFace:
    """A face of the line protocol that logs in at the gate, and ends the connections of those who lose their rights."""
    loop = asyncio.get_running_loop()

    def later(delay_ms: int, work: Callable[[], None]) -> asyncio.TimerHandle:
        return loop.call_later(delay_ms / 1000, turns.run, work)

    face = LineFace(turns.turn, gate.guest, gate.log_in, later)
    face.log = lambda event, peer, reason: log.warning(event, peer=peer, reason=reason)
    _look_around(face, turns, gate)
    return face


def _look_around(face: AmqpFace | LineFace, turns: Turns, gate: Gate) -> None:
    """Have a face do what time asks for, once a second, and look whether everyone still has rights, also when some
    were taken away.
    """

    def look_around() -> None:
        face.tick()
        face.recheck(gate.still_valid, False)

    turns.on_tick.append(look_around)
    turns.on_revoked.append(lambda: face.recheck(gate.still_valid, True))


def _random_text() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()


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
    """Listeners on a broker's engine; `close` ends them and leaves the broker as it is.

    `amqp`, `http` and `line` are the addresses of those that were asked for, else empty.
    """

    def __init__(self, engine: AsyncEngine | Engine, clock: Clock, access: Access | None, settings: Settings) -> None:
        self._log_output = LogOutput(sys.stderr)
        log = make_log(settings.log_level, self._log_output, settings.secrets())
        if access is None:
            access = Access(os.urandom, guest=settings.guest)
            access.set_fixed_key(settings.api_key)
        driver: Driver = _Locking(engine) if isinstance(engine, Engine) else engine
        self.amqp = ""
        self.http = ""
        self.line = ""
        self._turns = Turns(driver, log)
        self._logins = Logins(self._turns, settings.login_failures_max)
        open_to_all = settings.auth_mode == "none"
        self._gate = Gate(access, self._turns, clock, log, self._logins, open_to_all=open_to_all)
        self._web = Web(engine, self._turns, access, clock, log, self._logins, settings)
        self._faces: dict[str, Face] = {
            "amqp": amqp_face(self._turns, self._gate, log),
            "http": self._web.face,
            "line": line_face(self._turns, self._gate, log),
        }
        self._web.faces |= self._faces
        self._attendance = Attendance(CONNECTIONS_MAX, log, settings.address_connections_max)
        self._listeners: list[Listener] = []
        self._log = log

    async def open(self, host: str, ports: dict[str, int | None]) -> Attached:
        """Open the listeners that have a port, all of them or none."""
        if all(port is None for port in ports.values()):
            raise InvalidArgument("name a face to attach: amqp, http or line", argument="amqp")
        for name, port in ports.items():
            if port is None:
                continue
            face = self._faces[name]
            self._attendance.attend(face)
            listener = Listener(face, self._attendance, self._log)
            try:
                address = await listener.open(host, port)
            except OSError:
                await self.close()
                raise
            self._listeners.append(listener)
            self._web.own_ports.add(int(address.rpartition(":")[2]))
            setattr(self, name, address)
        self._turns.start()
        return self

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._turns.run(self._take_leave)
        calls = asyncio.ensure_future(self._web.webhooks.close(PATIENCE_SEC))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._attendance.empty.wait(), PATIENCE_SEC)
        await calls
        for face in self._faces.values():
            face.abort_all()
        self._turns.stop()
        self._gate.close()
        self._web.close()
        self._logins.close()
        self._log_output.close()

    def _take_leave(self) -> None:
        for face in self._faces.values():
            face.close_all("shutdown")


async def attach(
    broker: AsyncBroker,
    *,
    amqp: int | None = None,
    http: int | None = None,
    line: int | None = None,
    host: str = "127.0.0.1",
    access: Access | None = None,
    settings: Settings | None = None,
) -> Attached:
    """Serve an async broker's tenants over AMQP, HTTP or the line protocol, in the broker's own loop.

    Each face that has a port is opened, 0 stands for any free one. `access` holds the keys and users that are let in;
    without one it is the guest, from this machine, and the `api_key` of `settings`. Those say what else HTTP has to
    know, as of a server.
    """
    attached = Attached(broker.engine, broker.clock, access, settings or _quiet())
    return await attached.open(host, {"amqp": amqp, "http": http, "line": line})


class AttachedThread:
    """Listeners on a blocking broker's engine, in a thread with a loop of its own."""

    def __init__(
        self, broker: Broker, host: str, access: Access | None, settings: Settings, ports: dict[str, int | None]
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rookery-faces", daemon=True)
        self._thread.start()

        async def begin() -> Attached:
            return await Attached(broker.engine, broker.clock, access, settings).open(host, ports)

        try:
            self._attached = asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        except BaseException:
            self._end()
            raise
        self.amqp = self._attached.amqp
        self.http = self._attached.http
        self.line = self._attached.line

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
    broker: Broker,
    *,
    amqp: int | None = None,
    http: int | None = None,
    line: int | None = None,
    host: str = "127.0.0.1",
    access: Access | None = None,
    settings: Settings | None = None,
) -> AttachedThread:
    """Serve a blocking broker's tenants, as `attach` does, in a thread."""
    ports = {"amqp": amqp, "http": http, "line": line}
    return AttachedThread(broker, host, access, settings or _quiet(), ports)


def _quiet() -> Settings:
    """What a server has by default, but a log of warnings only."""
    return Settings(log_level="warning")

"""Faces on a broker that a program embeds.

`attach` opens listeners on the engine of an async broker, in the broker's own loop; `attach_thread` on that of a
blocking one, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from rookery.config.settings import Settings
from rookery.core.access import Access
from rookery.engine.engine import AsyncEngine, Engine
from rookery.errors import InvalidArgument
from rookery.server.faces import Faces
from rookery.server.gate import Gate
from rookery.server.listeners import Attendance, Listener
from rookery.server.logins import Logins
from rookery.server.logs import LogOutput, make_log
from rookery.server.turns import Driver, Turns
from rookery.server.web import Web
from rookery.wire.protocols import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rookery.clock import Clock
    from rookery.embed import AsyncBroker, Broker

CONNECTIONS_MAX: Final = 10_000
PATIENCE_SEC: Final = 1.0


class _Locking:
    """A driver over the engine of a blocking broker, whose turns exclude one another only as context managers."""

    def __init__(self, engine: Engine) -> None:
        self.shard = engine.shard
        self._engine = engine

    def begin(self) -> None:
        self._engine.__enter__()

    def end(self) -> None:
        self._engine.leave()

    def attach(self, run: Callable[[Callable[[], None]], None], progressed: Callable[[], None]) -> None:
        self._engine.attach(run, progressed)

    def detach(self, progressed: Callable[[], None]) -> None:
        self._engine.detach(progressed)


class Attached:
    """Listeners on a broker's engine; `close` ends them and leaves the broker as it is.

    `addresses` has those that were asked for, by protocol; each is also an attribute of that name (`attached.amqp`),
    empty for a protocol that was not asked for.
    """

    def __init__(self, engine: AsyncEngine | Engine, clock: Clock, access: Access | None, settings: Settings) -> None:
        self._log_output = LogOutput(sys.stderr)
        log = make_log(settings.log_level, self._log_output, settings.secrets(), settings.env)
        if access is None:
            access = Access(os.urandom, guest=settings.guest)
            access.set_fixed_key(settings.api_key)
        driver: Driver = _Locking(engine) if isinstance(engine, Engine) else engine
        self.addresses: dict[str, str] = {}
        self._turns = Turns(driver, log)
        self._logins = Logins(self._turns, settings.login_failures_max)
        self._gate = Gate(
            access,
            self._turns,
            clock,
            log,
            self._logins,
            open_to_all=settings.auth_mode == "none",
            tenant_connections_max=settings.tenant_connections_max,
        )
        self._web = Web(engine, self._turns, access, clock, log, self._logins, settings)
        self._faces = Faces(self._web, self._gate, self._turns, log, settings)
        self._attendance = Attendance(CONNECTIONS_MAX, log, settings.address_connections_max)
        self._listeners: list[Listener] = []
        self._log = log

    def __getattr__(self, protocol: str) -> str:
        return _address(self.addresses, protocol)

    async def open(self, host: str, ports: Mapping[str, int]) -> Attached:
        """Open a listener on each port, all of them or none."""
        for name, port in ports.items():
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
            self.addresses[name] = address
        self._turns.start()
        return self

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._turns.run(lambda: self._faces.close_all("shutdown"))
        calls = asyncio.ensure_future(self._web.webhooks.close(PATIENCE_SEC))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._attendance.empty.wait(), PATIENCE_SEC)
        await calls
        self._faces.abort_all()
        self._turns.stop()
        self._gate.close()
        self._web.close()
        self._logins.close()
        self._log_output.close()


async def attach(
    broker: AsyncBroker,
    *,
    host: str = "127.0.0.1",
    access: Access | None = None,
    settings: Settings | None = None,
    **ports: int | None,
) -> Attached:
    """Serve an async broker's tenants over one or more protocols, in the broker's own loop.

    `ports` are by protocol: `attach(broker, amqp=5672, http=0)`. 0 stands for any free one, None for no listener.
    `access` holds the keys and users that are let in; without one it is the guest, from this machine, and the `api_key`
    of `settings`. The settings of ports, TLS and the store have no effect here; the others apply as in a server.
    """
    wanted = _wanted(ports)
    return await Attached(broker.engine, broker.clock, access, settings or _quiet()).open(host, wanted)


class AttachedThread:
    """Listeners on a blocking broker's engine, in a thread with a loop of its own; see `Attached`."""

    def __init__(
        self, broker: Broker, host: str, access: Access | None, settings: Settings, ports: Mapping[str, int]
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
        self.addresses = dict(self._attached.addresses)

    def __getattr__(self, protocol: str) -> str:
        return _address(self.addresses, protocol)

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
    host: str = "127.0.0.1",
    access: Access | None = None,
    settings: Settings | None = None,
    **ports: int | None,
) -> AttachedThread:
    """Serve a blocking broker's tenants, as `attach` does, in a thread."""
    return AttachedThread(broker, host, access, settings or _quiet(), _wanted(ports))


def _wanted(ports: Mapping[str, int | None]) -> dict[str, int]:
    """The ports that are to be opened, in the order of the protocols; names are checked."""
    *others, last = PROTOCOLS
    known = f"{', '.join(others)} or {last}"
    for name in ports:
        if name not in PROTOCOLS:
            raise InvalidArgument(f"there is no protocol {name!r} to attach: use {known}", argument=name)
    wanted = {name: port for name in PROTOCOLS if (port := ports.get(name)) is not None}
    if not wanted:
        raise InvalidArgument(f"name a port to attach, of {known}", argument="ports")
    return wanted


def _address(addresses: Mapping[str, str], protocol: str) -> str:
    if protocol not in PROTOCOLS:
        raise AttributeError(protocol)
    return addresses.get(protocol, "")


def _quiet() -> Settings:
    """What a server has by default, but a log of warnings only."""
    return Settings(log_level="warning")

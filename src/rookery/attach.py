"""AMQP and the line protocol over the loop's turns: how a server, or a program that embeds a broker, comes to serve it.

`attach` opens a listener on the engine of an async broker, in the broker's own loop; `attach_thread` on that of a
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
from rookery.core.access import Access
from rookery.gate import Gate
from rookery.listeners import Attendance, Listener
from rookery.logs import make_log
from rookery.turns import Driver, Turns
from rookery.wire.amqp import AmqpFace
from rookery.wire.line import LineFace

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.embed import AsyncBroker, Broker
    from rookery.embed.engine import Engine
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


def amqp_face(turns: Turns, gate: Gate, access: Access, log: Log) -> AmqpFace:
    """A face that logs in at the gate, and ends the connections of those who lose their rights."""
    face = AmqpFace(turns.turn, gate.login, gate.enter, _random_text)
    face.log = lambda event, peer, reason: log.warning(event, peer=peer, reason=reason)
    face.server_properties = {
        "product": "Rookery",
        "version": __version__,
        "platform": "Python",
        "capabilities": CAPABILITIES,
    }
    _look_around(face, turns, gate, access)
    return face


def line_face(turns: Turns, gate: Gate, access: Access, log: Log) -> LineFace:
    """A face of the line protocol that logs in at the gate, and ends the connections of those who lose their rights."""
    loop = asyncio.get_running_loop()

    def later(delay_ms: int, work: Callable[[], None]) -> asyncio.TimerHandle:
        return loop.call_later(delay_ms / 1000, turns.run, work)

    face = LineFace(turns.turn, gate.guest, gate.log_in, later)
    face.log = lambda event, peer, reason: log.warning(event, peer=peer, reason=reason)
    _look_around(face, turns, gate, access)
    return face


def _look_around(face: AmqpFace | LineFace, turns: Turns, gate: Gate, access: Access) -> None:
    """Once a second, have a face do what time asks for, and look whether everyone still has rights."""
    known = access.generation

    def look_around() -> None:
        nonlocal known
        face.tick()
        moved = access.generation != known
        known = access.generation
        face.recheck(gate.still_valid, moved)

    turns.on_tick.append(look_around)


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
    """A listener on a broker's engine; `close` ends it and leaves the broker as it is."""

    def __init__(self, driver: Driver, clock: Clock, access: Access | None) -> None:
        log = make_log("warning", sys.stderr)
        access = access or Access(os.urandom)
        self.amqp = ""
        self._turns = Turns(driver, log)
        self._gate = Gate(access, self._turns, clock, log)
        self._face = amqp_face(self._turns, self._gate, access, log)
        self._attendance = Attendance(CONNECTIONS_MAX, log)
        self._attendance.attend(self._face)
        self._listener = Listener(self._face, self._attendance, log)

    async def open(self, host: str, port: int) -> Attached:
        self.amqp = await self._listener.open(host, port)
        self._turns.start()
        return self

    async def close(self) -> None:
        self._listener.close()
        self._turns.run(lambda: self._face.close_all("shutdown"))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._attendance.empty.wait(), PATIENCE_SEC)
        self._face.abort_all()
        self._turns.stop()
        self._gate.close()


async def attach(broker: AsyncBroker, *, amqp: int, host: str = "127.0.0.1", access: Access | None = None) -> Attached:
    """Serve an async broker's tenants over AMQP, in the broker's own loop. `amqp` is a port, 0 for any free one."""
    return await Attached(broker.engine, broker.clock, access).open(host, amqp)


class AttachedThread:
    """A listener on a blocking broker's engine, in a thread with a loop of its own."""

    def __init__(self, broker: Broker, *, amqp: int, host: str = "127.0.0.1", access: Access | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rookery-amqp", daemon=True)
        self._thread.start()

        async def begin() -> Attached:
            return await Attached(_Locking(broker.engine), broker.clock, access).open(host, amqp)

        try:
            self._attached = asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
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

"""The faces of a server: made from the registered protocols, kept in time with the turns, dismissed together."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING

from rookery.server.logs import explainer
from rookery.wire.face import Services
from rookery.wire.protocols import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.config.settings import Settings
    from rookery.server.gate import Gate
    from rookery.server.logs import Log
    from rookery.server.turns import Turns
    from rookery.server.web import Web
    from rookery.wire.turn import Face


class Faces:
    """A face for each protocol of `rookery.wire.protocols`, by name. That of HTTP is there already, with the API.

    Once a second each does what time asks of its connections, and dismisses those whose access has expired; right after
    access was revoked, those who lost it. The API and the gate see the same faces.
    """

    def __init__(self, web: Web, gate: Gate, turns: Turns, log: Log, settings: Settings) -> None:
        self._all = web.faces
        self._gate = gate
        loop = asyncio.get_running_loop()

        def later(delay_ms: int, work: Callable[[], None]) -> asyncio.TimerHandle:
            return loop.call_later(delay_ms / 1000, turns.run, work)

        def warn(event: str, peer: str, reason: str) -> None:
            log.warning(event, peer=peer, reason=reason)

        services = Services(turns.turn, gate, later, warn, _random_text)
        for name, protocol in PROTOCOLS.items():
            if name not in self._all:
                assert protocol.make is not None, f"nobody makes the face of {name}"
                self._all[name] = protocol.make(services, settings)
        for face in self._all.values():
            face.handshake_ms = round(settings.handshake_sec * 1_000)
            if settings.env == "development":
                face.explain = explainer(settings.secrets())
        gate.faces = self._all
        turns.on_tick.append(self._tick)
        turns.on_revoked.append(self._recheck)

    def __getitem__(self, protocol: str) -> Face:
        return self._all[protocol]

    def _tick(self) -> None:
        for face in self._all.values():
            face.tick()
            face.recheck(self._gate.still_valid, False)

    def _recheck(self) -> None:
        for face in self._all.values():
            face.recheck(self._gate.still_valid, True)

    def close_all(self, reason: str) -> None:
        """Tell every peer that the server stops. Called in a turn."""
        for face in self._all.values():
            face.close_all(reason)

    def abort_all(self) -> None:
        """Drop every peer at once."""
        for face in self._all.values():
            face.abort_all()


def _random_text() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()

"""How a server comes to its face of the line protocol: guests and logins at the gate, and the settings it heeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rookery.wire.line.connection import LineConnection, LineFace

if TYPE_CHECKING:
    from rookery.wire.face import Services


class LineSettings(Protocol):
    """What of a server's settings concerns the line protocol."""

    @property
    def message_max_bytes(self) -> int: ...

    @property
    def dlq_suffix(self) -> str: ...


def make(services: Services, settings: LineSettings) -> LineFace:
    """A face that lets guests in, and logs others in, at the gate of a server."""
    gate = services.gate

    def login(connection: LineConnection, user: str, password: str) -> None:
        gate.log_in(connection, user, password, "AUTH", connection.login_done)

    face = LineFace(services.turn, gate.guest, login, services.later)
    face.log = services.warn
    face.line_max_bytes = min(face.line_max_bytes, settings.message_max_bytes)
    face.dlq_suffix = settings.dlq_suffix
    return face

"""How a server comes to its AMQP face: logins at the gate, what is said of the server, and the settings it heeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rookery._version import __version__
from rookery.wire.amqp.connection import AmqpConnection, AmqpFace

if TYPE_CHECKING:
    from rookery.core.access import Principal
    from rookery.wire.face import Services

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


class AmqpSettings(Protocol):
    """What of a server's settings concerns AMQP."""

    @property
    def channels_max(self) -> int: ...

    @property
    def heartbeat_sec(self) -> int: ...


def make(services: Services, settings: AmqpSettings) -> AmqpFace:
    """A face that logs in at the gate of a server."""
    gate = services.gate

    def login(connection: AmqpConnection, user: str, password: str) -> None:
        gate.verify(connection, user, password, connection.mechanism, connection.login_done)

    def enter(connection: AmqpConnection, user: str, password: str, tenant: str) -> Principal:
        return gate.enter(connection, user, password, connection.mechanism, tenant)

    face = AmqpFace(services.turn, login, enter, services.random_text)
    face.log = services.warn
    face.channels_max = settings.channels_max
    face.heartbeat_sec = settings.heartbeat_sec
    face.server_properties = {
        "product": "Rookery",
        "version": __version__,
        "platform": "Python",
        "capabilities": CAPABILITIES,
    }
    return face

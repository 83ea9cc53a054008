"""AMQP 0-9-1 without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rookery.wire.face import Services, WireProtocol

if TYPE_CHECKING:
    from rookery.wire.turn import Face


def _make(services: Services, settings: Any) -> Face:
    from rookery.wire.amqp.face import make

    return make(services, settings)


PROTOCOL: Final = WireProtocol(name="amqp", title="AMQP 0-9-1", make=_make, port=5672, tls_port=5671)

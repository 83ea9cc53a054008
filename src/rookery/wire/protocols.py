"""The protocols that a server speaks. To add one, write its package (see `rookery.wire.face`) and name it here."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from rookery.wire.face import PortSetting, WireProtocol

NAMES: Final = (
    "http",
    "amqp",
    "line",
)
"""Packages of `rookery.wire`, in the order in which their listeners are opened and logged."""


def _load(name: str) -> WireProtocol:
    protocol: WireProtocol = import_module(f"rookery.wire.{name}").PROTOCOL
    assert protocol.name == name
    return protocol


PROTOCOLS: Final[dict[str, WireProtocol]] = {name: _load(name) for name in NAMES}
"""By name."""


def ports() -> tuple[PortSetting, ...]:
    """The settings of all ports, protocol by protocol."""
    return tuple(port for protocol in PROTOCOLS.values() for port in protocol.ports())


def listeners() -> tuple[str, ...]:
    """What listeners are called, in the `listening` line of the log too."""
    return tuple(port.listener for port in ports())

"""What a protocol tells the server about itself, and what the server offers a protocol.

A protocol is a package of `rookery.wire` whose `PROTOCOL` is a `WireProtocol`, and a line in
`rookery.wire.protocols.NAMES`. Everything else follows from these: its ports and their settings, its listeners, and,
as its `Face` keeps its connections, their limits, their place in the API and in the metrics, the check of their access
and their end.

This module and a protocol's `__init__` are imported wherever settings are read, so they import nothing that is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from rookery.core.access import Principal
    from rookery.wire.turn import Face, Peer, Turn

EXTERNAL: Final = "EXTERNAL"
"""The mechanism of a login by the peer's own certificate."""


class Gate(Protocol):
    """Who peers are. Outcomes are told in a turn, at once or, where a password has to be verified, later.

    `mechanism` is how the credential was shown, for the log; EXTERNAL stands for the peer's certificate. Failed logins
    are counted and logged here, and refused after too many; so are connections beyond the limit of a tenant.
    """

    def guest(self, peer: Peer) -> Principal | None:
        """Who a peer is that shows no credential; None when it has to show one."""

    def log_in(
        self, peer: Peer, user: str, password: str, mechanism: str, done: Callable[[Principal | None, str], None]
    ) -> None:
        """Verify a user and a password, or without a user an API key; then `done` with the principal, or with None and
        the reason. The tenant is the credential's own.
        """

    def verify(self, peer: Peer, user: str, password: str, mechanism: str, done: Callable[[bool], None]) -> None:
        """For protocols that name the tenant later: verify a user and a password; then `done` with the outcome, and
        when the tenant is known `enter`.
        """

    def enter(self, peer: Peer, user: str, password: str, mechanism: str, tenant: str) -> Principal:
        """The principal in a tenant of a user that was verified; raises what refuses it."""


class Timer(Protocol):
    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What a server offers the faces that it makes.

    `later(delay_ms, work)` runs work in a turn of its own. `warn(event, peer_name, reason)` writes to the log.
    """

    turn: Turn
    gate: Gate
    later: Callable[[int, Callable[[], None]], Timer]
    warn: Callable[[str, str, str], None]
    random_text: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProtocol:
    """A protocol, before anything of it runs. Its listeners are called `name` and, over TLS, `tls_name`.

    `make(services, settings)` makes the face; a protocol reads its own settings there. None is for the protocol that
    the server's API is served over: the server makes its face together with the API. `port` and `tls_port` are the
    defaults, None for off. With `local_if_open` it is listened for on loopback only while authentication is off.
    """

    name: str
    title: str
    make: Callable[[Services, Any], Face] | None
    port: int | None
    tls_port: int | None = None
    port_variable: str = ""
    local_if_open: bool = False

    @property
    def tls_name(self) -> str:
        return f"{self.name}s"

    def ports(self) -> tuple[PortSetting, PortSetting]:
        """The settings of its two ports."""
        name = self.name
        plain = self.port_variable or f"ROOKERY_{name.upper()}_PORT"
        over_tls = f"port of {self.title} over TLS, open if there is a certificate"
        return (
            PortSetting(name, f"{name}_port", plain, f"{name}.port", self.port, f"port of {self.title}"),
            PortSetting(
                self.tls_name,
                f"{name}_tls_port",
                f"ROOKERY_{name.upper()}_TLS_PORT",
                f"{name}.tls_port",
                self.tls_port,
                over_tls,
            ),
        )


@dataclass(frozen=True, slots=True)
class PortSetting:
    """The setting of a listener's port: its field, variable and TOML key, its default and what it is for."""

    listener: str
    field: str
    variable: str
    key: str
    default: int | None
    help: str

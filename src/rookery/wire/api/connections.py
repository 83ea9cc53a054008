"""Who is connected, by any protocol: list them, and close one."""

from __future__ import annotations

from typing import Final

import msgspec

from rookery.core.access import Principal
from rookery.errors import Conflict, NotFound
from rookery.wire.api.broker import Api
from rookery.wire.api.shapes import Deleted
from rookery.wire.api.types import Many
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router
from rookery.wire.turn import OPERATOR, Peer

REASON_CHARS_MAX: Final = 200
"""So much of an operator's reason is told to the peer whose connection is closed."""


class ConnectionShown(msgspec.Struct):
    id: str
    protocol: str
    peer: str
    tenant: str | None
    user: str | None
    channels: int


class ConnectionList(msgspec.Struct):
    """`more` says that there are others beyond the limit."""

    connections: list[ConnectionShown]
    more: bool


class Connections:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def connections(self, call: Call, limit: Many = 100) -> ConnectionList:
        """Who is connected: to one's own tenant, or to all (admin)."""
        principal: Principal = call.principal
        found = [
            _connection(peer)
            for face in self._api.faces.values()
            for peer in face.connections.values()
            if _sees(principal, peer)
        ]
        return ConnectionList(found[:limit], len(found) > limit)

    def close(self, call: Call, id: str, reason: str = "closed by an operator") -> Deleted:
        """Close a connection: of one's own tenant, or any (admin)."""
        principal: Principal = call.principal
        for face in self._api.faces.values():
            for peer in face.connections.values():
                if _sees(principal, peer) and peer.label() == id:
                    if peer is call.connection:
                        raise Conflict("this is the connection that asks", argument="id")
                    peer.dismiss(OPERATOR, reason[:REASON_CHARS_MAX])
                    return Deleted(id)
        raise NotFound(f"no connection {id!r}", argument="id")


def _sees(principal: Principal, peer: Peer) -> bool:
    """Whether a connection is shown to a caller."""
    return principal.admin or (peer.principal is not None and peer.principal.tenant == principal.tenant)


def _connection(peer: Peer) -> ConnectionShown:
    principal = peer.principal
    return ConnectionShown(
        id=peer.label(),
        protocol=peer.protocol,
        peer=peer.peer_name,
        tenant=None if principal is None else principal.tenant,
        user=None if principal is None else principal.name,
        channels=peer.channel_count(),
    )


def add_routes(router: Router, api: Api) -> None:
    routes = Connections(api)
    router.add(
        "GET", "/api/v1/connections", routes.connections, {200: ConnectionList}, "connection.list", tag="connections"
    )
    router.add(
        "DELETE", "/api/v1/connections/{id}", routes.close, {200: Deleted}, "connection.close", tag="connections"
    )

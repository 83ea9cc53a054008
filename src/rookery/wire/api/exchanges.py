"""Exchanges of a tenant: list, get, make, delete, with their counts."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rookery.core import rights
from rookery.core.definitions import plain_table, table_of
from rookery.core.snapshots import exchange_stats
from rookery.core.topology import STANDARD_EXCHANGES, Exchange
from rookery.errors import AccessRefused, Conflict
from rookery.wire.api.broker import Api
from rookery.wire.api.shapes import Deleted
from rookery.wire.api.types import Many, Name, Short
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router

Kind = Literal["direct", "fanout", "topic", "headers", "consistent-hash"]


class ExchangeWanted(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: Short = ""
    arguments: dict[str, Any] = {}


class ExchangeShown(msgspec.Struct):
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None
    arguments: dict[str, Any]
    stats: dict[str, Any]


class ExchangePage(msgspec.Struct):
    exchanges: list[ExchangeShown]
    next: str | None


class Exchanges:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def exchanges(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> object:
        """The exchanges that the caller may read, by name."""
        tenant = self._api.tenant(call)

        def show(name: str) -> ExchangeShown | None:
            exchange = tenant.exchanges.get(name)
            return None if exchange is None else _exchange(exchange)

        return self._api.page(call, [n for n in tenant.exchanges if n], (prefix, after, limit), show, ExchangePage)

    def exchange(self, call: Call, name: Name) -> ExchangeShown:
        """An exchange with its counts."""
        return _exchange(self._api.tenant(call).exchange(name))

    def declare_exchange(self, call: Call, name: Name, body: ExchangeWanted) -> Answer:
        """Make an exchange. The same again is fine, another of the name a conflict. An alternate needs the right to
        read the exchange and to write to the alternate.
        """
        if body.alternate:
            rights.require(call.principal, "exchange.alternate", "exchange", name)
            rights.require(call.principal, "exchange.alternate", "alternate", body.alternate)
        if name.startswith("amq.") and name not in STANDARD_EXCHANGES:
            raise AccessRefused(f"exchange '{name}': names that begin with 'amq.' are reserved")
        exchange, created = self._api.tenant(call).declare_exchange(
            name,
            body.kind,
            body.durable,
            body.auto_delete,
            body.internal,
            body.alternate,
            table_of(body.arguments),
        )
        call.lasting()
        return Answer(201 if created else 200, _exchange(exchange))

    def delete_exchange(self, call: Call, name: Name, if_unused: bool = False) -> Deleted:
        """Delete an exchange with its bindings."""
        if name in STANDARD_EXCHANGES:
            raise Conflict(f"exchange {name!r} is built in", argument="exchange")
        self._api.tenant(call).delete_exchange(name, if_unused)
        call.lasting()
        return Deleted(name)


def _exchange(exchange: Exchange) -> ExchangeShown:
    return ExchangeShown(
        exchange.name,
        exchange.kind,
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.alternate or None,
        plain_table(exchange.arguments),
        exchange_stats(exchange),
    )


def add_routes(router: Router, api: Api) -> None:
    routes = Exchanges(api)
    one = "/api/v1/exchanges/{name}"
    made: Final = {201: ExchangeShown, 200: ExchangeShown}
    router.add("GET", "/api/v1/exchanges", routes.exchanges, {200: ExchangePage}, "exchange.list", tag="exchanges")
    router.add("GET", one, routes.exchange, {200: ExchangeShown}, "exchange.show", tag="exchanges")
    router.add("PUT", one, routes.declare_exchange, made, "exchange.declare", tag="exchanges")
    router.add("DELETE", one, routes.delete_exchange, {200: Deleted}, "exchange.delete", tag="exchanges")

"""Bindings of a tenant: which exchange routes to which queue, stream or exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from rookery.core import rights
from rookery.core.access import Principal
from rookery.core.definitions import plain_table, table_of, target_of
from rookery.core.queue import Queue
from rookery.core.stream import Stream
from rookery.core.topology import Exchange, Tenant, kind_of
from rookery.errors import InvalidArgument
from rookery.wire.api.broker import Api
from rookery.wire.api.types import Many, Name, Short
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router, decode_json

TargetKind = Literal["queue", "stream", "exchange"]

STEP_ROWS: Final = 1_000
"""So many bindings are looked at in one turn."""

_table = msgspec.json.Decoder(dict[str, Any])


class Binding(msgspec.Struct, forbid_unknown_fields=True):
    """From exchange `source` to a target, for messages whose key matches."""

    source: Name
    target: Name
    target_kind: TargetKind = "queue"
    key: Short = ""
    arguments: dict[str, Any] = {}


class BindingList(msgspec.Struct):
    """`more` says that there are others beyond the limit."""

    bindings: list[Binding]
    more: bool


class Bound(msgspec.Struct):
    created: bool
    binding: Binding


class Unbound(msgspec.Struct):
    deleted: bool


class Bindings:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def bindings(self, call: Call, source: str = "", target: str = "", limit: Many = 1_000) -> object:
        """The bindings whose ends the caller may read, of one source or target if it is named."""
        tenant = self._api.tenant(call)
        sources = [tenant.exchange(source)] if source else [tenant.exchanges[name] for name in sorted(tenant.exchanges)]
        found: list[Binding] = []
        work = _bindings(sources, target, limit, call.principal, found)
        return self._api.in_steps(call, work, STEP_ROWS, lambda: BindingList(found[:limit], len(found) > limit))

    def bind(self, call: Call, body: Binding) -> Answer:
        """Let an exchange route to a queue, a stream or another exchange. Needs the right to read the source and to
        write to the target.
        """
        tenant, target = self._ends(call, body.source, body.target_kind, body.target)
        created = tenant.bind(body.source, target, body.key, table_of(body.arguments))
        call.lasting()
        return Answer(201 if created else 200, Bound(created, body))

    def unbind(
        self,
        call: Call,
        source: Name,
        target: Name,
        target_kind: TargetKind = "queue",
        key: Short = "",
        arguments: str = "",
    ) -> Unbound:
        """Take a binding away; `arguments`, if it has some, as a JSON object."""
        rights.require(call.principal, "binding.change", "source", source)
        table: dict[str, Any] = {}
        if arguments:
            try:
                table = decode_json(_table.decode, arguments.encode())
            except InvalidArgument as error:
                error.argument = "arguments"
                raise
        tenant, end = self._ends(call, source, target_kind, target)
        deleted = tenant.unbind(source, end, key, table_of(table))
        call.lasting()
        return Unbound(deleted)

    def _ends(self, call: Call, source: str, kind: str, name: str) -> tuple[Tenant, Queue | Stream | Exchange]:
        rights.require(call.principal, "binding.change", "source", source)
        rights.require(call.principal, "binding.change", "target", name, kind)
        tenant = self._api.tenant(call)
        target = target_of(tenant, kind, name)
        if isinstance(target, Queue):
            tenant.check_owner(target, None)
        return tenant, target


def _bindings(
    sources: list[Exchange], target: str, limit: int, principal: Principal, found: list[Binding]
) -> Iterator[None]:
    """Find one binding more than the limit, or all; a step for each that is looked at."""
    for exchange in sources:
        if not exchange.name or not principal.may("read", exchange.name):
            continue
        for row in exchange.matcher.rows():
            to = exchange.matcher.target_of(row)
            if isinstance(to, Queue | Stream | Exchange) and target in ("", to.name) and principal.may("read", to.name):
                found.append(Binding(exchange.name, to.name, _kind(to), row.key, plain_table(row.arguments or {})))
                if len(found) > limit:
                    return
            yield


def _kind(target: object) -> TargetKind:
    kind: Any = kind_of(target)
    found: TargetKind = kind
    return found


def add_routes(router: Router, api: Api) -> None:
    routes = Bindings(api)
    router.add("GET", "/api/v1/bindings", routes.bindings, {200: BindingList}, "binding.list", tag="exchanges")
    router.add("POST", "/api/v1/bindings", routes.bind, {201: Bound, 200: Bound}, "binding.change", tag="exchanges")
    router.add("DELETE", "/api/v1/bindings", routes.unbind, {200: Unbound}, "binding.change", tag="exchanges")

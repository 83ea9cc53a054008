"""Definitions of tenants as one document, to be exported and loaded, in steps.

Whoever may configure everything in a tenant sees and loads its definitions; those of others need the admin right.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from rookery.core import definitions
from rookery.core.access import Principal
from rookery.core.topology import Tenant
from rookery.errors import AccessRefused
from rookery.wire.api.broker import Api
from rookery.wire.api.tenants import tenant_of
from rookery.wire.http.call import JSON, Call
from rookery.wire.http.routes import Content, Router, encode_json

STEP_ROWS: Final = 200
"""So many rows of a document are tried or loaded in one turn."""

EXPORT_ROWS: Final = 1_000
"""So many rows of a document are written in one turn."""

STEP_CHECKS: Final = 50
"""For so many rows it is checked in one turn whether the caller may load them."""


class Definitions(msgspec.Struct, omit_defaults=True):
    """As `rookery.core.definitions` writes them; loading adds to what is there."""

    rookery: int
    tenants: list[dict[str, Any]]
    access: dict[str, Any] | None = None


class DefinitionsLoaded(msgspec.Struct):
    status: str
    tenants: list[str]


class DefinitionRoutes:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shard = api.shard
        self._access = api.rest.access

    def export(self, call: Call, tenant: str = "", all: bool = False, access: bool = False) -> object:
        """The definitions of a tenant, by default one's own, without messages. With `all` (admin) those of every
        tenant, with `access` (admin) also keys and users, as digests. A large document is made in steps, between which
        others are served: a change that is made meanwhile may be in it or not.
        """
        principal: Principal = call.principal
        if all or access:
            principal.require_admin()
        if all:
            tenants = [self._shard.tenants[name] for name in sorted(self._shard.tenants)]
        else:
            tenants = [tenant_of(self._api, call, tenant or principal.tenant)]
        parts: list[bytes] = []

        def work() -> Iterator[None]:
            yield from self._write(tenants, parts)
            parts.append(b',"access":' + encode_json(self._access.export()) + b"}" if access else b"}")

        return self._api.in_steps(call, work(), EXPORT_ROWS, lambda: Content(b"".join(parts), JSON))

    def _write(self, tenants: list[Tenant], parts: list[bytes]) -> Iterator[None]:
        """The document up to its list of tenants, as JSON, a row at a time."""
        between = b'{"rookery":%d,"tenants":[' % definitions.VERSION
        for tenant in tenants:
            if self._shard.tenants.get(tenant.name) is not tenant:
                continue
            parts += [between, encode_json(definitions.head(tenant))[:-1]]
            between = b","
            for section, rows in definitions.sections(tenant).items():
                parts.append(b',"%s":[' % section.encode())
                comma = b""
                for row in rows:
                    if row is not None:
                        parts.append(comma + encode_json(row))
                        comma = b","
                    yield
                parts.append(b"]")
            parts.append(b"}")
        parts.append(b"]" if between == b"," else between + b"]")

    def load(self, call: Call, body: definitions.Document) -> object:
        """Let everything in the document exist; on an error nothing changes. Without the admin right only for one's own
        tenant, whose limits stay as they are. A large document is loaded in steps, between which others are served;
        meanwhile the definitions of its tenants cannot be changed otherwise.
        """
        principal: Principal = call.principal
        if not principal.admin:
            self._check_load(principal, body)
        definitions.check(body)
        loaded = DefinitionsLoaded("ok", [row.name for row in body.tenants])
        loading = definitions.Loading(self._shard, body, self._access)

        def answer() -> DefinitionsLoaded:
            call.lasting()
            return loaded

        work: Iterator[object] = loading.steps(STEP_ROWS)
        if not principal.admin:
            work = chain(_every(STEP_CHECKS, definitions.check_rights(principal, body)), work)
        return self._api.in_steps(call, work, 1, answer)

    def _check_load(self, principal: Principal, document: definitions.Document) -> None:
        if document.access is not None:
            raise AccessRefused("keys and users are loaded by admins")
        now = self._shard.tenant(principal.tenant).limits.as_dict()
        for row in document.tenants:
            if row.name != principal.tenant:
                raise AccessRefused(f"definitions of other tenants refused for user '{principal.name}'")
            if any(now.get(limit) != value for limit, value in row.limits.items()):
                raise AccessRefused("limits are changed by admins")


def _every(count: int, items: Iterator[None]) -> Iterator[None]:
    """One item for so many."""
    for number, _ in enumerate(items, 1):
        if number % count == 0:
            yield


def add_routes(router: Router, api: Api) -> None:
    routes = DefinitionRoutes(api)
    router.add("GET", "/api/v1/definitions", routes.export, {200: Definitions}, "tenant.definitions", tag="definitions")
    router.add("POST", "/api/v1/definitions", routes.load, {200: DefinitionsLoaded}, "tenant.load", tag="definitions")

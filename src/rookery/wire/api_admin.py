"""Tenants with their limits, users, definitions and connections.

Whoever may configure everything in a tenant sees and loads its definitions; all else here needs the admin right, but
for a look at one's own tenant and its connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from rookery.core import definitions, events
from rookery.core.access import DEFAULT_TENANT, PasswordHash, Principal, Rights, User, hash_password
from rookery.core.credentials import SALT_BYTES
from rookery.core.snapshots import add_to_totals, no_totals, tenant_stats
from rookery.core.topology import LIMITS, Tenant
from rookery.errors import AccessRefused, Conflict, NotFound, TenantNotFound
from rookery.wire.api import Api
from rookery.wire.api_queues import Deleted, page
from rookery.wire.http_call import JSON, Call
from rookery.wire.http_routes import Answer, Content, Router, encode_json
from rookery.wire.rest_keys import RightsWanted
from rookery.wire.rest_types import Many, Name

STEP_ROWS: Final = 200
"""So many rows of a document are tried or loaded in one turn."""

EXPORT_ROWS: Final = 1_000
"""So many rows of a document are written in one turn."""

STATS_QUEUES: Final = 1_000
"""So many queues are summed up in one turn."""

DELETED_QUEUES: Final = 500
"""So many queues of a tenant are deleted in one turn."""

STEP_CHECKS: Final = 50
"""For so many rows it is checked in one turn whether the caller may load them."""

CLOSED: Final = 320
"""AMQP's number for a connection that an operator closed."""

Limit = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Password = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]
UserName = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f:]+$")]


class LimitsWanted(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a tenant may have; 0 is no limit. What is not said stays."""

    connections_max: Limit | None = None
    queues_max: Limit | None = None
    exchanges_max: Limit | None = None
    streams_max: Limit | None = None
    bindings_max: Limit | None = None
    subscriptions_max: Limit | None = None
    queue_subscriptions_max: Limit | None = None
    waiting_claims_max: Limit | None = None
    message_bytes_max: Limit | None = None
    memory_bytes_max: Limit | None = None
    transaction_operations_max: Limit | None = None
    transaction_bytes_max: Limit | None = None
    transactions_max: Limit | None = None
    dedup_keys_max: Limit | None = None
    definition_bytes_max: Limit | None = None
    groups_max: Limit | None = None
    producers_max: Limit | None = None
    plans_max: Limit | None = None
    receipts_max: Limit | None = None
    kept_topics_max: Limit | None = None
    policies_max: Limit | None = None
    policy_states_max: Limit | None = None

    def said(self) -> dict[str, object]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


assert LimitsWanted.__struct_fields__ == LIMITS


class TenantWanted(msgspec.Struct, forbid_unknown_fields=True):
    limits: LimitsWanted | None = None


class TenantShown(msgspec.Struct):
    name: str
    limits: dict[str, int]
    stats: dict[str, Any]


class TenantPage(msgspec.Struct):
    tenants: list[TenantShown]
    next: str | None


class LimitsShown(msgspec.Struct):
    tenant: str
    limits: dict[str, int]


class UserWanted(msgspec.Struct, forbid_unknown_fields=True):
    """A new user needs a password; of an existing one, what is not said stays."""

    password: Password | None = None
    tenants: dict[str, RightsWanted] | None = None
    admin: bool | None = None


class UserShown(msgspec.Struct):
    name: str
    admin: bool
    tenants: dict[str, Rights]


class UserList(msgspec.Struct):
    users: list[UserShown]


class Definitions(msgspec.Struct, omit_defaults=True):
    """As `rookery.core.definitions` writes them; loading adds to what is there."""

    rookery: int
    tenants: list[dict[str, Any]]
    access: dict[str, Any] | None = None


class DefinitionsLoaded(msgspec.Struct):
    status: str
    tenants: list[str]


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


class Admin:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shard = api.shard
        self._access = api.rest.access

    # Tenants

    def tenants(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> object:
        """All tenants (admin)."""
        chosen, following = page(self._shard.tenants, prefix, after, limit)
        tenants = [self._shard.tenants[name] for name in chosen]
        return self._show(call, tenants, lambda shown: TenantPage(shown, following))

    def tenant(self, call: Call, tenant: Name) -> object:
        """A tenant: one's own, or any (admin)."""
        return self._show(call, [self._tenant(call, tenant)], lambda shown: shown[0])

    def create_tenant(self, call: Call, tenant: Name, body: TenantWanted | None = None) -> object:
        """Make a tenant, with limits if some are said (admin). Of an existing one these change."""
        limits = {} if body is None or body.limits is None else body.limits.said()
        found = self._shard.tenants.get(tenant)
        created = found is None
        if found is None:
            found = self._shard.create_tenant(tenant, limits)
        elif limits:
            found.set_limits(limits)

        def answer(shown: list[TenantShown]) -> Answer:
            call.lasting()
            return Answer(201 if created else 200, shown[0])

        return self._show(call, [found], answer)

    def _show(self, call: Call, tenants: list[Tenant], answer: Callable[[list[TenantShown]], object]) -> object:
        """Answer with what is made of the tenants as they are shown, once their queues are summed up."""
        shown: list[TenantShown] = []

        def work() -> Iterator[None]:
            for tenant in tenants:
                totals = no_totals()
                for queue in list(tenant.queues.values()):
                    add_to_totals(totals, queue)
                    yield
                shown.append(TenantShown(tenant.name, tenant.limits.as_dict(), tenant_stats(tenant, totals)))
                yield

        return self._api.in_steps(call, work(), STATS_QUEUES, lambda: answer(shown))

    def delete_tenant(self, call: Call, tenant: Name) -> object:
        """Delete a tenant with everything in it, and the access to it (admin). A large one is deleted in steps, between
        which others are served; if the server ends meanwhile, delete it again.
        """
        if tenant in (DEFAULT_TENANT, events.SYSTEM):
            raise Conflict(f"tenant {tenant!r} is always there", argument="tenant")
        work = definitions.deleting(self._shard, self._shard.tenant(tenant))

        def answer() -> Deleted:
            call.lasting()
            return Deleted(tenant)

        return self._api.in_steps(call, self._delete(tenant, work), DELETED_QUEUES, answer)

    def _delete(self, tenant: str, work: Iterator[None]) -> Iterator[None]:
        yield from work
        self._access.drop_tenant(tenant)

    def limits(self, call: Call, tenant: Name) -> LimitsShown:
        """What a tenant may have: one's own, or any (admin)."""
        return LimitsShown(tenant, self._tenant(call, tenant).limits.as_dict())

    def set_limits(self, call: Call, tenant: Name, body: LimitsWanted) -> LimitsShown:
        """Change what a tenant may have (admin)."""
        found = self._shard.tenant(tenant)
        found.set_limits(body.said())
        call.lasting()
        return LimitsShown(tenant, found.limits.as_dict())

    def _tenant(self, call: Call, name: str) -> Tenant:
        principal: Principal = call.principal
        if name != principal.tenant:
            principal.require_admin()
        return self._shard.tenant(name)

    # Users

    def users(self, call: Call) -> UserList:
        """All users (admin)."""
        return UserList([_user(user) for user in self._access.users()])

    def user(self, call: Call, user: UserName) -> UserShown:
        """A user (admin)."""
        found = next((each for each in self._access.users() if each.name == user), None)
        if found is None:
            raise NotFound(f"no such user: {user}", argument="user")
        return _user(found)

    def set_user(self, call: Call, user: UserName, body: UserWanted) -> object:
        """Make or change a user (admin)."""
        for tenant in body.tenants or ():
            if tenant not in self._shard.tenants:
                raise TenantNotFound(f"no tenant {tenant!r}", argument="tenants")
        if body.password is None:
            return self._put_user(call, user, body, None)
        password, salt = body.password, self._api.random_bytes(SALT_BYTES)
        return self._api.later(
            call, lambda: hash_password(password, salt), lambda hashed: self._put_user(call, user, body, hashed)
        )

    def _put_user(self, call: Call, name: str, wanted: UserWanted, password: PasswordHash | None) -> Answer:
        created = not any(each.name == name for each in self._access.users())
        tenants = wanted.tenants
        rights = None if tenants is None else {t: Rights(r.configure, r.write, r.read) for t, r in tenants.items()}
        made = self._access.set_user(name, password=password, tenants=rights, admin=wanted.admin)
        call.lasting()
        return Answer(201 if created else 200, _user(made))

    def delete_user(self, call: Call, user: UserName) -> Deleted:
        """Delete a user; its connections end (admin)."""
        self._access.delete_user(user)
        call.lasting()
        return Deleted(user)

    # Definitions

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
            tenants = [self._tenant(call, tenant or principal.tenant)]
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

    # Connections

    def connections(self, call: Call, limit: Many = 100) -> ConnectionList:
        """Who is connected: to one's own tenant, or to all (admin)."""
        principal: Principal = call.principal
        found = [
            shown
            for protocol, face in self._api.faces.items()
            for shown in (_connection(protocol, peer) for peer in _connections(face))
            if principal.admin or shown.tenant == principal.tenant
        ]
        return ConnectionList(found[:limit], len(found) > limit)

    def close(self, call: Call, id: str, reason: str = "closed by an operator") -> Deleted:
        """Close a connection: of one's own tenant, or any (admin)."""
        principal: Principal = call.principal
        for protocol, face in self._api.faces.items():
            for peer in _connections(face):
                shown = _connection(protocol, peer)
                if shown.id == id and (principal.admin or shown.tenant == principal.tenant):
                    if protocol == "amqp":
                        peer.close(CLOSED, f"CONNECTION_FORCED - {reason[:200]}")
                    elif protocol == "line":
                        peer.end(f"Error: {reason[:200]}")
                    elif peer is not call.connection:
                        peer.broken()
                    else:
                        raise Conflict("this is the connection that asks", argument="id")
                    return Deleted(id)
        raise NotFound(f"no connection {id!r}", argument="id")


def _user(user: User) -> UserShown:
    return UserShown(user.name, user.admin, dict(user.tenants))


def _connections(face: Any) -> list[Any]:
    return list(face.connections.values())


def _connection(protocol: str, peer: Any) -> ConnectionShown:
    principal: Principal | None = peer.credential_principal if protocol == "http" else peer.principal
    return ConnectionShown(
        id=f"{protocol}-{id(peer):x}",
        protocol=protocol,
        peer=peer.peer_name,
        tenant=None if principal is None else principal.tenant,
        user=None if principal is None else principal.name,
        channels=len(peer.channels) if protocol == "amqp" else 0,
    )


def _every(count: int, items: Iterator[None]) -> Iterator[None]:
    """One item for so many."""
    for number, _ in enumerate(items, 1):
        if number % count == 0:
            yield


def add_routes(router: Router, api: Api) -> None:
    routes = Admin(api)
    one = "/api/v1/tenants/{tenant}"
    router.add("GET", "/api/v1/tenants", routes.tenants, {200: TenantPage}, "tenant.list", tag="tenants")
    router.add("GET", one, routes.tenant, {200: TenantShown}, "tenant.show", tag="tenants")
    router.add("PUT", one, routes.create_tenant, {201: TenantShown, 200: TenantShown}, "tenant.change", tag="tenants")
    router.add("DELETE", one, routes.delete_tenant, {200: Deleted}, "tenant.change", tag="tenants")
    router.add("GET", f"{one}/limits", routes.limits, {200: LimitsShown}, "tenant.show", tag="tenants")
    router.add("PUT", f"{one}/limits", routes.set_limits, {200: LimitsShown}, "tenant.change", tag="tenants")
    one = "/api/v1/users/{user}"
    router.add("GET", "/api/v1/users", routes.users, {200: UserList}, "user.show", tag="users")
    router.add("GET", one, routes.user, {200: UserShown}, "user.show", tag="users")
    router.add("PUT", one, routes.set_user, {201: UserShown, 200: UserShown}, "user.change", tag="users")
    router.add("DELETE", one, routes.delete_user, {200: Deleted}, "user.change", tag="users")
    router.add("GET", "/api/v1/definitions", routes.export, {200: Definitions}, "tenant.definitions", tag="definitions")
    router.add("POST", "/api/v1/definitions", routes.load, {200: DefinitionsLoaded}, "tenant.load", tag="definitions")
    router.add(
        "GET", "/api/v1/connections", routes.connections, {200: ConnectionList}, "connection.list", tag="connections"
    )
    router.add(
        "DELETE", "/api/v1/connections/{id}", routes.close, {200: Deleted}, "connection.close", tag="connections"
    )

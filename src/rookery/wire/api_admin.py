"""Tenants with their limits, users, definitions and connections.

Whoever may configure everything in a tenant sees and loads its definitions; all else here needs the admin right, but
for a look at one's own tenant and its connections.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.core import definitions, events
from rookery.core.access import DEFAULT_TENANT, PasswordHash, Principal, Rights, User, hash_password
from rookery.core.credentials import SALT_BYTES
from rookery.core.snapshots import tenant_stats
from rookery.core.topology import LIMITS, Tenant
from rookery.errors import AccessRefused, Conflict, NotFound, TenantNotFound
from rookery.wire.api import Api, require_all
from rookery.wire.api_queues import Deleted, page
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Router
from rookery.wire.rest_keys import RightsWanted
from rookery.wire.rest_types import Many, Name

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


class DefinitionsWanted(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What an export gave."""

    rookery: Literal[1]
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

    def tenants(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> TenantPage:
        """All tenants (admin)."""
        call.principal.require_admin()
        chosen, following = page(self._shard.tenants, prefix, after, limit)
        return TenantPage([_tenant(self._shard.tenants[name]) for name in chosen], following)

    def tenant(self, call: Call, tenant: Name) -> TenantShown:
        """A tenant: one's own, or any (admin)."""
        return _tenant(self._tenant(call, tenant))

    def create_tenant(self, call: Call, tenant: Name, body: TenantWanted | None = None) -> Answer:
        """Make a tenant, with limits if some are said (admin). Of an existing one these change."""
        call.principal.require_admin()
        limits = {} if body is None or body.limits is None else body.limits.said()
        found = self._shard.tenants.get(tenant)
        created = found is None
        if found is None:
            found = self._shard.create_tenant(tenant, limits)
        elif limits:
            found.set_limits(limits)
        call.lasting()
        return Answer(201 if created else 200, _tenant(found))

    def delete_tenant(self, call: Call, tenant: Name) -> Deleted:
        """Delete a tenant with everything in it, and the access to it (admin)."""
        call.principal.require_admin()
        if tenant in (DEFAULT_TENANT, events.SYSTEM):
            raise Conflict(f"tenant {tenant!r} is always there", argument="tenant")
        self._shard.delete_tenant(tenant)
        self._access.drop_tenant(tenant)
        call.lasting()
        return Deleted(tenant)

    def limits(self, call: Call, tenant: Name) -> LimitsShown:
        """What a tenant may have: one's own, or any (admin)."""
        return LimitsShown(tenant, self._tenant(call, tenant).limits.as_dict())

    def set_limits(self, call: Call, tenant: Name, body: LimitsWanted) -> LimitsShown:
        """Change what a tenant may have (admin)."""
        call.principal.require_admin()
        found = self._shard.tenant(tenant)
        found.set_limits(body.said())
        call.lasting()
        return LimitsShown(tenant, found.limits.as_dict())

    def _tenant(self, call: Call, name: str) -> Tenant:
        principal: Principal = call.principal
        if name != principal.tenant:
            principal.require_admin()
        else:
            require_all(principal)
        return self._shard.tenant(name)

    # Users

    def users(self, call: Call) -> UserList:
        """All users (admin)."""
        call.principal.require_admin()
        return UserList([_user(user) for user in self._access.users()])

    def user(self, call: Call, user: UserName) -> UserShown:
        """A user (admin)."""
        call.principal.require_admin()
        found = next((each for each in self._access.users() if each.name == user), None)
        if found is None:
            raise NotFound(f"no such user: {user}", argument="user")
        return _user(found)

    def set_user(self, call: Call, user: UserName, body: UserWanted) -> object:
        """Make or change a user (admin)."""
        call.principal.require_admin()
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
        call.principal.require_admin()
        self._access.delete_user(user)
        call.lasting()
        return Deleted(user)

    # Definitions

    def export(self, call: Call, tenant: str = "", all: bool = False, access: bool = False) -> dict[str, Any]:
        """The definitions of a tenant, by default one's own, without messages. With `all` (admin) those of every
        tenant, with `access` (admin) also keys and users, as digests.
        """
        principal: Principal = call.principal
        if all or access:
            principal.require_admin()
        keys = self._access if access else None
        if all:
            return definitions.export(self._shard, keys)
        return definitions.export(self._tenant(call, tenant or principal.tenant), keys)

    def load(self, call: Call, body: DefinitionsWanted) -> DefinitionsLoaded:
        """Let everything in the document exist; on an error nothing changes. Without the admin right only for one's own
        tenant, whose limits stay as they are.
        """
        principal: Principal = call.principal
        require_all(principal)
        if not principal.admin:
            self._check_load(principal, body)
        definitions.load(self._shard, msgspec.to_builtins(body), self._access)
        call.lasting()
        return DefinitionsLoaded("ok", [row["name"] for row in body.tenants])

    def _check_load(self, principal: Principal, document: DefinitionsWanted) -> None:
        if document.access is not None:
            raise AccessRefused("keys and users are loaded by admins")
        now = self._shard.tenant(principal.tenant).limits.as_dict()
        for row in document.tenants:
            if row.get("name") != principal.tenant:
                raise AccessRefused(f"definitions of other tenants refused for user '{principal.name}'")
            limits = row.get("limits") or {}
            if not isinstance(limits, dict) or any(now.get(limit) != value for limit, value in limits.items()):
                raise AccessRefused("limits are changed by admins")
            hooks = row.get("webhooks") or []
            if not isinstance(hooks, list) or any(not isinstance(hook, dict) or hook.get("private") for hook in hooks):
                raise AccessRefused("webhooks whose endpoints may be private are loaded by admins")

    # Connections

    def connections(self, call: Call, limit: Many = 100) -> ConnectionList:
        """Who is connected: to one's own tenant, or to all (admin)."""
        principal: Principal = call.principal
        if not principal.admin:
            require_all(principal)
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
        if not principal.admin:
            require_all(principal)
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


def _tenant(tenant: Tenant) -> TenantShown:
    return TenantShown(tenant.name, tenant.limits.as_dict(), tenant_stats(tenant))


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


def add_routes(router: Router, api: Api) -> None:
    routes = Admin(api)
    one = "/api/v1/tenants/{tenant}"
    router.add("GET", "/api/v1/tenants", routes.tenants, {200: TenantPage}, tag="tenants")
    router.add("GET", one, routes.tenant, {200: TenantShown}, tag="tenants")
    router.add("PUT", one, routes.create_tenant, {201: TenantShown, 200: TenantShown}, tag="tenants")
    router.add("DELETE", one, routes.delete_tenant, {200: Deleted}, tag="tenants")
    router.add("GET", f"{one}/limits", routes.limits, {200: LimitsShown}, tag="tenants")
    router.add("PUT", f"{one}/limits", routes.set_limits, {200: LimitsShown}, tag="tenants")
    one = "/api/v1/users/{user}"
    router.add("GET", "/api/v1/users", routes.users, {200: UserList}, tag="users")
    router.add("GET", one, routes.user, {200: UserShown}, tag="users")
    router.add("PUT", one, routes.set_user, {201: UserShown, 200: UserShown}, tag="users")
    router.add("DELETE", one, routes.delete_user, {200: Deleted}, tag="users")
    router.add("GET", "/api/v1/definitions", routes.export, {200: Definitions}, tag="definitions")
    router.add("POST", "/api/v1/definitions", routes.load, {200: DefinitionsLoaded}, tag="definitions")
    router.add("GET", "/api/v1/connections", routes.connections, {200: ConnectionList}, tag="connections")
    router.add("DELETE", "/api/v1/connections/{id}", routes.close, {200: Deleted}, tag="connections")

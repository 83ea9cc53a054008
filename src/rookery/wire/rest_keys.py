"""API keys over HTTP: make, list and revoke them, and the rule about who may make one without a credential.

`local` is a program of this machine that speaks for itself (`http_auth.is_local`). Whoever makes a key without an admin
credential gets one without the admin right, and none for the default tenant or the system's.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rookery.core.access import DEFAULT_TENANT, FULL, ApiKey, IssuedKey, Principal, Rights
from rookery.core.topology import check_name
from rookery.errors import AccessRefused, InvalidArgument, Unauthenticated
from rookery.wire.http_auth import MISSING, is_local
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Router
from rookery.wire.rest import Rest
from rookery.wire.rest_types import Name, Regex

SYSTEM_TENANT: Final = "rookery"

ExpirySeconds = Annotated[int, msgspec.Meta(ge=1, le=10**10)]
Note = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class RightsWanted(msgspec.Struct, forbid_unknown_fields=True):
    """Regular expressions, searched in names; the empty one grants nothing."""

    configure: Regex
    write: Regex
    read: Regex


class KeyWanted(msgspec.Struct, forbid_unknown_fields=True):
    """Without `tenant`, the caller's own. The rights are full, and the key lasts, unless said otherwise."""

    tenant: Name | None = None
    rights: RightsWanted | None = None
    admin: bool = False
    expires_in_sec: ExpirySeconds | None = None
    note: Note = ""


class KeyMade(msgspec.Struct):
    """`api_key` is shown this once."""

    kid: str
    api_key: str
    tenant: str
    admin: bool
    expires_ms: int | None


class KeyShown(msgspec.Struct):
    kid: str
    tenant: str
    admin: bool
    rights: Rights
    created_ms: int
    expires_ms: int | None
    note: str


class KeyList(msgspec.Struct):
    keys: list[KeyShown]


class Revoked(msgspec.Struct):
    status: str
    kid: str


def check_may_create(rest: Rest, call: Call, tenant: str) -> None:
    """Raise unless the caller may make a key of that tenant."""
    mode = rest.options.key_creation
    principal: Principal | None = call.principal
    if mode == "closed":
        raise AccessRefused("no keys are made over HTTP here (ROOKERY_KEY_CREATION=closed)")
    if principal is not None and principal.admin:
        return
    if mode == "admin" and principal is None:
        raise Unauthenticated(MISSING)
    if mode == "admin" or tenant in (DEFAULT_TENANT, SYSTEM_TENANT):
        raise AccessRefused(f"a key of tenant '{tenant}' needs an admin credential")
    if mode == "local" and not is_local(call):
        raise AccessRefused("keys are made from this machine only (ROOKERY_KEY_CREATION=local)")


def create(rest: Rest, call: Call, tenant: str, wanted: KeyWanted) -> IssuedKey:
    """Make a key, and its tenant if that is new."""
    check_name(tenant, "tenant")
    check_may_create(rest, call, tenant)
    if wanted.admin and not (call.principal is not None and call.principal.admin):
        raise AccessRefused("a key with the admin right needs an admin credential")
    shard = rest.shard
    now_ms = int(shard.wall_ms)
    rights = FULL
    if wanted.rights is not None:
        rights = Rights(wanted.rights.configure, wanted.rights.write, wanted.rights.read)
    if tenant not in shard.tenants:
        shard.create_tenant(tenant)
    issued = rest.access.create_key(
        tenant,
        now_ms,
        rights=rights,
        admin=wanted.admin,
        expires_ms=None if wanted.expires_in_sec is None else now_ms + wanted.expires_in_sec * 1_000,
        note=wanted.note,
    )
    call.lasting()
    return issued


def create_by_anyone(rest: Rest, call: Call, tenant: str) -> str:
    return create(rest, call, tenant, KeyWanted(note="made by create_key")).text


class Keys:
    """The routes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._access = rest.access

    def create(self, call: Call, body: KeyWanted) -> KeyMade:
        """Make an API key."""
        tenant = body.tenant
        if tenant is None:
            if call.principal is None:
                raise InvalidArgument("tenant ID required", argument="tenant")
            tenant = call.principal.tenant
        issued = create(self._rest, call, tenant, body)
        record = issued.record
        return KeyMade(record.kid, issued.text, tenant, record.admin, record.expires_ms)

    def show(self, call: Call, tenant: str = "") -> KeyList:
        """The keys of a tenant, without their secrets."""
        principal: Principal = call.principal
        if tenant and tenant != principal.tenant:
            principal.require_admin()
        return KeyList([_shown(key) for key in self._access.keys(tenant or principal.tenant)])

    def revoke(self, call: Call, kid: str) -> Revoked:
        """Revoke a key: its next use fails. An admin's credential will do, or one of the key's own tenant."""
        principal: Principal = call.principal
        self._access.revoke_key(kid, tenant=None if principal.admin else principal.tenant)
        call.lasting()
        return Revoked("ok", kid)


def _shown(key: ApiKey) -> KeyShown:
    return KeyShown(key.kid, key.tenant, key.admin, key.rights, key.created_ms, key.expires_ms, key.note)


def add_routes(router: Router, rest: Rest) -> None:
    keys = Keys(rest)
    for root in ("", "/api/v1"):
        router.add("POST", f"{root}/keys", keys.create, {201: KeyMade}, open=True, tag="keys")
        router.add("GET", f"{root}/keys", keys.show, {200: KeyList}, tag="keys")
        router.add("DELETE", f"{root}/keys/{{kid}}", keys.revoke, {200: Revoked}, tag="keys")

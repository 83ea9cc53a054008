"""API keys over HTTP: make, list and revoke them, and the rule about who may make one without a credential.

`local` is a program of this machine that speaks for itself (`http.auth.is_local`); it makes new tenants, and keys of an
existing one with a full-rights credential of that tenant. Whoever makes a key without an admin credential gets one
without the admin right, and none for the default tenant or the system's. A key never grants more than its maker has.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rookery.core import rights
from rookery.core.access import DEFAULT_TENANT, FULL, ApiKey, IssuedKey, Principal, Rights
from rookery.core.topology import check_name
from rookery.errors import AccessRefused, InvalidArgument, NotFound, Unauthenticated
from rookery.wire.api.rest import Rest
from rookery.wire.api.types import Name, Regex
from rookery.wire.http.auth import MISSING, is_local, refuse_other_sites
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router

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
    if mode == "open":
        refuse_other_sites(call)
    elif not is_local(call):
        raise AccessRefused("keys are made from this machine only (ROOKERY_KEY_CREATION=local)")
    elif tenant in rest.shard.tenants and not _speaks_for(principal, tenant):
        raise AccessRefused(
            f"tenant '{tenant}' exists: a key of it needs a key of that tenant with all rights, or an admin's"
        )


def _speaks_for(principal: Principal | None, tenant: str) -> bool:
    return principal is not None and principal.tenant == tenant and rights.is_full(principal)


def _check_not_more(maker: Principal, wanted: Rights) -> None:
    """Raise unless the maker has every right that the key would have. Of two patterns nobody can tell whether one
    grants less, so they are the same, or the key's grants nothing.
    """
    for right in ("configure", "write", "read"):
        own, new = getattr(maker.rights, right), getattr(wanted, right)
        if own not in (".*", new) and new not in rights.NOTHING:
            raise AccessRefused(
                f"a key has no more rights than its maker: {right} is '{own}' for '{maker.name}', not '{new}'"
            )


def _expiry(maker: Principal | None, wanted_sec: int | None, now_ms: int) -> int | None:
    """When a key expires: as wanted, but not after its maker, unless that is an admin."""
    wanted = None if wanted_sec is None else now_ms + wanted_sec * 1_000
    latest = None if maker is None or maker.admin else maker.expires_ms
    if latest is not None and wanted is not None and wanted > latest:
        raise AccessRefused(
            f"a key does not outlive its maker: '{maker.name if maker else ''}' expires in "
            f"{max(0, latest - now_ms) // 1_000} s"
        )
    return latest if wanted is None else wanted


def create(rest: Rest, call: Call, tenant: str, wanted: KeyWanted) -> IssuedKey:
    """Make a key, and its tenant if that is new."""
    check_name(tenant, "tenant")
    check_may_create(rest, call, tenant)
    if wanted.admin and not (call.principal is not None and call.principal.admin):
        raise AccessRefused("a key with the admin right needs an admin credential")
    shard = rest.shard
    now_ms = int(shard.wall_ms)
    granted = FULL
    if wanted.rights is not None:
        granted = Rights(wanted.rights.configure, wanted.rights.write, wanted.rights.read)
    maker: Principal | None = call.principal
    if maker is not None and (maker.anonymous or maker.tenant != tenant):
        # nothing of this tenant was shown: who may make the key did not follow from it
        maker = None
    if maker is not None and not maker.admin:
        _check_not_more(maker, granted)
    expires_ms = _expiry(maker, wanted.expires_in_sec, now_ms)
    if tenant not in shard.tenants:
        by_admin = call.principal is not None and call.principal.admin
        _ = shard.create_tenant(tenant) if by_admin else shard.create_open_tenant(tenant)
    issued = rest.access.create_key(
        tenant,
        now_ms,
        rights=granted,
        admin=wanted.admin,
        expires_ms=expires_ms,
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
        """The keys of a tenant, without their secrets. Only admins see admin keys."""
        principal: Principal = call.principal
        rights.require_full(principal)
        if tenant and tenant != principal.tenant:
            principal.require_admin()
        keys = self._access.keys(tenant or principal.tenant)
        return KeyList([_shown(key) for key in keys if principal.admin or not key.admin])

    def revoke(self, call: Call, kid: str) -> Revoked:
        """Revoke a key: its next use fails. This takes the key itself, a credential of its tenant with all rights (not
        for an admin's key), or an admin's.
        """
        principal: Principal = call.principal
        if principal.admin:
            self._access.revoke_key(kid)
        elif kid == principal.key_id:
            self._access.revoke_key(kid, tenant=principal.tenant)
        else:
            rights.require_full(principal)
            keys = self._access.keys(principal.tenant)
            if not any(key.kid == kid and not key.admin for key in keys):
                raise NotFound(f"no such key: {kid}", argument="kid")
            self._access.revoke_key(kid, tenant=principal.tenant)
        call.lasting()
        return Revoked("ok", kid)


def _shown(key: ApiKey) -> KeyShown:
    return KeyShown(key.kid, key.tenant, key.admin, key.rights, key.created_ms, key.expires_ms, key.note)


def add_routes(router: Router, rest: Rest) -> None:
    keys = Keys(rest)
    for root in ("", "/api/v1"):
        router.add("POST", f"{root}/keys", keys.create, {201: KeyMade}, "key.create", tag="keys")
        router.add("GET", f"{root}/keys", keys.show, {200: KeyList}, "key.list", tag="keys")
        router.add("DELETE", f"{root}/keys/{{kid}}", keys.revoke, {200: Revoked}, "key.revoke", tag="keys")

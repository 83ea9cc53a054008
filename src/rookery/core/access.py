"""Who may do what: API keys and users, and the principal that every credential turns into.

Times and random bytes are handed in, so equal calls give equal state. Invariants: only digests of secrets are kept,
and nothing here shows even those in its `repr`; a refused credential does not say which part of it was wrong; whatever
takes a right away raises `generation` and calls `on_revoked`, so that the holder of a principal knows to ask
`still_valid` again.

Passwords are slow to verify by design (scrypt, some 50 ms). A server takes `Access.password_check` out of its loop:

    check = access.password_check(name, password)           # None: nothing slow is needed
    if check is not None:
        await loop.run_in_executor(pool, check.run)         # pure: touches nothing but itself
    principal = access.check_user(name, password, tenant, loopback=…, now_ms=…, check=check)
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import msgspec

from rookery.core.credentials import (
    DIGEST_BYTES,
    FIXED_KEY_ID,
    FULL,
    GUEST,
    KID_BYTES,
    NONE,
    SALT_BYTES,
    SECRET_BYTES,
    Action,
    ApiKey,
    IssuedKey,
    PasswordCheck,
    PasswordHash,
    Principal,
    Rights,
    User,
    base64url,
    hash_password,
    split_key,
    stored_rights,
    typed_id,
    unmatched_hash,
    utf8,
    verify_password,
)
from rookery.errors import AccessRefused, InvalidArgument, LimitExceeded, NotFound, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "DEFAULT_TENANT",
    "FIXED_KEY_ID",
    "FULL",
    "GUEST",
    "KEYS_PER_TENANT_MAX",
    "NONE",
    "USERS_MAX",
    "Access",
    "Action",
    "ApiKey",
    "GuestMode",
    "IssuedKey",
    "PasswordCheck",
    "PasswordHash",
    "Principal",
    "Rights",
    "User",
    "hash_password",
    "verify_password",
]

GuestMode = Literal["loopback", "any", "off"]

DEFAULT_TENANT: Final = "default"
KEYS_PER_TENANT_MAX: Final = 10_000
USERS_MAX: Final = 10_000
PASSWORDS_CACHED_MAX: Final = 1_024

_BAD_KEY: Final = "invalid API key"
_BAD_USER: Final = "invalid user name or password"


class _State(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    keys: list[ApiKey]
    users: list[User]


class Access:
    """The keys and users of all tenants.

    `random_bytes(n)` must give n unpredictable bytes. `guest` says from where the user guest/guest may come: it has
    full rights in tenant `default` and never the admin right. A stored user of that name replaces its password and
    rights; the rule about where it may come from stays.
    """

    def __init__(self, random_bytes: Callable[[int], bytes], *, guest: GuestMode = "loopback") -> None:
        if guest not in ("loopback", "any", "off"):
            raise InvalidArgument("guest must be loopback, any or off", argument="guest")
        self.generation = 0
        # told of each change as (operation, details in plain values), for whoever writes it down
        self.on_change: Callable[[str, dict[str, object]], None] | None = None
        # called when rights may have been taken away, for whoever holds connections
        self.on_revoked: list[Callable[[], None]] = []
        self._random_bytes = random_bytes
        self._guest: GuestMode = guest
        self._keys: dict[str, ApiKey] = {}
        self._tenant_keys: dict[str, dict[str, ApiKey]] = {}
        self._users: dict[str, User] = {}
        self._fixed_digest: bytes | None = None
        # What a credential that names nobody is compared with, so that it takes the time of one that does.
        self._nobody = unmatched_hash(self._draw(SALT_BYTES), self._draw(DIGEST_BYTES))
        self._cache_key = self._draw(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Access keys={len(self._keys)} users={len(self._users)} generation={self.generation}>"

    # Keys

    def create_key(
        self,
        tenant: str,
        now_ms: int,
        *,
        rights: Rights = FULL,
        admin: bool = False,
        expires_ms: int | None = None,
        note: str = "",
    ) -> IssuedKey:
        """Add a key to a tenant, which may have several."""
        kid = self._new_kid()
        secret = self._draw(SECRET_BYTES)
        digest = hashlib.sha256(secret).digest()
        record = ApiKey(kid, tenant, digest, now_ms, expires_ms, rights, admin, note)
        self.put_key(record)
        return IssuedKey(record, f"{kid}.{base64url(secret)}")

    def put_key(self, record: ApiKey) -> None:
        """Hold this record, in place of one with the same kid: how a key that was written down comes back."""
        old = self._keys.get(record.kid)
        arrives = old is None or old.tenant != record.tenant
        if arrives and len(self._tenant_keys.get(record.tenant, ())) >= KEYS_PER_TENANT_MAX:
            text = f"tenant '{record.tenant}' has {KEYS_PER_TENANT_MAX} keys already"
            raise LimitExceeded(text, argument="tenant")
        if old is not None and old != record:
            self._remove_key(old)
            self._revoked()
        self._keys[record.kid] = record
        self._tenant_keys.setdefault(record.tenant, {})[record.kid] = record
        self._changed("key", {"key": msgspec.to_builtins(record)})

    def put(self, operation: str, details: Mapping[str, Any]) -> None:
        """Make a change again that `on_change` told of."""
        if operation == "key":
            self.put_key(msgspec.convert(_stored_key(details["key"]), ApiKey))
        elif operation == "user":
            self.put_user(msgspec.convert(_stored_user(details["user"]), User))
        elif operation == "drop-key":
            if details["kid"] in self._keys:
                self.revoke_key(details["kid"])
        elif operation == "drop-user":
            if details["name"] in self._users:
                self.delete_user(details["name"])
        elif operation == "drop-access":
            self.drop_tenant(details["of"])
        else:
            self.load(details["access"], stored=True)

    def revoke_key(self, kid: str, *, tenant: str | None = None) -> ApiKey:
        """Remove a key for good; with `tenant`, only if it is that tenant's. Its next use fails."""
        record = self._keys.get(kid)
        if record is None or (tenant is not None and record.tenant != tenant):
            raise NotFound(f"no such key: {kid}", argument="kid")
        self._remove_key(record)
        self._revoked()
        self._changed("drop-key", {"kid": kid})
        return record

    def keys(self, tenant: str) -> tuple[ApiKey, ...]:
        """The tenant's keys, oldest first, expired ones too."""
        return tuple(self._tenant_keys.get(tenant, {}).values())

    def set_fixed_key(self, text: str | None) -> None:
        """Let this text (`API_KEY`) be the admin key of tenant `default`, with full rights; None: no such key.

        It belongs to the process's settings, so neither `export` nor `load` touches it.
        """
        if text is not None and not text:
            raise InvalidArgument("the fixed API key must not be empty", argument="text")
        digest = None if text is None else hashlib.sha256(utf8(text)).digest()
        if digest != self._fixed_digest:
            self._fixed_digest = digest
            self._revoked()

    def check_key(self, text: str, now_ms: int) -> Principal:
        """Whose key this is. A malformed, unknown, revoked, expired or wrong one gets one and the same answer."""
        principal = self._fixed_principal(text)
        if principal is None:
            principal = self._key_principal(text, now_ms)
        if principal is None:
            raise Unauthenticated(_BAD_KEY)
        return principal

    # Users

    def set_user(
        self,
        name: str,
        *,
        password: str | PasswordHash | None = None,
        tenants: Mapping[str, Rights] | None = None,
        admin: bool | None = None,
    ) -> User:
        """Add a user, or change what is given of an existing one. A text password is hashed here, which is slow."""
        old = self._users.get(name)
        if password is None:
            if old is None:
                raise InvalidArgument("a new user needs a password", argument="password")
            stored = old.password
        elif isinstance(password, str):
            stored = hash_password(password, self._draw(SALT_BYTES))
        else:
            stored = password
        if tenants is None:
            tenants = old.tenants if old is not None else {}
        if admin is None:
            admin = old is not None and old.admin
        user = User(name, stored, dict(tenants), admin)
        self.put_user(user)
        return user

    def put_user(self, user: User) -> None:
        """Hold this record, in place of one of the same name: how a user that was written down comes back."""
        old = self._users.get(user.name)
        if old is None and len(self._users) >= USERS_MAX:
            raise LimitExceeded(f"there are {USERS_MAX} users already", argument="name")
        self._users[user.name] = user
        if old != user:
            self._verified.clear()
            self._revoked()
            self._changed("user", {"user": msgspec.to_builtins(user)})

    def delete_user(self, name: str) -> User:
        user = self._users.pop(name, None)
        if user is None:
            raise NotFound(f"no such user: {name}", argument="name")
        self._verified.clear()
        self._revoked()
        self._changed("drop-user", {"name": name})
        return user

    def users(self) -> tuple[User, ...]:
        """All users by name; the built-in guest is not among them."""
        return tuple(self._users[name] for name in sorted(self._users))

    def knows(self, name: str) -> bool:
        """Whether there is a user or a key of this name. One that is not known may be a secret, given by mistake."""
        return self._password_of(name) is not self._nobody

    def password_check(self, name: str, password: str) -> PasswordCheck | None:
        """The slow part of `check_user` for these two, to be run elsewhere; None when there is none."""
        stored = self._password_of(name)
        if stored is None or self._mark(password, stored) in self._verified:
            return None
        return PasswordCheck(password, stored)

    def check_user(
        self,
        name: str,
        password: str,
        tenant: str | None,
        *,
        loopback: bool,
        now_ms: int,
        check: PasswordCheck | None = None,
    ) -> Principal:
        """Who this is inside `tenant`. A key's id and secret are accepted as a name and password.

        Without a tenant: a key's own, a user's `default` or else its only one. A wrong name or password is
        Unauthenticated; a right one without rights in the tenant is AccessRefused. `loopback` says whether the peer
        is on this machine. `check` is what `password_check` gave; without it the password is verified here.
        """
        if name == GUEST and not self.guest_may_come(loopback):
            raise Unauthenticated(f"user '{GUEST}' may not connect from here")
        stored = self._password_of(name)
        if stored is not None:
            verified = self._verify(password, stored, check)
            user = self._users.get(name)
            if user is None or not verified:
                raise Unauthenticated(_BAD_USER)
            return _enter(user.name, user.tenants, tenant, admin=user.admin, stamp=stored.salt)
        if name == GUEST:
            if not hmac.compare_digest(utf8(password), GUEST.encode()):
                raise Unauthenticated(_BAD_USER)
            return _guest(tenant)
        if name == FIXED_KEY_ID:
            principal = self._fixed_principal(password)
        else:
            principal = self._key_principal(f"{name}.{password}", now_ms)
        if principal is None:
            raise Unauthenticated(_BAD_USER)
        if tenant is not None and principal.tenant != tenant:
            _refuse_tenant(name, tenant)
        return principal

    def guest_may_come(self, loopback: bool) -> bool:
        """Whether the guest may come at all from this machine, or from another."""
        return self._guest == "any" or (self._guest == "loopback" and loopback)

    def check_certified(self, name: str, tenant: str | None) -> Principal:
        """Who a peer is inside `tenant` whose certificate, verified elsewhere, is for the user `name`."""
        user = self._users.get(name)
        if user is None:
            raise Unauthenticated(f"there is no user '{name}'" if name else "no certificate was shown")
        return _enter(user.name, user.tenants, tenant, admin=user.admin, stamp=user.password.salt)

    # Everyone

    def still_valid(self, principal: Principal, now_ms: int | None = None) -> bool:
        """Whether the credential behind `principal` would give the same one again.

        Ask when `generation` has moved, and, with the time, when `expires_ms` may have passed.
        """
        if now_ms is not None and principal.expires_ms is not None and now_ms >= principal.expires_ms:
            return False
        if not principal.stamp:
            return True
        if principal.key_id == FIXED_KEY_ID:
            return principal.stamp == self._fixed_digest
        if principal.key_id is not None:
            record = self._keys.get(principal.key_id)
            return record is not None and record.principal() == principal
        user = self._users.get(principal.name)
        if user is None:
            return principal.name == GUEST and principal.stamp == GUEST.encode()
        rights = user.tenants.get(principal.tenant)
        return (rights, user.admin, user.password.salt) == (principal.rights, principal.admin, principal.stamp)

    def drop_tenant(self, tenant: str) -> None:
        """Forget the tenant's keys and every user's rights in it: a later tenant of that name owes them nothing."""
        keys = self._tenant_keys.pop(tenant, {})
        for kid in keys:
            del self._keys[kid]
        members = [user for user in self._users.values() if tenant in user.tenants]
        for user in members:
            rest = {name: rights for name, rights in user.tenants.items() if name != tenant}
            self._users[user.name] = User(user.name, user.password, rest, user.admin)
        if keys or members:
            self._revoked()
            self._changed("drop-access", {"of": tenant})

    def export(self) -> dict[str, Any]:
        """All keys and users as plain JSON values, with digests only. `load` takes it back."""
        state: dict[str, Any] = msgspec.to_builtins(_State(1, list(self._keys.values()), list(self._users.values())))
        return state

    def problems(self) -> list[dict[str, str]]:
        """The stored rights whose patterns cannot be used: they deny. Each with its holder, and why."""
        held = [("key", key.kid, key.tenant, key.rights) for key in self._keys.values()]
        for user in self._users.values():
            held += [("user", user.name, tenant, rights) for tenant, rights in user.tenants.items()]
        return [
            {"kind": kind, "name": name, "tenant": tenant, "right": right, "reason": reason}
            for kind, name, tenant, rights in held
            for right, reason in rights.problems()
        ]

    def load(self, data: Mapping[str, object], *, stored: bool = False) -> None:
        """Hold exactly what an `export` gave, in place of everything held now. On an error nothing changes.

        What was `stored` may have patterns of an earlier version that this one does not know; they deny.
        """
        try:
            state = msgspec.convert(_stored_state(data), _State)
        except msgspec.ValidationError as error:
            path = str(error).partition(" - at `$.")[2].rstrip("`")
            raise InvalidArgument(str(error), argument=path or "data") from None
        if not stored:
            _refuse_unusable(state)
        for field, names in (("keys", [key.kid for key in state.keys]), ("users", [user.name for user in state.users])):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            if repeated:
                raise InvalidArgument(f"{field} holds '{repeated[0]}' more than once", argument=field)
        for tenant, count in Counter(key.tenant for key in state.keys).items():
            if count > KEYS_PER_TENANT_MAX:
                raise LimitExceeded(f"tenant '{tenant}' has more than {KEYS_PER_TENANT_MAX} keys", argument="keys")
        if len(state.users) > USERS_MAX:
            raise LimitExceeded(f"there are more than {USERS_MAX} users", argument="users")
        self._keys = {key.kid: key for key in state.keys}
        self._tenant_keys = {}
        for key in state.keys:
            self._tenant_keys.setdefault(key.tenant, {})[key.kid] = key
        self._users = {user.name: user for user in state.users}
        self._verified.clear()
        self._revoked()
        self._changed("access", {"access": self.export()})

    # Within

    def _changed(self, operation: str, details: dict[str, object]) -> None:
        if self.on_change is not None:
            self.on_change(operation, details)

    def _revoked(self) -> None:
        self.generation += 1
        for tell in self.on_revoked:
            tell()

    def _draw(self, count: int) -> bytes:
        drawn = self._random_bytes(count)
        assert len(drawn) == count, "random_bytes gave another number of bytes than it was asked for"
        return drawn

    def _new_kid(self) -> str:
        for _ in range(8):
            kid = typed_id(self._draw(KID_BYTES))
            if kid not in self._keys and kid not in self._users:
                return kid
        raise AssertionError("random_bytes repeats itself")

    def _remove_key(self, record: ApiKey) -> None:
        del self._keys[record.kid]
        rest = self._tenant_keys[record.tenant]
        del rest[record.kid]
        if not rest:
            del self._tenant_keys[record.tenant]

    def _fixed_principal(self, text: str) -> Principal | None:
        if self._fixed_digest is None:
            return None
        digest = hashlib.sha256(utf8(text)).digest()
        if not hmac.compare_digest(digest, self._fixed_digest):
            return None
        return Principal(FIXED_KEY_ID, DEFAULT_TENANT, FULL, True, key_id=FIXED_KEY_ID, stamp=digest)

    def _key_principal(self, text: str, now_ms: int) -> Principal | None:
        kid, secret = split_key(text)
        record = self._keys.get(kid)
        expected = self._nobody.digest if record is None else record.digest
        same = hmac.compare_digest(hashlib.sha256(secret).digest(), expected)
        if record is None or not same or record.expired(now_ms):
            return None
        return record.principal()

    def _password_of(self, name: str) -> PasswordHash | None:
        """What a password for `name` must be verified against; None when no password hash is involved."""
        user = self._users.get(name)
        if user is not None:
            return user.password
        if name in self._keys or name in (GUEST, FIXED_KEY_ID):
            return None
        return self._nobody

    def _verify(self, password: str, stored: PasswordHash, check: PasswordCheck | None) -> bool:
        mark = self._mark(password, stored)
        if mark in self._verified:
            self._verified.move_to_end(mark)
            return True
        if check is None or not check.covers(password, stored):
            check = PasswordCheck(password, stored)
        if not check.run():
            return False
        self._verified[mark] = None
        if len(self._verified) > PASSWORDS_CACHED_MAX:
            self._verified.popitem(last=False)
        return True

    def _mark(self, password: str, stored: PasswordHash) -> bytes:
        """Names a verified pair in the cache; keyed per process, so that it is of no use outside."""
        return hmac.digest(self._cache_key, stored.salt + stored.digest + utf8(password), "sha256")


def _stored_key(row: Any) -> Any:
    return {**row, "rights": stored_rights(row.get("rights"))} if isinstance(row, dict) else row


def _stored_user(row: Any) -> Any:
    if not isinstance(row, dict) or not isinstance(row.get("tenants"), dict):
        return row
    return {**row, "tenants": {tenant: stored_rights(rights) for tenant, rights in row["tenants"].items()}}


def _stored_state(data: Mapping[str, object]) -> Mapping[str, object]:
    if not isinstance(data, dict):
        return data
    keys, users = data.get("keys"), data.get("users")
    state = dict(data)
    if isinstance(keys, list):
        state["keys"] = [_stored_key(row) for row in keys]
    if isinstance(users, list):
        state["users"] = [_stored_user(row) for row in users]
    return state


def _refuse_unusable(state: _State) -> None:
    """Raise if patterns of the rights cannot be used, and name all whose they are."""
    found: list[tuple[str, str]] = []
    for index, key in enumerate(state.keys):
        for right, why in key.rights.problems():
            found.append((f"keys[{index}].rights", f"{right} of key {key.kid!r}: {why}"))
    for index, user in enumerate(state.users):
        for tenant, rights in user.tenants.items():
            for right, why in rights.problems():
                found.append((f"users[{index}].tenants", f"{right} of user {user.name!r} in {tenant!r}: {why}"))
    if found:
        text = "; ".join(text for _, text in found)
        raise InvalidArgument(f"these patterns cannot be used: {text}", argument=found[0][0])


def _enter(name: str, tenants: Mapping[str, Rights], tenant: str | None, *, admin: bool, stamp: bytes) -> Principal:
    if tenant is None:
        tenant = next(iter(tenants)) if len(tenants) == 1 else DEFAULT_TENANT
    rights = tenants.get(tenant)
    if rights is None:
        _refuse_tenant(name, tenant)
    return Principal(name, tenant, rights, admin, stamp=stamp)


def _guest(tenant: str | None) -> Principal:
    """The built-in guest."""
    if tenant is not None and tenant != DEFAULT_TENANT:
        _refuse_tenant(GUEST, tenant)
    return Principal(GUEST, DEFAULT_TENANT, FULL, stamp=GUEST.encode(), anonymous=True)


def _refuse_tenant(name: str, tenant: str) -> NoReturn:
    raise AccessRefused(f"access to tenant '{tenant}' refused for user '{name}'")

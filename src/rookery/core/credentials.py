"""Credentials and what they grant: plain immutable values, and the pure functions that make and verify secrets.

Invariant: a value that exists is valid (each checks itself when made), holds digests of secrets and never the
secrets, and shows not even the digests in its `repr`. All fields of a record are required, so that a record read back
with a part missing is refused and not given a default right.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from rookery.core import patterns
from rookery.errors import AccessRefused, InvalidArgument, InvalidName, LimitExceeded

Action = Literal["configure", "write", "read"]

GUEST: Final = "guest"
FIXED_KEY_ID: Final = "API_KEY"  # the user name under which the fixed admin key works as a password

TENANTS_PER_USER_MAX: Final = 1_000
NOTE_CHARS_MAX: Final = 255
NAME_BYTES_MAX: Final = 255
PATTERN_CHARS_MAX: Final = patterns.CHARS_MAX
MATCHED_CHARS_MAX: Final = 1_024
PASSWORD_BYTES_MAX: Final = 1_024
KID_BYTES: Final = 8
SECRET_BYTES: Final = 16
SALT_BYTES: Final = 16
DIGEST_BYTES: Final = 32

_TIME_MAX: Final = (1 << 63) - 1
_SCRYPT_N: Final = 1 << 14
_SCRYPT_R: Final = 8
_SCRYPT_P: Final = 1
_KID: Final = re.compile(r"[A-Za-z0-9_-]{11}")
_KEY_TEXT: Final = re.compile(r"([A-Za-z0-9_-]{11})\.([A-Za-z0-9_-]{22})")
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


_PATTERNS: Final = patterns.PatternCache(patterns_max=4_096, states_max=65_536)


@lru_cache(maxsize=16_384)
def _matches(pattern: str, name: str) -> bool:
    # Python's `$` also matches before a final newline, so `^orders$` would grant "orders\n".
    try:
        return _PATTERNS.get(pattern).search(name.replace("\n", "\0"))
    except patterns.PatternError:
        return False


def _problem(pattern: str) -> str:
    """Why this cannot be used as a pattern; empty when it can."""
    try:
        _PATTERNS.get(pattern)
    except patterns.PatternError as error:
        return str(error)
    return ""


class Rights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Three regular expressions over names, *searched* as in RabbitMQ: `orders` also grants `old-orders-2`.

    Write `^orders$` for that one name. The empty pattern and `^$` grant nothing, `.*` everything.
    """

    configure: str
    write: str
    read: str

    def __post_init__(self) -> None:
        for argument in ("configure", "write", "read"):
            pattern = getattr(self, argument)
            if not isinstance(pattern, str):
                raise InvalidArgument(f"{argument} must be a regular expression in a string", argument=argument)
            if len(pattern) > PATTERN_CHARS_MAX:
                raise InvalidArgument(f"{argument} is longer than {PATTERN_CHARS_MAX} characters", argument=argument)
            try:
                pattern.encode()
            except UnicodeError:
                text = f"{argument} must be text that UTF-8 can carry"
                raise InvalidArgument(text, argument=argument) from None
        for argument, problem in self.problems():
            raise InvalidArgument(f"{argument} is not a valid pattern: {problem}", argument=argument)

    def problems(self) -> list[tuple[str, str]]:
        """The patterns that cannot be used and so grant nothing, and why: only stored rights may have such."""
        found = [(argument, _problem(getattr(self, argument))) for argument in ("configure", "write", "read")]
        return [(argument, problem) for argument, problem in found if problem]

    def allow(self, action: Action, name: str) -> bool:
        """Whether `action` on `name` is granted. The default exchange, which has no name, counts as `amq.default`."""
        if action == "configure":
            pattern = self.configure
        elif action == "write":
            pattern = self.write
        elif action == "read":
            pattern = self.read
        else:
            raise InvalidArgument(f"no such action: {action!r}", argument="action")
        if pattern == ".*":
            return True
        if pattern in ("", "^$") or len(name) > MATCHED_CHARS_MAX:
            return False
        return _matches(pattern, name or "amq.default")


FULL: Final = Rights(configure=".*", write=".*", read=".*")
NONE: Final = Rights(configure="^$", write="^$", read="^$")


def stored_rights(row: Any) -> Any:
    """Rights as they were written down, perhaps by a version that took patterns which this one does not: those deny.

    What is not the shape of rights is returned as it is, for whoever validates the document around it.
    """
    if not isinstance(row, Mapping) or set(row) != set(Rights.__struct_fields__):
        return row
    refused = {name: text for name, text in row.items() if isinstance(text, str) and _problem(text)}
    if not refused:
        return row
    rights = msgspec.convert({name: "^$" if name in refused else text for name, text in row.items()}, Rights)
    for name, text in refused.items():
        msgspec.structs.force_setattr(rights, name, text)
    return rights


class Principal(msgspec.Struct, frozen=True):
    """Someone who proved who they are, inside one tenant.

    `stamp` ties it to the credential it came from. A face that vouches for someone itself (a JWT, or authentication
    switched off) leaves it empty: `still_valid` then looks at `expires_ms` only. `anonymous` is whoever proved nothing:
    with authentication off, or by the well-known password of the guest. A name never says that: a token may have any.
    """

    name: str
    tenant: str
    rights: Rights
    admin: bool = False
    key_id: str | None = None
    expires_ms: int | None = None
    stamp: bytes = b""
    anonymous: bool = False

    def may(self, action: Action, name: str) -> bool:
        return self.rights.allow(action, name)

    def require(self, action: Action, name: str, *, kind: str = "queue") -> None:
        """Raise AccessRefused unless the rights grant `action` on the `kind` of thing called `name`."""
        if not self.rights.allow(action, name):
            where = f"{kind} '{name}' in tenant '{self.tenant}'"
            raise AccessRefused(f"{action} access to {where} refused for user '{self.name}'")

    def require_admin(self) -> None:
        if not self.admin:
            raise AccessRefused(f"administration refused for user '{self.name}': it needs an admin credential")

    def __repr__(self) -> str:
        return f"Principal(name={self.name!r}, tenant={self.tenant!r}, rights={self.rights!r}, admin={self.admin})"


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a key: its public id and the SHA-256 of its decoded secret, never the secret."""

    kid: str
    tenant: str
    digest: bytes
    created_ms: int
    expires_ms: int | None
    rights: Rights
    admin: bool
    note: str

    def __post_init__(self) -> None:
        if not _KID.fullmatch(self.kid):
            raise InvalidArgument("kid must be 8 bytes in base64url without padding", argument="kid")
        _check_name(self.tenant, "tenant")
        if len(self.digest) != DIGEST_BYTES:
            raise InvalidArgument("digest must be a SHA-256 digest", argument="digest")
        if not 0 <= self.created_ms <= _TIME_MAX:
            raise InvalidArgument("created_ms is out of range", argument="created_ms")
        if self.expires_ms is not None and not self.created_ms < self.expires_ms <= _TIME_MAX:
            raise InvalidArgument("expires_ms must lie after the key's creation", argument="expires_ms")
        if len(self.note) > NOTE_CHARS_MAX:
            raise InvalidArgument(f"note is longer than {NOTE_CHARS_MAX} characters", argument="note")
        if _UNPRINTABLE.search(self.note):
            raise InvalidArgument("note must not hold control characters", argument="note")

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def principal(self) -> Principal:
        return Principal(self.kid, self.tenant, self.rights, self.admin, self.kid, self.expires_ms, self.digest)

    def __repr__(self) -> str:
        return (
            f"ApiKey(kid={self.kid!r}, tenant={self.tenant!r}, rights={self.rights!r}, admin={self.admin}, "
            f"created_ms={self.created_ms}, expires_ms={self.expires_ms}, note={self.note!r})"
        )


class IssuedKey(msgspec.Struct, frozen=True):
    """A key at the one moment its whole text is known: hand `text` to its owner, keep `record`."""

    record: ApiKey
    text: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.record!r})"


class PasswordHash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A salted scrypt digest and the cost it was made with."""

    salt: bytes
    digest: bytes
    n: int
    r: int
    p: int

    def __post_init__(self) -> None:
        if len(self.salt) != SALT_BYTES or len(self.digest) != DIGEST_BYTES:
            raise InvalidArgument("a password hash is a salt of 16 and a digest of 32 bytes", argument="password")
        if (self.n, self.r, self.p) != (_SCRYPT_N, _SCRYPT_R, _SCRYPT_P):
            # An unbounded cost in a loaded file would let it stall the server at the next login.
            raise InvalidArgument("a password hash must have scrypt's cost n=16384, r=8, p=1", argument="password")

    def __repr__(self) -> str:
        return "PasswordHash(…)"


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Someone with a password, and their rights in each tenant they may enter. `tenants` is not to be changed."""

    name: str
    password: PasswordHash
    tenants: dict[str, Rights]
    admin: bool

    def __post_init__(self) -> None:
        _check_name(self.name, "name")
        if ":" in self.name:  # HTTP's Basic scheme could not carry it
            raise InvalidName("a user name must not hold ':'", argument="name")
        if self.name == FIXED_KEY_ID:
            raise InvalidName(f"the user name {FIXED_KEY_ID} stands for the fixed admin key", argument="name")
        if self.name == GUEST and self.admin:
            raise InvalidArgument(f"{GUEST} never has the admin right", argument="admin")
        if len(self.tenants) > TENANTS_PER_USER_MAX:
            raise LimitExceeded(f"a user may enter at most {TENANTS_PER_USER_MAX} tenants", argument="tenants")
        for tenant in self.tenants:
            _check_name(tenant, "tenants")

    def __repr__(self) -> str:
        return f"User(name={self.name!r}, tenants={self.tenants!r}, admin={self.admin})"


def hash_password(password: str, salt: bytes) -> PasswordHash:
    """Make the stored form of a password. Pure and slow: fit for a thread."""
    try:
        secret = password.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("password must be text that UTF-8 can carry", argument="password") from None
    if not 0 < len(secret) <= PASSWORD_BYTES_MAX:
        raise InvalidArgument(f"password must have 1 to {PASSWORD_BYTES_MAX} bytes", argument="password")
    return PasswordHash(salt, _scrypt(secret, salt), _SCRYPT_N, _SCRYPT_R, _SCRYPT_P)


def unmatched_hash(salt: bytes, digest: bytes) -> PasswordHash:
    """A hash for those who are nobody: of the usual cost, and from random bytes, so that no password fits it."""
    return PasswordHash(salt, digest, _SCRYPT_N, _SCRYPT_R, _SCRYPT_P)


def verify_password(password: str, stored: PasswordHash) -> bool:
    """Whether `password` is the one `stored` was made from. Pure and slow: fit for a thread."""
    return hmac.compare_digest(_scrypt(utf8(password), stored.salt), stored.digest)


class PasswordCheck:
    """The slow part of one `check_user`, made by `Access.password_check`."""

    __slots__ = ("_outcome", "_password", "_stored")

    def __init__(self, password: str, stored: PasswordHash) -> None:
        self._password = password
        self._stored = stored
        self._outcome: bool | None = None

    def run(self) -> bool:
        """Verify, once; further calls repeat the outcome. May run in any thread."""
        if self._outcome is None:
            self._outcome = verify_password(self._password, self._stored)
        return self._outcome

    @property
    def key(self) -> object:
        """Equal for checks of the same password against the same hash."""
        return (self._password, self._stored)

    def covers(self, password: str, stored: PasswordHash) -> bool:
        """Whether this is a check of that very password against that very hash."""
        return self._password == password and self._stored == stored


def _check_name(name: str, argument: str) -> None:
    if not name or _UNPRINTABLE.search(name) or len(name.encode()) > NAME_BYTES_MAX:
        text = f"{argument} must have 1 to {NAME_BYTES_MAX} bytes and no control characters"
        raise InvalidName(text, argument=argument)


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _scrypt(secret: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(secret, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, maxmem=64 << 20, dklen=DIGEST_BYTES)


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def typed_id(data: bytes) -> str:
    """Random bytes as an id that can be typed: a command takes what begins with a dash for an option."""
    text = base64url(data)
    return "A" + text[1:] if text.startswith("-") else text


def split_key(text: str) -> tuple[str, bytes]:
    """The kid and the secret of a key's text; a malformed text gives the id of no key and an arbitrary secret."""
    shape = _KEY_TEXT.fullmatch(text)
    if shape is not None:
        secret = base64.urlsafe_b64decode(shape[2] + "==")
        if base64url(secret) == shape[2]:  # the last character has spare bits: only one spelling counts
            return shape[1], secret
    return "", bytes(SECRET_BYTES)


def key_label(token: str) -> str:
    """What failures with a key or a JWT are counted under: each under its own, none of which tells the secret."""
    return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

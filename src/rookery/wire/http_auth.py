"""Who makes a request: from the Authorization header to a principal, and how many requests each may make.

    ApiKey <kid.secret>        a key, the scheme spelled so
    Bearer <key or JWT>        a key in every mode, a JWT where a `Tokens` is given
    Basic <user:password>      a user, or a key's id and secret

A page in a browser cannot send that header with a WebSocket: it offers `rookery.bearer.<key or JWT>` as a subprotocol.

A connection remembers the last credential it showed, as long as nothing was revoked since. Passwords are verified in
a thread. A request without a credential, where that is allowed at all, must not come from a page of somebody else's.
"""

from __future__ import annotations

import base64
import ipaddress
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from rookery.core.access import DEFAULT_TENANT, FULL, GUEST, Access, PasswordCheck, Principal
from rookery.errors import AccessRefused, RateLimited, RookeryError, Unauthenticated
from rookery.wire.http_call import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.wire.http_tokens import Tokens

ANONYMOUS: Final = "anonymous"
MISSING: Final = "missing api key"
OFFERED: Final = "rookery.bearer."
LIMITED_MAX: Final = 100_000
"""How many credentials' rates are kept at a time."""

_FORWARDED: Final = (b"forwarded", b"via", b"origin")


class Gatekeeper:
    """Says who makes a call. With `open_to_all`, whoever shows nothing has full rights in the default tenant."""

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        open_to_all: bool = False,
        tokens: Tokens | None = None,
        rate_limit: int = 0,
    ) -> None:
        self.access = access
        self.open_to_all = open_to_all
        self.fail: Callable[[Call, RookeryError], None] | None = None
        # counts wrong passwords: `refused(peer, user, mono_ms)` and `fail(peer, user, mono_ms)`
        self.failed: Any = None
        self._clock = clock
        self._tokens = tokens
        self._rates = Rates(rate_limit) if rate_limit else None

    def identify(self, call: Call, go_on: Callable[[Call], None]) -> bool:
        """Set the principal of the call; False when that takes a while, after which `go_on` is called."""
        connection = call.connection
        credential = call.headers.get(b"authorization")
        if credential is None and call.upgrading:
            credential = offered_credential(call)
        if credential is None:
            if self.open_to_all:
                refuse_strangers(call)
                call.principal = Principal(ANONYMOUS, DEFAULT_TENANT, FULL)
                self.limit(call)
            return True
        assert connection is not None
        if credential == connection.credential and connection.credential_generation == self.access.generation:
            principal: Principal = connection.credential_principal
            if principal.expires_ms is None or self._clock.wall_ms() < principal.expires_ms:
                call.principal = principal
                self.limit(call)
                return True
        scheme, _, rest = credential.decode("latin-1").partition(" ")
        token = rest.strip()
        if scheme.lower() == "basic" and token:
            return self._basic(call, token, credential, go_on)
        if scheme == "ApiKey" and token and not rest.startswith(" "):
            self._accept(call, self.access.check_key(token, self._clock.wall_ms()), credential)
        elif scheme.lower() == "bearer" and token:
            self._accept(call, self._bearer(token), credential)
        else:
            raise Unauthenticated(MISSING)
        return True

    def _bearer(self, token: str) -> Principal:
        now_ms = self._clock.wall_ms()
        if self._tokens is not None and token.count(".") == 2:
            return self._tokens.principal(token, now_ms)
        return self.access.check_key(token, now_ms)

    def _basic(self, call: Call, token: str, credential: bytes, go_on: Callable[[Call], None]) -> bool:
        try:
            user, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:
            raise Unauthenticated(MISSING) from None
        if not colon:
            raise Unauthenticated(MISSING)
        assert call.connection is not None
        if self.failed is not None and self.failed.refused(call.connection.peer_name, user, self._clock.mono_ms()):
            raise RateLimited("too many logins failed; try again later")
        check = self.access.password_check(user, password)
        if check is None:
            self._accept(call, self._user(call, user, password, None), credential)
            return True
        waiting = _Login(self, call, user, password, check, credential, go_on)
        call.suspend(waiting.leave)
        call.connection.face.slow(check.run, waiting.verified)
        return False

    def _user(self, call: Call, user: str, password: str, check: PasswordCheck | None) -> Principal:
        assert call.connection is not None
        loopback = call.connection.loopback and not forwarded(call)
        now_ms = self._clock.wall_ms()
        try:
            return self.access.check_user(user, password, None, loopback=loopback, now_ms=now_ms, check=check)
        except Unauthenticated:
            if self.failed is not None:
                self.failed.fail(call.connection.peer_name, user, self._clock.mono_ms())
            raise

    def _accept(self, call: Call, principal: Principal, credential: bytes) -> None:
        call.principal = principal
        connection = call.connection
        # whether the guest is welcome depends on each request's way here
        if connection is not None and principal.name != GUEST:
            connection.credential = credential
            connection.credential_generation = self.access.generation
            connection.credential_principal = principal
        self.limit(call)

    def limit(self, call: Call) -> None:
        """Count a request of the call's principal, or refuse it."""
        if self._rates is not None and not call.route.open:
            principal: Principal = call.principal
            who = principal.name
            if who == ANONYMOUS and call.connection is not None:
                who = call.connection.peer_name
            self._rates.take((principal.tenant, who), self._clock.mono_ms())

    def still_valid(self, principal: Principal) -> bool:
        return self.access.still_valid(principal, self._clock.wall_ms())


class _Login:
    """A password that is being verified elsewhere."""

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        call: Call,
        user: str,
        password: str,
        check: PasswordCheck,
        credential: bytes,
        go_on: Callable[[Call], None],
    ) -> None:
        self._gatekeeper = gatekeeper
        self._call: Call | None = call
        self._arguments = (user, password, check)
        self._credential = credential
        self._go_on = go_on

    def leave(self) -> None:
        self._call = None

    def verified(self, _: Any) -> None:
        call = self._call
        if call is None:
            return
        call.undo = None
        gatekeeper = self._gatekeeper
        try:
            gatekeeper._accept(call, gatekeeper._user(call, *self._arguments), self._credential)
        except RookeryError as error:
            assert gatekeeper.fail is not None
            gatekeeper.fail(call, error)
            return
        self._go_on(call)


class Rates:
    """A bucket per credential: a second's worth of requests, refilled as time passes."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def take(self, who: tuple[str, str], now_ms: int) -> None:
        """Count a request, or refuse it."""
        left, since_ms = self._buckets.pop(who, (float(self._per_second), now_ms))
        left = min(float(self._per_second), left + (now_ms - since_ms) * self._per_second / 1000)
        allowed = left >= 1
        self._buckets[who] = (left - 1 if allowed else left, now_ms)
        if len(self._buckets) > LIMITED_MAX:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RateLimited(f"more than {self._per_second} requests a second")


def offered_credential(call: Call) -> bytes | None:
    """A credential among the subprotocols that are offered."""
    for each in call.header(b"sec-websocket-protocol").split(","):
        if each.strip().startswith(OFFERED):
            return b"Bearer " + unquote_to_bytes(each.strip().removeprefix(OFFERED))
    return None


def forwarded(call: Call) -> bool:
    """Whether somebody stands between the peer and whoever asks: a proxy, or a page in a browser."""
    headers = call.headers
    return any(name in headers for name in _FORWARDED) or any(name.startswith(b"x-forwarded-") for name in headers)


def is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local(call: Call) -> bool:
    """Whether a program of this machine asks, by this machine's name, for itself."""
    connection = call.connection
    if connection is None or not connection.loopback or forwarded(call):
        return False
    return is_loopback_name(call.header(b"host"))


def refuse_strangers(call: Call) -> None:
    """Where no credential is needed, a page of another site must not act through its visitor's browser.

    Such a page may have its own name lead to this machine, so that the browser takes the two for the same site.
    """
    if call.connection is None:
        return
    if call.connection.loopback and not call.old and not is_loopback_name(call.header(b"host")):
        raise AccessRefused("without authentication, this server is called by a name of this machine (localhost)")
    refuse_other_sites(call)


def refuse_other_sites(call: Call) -> None:
    """Refuse a page of another site, which the settings do not name; programs say of no page that they are."""
    origin = call.headers.get(b"origin")
    if call.connection is None or origin is None:
        return
    allowed = call.connection.face.origins
    if origin in allowed or b"*" in allowed or origin.partition(b"://")[2] == call.headers.get(b"host"):
        return
    raise AccessRefused("pages of this origin may not call this server; CORS_ORIGINS lists those that may")

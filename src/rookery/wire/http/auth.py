"""Who makes a request: from the Authorization header to a principal, and how many requests each may make.

    ApiKey <kid.secret>        a key, the scheme spelled so
    Bearer <key or JWT>        a key in every mode, a JWT where a `Tokens` is given
    Basic <user:password>      a user, or a key's id and secret

A page in a browser cannot send that header with a WebSocket: it offers `rookery.bearer.<key or JWT>` as a subprotocol.

A connection remembers the last credential it showed, as long as nothing was revoked since. Passwords are verified in
a thread. A request without a credential, where that is allowed at all, must not come from a page of somebody else's
(`refuse_strangers`). "Local" is a program of this machine that speaks for itself (`is_local`).
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from rookery.core.access import DEFAULT_TENANT, FULL, GUEST, Access, PasswordCheck, Principal
from rookery.core.credentials import key_label
from rookery.errors import AccessRefused, RateLimited, RookeryError, Unauthenticated
from rookery.wire.http.call import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.wire.http.tokens import Tokens

ANYBODY: Final = Principal("anonymous", DEFAULT_TENANT, FULL, anonymous=True)
"""Whoever shows nothing, where authentication is off."""
MISSING: Final = "missing api key"
OFFERED: Final = "rookery.bearer."
LIMITED_MAX: Final = 100_000
"""How many credentials' rates are kept at a time."""

FAILED_RETRY_SEC: Final = 60
"""When to try again after too many wrong credentials."""

_FORWARDED: Final = (
    b"via",
    b"origin",
    b"max-forwards",
    b"proxy-connection",
    b"x-forward-for",
    b"x-original-host",
    b"x-remote-addr",
    b"x-varnish",
)
_FORWARDED_PREFIXES: Final = (b"cf-", b"x-envoy-", b"x-amzn-", b"x-appengine-", b"x-azure-", b"x-bluecoat-")
_HOST: Final = re.compile(r"(localhost|[0-9.]{7,15}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_OWN_SITES: Final = (b"none", b"same-origin")
"""What `Sec-Fetch-Site` says of a page of this server, and of an address that was typed in."""


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
        # counts what was wrong: `refused(peer, user, mono_ms)` and `fail(peer, user, mono_ms)`
        self.failed: Any = None
        # verifies a password elsewhere: `verify(peer, user, check, done)` calls `done("checked")` in a turn, or with
        # "busy" or "failed" when that was not possible
        self.verify: Any = None
        self._clock = clock
        self._tokens = tokens
        self._rates = Rates(rate_limit) if rate_limit else None

    def identify(self, call: Call, go_on: Callable[[Call], None]) -> bool:
        """Set the principal of the call; False when that takes a while, after which `go_on` is called."""
        connection = call.connection
        credential = call.headers.get(b"authorization")
        if credential is None and call.upgrading:
            credential = offered_credential(call)
            if credential is not None:
                # any page can offer one: it must neither guess nor use up the failures of its visitor's address
                refuse_other_sites(call)
        if credential is None:
            if self.open_to_all:
                refuse_strangers(call)
                call.principal = ANYBODY
                self.limit(call)
            return True
        assert connection is not None
        if credential == connection.credential and connection.credential_generation == self.access.generation:
            principal = connection.principal
            assert principal is not None
            if principal.expires_ms is None or self._clock.wall_ms() < principal.expires_ms:
                call.principal = principal
                self.limit(call)
                return True
        scheme, token = _scheme_and_token(credential)
        if scheme == "basic":
            return self._basic(call, token, credential, go_on)
        self._accept(call, self._token(_source(call), scheme, token), credential)
        return True

    def vet(self, call: Call) -> str:
        """On whose account a body is that is still arriving: a tenant's, or, without authentication, an address's.

        Nothing if the route needs no credential, or if it takes a while to verify. A wrong one is an error.
        """
        connection = call.connection
        assert connection is not None
        credential = call.headers.get(b"authorization")
        if credential is None:
            if self.open_to_all:
                return f"address {connection.network}"
            if call.route.open:
                return ""
            raise Unauthenticated(MISSING)
        scheme, token = _scheme_and_token(credential)
        if scheme == "basic":
            user, password = _user_and_password(token)
            self._listen_to(_source(call), user)
            if self.access.password_check(user, password) is not None:
                return ""
            principal = self._user(call, user, password, None)
        else:
            principal = self._token(_source(call), scheme, token)
        self._remember(call, principal, credential)
        return principal.tenant

    def _token(self, peer: str, scheme: str, token: str) -> Principal:
        """Whose key or JWT this is. What is wrong is counted for its address, and for the token itself, so that a
        client which repeats an old one is refused before others at its address are.
        """
        shown = key_label(token)
        self._listen_to(peer, shown)
        now_ms = self._clock.wall_ms()
        try:
            if self._tokens is not None and scheme == "bearer" and token.count(".") == 2:
                return self._tokens.principal(token, now_ms)
            return self.access.check_key(token, now_ms)
        except Exception:
            self._count_failure(peer, shown)
            raise

    def _listen_to(self, peer: str, who: str) -> None:
        """Refuse a credential unheard when too many were wrong."""
        if self.failed is not None and self.failed.refused(peer, who, self._clock.mono_ms()):
            raise RateLimited("too many logins failed; try again later", retry_after_sec=FAILED_RETRY_SEC)

    def _count_failure(self, peer: str, who: str) -> None:
        if self.failed is not None:
            self.failed.fail(peer, who, self._clock.mono_ms())

    def _basic(self, call: Call, token: str, credential: bytes, go_on: Callable[[Call], None]) -> bool:
        user, password = _user_and_password(token)
        assert call.connection is not None
        self._listen_to(_source(call), user)
        check = self.access.password_check(user, password)
        if check is None:
            self._accept(call, self._user(call, user, password, None), credential)
            return True
        peer = call.connection.peer_name
        waiting = _Login(self, call, user, password, check, credential, go_on)
        call.suspend(waiting.leave)
        self.verify(peer, user, check, waiting.verified)
        return False

    def _user(self, call: Call, user: str, password: str, check: PasswordCheck | None) -> Principal:
        assert call.connection is not None
        # a page whose name was made to lead to this machine must not be the guest either
        loopback = is_local(call)
        now_ms = self._clock.wall_ms()
        try:
            return self.access.check_user(user, password, None, loopback=loopback, now_ms=now_ms, check=check)
        except AccessRefused:
            raise  # who it is, is clear
        except Exception:
            # a guest from the wrong place has guessed nothing; counted, any page could lock out the one of this machine
            if user != GUEST or self.access.guest_may_come(loopback):
                self._count_failure(_source(call), user)
            raise

    def _accept(self, call: Call, principal: Principal, credential: bytes) -> None:
        call.principal = principal
        self._remember(call, principal, credential)
        self.limit(call)

    def _remember(self, call: Call, principal: Principal, credential: bytes) -> None:
        connection = call.connection
        # whether the guest is welcome depends on each request's way here
        if connection is not None and principal.name != GUEST:
            connection.credential = credential
            connection.credential_generation = self.access.generation
            connection.principal = principal

    def limit(self, call: Call) -> None:
        """Count a request of the call's principal, or refuse it."""
        if self._rates is not None and not call.route.open:
            principal: Principal = call.principal
            who = principal.name
            if principal.anonymous and call.connection is not None:
                who = call.connection.peer_name
            self._rates.take((principal.tenant, who, principal.anonymous), self._clock.mono_ms())


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
        self._source = _source(call)
        self._arguments = (user, password, check)
        self._credential = credential
        self._go_on = go_on

    def leave(self) -> None:
        self._call = None

    def verified(self, outcome: str) -> None:
        call = self._call
        gatekeeper = self._gatekeeper
        user, password, check = self._arguments
        if call is None:
            # whoever leaves before the answer has tried nevertheless
            if outcome == "failed" or (outcome == "checked" and not check.run()):
                gatekeeper._count_failure(self._source, user)
            return
        call.undo = None
        try:
            if outcome == "busy":
                raise RateLimited("too many logins are waiting to be verified; try again later")
            if outcome != "checked":
                gatekeeper._count_failure(self._source, user)
                raise Unauthenticated("the password could not be verified")
            gatekeeper._accept(call, gatekeeper._user(call, user, password, check), self._credential)
        except Exception as error:  # noqa: BLE001 - whatever a credential provokes is answered
            assert gatekeeper.fail is not None
            gatekeeper.fail(call, error if isinstance(error, RookeryError) else Unauthenticated("the login failed"))
            return
        self._go_on(call)


class Rates:
    """A bucket per credential: a second's worth of requests, refilled as time passes."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[tuple[str, str, bool], tuple[float, int]] = OrderedDict()

    def take(self, who: tuple[str, str, bool], now_ms: int) -> None:
        """Count a request, or refuse it."""
        left, since_ms = self._buckets.pop(who, (float(self._per_second), now_ms))
        left = min(float(self._per_second), left + (now_ms - since_ms) * self._per_second / 1000)
        allowed = left >= 1
        self._buckets[who] = (left - 1 if allowed else left, now_ms)
        if len(self._buckets) > LIMITED_MAX:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RateLimited(f"more than {self._per_second} requests a second")


def _scheme_and_token(credential: bytes) -> tuple[str, str]:
    """The parts of an Authorization header: `basic`, `bearer` or `apikey`, and what follows."""
    scheme, _, rest = credential.decode("latin-1").partition(" ")
    token = rest.strip()
    known = scheme.lower() in ("basic", "bearer") or (scheme == "ApiKey" and not rest.startswith(" "))
    if not known or not token:
        raise Unauthenticated(MISSING)
    return scheme.lower(), token


def _user_and_password(token: str) -> tuple[str, str]:
    """What a Basic credential says."""
    try:
        user, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except ValueError:
        raise Unauthenticated(MISSING) from None
    if not colon:
        raise Unauthenticated(MISSING)
    return user, password


def offered_credential(call: Call) -> bytes | None:
    """A credential among the subprotocols that are offered."""
    for each in call.header(b"sec-websocket-protocol").split(","):
        if each.strip().startswith(OFFERED):
            return b"Bearer " + unquote_to_bytes(each.strip().removeprefix(OFFERED))
    return None


def forwarded(call: Call) -> bool:
    """Whether somebody may stand between the peer and whoever asks: a proxy, or a page in a browser.

    A proxy that was told nothing asks with the address it was given as Host, over HTTP/1.0 as nginx before 1.29.7, or
    over HTTP/1.1: then only the user who runs it tells (`made_by_own_user`).
    """
    headers = call.headers
    if call.old or headers.get(b"sec-fetch-site", b"none") not in _OWN_SITES:
        return True
    if not call.url.startswith(b"/"):
        # to a proxy, the URL says whom it asks, and not the Host
        return True
    return any(_tells_of_another(name.replace(b"_", b"-")) for name in headers)


def _tells_of_another(name: bytes) -> bool:
    """Whether proxies add a header of this name: `X-Forwarded-For`, `X-Real-IP`, `True-Client-IP` and so on."""
    return (
        name in _FORWARDED
        or b"forwarded" in name
        or name.endswith((b"-ip", b"-client-addr"))
        or name.startswith(_FORWARDED_PREFIXES)
    )


@lru_cache(maxsize=256)
def is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine. What is not exactly a name and a port does not."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].lower().strip("[]")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local(call: Call) -> bool:
    """Whether a program of this machine asks, by this machine's name, for itself."""
    connection = call.connection
    if connection is None or not connection.loopback or forwarded(call):
        return False
    return is_loopback_name(call.header(b"host")) and connection.made_by_own_user()


def _source(call: Call) -> str:
    """Whose failures a wrong credential adds to: its address, where programs of this machine are apart from what comes
    through a proxy, or a page whose name was made to lead here. These cannot lock out those.
    """
    connection = call.connection
    assert connection is not None
    return connection.peer_name if not connection.loopback or is_local(call) else f"{connection.peer_name}, forwarded"


def refuse_strangers(call: Call) -> None:
    """Where no credential is needed, a page of another site must not act through its visitor's browser.

    Such a page may have its own name lead to this machine, so that the browser takes the two for the same site. And any
    page can cause a GET, as by an image, of which a server over plain HTTP by another name than localhost is told
    nothing: a GET that changes something needs such a name.
    """
    connection = call.connection
    if connection is None:
        return
    host = call.headers.get(b"host")
    local = host is not None and is_loopback_name(host.decode("latin-1"))
    if not call.url.startswith(b"/"):
        # the URL says whom it asks, and not the Host
        local = False
    if connection.loopback and not local and not (call.old and host is None):
        raise AccessRefused("without authentication, this server is called by a name of this machine (localhost)")
    refuse_other_sites(call)
    if call.route.changes and not call.upgrading and call.method in ("GET", "HEAD"):
        if not local:
            raise AccessRefused(
                "without a credential, a GET that changes something must name this machine (localhost) as its Host; "
                "use POST, or show a credential"
            )
        referer = call.headers.get(b"referer")
        if referer is not None and not _is_own(call, b"/".join(referer.split(b"/")[:3])):
            raise AccessRefused("without a credential, pages of other sites may not call this server")


def refuse_other_sites(call: Call) -> None:
    """Refuse a page of another site, which the settings do not name; programs say of no page that they are."""
    if call.connection is None:
        return
    origin = call.headers.get(b"origin")
    if origin is not None:
        if not _is_own(call, origin):
            raise AccessRefused("pages of this origin may not call this server; CORS_ORIGINS lists those that may")
    elif call.headers.get(b"sec-fetch-site", b"none") not in _OWN_SITES:
        raise AccessRefused("pages of other sites may not call this server; CORS_ORIGINS lists those that may")


def _is_own(call: Call, origin: bytes) -> bool:
    """Whether an origin is this server's own, or one that the settings name."""
    assert call.connection is not None
    allowed = call.connection.face.origins
    return origin in allowed or b"*" in allowed or origin.partition(b"://")[2] == call.headers.get(b"host")

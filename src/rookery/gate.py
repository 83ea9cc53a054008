"""Who a peer is: logins, verified outside of the loop where that is slow, and refused when too many failed.

With authentication off everyone has full rights, and nobody the admin right. Over AMQP, a peer whose certificate was
verified (SASL EXTERNAL) is the user of the name in it. Over the line protocol, a peer on this machine that shows
nothing is the guest.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from rookery.core.access import DEFAULT_TENANT, FULL, GUEST, Access, PasswordCheck, Principal
from rookery.core.credentials import key_label
from rookery.errors import AccessRefused, LimitExceeded, RookeryError
from rookery.logins import TOO_MANY_FAILED, TOO_MANY_PENDING, Logins, Outcome

if TYPE_CHECKING:
    from rookery.clock import Clock
    from rookery.logs import Log
    from rookery.turns import Turns
    from rookery.wire.amqp import AmqpConnection
    from rookery.wire.line import LineConnection

EXTERNAL = "EXTERNAL"
UNKNOWN = "(unknown)"


class Gate:
    """See the module's docstring."""

    def __init__(
        self,
        access: Access,
        turns: Turns,
        clock: Clock,
        log: Log,
        logins: Logins,
        *,
        open_to_all: bool = False,
        tenant_connections_max: int = 0,
    ) -> None:
        self._access = access
        self._turns = turns
        self._clock = clock
        self._log = log
        self._open = open_to_all
        self._tenant_connections_max = tenant_connections_max
        self._logins = logins
        self._failed = logins.failed
        access.on_revoked.append(turns.revoked)

    def login(self, connection: AmqpConnection, user: str, password: str) -> None:
        """Verify the two, outside of the loop if that is slow, and tell the connection."""
        if not self._open and self._failed.refused(connection.peer_name, user, self._clock.mono_ms()):
            connection.login_done(False)
            return
        by_password = not self._open and connection.mechanism != EXTERNAL
        check = self._access.password_check(user, password) if by_password else None
        if check is None:
            self._answer(connection, user, password, None)
            return

        def verified(outcome: Outcome) -> None:
            if outcome == "checked":
                self._answer(connection, user, password, check)
            else:
                self._not_verified(connection.peer_name, user, connection.mechanism, outcome)
                connection.login_done(False)

        self._logins.verify(connection.peer_name, user, check, verified)

    def _not_verified(self, peer: str, user: str, mechanism: str, outcome: Outcome) -> None:
        if outcome == "busy":
            self._log.warning("login_refused", peer=peer, mechanism=mechanism, reason=TOO_MANY_PENDING)
        else:
            self._count_failure(peer, user, mechanism, "the password could not be verified")

    def _answer(self, connection: AmqpConnection, user: str, password: str, check: PasswordCheck | None) -> None:
        try:
            self._principal(connection, user, password, None, check)
        except AccessRefused:
            pass  # who it is, is clear; which tenant it may enter is asked later
        except Exception as error:  # noqa: BLE001 - whatever a credential provokes counts as a failure
            self._count_failure(connection.peer_name, user, connection.mechanism, _reason(error))
            connection.login_done(False)
            return
        connection.login_done(True)

    def _count_failure(self, peer: str, user: str, mechanism: str, reason: str) -> None:
        last = self._failed.fail(peer, user, self._clock.mono_ms())
        # a name that nobody has may be a password or a key in the wrong place
        shown = user[:255] if self._access.knows(user) else UNKNOWN
        self._log.warning("login_failed", peer=peer, user=shown, mechanism=mechanism, reason=reason)
        if last:
            self._log.warning("logins_refused", peer=peer, user=shown, reason="too many failed within a minute")

    def enter(self, connection: AmqpConnection, user: str, password: str, tenant: str) -> Principal:
        principal = self._principal(connection, user, password, tenant, None)
        self._make_room(connection, tenant)
        return principal

    def _make_room(self, connection: Any, tenant: str) -> None:
        """Refuse one more connection than the tenant may have over this face."""
        place = connection.shard.tenant(tenant)
        most = place.limits.connections_max or self._tenant_connections_max
        if most and sum(each.tenant is place for each in connection.face.connections.values()) >= most:
            self._log.warning(
                "connection_refused", peer=connection.peer_name, reason=f"{tenant} has {most} connections"
            )
            raise LimitExceeded(f"tenant {tenant!r} has its {most} connections", argument="tenant")

    def _principal(
        self, connection: AmqpConnection, user: str, password: str, tenant: str | None, check: PasswordCheck | None
    ) -> Principal:
        if self._open:
            return Principal(user, tenant or DEFAULT_TENANT, FULL, anonymous=True)
        if connection.mechanism == EXTERNAL:
            return self._access.check_certified(connection.certified, tenant)
        loopback = connection.loopback
        now_ms = self._clock.wall_ms()
        return self._access.check_user(user, password, tenant, loopback=loopback, now_ms=now_ms, check=check)

    # The line protocol

    def guest(self, connection: LineConnection) -> Principal | None:
        """Who a peer is that shows no credential; None when it has to."""
        guest = Principal(GUEST, DEFAULT_TENANT, FULL, anonymous=True)
        principal = guest if self._open else self._local_guest(connection)
        if principal is not None:
            self._make_room(connection, principal.tenant)
        return principal

    def _local_guest(self, connection: LineConnection) -> Principal | None:
        # a guest with a password of its own has to show it
        if not connection.loopback or self._access.password_check(GUEST, GUEST) is not None:
            return None
        try:
            return self._access.check_user(GUEST, GUEST, None, loopback=True, now_ms=self._clock.wall_ms())
        except RookeryError:
            return None

    def log_in(self, connection: LineConnection, user: str, password: str) -> None:
        """Verify a user and a password, or without a user an API key, and tell the connection who that is."""
        label = user or key_label(password)
        if not self._open and self._failed.refused(connection.peer_name, label, self._clock.mono_ms()):
            connection.login_done(None, TOO_MANY_FAILED)
            return
        check = self._access.password_check(user, password) if user and not self._open else None
        if check is None:
            self._tell(connection, user, password, None)
            return

        def verified(outcome: Outcome) -> None:
            if outcome == "checked":
                self._tell(connection, user, password, check)
            else:
                self._not_verified(connection.peer_name, user, "AUTH", outcome)
                connection.login_done(None, TOO_MANY_PENDING if outcome == "busy" else "the login failed")

        self._logins.verify(connection.peer_name, user, check, verified)

    def _tell(self, connection: LineConnection, user: str, password: str, check: PasswordCheck | None) -> None:
        now_ms = self._clock.wall_ms()
        try:
            if self._open:
                principal = Principal(user or GUEST, DEFAULT_TENANT, FULL, anonymous=True)
            elif user:
                principal = self._access.check_user(
                    user, password, None, loopback=connection.loopback, now_ms=now_ms, check=check
                )
            else:
                principal = self._access.check_key(password, now_ms)
            self._make_room(connection, principal.tenant)
        except Exception as error:  # noqa: BLE001 - as above
            self._count_failure(connection.peer_name, user or key_label(password), "AUTH", _reason(error))
            connection.login_done(None, _reason(error))
            return
        connection.login_done(principal, "")

    def still_valid(self, principal: Principal) -> bool:
        return self._access.still_valid(principal, self._clock.wall_ms())

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # closed before
            self._access.on_revoked.remove(self._turns.revoked)


def _reason(error: Exception) -> str:
    """What to say of a login that failed."""
    return str(error) if isinstance(error, RookeryError) else f"internal error ({type(error).__name__})"

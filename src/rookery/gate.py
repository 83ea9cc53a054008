"""Who a peer is: logins, verified outside of the loop where that is slow, and refused when too many failed.

With authentication off everyone has full rights, and nobody the admin right. Over AMQP, a peer whose certificate was
verified (SASL EXTERNAL) is the user of the name in it. Over the line protocol, a peer on this machine that shows
nothing is the guest.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rookery.core.access import DEFAULT_TENANT, FULL, GUEST, Access, PasswordCheck, Principal
from rookery.errors import AccessRefused, LimitExceeded, RookeryError
from rookery.limits import FailedLogins

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.logs import Log
    from rookery.turns import Turns
    from rookery.wire.amqp import AmqpConnection
    from rookery.wire.line import LineConnection

EXTERNAL = "EXTERNAL"


class Gate:
    """See the module's docstring."""

    def __init__(
        self,
        access: Access,
        turns: Turns,
        clock: Clock,
        log: Log,
        *,
        open_to_all: bool = False,
        failures_max: int = 10,
        tenant_connections_max: int = 0,
    ) -> None:
        self._access = access
        self._turns = turns
        self._clock = clock
        self._log = log
        self._open = open_to_all
        self._tenant_connections_max = tenant_connections_max
        self._failed = FailedLogins(failures_max)
        access.on_revoked.append(turns.revoked)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rookery-login")

    def login(self, connection: AmqpConnection, user: str, password: str) -> None:
        """Verify the two, outside of the loop if that is slow, and tell the connection."""
        if not self._open and self._failed.refused(connection.peer_name, user, self._clock.mono_ms()):
            connection.login_done(False)
            return
        by_password = not self._open and connection.mechanism != EXTERNAL
        check = self._access.password_check(user, password) if by_password else None
        if check is None:
            self._answer(connection, user, password, None)
        else:
            self._verify(check, lambda: self._answer(connection, user, password, check))

    def _verify(self, check: PasswordCheck, done: Callable[[], None]) -> None:
        """Run a check in a thread, and `done` in a turn then."""
        verified = asyncio.get_running_loop().run_in_executor(self._pool, check.run)
        verified.add_done_callback(lambda _: self._turns.run(done))

    def _answer(self, connection: AmqpConnection, user: str, password: str, check: PasswordCheck | None) -> None:
        try:
            self._principal(connection, user, password, None, check)
        except AccessRefused:
            pass  # who it is, is clear; which tenant it may enter is asked later
        except RookeryError as error:
            self._count_failure(connection.peer_name, user, connection.mechanism, str(error))
            connection.login_done(False)
            return
        connection.login_done(True)

    def _count_failure(self, peer: str, user: str, mechanism: str, reason: str) -> None:
        self._log.warning("login_failed", peer=peer, user=user[:255], mechanism=mechanism, reason=reason)
        if self._failed.fail(peer, user, self._clock.mono_ms()):
            self._log.warning("logins_refused", peer=peer, user=user[:255], reason="too many failed within a minute")

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
            return Principal(user, tenant or DEFAULT_TENANT, FULL)
        if connection.mechanism == EXTERNAL:
            return self._access.check_certified(connection.certified, tenant)
        loopback = connection.loopback
        now_ms = self._clock.wall_ms()
        return self._access.check_user(user, password, tenant, loopback=loopback, now_ms=now_ms, check=check)

    # The line protocol

    def guest(self, connection: LineConnection) -> Principal | None:
        """Who a peer is that shows no credential; None when it has to."""
        principal = Principal(GUEST, DEFAULT_TENANT, FULL) if self._open else self._local_guest(connection)
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
        if not self._open and self._failed.refused(connection.peer_name, user, self._clock.mono_ms()):
            connection.login_done(None, "too many logins failed; try again later")
            return
        check = self._access.password_check(user, password) if user and not self._open else None
        if check is None:
            self._tell(connection, user, password, None)
        else:
            self._verify(check, lambda: self._tell(connection, user, password, check))

    def _tell(self, connection: LineConnection, user: str, password: str, check: PasswordCheck | None) -> None:
        now_ms = self._clock.wall_ms()
        try:
            if self._open:
                principal = Principal(user or GUEST, DEFAULT_TENANT, FULL)
            elif user:
                principal = self._access.check_user(
                    user, password, None, loopback=connection.loopback, now_ms=now_ms, check=check
                )
            else:
                principal = self._access.check_key(password, now_ms)
            self._make_room(connection, principal.tenant)
        except RookeryError as error:
            self._count_failure(connection.peer_name, user, "AUTH", str(error))
            connection.login_done(None, str(error))
            return
        connection.login_done(principal, "")

    def still_valid(self, principal: Principal) -> bool:
        return self._access.still_valid(principal, self._clock.wall_ms())

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # closed before
            self._access.on_revoked.remove(self._turns.revoked)
        self._pool.shutdown(wait=False, cancel_futures=True)

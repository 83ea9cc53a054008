"""Who a peer is: logins, verified outside of the loop where that is slow, and refused when too many failed.

With authentication off everyone has full rights, and nobody the admin right. A peer whose certificate was verified
(SASL EXTERNAL) is the user of the name in it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rookery.core.access import DEFAULT_TENANT, FULL, Access, PasswordCheck, Principal
from rookery.errors import AccessRefused, LimitExceeded, RookeryError
from rookery.limits import FailedLogins

if TYPE_CHECKING:
    from rookery.clock import Clock
    from rookery.logs import Log
    from rookery.turns import Turns
    from rookery.wire.amqp import AmqpConnection

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
            return
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._pool, check.run)
        done.add_done_callback(lambda _: self._turns.run(lambda: self._answer(connection, user, password, check)))

    def _answer(self, connection: AmqpConnection, user: str, password: str, check: PasswordCheck | None) -> None:
        try:
            self._principal(connection, user, password, None, check)
        except AccessRefused:
            pass  # who it is, is clear; which tenant it may enter is asked later
        except RookeryError as error:
            self._count_failure(connection, user, str(error))
            connection.login_done(False)
            return
        connection.login_done(True)

    def _count_failure(self, connection: AmqpConnection, user: str, reason: str) -> None:
        peer = connection.peer_name
        self._log.warning("login_failed", peer=peer, user=user[:255], mechanism=connection.mechanism, reason=reason)
        if self._failed.fail(peer, user, self._clock.mono_ms()):
            self._log.warning("logins_refused", peer=peer, user=user[:255], reason="too many failed within a minute")

    def enter(self, connection: AmqpConnection, user: str, password: str, tenant: str) -> Principal:
        principal = self._principal(connection, user, password, tenant, None)
        place = connection.shard.tenant(tenant)
        most = place.limits.connections_max or self._tenant_connections_max
        if most and sum(each.tenant is place for each in connection.face.connections.values()) >= most:
            self._log.warning(
                "connection_refused", peer=connection.peer_name, reason=f"{tenant} has {most} connections"
            )
            raise LimitExceeded(f"tenant {tenant!r} has its {most} connections", argument="tenant")
        return principal

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

    def still_valid(self, principal: Principal) -> bool:
        return self._access.still_valid(principal, self._clock.wall_ms())

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

"""Who a peer is: logins, verified outside of the loop where that is slow, and refused when too many failed.

With authentication off everyone has full rights, and nobody the admin right. A peer whose certificate was verified may
log in as the user of the name in it (SASL EXTERNAL), where its protocol has a way to say so. A peer on this machine
that shows nothing is the guest, where its protocol lets guests in. HTTP has a gatekeeper of its own
(`rookery.wire.http.auth`): there each request shows a credential.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from rookery.core.access import DEFAULT_TENANT, FULL, GUEST, Access, PasswordCheck, Principal
from rookery.core.credentials import key_label
from rookery.errors import AccessRefused, LimitExceeded, RookeryError
from rookery.server.logins import TOO_MANY_FAILED, TOO_MANY_PENDING, Logins, Outcome
from rookery.wire.face import EXTERNAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rookery.clock import Clock
    from rookery.server.logs import Log
    from rookery.server.turns import Turns
    from rookery.wire.turn import Face, Peer

UNKNOWN: Final = "(unknown)"


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
        # the faces whose connections count, by protocol; whoever makes them adds them
        self.faces: Mapping[str, Face] = {}
        self._logins = logins
        self._failed = logins.failed
        access.on_revoked.append(turns.revoked)

    # Who shows a credential

    def verify(self, peer: Peer, user: str, password: str, mechanism: str, done: Callable[[bool], None]) -> None:
        """See `rookery.wire.face.Gate`."""

        def answer(check: PasswordCheck | None) -> None:
            try:
                self._principal(peer, user, password, mechanism, None, check)
            except AccessRefused:
                pass  # who it is, is clear; which tenant it may enter is asked later
            except Exception as error:  # noqa: BLE001 - whatever a credential provokes counts as a failure
                self._count_failure(peer.peer_name, user, mechanism, _reason(error))
                done(False)
                return
            done(True)

        wanted = None if mechanism == EXTERNAL else (user, password)
        self._check(peer, user, mechanism, wanted, answer, lambda _: done(False))

    def enter(self, peer: Peer, user: str, password: str, mechanism: str, tenant: str) -> Principal:
        """See `rookery.wire.face.Gate`."""
        principal = self._principal(peer, user, password, mechanism, tenant, None)
        self._make_room(peer, tenant)
        return principal

    def log_in(
        self, peer: Peer, user: str, password: str, mechanism: str, done: Callable[[Principal | None, str], None]
    ) -> None:
        """See `rookery.wire.face.Gate`."""
        label = user or key_label(password)

        def answer(check: PasswordCheck | None) -> None:
            try:
                if self._open:
                    principal = Principal(user or GUEST, DEFAULT_TENANT, FULL, anonymous=True)
                elif user:
                    principal = self._principal(peer, user, password, mechanism, None, check)
                else:
                    principal = self._access.check_key(password, self._clock.wall_ms())
                self._make_room(peer, principal.tenant)
            except Exception as error:  # noqa: BLE001 - as above
                self._count_failure(peer.peer_name, label, mechanism, _reason(error))
                done(None, _reason(error))
                return
            done(principal, "")

        wanted = (user, password) if user and mechanism != EXTERNAL else None
        self._check(peer, label, mechanism, wanted, answer, lambda why: done(None, why))

    def _check(
        self,
        peer: Peer,
        label: str,
        mechanism: str,
        wanted: tuple[str, str] | None,
        answer: Callable[[PasswordCheck | None], None],
        refuse: Callable[[str], None],
    ) -> None:
        """Verify a user and a password, if that is `wanted`, outside of the loop if it is slow, and then `answer`; or
        `refuse` to. `label` is what failures are counted for.
        """
        if self._open:
            answer(None)
            return
        if self._failed.refused(peer.peer_name, label, self._clock.mono_ms()):
            refuse(TOO_MANY_FAILED)
            return
        check = None if wanted is None else self._access.password_check(*wanted)
        if check is None:
            answer(None)
            return

        def verified(outcome: Outcome) -> None:
            if outcome == "checked":
                answer(check)
            elif outcome == "busy":
                self._log.warning("login_refused", peer=peer.peer_name, mechanism=mechanism, reason=TOO_MANY_PENDING)
                refuse(TOO_MANY_PENDING)
            else:
                self._count_failure(peer.peer_name, label, mechanism, "the password could not be verified")
                refuse("the login failed")

        self._logins.verify(peer.peer_name, label, check, verified)

    def _principal(
        self, peer: Peer, user: str, password: str, mechanism: str, tenant: str | None, check: PasswordCheck | None
    ) -> Principal:
        if self._open:
            return Principal(user, tenant or DEFAULT_TENANT, FULL, anonymous=True)
        if mechanism == EXTERNAL:
            return self._access.check_certified(peer.certified, tenant)
        now_ms = self._clock.wall_ms()
        return self._access.check_user(user, password, tenant, loopback=peer.loopback, now_ms=now_ms, check=check)

    def _count_failure(self, peer: str, user: str, mechanism: str, reason: str) -> None:
        last = self._failed.fail(peer, user, self._clock.mono_ms())
        # a name that nobody has may be a password or a key in the wrong place
        shown = user[:255] if self._access.knows(user) else UNKNOWN
        self._log.warning("login_failed", peer=peer, user=shown, mechanism=mechanism, reason=reason)
        if last:
            self._log.warning("logins_refused", peer=peer, user=shown, reason="too many failed within a minute")

    # Who shows none

    def guest(self, peer: Peer) -> Principal | None:
        """See `rookery.wire.face.Gate`."""
        guest = Principal(GUEST, DEFAULT_TENANT, FULL, anonymous=True)
        principal = guest if self._open else self._local_guest(peer)
        if principal is not None:
            self._make_room(peer, principal.tenant)
        return principal

    def _local_guest(self, peer: Peer) -> Principal | None:
        # a guest with a password of its own has to show it
        if not peer.loopback or self._access.password_check(GUEST, GUEST) is not None:
            return None
        try:
            return self._access.check_user(GUEST, GUEST, None, loopback=True, now_ms=self._clock.wall_ms())
        except RookeryError:
            return None

    # How many, and for how long

    def _make_room(self, peer: Peer, tenant: str) -> None:
        """Refuse one more connection than the tenant may have over the peer's face."""
        most = self._turns.turn.shard.tenant(tenant).limits.connections_max or self._tenant_connections_max
        if not most:
            return
        present = self.faces[peer.protocol].count_in(tenant)
        if peer.principal is not None and peer.principal.tenant == tenant:
            # it is there already, and shows another credential
            present -= 1
        if present >= most:
            self._log.warning("connection_refused", peer=peer.peer_name, reason=f"{tenant} has {most} connections")
            raise LimitExceeded(f"tenant {tenant!r} has its {most} connections", argument="tenant")

    def still_valid(self, principal: Principal) -> bool:
        return self._access.still_valid(principal, self._clock.wall_ms())

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # closed before
            self._access.on_revoked.remove(self._turns.revoked)


def _reason(error: Exception) -> str:
    """What to say of a login that failed."""
    return str(error) if isinstance(error, RookeryError) else f"internal error ({type(error).__name__})"

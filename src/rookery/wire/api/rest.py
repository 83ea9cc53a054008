"""What the modules of routes share: queues that come into being on first use, publishing, claims that wait, settling,
and messages as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rookery.core import publishing
from rookery.core.access import Access, Principal
from rookery.core.entries import Lease
from rookery.core.policy import FACES
from rookery.core.publishing import Publish
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.topology import Exchange, Tenant
from rookery.errors import (
    AccessRefused,
    InvalidArgument,
    LeaseLost,
    MemoryLimitExceeded,
    QueueNotFound,
    StoreFull,
)
from rookery.format import properties
from rookery.format.model import Message
from rookery.wire.api.types import RestOptions
from rookery.wire.http.call import Call
from rookery.wire.http.routes import LATER, Router, rendered
from rookery.wire.turn import FULL, NO_DISK, Turn

FACE: Final = "http"
"""Whose defaults a queue has that comes into being here."""

_ALL: Final = ".*"


class Rest:
    """The broker as routes see it."""

    def __init__(self, turn: Turn, access: Access, router: Router, options: RestOptions) -> None:
        self.turn = turn
        self.shard: Shard = turn.shard
        self.access = access
        self.router = router
        self.options = options

    def tenant(self, call: Call) -> Tenant:
        """The tenant of whoever calls."""
        principal: Principal = call.principal
        tenant = self.shard.tenants.get(principal.tenant)
        if tenant is None:
            raise AccessRefused(f"there is no tenant '{principal.tenant}'")
        return tenant

    def queue(self, call: Call, name: str, face: str, action: str) -> Queue:
        """The queue of that name, which comes into being when it is first used."""
        require(call.principal, action, name)
        tenant = self.tenant(call)
        queue = tenant.queues.get(name)
        if queue is None:
            require(call.principal, "configure", name)
            queue = self.declare(tenant, name, {}, face)[0]
        else:
            tenant.check_owner(queue, None)
        return queue

    def found(self, call: Call, name: str, action: str) -> Queue | None:
        """The queue of that name, None if there is none: to look at a queue does not make it."""
        require(call.principal, action, name)
        tenant = self.tenant(call)
        queue = tenant.queues.get(name)
        if queue is not None:
            tenant.check_owner(queue, None)
        return queue

    def existing(self, call: Call, name: str, action: str) -> Queue:
        """The queue of that name, if there is one."""
        call.principal.require(action, name)
        tenant = self.tenant(call)
        queue = tenant.queue(name)
        tenant.check_owner(queue, None)
        return queue

    def declare(self, tenant: Tenant, name: str, settings: Mapping[str, object], face: str) -> tuple[Queue, bool]:
        """The queue of that name, made with the face's defaults if it was not there (then True)."""
        suffix = self.options.dlq_suffix
        if suffix and name.endswith(suffix) and name != suffix:
            face = "dead-letter"
        self.heed_defaults(tenant)
        return tenant.declare_queue(name, settings, face)

    def heed_defaults(self, tenant: Tenant) -> None:
        """Let the tenant have the defaults that the settings give to each face."""
        for each, defaults in self.options.face_defaults.items():
            if tenant.face_defaults.get(each, FACES[each]) != {**FACES[each], **defaults}:
                tenant.set_face_defaults(each, defaults)

    # Publishing

    def check_room(self) -> None:
        """Refuse publishes while there is no room for them.

        Whoever publishes over HTTP waits for the answer anyway, so that the journal is behind is no reason to refuse.
        """
        held = self.turn.held
        if held == FULL:
            raise MemoryLimitExceeded
        if held == NO_DISK:
            raise StoreFull

    def publish(self, tenant: Tenant, p: Publish) -> tuple[int, bool]:
        """Hand a publish to the core: the number of its message, and whether a dedup key made it a repeat."""
        self.check_room()
        return publishing.publish(self.shard, tenant, p)

    # Claiming

    def claim(
        self,
        call: Call,
        queue: Queue,
        count: int,
        lease_ms: int,
        wait_ms: int,
        done: Callable[[list[Lease]], object],
        handed_out: Callable[[list[Lease]], None] | None = None,
    ) -> object:
        """Answer with what `done` makes of the leases, now or when there are some or the time is over.

        `handed_out` is called with those that are in the answer once that is rendered: nothing is settled before.
        """
        leases = queue.claim(count, lease_ms)
        if leases or wait_ms <= 0:
            return self.hand_out(call, leases, done, handed_out)
        Waiting(self, call, queue, count, lease_ms, wait_ms, done, handed_out)
        return LATER

    def hand_out(
        self,
        call: Call,
        leases: list[Lease],
        done: Callable[[list[Lease]], object],
        handed_out: Callable[[list[Lease]], None] | None,
    ) -> object:
        """What `done` makes of the leases, rendered. A message that cannot be rendered is left out and tried again
        later, as if its consumer had failed; the others do not suffer for it.
        """
        try:
            answer = rendered(done(leases))
        except Exception:
            sound = self._renderable(call, leases, done) if leases else []
            if not sound:
                raise
            leases = sound
            answer = rendered(done(leases))
        if handed_out is not None and leases:
            handed_out(leases)
        return answer

    def _renderable(self, call: Call, leases: list[Lease], done: Callable[[list[Lease]], object]) -> list[Lease]:
        sound: list[Lease] = []
        for lease in leases:
            try:
                rendered(done([lease]))
                sound.append(lease)
            except Exception as error:  # noqa: BLE001 - a defect that one message meets must not reach the others
                self.router.report(error, call)
                lease.queue.retry(lease, -1, "the message could not be rendered")
        return sound

    def lease(self, call: Call, queue: str, token: str) -> Lease:
        """The live lease that a token stands for, if it is of that queue."""
        lease = self.shard.lease(self.tenant(call), token)
        if lease is None or not lease.live or lease.queue.name != queue:
            raise LeaseLost(f"no such delivery: {token[:300]!r} was settled, has lapsed, or never was")
        return lease

    # Messages as JSON

    def message_id(self, message: Message) -> str:
        return properties.message_id(message.props) or self.shard.ids.uuid(message.public_id)


class Waiting:
    """A claim that waits: on whichever comes first of a message, the end of its time, and its peer's going away."""

    def __init__(
        self,
        rest: Rest,
        call: Call,
        queue: Queue,
        count: int,
        lease_ms: int,
        wait_ms: int,
        done: Callable[[list[Lease]], object],
        handed_out: Callable[[list[Lease]], None] | None,
    ) -> None:
        self._rest = rest
        self._call = call
        self._queue = queue
        self._done = done
        self._handed_out = handed_out
        self._mailbox = rest.shard.wait_claim(queue, count, lease_ms)
        self._mailbox.on_event = self
        assert call.connection is not None
        self._timer = call.connection.face.later(wait_ms, self._over)
        call.suspend(self._leave, self._look)

    def set(self) -> None:
        """The mailbox was touched, perhaps in a turn of somebody else's."""
        self._call.touch()

    def _look(self) -> None:
        if self._mailbox.leases or self._mailbox.ended:
            self._over()

    def _over(self) -> None:
        leases = self._end()
        if leases is not None:
            self._rest.router.complete(self._call, lambda: self._answer(leases))

    def _answer(self, leases: list[Lease]) -> object:
        if not leases and self._mailbox.ended:
            raise QueueNotFound(f"queue {self._queue.name!r} was deleted", argument="queue")
        return self._rest.hand_out(self._call, leases, self._done, self._handed_out)

    def _leave(self) -> None:
        for lease in self._end() or ():
            self._queue.release(lease)

    def _end(self) -> list[Lease] | None:
        """Wait no more; the leases that came, None when this was done before."""
        if self._mailbox.on_event is None:
            return None
        self._mailbox.on_event = None
        self._timer.cancel()
        self._queue.unsubscribe(self._mailbox)
        return self._mailbox.take()


def require(principal: Principal, action: str, name: str) -> None:
    """Raise AccessRefused unless the principal may do this to the queue of that name."""
    rights = principal.rights
    if action == "read":
        pattern = rights.read
    elif action == "write":
        pattern = rights.write
    else:
        pattern = rights.configure
    if pattern != _ALL:
        principal.require(action, name)  # type: ignore[arg-type]


def refuse_internal(exchange: Exchange) -> None:
    """Raise for an exchange to which only exchanges publish."""
    if exchange.internal:
        raise InvalidArgument(f"exchange {exchange.name!r} is internal", argument="exchange")

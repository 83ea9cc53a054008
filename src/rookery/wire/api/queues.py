"""Queues of a tenant: list, get, make, delete; claim and settle their messages, move them, throw them away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rookery.core import dead_letters, rights
from rookery.core.queue import Queue
from rookery.core.snapshots import queue_stats
from rookery.errors import AlreadyExists, InvalidArgument
from rookery.wire.api.broker import Api
from rookery.wire.api.dead_letters import STEP_MESSAGES, Where, chosen_by
from rookery.wire.api.handling import Handling
from rookery.wire.api.queue_options import QueueOptions, said
from rookery.wire.api.rest import FACE
from rookery.wire.api.shapes import Claiming, Deleted, Extended, ExtendMany, LeasedAll, SettledAll, SettleMany
from rookery.wire.api.types import AtMost, CheckedName, Many, Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router


class QueueMade(msgspec.Struct):
    name: str
    created: bool
    settings: dict[str, Any]


class QueueShown(msgspec.Struct):
    """`said` is what its declarer said, `settings` what holds, `stats` its counts."""

    name: str
    face: str
    policy: str | None
    said: dict[str, Any]
    settings: dict[str, Any]
    stats: dict[str, Any]


class QueuePage(msgspec.Struct):
    """`next` is what to ask for with `after` to go on, null at the end."""

    queues: list[QueueShown]
    next: str | None


class Purged(msgspec.Struct):
    purged: int


class Moving(msgspec.Struct, forbid_unknown_fields=True):
    """Ready messages go to queue `to`, in order; `limit` of 0 is all."""

    to: Name
    limit: AtMost = 0
    where: Where | None = None


class Moved(msgspec.Struct):
    moved: int


class Queues:
    """The routes."""

    def __init__(self, api: Api, handling: Handling) -> None:
        self._api = api
        self._rest = api.rest
        self._handling = handling

    def queues(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> object:
        """The queues that the caller may read, by name."""
        tenant = self._api.tenant(call)
        names = [name for name, queue in tenant.queues.items() if queue.owner is None]

        def show(name: str) -> QueueShown | None:
            queue = tenant.queues.get(name)
            return None if queue is None else _queue(queue)

        return self._api.page(call, names, (prefix, after, limit), show, QueuePage)

    def queue(self, call: Call, name: Name) -> QueueShown:
        """A queue with its settings and counts."""
        return _queue(self._rest.existing(call, name, "read"))

    def create(self, call: Call, name: Name, body: QueueOptions | None = None, new: bool = False) -> Answer:
        """Create a queue. The same again is fine, with other options a conflict; with `new`, any that is there."""
        wanted = said(body)
        rights.require_dead_letter(call.principal, name, wanted)
        tenant = self._rest.tenant(call)
        if new and name in tenant.queues:
            raise AlreadyExists(f"queue {name!r} already exists", argument="queue")
        queue, created = self._rest.declare(tenant, name, wanted, FACE)
        call.lasting()
        return Answer(201 if created else 200, QueueMade(name, created, queue.settings.as_dict()))

    def delete_queue(self, call: Call, name: Name, if_unused: bool = False, if_empty: bool = False) -> Deleted:
        """Delete a queue and everything in it."""
        queue = self._rest.existing(call, name, "configure")
        ready = queue.tenant.delete_queue(name, if_unused, if_empty)
        call.lasting()
        return Deleted(name, int(ready))

    def claim(self, call: Call, name: Name, body: Claiming | None = None) -> object:
        """Lease messages of a queue, at once or when there are some."""
        return self._handling.claim(call, name, body or Claiming())

    def settle(self, call: Call, name: CheckedName, body: SettleMany) -> SettledAll:
        """Settle many leases of a queue, each with its outcome."""
        return self._handling.settle(call, name, body)

    def extend(self, call: Call, name: CheckedName, body: ExtendMany) -> Extended:
        """Let leases last so long from now."""
        return self._handling.extend(call, name, body)

    def purge(self, call: Call, name: Name) -> object:
        """Throw away what is ready in a queue."""
        queue = self._rest.existing(call, name, "read")
        purged = _Counted(dead_letters.purging(queue))

        def answer() -> Purged:
            call.lasting()
            return Purged(purged.count)

        return self._api.in_steps(call, purged.all(), STEP_MESSAGES, answer)

    def move(self, call: Call, name: Name, body: Moving) -> object:
        """Move ready messages to another queue."""
        queue = self._rest.existing(call, name, "read")
        rights.require(call.principal, "queue.move", "target", body.to)
        target = self._rest.existing(call, body.to, "write")
        if target is queue:
            raise InvalidArgument("a queue cannot be moved into itself", argument="to")
        chosen = chosen_by(self._rest, body.where)
        moved = _Counted(dead_letters.moving(queue, target, body.limit, chosen))

        def answer() -> Moved:
            call.lasting()
            return Moved(moved.count)

        return self._api.in_steps(call, moved.all(), STEP_MESSAGES, answer)


class _Counted:
    """Work whose steps say how many messages each dealt with."""

    def __init__(self, work: Iterator[int]) -> None:
        self._work = work
        self.count = 0

    def all(self) -> Iterator[None]:
        for done in self._work:
            self.count += done
            yield


def _queue(queue: Queue) -> QueueShown:
    tenant = queue.tenant
    policy = tenant.policy_for(queue.name)
    return QueueShown(
        queue.name,
        tenant.faces[queue.name],
        None if policy is None else policy.name,
        dict(tenant.said[queue.name]),
        queue.settings.as_dict(),
        queue_stats(queue),
    )


def add_routes(router: Router, api: Api, handling: Handling) -> None:
    routes = Queues(api, handling)
    one = "/api/v1/queues/{name}"
    router.add("GET", "/api/v1/queues", routes.queues, {200: QueuePage}, "queue.list", tag="queues")
    router.add("GET", one, routes.queue, {200: QueueShown}, "queue.show", tag="queues")
    router.add("DELETE", one, routes.delete_queue, {200: Deleted}, "queue.delete", tag="queues")
    router.add("PUT", one, routes.create, {201: QueueMade, 200: QueueMade}, "queue.declare", tag="queues")
    router.add("POST", f"{one}/claim", routes.claim, {200: (LeasedAll, bytes)}, "queue.claim", tag="messages")
    router.add("POST", f"{one}/settle", routes.settle, {200: SettledAll}, "queue.settle", tag="messages")
    router.add("POST", f"{one}/extend", routes.extend, {200: Extended}, "queue.settle", tag="messages")
    router.add("POST", f"{one}/purge", routes.purge, {200: Purged}, "queue.purge", tag="messages")
    router.add("POST", f"{one}/move", routes.move, {200: Moved}, "queue.move", tag="messages")

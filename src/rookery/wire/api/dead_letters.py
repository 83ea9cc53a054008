"""What waits in a queue, for whoever looks after it: look at it, throw it away, move it, redrive dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.core import dead_letters, rights
from rookery.core.entries import Entry, by_seq
from rookery.core.queue import Queue
from rookery.core.routing import matcher
from rookery.errors import InvalidArgument
from rookery.wire.api import Api
from rookery.wire.api_handling import Handling, packed_content, wants_packed
from rookery.wire.api_shapes import Leased
from rookery.wire.http_call import Call
from rookery.wire.http_routes import CHECKED, Router
from rookery.wire.rest import headers_of
from rookery.wire.rest_types import AtMost, Duration, Name, Short

SHOWN_MAX: Final = 1_000
PACKED_MAX: Final = 100_000
STEP_MESSAGES: Final = 2_000
"""How many messages are moved, redriven or purged in one turn."""


Page = Annotated[int, msgspec.Meta(ge=1, le=PACKED_MAX)]


State = Literal["ready", "delayed", "leased"]
Place = Annotated[str, msgspec.Meta(pattern=r"^(-?[0-9]{1,20}\.[0-9]{1,20})?$"), CHECKED]


class Looked(msgspec.Struct):
    """`count` is how many there are in all; `next` is what to ask for with `after` to go on, null at the end."""

    count: int
    messages: list[Leased]
    next: str | None


class Purged(msgspec.Struct):
    purged: int


class Where(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages: all that is said must hold. `origin` and `reason` are of the last death, `detail` a part of what
    was said of it; `routing_key` is a topic pattern over the key it was published with; of `headers` all must be
    equal. `seqs` are places in the queue, as packed answers show them.
    """

    origin: str | None = None
    reason: str | None = None
    detail: str | None = None
    routing_key: Short | None = None
    headers: dict[str, Any] | None = None
    message_ids: list[str] | None = None
    seqs: list[int] | None = None
    died_after_ms: Duration | None = None
    died_before_ms: Duration | None = None


class Moving(msgspec.Struct, forbid_unknown_fields=True):
    """Ready messages go to queue `to`, in order; `limit` of 0 is all."""

    to: Name
    limit: AtMost = 0
    where: Where | None = None


class Moved(msgspec.Struct):
    moved: int


class Redriving(msgspec.Struct, forbid_unknown_fields=True):
    """Without `to`, each letter goes to the queue it died in. `limit` of 0 is all."""

    limit: AtMost = 0
    to: Name | None = None
    where: Where | None = None
    dry_run: bool = False


class RedrivenLetter(msgspec.Struct):
    message_id: str
    to: str
    reason: str


class Redriven(msgspec.Struct):
    """`letters` are the first of them."""

    redriven: int
    dry_run: bool
    letters: list[RedrivenLetter]


class Letters:
    """The routes."""

    def __init__(self, api: Api, messages: Handling) -> None:
        self._api = api
        self._rest = api.rest
        self._messages = messages

    def look(self, call: Call, name: Name, state: State = "ready", limit: Page = 100, after: Place = "") -> object:
        """Look at messages of a queue, in order, and leave them as they are."""
        queue = self._rest.existing(call, name, "read")
        if state == "ready":
            count = int(queue.ready)
            entries = queue.ready_entries(0 if after else limit + 1)
        elif state == "delayed":
            count = int(queue.delayed)
            entries = sorted(queue.delayed_entries(), key=lambda entry: (int(entry.due_ms), int(entry.seq)))
        else:
            count, entries = int(queue.leased), sorted((lease.entry for lease in queue.leases()), key=by_seq)
        if after:
            major, _, minor = after.partition(".")
            behind = (int(major), int(minor))
            entries = [entry for entry in entries if _place(queue, state, entry) > behind]
        if wants_packed(call):
            return packed_content([self._messages.pack(entry, int(entry.attempts)) for entry in entries[:limit]])
        chosen = entries[: min(limit, SHOWN_MAX)]
        following = None
        if len(entries) > len(chosen):
            following = "{}.{}".format(*_place(queue, state, chosen[-1]))
        return Looked(count, [self._messages.show(entry, int(entry.attempts)) for entry in chosen], following)

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
        chosen = self._chosen(body.where)
        moved = _Counted(dead_letters.moving(queue, target, body.limit, chosen))

        def answer() -> Moved:
            call.lasting()
            return Moved(moved.count)

        return self._api.in_steps(call, moved.all(), STEP_MESSAGES, answer)

    def redrive(self, call: Call, name: Name, body: Redriving | None = None) -> object:
        """Send the dead letters of a queue back to life: to the queues they died in, or to one that is named."""
        wanted = body or Redriving()
        queue = self._rest.existing(call, name, "read")
        if wanted.to is not None:
            self._rest.existing(call, wanted.to, "write")
        chosen = self._chosen(wanted.where)

        def allowed(entry: Entry) -> bool:
            deaths = entry.message.route.deaths
            target = wanted.to or (deaths[0].queue if deaths else "")
            return call.principal.may("write", target) and (chosen is None or chosen(entry))

        found: list[tuple[Entry, str]] = []
        letters = dead_letters.redriving(queue.tenant, queue, wanted.limit, allowed, wanted.dry_run, wanted.to)
        work = _collect(letters, found)
        return self._api.in_steps(call, work, STEP_MESSAGES, lambda: self._redriven(call, wanted, found))

    def _redriven(self, call: Call, wanted: Redriving, found: list[tuple[Entry, str]]) -> object:
        call.lasting()
        if wants_packed(call):
            return packed_content([self._messages.pack(entry, 0) for entry, _ in found[:PACKED_MAX]])
        letters = [
            RedrivenLetter(self._rest.message_id(entry.message), to, entry.message.route.deaths[0].reason)
            for entry, to in found[:SHOWN_MAX]
        ]
        return Redriven(len(found), wanted.dry_run, letters)

    def _chosen(self, where: Where | None) -> Callable[[Entry], bool] | None:
        if where is None:
            return None
        keys = None
        if where.routing_key is not None:
            keys = matcher("topic", {})
            keys.add(where.routing_key, None, self)
        ids = None if where.message_ids is None else frozenset(where.message_ids)
        seqs = None if where.seqs is None else frozenset(where.seqs)

        def chosen(entry: Entry) -> bool:
            deaths = entry.message.route.deaths
            key = deaths[-1].key if deaths else entry.message.route.key
            if keys is not None and not keys.match(key, None):
                return False
            if seqs is not None and int(entry.seq) not in seqs:
                return False
            if ids is not None and self._rest.message_id(entry.message) not in ids:
                return False
            return _died_so(where, entry) and _has_headers(where, entry)

        return chosen


class _Counted:
    """Work whose steps say how many messages each dealt with."""

    def __init__(self, work: Iterator[int]) -> None:
        self._work = work
        self.count = 0

    def all(self) -> Iterator[None]:
        for done in self._work:
            self.count += done
            yield


def _collect(letters: Iterator[tuple[Entry, str | None]], found: list[tuple[Entry, str]]) -> Iterator[None]:
    for entry, to in letters:
        if to is not None:
            found.append((entry, to))
        yield


def _place(queue: Queue, state: State, entry: Entry) -> tuple[int, int]:
    """Where an entry stands among those of its state: its place, which no other has."""
    first = 0
    if state == "delayed":
        first = int(entry.due_ms)
    elif state == "ready" and queue.ordered:
        first = -int(min(entry.message.priority, queue.priority_max))
    return first, int(entry.seq)


def _died_so(where: Where, entry: Entry) -> bool:
    said = (where.origin, where.reason, where.detail, where.died_after_ms, where.died_before_ms)
    if said == (None, None, None, None, None):
        return True
    if not entry.message.route.deaths:
        return False
    death = entry.message.route.deaths[0]
    return (
        where.origin in (None, death.queue)
        and where.reason in (None, death.reason)
        and (where.detail is None or where.detail in death.detail)
        and (where.died_after_ms is None or death.last_ms >= where.died_after_ms)
        and (where.died_before_ms is None or death.last_ms < where.died_before_ms)
    )


def _has_headers(where: Where, entry: Entry) -> bool:
    if not where.headers:
        return True
    there = headers_of(entry.message) or {}
    return all(name in there and there[name] == value for name, value in where.headers.items())


def add_routes(router: Router, api: Api, messages: Handling) -> None:
    letters = Letters(api, messages)
    queue = "/api/v1/queues/{name}"
    tag = "messages"
    router.add("GET", f"{queue}/messages", letters.look, {200: (Looked, bytes)}, "queue.peek", tag=tag)
    router.add("POST", f"{queue}/purge", letters.purge, {200: Purged}, "queue.purge", tag=tag)
    router.add("POST", f"{queue}/move", letters.move, {200: Moved}, "queue.move", tag=tag)
    router.add("POST", f"{queue}/redrive", letters.redrive, {200: (Redriven, bytes)}, "queue.redrive", tag=tag)

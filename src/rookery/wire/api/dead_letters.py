"""Dead letters of a queue: which of them, and back to life with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from rookery.core import dead_letters
from rookery.core.entries import Entry
from rookery.core.routing import matcher
from rookery.format.rendering import headers_of
from rookery.wire.api.broker import Api
from rookery.wire.api.handling import Handling, packed_content, wants_packed
from rookery.wire.api.rest import Rest
from rookery.wire.api.shapes import PACKED_MAX, SHOWN_MAX
from rookery.wire.api.types import AtMost, Duration, Name, Short
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router

STEP_MESSAGES: Final = 2_000
"""How many messages are moved, redriven or purged in one turn."""


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


class DeadLetterRoutes:
    """The routes."""

    def __init__(self, api: Api, handling: Handling) -> None:
        self._api = api
        self._rest = api.rest
        self._handling = handling

    def redrive(self, call: Call, name: Name, body: Redriving | None = None) -> object:
        """Send the dead letters of a queue back to life: to the queues they died in, or to one that is named."""
        wanted = body or Redriving()
        queue = self._rest.existing(call, name, "read")
        if wanted.to is not None:
            self._rest.existing(call, wanted.to, "write")
        chosen = chosen_by(self._rest, wanted.where)

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
            return packed_content([self._handling.pack(entry, 0) for entry, _ in found[:PACKED_MAX]])
        letters = [
            RedrivenLetter(self._rest.message_id(entry.message), to, entry.message.route.deaths[0].reason)
            for entry, to in found[:SHOWN_MAX]
        ]
        return Redriven(len(found), wanted.dry_run, letters)


def chosen_by(rest: Rest, where: Where | None) -> Callable[[Entry], bool] | None:
    """Whether an entry is one of those that are meant; None when all are."""
    if where is None:
        return None
    keys = None
    if where.routing_key is not None:
        keys = matcher("topic", {})
        keys.add(where.routing_key, None, where)
    ids = None if where.message_ids is None else frozenset(where.message_ids)
    seqs = None if where.seqs is None else frozenset(where.seqs)

    def chosen(entry: Entry) -> bool:
        deaths = entry.message.route.deaths
        key = deaths[-1].key if deaths else entry.message.route.key
        if keys is not None and not keys.match(key, None):
            return False
        if seqs is not None and int(entry.seq) not in seqs:
            return False
        if ids is not None and rest.message_id(entry.message) not in ids:
            return False
        return _died_so(where, entry) and _has_headers(where, entry)

    return chosen


def _collect(letters: Iterator[tuple[Entry, str | None]], found: list[tuple[Entry, str]]) -> Iterator[None]:
    for entry, to in letters:
        if to is not None:
            found.append((entry, to))
        yield


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


def add_routes(router: Router, api: Api, handling: Handling) -> None:
    letters = DeadLetterRoutes(api, handling)
    queue = "/api/v1/queues/{name}"
    tag = "messages"
    router.add("POST", f"{queue}/redrive", letters.redrive, {200: (Redriven, bytes)}, "queue.redrive", tag=tag)

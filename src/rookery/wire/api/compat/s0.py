"""The small queue API at the root: create_key, publish, claim, ack, stats by query parameters, answers to the byte.

A message is known by its id, 16 bytes in base64url; acking settles the lease that the message is under now, or, with
`&lease=` (the `X-Lease` header of the claim), that lease only. Errors are `{"error": "…"}`; the request id is in a
header. GET and POST are taken for one another.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from rookery.core import dead_letters
from rookery.core.entries import Entry
from rookery.core.queue import Queue
from rookery.core.snapshots import dead_count
from rookery.errors import InvalidArgument, RookeryError, Unauthenticated
from rookery.format.rendering import headers_of
from rookery.wire.api.compat.handles import Handles, payload
from rookery.wire.api.keys import create_by_anyone
from rookery.wire.api.rest import Rest
from rookery.wire.api.types import AtMost, Done, Many, MessageId, NeededName, NeededText
from rookery.wire.http.call import Call
from rookery.wire.http.routes import NEEDED

EXTEND_MAX_SEC: Final = 7 * 24 * 3_600

Seconds = Annotated[float, msgspec.Meta(gt=0, le=EXTEND_MAX_SEC), NEEDED]


class KeyCreated(msgspec.Struct):
    api_key: str
    tenant: str


class Counts(msgspec.Struct):
    Pending: int
    InFlight: int
    DeadLetter: int


class S0Error(msgspec.Struct):
    error: str


class DeadLetter(msgspec.Struct, omit_defaults=True):
    message_id: str
    payload: str
    reason: str
    attempts: int
    died_ms: int
    payload_base64: str | None = None
    headers: dict[str, Any] | None = None


class DeadLetters(msgspec.Struct):
    queue: str
    dead_letters: list[DeadLetter]


class Count(msgspec.Struct):
    count: int


def word_error(_: Call, error: RookeryError) -> tuple[int, object]:
    """Errors as this API words them."""
    if isinstance(error, Unauthenticated):
        text = str(error)
        return 401, S0Error(text if text == "missing api key" else "unauthorized: invalid API key")
    return error.http, S0Error(str(error))


class S0:
    """The routes."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._shard = rest.shard
        self._handles = Handles(rest)

    def create_key(self, call: Call, tenant: NeededName = "") -> KeyCreated:
        """Create a tenant, or one more key of it. Who may is said by ROOKERY_KEY_CREATION."""
        if not tenant:
            raise InvalidArgument("tenant ID required", argument="tenant")
        return KeyCreated(create_by_anyone(self._rest, call, tenant), tenant)

    def publish(self, call: Call, body: bytes, queue: NeededName = "") -> MessageId:
        """Put the body, whatever it is, into a queue."""
        return self._handles.publish(call, queue, body)

    def claim(self, call: Call, queue: NeededName = "") -> object:
        """Lease the next message of a queue; waits a while for one."""
        return self._handles.claim(call, queue)

    def ack(self, call: Call, queue: NeededName = "", message_id: NeededText = "", lease: str = "") -> Done:
        """Done with a message: it is gone for good."""
        return self._handles.ack(call, queue, message_id, lease)

    def extend(
        self, call: Call, queue: NeededName = "", message_id: NeededText = "", seconds: Seconds = 0, lease: str = ""
    ) -> Done:
        """Keep a message for so many seconds from now."""
        if not seconds:
            raise InvalidArgument("seconds required", argument="seconds")
        held = self._handles.lease(call, queue, message_id, lease)
        held.queue.extend(held, max(1, int(seconds * 1000)))
        return Done("ok")

    def stats(self, call: Call, queue: NeededName = "") -> Counts:
        """How many messages of a queue wait, are leased, and are dead."""
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        found = self._rest.found(call, queue, "read")
        if found is None:
            return Counts(0, 0, 0)
        return Counts(int(found.ready + found.delayed), int(found.leased), dead_count(found))

    # Dead letters

    def dead(self, call: Call, queue: NeededName = "", limit: Many = 100) -> DeadLetters:
        """The dead letters of a queue, oldest first, with why each died."""
        letters = [self._letter(entry) for entry in self._dead(call, queue, "read")[1][:limit]]
        return DeadLetters(queue, letters)

    def redrive(self, call: Call, queue: NeededName = "", limit: AtMost = 0, message_id: str = "") -> Count:
        """Send dead letters back to their queue: all, the first few, or one."""
        graveyard, entries = self._dead(call, queue, "write")
        if graveyard is None:
            return Count(0)
        number = self._handles.number(message_id) if message_id else 0
        wanted = {int(entry.seq) for entry in entries if not number or entry.message.public_id == number}
        done = dead_letters.redrive(graveyard.tenant, graveyard, limit, lambda entry: int(entry.seq) in wanted)
        call.lasting()
        return Count(len(done))

    def purge(self, call: Call, queue: NeededName = "") -> Count:
        """Throw the dead letters of a queue away."""
        graveyard, entries = self._dead(call, queue, "write")
        for entry in entries:
            assert graveyard is not None
            graveyard.remove(entry)
            graveyard.purged += 1
        call.lasting()
        return Count(len(entries))

    def _dead(self, call: Call, queue: str, action: str) -> tuple[Queue | None, list[Entry]]:
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        found = self._rest.found(call, queue, action)
        if found is None:
            return None, []
        name = found.settings.dead_letter_queue
        graveyard = None if name is None else found.tenant.queues.get(name)
        if graveyard is None:
            return None, []
        entries = [e for e in graveyard.ready_entries() if e.message.route.deaths]
        return graveyard, [e for e in entries if e.message.route.deaths[0].queue == queue]

    def _letter(self, entry: Entry) -> DeadLetter:
        text, coded = payload(entry)
        death = entry.message.route.deaths[0]
        number = int(entry.message.public_id)
        return DeadLetter(
            self._handles.id(number),
            text,
            death.detail,
            int(death.attempts),
            int(death.last_ms),
            coded,
            headers_of(entry.message),
        )

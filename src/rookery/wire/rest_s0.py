"""The small queue API at the root: create_key, publish, claim, ack, stats by query parameters, answers to the byte.

A message is known by its id, 16 bytes in base64url; acking settles the lease that the message is under now, or, with
`&lease=` (the `X-Lease` header of the claim), that lease only. Errors are `{"error": "…"}`; the request id is in a
header. GET and POST are taken for one another.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections import OrderedDict
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from rookery import properties
from rookery.core import dead_letters
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.core.snapshots import dead_count
from rookery.core.transactions import Publish
from rookery.errors import InvalidArgument, NotFound, RookeryError, Unauthenticated
from rookery.properties import Properties
from rookery.wire.http_call import Call
from rookery.wire.http_routes import NEEDED, Answer
from rookery.wire.http_trace import answer_trace, carry
from rookery.wire.rest import Rest, headers_of
from rookery.wire.rest_keys import create_by_anyone
from rookery.wire.rest_types import AtMost, Many, NeededName, NeededText

FACE: Final = "s0"
HANDLES_MAX: Final = 100_000
EXTEND_MAX_SEC: Final = 7 * 24 * 3_600

Seconds = Annotated[float, msgspec.Meta(gt=0, le=EXTEND_MAX_SEC), NEEDED]

_TYPES: Final[dict[str, bytes]] = {}
_UNSAID: Final = "application/x-www-form-urlencoded"
"""What clients say of a body when they were told nothing."""


class KeyCreated(msgspec.Struct):
    api_key: str
    tenant: str


class MessageId(msgspec.Struct):
    message_id: str


class Claimed(msgspec.Struct, omit_defaults=True):
    """`payload_base64` is there when the payload is not UTF-8; `payload` then has replacement characters."""

    message_id: str
    payload: str
    payload_base64: str | None = None


class Done(msgspec.Struct):
    status: str


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
        # where a message that was claimed here stands in its queue; forgotten ones are looked for
        self._handles: OrderedDict[tuple[str, str, int], int] = OrderedDict()

    def create_key(self, call: Call, tenant: NeededName = "") -> KeyCreated:
        """Create a tenant, or one more key of it. Who may is said by ROOKERY_KEY_CREATION."""
        if not tenant:
            raise InvalidArgument("tenant ID required", argument="tenant")
        return KeyCreated(create_by_anyone(self._rest, call, tenant), tenant)

    def publish(self, call: Call, body: bytes, queue: NeededName = "") -> MessageId:
        """Put the body, whatever it is, into a queue."""
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        if not body:
            raise InvalidArgument("request body required", argument="body")
        found = self._rest.queue(call, queue, FACE, "write")
        kind = call.header(b"content-type")
        p = Publish("", queue, _props(kind), body)
        carry(call, p)
        number, _ = self._rest.publish(found.tenant, p)
        call.lasting()
        return MessageId(self._id(number))

    def claim(self, call: Call, queue: NeededName = "") -> object:
        """Lease the next message of a queue; waits a while for one."""
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        options = self._rest.options
        found = self._rest.queue(call, queue, FACE, "read")

        def done(leases: list[Lease]) -> object:
            if not leases:
                raise NotFound("timeout: no messages available")
            lease = leases[0]
            answer_trace(call, lease.entry.message.props)
            number = int(lease.entry.message.public_id)
            self._remember(found, number, int(lease.entry.seq))
            call.tag = lease.token()
            text, coded = _payload(lease.entry)
            return Answer(200, Claimed(self._id(number), text, coded), {"X-Lease": quote(call.tag)})

        return self._rest.claim(call, found, 1, options.claim_lease_ms, options.claim_wait_ms, done)

    def ack(self, call: Call, queue: NeededName = "", message_id: NeededText = "", lease: str = "") -> Done:
        """Done with a message: it is gone for good."""
        held = self._lease(call, queue, message_id, lease)
        held.queue.ack(held)
        self._handles.pop((held.queue.tenant.name, queue, int(held.entry.message.public_id)), None)
        call.lasting()
        return Done("ok")

    def extend(
        self, call: Call, queue: NeededName = "", message_id: NeededText = "", seconds: Seconds = 0, lease: str = ""
    ) -> Done:
        """Keep a message for so many seconds from now."""
        if not seconds:
            raise InvalidArgument("seconds required", argument="seconds")
        held = self._lease(call, queue, message_id, lease)
        held.queue.extend(held, max(1, int(seconds * 1000)))
        return Done("ok")

    def stats(self, call: Call, queue: NeededName = "") -> Counts:
        """How many messages of a queue wait, are leased, and are dead."""
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        found = self._rest.queue(call, queue, FACE, "read")
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
        number = self._number(message_id) if message_id else 0
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
        found = self._rest.queue(call, queue, FACE, action)
        name = found.settings.dead_letter_queue
        graveyard = None if name is None else found.tenant.queues.get(name)
        if graveyard is None:
            return None, []
        entries = [e for e in graveyard.ready_entries() if e.message.route.deaths]
        return graveyard, [e for e in entries if e.message.route.deaths[0].queue == queue]

    def _letter(self, entry: Entry) -> DeadLetter:
        text, coded = _payload(entry)
        death = entry.message.route.deaths[0]
        number = int(entry.message.public_id)
        return DeadLetter(
            self._id(number),
            text,
            death.detail,
            int(death.attempts),
            int(death.last_ms),
            coded,
            headers_of(entry.message),
        )

    # Ids and leases

    def _id(self, number: int) -> str:
        packed = uuid.UUID(self._shard.ids.uuid(number)).bytes
        return base64.urlsafe_b64encode(packed)[:22].decode()

    def _number(self, message_id: str) -> int:
        try:
            packed = base64.b64decode(message_id + "==", altchars=b"-_", validate=True)
            return self._shard.ids.number(str(uuid.UUID(bytes=packed)))
        except (binascii.Error, ValueError):
            return -1

    def _remember(self, queue: Queue, number: int, seq: int) -> None:
        self._handles[queue.tenant.name, queue.name, number] = seq
        if len(self._handles) > HANDLES_MAX:
            self._handles.popitem(last=False)

    def _lease(self, call: Call, queue: str, message_id: str, token: str) -> Lease:
        if not queue or not message_id:
            raise InvalidArgument("queue name and message_id required", argument="message_id")
        found = self._rest.queue(call, queue, FACE, "read")
        call.tag = message_id
        number = self._number(message_id)
        lease = self._current(found, number) if number > 0 else None
        if lease is None or not lease.live or (token and token not in (lease.token(), quote(lease.token()))):
            raise NotFound(f"message not found in-flight: {message_id}")
        return lease

    def _current(self, queue: Queue, number: int) -> Lease | None:
        seq = self._handles.get((queue.tenant.name, queue.name, number))
        lease = None if seq is None else queue.lease_of(seq)
        if lease is not None and lease.entry.message.public_id == number:
            return lease
        # claimed through another face, or so long ago that it was forgotten
        for held in queue.leases() if queue.leased else ():
            if held.entry.message.public_id == number:
                return held
        return None


def _payload(entry: Entry) -> tuple[str, str | None]:
    body = entry.message.body
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return body.decode("utf-8", "replace"), base64.b64encode(body).decode()


def _props(kind: str) -> bytes:
    """The property list of a body of this content type."""
    props = _TYPES.get(kind)
    if props is None:
        said = kind if kind and kind != _UNSAID and len(kind) <= 255 else None
        props = properties.encode(Properties(content_type=said, delivery_mode=2))
        if len(_TYPES) < 1_000:
            _TYPES[kind] = props
    return props

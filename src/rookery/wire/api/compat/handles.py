"""Messages of the small queue API, which are known by their id: 16 bytes in base64url.

Acking settles the lease that a message is under now, or, when its token is given too, that lease only.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from typing import Final
from urllib.parse import quote

from rookery.core.entries import Entry, Lease
from rookery.core.publishing import Publish
from rookery.core.queue import Queue
from rookery.errors import InvalidArgument, NotFound
from rookery.format import properties
from rookery.wire.api.bodies import FORM
from rookery.wire.api.rest import Rest
from rookery.wire.api.types import Claimed, Done, MessageId
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer
from rookery.wire.http.trace import answer_trace, carry

FACE: Final = "s0"
HANDLES_MAX: Final = 100_000


class Handles:
    """Publish, claim and ack."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._ids = rest.shard.ids
        # where a message that was claimed here stands in its queue; forgotten ones are looked for
        self._places: OrderedDict[tuple[str, str, int], int] = OrderedDict()

    def publish(self, call: Call, queue: str, body: bytes) -> MessageId:
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        if not body:
            raise InvalidArgument("request body required", argument="body")
        found = self._rest.queue(call, queue, FACE, "write")
        p = Publish("", queue, typed(call.header(b"content-type")), body)
        carry(call, p)
        number, _ = self._rest.publish(found.tenant, p)
        call.lasting()
        return MessageId(self.id(number))

    def claim(self, call: Call, queue: str) -> object:
        if not queue:
            raise InvalidArgument("queue name required", argument="queue")
        options = self._rest.options
        found = self._rest.queue(call, queue, FACE, "read")

        def done(leases: list[Lease]) -> object:
            if not leases:
                raise NotFound("timeout: no messages available")
            return self._claimed(leases[0])

        def handed_out(leases: list[Lease]) -> None:
            entry = leases[0].entry
            call.tag = leases[0].token()
            answer_trace(call, entry.message.props)
            self._remember(leases[0].queue, int(entry.message.public_id), int(entry.seq))

        return self._rest.claim(call, found, 1, options.claim_lease_ms, options.claim_wait_ms, done, handed_out)

    def _claimed(self, lease: Lease) -> Answer:
        entry = lease.entry
        text, coded = payload(entry)
        claimed = Claimed(self.id(int(entry.message.public_id)), text, coded)
        return Answer(200, claimed, {"X-Lease": quote(lease.token(), errors="surrogateescape")})

    def ack(self, call: Call, queue: str, message_id: str, token: str) -> Done:
        lease = self.lease(call, queue, message_id, token)
        lease.queue.ack(lease)
        self._places.pop((lease.queue.tenant.name, queue, int(lease.entry.message.public_id)), None)
        call.lasting()
        return Done("ok")

    def lease(self, call: Call, queue: str, message_id: str, token: str) -> Lease:
        """The live lease of a message; with a token, only if it is that one."""
        if not queue or not message_id:
            raise InvalidArgument("queue name and message_id required", argument="message_id")
        found = self._rest.queue(call, queue, FACE, "read")
        call.tag = message_id
        number = self.number(message_id)
        lease = self._current(found, number) if number > 0 else None
        if lease is None or not lease.live or (token and token not in _forms(lease.token())):
            raise NotFound(f"message not found in-flight: {message_id}")
        return lease

    def id(self, number: int) -> str:
        """The id of a message, by its number."""
        return base64.urlsafe_b64encode(self._ids.packed(number))[:22].decode()

    def number(self, message_id: str) -> int:
        """The number of a message, by its id; -1 when that is nobody's."""
        try:
            return self._ids.unpacked(base64.b64decode(message_id + "==", altchars=b"-_", validate=True))
        except (binascii.Error, ValueError):
            return -1

    def _remember(self, queue: Queue, number: int, seq: int) -> None:
        places = self._places
        places[queue.tenant.name, queue.name, number] = seq
        if len(places) > HANDLES_MAX:
            places.popitem(last=False)

    def _current(self, queue: Queue, number: int) -> Lease | None:
        seq = self._places.get((queue.tenant.name, queue.name, number))
        lease = None if seq is None else queue.lease_of(seq)
        if lease is not None and lease.entry.message.public_id == number:
            return lease
        # claimed through another face, or so long ago that it was forgotten
        for held in queue.leases() if queue.leased else []:
            if held.entry.message.public_id == number:
                return held
        return None


def _forms(token: str) -> tuple[str, str]:
    """A token as it is, and as the header of a claim shows it."""
    return token, quote(token, errors="surrogateescape")


def payload(entry: Entry) -> tuple[str, str | None]:
    """A body as text, and in base64 when it is none."""
    body = entry.message.body
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return body.decode("utf-8", "replace"), base64.b64encode(body).decode()


def typed(kind: str) -> bytes:
    """The property list of a body of this content type."""
    return properties.of_type(kind if kind != FORM and len(kind) <= 255 else None)

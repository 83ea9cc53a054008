"""What a reader over a WebSocket can ask for: one JSON object a frame, told apart by `op`.

Publishing, settling and extending are what the native API does for a request, to the queue, topic or stream of the
connection's path, under the same rights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from rookery.errors import InvalidArgument, RookeryError
from rookery.wire.api.handling import Handling
from rookery.wire.api.messages import Messages
from rookery.wire.api.shapes import Extended, ExtendMany, SettledAll, SettleMany
from rookery.wire.api.streams import Streams
from rookery.wire.http.call import Call
from rookery.wire.http.errors import Error
from rookery.wire.http.routes import Answer, Content, decode_json
from rookery.wire.push.sources import Source

Ref = Annotated[str, msgspec.Meta(max_length=255)] | int
CREDIT_MAX: Final = 1_000


class Ack(msgspec.Struct, tag_field="op", tag="ack", forbid_unknown_fields=True):
    """Done with everything up to the message of that id."""

    through: str
    ref: Ref | None = None


class Settle(SettleMany, tag_field="op", tag="settle", forbid_unknown_fields=True):
    ref: Ref | None = None


class Extend(ExtendMany, tag_field="op", tag="extend", forbid_unknown_fields=True, kw_only=True):
    ref: Ref | None = None


class Credit(msgspec.Struct, tag_field="op", tag="credit", forbid_unknown_fields=True):
    credit: Annotated[int, msgspec.Meta(ge=1, le=CREDIT_MAX)]
    ref: Ref | None = None


class Publish(msgspec.Struct, tag_field="op", tag="publish", forbid_unknown_fields=True):
    """`messages` is a list of what a publish request has in its body, or one of it."""

    messages: msgspec.Raw
    ref: Ref | None = None


class _Known(msgspec.Struct):
    """What of a wrong request may still be right."""

    ref: Ref | None = None


class Done(msgspec.Struct, tag_field="type", tag="done"):
    """What was asked for under `ref` has happened, and is as durable as the answer to a request says it is."""

    ref: Ref
    result: Any


class Failed(msgspec.Struct, tag_field="type", tag="error"):
    """What was asked for has not happened."""

    ref: Ref | None
    error: Error


class Acked(msgspec.Struct):
    acked: int


class Granted(msgspec.Struct):
    credit: int


Operation = Ack | Settle | Extend | Credit | Publish

_decode = msgspec.json.Decoder(Operation).decode
_known = msgspec.json.Decoder(_Known).decode
_encode = msgspec.json.Encoder().encode


class Target:
    """What a path names, as operations see it: the queue behind it, empty for a stream, and how to publish."""

    def __init__(self, queue: str, publish: Callable[[Call, bytes], Answer]) -> None:
        self.queue = queue
        self.publish = publish


class Operations:
    """Does what a reader asks for, with the call that it came by. `limit(call)` refuses one request too many."""

    def __init__(
        self, call: Call, source: Source, target: Target, handling: Handling, limit: Callable[[Call], None]
    ) -> None:
        self._call = call
        self._source = source
        self._target = target
        self._handling = handling
        self._limit = limit

    def do(self, text: bytes) -> tuple[bytes, int]:
        """Do what a frame asks for: the answer, empty when none is wanted, and the batch of the journal that it waits
        for.
        """
        call = self._call
        call.batch = 0
        try:
            asked: Operation = decode_json(_decode, text)
            self._limit(call)
            result = self._do(asked)
        except RookeryError as error:
            shown = Error(error.code, str(error), call.request_id, error.argument)
            return _encode(Failed(ref_of(text), shown)), 0
        batch = int(call.batch)
        call.batch = 0
        if asked.ref is None:
            return b"", batch
        return _encode(Done(asked.ref, result)), batch

    def _do(self, asked: Operation) -> object:
        call = self._call
        if isinstance(asked, Ack):
            acked = self._source.done_through(asked.through)
            call.lasting()
            return Acked(acked)
        if isinstance(asked, Credit):
            self._source.set_credit(asked.credit)
            return Granted(asked.credit)
        if isinstance(asked, Publish):
            sent = self._target.publish(call, bytes(asked.messages)).value
            return msgspec.Raw(sent.data) if isinstance(sent, Content) else sent
        queue = self._target.queue
        if not queue:
            raise InvalidArgument("records of a stream have no leases; ack says how far they were read", argument="op")
        if isinstance(asked, Settle):
            settled: SettledAll = self._handling.settle(call, queue, asked)
            return settled
        extended: Extended = self._handling.extend(call, queue, asked)
        return extended


def ref_of(text: bytes) -> Ref | None:
    """The ref of a request that was refused, if it has one."""
    try:
        return _known(text).ref
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def topic_target(messages: Messages, topic: str, queue: str) -> Target:
    return Target(queue, lambda call, body: messages.publish_to_exchange(call, topic, body))


def queue_target(messages: Messages, queue: str) -> Target:
    return Target(queue, lambda call, body: messages.publish_to_queue(call, queue, body))


def stream_target(streams: Streams, stream: str) -> Target:
    return Target("", lambda call, body: streams.publish(call, stream, body))

"""Messages as Rookery's own client sends and gets them: property list and body as they are, in MessagePack.

Nothing is translated on the way: what a client packed is what the core keeps, and what a claim, a look, a cut or a
range of a stream shows is what the core has. Whoever sends or asks for `PACKED` speaks these arrays; routes and their
other forms are the same. This module is all that the two ends share.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from rookery.errors import InvalidArgument, MessageExpired

PACKED: Final = "application/vnd.rookery+msgpack"
KEY: Final = "Idempotency-Key"
"""The header by which the broker knows a request that is made again."""

DONE: Final = "Idempotency-Done"
"""The header that says which such keys, divided by commas, are of no more use."""

NONE_SEEN: Final = "-"
"""What a reader that leaves says in place of the id of the last message it has seen."""

TIME_MAX_MS: Final = 1 << 53

Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_MS)]
Text = Annotated[str, msgspec.Meta(max_length=255)]


class PackedPublish(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A message to be. Times are as the publisher said them, because clocks differ; `exchange` and `mandatory` count
    in transactions only, where the default exchange is meant by an empty name.
    """

    props: bytes
    body: bytes
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    persistent: bool = True
    dedup_key: Text = ""
    delay_ms: Time | None = None
    deliver_at: Time | None = None
    ttl_ms: Time | None = None
    expires_at: Time | None = None
    routing_key: Text | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    exchange: Text = ""
    mandatory: bool = False

    def times(self, now_ms: int) -> tuple[int, int]:
        """When it is to be delivered and when it expires; 0 for at once and for never."""
        due_ms = 0
        if self.deliver_at is not None:
            due_ms = self.deliver_at
        elif self.delay_ms is not None:
            due_ms = now_ms + self.delay_ms
        if self.expires_at:
            if self.expires_at <= now_ms:
                raise MessageExpired("the message's time is over already", argument="expires_at")
            return due_ms, self.expires_at
        if self.ttl_ms is not None:
            return due_ms, max(now_ms, due_ms) + self.ttl_ms
        return due_ms, 0


class PackedMessage(msgspec.Struct, array_like=True):
    """A message as it is in a queue or stream. `lease` is empty where it is only looked at; `seq` is its place."""

    id: str
    props: bytes
    body: bytes
    exchange: str
    key: str
    priority: int
    entered_ms: int
    expires_ms: int
    attempt: int = 0
    redelivered: bool = False
    lease: str = ""
    seq: int = 0
    deaths: list[dict[str, Any]] = []


class PackedRecord(msgspec.Struct, array_like=True):
    """A message at an offset of a stream."""

    offset: int
    message: PackedMessage


class PackedPage(msgspec.Struct, array_like=True):
    """Records of a partition, the offset to go on with, and the one after the last there is."""

    partition: int
    next: int
    end: int
    records: list[PackedRecord]


class PackedSettle(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What becomes of a lease; a delay of -1 is the queue's backoff."""

    lease: str
    outcome: str
    delay_ms: Annotated[int, msgspec.Meta(ge=-1, le=TIME_MAX_MS)] = -1
    reason: Annotated[str, msgspec.Meta(max_length=65_536)] = ""


class PackedWork(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A transaction: all settles, then all publishes, or nothing."""

    publish: list[PackedPublish]
    settle: list[PackedSettle]


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_publishes = msgspec.msgpack.Decoder(list[PackedPublish]).decode
decode_messages = msgspec.msgpack.Decoder(list[PackedMessage]).decode
decode_page = msgspec.msgpack.Decoder(PackedPage).decode
decode_work = msgspec.msgpack.Decoder(PackedWork).decode


def read(decode: Any, body: bytes) -> Any:
    """Decode what a peer sent, or say what is wrong with it."""
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not what it should be: {error}", argument="body") from None

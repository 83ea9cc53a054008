"""Requests and answers of the native API that several modules share; those about messages are worked with in `bodies`
and `handling`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.wire.api.types import Duration, Lasting, Sending, Short

LEASES_MAX: Final = 10_000
SHOWN_MAX: Final = 1_000
PACKED_MAX: Final = 100_000

WaitMs = Annotated[int, msgspec.Meta(ge=0, le=60_000)]
ClaimCount = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
Outcome = Literal["ack", "retry", "release", "reject"]
Tokens = Annotated[list[str], msgspec.Meta(min_length=1, max_length=LEASES_MAX)]
Reason = Annotated[str, msgspec.Meta(max_length=65_536)]
PartitionIndex = Annotated[int, msgspec.Meta(ge=0, le=255)]
Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"contentEncoding": "base64"})]


class Item(Sending, kw_only=True, forbid_unknown_fields=True):
    """A message of a batch: `message` is any JSON value, or `message_base64` any bytes.

    With a `content_type` that is not JSON, a `message` that is a string is sent as that text. `routing_key` is for
    exchanges; `key` (records of one key keep their order) and `partition` are for streams.
    """

    message: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    message_base64: Base64 | None = None
    content_type: Short | None = None
    message_id: Short | None = None
    timestamp_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] | None = None
    routing_key: Short | None = None
    key: str | None = None
    partition: PartitionIndex | None = None


class Plain(msgspec.Struct, forbid_unknown_fields=True):
    """A message that says nothing about itself."""

    message: msgspec.Raw


class Sent(msgspec.Struct, omit_defaults=True):
    """`duplicate`: the idempotency key was seen before, and the id is the first message's."""

    message_id: str
    duplicate: bool = False


class SentAll(msgspec.Struct, omit_defaults=True):
    count: int
    messages: list[Sent] | None = None


class Claiming(msgspec.Struct, forbid_unknown_fields=True):
    """Up to `max` messages under lease for `lease_ms`; `wait_ms` for the first. With `ack` they are acked as they are
    handed out; without `create`, a queue that is not there is an error.
    """

    max: ClaimCount = 1
    wait_ms: WaitMs = 0
    lease_ms: Lasting | None = None
    create: bool = True
    ack: bool = False


class Leased(msgspec.Struct, omit_defaults=True):
    """A message, and under `lease` the right to settle it (not where it is only looked at).

    A body that is neither JSON nor text is in `message_base64`.
    """

    message: Any
    message_id: str
    attempt: int
    lease: str | None = None
    message_base64: str | None = None
    exchange: str = ""
    routing_key: str = ""
    redelivered: bool = False
    priority: int = 0
    content_type: str | None = None
    headers: dict[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    timestamp_ms: int | None = None
    enqueued_ms: int = 0
    expires_ms: int = 0
    due_ms: int = 0
    deaths: list[dict[str, Any]] | None = None


class LeasedAll(msgspec.Struct):
    deliveries: list[Leased]


class SettleOne(msgspec.Struct, forbid_unknown_fields=True):
    """`retry` and `reject` may say why; `retry` after `delay_ms`, else after the queue's backoff."""

    lease: str
    outcome: Outcome = "ack"
    delay_ms: Duration | None = None
    reason: Reason = ""


class SettleMany(msgspec.Struct, forbid_unknown_fields=True):
    """`settle` names each lease with an outcome of its own; `leases` all get the one of `outcome`. With `together`, one
    that had ended refuses them all.
    """

    settle: Annotated[list[SettleOne], msgspec.Meta(max_length=LEASES_MAX)] = []
    leases: Annotated[list[str], msgspec.Meta(max_length=LEASES_MAX)] = []
    outcome: Outcome = "ack"
    delay_ms: Duration | None = None
    reason: Reason = ""
    together: bool = False


class SettledAll(msgspec.Struct):
    """`lost` are leases that had ended before: settled, lapsed, or never there."""

    settled: int
    lost: list[str]


class ExtendMany(msgspec.Struct, forbid_unknown_fields=True):
    leases: Tokens
    lease_ms: Lasting


class Extended(msgspec.Struct):
    extended: int
    lost: list[str]


class Deleted(msgspec.Struct, omit_defaults=True):
    """`messages` is how many were ready in a queue, or were records of a stream."""

    deleted: str
    messages: int = 0

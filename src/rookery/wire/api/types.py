"""Types of what requests say, with their ranges: checked as a request is read, and shown in the OpenAPI document.

What msgspec makes of a class body cannot be compiled, so the shapes of hot requests and answers are declared here and
worked with elsewhere (`rest`, `compat.pulling`, `compat.handles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta, Raw, Struct

from rookery.core.queue_settings import TIME_MAX_MS
from rookery.wire.http.routes import CHECKED, NEEDED

_NAME: Final = r"^[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f\s][^\x00-\x1f\x7f]*$"

Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME)]
"""Of a queue, topic, exchange or tenant."""

CheckedName = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME), CHECKED]
NeededName = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME), NEEDED]
NeededText = Annotated[str, Meta(min_length=1), NEEDED]
Short = Annotated[str, Meta(max_length=255)]
CheckedShort = Annotated[str, Meta(max_length=255), CHECKED]
DedupKey = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Regex = Annotated[str, Meta(max_length=1_024, extra_json_schema={"format": "regex"})]
Priority = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Duration = Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]
Lasting = Annotated[int, Meta(ge=1, le=TIME_MAX_MS)]
Amount = Annotated[int, Meta(ge=0, le=1 << 53)]
WaitSeconds = Annotated[float, Meta(ge=0, le=60)]
Many = Annotated[int, Meta(ge=1, le=1_000)]
AtMost = Annotated[int, Meta(ge=0, le=1_000_000)]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Of a record in its partition of a stream."""


@dataclass(frozen=True)
class RestOptions:
    """What the settings say about the HTTP faces."""

    lease_ms: int = 30_000
    claim_lease_ms: int = 5_000
    claim_wait_ms: int = 5_000
    dlq_suffix: str = ".DLQ"
    key_creation: str = "local"
    face_defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Sending(Struct, kw_only=True):
    """What a publisher can say about a message.

    `delay_ms` or `deliver_at` (milliseconds since 1970) hold it back, `ttl_ms` bounds its life, higher `priority` goes
    first, messages of one `group` are handled one after the other, a repeated `idempotency_key` adds nothing.
    """

    message: Raw
    idempotency_key: DedupKey | None = None
    priority: Priority = 0
    delay_ms: Duration | None = None
    deliver_at: Duration | None = None
    ttl_ms: Lasting | None = None
    headers: dict[str, Any] | None = None
    group: Short | None = None
    correlation_id: Short | None = None
    reply_to: Short | None = None
    type: Short | None = None
    persistent: bool = True


class Published(Struct, omit_defaults=True):
    """`duplicate` is there when the idempotency key was seen before: then `message_id` is the first message's."""

    message_id: str
    duplicate: bool = False


class Nothing(Struct):
    """There was no message."""

    delivery_tag: None = None
    message: None = None
    retry: int = 0


class Delivery(Struct, omit_defaults=True):
    """`retry` is 0 at the first delivery. A body that is neither JSON nor text is in `message_base64`."""

    delivery_tag: str | None
    message: Any
    retry: int
    message_id: str
    routing_key: str
    redelivered: bool = False
    priority: int = 0
    message_base64: str | None = None
    headers: dict[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    deaths: list[dict[str, Any]] | None = None


class Deliveries(Struct):
    """The answer to a pull with `max`."""

    messages: list[Delivery]


class Tag(Struct):
    """With an `idempotency_key`, an ack may be repeated: the second one succeeds and does nothing."""

    delivery_tag: str
    idempotency_key: DedupKey | None = None


class Nack(Struct):
    delivery_tag: str
    requeue: bool = False
    dead_letter: bool = False
    delay_ms: Duration | None = None
    reason: str = ""


class Settled(Struct, omit_defaults=True):
    status: str
    duplicate: bool = False


class MessageId(Struct):
    message_id: str


class Claimed(Struct, omit_defaults=True):
    """`payload_base64` is there when the payload is not UTF-8; `payload` then has replacement characters."""

    message_id: str
    payload: str
    payload_base64: str | None = None


class Done(Struct):
    status: str

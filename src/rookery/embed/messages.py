"""What users publish and receive: a message with a Python value in it, and its encoding for the core.

Bytes stay bytes, text becomes UTF-8, other values become JSON, each with its content type; the receiver gets the value
back by that type. Nothing is ever pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec

from rookery import model, properties
from rookery.core.policy import TIME_MAX_MS
from rookery.core.queue import GROUP_HEADER
from rookery.errors import EmptyBody, InvalidArgument, InvalidType, MessageExpired, NilMessage
from rookery.properties import Properties

if TYPE_CHECKING:
    from rookery.core.entries import Entry

TEXT: Final = "text/plain"
JSON: Final = "application/json"
ACK_ID_HEADER: Final = "x-ack-id"
ACK_TIMEOUT_HEADER: Final = "x-ack-timeout-ms"

LOWEST: Final = 0
LOW: Final = 10
NORMAL: Final = 20
HIGH: Final = 30
HIGHEST: Final = 40

_PLAIN: Final = {
    (content_type, mode): properties.encode(Properties(content_type=content_type, delivery_mode=mode))
    for content_type in (None, TEXT, JSON)
    for mode in (1, 2)
}

Moment = datetime | int
"""A point in time: an aware datetime, or milliseconds since 1970."""


class Message:
    """A message: `data` is bytes, str or a JSON-able value; everything else is optional.

    `ttl_ms` or `expires_at` bound its life, `delay_ms` or `deliver_at` hold it back, higher `priority` goes first,
    messages of one `group` are handled one after the other, a repeated `dedup_key` adds nothing. On a message that was
    received, `topic`, `time` and (for a dead letter) `deaths` are filled in.
    """

    __slots__ = (
        "content_type",
        "correlation_id",
        "data",
        "deaths",
        "dedup_key",
        "delay_ms",
        "deliver_at",
        "expires_at",
        "group",
        "id",
        "meta",
        "persistent",
        "priority",
        "reply_to",
        "time",
        "topic",
        "ttl_ms",
        "type",
    )

    def __init__(
        self,
        data: Any = None,
        *,
        id: str | None = None,
        topic: str = "",
        type: str | None = None,
        time: datetime | None = None,
        meta: Mapping[str, object] | None = None,
        priority: int = 0,
        ttl_ms: int | None = None,
        expires_at: Moment | None = None,
        delay_ms: int | None = None,
        deliver_at: Moment | None = None,
        group: str | None = None,
        dedup_key: str | None = None,
        content_type: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        persistent: bool = True,
    ) -> None:
        self.data = data
        self.id = id
        self.topic = topic
        self.type = type
        self.time = time
        self.meta = dict(meta) if meta else {}
        self.priority = priority
        self.ttl_ms = ttl_ms
        self.expires_at = expires_at
        self.delay_ms = delay_ms
        self.deliver_at = deliver_at
        self.group = group
        self.dedup_key = dedup_key
        self.content_type = content_type
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.persistent = persistent
        self.deaths: list[dict[str, object]] = []

    def __repr__(self) -> str:
        return f"Message({self.data!r}, id={self.id!r}, topic={self.topic!r})"

    @property
    def reason(self) -> str | None:
        """Why it died last, for a dead letter."""
        return str(self.deaths[0]["detail"]) if self.deaths else None


class Parcel:
    """A message as the core takes it. `needs_id`: nobody gave it an id of its own."""

    __slots__ = ("body", "dedup_key", "due_ms", "expires_ms", "id", "persistent", "priority", "props")

    def __init__(self, props: bytes, body: bytes) -> None:
        self.props = props
        self.body = body
        self.priority = 0
        self.expires_ms = 0
        self.due_ms = 0
        self.persistent = True
        self.dedup_key = ""
        self.id: str | None = None


class IdList(Sequence[str]):
    """The ids of messages published together; texts are made when they are looked at."""

    def __init__(self, ids: model.MessageIds, given: list[str | None], numbers: list[int]) -> None:
        self._ids = ids
        self._given = given
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._given[index] or self._ids.uuid(self._numbers[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def encode_body(data: object) -> tuple[bytes, str | None]:
    """Bytes and content type of a value."""
    if type(data) is bytes:
        return data, None
    if isinstance(data, str):
        return data.encode(), TEXT
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), None
    if data is None:
        raise NilMessage("there is no message: body is None", argument="body")
    try:
        return msgspec.json.encode(data), JSON
    except (TypeError, ValueError) as error:
        raise InvalidType(f"body must be bytes, str or a JSON-able value: {error}", argument="body") from None


def decode_body(body: bytes, content_type: str | None) -> Any:
    """The value of a body; bytes when the content type says nothing about it, or something untrue."""
    if content_type is None:
        return body
    try:
        if content_type.startswith("text/"):
            return body.decode()
        if content_type.startswith(JSON) or content_type.endswith("+json"):
            return msgspec.json.decode(body)
    except ValueError:
        return body
    return body


def wall_ms(moment: Moment, argument: str) -> int:
    """A moment as milliseconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{argument} needs a time zone", argument=argument)
        return int(moment.timestamp() * 1000)
    return _duration(moment, argument)


def _duration(value: object, argument: str) -> int:
    if type(value) is not int:
        raise InvalidType(f"{argument} must be int, not {type(value).__name__}", argument=argument)
    if not 0 <= value <= TIME_MAX_MS:
        raise InvalidArgument(f"{argument} must be between 0 and {TIME_MAX_MS}, not {value}", argument=argument)
    return value


def pack(value: object, now_ms: int, ttl_ms: int, require_body: bool, headers: dict[str, object] | None) -> Parcel:
    """Encode a value or a Message for the core; `ttl_ms` is the default time to live, `headers` go on top of its
    own.
    """
    if not isinstance(value, Message):
        body, content_type = encode_body(value)
        if require_body and not body.strip():
            raise EmptyBody("body cannot be empty", argument="body")
        if headers is None:
            props = _PLAIN[content_type, 2]
        else:
            props = properties.encode(Properties(content_type=content_type, delivery_mode=2, headers=headers))
        parcel = Parcel(props, body)
        if ttl_ms:
            parcel.expires_ms = now_ms + ttl_ms
        return parcel
    return _pack_message(value, now_ms, ttl_ms, require_body, headers)


def _pack_message(m: Message, now_ms: int, ttl_ms: int, require_body: bool, extra: dict[str, object] | None) -> Parcel:
    if m.id is not None and not str(m.id).strip():
        raise NilMessage("a message needs an id that is not empty (or none: it gets one)", argument="id")
    body, content_type = encode_body(m.data)
    if require_body and not body.strip():
        raise EmptyBody("body cannot be empty", argument="body")
    if type(m.priority) is not int or not model.PRIORITY_MIN <= m.priority <= model.PRIORITY_MAX:
        raise InvalidArgument("priority must be a signed 64-bit int", argument="priority")
    headers = dict(m.meta)
    if m.group:
        headers[GROUP_HEADER] = m.group
    if extra:
        headers.update(extra)
    try:
        props = properties.encode(
            Properties(
                content_type=m.content_type or content_type,
                headers=headers or None,
                delivery_mode=2 if m.persistent else 1,
                priority=m.priority if 0 < m.priority < 256 else None,
                correlation_id=m.correlation_id,
                reply_to=m.reply_to,
                message_id=m.id,
                type=m.type,
            )
        )
    except TypeError as error:
        raise InvalidType(str(error), argument="message") from None
    parcel = Parcel(props, body)
    parcel.id = m.id
    parcel.priority = m.priority
    parcel.persistent = m.persistent
    parcel.dedup_key = m.dedup_key or ""
    _set_times(parcel, m, now_ms, ttl_ms)
    return parcel


def _set_times(parcel: Parcel, m: Message, now_ms: int, ttl_ms: int) -> None:
    start = now_ms
    if m.deliver_at is not None:
        parcel.due_ms = wall_ms(m.deliver_at, "deliver_at")
    elif m.delay_ms is not None:
        parcel.due_ms = now_ms + _duration(m.delay_ms, "delay_ms")
    start = max(start, parcel.due_ms)
    if m.expires_at is not None:
        parcel.expires_ms = wall_ms(m.expires_at, "expires_at")
        if parcel.expires_ms and parcel.expires_ms <= now_ms:
            raise MessageExpired("the message's time is over already", argument="expires_at")
    elif m.ttl_ms is not None:
        parcel.expires_ms = start + _duration(m.ttl_ms, "ttl_ms")
        if m.ttl_ms == 0:
            raise MessageExpired("a time to live of 0 ms is over already", argument="ttl_ms")
    elif ttl_ms:
        parcel.expires_ms = start + ttl_ms


def unpack(entry: Entry, ids: model.MessageIds) -> Message:
    """The user's view of a message in a queue."""
    stored = entry.message
    props = properties.decode(stored.props)
    message = Message(decode_body(stored.body, props.content_type))
    message.id = props.message_id or ids.uuid(stored.public_id)
    message.topic = stored.route.key
    message.type = props.type
    message.time = datetime.fromtimestamp(entry.enqueued_ms / 1000, UTC)
    message.meta = props.headers or {}
    message.priority = stored.priority
    message.expires_at = stored.expires_ms or None
    message.group = str(message.meta[GROUP_HEADER]) if GROUP_HEADER in message.meta else None
    message.content_type = props.content_type
    message.correlation_id = props.correlation_id
    message.reply_to = props.reply_to
    message.persistent = props.delivery_mode == 2
    message.deaths = [death.as_dict() for death in stored.route.deaths]
    if message.deaths:
        message.topic = str(message.deaths[-1]["routing_key"])
    return message

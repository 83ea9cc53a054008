"""What users publish and receive: a message with a Python value in it, and its encoding for the core.

Bytes stay bytes, text becomes UTF-8, other values become JSON, each with its content type; the receiver gets the value
back by that type. Nothing is ever pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast, overload

import msgspec

from rookery import spans
from rookery.core.parking import GROUP_HEADER
from rookery.core.publishing import Batch, Publish
from rookery.core.queue_settings import TIME_MAX_MS
from rookery.core.receipts import ACK_ID_HEADER, ACK_TIMEOUT_HEADER
from rookery.errors import EmptyBody, InvalidArgument, InvalidType, MessageExpired, NilMessage
from rookery.format import model, properties
from rookery.format.properties import Properties
from rookery.format.rendering import JSON, says_json

if TYPE_CHECKING:
    from rookery.clock import Clock
    from rookery.core.entries import Entry

TEXT: Final = "text/plain"
TIME_HEADER: Final = "timestamp_in_ms"
"""Beside the timestamp property, which has only seconds."""

LOWEST: Final = 0
LOW: Final = 10
NORMAL: Final = 20
HIGH: Final = 30
HIGHEST: Final = 40

_PLAIN: Final = {content_type: properties.of_type(content_type) for content_type in (None, TEXT, JSON)}
_PLAIN_BYTES: Final = _PLAIN[None]
_OURS: Final = (GROUP_HEADER, ACK_ID_HEADER, ACK_TIMEOUT_HEADER, TIME_HEADER)
"""Headers that are attributes of a Message, and so no part of its `meta`."""

_OWN_NAMES: Final = {"message_id": "id", "headers": "meta"}
"""What a Message calls by another name than AMQP does."""

_TEXTS: Final = ("id", "type", "content_type", "correlation_id", "reply_to", "group", "dedup_key")

_TIME_SHOWN_MAX_MS: Final = 253_402_300_799_000
"""The last second that a datetime can express."""

Moment = datetime | int
"""A point in time: an aware datetime, or milliseconds since 1970."""


class Message:
    """A message: `data` is bytes, str or a JSON-able value; everything else is optional.

    `ttl_ms` or `expires_at` bound its life, `delay_ms` or `deliver_at` hold it back, higher `priority` goes first,
    messages of one `group` are handled one after the other, a repeated `dedup_key` adds nothing. A message without `id`
    gets one; without `time`, that of its publishing. On a message that was received, `topic`, `ack_id` (if it waits for
    an ack) and `deaths` (of a dead letter, newest first) are filled in.
    """

    __slots__ = (
        "ack_id",
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
        if meta is not None and not isinstance(meta, Mapping):
            raise InvalidType(f"meta must be a mapping, not {meta.__class__.__name__}", argument="meta")
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
        self.ack_id: str | None = None
        self.deaths: list[dict[str, object]] = []

    def __repr__(self) -> str:
        return f"Message({self.data!r}, id={self.id!r}, topic={self.topic!r})"

    @property
    def reason(self) -> str | None:
        """Why it died last, for a dead letter."""
        return str(self.deaths[0]["detail"]) if self.deaths else None


def given_id(value: object) -> str | None:
    """The id that a message's publisher gave it."""
    return value.id if isinstance(value, Message) else None


def given_ids(values: Sequence[object], numbers: Sequence[int], last_id: int) -> dict[int, str]:
    """The ids that publishers gave their messages, by index.

    A number that does not go up is that of an earlier message, which a repeated dedup key stands for: such a message
    was not published, so the id it was given does not count.
    """
    found = {}
    for index, value in enumerate(values):
        if numbers[index] > last_id:
            last_id = numbers[index]
            given = given_id(value)
            if given is not None:
                found[index] = given
    return found


class IdList(Sequence[str]):
    """The ids of messages published together, by their numbers, or as they were given, by index.

    Texts are made when they are looked at.
    """

    def __init__(self, ids: model.MessageIds, numbers: Sequence[int], given: dict[int, str]) -> None:
        self._ids = ids
        self._numbers = numbers
        self._given = given

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = self._numbers[index]
        given = self._given.get(index if index >= 0 else index + len(self)) if self._given else None
        return given or self._ids.uuid(number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


# Values and bytes


def encode_body(data: object) -> tuple[bytes, str | None]:
    """Bytes and content type of a value."""
    if type(data) is bytes:
        return data, None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), None
    if data is None:
        raise NilMessage("there is no message: body is None", argument="body")
    try:
        if isinstance(data, str):
            return data.encode(), TEXT
        return msgspec.json.encode(data), JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidType(f"body must be bytes, str or a JSON-able value: {error}", argument="body") from None


def decode_body(body: bytes, content_type: str | None) -> Any:
    """The value of a body; bytes when the content type says nothing about it, or something untrue."""
    if content_type is None:
        return body
    try:
        if content_type.startswith("text/"):
            return body.decode()
        if says_json(content_type):
            return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body
    return body


# Into the core


def pack(
    exchange: str,
    key: str,
    value: object,
    clock: Clock,
    ttl_ms: int,
    require_body: bool,
    mandatory: bool,
    headers: dict[str, object] | None,
) -> Publish:
    """Encode a value or a Message for the core; `ttl_ms` is the default time to live, `headers` go on top of its
    own. What is published within a span of OpenTelemetry carries that on, unless it has a trace of its own.
    """
    trace = spans.current()
    if trace is not None and not (isinstance(value, Message) and spans.PARENT in value.meta):
        headers = {**trace, **(headers or {})}
    if isinstance(value, Message):
        return _pack_message(exchange, key, value, clock, ttl_ms, require_body, mandatory, headers)
    if type(value) is bytes:
        body, props = value, _PLAIN_BYTES
    else:
        body, content_type = encode_body(value)
        props = _PLAIN[content_type]
    if require_body and not body.strip():
        raise EmptyBody("body cannot be empty", argument="body")
    if headers is not None:
        props = properties.with_headers(props, headers)
        properties.check_published(props)
    expires_ms = clock.wall_ms() + ttl_ms if ttl_ms else 0
    return Publish(exchange, key, props, body, 0, expires_ms, 0, True, "", mandatory)


def pack_batch(
    exchange: str, key: str, values: list[object], clock: Clock, ttl_ms: int, require_body: bool
) -> Batch | None:
    """Encode values for the core together; None when they differ in more than their bodies."""
    kinds = set(map(type, values))
    if kinds == {bytes}:
        bodies, props = cast(list[bytes], values), _PLAIN_BYTES
    elif any(issubclass(kind, Message) for kind in kinds):
        return None
    else:
        encoded = [encode_body(value) for value in values]
        types = {content_type for _, content_type in encoded}
        if len(types) != 1:
            return None
        bodies, props = [body for body, _ in encoded], _PLAIN[types.pop()]
    if require_body and not all(body.strip() for body in bodies):
        raise EmptyBody("body cannot be empty", argument="body")
    trace = spans.current()
    if trace is not None:
        props = properties.with_headers(props, trace)
    return Batch(exchange, key, props, bodies, clock.wall_ms() + ttl_ms if ttl_ms else 0)


def _pack_message(
    exchange: str,
    key: str,
    m: Message,
    clock: Clock,
    ttl_ms: int,
    require_body: bool,
    mandatory: bool,
    extra: dict[str, object] | None,
) -> Publish:
    props, body = encode_message(m, extra)
    if require_body and not body.strip():
        raise EmptyBody("body cannot be empty", argument="body")
    due_ms, expires_ms = _times(m, clock.wall_ms(), ttl_ms)
    return Publish(
        exchange, key, props, body, m.priority, expires_ms, due_ms, m.persistent, m.dedup_key or "", mandatory
    )


def encode_message(m: Message, extra: dict[str, object] | None) -> tuple[bytes, bytes]:
    """Property list and body of a message, whose arguments are checked; `extra` headers go on top of its own."""
    _check_message(m)
    body, content_type = encode_body(m.data)
    headers = dict(m.meta)
    if m.group:
        headers[GROUP_HEADER] = m.group
    if m.time is not None:
        headers[TIME_HEADER] = wall_ms(m.time, "time")
    if extra:
        headers.update(extra)
    try:
        props = properties.of_fields(
            m.content_type or content_type,
            headers,
            m.persistent,
            m.priority,
            m.correlation_id,
            m.reply_to,
            m.id,
            None if m.time is None else wall_ms(m.time, "time"),
            m.type,
        )
    except InvalidArgument as error:
        error.argument = _OWN_NAMES.get(error.argument or "", error.argument)
        raise
    return props, body


def _check_message(m: Message) -> None:
    if isinstance(m.id, str) and not m.id.strip():
        raise NilMessage("a message needs an id that is not empty (or none: it gets one)", argument="id")
    if type(m.priority) is not int:
        raise InvalidType(f"priority must be int, not {type(m.priority).__name__}", argument="priority")
    if not model.PRIORITY_MIN <= m.priority <= model.PRIORITY_MAX:
        raise InvalidArgument("priority must fit 64 bits with a sign", argument="priority")
    if type(m.persistent) is not bool:
        raise InvalidType(f"persistent must be bool, not {type(m.persistent).__name__}", argument="persistent")
    for argument in _TEXTS:
        text = getattr(m, argument)
        if text is not None and not isinstance(text, str):
            raise InvalidType(f"{argument} must be str, not {type(text).__name__}", argument=argument)
    for argument, text in (("group", m.group), ("dedup_key", m.dedup_key)):
        if text is not None and len(text.encode("utf-8", "surrogatepass")) > 255:
            raise InvalidArgument(f"{argument} is longer than 255 bytes", argument=argument)
    if m.time is not None and not isinstance(m.time, datetime):
        raise InvalidType(f"time must be a datetime, not {type(m.time).__name__}", argument="time")


def said_times(m: Message) -> tuple[int | None, int | None, int | None, int | None]:
    """What a message says of its times, checked: delay, delivery, time to live, expiry."""
    if m.deliver_at is not None and m.delay_ms is not None:
        raise InvalidArgument("give delay_ms or deliver_at, not both", argument="delay_ms")
    if m.expires_at is not None and m.ttl_ms is not None:
        raise InvalidArgument("give ttl_ms or expires_at, not both", argument="ttl_ms")
    if m.ttl_ms is not None and _duration(m.ttl_ms, "ttl_ms") == 0:
        raise MessageExpired("a time to live of 0 ms is over already", argument="ttl_ms")
    return (
        None if m.delay_ms is None else _duration(m.delay_ms, "delay_ms"),
        None if m.deliver_at is None else wall_ms(m.deliver_at, "deliver_at"),
        m.ttl_ms,
        None if m.expires_at is None else wall_ms(m.expires_at, "expires_at"),
    )


def _times(m: Message, now_ms: int, default_ttl_ms: int) -> tuple[int, int]:
    """When it is to be delivered and when it expires; 0 for at once and for never."""
    delay_ms, deliver_at, ttl_ms, expires_at = said_times(m)
    due_ms = 0
    if deliver_at is not None:
        due_ms = deliver_at
    elif delay_ms is not None:
        due_ms = now_ms + delay_ms
    if expires_at is not None:
        if 0 < expires_at <= now_ms:
            raise MessageExpired("the message's time is over already", argument="expires_at")
        return due_ms, expires_at
    lasting_ms = ttl_ms or default_ttl_ms
    return due_ms, max(now_ms, due_ms) + lasting_ms if lasting_ms else 0


def wall_ms(moment: Moment, argument: str) -> int:
    """A moment as milliseconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{argument} needs a time zone", argument=argument)
        return _duration(int(moment.timestamp() * 1000), argument)
    return _duration(moment, argument)


def _duration(value: object, argument: str) -> int:
    if type(value) is not int:
        raise InvalidType(f"{argument} must be int, not {type(value).__name__}", argument=argument)
    if not 0 <= value <= TIME_MAX_MS:
        raise InvalidArgument(f"{argument} must be between 0 and {TIME_MAX_MS}, not {value}", argument=argument)
    return value


# Out of the core


def unpack(entry: Entry, ids: model.MessageIds) -> Message:
    """The user's view of a message in a queue."""
    return unpack_message(entry.message, int(entry.enqueued_ms), ids)


def unpack_message(stored: model.Message, entered_ms: int, ids: model.MessageIds) -> Message:
    """The user's view of a message that entered a queue or stream at this time."""
    props = properties.decode(stored.props)
    message = decode_message(
        props,
        stored.body,
        stored.route.key,
        stored.priority,
        stored.expires_ms,
        entered_ms,
        [death.as_dict() for death in stored.route.deaths],
    )
    if not message.id:
        message.id = ids.uuid(stored.public_id)
        if message.ack_id == "":
            message.ack_id = message.id
    return message


def decode_message(
    props: Properties,
    body: bytes,
    key: str,
    priority: int,
    expires_ms: int,
    entered_ms: int,
    deaths: list[dict[str, object]],
) -> Message:
    """The user's view of a message, but for the id of one that was given none."""
    headers: dict[str, Any] = props.headers or {}
    message = Message(decode_body(body, props.content_type))
    message.id = props.message_id
    message.topic = key
    message.type = props.type
    message.time = datetime.fromtimestamp(_published_ms(entered_ms, props.timestamp, headers) / 1000, UTC)
    message.priority = priority
    message.expires_at = expires_ms or None
    message.content_type = props.content_type
    message.correlation_id = props.correlation_id
    message.reply_to = props.reply_to
    message.persistent = props.delivery_mode == 2
    message.deaths = deaths
    if deaths:
        message.topic = str(deaths[-1]["routing_key"])
    if headers:
        if GROUP_HEADER in headers:
            message.group = str(headers[GROUP_HEADER])
        if ACK_ID_HEADER in headers and not deaths:
            message.ack_id = str(headers[ACK_ID_HEADER]) or message.id or ""
        message.meta = {name: value for name, value in headers.items() if name not in _OURS}
    return message


def _published_ms(entered_ms: int, timestamp: int | None, headers: dict[str, Any]) -> int:
    """When its publisher says it was published, else when it entered the queue."""
    published = headers.get(TIME_HEADER)
    if type(published) is not int or published < 0:
        published = entered_ms if timestamp is None else int(timestamp) * 1000
    return min(published, _TIME_SHOWN_MAX_MS)

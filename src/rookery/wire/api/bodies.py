"""Messages as publishers send them in a body: JSON, one JSON value a line, CloudEvents, packed by Rookery's client, or
bytes as they are.

Whatever the form, the outcome is a list of `Outgoing`: what the core needs, with nothing left to be checked but its
limits. The trace context of the request (W3C `traceparent`, `tracestate`) goes into the headers of each message that
has none of its own.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from rookery.core.parking import GROUP_HEADER
from rookery.core.publishing import Append, Publish
from rookery.core.staging import Row, row_of
from rookery.core.stream import KEY_HEADER
from rookery.errors import InvalidArgument, UnsupportedMedia
from rookery.format import properties
from rookery.format.properties import Properties, Timestamp
from rookery.format.rendering import JSON, says_json
from rookery.wire import packed
from rookery.wire.api.shapes import Item, Plain
from rookery.wire.api.types import Sending
from rookery.wire.http.call import Call
from rookery.wire.http.routes import decode_json
from rookery.wire.http.trace import trace_of

KEY_MAX_BYTES: Final = 255
BATCH_MAX: Final = 10_000
"""Messages of one request."""

LINES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
EVENT: Final = "application/cloudevents+json"
EVENTS: Final = "application/cloudevents-batch+json"
HEADER_PREFIX: Final = b"x-header-"
EVENT_PREFIX: Final = "cloudEvents:"
"""Before the attributes of an event in the headers of its message, as in the AMQP binding of CloudEvents."""

FORM: Final = "application/x-www-form-urlencoded"
"""What clients say of a body when they were told nothing."""

_UNSAID: Final = ("", FORM)
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+")
_PLAIN: Final = properties.of_type(JSON)
_all_of: Final[Any] = msgspec.structs.astuple
_SAID_NOTHING: Final[tuple[object, ...]] = _all_of(Sending(message=msgspec.Raw()))[1:]
"""What a publisher says who sends nothing but a message, which is the first of the fields."""


Trace = Mapping[str, object]
"""Headers that a trace context is."""


class Outgoing:
    """One message to be published, staged or appended. `key` and `partition` count for streams."""

    def __init__(self, props: bytes, body: bytes) -> None:
        self.props = props
        self.body = body
        self.priority = 0
        self.expires_ms = 0
        self.due_ms = 0
        self.persistent = True
        self.dedup_key = ""
        self.routing_key: str | None = None
        self.partition = -1

    def publish(self, exchange: str, key: str, mandatory: bool = False) -> Publish:
        return Publish(
            exchange,
            key if self.routing_key is None else self.routing_key,
            self.props,
            self.body,
            self.priority,
            self.expires_ms,
            self.due_ms,
            self.persistent,
            self.dedup_key,
            mandatory,
        )

    def append(self, stream: str) -> Append:
        """The same as a record, with the stream's name as its routing key unless it has one."""
        return Append(
            stream if self.routing_key is None else self.routing_key,
            self.props,
            self.body,
            self.priority,
            self.expires_ms,
            self.due_ms,
            self.dedup_key,
            self.partition,
        )

    def row(self, key: str, is_for_stream: bool) -> Row:
        """The same to be staged."""
        return row_of(self.append(key), is_for_stream)


_plain: Final[Any] = msgspec.json.Decoder(list[Plain])
_plain_lines: Final[Any] = msgspec.json.Decoder(Plain)
_items: Final[Any] = msgspec.json.Decoder(list[Item])
_item: Final[Any] = msgspec.json.Decoder(Item)
_event: Final[Any] = msgspec.json.Decoder(dict[str, Any])
_events: Final[Any] = msgspec.json.Decoder(list[dict[str, Any]])
_any: Final[Any] = msgspec.json.Decoder()


def pack(said: Sending, exchange: str, key: str, now_ms: int) -> Publish:
    """What a publisher said, for the core."""
    body = bytes(said.message)
    if _all_of(said)[1:] == _SAID_NOTHING:
        return Publish(exchange, key, _PLAIN, body)
    due_ms, expires_ms = times(said, now_ms)
    dedup_key = said.idempotency_key or ""
    check_dedup_key(dedup_key)
    return Publish(
        exchange,
        key,
        property_list(said, {}, JSON),
        body,
        said.priority,
        expires_ms,
        due_ms,
        said.persistent,
        dedup_key,
    )


def times(said: Sending, now_ms: int) -> tuple[int, int]:
    """When a message is due and when it expires, 0 for now and never."""
    due_ms = 0
    deliver_at, delay_ms, ttl_ms = said.deliver_at, said.delay_ms, said.ttl_ms
    if deliver_at is not None:
        if delay_ms is not None:
            raise InvalidArgument("give delay_ms or deliver_at, not both", argument="delay_ms")
        due_ms = deliver_at
    elif delay_ms is not None:
        due_ms = now_ms + delay_ms
    if ttl_ms is None:
        return due_ms, 0
    return due_ms, max(now_ms, due_ms) + ttl_ms


def outgoing(item: Item, now_ms: int, trace: Trace) -> Outgoing:
    """The message that a request speaks of."""
    dedup_key = item.idempotency_key or ""
    check_dedup_key(dedup_key)
    check_routing_key(item.routing_key or "")
    kind = item.content_type or (None if item.message_base64 is not None else JSON)
    props = property_list(item, trace, kind, item.key, item.message_id or None, item.timestamp_ms)
    made = Outgoing(props, _body(item))
    made.due_ms, made.expires_ms = times(item, now_ms)
    made.priority = item.priority
    made.persistent = item.persistent
    made.dedup_key = dedup_key
    made.routing_key = item.routing_key
    made.partition = -1 if item.partition is None else item.partition
    return made


def _body(item: Item) -> bytes:
    raw = bytes(item.message)
    if item.message_base64 is not None:
        if raw:
            raise InvalidArgument("give message or message_base64, not both", argument="message_base64")
        return from_base64(item.message_base64, "message_base64")
    if not raw:
        raise InvalidArgument("a message has message or message_base64", argument="message")
    if item.content_type is not None and raw.startswith(b'"') and not says_json(item.content_type):
        return str(_decode(_any.decode, raw)).encode()
    return raw


def property_list(
    said: Sending,
    trace: Trace,
    content_type: str | None,
    key: str | None = None,
    message_id: str | None = None,
    timestamp_ms: int | None = None,
) -> bytes:
    """The property list of what a publisher says of a message in JSON or in a query. Nothing else makes one of them."""
    headers: dict[str, object] = {**trace, **(said.headers or {})}
    if key is not None:
        headers[KEY_HEADER] = key
    if said.group:
        headers[GROUP_HEADER] = said.group
    correlation_id, reply_to, kind = said.correlation_id, said.reply_to, said.type
    typed_only = correlation_id is None and reply_to is None and kind is None and said.persistent and not said.priority
    if typed_only and not headers and message_id is None and timestamp_ms is None:
        return properties.of_type(content_type)
    return properties.of_fields(
        content_type,
        headers,
        said.persistent,
        said.priority,
        correlation_id,
        reply_to,
        message_id,
        timestamp_ms,
        kind,
    )


def check_dedup_key(key: str) -> None:
    if len(key.encode()) > KEY_MAX_BYTES:
        raise InvalidArgument(f"idempotency_key is longer than {KEY_MAX_BYTES} bytes", argument="idempotency_key")


class Bodies:
    """What a request brought: `bodies` when all have the same property list and no word more about them, else
    `messages`.
    """

    def __init__(
        self,
        messages: list[Outgoing],
        bodies: list[bytes] | None = None,
        single: bool = False,
        props: bytes = _PLAIN,
    ) -> None:
        self.messages = messages
        self.bodies = bodies
        self.single = single
        self.props = props

    def all(self) -> list[Outgoing]:
        if self.bodies is not None:
            return [Outgoing(self.props, body) for body in self.bodies]
        return self.messages


def read(call: Call, body: bytes, now_ms: int, said: Item | None = None) -> Bodies:
    """The messages of a request. `said` is what its query says of a body that is taken as it is."""
    kind = call.header(b"content-type").partition(";")[0].strip().lower()
    trace = trace_of(call)
    if b"ce-specversion" in call.headers:
        return Bodies([_binary_event(call, body, trace)], single=True)
    if kind == EVENT:
        return Bodies([_structured_event(_decode(_event.decode, body), trace)], single=True)
    if kind == EVENTS:
        return Bodies([_structured_event(event, trace) for event in _bounded(_decode(_events.decode, body))])
    if kind == JSON or (kind in _UNSAID and body.lstrip()[:1] in (b"{", b"[")):
        return _json(body, now_ms, trace)
    if kind in LINES:
        return _lines(body, now_ms, trace)
    if kind == packed.PACKED:
        return _packed(body, now_ms)
    if kind.startswith("application/cloudevents"):
        raise UnsupportedMedia(f"events as {kind} are not understood; {EVENT} and {EVENTS} are")
    return Bodies([_as_it_is(call, body, kind, now_ms, trace, said)], single=True)


def _json(body: bytes, now_ms: int, trace: Trace) -> Bodies:
    if not body.lstrip().startswith(b"["):
        return Bodies([outgoing(_decode(_item.decode, body), now_ms, trace)], single=True)
    if not trace:
        try:
            plain = _plain.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            plain = None
        if plain is not None:
            _check_text(body)
            return Bodies([], [bytes(each.message) for each in _bounded(plain)])
    return _outgoing(_decode(_items.decode, body), now_ms, trace)


def _lines(body: bytes, now_ms: int, trace: Trace) -> Bodies:
    if not trace:
        try:
            plain = _plain_lines.decode_lines(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            plain = None
        if plain is not None:
            _check_text(body)
            return Bodies([], [bytes(each.message) for each in _bounded(plain)])
    return _outgoing(_decode(_item.decode_lines, body), now_ms, trace)


def _packed(body: bytes, now_ms: int) -> Bodies:
    items: list[packed.PackedPublish] = _bounded(packed.read(packed.decode_publishes, body))
    first = items[0]
    if all(item == packed.PackedPublish(first.props, item.body) for item in items):
        properties.check_published(first.props)
        return Bodies([], [item.body for item in items], props=first.props)
    return Bodies([of_packed(item, now_ms) for item in items])


def of_packed(item: packed.PackedPublish, now_ms: int) -> Outgoing:
    """A message that Rookery's client packed."""
    properties.check_published(item.props)
    made = Outgoing(item.props, item.body)
    made.due_ms, made.expires_ms = item.times(now_ms)
    made.priority = item.priority
    made.persistent = item.persistent
    made.dedup_key = item.dedup_key
    if "\0" in item.dedup_key or len(item.dedup_key.encode()) > KEY_MAX_BYTES:
        raise InvalidArgument("dedup_key is no key", argument="dedup_key")
    check_routing_key(item.routing_key or "")
    made.routing_key = item.routing_key
    made.partition = -1 if item.partition is None else item.partition
    return made


def _check_text(body: bytes) -> None:
    """Refuse bytes that are no UTF-8: what is taken raw was not looked into so far."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the body is not JSON: {error}", argument="body") from None


def _outgoing(items: list[Item], now_ms: int, trace: Trace) -> Bodies:
    made = []
    for index, item in enumerate(_bounded(items)):
        try:
            made.append(outgoing(item, now_ms, trace))
        except InvalidArgument as error:
            error.argument = f"[{index}].{error.argument}"
            raise
    return Bodies(made)


def _as_it_is(call: Call, body: bytes, kind: str, now_ms: int, trace: Trace, said: Item | None) -> Outgoing:
    if not body:
        raise InvalidArgument("request body required", argument="body")
    headers: dict[str, Any] = {}
    for name in call.headers:
        if name.startswith(HEADER_PREFIX) and len(name) > len(HEADER_PREFIX):
            headers[name[len(HEADER_PREFIX) :].decode("latin-1")] = call.header(name)
    content_type = None if kind in _UNSAID else call.header(b"content-type")[:255]
    if said is None and not headers and not trace:
        return Outgoing(properties.of_type(content_type), body)
    item = said or Item()
    item.headers = headers or None
    item.content_type = content_type
    item.message = msgspec.Raw(b"0")
    made = outgoing(item, now_ms, trace)
    made.body = body
    if content_type is None:
        made.props = properties.encode_named(_without_type(made.props))
    return made


def _without_type(props: bytes) -> Properties:
    found = properties.decode(props)
    found.content_type = None
    return found


def _bounded(items: list[Any]) -> list[Any]:
    if not items:
        raise InvalidArgument("there is no message in the body", argument="body")
    if len(items) > BATCH_MAX:
        raise InvalidArgument(f"a request has at most {BATCH_MAX} messages, not {len(items)}", argument="body")
    return items


def _decode(decode: Callable[[bytes], Any], body: bytes) -> Any:
    return decode_json(decode, body)


def check_routing_key(key: str) -> None:
    if len(key.encode()) > KEY_MAX_BYTES:
        raise InvalidArgument(f"routing_key is longer than {KEY_MAX_BYTES} bytes", argument="routing_key")


def from_base64(text: str, argument: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{argument} is not base64", argument=argument) from None


# CloudEvents


def _binary_event(call: Call, body: bytes, trace: Trace) -> Outgoing:
    attributes: dict[str, Any] = {
        name.removeprefix(b"ce-").decode("latin-1"): unquote(call.header(name))
        for name in call.headers
        if name.startswith(b"ce-")
    }
    kind = call.header(b"content-type")
    if kind:
        attributes["datacontenttype"] = kind
    return _event_message(attributes, body, trace)


def _structured_event(event: dict[str, Any], trace: Trace) -> Outgoing:
    attributes = dict(event)
    data = attributes.pop("data", None)
    coded = attributes.pop("data_base64", None)
    if coded is not None:
        if data is not None or not isinstance(coded, str):
            raise InvalidArgument("an event has data or, as base64, data_base64", argument="data_base64")
        return _event_message(attributes, from_base64(coded, "data_base64"), trace)
    if "data" not in event:
        return _event_message(attributes, b"", trace)
    kind = attributes.setdefault("datacontenttype", JSON)
    if isinstance(kind, str) and isinstance(data, str) and not says_json(kind):
        return _event_message(attributes, data.encode(), trace)
    return _event_message(attributes, msgspec.json.encode(data), trace)


def _event_message(attributes: dict[str, Any], body: bytes, trace: Trace) -> Outgoing:
    """An event as a message: its attributes are headers, its data is the body."""
    for needed in ("id", "source", "specversion", "type"):
        if not isinstance(attributes.get(needed), str) or not attributes[needed]:
            raise InvalidArgument(f"an event needs {needed}, a text that is not empty", argument=needed)
    if attributes["specversion"] != "1.0":
        raise InvalidArgument("only events of specversion 1.0 are understood", argument="specversion")
    headers: dict[str, object] = {**trace}
    for name, value in attributes.items():
        if not _ATTRIBUTE.fullmatch(name):
            raise InvalidArgument(f"an attribute of an event cannot be called {name[:50]!r}", argument="event")
        if not isinstance(value, str | int | bool):
            raise InvalidArgument(f"{name} must be a text, an integer or a boolean", argument=name)
        if name in ("traceparent", "tracestate"):
            headers[name] = value
        elif name != "datacontenttype":
            headers[EVENT_PREFIX + name] = value
    key = attributes.get("partitionkey")
    if isinstance(key, str) and key:
        headers[KEY_HEADER] = key
    kind = attributes.get("datacontenttype")
    if kind is not None and not isinstance(kind, str):
        raise InvalidArgument("datacontenttype must be a text", argument="datacontenttype")
    made = Properties(content_type=kind, headers=headers, delivery_mode=2, timestamp=_event_time(attributes))
    if len(attributes["id"].encode()) <= 255:
        made.message_id = attributes["id"]
    if len(attributes["type"].encode()) <= 255:
        made.type = attributes["type"]
    return Outgoing(properties.encode_named(made), body)


def _event_time(attributes: dict[str, Any]) -> Timestamp | None:
    text = attributes.get("time")
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return Timestamp(max(0, int(moment.timestamp())))
    except (ValueError, TypeError, OverflowError):
        raise InvalidArgument("time must be a timestamp of RFC 3339", argument="time") from None


__all__ = ["BATCH_MAX", "Bodies", "Outgoing", "read"]

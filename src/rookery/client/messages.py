"""Messages between users and the wire: what a user publishes as the broker takes it, what came as users see it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from rookery.core.stream import KEY_HEADER
from rookery.embed.messages import (
    Message,
    decode_message,
    encode_body,
    encode_message,
    said_times,
)
from rookery.format import properties
from rookery.wire.http.answers import BrokenAnswer
from rookery.wire.packed import PackedMessage, PackedPage, PackedPublish, decode_messages, decode_page

_frame = msgspec.json.Decoder(dict[str, Any]).decode
_packed = msgspec.msgpack.Decoder(PackedMessage).decode


def read_frame(payload: bytes) -> tuple[str, list[PackedMessage]]:
    """The id and the messages of a frame that a subscription is sent; a frame of another type has none of both."""
    try:
        frame = _frame(payload)
        if frame.get("type") != "messages":
            return "", []
        return str(frame["id"]), [_packed(base64.b64decode(each["packed"])) for each in frame["messages"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BrokenAnswer(f"a frame is not as a broker sends it: {error}") from None


def read_messages(content: bytes) -> list[PackedMessage]:
    """The messages of an answer."""
    return _read(decode_messages, content)  # type: ignore[no-any-return]


def read_page(content: bytes) -> PackedPage:
    """The records of an answer."""
    return _read(decode_page, content)  # type: ignore[no-any-return]


def _read(decode: Callable[[bytes], Any], content: bytes) -> Any:
    try:
        return decode(content)
    except (ValueError, RecursionError) as error:
        raise BrokenAnswer(f"the answer is not as a broker sends it: {error}") from None


def pack(value: object, headers: dict[str, object] | None = None) -> PackedPublish:
    """A value or a Message, with its arguments checked; `headers` go on top of its own."""
    if not isinstance(value, Message):
        body, content_type = encode_body(value)
        props = properties.of_type(content_type)
        return PackedPublish(props if headers is None else properties.with_headers(props, headers), body)
    props, body = encode_message(value, headers)
    delay_ms, deliver_at, ttl_ms, expires_at = said_times(value)
    return PackedPublish(
        props,
        body,
        value.priority,
        value.persistent,
        value.dedup_key or "",
        delay_ms,
        deliver_at,
        ttl_ms,
        expires_at,
    )


def unpack(got: PackedMessage) -> Message:
    """The user's view of a message."""
    message = decode_message(
        properties.decode(got.props), got.body, got.key, got.priority, got.expires_ms, got.entered_ms, got.deaths
    )
    if message.ack_id == "":
        message.ack_id = got.id
    message.id = got.id
    return message


def unpack_record(got: PackedMessage) -> tuple[bytes | None, Message]:
    """The key and the message of a record."""
    key = properties.header(got.props, KEY_HEADER)
    message = unpack(got)
    message.meta.pop(KEY_HEADER, None)
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape"), message
    return key if isinstance(key, bytes) else None, message

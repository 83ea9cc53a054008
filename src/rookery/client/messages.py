"""Messages between users and the wire: what a user publishes as the broker takes it, what came as users see it."""

from __future__ import annotations

from typing import Final

from rookery import properties
from rookery.core.stream import KEY_HEADER
from rookery.embed.messages import (
    JSON,
    TEXT,
    Message,
    decode_message,
    encode_body,
    encode_message,
    said_times,
)
from rookery.properties import Properties
from rookery.wire.packed import PackedMessage, PackedPublish

_PLAIN: Final = {
    content_type: properties.encode(Properties(content_type=content_type, delivery_mode=2))
    for content_type in (None, TEXT, JSON)
}


def pack(value: object, headers: dict[str, object] | None = None) -> PackedPublish:
    """A value or a Message, with its arguments checked; `headers` go on top of its own."""
    if not isinstance(value, Message):
        body, content_type = encode_body(value)
        props = _PLAIN[content_type]
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

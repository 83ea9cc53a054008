"""Direct reply-to: answers that go straight to the channel that asked, past every queue (as in RabbitMQ).

A channel that consumes from `amq.rabbitmq.reply-to` gets a name of its own. When it publishes with that reply-to, its
own name takes the place of the general one, and whatever is published to the default exchange with this name as its key
is written to the channel at once. Answers are kept nowhere: when the channel is gone, they reach nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, u8

from rookery.format import properties
from rookery.format.bytes import write_i64_be
from rookery.wire.amqp.channel import Channel
from rookery.wire.amqp.codec import (
    BASIC_DELIVER,
    Fault,
    begin_method,
    end_method,
    put_content,
    put_short_string,
)

if TYPE_CHECKING:
    from rookery.wire.amqp.connection import AmqpConnection

REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = REPLY_TO + "."


def is_reply_name(name: str) -> bool:
    return name.startswith(PREFIX) or name == REPLY_TO


def find(connection: AmqpConnection, name: str) -> Channel | None:
    """The channel that takes answers under this name, if it is in the same tenant."""
    channel = connection.face.replies.get(name)
    return channel if channel is not None and channel.connection.tenant is connection.tenant else None


def is_there(connection: AmqpConnection, name: str) -> bool:
    return name == REPLY_TO or find(connection, name) is not None


def consume(channel: Channel, tag: str, no_ack: bool) -> None:
    """Take answers on this channel from now on."""
    if channel.reply_tag:
        raise Fault(406, "reply consumer already set")
    if not no_ack:
        raise Fault(406, "reply consumer cannot acknowledge")
    face = channel.connection.face
    channel.reply_tag = tag
    channel.reply_name = PREFIX + str(face.random_text())
    face.replies[channel.reply_name] = channel


def end(channel: Channel) -> None:
    """Answers that are still to come reach nobody."""
    channel.connection.face.replies.pop(channel.reply_name, None)
    channel.reply_tag = ""
    channel.reply_name = ""


def renamed(channel: Channel, props: bytes) -> bytes:
    """The properties of a question, with the channel's own name to reply to."""
    if not channel.reply_tag:
        raise Fault(406, "fast reply consumer does not exist")
    return properties.with_reply_to(props, channel.reply_name)


def deliver(channel: Channel, key: str, props: bytes, body: bytes) -> None:
    """Write an answer to the channel that asked. It takes no delivery tag of its own, since it is not acknowledged."""
    out = channel.out
    start = begin_method(out, channel.number, i32(BASIC_DELIVER))
    w = out.w
    put_short_string(w, channel.reply_tag)
    write_i64_be(w, channel.tag + 1)
    w.append(u8(0))
    put_short_string(w, "")
    put_short_string(w, key)
    end_method(out, start)
    put_content(out, channel.number, channel.connection.payload_max, props, body)

"""What the methods of a channel have in common: names, what they stand for, and the rights to them.

What cannot be done raises `Fault`, with RabbitMQ's reply code and wording, since programs compare both.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i32, i64

from rookery.core import rights
from rookery.core.queue import Queue
from rookery.core.topology import Exchange, Tenant
from rookery.errors import RookeryError
from rookery.format.bytes import write_i32_be
from rookery.wire.amqp.channel import Channel
from rookery.wire.amqp.codec import REPLY_NAMES, Fault, begin_method, end_method, put_short_string

RESERVED: Final = "amq."


def reply_text(error: RookeryError) -> str:
    return f"{REPLY_NAMES.get(error.amqp, 'INTERNAL_ERROR')} - {error}"


def not_implemented() -> Fault:
    """A method that is not for a server, or not one for a channel."""
    return Fault(503, "unimplemented method")


def tenant_of(channel: Channel) -> Tenant:
    tenant = channel.connection.tenant
    assert tenant is not None
    return tenant


def require(channel: Channel, operation: str, role: str, name: str) -> None:
    """Refuse what the table of rights (`rookery.core.rights`) does not let this peer do."""
    connection = channel.connection
    principal: Any = connection.principal
    name = name or "amq.default"
    if not rights.may(principal, operation, role, name):
        where = f"{rights.kind_of(role)} '{name}' in vhost '{connection.vhost}'"
        raise Fault(403, f"access to {where} refused for user '{connection.user}'")


def named(channel: Channel, name: str) -> str:
    """The name of a queue; none stands for the queue last declared on the channel (spec 1.7.2.1)."""
    if name:
        return name
    if not channel.last_queue:
        raise Fault(404, "no previously declared queue")
    return channel.last_queue


def reserved(kind: str, name: str) -> Fault:
    return Fault(403, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def no_queue(channel: Channel, name: str) -> Fault:
    return Fault(404, f"no queue '{name}' in vhost '{channel.connection.vhost}'")


def locked(channel: Channel, name: str) -> Fault:
    vhost = channel.connection.vhost
    return Fault(
        405,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration.",
    )


def find_queue(channel: Channel, name: str) -> Queue:
    queue = tenant_of(channel).queues.get(name)
    if queue is None:
        raise no_queue(channel, name)
    if queue.owner is not None and queue.owner is not channel.connection:
        raise locked(channel, name)
    return queue


def find_exchange(channel: Channel, name: str) -> Exchange:
    exchange = tenant_of(channel).exchanges.get(name)
    if exchange is None:
        raise Fault(404, f"no exchange '{name}' in vhost '{channel.connection.vhost}'")
    return exchange


def not_default(name: str) -> None:
    if not name:
        raise Fault(403, "operation not permitted on the default exchange")


# Answers


def put_count(channel: Channel, count: i64) -> None:
    write_i32_be(channel.out.w, i32(min(2147483647, count)))


def put_counted(channel: Channel, method: i32, count: i64) -> None:
    start = begin_method(channel.out, channel.number, method)
    put_count(channel, count)
    end_method(channel.out, start)


def put_tagged(channel: Channel, method: i32, tag: str) -> None:
    start = begin_method(channel.out, channel.number, method)
    put_short_string(channel.out.w, tag)
    end_method(channel.out, start)

"""What a channel can be asked for: each method goes to the module of its class, which calls the core and answers.

What cannot be done raises `Fault`; an error of the core that is not turned into one goes out with its class's code.
"""

from __future__ import annotations

from mypy_extensions import i32, u8

from rookery.wire.amqp import consume, exchanges, queues, tx
from rookery.wire.amqp.channel import Channel
from rookery.wire.amqp.codec import (
    ACCESS_REQUEST,
    ACCESS_REQUEST_OK,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    Arguments,
    Fault,
    begin_method,
    end_method,
    put_channel,
    put_method,
)
from rookery.wire.amqp.names import not_implemented


def call(channel: Channel, method: i32, arguments: Arguments) -> None:
    """Do what one method asks for."""
    kind = method >> 16
    if kind == 60:
        consume.call(channel, method, arguments)
    elif kind == 50:
        queues.call(channel, method, arguments)
        channel.out.await_batch(channel.connection.shard.log.changed)
    elif kind == 40:
        exchanges.call(channel, method, arguments)
        channel.out.await_batch(channel.connection.shard.log.changed)
    elif kind == 90:
        tx.call(channel, method)
    elif method == CONFIRM_SELECT:
        _confirm_select(channel, arguments)
    elif method == CHANNEL_FLOW:
        _flow(channel, arguments)
    elif method == ACCESS_REQUEST:
        # of AMQP 0-8: everybody gets the same ticket, and nobody looks at it
        start = begin_method(channel.out, channel.number, ACCESS_REQUEST_OK)
        put_channel(channel.out.w, 1)
        end_method(channel.out, start)
    else:
        raise not_implemented()


def _confirm_select(channel: Channel, arguments: Arguments) -> None:
    nowait = arguments.octet() & 1
    if channel.tx is not None:
        raise Fault(406, "cannot switch from tx to confirm mode")
    channel.confirming = True
    if not nowait:
        put_method(channel.out, channel.number, CONFIRM_SELECT_OK)


def _flow(channel: Channel, arguments: Arguments) -> None:
    if not arguments.octet() & 1:
        raise Fault(540, "active=false")
    start = begin_method(channel.out, channel.number, CHANNEL_FLOW_OK)
    channel.out.w.append(u8(1))
    end_method(channel.out, start)

"""The methods of queues and of their bindings (spec 1.7)."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64

from rookery.core.queue import Queue
from rookery.errors import Conflict, InUse, InvalidName, Locked, NotEmpty, NotFound
from rookery.wire.amqp import replies, streams
from rookery.wire.amqp.arguments import Typed, check_same_queue, queue_settings
from rookery.wire.amqp.channel import Channel
from rookery.wire.amqp.codec import (
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    QUEUE_PURGE,
    QUEUE_PURGE_OK,
    QUEUE_UNBIND,
    QUEUE_UNBIND_OK,
    Arguments,
    Fault,
    begin_method,
    end_method,
    put_method,
    put_short_string,
)
from rookery.wire.amqp.exchanges import check_binding
from rookery.wire.amqp.names import (
    RESERVED,
    find_exchange,
    find_queue,
    locked,
    named,
    no_queue,
    not_default,
    not_implemented,
    put_count,
    put_counted,
    require,
    reserved,
    tenant_of,
)

EXCLUSIVES_PRUNED_AT: Final = 64


def call(channel: Channel, method: i32, arguments: Arguments) -> None:
    if method == QUEUE_DECLARE:
        _declare(channel, arguments)
    elif method == QUEUE_BIND:
        _bind(channel, arguments)
    elif method == QUEUE_UNBIND:
        _unbind(channel, arguments)
    elif method == QUEUE_PURGE:
        _purge(channel, arguments)
    elif method == QUEUE_DELETE:
        _delete(channel, arguments)
    else:
        raise not_implemented()


def _declare(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    bits = arguments.octet()
    table = arguments.typed_table()
    if replies.is_reply_name(name):
        if not replies.is_there(channel.connection, name):
            raise no_queue(channel, name)
        _declared(channel, name, 0, 1, bits)
        return
    stream = tenant_of(channel).streams.get(name)
    if not bits & 1 and (stream is not None or streams.asks_for_stream(table)):
        stream = streams.declare(channel, name or server_named(channel), bits, table)
    if stream is not None:
        consumers = sum(len(partition.followers) for partition in stream.partitions)
        _declared(channel, stream.name, stream.records(), consumers, bits)
        return
    if bits & 1:
        queue = find_queue(channel, name)
        queue.touch()
    else:
        queue = _found_or_made(channel, name.replace("\r", "").replace("\n", ""), bits, table)
    _declared(channel, queue.name, queue.ready, queue.consumers(), bits)


def _declared(channel: Channel, name: str, ready: i64, consumers: i64, bits: i64) -> None:
    channel.last_queue = name
    if not bits & 16:
        start = begin_method(channel.out, channel.number, QUEUE_DECLARE_OK)
        put_short_string(channel.out.w, name)
        put_count(channel, ready)
        put_count(channel, consumers)
        end_method(channel.out, start)


def server_named(channel: Channel) -> str:
    return RESERVED + "gen-" + str(channel.connection.face.random_text())


def _found_or_made(channel: Channel, name: str, bits: i64, table: Typed) -> Queue:
    connection = channel.connection
    tenant = tenant_of(channel)
    name = name or server_named(channel)
    queue = tenant.queues.get(name)
    if queue is None and name.startswith(RESERVED) and not name.startswith(RESERVED + "gen-"):
        raise reserved("queue", name)
    require(channel, "queue.declare", "queue", name)
    where = f"queue '{name}' in vhost '{connection.vhost}'"
    owner = connection if bits & 4 else None
    # one connection's queue does not outlive it, so it is never durable
    durable = bits & 2 != 0 and owner is None
    settings = queue_settings(where, durable, bits & 8 != 0, owner is not None, table)
    if queue is not None:
        _check_same(channel, queue, where, owner is not None, settings)
        queue.touch()
        return queue
    target = settings.get("dead_letter_exchange")
    if isinstance(target, str):
        require(channel, "queue.dead_letter", "queue", name)
        require(channel, "queue.dead_letter", "exchange", target)
    try:
        queue, _ = tenant.declare_queue(name, settings, "amqp", owner=owner)
    except InvalidName as error:
        raise Fault(406, f"invalid queue name '{name}': {error}") from None
    if owner is not None:
        if len(connection.exclusive) >= EXCLUSIVES_PRUNED_AT:
            connection.exclusive = [each for each in connection.exclusive if not each.deleted]
        connection.exclusive.append(queue)
    return queue


def _check_same(channel: Channel, queue: Queue, where: str, exclusive: bool, settings: dict[str, object]) -> None:
    tenant = tenant_of(channel)
    if queue.owner is not None and queue.owner is not channel.connection:
        raise locked(channel, queue.name)
    if tenant.faces[queue.name] == "amqp":
        if exclusive != (queue.owner is not None):
            raise locked(channel, queue.name)
        check_same_queue(where, tenant.said[queue.name], settings)
        return
    # another face's defaults take no part in the comparison, so only what differs from what holds is compared
    holding = queue.settings.as_dict()
    differing = {each: value for each, value in settings.items() if each != "arguments" and holding[each] != value}
    try:
        tenant.declare_queue(queue.name, differing, "amqp")
    except Conflict as error:
        text = f"received '{settings[str(error.argument)]}' but current is '{holding[str(error.argument)]}'"
        raise Fault(406, f"inequivalent arg '{error.argument}' for {where}: {text}") from None


def _bind(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    source = arguments.short_string()
    key = arguments.short_string()
    nowait = arguments.octet() & 1
    table = arguments.typed_table()
    if not name and not key:
        key = named(channel, name)
    name = named(channel, name)
    not_default(source)
    require(channel, "queue.bind", "queue", name)
    require(channel, "queue.bind", "source", source)
    exchange = find_exchange(channel, source)
    target = tenant_of(channel).streams.get(name) or find_queue(channel, name)
    check_binding(exchange, key, table)
    tenant_of(channel).bind(source, target, key, {argument: value for argument, (_, value) in table.items()})
    if not nowait:
        put_method(channel.out, channel.number, QUEUE_BIND_OK)


def _unbind(channel: Channel, arguments: Arguments) -> None:
    """Idempotent: what is not bound, or not there, is not an error (as in RabbitMQ)."""
    arguments.short()
    name = named(channel, arguments.short_string())
    source = arguments.short_string()
    key = arguments.short_string()
    table = arguments.table()
    not_default(source)
    require(channel, "queue.bind", "queue", name)
    require(channel, "queue.bind", "source", source)
    tenant = tenant_of(channel)
    if source in tenant.exchanges and (name in tenant.queues or name in tenant.streams):
        tenant.unbind(source, tenant.streams.get(name) or find_queue(channel, name), key, table)
    put_method(channel.out, channel.number, QUEUE_UNBIND_OK)


def _purge(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = named(channel, arguments.short_string())
    nowait = arguments.octet() & 1
    require(channel, "queue.purge", "queue", name)
    if name in tenant_of(channel).streams:
        raise Fault(
            540, f"queue.purge not supported by stream queues queue '{name}' in vhost '{channel.connection.vhost}'"
        )
    queue = find_queue(channel, name)
    count = queue.purge()
    if count and queue.journaled:
        channel.out.await_batch(channel.connection.shard.log.horizon())
    if not nowait:
        put_counted(channel, QUEUE_PURGE_OK, count)


def _delete(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = named(channel, arguments.short_string())
    bits = arguments.octet()
    require(channel, "queue.delete", "queue", name)
    count = 0
    where = f"queue '{name}' in vhost '{channel.connection.vhost}'"
    stream = tenant_of(channel).streams.get(name)
    if stream is not None:
        streams.delete(channel, stream, bits & 1 != 0)
        if not bits & 4:
            put_counted(channel, QUEUE_DELETE_OK, 0)
        return
    try:
        count = tenant_of(channel).delete_queue(name, bits & 1 != 0, bits & 2 != 0, channel.connection)
    except NotFound:
        pass
    except Locked:
        raise locked(channel, name) from None
    except InUse:
        raise Fault(406, f"{where} in use") from None
    except NotEmpty:
        raise Fault(406, f"{where} not empty") from None
    if not bits & 4:
        put_counted(channel, QUEUE_DELETE_OK, count)

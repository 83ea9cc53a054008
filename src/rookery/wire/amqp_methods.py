"""What a channel can be asked for, method by method: exchanges, queues, bindings, consumers, and the settings of each.

Every function here takes a channel and the arguments of one method, calls the core, and writes the answer. What cannot
be done raises `Fault`, with RabbitMQ's reply code and wording, since programs compare both; an error of the core that
is not turned into one by name goes out with the code of its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i32, i64, u8

from rookery import properties
from rookery._bytes import write_i32_be, write_i64_be
from rookery.core.consumers import Credit
from rookery.core.queue import Queue
from rookery.core.shard import check_subscriptions
from rookery.core.topology import Exchange, Tenant
from rookery.errors import Conflict, InUse, InvalidArgument, InvalidName, Locked, NotEmpty, NotFound, RookeryError
from rookery.model import NEVER
from rookery.wire.amqp_arguments import conflict_text, queue_settings
from rookery.wire.amqp_channel import REJECT, REQUEUE, AmqpConsumer, Channel, Target, wire_of, with_history
from rookery.wire.amqp_codec import (
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_GET,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_QOS,
    BASIC_QOS_OK,
    BASIC_RECOVER,
    BASIC_RECOVER_ASYNC,
    BASIC_RECOVER_OK,
    BASIC_REJECT,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    EXCHANGE_BIND,
    EXCHANGE_BIND_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    EXCHANGE_UNBIND,
    EXCHANGE_UNBIND_OK,
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
    REPLY_NAMES,
    Arguments,
    Fault,
    begin_method,
    end_method,
    put_content,
    put_method,
    put_short_string,
)

if TYPE_CHECKING:
    from rookery.wire.amqp import AmqpConnection

RESERVED: Final = "amq."
EXCLUSIVES_PRUNED_AT: Final = 64


def call(channel: Channel, method: i32, arguments: Arguments) -> None:
    """Do what one method asks for."""
    kind = method >> 16
    if kind == 60:
        _basic(channel, method, arguments)
    elif kind == 50:
        _queue(channel, method, arguments)
        channel.out.await_batch(channel.connection.shard.log.changed)
    elif kind == 40:
        _exchange(channel, method, arguments)
        channel.out.await_batch(channel.connection.shard.log.changed)
    elif method == CONFIRM_SELECT:
        _confirm_select(channel, arguments)
    elif method == CHANNEL_FLOW:
        _flow(channel, arguments)
    elif method == CHANNEL_FLOW_OK:
        return
    else:
        raise _not_implemented(method)


def _basic(channel: Channel, method: i32, arguments: Arguments) -> None:
    if method == BASIC_NACK:
        tag = arguments.longlong()
        bits = arguments.octet()
        channel.settle(tag, bits & 1 != 0, REQUEUE if bits & 2 else REJECT)
    elif method == BASIC_REJECT:
        tag = arguments.longlong()
        channel.settle(tag, False, REQUEUE if arguments.octet() & 1 else REJECT)
    elif method == BASIC_GET:
        _get(channel, arguments)
    elif method == BASIC_QOS:
        _qos(channel, arguments)
    elif method == BASIC_CONSUME:
        _consume(channel, arguments)
    elif method == BASIC_CANCEL:
        _cancel(channel, arguments)
    elif method == BASIC_RECOVER or method == BASIC_RECOVER_ASYNC:
        if not arguments.octet() & 1:
            raise Fault(540, "requeue=false")
        channel.settle_all(REQUEUE)
        if method == BASIC_RECOVER:
            put_method(channel.out, channel.number, BASIC_RECOVER_OK)
    else:
        raise _not_implemented(method)


def _queue(channel: Channel, method: i32, arguments: Arguments) -> None:
    if method == QUEUE_DECLARE:
        _queue_declare(channel, arguments)
    elif method == QUEUE_BIND:
        _queue_bind(channel, arguments)
    elif method == QUEUE_UNBIND:
        _queue_unbind(channel, arguments)
    elif method == QUEUE_PURGE:
        _queue_purge(channel, arguments)
    elif method == QUEUE_DELETE:
        _queue_delete(channel, arguments)
    else:
        raise _not_implemented(method)


def _exchange(channel: Channel, method: i32, arguments: Arguments) -> None:
    if method == EXCHANGE_DECLARE:
        _exchange_declare(channel, arguments)
    elif method == EXCHANGE_DELETE:
        _exchange_delete(channel, arguments)
    elif method == EXCHANGE_BIND:
        _exchange_bind(channel, arguments, True)
    elif method == EXCHANGE_UNBIND:
        _exchange_bind(channel, arguments, False)
    else:
        raise _not_implemented(method)


def _not_implemented(method: i32) -> Fault:
    return Fault(540, f"method {method >> 16}.{method & 0xFFFF} is not implemented")


def _confirm_select(channel: Channel, arguments: Arguments) -> None:
    nowait = arguments.octet() & 1
    channel.confirming = True
    if not nowait:
        put_method(channel.out, channel.number, CONFIRM_SELECT_OK)


def _flow(channel: Channel, arguments: Arguments) -> None:
    if not arguments.octet() & 1:
        raise Fault(540, "active=false")
    start = begin_method(channel.out, channel.number, CHANNEL_FLOW_OK)
    channel.out.w.append(u8(1))
    end_method(channel.out, start)


# Names and rights


def reply_text(error: RookeryError) -> str:
    return f"{REPLY_NAMES.get(error.amqp, 'INTERNAL_ERROR')} - {error}"


def _tenant(channel: Channel) -> Tenant:
    tenant = channel.connection.tenant
    assert tenant is not None
    return tenant


def _no_queue(channel: Channel, name: str) -> Fault:
    return Fault(404, f"no queue '{name}' in vhost '{channel.connection.vhost}'")


def _no_exchange(channel: Channel, name: str) -> Fault:
    return Fault(404, f"no exchange '{name}' in vhost '{channel.connection.vhost}'")


def _not_default(name: str) -> None:
    if not name:
        raise Fault(403, "operation not permitted on the default exchange")


def _require(channel: Channel, action: str, kind: str, name: str) -> None:
    connection = channel.connection
    principal: Any = connection.principal
    if not principal.may(action, name):
        where = f"{kind} '{name}' in vhost '{connection.vhost}'"
        raise Fault(403, f"{action} access to {where} refused for user '{connection.user}'")


def _named(channel: Channel, name: str) -> str:
    """The name of a queue; none stands for the queue last declared on the channel (spec 1.7.2.1)."""
    if name:
        return name
    if not channel.last_queue:
        raise Fault(404, "no previously declared queue")
    return channel.last_queue


def _find_queue(channel: Channel, name: str) -> Queue:
    queue = _tenant(channel).queues.get(name)
    if queue is None:
        raise _no_queue(channel, name)
    if queue.owner is not None and queue.owner is not channel.connection:
        raise _locked(channel, name)
    return queue


def _locked(channel: Channel, name: str) -> Fault:
    vhost = channel.connection.vhost
    return Fault(
        405,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration.",
    )


def _find_exchange(channel: Channel, name: str) -> Exchange:
    exchange = _tenant(channel).exchanges.get(name)
    if exchange is None:
        raise _no_exchange(channel, name)
    return exchange


# Publishing


def publish_target(channel: Channel, frame: bytes) -> Target:
    """What one basic.publish frame asks for."""
    arguments = Arguments(frame, 11, len(frame) - 1)
    arguments.short()
    name = arguments.short_string()
    key = arguments.short_string()
    bits = arguments.octet()
    if bits & 2:
        raise Fault(540, "immediate=true")
    exchange = _find_exchange(channel, name)
    _require(channel, "write", "exchange", name)
    if exchange.internal:
        vhost = channel.connection.vhost
        raise Fault(403, f"cannot publish to internal exchange '{name}' in vhost '{vhost}'")
    tenant = _tenant(channel)
    return Target(channel, tenant, tenant.way(exchange, key), bits & 1 != 0)


def renewed(target: Target) -> Target:
    """The same target after a change of the topology."""
    route = target.way.route
    exchange = _find_exchange(target.channel, route.exchange)
    return Target(target.channel, target.tenant, target.tenant.way(exchange, route.key), target.mandatory)


def check_user_id(connection: AmqpConnection, props: bytes) -> None:
    claimed = properties.user_id(props)
    if claimed != connection.user:
        raise Fault(406, f"user_id property set to '{claimed}' but authenticated user was '{connection.user}'")


# Exchanges


def _exchange_declare(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    kind = arguments.short_string()
    bits = arguments.octet()
    table = arguments.table()
    tenant = _tenant(channel)
    if bits & 1:
        _not_default(name)
        _find_exchange(channel, name)
    else:
        _not_default(name)
        _require(channel, "configure", "exchange", name)
        if name.startswith(RESERVED) and name not in tenant.exchanges:
            raise _reserved("exchange", name)
        alternate = table.pop("alternate-exchange", "")
        if not isinstance(alternate, str):
            raise Fault(406, f"invalid arg 'alternate-exchange' for exchange '{name}': it must be a string")
        if alternate:
            _require(channel, "read", "exchange", name)
            _require(channel, "write", "exchange", alternate)
        kind = kind.removeprefix("x-")
        try:
            tenant.declare_exchange(name, kind, bits & 2 != 0, bits & 4 != 0, bits & 8 != 0, alternate, arguments=table)
        except Conflict as error:
            raise _unequal_exchange(channel, name, str(error.argument), str(error)) from None
        except InvalidArgument as error:
            if error.argument == "kind":
                raise Fault(503, f"unknown exchange type '{kind}'") from None
            raise
    if not bits & 16:
        put_method(channel.out, channel.number, EXCHANGE_DECLARE_OK)


def _reserved(kind: str, name: str) -> Fault:
    return Fault(403, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def _unequal_exchange(channel: Channel, name: str, argument: str, text: str) -> Fault:
    argument = "type" if argument == "kind" else argument
    vhost = channel.connection.vhost
    return Fault(406, f"inequivalent arg '{argument}' for exchange '{name}' in vhost '{vhost}': {text}")


def _exchange_delete(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    bits = arguments.octet()
    _not_default(name)
    if name.startswith(RESERVED):
        raise _reserved("exchange", name)
    _require(channel, "configure", "exchange", name)
    try:
        _tenant(channel).delete_exchange(name, bits & 1 != 0)
    except NotFound:
        pass
    except InUse:
        raise Fault(406, f"exchange '{name}' in vhost '{channel.connection.vhost}' in use") from None
    if not bits & 2:
        put_method(channel.out, channel.number, EXCHANGE_DELETE_OK)


def _exchange_bind(channel: Channel, arguments: Arguments, bind: bool) -> None:
    arguments.short()
    destination = arguments.short_string()
    source = arguments.short_string()
    key = arguments.short_string()
    nowait = arguments.octet() & 1
    table = arguments.table()
    _not_default(destination)
    _not_default(source)
    _require(channel, "write", "exchange", destination)
    _require(channel, "read", "exchange", source)
    tenant = _tenant(channel)
    if bind:
        _find_exchange(channel, source)
        tenant.bind(source, _find_exchange(channel, destination), key, table)
    elif source in tenant.exchanges and destination in tenant.exchanges:
        tenant.unbind(source, tenant.exchanges[destination], key, table)
    if not nowait:
        put_method(channel.out, channel.number, EXCHANGE_BIND_OK if bind else EXCHANGE_UNBIND_OK)


# Queues


def _queue_declare(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    bits = arguments.octet()
    table = arguments.table()
    if bits & 1:
        queue = _find_queue(channel, _named(channel, name))
        queue.touch()
    else:
        queue = _declared(channel, name, bits, table)
    channel.last_queue = queue.name
    if not bits & 16:
        start = begin_method(channel.out, channel.number, QUEUE_DECLARE_OK)
        w = channel.out.w
        put_short_string(w, queue.name)
        _put_count(channel, queue.ready)
        _put_count(channel, queue.consumers())
        end_method(channel.out, start)


def _put_count(channel: Channel, count: i64) -> None:
    write_i32_be(channel.out.w, i32(min(2147483647, count)))


def _declared(channel: Channel, name: str, bits: i64, table: dict[str, object]) -> Queue:
    connection = channel.connection
    tenant = _tenant(channel)
    if not name:
        name = RESERVED + "gen-" + str(connection.face.random_text())
    elif name.startswith(RESERVED):
        raise _reserved("queue", name)
    _require(channel, "configure", "queue", name)
    settings = queue_settings(name, connection.vhost, table)
    target = settings.get("dead_letter_exchange")
    if isinstance(target, str):
        _require(channel, "read", "queue", name)
        _require(channel, "write", "exchange", target)
    settings["durable"] = bits & 2 != 0
    settings["auto_delete"] = bits & 8 != 0
    exact = True
    face = tenant.faces.get(name)
    if face is not None and face != "amqp":
        # another face's defaults take no part in the comparison, so only what differs from what holds is compared
        exact = False
        holding = tenant.queues[name].settings.as_dict()
        settings = {each: value for each, value in settings.items() if holding[each] != value}
    owner = connection if bits & 4 else None
    try:
        queue, created = tenant.declare_queue(name, settings, "amqp", exact=exact, owner=owner)
    except Locked:
        raise _locked(channel, name) from None
    except Conflict as error:
        if error.argument == "exclusive":
            raise _locked(channel, name) from None
        text = conflict_text(str(error.argument), tenant.said[name], settings)
        raise Fault(406, f"{text[0]} for queue '{name}' in vhost '{connection.vhost}': {text[1]}") from None
    except InvalidName as error:
        raise Fault(406, f"invalid queue name '{name}': {error}") from None
    if created and owner is not None:
        if len(connection.exclusive) >= EXCLUSIVES_PRUNED_AT:
            connection.exclusive = [each for each in connection.exclusive if not each.deleted]
        connection.exclusive.append(queue)
    return queue


def _queue_bind(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = arguments.short_string()
    source = arguments.short_string()
    key = arguments.short_string()
    nowait = arguments.octet() & 1
    table = arguments.table()
    if not name and not key:
        key = _named(channel, name)
    name = _named(channel, name)
    _not_default(source)
    _require(channel, "write", "queue", name)
    _require(channel, "read", "exchange", source)
    queue = _find_queue(channel, name)
    _find_exchange(channel, source)
    _tenant(channel).bind(source, queue, key, table)
    if not nowait:
        put_method(channel.out, channel.number, QUEUE_BIND_OK)


def _queue_unbind(channel: Channel, arguments: Arguments) -> None:
    """Idempotent: what is not bound, or not there, is not an error (as in RabbitMQ)."""
    arguments.short()
    name = _named(channel, arguments.short_string())
    source = arguments.short_string()
    key = arguments.short_string()
    table = arguments.table()
    _not_default(source)
    _require(channel, "write", "queue", name)
    _require(channel, "read", "exchange", source)
    tenant = _tenant(channel)
    if name in tenant.queues and source in tenant.exchanges:
        tenant.unbind(source, _find_queue(channel, name), key, table)
    put_method(channel.out, channel.number, QUEUE_UNBIND_OK)


def _queue_purge(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = _named(channel, arguments.short_string())
    nowait = arguments.octet() & 1
    _require(channel, "read", "queue", name)
    queue = _find_queue(channel, name)
    count = queue.purge()
    if count and queue.journaled:
        channel.out.await_batch(channel.connection.shard.log.horizon())
    if not nowait:
        _put_counted(channel, QUEUE_PURGE_OK, count)


def _queue_delete(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = _named(channel, arguments.short_string())
    bits = arguments.octet()
    _require(channel, "configure", "queue", name)
    count = 0
    where = f"queue '{name}' in vhost '{channel.connection.vhost}'"
    try:
        count = _tenant(channel).delete_queue(name, bits & 1 != 0, bits & 2 != 0, channel.connection)
    except NotFound:
        pass
    except Locked:
        raise _locked(channel, name) from None
    except InUse:
        raise Fault(406, f"{where} in use") from None
    except NotEmpty:
        raise Fault(406, f"{where} not empty") from None
    if not bits & 4:
        _put_counted(channel, QUEUE_DELETE_OK, count)


def _put_counted(channel: Channel, method: i32, count: i64) -> None:
    start = begin_method(channel.out, channel.number, method)
    _put_count(channel, count)
    end_method(channel.out, start)


# Consuming


def _qos(channel: Channel, arguments: Arguments) -> None:
    """As in RabbitMQ: without `global` for each consumer to come, with it for all consumers of the channel together.

    A peer with `shared_prefetch` always means the latter.
    """
    size = arguments.long()
    count = arguments.short()
    together = arguments.octet() & 1
    if size:
        raise Fault(540, f"prefetch_size!=0 ({size})")
    if together or channel.connection.shared_prefetch:
        _share(channel, count)
    else:
        channel.prefetch = count
    put_method(channel.out, channel.number, BASIC_QOS_OK)


def _share(channel: Channel, count: i64) -> None:
    credit = channel.credit
    if credit is None:
        if not count:
            return
        credit = Credit(NEVER)
        channel.credit = credit
        for consumer in channel.consumers.values():
            consumer.shared = credit
            credit.inflight += consumer.inflight
    credit.limit = count or NEVER
    for consumer in channel.consumers.values():
        consumer.queue.mark_dirty()


def _consume(channel: Channel, arguments: Arguments) -> None:
    connection = channel.connection
    arguments.short()
    name = _named(channel, arguments.short_string())
    tag = arguments.short_string()
    bits = arguments.octet()
    table = arguments.table()
    _require(channel, "read", "queue", name)
    queue = _find_queue(channel, name)
    if tag in channel.consumers:
        raise Fault(530, f"attempt to reuse consumer tag '{tag}'")
    exclusive = bits & 4 != 0
    if queue.roster.all and (exclusive or _held_exclusively(queue)):
        raise Fault(403, f"queue '{name}' in vhost '{connection.vhost}' in exclusive use")
    priority = table.get("x-priority", 0)
    if not isinstance(priority, int) or not -(1 << 31) <= priority < 1 << 31:
        raise Fault(406, f"invalid arg 'x-priority' for consumer '{tag}'")
    check_subscriptions(queue)
    if not tag:
        tag = RESERVED + "ctag-" + str(connection.face.random_text())
    no_ack = bits & 2 != 0
    consumer = AmqpConsumer(channel, queue, tag, 0 if no_ack else channel.prefetch, no_ack, priority, exclusive)
    consumer.shared = None if no_ack else channel.credit
    consumer.paused = connection.write_paused or channel.out.corked
    channel.consumers[tag] = consumer
    if not bits & 8:
        _put_tagged(channel, BASIC_CONSUME_OK, tag)
    queue.subscribe(consumer)


def _held_exclusively(queue: Queue) -> bool:
    for each in queue.roster.all:
        if isinstance(each, AmqpConsumer) and each.exclusive:
            return True
    return False


def _cancel(channel: Channel, arguments: Arguments) -> None:
    tag = arguments.short_string()
    nowait = arguments.octet() & 1
    consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        consumer.queue.unsubscribe(consumer)
    if not nowait:
        _put_tagged(channel, BASIC_CANCEL_OK, tag)


def _put_tagged(channel: Channel, method: i32, tag: str) -> None:
    start = begin_method(channel.out, channel.number, method)
    put_short_string(channel.out.w, tag)
    end_method(channel.out, start)


def _get(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = _named(channel, arguments.short_string())
    no_ack = arguments.octet() & 1 != 0
    _require(channel, "read", "queue", name)
    queue = _find_queue(channel, name)
    leases = queue.claim(1, 0)
    out = channel.out
    if not leases:
        start = begin_method(out, channel.number, BASIC_GET_EMPTY)
        put_short_string(out.w, "")
        end_method(out, start)
        return
    lease = leases[0]
    message = lease.entry.message
    redelivered = lease.entry.redelivered
    channel.hold(None if no_ack else lease)
    start = begin_method(out, channel.number, BASIC_GET_OK)
    w = out.w
    write_i64_be(w, channel.tag)
    w.append(u8(1) if redelivered else u8(0))
    w.write(message.route.wire or wire_of(message.route))
    _put_count(channel, queue.ready)
    end_method(out, start)
    props = with_history(message) if message.route.deaths else message.props
    put_content(out, channel.number, channel.connection.payload_max, props, message.body)
    if no_ack:
        queue.ack(lease)

"""Taking messages: basic.qos, consume, cancel, get, and the ends of deliveries other than ack (spec 1.8)."""

from __future__ import annotations

from mypy_extensions import i32, i64, u8

from rookery.core.consumers import Credit
from rookery.core.queue import Queue
from rookery.core.shard import check_subscriptions
from rookery.format.bytes import write_i64_be
from rookery.format.model import NEVER
from rookery.wire.amqp import replies, streams
from rookery.wire.amqp.arguments import INTEGERS, TYPES
from rookery.wire.amqp.channel import REJECT, REQUEUE, AmqpConsumer, Channel, props_of, wire_of
from rookery.wire.amqp.codec import (
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
    Arguments,
    Fault,
    begin_method,
    end_method,
    put_content,
    put_method,
    put_short_string,
)
from rookery.wire.amqp.names import (
    RESERVED,
    find_queue,
    named,
    not_implemented,
    put_count,
    put_tagged,
    require,
    tenant_of,
)


def call(channel: Channel, method: i32, arguments: Arguments) -> None:
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
        raise not_implemented()


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
    name = named(channel, arguments.short_string())
    tag = arguments.short_string()
    bits = arguments.octet()
    table = arguments.typed_table()
    if tag and (tag in channel.consumers or tag == channel.reply_tag):
        raise Fault(530, f"attempt to reuse consumer tag '{tag}'")
    if not tag:
        tag = RESERVED + "ctag-" + str(connection.face.random_text())
    no_ack = bits & 2 != 0
    if name == replies.REPLY_TO:
        replies.consume(channel, tag, no_ack)
        if not bits & 8:
            put_tagged(channel, BASIC_CONSUME_OK, tag)
        return
    require(channel, "queue.consume", "queue", name)
    stream = tenant_of(channel).streams.get(name)
    if stream is not None:
        _begin(channel, streams.consume(channel, stream, tag, bits, table), bits)
        return
    queue = find_queue(channel, name)
    exclusive = bits & 4 != 0
    where = f"queue '{name}' in vhost '{connection.vhost}'"
    if (queue.roster.all and (exclusive or _held_exclusively(queue))) or (exclusive and queue.roster.single_active):
        raise Fault(403, f"{where} in exclusive use")
    kind, priority = table.get("x-priority", ("I", 0))
    if kind not in INTEGERS or not isinstance(priority, int):
        raise Fault(406, f"invalid arg 'x-priority' for {where}: \"expected integer, got {TYPES[kind]}\"")
    check_subscriptions(queue)
    consumer = AmqpConsumer(channel, queue, tag, 0 if no_ack else channel.prefetch, no_ack, priority, exclusive)
    _begin(channel, consumer, bits)


def _begin(channel: Channel, consumer: AmqpConsumer, bits: i64) -> None:
    consumer.shared = None if consumer.no_ack else channel.credit
    consumer.paused = channel.connection.write_paused or channel.out.corked
    channel.consumers[consumer.name] = consumer
    if not bits & 8:
        put_tagged(channel, BASIC_CONSUME_OK, consumer.name)
    consumer.queue.subscribe(consumer)


def _held_exclusively(queue: Queue) -> bool:
    for each in queue.roster.all:
        if each.exclusive:
            return True
    return False


def _cancel(channel: Channel, arguments: Arguments) -> None:
    tag = arguments.short_string()
    nowait = arguments.octet() & 1
    consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        consumer.queue.unsubscribe(consumer)
        consumer.ended()
    elif tag and tag == channel.reply_tag:
        replies.end(channel)
    if not nowait:
        put_tagged(channel, BASIC_CANCEL_OK, tag)


def _get(channel: Channel, arguments: Arguments) -> None:
    arguments.short()
    name = named(channel, arguments.short_string())
    no_ack = arguments.octet() & 1 != 0
    require(channel, "queue.claim", "queue", name)
    if name in tenant_of(channel).streams:
        raise Fault(
            540, f"basic.get not supported by stream queues queue '{name}' in vhost '{channel.connection.vhost}'"
        )
    queue = find_queue(channel, name)
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
    put_count(channel, queue.ready)
    end_method(out, start)
    props = props_of(queue, lease.entry, True)
    put_content(out, channel.number, channel.connection.payload_max, props, message.body)
    if no_ack:
        queue.ack(lease)

"""Publishing: the one place where messages enter queues and streams.

A publish goes through these steps, whoever publishes: a repeated dedup key ends it (`repeat_of`); its way is found; the
message is made if it is within the limits (`new_message`); then it enters the targets of its way (`post`).
`publish` does all of them for one message. `check` and `do` are its two halves for several that happen together: after
`check` has passed for all of them, `do` cannot fail. AMQP and the line protocol remember the way of a key and call
`new_message` and `post` themselves.

What a queue does that is full and rejects publishes depends on the publisher. AMQP publishes to each queue by itself
(`EACH`): the other queues take the message, and the publisher gets a nack. For everybody else all targets take it or
none does (`WHOLE`). In both cases a queue with `reject-publish-dead-letter` dead-letters what it rejects. Of several
messages that happen together, one that is rejected refuses them all, and then nothing happens: no dead-lettering, and
no meter moves.

The meters: a repeat counts as a duplicate and as nothing else; a rejected message counts as refused by its queue, and
as published by its exchange only if another target took it; one that nobody would get counts as published and as
unroutable, and `mandatory` decides whether its publisher is told.

Messages that were published before enter by `bring` (dead letters, redrives, moves) and `offer_again` (replays and
followers of streams).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, i64

from rookery.core.dedup import dedup_key_of, scope_of
from rookery.core.delays import hold_back
from rookery.core.queue import REFUSED, REJECT_PUBLISH, REJECT_PUBLISH_DEAD_LETTER, Queue
from rookery.errors import (
    InvalidArgument,
    MemoryLimitExceeded,
    MessageTooLarge,
    QueueFull,
    RookeryError,
    Unroutable,
)
from rookery.format.model import MESSAGE_OVERHEAD_BYTES, PERSISTENT, SAMPLED, Message, check_numbers

if TYPE_CHECKING:
    from rookery.core.shard import Shard
    from rookery.core.stream import Partition, Stream
    from rookery.core.topology import Exchange, Tenant, Way

EACH: Final[i64] = 0
WHOLE: Final[i64] = 1
CHECKED: Final[i64] = 2
"""What happens when a queue rejects a message: the others take it; none does; that was checked before."""


class Publish:
    """A publish to be."""

    def __init__(
        self,
        exchange: str,
        key: str,
        props: bytes,
        body: bytes,
        priority: int = 0,
        expires_ms: int = 0,
        due_ms: int = 0,
        persistent: bool = True,
        dedup_key: str = "",
        mandatory: bool = False,
        copies: list[str] | None = None,
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.props = props
        self.body = body
        self.priority = priority
        self.expires_ms = expires_ms
        self.due_ms = due_ms
        self.persistent = persistent
        self.dedup_key = dedup_key
        self.mandatory = mandatory
        self.copies = copies if copies is not None else []

    def way(self, tenant: Tenant) -> Way:
        """Where it goes now, by its keys and headers."""
        exchange = tenant.exchange(self.exchange)
        way = tenant.way(exchange, self.key)
        if not self.copies and not way.by_headers:
            return way
        return tenant.joined(exchange, [self.key, *self.copies], self.props)


class Batch:
    """Publishes to be, all to one exchange and key, with the same properties and no numbers of their own."""

    def __init__(self, exchange: str, key: str, props: bytes, bodies: list[bytes], expires_ms: int) -> None:
        self.exchange = exchange
        self.key = key
        self.props = props
        self.bodies = bodies
        self.expires_ms = expires_ms


class Append:
    """A record to be, for a partition of its stream if that is not negative; `key` is its routing key."""

    def __init__(
        self,
        key: str,
        props: bytes,
        body: bytes,
        priority: int = 0,
        expires_ms: int = 0,
        due_ms: int = 0,
        dedup_key: str = "",
        partition: int = -1,
    ) -> None:
        self.key = key
        self.props = props
        self.body = body
        self.priority = priority
        self.expires_ms = expires_ms
        self.due_ms = due_ms
        self.dedup_key = dedup_key
        self.partition = partition


# One message


def publish(
    shard: Shard, tenant: Tenant, p: Publish, on_message: Callable[[Message], None] | None = None
) -> tuple[int, bool]:
    """Publish one message to all its targets, or raise: its number (the first one's, for a repeat), and whether it is a
    repeat. `on_message` is called with the message before it enters, and may still refuse it.
    """
    check_numbers(p.priority, p.expires_ms, p.due_ms)
    exchange = tenant.exchange(p.exchange)
    if p.dedup_key or exchange.dedup:
        first = repeat_of(shard, tenant, exchange, p)
        if first:
            tenant.dedup.duplicates += 1
            return first, True
    way = p.way(tenant)
    flags: i32 = PERSISTENT if p.persistent else 0
    message = new_message(shard, tenant, way, p.props, p.body, p.priority, p.expires_ms, flags)
    if on_message is not None:
        on_message(message)
    reached = post(shard, tenant, way, message, p.due_ms, WHOLE)
    if reached == REFUSED:
        raise QueueFull(f"queue {full(tenant, way, message).name!r} is full", argument="queue")
    if reached == 0:
        if p.mandatory:
            raise _unroutable(p)
    elif p.dedup_key:
        tenant.remember(p.exchange, p.key, p.dedup_key, message.id)
    return message.id, False


def new_message(
    shard: Shard, tenant: Tenant, way: Way, props: bytes, body: bytes, priority: i64, expires_ms: i64, flags: i32
) -> Message:
    """A new message, if it is within the limits on size and memory."""
    size: i64 = len(body) + len(props)
    if size > tenant.message_bytes_max:
        raise _too_large(tenant, size)
    size += MESSAGE_OVERHEAD_BYTES
    if tenant.memory_bytes + size > tenant.memory_bytes_max or shard.memory_bytes + size > shard.memory_bytes_max:
        tenant.refused += 1
        raise MemoryLimitExceeded
    if shard.log.refusing and _is_written(tenant, way, props, flags):
        tenant.refused += 1
        shard.log.check()
    shard.last_id += 1
    if shard.events.on:
        flags |= shard.events.mark(shard.last_id)
    return Message(way.route, props, body, shard.last_id, priority, expires_ms, flags)


def post(shard: Shard, tenant: Tenant, way: Way, message: Message, due_ms: i64, mode: i64 = EACH) -> i64:
    """Let a new message enter every queue and stream of its way: how many there are, or REFUSED when a queue rejected
    it. A message that its exchange has had before counts as one that arrived, and adds nothing.
    """
    queues = way.queues
    logs = way.streams
    exchange = way.exchange
    dedup_key = ""
    rejected: i64 = 0
    if way.special:
        if way.by_headers:
            queues = tenant.queues_for(way, message.props)
            logs = tenant.streams_met
        force_persistent(queues, message)
        if exchange.dedup:
            dedup_key = dedup_key_of(message.props)
            if dedup_key and tenant.is_repeat("exchange:" + exchange.name, dedup_key):
                return 1
        if exchange.delays and not due_ms:
            due_ms = hold_back(message, shard.wall_ms)
        if mode != CHECKED:
            for queue in queues:
                if queue.bounded and queue.rejects(message):
                    rejected += 1
            if rejected and (mode == WHOLE or rejected == len(queues) + len(logs)):
                for queue in list(queues):
                    if queue.bounded and queue.rejects(message):
                        queue.offer(message, due_ms)
                return REFUSED
    reached: i64 = len(queues) + len(logs)
    exchange.published += 1
    exchange.bytes += len(message.body)
    tenant.published += 1
    if message.flags & SAMPLED:
        shard.events.published(tenant, message, reached - rejected)
    if not reached:
        exchange.unroutable += 1
        return 0
    for stream in logs:
        stream.append(message)
    if way.special and mode != EACH:
        for queue in queues:
            if queue.overflow == REJECT_PUBLISH or queue.overflow == REJECT_PUBLISH_DEAD_LETTER:
                queue.admit(message, due_ms)
            else:
                queue.offer(message, due_ms)
    else:
        for queue in queues:
            if queue.offer(message, due_ms) == REFUSED:
                rejected += 1
    if rejected:
        return REFUSED
    if dedup_key:
        tenant.remember(exchange.name, "", dedup_key, message.id)
    return reached


def repeat_of(shard: Shard, tenant: Tenant, exchange: Exchange, p: Publish) -> int:
    """The number of the message that was published with this one's dedup key, 0 when there is none in its window.

    It has the key that its publisher gave it and, where the exchange asks for dedup, that of its properties.
    """
    now = shard.wall_ms
    if p.dedup_key:
        first = tenant.dedup.find(scope_of(p.exchange, p.key), p.dedup_key, now)
        if first:
            return first
    if exchange.dedup:
        own = dedup_key_of(p.props)
        if own:
            return tenant.dedup.find("exchange:" + exchange.name, own, now)
    return 0


def force_persistent(queues: list[Queue], message: Message) -> None:
    """A message that is about to enter a quorum queue is persistent, whatever its publisher said.

    This is decided before it enters any: what is written is counted by placements.
    """
    for queue in queues:
        if queue.quorum:
            message.flags |= PERSISTENT
            return


def _unroutable(p: Publish) -> Unroutable:
    """The error for a mandatory message that reaches nobody."""
    return Unroutable(f"no queue for key {p.key!r} of exchange {p.exchange!r}", argument="key")


def _is_written(tenant: Tenant, way: Way, props: bytes, flags: i32) -> bool:
    """Whether a message will be written to the journal."""
    if flags & PERSISTENT:
        return True
    queues = tenant.queues_for(way, props)
    return bool(tenant.streams_met) or any(queue.quorum for queue in queues)


def _too_large(tenant: Tenant, size: i64) -> MessageTooLarge:
    return MessageTooLarge(f"message of {size} bytes; at most {tenant.message_bytes_max}", argument="body")


def full(tenant: Tenant, way: Way, message: Message) -> Queue:
    """The queue of a way that rejected a message."""
    queues = tenant.queues_for(way, message.props)
    for queue in queues:
        if queue.bounded and queue.rejects(message):
            return queue
    return queues[0]


# Several messages that happen together


@final
class _Room:
    """What publishes that happen together need."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.bytes: i64 = 0
        self.written = False
        # messages and bytes by the queue that may reject them
        self.adds: dict[Queue, tuple[int, int]] = {}

    def add(self, queue: Queue, count: i64, size: i64) -> None:
        if queue.bounded:
            messages, total = self.adds.get(queue, (0, 0))
            self.adds[queue] = (messages + int(count), total + int(size))

    def check(self, shard: Shard, tenant: Tenant) -> None:
        """Raise unless there is room for all."""
        if not self.count:
            return
        size = self.bytes
        if tenant.memory_bytes + size > tenant.memory_bytes_max or shard.memory_bytes + size > shard.memory_bytes_max:
            raise MemoryLimitExceeded
        if self.written and shard.log.refusing:
            shard.log.check()
        for queue, (count, total) in self.adds.items():
            if queue.rejects_all(count, total):
                raise QueueFull(f"queue {queue.name!r} has no room for {count} more messages", argument="queue")


def check(shard: Shard, tenant: Tenant, publishes: Sequence[Publish]) -> None:
    """Raise unless all of these can be published, one after the other."""
    room = _Room()
    repeats: set[tuple[str, str]] = set()
    for p in publishes:
        check_numbers(p.priority, p.expires_ms, p.due_ms)
        exchange = tenant.exchange(p.exchange)
        marks: list[tuple[str, str]] = []
        if p.dedup_key:
            marks.append((scope_of(p.exchange, p.key), p.dedup_key))
        if exchange.dedup:
            own = dedup_key_of(p.props)
            if own:
                marks.append(("exchange:" + exchange.name, own))
        if marks and (any(mark in repeats for mark in marks) or repeat_of(shard, tenant, exchange, p)):
            continue
        way = p.way(tenant)
        queues = way.queues
        if not queues and not way.streams:
            if p.mandatory:
                raise _unroutable(p)
        else:
            # a key whose message reaches nobody is not remembered
            repeats.update(marks)
        size: i64 = len(p.body) + len(p.props)
        if size > tenant.message_bytes_max:
            raise _too_large(tenant, size)
        room.count += 1
        room.bytes += size + MESSAGE_OVERHEAD_BYTES
        if p.persistent or way.streams or way.special:
            room.written = room.written or _is_written(tenant, way, p.props, PERSISTENT if p.persistent else 0)
        for queue in queues:
            if queue.dedup and queue.bounded:
                mark = ("queue:" + queue.name, dedup_key_of(p.props))
                if mark[1]:
                    if mark in repeats or tenant.dedup.find(mark[0], mark[1], shard.wall_ms):
                        continue
                    repeats.add(mark)
            room.add(queue, 1, len(p.body))
    room.check(shard, tenant)


def do(shard: Shard, tenant: Tenant, p: Publish) -> int:
    """Do a publish that was checked: the number of its message, the first one's for a repeat."""
    exchange = tenant.exchange(p.exchange)
    if p.dedup_key or exchange.dedup:
        first = repeat_of(shard, tenant, exchange, p)
        if first:
            tenant.dedup.duplicates += 1
            return first
    way = p.way(tenant)
    number = shard.new_id()
    flags: i32 = PERSISTENT if p.persistent else 0
    if shard.events.on:
        flags |= shard.events.mark(number)
    message = Message(way.route, p.props, p.body, number, p.priority, p.expires_ms, flags)
    if post(shard, tenant, way, message, p.due_ms, CHECKED) > 0 and p.dedup_key:
        tenant.remember(p.exchange, p.key, p.dedup_key, number)
    return number


def publish_all(shard: Shard, tenant: Tenant, publishes: Sequence[Publish]) -> list[int]:
    """Publish all of them, or raise and publish none; the numbers of their messages."""
    check(shard, tenant, publishes)
    return [do(shard, tenant, p) for p in publishes]


def publish_batch(shard: Shard, tenant: Tenant, batch: Batch) -> Sequence[int]:
    """Publish all of a batch or, when one does not fit, none; the numbers of its messages."""
    exchange = tenant.exchange(batch.exchange)
    way = tenant.way(exchange, batch.key)
    props = batch.props
    queues = tenant.queues_for(way, props)
    if (exchange.dedup or any(queue.dedup for queue in queues)) and dedup_key_of(props):
        # all have the same key: those after the first are repeats
        expires = batch.expires_ms
        each = [Publish(batch.exchange, batch.key, props, body, expires_ms=expires) for body in batch.bodies]
        return publish_all(shard, tenant, each)
    _check_batch(shard, tenant, batch, queues)
    first = int(shard.last_id) + 1
    expires_ms: i64 = batch.expires_ms
    for body in batch.bodies:
        if way.version != tenant.version:
            # a queue that was too full is gone
            way = tenant.way(exchange, batch.key)
        number = shard.new_id()
        flags: i32 = PERSISTENT
        if shard.events.on:
            flags |= shard.events.mark(number)
        post(shard, tenant, way, Message(way.route, props, body, number, 0, expires_ms, flags), 0, CHECKED)
    return range(first, first + len(batch.bodies))


def _check_batch(shard: Shard, tenant: Tenant, batch: Batch, queues: list[Queue]) -> None:
    room = _Room()
    total: i64 = 0
    overhead: i64 = len(batch.props)
    for body in batch.bodies:
        size: i64 = len(body) + overhead
        if size > tenant.message_bytes_max:
            raise _too_large(tenant, size)
        total += len(body)
    room.count = len(batch.bodies)
    room.bytes = total + room.count * (overhead + MESSAGE_OVERHEAD_BYTES)
    room.written = True
    for queue in queues:
        room.add(queue, room.count, total)
    room.check(shard, tenant)


# Records of a stream


def append_all(
    shard: Shard, stream: Stream, records: Sequence[Append], indexed: bool = False
) -> list[tuple[int, int] | None]:
    """Append all of these to one stream, or raise and append none: (partition, offset) of each, None for a repeat.

    This is what publishing to the stream by the default exchange does, with a choice of the partition. `indexed` has
    errors name the record.
    """
    tenant = stream.tenant
    room = _Room()
    room.written = True
    for index, each in enumerate(records):
        at = f"[{index}]." if indexed else ""
        check_numbers(each.priority, each.expires_ms, each.due_ms)
        if each.due_ms:
            raise InvalidArgument("records of a stream have no delay", argument=f"{at}delay_ms")
        if each.partition >= 0:
            try:
                stream.partition(each.partition)
            except InvalidArgument as error:
                error.argument = f"{at}partition"
                raise
        size: i64 = len(each.body) + len(each.props)
        if size > tenant.message_bytes_max:
            raise MessageTooLarge(
                f"record of {size} bytes; at most {tenant.message_bytes_max}", argument=f"{at}message"
            )
        room.count += 1
        room.bytes += size + MESSAGE_OVERHEAD_BYTES
    try:
        room.check(shard, tenant)
    except RookeryError:
        tenant.refused += len(records) == 1
        raise
    return [_append(shard, stream, each) for each in records]


def count_appended(tenant: Tenant, count: i64, size: i64) -> None:
    """So many records with so many bytes of body went to a stream by its name, which the default exchange routes by."""
    exchange = tenant.default
    exchange.published += count
    exchange.bytes += size
    tenant.published += count


def _append(shard: Shard, stream: Stream, each: Append) -> tuple[int, int] | None:
    tenant = stream.tenant
    if each.dedup_key and tenant.is_repeat(scope_of("", stream.name), each.dedup_key):
        return None
    way = tenant.way(tenant.default, each.key)
    number = shard.new_id()
    flags: i32 = PERSISTENT
    if shard.events.on:
        flags |= shard.events.mark(number)
    message = Message(way.route, each.props, each.body, number, each.priority, each.expires_ms, flags)
    count_appended(tenant, 1, len(each.body))
    if flags & SAMPLED:
        shard.events.published(tenant, message, 1)
    partition: Partition | None = None
    if each.partition >= 0:
        partition = stream.partition(each.partition)
    position = stream.append(message, partition)
    if each.dedup_key:
        tenant.remember("", stream.name, each.dedup_key, number)
    return position


# Messages that were published before


def bring(queues: list[Queue], streams: list[Stream], message: Message, moved: bool = False, due_ms: i64 = 0) -> i64:
    """Let a dead letter, or a message that is `moved`, enter queues and streams; how many took it."""
    force_persistent(queues, message)
    taken: i64 = len(streams)
    for stream in streams:
        stream.append(message)
    for queue in queues:
        if queue.accept(message, moved, due_ms):
            taken += 1
    return taken


def offer_again(queues: list[Queue], message: Message) -> None:
    """Offer a message that a stream or a keeper holds to queues; one that is full does with it what it does."""
    force_persistent(queues, message)
    for queue in list(queues):
        queue.offer(message, 0)

"""Transactions: publishes and settles of one tenant that happen wholly or not at all.

Operations are only collected until `commit`, which first checks every one of them against the state as it is then and
changes nothing when one fails. A transaction that outlives its time is rolled back; of those that ended, the last
ones are remembered, so that a late call learns what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64

from rookery.core.dead_letters import make_lasting
from rookery.core.dedup import scope_of
from rookery.core.delays import hold_back
from rookery.core.entries import Lease
from rookery.core.queue import REJECT_PUBLISH, REJECT_PUBLISH_DEAD_LETTER, Queue
from rookery.errors import (
    InvalidArgument,
    LeaseLost,
    MemoryLimitExceeded,
    MessageTooLarge,
    QueueFull,
    TransactionCommitted,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionTooLarge,
    Unroutable,
)
from rookery.model import MESSAGE_OVERHEAD_BYTES, NEVER, PERSISTENT, SAMPLED, Message, check_numbers

if TYPE_CHECKING:
    from rookery.core.shard import Shard
    from rookery.core.stream import Stream
    from rookery.core.topology import Exchange, Tenant, Way

TIMEOUT_MS: Final = 60_000
TOMBSTONES_MAX: Final = 10_000

OUTCOMES: Final = ("ack", "retry", "release", "reject")


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


class Settle:
    """A settle to be."""

    def __init__(self, lease: Lease, outcome: str, delay_ms: int = -1, detail: str = "") -> None:
        if outcome not in OUTCOMES:
            raise InvalidArgument(f"outcome must be one of {', '.join(OUTCOMES)}, not {outcome!r}", argument="outcome")
        self.lease = lease
        self.outcome = outcome
        self.delay_ms = delay_ms
        self.detail = detail


class Transaction:
    """The operations collected so far under one id."""

    def __init__(self, id: str, tenant: Tenant, due_ms: int, owner: str = "") -> None:
        self.id = id
        self.owner = owner
        self.tenant = tenant
        self.due_ms = due_ms
        self.operations: list[Publish | Settle] = []
        self.bytes = 0


class Transactions:
    """The open transactions of a shard, and tombstones of those that ended."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        # by tenant, who began it, and the id it was given: parts that are not joined cannot be taken for others
        self._open: dict[tuple[str, str, str], Transaction] = {}
        self._ended: dict[tuple[str, str, str], str] = {}
        # how many each tenant has open
        self._counts: dict[str, int] = {}
        self.next_due_ms: int = NEVER

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, tenant: Tenant, id: str, timeout_ms: int = TIMEOUT_MS, owner: str = "") -> Transaction:
        """A new transaction of that id; an id that ended may not be used again while it is remembered.

        Owners have ids of their own: two of them do not meet under the same one.
        """
        if not id:
            raise InvalidArgument("a transaction needs an id", argument="transaction")
        if timeout_ms < 1:
            raise InvalidArgument("timeout_ms must be at least 1", argument="timeout_ms")
        place = (tenant.name, owner, id)
        if place in self._open:
            raise InvalidArgument(f"transaction {id!r} is open already", argument="transaction")
        self._check_ended(place)
        most = tenant.limits.transactions_max
        if most and self._counts.get(tenant.name, 0) >= most:
            raise tenant.too_many("open transactions", "transactions_max", "transaction")
        transaction = Transaction(id, tenant, self._shard.mono_ms + timeout_ms, owner)
        self._open[place] = transaction
        self._counts[tenant.name] = self._counts.get(tenant.name, 0) + 1
        self.next_due_ms = min(self.next_due_ms, transaction.due_ms)
        return transaction

    def is_known(self, tenant: Tenant, id: str) -> bool:
        """Whether the transaction is open, or ended not long ago."""
        return (tenant.name, "", id) in self._open or (tenant.name, "", id) in self._ended

    def is_open(self, tenant: Tenant, id: str) -> bool:
        return (tenant.name, "", id) in self._open

    def get(self, tenant: Tenant, id: str, owner: str = "") -> Transaction:
        """The open transaction of that id, or the error that says what became of it."""
        transaction = self._open.get((tenant.name, owner, id))
        if transaction is None:
            self._check_ended((tenant.name, owner, id))
            raise TransactionNotFound(f"no transaction {id!r}", argument="transaction")
        return transaction

    def _check_ended(self, place: tuple[str, str, str]) -> None:
        ended = self._ended.get(place)
        if ended == "committed":
            raise TransactionCommitted(f"transaction {place[2]!r} was committed already", argument="transaction")
        if ended == "rolled back":
            raise TransactionRolledBack(f"transaction {place[2]!r} was rolled back", argument="transaction")
        if ended == "timed out":
            raise TransactionTimeout(f"transaction {place[2]!r} timed out", argument="transaction")

    def add(self, transaction: Transaction, operation: Publish | Settle) -> None:
        """Collect one more operation."""
        limits = transaction.tenant.limits
        size = 0
        if isinstance(operation, Publish):
            size = len(operation.body) + len(operation.props)
            transaction.tenant.exchange(operation.exchange)
        if limits.transaction_operations_max and len(transaction.operations) >= limits.transaction_operations_max:
            raise TransactionTooLarge(
                f"a transaction has at most {limits.transaction_operations_max} operations", argument="transaction"
            )
        if limits.transaction_bytes_max and transaction.bytes + size > limits.transaction_bytes_max:
            raise TransactionTooLarge(
                f"a transaction has at most {limits.transaction_bytes_max} bytes", argument="transaction"
            )
        transaction.operations.append(operation)
        transaction.bytes += size

    def commit(self, tenant: Tenant, id: str, owner: str = "") -> list[int]:
        """Do all of it, or raise and leave the transaction open with nothing done. Returns the numbers of its
        messages.
        """
        transaction = self.get(tenant, id, owner)
        numbers = apply(self._shard, tenant, transaction.operations)
        self._end(transaction, "committed")
        return numbers

    def rollback(self, tenant: Tenant, id: str, owner: str = "") -> None:
        """Forget all of it: publishes never happen, leases stay as they are."""
        self._end(self.get(tenant, id, owner), "rolled back")

    def _end(self, transaction: Transaction, how: str) -> None:
        place = (transaction.tenant.name, transaction.owner, transaction.id)
        del self._open[place]
        self._counts[place[0]] -= 1
        if not self._counts[place[0]]:
            del self._counts[place[0]]
        self._ended[place] = how
        if len(self._ended) > TOMBSTONES_MAX:
            del self._ended[next(iter(self._ended))]

    def tick(self) -> None:
        """Roll back what has outlived its time."""
        now = self._shard.mono_ms
        if now < self.next_due_ms:
            return
        for transaction in [t for t in self._open.values() if t.due_ms <= now]:
            self._end(transaction, "timed out")
        self.next_due_ms = min((t.due_ms for t in self._open.values()), default=NEVER)

    def forget_tenant(self, tenant: Tenant) -> None:
        for place in [p for p in self._open if p[0] == tenant.name]:
            del self._open[place]
        self._counts.pop(tenant.name, None)
        for place in [p for p in self._ended if p[0] == tenant.name]:
            del self._ended[place]


def apply(shard: Shard, tenant: Tenant, operations: list[Publish | Settle]) -> list[int]:
    """Check all operations, then do all of them in order. Returns the message numbers of the publishes."""
    _check(shard, tenant, operations)
    numbers: list[int] = []
    for operation in operations:
        if isinstance(operation, Settle):
            _settle(operation)
            # inside a transaction a settle is as durable as a publish
            shard.log.wants_sync = shard.log.active
        else:
            numbers.append(_publish(shard, tenant, operation))
    return numbers


def _check(shard: Shard, tenant: Tenant, operations: list[Publish | Settle]) -> None:
    adds: dict[Queue, tuple[int, int]] = {}
    memory = 0
    settled: set[int] = set()
    repeats: set[tuple[str, str]] = set()
    for operation in operations:
        if isinstance(operation, Settle):
            lease = operation.lease
            if not lease.live or lease.queue.deleted or id(lease) in settled:
                raise LeaseLost(f"lease {lease.token()} has ended", argument="lease")
            if lease.queue.tenant is not tenant:
                raise InvalidArgument("a transaction stays within one tenant", argument="lease")
            settled.add(id(lease))
            continue
        mark = ("", "")
        if operation.dedup_key:
            mark = (scope_of(operation.exchange, operation.key), operation.dedup_key)
            if mark in repeats or tenant.dedup.find(mark[0], mark[1], shard.wall_ms):
                continue
        check_numbers(operation.priority, operation.expires_ms, operation.due_ms)
        size = len(operation.body) + len(operation.props)
        if size > tenant.message_bytes_max:
            raise MessageTooLarge(f"message of {size} bytes; at most {tenant.message_bytes_max}", argument="body")
        memory += size + MESSAGE_OVERHEAD_BYTES
        way = operation.way(tenant)
        queues = way.queues
        streams = way.streams
        if operation.mandatory and not queues and not streams:
            raise Unroutable(f"no queue for key {operation.key!r} of exchange {operation.exchange!r}", argument="key")
        if operation.dedup_key and (queues or streams):
            # a key whose message reaches nobody is not remembered
            repeats.add(mark)
        for queue in queues:
            count, total = adds.get(queue, (0, 0))
            adds[queue] = (count + 1, total + len(operation.body))
    if memory and (
        tenant.memory_bytes + memory > tenant.memory_bytes_max or shard.memory_bytes + memory > shard.memory_bytes_max
    ):
        raise MemoryLimitExceeded
    if memory and shard.log.refusing:
        shard.log.check()
    for queue, (count, total) in adds.items():
        _check_room(queue, count, total)


def _check_room(queue: Queue, count: i64, size_bytes: i64) -> None:
    if _rejects(queue) and not queue.has_room_for(count, size_bytes):
        raise QueueFull(f"queue {queue.name!r} has no room for {count} more messages", argument="queue")


def _rejects(queue: Queue) -> bool:
    return queue.overflow == REJECT_PUBLISH or queue.overflow == REJECT_PUBLISH_DEAD_LETTER


def publish_batch(shard: Shard, tenant: Tenant, batch: Batch) -> int:
    """Publish all of a batch or, when one does not fit, none; the number of its first message: they are numbered on."""
    way = tenant.way(tenant.exchange(batch.exchange), batch.key)
    queues = tenant.queues_for(way, batch.props)
    streams = tenant.streams_met
    _check_batch(shard, tenant, batch, queues)
    first = shard.last_id + 1
    props = batch.props
    expires_ms: i64 = batch.expires_ms
    for body in batch.bodies:
        if way.version != tenant.version:
            # a queue that was too full is gone
            way = tenant.way(way.exchange, batch.key)
            queues = tenant.queues_for(way, props)
            streams = tenant.streams_met
        number = shard.new_id()
        flags: i32 = PERSISTENT
        if shard.events.on:
            flags |= shard.events.mark(number)
        message = Message(way.route, props, body, number, 0, expires_ms, flags)
        _post(tenant, way.exchange, queues, streams, message, 0)
    return first


def _check_batch(shard: Shard, tenant: Tenant, batch: Batch, queues: list[Queue]) -> None:
    total: i64 = 0
    overhead: i64 = len(batch.props)
    for body in batch.bodies:
        size: i64 = len(body) + overhead
        if size > tenant.message_bytes_max:
            raise MessageTooLarge(f"message of {size} bytes; at most {tenant.message_bytes_max}", argument="body")
        total += len(body)
    count: i64 = len(batch.bodies)
    memory = total + count * (overhead + MESSAGE_OVERHEAD_BYTES)
    if tenant.memory_bytes + memory > tenant.memory_bytes_max or shard.memory_bytes + memory > shard.memory_bytes_max:
        raise MemoryLimitExceeded
    if count and shard.log.refusing:
        shard.log.check()
    for queue in queues:
        _check_room(queue, count, total)


def _settle(operation: Settle) -> None:
    lease = operation.lease
    queue = lease.queue
    if operation.outcome == "ack":
        queue.ack(lease)
    elif operation.outcome == "retry":
        queue.retry(lease, operation.delay_ms, operation.detail)
    elif operation.outcome == "release":
        queue.release(lease)
    else:
        queue.reject(lease, operation.detail)


def _publish(shard: Shard, tenant: Tenant, p: Publish) -> int:
    if p.dedup_key:
        first = tenant.dedup.find(scope_of(p.exchange, p.key), p.dedup_key, shard.wall_ms)
        if first:
            tenant.dedup.duplicates += 1
            return first
    way = p.way(tenant)
    number = shard.new_id()
    flags: i32 = PERSISTENT if p.persistent else 0
    if shard.events.on:
        flags |= shard.events.mark(number)
    message = Message(way.route, p.props, p.body, number, p.priority, p.expires_ms, flags)
    queues = way.queues
    streams = way.streams
    due_ms: i64 = p.due_ms
    if way.exchange.delays and not due_ms:
        due_ms = hold_back(message, shard.wall_ms)
    _post(tenant, way.exchange, queues, streams, message, due_ms)
    if p.dedup_key and (queues or streams):
        tenant.remember(p.exchange, p.key, p.dedup_key, message.id)
    return message.id


def _post(
    tenant: Tenant, exchange: Exchange, queues: list[Queue], streams: list[Stream], message: Message, due_ms: i64
) -> None:
    """Hand a message to its queues and streams; queues that reject have room, which was checked for the whole."""
    exchange.published += 1
    exchange.bytes += len(message.body)
    tenant.published += 1
    make_lasting(queues, message)
    if message.flags & SAMPLED:
        tenant.shard.events.published(tenant, message, len(queues) + len(streams))
    if streams:
        for stream in streams:
            stream.append(message)
    elif not queues:
        exchange.unroutable += 1
    if len(queues) == 1:
        _enter(queues[0], message, due_ms)
    else:
        # a queue that is too full may go, and with it its place in the list
        for queue in list(queues):
            _enter(queue, message, due_ms)


def _enter(queue: Queue, message: Message, due_ms: i64) -> None:
    if _rejects(queue):
        queue.admit(message, due_ms)
    else:
        queue.offer(message, due_ms)

"""Transactions: publishes and settles of one tenant that happen wholly or not at all.

Operations are only collected until `commit`, which first checks every one of them against the state as it is then and
changes nothing when one fails. A transaction that outlives its time is rolled back; of those that ended, the last
ones are remembered, so that a late call learns what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rookery.core import publishing
from rookery.core.entries import Lease
from rookery.core.publishing import Publish
from rookery.errors import (
    InvalidArgument,
    LeaseLost,
    TransactionCommitted,
    TransactionNotFound,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionTooLarge,
)
from rookery.format.model import NEVER

if TYPE_CHECKING:
    from rookery.core.shard import Shard
    from rookery.core.topology import Tenant

TIMEOUT_MS: Final = 60_000
TOMBSTONES_MAX: Final = 10_000

OUTCOMES: Final = ("ack", "retry", "release", "reject")


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
            numbers.append(publishing.do(shard, tenant, operation))
    return numbers


def _check(shard: Shard, tenant: Tenant, operations: list[Publish | Settle]) -> None:
    settled: set[int] = set()
    publishes: list[Publish] = []
    for operation in operations:
        if isinstance(operation, Publish):
            publishes.append(operation)
            continue
        lease = operation.lease
        if not lease.live or lease.queue.deleted or id(lease) in settled:
            raise LeaseLost(f"lease {lease.token()} has ended", argument="lease")
        if lease.queue.tenant is not tenant:
            raise InvalidArgument("a transaction stays within one tenant", argument="lease")
        settled.add(id(lease))
    publishing.check(shard, tenant, publishes)


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

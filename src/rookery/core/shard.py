"""A shard: the tenants one process owns, and the turn in which everything happens to them.

The owner drives it: `turn(wall_ms, mono_ms)` passes the time in and does all that has become due; then publishes,
claims and settles are called; `flush()` ends the turn by delivering what they made deliverable, after which the owner
empties the `touched` mailboxes. `next_due_ms` says how long the owner may sleep. Given the same calls with the same
times a shard does the same things: it has no clock, no randomness and no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast, final

from mypy_extensions import i32, i64

from rookery.core.consumers import Mailbox
from rookery.core.dedup import scope_of
from rookery.core.entries import Lease
from rookery.core.index import Heap
from rookery.core.queue import REFUSED, Queue
from rookery.core.topology import Tenant, Way, check_name
from rookery.core.transactions import Transactions
from rookery.errors import (
    AlreadyExists,
    InvalidArgument,
    LimitExceeded,
    MemoryLimitExceeded,
    MessageTooLarge,
    TenantNotFound,
)
from rookery.model import NEVER, PERSISTENT, Message, MessageIds

TENANTS_MAX: Final = 10_000


@final
class Shard:
    """See the module's docstring."""

    def __init__(self, secret: bytes, epoch: i64) -> None:
        self.epoch: i64 = epoch
        self.wall_ms: i64 = 0
        self.mono_ms: i64 = 0
        self.tenants: dict[str, Tenant] = {}
        self.tenants_max = TENANTS_MAX
        self.ids = MessageIds(secret)
        self.last_id: i64 = 0
        self.memory_bytes: i64 = 0
        self.memory_bytes_max: i64 = NEVER
        self.wall_index = Heap()
        self.mono_index = Heap()
        self.dirty: list[Queue] = []
        self.touched: list[Mailbox] = []
        self.transactions = Transactions(self)

    def new_id(self) -> i64:
        self.last_id += 1
        return self.last_id

    # Tenants

    def tenant(self, name: str) -> Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            raise TenantNotFound(f"no tenant {name!r}", argument="tenant")
        return tenant

    def create_tenant(self, name: str, limits: Mapping[str, object] | None = None) -> Tenant:
        check_name(name, "tenant")
        if name in self.tenants:
            raise AlreadyExists(f"tenant {name!r} already exists", argument="tenant")
        if len(self.tenants) >= self.tenants_max:
            raise LimitExceeded(f"there are {self.tenants_max} tenants already", argument="tenant")
        tenant = Tenant(name, self)
        if limits:
            tenant.set_limits(limits)
        self.tenants[name] = tenant
        return tenant

    def delete_tenant(self, name: str) -> None:
        """Delete a tenant with everything in it."""
        tenant = self.tenant(name)
        for queue in list(tenant.queues.values()):
            tenant.delete(queue, "deleted")
        self.transactions.forget_tenant(tenant)
        del self.tenants[name]

    # The turn

    def turn(self, wall_ms: i64, mono_ms: i64) -> None:
        """Set the time and do all that is due by it."""
        self.wall_ms = wall_ms
        if mono_ms > self.mono_ms:
            self.mono_ms = mono_ms
        if self.wall_index.first_key() <= wall_ms or self.mono_index.first_key() <= self.mono_ms:
            self._tick()
        self.transactions.tick()

    def _tick(self) -> None:
        index = self.wall_index
        while index.first_key() <= self.wall_ms:
            key = index.first_key()
            queue = cast(Queue, index.pop())
            if queue.wall_due_ms == key and not queue.deleted:
                queue.tick_wall()
        index = self.mono_index
        while index.first_key() <= self.mono_ms:
            key = index.first_key()
            queue = cast(Queue, index.pop())
            if queue.mono_due_ms == key and not queue.deleted:
                queue.tick_mono()
        self.flush()

    def flush(self) -> None:
        """End the turn: pump every queue that settling or returning made dirty."""
        while self.dirty:
            dirty = self.dirty
            self.dirty = []
            for queue in dirty:
                if not queue.deleted:
                    queue.pump()

    def next_due_ms(self) -> i64:
        """Milliseconds until something becomes due, NEVER when nothing will."""
        wait: i64 = NEVER
        wall = self.wall_index.first_key()
        if wall != NEVER:
            wait = wall - self.wall_ms
        mono = self.mono_index.first_key()
        if self.transactions.next_due_ms < mono:
            mono = self.transactions.next_due_ms
        if mono != NEVER and mono - self.mono_ms < wait:
            wait = mono - self.mono_ms
        return max(0, wait)

    # Publishing

    def message(
        self, tenant: Tenant, way: Way, props: bytes, body: bytes, priority: i64, expires_ms: i64, flags: i32
    ) -> Message:
        """A new message, if it is within the limits on size and memory."""
        size: i64 = len(body) + len(props)
        if size > tenant.message_bytes_max:
            raise MessageTooLarge(f"message of {size} bytes; at most {tenant.message_bytes_max}", argument="body")
        if tenant.memory_bytes + size > tenant.memory_bytes_max or self.memory_bytes + size > self.memory_bytes_max:
            tenant.refused += 1
            raise MemoryLimitExceeded
        self.last_id += 1
        return Message(way.route, props, body, self.last_id, priority, expires_ms, flags)

    def post(self, tenant: Tenant, way: Way, message: Message, due_ms: i64) -> i64:
        """Offer a message to every queue of its way: how many there are, or REFUSED when one of them refused it."""
        exchange = way.exchange
        exchange.published += 1
        exchange.bytes += len(message.body)
        tenant.published += 1
        queues = way.queues
        if way.by_headers:
            queues = tenant.queues_for(way, message.props)
        if not queues:
            exchange.unroutable += 1
            return 0
        result: i64 = 0
        for queue in queues:
            if queue.offer(message, due_ms) == REFUSED:
                result = REFUSED
            elif result >= 0:
                result += 1
        return result

    def publish(
        self,
        tenant: Tenant,
        exchange: str,
        key: str,
        props: bytes,
        body: bytes,
        priority: i64 = 0,
        expires_ms: i64 = 0,
        due_ms: i64 = 0,
        persistent: bool = True,
    ) -> tuple[Message, int]:
        """Publish by names: the message, and how many queues it reached (0: unroutable; -1: one refused it)."""
        way = tenant.way(tenant.exchange(exchange), key)
        message = self.message(tenant, way, props, body, priority, expires_ms, PERSISTENT if persistent else 0)
        return message, self.post(tenant, way, message, due_ms)

    def publish_once(
        self,
        tenant: Tenant,
        exchange: str,
        key: str,
        dedup_key: str,
        props: bytes,
        body: bytes,
        priority: i64 = 0,
        expires_ms: i64 = 0,
        due_ms: i64 = 0,
        persistent: bool = True,
    ) -> tuple[int, int, bool]:
        """Publish unless this dedup key was seen in its window: message number, queues reached, whether it is a
        repeat.
        """
        scope = scope_of(exchange, key)
        first = tenant.dedup.find(scope, dedup_key, self.wall_ms)
        if first:
            tenant.dedup.duplicates += 1
            return first, 1, True
        message, reached = self.publish(tenant, exchange, key, props, body, priority, expires_ms, due_ms, persistent)
        if reached != REFUSED:
            tenant.dedup.remember(scope, dedup_key, message.id, self.wall_ms, tenant.dedup_window_ms(exchange, key))
        return message.id, reached, False

    # Claiming and settling

    def claim(self, queue: Queue, count: int, lease_ms: int) -> list[Lease]:
        """Lease up to `count` messages that are ready now."""
        if count < 1:
            raise InvalidArgument("count must be at least 1", argument="count")
        if lease_ms < 1:
            raise InvalidArgument("lease_ms must be at least 1", argument="lease_ms")
        return queue.claim(count, lease_ms)

    def wait_claim(self, queue: Queue, count: int, lease_ms: int) -> Mailbox:
        """A claim that waits: a mailbox that will be touched once there is something in it. End it by unsubscribing."""
        waiting_max = queue.tenant.limits.waiting_claims_max
        if waiting_max and queue.waiting_claims() >= waiting_max:
            raise LimitExceeded(f"{waiting_max} claims wait on queue {queue.name!r} already", argument="wait")
        mailbox = Mailbox(queue, count, lease_ms, 0, self.touched, True)
        queue.subscribe(mailbox)
        return mailbox

    def subscribe(self, queue: Queue, credit: int, lease_ms: int, priority: int = 0, name: str = "") -> Mailbox:
        """A standing subscription that collects its deliveries in a mailbox."""
        check_subscriptions(queue)
        mailbox = Mailbox(queue, credit, lease_ms, priority, self.touched, False)
        mailbox.name = name
        queue.subscribe(mailbox)
        return mailbox

    def lease(self, tenant: Tenant, token: str) -> Lease | None:
        """The live lease a token stands for, None when it has ended or never was."""
        parts = token.rsplit("/", 3)
        if len(parts) != 4 or not all(p.isdecimal() for p in parts[1:]):
            return None
        queue = tenant.queues.get(parts[0])
        if queue is None or int(parts[2]) != self.epoch:
            return None
        lease = queue.lease_of(int(parts[1]))
        return lease if lease is not None and lease.attempt == int(parts[3]) else None


def check_subscriptions(queue: Queue) -> None:
    """Refuse one more subscription than the tenant allows a queue."""
    most = queue.tenant.limits.queue_subscriptions_max
    if most and queue.consumers() >= most:
        raise LimitExceeded(f"queue {queue.name!r} has its {most} subscriptions", argument="queue")

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

from rookery.core import publishing, retention, streams
from rookery.core.consumers import Mailbox
from rookery.core.cuts import Cuts
from rookery.core.entries import Entry, Lease
from rookery.core.events import Events
from rookery.core.feeds import Following, ReadSealed, fill_all, go_on
from rookery.core.index import Heap
from rookery.core.log import Log
from rookery.core.paging import PLACE_BITS, SPILLED, MemoryPager, Pager
from rookery.core.policies import RECOVERY_STEPS, SLICE_STEPS, PolicyTable
from rookery.core.queue import Queue
from rookery.core.staging import Staging
from rookery.core.stream import Partition
from rookery.core.topology import Tenant, check_name
from rookery.core.transactions import Transactions
from rookery.core.webhooks import Webhooks
from rookery.errors import (
    AlreadyExists,
    InvalidArgument,
    LimitExceeded,
    TenantNotFound,
)
from rookery.format import records
from rookery.format.bytes import BytesWriter, read_i32_be
from rookery.format.model import NEVER, PERSISTENT, Message, MessageIds, Route, check_numbers

TENANTS_MAX: Final = 10_000
OPEN_TENANTS_MAX: Final = 1_000
"""How many tenants there may be for one more to be made without an admin's credential."""


@final
class Shard:
    """See the module's docstring."""

    def __init__(self, secret: bytes, epoch: i64) -> None:
        self.epoch: i64 = epoch
        self.log = Log()
        self.recovering = False
        # a copy that changes are tried on: nothing is ever in its queues, so no policy has to reach them
        self.trial = False
        self.wall_ms: i64 = 0
        self.mono_ms: i64 = 0
        self.tenants: dict[str, Tenant] = {}
        self.tenants_max = TENANTS_MAX
        self.ids = MessageIds(secret)
        self.last_id: i64 = 0
        self.memory_bytes: i64 = 0
        self.definition_bytes: i64 = 0
        """Memory of definitions of all tenants, beside that of messages."""
        self.memory_bytes_max: i64 = NEVER
        self.wall_index = Heap()
        self.mono_index = Heap()
        self.grants: i64 = 0
        self.dirty: list[Queue] = []
        self.touched: list[Mailbox] = []
        self.transactions = Transactions(self)
        self.queue_numbers: i64 = 0
        self.queue_count: i64 = 0
        self.numbered: dict[int, Queue] = {}
        self.partitions: dict[int, Partition] = {}
        self.stirred: list[Partition] = []
        self.streams_due_ms: i64 = NEVER
        self.staging = Staging(self)
        self.cuts = Cuts(self)
        self.webhooks = Webhooks(self)
        self.events = Events(self)
        self.feeds: list[Following] = []
        # policies that have not reached all queues of their tenant yet
        self.applying: list[PolicyTable] = []
        self.policy_steps = SLICE_STEPS
        self.recovery_policy_steps = RECOVERY_STEPS
        self.read_sealed: ReadSealed | None = None
        # files of streams that were let go of: when they may be deleted, and the batch that must be durable before
        self.condemned: dict[str, tuple[int, int]] = {}
        # above so much memory, lines are paged out; a broker in memory refuses at its limit instead
        self.page_bytes: i64 = NEVER
        self.pager: Pager | None = None
        self._routes: dict[bytes, Route] = {}
        # what was read back last: the neighbours of an entry are likely to be wanted next
        self._window = b""
        self._window_place: i64 = 0

    def new_id(self) -> i64:
        self.last_id += 1
        return self.last_id

    def number_queue(self, queue: Queue, number: i64) -> None:
        """Give a durable queue the number under which the journal knows it."""
        if queue.number:
            self.numbered.pop(queue.number, None)
        queue.number = number
        queue.journaled = self.log.active
        self.numbered[number] = queue
        if number > self.queue_numbers:
            self.queue_numbers = number

    def let_go(self) -> None:
        """The broker has ended: nothing in it may keep the rest in memory."""
        for tenant in self.tenants.values():
            for queue in tenant.queues.values():
                queue.let_go()

    # Paging

    def short_of_memory(self) -> bool:
        return self.memory_bytes > self.page_bytes

    def fetch(self, place: i64, like: Message | None) -> Message:
        """The message at a place, read back; it may be `like` the one before it."""
        at = self._look_at(place)
        message = records.read_message(self._window, self._routes, at, like)
        if place & SPILLED:
            assert self.pager is not None
            self.pager.forget(place)
        else:
            message.set_segment(place >> PLACE_BITS)
        return message

    def _look_at(self, place: i64) -> i64:
        """Have the record at a place in the window; where in it."""
        at = place - self._window_place
        left: i64 = len(self._window) - at
        if at < 0 or left < 5 or left < 5 + i64(read_i32_be(self._window, at + 1)):
            assert self.pager is not None
            self._window = self.pager.read(place)
            self._window_place = place
            return 0
        return at

    def spill(self, queue: Queue, entry: Entry) -> i64:
        """Keep a transient message in a spill file; its place."""
        pager = self.pager
        assert pager is not None
        w = BytesWriter()
        at = records.begin_put(w, entry.message, entry.message.body, False, 0)
        records.end_put(w, at)
        return pager.spill(w.getvalue()) | SPILLED

    def forget(self, queue: Queue, seq: i64, place: i64, noted: bool) -> None:
        """A paged entry is gone."""
        if place & SPILLED:
            pager = self.pager
            assert pager is not None
            pager.forget(place)
        elif noted:
            self.log.exit_paged(queue.number, seq, place >> PLACE_BITS)
        else:
            self.log.died(place >> PLACE_BITS)

    # Records of streams

    def keep_record(self, record: bytes, size: i64) -> i64:
        """Keep a record of a stream where there is no journal; its place."""
        pager = self.pager
        if pager is None:
            pager = MemoryPager()
            self.pager = pager
        self.memory_bytes += size
        return pager.spill(record) | SPILLED

    def read_record(self, place: i64) -> bytes:
        at = self._look_at(place)
        return self._window[at : at + 5 + i64(read_i32_be(self._window, at + 1))]

    def drop_record(self, place: i64) -> None:
        """A record of a stream is sealed, or not kept any more."""
        if place & SPILLED:
            pager = self.pager
            assert pager is not None
            pager.forget(place)
        else:
            self.log.died(place >> PLACE_BITS)

    def condemn(self, paths: list[str], grace_ms: int) -> None:
        """These files are needed no more once what happened so far is durable, and a grace is over."""
        for path in paths:
            self.condemned[path] = (int(self.wall_ms) + grace_ms, int(self.log.horizon()))

    def message_of(self, record: bytes) -> Message:
        """The message of a stream's record."""
        return records.read_message(record, self._routes)

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
            tenant.limits.set(limits)
            tenant.heed_limits()
        self.tenants[name] = tenant
        self.log.change("tenant", name, {"limits": dict(limits) if limits else {}})
        return tenant

    def create_open_tenant(self, name: str) -> Tenant:
        """Make a tenant for somebody without an admin's credential; room for those of admins is left."""
        if len(self.tenants) >= OPEN_TENANTS_MAX:
            raise LimitExceeded(
                f"there are {len(self.tenants)} tenants: from {OPEN_TENANTS_MAX} on, only an admin creates one",
                argument="tenant",
            )
        return self.create_tenant(name)

    def delete_tenant(self, name: str) -> None:
        """Delete a tenant with everything in it."""
        tenant = self.tenant(name)
        tenant.check_unlocked()
        if len(tenant.dedup) or tenant.dedup.hidden:
            self.log.change("forget", name, {"scope": "", "upto": int(self.last_id)})
        for queue in list(tenant.queues.values()):
            tenant.delete(queue, "deleted")
        for stream in list(tenant.streams):
            streams.delete(tenant, stream)
        self.transactions.forget_tenant(tenant)
        self.staging.forget_tenant(tenant)
        self.webhooks.forget_tenant(name)
        self.definition_bytes -= tenant.definition_bytes
        del self.tenants[name]
        self.log.change("drop-tenant", name, {})

    def end_recovery(self) -> None:
        """Everything was read back: the policies reach the queues, all of them unless that takes too long."""
        self.recovering = False
        steps = self.recovery_policy_steps
        for tenant in self.tenants.values():
            steps = tenant.policy_table.recovered(steps)

    # The turn

    def turn(self, wall_ms: i64, mono_ms: i64) -> None:
        """Set the time and do all that is due by it."""
        self.wall_ms = wall_ms
        if mono_ms > self.mono_ms:
            self.mono_ms = mono_ms
        if self.wall_index.first_key() <= wall_ms or self.mono_index.first_key() <= self.mono_ms:
            self._tick()
        self.transactions.tick()
        if self.mono_ms >= self.events.due_ms:
            self.events.tick()
        if self.applying:
            self.applying.pop(0).go_on(self.policy_steps)
        if self.mono_ms >= self.streams_due_ms:
            due = self.staging.tick()
            self.streams_due_ms = min(due, retention.tick(self))

    def _tick(self) -> None:
        index = self.wall_index
        while index.first_key() <= self.wall_ms:
            key = index.first_key()
            queue = cast(Queue, index.pop())
            if queue.timing.wall_due_ms == key and not queue.deleted:
                queue.timing.tick_wall()
        index = self.mono_index
        while index.first_key() <= self.mono_ms:
            key = index.first_key()
            queue = cast(Queue, index.pop())
            if queue.timing.mono_due_ms == key and not queue.deleted:
                queue.timing.tick_mono()

    def arm_wall(self, at: i64, queue: Queue) -> None:
        """Have a queue ticked when the wall clock reaches `at`."""
        self.wall_index.push(at, queue)
        if self.wall_index.crowded(self.queue_count):
            queues = self._armed_queues(self.wall_index)
            self.wall_index.clear()
            for armed in queues:
                if armed.timing.wall_due_ms != NEVER:
                    self.wall_index.push(armed.timing.wall_due_ms, armed)

    def arm_mono(self, at: i64, queue: Queue) -> None:
        """Have a queue ticked when the monotonic clock reaches `at`."""
        self.mono_index.push(at, queue)
        if self.mono_index.crowded(self.queue_count):
            queues = self._armed_queues(self.mono_index)
            self.mono_index.clear()
            for armed in queues:
                if armed.timing.mono_due_ms != NEVER:
                    self.mono_index.push(armed.timing.mono_due_ms, armed)

    def _armed_queues(self, index: Heap) -> list[Queue]:
        """The queues of an index, each once, without those that are gone."""
        found: dict[int, Queue] = {}
        for item in index.items():
            queue = cast(Queue, item)
            if not queue.deleted:
                found[id(queue)] = queue
        return list(found.values())

    def flush(self) -> None:
        """End the turn: tell who follows streams, and pump every queue that settling or returning made dirty."""
        if self.feeds:
            fill_all(self)
        while self.dirty or self.stirred:
            if self.stirred:
                stirred = self.stirred
                self.stirred = []
                for partition in stirred:
                    partition.tell()
            dirty = self.dirty
            self.dirty = []
            for queue in dirty:
                if not queue.deleted:
                    queue.pump()
        if self.feeds:
            go_on(self)

    def next_due_ms(self) -> i64:
        """Milliseconds until something becomes due, NEVER when nothing will."""
        if self.applying:
            return 0
        wait: i64 = NEVER
        wall = self.wall_index.first_key()
        if wall != NEVER:
            wait = wall - self.wall_ms
        mono = self.mono_index.first_key()
        if self.transactions.next_due_ms < mono:
            mono = self.transactions.next_due_ms
        if self.streams_due_ms < mono:
            mono = self.streams_due_ms
        if self.events.due_ms < mono:
            mono = self.events.due_ms
        if mono != NEVER and mono - self.mono_ms < wait:
            wait = mono - self.mono_ms
        return max(0, wait)

    # Publishing

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
        """Publish by names, to each queue by itself: the message, and how many queues it reached (0: unroutable; -1:
        one rejected it).
        """
        check_numbers(priority, expires_ms, due_ms)
        way = tenant.way(tenant.exchange(exchange), key)
        flags: i32 = PERSISTENT if persistent else 0
        message = publishing.new_message(self, tenant, way, props, body, priority, expires_ms, flags)
        return message, publishing.post(self, tenant, way, message, due_ms, publishing.EACH)

    # Claiming and settling

    def claim(self, queue: Queue, count: int, lease_ms: int) -> list[Lease]:
        """Lease up to `count` messages that are ready now."""
        check_claim(count, lease_ms)
        return queue.claim(count, lease_ms)

    def wait_claim(self, queue: Queue, count: int, lease_ms: int) -> Mailbox:
        """A claim that waits: a mailbox that will be touched once there is something in it. End it by unsubscribing."""
        check_claim(count, lease_ms)
        waiting_max = queue.tenant.limits.waiting_claims_max
        if waiting_max and queue.waiting_claims() >= waiting_max:
            raise LimitExceeded(
                f"queue {queue.name!r} reached its limit of {waiting_max} waiting claims (waiting_claims_max)",
                argument="wait",
            )
        mailbox = Mailbox(queue, count, lease_ms, 0, self.touched, True)
        queue.subscribe(mailbox)
        return mailbox

    def subscribe(self, queue: Queue, credit: int, lease_ms: int, priority: int = 0, name: str = "") -> Mailbox:
        """A standing subscription that collects its deliveries in a mailbox."""
        if credit < 0:
            raise InvalidArgument("credit must not be negative", argument="credit")
        if lease_ms < 0:
            raise InvalidArgument("lease_ms must not be negative", argument="lease_ms")
        check_subscriptions(queue)
        mailbox = Mailbox(queue, credit, lease_ms, priority, self.touched, False)
        mailbox.name = name
        queue.subscribe(mailbox)
        return mailbox

    def lease(self, tenant: Tenant, token: str) -> Lease | None:
        """The live lease a token stands for, None when it has ended or never was."""
        parts = token.rsplit("/", 3)
        # of 18 digits, every number fits 64 bits
        if len(parts) != 4 or not all(p.isdecimal() and len(p) <= 18 for p in parts[1:]):
            return None
        queue = tenant.queues.get(parts[0])
        if queue is None or int(parts[2]) != self.epoch:
            return None
        lease = queue.lease_of(int(parts[1]))
        return lease if lease is not None and lease.grant == int(parts[3]) else None


def check_claim(count: int, lease_ms: int) -> None:
    if count < 1:
        raise InvalidArgument("count must be at least 1", argument="count")
    if lease_ms < 1:
        raise InvalidArgument("lease_ms must be at least 1", argument="lease_ms")


def check_subscriptions(queue: Queue) -> None:
    """Refuse one more subscription than the tenant allows, a queue or in all."""
    limits = queue.tenant.limits
    most = limits.queue_subscriptions_max
    if most and queue.consumers() >= most:
        raise LimitExceeded(
            f"queue {queue.name!r} reached its limit of {most} subscriptions (queue_subscriptions_max)",
            argument="queue",
        )
    if limits.subscriptions_max and queue.tenant.subscriptions >= limits.subscriptions_max:
        raise queue.tenant.too_many("subscriptions", "subscriptions_max", "queue")

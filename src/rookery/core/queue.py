"""A queue: entries that wait, are leased, come back, and leave exactly once.

An `Entry` is a message's stay in one queue. It is READY (waiting in its priority's line, or PARKED beside it because
its group or its consumer is busy), DELAYED (waiting for a wall time), LEASED (in a consumer's hands under a `Lease`),
and in the end GONE. Every way out goes through `_exit` and is counted once, so that

    entered = ready + delayed + leased + acked + expired + dead_lettered + dropped + purged + moved_out

holds after every call. Ready order is priority, then sequence; an entry that returns keeps its sequence and so its
place. Times come from the shard's turn: `wall_ms` for delay and expiry, `mono_ms` for leases.

A queue is made of its lines (`lines`: what is ready, in order, in memory or paged out), of what waits beside them
(`parking`), and of what is due when (`timing`); this module has the ways in, over to consumers, back and out.

At the end of a turn (`Shard.flush`) no subscription with credit faces a ready entry that it could take: publishing
delivers at once, and whatever frees credit or returns an entry marks the queue dirty, to be pumped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, i64

from rookery.core.consumers import KEY_HASH, Mailbox, Roster, Subscription
from rookery.core.dedup import dedup_key_of
from rookery.core.entries import DELAYED, GONE, LEASED, PARKED, READY, Entry, Lease, by_seq
from rookery.core.lines import Lines, count_origin
from rookery.core.meters import Histogram
from rookery.core.parking import Parking
from rookery.core.timing import Timing
from rookery.format.model import DEAD, NEVER, PERSISTENT, PRIORITY_MAX, SAMPLED, Message

if TYPE_CHECKING:
    from rookery.core.policy import QueueSettings
    from rookery.core.shard import Shard
    from rookery.core.topology import Tenant

# What to do with a publish that finds the queue full
DROP_HEAD: Final[i64] = 0
REJECT_PUBLISH: Final[i64] = 1
REJECT_PUBLISH_DEAD_LETTER: Final[i64] = 2
DROP_NEW: Final[i64] = 3
CLOSE: Final[i64] = 4
OVERFLOWS: Final = {
    "drop-head": 0,
    "reject-publish": 1,
    "reject-publish-dead-letter": 2,
    "drop-new": 3,
    "close": 4,
}

# What `offer` answers
ACCEPTED: Final[i64] = 1
DISCARDED: Final[i64] = 0
REFUSED: Final[i64] = -1


@final
class Queue:
    """One queue of one tenant. See the module's docstring for its states and its invariant."""

    def __init__(self, name: str, tenant: Tenant, shard: Shard, settings: QueueSettings) -> None:
        self.name = name
        self.tenant = tenant
        self.shard = shard
        self.number: i64 = 0
        self.journaled = False
        self.deleted = False
        self.roster = Roster()
        self.settings = settings
        # definition, as `configure` last set it
        self.ttl_ms: i64 = -1
        self.length_max: i64 = NEVER
        self.bytes_max: i64 = NEVER
        self.bounded = False
        self.overflow: i64 = DROP_HEAD
        self.max_attempts: i64 = 0
        self.ordered = True
        self.priority_max: i64 = PRIORITY_MAX
        self.grouped = False
        self.expires_ms: i64 = 0
        self.auto_delete = False
        self.quorum = False
        self.dedup = False
        self.owner: object = None
        # state
        self.seq: i64 = 0
        self.last_entered_ms: i64 = 0
        self.ready: i64 = 0
        self.delayed: i64 = 0
        self.leased: i64 = 0
        self.bytes: i64 = 0
        self.leased_bytes: i64 = 0
        self.origins: dict[str, int] = {}
        self.lines = Lines(self)
        self.timing = Timing(self)
        self.parking = Parking(self)
        self._leases: dict[int, Lease] = {}
        # entries that neither their line nor a tracked lease leads to, by sequence; kept only when there is a journal
        self.away: dict[int, Entry] = {}
        self.unused_since_ms: i64 = shard.mono_ms
        self.had_consumer = False
        self.dirty = False
        self._retimed = False
        # meters
        self.published: i64 = 0
        self.dead_lettered_in: i64 = 0
        self.moved_in: i64 = 0
        self.restored: i64 = 0
        self.paged_out: i64 = 0
        self.delivered: i64 = 0
        self.redelivered: i64 = 0
        self.acked: i64 = 0
        self.retried: i64 = 0
        self.released: i64 = 0
        self.rejected: i64 = 0
        self.lapsed: i64 = 0
        self.expired: i64 = 0
        self.dead_lettered: i64 = 0
        self.dropped: i64 = 0
        self.purged: i64 = 0
        self.moved_out: i64 = 0
        self.refused: i64 = 0
        self.wait_ms = Histogram()
        self.work_ms = Histogram()

    def configure(self, settings: QueueSettings) -> None:
        """Take over effective settings, also on a queue that holds messages."""
        self.adopt(settings)
        self.conform()

    def adopt(self, settings: QueueSettings) -> None:
        self.settings = settings
        self._retimed = self.ttl_ms != settings.ttl_ms
        if self.grouped != settings.grouped or self.roster.distribution != settings.distribution_code:
            self.parking.unpark_all()
            if not settings.grouped:
                self.parking.free_groups()
        self.ttl_ms = settings.ttl_ms
        self.length_max = settings.length_max if settings.length_max >= 0 else NEVER
        self.bytes_max = settings.bytes_max if settings.bytes_max >= 0 else NEVER
        bounded = self.length_max != NEVER or self.bytes_max != NEVER
        if bounded != self.bounded:
            self.bounded = bounded
            # cached ways say whether one of their queues has a limit
            self.tenant.version += 1
        self.overflow = settings.overflow_code
        self.max_attempts = settings.max_attempts
        self.ordered = settings.ordered
        self.priority_max = settings.priority_max if settings.priority_max > 0 else PRIORITY_MAX
        self.grouped = settings.grouped
        self.expires_ms = settings.expires_ms
        self.auto_delete = settings.auto_delete
        self.quorum = settings.queue_type == "quorum"
        self.dedup = settings.dedup
        self.roster.distribution = settings.distribution_code
        self.roster.single_active = settings.single_active

    def conform(self) -> None:
        if self._retimed:
            self.timing.reindex_expiries()
        if self.bounded:
            if self.dirty:
                # what somebody can take is not dropped
                self.pump()
            self._trim()
        if self.expires_ms:
            self.touch()
        self.pump()

    # Entering

    def offer(self, message: Message, due_ms: i64) -> i64:
        """Take a published message in, or say what the overflow rule made of it."""
        if self.dedup and self.is_repeat(message):
            return ACCEPTED
        if self.bounded and self.overflow != DROP_HEAD and not self._has_room(message):
            return self._refuse(message)
        self.published += 1
        self._enter(message, due_ms)
        if self.dedup:
            self._remember(message)
        return ACCEPTED

    def is_repeat(self, message: Message) -> bool:
        """Whether this queue, which asks for it, has had a message with this one's dedup key in its window."""
        key = dedup_key_of(message.props)
        return key != "" and self.tenant.is_repeat("queue:" + self.name, key)

    def has_had(self, message: Message) -> bool:
        """The same, without counting it."""
        key = dedup_key_of(message.props)
        return key != "" and self.tenant.dedup.find("queue:" + self.name, key, self.shard.wall_ms) != 0

    def _remember(self, message: Message) -> None:
        key = dedup_key_of(message.props)
        if key:
            self.tenant.remember("", self.name, key, message.id)

    def accept(self, message: Message, moved: bool, due_ms: i64 = 0) -> bool:
        """Take in a dead letter or a moved message; False when the queue is full and does not drop its head."""
        if self.bounded and self.overflow != DROP_HEAD and not self._has_room(message):
            return False
        if moved:
            self.moved_in += 1
        else:
            self.dead_lettered_in += 1
        self._enter(message, due_ms)
        return True

    def has_room_for(self, count: i64, size_bytes: i64) -> bool:
        """Whether publishes of that many messages and body bytes would all be taken (always, if the head is
        dropped).
        """
        if not self.bounded or self.overflow == DROP_HEAD:
            return True
        waiting = self.ready + self.delayed
        return waiting + count <= self.length_max and self.bytes - self.leased_bytes + size_bytes <= self.bytes_max

    def _has_room(self, message: Message) -> bool:
        if self.ready + self.delayed == 0 and self.roster.any_credit():
            return True
        return self.has_room_for(1, len(message.body))

    def rejects(self, message: Message) -> bool:
        """Whether a publish of this message would be rejected now."""
        if self.overflow != REJECT_PUBLISH and self.overflow != REJECT_PUBLISH_DEAD_LETTER:
            return False
        if self._has_room(message):
            return False
        return not self.dedup or not self.has_had(message)

    def rejects_all(self, count: i64, size_bytes: i64) -> bool:
        """Whether publishes of that many messages and body bytes, none of them a repeat, would not all be taken."""
        if self.overflow != REJECT_PUBLISH and self.overflow != REJECT_PUBLISH_DEAD_LETTER:
            return False
        if count == 1 and self.ready + self.delayed == 0 and self.roster.any_credit():
            return False
        return not self.has_room_for(count, size_bytes)

    def _refuse(self, message: Message) -> i64:
        self.refused += 1
        if self.overflow == REJECT_PUBLISH:
            return REFUSED
        if self.overflow == CLOSE:
            self.tenant.delete(self, "overflow")
            return DISCARDED
        self.published += 1
        if self.overflow == REJECT_PUBLISH_DEAD_LETTER:
            if self.tenant.dead_letter(self, message, 0, "maxlen", ""):
                self.dead_lettered += 1
            else:
                self.dropped += 1
            return REFUSED
        self.dropped += 1
        return DISCARDED

    def _enter(self, message: Message, due_ms: i64) -> None:
        shard = self.shard
        now = shard.wall_ms
        self.seq += 1
        entry = Entry(message, self.seq, now)
        self.last_entered_ms = now
        if message.refs == 0:
            self.tenant.hold(message)
        message.refs += 1
        self.bytes += len(message.body)
        if message.flags & DEAD:
            count_origin(self.origins, message, 1)
        late = False
        if message.expires_ms or self.ttl_ms >= 0:
            if due_ms > now:
                entry.enqueued_ms = due_ms
            expiry = self.timing.expiry_of(entry)
            if due_ms <= now and expiry < now:
                # a transaction was committed after its message's time
                self.leave(entry, "expired", "")
                return
            if due_ms > now or not self.lines.takes_expiry(entry, expiry):
                self.timing.index_expiry(entry)
            late = due_ms <= now and expiry <= now
        if due_ms > now:
            entry.enqueued_ms = due_ms
            self.timing.delay(entry, due_ms)
        elif self.ready == 0 and self.roster.all and not self.grouped and self.roster.distribution != KEY_HASH:
            subscription = self.roster.choose()
            if subscription is None:
                self.line_up(entry)
            else:
                self.hand_over(entry, subscription)
        else:
            self.line_up(entry)
            if self.roster.all:
                self.pump()
        if late and (entry.state == READY or entry.state == PARKED):
            # a time to live of 0: taken at once, or never
            self.drop_waiting(entry, "expired")
            return
        if self.bounded:
            self._trim()
        if self.journaled and message.flags & PERSISTENT:
            shard.log.enter(self, entry)
        elif shard.log.paging and entry.state == READY:
            self.lines.page_out(entry, 0)

    def admit(self, message: Message, due_ms: i64) -> None:
        """Take a published message in whatever the limits say: they were checked for the whole transaction."""
        if self.dedup and self.is_repeat(message):
            return
        self.published += 1
        self._enter(message, due_ms)
        if self.dedup:
            self._remember(message)

    def line_up(self, entry: Entry) -> None:
        """Make an entry READY at its place."""
        entry.state = READY
        self.ready += 1
        if not self.lines.add(entry) and self.journaled:
            self.away[entry.seq] = entry

    def _trim(self) -> None:
        """Drop from the head until the limits hold."""
        if self.overflow != DROP_HEAD:
            return
        while self.ready + self.delayed > self.length_max or self.bytes - self.leased_bytes > self.bytes_max:
            if self.ready and self.parking.any():
                self.drop_waiting(self.ready_entries()[0], "maxlen")
                continue
            entry = self.lines.pop()
            if entry is None:
                entry = self.timing.pop_delayed()
                if entry is None:
                    return
            self.leave(entry, "maxlen", "")

    def drop_waiting(self, entry: Entry, reason: str) -> None:
        """An entry that waits dies where it stands."""
        in_line = entry.state == READY
        if entry.state == DELAYED:
            self.delayed -= 1
        else:
            self.ready -= 1
        priority = entry.message.priority
        # its letter may come back here: nobody may find it in its line meanwhile
        entry.state = GONE
        self.leave(entry, reason, "")
        if in_line:
            self.lines.line_of(priority).forget_one()

    # Handing over

    def next(self) -> Entry | None:
        """The next entry that may be delivered now, taken out of its line; entries of busy groups are parked."""
        while self.ready:
            entry = self.lines.pop()
            if entry is None:
                return None
            if self.max_attempts and i64(entry.attempts) >= self.max_attempts:
                self.leave(entry, "delivery_limit", "")
                continue
            if self.ttl_ms >= 0 or entry.message.expires_ms:
                # of many that expire at once, some are still in line
                expiry = self.timing.expiry_of(entry)
                if expiry and expiry < self.shard.wall_ms:
                    self.leave(entry, "expired", "")
                    continue
            if self.grouped and self.parking.takes(entry):
                continue
            return entry
        return None

    def pump(self) -> None:
        """Deliver ready entries while somebody has credit for them."""
        self.dirty = False
        roster = self.roster
        if not self.ready or not roster.all:
            return
        if roster.distribution == KEY_HASH and self.consumers():
            self.parking.pump_by_key()
            return
        while self.ready:
            subscription = roster.choose()
            if subscription is None:
                return
            entry = self.next()
            if entry is None:
                return
            if not subscription.active or not subscription.has_credit():
                # a dead letter that came back meanwhile took the credit
                other = roster.choose()
                if other is None:
                    self.line_up(entry)
                    return
                subscription = other
            self.hand_over(entry, subscription)

    def hand_over(self, entry: Entry, subscription: Subscription) -> None:
        entry.attempts += 1
        if entry.redelivered:
            self.redelivered += 1
        self.delivered += 1
        subscription.delivered += 1
        self.wait_ms.record(self.shard.wall_ms - entry.enqueued_ms)
        if subscription.no_ack:
            entry.state = LEASED
            subscription.deliver(entry, None)
            self.acked += 1
            if entry.message.flags & SAMPLED:
                self.shard.events.delivered(self, entry, subscription.name)
                self.shard.events.settled("acked", self, entry, self.shard.mono_ms, "", subscription)
            self._exit(entry)
            return
        lease = self._lease(entry, subscription, subscription.lease_ms, subscription.tracked)
        subscription.inflight += 1
        shared = subscription.shared
        if shared is not None:
            shared.inflight += 1
        if entry.message.flags & SAMPLED:
            self.shard.events.delivered(self, entry, subscription.name)
        subscription.deliver(entry, lease)

    def _lease(self, entry: Entry, holder: Subscription | None, lease_ms: i64, tracked: bool) -> Lease:
        entry.state = LEASED
        if self.journaled and not tracked:
            self.away[entry.seq] = entry
        self.leased += 1
        self.leased_bytes += len(entry.message.body)
        now = self.shard.mono_ms
        due: i64 = NEVER
        if lease_ms > 0:
            due = now + lease_ms
        self.shard.grants += 1
        lease = Lease(entry, self, holder, now, due, self.shard.grants)
        if tracked:
            self._leases[entry.seq] = lease
        if lease_ms > 0:
            self.timing.lease_until(due, lease)
        return lease

    def claim(self, count: i64, lease_ms: i64) -> list[Lease]:
        """Lease up to `count` ready entries at once, without a subscription."""
        self.touch()
        leases: list[Lease] = []
        while len(leases) < count:
            entry = self.next()
            if entry is None:
                break
            entry.attempts += 1
            if entry.redelivered:
                self.redelivered += 1
            self.delivered += 1
            self.wait_ms.record(self.shard.wall_ms - entry.enqueued_ms)
            if entry.message.flags & SAMPLED:
                self.shard.events.delivered(self, entry, "")
            leases.append(self._lease(entry, None, lease_ms, True))
        return leases

    # Subscribing

    def subscribe(self, subscription: Subscription) -> None:
        if self.roster.distribution == KEY_HASH:
            self.parking.unpark_all()
        self.roster.add(subscription)
        if not subscription.once:
            self.tenant.subscriptions += 1
        if subscription.shared is not None:
            subscription.shared.members.append(subscription)
        if not subscription.once:
            self.had_consumer = True
        self.touch()
        self.pump()

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. Its leases stay with whoever holds them; the last one out may delete the queue."""
        if not self.roster.remove(subscription):
            return
        if subscription.shared is not None and subscription in subscription.shared.members:
            subscription.shared.members.remove(subscription)
        if not subscription.once:
            self.tenant.subscriptions -= 1
        if subscription.parked is not None:
            self.parking.line_up_all(subscription.parked)
            subscription.parked = None
            self.parking.unpark_all()
        self.touch()
        if self.auto_delete and self.had_consumer and not subscription.once and self.consumers() == 0:
            self.tenant.delete(self, "auto-delete")
            return
        self.mark_dirty()

    def consumers(self) -> int:
        """Standing subscriptions; waiting claims do not count."""
        n = 0
        for s in self.roster.all:
            if not s.once:
                n += 1
        return n

    def waiting_claims(self) -> int:
        return len(self.roster.all) - self.consumers()

    def touch(self) -> None:
        """The queue was used: it expires `expires_ms` from now at the earliest."""
        self.unused_since_ms = self.shard.mono_ms
        if self.expires_ms:
            due = self.unused_since_ms + self.expires_ms
            if due < self.timing.mono_due_ms:
                self.timing.arm_mono(due)

    def mark_dirty(self) -> None:
        """Ask for a pump at the end of the turn."""
        if not self.dirty:
            self.dirty = True
            self.shard.dirty.append(self)

    # Settling

    def lease_of(self, seq: i64) -> Lease | None:
        """The current tracked lease of that sequence."""
        return self._leases.get(seq)

    def leases(self) -> list[Lease]:
        """All tracked leases."""
        return list(self._leases.values())

    def end(self, lease: Lease) -> Entry:
        entry = lease.entry
        lease.live = False
        self.leased -= 1
        self.leased_bytes -= len(entry.message.body)
        if self._leases:
            self._leases.pop(entry.seq, None)
        holder = lease.holder
        if holder is not None:
            lease.holder = None
            holder.inflight -= 1
            shared = holder.shared
            if shared is not None:
                shared.free()
            if self.ready and not self.dirty:
                self.mark_dirty()
        if lease.due_ms != NEVER:
            self.timing.tidy_lapses()
        self.work_ms.record(self.shard.mono_ms - lease.delivered_ms)
        return entry

    def _abandon(self, lease: Lease) -> bool:
        """The queue is gone: there is nothing to settle, but memory and credit are given back."""
        self.leased += 1
        self.leased_bytes += len(lease.entry.message.body)
        self._release_memory(self.end(lease))
        return True

    def ack(self, lease: Lease) -> bool:
        """Done with it. False, and nothing changes, when the lease is no longer live (so for all that settle)."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        holder = lease.holder
        entry = self.end(lease)
        self.acked += 1
        if entry.message.flags & SAMPLED:
            self.shard.events.settled("acked", self, entry, lease.delivered_ms, "", holder)
        self._exit(entry)
        return True

    def retry(self, lease: Lease, delay_ms: i64, detail: str) -> bool:
        """Failed: again after `delay_ms` (-1: the queue's backoff), or a dead letter when attempts are used up."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        holder = lease.holder
        entry = self.end(lease)
        if entry.message.flags & SAMPLED:
            self.shard.events.settled("retried", self, entry, lease.delivered_ms, detail, holder)
        self.fail(entry, delay_ms, detail)
        return True

    def fail(self, entry: Entry, delay_ms: i64, detail: str) -> None:
        if self.max_attempts and i64(entry.attempts) >= self.max_attempts:
            self.leave(entry, "delivery_limit", detail)
            return
        self.retried += 1
        if delay_ms < 0:
            delay_ms = self.settings.backoff_ms(entry.attempts, entry.seq)
        self._return(entry, delay_ms)

    def release(self, lease: Lease) -> bool:
        """Untouched: back to its place at once, the attempt not counted."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        holder = lease.holder
        entry = self.end(lease)
        if entry.message.flags & SAMPLED:
            self.shard.events.settled("released", self, entry, lease.delivered_ms, "", holder)
        self.released += 1
        entry.attempts -= 1
        self._return(entry, 0)
        return True

    def reject(self, lease: Lease, detail: str) -> bool:
        """Unfit: a dead letter now."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        entry = self.end(lease)
        self.rejected += 1
        self.leave(entry, "rejected", detail)
        return True

    def extend(self, lease: Lease, lease_ms: i64) -> bool:
        """The lease lasts `lease_ms` from now."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        lease.due_ms = self.shard.mono_ms + lease_ms
        self.timing.tidy_lapses()
        self.timing.lease_until(lease.due_ms, lease)
        return True

    def _return(self, entry: Entry, delay_ms: i64) -> None:
        entry.redelivered = True
        now = self.shard.wall_ms
        expiry = self.timing.expiry_of(entry)
        if expiry and expiry <= now:
            self.leave(entry, "expired", "")
            return
        if expiry:
            self.timing.index_expiry(entry)
        entry.due_ms = 0
        if delay_ms > 0:
            self.timing.delay(entry, now + delay_ms)
        else:
            self.line_up(entry)
            self.mark_dirty()
        if self.journaled and entry.message.segment:
            self.shard.log.back(self, entry)

    # Leaving

    def leave(self, entry: Entry, reason: str, detail: str) -> None:
        """An entry that is in no line and no lease any more dies: to the dead-letter target, or counted and dropped."""
        message = entry.message
        # the letter may come back to this queue: the dying entry must not count as waiting then
        self.bytes -= len(message.body)
        arrived = self.tenant.dead_letter(self, message, i64(entry.attempts), reason, detail)
        self.bytes += len(message.body)
        if arrived:
            self.dead_lettered += 1
        elif reason == "expired":
            self.expired += 1
        else:
            self.dropped += 1
        if message.flags & SAMPLED:
            self.shard.events.left(self, entry, arrived, reason, detail)
        self._exit(entry)

    def _exit(self, entry: Entry) -> None:
        """The one way out: the entry is GONE, its bytes are given back, its group goes on."""
        entry.state = GONE
        message = entry.message
        if self.journaled:
            if self.away:
                self.away.pop(entry.seq, None)
            if message.segment:
                self.shard.log.exit(self, entry)
        self.bytes -= len(message.body)
        message.refs -= 1
        if message.refs == 0:
            self.tenant.unhold(message)
        if message.flags & DEAD:
            count_origin(self.origins, message, -1)
        if self.grouped or self.parking.holds_groups():
            self.parking.left(entry)
        self.timing.tidy_waits()

    def remove(self, entry: Entry) -> None:
        """Take a waiting entry (READY, PARKED or DELAYED) out of turn, without counting where it went."""
        if entry.state == DELAYED:
            self.delayed -= 1
        else:
            self.ready -= 1
        was_ready = entry.state == READY
        priority = entry.message.priority
        self._exit(entry)
        if was_ready:
            self.lines.line_of(priority).forget_one()

    def purge(self) -> int:
        """Remove every ready entry; returns how many."""
        n = self.ready
        for entry in self.purge_paged():
            self.remove(entry)
            self.purged += 1
        return int(n)

    def purge_paged(self) -> list[Entry]:
        """Remove the ready entries that are not in memory; those that are."""
        n = self.lines.forget_paged(True)
        self.ready -= n
        self.purged += n
        return self.ready_in_memory()

    def empty(self) -> None:
        """The queue is being deleted: everything in it is purged, leases end."""
        self.purged += self.ready + self.delayed + self.leased
        self.lines.forget_paged(False)
        for entry in self.ready_in_memory() + self.delayed_entries():
            self._release_memory(entry)
        # leases that are not tracked end when their holder settles them (see _abandon)
        for lease in list(self._leases.values()):
            self._release_memory(self.end(lease))
        self.ready = 0
        self.delayed = 0
        self.leased = 0
        self.bytes = 0
        self.leased_bytes = 0
        self.lines.clear()
        self.timing.clear()
        self._leases.clear()
        self.parking.clear()
        self.away.clear()
        self.origins.clear()

    def let_go(self) -> None:
        """The broker has ended: the leases, which the cyclic collector does not see, no longer hold the queue."""
        self._leases.clear()
        self.timing.clear()
        for subscription in self.roster.all:
            if isinstance(subscription, Mailbox):
                subscription.leases = []

    def _release_memory(self, entry: Entry) -> None:
        entry.state = GONE
        if self.journaled and entry.message.segment:
            self.shard.log.died(entry.message.segment)
        entry.message.refs -= 1
        if entry.message.refs == 0:
            self.tenant.unhold(entry.message)

    # Coming back after a restart

    def restore(self, message: Message, seq: i64, enqueued_ms: i64, due_ms: i64, attempts: i64, again: bool) -> None:
        """Put an entry back as the journal knew it, leased ones as ready; entries come in order of sequence."""
        entry = Entry(message, seq, enqueued_ms)
        entry.attempts = i32(attempts)
        entry.redelivered = again
        if seq > self.seq:
            self.seq = seq
        if message.refs == 0:
            self.tenant.hold(message)
        message.refs += 1
        self.bytes += len(message.body)
        self.restored += 1
        if message.flags & DEAD:
            count_origin(self.origins, message, 1)
        if message.expires_ms or self.ttl_ms >= 0:
            self.timing.index_expiry(entry)
        late = due_ms > self.shard.wall_ms
        if late or seq <= self.lines.line_of(message.priority).last_seq:
            # it will stand beside its line, where only this finds it
            self.away[seq] = entry
        if late:
            self.timing.delay(entry, due_ms)
        else:
            self.line_up(entry)

    def lease_again(self, message: Message, seq: i64, enqueued_ms: i64, attempts: i64, again: bool) -> None:
        """Put an entry back under a lease that does not lapse."""
        entry = Entry(message, seq, enqueued_ms)
        entry.attempts = i32(attempts + 1)
        entry.redelivered = again
        if seq > self.seq:
            self.seq = seq
        if message.refs == 0:
            self.tenant.hold(message)
        message.refs += 1
        self.bytes += len(message.body)
        self.restored += 1
        if message.flags & DEAD:
            count_origin(self.origins, message, 1)
        self._lease(entry, None, 0, True)
        self.away[seq] = entry

    # Reading

    def find(self, seq: i64) -> Entry | None:
        """The entry of that sequence, if it is still here and in memory (only with a journal)."""
        entry = self.away.get(seq)
        if entry is None:
            lease = self._leases.get(seq)
            entry = self.lines.find(seq) if lease is None else lease.entry
        return entry if entry is not None and entry.state != GONE else None

    def ready_entries(self, limit: int = 0) -> list[Entry]:
        """The ready entries in the order they would be delivered, at least `limit` of them (0: all) if there are.

        Paged ones are read back as far as needed; parked ones are at their place.
        """
        self.lines.read_back(limit)
        return self.ready_in_memory()

    def ready_in_memory(self) -> list[Entry]:
        found: list[Entry] = []
        for level in self.lines.order:
            found.extend(level.entries())
        parked = self.parking.entries()
        if parked:
            found.extend(parked)
            if self.ordered:
                found.sort(key=self._rank)
            else:
                found.sort(key=by_seq)
        return found

    def _rank(self, entry: Entry) -> tuple[int, int]:
        priority = entry.message.priority
        return (-int(min(priority, self.priority_max)), entry.seq)

    def delayed_entries(self) -> list[Entry]:
        """All delayed entries, the next one due first."""
        return self.timing.delayed()

    def waiting_entries(self) -> list[Entry]:
        return self.ready_entries() + self.delayed_entries()

    def expiry_ms(self, entry: Entry) -> int:
        return self.timing.expiry_of(entry)

    def oldest_age_ms(self) -> i64:
        """How long the first ready entry of each line has waited, at most."""
        oldest = self.lines.oldest_age_ms()
        if self.parking.any():
            now = self.shard.wall_ms
            for entry in self.ready_entries():
                if now - entry.enqueued_ms > oldest:
                    oldest = now - entry.enqueued_ms
        return oldest

"""A queue: entries that wait, are leased, come back, and leave exactly once.

An `Entry` is a message's stay in one queue. It is READY (waiting in its priority's line, or PARKED beside it because
its group or its consumer is busy), DELAYED (waiting for a wall time), LEASED (in a consumer's hands under a `Lease`),
and in the end GONE. Every way out goes through `_exit` and is counted once, so that

    entered = ready + delayed + leased + acked + expired + dead_lettered + dropped + purged + moved_out

holds after every call. Ready order is priority, then sequence; an entry that returns keeps its sequence and so its
place. Times come from the shard's turn: `wall_ms` for delay and expiry, `mono_ms` for leases. What is due is found
through heaps, never by looking at the head of the queue.

At the end of a turn (`Shard.flush`) no subscription with credit faces a ready entry that it could take: publishing
delivers at once, and whatever frees credit or returns an entry marks the queue dirty, to be pumped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

from mypy_extensions import i32, i64

from rookery import properties
from rookery.core.consumers import KEY_HASH, Roster, Subscription
from rookery.core.entries import DELAYED, GONE, LEASED, PARKED, READY, Entry, Lease, Level, Park, by_seq
from rookery.core.index import Heap
from rookery.core.meters import Histogram
from rookery.core.paging import Paged
from rookery.errors import InvalidArgument
from rookery.model import DEAD, NEVER, PERSISTENT, PRIORITY_MAX, Message

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

GROUP_HEADER: Final = "x-group-id"

# How much of what is paged out is read back at once
LOAD_BYTES: Final[i64] = 256 * 1024
LOAD_ENTRIES: Final[i64] = 512


def group_of(message: Message) -> str:
    """The message's group (header `x-group-id`), empty when it has none."""
    try:
        value = properties.header(message.props, GROUP_HEADER)
    except InvalidArgument:
        return ""
    return "" if value is None else str(value)


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
        self.ttl_ms: i64 = 0
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
        self._plain = Level(0)
        self._levels: dict[int, Level] = {0: self._plain}
        self._order: list[Level] = [self._plain]
        self._delays = Heap()
        self._expiries = Heap()
        self._lapses = Heap()
        self._leases: dict[int, Lease] = {}
        self._busy: dict[str, Entry] = {}
        self._parked: dict[str, Park] = {}
        self._heads: dict[str, Entry] = {}
        # written entries that are, or were, out of their line, by sequence; kept only when there is a journal
        self._away: dict[int, Entry] = {}
        self.wall_due_ms: i64 = NEVER
        self.mono_due_ms: i64 = NEVER
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
            self._unpark_all()
            if not settings.grouped:
                self._busy.clear()
        self.ttl_ms = settings.ttl_ms
        self.length_max = settings.length_max if settings.length_max >= 0 else NEVER
        self.bytes_max = settings.bytes_max if settings.bytes_max >= 0 else NEVER
        self.bounded = self.length_max != NEVER or self.bytes_max != NEVER
        self.overflow = settings.overflow_code
        self.max_attempts = settings.max_attempts
        self.ordered = settings.ordered
        self.priority_max = settings.priority_max if settings.priority_max > 0 else PRIORITY_MAX
        self.grouped = settings.grouped
        self.expires_ms = settings.expires_ms
        self.auto_delete = settings.auto_delete
        self.roster.distribution = settings.distribution_code
        self.roster.single_active = settings.single_active

    def conform(self) -> None:
        if self._retimed:
            self._reindex_expiries()
        if self.bounded:
            self._trim()
        if self.expires_ms:
            self.touch()
        self.pump()

    # Entering

    def offer(self, message: Message, due_ms: i64) -> i64:
        """Take a published message in, or say what the overflow rule made of it."""
        if self.bounded and self.overflow != DROP_HEAD and not self._has_room(message):
            return self._refuse(message)
        self.published += 1
        self._enter(message, due_ms)
        return ACCEPTED

    def accept(self, message: Message, moved: bool) -> bool:
        """Take in a dead letter or a moved message; False when the queue is full and does not drop its head."""
        if self.bounded and self.overflow != DROP_HEAD and not self._has_room(message):
            return False
        if moved:
            self.moved_in += 1
        else:
            self.dead_lettered_in += 1
        self._enter(message, 0)
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
            self._count_origin(message, 1)
        if message.expires_ms or self.ttl_ms:
            if due_ms > now:
                entry.enqueued_ms = due_ms
            self._index_expiry(entry)
        if due_ms > now:
            entry.enqueued_ms = due_ms
            self._delay(entry, due_ms)
        elif self.ready == 0 and self.roster.all and not self.grouped and self.roster.distribution != KEY_HASH:
            subscription = self.roster.choose()
            if subscription is None:
                self._line_up(entry)
            else:
                self._hand_over(entry, subscription)
        else:
            self._line_up(entry)
            if self.roster.all:
                self.pump()
        if self.bounded:
            self._trim()
        if self.journaled and message.flags & PERSISTENT:
            shard.log.enter(self, entry)
        elif shard.log.paging and entry.state == READY:
            self.page_out(entry, 0)

    def admit(self, message: Message, due_ms: i64) -> None:
        """Take a published message in whatever the limits say: they were checked for the whole transaction."""
        self.published += 1
        self._enter(message, due_ms)

    def _count_origin(self, message: Message, step: int) -> None:
        """Keep the number of dead letters here by the queue they died in."""
        origin = message.route.deaths[0].queue
        left = self.origins.get(origin, 0) + step
        if left:
            self.origins[origin] = left
        else:
            del self.origins[origin]

    def _line_up(self, entry: Entry) -> None:
        """Make an entry READY at its place."""
        entry.state = READY
        self.ready += 1
        priority = entry.message.priority
        if priority == 0 or not self.ordered:
            self._plain.add(entry)
            return
        self._level(priority).add(entry)

    def _level(self, priority: i64) -> Level:
        if priority > self.priority_max:
            priority = self.priority_max
        level = self._levels.get(priority)
        if level is None:
            if len(self._order) > 64:
                self._drop_empty_levels()
            level = Level(priority)
            self._levels[priority] = level
            at = 0
            while at < len(self._order) and self._order[at].priority > priority:
                at += 1
            self._order.insert(at, level)
        return level

    def _drop_empty_levels(self) -> None:
        for level in list(self._order):
            if level.priority != 0 and level.is_empty():
                self._order.remove(level)
                del self._levels[level.priority]

    def _delay(self, entry: Entry, due_ms: i64) -> None:
        entry.state = DELAYED
        entry.due_ms = due_ms
        if self.journaled:
            self._away[entry.seq] = entry
        self.delayed += 1
        self._delays.push(due_ms, entry)
        if due_ms < self.wall_due_ms:
            self._arm_wall(due_ms)

    def _trim(self) -> None:
        """Drop from the head until the limits hold."""
        if self.overflow != DROP_HEAD:
            return
        while self.ready + self.delayed > self.length_max or self.bytes - self.leased_bytes > self.bytes_max:
            if self.ready and self._some_parked():
                self._drop_waiting(self.ready_entries()[0], "maxlen")
                continue
            entry = self._pop_ready()
            if entry is None:
                entry = self._first_delayed()
                if entry is None:
                    return
            self._leave(entry, "maxlen", "")

    def _some_parked(self) -> bool:
        """Whether ready entries may stand elsewhere than in their lines."""
        if self._parked:
            return True
        for s in self.roster.all:
            if s.parked is not None and len(s.parked):
                return True
        return False

    def _drop_waiting(self, entry: Entry, reason: str) -> None:
        """An entry that waits dies where it stands."""
        in_line = entry.state == READY
        if entry.state == DELAYED:
            self.delayed -= 1
        else:
            self.ready -= 1
        priority = entry.message.priority
        # its letter may come back here: nobody may find it in its line meanwhile
        entry.state = GONE
        self._leave(entry, reason, "")
        if in_line:
            self._line_of(priority).forget_one()

    def _line_of(self, priority: i64) -> Level:
        return self._level(priority) if self.ordered and priority != 0 else self._plain

    def _first_delayed(self) -> Entry | None:
        while len(self._delays):
            entry = cast(Entry, self._delays.pop())
            if entry.state == DELAYED:
                self.delayed -= 1
                return entry
        return None

    # Handing over

    def _pop_ready(self) -> Entry | None:
        """Take the first READY entry out of its line (it is no longer counted as ready)."""
        for level in self._order:
            while True:
                if level.paged is not None and level.must_load():
                    self._load(level)
                entry = level.pop()
                if entry is not None:
                    self.ready -= 1
                    return entry
                if level.paged is None or not level.paged.count:
                    break
        return None

    def _next(self) -> Entry | None:
        """The next entry that may be delivered now, taken out of its line; entries of busy groups are parked."""
        while self.ready:
            entry = self._pop_ready()
            if entry is None:
                return None
            if self.max_attempts and i64(entry.attempts) >= self.max_attempts:
                self._leave(entry, "delivery_limit", "")
                continue
            if self.grouped:
                group = group_of(entry.message)
                if group:
                    holder = self._busy.get(group)
                    if holder is None:
                        self._busy[group] = entry
                        if self._heads.get(group) is entry:
                            del self._heads[group]
                    elif holder is not entry:
                        self._park(entry, group)
                        continue
            return entry
        return None

    def _park(self, entry: Entry, group: str) -> None:
        entry.state = PARKED
        if self.journaled:
            self._away[entry.seq] = entry
        self.ready += 1
        if self._heads.get(group) is entry:
            del self._heads[group]
        park = self._parked.get(group)
        if park is None:
            park = Park()
            self._parked[group] = park
        park.push(self._level_of(entry), entry)

    def _level_of(self, entry: Entry) -> i64:
        if not self.ordered:
            return 0
        priority = entry.message.priority
        return min(self.priority_max, priority)

    def _unpark(self, group: str, left: Entry) -> None:
        """The group's busy entry, or the one lined up for it, left: the next may go."""
        if self._busy.get(group) is left:
            del self._busy[group]
        if self._heads.get(group) is left:
            del self._heads[group]
        park = self._parked.get(group)
        if park is None:
            return
        entry = park.pop()
        if entry is None:
            del self._parked[group]
            return
        self.ready -= 1
        self._heads[group] = entry
        self._line_up(entry)
        self.mark_dirty()

    def pump(self) -> None:
        """Deliver ready entries while somebody has credit for them."""
        self.dirty = False
        roster = self.roster
        if not self.ready or not roster.all:
            return
        if roster.distribution == KEY_HASH and self.consumers():
            self._pump_by_key()
            return
        while self.ready:
            subscription = roster.choose()
            if subscription is None:
                return
            entry = self._next()
            if entry is None:
                return
            if not subscription.active or not subscription.has_credit():
                # a dead letter that came back meanwhile took the credit
                other = roster.choose()
                if other is None:
                    self._line_up(entry)
                    return
                subscription = other
            self._hand_over(entry, subscription)

    def _pump_by_key(self) -> None:
        """Each key belongs to one subscription; what its owner cannot take yet is parked with it."""
        while True:
            entry = self._next()
            if entry is None:
                break
            key = group_of(entry.message) or entry.message.route.key
            owner = self.roster.owner_of(key)
            if owner is None:
                self._line_up(entry)
                break
            if owner.parked is None:
                owner.parked = Park()
            entry.state = PARKED
            if self.journaled:
                self._away[entry.seq] = entry
            self.ready += 1
            owner.parked.push(self._level_of(entry), entry)
        for subscription in list(self.roster.all):
            while subscription.parked is not None and subscription.has_credit():
                entry = subscription.parked.pop()
                if entry is None:
                    break
                self.ready -= 1
                if self.max_attempts and i64(entry.attempts) >= self.max_attempts:
                    self._leave(entry, "delivery_limit", "")
                else:
                    self._hand_over(entry, subscription)

    def _unpark_all(self) -> None:
        """Back to the lines with everything that waits beside them: who waits for whom is to be decided anew."""
        for s in self.roster.all:
            if s.parked is not None:
                self._line_up_all(s.parked)
                s.parked = None
        for heap in list(self._parked.values()):
            self._line_up_all(heap)
        self._parked.clear()
        self._heads.clear()
        for group in list(self._busy):
            if self._busy[group].state != LEASED and self._busy[group].state != DELAYED:
                del self._busy[group]

    def _line_up_all(self, park: Park) -> None:
        while True:
            entry = park.pop()
            if entry is None:
                return
            self.ready -= 1
            self._line_up(entry)

    def _hand_over(self, entry: Entry, subscription: Subscription) -> None:
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
            self._exit(entry)
            return
        lease = self._lease(entry, subscription, subscription.lease_ms, subscription.tracked)
        subscription.inflight += 1
        shared = subscription.shared
        if shared is not None:
            shared.inflight += 1
        subscription.deliver(entry, lease)

    def _lease(self, entry: Entry, holder: Subscription | None, lease_ms: i64, tracked: bool) -> Lease:
        entry.state = LEASED
        if self.journaled:
            self._away[entry.seq] = entry
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
            self._lapses.push(due, lease)
            if due < self.mono_due_ms:
                self._arm_mono(due)
        return lease

    def claim(self, count: i64, lease_ms: i64) -> list[Lease]:
        """Lease up to `count` ready entries at once, without a subscription."""
        self.touch()
        leases: list[Lease] = []
        while len(leases) < count:
            entry = self._next()
            if entry is None:
                break
            entry.attempts += 1
            if entry.redelivered:
                self.redelivered += 1
            self.delivered += 1
            self.wait_ms.record(self.shard.wall_ms - entry.enqueued_ms)
            leases.append(self._lease(entry, None, lease_ms, True))
        return leases

    # Paging

    def page_out(self, entry: Entry, place: i64) -> None:
        """An entry was written at this place (0: it is transient): if memory is short, it is kept there only."""
        level = self._plain
        if level.paged is None and not (self.shard.short_of_memory() and self._pages() and level.split_at(entry)):
            return
        while level.fresh_head < len(level.fresh):
            first = level.fresh[level.fresh_head]
            if first.state == READY:
                if not self._pages():
                    return
                if first.message.expires_ms:
                    # it stays in memory, beside the line, so that it does not keep others there
                    level.returned.push(first.seq, first)
                    self._away[first.seq] = first
                elif first is entry:
                    self._put_away(level, first, place or self.shard.spill(self, first))
                    level.fresh_head += 1
                    break
                elif first.message.segment or (self.journaled and first.message.flags & PERSISTENT):
                    return
                else:
                    self._put_away(level, first, self.shard.spill(self, first))
            level.fresh_head += 1
        if level.fresh_head >= 1024 and level.fresh_head * 2 >= len(level.fresh):
            del level.fresh[: level.fresh_head]
            level.fresh_head = 0

    def _pages(self) -> bool:
        """Whether entries of this queue can be paged at all."""
        return not self.ttl_ms and not self.grouped and self.roster.distribution != KEY_HASH

    def _put_away(self, level: Level, entry: Entry, place: i64) -> None:
        message = entry.message
        again: i64 = 1 if entry.redelivered else 0
        meta: i64 = len(message.body) << 32 | i64(entry.attempts) << 1 | again
        assert level.paged is not None
        level.paged.add(entry.seq, place, entry.enqueued_ms, meta)
        entry.state = GONE
        message.refs -= 1
        if message.refs == 0:
            self.tenant.unhold(message)
        self.paged_out += 1

    def stays_paged(self, seq: i64) -> bool:
        """Whether a plain entry that is found in the journal should be left there: memory is short, and the order
        allows it.
        """
        level = self._plain
        if not self._pages() or seq <= level.last_seq or len(level.fresh):
            return False
        return level.paged is not None or self.shard.short_of_memory()

    def restore_paged(self, seq: i64, place: i64, enqueued_ms: i64, size: i64, attempts: i64, again: bool) -> None:
        """As `restore`, for a plain entry that stays on the medium; all later ones must stay there too."""
        level = self._plain
        if level.paged is None:
            level.paged = Paged()
        level.paged.add(seq, place, enqueued_ms, size << 32 | attempts << 1 | (1 if again else 0))
        level.last_seq = seq
        if seq > self.seq:
            self.seq = seq
        self.ready += 1
        self.bytes += size
        self.restored += 1

    def _load(self, level: Level) -> None:
        """Read a run of paged entries back into the line."""
        paged = level.paged
        assert paged is not None
        loaded: i64 = 0
        line: list[Entry | None] = []
        while paged.count and loaded < LOAD_BYTES and len(line) < LOAD_ENTRIES:
            page = paged.front()
            at = page.head
            meta = page.meta[at]
            place = page.places[at]
            message = self.shard.fetch(place)
            entry = Entry(message, page.seqs[at], page.times[at])
            entry.attempts = i32((meta & 0xFFFFFFFF) >> 1)
            entry.redelivered = meta & 1 != 0
            self.tenant.hold(message)
            message.refs = 1
            line.append(entry)
            loaded += len(message.body) + 200
            paged.drop_first()
        level.line = line
        level.head = 0

    def paged_place(self, seq: i64) -> i64:
        """Where the paged entry of that sequence stands, 0 when it is not paged."""
        paged = self._plain.paged
        return 0 if paged is None else paged.place_of(seq)

    def paged_meta(self, seq: i64) -> i64:
        """Size, attempts and redelivered flag of a paged entry, packed."""
        paged = self._plain.paged
        return 0 if paged is None else paged.meta_of(seq)

    def move_paged(self, seq: i64, place: i64) -> None:
        paged = self._plain.paged
        if paged is not None:
            paged.move(seq, place)

    def _forget_paged(self, noted: bool) -> i64:
        """Let go of all paged entries; with `noted`, the journal is told of each. Returns how many there were."""
        paged = self._plain.paged
        if paged is None:
            return 0
        n: i64 = 0
        while paged.count:
            page = paged.front()
            place = page.places[page.head]
            self.bytes -= page.meta[page.head] >> 32
            self.shard.forget(self, page.seqs[page.head], place, noted)
            paged.drop_first()
            n += 1
        return n

    # Subscribing

    def subscribe(self, subscription: Subscription) -> None:
        if self.roster.distribution == KEY_HASH:
            self._unpark_all()
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
            self._line_up_all(subscription.parked)
            subscription.parked = None
            self._unpark_all()
        self.touch()
        if self.auto_delete and self.had_consumer and not subscription.once and self.consumers() == 0:
            self.tenant.delete(self, "auto-delete")
            return
        self.pump()

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
            if due < self.mono_due_ms:
                self._arm_mono(due)

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

    def _end(self, lease: Lease) -> Entry:
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
        if lease.due_ms != NEVER and self._lapses.crowded(self.leased):
            self._reindex_lapses()
        self.work_ms.record(self.shard.mono_ms - lease.delivered_ms)
        return entry

    def _abandon(self, lease: Lease) -> bool:
        """The queue is gone: there is nothing to settle, but memory and credit are given back."""
        self.leased += 1
        self.leased_bytes += len(lease.entry.message.body)
        self._release_memory(self._end(lease))
        return True

    def ack(self, lease: Lease) -> bool:
        """Done with it. False, and nothing changes, when the lease is no longer live (so for all that settle)."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        entry = self._end(lease)
        self.acked += 1
        self._exit(entry)
        return True

    def retry(self, lease: Lease, delay_ms: i64, detail: str) -> bool:
        """Failed: again after `delay_ms` (-1: the queue's backoff), or a dead letter when attempts are used up."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        self._retry(self._end(lease), delay_ms, detail)
        return True

    def _retry(self, entry: Entry, delay_ms: i64, detail: str) -> None:
        if self.max_attempts and i64(entry.attempts) >= self.max_attempts:
            self._leave(entry, "delivery_limit", detail)
            return
        self.retried += 1
        if delay_ms < 0:
            delay_ms = self.settings.backoff_ms(entry.attempts, entry.seq)
        self._return(entry, delay_ms)

    def release(self, lease: Lease) -> bool:
        """Untouched: back to its place at once, the attempt not counted."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        entry = self._end(lease)
        self.released += 1
        entry.attempts -= 1
        self._return(entry, 0)
        return True

    def reject(self, lease: Lease, detail: str) -> bool:
        """Unfit: a dead letter now."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        entry = self._end(lease)
        self.rejected += 1
        self._leave(entry, "rejected", detail)
        return True

    def extend(self, lease: Lease, lease_ms: i64) -> bool:
        """The lease lasts `lease_ms` from now."""
        if not lease.live or (self.deleted and self._abandon(lease)):
            return False
        lease.due_ms = self.shard.mono_ms + lease_ms
        if self._lapses.crowded(self.leased):
            self._reindex_lapses()
        self._lapses.push(lease.due_ms, lease)
        if lease.due_ms < self.mono_due_ms:
            self._arm_mono(lease.due_ms)
        return True

    def _return(self, entry: Entry, delay_ms: i64) -> None:
        entry.redelivered = True
        now = self.shard.wall_ms
        expiry = self._expiry_of(entry)
        if expiry and expiry <= now:
            self._leave(entry, "expired", "")
            return
        if expiry:
            self._index_expiry(entry)
        entry.due_ms = 0
        if delay_ms > 0:
            self._delay(entry, now + delay_ms)
        else:
            self._line_up(entry)
            self.mark_dirty()
        if self.journaled and entry.message.segment:
            self.shard.log.back(self, entry)

    # Leaving

    def _leave(self, entry: Entry, reason: str, detail: str) -> None:
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
        self._exit(entry)

    def _exit(self, entry: Entry) -> None:
        """The one way out: the entry is GONE, its bytes are given back, its group goes on."""
        entry.state = GONE
        message = entry.message
        if self.journaled:
            self._away.pop(entry.seq, None)
            if message.segment:
                self.shard.log.exit(self, entry)
        self.bytes -= len(message.body)
        message.refs -= 1
        if message.refs == 0:
            self.tenant.unhold(message)
        if message.flags & DEAD:
            self._count_origin(message, -1)
        if self.grouped or self._busy or self._heads:
            group = group_of(message)
            if group and (self._busy.get(group) is entry or self._heads.get(group) is entry):
                self._unpark(group, entry)
        if len(self._expiries) and self._expiries.crowded(self.ready + self.delayed + self.leased):
            self._reindex_expiries()
        if len(self._delays) and self._delays.crowded(self.delayed):
            self._reindex_delays()

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
            self._line_of(priority).forget_one()

    def purge(self) -> int:
        """Remove every ready entry; returns how many."""
        n = self._forget_paged(True)
        self.ready -= n
        self.purged += n
        for entry in self._ready_in_memory():
            self.remove(entry)
            self.purged += 1
            n += 1
        return int(n)

    def empty(self) -> None:
        """The queue is being deleted: everything in it is purged, leases end."""
        self.purged += self.ready + self.delayed + self.leased
        self._forget_paged(False)
        for entry in self._ready_in_memory() + self.delayed_entries():
            self._release_memory(entry)
        # leases that are not tracked end when their holder settles them (see _abandon)
        for lease in list(self._leases.values()):
            self._release_memory(self._end(lease))
        self.ready = 0
        self.delayed = 0
        self.leased = 0
        self.bytes = 0
        self.leased_bytes = 0
        self._plain = Level(0)
        self._levels = {0: self._plain}
        self._order = [self._plain]
        self._delays.clear()
        self._expiries.clear()
        self._lapses.clear()
        self._leases.clear()
        self._busy.clear()
        self._heads.clear()
        self._parked.clear()
        self._away.clear()
        self.origins.clear()

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
            self._count_origin(message, 1)
        if message.expires_ms or self.ttl_ms:
            self._index_expiry(entry)
        late = due_ms > self.shard.wall_ms
        if late or seq <= self._line_of(message.priority).last_seq:
            # it will stand beside its line, where only this finds it
            self._away[seq] = entry
        if late:
            self._delay(entry, due_ms)
        else:
            self._line_up(entry)

    def find(self, seq: i64) -> Entry | None:
        """The entry of that sequence, if it is still here (only with a journal)."""
        entry = self._away.get(seq)
        if entry is None:
            for level in self._order:
                entry = level.find(seq)
                if entry is not None:
                    break
        return entry if entry is not None and entry.state != GONE else None

    # Reading

    def ready_entries(self, limit: int = 0) -> list[Entry]:
        """The ready entries in the order they would be delivered, at least `limit` of them (0: all) if there are.

        Paged ones are read back as far as needed; parked ones are at their place.
        """
        level = self._plain
        if level.paged is not None:
            level.flatten()
        while level.paged is not None and level.paged.count and (not limit or len(level.line) - level.head < limit):
            kept = level.line[level.head :]
            self._load(level)
            level.line = kept + level.line
        return self._ready_in_memory()

    def _ready_in_memory(self) -> list[Entry]:
        found: list[Entry] = []
        for level in self._order:
            found.extend(level.entries())
        parked: list[Entry] = []
        for heap in self._parked.values():
            parked.extend(heap.entries())
        for s in self.roster.all:
            if s.parked is not None:
                parked.extend(s.parked.entries())
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
        found: list[Entry] = []
        for item in self._delays.items():
            entry = cast(Entry, item)
            if entry.state == DELAYED:
                found.append(entry)
        found.sort(key=_by_due)
        return found

    def waiting_entries(self) -> list[Entry]:
        return self.ready_entries() + self.delayed_entries()

    def oldest_age_ms(self) -> i64:
        """How long the first ready entry of each line has waited, at most."""
        oldest: i64 = 0
        now = self.shard.wall_ms
        for level in self._order:
            if level.head >= len(level.line):
                level.refill()
            line = level.line
            i = level.head
            n: i64 = len(line)
            while i < n:
                entry = line[i]
                if entry is not None and entry.state == READY:
                    if now - entry.enqueued_ms > oldest:
                        oldest = now - entry.enqueued_ms
                    break
                i += 1
            if len(level.returned):
                back = cast(Entry, level.returned.first())
                if back.state == READY and now - back.enqueued_ms > oldest:
                    oldest = now - back.enqueued_ms
        if self._some_parked():
            for parked in self.ready_entries():
                if now - parked.enqueued_ms > oldest:
                    oldest = now - parked.enqueued_ms
        return oldest

    # Time

    def _expiry_of(self, entry: Entry) -> i64:
        """When the entry's time is up (wall), 0 for never."""
        at = entry.message.expires_ms
        if self.ttl_ms:
            by_queue = entry.enqueued_ms + self.ttl_ms
            if at == 0 or by_queue < at:
                at = by_queue
        return at

    def expiry_ms(self, entry: Entry) -> int:
        return self._expiry_of(entry)

    def _index_expiry(self, entry: Entry) -> None:
        at = self._expiry_of(entry)
        self._expiries.push(at, entry)
        if at < self.wall_due_ms:
            self._arm_wall(at)

    def _reindex_expiries(self) -> None:
        """Build the expiry index anew, from what still waits (leased entries are indexed when they return)."""
        self._expiries.clear()
        for entry in self.waiting_entries():
            if self._expiry_of(entry):
                self._index_expiry(entry)

    def _reindex_delays(self) -> None:
        """Let go of entries that left before their delay was over."""
        delayed = self.delayed_entries()
        self._delays.clear()
        for entry in delayed:
            self._delays.push(entry.due_ms, entry)

    def _reindex_lapses(self) -> None:
        items = self._lapses.items()
        self._lapses.clear()
        seen: set[int] = set()
        for item in items:
            lease = cast(Lease, item)
            if lease.live and lease.entry.seq not in seen:
                seen.add(lease.entry.seq)
                self._lapses.push(lease.due_ms, lease)

    def _arm_wall(self, at: i64) -> None:
        self.wall_due_ms = at
        self.shard.arm_wall(at, self)

    def _arm_mono(self, at: i64) -> None:
        self.mono_due_ms = at
        self.shard.arm_mono(at, self)

    def tick_wall(self) -> None:
        """Do all that the wall clock makes due: end delays, expire what waits."""
        self.wall_due_ms = NEVER
        now = self.shard.wall_ms
        delays = self._delays
        while delays.first_key() <= now:
            entry = cast(Entry, delays.pop())
            if entry.state == DELAYED:
                self.delayed -= 1
                self._line_up(entry)
        expiries = self._expiries
        while expiries.first_key() <= now:
            entry = cast(Entry, expiries.pop())
            if entry.state == LEASED or entry.state == GONE:
                continue
            if self._expiry_of(entry) <= now:
                self._drop_waiting(entry, "expired")
        due = delays.first_key()
        if expiries.first_key() < due:
            due = expiries.first_key()
        if due != NEVER:
            self._arm_wall(due)
        self.pump()

    def tick_mono(self) -> None:
        """Do all that the monotonic clock makes due: lapse leases, delete the queue when it was unused long enough."""
        self.mono_due_ms = NEVER
        now = self.shard.mono_ms
        lapses = self._lapses
        while lapses.first_key() <= now:
            lease = cast(Lease, lapses.pop())
            if lease.live and lease.due_ms <= now:
                holder = lease.holder
                lasted = now - lease.delivered_ms
                entry = self._end(lease)
                self.lapsed += 1
                self._retry(entry, 0, f"ack timeout after {lasted} ms")
                if holder is not None:
                    holder.lapsed(lease)
        if self.expires_ms and not self.roster.all:
            idle_until = self.unused_since_ms + self.expires_ms
            if idle_until <= now:
                self.tenant.delete(self, "expired")
                return
            self._arm_mono(idle_until)
        due = lapses.first_key()
        if due < self.mono_due_ms:
            self._arm_mono(due)
        self.pump()


def _by_due(entry: Entry) -> tuple[int, int]:
    return (entry.due_ms, entry.seq)

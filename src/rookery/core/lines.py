"""The lines of a queue: its ready entries in order, by priority, in memory or paged out.

Only the plain line (no priority) is paged. While part of it is on the medium, an entry that is written goes there too
as soon as it is the next that came, so that the line stays in order; the first run is read back when it is needed.
What is paged, or about to be, expires from here: the index of expiries (`timing`) would keep it in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

from mypy_extensions import i32, i64

from rookery.core.consumers import KEY_HASH
from rookery.core.entries import GONE, READY, Entry, Level
from rookery.core.paging import Page, Paged
from rookery.format.model import DEAD, NEVER, PERSISTENT, Message

if TYPE_CHECKING:
    from rookery.core.queue import Queue

# How much of what is paged out is read back at once
LOAD_BYTES: Final[i64] = 256 * 1024
LOAD_ENTRIES: Final[i64] = 512

EXPIRE_ENTRIES: Final = 2_000
"""So many paged entries expire in one go, others in the next turn."""


def count_origin(origins: dict[str, int], message: Message, step: int) -> None:
    """Keep the number of dead letters by the queue they died in."""
    origin = message.route.deaths[0].queue
    left = origins.get(origin, 0) + step
    if left:
        origins[origin] = left
    else:
        del origins[origin]


@final
class Lines:
    """See the module's docstring."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.plain = Level(0)
        self._levels: dict[int, Level] = {0: self.plain}
        self.order: list[Level] = [self.plain]
        # dead letters among what is paged out, by the queue they died in
        self._origins: dict[str, int] = {}
        # when the first of those that came since expires
        self._fresh_due_ms: i64 = NEVER

    def clear(self) -> None:
        self.plain = Level(0)
        self._levels = {0: self.plain}
        self.order = [self.plain]
        self._origins.clear()
        self._fresh_due_ms = NEVER

    def add(self, entry: Entry) -> bool:
        """Put a READY entry at its place; False when `find` will not see it there."""
        return self.line_of(entry.message.priority).add(entry)

    def _level(self, priority: i64) -> Level:
        queue = self._queue
        if priority > queue.priority_max:
            priority = queue.priority_max
        level = self._levels.get(priority)
        if level is None:
            if len(self.order) > 64:
                self._drop_empty_levels()
            level = Level(priority)
            self._levels[priority] = level
            at = 0
            while at < len(self.order) and self.order[at].priority > priority:
                at += 1
            self.order.insert(at, level)
        return level

    def _drop_empty_levels(self) -> None:
        for level in list(self.order):
            if level.priority != 0 and level.is_empty():
                self.order.remove(level)
                del self._levels[level.priority]

    def line_of(self, priority: i64) -> Level:
        return self.plain if priority == 0 or not self._queue.ordered else self._level(priority)

    def pop(self) -> Entry | None:
        """Take the first READY entry out of its line (it is no longer counted as ready)."""
        queue = self._queue
        for level in self.order:
            while True:
                if level.paged is not None:
                    if level.must_load():
                        self._load(level)
                    elif not level.is_paged():
                        self._index_line(level)
                entry = level.pop()
                if entry is not None:
                    queue.ready -= 1
                    return entry
                if level.paged is None or not level.paged.count:
                    break
        return None

    def page_out(self, entry: Entry, place: i64) -> None:
        """An entry was written at this place (0: it is transient): if memory is short, it is kept there only."""
        queue = self._queue
        level = self.plain
        if level.paged is None and not (queue.shard.short_of_memory() and self._pages() and level.split_at(entry)):
            return
        while level.fresh_head < len(level.fresh):
            first = level.fresh[level.fresh_head]
            if first.state == READY:
                if not self._pages():
                    return
                if first is entry:
                    self._put_away(level, first, place or queue.shard.spill(queue, first))
                    level.fresh_head += 1
                    break
                if first.message.segment or (queue.journaled and first.message.flags & PERSISTENT):
                    return
                else:
                    self._put_away(level, first, queue.shard.spill(queue, first))
            level.fresh_head += 1
        if level.fresh_head >= 1024 and level.fresh_head * 2 >= len(level.fresh):
            del level.fresh[: level.fresh_head]
            level.fresh_head = 0

    def _pages(self) -> bool:
        """Whether entries of this queue can be paged at all."""
        queue = self._queue
        return not queue.grouped and queue.roster.distribution != KEY_HASH

    def _put_away(self, level: Level, entry: Entry, place: i64) -> None:
        queue = self._queue
        message = entry.message
        again: i64 = 1 if entry.redelivered else 0
        meta: i64 = len(message.body) << 32 | i64(entry.attempts) << 1 | again
        assert level.paged is not None
        self._add_paged(level.paged, entry.seq, place, entry.enqueued_ms, meta, message.expires_ms)
        entry.state = GONE
        message.refs -= 1
        if message.refs == 0:
            queue.tenant.unhold(message)
        if message.flags & DEAD:
            count_origin(self._origins, message, 1)
        queue.paged_out += 1

    def _add_paged(self, paged: Paged, seq: i64, place: i64, enqueued_ms: i64, meta: i64, expires_ms: i64) -> None:
        page = paged.add(seq, place, enqueued_ms, meta, expires_ms)
        ttl_ms = self._queue.ttl_ms
        if expires_ms or ttl_ms >= 0:
            due = page.expiry(len(page.seqs) - 1, ttl_ms)
            if due < page.due_ms:
                page.due_ms = due
                self._queue.timing.due_at(due)

    def stays_paged(self, seq: i64) -> bool:
        """Whether a plain entry that is found in the journal should be left there: memory is short, and the order
        allows it.
        """
        queue = self._queue
        level = self.plain
        if not self._pages() or seq <= level.last_seq or len(level.fresh):
            return False
        return level.paged is not None or queue.shard.short_of_memory()

    def restore_paged(
        self, seq: i64, place: i64, enqueued_ms: i64, expires_ms: i64, size: i64, attempts: i64, again: bool
    ) -> None:
        """As `restore`, for a plain entry that stays on the medium; all later ones must stay there too."""
        queue = self._queue
        level = self.plain
        if level.paged is None:
            level.paged = Paged()
        meta = size << 32 | attempts << 1 | (1 if again else 0)
        self._add_paged(level.paged, seq, place, enqueued_ms, meta, expires_ms)
        level.last_seq = seq
        if seq > queue.seq:
            queue.seq = seq
        queue.ready += 1
        queue.bytes += size
        queue.restored += 1

    def _load(self, level: Level) -> None:
        """Read a run of paged entries back into the line."""
        timing = self._queue.timing
        paged = level.paged
        assert paged is not None
        loaded: i64 = 0
        line: list[Entry | None] = []
        last: Message | None = None
        while paged.count and loaded < LOAD_BYTES and len(line) < LOAD_ENTRIES:
            page = paged.front()
            at = page.head
            end: i64 = len(page.seqs)
            n: i64 = 0
            while at < end and loaded < LOAD_BYTES and len(line) < LOAD_ENTRIES:
                if page.places[at]:
                    entry = self._read(page, at, last)
                    last = entry.message
                    line.append(entry)
                    if timing.expiry_of(entry):
                        timing.index_expiry(entry)
                    loaded += len(entry.message.body) + 200
                    n += 1
                at += 1
            paged.drop_run(page, at, n)
        level.line = line
        level.head = 0

    def _read(self, page: Page, at: i64, like: Message | None) -> Entry:
        """Have a paged entry in memory again; its message may be `like` the one before it."""
        queue = self._queue
        meta = page.meta[at]
        message = queue.shard.fetch(page.places[at], like)
        entry = Entry(message, page.seqs[at], page.times[at])
        entry.attempts = i32((meta & 0xFFFFFFFF) >> 1)
        entry.redelivered = meta & 1 != 0
        queue.tenant.hold(message)
        message.refs = 1
        if message.flags & DEAD:
            count_origin(self._origins, message, -1)
        return entry

    # Expiring

    def takes_expiry(self, entry: Entry, expiry_ms: i64) -> bool:
        """Whether an entry that enters will be told of its expiry from here, because it is about to be paged."""
        if self.plain.paged is None or self.line_of(entry.message.priority) is not self.plain:
            return False
        if expiry_ms < self._fresh_due_ms:
            self._fresh_due_ms = expiry_ms
            self._queue.timing.due_at(expiry_ms)
        return True

    def _index_line(self, level: Level) -> None:
        """Nothing is paged any more: what came since expires as others do."""
        self._fresh_due_ms = NEVER
        timing = self._queue.timing
        for entry in level.line:
            if entry is not None and entry.state == READY and timing.expiry_of(entry):
                timing.index_expiry(entry)

    def reindex_expiries(self) -> None:
        """The queue's time to live is another one."""
        if self.plain.paged is None:
            return
        ttl_ms = self._queue.ttl_ms
        for page in self.plain.paged.pages():
            page.expired(-1, ttl_ms)
        self._fresh_due_ms = NEVER

    def due_ms(self) -> i64:
        """When something here expires that the index does not know of."""
        paged = self.plain.paged
        if paged is None:
            return NEVER
        due = paged.due_ms()
        return min(due, self._fresh_due_ms)

    def expire(self) -> None:
        """Let go of what has expired, paged or about to be."""
        queue = self._queue
        paged = self.plain.paged
        now = queue.shard.wall_ms
        if paged is None or self.due_ms() > now:
            return
        due: list[int] = []
        for page in paged.pages():
            if page.due_ms <= now:
                due += page.expired(now, queue.ttl_ms)
                if len(due) >= EXPIRE_ENTRIES:
                    break
        for seq in due:
            # its letter, or another's, may have had it read back: then the index knows of it
            found = paged.find(seq)
            if found is None:
                continue
            at = found.find(seq)
            entry = self._read(found, at, None)
            paged.take_out(found, at)
            queue.ready -= 1
            queue.leave(entry, "expired", "")
        if self._fresh_due_ms <= now < paged.due_ms():
            self._expire_fresh(now)

    def _expire_fresh(self, now: i64) -> None:
        queue = self._queue
        level = self.plain
        waiting = [entry for entry in level.fresh[level.fresh_head :] if entry.state == READY]
        self._fresh_due_ms = NEVER
        due: list[Entry] = []
        for entry in waiting:
            at = queue.timing.expiry_of(entry)
            if at and at <= now:
                due.append(entry)
            elif at and at < self._fresh_due_ms:
                self._fresh_due_ms = at
        for entry in due:
            if entry.state == READY:
                queue.drop_waiting(entry, "expired")

    def place_of(self, seq: i64) -> i64:
        """Where the paged entry of that sequence stands, 0 when it is not paged."""
        paged = self.plain.paged
        return 0 if paged is None else paged.place_of(seq)

    def meta_of(self, seq: i64) -> i64:
        """Size, attempts and redelivered flag of a paged entry, packed."""
        paged = self.plain.paged
        return 0 if paged is None else paged.meta_of(seq)

    def move(self, seq: i64, place: i64) -> None:
        paged = self.plain.paged
        if paged is not None:
            paged.move(seq, place)

    def forget_paged(self, noted: bool) -> i64:
        """Let go of all paged entries; with `noted`, the journal is told of each. Returns how many there were."""
        queue = self._queue
        paged = self.plain.paged
        if paged is None:
            return 0
        n: i64 = 0
        while paged.count:
            page = paged.front()
            place = page.places[page.head]
            queue.bytes -= page.meta[page.head] >> 32
            queue.shard.forget(queue, page.seqs[page.head], place, noted)
            paged.drop_first()
            n += 1
        for origin, count in self._origins.items():
            queue.origins[origin] -= count
            if not queue.origins[origin]:
                del queue.origins[origin]
        self._origins.clear()
        return n

    def find(self, seq: i64) -> Entry | None:
        """The entry of that sequence, if it is in memory and in its line."""
        for level in self.order:
            entry = level.find(seq)
            if entry is not None:
                return entry
        return None

    def read_back(self, limit: int) -> None:
        """Have at least the first `limit` entries (0: all) in memory."""
        level = self.plain
        if level.paged is not None:
            level.flatten()
        while level.paged is not None and level.paged.count and (not limit or len(level.line) - level.head < limit):
            kept = level.line[level.head :]
            self._load(level)
            level.line = kept + level.line

    def oldest_age_ms(self) -> i64:
        """How long the first ready entry of each line has waited, at most."""
        oldest: i64 = 0
        now = self._queue.shard.wall_ms
        for level in self.order:
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
        return oldest

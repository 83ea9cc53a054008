"""What a queue has to do at which time: delays that end, messages that expire, leases that lapse.

Delays and expiries are on the wall clock, leases on the monotonic one. What is due is found through heaps; an entry
that left is skipped when it comes up. The shard is told of the earliest time of each clock (`wall_due_ms`,
`mono_due_ms`) and calls the ticks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, final

from mypy_extensions import i64

from rookery.core.entries import DELAYED, GONE, LEASED, Entry, Lease
from rookery.core.index import Heap
from rookery.format.model import NEVER, SAMPLED

if TYPE_CHECKING:
    from rookery.core.queue import Queue


@final
class Timing:
    """See the module's docstring."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._delays = Heap()
        self._expiries = Heap()
        self._lapses = Heap()
        self.wall_due_ms: i64 = NEVER
        self.mono_due_ms: i64 = NEVER

    def clear(self) -> None:
        self._delays.clear()
        self._expiries.clear()
        self._lapses.clear()

    def lease_until(self, due_ms: i64, lease: Lease) -> None:
        """Have a lease lapse at that time."""
        self._lapses.push(due_ms, lease)
        if due_ms < self.mono_due_ms:
            self.arm_mono(due_ms)

    def tidy_lapses(self) -> None:
        """A lease ended: let go of such when they are most of the index."""
        if self._lapses.crowded(self._queue.leased):
            self._reindex_lapses()

    def tidy_waits(self) -> None:
        """An entry left: let go of such when they are most of the indexes."""
        queue = self._queue
        if len(self._expiries):
            paged = queue.lines.plain.paged
            out: i64 = 0 if paged is None else paged.count
            if self._expiries.crowded(queue.ready - out + queue.delayed + queue.leased):
                self._reindex_waiting()
        if len(self._delays) and self._delays.crowded(queue.delayed):
            self._reindex_delays()

    def delay(self, entry: Entry, due_ms: i64) -> None:
        queue = self._queue
        entry.state = DELAYED
        entry.due_ms = due_ms
        if queue.journaled:
            queue.away[entry.seq] = entry
        queue.delayed += 1
        self._delays.push(due_ms, entry)
        self.due_at(due_ms)

    def pop_delayed(self) -> Entry | None:
        queue = self._queue
        while len(self._delays):
            entry = cast(Entry, self._delays.pop())
            if entry.state == DELAYED:
                queue.delayed -= 1
                return entry
        return None

    def delayed(self) -> list[Entry]:
        """All delayed entries, the next one due first."""
        found: list[Entry] = []
        for item in self._delays.items():
            entry = cast(Entry, item)
            if entry.state == DELAYED:
                found.append(entry)
        found.sort(key=_by_due)
        return found

    def expiry_of(self, entry: Entry) -> i64:
        """When the entry's time is up (wall), 0 for never."""
        queue = self._queue
        at = entry.message.expires_ms
        if queue.ttl_ms >= 0:
            by_queue = entry.enqueued_ms + queue.ttl_ms
            if at == 0 or by_queue < at:
                at = by_queue
        return at

    def _by_expiry(self, entry: Entry) -> tuple[int, int]:
        return (self.expiry_of(entry), entry.seq)

    def index_expiry(self, entry: Entry) -> None:
        at = self.expiry_of(entry)
        self._expiries.push(at, entry)
        self.due_at(at)

    def reindex_expiries(self) -> None:
        """Find out anew what expires when (leased entries are indexed when they return)."""
        lines = self._queue.lines
        lines.reindex_expiries()
        self.due_at(lines.due_ms())
        self._reindex_waiting()

    def _reindex_waiting(self) -> None:
        """Build the index of expiries from what waits in memory."""
        queue = self._queue
        self._expiries.clear()
        for entry in queue.ready_in_memory() + self.delayed():
            if self.expiry_of(entry):
                self.index_expiry(entry)

    def due_at(self, at: i64) -> None:
        """Something will be due at this wall time."""
        if at < self.wall_due_ms:
            self._arm_wall(at)

    def _reindex_delays(self) -> None:
        """Let go of entries that left before their delay was over."""
        delayed = self.delayed()
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
        queue = self._queue
        self.wall_due_ms = at
        queue.shard.arm_wall(at, queue)

    def arm_mono(self, at: i64) -> None:
        queue = self._queue
        self.mono_due_ms = at
        queue.shard.arm_mono(at, queue)

    def tick_wall(self) -> None:
        """Do all that the wall clock makes due: end delays, expire what waits."""
        queue = self._queue
        self.wall_due_ms = NEVER
        now = queue.shard.wall_ms
        delays = self._delays
        while delays.first_key() <= now:
            entry = cast(Entry, delays.pop())
            if entry.state == DELAYED:
                queue.delayed -= 1
                queue.line_up(entry)
        expiries = self._expiries
        expired: list[Entry] = []
        while expiries.first_key() <= now:
            expired.append(cast(Entry, expiries.pop()))
        if len(expired) > 1:
            # those of one moment go in the order they came
            expired.sort(key=self._by_expiry)
        for entry in expired:
            if entry.state != LEASED and entry.state != GONE and self.expiry_of(entry) <= now:
                queue.drop_waiting(entry, "expired")
        queue.lines.expire()
        due = delays.first_key()
        if expiries.first_key() < due:
            due = expiries.first_key()
        paged_due = queue.lines.due_ms()
        if paged_due <= now:
            # there are more of them than go in one turn
            paged_due = now + 1
        if paged_due < due:
            due = paged_due
        if due != NEVER:
            self._arm_wall(due)
        queue.pump()

    def tick_mono(self) -> None:
        """Do all that the monotonic clock makes due: lapse leases, delete the queue when it was unused long enough."""
        queue = self._queue
        self.mono_due_ms = NEVER
        now = queue.shard.mono_ms
        lapses = self._lapses
        lapsed: list[Lease] = []
        while lapses.first_key() <= now:
            lapsed.append(cast(Lease, lapses.pop()))
        if len(lapsed) > 1:
            lapsed.sort(key=_by_lapse)
        for lease in lapsed:
            if lease.live and lease.due_ms <= now:
                holder = lease.holder
                lasted = now - lease.delivered_ms
                entry = queue.end(lease)
                queue.lapsed += 1
                if entry.message.flags & SAMPLED:
                    queue.shard.events.settled("lapsed", queue, entry, lease.delivered_ms, "", holder)
                queue.fail(entry, 0, f"ack timeout after {lasted} ms")
                if holder is not None:
                    holder.lapsed(lease)
        if queue.expires_ms and not queue.roster.all:
            idle_until = queue.unused_since_ms + queue.expires_ms
            if idle_until <= now:
                queue.tenant.delete(queue, "expired")
                return
            self.arm_mono(idle_until)
        due = lapses.first_key()
        if due < self.mono_due_ms:
            self.arm_mono(due)
        queue.pump()


def _by_lapse(lease: Lease) -> tuple[int, int]:
    return (lease.due_ms, lease.entry.seq)


def _by_due(entry: Entry) -> tuple[int, int]:
    return (entry.due_ms, entry.seq)

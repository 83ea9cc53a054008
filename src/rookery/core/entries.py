"""A message's stay in a queue, the lease it is handed out under, and the line it waits in.

These are the many small objects of the broker: one `Entry` per queued message, one `Lease` per delivery. Neither is
tracked by the cyclic collector, so whoever holds a lease lets go of it when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

from mypy_extensions import i32, i64, mypyc_attr, u8

from rookery.core.index import Heap
from rookery.core.paging import Paged
from rookery.format.model import Message

if TYPE_CHECKING:
    from rookery.core.consumers import Subscription
    from rookery.core.queue import Queue

# Entry.state
READY: Final[u8] = 0
PARKED: Final[u8] = 1
DELAYED: Final[u8] = 2
LEASED: Final[u8] = 3
GONE: Final[u8] = 4

PACK_ENTRIES: Final[i64] = 256


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Entry:
    """A message's stay in one queue. `attempts` counts deliveries; `due_ms` is when a delay ends."""

    def __init__(self, message: Message, seq: i64, enqueued_ms: i64) -> None:
        self.message = message
        self.seq: i64 = seq
        self.enqueued_ms: i64 = enqueued_ms
        self.due_ms: i64 = 0
        self.attempts: i32 = 0
        self.state: u8 = READY
        self.redelivered = False


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Lease:
    """The right to settle one delivery, until it is used or lapses; `live` turns false for good then."""

    def __init__(
        self, entry: Entry, queue: Queue, holder: Subscription | None, now_ms: i64, due_ms: i64, grant: i64
    ) -> None:
        self.entry = entry
        self.queue = queue
        self.holder = holder
        self.attempt: i64 = i64(entry.attempts)
        self.delivered_ms: i64 = now_ms
        self.due_ms: i64 = due_ms
        self.grant: i64 = grant
        self.live = True

    def token(self) -> str:
        """Queue, sequence, owner epoch and number of the delivery: a handle that never repeats, not even across
        restarts.

        The attempt would not do: a release takes it back.
        """
        return f"{self.queue.name}/{self.entry.seq}/{self.queue.shard.epoch}/{self.grant}"


@final
class Park:
    """Entries that wait beside the line, best place first."""

    def __init__(self) -> None:
        self._heaps: dict[int, Heap] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return sum(len(heap) for heap in self._heaps.values())

    def push(self, rank: i64, entry: Entry) -> None:
        heap = self._heaps.get(rank)
        if heap is None:
            heap = Heap()
            self._heaps[rank] = heap
            self._order.append(rank)
            self._order.sort(reverse=True)
        heap.push(entry.seq, entry)

    def pop(self) -> Entry | None:
        for rank in self._order:
            heap = self._heaps[rank]
            while len(heap):
                entry = cast(Entry, heap.pop())
                if entry.state == PARKED:
                    return entry
        return None

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        for heap in self._heaps.values():
            for item in heap.items():
                entry = cast(Entry, item)
                if entry.state == PARKED:
                    found.append(entry)
        return found


@final
class Level:
    """The line of ready entries of one priority: a list in order of sequence, and a heap for those that came back.

    A long line is kept in packs behind its first piece: tuples, which the cyclic collector stops looking through, where
    it would go through a list of millions at every full collection. While part of the line is paged out, it is in three
    pieces: what is in memory (first), `paged`, and `fresh`, which came since.
    """

    def __init__(self, priority: i64) -> None:
        self.priority: i64 = priority
        self.line: list[Entry | None] = []
        self.head: i64 = 0
        self.returned = Heap()
        self._packs: list[tuple[Entry, ...]] = []
        self._first_pack: i64 = 0
        self._tail: list[Entry] = []
        self.last_seq: i64 = 0
        self.gone: i64 = 0
        self.paged: Paged | None = None
        self.fresh: list[Entry] = []
        self.fresh_head: i64 = 0

    def add(self, entry: Entry) -> bool:
        """Put an entry at its place; False when it came back, and stands beside the line."""
        if entry.seq > self.last_seq:
            self.last_seq = entry.seq
            if self.paged is not None:
                self.fresh.append(entry)
            elif self._tail or self._packs or len(self.line) >= PACK_ENTRIES:
                self._tail.append(entry)
                if len(self._tail) >= PACK_ENTRIES:
                    self._packs.append(tuple(self._tail))
                    self._tail = []
            else:
                self.line.append(entry)
            return True
        self.returned.push(entry.seq, entry)
        return False

    def refill(self) -> bool:
        """The first piece is used up: the next pack, or the rest, takes its place; False when there is none."""
        line: list[Entry | None] = []
        if self._first_pack < len(self._packs):
            line.extend(self._packs[self._first_pack])
            self._packs[self._first_pack] = ()
            self._first_pack += 1
            if self._first_pack >= len(self._packs):
                self._packs = []
                self._first_pack = 0
        elif self._tail:
            line.extend(self._tail)
            self._tail = []
        else:
            return False
        self.line = line
        self.head = 0
        return True

    def flatten(self) -> None:
        """Put the whole line into its first piece."""
        line = self.line[self.head :]
        while self.refill():
            line.extend(self.line)
        self.line = line
        self.head = 0

    def is_empty(self) -> bool:
        return self.head >= len(self.line) and not self._packs and not self._tail and not len(self.returned)

    def pop(self) -> Entry | None:
        """Remove and return the first entry that is still READY, None when there is none."""
        line = self.line
        n: i64 = len(line)
        while True:
            if self.head >= n and self.refill():
                line = self.line
                n = len(line)
            first: Entry | None = line[self.head] if self.head < n else None
            returned = self.returned
            if len(returned) and (first is None or returned.first_key() < first.seq):
                entry = cast(Entry, returned.pop())
            elif first is not None:
                entry = first
                line[self.head] = None
                self.head += 1
                if self.head >= 1024 and self.head * 2 >= n:
                    del line[: self.head]
                    self.head = 0
                    n = len(line)
            else:
                return None
            if entry.state == READY:
                return entry
            self.gone -= 1

    def is_paged(self) -> bool:
        return self.paged is not None

    def must_load(self) -> bool:
        """Whether the next entry of the line is among the paged ones."""
        paged = self.paged
        if paged is None or self._has_line():
            return False
        if not paged.count:
            # nothing is paged any more: what came since is the line again
            self.line = list(self.fresh[self.fresh_head :])
            self.head = 0
            self.fresh = []
            self.fresh_head = 0
            self.paged = None
            return False
        # one that left meanwhile says nothing about who is next
        returned = self.returned
        while len(returned) and cast(Entry, returned.first()).state != READY:
            returned.pop()
            self.gone -= 1
        return not len(returned) or returned.first_key() > paged.first_seq()

    def _has_line(self) -> bool:
        """Whether there is anything READY before what is paged out; what is gone there is let go."""
        while True:
            while self.head < len(self.line):
                entry = self.line[self.head]
                if entry is not None and entry.state == READY:
                    return True
                if entry is not None:
                    self.gone -= 1
                self.head += 1
            if not self.refill():
                return False

    def split_at(self, entry: Entry) -> bool:
        """Start to page from this entry on: it and all after it become `fresh`. False when it is not in the line."""
        if self._tail and self._tail[0].seq <= entry.seq:
            i: i64 = len(self._tail) - 1
            while self._tail[i].seq > entry.seq:
                i -= 1
            if self._tail[i] is not entry:
                return False
            self.fresh = self._tail[i:]
            self.fresh_head = 0
            del self._tail[i:]
            self.paged = Paged()
            return True
        if self._packs or self._tail:
            self.flatten()
        at = self.head
        high: i64 = len(self.line)
        while at < high:
            middle = (at + high) >> 1
            there = self.line[middle]
            assert there is not None
            if there.seq < entry.seq:
                at = middle + 1
            else:
                high = middle
        if at >= len(self.line) or self.line[at] is not entry:
            return False
        self.fresh = [e for e in self.line[at:] if e is not None]
        self.fresh_head = 0
        del self.line[at:]
        self.paged = Paged()
        return True

    def find(self, seq: i64) -> Entry | None:
        """The entry of that sequence, if it is in memory (not among those that came back)."""
        found = self._find(self.line, self.head, seq)
        if found is None and (self._packs or self._tail):
            found = self._find_behind(seq)
        if found is None and self.paged is not None:
            i: i64 = self.fresh_head
            while i < len(self.fresh):
                if self.fresh[i].seq == seq:
                    return self.fresh[i]
                i += 1
        return found

    def _find_behind(self, seq: i64) -> Entry | None:
        """The entry of that sequence behind the first piece."""
        low = self._first_pack
        high: i64 = len(self._packs)
        while low < high:
            middle = (low + high) >> 1
            pack = self._packs[middle]
            if pack[len(pack) - 1].seq < seq:
                low = middle + 1
            else:
                high = middle
        piece: list[Entry | None] = []
        if low < len(self._packs):
            piece.extend(self._packs[low])
        else:
            piece.extend(self._tail)
        return self._find(piece, 0, seq)

    def _find(self, line: list[Entry | None], low: i64, seq: i64) -> Entry | None:
        high: i64 = len(line)
        while low < high:
            middle = (low + high) >> 1
            entry = line[middle]
            assert entry is not None
            if entry.seq == seq:
                return entry
            if entry.seq < seq:
                low = middle + 1
            else:
                high = middle
        return None

    def entries(self) -> list[Entry]:
        """The READY entries in order."""
        found = [e for e in self.line[self.head :] if e is not None and e.state == READY]
        for pack in self._packs:
            found.extend(e for e in pack if e.state == READY)
        found.extend(e for e in self._tail if e.state == READY)
        if self.paged is not None:
            found.extend(e for e in self.fresh[self.fresh_head :] if e.state == READY)
        if len(self.returned):
            for item in self.returned.items():
                entry = cast(Entry, item)
                if entry.state == READY:
                    found.append(entry)
            found.sort(key=by_seq)
        return found

    def forget_one(self) -> None:
        """An entry of this line went out of turn; its slot is reclaimed when half of the line is such."""
        self.gone += 1
        behind: i64 = (len(self._packs) - self._first_pack) * PACK_ENTRIES + len(self._tail)
        length = len(self.line) - self.head + behind + len(self.returned)
        if self.paged is None and self.gone > 64 and self.gone * 2 > length:
            live = self.entries()
            self.line = []
            self.head = 0
            self._packs = []
            self._first_pack = 0
            self._tail = []
            self.returned.clear()
            self.gone = 0
            last = self.last_seq
            self.last_seq = 0
            for entry in live:
                self.add(entry)
            self.last_seq = last


def by_seq(entry: Entry) -> int:
    return entry.seq

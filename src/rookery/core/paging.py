"""The part of a long line that is not in memory: for each entry five packed numbers, and no Python object.

A paged entry stands in the journal (or, if it is transient, in a spill file) at a *place*. Pages are read back from the
front, in order, a run at a time; one that expires is taken out of the middle and leaves a hole (a place of 0). Only
plain entries are paged: ready, of no special priority and of no group.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from rookery.format.bytes import append, vec
from rookery.format.model import NEVER

PAGE_ENTRIES: Final[i64] = 1024
PLACE_BITS: Final[i64] = 36
"""A place is segment << 36 | offset: segments are far smaller than 64 GiB."""

OFFSET_MASK: Final[i64] = (1 << PLACE_BITS) - 1

SPILLED: Final[i64] = 1 << 62
"""Added to the place of a transient entry: it stands in a spill file."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Pager:
    """Where paged entries are kept; a store implements it. Places are as far apart as the records at them are long."""

    def read(self, place: i64) -> bytes:
        """What stands from a place on: its PUT record as a whole, and some of what follows."""
        raise NotImplementedError

    def spill(self, record: bytes) -> i64:
        """Keep the PUT record of a transient message; its place."""
        raise NotImplementedError

    def forget(self, place: i64) -> None:
        """A spilled record is not needed any more."""
        raise NotImplementedError


@final
class MemoryPager(Pager):
    """Keeps records in memory: where there is no journal, streams are kept so."""

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}
        self._end: i64 = 1

    def read(self, place: i64) -> bytes:
        return self._records[place & ~SPILLED]

    def spill(self, record: bytes) -> i64:
        place = self._end
        self._records[place] = record
        self._end += len(record)
        return place

    def forget(self, place: i64) -> None:
        del self._records[place & ~SPILLED]


@final
class Page:
    """Up to a thousand paged entries. `meta` is size << 32 | attempts << 1 | redelivered; `expires` has the messages'
    own expiries, 0 for none, and is empty while none has one. `due_ms` is when the first of them expires, by that or by
    the queue's time to live.
    """

    def __init__(self) -> None:
        self.seqs: vec[i64] = vec[i64](capacity=PAGE_ENTRIES)
        self.places: vec[i64] = vec[i64](capacity=PAGE_ENTRIES)
        self.times: vec[i64] = vec[i64](capacity=PAGE_ENTRIES)
        self.meta: vec[i64] = vec[i64](capacity=PAGE_ENTRIES)
        self.expires: vec[i64] = vec[i64]()
        self.head: i64 = 0
        self.due_ms: i64 = NEVER

    def add(self, seq: i64, place: i64, enqueued_ms: i64, meta: i64, expires_ms: i64) -> None:
        if expires_ms or len(self.expires):
            while len(self.expires) < len(self.seqs):
                self.expires = append(self.expires, 0)
            self.expires = append(self.expires, expires_ms)
        self.seqs = append(self.seqs, seq)
        self.places = append(self.places, place)
        self.times = append(self.times, enqueued_ms)
        self.meta = append(self.meta, meta)

    def find(self, seq: i64) -> i64:
        """The index of a sequence, -1 when it is not here."""
        low = self.head
        high: i64 = len(self.seqs)
        while low < high:
            middle = (low + high) >> 1
            there = self.seqs[middle]
            if there == seq:
                return middle if self.places[middle] else -1
            if there < seq:
                low = middle + 1
            else:
                high = middle
        return -1

    def expiry(self, at: i64, ttl_ms: i64) -> i64:
        """When an entry expires in a queue of this time to live (-1: none), NEVER if it does not."""
        due = (self.expires[at] or NEVER) if len(self.expires) else NEVER
        if ttl_ms >= 0 and self.times[at] + ttl_ms < due:
            due = self.times[at] + ttl_ms
        return due

    def expired(self, now: i64, ttl_ms: i64) -> list[int]:
        """The sequences of those that have expired; `due_ms` is that of the others then."""
        found: list[int] = []
        self.due_ms = NEVER
        at = self.head
        end: i64 = len(self.seqs)
        while at < end:
            if self.places[at]:
                due = self.expiry(at, ttl_ms)
                if due <= now:
                    found.append(self.seqs[at])
                elif due < self.due_ms:
                    self.due_ms = due
            at += 1
        return found


@final
class Paged:
    """All paged entries of one line, in order of sequence."""

    def __init__(self) -> None:
        self._pages: list[Page] = []
        self._first: i64 = 0
        self.count: i64 = 0

    def add(self, seq: i64, place: i64, enqueued_ms: i64, meta: i64, expires_ms: i64) -> Page:
        """Put an entry at the end; the page that it is in."""
        if not self._pages or len(self._pages[-1].seqs) >= PAGE_ENTRIES:
            self._pages.append(Page())
        page = self._pages[-1]
        page.add(seq, place, enqueued_ms, meta, expires_ms)
        self.count += 1
        return page

    def front(self) -> Page:
        """The page that holds the first entry, at its `head`."""
        return self._pages[self._first]

    def first_seq(self) -> i64:
        page = self._pages[self._first]
        return page.seqs[page.head]

    def drop_first(self) -> None:
        """The first entry was read back."""
        self._pages[self._first].head += 1
        self.count -= 1
        self._skip_holes()

    def drop_run(self, page: Page, head: i64, n: i64) -> None:
        """The first `n` entries, those of the first page before `head`, were read back."""
        page.head = head
        self.count -= n
        self._skip_holes()

    def take_out(self, page: Page, at: i64) -> None:
        """An entry went out of turn."""
        page.places[at] = 0
        self.count -= 1
        self._skip_holes()

    def _skip_holes(self) -> None:
        """Let the front be an entry."""
        while self._first < len(self._pages):
            page = self._pages[self._first]
            while page.head < len(page.seqs):
                if page.places[page.head]:
                    return
                page.head += 1
            self._first += 1
            if self._first >= 64 and self._first * 2 >= len(self._pages):
                del self._pages[: self._first]
                self._first = 0
        self._pages = []
        self._first = 0

    def pages(self) -> list[Page]:
        return self._pages[self._first :]

    def due_ms(self) -> i64:
        """When the first of all expires, NEVER if none does."""
        due = NEVER
        at = self._first
        while at < len(self._pages):
            if self._pages[at].due_ms < due:
                due = self._pages[at].due_ms
            at += 1
        return due

    def find(self, seq: i64) -> Page | None:
        """The page that holds a sequence."""
        low = self._first
        high: i64 = len(self._pages)
        while low < high:
            middle = (low + high) >> 1
            page = self._pages[middle]
            if page.seqs[len(page.seqs) - 1] < seq:
                low = middle + 1
            else:
                high = middle
        if low < len(self._pages):
            page = self._pages[low]
            if page.find(seq) >= 0:
                return page
        return None

    def place_of(self, seq: i64) -> i64:
        """Where the entry of that sequence stands, 0 when it is not paged."""
        page = self.find(seq)
        if page is None:
            return 0
        return page.places[page.find(seq)]

    def meta_of(self, seq: i64) -> i64:
        page = self.find(seq)
        if page is None:
            return 0
        return page.meta[page.find(seq)]

    def move(self, seq: i64, place: i64) -> None:
        """The entry of that sequence stands elsewhere now."""
        page = self.find(seq)
        if page is not None:
            page.places[page.find(seq)] = place

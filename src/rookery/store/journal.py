"""The journal of one shard: batches of what happened, on a medium, and the way back from them.

One batch is in flight at a time; the next one grows meanwhile in the core's log and is taken as soon as the medium has
answered: that is the whole of group commit. A confirm is released when the log's `durable` has reached its batch.

Batches go into segments. A new segment begins with a STATE record (all definitions and counters), so older ones are
kept only for the messages, dedup keys and settle records in them. A segment is retired when nothing in it lives, or
when it is mostly dead and enough of the journal is: what lives in it is written again, settle records whose messages
stand in other segments are carried forward, and only when that is durable is the segment deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from rookery._version import __version__
from rookery.core.access import Access
from rookery.core.dedup import Dedup
from rookery.core.entries import DELAYED, LEASED
from rookery.core.paging import PLACE_BITS
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.topology import Tenant
from rookery.errors import RookeryError, StoreDamaged, StoreError, StoreFailed, StoreFull, StoreUnavailable
from rookery.format import records
from rookery.format.bytes import BytesWriter, read_i32_be
from rookery.format.compression import packer
from rookery.format.records import BACK, DEFINE, EXIT, EXITS, MARK, PUT, RECORD, STATE
from rookery.store import changes
from rookery.store.medium import Medium
from rookery.store.pager import JournalPager
from rookery.store.recovery import READ_BYTES, Recovery, Window

SEGMENT_BYTES: Final = 64 << 20
LAZY_MS: Final = 100
"""How long settles that nobody waits for may stay unwritten."""

SYNC_MS: Final = 1_000
"""How often the `interval` policy syncs."""

SLICE_BYTES: Final = 256 << 10
"""How much of a retiring segment is worked through in one turn."""

TIDY_MS: Final = 100
"""How often an idle journal looks for a segment that is worth retiring."""

KEPT_MS: Final = 3_600_000
"""How long a segment that is mostly dedup keys in use is left alone."""

RETRY_MS: Final = 100
SPACE_MS: Final = 250
FREE_BYTES_MIN: Final = 64 << 20
"""Publishes are refused when less room than this is left on the medium."""

IDS_PER_OWNER: Final = 1 << 20
"""More message numbers than an owner gives out before it has written one batch for good."""

IDS_AHEAD: Final = 1 << 20
"""How many message numbers the journal is told of in advance."""

SMALL_SEGMENTS_MAX: Final = 32
"""Each start begins a segment. When there are more than this, and they would fit into one, the smallest is retired."""

SYNCS: Final = ("always", "interval", "os")


class _Segment:
    """A piece of the journal, and what is in it: bytes in all, bytes of state, dedup keys, messages, and bytes of
    settles by the segment that holds their message. `kept_until_ms`: it was found to be full of keys in use, and is
    left alone. `stale`: it holds messages that were written again into later segments, because an owner died while it
    retired this one. Their settles name the later segments, so this one goes before any of those.
    """

    def __init__(self, number: int, size: int, marks: int, messages: int) -> None:
        self.number = number
        self.size = size
        self.marks = marks
        self.messages = messages
        self.state_bytes = 0
        self.exits: dict[int, int] = {}
        self.kept_until_ms = 0
        self.stale = False

    def count_exits(self, exits: dict[int, int]) -> None:
        for segment, size in exits.items():
            self.exits[segment] = self.exits.get(segment, 0) + size

    def grown(self) -> int:
        """How much was written beside the state: a large one must not make every batch begin a segment."""
        return self.size - self.state_bytes


class Journal:
    """See the module's docstring. All methods are called by the shard's owner, between turns."""

    def __init__(
        self,
        shard: Shard,
        medium: Medium,
        *,
        post: Callable[[Callable[[], None]], None],
        access: Access | None = None,
        sync: str = "always",
        segment_bytes: int = SEGMENT_BYTES,
        compression: str = "zlib",
        compress_min: int = 0,
        on_progress: Callable[[], None] | None = None,
        spill_directory: Path | None = None,
        free_bytes_min: int = FREE_BYTES_MIN,
    ) -> None:
        self.shard = shard
        self.log = shard.log
        self.medium = medium
        self.access = access
        self.sync = sync
        self.segment_bytes = segment_bytes
        self.segments: list[_Segment] = []
        self.batches = 0
        self.syncs = 0
        self.retired = 0
        self._post = post
        self._on_progress = on_progress
        self._compress_min = 0 if compression == "none" else compress_min
        self._compression = compression
        self._seq = 0
        self._in_flight: tuple[int, int, int, bytes, bool] | None = None
        self._flying_at = 0
        self._urgent = False
        self._syncing = False
        self._full = False
        self._retry_at_ms: int | None = None
        self._space_at_ms = 0
        self.free_bytes_min = free_bytes_min
        self._lazy_since_ms: int | None = None
        self._unsynced_since_ms: int | None = None
        self._retiring: _Retiring | None = None
        self._first_segment = 0
        self._closed = False
        self._written_by = ""
        self._synced = 0
        self._tidy_soon = False
        self._tidy_at_ms = 0
        self._tidied = 0
        self._holds = 0
        self._held: list[int] = []
        self._carried_exits: dict[int, int] = {}
        self._forgotten: dict[tuple[str, str], int] = {}
        # dedup keys whose time is over: the number of the last of each scope
        self._passed: dict[tuple[str, str], int] = {}
        self.pager = JournalPager(self._read_written, self._flying, spill_directory)

    # Opening

    def open(self) -> Recovery:
        """Own the medium and bring the shard to the state of the last whole batch."""
        shard = self.shard
        epoch = self.medium.acquire()
        shard.pager = self.pager
        self.log.paging = True
        recovery = Recovery(shard, self.medium.read, self.medium.name, self._replay)
        found = self.medium.segments()
        shard.recovering = True
        self._scan(recovery, found)
        shard.end_recovery()
        if recovery.epoch >= epoch:
            name = self.medium.name(int(recovery.last_segment))
            raise StoreDamaged(
                f"{name} has batches of epoch {recovery.epoch}, later than epoch {epoch}, which should be new",
                file=name,
            )
        gone = self._forget_keys()
        recovery.rebuild()
        self._seq = int(recovery.seq)
        shard.epoch = epoch
        # an earlier owner may have given out numbers before it wrote anything, or lost what it wrote
        owners = epoch - int(recovery.epoch)
        shard.last_id = max(int(shard.last_id), int(recovery.ids_ceiling)) + owners * IDS_PER_OWNER
        # what says that a segment is not needed may not be synced yet: resuming does that
        self._first_segment = self.medium.resume(int(recovery.last_segment), int(recovery.last_offset), self._seq)
        self._synced = self._seq
        for number, end in recovery.ends.items():
            if number in recovery.retired:
                self.medium.delete(number)
            else:
                marks, messages = recovery.marks.get(number, 0), recovery.placements.get(number, 0)
                segment = _Segment(number, end, marks, messages)
                segment.state_bytes = recovery.states.get(number, 0)
                segment.exits = recovery.exits.get(number, {})
                segment.stale = number in recovery.stale
                self.segments.append(segment)
        self.log.active = True
        if self.access is not None:
            self.access.on_change = self._access_changed
        if self._compress_min:
            self.log.compress_min = self._compress_min
            self.log.coding = records.ZSTD if self._compression == "zstd" else records.ZLIB
            self.log.pack = packer(self._compression)
        for tenant, scope in gone:
            self.log.change("forget", tenant, {"scope": scope, "upto": int(shard.last_id)})
        for queue in shard.numbered.values():
            queue.journaled = True
        # retention, and commits that were not finished
        shard.streams_due_ms = 0
        return recovery

    def _scan(self, recovery: Recovery, found: list[tuple[int, int]]) -> None:
        try:
            recovery.scan(found, self.medium.recorded_end())
        except StoreError:
            raise
        except Exception as error:  # what another version writes may fail anywhere
            by = self._written_by
            newer = f"Rookery {by}" if by and by != __version__ else "probably a newer version of Rookery"
            raise StoreError(
                f"the journal holds what Rookery {__version__} does not understand ({type(error).__name__}: {error}); "
                f"it was written by {newer}. Start that version or a later one, or restore a backup that was made "
                "before the upgrade (docs/durability.md). No message was changed"
            ) from error

    def _access_changed(self, operation: str, details: dict[str, object]) -> None:
        self.log.change(operation, "", details)

    def _replay(self, kind: int, document: Any) -> None:
        """Apply a document of the journal to the shard."""
        if kind == STATE:
            self._written_by = str(document.get("written_by", ""))
            changes.restore(self.shard, document, self.access)
        elif kind == DEFINE and document["op"] == "forget":
            forgotten = (document["tenant"], document["scope"])
            self._forgotten[forgotten] = max(document["upto"], self._forgotten.get(forgotten, 0))
        elif kind == DEFINE:
            changes.replay(self.shard, document, self.access)
        elif kind == MARK:
            tenant, scope, key, number, until = document
            place = self.shard.tenants.get(tenant)
            now = int(self.shard.wall_ms)
            if place is not None and until <= now:
                # also an earlier use, whose time need not be over: the clock may have been set back between them
                place.dedup.forget(scope, key)
                place.dedup.hidden = True
                self._passed[tenant, scope] = max(number, self._passed.get((tenant, scope), 0))
            elif place is not None:
                # keys that were carried forward stand out of turn: which are too many is seen when all are known
                place.dedup.keys_max = max(place.dedup.keys_max, len(place.dedup) + 1)
                place.dedup.remember(scope, key, number, now, until - now)

    def _forget_keys(self) -> list[tuple[str, str]]:
        """Drop the dedup keys of queues, exchanges and tenants that are gone; others of the same name start afresh.

        Returns what went without a word, because it was transient: the journal must be told.
        """
        now = int(self.shard.wall_ms)
        gone: dict[tuple[str, str], None] = {}
        for tenant in self.shard.tenants.values():
            # by the number of the message that used them first, that is by age
            marks = sorted(tenant.dedup.marks(), key=lambda mark: mark[2])
            hidden = tenant.dedup.hidden
            tenant.dedup = Dedup()
            tenant.dedup.hidden = hidden
            tenant.heed_limits()
            for scope, key, number, until in marks:
                if number > self._forgotten_up_to(tenant, scope):
                    if _has_scope(tenant, scope):
                        tenant.dedup.remember(scope, key, number, now, until - now)
                    else:
                        gone[tenant.name, scope] = None
        for (name, scope), number in self._passed.items():
            # were the clock set back, they would be known again
            place = self.shard.tenants.get(name)
            if place is not None and not _has_scope(place, scope) and number > self._forgotten_up_to(place, scope):
                gone[name, scope] = None
        self._forgotten.clear()
        self._passed.clear()
        return list(gone)

    def _forgotten_up_to(self, tenant: Tenant, scope: str) -> int:
        return max(self._forgotten.get((tenant.name, scope), 0), self._forgotten.get((tenant.name, ""), 0))

    # Writing

    def pump(self) -> None:
        """Hand a batch to the medium, if there is one to write and none in flight."""
        log = self.log
        if self._in_flight is not None or self._syncing or self._closed or log.failure is not None:
            return
        self._look_at_space()
        if self._sync_is_due():
            self._syncing = True
            self._unsynced_since_ms = None
            self.syncs += 1
            self.medium.sync(self._sync_answered)
            return
        if self._retiring is not None:
            try:
                self._retiring.work()
            except (RookeryError, OSError) as error:
                self._segment_failed(error)
                return
        if self._tidy_soon or (not log.pending() and self.shard.mono_ms >= self._tidy_at_ms):
            self._tidy()
        if not log.pending():
            return
        if not (log.wants_sync or log.urgent):
            now = int(self.shard.mono_ms)
            if self._lazy_since_ms is None:
                self._lazy_since_ms = now
            if now - self._lazy_since_ms < LAZY_MS:
                return
        self._lazy_since_ms = None
        self._write()

    def next_due_ms(self) -> int | None:
        """Milliseconds until `pump` has something to do by itself."""
        if self._closed or self.log.failure is not None:
            return None
        if self._retry_at_ms is not None:
            return max(0, self._retry_at_ms - int(self.shard.mono_ms))
        if self._in_flight is not None or self._syncing:
            return None
        if self._retiring is not None and self._retiring.has_work():
            return 0
        waits = []
        if self._full:
            waits.append(self._space_at_ms - int(self.shard.mono_ms))
        if self.batches != self._tidied and len(self.segments) > 1:
            waits.append(self._tidy_at_ms - int(self.shard.mono_ms))
        if self._lazy_since_ms is not None:
            waits.append(self._lazy_since_ms + LAZY_MS - int(self.shard.mono_ms))
        if self._unsynced_since_ms is not None:
            waits.append(self._unsynced_since_ms + SYNC_MS - int(self.shard.mono_ms))
        return max(0, min(waits)) if waits else None

    def _write(self) -> None:
        log = self.log
        taken = log.take_changes()
        if self._first_segment or self.segments[-1].grown() >= self.segment_bytes:
            # the state says all that the changes would
            taken = [change for change in taken if change[0] == "forget"]
            self._note_changes(taken)
            self._roll()
        else:
            self._note_changes(taken)
        segment = self.segments[-1]
        sync = log.wants_sync and self.sync == "always"
        number = int(log.batch)
        if self.shard.last_id + IDS_AHEAD // 2 > log.ids_ceiling:
            log.ids_ceiling = self.shard.last_id + IDS_AHEAD
            log.note_ids(log.ids_ceiling)
        segment.marks += int(log.marks)
        payload = log.take(segment.number, segment.size)
        segment.count_exits(records.exits_by_segment(payload, log.exits_at))
        segment.count_exits(self._carried_exits)
        self._carried_exits = {}
        segment.messages += int(log.puts)
        # the medium syncs a segment before it begins the next
        synced = self._synced if segment.size else self._seq
        self._seq += 1
        data = records.seal(payload, self.shard.epoch, self._seq, synced)
        self._flying_at = segment.size
        segment.size += len(data)
        self.batches += 1
        self.syncs += sync
        self._urgent = not log.puts
        self._in_flight = (number, self._seq, segment.number, data, sync)
        self._append()

    def _note_changes(self, taken: list[tuple[str, str, dict[str, object]]]) -> None:
        """Definitions come before the dedup keys of their batch, which may be the first of a new tenant."""
        worded = []
        for operation, tenant, details in taken:
            w = BytesWriter()
            records.write_document(w, DEFINE, changes.document(operation, tenant, details))
            worded.append(w.getvalue())
        self.log._definitions[:0] = worded

    def _append(self) -> None:
        assert self._in_flight is not None
        _, seq, segment, data, sync = self._in_flight
        self._retry_at_ms = None
        self.medium.append(int(self.shard.epoch), seq, segment, data, sync, self._answered, urgent=self._urgent)

    def _read_written(self, segment: int, offset: int, size: int) -> bytes:
        """Bytes of a segment that are on the medium for certain: not its empty rest, nor the batch in flight."""
        end = next((s.size for s in self.segments if s.number == segment), offset + size)
        if self._in_flight is not None and self._in_flight[2] == segment:
            end = self._flying_at
        return self.medium.read(segment, offset, min(size, end - offset))

    def _flying(self, segment: int, offset: int, size: int) -> bytes | None:
        """The record at a place of the batch in flight and what follows it, `size` bytes if it is no longer; None when
        the place is not in it.
        """
        if self._in_flight is None or self._in_flight[2] != segment or offset < self._flying_at:
            return None
        data, at = self._in_flight[3], offset - self._flying_at
        return data[at : at + max(size, 5 + int(read_i32_be(data, at + 1)))]

    def _answered(self, error: BaseException | None) -> None:
        """The medium's answer, in whatever thread it comes: it is dealt with in the owner's."""
        self._post(lambda: self._done(error))

    def _done(self, error: BaseException | None) -> None:
        if self._in_flight is None:
            return
        if error is not None:
            self._failed(error)
            return
        number, seq, _, _, sync = self._in_flight
        self._in_flight = None
        if sync:
            self._synced = seq
        log = self.log
        log.written = number
        log.durable = number
        log.settle()
        if not sync and self.sync == "interval" and self._unsynced_since_ms is None:
            self._unsynced_since_ms = int(self.shard.mono_ms)
        if self._retiring is not None:
            try:
                self._retiring.settled(number)
            except (RookeryError, OSError) as gone:
                self._segment_failed(gone)
                return
        if self._on_progress is not None:
            self._on_progress()
        self.pump()

    def _failed(self, error: BaseException) -> None:
        """Nothing more is confirmed. What may pass (no room, no answer) is tried again, everything else is final."""
        if isinstance(error, StoreFull):
            self.log.refuse(error)
            self._full = True
            # settles must go on: from here on the batch may use the reserve
            self._urgent = True
            self._retry_at_ms = int(self.shard.mono_ms) + RETRY_MS
        elif isinstance(error, StoreUnavailable):
            self._retry_at_ms = int(self.shard.mono_ms) + RETRY_MS
        else:
            failure = error if isinstance(error, RookeryError) else StoreFailed(str(error))
            self.log.failure = failure
            self.log.refuse(failure)
        if self._on_progress is not None:
            self._on_progress()

    def _segment_failed(self, error: BaseException) -> None:
        """A segment cannot be read or deleted; it may be gone because another owner has taken over."""
        self._failed(StoreFailed(f"a segment of the journal cannot be used: {error}"))

    def retry(self) -> None:
        """Try a batch that met a full or unreachable medium once more, when it is time."""
        if self._retry_at_ms is not None and self.shard.mono_ms >= self._retry_at_ms:
            self._append()

    def _look_at_space(self) -> None:
        """Refuse publishes before the disk is full, and take them again when there is room."""
        now = int(self.shard.mono_ms)
        if now < self._space_at_ms:
            return
        self._space_at_ms = now + SPACE_MS
        free = self.medium.free_bytes()
        full = free < self.free_bytes_min
        if full != self._full:
            self._full = full
            if full:
                self.log.refuse(StoreFull(f"only {free} bytes are free; publishes need {self.free_bytes_min}"))
            else:
                self.log.accept()
            if self._on_progress is not None:
                self._on_progress()

    def _sync_is_due(self) -> bool:
        since = self._unsynced_since_ms
        return since is not None and int(self.shard.mono_ms) - since >= SYNC_MS

    def _sync_answered(self, error: BaseException | None) -> None:
        self._post(lambda: self._sync_done(error))

    def _sync_done(self, error: BaseException | None) -> None:
        self._syncing = False
        if isinstance(error, StoreFull | StoreUnavailable):
            self._unsynced_since_ms = int(self.shard.mono_ms)
        elif error is not None:
            self._failed(error)
            return
        else:
            self._synced = self._seq
        self.pump()

    def _roll(self) -> None:
        """Begin a segment with all that older segments would be needed for, but for messages, keys and settles.

        An owner begins with one of its own. `ends` says what it found of the others: what a fenced owner may yet write
        behind that does not count.
        """
        number = self._first_segment or self.segments[-1].number + 1
        self._first_segment = 0
        ends = {str(segment.number): segment.size for segment in self.segments}
        segment = _Segment(number, 0, 0, 0)
        self.segments.append(segment)
        self.log.open_segment(number)
        self.log.ids_ceiling = 0
        self._tidy_soon = True
        state = changes.state(self.shard, self.access)
        state["segments"] = [segment.number for segment in self.segments]
        state["ends"] = ends
        segment.state_bytes = len(records.encode_json(state))
        self.log.note_first(STATE, state)

    # Holding segments, for whoever reads them in another thread or process

    def hold(self) -> None:
        """Keep every segment from being deleted until `release`."""
        self._holds += 1

    def release(self) -> None:
        """The end of a `hold`: what was retired meanwhile is deleted."""
        self._holds -= 1
        if not self._holds and not self._closed:
            for number in self._held:
                self.medium.delete(number)
            self._held.clear()

    def _delete(self, number: int) -> None:
        if self._holds:
            self._held.append(number)
        else:
            self.medium.delete(number)

    def has_segment(self, number: int) -> bool:
        return any(segment.number == number for segment in self.segments)

    # Retiring segments

    def _tidy(self) -> None:
        """Start to retire a segment if one is worth it: less than half of it would have to be written again."""
        if self._retiring is not None:
            return
        self._tidy_soon = False
        self._tidy_at_ms = int(self.shard.mono_ms) + TIDY_MS
        self._tidied = self.batches
        for segment in self.segments[:-1]:
            if segment.stale:
                self._retiring = _Retiring(self, segment, scan=True, worth=True)
                return
        now = int(self.shard.wall_ms)
        closed = [segment for segment in self.segments[:-1] if segment.kept_until_ms <= now]
        if not closed:
            return
        oldest = self.segments[0]
        if not self.log.live(oldest.number) and not oldest.marks:
            self._retiring = _Retiring(self, oldest, scan=False)
            self._retiring.work()
            return
        numbers = {segment.number for segment in self.segments}
        needed = {segment: self._needed_bytes(segment, numbers) for segment in closed}
        for segment in closed:
            if not self.log.live(segment.number) and needed[segment] * 2 <= segment.grown():
                self._retiring = _Retiring(self, segment, scan=True)
                return
        total = sum(segment.grown() for segment in closed)
        if len(closed) > SMALL_SEGMENTS_MAX and total < len(closed) * self.segment_bytes // 4:
            smallest = min(closed, key=lambda segment: needed[segment])
            self._retiring = _Retiring(self, smallest, scan=True)
            return
        if total > 4 * self.segment_bytes and sum(needed.values()) * 2 < total:
            worst = min(closed, key=lambda segment: needed[segment] / max(1, segment.grown()))
            self._retiring = _Retiring(self, worst, scan=True)

    def _needed_bytes(self, segment: _Segment, numbers: set[int]) -> int:
        """An estimate of what retiring it would write again, but for dedup keys: its settles whose messages are there,
        and the live share of its messages.
        """
        here = segment.number
        exits = sum(size for number, size in segment.exits.items() if number != here and number in numbers)
        live = int(self.log.live(here))
        rest = segment.grown() - sum(segment.exits.values())
        return exits + max(0, rest) * live // max(segment.messages, live, 1)

    # Closing

    def close(self) -> None:
        """Give the medium up; the owner has waited until everything is durable."""
        self._closed = True
        self.pager.close()
        self.medium.close()


class _Retiring:
    """The way of one segment out: worked through in slices, what lives carried forward, then deleted."""

    def __init__(self, journal: Journal, segment: _Segment, scan: bool, worth: bool = False) -> None:
        self.journal = journal
        self.segment = segment
        journal.log.urgent = True
        self._window = Window(journal.medium.read, segment.number, segment.size)
        self._offset = 0 if scan else segment.size
        # which keys and returns are in use is only found by looking; the first time through, they are counted
        self._counting = scan and not worth
        self._used_bytes = 0
        self._returned: set[tuple[int, int]] = set()
        self._wait_for: int | None = None

    def has_work(self) -> bool:
        return self._wait_for is None

    def work(self) -> None:
        """Carry one slice forward, or note that the segment is no longer needed."""
        if self._wait_for is not None:
            return
        journal = self.journal
        if self._offset < self.segment.size:
            self._slice()
            journal.log.urgent = True
            if self._counting and self._offset >= self.segment.size:
                self._counting = False
                self._offset = 0
                self._returned.clear()
                if self._used_bytes * 2 > self.segment.grown():
                    # to write so much again gains nothing, and would never end
                    self.segment.kept_until_ms = int(journal.shard.wall_ms) + KEPT_MS
                    journal._retiring = None
                    journal._tidy_soon = True
            return
        journal.log.note_retired(self.segment.number)
        journal.log.wants_sync = True
        self._wait_for = int(journal.log.batch)

    def _slice(self) -> None:
        done = 0
        while done < SLICE_BYTES and self._offset < self.segment.size:
            at = self._window.need(self._offset, records.BATCH_HEADER_BYTES)
            length = int(records.batch_bytes(self._window.data, at))
            at = self._window.need(self._offset, length)
            reader = records.Reader(self._window.data, at + records.BATCH_HEADER_BYTES, at + length)
            while reader.next():
                if not self._counting:
                    self._carry(reader, self._offset + int(reader.start) - at)
                elif (reader.kind == MARK and self._is_in_use(reader)) or (
                    reader.kind == BACK and self._is_first_return(reader)
                ):
                    self._used_bytes += int(reader.stop - reader.start)
            self._offset += length
            done += length

    def _carry(self, reader: records.Reader, offset: int) -> None:
        journal = self.journal
        here = self.segment.number
        kind = reader.kind
        if kind == PUT:
            placements = []
            for _ in range(reader.placements):
                reader.placement()
                queue = journal.shard.numbered.get(int(reader.queue))
                if queue is None:
                    continue
                entry = queue.find(reader.seq)
                if entry is not None and entry.message.segment == here:
                    placements.append((queue, entry))
                elif entry is None and queue.lines.place_of(reader.seq) == here << PLACE_BITS | offset:
                    journal.log.move_paged(queue, reader.seq, reader.raw())
            if placements:
                journal.log.move(placements)
        elif kind == RECORD:
            at = int(reader.seq)
            alias = journal.shard.staging.aliases.get(int(reader.queue))
            number = int(reader.queue)
            if alias is not None:
                number, at = alias.partition, alias.base + at
            partition = journal.shard.partitions.get(number)
            if partition is not None and partition.holds(at, here << PLACE_BITS | offset):
                journal.log.move_record(partition, at, reader.raw())
        elif kind in (EXIT, EXITS):
            if reader.segment != here and journal.has_segment(int(reader.segment)):
                journal.log.note_raw(reader.raw())
                carried = journal._carried_exits
                size = int(reader.stop - reader.start)
                carried[int(reader.segment)] = carried.get(int(reader.segment), 0) + size
        elif kind == BACK:
            # as it is now: a later return may stand in another segment
            queue = journal.shard.numbered.get(int(reader.queue))
            entry = None if queue is None else queue.find(reader.seq)
            if queue is None or not self._is_first_return(reader):
                return
            if entry is not None:
                journal.log.back(queue, entry)
            else:
                self._note_paged_return(queue, reader.seq)
        elif kind == MARK:
            if self._is_in_use(reader):
                journal.log.note(MARK, reader.document(), False)
        elif kind == DEFINE and self.segment is not journal.segments[0]:
            # an older segment may hold the keys that are to be forgotten
            change = cast(dict[str, Any], reader.document())
            if change["op"] == "forget":
                journal.log.note(DEFINE, change, False)

    def _note_paged_return(self, queue: Queue, seq: int) -> None:
        w = BytesWriter()
        meta = queue.lines.meta_of(seq)
        segment = queue.lines.place_of(seq) >> PLACE_BITS
        records.write_back(w, queue.number, seq, segment, 0, (meta & 0xFFFFFFFF) >> 1, meta & 1)
        self.journal.log.note_raw(w.getvalue())

    def _is_first_return(self, reader: records.Reader) -> bool:
        """Whether a return may be the last of an entry that is still there, and is the first such one here.

        An entry that has other attempts by now, or another delay, came back again, and a later record says so.
        """
        which = (int(reader.queue), int(reader.seq))
        queue = self.journal.shard.numbered.get(which[0])
        if queue is None or which in self._returned:
            return False
        entry = queue.find(reader.seq)
        if entry is None:
            last = queue.lines.place_of(reader.seq) != 0
        else:
            attempts = int(entry.attempts) - int(reader.attempts)
            last = entry.message.segment != 0 and (attempts == 0 or (attempts == 1 and entry.state == LEASED))
            last = last and (entry.state != DELAYED or reader.due_ms == entry.due_ms)
        if last:
            self._returned.add(which)
        return last

    def _is_in_use(self, reader: records.Reader) -> bool:
        """Whether a dedup key is still remembered for the message that it was first used for."""
        shard = self.journal.shard
        name, scope, key, number, _ = cast(list[Any], reader.document())
        tenant = shard.tenants.get(name)
        return tenant is not None and tenant.dedup.find(scope, key, shard.wall_ms) == number

    def settled(self, batch: int) -> None:
        """A batch is durable: once that holds for the note that retires the segment, it may go."""
        if self._wait_for is not None and batch >= self._wait_for:
            journal = self.journal
            journal.segments.remove(self.segment)
            journal._delete(self.segment.number)
            journal.retired += 1
            journal._retiring = None
            journal._tidy_soon = True


def _has_scope(tenant: Tenant, scope: str) -> bool:
    """Whether what a dedup key was used on is there."""
    kind, _, name = scope.partition(":")
    return name in tenant.queues or name in tenant.streams if kind == "queue" else name in tenant.exchanges


__all__ = ["READ_BYTES", "SYNCS", "Journal"]

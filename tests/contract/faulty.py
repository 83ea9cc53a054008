"""A medium in memory that fails on command: for the contract suite and for the simulation.

The faults are those of real disks and networks, and each leaves what recovery is owed:

- a crash of the process keeps what was written, a crash of the machine what was synced; of the rest, any part may be
  left (`crash(tail=…)`), but only behind all that was synced, because a segment is synced before the next is begun;
- a delete may come undone, but only the last ones, and only while nothing later was written (`crash(undelete=…)`);
- a failed write or sync makes the medium fail for good, so nothing is ever confirmed behind a hole;
- no space leaves nothing of the batch; a short write is completed;
- an answer may come late, or say that the outcome is unknown: repeating the append resolves it;
- without `exclusive`, a second owner takes over while the first one goes on. As with files, the first notices that only
  after it has written.

Callbacks are called before the call returns, except for an append or sync that is held.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from rookery.errors import (
    Fenced,
    InvalidArgument,
    RookeryError,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from rookery.store.medium import Done, Medium

PLENTY = 1 << 40


class Fault(Enum):
    """What happens to one append or sync."""

    SHORT_WRITE = "half of the batch is written, then the rest"
    WRITE_ERROR = "half of the batch is written, then the disk fails"
    SYNC_ERROR = "the batch is written, the sync fails"
    NO_SPACE = "the disk is full"
    SLOW = "the batch is written; the sync and the answer wait for release()"
    ANSWER_LOST = "the batch is written and synced as asked; the answer is StoreUnavailable"
    REQUEST_LOST = "nothing happens; the answer is StoreUnavailable"


@dataclass
class Piece:
    """A segment: its bytes, up to where batches were written, and up to where they are synced."""

    data: bytearray = field(default_factory=bytearray)
    end: int = 0
    synced: int = 0

    def put(self, data: bytes) -> None:
        self.data[self.end : self.end + len(data)] = data
        self.end += len(data)


@dataclass
class Disk:
    """What outlives a process. Set `capacity_bytes` to make it full, or give it room again."""

    capacity_bytes: int = PLENTY
    epoch: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)
    deletes: list[tuple[int, Piece]] = field(default_factory=list)
    reserve_bytes: int = 0
    owner: FaultyMedium | None = None
    end: tuple[int, int] = (0, 0)

    def used_bytes(self) -> int:
        return self.reserve_bytes + sum(len(piece.data) for piece in self.pieces.values())

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes())


class FaultyMedium(Medium):
    """`script` says what happens to the next appends and syncs, `crash` gives what the next process finds.

    With `exclusive` a second owner is refused while the first lives, as with files; without, it fences the first out.
    """

    def __init__(
        self, disk: Disk | None = None, *, exclusive: bool = True, segment_bytes: int = 4096, reserve_bytes: int = 0
    ) -> None:
        self.disk = Disk() if disk is None else disk
        self.syncs = 0
        self.writes = 0
        self._exclusive = exclusive
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self._script: deque[Fault | None] = deque()
        self._epoch = 0
        self._listed: dict[int, int] | None = None
        self._last = 0
        self._begun = 0
        self._seq = 0
        self._last_data: bytes | None = None
        self._resumed = False
        self._in_flight = False
        self._held: Callable[[Fault | None], None] | None = None
        self._waiting: list[Callable[[], None]] = []
        self._hidden: set[int] = set()
        self._failure: str | None = None
        self._closed = False

    # What a test does to it

    def script(self, *faults: Fault | None) -> None:
        """The fates of the next appends and syncs, in order; None for a good one."""
        self._script.extend(faults)

    @property
    def held(self) -> bool:
        """Whether an answer waits for release()."""
        return self._held is not None

    def release(self, fault: Fault | None = None) -> None:
        """Let what is held go on; it ends well, or with SYNC_ERROR, ANSWER_LOST."""
        held = self._held
        assert held is not None, "nothing is held"
        self._held = None
        held(fault)
        while self._waiting and self._held is None:
            self._waiting.pop(0)()

    def crash(self, *, tail: Callable[[bytes], bytes] = lambda unsynced: b"", undelete: int = 0) -> FaultyMedium:
        """End this process, and give what the next one finds. It may be called again for another outcome.

        `tail` makes of the unsynced bytes those that survive: none (the default), all (the process died, not the
        machine), a part. The last `undelete` deletes come undone, as far as they can.
        """
        self._closed = True
        disk = Disk(self.disk.capacity_bytes, self.disk.epoch, copy.deepcopy(self.disk.pieces), end=self.disk.end)
        for number, piece in self.disk.deletes[len(self.disk.deletes) - undelete :] if undelete else ():
            disk.pieces[number] = copy.deepcopy(piece)
        for piece in disk.pieces.values():
            laid_out = len(piece.data)
            survives = tail(bytes(piece.data[piece.synced : piece.end])) if piece.synced < piece.end else b""
            piece.data[piece.synced :] = survives + bytes(max(0, laid_out - piece.synced - len(survives)))
            piece.end = piece.synced + len(survives)
        return FaultyMedium(
            disk, exclusive=self._exclusive, segment_bytes=self._segment_bytes, reserve_bytes=self._reserve_bytes
        )

    # The contract

    def acquire(self) -> int:
        self._check_usable()
        owner = self.disk.owner
        if self._exclusive and owner is not None and owner is not self and not owner._closed:
            raise StoreLocked(f"the shard is in use by {owner!r}")
        self.disk.owner = self
        self.disk.epoch += 1
        self._epoch = self.disk.epoch
        self._listed = None
        self._take_reserve()
        return self._epoch

    def segments(self) -> list[tuple[int, int]]:
        self._check_usable()
        hidden = self._hidden | {self._begun}
        found = sorted((n, len(piece.data)) for n, piece in self.disk.pieces.items() if n not in hidden)
        if self._listed is None and self._epoch:
            self._listed = dict(found)
        return found

    def recorded_end(self) -> tuple[int, int]:
        self._check_usable()
        return self.disk.end

    def name(self, segment: int) -> str:
        return f"segment {segment}"

    def read(self, segment: int, offset: int, size: int) -> bytes:
        self._check_usable()
        for argument, value in (("offset", offset), ("size", size)):
            if value < 0:
                raise InvalidArgument(f"{argument} cannot be negative", argument=argument)
        piece = self.disk.pieces.get(segment)
        if piece is None:
            raise InvalidArgument(f"there is no segment {segment}", argument="segment")
        return bytes(piece.data[offset : offset + size])

    def resume(self, segment: int, offset: int, seq: int) -> int:
        self._check_usable()
        self._check_sound()
        pieces = self.disk.pieces
        self.segments()
        assert self._listed is not None
        later = [number for number in self._listed if number > segment]
        if segment != 0 and segment not in pieces:
            raise InvalidArgument(f"the journal cannot end in segment {segment}", argument="segment")
        if not 0 <= offset <= (len(pieces[segment].data) if segment else 0):
            raise InvalidArgument(f"segment {segment} has no offset {offset}", argument="offset")
        if seq < 0 or (segment == 0 and seq != 0):
            raise InvalidArgument(f"the journal cannot end with batch {seq} there", argument="seq")
        newest = max(self._listed, default=0)
        if newest < self.disk.end[0] or seq < self.disk.end[1]:
            raise StoreDamaged(f"segment {newest}, batch {seq} is the last one, not {self.disk.end}: some are missing")
        self._check_owner()
        if segment:
            piece = pieces[segment]
            del piece.data[offset:]
            piece.end = piece.synced = offset
        self._begun = newest + 1
        while self._begun in pieces:
            self._begun += 1
        pieces[self._begun] = Piece()
        self._lay_out(pieces[self._begun])
        self.disk.end = (self._begun, seq)
        for number in later:
            pieces.pop(number, None)
        self._last = 0
        self._seq = seq
        self._last_data = None
        self._resumed = True
        return self._begun

    def append(
        self, epoch: int, seq: int, segment: int, data: bytes, sync: bool, done: Done, *, urgent: bool = False
    ) -> None:
        self._check_usable()
        assert self._resumed, "resume first"
        assert not self._in_flight, "one append at a time"
        self._in_flight = True

        def answer(error: BaseException | None) -> None:
            self._in_flight = False
            done(error)

        self._soon(lambda: self._append(epoch, seq, segment, data, sync, urgent, answer))

    def sync(self, done: Done) -> None:
        self._check_usable()
        self._soon(lambda: self._sync(done))

    def delete(self, segment: int) -> None:
        self._check_usable()
        numbers = [number for number, _ in self.segments()]
        if segment not in numbers:
            raise InvalidArgument(f"there is no segment {segment}", argument="segment")
        if segment == numbers[-1] and not self._begun:
            raise InvalidArgument(f"segment {segment} is the last one", argument="segment")
        self._hidden.add(segment)
        self._soon(lambda: self._delete(segment))

    def free_bytes(self) -> int:
        return self.disk.free_bytes()

    def close(self) -> None:
        if self._closed:
            return
        while self._held is not None:
            self.release()
        self._closed = True
        if self.disk.owner is not self:
            return
        self.disk.owner = None
        if self._resumed and self._failure is None:
            for number in {self._last, self._begun} & self.disk.pieces.keys():
                piece = self.disk.pieces[number]
                del piece.data[piece.end :]
            self._sync_all()
            self.disk.end = (self._begun or self._last, self._seq)

    # How it works

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError("the medium is closed")

    def _check_sound(self) -> None:
        if self._failure is not None:
            raise StoreFailed(self._failure)

    def _check_owner(self) -> None:
        if self.disk.epoch != self._epoch:
            raise Fenced(f"epoch {self._epoch} is not current, {self.disk.epoch} is")

    def _soon(self, job: Callable[[], None]) -> None:
        """Now, or in turn after what is held."""
        if self._held is None and not self._waiting:
            job()
        else:
            self._waiting.append(job)

    def _next_fault(self) -> Fault | None:
        return self._script.popleft() if self._script else None

    def _append(self, epoch: int, seq: int, segment: int, data: bytes, sync: bool, urgent: bool, done: Done) -> None:
        fault = self._next_fault()
        self.disk.deletes.clear()
        try:
            self._check_sound()
            if epoch != self._epoch:
                raise Fenced(f"epoch {epoch} is not current, {self._epoch} is")
            if fault is Fault.REQUEST_LOST:
                raise StoreUnavailable
            if seq != self._seq or segment != self._last or data != self._last_data:
                following = self._begun or self._last + 1
                if seq != self._seq + 1 or segment not in (self._last, following) or segment == 0:
                    raise StoreError(f"batch {seq} in {segment} does not follow batch {self._seq} in {self._last}")
                self._store(segment, data, urgent, fault)
                self._seq = seq
                self._last_data = data
        except RookeryError as error:
            done(error)
            return
        self._end(fault, sync, done)

    def _end(self, fault: Fault | None, sync: bool, done: Done) -> None:
        """Sync if asked, and answer."""
        if fault is Fault.SLOW:
            self._held = lambda end: self._end(end, sync, done)
            return
        error: StoreError | None = None
        if self._failure is not None:
            error = StoreFailed(self._failure)
        elif fault is Fault.SYNC_ERROR:
            error = self._fail("the sync failed")
        elif sync:
            self._sync_all()
        if error is None:
            try:
                self._check_owner()
            except Fenced as fenced:
                error = fenced
        if fault is Fault.ANSWER_LOST:
            error = StoreUnavailable()
        done(error)

    def _sync(self, done: Done) -> None:
        self.disk.deletes.clear()
        self._end(self._next_fault(), True, done)

    def _sync_all(self) -> None:
        piece = self.disk.pieces.get(self._last)
        if piece is not None:
            self.syncs += piece.synced < piece.end
            piece.synced = piece.end

    def _store(self, segment: int, data: bytes, urgent: bool, fault: Fault | None) -> None:
        if fault is Fault.NO_SPACE:
            raise StoreFull
        if not urgent and not self._take_reserve():
            raise StoreFull("what is left is reserved")
        begins = segment != self._last
        if begins and not self._begun:
            self._check_owner()
            if segment in self.disk.pieces:
                raise self._fail("the segment exists")
        piece = self.disk.pieces.get(segment, Piece())
        growth = piece.end + len(data) - len(piece.data)
        if growth > self.disk.free_bytes() and urgent:
            self.disk.reserve_bytes = 0
        if growth > self.disk.free_bytes():
            raise StoreFull
        if begins:
            self._sync_all()
            old = self.disk.pieces.get(self._last)
            if old is not None:
                del old.data[old.end :]
            if not self._begun:
                self.disk.pieces[segment] = piece
                self.disk.end = (segment, self._seq)
                self._lay_out(piece)
            self._last = segment
            self._begun = 0
        half = len(data) // 2 if fault in (Fault.SHORT_WRITE, Fault.WRITE_ERROR) else len(data)
        piece.put(data[:half])
        self.writes += 1
        if fault is Fault.WRITE_ERROR:
            raise self._fail("the write failed")
        if half < len(data):
            piece.put(data[half:])
            self.writes += 1

    def _lay_out(self, piece: Piece) -> None:
        growth = self._segment_bytes - len(piece.data)
        if 0 < growth <= self.disk.free_bytes():
            piece.data.extend(bytes(growth))

    def _take_reserve(self) -> bool:
        disk = self.disk
        if disk.reserve_bytes < self._reserve_bytes <= disk.free_bytes():
            disk.reserve_bytes = self._reserve_bytes
        return disk.reserve_bytes >= self._reserve_bytes

    def _delete(self, segment: int) -> None:
        self._hidden.discard(segment)
        if self._failure is None and self.disk.epoch == self._epoch:
            self._sync_all()
            self.disk.deletes.append((segment, self.disk.pieces.pop(segment)))
            self._take_reserve()

    def _fail(self, why: str) -> StoreFailed:
        self._failure = f"{why}, nothing more is confirmed"
        return StoreFailed(self._failure)

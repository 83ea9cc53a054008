"""The medium of a simulated journal, and what the death of a process or of a machine leaves of it.

`Watched` keeps its own account of what was answered, and what was synced, beside what the journal says.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rookery.store.medium import Done
from tests.contract.faulty import Disk, Fault, FaultyMedium

PASSING = (Fault.SHORT_WRITE, Fault.NO_SPACE, Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.SLOW, Fault.SLOW, Fault.SLOW)
"""Faults that a journal lives through."""

FATAL = (Fault.WRITE_ERROR, Fault.SYNC_ERROR)
"""Faults after which nothing more may be confirmed."""

BLOCK_BYTES = 64
"""What a torn write is torn into."""


class Watched(FaultyMedium):
    """Counts the batches that were answered with success, and those among them that were synced."""

    def __init__(
        self, disk: Disk | None, *, segment_bytes: int, reserve_bytes: int, between: Callable[[], None] | None = None
    ) -> None:
        super().__init__(disk, exclusive=between is None, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)
        self._between = between
        self.answered = 0
        self.synced = 0
        self.flying_bytes = 0
        self.sync_failures = 0

    def append(
        self, epoch: int, seq: int, segment: int, data: bytes, sync: bool, done: Done, *, urgent: bool = False
    ) -> None:
        self.flying_bytes = len(data)

        def answered(error: BaseException | None) -> None:
            self.flying_bytes = 0
            if error is None:
                self.answered = seq
                self.synced = seq if sync else self.synced
            done(error)

        super().append(epoch, seq, segment, data, sync, answered, urgent=urgent)

    def sync(self, done: Done) -> None:
        seq = self.answered

        def answered(error: BaseException | None) -> None:
            if error is None:
                self.synced = seq
            else:
                self.sync_failures += 1
            done(error)

        super().sync(answered)

    # While a new owner takes over, the old one goes on between any two things that it does.

    def _linger(self) -> None:
        if self._between is not None:
            self._between()

    def acquire(self) -> int:
        self._linger()
        epoch = super().acquire()
        self._linger()
        return epoch

    def segments(self) -> list[tuple[int, int]]:
        found = super().segments()
        self._linger()
        return found

    def read(self, segment: int, offset: int, size: int) -> bytes:
        self._linger()
        return super().read(segment, offset, size)

    def resume(self, segment: int, offset: int, seq: int) -> int:
        begun = super().resume(segment, offset, seq)
        self._linger()
        self._between = None
        return begun

    def die(self, rng: Random) -> Disk:
        """The process ends: what it had written is there, but of a write that was not answered any part may be."""
        cut = rng.randint(0, self.flying_bytes) if self.held and rng.random() < 0.7 else 0
        return self.crash(
            tail=lambda unsynced: unsynced[: max(0, len(unsynced) - cut)], undelete=self._undelete(rng)
        ).disk

    def cut_power(self, rng: Random) -> Disk:
        """The machine ends: of what was not synced, any part may be there."""
        return self.crash(tail=_remains(rng), undelete=self._undelete(rng)).disk

    def _undelete(self, rng: Random) -> int:
        return rng.choice((0, 0, 1, 2))


def _remains(rng: Random) -> Callable[[bytes], bytes]:
    """What a machine's death makes of the unsynced end of a segment."""
    kind = rng.choice(("nothing", "nothing", "all", "beginning", "beginning", "holes", "noise"))

    def remains(unsynced: bytes) -> bytes:
        if kind == "nothing":
            return b""
        if kind == "beginning":
            return unsynced[: rng.randint(0, len(unsynced))]
        blocks = [unsynced[at : at + BLOCK_BYTES] for at in range(0, len(unsynced), BLOCK_BYTES)]
        if kind == "holes":
            blocks = [bytes(len(block)) if rng.random() < 0.4 else block for block in blocks]
        elif kind == "noise":
            blocks[-1] = rng.randbytes(len(blocks[-1]))
        return b"".join(blocks)

    return remains

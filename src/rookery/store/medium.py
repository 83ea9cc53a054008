"""What a journal is written to: the contract that files fulfil, and that Redis and PostgreSQL are planned to.

A medium keeps the journal of one shard as numbered segments and knows nothing of what the bytes mean. An owner lives
like this: `acquire`, read what is there, `resume` at the end that it found, then `append` batch after batch.

The invariant: a batch whose append was answered with success is on the medium whole, exactly once, after every batch
answered before it and under an epoch that was current; and if the append asked for a sync, it outlives the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

Done = Callable[[BaseException | None], None]
"""Called exactly once with the outcome: None for success, else a StoreError. It may be called in another thread, and
before the call that it was handed to has returned. It may itself start the next append."""


class Medium(ABC):
    """One shard's journal on some medium. Methods are called by the owner's thread; `read` may be called by any."""

    repair_advice = ""
    """What a person can do about a damaged journal, as the end of an error message."""

    @abstractmethod
    def acquire(self) -> int:
        """Become the owner: a new epoch, higher than any before it and durable when this returns.

        Appends under an earlier epoch are refused from then on. Where a medium can tell that another owner is alive
        (files: a lock that dies with its process), it raises StoreLocked, naming that owner, and changes nothing.
        """

    @abstractmethod
    def segments(self) -> list[tuple[int, int]]:
        """(number, size in bytes) of every segment, ascending.

        The size is an upper bound: zeros may follow the last batch of a segment where space was laid out in advance.
        """

    @abstractmethod
    def recorded_end(self) -> tuple[int, int]:
        """(segment, batch) as they were when a segment was last begun, or the medium closed: the newest segment, and
        the last batch before it, or in it. (0, 0) if nothing was recorded.

        The journal has all batches up to that one. In earlier segments, it has no later ones: those are of an owner
        that was fenced, and were not answered.
        """

    @abstractmethod
    def name(self, segment: int) -> str:
        """What to call the segment in messages and logs, such as its path. For people only: nothing reads from it."""

    def path(self, segment: int) -> str | None:
        """The file of a segment, which another process on this machine can read; None where there is no such file.

        What stands in a segment without one is read with `read` and handed over.
        """
        return None

    @abstractmethod
    def read(self, segment: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only where the segment ends.

        InvalidArgument for a segment that is not there, StoreDamaged for bytes that the medium cannot give.
        """

    @abstractmethod
    def resume(self, segment: int, offset: int, seq: int) -> int:
        """The journal ends at `offset` of `segment` with batch `seq`: the next append is seq + 1, and begins the
        segment whose number this returns: later than any that was listed, so no owner writes into another's segment.

        What lies beyond the end is the rest of unfinished appends, and is removed: later bytes of the segment are zeros
        or not there, later segments are gone. A place that is not there raises InvalidArgument and changes nothing.
        `resume(0, 0, 0)` is for a journal without any batch.

        A journal that ends before its recorded end raises StoreDamaged, which says what is missing.
        """

    @abstractmethod
    def append(
        self, epoch: int, seq: int, segment: int, data: bytes, sync: bool, done: Done, *, urgent: bool = False
    ) -> None:
        """Write one batch at the end of the journal, and sync it and all before it if `sync`; `done` gets the outcome.

        At most one append is in flight. It is accepted if `epoch` is current (else Fenced), `seq` is the last accepted
        one + 1, and `segment` is the last one, or the last + 1 to begin a new one (else StoreError; after `resume` only
        the one that it gave will do). Before that, all other segments are synced. Success says that the epoch was still
        current after the batch was written, and synced if that was asked for. Repeating the append accepted last, with
        the same data, is success and writes nothing twice.

        StoreFull: there was no room, nothing of the batch is left, and the same or another batch may be tried later.
        Ordinary batches leave a reserve alone; `urgent` is for batches that make room or take none for long (settles,
        compaction): they may use it. StoreUnavailable: the outcome is not known; repeat the append to learn it. Every
        other failure to write or sync is StoreFailed, then and for every later append: the batch may be there or not.
        """

    @abstractmethod
    def sync(self, done: Done) -> None:
        """Make everything appended so far outlive the machine; fails as `append` does."""

    @abstractmethod
    def delete(self, segment: int) -> None:
        """Remove a segment that is not the last one. It is listed no more.

        Appends and deletes reach the disk in the order of the calls, whether they asked for a sync or not: a segment is
        gone only after all that was appended before is synced. So a crash may bring back the segments deleted last,
        never one deleted before them, and never one whose delete came before a batch that is still there. A delete that
        fails makes the medium fail (see `append`).
        """

    @abstractmethod
    def free_bytes(self) -> int:
        """How much more the medium can take, not counting the reserve and space laid out in advance."""

    @abstractmethod
    def close(self) -> None:
        """Wait for what is in flight, then give up ownership; the medium object cannot be used any more."""

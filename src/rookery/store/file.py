"""The medium on a local file system: a directory of segment files, written and synced by one thread.

    00000001.log …   the segments; the one in use is laid out in advance and ends in zeros
    lock             held by the owner, whose pid and time of acquisition are in it
    epoch            the number of the newest ownership
    end              the newest segment that was begun, and a batch that the journal certainly has: `segment batch`
    reserve          space that is given up when an urgent batch meets a full disk
    failed           left behind when a write or sync failed: the next owner writes the last segments again

The thread does everything that changes the journal, in the order of the calls. It never retries what failed: after an
error of the disk nobody knows what is on it.

Locks keep a second owner out. Where they fail, the epoch decides. An owner looks at it after each batch, before it
answers, so a batch that was answered was written before the epoch was raised, and the next owner, who reads the journal
after that, finds it. Owners share no file that they write: each creates its segments, under numbers that were never in
use, and removes only what it had listed while the epoch was its own (`docs/durability.md` has the argument).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from rookery.errors import Fenced, InvalidArgument, RookeryError, StoreDamaged, StoreError, StoreFailed, StoreFull
from rookery.store import disk
from rookery.store.medium import Done, Medium
from rookery.store.ownership import Ownership, check_end, read_end

SEGMENT_BYTES: Final = 64 << 20
RESERVE_BYTES: Final = 8 << 20

WriteFile = Callable[[int, memoryview, int], int]
SyncFile = Callable[[int], None]

_PIECE_BYTES: Final = 1 << 20
_SEGMENT_NAME: Final = re.compile(r"(\d{8,})\.log")


class FileMedium(Medium):
    """A shard's journal in a directory of its own; `Medium` says what each method promises.

    `segment_bytes` is how much is laid out in advance, not a limit; 0 lets files grow. `reserve_bytes` of 0 keeps no
    reserve. `write_file` (descriptor, data, offset → bytes written) and `sync_file` stand between this and the disk.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        write_file: WriteFile = disk.write_at,
        sync_file: SyncFile = disk.sync_data,
    ) -> None:
        for argument, value in (("segment_bytes", segment_bytes), ("reserve_bytes", reserve_bytes)):
            if value < 0:
                raise InvalidArgument(f"{argument} cannot be negative", argument=argument)
        # The process may change its working directory later.
        self._directory = Path(directory).absolute()
        self.repair_advice = f"run `rookery doctor --repair {directory}` to salvage what is left"
        self._segment_bytes = segment_bytes
        self._write_file = write_file
        self._sync_file = sync_file
        self._reserve = disk.Reserve(self._directory / "reserve", reserve_bytes)
        self._readers = disk.Readers()
        self._ownership = Ownership(self._directory)
        self._listed: dict[int, int] | None = None
        self._tail: _Tail | None = None
        self._begun: _Tail | None = None
        self._seq = 0
        self._last_bytes = -1
        self._resumed = False
        self._in_flight = False
        self._deleted: set[int] = set()
        self._failure: str | None = None
        self._unusable: str | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._sweepers: list[threading.Thread] = []

    # Ownership

    def acquire(self) -> int:
        self._check_usable()
        assert not self._in_flight, "an append is in flight"
        try:
            try:
                self._own()
            except OSError as error:
                if error.errno not in disk.FULL or not self._reserve.give_up():
                    raise
                self._own()
            self._reserve.take()
        except OSError as error:
            self._disown()
            kind = StoreFull if error.errno in disk.FULL else StoreError
            raise kind(f"the data directory {self._directory} cannot be used: {error}") from error
        except StoreError:
            self._disown()
            raise
        return self._ownership.epoch

    def _own(self) -> None:
        directory = self._directory
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            parent = disk.open_directory(directory.parent)
            disk.sync_directory(parent)
            disk.close_directory(parent)
        _OWNED.add(self)
        self._ownership.acquire(not self._list())
        self._listed = None

    def _disown(self) -> None:
        self._ownership.release()
        _OWNED.discard(self)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise StoreError(self._unusable)

    # Reading

    def segments(self) -> list[tuple[int, int]]:
        self._check_usable()
        begun = 0 if self._begun is None else self._begun.number
        found = [(number, size) for number, size in self._list() if number != begun]
        if self._listed is None and self._ownership.held:
            self._listed = dict(found)
        return found

    def _list(self) -> list[tuple[int, int]]:
        found = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    match = _SEGMENT_NAME.fullmatch(entry.name)
                    number = 0 if match is None else int(match[1])
                    if number == 0 or number in self._deleted or entry.name != _segment_name(number):
                        continue
                    if not entry.is_file(follow_symlinks=False):
                        raise StoreDamaged(f"{entry.path} is no regular file", file=entry.path)
                    # A segment may go while this looks.
                    with contextlib.suppress(FileNotFoundError):
                        found.append((number, entry.stat(follow_symlinks=False).st_size))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"the data directory {self._directory} cannot be read: {error}") from error
        return sorted(found)

    def recorded_end(self) -> tuple[int, int]:
        self._check_usable()
        return read_end(self._directory)

    def name(self, segment: int) -> str:
        return str(self._path(segment))

    def path(self, segment: int) -> str | None:
        return str(self._path(segment))

    def read(self, segment: int, offset: int, size: int) -> bytes:
        self._check_usable()
        for argument, value in (("offset", offset), ("size", size)):
            if value < 0:
                raise InvalidArgument(f"{argument} cannot be negative", argument=argument)
        path = self._path(segment)
        try:
            return self._readers.read(segment, path, offset, size)
        except FileNotFoundError:
            raise InvalidArgument(f"there is no segment {path}", argument="segment") from None
        except OSError as error:
            if error.errno in disk.NOT_NOW:
                raise StoreError(f"{path} cannot be opened: {error}") from error
            raise StoreDamaged(f"{path} cannot be read at {offset}: {error}", file=str(path), offset=offset) from error

    def _path(self, segment: int) -> Path:
        return self._directory / _segment_name(segment)

    # Writing: what the owner calls

    def resume(self, segment: int, offset: int, seq: int) -> int:
        self._check_usable()
        assert self._ownership.held, "acquire first"
        answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._submit(lambda: self._answer(lambda: self._resume(segment, offset, seq), answers.put))
        error = answers.get()
        if error is not None:
            raise error
        assert self._begun is not None
        return self._begun.number

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

        self._submit(lambda: self._answer(lambda: self._append(epoch, seq, segment, data, sync, urgent), answer))

    def sync(self, done: Done) -> None:
        self._check_usable()
        self._submit(lambda: self._answer(self._sync_all, done))

    def delete(self, segment: int) -> None:
        self._check_usable()
        assert self._ownership.held, "acquire first"
        path = self._path(segment)
        if segment in self._deleted or not path.exists():
            raise InvalidArgument(f"there is no segment {path}", argument="segment")
        tail = self._tail
        if segment == (self._list()[-1][0] if tail is None else tail.number):
            raise InvalidArgument(f"segment {segment} is the last one", argument="segment")
        self._deleted.add(segment)
        self._submit(lambda: self._answer(lambda: self._delete(segment), lambda _: None))

    def free_bytes(self) -> int:
        self._check_usable()
        try:
            return shutil.disk_usage(self._directory).free
        except OSError as error:
            raise StoreError(f"the data directory {self._directory} cannot be read: {error}") from error

    def close(self) -> None:
        assert threading.current_thread() is not self._thread, "a callback cannot close the medium"
        if self._unusable is not None:
            return
        self._unusable = f"the medium {self._directory} is closed"
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        for sweeper in self._sweepers:
            sweeper.join()
        if self._resumed and self._failure is None:
            # without it the next start is as after a crash
            with contextlib.suppress(OSError, StoreError):
                self._close_in_order()
        self._close_tails()
        self._readers.close()
        self._disown()

    def _close_in_order(self) -> None:
        """Leave segments that end with their last batch, and say which that is."""
        self._ownership.check()
        for tail in (self._tail, self._begun):
            if tail is not None:
                os.ftruncate(tail.fd, tail.end)
        self._sync()
        newest = self._begun or self._tail
        if newest is not None:
            self._ownership.record_end(newest.number, self._seq)

    def _close_tails(self) -> None:
        for tail in (self._tail, self._begun):
            if tail is not None:
                os.close(tail.fd)
        self._tail = self._begun = None

    def _abandon(self) -> None:
        """In a forked child: the parent's journal is none of its business, and the lock must die with the parent."""
        self._unusable = f"the medium {self._directory} belongs to the process that this one was forked from"
        self._close_tails()
        self._ownership.abandon()
        # The old ones may be locked by a thread that does not exist here.
        self._readers = disk.Readers()

    # The thread

    def _submit(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name="rookery-journal", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _answer(self, work: Callable[[], None], done: Done) -> None:
        """Do the work, and answer exactly once. Whatever is not a plain refusal makes the medium fail for good."""
        error: BaseException | None = None
        try:
            work()
        except RookeryError as refusal:
            error = refusal
        except BaseException as failure:  # noqa: BLE001 - after a defect nothing may be confirmed either
            error = self._fail(failure)
        done(error)

    def _fail(self, error: BaseException) -> StoreFailed:
        if self._failure is None:
            self._failure = f"the journal in {self._directory} failed, nothing more is confirmed: {error!r}"
            with contextlib.suppress(OSError):
                disk.write_text(self._directory / "failed", f"{error!r}\n", sync=False)
        failed = StoreFailed(self._failure)
        failed.__cause__ = error
        return failed

    def _check_sound(self) -> None:
        if self._failure is not None:
            raise StoreFailed(self._failure)
        self._ownership.check_known()

    # Writing: in the thread

    def _resume(self, segment: int, offset: int, seq: int) -> None:
        self._check_sound()
        self.segments()
        sizes = self._listed
        assert sizes is not None
        later = [number for number in sizes if number > segment and number not in self._deleted]
        if segment != 0 and segment not in sizes:
            raise InvalidArgument(f"there is no segment {self._path(segment)}", argument="segment")
        # A fenced owner may have written on after the listing.
        if not 0 <= offset <= (self._path(segment).stat().st_size if segment else 0):
            raise InvalidArgument(f"{self._path(segment)} has no offset {offset}", argument="offset")
        if seq < 0 or (segment == 0 and seq != 0):
            raise InvalidArgument(f"the journal cannot end with batch {seq} there", argument="seq")
        newest = max(sizes, default=0)
        check_end(self._directory, self._path(newest), newest, seq)
        # After the listing: what a newer owner had begun by then is not touched.
        self._ownership.check()
        failed = self._directory / "failed"
        if failed.exists():
            self._renew(max((number for number in sizes if number < segment), default=0), None)
            self._renew(segment, offset)
        self._close_tails()
        if segment:
            fd = disk.open_file(self._path(segment), os.O_RDWR)
            try:
                os.ftruncate(fd, offset)
                self._sync_file(fd)
            finally:
                os.close(fd)
        self._seq = seq
        self._last_bytes = -1
        self._begin_first(newest + 1)
        # Only now that a later one is there: so a number is never used twice.
        for number in later:
            self._readers.remove(number, self._path(number))
        failed.unlink(missing_ok=True)
        self._ownership.sync_directory()
        self._resumed = True

    def _begin_first(self, number: int) -> None:
        """Begin this owner's first segment, under the next number that is free."""
        while True:
            try:
                try:
                    self._begin(number)
                except OSError as error:
                    if error.errno not in disk.FULL or not self._reserve.give_up():
                        raise
                    self._begin(number)
                return
            except FileExistsError:
                # An earlier owner had not noticed yet. A later one raised the epoch before it began anything.
                self._ownership.check()
                number += 1
            except OSError as error:
                if error.errno in disk.NOT_NOW:
                    raise StoreFull(f"there is no room for a segment in {self._directory}: {error}") from error
                raise

    def _begin(self, number: int) -> None:
        """Create a segment. It is listed when it has its first batch."""
        fd = disk.open_file(self._path(number), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        begun = _Tail(number, fd, 0)
        try:
            self._lay_out(begun)
            self._ownership.sync_directory()
        except BaseException:
            os.close(fd)
            raise
        self._begun = begun
        self._ownership.record_end(number, self._seq)

    def _renew(self, segment: int, end: int | None) -> None:
        """Write what is in a segment once more, and sync it.

        After a failed sync the system may take pages for clean that the disk never got. They read well until the
        machine dies; then there would be a hole in the middle of what later syncs have confirmed.
        """
        if segment == 0:
            return
        fd = disk.open_file(self._path(segment), os.O_RDWR)
        try:
            end = os.fstat(fd).st_size if end is None else end
            for at in range(0, end, _PIECE_BYTES):
                self._write_all(fd, disk.read_at(fd, min(_PIECE_BYTES, end - at), at), at)
            self._sync_file(fd)
        finally:
            os.close(fd)

    def _append(self, epoch: int, seq: int, segment: int, data: bytes, sync: bool, urgent: bool) -> None:
        self._check_sound()
        if epoch != self._ownership.epoch:
            raise Fenced(f"epoch {epoch} is not current, {self._ownership.epoch} is")
        last = 0 if self._tail is None else self._tail.number
        following = last + 1 if self._begun is None else self._begun.number
        if seq != self._seq or segment != last or not self._is_last(data):
            if seq != self._seq + 1:
                raise StoreError(f"batch {seq} does not follow batch {self._seq}, or is not the same as before")
            if segment != following and (segment != last or self._tail is None):
                raise StoreError(f"segment {segment} does not follow segment {last}; {following} does")
            if not urgent and not self._reserve.take():
                raise StoreFull(f"the disk under {self._directory} is full: what is left is reserved")
            full = self._store(segment, data)
            if full is not None and urgent and self._reserve.give_up():
                full = self._store(segment, data)
            if full is not None:
                raise StoreFull(f"there is no room for batch {seq} in {self._directory}: {full}") from full
            self._seq = seq
            self._last_bytes = len(data)
        if sync:
            self._sync()
        self._ownership.check()

    def _is_last(self, data: bytes) -> bool:
        """Whether this is the batch written last."""
        tail = self._tail
        size = len(data)
        return tail is not None and size == self._last_bytes and disk.read_at(tail.fd, size, tail.end - size) == data

    def _store(self, segment: int, data: bytes) -> OSError | None:
        """Write the batch. If there is no room: why, and nothing of it is left."""
        tail = self._tail
        if tail is not None and segment == tail.number:
            return self._write(tail, data)
        self._sync()
        if self._begun is None:
            self._ownership.check()
            try:
                self._begin(segment)
            except FileExistsError:
                self._ownership.check()
                raise
            except OSError as error:
                if error.errno in disk.NOT_NOW:
                    return error
                raise
        begun = self._begun
        assert begun is not None
        full = self._write(begun, data)
        if full is not None:
            return full
        self._tail, self._begun = begun, None
        if tail is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(tail.fd, tail.end)
            os.close(tail.fd)
        return None

    def _write(self, tail: _Tail, data: bytes) -> OSError | None:
        try:
            self._write_all(tail.fd, data, tail.end)
        except OSError as error:
            if error.errno not in disk.FULL:
                raise
            os.ftruncate(tail.fd, tail.end)
            self._sync_file(tail.fd)
            return error
        tail.end += len(data)
        tail.unsynced = True
        return None

    def _write_all(self, fd: int, data: bytes, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            written = self._write_file(fd, rest, offset)
            if written <= 0:
                raise OSError(errno.EIO, "nothing was written, and there is no reason given")
            offset += written
            rest = rest[written:]

    def _lay_out(self, tail: _Tail) -> None:
        """Have the space of a whole segment at hand; where there is not so much left, the file grows by each batch."""
        if tail.end >= self._segment_bytes:
            return
        try:
            disk.allocate(tail.fd, self._segment_bytes)
        except OSError as error:
            if error.errno not in disk.FULL:
                raise
            os.ftruncate(tail.fd, tail.end)

    def _sync(self) -> None:
        self._check_sound()
        tail = self._tail
        if tail is not None and tail.unsynced:
            self._sync_file(tail.fd)
            tail.unsynced = False

    def _sync_all(self) -> None:
        self._sync()
        self._ownership.check()

    def _delete(self, segment: int) -> None:
        self._sync_all()
        assert self._tail is None or segment != self._tail.number, "the last segment cannot be deleted"
        path = self._path(segment)
        last = -1
        if os.name == "posix" and self._reserve.held:
            # The system takes 20 ms to let go of 64 MiB; while someone has the file open, only its name goes. On a full
            # disk the space comes first.
            with contextlib.suppress(OSError):
                last = disk.open_file(path, os.O_RDONLY)
        try:
            self._readers.remove(segment, path)
            self._ownership.sync_directory()
        finally:
            if last >= 0:
                self._let_go(last)
        self._deleted.discard(segment)
        self._reserve.take()

    def _let_go(self, fd: int) -> None:
        """Close the last descriptor of a deleted file, beside whatever else there is to do."""
        self._sweepers = [each for each in self._sweepers if each.is_alive()]
        sweeper = threading.Thread(target=os.close, args=(fd,), name="rookery-sweeper", daemon=True)
        try:
            sweeper.start()
        except RuntimeError:
            # There are as many threads as there may be.
            os.close(fd)
        else:
            self._sweepers.append(sweeper)


class _Tail:
    """The segment that is written to: its file, where its batches end, and whether some of them are not synced."""

    __slots__ = ("end", "fd", "number", "unsynced")

    def __init__(self, number: int, fd: int, end: int) -> None:
        self.number = number
        self.fd = fd
        self.end = end
        self.unsynced = False


def _segment_name(segment: int) -> str:
    return f"{segment:08d}.log"


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    """The thread. It holds the queue, not the medium."""
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:  # noqa: BLE001 - a callback that raises must not end the thread that answers all others
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        del job


_OWNED: Final[weakref.WeakSet[FileMedium]] = weakref.WeakSet()


def _abandon_all() -> None:
    for medium in list(_OWNED):
        medium._abandon()
    _OWNED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)

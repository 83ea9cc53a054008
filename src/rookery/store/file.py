"""The medium on a local file system: a directory of segment files, written and synced by one thread.

    00000001.log …   the segments; the one in use is laid out in advance and ends in zeros
    lock             held by the owner, whose pid and time of acquisition are in it
    epoch            the number of the newest ownership
    reserve          space that is given up when an urgent batch meets a full disk
    failed           left behind when a write or sync failed: the next owner writes the last segments again

The thread does everything that changes the journal, in the order of the calls. It never retries what failed: after an
error of the disk nobody knows what is on it.
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
        self._segment_bytes = segment_bytes
        self._write_file = write_file
        self._sync_file = sync_file
        self._reserve = disk.Reserve(self._directory / "reserve", reserve_bytes)
        self._readers = disk.Readers()
        self._lock: disk.Lock | None = None
        self._directory_fd = -1
        self._epoch = 0
        self._tail: _Tail | None = None
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
        return self._epoch

    def _own(self) -> None:
        directory = self._directory
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            parent = disk.open_directory(directory.parent)
            disk.sync_directory(parent)
            disk.close_directory(parent)
        if self._lock is None:
            self._lock = disk.Lock(directory / "lock")
            # Kept open: a roll must not depend on a free descriptor halfway through.
            self._directory_fd = disk.open_directory(directory)
            _OWNED.add(self)
        epoch = self._read_epoch() + 1
        new = directory / "epoch.new"
        disk.write_text(new, f"{epoch}\n", sync=True)
        new.replace(directory / "epoch")
        disk.sync_directory(self._directory_fd)
        self._epoch = epoch

    def _disown(self) -> None:
        self._epoch = 0
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        disk.close_directory(self._directory_fd)
        self._directory_fd = -1
        _OWNED.discard(self)

    def _read_epoch(self) -> int:
        path = self._directory / "epoch"
        try:
            text = disk.read_text(path)
        except FileNotFoundError:
            if not self.segments():
                return 0
            raise StoreDamaged(f"{path} is missing, but there are segments", file=str(path)) from None
        if not re.fullmatch(r"\d+\n", text):
            raise StoreDamaged(f"{path} holds no number", file=str(path))
        return int(text)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise StoreError(self._unusable)

    # Reading

    def segments(self) -> list[tuple[int, int]]:
        self._check_usable()
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

    def name(self, segment: int) -> str:
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

    def resume(self, segment: int, offset: int, seq: int) -> None:
        self._check_usable()
        assert self._lock is not None, "acquire first"
        answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._submit(lambda: self._answer(lambda: self._resume(segment, offset, seq), answers.put))
        error = answers.get()
        if error is not None:
            raise error

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
        self._submit(lambda: self._answer(self._sync, done))

    def delete(self, segment: int) -> None:
        self._check_usable()
        assert self._lock is not None, "acquire first"
        path = self._path(segment)
        if segment in self._deleted or not path.exists():
            raise InvalidArgument(f"there is no segment {path}", argument="segment")
        tail = self._tail
        if segment == (self.segments()[-1][0] if tail is None else tail.number):
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
        if self._tail is not None:
            with contextlib.suppress(OSError):
                if self._failure is None:
                    os.ftruncate(self._tail.fd, self._tail.end)
            os.close(self._tail.fd)
            self._tail = None
        self._readers.close()
        self._disown()

    def _abandon(self) -> None:
        """In a forked child: the parent's journal is none of its business, and the lock must die with the parent."""
        self._unusable = f"the medium {self._directory} belongs to the process that this one was forked from"
        if self._tail is not None:
            os.close(self._tail.fd)
            self._tail = None
        if self._lock is not None:
            self._lock.abandon()
            self._lock = None
        disk.close_directory(self._directory_fd)
        self._directory_fd = -1
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

    # Writing: in the thread

    def _resume(self, segment: int, offset: int, seq: int) -> None:
        self._check_sound()
        sizes = dict(self.segments())
        later = [number for number in sizes if number > segment]
        if len(later) > 1:
            raise InvalidArgument(f"segments {later} lie beyond segment {segment}", argument="segment")
        if segment != 0 and segment not in sizes:
            raise InvalidArgument(f"there is no segment {self._path(segment)}", argument="segment")
        if not 0 <= offset <= sizes.get(segment, 0):
            raise InvalidArgument(f"{self._path(segment)} has no offset {offset}", argument="offset")
        if seq < 0 or (segment == 0 and seq != 0):
            raise InvalidArgument(f"the journal cannot end with batch {seq} there", argument="seq")
        failed = self._directory / "failed"
        if failed.exists():
            self._renew(max((number for number in sizes if number < segment), default=0), None)
            self._renew(segment, offset)
        if self._tail is not None:
            os.close(self._tail.fd)
            self._tail = None
        if segment:
            self._tail = tail = _Tail(segment, disk.open_file(self._path(segment), os.O_RDWR), offset)
            os.ftruncate(tail.fd, offset)
            self._lay_out(tail)
            self._sync_file(tail.fd)
        for number in later:
            self._readers.remove(number, self._path(number))
        failed.unlink(missing_ok=True)
        disk.sync_directory(self._directory_fd)
        self._seq = seq
        self._last_bytes = -1
        self._resumed = True

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
        if epoch != self._epoch:
            raise Fenced(f"epoch {epoch} is not current, {self._epoch} is")
        last = 0 if self._tail is None else self._tail.number
        if seq != self._seq or segment != last or not self._is_last(data):
            if seq != self._seq + 1:
                raise StoreError(f"batch {seq} does not follow batch {self._seq}, or is not the same as before")
            if segment != last + 1 and (segment != last or self._tail is None):
                raise StoreError(f"segment {segment} does not follow segment {last}")
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
        try:
            if self._read_epoch() != self._epoch:
                # Only possible when someone removed the lock file from under its owner.
                self._epoch = 0
                raise Fenced(f"another process has acquired {self._directory}")
            fd = disk.open_file(self._path(segment), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            if error.errno in disk.NOT_NOW:
                return error
            raise
        fresh = _Tail(segment, fd, 0)
        try:
            self._lay_out(fresh)
            disk.sync_directory(self._directory_fd)
            full = self._write(fresh, data)
        except BaseException:
            os.close(fd)
            raise
        if full is not None:
            os.close(fd)
            self._readers.remove(segment, self._path(segment))
            disk.sync_directory(self._directory_fd)
            return full
        self._tail = fresh
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

    def _delete(self, segment: int) -> None:
        self._sync()
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
            disk.sync_directory(self._directory_fd)
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

"""What the file medium asks of the operating system: files, sync, a lock, a reserve of space, files shared by readers.

Everything that differs between Linux, macOS and Windows is in here. Errors are OSErrors; what they mean for the journal
is decided by the medium.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import threading
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rookery.errors import StoreLocked

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

READERS_MAX: Final = 64
"""Files that are kept open for reading: a backlog may have thousands of segments."""

FULL: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
# Running out of descriptors is no fault of the disk either.
NOT_NOW: Final = FULL | {errno.EMFILE, errno.ENFILE}
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOTSUP})
_NO_LOCKS: Final = _UNSUPPORTED | {errno.EBADF, errno.ENOLCK, errno.EISDIR}
_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_file(path: Path, flags: int) -> int:
    """Open a file of the data directory: never through a symbolic link, private, not inherited by children."""
    return os.open(path, flags | _FLAGS, 0o600)


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes; fewer only at the end of the file."""
    pieces = []
    while size > 0:
        if hasattr(os, "pread"):
            piece = os.pread(fd, size, offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            piece = os.read(fd, size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_at(fd: int, data: memoryview, offset: int) -> int:
    """Write some of the data; how many bytes."""
    if hasattr(os, "pwrite"):
        return int(os.pwrite(fd, data, offset))
    os.lseek(fd, offset, os.SEEK_SET)
    return os.write(fd, data)


def read_text(path: Path) -> str:
    """A small file of ASCII."""
    fd = open_file(path, os.O_RDONLY)
    try:
        return read_at(fd, 4096, 0).decode("ascii", "replace")
    finally:
        os.close(fd)


def write_text(path: Path, text: str, *, sync: bool, new: bool = False) -> None:
    """Make a small file with this text, or replace what is in it; with `new`, FileExistsError if it exists."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC))
    try:
        data = memoryview(text.encode())
        if write_at(fd, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if sync:
            sync_data(fd)
    except OSError:
        if new:
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def allocate(fd: int, size: int) -> bool:
    """Give the file `size` bytes of disk, zeros where nothing was written; False where the system cannot do that."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


def sync_data(fd: int) -> None:
    """Return when the data of the file, and its size, are on the disk itself."""
    if sys.platform == "darwin":
        # There fsync() leaves the data in the cache of the disk; network file systems know nothing better.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            os.fsync(fd)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def open_directory(path: Path) -> int:
    """A descriptor for `sync_directory`; -1 where directories cannot be synced."""
    if sys.platform == "win32":
        return -1
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_directory(fd: int) -> None:
    """Make the creation, renaming and removal of files in a directory outlive the machine."""
    if fd >= 0:
        os.fsync(fd)


def close_directory(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


class Lock:
    """A lock file, locked, with the pid of its owner; the system unlocks it when the process dies.

    The directory is locked as well, where the system can lock directories: a lock file that someone removes takes no
    lock with it. Two locks on one file exclude each other in one process, too.
    """

    def __init__(self, path: Path) -> None:
        self._directory = _lock_directory(path)
        try:
            self._fd = _lock_file(path)
        except BaseException:
            close_directory(self._directory)
            raise

    def release(self) -> None:
        """Unlock, also for the copies of the descriptors that forked children may have."""
        if sys.platform != "win32":
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            if self._directory >= 0:
                fcntl.flock(self._directory, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: close its copies of the descriptors; the lock stays with the process that took it."""
        os.close(self._fd)
        close_directory(self._directory)


def _lock_directory(path: Path) -> int:
    """A descriptor of the lock file's directory, locked; -1 where directories cannot be locked."""
    fd = open_directory(path.parent)
    if fd < 0:
        return fd
    try:
        if try_lock(fd):
            return fd
    except OSError as error:
        # some network file systems lock files, but no directories
        os.close(fd)
        if error.errno in _NO_LOCKS:
            return -1
        raise
    os.close(fd)
    owner = "another process"
    with contextlib.suppress(OSError):
        owner = _owner(read_text(path))
    raise StoreLocked(f"the data directory {path.parent} is in use by {owner} (see {path})")


def _lock_file(path: Path) -> int:
    """A descriptor of the lock file, locked, with this process's pid in it."""
    while True:
        fd = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if not try_lock(fd):
                owner = _owner(read_at(fd, 64, 0).decode("ascii", "replace"))
                raise StoreLocked(f"the data directory {path.parent} is in use by {owner} (see {path})")
            if sys.platform != "win32" and not _is_at(path, fd):
                # someone removed it in between: a lock on a file without a name keeps nobody out
                os.close(fd)
                continue
            since = datetime.now(UTC).isoformat(timespec="seconds")
            # Always as long, so that on a full disk the block of the last owner will do.
            write_at(fd, memoryview(f"{os.getpid()} {since}".ljust(63).encode() + b"\n"), 0)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _is_at(path: Path, fd: int) -> bool:
    """Whether this is the file of that name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def try_lock(fd: int) -> bool:
    """Lock a file for as long as it is open; False when another process has it locked."""
    try:
        if sys.platform == "win32":
            # A lock hides what it covers from others, so it covers a byte far beyond the owner's name.
            os.lseek(fd, 1 << 30, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _owner(text: str) -> str:
    """Who holds the lock, in words, by what the lock file says."""
    match = re.match(r"(\d+) (\S+)", text)
    if match is None:
        return "another process"
    who = "this process, pid" if int(match[1]) == os.getpid() else "process"
    return f"{who} {match[1]}, since {match[2]}"


class Reserve:
    """Space held by a file of zeros, so that there is some to give up; of size 0 it is always held."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self.held = size == 0

    def take(self) -> bool:
        """Hold the space if there is room for it; whether it is held."""
        if self.held:
            return True
        try:
            fd = open_file(self._path, os.O_RDWR | os.O_CREAT)
            try:
                self.held = self._fill(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in NOT_NOW:
                raise
            self._path.unlink(missing_ok=True)
        return self.held

    def _fill(self, fd: int) -> bool:
        size = self._size
        found = os.fstat(fd)
        # A file that was copied may have the size without the space.
        if found.st_size >= size and getattr(found, "st_blocks", size) * 512 >= size:
            return True
        if shutil.disk_usage(self._path.parent).free < size:
            return False
        if not allocate(fd, size):
            zeros = memoryview(bytes(1 << 20))
            at = 0
            while at < size:
                at += write_at(fd, zeros[: size - at], at)
        return True

    def give_up(self) -> bool:
        """Whether this made room."""
        try:
            size = self._path.lstat().st_size
        except FileNotFoundError:
            return False
        if self._size == 0 or size == 0:
            return False
        self.held = False
        self._path.unlink()
        return True


class _Descriptor:
    """An open file that closes when the last one who reads from it is done."""

    __slots__ = ("_close", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._close = os.close

    def __del__(self) -> None:
        self._close(self.fd)


class Readers:
    """Files that are open for reading, by number; any thread may read."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._open: OrderedDict[int, _Descriptor] = OrderedDict()

    def read(self, number: int, path: Path, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        with self._mutex:
            descriptor = self._open.get(number)
            if descriptor is None:
                descriptor = self._open[number] = _Descriptor(open_file(path, os.O_RDONLY))
                if len(self._open) > READERS_MAX:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            if not hasattr(os, "pread"):
                return read_at(descriptor.fd, size, offset)
        return read_at(descriptor.fd, size, offset)

    def remove(self, number: int, path: Path) -> None:
        """Unlink the file, and keep no descriptor that would keep its space."""
        with self._mutex:
            self._open.pop(number, None)
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close every file."""
        with self._mutex:
            self._open.clear()

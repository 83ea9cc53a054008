"""Who owns a data directory, and how far its journal goes: the files `lock`, `epoch` and `end`.

The lock keeps a second owner out. Where it fails (a file system without locks, a lock file that was removed), the epoch
decides: each owner raises it before it reads the journal, and looks at it again after each batch, before it answers.

`end` holds the newest segment that was begun, and the number of a batch that is synced. Both stay true for ever, so it
does not matter which of these records a crash leaves; a journal that ends before the record lacks something.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from rookery.errors import Fenced, StoreDamaged, StoreError, StoreLocked
from rookery.store import disk

MISSING_HINT: Final = "put the missing file back, or start on a backup"

_DRAWN_NAME: Final = re.compile(r"epoch\.(\d+)\.(?:drawn|new)")


class Ownership:
    """One owner's claim to a directory. Errors of the system are OSErrors, as in `disk`."""

    def __init__(self, directory: Path) -> None:
        self.epoch = 0
        self._directory = directory
        self._path = directory / "epoch"
        self._lock: disk.Lock | None = None
        # Kept open: a roll must not depend on a free descriptor halfway through.
        self._directory_fd = -1
        # Kept open, so that no other file can have its inode number.
        self._epoch_fd = -1
        self._epoch_file = (0, 0, 0, 0)
        self._fenced: str | None = None

    @property
    def held(self) -> bool:
        """Whether this owner has the lock; it may be fenced all the same."""
        return self._lock is not None

    def acquire(self, is_empty: bool) -> None:
        """Lock the directory and raise its epoch, durably. `is_empty`: there are no segments yet."""
        if self._lock is None:
            self._lock = disk.Lock(self._directory / "lock")
            self._directory_fd = disk.open_directory(self._directory)
        epoch = self._draw(is_empty)
        new = self._directory / f"epoch.{epoch}.new"
        try:
            disk.write_text(new, f"{epoch}\n", sync=True)
        except OSError:
            new.unlink(missing_ok=True)
            new.with_suffix(".drawn").unlink(missing_ok=True)
            raise
        self._close_epoch()
        try:
            self._epoch_fd = disk.open_file(new, os.O_RDONLY)
            new.replace(self._path)
        except FileNotFoundError:
            # removed by an owner of a later epoch, which must not be replaced by this one
            raise StoreLocked(f"another process is taking over the data directory {self._directory}") from None
        self._epoch_file = _identity(os.fstat(self._epoch_fd))
        self.sync_directory()
        self.epoch = epoch
        self._fenced = None
        for number, path in self._drawn():
            if number < epoch:
                path.unlink(missing_ok=True)

    def _draw(self, is_empty: bool) -> int:
        """An epoch that nobody else can have, also if others start at this moment.

        A file of its number shows that it is taken. It goes when a later epoch is there to be read, so whoever comes
        too late to meet the file reads that.
        """
        epoch = max([self._read(is_empty), *(number for number, _ in self._drawn())])
        while True:
            epoch += 1
            drawn = self._directory / f"epoch.{epoch}.drawn"
            try:
                disk.write_text(drawn, "", sync=False, new=True)
            except FileExistsError:
                continue
            later = self._read(is_empty)
            if later < epoch:
                return epoch
            drawn.unlink(missing_ok=True)
            epoch = later

    def _drawn(self) -> list[tuple[int, Path]]:
        found = ((_DRAWN_NAME.fullmatch(path.name), path) for path in self._directory.glob("epoch.*.*"))
        return [(int(match[1]), path) for match, path in found if match is not None]

    def _read(self, is_empty: bool) -> int:
        try:
            text = disk.read_text(self._path)
        except FileNotFoundError:
            if is_empty:
                return 0
            raise StoreDamaged(f"{self._path} is missing, but there are segments", file=str(self._path)) from None
        if not re.fullmatch(r"\d+\n", text):
            raise StoreDamaged(f"{self._path} holds no number", file=str(self._path))
        return int(text)

    def check(self) -> None:
        """Raise Fenced unless the epoch is still this owner's. Who was fenced once stays so."""
        if self._fenced is None:
            self._fenced = self._look()
        if self._fenced is not None:
            raise Fenced(
                f"another process has taken over the data directory {self._directory}: {self._fenced}. This process "
                "confirms nothing more; stop it, and let only one process use the directory"
            )

    def check_known(self) -> None:
        """The same as far as it is known already."""
        if self._fenced is not None:
            self.check()

    def _look(self) -> str | None:
        """Why this is no longer the owner; None if it is. Done for each batch, so it is one system call.

        A new owner replaces the file, so it is the same only while nobody else has raised the epoch. What has changed
        is read: somebody may have touched it.
        """
        try:
            found = _identity(os.stat(self._path))  # noqa: PTH116 - a Path's own costs three times as much
            if found == self._epoch_file:
                return None
            text = disk.read_text(self._path)
        except OSError as error:
            return f"its epoch cannot be read ({error.strerror})"
        if text != f"{self.epoch}\n":
            return f"its epoch is {text.strip()}, this process has epoch {self.epoch}"
        if found[:2] == self._epoch_file[:2]:
            self._epoch_file = found
        return None

    def sync_directory(self) -> None:
        disk.sync_directory(self._directory_fd)

    def record_end(self, newest: int, batch: int) -> None:
        """Record durably that segment `newest` was begun, and that `batch` and all before it are synced.

        On a full disk the earlier record stays.
        """
        self.check()
        new = self._directory / f"end.{self.epoch}.new"
        try:
            disk.write_text(new, f"{newest} {batch}\n", sync=True)
            new.replace(self._directory / "end")
            self.sync_directory()
        except OSError as error:
            new.unlink(missing_ok=True)
            if error.errno not in disk.NOT_NOW:
                raise

    def release(self) -> None:
        """Give the directory up."""
        self._close_epoch()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        disk.close_directory(self._directory_fd)
        self._directory_fd = -1
        self.epoch = 0

    def abandon(self) -> None:
        """In a forked child: close its descriptors; the lock stays with the process that took it."""
        self._close_epoch()
        if self._lock is not None:
            self._lock.abandon()
            self._lock = None
        disk.close_directory(self._directory_fd)
        self._directory_fd = -1

    def _close_epoch(self) -> None:
        if self._epoch_fd >= 0:
            os.close(self._epoch_fd)
            self._epoch_fd = -1


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    """Which file it is, and when it was written."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def check_end(directory: Path, newest: Path, number: int, batch: int) -> None:
    """Refuse a journal that lacks what is recorded: it ends in segment `number`, the file `newest`, with `batch`."""
    recorded, least = read_end(directory)
    if number < recorded:
        missing = str(directory / f"{recorded:08d}.log")
        raise StoreDamaged(f"{missing}, the newest segment, is missing; {MISSING_HINT}", file=missing)
    if batch < least:
        raise StoreDamaged(
            f"the journal in {directory} ends with batch {batch}, but it had {least} batches when it was last closed "
            f"or last began a segment: {least - batch} batches are missing at its end, in {newest.name} or before it; "
            f"{MISSING_HINT}",
            file=str(newest),
        )


def read_end(directory: Path) -> tuple[int, int]:
    """The recorded end of a journal: its newest segment, and a batch; (0, 0) where nothing is recorded."""
    path = directory / "end"
    try:
        return parse_end(disk.read_text(path))
    except FileNotFoundError:
        return 0, 0
    except ValueError:
        raise StoreDamaged(f"{path} does not hold a segment and a batch", file=str(path)) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def parse_end(text: str) -> tuple[int, int]:
    """The segment and the batch of an end record; ValueError for what is none."""
    match = re.fullmatch(r"(\d+) (\d+)\n", text)
    if match is None:
        raise ValueError("not an end record")
    return int(match[1]), int(match[2])


def write_end(directory: Path, newest: int, batch: int) -> None:
    """Record the end of a journal that nobody uses yet."""
    disk.write_text(directory / "end", f"{newest} {batch}\n", sync=True)

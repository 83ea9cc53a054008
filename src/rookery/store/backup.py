"""A copy of a running broker's journal, which is a data directory: to restore it is to start on it.

The copy is of one moment: all segments as they are when it begins, the last one up to the last batch that was answered.
What was written does not change, and the journal keeps it (`Journal.hold`) until the copy is done; so the copying needs
nothing from the owner, and may take as long as it likes in a thread of its own while the broker goes on.

    copy = Backup(journal, target)      # in the owner's thread
    try:
        …run(copy.run)                  # in any other
    finally:
        copy.close()                    # in the owner's thread
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rookery.errors import InvalidArgument, StoreError
from rookery.store import disk
from rookery.store.journal import Journal

SLICE_BYTES: Final = 1 << 20

Progress = Callable[[int, int], None]
"""Called after each slice, in the thread that copies, with the bytes copied so far and how many there are in all."""


class Backup:
    """One copy. Until `run` has returned there is no directory of the target's name, only `<target>.partial`."""

    def __init__(
        self,
        journal: Journal,
        target: str | Path,
        progress: Progress | None = None,
        *,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.target = Path(target).absolute()
        if self.target.exists():
            raise InvalidArgument(f"{self.target} is there already", argument="target")
        self._partial = self.target.with_name(self.target.name + ".partial")
        self._journal = journal
        self._progress = progress
        self._slice_bytes = slice_bytes
        self._epoch = int(journal.shard.epoch)
        self._segments = journal.hold()
        self._open = True
        self.bytes_total = sum(size for _, size in self._segments)
        self.bytes_done = 0

    def run(self) -> None:
        """Copy, and sync the copy. Blocks; call it in a thread of its own. On an error nothing is left behind."""
        try:
            self._copy()
        except OSError as error:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise StoreError(f"the backup {self.target} cannot be written: {error}") from error
        except BaseException:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise

    def close(self) -> None:
        """Let the journal delete again what it does not need. Call it in the owner's thread, after `run`."""
        if self._open:
            self._open = False
            self._journal.release()

    def _copy(self) -> None:
        # what an earlier attempt left
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(mode=0o700, parents=True)
        for number, size in self._segments:
            self._copy_segment(number, size)
        disk.write_text(self._partial / "epoch", f"{self._epoch}\n", sync=True)
        _sync_directory(self._partial)
        self._partial.rename(self.target)
        _sync_directory(self.target.parent)

    def _copy_segment(self, number: int, size: int) -> None:
        fd = disk.open_file(self._partial / f"{number:08d}.log", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            offset = 0
            while offset < size:
                data = self._journal.medium.read(number, offset, min(self._slice_bytes, size - offset))
                if not data:
                    raise StoreError(f"{self._journal.medium.name(number)} ends at {offset}, not at {size}")
                rest = memoryview(data)
                while rest:
                    written = disk.write_at(fd, rest, offset)
                    offset += written
                    rest = rest[written:]
                self.bytes_done += len(data)
                if self._progress is not None:
                    self._progress(self.bytes_done, self.bytes_total)
            disk.sync_data(fd)
        finally:
            os.close(fd)


def backup(journal: Journal, target: str | Path, progress: Progress | None = None) -> None:
    """Copy in one go, for an owner who can wait."""
    copy = Backup(journal, target, progress)
    try:
        copy.run()
    finally:
        copy.close()


def _sync_directory(path: Path) -> None:
    fd = disk.open_directory(path)
    disk.sync_directory(fd)
    disk.close_directory(fd)


__all__ = ["Backup", "Progress", "backup"]

"""The segment files of a data directory, for one who does not own it: all of one moment, kept open.

A broker may be at work there. It appends to the last segment, begins new ones under new numbers, and deletes old ones;
nothing else changes. So whoever has every file open that was there at one moment can read at leisure what the journal
was then, and a little more at its end: a file that is deleted stays as long as it is open.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
from typing import Final, Self

from rookery.errors import InvalidArgument, StoreDamaged, StoreError
from rookery.format.records import MAGIC_BYTES, BatchHeader
from rookery.store import disk

SPARE_FILES: Final = 64
"""Descriptors that the rest of the process may need meanwhile."""

_NAME: Final = re.compile(r"(\d{8,})\.log")


def check_is_journal(directory: Path, argument: str) -> None:
    """Refuse what is no data directory."""
    if not directory.is_dir():
        raise InvalidArgument(f"there is no directory {directory}", argument=argument)
    if not (directory / "epoch").exists() and not any(directory.glob("*.log")):
        raise InvalidArgument(f"{directory} is no data directory: there is no journal in it", argument=argument)


def sealed_files(directory: Path) -> list[Path]:
    """The files of sealed records below a data directory, by their path in it. They never change, and stay for a while
    when they are let go of.
    """
    return sorted(path.relative_to(directory) for path in (directory / "streams").rglob("[!_]*.parquet"))


class Segments:
    """Open segments by number; use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise InvalidArgument(f"there is no directory {directory}", argument="directory")
        self.directory = directory
        # Before the files: a broker at work records nothing that is not there by then.
        self.end_record = _end_record(directory)
        self._open: dict[int, int] = {}
        try:
            while not self._have_all():
                pass
        except OSError as error:
            self.close()
            raise StoreError(f"the data directory {directory} cannot be read: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _have_all(self) -> bool:
        """Open what is there. Whether it was all there at one moment: what is listed twice was there in between."""
        listed = self._listed()
        for number in self._open.keys() - listed:
            os.close(self._open.pop(number))
        _allow_files(len(listed) + SPARE_FILES)
        for number in listed - self._open.keys():
            try:
                self._open[number] = disk.open_file(self.path(number), os.O_RDONLY)
            except FileNotFoundError:
                return False
        return listed == self._listed()

    def _listed(self) -> set[int]:
        return {int(match[1]) for path in self.directory.iterdir() if (match := _NAME.fullmatch(path.name))}

    def numbers(self) -> list[int]:
        return sorted(self._open)

    def path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.log"

    def size(self, number: int) -> int:
        return os.fstat(self._open[number]).st_size

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only where the file ends."""
        try:
            return disk.read_at(self._open[number], size, offset)
        except OSError as error:
            path = str(self.path(number))
            raise StoreDamaged(f"{path} cannot be read at {offset}: {error}", file=path, offset=offset) from error

    def last(self) -> tuple[bytes, int]:
        """The last segment as it is now, and where its first batch that is not whole begins.

        Batches may be written while this reads: then the end of one can be missing although the next one is there. To
        read once more tells that from damage, since a batch is written when the one before it is.
        """
        number = self.numbers()[-1]
        stuck_at = -1
        while True:
            data = self.read(number, 0, self.size(number))
            end, seq = _whole(data)
            if end == stuck_at or not _is_missed(data, end, seq):
                return data, end
            stuck_at = end


def _end_record(directory: Path) -> str:
    """What is recorded of the journal's end, as it stands there; empty when nothing is."""
    try:
        return disk.read_text(directory / "end")
    except OSError:
        return ""


def _whole(data: bytes) -> tuple[int, int]:
    """Where the first batch that is not whole begins, and the number of the one before it."""
    end = seq = 0
    while (header := BatchHeader(data, end)).sound:
        end += int(header.size)
        seq = int(header.seq)
    return end, seq


def _is_missed(data: bytes, end: int, seq: int) -> bool:
    """Whether a later batch knows of the one that should be here."""
    at = data.find(MAGIC_BYTES, end + 1)
    while at >= 0:
        header = BatchHeader(data, at)
        if header.sound and header.seq > seq + 1:
            return True
        at = data.find(MAGIC_BYTES, at + 1)
    return False


def _allow_files(count: int) -> None:
    """A backlog may have more segments than a process may have open by default."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise OSError(errno.EMFILE, f"{count} files must be open at once, and the system allows {hard} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

"""A copy of a data directory, whose broker may be running; to restore it is to start on it.

The copy is of one moment: every segment that is there then (`Segments`), the last one up to the end of its last whole
batch, so all that was answered before the copy began is in it; and the sealed files of streams. The broker takes no
part and does not notice. What was copied is checked before it gets its name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rookery.care.repair import inspect
from rookery.errors import InvalidArgument, StoreDamaged, StoreError
from rookery.store import disk
from rookery.store.ownership import write_end
from rookery.store.segments import Segments, check_is_journal, sealed_files

SLICE_BYTES: Final = 1 << 20

Progress = Callable[[int, int], None]
"""Called after each slice with the bytes worked through so far, and how many there are in all."""


@dataclass(frozen=True)
class Copied:
    """What is in a copy."""

    source: str
    target: str
    segments: int
    batches: int
    sealed_files: int
    bytes: int


def backup(
    source: str | Path, target: str | Path, progress: Progress | None = None, *, slice_bytes: int = SLICE_BYTES
) -> Copied:
    """Copy a data directory to `target`, which must not be there yet, or be empty.

    Until the copy is complete, checked and synced, it is called `<target>.partial`; on an error nothing is left.
    """
    old, new = Path(source).absolute(), Path(target).absolute()
    _check_places(old, new)
    partial = new.with_name(new.name + ".partial")
    try:
        with Segments(old) as segments:
            return _Copy(segments, partial, new, progress, slice_bytes).run()
    except OSError as error:
        raise StoreError(f"the backup {new} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_places(old: Path, new: Path) -> None:
    check_is_journal(old, "source")
    if new == old or new.resolve().is_relative_to(old.resolve()):
        raise InvalidArgument(f"{new} lies in the data directory itself", argument="target")
    if new.is_dir() and any(new.iterdir()):
        raise InvalidArgument(f"{new} is not empty", argument="target")
    if new.exists() and not new.is_dir():
        raise InvalidArgument(f"{new} is there already, and no directory", argument="target")


class _Copy:
    """One copy under way."""

    def __init__(
        self, segments: Segments, partial: Path, target: Path, progress: Progress | None, slice_bytes: int
    ) -> None:
        self._segments = segments
        self._partial = partial
        self._target = target
        self._progress = progress
        self._slice_bytes = slice_bytes
        numbers = segments.numbers()
        self._sizes = {number: segments.size(number) for number in numbers}
        self._last = b""
        if numbers:
            data, end = segments.last()
            # without what is laid out in advance; what else follows is unfinished, or damage: that the check will tell
            self._last = data[: max(end, len(data.rstrip(b"\0")))]
            self._sizes[numbers[-1]] = len(self._last)
        # listed when all that names them has been read
        self._sealed = {path: (segments.directory / path).stat().st_size for path in sealed_files(segments.directory)}
        self._sealed_bytes = sum(self._sealed.values())
        # segments are read once to copy them, and once to check them
        self._total = 2 * sum(self._sizes.values()) + self._sealed_bytes
        self._done = 0

    def run(self) -> Copied:
        # what an earlier attempt left
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(mode=0o700, parents=True)
        for path in self._sealed:
            self._copy_sealed(path)
        for number, size in self._sizes.items():
            if size:
                self._copy_segment(number, size)
        # read last: no batch above is of a later epoch
        self._copy_epoch()
        _sync_directory(self._partial)
        batches = self._checked()
        _sync_directory(self._partial)
        self._partial.rename(self._target)
        _sync_directory(self._target.parent)
        source = str(self._segments.directory)
        copied = sum(1 for size in self._sizes.values() if size)
        return Copied(
            source, str(self._target), copied, batches, len(self._sealed), (self._total + self._sealed_bytes) // 2
        )

    def _copy_sealed(self, path: Path) -> None:
        new = self._partial / path
        new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # one that is gone meanwhile was let go of long ago, unless the check says otherwise
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self._segments.directory / path, new)
            fd = disk.open_file(new, os.O_RDWR)
            try:
                disk.sync_data(fd)
            finally:
                os.close(fd)
        self._advance(self._sealed[path])

    def _copy_segment(self, number: int, size: int) -> None:
        fd = disk.open_file(self._partial / f"{number:08d}.log", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            offset = 0
            while offset < size:
                data = self._read(number, offset, min(self._slice_bytes, size - offset))
                if not data:
                    # zeros that were laid out in advance are cut off when a segment is full
                    self._advance(size - offset)
                    break
                rest = memoryview(data)
                while rest:
                    written = disk.write_at(fd, rest, offset)
                    offset += written
                    rest = rest[written:]
                self._advance(len(data))
            disk.sync_data(fd)
        finally:
            os.close(fd)

    def _read(self, number: int, offset: int, size: int) -> bytes:
        if number == self._segments.numbers()[-1]:
            return self._last[offset : offset + size]
        return self._segments.read(number, offset, size)

    def _copy_epoch(self) -> None:
        path = self._segments.directory / "epoch"
        try:
            text = disk.read_text(path)
            int(text)
        except (OSError, ValueError):
            raise StoreDamaged(f"{path} holds no number", file=str(path)) from None
        disk.write_text(self._partial / "epoch", text, sync=True)

    def _checked(self) -> int:
        """How many batches there are; damage is named as it is in the source, where it comes from."""
        copied = self._done
        report = inspect(self._partial, lambda done, _: self._advance(copied + done - self._done))
        if report.damage:
            damage = report.damage[0]
            if damage.file.endswith(".parquet"):
                raise StoreError(f"{Path(damage.file).name}: {damage.reason}, or went while they were copied")
            path = str(self._segments.directory / Path(damage.file).name)
            raise StoreDamaged(f"{path} is damaged at offset {damage.offset}", file=path, offset=damage.offset)
        if report.unfinished is not None:
            with Path(report.unfinished.file).open("rb+") as file:
                file.truncate(report.unfinished.offset)
                disk.sync_data(file.fileno())
        if report.segments:
            write_end(self._partial, report.segments[-1].number, max(found.last_batch for found in report.segments))
        self._advance(self._total - self._done)
        return report.batches

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _sync_directory(path: Path) -> None:
    fd = disk.open_directory(path)
    disk.sync_directory(fd)
    disk.close_directory(fd)


__all__ = ["Copied", "Progress", "backup"]

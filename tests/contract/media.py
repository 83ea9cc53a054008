"""The media that the contract suite runs over. A new medium joins it with a class here and an entry in PLACES."""

from __future__ import annotations

import errno
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from rookery.store import disk
from rookery.store.file import FileMedium
from rookery.store.medium import Medium
from tests.contract.faulty import Disk, Fault, FaultyMedium

PATIENCE_S = 30
"""How long an answer may take; only a defect takes so long."""


class Answer:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def __call__(self, error: BaseException | None) -> None:
        self.thread = threading.current_thread()
        self._answers.put(error)

    def wait(self) -> BaseException | None:
        return self._answers.get(timeout=PATIENCE_S)

    @property
    def waiting(self) -> int:
        """How many answers came that nobody waited for."""
        return self._answers.qsize()


class Owner:
    """An owner who has resumed, and remembers what the next append must say."""

    def __init__(self, medium: Medium, at: tuple[int, int, int] = (0, 0, 0)) -> None:
        self.medium = medium
        self.epoch = medium.acquire()
        self.begun = medium.resume(*at)
        self.segment, _, self.seq = at

    def append(
        self, data: bytes, *, roll: bool = False, sync: bool = True, urgent: bool = False
    ) -> BaseException | None:
        """The next batch, in a new segment if `roll` or if this owner has none yet; the outcome."""
        segment = self.begun or self.segment + roll
        error = self.call(self.seq + 1, segment, data, sync=sync, urgent=urgent)
        if error is None:
            self.segment, self.seq, self.begun = segment, self.seq + 1, 0
        return error

    def call(
        self, seq: int, segment: int, data: bytes, *, epoch: int | None = None, sync: bool = True, urgent: bool = False
    ) -> BaseException | None:
        """Exactly this append; the outcome."""
        answer = Answer()
        epoch = self.epoch if epoch is None else epoch
        self.medium.append(epoch, seq, segment, data, sync, answer, urgent=urgent)
        return answer.wait()

    def sync(self) -> BaseException | None:
        answer = Answer()
        self.medium.sync(answer)
        return answer.wait()


class Place(ABC):
    """Where one shard is kept. `open` is what each process would do that wants to own it."""

    exclusive: bool
    """Whether a living owner keeps others out; else the next one fences it out."""

    @abstractmethod
    def open(self, *, segment_bytes: int = 4096, reserve_bytes: int = 0) -> Medium: ...

    @abstractmethod
    def fail(self, medium: Medium, fault: Fault) -> None:
        """Let that happen to the next append (or sync) of the medium."""

    @abstractmethod
    def release(self, medium: Medium) -> None:
        """Let an append go on to which SLOW happened."""

    @abstractmethod
    def crash(self, medium: Medium) -> None:
        """End the process that holds the medium; the machine lives on."""


class MemoryPlace(Place):
    def __init__(self, where: Path, *, exclusive: bool = True) -> None:
        self.exclusive = exclusive
        self._disk = Disk()

    def open(self, *, segment_bytes: int = 4096, reserve_bytes: int = 0) -> Medium:
        return FaultyMedium(
            self._disk, exclusive=self.exclusive, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes
        )

    def fail(self, medium: Medium, fault: Fault) -> None:
        assert isinstance(medium, FaultyMedium)
        medium.script(fault)

    def release(self, medium: Medium) -> None:
        assert isinstance(medium, FaultyMedium)
        if medium.held:
            medium.release()

    def crash(self, medium: Medium) -> None:
        assert isinstance(medium, FaultyMedium)
        self._disk = medium.crash(tail=lambda unsynced: unsynced).disk


class FilePlace(Place):
    """Faults come in where the medium hands bytes and syncs to the system."""

    exclusive = True
    medium: type[FileMedium] = FileMedium

    def __init__(self, where: Path) -> None:
        self.directory = where / "shard"
        self._faults: list[Fault] = []
        self._go_on = threading.Event()
        self._go_on.set()
        self._write_error = 0

    def open(self, *, segment_bytes: int = 4096, reserve_bytes: int = 0) -> Medium:
        return self.medium(
            self.directory,
            segment_bytes=segment_bytes,
            reserve_bytes=reserve_bytes,
            write_file=self._write,
            sync_file=self._sync,
        )

    def fail(self, medium: Medium, fault: Fault) -> None:
        self._faults.append(fault)
        if fault is Fault.SLOW:
            self._go_on.clear()

    def release(self, medium: Medium) -> None:
        self._go_on.set()

    def crash(self, medium: Medium) -> None:
        """What the system does to a process that dies: its descriptors are closed, its lock is gone."""
        assert isinstance(medium, FileMedium)
        medium._abandon()

    def _write(self, fd: int, data: memoryview, offset: int) -> int:
        if self._write_error:
            number, self._write_error = self._write_error, 0
            raise OSError(number, os.strerror(number))
        fault = self._faults[0] if self._faults else None
        if fault is Fault.WRITE_ERROR or fault is Fault.SHORT_WRITE or fault is Fault.NO_SPACE:
            # As on a real disk, a part is written first, and the next call says why it was only a part.
            self._faults.pop(0)
            self._write_error = {Fault.WRITE_ERROR: errno.EIO, Fault.NO_SPACE: errno.ENOSPC}.get(fault, 0)
            data = data[: len(data) // 2]
        return disk.write_at(fd, data, offset)

    def _sync(self, fd: int) -> None:
        fault = self._faults[0] if self._faults else None
        if fault is Fault.SLOW:
            self._faults.pop(0)
            assert self._go_on.wait(PATIENCE_S)
        if fault is Fault.SYNC_ERROR:
            self._faults.pop(0)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        disk.sync_data(fd)


class UnlockedMedium(FileMedium):
    """Files on a system whose locks keep nobody out, or whose lock file someone removed."""

    def _own(self) -> None:
        with mock.patch.object(disk, "try_lock", return_value=True):
            super()._own()


class UnlockedFilePlace(FilePlace):
    exclusive = False
    medium = UnlockedMedium


PLACES: dict[str, Callable[[Path], Place]] = {
    "file": FilePlace,
    "file, shared": UnlockedFilePlace,
    "memory": MemoryPlace,
    "memory, shared": lambda where: MemoryPlace(where, exclusive=False),
}

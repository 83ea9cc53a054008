"""Where paged entries are read back from: the journal's segments, its batch in flight, and spill files.

Spill files hold transient messages. They are nobody's promise: they are deleted when nothing in them is needed, and
those that an earlier process left are deleted at start.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rookery.core.paging import OFFSET_MASK, PLACE_BITS, SPILLED, Pager
from rookery.format.bytes import read_i32_be

WINDOW_BYTES: Final = 1 << 19
UNWRITTEN_BYTES: Final = 256 << 10
SPILL_BYTES: Final = 64 << 20


class _Spill:
    """One spill file: append, read, and count what is still needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
        self._unwritten = bytearray()
        self._written = 0
        self.live = 0

    @property
    def size(self) -> int:
        return self._written + len(self._unwritten)

    def append(self, record: bytes) -> int:
        at = self.size
        self._unwritten += record
        self.live += 1
        if len(self._unwritten) >= UNWRITTEN_BYTES:
            self._flush()
        return at

    def _flush(self) -> None:
        data = bytes(self._unwritten)
        os.lseek(self._fd, self._written, os.SEEK_SET)
        while data:
            done = os.write(self._fd, data)
            self._written += done
            data = data[done:]
        self._unwritten.clear()

    def read(self, offset: int, size: int) -> bytes:
        if offset + size > self._written and self._unwritten:
            self._flush()
        os.lseek(self._fd, offset, os.SEEK_SET)
        return os.read(self._fd, size)

    def remove(self) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)


class JournalPager(Pager):
    """Reads records at their places, with what follows them: neighbours come from the same read."""

    def __init__(
        self,
        read: Callable[[int, int, int], bytes],
        in_flight: Callable[[int, int, int], bytes | None],
        spill_directory: Path | None,
    ) -> None:
        self._read = read
        self._in_flight = in_flight
        self._directory = spill_directory
        self._spills: dict[int, _Spill] = {}
        self._current = 0
        if spill_directory is not None:
            for left in spill_directory.glob("spill-*.tmp"):
                left.unlink(missing_ok=True)

    def read(self, place: int) -> bytes:
        spilled = bool(place & SPILLED)
        place &= ~SPILLED
        segment, offset = place >> PLACE_BITS, place & OFFSET_MASK
        if spilled:
            read = self._spills[segment].read
        else:
            flying = self._in_flight(segment, offset, WINDOW_BYTES)
            if flying is not None:
                return flying
            read = functools.partial(self._read, segment)
        window = read(offset, WINDOW_BYTES)
        size = 5 + int(read_i32_be(window, 1))
        return window if size <= len(window) else read(offset, size)

    def spill(self, record: bytes) -> int:
        assert self._directory is not None, "there is nowhere to spill to"
        current = self._spills.get(self._current)
        if current is None or current.size >= SPILL_BYTES:
            if current is not None and not current.live:
                current.remove()
                del self._spills[self._current]
            self._current += 1
            current = _Spill(self._directory / f"spill-{self._current}.tmp")
            self._spills[self._current] = current
        return self._current << PLACE_BITS | current.append(record)

    def forget(self, place: int) -> None:
        number = (place & ~SPILLED) >> PLACE_BITS
        spill = self._spills[number]
        spill.live -= 1
        if not spill.live and number != self._current:
            spill.remove()
            del self._spills[number]

    def close(self) -> None:
        for spill in self._spills.values():
            spill.remove()
        self._spills.clear()

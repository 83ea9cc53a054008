"""Where the records of a range of offsets are: pieces of sealed files, then a piece of the tail.

A plan is made within a turn and can be read at leisure in any thread, as long as the files it names are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from rookery.core.stream import Partition


@final
class FilePiece:
    """Offsets from `start` up to, not including, `stop`, in a sealed file."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        self.path = path
        self.start = start
        self.stop = stop


@final
class TailPiece:
    """Offsets from `start` on in the tail: the places and times of the records, 64 bits each."""

    def __init__(self, start: int, places: bytes, stamps: bytes) -> None:
        self.start = start
        self.places = places
        self.stamps = stamps

    @property
    def stop(self) -> int:
        return self.start + len(self.places) // 8


def plan(partition: Partition, start: int, stop: int) -> list[FilePiece | TailPiece]:
    """The pieces that hold exactly the offsets from `start` up to `stop`, in order; both must be there."""
    partition.check(start)
    partition.check(stop)
    pieces: list[FilePiece | TailPiece] = []
    at = start
    while at < min(stop, int(partition.tail)):
        file = partition.file_of(at)
        assert file is not None, "sealed offsets are in files"
        after = min(stop, int(file.last) + 1)
        pieces.append(FilePiece(file.path, at, after))
        at = after
    if at < stop:
        pieces.append(TailPiece(at, *partition.run(at, stop)))
    return pieces

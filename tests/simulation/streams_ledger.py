"""The books of simulated streams: what was shown, to whom, and what must be there again after any crash.

The laws of streams (design: a record is shown once it is durable, and never changes) are held against what the core
shows after every step. Every body is used once, so a record that appears twice, or under another offset, is seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rookery.core import ranges
from rookery.core.stream import Partition
from tests.simulation.accounts import Violation

if TYPE_CHECKING:
    from tests.simulation.streams_world import Process


class Book:
    """One partition: every record that was ever shown, by offset."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.stamps: dict[int, int] = {}
        self.asked: dict[int, bytes] = {}
        self.visible = 0
        self.first = 0
        # up to where somebody asked for it to be let go of
        self.floor = 0


class Place:
    """Where a group is in one partition: what was asked for in order, the first of it durable."""

    def __init__(self) -> None:
        self.asked = [-1]
        self.durable = 0

    def ask(self, offset: int) -> int:
        self.asked.append(offset)
        return len(self.asked) - 1

    def answered(self, index: int) -> None:
        self.durable = max(self.durable, index)

    def see(self, position: int, where: str) -> None:
        """A position that is shown is the last one that is durable."""
        if position != self.asked[self.durable]:
            raise Violation("groups", f"{where} is at {position}, not {self.asked[self.durable]} of {self.asked}")

    def found(self, position: int, where: str) -> None:
        """After a crash: what was durable, or something later."""
        if position not in self.asked[self.durable :]:
            raise Violation("groups", f"{where} is back at {position}, after {self.asked[self.durable :]}")
        self.asked = [position]
        self.durable = 0


class Commit:
    """An epoch of a producer: its rows, those for a stream and those for the queue."""

    def __init__(self, producer: str, epoch: int, rows: list[bytes], to_queue: bool) -> None:
        self.producer = producer
        self.epoch = epoch
        self.rows = rows
        self.to_queue = to_queue
        self.asked = False
        self.answered = False
        self.result: dict[str, Any] | None = None


class Ledger:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.books: dict[int, Book] = {}
        self.origin: dict[bytes, str] = {}
        self.at: dict[bytes, tuple[int, int]] = {}
        self.places: dict[tuple[str, str, int], Place] = {}
        self.commits: dict[tuple[str, int], Commit] = {}
        self.row_of: dict[bytes, Commit] = {}
        self.staged: set[bytes] = set()
        # the queue: what must be in it, what may be, and what was taken for good
        self.entered: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.leaving: set[bytes] = set()
        self.left: set[bytes] = set()
        self.cuts: dict[tuple[str, int], list[bytes]] = {}
        self.acked: dict[str, int] = {}
        # files that must be there: by plan, and after they were let go of
        self.leased: dict[str, tuple[int, frozenset[str]]] = {}
        self.grace: dict[str, int] = {}

    # Streams

    def look(self, process: Process) -> None:
        """Hold what is shown now against the books."""
        synced = None
        for partition in process.partitions():
            book = self.books.setdefault(int(partition.number), Book())
            where = f"{partition.stream.name}/{partition.index}"
            first, tail, visible, end = (
                int(n) for n in (partition.first, partition.tail, partition.visible, partition.end)
            )
            if not (first <= visible <= end and tail <= visible):
                raise Violation("11 offsets", f"{where} has first {first}, tail {tail}, visible {visible}, end {end}")
            if visible < book.visible:
                raise Violation("11 offsets", f"{where} ended at {book.visible} and ends at {visible}")
            if first > book.first:
                self._let_go(process, partition, book, first)
            book.first = first
            if visible > book.visible:
                if synced is None:
                    synced = process.synced_bytes()
                self._show(process, partition, book, synced)
        self._look_at_commits()
        self._look_at_groups(process)
        self._look_at_leases(process)

    def _show(self, process: Process, partition: Partition, book: Book, synced: bytes) -> None:
        number = int(partition.number)
        for offset, stamp, body in process.read(partition, book.visible, int(partition.visible)):
            where = f"{partition.stream.name}/{partition.index}@{offset}"
            if body not in self.origin:
                raise Violation("11 offsets", f"{where} holds {body!r}, which nobody published")
            if body in self.at:
                raise Violation("once", f"{where} holds {body!r}, which was at {self.at[body]}")
            if book.asked.get(offset, body) != body:
                raise Violation("11 offsets", f"{where} was given to {book.asked[offset]!r} and shows {body!r}")
            if offset >= partition.tail and body not in synced:
                raise Violation("11 durable", f"{where} shows {body!r} before it is durable")
            if body in self.staged:
                raise Violation("staging", f"{where} shows {body!r}, which is staged and not committed")
            self.at[body] = (number, offset)
            book.records[offset] = body
            book.stamps[offset] = stamp
        book.visible = int(partition.visible)

    def _let_go(self, process: Process, partition: Partition, book: Book, first: int) -> None:
        """Records are let go of for a reason only."""
        settings = partition.stream.settings
        gone = range(book.first, first)
        if first <= book.floor or settings.max_bytes:
            return
        oldest = process.wall_ms - settings.max_age_ms
        if settings.max_age_ms and all(book.stamps[offset] < oldest for offset in gone):
            return
        read = [group.committed[int(partition.index)] for group in partition.stream.groups.values()]
        if settings.until_committed and read and min(read) >= first:
            return
        where = f"{partition.stream.name}/{partition.index}"
        raise Violation("retention", f"{where} let go of {list(gone)} for no reason")

    def _look_at_commits(self) -> None:
        for commit in self.commits.values():
            if commit.asked and commit.rows and not commit.to_queue:
                shown = sum(row in self.at for row in commit.rows)
                who = f"{commit.producer}'s epoch {commit.epoch}"
                if shown not in (0, len(commit.rows)):
                    raise Violation("staging", f"{shown} of {len(commit.rows)} rows of {who} are shown")
                if commit.answered and not shown:
                    raise Violation("staging", f"{who} was answered and is not shown")

    def _look_at_groups(self, process: Process) -> None:
        for stream in process.streams():
            for name, group in stream.groups.items():
                for index in range(len(stream.partitions)):
                    place = self.place(stream.name, name, index)
                    place.see(group.position(index), f"group {name} of {stream.name}/{index}")

    def place(self, stream: str, group: str, index: int) -> Place:
        return self.places.setdefault((stream, group, index), Place())

    def _look_at_leases(self, process: Process) -> None:
        now = process.mono_ms
        for plan, (until, paths) in self.leased.items():
            for path in paths:
                if until > now and not (process.root / path).is_file():
                    raise Violation("plans", f"{path} is gone, and {plan} reads it")
        for path, due_ms in self.grace.items():
            if process.wall_ms < due_ms and not (process.root / path).is_file():
                raise Violation("files", f"{path} is gone before its grace is over")

    def audit(self, process: Process) -> None:
        """Read everything back, from files and tails."""
        if process.history._job is None:
            self._check_directory(process)
        for partition in process.partitions():
            book = self.books[int(partition.number)]
            where = f"{partition.stream.name}/{partition.index}"
            self._check_files(process, partition, where)
            at = int(partition.first)
            for offset, stamp, body in process.read(partition, at, int(partition.visible)):
                if offset != at or body != book.records[offset] or stamp != book.stamps[offset]:
                    raise Violation(
                        "11 changed", f"{where}@{at} holds {body!r} as {offset}, it held {book.records[at]!r}"
                    )
                at += 1
            if at != partition.visible:
                raise Violation("11 lost", f"{where} can be read up to {at}, and shows {partition.visible}")

    def _check_files(self, process: Process, partition: Partition, where: str) -> None:
        after = None
        for file in partition.files:
            if after is not None and file.first != after:
                raise Violation("files", f"{where}: {file.path} follows offset {after}")
            after = int(file.last) + 1
            if not (process.root / file.path).is_file():
                raise Violation("files", f"{where}: {file.path} is listed, and is not there")
            if file.path in process.shard.condemned:
                raise Violation("files", f"{where}: {file.path} is to be deleted, and is in use")
        if after is not None and after != partition.tail:
            raise Violation("files", f"{where}: its files end at {after}, its tail begins at {partition.tail}")
        if after is None and partition.first < partition.tail:
            raise Violation("files", f"{where} begins at {partition.first}, sealed up to {partition.tail} in no file")

    def restarted(self, process: Process) -> None:
        """Another process has taken over: what was durable is there, what was not is there wholly or not at all."""
        self.leased.clear()
        # what was let go of a moment before may be in use again
        self.grace = {path: due for path, due in self.grace.items() if path in process.shard.condemned}
        numbers = {int(partition.number) for partition in process.partitions()}
        for number in numbers:
            book = self.books.setdefault(number, Book())
            book.asked.clear()
        for partition in process.partitions():
            # what was let go of a moment ago may be there again, as it was
            self.books[int(partition.number)].first = int(partition.first)
        for (stream, name, index), place in list(self.places.items()):
            if stream not in process.home.streams:
                del self.places[stream, name, index]
                continue
            group = process.home.streams[stream].groups.get(name)
            position = -1 if group is None else group.position(index)
            place.found(position, f"group {name} of {stream}/{index}")
        self.staged = {
            row for commit in self.commits.values() if not self._happened(process, commit) for row in commit.rows
        }
        for commit in self.commits.values():
            commit.asked = self._happened(process, commit)
            if commit.answered and not commit.asked:
                raise Violation("staging", f"{commit.producer}'s epoch {commit.epoch} was answered and is forgotten")
        self._check_directory(process)

    def _happened(self, process: Process, commit: Commit) -> bool:
        state = process.shard.staging.producers.get((process.home.name, commit.producer))
        return state is not None and state["epoch"] >= commit.epoch

    def _check_directory(self, process: Process) -> None:
        """Who reads the directory while nothing is being sealed finds no file that does not count."""
        known = {file.path for partition in process.partitions() for file in partition.files}
        for path in process.files():
            if path not in known and path not in process.shard.condemned:
                raise Violation("files", f"{path} is served, and no list names it")

    # The queue

    def look_at_queue(self, found: Iterable[bytes], spooling: bool) -> None:
        """Nothing confirmed is missing, nothing settled is back, and nothing is there twice."""
        seen: set[bytes] = set()
        for body in found:
            if body in seen:
                raise Violation("once", f"{body!r} is in the queue twice")
            seen.add(body)
            if body in self.left:
                raise Violation("cuts", f"{body!r} was settled and is back")
            if body not in self.entered and body not in self.perhaps and body not in self.leaving:
                raise Violation("staging", f"{body!r} is in the queue, and nobody sent it there")
        missing = self.entered - seen - self.leaving
        if missing and not spooling:
            raise Violation("1 lost", f"{sorted(missing)[:3]} are not in the queue")

    def queue_restarted(self, found: list[bytes]) -> None:
        """What was in doubt is decided by what is there."""
        there = set(found)
        self.left |= self.leaving - there
        self.entered -= self.leaving - there
        self.entered |= there
        self.leaving = set()


def values(process: Process, partition: Partition, start: int, stop: int) -> list[tuple[int, int, bytes]]:
    """(offset, time, body) of a range, by the way that readers of messages go."""
    found = []
    shard = process.shard
    for piece in ranges.plan(partition, start, stop):
        if isinstance(piece, ranges.FilePiece):
            raws = process.history.records(piece.path, piece.start, piece.stop)
        else:
            raws = [partition.record(offset) for offset in range(piece.start, piece.stop)]
        for offset, raw in zip(range(piece.start, piece.stop), raws, strict=True):
            stamp = int(partition.stamp(offset)) if offset >= partition.tail else process.stamp_of(raw)
            found.append((offset, stamp, shard.message_of(raw).body))
    return found

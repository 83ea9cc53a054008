"""A damaged data directory: what is wrong with it, and a sound one made of what is left.

`inspect` reads, and says which batches are whole and where they are not. `repair` writes a new directory: every whole
batch as it was, and of the others the messages, keys and definitions that can still be read (`doubtful`: their
checksum cannot vouch for them). Settles of such batches are left out, because one that is read wrongly would take away
a message that nobody settled: rather is a message delivered twice. Segments keep their numbers, since settles name
them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from rookery.core.shard import Shard
from rookery.errors import InvalidArgument, RookeryError, StoreDamaged, StoreError
from rookery.format import records
from rookery.format.bytes import BytesWriter
from rookery.format.model import PERSISTENT, Message, Route
from rookery.format.records import (
    BACK,
    DEFINE,
    EXIT,
    EXITS,
    IDS,
    MARK,
    PUT,
    RECORD,
    RETIRED,
    STATE,
    BatchHeader,
    Reader,
)
from rookery.sealed import lost
from rookery.sealed.lost import LOST, Lists, missing
from rookery.store import changes, disk
from rookery.store.file import FileMedium
from rookery.store.journal import Journal
from rookery.store.ownership import parse_end
from rookery.store.recovery import Tail, newest_state
from rookery.store.segments import Segments, sealed_files

Progress = Callable[[int, int], None]
"""Called with the bytes worked through so far, and how many there are in all."""

HEADER: Final = int(records.BATCH_HEADER_BYTES)
IDS_STEP: Final = 1 << 20
LATE_MS: Final = 1 << 61
PAGE_BYTES: Final = 64 << 20
FILL_BYTES: Final = 1 << 20
FAR_RECORDS: Final = 1 << 16
"""A doubtful record further than this from the one before it has a wrong offset."""

_UNREADABLE: Final = (RookeryError, ValueError, IndexError, KeyError, TypeError, OverflowError, zlib.error)


@dataclass(frozen=True)
class Damage:
    """A part of a file that is not what was written, and how many batches at least are missing because of it."""

    file: str
    offset: int
    end: int
    reason: str
    batches: int = 0

    def __str__(self) -> str:
        where = f"{self.file} at {self.offset}" if self.end else self.file
        what = f" ({self.end - self.offset} bytes)" if self.end > self.offset else ""
        lost = f", {self.batches} batches" if self.batches else ""
        return f"{where}{what}: {self.reason}{lost}"


@dataclass
class SegmentReport:
    """One file of the journal: its size, and the whole batches in it."""

    number: int
    file: str
    size_bytes: int
    batches: int = 0
    first_batch: int = 0
    last_batch: int = 0


@dataclass
class Report:
    """What was found, and after a repair, what became of it."""

    directory: str
    segments: list[SegmentReport] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    unfinished: Damage | None = None
    """The end of an append that was interrupted: nothing that was confirmed."""

    epoch: int = 0
    out: str | None = None
    kept: str | None = None
    """Where the damaged directory is now, if its place was taken."""

    messages: int = 0
    doubtful_messages: int = 0
    settles_left_out: int = 0
    definitions_left_out: int = 0
    records_lost: int = 0
    """Records of streams, in whose places there are empty ones now."""

    records_let_go: int = 0
    """Records of streams that were the oldest of their partitions, which begin after them now."""

    recovered_queues: list[str] = field(default_factory=list)
    """Queues whose definition is lost; their messages are in queues of these names in the tenant `recovered`."""

    @property
    def sound(self) -> bool:
        return not self.damage

    @property
    def batches(self) -> int:
        return sum(segment.batches for segment in self.segments)

    @property
    def batches_lost(self) -> int:
        return sum(damage.batches for damage in self.damage)

    def lines(self) -> list[str]:
        """The report for a person to read."""
        text = [f"{self.directory}: {len(self.segments)} segments, {self.batches} whole batches"]
        if self.unfinished is not None:
            text.append(f"unfinished end, which is no damage: {self.unfinished}")
        text += [f"damage: {damage}" for damage in self.damage] or ["no damage"]
        if self.out is not None:
            text.append(f"repaired in {self.out}: {self.messages} messages")
            if self.doubtful_messages:
                text.append(f"{self.doubtful_messages} of them are from damaged batches: their content may be wrong")
            if self.settles_left_out:
                text.append(f"{self.settles_left_out} settles are lost: those messages will be delivered again")
            if self.definitions_left_out:
                text.append(f"{self.definitions_left_out} changes of definitions are lost")
            if self.records_lost:
                text.append(f"{self.records_lost} records of streams are lost: empty ones (x-lost) have their offsets")
            if self.records_let_go:
                text.append(f"{self.records_let_go} records of streams are lost: their partitions begin after them")
            text += [f"queue recovered/{name} holds messages of a lost queue" for name in self.recovered_queues]
        if self.kept is not None:
            text.append(f"the damaged directory is kept as {self.kept}")
        return text


def inspect(directory: str | Path, progress: Progress | None = None) -> Report:
    """Look at every batch of a data directory, and whether its sealed files are there, and change nothing."""
    report, lost = _inspect(Path(directory), progress)
    if lost:
        # of a broker at work, some may have been let go of meanwhile
        gone = {damage.file for damage in lost}
        report, lost = _inspect(Path(directory), progress)
        report.damage += [damage for damage in lost if damage.file in gone]
    return report


def _inspect(directory: Path, progress: Progress | None) -> tuple[Report, list[Damage]]:
    """What the journal is like, and which sealed files are not as it says."""
    lists = Lists()
    with Segments(directory) as segments:
        look = _Look(segments, progress)
        for found in look.through():
            if isinstance(found, _Batch):
                lists.read(found.payload)
    root = directory / "streams"
    return look.report, [
        Damage(str(root / file.path), 0, 0, f"sealed records {file.first} to {file.last} are missing")
        for _, file in missing(lists.shard, root)
    ]


def repair(directory: str | Path, out: str | Path | None = None, progress: Progress | None = None) -> Report:
    """Make a sound data directory of what is left of this one.

    It is made as `out`, which must not exist yet. Without `out` it takes the place of the damaged one, which is kept
    beside it as `<directory>.damaged-<n>`; a sound directory is left as it is.
    """
    old = Path(directory).absolute()
    if not old.is_dir():
        raise InvalidArgument(f"there is no directory {old}", argument="directory")
    new = old.with_name(old.name + ".repairing") if out is None else Path(out).absolute()
    if new.exists():
        raise InvalidArgument(f"{new} is there already", argument="out")
    lock = disk.Lock(old / "lock")
    try:
        if out is None and (found := inspect(old, progress)).sound:
            return found
        new.mkdir(mode=0o700, parents=True)
        try:
            with Segments(old) as segments:
                _take_sealed_files(old, new)
                report = _Repair(segments, new, progress).run()
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        report.out = str(new)
        if out is None:
            kept = next(path for n in range(1, 1 << 20) if not (path := Path(f"{old}.damaged-{n}")).exists())
            old.rename(kept)
            new.rename(old)
            report.out, report.kept = str(old), str(kept)
        parent = disk.open_directory(new.parent)
        disk.sync_directory(parent)
        disk.close_directory(parent)
    finally:
        lock.release()
    return report


def _take_sealed_files(old: Path, new: Path) -> None:
    """They never change, so two directories may share them where the file system can do that."""
    for path in sealed_files(old):
        (new / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            (new / path).hardlink_to(old / path)
        except OSError:
            shutil.copyfile(old / path, new / path)


@dataclass(frozen=True)
class _Batch:
    """A whole batch: its records."""

    header: BatchHeader
    payload: bytes


@dataclass(frozen=True)
class _Gap:
    """A stretch in which no whole batch begins."""

    data: bytes


class _Look:
    """A walk through the files in order. It yields segments (by number), whole batches, and what lies between."""

    def __init__(self, segments: Segments, progress: Progress | None) -> None:
        self._segments = segments
        self._progress = progress
        self._numbers = segments.numbers()
        self._total = sum(segments.size(number) for number in self._numbers)
        self._done = 0
        self._seq = 0
        self._epoch = 0
        self._stated_epoch = -1
        self._number = 0
        self._in_damage = False
        self._newest = newest_state(segments.read, [(number, segments.size(number)) for number in self._numbers])
        self._numbers = [number for number in self._numbers if self._newest.counts(number)]
        self._recorded = (0, 0)
        with contextlib.suppress(ValueError):
            self._recorded = parse_end(segments.end_record)
        self.expected: list[int] = []
        self.retired: set[int] = set()
        self.report = Report(str(segments.directory))

    def through(self) -> Iterator[int | _Batch | _Gap]:
        self._look_at_epoch()
        for number in self._numbers:
            yield number
            yield from self._segment(number, last=self._newest.may_be_torn(number))
        self._look_at_end()
        present = {segment.number for segment in self.report.segments if segment.batches}
        for number in self.missing(present):
            self._damaged(self._segments.path(number), 0, 0, "the segment is missing")
        if self._epoch > self._stated_epoch >= 0:
            self._damaged(self._segments.directory / "epoch", 0, 0, f"the journal has batches of epoch {self._epoch}")

    def missing(self, present: set[int]) -> list[int]:
        """Segments that the newest state speaks of, and that nobody retired."""
        return [number for number in self.expected if number not in present and number not in self.retired]

    def _look_at_epoch(self) -> None:
        path = self._segments.directory / "epoch"
        try:
            self.report.epoch = self._stated_epoch = int(disk.read_text(path))
        except (OSError, ValueError):
            if self._numbers:
                self._damaged(path, 0, 0, "it holds no number")

    def _look_at_end(self) -> None:
        """The journal must not end before what a broker recorded when it was closed, or began a segment."""
        if not self._segments.end_record:
            return
        newest, batch = self._recorded
        if not newest:
            self._damaged(self._segments.directory / "end", 0, 0, "it does not hold a segment and a batch")
            return
        numbers = self._segments.numbers()
        if newest > (numbers[-1] if numbers else 0):
            self._damaged(self._segments.path(newest), 0, 0, "the newest segment is missing", max(0, batch - self._seq))
        elif self._seq < batch:
            last = self._segments.path(numbers[-1])
            self._damaged(last, 0, 0, f"the journal ends with batch {self._seq} instead of {batch}", batch - self._seq)

    def _segment(self, number: int, last: bool) -> Iterator[_Batch | _Gap]:
        path, size = self._segments.path(number), self._segments.size(number)
        newest = number == self._segments.numbers()[-1]
        data = self._segments.last()[0] if newest else self._segments.read(number, 0, size)
        end = self._newest.ends.get(number)
        if end is not None:
            # what a fenced owner wrote behind it does not count
            data = data[:end]
        found = SegmentReport(number, str(path), len(data))
        self.report.segments.append(found)
        written = len(data.rstrip(b"\0"))
        offset = 0
        while offset < len(data):
            header = BatchHeader(data, offset)
            if header.sound and number < self._recorded[0] and header.seq > self._recorded[1]:
                # of an owner that was fenced
                break
            if header.sound and header.seq > self._seq and header.epoch >= self._epoch:
                self._look_for_missing(path, offset, header, number)
                yield self._whole(found, data, offset, header)
                offset += int(header.size)
                continue
            later = list(self._later_batches(data, offset))
            if offset >= written:
                break
            if last and not any(synced > self._seq for _, synced in later):
                self.report.unfinished = Damage(str(path), offset, written, "an append was interrupted")
                break
            stated = int(records.batch_bytes(data, offset))
            end = later[0][0] if later else max(written, offset + stated if offset + stated <= len(data) else 0)
            self._damaged(path, offset, end, "no whole batch", 1)
            self._in_damage = True
            yield _Gap(data[offset:end])
            offset = end if later else len(data)
        if end is not None and len(data) < end:
            self._damaged(path, len(data), end, "the end of the segment is missing")
        self._number = number
        self._done += len(data)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _whole(self, found: SegmentReport, data: bytes, offset: int, header: BatchHeader) -> _Batch:
        self._seq, self._epoch = int(header.seq), int(header.epoch)
        self.report.epoch = max(self.report.epoch, self._epoch)
        found.batches += 1
        found.first_batch = found.first_batch or self._seq
        found.last_batch = self._seq
        payload = data[offset + HEADER : offset + int(header.size)]
        reader = Reader(payload, 0, len(payload))
        while reader.next():
            if reader.kind == STATE:
                self.expected = cast(dict[str, list[int]], reader.document())["segments"]
            elif reader.kind == RETIRED:
                self.retired.add(int(reader.segment))
        return _Batch(header, payload)

    def _look_for_missing(self, path: Path, offset: int, header: BatchHeader, number: int) -> None:
        """Batches are missing before this one only where damage is, or whole segments are gone."""
        missing = int(header.seq) - self._seq - 1
        if self._in_damage:
            damage = self.report.damage[-1]
            self.report.damage[-1] = Damage(damage.file, damage.offset, damage.end, damage.reason, max(1, missing))
            self._in_damage = False
        elif missing and self._seq and (offset or number == self._number + 1):
            self._damaged(path, offset, offset, "batches before it are missing", missing)

    def _later_batches(self, data: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Where whole batches begin that can belong behind this place, and up to which batch they know of a sync."""
        at = data.find(records.MAGIC_BYTES, start + 1)
        while at >= 0:
            header = BatchHeader(data, at)
            # no more batches can be missing than fit in between
            fits = self._seq < header.seq <= self._seq + 1 + (at - start) // HEADER
            if header.sound and fits and header.epoch >= self._epoch:
                yield at, int(header.synced)
                at += int(header.size) - 1
            at = data.find(records.MAGIC_BYTES, at + 1)

    def _damaged(self, path: Path, offset: int, end: int, reason: str, batches: int = 0) -> None:
        self.report.damage.append(Damage(str(path), offset, end, reason, batches))


class _Repair:
    """Writes the new directory while it walks through the old one."""

    def __init__(self, old: Segments, new: Path, progress: Progress | None) -> None:
        self._look = _Look(old, progress)
        self._report = self._look.report
        self._new = new
        self._fd = -1
        self._offset = 0
        self._seq = 0
        self._last = 0
        self._top_id = 0
        # definitions as they would be replayed: what does not fit any more must not be in the new journal
        self._scratch = Shard(b"", 1)
        self._known: set[int] = set()
        self._orphans: dict[int, None] = {}
        self._tails: dict[int, Tail] = {}

    def run(self) -> Report:
        try:
            for found in self._look.through():
                if isinstance(found, int):
                    self._begin(found)
                elif isinstance(found, _Batch):
                    self._write(self._kept(found.payload, sure=True), int(found.header.epoch))
                else:
                    self._write(self._salvaged(found.data), self._epoch())
            self._finish()
        finally:
            self._end_segment()
        disk.write_text(self._new / "epoch", f"{max(1, self._report.epoch)}\n", sync=True)
        directory = disk.open_directory(self._new)
        disk.sync_directory(directory)
        disk.close_directory(directory)
        self._check()
        return self._report

    def _epoch(self) -> int:
        return max(1, self._look._epoch)

    # Segments and batches

    def _begin(self, number: int) -> None:
        self._end_segment()
        self._last = number
        self._fd = disk.open_file(self._new / f"{number:08d}.log", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._offset = 0

    def _end_segment(self) -> None:
        if self._fd >= 0:
            disk.sync_data(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _write(self, payload: bytes, epoch: int) -> None:
        if not payload:
            return
        self._seq += 1
        rest = memoryview(records.seal(payload, epoch, self._seq, self._seq - 1))
        while rest:
            written = disk.write_at(self._fd, rest, self._offset)
            self._offset += written
            rest = rest[written:]

    # Records

    def _kept(self, payload: bytes, sure: bool) -> bytes:
        """The records of a batch that can be replayed. Without `sure`, only those that cannot do harm."""
        w = BytesWriter()
        reader = Reader(payload, 0, len(payload))
        while self._has_next(reader, sure):
            try:
                if self._is_kept(reader, w, sure):
                    w.write(reader.raw())
            except _UNREADABLE as error:
                if sure:
                    raise StoreDamaged(f"a whole batch holds what cannot be read: {error}") from error
                self._report.definitions_left_out += reader.kind == DEFINE or reader.kind == STATE
        return w.getvalue()

    def _has_next(self, reader: Reader, sure: bool) -> bool:
        try:
            return reader.next()
        except _UNREADABLE as error:
            if sure:
                raise StoreDamaged(f"a whole batch cannot be read: {error}") from error
            return False

    def _is_kept(self, reader: Reader, w: BytesWriter, sure: bool) -> bool:
        kind = reader.kind
        if kind == PUT:
            return self._is_message(reader, sure)
        if kind == RECORD:
            return self._is_record(reader, sure)
        if kind in (IDS, RETIRED, EXIT, EXITS, BACK):
            if kind == IDS and sure:
                self._top_id = max(self._top_id, int(reader.number))
            if kind in (EXIT, EXITS) and not sure:
                self._report.settles_left_out += int(reader.count)
            return sure
        document = reader.document()
        if kind == STATE and "ends" in cast(dict[str, Any], document):
            # here segments may end elsewhere
            document = cast(dict[str, Any], document)
            del document["ends"]
            fits = self._replay(int(kind), document, w, sure)
            self._report.definitions_left_out += not fits
            if fits:
                records.write_document(w, STATE, document)
            return False
        if kind == MARK:
            tenant, scope, key, number, until = cast(list[Any], document)
            return all(isinstance(text, str) for text in (tenant, scope, key)) and isinstance(number + until, int)
        fits = self._replay(int(kind), cast(dict[str, Any], document), w, sure)
        self._report.definitions_left_out += not fits
        return fits

    def _is_message(self, reader: Reader, sure: bool) -> bool:
        raw = reader.raw()
        if not sure:
            # raises when a part of it does not fit the others
            records.read_message(raw, {})
            if reader.placements < 1 or reader.placements > len(raw) // int(records.PLACEMENT_BYTES):
                return False
        queues = []
        for _ in range(reader.placements):
            reader.placement()
            queues.append(int(reader.queue))
        if not sure:
            if reader._at != reader.stop:
                return False
            self._report.doubtful_messages += 1
        self._top_id = max(self._top_id, int(reader.number))
        for queue in queues:
            if queue not in self._known:
                self._orphans[queue] = None
        return True

    def _is_record(self, reader: Reader, sure: bool) -> bool:
        number, offset = int(reader.queue), int(reader.seq)
        found = self._tails.setdefault(number, Tail()) if sure else self._tails.get(number)
        if found is None:
            return False
        if not sure:
            # raises when a part of it does not fit the others
            records.read_message(reader.raw(), {})
            if not 0 <= offset - int(found.places.last_seq) <= FAR_RECORDS:
                return False
            self._report.doubtful_messages += 1
        self._top_id = max(self._top_id, int(reader.number))
        found.set(offset, 1, reader.enqueued_ms, 0)
        return True

    def _fill_streams(self) -> None:
        """Put an empty record in the place of each that is lost: offsets have no gaps."""
        w = BytesWriter()
        route = Route("", "")
        for number, partition in self._scratch.partitions.items():
            found = self._tails.get(number, Tail())
            stamp = 0
            for offset in range(int(partition.tail), max(int(partition.end), int(found.places.last_seq) + 1)):
                if found.places.get(offset):
                    stamp = int(found.stamps.get(offset))
                    continue
                if not offset and not partition.end and not found.places.last_seq:
                    # nothing was ever there
                    break
                self._top_id += 1
                empty = Message(route, LOST, b"", self._top_id, 0, 0, PERSISTENT)
                records.write_record(w, number, offset, stamp, empty, b"", records.PLAIN)
                self._report.records_lost += 1
                if len(w) > FILL_BYTES:
                    self._write(w.getvalue(), self._epoch())
                    w = BytesWriter()
        self._write(w.getvalue(), self._epoch())

    def _replace_sealed(self, w: BytesWriter) -> None:
        """Let partitions begin after what is lost of their oldest files, and fill the gaps of others."""
        root = self._new / "streams"
        for partition in self._scratch.partitions.values():
            before = int(partition.files[0].first) if partition.files else 0
            change = lost.let_go(partition, root)
            if change is not None:
                self._report.records_let_go += int(partition.first) - before
                self._damaged_files(root, change["files"])
                records.write_document(w, DEFINE, change)
        for partition, file in list(lost.missing(self._scratch, root)):
            count = int(file.last - file.first) + 1
            self._damaged_files(root, [file.path])
            lost.fill(partition, file, root, self._top_id + 1)
            self._top_id += count
            self._report.records_lost += count

    def _damaged_files(self, root: Path, paths: list[str]) -> None:
        for path in paths:
            old = self._look._segments.directory / "streams" / path
            self._look._damaged(old, 0, 0, "the sealed records are missing")
            (root / path).unlink(missing_ok=True)

    def _replay(self, kind: int, document: dict[str, Any], w: BytesWriter, sure: bool) -> bool:
        """Apply a document to the scratch definitions; False when it does not fit them."""
        try:
            if kind == STATE:
                self._restore(document, sure)
            elif document["op"] not in ("forget", *changes.ACCESS):
                self._make_room(document, w)
                changes.replay(self._scratch, document, None)
                if document["op"] == "queue":
                    self._known.add(document["number"])
                    self._orphans.pop(document["number"], None)
        except _UNREADABLE:
            return False
        return True

    def _restore(self, document: dict[str, Any], sure: bool) -> None:
        if not sure:
            changes.restore(Shard(b"", 1), document, None)
        changes.restore(self._scratch, document, None)
        self._known.update(number for _, _, number, _ in document["numbers"])
        if sure:
            # what it does not know had been deleted
            self._orphans.clear()

    def _make_room(self, document: dict[str, Any], w: BytesWriter) -> None:
        """The deletion of what stood in the place of a new queue or exchange may be among what is lost."""
        tenant = self._scratch.tenants.get(document["tenant"])
        operation = document["op"]
        name = document.get("name")
        if tenant is None or operation not in ("queue", "exchange", "stream"):
            return
        gone: dict[str, Any] | None = None
        if operation == "queue" and name in tenant.queues and tenant.queues[name].number != document["number"]:
            gone = {"op": "drop-queue", "tenant": tenant.name, "name": name}
            gone["number"] = int(tenant.queues[name].number)
        elif operation == "stream" and name in tenant.streams:
            number = int(tenant.streams[name].partitions[0].number)
            if number not in document["numbers"]:
                gone = {"op": "drop-stream", "tenant": tenant.name, "name": name, "number": number}
        elif operation == "exchange" and name in tenant.exchanges:
            gone = {"op": "drop-exchange", "tenant": tenant.name, "name": name}
        if gone is not None:
            changes.replay(self._scratch, gone, None)
            records.write_document(w, DEFINE, gone)

    def _salvaged(self, gap: bytes) -> bytes:
        """What can be read of batches that are not whole."""
        found = b""
        at = 0
        while at < len(gap):
            length = int(records.batch_bytes(gap, at))
            end = at + length if HEADER < length <= len(gap) - at else len(gap)
            found += self._kept(gap[at + HEADER : end], sure=False)
            at = end
        return found

    # The end

    def _finish(self) -> None:
        """Say what the next owner must know: segments that are gone, numbers not to be used, queues of nobody."""
        if not self._last:
            return
        self._fill_streams()
        w = BytesWriter()
        self._replace_sealed(w)
        written = {segment.number for segment in self._report.segments}
        for number in sorted({*self._look.missing(written), *self._empty_segments()}):
            records.write_retired(w, number)
        records.write_ids(w, self._top_id + IDS_STEP * (2 + self._report.batches_lost))
        if self._orphans:
            if "recovered" not in self._scratch.tenants:
                records.write_document(w, DEFINE, {"op": "tenant", "tenant": "recovered", "limits": {}})
            for number in self._orphans:
                name = f"queue-{number}"
                row = {"op": "queue", "tenant": "recovered", "name": name, "face": "embedded"}
                records.write_document(w, DEFINE, {**row, "number": number, "settings": {"max_attempts": 0}})
                self._report.recovered_queues.append(name)
        self._write(w.getvalue(), self._epoch())

    def _empty_segments(self) -> list[int]:
        """Segments of which nothing is left; the one that is written to last has the end in it."""
        empty = []
        for segment in self._report.segments:
            path = self._new / f"{segment.number:08d}.log"
            if segment.number != self._last and not path.stat().st_size:
                path.unlink()
                if segment.number in self._look.expected:
                    empty.append(segment.number)
        return empty

    def _check(self) -> None:
        """Open the new directory once: what cannot be opened is no repair."""
        shard = Shard(b"", 1)
        shard.turn(LATE_MS, 0)
        shard.page_bytes = PAGE_BYTES
        medium = FileMedium(self._new, segment_bytes=0, reserve_bytes=0)
        journal = Journal(shard, medium, post=lambda call: call())
        try:
            recovery = journal.open()
            self._report.messages = int(recovery.messages)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{self._new} cannot be opened: {error}") from error
        finally:
            journal.close()


__all__ = ["Damage", "Progress", "Report", "SegmentReport", "inspect", "repair"]

"""What happened since the last batch: the core's side of the journal.

The core notes every durable change here while it works; the journal takes the notes as one batch between turns. Notes
are references, written out only when the batch is taken, so a message that came and went in between is never written
at all, and what is written is the state as it is then. The order in a batch is definitions, messages, returns, exits.

`batch` is the number of the batch being collected. `horizon()` is the number that must be durable for everything so far
to be durable; a confirm waits for it. `changed` is the one with the newest change of definitions; the answer to a
declaration waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from rookery.core.entries import DELAYED, GONE, READY, Entry
from rookery.core.paging import PLACE_BITS
from rookery.errors import RookeryError
from rookery.format import records
from rookery.format.bytes import BytesWriter, append, vec
from rookery.format.model import Message

if TYPE_CHECKING:
    from rookery.core.queue import Queue
    from rookery.core.stream import Partition

REDELIVERED: Final[i64] = 1
"""A flag of a placement."""


@final
class Shown:
    """What a partition may show once a batch is durable; called then."""

    def __init__(self, partition: Partition, upto: i64) -> None:
        self._partition = partition
        self._upto: i64 = upto

    def __call__(self) -> None:
        self._partition.show(self._upto)


@final
class Log:
    """The notes. Inactive (a broker in memory) it is never asked to note anything."""

    def __init__(self) -> None:
        self.active = False
        self.paging = False
        self._base: i64 = 0
        self.batch: i64 = 1
        self.changed: i64 = 0
        self.written: i64 = 0
        self.durable: i64 = 0
        self.wants_sync = False
        self.urgent = False
        self.bytes: i64 = 0
        self.failure: RookeryError | None = None
        self.refusal: RookeryError | None = None
        self.refusing = False
        self.marks: i64 = 0
        self.puts: i64 = 0
        self.ids_ceiling: i64 = 0
        self.compress_min: i64 = 0
        self.pack: Any = None
        self.coding: i64 = records.PLAIN
        self._definitions: list[bytes] = []
        self._changes: list[tuple[str, str, dict[str, object]]] = []
        self._queues: list[Queue] = []
        self._entries: list[Entry] = []
        self._moved: list[list[tuple[Queue, Entry]]] = []
        self._moved_paged: list[tuple[Queue, int, bytes]] = []
        self._back_queues: list[Queue] = []
        self._backs: list[Entry] = []
        self._exits = BytesWriter()
        # the exits noted last, as long as they are of one sequence after the other; none when both are 0
        self._run_queue: i64 = 0
        self._run_segment: i64 = 0
        self._run_first: i64 = 0
        self._run_end: i64 = 0
        self.exits_at: i64 = 0
        self._partitions: list[Partition] = []
        self._appended: list[Message] = []
        self._offsets: vec[i64] = vec[i64]()
        self._stamps: vec[i64] = vec[i64]()
        self._moved_records: list[tuple[Partition, int, bytes]] = []
        self._awaited: list[tuple[int, Callable[[], None]]] = []
        self._first_segment: i64 = 1
        self._live: vec[i64] = vec[i64]()

    # Noting

    def enter(self, queue: Queue, entry: Entry) -> None:
        """A message was placed in a durable queue."""
        self._queues.append(queue)
        self._entries.append(entry)
        self.bytes += len(entry.message.body) + 100
        self.wants_sync = True

    def append(self, partition: Partition, message: Message, offset: i64, stamp: i64) -> None:
        """A message was appended to a stream."""
        self._partitions.append(partition)
        self._appended.append(message)
        self._offsets = append(self._offsets, offset)
        self._stamps = append(self._stamps, stamp)
        self.bytes += len(message.body) + 100
        self.wants_sync = True

    def move_record(self, partition: Partition, offset: i64, record: bytes) -> None:
        """A record of a stream is to be written again, because its segment retires."""
        self._moved_records.append((partition, int(offset), record))

    def when_durable(self, action: Callable[[], None]) -> None:
        """Do this once everything that happened so far is durable: at once where nothing is written down."""
        batch = self.horizon()
        if not self.active or batch <= self.durable:
            action()
        else:
            self._awaited.append((int(batch), action))

    def settle(self) -> None:
        """The journal has answered: do what waited for it."""
        due = 0
        while due < len(self._awaited) and self._awaited[due][0] <= self.durable:
            due += 1
        actions = self._awaited[:due]
        del self._awaited[:due]
        for _, action in actions:
            action()

    def back(self, queue: Queue, entry: Entry) -> None:
        """A written placement came back from a lease."""
        self._back_queues.append(queue)
        self._backs.append(entry)

    def exit(self, queue: Queue, entry: Entry) -> None:
        """A written placement left."""
        self.exit_paged(queue.number, entry.seq, entry.message.segment)

    def exit_paged(self, queue: i64, seq: i64, segment: i64) -> None:
        """A paged placement left without being read back."""
        if seq == self._run_end and segment == self._run_segment and queue == self._run_queue:
            self._run_end = seq + 1
        else:
            self._end_run()
            self._run_queue = queue
            self._run_segment = segment
            self._run_first = seq
            self._run_end = seq + 1
        self.died(segment)

    def _end_run(self) -> None:
        count = self._run_end - self._run_first
        if count:
            records.write_exits(self._exits, self._run_queue, self._run_first, self._run_segment, count)
        self._run_first = 0
        self._run_end = 0

    def move_paged(self, queue: Queue, seq: i64, record: bytes) -> None:
        """A paged placement is to be written again, because its segment retires; `record` is the PUT it stands in."""
        self._moved_paged.append((queue, int(seq), record))

    def move(self, placements: list[tuple[Queue, Entry]]) -> None:
        """The placements of one message that are to be written again, because their segment retires."""
        self._moved.append(placements)

    def note(self, kind: i64, document: object, sync: bool) -> None:
        """A definition changed, a dedup key was used, or a settle record is carried forward."""
        w = BytesWriter()
        records.write_document(w, kind, document)
        self._definitions.append(w.getvalue())
        self.bytes += len(w)
        if kind == records.MARK:
            self.marks += 1
        if sync:
            self.wants_sync = True

    def note_raw(self, record: bytes) -> None:
        """A settle record is carried forward as it stands."""
        self._definitions.append(record)

    def note_first(self, kind: i64, document: object) -> None:
        """What a new segment begins with."""
        w = BytesWriter()
        records.write_document(w, kind, document)
        self._definitions.insert(0, w.getvalue())
        self.wants_sync = True

    def note_ids(self, ceiling: i64) -> None:
        """Message numbers up to the ceiling may be given out before this is said again."""
        w = BytesWriter()
        records.write_ids(w, ceiling)
        self._definitions.append(w.getvalue())
        self.ids_ceiling = ceiling

    def note_retired(self, segment: i64) -> None:
        """Nothing in this segment is needed any more, once this is durable."""
        w = BytesWriter()
        records.write_retired(w, segment)
        self._definitions.append(w.getvalue())
        self.wants_sync = True

    def change(self, operation: str, tenant: str, details: dict[str, object]) -> None:
        """A definition changed; the journal words it when it takes the batch."""
        if self.active:
            self._changes.append((operation, tenant, details))
            self.changed = self.batch
            self.wants_sync = True

    def take_changes(self) -> list[tuple[str, str, dict[str, object]]]:
        taken = self._changes
        self._changes = []
        return taken

    def died(self, segment: i64) -> None:
        """A written placement is gone, or stands in another segment."""
        at = segment - self._first_segment
        self._live[at] -= 1

    def refuse(self, why: RookeryError) -> None:
        """Take no more publishes, for this reason; settles go on."""
        self.refusal = why
        self.refusing = True

    def accept(self) -> None:
        """Take publishes again, if nothing failed for good."""
        if self.failure is None:
            self.refusal = None
            self.refusing = False

    def check(self) -> None:
        """Raise if publishes are refused."""
        if self.refusal is not None:
            raise self.refusal

    # Counting what lives in each segment

    def open_segment(self, segment: i64) -> None:
        """Start to count for a segment; the first one opened is the oldest there is."""
        if not len(self._live):
            self._first_segment = segment
        while self._first_segment + len(self._live) <= segment:
            self._live = append(self._live, 0)

    def live(self, segment: i64) -> i64:
        """How many placements in a segment are still in their queues."""
        return self._live[segment - self._first_segment]

    def add_live(self, segment: i64, placements: i64) -> None:
        at = segment - self._first_segment
        self._live[at] += placements

    # Taking

    def pending(self) -> bool:
        if self._entries or self._appended or self._run_end or self._definitions or self._changes:
            return True
        return bool(self._moved_records or self._backs or self._moved or self._moved_paged)

    def horizon(self) -> i64:
        """The number of the batch after which everything that happened so far is durable."""
        return self.batch if self.pending() else self.batch - 1

    def take(self, segment: i64, offset: i64) -> bytes:
        """The records of all notes, as they are now, for a batch at this offset of a segment; the next one begins.

        Entries that need not stay in memory are paged out as they are written.
        """
        self._base = (segment << PLACE_BITS) + offset + records.BATCH_HEADER_BYTES
        w = BytesWriter()
        self.puts = 0
        self.marks = 0
        for record in self._definitions:
            w.write(record)
        self._definitions = []
        self._write_entries(w, segment)
        if self._appended:
            self._write_appended(w, segment)
        if self._moved_records:
            self._write_moved_records(w, segment)
        if self._moved:
            for placements in self._moved:
                self._write_moved(w, placements, segment)
            self._moved = []
        if self._moved_paged:
            moved = self._moved_paged
            self._moved_paged = []
            for queue, seq, record in moved:
                self._write_moved_paged(w, queue, seq, record, segment)
        i: i64 = 0
        n: i64 = len(self._backs)
        while i < n:
            entry = self._backs[i]
            if entry.state != GONE:
                queue = self._back_queues[i]
                flags: i64 = REDELIVERED if entry.redelivered else 0
                due: i64 = entry.due_ms if entry.state == DELAYED else 0
                records.write_back(w, queue.number, entry.seq, entry.message.segment, due, i64(entry.attempts), flags)
            i += 1
        if n:
            self._backs = []
            self._back_queues = []
        self._end_run()
        self.exits_at = len(w)
        if len(self._exits):
            w.write(self._exits.getvalue())
            self._exits = BytesWriter()
        self.batch += 1
        self.bytes = 0
        self.wants_sync = False
        self.urgent = False
        return w.getvalue()

    def _write_entries(self, w: BytesWriter, segment: i64) -> None:
        queues = self._queues
        entries = self._entries
        n: i64 = len(entries)
        i: i64 = 0
        while i < n:
            message = entries[i].message
            j = i + 1
            live: i64 = 1 if entries[i].state != GONE else 0
            while j < n and entries[j].message is message:
                if entries[j].state != GONE:
                    live += 1
                j += 1
            if live:
                place = self._base + len(w)
                at = self._begin_put(w, message, live)
                k = i
                while k < j:
                    if entries[k].state != GONE:
                        self._place(w, queues[k], entries[k])
                    k += 1
                records.end_put(w, at)
                message.set_segment(segment)
                if self.paging:
                    while i < j:
                        if entries[i].state == READY:
                            queues[i].lines.page_out(entries[i], place)
                        i += 1
                self.add_live(segment, live)
                self.puts += live
            i = j
        if n:
            self._queues = []
            self._entries = []

    def _write_appended(self, w: BytesWriter, segment: i64) -> None:
        partitions = self._partitions
        n: i64 = len(partitions)
        live: i64 = 0
        grown: dict[Partition, int] = {}
        last: Partition | None = None
        i: i64 = 0
        while i < n:
            partition = partitions[i]
            if not partition.stream.deleted:
                if partition is not last:
                    grown[partition] = 0
                    last = partition
                message = self._appended[i]
                partition.placed(self._base + len(w))
                self._write_record(w, partition.number, self._offsets[i], self._stamps[i], message)
                live += 1
            i += 1
        self.add_live(segment, live)
        self.puts += live
        for partition in grown:
            self._awaited.append((int(self.batch), Shown(partition, partition.last_written())))
        self._partitions = []
        self._appended = []
        self._offsets = vec[i64]()
        self._stamps = vec[i64]()

    def _write_record(self, w: BytesWriter, number: i64, offset: i64, stamp: i64, message: Message) -> None:
        body = self._packed(message.body)
        coding = records.PLAIN if body is message.body else self.coding
        records.write_record(w, number, offset, stamp, message, body, coding)

    def _write_moved_records(self, w: BytesWriter, segment: i64) -> None:
        moved = self._moved_records
        self._moved_records = []
        for partition, offset, record in moved:
            if offset < partition.tail or partition.stream.deleted:
                continue
            place = self._base + len(w)
            self.died(partition.place(offset) >> PLACE_BITS)
            records.write_record_again(w, record, partition.number, offset, partition.stamp(offset))
            partition.move(offset, place)
            self.add_live(segment, 1)
            self.puts += 1

    def _write_moved(self, w: BytesWriter, placements: list[tuple[Queue, Entry]], segment: i64) -> None:
        live = [(queue, entry) for queue, entry in placements if entry.state != GONE]
        if not live:
            return
        message = live[0][1].message
        at = self._begin_put(w, message, len(live))
        for queue, entry in live:
            self._place(w, queue, entry)
        records.end_put(w, at)
        self.add_live(message.segment, -len(live))
        for _, entry in live:
            # those that were paged and read back have the message each for itself
            entry.message.set_segment(segment)
        self.add_live(segment, len(live))
        self.puts += len(live)

    def _write_moved_paged(self, w: BytesWriter, queue: Queue, seq: i64, record: bytes, segment: i64) -> None:
        old = queue.lines.place_of(seq)
        if queue.deleted or not old:
            # read back meanwhile: then it moves as others do
            entry = None if queue.deleted else queue.find(seq)
            if entry is not None and entry.message.segment and entry.message.segment != segment:
                self._write_moved(w, [(queue, entry)], segment)
            return
        place = self._base + len(w)
        reader = records.Reader(record, 0, len(record))
        reader.next()
        i: i64 = 0
        while i < reader.placements:
            reader.placement()
            i += 1
            if reader.queue == queue.number and reader.seq == seq:
                break
        message = records.read_message(record, {})
        at = self._begin_put(w, message, 1)
        # attempts as they are known now: a return may have been noted since the record was written
        meta = queue.lines.meta_of(seq)
        flags: i64 = REDELIVERED if meta & 1 else 0
        records.place(w, queue.number, seq, reader.enqueued_ms, 0, (meta & 0xFFFFFFFF) >> 1, flags)
        records.end_put(w, at)
        queue.lines.move(seq, place)
        self.died(old >> PLACE_BITS)
        self.add_live(segment, 1)
        self.puts += 1

    def _begin_put(self, w: BytesWriter, message: Message, placements: i64) -> i64:
        body = self._packed(message.body)
        coding = records.PLAIN if body is message.body else self.coding
        return records.begin_put(w, message, body, coding, placements)

    def _packed(self, body: bytes) -> bytes:
        """The body made smaller, or itself where it is small already or that does not pay."""
        if not self.compress_min or len(body) < self.compress_min:
            return body
        small: bytes = self.pack(body)
        return small if len(small) < len(body) else body

    def _place(self, w: BytesWriter, queue: Queue, entry: Entry) -> None:
        flags: i64 = REDELIVERED if entry.redelivered else 0
        due: i64 = entry.due_ms if entry.state == DELAYED else 0
        records.place(w, queue.number, entry.seq, entry.enqueued_ms, due, i64(entry.attempts), flags)

"""Reading a journal back: first everything that changes state, then the messages that are left.

The first pass goes through all batches in order, checks each, applies definitions and dedup keys, and notes for every
placement the place of its newest PUT; an exit takes the note away. The second pass reads those PUTs again and puts
their messages into the queues. So memory is needed for what is left and for one number per placement, not for the
history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast, final

from mypy_extensions import i64

from rookery.core.log import REDELIVERED
from rookery.core.paging import PLACE_BITS
from rookery.core.shard import Shard
from rookery.core.staging import Alias
from rookery.core.stream import Partition
from rookery.errors import InvalidArgument, StoreDamaged, StoreError
from rookery.format import records
from rookery.format.bytes import append, vec
from rookery.format.compression import NEEDS_ZSTD, is_available
from rookery.format.model import Message, Route
from rookery.format.records import BACK, EXIT, EXITS, IDS, MARK, PUT, RECORD, RETIRED, STATE, BatchHeader, Reader

CHUNK: Final[i64] = 4096
READ_BYTES: Final[i64] = 4 << 20


@final
class Places:
    """Where the newest PUT of each sequence of one queue stands; 0 for none. Dense runs cost 8 bytes a sequence."""

    def __init__(self) -> None:
        self._chunks: dict[int, vec[i64]] = {}
        self.last_seq: i64 = 0
        self.backs: dict[int, tuple[int, int, int]] = {}

    def first_from(self, seq: i64) -> i64:
        """The first sequence from here on that has a place; beyond `last_seq` when there is none."""
        while seq <= self.last_seq and not self.get(seq):
            number = seq // CHUNK
            seq = seq + 1 if number in self._chunks else (number + 1) * CHUNK
        return seq

    def set(self, seq: i64, place: i64) -> None:
        number = seq // CHUNK
        chunk = self._chunks.get(number)
        if seq > self.last_seq:
            self.last_seq = seq
        if chunk is None:
            if not place:
                return
            chunk = vec[i64](capacity=CHUNK)
            i: i64 = 0
            while i < CHUNK:
                chunk = append(chunk, 0)
                i += 1
            self._chunks[number] = chunk
        chunk[seq - number * CHUNK] = place

    def get(self, seq: i64) -> i64:
        number = seq // CHUNK
        chunk = self._chunks.get(number)
        if chunk is None:
            return 0
        return chunk[seq - number * CHUNK]


@final
class Tail:
    """What of one partition stands in the journal."""

    def __init__(self) -> None:
        self.places = Places()
        self.stamps = Places()
        self.sizes = Places()

    def set(self, offset: i64, place: i64, stamp: i64, size: i64) -> None:
        self.places.set(offset, place)
        self.stamps.set(offset, stamp)
        self.sizes.set(offset, size)


@final
class Window:
    """A segment read piece by piece; a batch is always whole in `data`."""

    def __init__(self, read: Callable[[int, int, int], bytes], segment: i64, size: i64) -> None:
        self._read = read
        self.segment: i64 = segment
        self.size: i64 = size
        self.data = b""
        self.start: i64 = 0

    def need(self, offset: i64, length: i64) -> i64:
        """Have at least `length` bytes from `offset` on, if the segment has them; where they begin in `data`."""
        if offset < self.start or offset + length > self.start + len(self.data):
            self.data = self._read(int(self.segment), int(offset), int(max(length, READ_BYTES)))
            self.start = offset
        return offset - self.start


@final
class NewestState:
    """What the newest state says of the segments before its own: which there are, and where each ends.

    Others there are left from owners that were fenced, or are retired. Before states said this, all of them counted.
    """

    def __init__(self, segment: int, last_written: int) -> None:
        self.segment = segment
        self.ends: dict[int, int] = {}
        self._segments: list[int] = []
        self._last_written = last_written
        self._tells = False

    def read(self, document: object) -> None:
        state = cast(dict[str, list[int]], document)
        if "ends" in state:
            self._tells = True
            self._segments = state["segments"]
            self.ends = {int(number): end for number, end in cast(dict[str, dict[str, int]], document)["ends"].items()}

    def counts(self, segment: int) -> bool:
        """Whether a segment belongs to the journal."""
        return segment >= self.segment or not self._tells or segment in self._segments

    def may_be_torn(self, segment: int) -> bool:
        """Whether the end of a segment may be what an append, or one of a fenced owner, left unfinished."""
        return segment >= (self.segment if self._tells else self._last_written)


def newest_state(read: Callable[[int, int, int], bytes], segments: list[tuple[int, int]]) -> NewestState:
    """The state that heads the last segment with a whole batch at its beginning."""
    last_written = segments[-1][0] if segments else 0
    for segment, size in reversed(segments):
        window = Window(read, segment, size)
        at = window.need(0, records.BATCH_HEADER_BYTES)
        length = records.batch_bytes(window.data, at)
        if length <= 0:
            continue
        at = window.need(0, length)
        header = BatchHeader(window.data, at)
        if not header.sound:
            continue
        reader = Reader(window.data, at + records.BATCH_HEADER_BYTES, at + header.size)
        newest = NewestState(segment, last_written)
        while reader.next():
            if reader.kind == STATE:
                newest.read(reader.document())
                break
        return newest
    return NewestState(0, last_written)


@final
class Recovery:
    """One run over a medium's segments. After `scan` and `rebuild`, the shard is as it was after the last whole
    batch.
    """

    def __init__(
        self,
        shard: Shard,
        read: Callable[[int, int, int], bytes],
        name: Callable[[int], str],
        on_document: Callable[[int, object], None],
    ) -> None:
        self._shard = shard
        self._read = read
        self._name = name
        self._on_document = on_document
        self._segments: list[tuple[int, int]] = []
        self.ends: dict[int, int] = {}
        self._expected: list[int] = []
        self._places: dict[int, Places] = {}
        self._tails: dict[int, Tail] = {}
        self._held: dict[int, set[int]] = {}
        self._routes: dict[bytes, Route] = {}
        self.retired: set[int] = set()
        # segments with messages that were written again later: an owner died while it retired them
        self.stale: set[int] = set()
        self.marks: dict[int, int] = {}
        self.placements: dict[int, int] = {}
        self.exits: dict[int, dict[int, int]] = {}
        self.states: dict[int, int] = {}
        self.seq: i64 = 0
        self.epoch: i64 = 0
        self._recorded_segment: i64 = 0
        self._recorded_seq: i64 = 0
        self.last_segment: i64 = 0
        self.last_offset: i64 = 0
        self.torn_bytes: i64 = 0
        self.batches: i64 = 0
        self.messages: i64 = 0
        self.ids_ceiling: i64 = 0

    # First pass

    def scan(self, segments: list[tuple[int, int]], recorded_end: tuple[int, int] = (0, 0)) -> None:
        """Go through all batches. Damage raises StoreDamaged; an unfinished batch at the very end is left out."""
        self._recorded_segment = recorded_end[0]
        self._recorded_seq = recorded_end[1]
        newest = newest_state(self._read, segments)
        self._segments = []
        for segment, size in segments:
            if newest.counts(segment):
                self._segments.append((segment, size))
            else:
                # not needed any more, or begun by an owner that was fenced
                self.retired.add(segment)
                self.ends[segment] = 0
        for segment, size in self._segments:
            last = newest.may_be_torn(segment)
            end: i64 = newest.ends.get(segment, -1)
            window = Window(self._read, segment, size)
            offset: i64 = 0
            while offset != end:
                found = self._batch(window, offset, last)
                if found == 0:
                    break
                offset += found
            if offset < end:
                self._raise_short(segment, offset, end)
            if offset:
                # a last segment without a batch was being begun: the next owner begins it again
                self.ends[segment] = offset
                self.last_segment = segment
                self.last_offset = offset
        for expected in self._expected:
            if expected not in self.ends and expected not in self.retired:
                name = self._name(expected)
                raise StoreDamaged(f"{name} is missing", file=name)

    def _raise_short(self, segment: i64, offset: i64, end: i64) -> None:
        name = self._name(int(segment))
        raise StoreDamaged(
            f"{name} ends at offset {offset}, but {end} bytes of it were in use", file=name, offset=int(offset)
        )

    def _batch(self, window: Window, offset: i64, last: bool) -> i64:
        """Apply the batch at this offset; its size, 0 at the end of the segment."""
        at = window.need(offset, records.BATCH_HEADER_BYTES)
        length = records.batch_bytes(window.data, at)
        if length > 0:
            at = window.need(offset, length)
        header = BatchHeader(window.data, at)
        if not header.sound:
            self._check_format(window.data[at : at + 4])
            self._check_end(window, offset, last)
            return 0
        if window.segment < self._recorded_segment and header.seq > self._recorded_seq:
            # of an owner that was fenced
            return 0
        # batches are missing only where whole segments are
        gap = header.seq != self.seq + 1 and (offset > 0 or window.segment == self.last_segment + 1)
        if (gap and self.batches) or header.seq <= self.seq or header.epoch < self.epoch:
            name = self._name(int(window.segment))
            raise StoreDamaged(
                f"{name} at offset {offset}: batch {header.seq} follows batch {self.seq}", file=name, offset=int(offset)
            )
        self.seq = header.seq
        self.epoch = header.epoch
        self.batches += 1
        start = at + records.BATCH_HEADER_BYTES
        reader = Reader(window.data, start, at + header.size)
        while reader.next():
            self._record(reader, window.segment, offset + (reader.start - at))
        return header.size

    def _check_format(self, magic: bytes) -> None:
        """Refuse batches of a later format, which would else be taken for damage, or for a torn end and overwritten."""
        if magic[:3] == records.MAGIC_BYTES[:3] and magic[3:].isdigit() and magic > records.MAGIC_BYTES:
            raise InvalidArgument(f"batches of format {magic[3:].decode()}", argument="journal")

    def _record(self, reader: Reader, segment: i64, offset: i64) -> None:
        kind = reader.kind
        if kind == PUT:
            place = (segment << PLACE_BITS) | offset
            i: i64 = 0
            while i < reader.placements:
                reader.placement()
                places = self._places_of(reader.queue)
                before = places.get(reader.seq) >> PLACE_BITS
                if before:
                    self.stale.add(int(before))
                places.set(reader.seq, place)
                if places.backs:
                    # it was written again as it was by then
                    places.backs.pop(reader.seq, None)
                i += 1
            self.placements[segment] = self.placements.get(segment, 0) + int(reader.placements)
            if reader.number > self._shard.last_id:
                self._shard.last_id = reader.number
        elif kind == RECORD:
            if reader.zstd:
                self._check_zstd(segment, offset)
            tail = self._tails.get(reader.queue)
            if tail is None:
                tail = Tail()
                self._tails[reader.queue] = tail
            size = reader.body_bytes + reader.props_bytes
            tail.set(reader.seq, (segment << PLACE_BITS) | offset, reader.enqueued_ms, size)
            self.placements[segment] = self.placements.get(segment, 0) + 1
            if reader.number > self._shard.last_id:
                self._shard.last_id = reader.number
        elif kind == EXIT or kind == EXITS:
            places = self._places_of(reader.queue)
            seq = reader.seq
            end = seq + reader.count
            while seq < end:
                if places.get(seq) >> PLACE_BITS == reader.segment:
                    places.set(seq, 0)
                seq += 1
            exits = self.exits.get(segment)
            if exits is None:
                exits = {}
                self.exits[segment] = exits
            exits[reader.segment] = exits.get(reader.segment, 0) + (reader.stop - reader.start)
        elif kind == BACK:
            self._places_of(reader.queue).backs[reader.seq] = (reader.due_ms, reader.attempts, reader.flags)
        elif kind == IDS:
            self.ids_ceiling = reader.number
        elif kind == RETIRED:
            self.retired.add(reader.segment)
        else:
            document = reader.document()
            if kind == MARK:
                self.marks[segment] = self.marks.get(segment, 0) + 1
            elif kind == STATE:
                self.states[segment] = int(reader.stop - reader.start)
                self._expected = cast(dict[str, list[int]], document)["segments"]
            self._on_document(int(kind), document)

    def _check_zstd(self, segment: i64, offset: i64) -> None:
        """Better now than when the message is wanted."""
        if not is_available("zstd"):
            name = self._name(int(segment))
            raise StoreError(f"{name} holds at offset {offset} what is compressed with zstd; {NEEDS_ZSTD}")

    def _places_of(self, queue: i64) -> Places:
        places = self._places.get(queue)
        if places is None:
            places = Places()
            self._places[queue] = places
        return places

    def _check_end(self, window: Window, offset: i64, last: bool) -> None:
        """What follows the last sound batch must be nothing, or, in the last segment, batches that were not synced.

        The disk may have got later ones and not the first: none of them counts. A later batch that knows the first to
        be synced proves damage.
        """
        at = offset
        anything = False
        while at < window.size:
            place = window.need(at, min(READ_BYTES, window.size - at))
            piece = window.data[place:]
            if not piece:
                break
            if piece.strip(b"\x00"):
                anything = True
                if not last or self._was_synced(window, at, piece):
                    name = self._name(int(window.segment))
                    raise StoreDamaged(f"{name} is damaged at offset {offset}", file=name, offset=int(offset))
            # a magic number may lie across the end of the piece
            at += len(piece) if len(piece) < 4 or at + len(piece) >= window.size else len(piece) - 3
        if anything:
            self.torn_bytes = window.size - offset

    def _was_synced(self, window: Window, offset: i64, piece: bytes) -> bool:
        """Whether a batch that begins in this piece of the segment knows that the missing one was synced."""
        at = piece.find(records.MAGIC_BYTES)
        while at >= 0:
            start = window.need(offset + at, records.BATCH_HEADER_BYTES)
            length = records.batch_bytes(window.data, start)
            if 0 < length <= window.size - offset - at:
                start = window.need(offset + at, length)
                header = BatchHeader(window.data, start)
                if header.sound and header.seq > self.seq + 1 and header.synced > self.seq:
                    return True
            at = piece.find(records.MAGIC_BYTES, at + 1)
        return False

    # Second pass

    def rebuild(self) -> None:
        """Put the messages that are left into their queues."""
        self._held = self._shard.cuts.held()
        for segment, size in self._segments:
            if segment in self.retired or segment not in self.ends:
                continue
            window = Window(self._read, segment, size)
            self._shard.log.open_segment(segment)
            offset: i64 = 0
            end: i64 = self.ends[segment]
            while offset < end:
                at = window.need(offset, records.BATCH_HEADER_BYTES)
                length = records.batch_bytes(window.data, at)
                at = window.need(offset, length)
                reader = Reader(window.data, at + records.BATCH_HEADER_BYTES, at + length)
                while reader.next():
                    if reader.kind == PUT:
                        self._restore(reader, segment, offset + (reader.start - at))
                offset += length
        for number, places in self._places.items():
            # also those of messages that are gone: a sequence is not used twice
            queue = self._shard.numbered.get(number)
            if queue is not None and places.last_seq > queue.seq:
                queue.seq = places.last_seq
        self._places.clear()
        for number, tail in list(self._tails.items()):
            alias = self._shard.staging.aliases.get(number)
            if alias is not None:
                self._adopt(alias, tail)
        for number, tail in self._tails.items():
            partition = self._shard.partitions.get(number)
            if partition is not None:
                self._restore_tail(partition, tail)
            elif number > self._shard.queue_numbers:
                # rows of a chunk that was not finished: nothing else may have their number
                self._shard.queue_numbers = number
        self._tails.clear()

    def _adopt(self, alias: Alias, part: Tail) -> None:
        """Records that were staged belong to the partition that they were committed to, unless they were written again
        as that partition's own.
        """
        tail = self._tails.get(alias.partition)
        if tail is None:
            tail = Tail()
            self._tails[alias.partition] = tail
        i: i64 = 0
        while i < alias.count:
            place = part.places.get(i)
            if place and not tail.places.get(alias.base + i):
                tail.set(alias.base + i, place, alias.stamp, part.sizes.get(i))
            i += 1

    def _restore_tail(self, partition: Partition, tail: Tail) -> None:
        """Give a partition the records that are neither sealed nor let go of."""
        places = tail.places
        offset = places.first_from(partition.tail)
        if offset <= places.last_seq:
            # what the counters say beyond the first of them is said by the records themselves
            partition.end = partition.tail
        while offset <= places.last_seq:
            if offset != partition.end:
                raise StoreDamaged(
                    f"partition {partition.index} of stream {partition.stream.name!r} has lost its records "
                    f"{partition.end} to {offset - 1}"
                )
            place = places.get(offset)
            partition.restore(offset, tail.stamps.get(offset), place, tail.sizes.get(offset))
            self._shard.log.add_live(place >> PLACE_BITS, 1)
            self.messages += 1
            offset = places.first_from(offset + 1)

    def _restore(self, reader: Reader, segment: i64, offset: i64) -> None:
        place = (segment << PLACE_BITS) | offset
        message: Message | None = None
        i: i64 = 0
        while i < reader.placements:
            reader.placement()
            i += 1
            queue = self._shard.numbered.get(reader.queue)
            if queue is None:
                continue
            places = self._places[reader.queue]
            if places.get(reader.seq) != place:
                continue
            due: i64 = reader.due_ms
            attempts: i64 = reader.attempts
            flags: i64 = reader.flags
            back = places.backs.get(reader.seq)
            if back is not None:
                due = back[0]
                attempts = back[1]
                flags = back[2]
            again = flags & REDELIVERED != 0
            if reader.zstd:
                self._check_zstd(segment, offset)
            self._shard.log.add_live(segment, 1)
            self.messages += 1
            held = self._held.get(reader.queue)
            if held is not None and reader.seq in held:
                if message is None:
                    message = records.read_message(reader.raw(), self._routes)
                    message.set_segment(segment)
                queue.lease_again(message, reader.seq, reader.enqueued_ms, attempts, again)
                continue
            if reader.plain and due <= self._shard.wall_ms and queue.lines.stays_paged(reader.seq):
                size = reader.body_bytes
                expires = reader.expires_ms
                queue.lines.restore_paged(reader.seq, place, reader.enqueued_ms, expires, size, attempts, again)
                continue
            if message is None:
                message = reader.message(self._routes)
                message.set_segment(segment)
            queue.restore(message, reader.seq, reader.enqueued_ms, due, attempts, again)

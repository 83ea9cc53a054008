"""The journal's records as bytes: what a batch is made of, and how it is read back.

A batch is a header and records. The header has a magic number, the length of the records, a checksum of all that
follows it, the owner's epoch, the batch's sequence, and the sequence up to which the medium was known to be synced when
the batch was made. A record begins with its kind; those of varying size have their length next, so that a reader can
skip what it does not want. Numbers are big-endian.

    PUT      a message and where it is placed: one (queue, seq, enqueued, due, attempts, flags) per queue that holds it
    EXIT     a placement left its queue, however it left; names the segment that holds its PUT
    EXITS    the same of a run of placements, one sequence after the other
    BACK     a placement came back from a lease: its attempts, and when it is due
    DEFINE   a change of definitions, as JSON
    MARK     a dedup key was used
    STATE    all definitions and counters, as JSON: replaces every DEFINE before it
    IDS      message numbers up to this one may be in use
    RETIRED  a segment is no longer needed
    RECORD   a message at an offset of a stream's partition, with the time at which it was appended
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final, cast, final

import msgspec
from mypy_extensions import i16, i32, i64, u8

from rookery.errors import InvalidArgument
from rookery.format.bytes import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from rookery.format.compression import unpack
from rookery.format.model import FLAGS_MASK, Death, Message, Route
from rookery.format.properties import readable

MAGIC: Final[i32] = 0x524B4231
"""`RKB1`: a batch of format 1."""

MAGIC_BYTES: Final = b"RKB1"

BATCH_HEADER_BYTES: Final[i64] = 36
PLACEMENT_BYTES: Final[i64] = 33
EXIT_BYTES: Final[i64] = 17
EXITS_BYTES: Final[i64] = 21

PUT: Final[i64] = 1
EXIT: Final[i64] = 2
BACK: Final[i64] = 3
DEFINE: Final[i64] = 4
MARK: Final[i64] = 5
STATE: Final[i64] = 6
IDS: Final[i64] = 7
RETIRED: Final[i64] = 8
RECORD: Final[i64] = 9
EXITS: Final[i64] = 10

_PUT_HEAD: Final[i64] = 5
_RECORD_HEAD: Final[i64] = 25
"""Where the message begins in a PUT and in a RECORD."""

OFFSET_AT: Final[i64] = 9
STAMP_AT: Final[i64] = 17
"""Where a RECORD says its offset and its time."""

_PRIORITY: Final[i64] = 1
_EXPIRES: Final[i64] = 2
_HISTORY: Final[i64] = 4
_COMPRESSED: Final[i64] = 8
_ZSTD: Final[i64] = 16

# How a body is written
PLAIN: Final[i64] = 0
ZLIB: Final[i64] = _COMPRESSED
ZSTD: Final[i64] = _COMPRESSED | _ZSTD


def seal(payload: bytes, epoch: i64, seq: i64, synced: i64) -> bytes:
    """A batch: the records of `payload` under a header that vouches for them."""
    w = BytesWriter()
    write_i64_be(w, epoch)
    write_i64_be(w, seq)
    write_i64_be(w, synced)
    stamp = w.getvalue()
    check = zlib.crc32(payload, zlib.crc32(stamp))
    head = BytesWriter()
    write_i32_be(head, MAGIC)
    write_i32_be(head, i32(len(payload)))
    write_i32_be(head, i32(check - (1 << 32) if check >= 1 << 31 else check))
    head.write(stamp)
    return head.getvalue() + payload


@final
class BatchHeader:
    """The header found at some place, and whether what follows agrees with it."""

    def __init__(self, data: bytes, pos: i64) -> None:
        self.sound = False
        self.size: i64 = 0
        self.epoch: i64 = 0
        self.seq: i64 = 0
        self.synced: i64 = 0
        if len(data) - pos < BATCH_HEADER_BYTES or read_i32_be(data, pos) != MAGIC:
            return
        length = i64(read_i32_be(data, pos + 4))
        if length < 0 or pos + BATCH_HEADER_BYTES + length > len(data):
            return
        self.epoch = read_i64_be(data, pos + 12)
        self.seq = read_i64_be(data, pos + 20)
        self.synced = read_i64_be(data, pos + 28)
        stated = i64(read_i32_be(data, pos + 8)) & 0xFFFFFFFF
        view = memoryview(data)
        start = int(pos)
        found = zlib.crc32(view[start + 36 : start + 36 + int(length)], zlib.crc32(view[start + 12 : start + 36]))
        self.size = BATCH_HEADER_BYTES + length
        self.sound = found == stated


def batch_bytes(data: bytes, pos: i64) -> i64:
    """How long the batch that begins here says it is, -1 when no batch begins here."""
    if len(data) - pos < 8 or read_i32_be(data, pos) != MAGIC:
        return -1
    length = i64(read_i32_be(data, pos + 4))
    return -1 if length < 0 else BATCH_HEADER_BYTES + length


# Writing


def _patch_length(w: BytesWriter, at: i64) -> None:
    """Fill in the length of a record whose length field is at `at`."""
    length: i64 = len(w) - at - 4
    w[at] = u8(length >> 24 & 255)
    w[at + 1] = u8(length >> 16 & 255)
    w[at + 2] = u8(length >> 8 & 255)
    w[at + 3] = u8(length & 255)


def _write_text(w: BytesWriter, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    write_i16_be(w, i16(len(raw)))
    w.write(raw)


def route_record(route: Route) -> bytes:
    """Exchange and key, as they stand in a PUT; kept with the route, which many messages share."""
    if not route.record:
        w = BytesWriter()
        _write_text(w, route.exchange)
        _write_text(w, route.key)
        route.record = w.getvalue()
    return route.record


def begin_put(w: BytesWriter, message: Message, body: bytes, coding: i64, placements: i64) -> i64:
    """Write a PUT up to its placements, which must follow; returns what `end_put` needs."""
    w.append(u8(PUT))
    at: i64 = len(w)
    write_i32_be(w, 0)
    _write_message(w, message, body, coding)
    write_i32_be(w, i32(placements))
    return at


def write_record(
    w: BytesWriter, partition: i64, offset: i64, stamp: i64, message: Message, body: bytes, coding: i64
) -> None:
    """Write a RECORD."""
    w.append(u8(RECORD))
    at: i64 = len(w)
    write_i32_be(w, 0)
    write_i32_be(w, i32(partition))
    write_i64_be(w, offset)
    write_i64_be(w, stamp)
    _write_message(w, message, body, coding)
    _patch_length(w, at)


def write_record_again(w: BytesWriter, record: bytes, partition: i64, offset: i64, stamp: i64) -> None:
    """Write a RECORD once more, with its message as it stands and another head."""
    w.write(record[:5])
    write_i32_be(w, i32(partition))
    write_i64_be(w, offset)
    write_i64_be(w, stamp)
    w.write(record[_RECORD_HEAD:])


def _write_message(w: BytesWriter, message: Message, body: bytes, coding: i64) -> None:
    route = message.route
    options: i64 = 0
    if message.priority:
        options |= _PRIORITY
    if message.expires_ms:
        options |= _EXPIRES
    if route.origin_id:
        options |= _HISTORY
    options |= coding
    write_i64_be(w, message.id)
    w.append(u8(i64(message.flags & FLAGS_MASK)))
    w.append(u8(options))
    if options & _PRIORITY:
        write_i64_be(w, message.priority)
    if options & _EXPIRES:
        write_i64_be(w, message.expires_ms)
    if options & _HISTORY:
        write_i64_be(w, route.origin_id)
        history = encode_history(route.deaths)
        write_i32_be(w, i32(len(history)))
        w.write(history)
    w.write(route.record or route_record(route))
    write_i32_be(w, i32(len(message.props)))
    w.write(message.props)
    write_i32_be(w, i32(len(body)))
    w.write(body)
    if coding:
        write_i32_be(w, i32(len(message.body)))


def place(w: BytesWriter, queue: i64, seq: i64, enqueued_ms: i64, due_ms: i64, attempts: i64, flags: i64) -> None:
    """Write one placement of a PUT."""
    write_i32_be(w, i32(queue))
    write_i64_be(w, seq)
    write_i64_be(w, enqueued_ms)
    write_i64_be(w, due_ms)
    write_i32_be(w, i32(attempts))
    w.append(u8(flags))


def end_put(w: BytesWriter, at: i64) -> None:
    _patch_length(w, at)


def write_exits(w: BytesWriter, queue: i64, first: i64, segment: i64, count: i64) -> None:
    """Write that so many placements left, from this sequence on: an EXIT, or an EXITS."""
    w.append(u8(EXIT if count == 1 else EXITS))
    write_i32_be(w, i32(queue))
    write_i64_be(w, first)
    write_i32_be(w, i32(segment))
    if count != 1:
        write_i32_be(w, i32(count))


def exits_by_segment(payload: bytes, pos: i64) -> dict[int, int]:
    """How many bytes of the EXIT and EXITS records from here to the end are about each segment."""
    sizes: dict[int, int] = {}
    last: i64 = -1
    run: i64 = 0
    while pos < len(payload):
        segment = i64(read_i32_be(payload, pos + 13))
        if segment != last:
            if run:
                sizes[last] = sizes.get(last, 0) + run
            last = segment
            run = 0
        size = EXIT_BYTES if i64(payload[pos]) == EXIT else EXITS_BYTES
        run += size
        pos += size
    if run:
        sizes[last] = sizes.get(last, 0) + run
    return sizes


def write_back(w: BytesWriter, queue: i64, seq: i64, segment: i64, due_ms: i64, attempts: i64, flags: i64) -> None:
    w.append(u8(BACK))
    write_i32_be(w, i32(queue))
    write_i64_be(w, seq)
    write_i32_be(w, i32(segment))
    write_i64_be(w, due_ms)
    write_i32_be(w, i32(attempts))
    w.append(u8(flags))


def write_document(w: BytesWriter, kind: i64, document: object) -> None:
    """Write a DEFINE, MARK or STATE."""
    raw = encode_json(document)
    w.append(u8(kind))
    write_i32_be(w, i32(len(raw)))
    w.write(raw)


def write_ids(w: BytesWriter, ceiling: i64) -> None:
    w.append(u8(IDS))
    write_i64_be(w, ceiling)


def write_retired(w: BytesWriter, segment: i64) -> None:
    w.append(u8(RETIRED))
    write_i32_be(w, i32(segment))


def encode_json(document: object) -> bytes:
    """JSON, also of text that came as bytes which are no UTF-8 (names may be such; `surrogateescape`)."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return json.dumps(document).encode()


def decode_json(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return json.loads(raw)


def encode_history(deaths: list[Death]) -> bytes:
    return encode_json([death.as_dict() for death in deaths])


def decode_history(raw: bytes) -> list[Death]:
    return [
        Death(
            row["queue"],
            row["reason"],
            row["detail"],
            row["exchange"],
            row["routing_key"],
            row["attempts"],
            row["first_ms"],
            row["last_ms"],
            row["count"],
            row.get("expiration_ms", -1),
            row.get("order", 0),
            row.get("copies"),
            row.get("row", 0),
        )
        for row in cast(list[dict[str, Any]], decode_json(raw))
    ]


# Reading


@final
class Reader:
    """Steps through the records of one batch. After `next()` the attributes hold the fields of the record's kind."""

    def __init__(self, data: bytes, pos: i64, end: i64) -> None:
        self._data = data
        self._pos: i64 = pos
        self._end: i64 = end
        self.kind: i64 = 0
        self.start: i64 = 0
        self.stop: i64 = 0
        # placements, exits (so many, from `seq` on) and backs; of a record, its partition, offset and time
        self.queue: i64 = 0
        self.seq: i64 = 0
        self.count: i64 = 0
        self.segment: i64 = 0
        self.enqueued_ms: i64 = 0
        self.due_ms: i64 = 0
        self.attempts: i64 = 0
        self.flags: i64 = 0
        # puts; a plain one has no priority or history. Of puts and records, whether the body is in zstd
        self.placements: i64 = 0
        self.body_bytes: i64 = 0
        self.props_bytes: i64 = 0
        self.plain = False
        self.expires_ms: i64 = 0
        self.zstd = False
        self._at: i64 = 0
        self.number: i64 = 0

    def next(self) -> bool:
        """Go to the next record; False at the end of the batch."""
        if self._pos >= self._end:
            return False
        data = self._data
        pos = self._pos
        self.start = pos
        kind: i64 = i64(data[pos])
        self.kind = kind
        if kind == EXIT or kind == EXITS:
            self.queue = i64(read_i32_be(data, pos + 1))
            self.seq = read_i64_be(data, pos + 5)
            self.segment = i64(read_i32_be(data, pos + 13))
            if kind == EXIT:
                self.count = 1
                self.stop = pos + EXIT_BYTES
            else:
                self.count = i64(read_i32_be(data, pos + 17))
                self.stop = pos + EXITS_BYTES
        elif kind == PUT:
            self.stop = pos + 5 + _length(data, pos + 1)
            self.number = read_i64_be(data, pos + _PUT_HEAD)
            self._skip_message(pos + _PUT_HEAD)
            self.placements = i64(read_i32_be(data, self._at))
            self._at += 4
        elif kind == RECORD:
            self.stop = pos + 5 + _length(data, pos + 1)
            self.queue = i64(read_i32_be(data, pos + 5))
            self.seq = read_i64_be(data, pos + 9)
            self.enqueued_ms = read_i64_be(data, pos + 17)
            self.number = read_i64_be(data, pos + _RECORD_HEAD)
            self._skip_message(pos + _RECORD_HEAD)
            self.zstd = i64(data[pos + _RECORD_HEAD + 9]) & _ZSTD != 0
        elif kind == BACK:
            self.queue = i64(read_i32_be(data, pos + 1))
            self.seq = read_i64_be(data, pos + 5)
            self.segment = i64(read_i32_be(data, pos + 13))
            self.due_ms = read_i64_be(data, pos + 17)
            self.attempts = i64(read_i32_be(data, pos + 25))
            self.flags = i64(data[pos + 29])
            self.stop = pos + 30
        elif kind == IDS:
            self.number = read_i64_be(data, pos + 1)
            self.stop = pos + 9
        elif kind == RETIRED:
            self.segment = i64(read_i32_be(data, pos + 1))
            self.stop = pos + 5
        elif kind == DEFINE or kind == MARK or kind == STATE:
            self.stop = pos + 5 + _length(data, pos + 1)
        else:
            raise InvalidArgument(f"unknown record kind {kind}", argument="record")
        if self.stop > self._end or self.stop <= pos:
            raise InvalidArgument("a record reaches past its batch", argument="record")
        self._pos = self.stop
        return True

    def _skip_message(self, pos: i64) -> None:
        """Go past the message that begins here."""
        data = self._data
        options: i64 = i64(data[pos + 9])
        at = pos + 10
        if options & _PRIORITY:
            at += 8
        self.expires_ms = 0
        if options & _EXPIRES:
            self.expires_ms = read_i64_be(data, at)
            at += 8
        if options & _HISTORY:
            at += 12 + _length(data, at + 8)
        at += 2 + (i64(read_i16_be(data, at)) & 0xFFFF)
        at += 2 + (i64(read_i16_be(data, at)) & 0xFFFF)
        self.props_bytes = _length(data, at)
        at += 4 + self.props_bytes
        self.body_bytes = _length(data, at)
        at += 4 + self.body_bytes
        if options & _COMPRESSED:
            self.body_bytes = i64(read_i32_be(data, at))
            at += 4
        self.zstd = options & _ZSTD != 0
        self.plain = options & (_PRIORITY | _HISTORY) == 0
        self._at = at

    def placement(self) -> None:
        """Read the next placement of a PUT into the attributes."""
        data = self._data
        at = self._at
        self.queue = i64(read_i32_be(data, at))
        self.seq = read_i64_be(data, at + 4)
        self.enqueued_ms = read_i64_be(data, at + 12)
        self.due_ms = read_i64_be(data, at + 20)
        self.attempts = i64(read_i32_be(data, at + 28))
        self.flags = i64(data[at + 32])
        self._at = at + PLACEMENT_BYTES

    def document(self) -> object:
        """The JSON of a DEFINE, MARK or STATE."""
        return decode_json(self._data[self.start + 5 : self.stop])

    def message(self, routes: dict[bytes, Route]) -> Message:
        """The message of a PUT; see `read_message`."""
        return read_message(self._data, routes, self.start)

    def raw(self) -> bytes:
        """The record as it stands."""
        return self._data[self.start : self.stop]


@final
class RecordView:
    """Where the parts of a RECORD stand in the bytes that it lies in."""

    def __init__(self) -> None:
        self.stop: i64 = 0
        self.offset: i64 = 0
        self.stamp: i64 = 0
        self.priority: i64 = 0
        self.expires_ms: i64 = 0
        self.exchange_at: i64 = 0
        self.exchange_end: i64 = 0
        self.key_at: i64 = 0
        self.key_end: i64 = 0
        self.props_at: i64 = 0
        self.props_end: i64 = 0
        self._message: i64 = 0
        self._options: i64 = 0
        self._body_at: i64 = 0
        self._body_end: i64 = 0

    def read(self, data: bytes, pos: i64) -> None:
        """Look at the RECORD that begins here."""
        self.stop = pos + 5 + _length(data, pos + 1)
        self.offset = read_i64_be(data, pos + 9)
        self.stamp = read_i64_be(data, pos + 17)
        at = pos + _RECORD_HEAD
        self._message = at
        options: i64 = i64(data[at + 9])
        self._options = options
        at += 10
        self.priority = 0
        self.expires_ms = 0
        if options & _PRIORITY:
            self.priority = read_i64_be(data, at)
            at += 8
        if options & _EXPIRES:
            self.expires_ms = read_i64_be(data, at)
            at += 8
        if options & _HISTORY:
            at += 12 + _length(data, at + 8)
        self.exchange_at = at + 2
        at += 2 + (i64(read_i16_be(data, at)) & 0xFFFF)
        self.exchange_end = at
        self.key_at = at + 2
        at += 2 + (i64(read_i16_be(data, at)) & 0xFFFF)
        self.key_end = at
        self.props_at = at + 4
        at += 4 + _length(data, at)
        self.props_end = at
        self._body_at = at + 4
        self._body_end = at + 4 + _length(data, at)

    def body(self, data: bytes) -> bytes:
        body = data[self._body_at : self._body_end]
        if self._options & _COMPRESSED == 0:
            return body
        return unpack(body, self._options & _ZSTD != 0, i64(read_i32_be(data, self._body_end)))

    def envelope(self, data: bytes) -> bytes:
        """The message without its body; `message_of` puts them together again."""
        if not self._options & _COMPRESSED:
            return data[self._message : self.props_end]
        w = BytesWriter()
        w.write(data[self._message : self._message + 9])
        w.append(u8(self._options & ~(_COMPRESSED | _ZSTD)))
        w.write(data[self._message + 10 : self.props_end])
        return w.getvalue()


def join_record(envelope: bytes, body: bytes, partition: i64, offset: i64, stamp: i64) -> bytes:
    """A RECORD from what `RecordView` took it apart into."""
    w = BytesWriter()
    w.append(u8(RECORD))
    write_i32_be(w, i32(len(envelope) + len(body) + 24))
    write_i32_be(w, i32(partition))
    write_i64_be(w, offset)
    write_i64_be(w, stamp)
    w.write(envelope)
    write_i32_be(w, i32(len(body)))
    w.write(body)
    return w.getvalue()


def _length(data: bytes, pos: i64) -> i64:
    """How long a part is. Damage may make it negative, and compiled code may not slice backwards."""
    size = i64(read_i32_be(data, pos))
    if size < 0:
        raise ValueError("a part of the record has a negative length")
    return size


def _stands_at(data: bytes, pos: i64, sought: bytes) -> bool:
    """Whether these bytes stand there."""
    n: i64 = len(sought)
    if pos + n > len(data):
        return False
    i: i64 = 0
    if n >= 8:
        # eight at a time; the last eight may overlap those before them
        while i < n - 8:
            if read_i64_be(data, pos + i) != read_i64_be(sought, i):
                return False
            i += 8
        return read_i64_be(data, pos + n - 8) == read_i64_be(sought, n - 8)
    if n >= 4:
        head = read_i32_be(data, pos) == read_i32_be(sought, 0)
        return head and read_i32_be(data, pos + n - 4) == read_i32_be(sought, n - 4)
    while i < n:
        if data[pos + i] != sought[i]:
            return False
        i += 1
    return True


def read_message(data: bytes, routes: dict[bytes, Route], pos: i64 = 0, like: Message | None = None) -> Message:
    """The message of the PUT or RECORD at `pos`; routes that many messages share are found in `routes`.

    `like` is one that was read before and is likely to have the same route and properties: those are shared then.
    """
    head: i64 = pos + (_PUT_HEAD if i64(data[pos]) == PUT else _RECORD_HEAD)
    both = i32(read_i16_be(data, head + 8)) & 0xFFFF
    flags: i32 = both >> 8
    options: i64 = i64(both & 255)
    at: i64 = head + 10
    priority: i64 = 0
    expires_ms: i64 = 0
    if options & _PRIORITY:
        priority = read_i64_be(data, at)
        at += 8
    if options & _EXPIRES:
        expires_ms = read_i64_be(data, at)
        at += 8
    origin: i64 = 0
    history = b""
    if options & _HISTORY:
        origin = read_i64_be(data, at)
        size = _length(data, at + 8)
        history = data[at + 12 : at + 12 + size]
        at += 12 + size
    if like is not None and not origin and not like.route.origin_id and _stands_at(data, at, like.route.record):
        route = like.route
        at += len(route.record)
    else:
        start = at
        exchange_end = at + 2 + (i64(read_i16_be(data, at)) & 0xFFFF)
        at = exchange_end + 2 + (i64(read_i16_be(data, exchange_end)) & 0xFFFF)
        wire = data[start:at]
        known = routes.get(wire) if not origin else None
        if known is not None:
            route = known
        else:
            route = Route(
                data[start + 2 : exchange_end].decode("utf-8", "surrogateescape"),
                data[exchange_end + 2 : at].decode("utf-8", "surrogateescape"),
            )
            route.record = wire
            if origin:
                route.origin_id = origin
                route.deaths = decode_history(history)
            elif len(routes) < 10_000:
                routes[wire] = route
    size = _length(data, at)
    if like is not None and len(like.props) == size and _stands_at(data, at + 4, like.props):
        props = like.props
    else:
        props = readable(data[at + 4 : at + 4 + size])
    at += 4 + size
    size = _length(data, at)
    body = data[at + 4 : at + 4 + size]
    if options & _COMPRESSED:
        body = unpack(body, options & _ZSTD != 0, i64(read_i32_be(data, at + 4 + size)))
    return Message(route, props, body, read_i64_be(data, head), priority, expires_ms, flags)

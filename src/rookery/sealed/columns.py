"""Records of a stream as columns: journal bytes in, the buffers of Arrow arrays out, no object per message.

`Columns` is given the bytes of RECORDs and writes what they hold straight into packed buffers, in Arrow's layout:
offsets and data for texts, 64-bit numbers for times, one bit per row for what is null. `store.parquet` wraps the
buffers; nothing here needs pyarrow.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i32, i64, u8

from rookery.core.bindings import Matcher
from rookery.core.routing import matcher
from rookery.core.stream import KEY_HEADER
from rookery.errors import InvalidArgument
from rookery.format.bytes import BytesWriter, read_i32_be, read_i64_be, write_i32_le, write_i64_le
from rookery.format.fieldtables import after_field, after_name, read_field
from rookery.format.properties import Places, readable
from rookery.format.records import RecordView
from rookery.format.rendering import legible_bytes, printed

ALL: Final = (
    "offset",
    "timestamp",
    "producer_timestamp",
    "key",
    "value",
    "headers",
    "exchange",
    "routing_key",
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "content_encoding",
    "priority",
    "expiration",
    "delivery_count",
    "protocol",
)
"""The columns that are made of each record; tenant, stream and partition are the same for all."""

ENVELOPE: Final = "envelope"
"""All of a record but its value, as it stands in the journal: what sealed files keep so that nothing is lost."""

ROWS_MAX: Final[i64] = 32_768
BYTES_MAX: Final[i64] = 32 << 20
"""A batch has no more rows or bytes than this; a row group of a sealed file is one batch."""

SHORT: Final[i64] = 24
_KEY: Final = KEY_HEADER.encode()
KEY_BYTES: Final[i64] = len(KEY_HEADER) + 1


@final
class Bits:
    """One bit per row: whether its value is there. Nothing is written before the first that is not."""

    def __init__(self) -> None:
        self.nulls: i64 = 0
        self._rows: i64 = 0
        self._packed = BytesWriter()
        self._byte: i64 = 0

    def add(self, valid: bool) -> None:
        if not valid:
            if not self.nulls:
                self._fill()
            self.nulls += 1
        elif self.nulls:
            self._byte |= 1 << (self._rows & 7)
        self._rows += 1
        if self.nulls and not self._rows & 7:
            self._packed.append(u8(self._byte))
            self._byte = 0

    def _fill(self) -> None:
        """All rows so far had a value."""
        i: i64 = 8
        while i <= self._rows:
            self._packed.append(u8(255))
            i += 8
        self._byte = (1 << (self._rows & 7)) - 1

    def buffer(self) -> bytes | None:
        """The bitmap, None when every value is there."""
        if not self.nulls:
            return None
        last = bytes([self._byte]) if self._rows & 7 else b""
        return self._packed.getvalue() + last


@final
class Texts:
    """A column of texts or bytes."""

    def __init__(self) -> None:
        self.offsets = BytesWriter()
        self.data = BytesWriter()
        self.valid = Bits()
        write_i32_le(self.offsets, 0)

    def add(self, value: bytes) -> None:
        self.data.write(value)
        write_i32_le(self.offsets, i32(len(self.data)))
        self.valid.add(True)

    def add_text(self, source: bytes, start: i64, end: i64) -> None:
        """Add what readers will take for UTF-8."""
        data = self.data
        before: i64 = len(data)
        if end - start > SHORT:
            data.write(legible_bytes(source[start:end]))
        else:
            # most texts are short and ASCII: octet by octet needs no object
            i = start
            while i < end:
                octet = source[i]
                if octet > 127:
                    data.truncate(before)
                    data.write(legible_bytes(source[start:end]))
                    break
                data.append(u8(octet))
                i += 1
        write_i32_le(self.offsets, i32(len(data)))
        self.valid.add(True)

    def add_null(self) -> None:
        write_i32_le(self.offsets, i32(len(self.data)))
        self.valid.add(False)


@final
class Numbers:
    """A column of 64-bit numbers, null where they are 0 if `zero_is_null`."""

    def __init__(self, zero_is_null: bool) -> None:
        self.data = BytesWriter()
        self.valid = Bits()
        self._zero_is_null = zero_is_null

    def add(self, value: i64) -> None:
        write_i64_le(self.data, value)
        self.valid.add(value != 0 or not self._zero_is_null)


@final
class Columns:
    """Collects rows. Which columns are wanted is said once; the others cost nothing."""

    def __init__(self, wanted: list[str]) -> None:
        self.rows: i64 = 0
        self.bytes: i64 = 0
        self.texts: dict[str, Texts] = {}
        self.numbers: dict[str, Numbers] = {}
        self._view = RecordView()
        self._places = Places()
        self.offset = self._number("offset", wanted, False)
        self.timestamp = self._number("timestamp", wanted, False)
        self.producer_timestamp = self._number("producer_timestamp", wanted, True)
        self.expiration = self._number("expiration", wanted, True)
        self.priority = self._number("priority", wanted, False)
        self.value = self._text("value", wanted)
        self.exchange = self._text("exchange", wanted)
        self.routing_key = self._text("routing_key", wanted)
        self.envelope = self._text(ENVELOPE, wanted)
        self.message_id = self._text("message_id", wanted)
        self.correlation_id = self._text("correlation_id", wanted)
        self.reply_to = self._text("reply_to", wanted)
        self.content_type = self._text("content_type", wanted)
        self.content_encoding = self._text("content_encoding", wanted)
        self.key = self._text("key", wanted)
        # headers: one row of a list per record, its items in two columns of their own
        self.header_offsets: BytesWriter | None = None
        self.header_names = Texts()
        self.header_values = Texts()
        self._headers: i64 = 0
        if "headers" in wanted:
            self.header_offsets = BytesWriter()
            write_i32_le(self.header_offsets, 0)
        self._wants_props = any(
            name in wanted
            for name in (
                "producer_timestamp",
                "headers",
                "key",
                "message_id",
                "correlation_id",
                "reply_to",
                "content_type",
                "content_encoding",
            )
        )

    def _text(self, name: str, wanted: list[str]) -> Texts | None:
        if name not in wanted:
            return None
        column = Texts()
        self.texts[name] = column
        return column

    def _number(self, name: str, wanted: list[str], zero_is_null: bool) -> Numbers | None:
        if name not in wanted:
            return None
        column = Numbers(zero_is_null)
        self.numbers[name] = column
        return column

    def full(self) -> bool:
        return self.rows >= ROWS_MAX or self.bytes >= BYTES_MAX

    def add(self, data: bytes, pos: i64, offset: i64, stamp: i64) -> None:
        """Add the RECORD that begins at `pos`, as the record of this offset and time."""
        view = self._view
        view.read(data, pos)
        if self.offset is not None:
            self.offset.add(offset)
        if self.timestamp is not None:
            self.timestamp.add(stamp * 1000)
        if self.expiration is not None:
            self.expiration.add(view.expires_ms * 1000)
        if self.priority is not None:
            self.priority.add(view.priority)
        if self.exchange is not None:
            self.exchange.add_text(data, view.exchange_at, view.exchange_end)
        if self.routing_key is not None:
            self.routing_key.add_text(data, view.key_at, view.key_end)
        if self.value is not None:
            body = view.body(data)
            self.bytes += len(body)
            self.value.add(body)
        if self.envelope is not None:
            self.envelope.add(view.envelope(data))
        if self._wants_props:
            self._add_props(data, view.props_at, view.props_end)
        self.bytes += 64 + view.props_end - view.props_at
        self.rows += 1

    def _add_props(self, data: bytes, start: i64, end: i64) -> None:
        places = self._places
        if not places.read(data, start, end):
            # stored by a version that did not look into lists
            data = readable(data[start:end])
            places.read(data, 0, len(data))
        self._add_short(self.content_type, data, places.content_type)
        self._add_short(self.content_encoding, data, places.content_encoding)
        self._add_short(self.correlation_id, data, places.correlation_id)
        self._add_short(self.reply_to, data, places.reply_to)
        self._add_short(self.message_id, data, places.message_id)
        if self.producer_timestamp is not None:
            seconds: i64 = 0
            if places.timestamp:
                seconds = read_i64_be(data, places.timestamp)
                if seconds < 0 or seconds > 253_402_300_799:
                    # no date that anything could show
                    seconds = 0
            self.producer_timestamp.add(seconds * 1_000_000)
        if self.key is not None or self.header_offsets is not None:
            self._add_headers(data, places.headers, places.headers_end)

    def _add_short(self, column: Texts | None, data: bytes, at: i64) -> None:
        if column is not None:
            if at:
                column.add_text(data, at + 1, at + 1 + data[at])
            else:
                column.add_null()

    def _add_headers(self, data: bytes, pos: i64, end: i64) -> None:
        keyed = False
        while pos < end:
            kind = after_name(data, pos, end)
            stop = after_field(data, kind, end)
            if not keyed and kind - pos == KEY_BYTES and data[pos + 1 : kind] == _KEY:
                keyed = True
                if self.key is not None:
                    self.key.add(field_bytes(data, kind, stop))
            elif self.header_offsets is not None:
                self.header_names.add_text(data, pos + 1, kind)
                self.header_values.add(field_bytes(data, kind, stop))
                self._headers += 1
            pos = stop
        if self.key is not None and not keyed:
            self.key.add_null()
        if self.header_offsets is not None:
            write_i32_le(self.header_offsets, i32(self._headers))


def add_run(
    columns: Columns, data: bytes, start: i64, places: bytes, stamps: bytes, index: i64, first: i64, pattern: Pattern
) -> i64:
    """Add records that lie in `data`, whose first byte stands at place `start`; from `index` on, as long as they do.

    `places` and `stamps` are those of a run that begins with offset `first`. Returns the index of the first record that
    was not looked at: it lies elsewhere, or `columns` has enough.
    """
    size: i64 = len(data)
    count: i64 = len(places) >> 3
    while index < count and not columns.full():
        at = read_i64_be(places, index << 3) - start
        if at < 0 or at + 5 > size or at + 5 + i64(read_i32_be(data, at + 1)) > size:
            break
        if pattern.matches(data, at):
            columns.add(data, at, first + index, read_i64_be(stamps, index << 3))
        index += 1
    return index


@final
class Pattern:
    """Which records are wanted, by their routing keys: a topic pattern, or empty for all."""

    def __init__(self, pattern: str) -> None:
        self._all = not pattern
        self._known: dict[bytes, bool] = {}
        self._view = RecordView()
        self._matcher: Matcher | None = None
        if pattern:
            self._matcher = matcher("topic", {})
            self._matcher.add(pattern, None, self)

    def matches(self, data: bytes, pos: i64) -> bool:
        if self._all:
            return True
        view = self._view
        view.read(data, pos)
        key = data[view.key_at : view.key_end]
        known = self._known.get(key)
        if known is None:
            assert self._matcher is not None
            known = bool(self._matcher.match(key.decode("utf-8", "surrogateescape"), None))
            if len(self._known) >= 10_000:
                self._known = {}
            self._known[key] = known
        return known


def field_bytes(data: bytes, pos: i64, stop: i64) -> bytes:
    """The value of the header data[pos:stop], as `rendering.printed` has it."""
    kind: i64 = i64(data[pos])
    if kind == 0x53 or kind == 0x78:  # S, x
        return data[pos + 5 : stop]
    return printed(read_field(data, pos, stop, 1)[0])


def check_columns(names: list[str]) -> list[str]:
    """The columns asked for, or an error that names the first that is not there."""
    known = ("tenant", "stream", "partition", *ALL)
    for name in names:
        if name not in known:
            raise InvalidArgument(f"no column {name!r}; there are {', '.join(known)}", argument="columns")
    return names

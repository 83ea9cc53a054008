"""Messages in and out of Arrow tables beside streams: rows to be staged, and the messages of a cut. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from mypy_extensions import i64

from rookery.arrow import ipc, kinds
from rookery.arrow.frames import PART_ROWS, Part
from rookery.core.staging import CHUNK_ROWS_MAX, DUE_HEADER
from rookery.core.stream import KEY_HEADER
from rookery.errors import InvalidArgument, MessageTooLarge
from rookery.format import properties, records
from rookery.format.bytes import BytesWriter
from rookery.format.fieldtables import write_field, write_short
from rookery.format.model import Message
from rookery.format.properties import Properties
from rookery.sealed import arrow
from rookery.sealed.columns import check_columns
from rookery.sealed.schema import schema_of

_NAMES: Final = frozenset((str, bytes))
_VALUES: Final = frozenset((bytes, str, int, bool, type(None)))
KEY_MAX_BYTES: Final = 255
HEADER_BYTES: Final = 16
"""What a header counts for beside its name and value, and NUMBER_BYTES what a number does."""

NUMBER_BYTES: Final = 8
_PLAIN: Final = properties.encode(Properties(delivery_mode=2))


def parts_of(
    body: bytes | bytearray, key: str, names: Mapping[str, str], now_ms: int, bytes_max: int
) -> Iterator[Part]:
    """The rows of an Arrow IPC stream, part by part.

    `key` is the routing key of those without one, `names` where they go; `bytes_max` limits the bytes of the stream
    once it is decompressed, and those of all rows. No value is read before its batch is validated, and nothing is made
    of a part before its size is known.
    """
    size = 0
    for batch in _validated(body, bytes_max):
        for at in range(0, batch.num_rows, PART_ROWS):
            part = _Part(batch.slice(at, PART_ROWS))
            size += part.size()
            if size > bytes_max:
                raise MessageTooLarge(
                    f"the rows of the Arrow body have more than {bytes_max} bytes; send fewer rows in one body",
                    argument="body",
                )
            yield _rows(part, key, names, now_ms)


def _validated(body: bytes | bytearray, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batches of a stream, each validated."""
    try:
        ipc.check_size(body, bytes_max, CHUNK_ROWS_MAX)
        reader = pa.ipc.open_stream(body, options=pa.ipc.IpcReadOptions(use_threads=False))
        kinds.check_schema(reader.schema)
        for batch in reader:
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, MemoryError):
            raise
        raise InvalidArgument(f"the body is not a valid Arrow IPC stream: {error}", argument="body") from None


class _Part:
    """Some rows of a batch: their columns, with the names and values of all their headers one after the other."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.count: int = batch.num_rows
        self.columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        column = self.columns.pop("headers", None)
        self.headers: tuple[pa.Array, pa.Array, pa.Array] | None = None if column is None else _pairs(column)

    def size(self) -> int:
        """The bytes of the rows, once they are made."""
        total = sum([_bytes_of(column) for column in self.columns.values()])
        if self.headers is not None:
            names, values, _ = self.headers
            total += _bytes_of(names) + _bytes_of(values) + len(names) * HEADER_BYTES
        return total

    def values(self, name: str) -> list[Any]:
        """The values of a column, in the type that it has in rows."""
        column = _plain(self.columns[name])
        wanted = pa.binary()
        if name in kinds.TEXTS:
            wanted = pa.string()
        elif name in kinds.NUMBERS:
            wanted = pa.int64()
        elif name == "timestamp":
            wanted = pa.timestamp("ms", tz="UTC")
        try:
            found = column.cast(wanted, safe=name != "timestamp")
            if name == "timestamp":
                found = found.cast(pa.int64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgument(f"the column {name} cannot be {wanted}: {error}", argument=name) from None
        if name == "value" and found.null_count:
            raise InvalidArgument("the column value has a null", argument="value")
        values: list[Any] = _texts(found) if name == "key" else found.to_pylist()
        return values


def _bytes_of(column: pa.Array) -> int:
    """The bytes of a column's values, each counted as often as it is there."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        if not kinds.is_bytes(kind.value_type):
            return len(column) * NUMBER_BYTES
        return int(pc.sum(_lengths(column.dictionary).take(column.indices)).as_py() or 0)
    if not kinds.is_bytes(kind):
        return len(column) * NUMBER_BYTES
    return int(pc.sum(_lengths(column)).as_py() or 0)


def _lengths(column: pa.Array) -> pa.Array:
    """The length of each value of a column of bytes or texts."""
    if not kinds.is_view(column.type):
        return pc.binary_length(column)
    # a view of 16 bytes begins with the length of its value
    first = column.offset * 4
    views = memoryview(column.buffers()[1]).cast("i")[first : first + len(column) * 4 : 4]
    valid: list[bool] = column.is_valid().to_pylist()
    return pa.array([length if there else 0 for length, there in zip(views, valid, strict=True)], pa.int64())


def _plain(column: pa.Array) -> pa.Array:
    """The same values without a dictionary."""
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


class _Headers:
    """The headers of all rows one after the other, those of each row before its end."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[object] = []
        self.ends: list[int] = []


def _pairs(column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array] | None:
    """The names and values of all headers of some rows, one after the other, and how many each row has.

    They come from a map, or from a list of pairs of key and value, and are taken out of the lists as columns: an object
    for each pair would cost more than all the rest.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct({"key": kind.key_type, "value": kind.item_type})))
    counts = pc.fill_null(pc.list_value_length(column), 0)
    items = column.flatten()
    if items.null_count:
        raise kinds.bad_headers()
    if pa.types.is_struct(items.type):
        fields = items.flatten()
        kind = items.type
        return fields[kind.get_field_index("key")], fields[kind.get_field_index("value")], counts
    # pairs as lists of two
    if len(items) and not pc.all(pc.equal(pc.list_value_length(items), 2)).as_py():
        raise kinds.bad_headers()
    both = items.flatten()
    places = pa.array(range(0, len(both), 2), pa.int64())
    return both.take(places), both.take(pc.add(places, 1)), counts


def _headers(pairs: tuple[pa.Array, pa.Array, pa.Array]) -> _Headers:
    found = _Headers()
    names, values = _texts(pairs[0]), _texts(pairs[1])
    if not _NAMES.issuperset(map(type, names)) or not _VALUES.issuperset(map(type, values)):
        raise kinds.bad_headers()
    found.names = [name.decode("utf-8", "replace") if isinstance(name, bytes) else cast(str, name) for name in names]
    found.values = values
    end = 0
    counts: list[int] = pairs[2].to_pylist()
    for count in counts:
        end += count
        found.ends.append(end)
    return found


def _texts(column: pa.Array) -> list[object]:
    """Values as texts where they are, so that other protocols can show them."""
    found: list[object]
    column = _plain(column)
    if not kinds.is_bytes(column.type):
        found = column.to_pylist()
        return found
    try:
        found = column.cast(pa.large_string()).to_pylist()
    except pa.ArrowInvalid:
        found = [_text(value) for value in column.to_pylist()]
    return found


def _text(value: object) -> object:
    """Bytes as text, if they are one."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _check_targets(columns: dict[str, list[Any]], names: Mapping[str, str]) -> None:
    for target in kinds.TARGETS:
        for value in set(columns.pop(target, ())):
            if value is not None and value != names[target]:
                raise InvalidArgument(
                    f"the column {target} names {value!r}: rows of one chunk go to one target", argument=target
                )


def _rows(part: _Part, key: str, names: Mapping[str, str], now_ms: int) -> Part:
    columns = {name: part.values(name) for name in part.columns}
    _check_targets(columns, names)
    values: list[bytes] = columns["value"]
    if len(columns) == 1 and part.headers is None:
        return Part([key], [_PLAIN], values, [0], [0], [-1])
    _check_numbers(columns, bool(names["stream"]))
    count = part.count
    absent: list[Any] = [None] * count
    keys: list[str | None] = columns.get("routing_key", absent)
    partitions: list[int | None] = columns.get("partition", absent)
    priorities: list[int | None] = columns.get("priority", absent)
    delays: list[int | None] = columns.get("delay_ms", absent)
    expirations: list[int | None] = columns.get("expiration_ms", absent)
    encoder = _Encoder(columns, None if part.headers is None else _headers(part.headers), absent)
    made_props: list[bytes] = []
    expiries: list[int] = []
    for i in range(count):
        due_ms = now_ms + (delays[i] or 0)
        expiration = expirations[i]
        expiries.append(due_ms + expiration if expiration else 0)
        made_props.append(encoder.props(i, due_ms if delays[i] else 0, priorities[i] or 0))
    return Part(
        [key] if "routing_key" not in columns else _keys(keys, key),
        made_props,
        values,
        [0] if "priority" not in columns else [number or 0 for number in priorities],
        [0] if "expiration_ms" not in columns else expiries,
        [-1] if "partition" not in columns else [-1 if number is None else number for number in partitions],
    )


def _keys(keys: list[str | None], key: str) -> list[str]:
    for own in keys:
        if own is not None and len(own) * 4 > KEY_MAX_BYTES and len(own.encode()) > KEY_MAX_BYTES:
            raise InvalidArgument(f"routing_key is longer than {KEY_MAX_BYTES} bytes", argument="routing_key")
    return [key if own is None else own for own in keys]


def _check_numbers(columns: dict[str, list[Any]], is_for_stream: bool) -> None:
    if is_for_stream and any(columns.get("delay_ms", ())):
        raise InvalidArgument("records of a stream have no delay", argument="delay_ms")
    for name in kinds.NUMBERS:
        if name != "priority" and any(number < 0 for number in columns.get(name, ()) if number is not None):
            raise InvalidArgument(f"{name} must not be negative", argument=name)


class _Encoder:
    """Encodes the properties of rows, one after the other."""

    def __init__(self, columns: dict[str, list[Any]], headers: _Headers | None, absent: list[Any]) -> None:
        self._headers = headers
        self._keys: list[object] = columns.get("key", absent)
        self._stamps: list[int | None] = columns.get("timestamp", absent)
        self._content_types: list[str | None] = columns.get("content_type", absent)
        self._correlation_ids: list[str | None] = columns.get("correlation_id", absent)
        self._message_ids: list[str | None] = columns.get("message_id", absent)
        self._at: i64 = 0
        # one object for all of them: making it costs more than encoding it
        self._made = Properties(delivery_mode=2)

    def props(self, i: int, due_ms: int, priority: int) -> bytes:
        """The property list of a row, due at a time unless that is 0."""
        stamp = self._stamps[i]
        made = self._made
        made.content_type = self._content_types[i]
        made.correlation_id = self._correlation_ids[i]
        made.message_id = self._message_ids[i]
        made.priority = priority if 0 < priority < 256 else None
        made.timestamp = None if stamp is None or stamp < 0 else stamp // 1000
        try:
            return properties.encode(made, self._fields(i, self._keys[i], due_ms))
        except InvalidArgument as error:
            if error.argument not in kinds.COLUMNS:
                error.argument = "headers"
            raise

    def _fields(self, i: int, key: object, due_ms: int) -> bytes:
        """The headers of a row, those that its columns say among them."""
        w = BytesWriter()
        headers = self._headers
        if headers is not None:
            names = headers.names
            at = self._at
            end: i64 = headers.ends[i]
            self._at = end
            # of several with one name the last counts, and a column more than a header
            last = {names[i]: i for i in range(at, end)} if end - at > 1 else None
            while at < end:
                name = names[at]
                again = (key is not None and name == KEY_HEADER) or (due_ms != 0 and name == DUE_HEADER)
                if last is not None and last[name] != at:
                    again = True
                if not again:
                    write_short(w, name, name)
                    write_field(w, headers.values[at], name, 1)
                at += 1
        if key is not None:
            write_short(w, KEY_HEADER, KEY_HEADER)
            write_field(w, key, KEY_HEADER, 1)
        if due_ms:
            write_short(w, DUE_HEADER, DUE_HEADER)
            write_field(w, due_ms, DUE_HEADER, 1)
        return w.getvalue()


def messages_ipc(
    tenant: str, queue: str, found: list[tuple[int, int, int, Message]], columns: Sequence[str]
) -> Iterator[bytes]:
    """Messages as an Arrow IPC stream with the columns of a stream's records: (index, time, attempt, message) each.

    The index is the `offset`, the queue the `stream`, the attempt the `delivery_count`.
    """
    schema = schema_of(check_columns(list(columns)))
    return arrow.ipc(_batches(tenant, queue, found, schema), schema)


def _batches(
    tenant: str, queue: str, found: list[tuple[int, int, int, Message]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < len(found):
        rows = arrow.empty_columns(schema)
        first = at
        while at < len(found) and not rows.full():
            index, stamp, _, message = found[at]
            w = BytesWriter()
            records.write_record(w, 0, index, stamp, message, message.body, records.PLAIN)
            rows.add(w.getvalue(), 0, index, stamp)
            at += 1
        batch = arrow.batch_of(rows, schema, tenant, queue, 0)
        if "delivery_count" in schema.names:
            place = schema.names.index("delivery_count")
            counts = pa.array([attempt for _, _, attempt, _ in found[first:at]], pa.int32())
            batch = batch.set_column(place, schema.field(place), counts)
        yield batch

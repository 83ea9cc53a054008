"""Messages in and out of Arrow tables beside streams: rows to be staged, and the messages of a cut. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from mypy_extensions import i64

from rookery import properties
from rookery._bytes import BytesWriter
from rookery.core.staging import DUE_HEADER, Row
from rookery.core.stream import KEY_HEADER
from rookery.errors import InvalidArgument
from rookery.fieldtables import write_field, write_short
from rookery.model import Message
from rookery.properties import Properties
from rookery.store import arrow, records
from rookery.store.columns import check_columns
from rookery.store.schema import schema_of

TARGETS: Final = ("stream", "exchange", "topic", "queue")
COLUMNS: Final = (
    "value",
    "key",
    "headers",
    "routing_key",
    "partition",
    "timestamp",
    "priority",
    "expiration_ms",
    "delay_ms",
    "message_id",
    "correlation_id",
    "content_type",
)
"""The columns of rows to be staged; `value` must be there. Those of TARGETS may only repeat where the rows go."""

_TEXTS: Final = ("routing_key", "message_id", "correlation_id", "content_type", *TARGETS)
_NUMBERS: Final = ("partition", "priority", "expiration_ms", "delay_ms")
_NAMES: Final = frozenset((str, bytes))
_VALUES: Final = frozenset((bytes, str, int, bool, type(None)))
KEY_MAX_BYTES: Final = 255
_PLAIN: Final = properties.encode(Properties(delivery_mode=2))


def rows_of(body: bytes, key: str, names: Mapping[str, str], now_ms: int) -> list[Row]:
    """The rows of an Arrow IPC stream. `key` is the routing key of those without one, `names` where they go."""
    try:
        table = pa.ipc.open_stream(body).read_all()
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise InvalidArgument(f"the body is no Arrow IPC stream: {error}", argument="body") from None
    for name in table.schema.names:
        if name not in COLUMNS and name not in TARGETS:
            raise InvalidArgument(f"no column {name!r}; there are {', '.join((*COLUMNS, *TARGETS))}", argument=name)
    if "value" not in table.schema.names:
        raise InvalidArgument("the column value is missing", argument="value")
    if len(set(table.schema.names)) != len(table.schema.names):
        raise InvalidArgument("a column is there twice", argument="body")
    headers = _headers(table.column("headers")) if "headers" in table.schema.names else None
    columns = {name: _column(table, name) for name in table.schema.names if name != "headers"}
    _check_targets(columns, names)
    return _rows(columns, headers, table.num_rows, key, now_ms, bool(names["stream"]))


def _column(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    wanted = pa.binary()
    if name in _TEXTS:
        wanted = pa.string()
    elif name in _NUMBERS:
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


class _Headers:
    """The headers of all rows one after the other, those of each row before its end."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[object] = []
        self.ends: list[int] = []


def _headers(column: pa.ChunkedArray) -> _Headers:
    """Headers from a map, or from a list of pairs of key and value.

    Keys and values are taken out of the lists as columns: an object for each pair would cost more than all the rest.
    """
    found = _Headers()
    kind = column.type
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct({"key": kind.key_type, "value": kind.item_type})))
    elif pa.types.is_null(kind):
        found.ends = [0] * len(column)
        return found
    elif not _is_list(kind):
        raise _no_headers()
    end = 0
    for chunk in column.chunks:
        names, values = _pairs(chunk)
        found.names += names
        found.values += values
        lengths: list[int] = pc.fill_null(pc.list_value_length(chunk), 0).to_pylist()
        for length in lengths:
            end += length
            found.ends.append(end)
    return found


def _pairs(chunk: pa.Array) -> tuple[list[str], list[object]]:
    """The names and values of all headers of some rows, one after the other."""
    items = chunk.flatten()
    if not len(items):
        return [], []
    if items.null_count:
        raise _no_headers()
    if pa.types.is_struct(items.type):
        places = [items.type.get_field_index(name) for name in ("key", "value")]
        if min(places) < 0:
            raise _no_headers()
        fields = items.flatten()
        names, values = (_texts(fields[place]) for place in places)
    else:
        # pairs as lists of two
        if not _is_list(items.type) or not pc.all(pc.equal(pc.list_value_length(items), 2)).as_py():
            raise _no_headers()
        both = _texts(items.flatten())
        names, values = both[::2], both[1::2]
    if not _NAMES.issuperset(map(type, names)) or not _VALUES.issuperset(map(type, values)):
        raise _no_headers()
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else cast(str, name) for name in names], values


def _texts(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Values as texts where they are, so that other protocols can show them."""
    found: list[object]
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    try:
        found = (column.cast(pa.large_string()) if is_bytes else column).to_pylist()
    except pa.ArrowInvalid:
        found = [_text(value) for value in column.to_pylist()]
    return found


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _no_headers() -> InvalidArgument:
    return InvalidArgument("headers are pairs of a text and a text or bytes", argument="headers")


def _text(value: object) -> object:
    """Bytes as text, if they are one."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _check_targets(columns: dict[str, list[Any]], names: Mapping[str, str]) -> None:
    for target in TARGETS:
        for value in set(columns.pop(target, ())):
            if value is not None and value != names[target]:
                raise InvalidArgument(
                    f"the column {target} names {value!r}: rows of one chunk go to one target", argument=target
                )


def _rows(
    columns: dict[str, list[Any]], headers: _Headers | None, count: int, key: str, now_ms: int, is_for_stream: bool
) -> list[Row]:
    values: list[bytes] = columns["value"]
    if len(columns) == 1 and headers is None:
        return [Row(key, _PLAIN, value) for value in values]
    _check_numbers(columns, is_for_stream)
    absent: list[Any] = [None] * count
    keys: list[str | None] = columns.get("routing_key", absent)
    partitions: list[int | None] = columns.get("partition", absent)
    priorities: list[int | None] = columns.get("priority", absent)
    delays: list[int | None] = columns.get("delay_ms", absent)
    expirations: list[int | None] = columns.get("expiration_ms", absent)
    encoder = _Encoder(columns, headers, absent)
    rows: list[Row] = []
    for i in range(count):
        own = keys[i]
        if own is None:
            own = key
        elif len(own) * 4 > KEY_MAX_BYTES and len(own.encode()) > KEY_MAX_BYTES:
            raise InvalidArgument(f"routing_key is longer than {KEY_MAX_BYTES} bytes", argument="routing_key")
        partition, expiration, priority = partitions[i], expirations[i], priorities[i] or 0
        due_ms = now_ms + (delays[i] or 0)
        expires_ms = due_ms + expiration if expiration else 0
        props = encoder.props(i, due_ms if delays[i] else 0, priority)
        rows.append(Row(own, props, values[i], priority, expires_ms, -1 if partition is None else partition))
    return rows


def _check_numbers(columns: dict[str, list[Any]], is_for_stream: bool) -> None:
    if is_for_stream and any(columns.get("delay_ms", ())):
        raise InvalidArgument("records of a stream have no delay", argument="delay_ms")
    for name in _NUMBERS:
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
            if error.argument not in COLUMNS:
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
            while at < end:
                name = names[at]
                # of several with one name the last counts, and a column more than a header
                again = (key is not None and name == KEY_HEADER) or (due_ms != 0 and name == DUE_HEADER)
                later = at + 1
                while later < end and not again:
                    again = names[later] == name
                    later += 1
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

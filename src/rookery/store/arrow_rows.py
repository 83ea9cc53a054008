"""Messages in and out of Arrow tables beside streams: rows to be staged, and the messages of a cut. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from rookery import properties
from rookery._bytes import BytesWriter
from rookery.core.staging import DUE_HEADER, Row
from rookery.core.stream import KEY_HEADER
from rookery.errors import InvalidArgument
from rookery.model import Message
from rookery.properties import Properties, Timestamp
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
    columns = {name: _column(table, name) for name in table.schema.names}
    _check_targets(columns, names)
    return _rows(columns, table.num_rows, key, now_ms, bool(names["stream"]))


def _column(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    wanted = pa.binary()
    if name == "headers":
        return _header_lists(column)
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
    values: list[Any] = found.to_pylist()
    return values


def _header_lists(column: pa.ChunkedArray) -> list[Any]:
    """Headers as dicts: from a map, or from a list of (key, value)."""
    rows = []
    for row in column.to_pylist():
        headers: dict[str, object] = {}
        for pair in row or ():
            name, value = (pair.get("key"), pair.get("value")) if isinstance(pair, dict) else pair
            if isinstance(name, bytes):
                name = name.decode("utf-8", "replace")
            if not isinstance(name, str) or not isinstance(value, bytes | str | int | bool | None):
                raise InvalidArgument("headers are pairs of a text and a text or bytes", argument="headers")
            headers[name] = _text(value)
        rows.append(headers)
    return rows


def _text(value: object) -> object:
    """A value of a header: as text where it is one, so that other protocols can show it."""
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


def _rows(columns: dict[str, list[Any]], count: int, key: str, now_ms: int, is_for_stream: bool) -> list[Row]:
    values = columns["value"]
    if set(columns) == {"value"}:
        return [Row(key, _PLAIN, value) for value in values]
    get = _getters(columns)
    rows = []
    for i in range(count):
        delay = get("delay_ms", i)
        if delay and is_for_stream:
            raise InvalidArgument("records of a stream have no delay", argument="delay_ms")
        for name in _NUMBERS:
            number = get(name, i)
            if number is not None and number < 0 and name != "priority":
                raise InvalidArgument(f"{name} must not be negative", argument=name)
        expiration = get("expiration_ms", i)
        priority = get("priority", i) or 0
        partition = get("partition", i)
        own = get("routing_key", i)
        if own is not None and len(own.encode()) > KEY_MAX_BYTES:
            raise InvalidArgument(f"routing_key is longer than {KEY_MAX_BYTES} bytes", argument="routing_key")
        rows.append(
            Row(
                key if own is None else own,
                _props(get, i, now_ms, delay, priority),
                values[i],
                priority,
                now_ms + (delay or 0) + expiration if expiration else 0,
                -1 if partition is None else partition,
            )
        )
    return rows


def _getters(columns: dict[str, list[Any]]) -> Callable[[str, int], Any]:
    none: list[Any] = []

    def get(name: str, index: int) -> Any:
        column = columns.get(name, none)
        return column[index] if column else None

    return get


def _props(get: Callable[[str, int], Any], i: int, now_ms: int, delay_ms: int | None, priority: int) -> bytes:
    headers: dict[str, object] = dict(get("headers", i) or {})
    key = get("key", i)
    if key is not None:
        headers[KEY_HEADER] = _text(key)
    if delay_ms:
        headers[DUE_HEADER] = now_ms + delay_ms
    stamp = get("timestamp", i)
    try:
        return properties.encode(
            Properties(
                content_type=get("content_type", i),
                headers=headers or None,
                delivery_mode=2,
                priority=priority if 0 < priority < 256 else None,
                correlation_id=get("correlation_id", i),
                message_id=get("message_id", i),
                timestamp=None if stamp is None or stamp < 0 else Timestamp(stamp // 1000),
            )
        )
    except InvalidArgument as error:
        if error.argument not in COLUMNS:
            error.argument = "headers"
        raise


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

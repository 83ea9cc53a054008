"""Records of a stream as batches of a table, from columns: `store.columns` fills them, `store.schema` names them. Needs
pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from rookery.core.paging import OFFSET_MASK, PLACE_BITS
from rookery.errors import StoreDamaged
from rookery.sealed.columns import ALL, ENVELOPE, Columns, Numbers, Pattern, Texts, add_run
from rookery.sealed.schema import DIRECTORIES, HEADERS

WINDOW_BYTES: Final = 1 << 20


def empty_columns(schema: pa.Schema) -> Columns:
    """Where rows of a schema are collected."""
    return Columns([name for name in schema.names if name in ALL or name == ENVELOPE])


def collect(
    places: bytes,
    stamps: bytes,
    first: int,
    read: Callable[[int, int], bytes],
    schema: pa.Schema,
    pattern: str,
) -> Iterator[Columns]:
    """The records of a run, by their places in the journal, a batch at a time; `read` gives the bytes from a place on.

    A batch may be empty where a pattern of routing keys chooses among the records.
    """
    count = len(places) // 8
    index = 0
    wanted = Pattern(pattern)
    data = b""
    start = 0
    while index < count:
        columns = empty_columns(schema)
        while index < count and not columns.full():
            after = int(add_run(columns, data, start, places, stamps, index, first, wanted))
            if after == index:
                start = int.from_bytes(places[index * 8 : index * 8 + 8], "big")
                data = _window(read, start)
            index = after
        yield columns


def _window(read: Callable[[int, int], bytes], place: int) -> bytes:
    """What stands from a place on, at least one whole record."""
    data = read(place, WINDOW_BYTES)
    size = 5 + int.from_bytes(data[1:5], "big")
    if size > len(data):
        data = read(place, size)
    if len(data) < size:
        raise StoreDamaged(f"segment {place >> PLACE_BITS} ends within the record at {place & OFFSET_MASK}")
    return data


def batch_of(columns: Columns, schema: pa.Schema, tenant: str, stream: str, partition: int) -> pa.RecordBatch:
    """What was collected, as a batch."""
    rows = int(columns.rows)
    same = dict(zip(DIRECTORIES, (tenant, stream, partition), strict=True))
    arrays = []
    for field in schema:
        if field.name in same:
            arrays.append(repeated(same[field.name], field, rows))
        elif field.name == "headers":
            arrays.append(_headers(columns, rows))
        elif field.name in columns.texts:
            arrays.append(_texts(columns.texts[field.name], field.type, rows))
        elif field.name in columns.numbers:
            arrays.append(_numbers(columns.numbers[field.name], field.type, rows))
        else:
            arrays.append(pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def repeated(value: Any, field: pa.Field, rows: int) -> pa.Array:
    """A column that says the same in each row."""
    return pa.repeat(pa.scalar(value, field.type), rows)


def _bitmap(bits: bytes | None) -> pa.Buffer | None:
    return None if bits is None else pa.py_buffer(bits)


def _texts(column: Texts, kind: pa.DataType, rows: int) -> pa.Array:
    buffers = [
        _bitmap(column.valid.buffer()),
        pa.py_buffer(column.offsets.getvalue()),
        pa.py_buffer(column.data.getvalue()),
    ]
    return pa.Array.from_buffers(kind, rows, buffers, int(column.valid.nulls))


def _numbers(column: Numbers, kind: pa.DataType, rows: int) -> pa.Array:
    buffers = [_bitmap(column.valid.buffer()), pa.py_buffer(column.data.getvalue())]
    if kind == pa.int32():
        wide = pa.Array.from_buffers(pa.int64(), rows, buffers, int(column.valid.nulls))
        # priorities may have 64 bits; a table has room for 32 of them
        return pa.compute.min_element_wise(wide, (1 << 31) - 1).cast(kind, safe=False)
    return pa.Array.from_buffers(kind, rows, buffers, int(column.valid.nulls))


def _headers(columns: Columns, rows: int) -> pa.Array:
    assert columns.header_offsets is not None
    offsets = columns.header_offsets.getvalue()
    count = int.from_bytes(offsets[-4:], "little")
    names = _texts(columns.header_names, pa.string(), count)
    values = _texts(columns.header_values, pa.binary(), count)
    items = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.Array.from_buffers(HEADERS, rows, [None, pa.py_buffer(offsets)], 0, children=[items])


def ipc(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[bytes]:
    """An Arrow IPC stream, piece by piece."""
    sink = _Pieces()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield from sink.take()
        for batch in batches:
            writer.write_batch(batch)
            yield from sink.take()
    yield from sink.take()


class _Pieces:
    """A file to write to, from which what was written is taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """There is nothing to close."""

    def take(self) -> list[bytes]:
        taken = self._pieces
        self._pieces = []
        return taken

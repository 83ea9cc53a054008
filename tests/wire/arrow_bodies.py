"""Arrow IPC streams as clients send them, and such as attackers do."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa


def ipc(compression: str | None = None, rows: int = 1_000_000, **columns: Any) -> bytes:
    """A table as a stream, in batches of at most so many rows."""
    return written(pa.table(columns), compression, rows)


def written(table: pa.Table, compression: str | None = None, rows: int = 1_000_000) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def false_offset(end: int) -> bytes:
    """One value of three bytes that says it ends elsewhere."""
    body = ipc(value=pa.array([b"abc"], pa.binary()))
    return _replaced(body, struct.pack("<ii", 0, 3), struct.pack("<ii", 0, end))


def false_list(end: int) -> bytes:
    """A row whose headers end elsewhere."""
    headers = pa.array([[("a", b"1")] * 7], pa.map_(pa.string(), pa.binary()))
    body = ipc(value=pa.array([b"abcde"], pa.binary()), headers=headers)
    return _replaced(body, struct.pack("<ii", 0, 7), struct.pack("<ii", 0, end))


def false_index(index: int) -> bytes:
    """A row whose value is an entry that its dictionary does not have."""
    values = pa.DictionaryArray.from_arrays(pa.array([0x5A5A], pa.int32()), pa.array([b"abc"] * 0x5A5B, pa.binary()))
    return _replaced(ipc(value=values), struct.pack("<i", 0x5A5A), struct.pack("<i", index))


def false_length(rows: int) -> bytes:
    """Metadata that states another number of rows."""
    count = 0x1234
    body = ipc(value=pa.array([b""] * count, pa.binary()))
    return body.replace(struct.pack("<q", count), struct.pack("<q", rows))


def bomb(compression: str, size: int, copies: int = 1) -> bytes:
    """Zeros that are small as long as they are compressed."""
    return ipc(compression, value=pa.array([bytes(size)] * copies, pa.large_binary()))


def lying_bomb(compression: str, size: int, stated: int) -> bytes:
    """A compressed buffer that states another length."""
    body = bomb(compression, size)
    return _replaced(body, struct.pack("<q", size), struct.pack("<q", stated))


def repeated(size: int, rows: int) -> bytes:
    """One entry of a dictionary in many rows."""
    indices = pa.array([0] * rows, pa.int8())
    return ipc("zstd", value=pa.DictionaryArray.from_arrays(indices, pa.array([bytes(size)], pa.binary())))


def repeated_views(size: int, rows: int) -> bytes:
    """One piece of memory in many rows."""
    one = pa.array([b"x" * size], pa.binary_view())
    _, views, *data = one.buffers()
    many = pa.Array.from_buffers(pa.binary_view(), rows, [None, pa.py_buffer(views.to_pybytes()[:16] * rows), *data])
    return ipc("zstd", value=many)


def run_end_encoded(rows: int) -> bytes:
    ends, values = pa.array([rows], pa.int32()), pa.array([b"x" * 1_000], pa.binary())
    return ipc(value=pa.RunEndEncodedArray.from_arrays(ends, values))


def endless_headers(count: int) -> bytes:
    """One row with many headers that take no bytes."""
    names = pa.Array.from_buffers(pa.binary(0), count, [None, pa.py_buffer(b"")])
    pairs = pa.StructArray.from_arrays([names, pa.nulls(count)], ["key", "value"])
    return ipc(value=[b"x"], headers=pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pairs))


def toilsome(batches: int, headers_each: int = 6) -> bytes:
    """Rows that are small, many and laborious: 4,096 a batch."""
    count = 4_096
    texts: dict[str, Any] = {name: ["x"] * count for name in ("key", "message_id", "correlation_id", "content_type")}
    headers = pa.array([[(f"{i}", b"1") for i in range(headers_each)]] * count, pa.map_(pa.string(), pa.binary()))
    table = pa.table({"value": [b"x"] * count, "headers": headers, **texts})
    return written(pa.concat_tables([table] * batches), "zstd")


def _replaced(body: bytes, old: bytes, new: bytes) -> bytes:
    assert old in body
    at = body.rindex(old)
    return body[:at] + new + body[at + len(old) :]

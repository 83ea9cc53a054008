"""How large an Arrow IPC stream becomes, found before any of it is decompressed or decoded. Needs pyarrow.

The metadata of a message is a flatbuffer that pyarrow has verified. It names the buffers of the message's body; a
compressed buffer begins with its length after decompression (eight bytes, little-endian; -1 where it is not
compressed after all). Those lengths are what a reader allocates, so their sum is the limit to keep.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from rookery.errors import InvalidArgument, MessageTooLarge

_OLD_COMPRESSION: Final = b"ARROW:experimental_compression"
_PREFIX_BYTES: Final = 8
_STORED: Final = -1

# fields of the tables of Arrow's Message.fbs and Schema.fbs, by their place
_MESSAGE_HEADER: Final = 2
_SCHEMA_ENDIANNESS: Final = 0
_DICTIONARY_DATA: Final = 1
_DICTIONARY_IS_DELTA: Final = 2
_BATCH_LENGTH: Final = 0
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3


def check_size(body: bytes | bytearray, bytes_max: int, rows_max: int) -> None:
    """Refuse a stream whose buffers, decompressed, exceed `bytes_max`, or that has more than `rows_max` rows."""
    size = rows = entries = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        metadata = message.metadata.to_pybytes()
        if _OLD_COMPRESSION in metadata:
            raise InvalidArgument("the body uses a form of compression that Arrow has given up", argument="body")
        try:
            header = _Table(metadata, 0).table(_MESSAGE_HEADER)
            if message.type == "schema":
                _check_schema(header)
            elif message.type == "dictionary":
                batch = _dictionary(header)
                entries += batch.number(_BATCH_LENGTH, "<q")
                size += _buffers_bytes(batch, message.body)
            elif message.type == "record batch":
                rows += header.number(_BATCH_LENGTH, "<q")
                size += _buffers_bytes(header, message.body)
            else:
                raise InvalidArgument(f"the body holds a message of kind {message.type!r}", argument="body")
        except struct.error:
            raise InvalidArgument("the metadata of the Arrow stream is damaged", argument="body") from None
        if size > bytes_max:
            raise MessageTooLarge(
                f"the Arrow body decompresses to more than {bytes_max} bytes; send fewer rows in one body",
                argument="body",
            )
        if rows > rows_max or entries > rows_max:
            raise MessageTooLarge(f"the Arrow body has more than {rows_max} rows; send fewer in one", argument="body")


def _check_schema(schema: _Table) -> None:
    # swapping bytes would come before the validation
    if schema.number(_SCHEMA_ENDIANNESS, "<h"):
        raise InvalidArgument("the Arrow stream is big-endian; write it little-endian", argument="body")


def _dictionary(header: _Table) -> _Table:
    # adding to a dictionary would come before the validation
    if header.number(_DICTIONARY_IS_DELTA, "<b"):
        raise InvalidArgument("the Arrow stream has delta dictionaries; write whole dictionaries", argument="body")
    return header.table(_DICTIONARY_DATA)


def _buffers_bytes(batch: _Table, body: pa.Buffer | None) -> int:
    """The bytes of a batch's buffers once they are decompressed."""
    if batch.number(_BATCH_LENGTH, "<q") < 0:
        raise InvalidArgument("a batch of the Arrow stream has a negative length", argument="body")
    data = memoryview(b"" if body is None else body)
    is_compressed = batch.place(_BATCH_COMPRESSION) > 0
    size = 0
    for offset, length in batch.pairs(_BATCH_BUFFERS):
        if offset < 0 or length < 0 or offset + length > len(data):
            raise InvalidArgument("a buffer of the Arrow stream is not within its message", argument="body")
        if is_compressed and length:
            (stated,) = struct.unpack_from("<q", data, offset) if length >= _PREFIX_BYTES else (-2,)
            if stated < _STORED:
                raise InvalidArgument("a compressed buffer of the Arrow stream has no length", argument="body")
            size += length if stated == _STORED else stated
        else:
            size += length
    return size


class _Table:
    """A table of a flatbuffer: the one that the offset at a place leads to."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at + self._read("<I", at)

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise struct.error("before the beginning")
        (number,) = struct.unpack_from(form, self._data, at)
        return int(number)

    def place(self, slot: int) -> int:
        """Where a field is, 0 when the table has none."""
        names = self._at - self._read("<i", self._at)
        at = 4 + 2 * slot
        offset = self._read("<H", names + at) if at + 2 <= self._read("<H", names) else 0
        return self._at + offset if offset else 0

    def number(self, slot: int, form: str) -> int:
        at = self.place(slot)
        return self._read(form, at) if at else 0

    def table(self, slot: int) -> _Table:
        at = self.place(slot)
        if not at:
            raise struct.error("a table is missing")
        return _Table(self._data, at)

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        """A vector of pairs of 64-bit numbers."""
        at = self.place(slot)
        if not at:
            return []
        at += self._read("<I", at)
        count = self._read("<I", at)
        numbers = struct.unpack_from(f"<{2 * count}q", self._data, at + 4) if 16 * count <= len(self._data) else None
        if numbers is None:
            raise struct.error("a vector is longer than its message")
        return list(zip(numbers[::2], numbers[1::2], strict=True))

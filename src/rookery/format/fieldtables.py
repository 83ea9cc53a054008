"""AMQP 0-9-1 field tables: the headers of a message and the arguments of methods, between bytes and dicts.

A field is a name (short string), a type octet and a value; the fields of a table stand one after the other. Types are
read as RabbitMQ reads them: s and l are signed, L is l. Everything here is total: lengths are checked before they are
believed, tables and arrays nest at most `DEPTH_MAX` deep, and malformed input raises InvalidArgument with `argument`
"table". What Python does not tell apart (b and I, f and d) comes back as the type that `write_table` names.

Names are UTF-8. Bytes that are not become lone surrogates (PEP 383), which encode back to the same bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, cast

from mypy_extensions import i32, i64, mypyc_attr, u8

from rookery.errors import InvalidArgument, InvalidType
from rookery.format.bytes import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
    write_i32_be,
    write_i64_be,
)

DEPTH_MAX: Final = 32
"""How deep tables and arrays nest; the outermost table is the first level."""

WRITTEN_MAX: Final = 262_144
"""Where writing a table stops: at twice what a message may have, and before it takes long."""

FIELDS_MAX: Final = 10_000
"""How many fields and items the headers of a published message have, those of nested tables and arrays included."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)

_SIZED: Final = 254
_UNKNOWN: Final = 255


def _widths() -> bytes:
    """Bytes a value takes after its type octet, by type; `_SIZED` ones begin with their length in 32 bits."""
    widths = bytearray([_UNKNOWN] * 256)
    for kinds, width in ((b"V", 0), (b"tbB", 1), (b"su", 2), (b"Iif", 4), (b"D", 5), (b"lLdT", 8), (b"SxAF", _SIZED)):
        for kind in kinds:
            widths[kind] = width
    return bytes(widths)


_WIDTHS: Final = _widths()


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Seconds since 1970 that travel as a timestamp (T) instead of a number. Otherwise an int like any other."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


@mypyc_attr(native_class=False)
class Long(int):
    """A number that travels as 64 bits (l), however small it is. Otherwise an int like any other."""

    __slots__ = ()


def decode_table(data: bytes, pos: i64, end: i64) -> dict[str, object]:
    """The table whose fields are data[pos:end], without the length that stands before them in a frame.

    A long string (S) that is not UTF-8 is given as bytes. Of fields with the same name the last counts.
    """
    if pos < 0 or end > len(data):
        raise InvalidArgument("the table lies outside of its data", argument="table")
    return _table(data, pos, end, 1)


def encode_table(table: dict[str, object]) -> bytes:
    """The fields of a table, without the length in front: what `decode_table` takes."""
    _require_dict(table)
    w = BytesWriter()
    _write_fields(w, table, 1)
    return w.getvalue()


def write_table(w: BytesWriter, table: dict[str, object]) -> None:
    """Append a table as it stands in frames and property lists: its length in 32 bits, then its fields.

    A bool goes as t, an int as I or, beyond 32 bits, l, a float as d, str as S, bytes as x, Decimal as D, Timestamp and
    datetime (a naive one is UTC) as T, a list as A, a dict as F, None as V. InvalidArgument names the field at fault.
    """
    _require_dict(table)
    _write_nested(w, table, "table", 0)


def check_table(data: bytes, pos: i64, end: i64) -> i64:
    """Raise InvalidArgument unless `decode_table` would succeed; builds nothing. Returns how many fields there are."""
    if pos < 0 or end > len(data):
        raise InvalidArgument("the table lies outside of its data", argument="table")
    return _check_fields(data, pos, end, True, 1)


# Stepping through fields


def after_name(data: bytes, pos: i64, end: i64) -> i64:
    """The position after a field's name, where its type octet is; `pos` is before `end`."""
    stop: i64 = pos + 1 + data[pos]
    if stop >= end:
        raise InvalidArgument("malformed table: a field is cut off", argument="table")
    return stop


def after_field(data: bytes, pos: i64, end: i64) -> i64:
    """The position after the value whose type octet is at `pos`; `pos` is before `end`."""
    width: i64 = _WIDTHS[data[pos]]
    stop: i64 = pos + 1 + width
    if width == _SIZED:
        stop = pos + 5
        if stop <= end:
            stop += i64(read_i32_be(data, pos + 1)) & 0xFFFFFFFF
    elif width == _UNKNOWN:
        raise InvalidArgument(f"malformed table: no field type 0x{int(data[pos]):02x}", argument="table")
    if stop > end:
        raise InvalidArgument("malformed table: a value is cut off", argument="table")
    return stop


def read_name(data: bytes, pos: i64, end: i64) -> tuple[str, i64]:
    """The name at `pos` and the position after it; `pos` is before `end`."""
    stop = after_name(data, pos, end)
    return data[pos + 1 : stop].decode("utf-8", "surrogateescape"), stop


def read_field(data: bytes, pos: i64, end: i64, depth: i64) -> tuple[object, i64]:
    """The value whose type octet is at `pos`, in a table or array at `depth`, and the position after it."""
    stop = after_field(data, pos, end)
    kind: i64 = data[pos]
    pos += 1
    if kind == 0x53:  # S
        raw = data[pos + 4 : stop]
        try:
            return raw.decode("utf-8"), stop
        except UnicodeDecodeError:
            return raw, stop
    if kind == 0x46 or kind == 0x41:  # F, A
        if depth >= DEPTH_MAX:
            raise _too_deep("table")
        if kind == 0x46:
            return _table(data, pos + 4, stop, depth + 1), stop
        return _array(data, pos + 4, stop, depth + 1), stop
    if kind == 0x78:  # x
        return data[pos + 4 : stop], stop
    return _scalar(data, pos, kind), stop


def _table(data: bytes, pos: i64, end: i64, depth: i64) -> dict[str, object]:
    table: dict[str, object] = {}
    while pos < end:
        name, pos = read_name(data, pos, end)
        value, pos = read_field(data, pos, end, depth)
        table[name] = value
    return table


def _array(data: bytes, pos: i64, end: i64, depth: i64) -> list[object]:
    array: list[object] = []
    while pos < end:
        value, pos = read_field(data, pos, end, depth)
        array.append(value)
    return array


def _scalar(data: bytes, pos: i64, kind: i64) -> object:
    """The value of a type of fixed width, which is known to be there."""
    if kind == 0x49:  # I
        return i64(read_i32_be(data, pos))
    if kind == 0x6C or kind == 0x4C:  # l, L
        return read_i64_be(data, pos)
    if kind == 0x74:  # t
        return data[pos] != 0
    if kind == 0x64:  # d
        return read_f64_be(data, pos)
    if kind == 0x54:  # T
        return Timestamp(read_unsigned(data, pos))
    if kind == 0x56:  # V
        return None
    if kind == 0x62:  # b
        octet: i64 = data[pos]
        return octet if octet < 0x80 else octet - 0x100
    if kind == 0x42:  # B
        return data[pos]
    if kind == 0x73:  # s
        return i64(read_i16_be(data, pos))
    if kind == 0x75:  # u
        return i64(read_i16_be(data, pos)) & 0xFFFF
    if kind == 0x69:  # i
        return i64(read_i32_be(data, pos)) & 0xFFFFFFFF
    if kind == 0x66:  # f
        return read_f32_be(data, pos)
    # D: RabbitMQ only passes the 32 bits on; clients read them as signed
    return Decimal(f"{int(read_i32_be(data, pos + 1))}E-{data[pos]}")


def read_unsigned(data: bytes, pos: i64) -> int:
    number: int = read_i64_be(data, pos)
    return number if number >= 0 else number + (1 << 64)


def _check_fields(data: bytes, pos: i64, end: i64, named: bool, depth: i64) -> i64:
    count: i64 = 0
    while pos < end:
        count += 1
        if named:
            pos = after_name(data, pos, end)
        stop = after_field(data, pos, end)
        kind: i64 = data[pos]
        if kind == 0x46 or kind == 0x41:
            if depth >= DEPTH_MAX:
                raise _too_deep("table")
            count += _check_fields(data, pos + 5, stop, kind == 0x46, depth + 1)
        pos = stop
    return count


# Writing


def write_short(w: BytesWriter, text: object, name: str) -> None:
    """Append a short string; `name` says in an error what it is."""
    if not isinstance(text, str):
        raise InvalidType(f"{name} must be str, not {type(text).__name__}", argument=name)
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} cannot be written as UTF-8", argument=name) from None
    if len(raw) > 255:
        raise InvalidArgument(f"{name} is longer than 255 bytes", argument=name)
    w.append(u8(len(raw)))
    w.write(raw)


def write_unsigned(w: BytesWriter, seconds: object, name: str) -> None:
    """Append a timestamp without its type octet."""
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise InvalidType(f"{name} must be int, not {type(seconds).__name__}", argument=name)
    number: int = seconds
    if number < 0 or number >= 1 << 64:
        raise InvalidArgument(f"{name} is not a number of seconds since 1970 in 64 bits", argument=name)
    write_i64_be(w, i64(number if number < 1 << 63 else number - (1 << 64)))


def write_size(w: BytesWriter, size: i64, name: str) -> None:
    if size > 0xFFFFFFFF:
        raise InvalidArgument(f"{name} is longer than 4 GiB", argument=name)
    write_i32_be(w, i32(size if size < 0x80000000 else size - 0x100000000))


def write_field(w: BytesWriter, value: object, name: str, depth: i64) -> None:
    """Append type octet and value; `depth` is that of the table or array around it, `name` the nearest field's."""
    if isinstance(value, str):
        _write_text(w, value, name)
    elif isinstance(value, bool):
        w.append(u8(0x74))  # t
        w.append(u8(1) if value else u8(0))
    elif isinstance(value, Timestamp):
        w.append(u8(0x54))  # T
        write_unsigned(w, value, name)
    elif isinstance(value, Long):
        w.append(u8(0x6C))  # l
        write_i64_be(w, i64(value))
    elif isinstance(value, int):
        _write_int(w, value, name)
    elif isinstance(value, float):
        w.append(u8(0x64))  # d
        write_f64_be(w, value)
    elif value is None:
        w.append(u8(0x56))  # V
    elif isinstance(value, dict):
        w.append(u8(0x46))  # F
        _write_nested(w, value, name, depth)
    elif isinstance(value, (list, tuple)):
        w.append(u8(0x41))  # A
        _write_nested(w, value, name, depth)
    elif isinstance(value, bytes):
        w.append(u8(0x78))  # x
        write_size(w, len(value), name)
        w.write(value)
    elif isinstance(value, bytearray):
        write_field(w, bytes(value), name, depth)
    elif isinstance(value, Decimal):
        _write_decimal(w, value, name)
    elif isinstance(value, datetime):
        w.append(u8(0x54))  # T
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        write_unsigned(w, (aware - _EPOCH) // _SECOND, name)
    else:
        raise InvalidType(f"{name}: a {type(value).__name__} cannot stand in a table", argument=name)


def _require_dict(table: object) -> None:
    if not isinstance(table, dict):
        raise InvalidType(f"a table must be dict, not {type(table).__name__}", argument="table")


def _write_fields(w: BytesWriter, table: dict[str, object], depth: i64) -> None:
    # Not every caller is typed: a name that is no str is refused by write_short, not by the loop.
    for name, value in cast("dict[object, object]", table).items():
        label = name if isinstance(name, str) else "table"
        write_short(w, name, label)
        write_field(w, value, label, depth)
        if len(w) > WRITTEN_MAX:
            raise _too_long()


def _write_nested(w: BytesWriter, value: object, name: str, depth: i64) -> None:
    """Append the table or array with its length in front; `depth` is that of the table around it."""
    if depth >= DEPTH_MAX:
        raise _too_deep(name)
    start: i64 = len(w)
    write_i32_be(w, 0)
    if isinstance(value, dict):
        _write_fields(w, value, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            write_field(w, item, name, depth + 1)
            if len(w) > WRITTEN_MAX:
                raise _too_long()
    size: i64 = len(w) - start - 4
    if size > 0xFFFFFFFF:
        raise InvalidArgument(f"{name} is longer than 4 GiB", argument=name)
    w[start] = u8(size >> 24)
    w[start + 1] = u8(size >> 16 & 0xFF)
    w[start + 2] = u8(size >> 8 & 0xFF)
    w[start + 3] = u8(size & 0xFF)


def _write_text(w: BytesWriter, text: str, name: str) -> None:
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} cannot be written as UTF-8", argument=name) from None
    w.append(u8(0x53))  # S
    write_size(w, len(raw), name)
    w.write(raw)


def _write_int(w: BytesWriter, number: int, name: str) -> None:
    if -(1 << 31) <= number < 1 << 31:
        w.append(u8(0x49))  # I
        write_i32_be(w, i32(number))
    elif -(1 << 63) <= number < 1 << 63:
        w.append(u8(0x6C))  # l
        write_i64_be(w, i64(number))
    else:
        raise InvalidArgument(f"{name} does not fit 64 bits", argument=name)


def _write_decimal(w: BytesWriter, value: Decimal, name: str) -> None:
    negative, digits, exponent = value.as_tuple()
    # The digits are counted before they are used: an exponent of a billion must cost nothing.
    if not isinstance(exponent, int) or exponent < -255 or len(digits) + max(exponent, 0) > 10:
        raise InvalidArgument(f"{name}: a decimal has at most 32 bits and 255 places", argument=name)
    unscaled = int("".join([str(digit) for digit in digits])) * 10 ** max(exponent, 0)
    if negative:
        unscaled = -unscaled
    if not -(1 << 31) <= unscaled < 1 << 31:
        raise InvalidArgument(f"{name}: a decimal has at most 32 bits and 255 places", argument=name)
    w.append(u8(0x44))  # D
    w.append(u8(max(-exponent, 0)))
    write_i32_be(w, i32(unscaled))


def _too_long() -> InvalidArgument:
    return InvalidArgument(f"the table has more than {WRITTEN_MAX} bytes", argument="table")


def _too_deep(name: str) -> InvalidArgument:
    return InvalidArgument(f"{name} nests deeper than {DEPTH_MAX}", argument=name)

"""What `_bytes` serves where librt is not installed: the same names, the same results, the same errors.

Integers are signed, as in librt: reading ff ff gives -1 and writing 65535 as 16 bits is a ValueError. A read past the
end is an IndexError, a negative position a ValueError. A vec is used up by `append` and `pop`: bind their result to the
name that held it (`v = append(v, x)`), as librt too may reuse the storage.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast, final

from mypy_extensions import i16, i32, i64, u8

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_I32_LE = struct.Struct("<i")
_I64_LE = struct.Struct("<q")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")


@final
class BytesWriter:
    """Grows at its end; what was written can be overwritten in place and cut off, never moved."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, x: int, /) -> None:
        self._data.append(_octet(x))

    def write(self, b: bytes | bytearray, /) -> None:
        if not isinstance(b, bytes | bytearray):
            raise TypeError("value must be a bytes or bytearray object")
        self._data += b

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def truncate(self, size: int, /) -> None:
        if size < 0:
            raise ValueError("size must be non-negative")
        if size > len(self._data):
            raise ValueError("size cannot be larger than current buffer size")
        del self._data[size:]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int, /) -> int:
        if not isinstance(i, int):
            raise TypeError(f"sequence index must be integer, not {type(i).__name__!r}")
        if not -len(self._data) <= i < len(self._data):
            raise IndexError("BytesWriter index out of range")
        return self._data[i]

    def __setitem__(self, i: int, x: int, /) -> None:
        if not -len(self._data) <= i < len(self._data):
            raise IndexError("BytesWriter index out of range")
        self._data[i] = _octet(x)

    def __repr__(self) -> str:
        return f"BytesWriter({self.getvalue()!r})"


def _octet(x: object) -> int:
    if not isinstance(x, int) or not 0 <= x <= 255:
        raise TypeError(f"u8 object expected; got {type(x).__name__}")
    return x


def _at(b: bytes, index: int, size: int) -> int:
    if not isinstance(b, bytes):
        raise TypeError("argument 1 must be bytes")
    if index < 0:
        raise ValueError("index must be non-negative")
    if index > len(b) - size:
        raise IndexError(f"index {index} out of range for bytes of length {len(b)}")
    return index


def _put(b: BytesWriter, layout: struct.Struct, n: int) -> None:
    if not isinstance(n, int):
        raise TypeError(f"{type(n).__name__!r} object cannot be interpreted as an integer")
    try:
        b._data += layout.pack(n)
    except struct.error:
        raise ValueError(f"int too large to convert to i{layout.size * 8}") from None


def read_i16_be(b: bytes, index: int, /) -> int:
    return cast("int", _I16.unpack_from(b, _at(b, index, 2))[0])


def read_i32_be(b: bytes, index: int, /) -> int:
    return cast("int", _I32.unpack_from(b, _at(b, index, 4))[0])


def read_i64_be(b: bytes, index: int, /) -> int:
    return cast("int", _I64.unpack_from(b, _at(b, index, 8))[0])


def read_f32_be(b: bytes, index: int, /) -> float:
    return cast("float", _F32.unpack_from(b, _at(b, index, 4))[0])


def read_f64_be(b: bytes, index: int, /) -> float:
    return cast("float", _F64.unpack_from(b, _at(b, index, 8))[0])


def write_i16_be(b: BytesWriter, n: int, /) -> None:
    _put(b, _I16, n)


def write_i32_be(b: BytesWriter, n: int, /) -> None:
    _put(b, _I32, n)


def write_i64_be(b: BytesWriter, n: int, /) -> None:
    _put(b, _I64, n)


def write_i32_le(b: BytesWriter, n: int, /) -> None:
    _put(b, _I32_LE, n)


def write_i64_le(b: BytesWriter, n: int, /) -> None:
    _put(b, _I64_LE, n)


def write_f32_be(b: BytesWriter, n: float, /) -> None:
    try:
        b._data += _F32.pack(n)
    except OverflowError:  # C rounds a double beyond the range of a float to infinity
        b._data += _F32.pack(float("inf") if n > 0 else float("-inf"))


def write_f64_be(b: BytesWriter, n: float, /) -> None:
    b._data += _F64.pack(n)


_RANGE: dict[object, tuple[int, int]] = {
    i64: (-(1 << 63), (1 << 63) - 1),
    i32: (-(1 << 31), (1 << 31) - 1),
    i16: (-(1 << 15), (1 << 15) - 1),
    u8: (0, 255),
}


class vec(Generic[T]):  # noqa: N801 - librt's name
    """`vec[i64]()`, `vec[i64]([1, 2])`: integers of the named width, or objects of any other item type."""

    __slots__ = ("_items",)
    _kinds: ClassVar[dict[object, type[object]]] = {}
    _range: ClassVar[tuple[int, int] | None] = None

    def __class_getitem__(cls, item: object) -> type[object]:
        kind = cls._kinds.get(item)
        if kind is None:
            name = f"vec[{getattr(item, '__name__', item)}]"
            kind = cls._kinds[item] = type(name, (vec,), {"__slots__": (), "_range": _RANGE.get(item)})
        return kind

    def __init__(self, items: Iterable[T] = (), /, *, capacity: int = 0) -> None:
        if type(self) is vec:
            raise TypeError("cannot create 'vec' instances")
        self._items = [self._checked(item) for item in items]

    def _checked(self, item: T) -> T:
        if self._range is None:
            return item
        if not isinstance(item, int):
            raise TypeError(f"{type(item).__name__!r} object cannot be interpreted as an integer")
        if not self._range[0] <= item <= self._range[1]:
            raise OverflowError(f"Python int too large to convert to an item of {type(self).__name__}")
        return item

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, i: int | slice, /) -> T | vec[T]:
        if isinstance(i, slice):
            return type(self)(self._items[i])
        if not -len(self._items) <= i < len(self._items):
            raise IndexError("index out of range")
        return self._items[i]

    def __setitem__(self, i: int, o: T, /) -> None:
        item = self._checked(o)
        if not -len(self._items) <= i < len(self._items):
            raise IndexError("index out of range")
        self._items[i] = item

    def __contains__(self, o: object, /) -> bool:
        return o in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"


def append(v: vec[T], o: T, /) -> vec[T]:
    v._items.append(v._checked(o))
    return v


def pop(v: vec[T], i: int = -1, /) -> tuple[vec[T], T]:
    if not -len(v._items) <= i < len(v._items):
        raise IndexError("index out of range")
    return v, v._items.pop(i)

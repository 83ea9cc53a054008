"""Values of binding arguments and headers: when two are equal, and a digest by which equal tables are found at once.

Numbers are equal by value, whatever their type; a bool is equal only to a bool and a timestamp only to a timestamp;
text and the bytes it is written as are equal. `same` compares two values, `fingerprint` gives bytes that are the same
for equal values. The bytes go into dicts, whose hash of bytes is seeded: nobody can choose values that collide.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Final

from mypy_extensions import i64

from rookery.format.properties import Timestamp

DEPTH_MAX: Final = 32
_DIGEST_BYTES: Final = 20


def digest(arguments: dict[str, object] | None) -> bytes:
    """Twenty bytes that stand for the arguments of a binding; none at all, and an empty table, give no bytes."""
    if not arguments:
        return b""
    return hashlib.blake2b(fingerprint(arguments), digest_size=_DIGEST_BYTES).digest()


def fingerprint(value: object) -> bytes:
    """Bytes that are the same for two values exactly when these are equal."""
    parts: list[bytes] = []
    _write(value, parts, 0)
    return b"".join(parts)


def size_of(arguments: dict[str, object]) -> int:
    """About how many bytes of memory a table takes."""
    return 200 + 5 * len(fingerprint(arguments))


def same(a: object, b: object, depth: i64) -> bool:
    """Equal, with numbers by value, while a bool is only equal to a bool and a timestamp to a timestamp."""
    if a is b:
        return True
    if isinstance(a, str) or isinstance(b, str):
        return _octets(a) == _octets(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    if isinstance(a, Timestamp) != isinstance(b, Timestamp):
        return False
    if isinstance(a, dict):
        if not isinstance(b, dict) or len(a) != len(b) or depth >= DEPTH_MAX:
            return False
        for name, value in a.items():
            if name not in b or not same(value, b[name], depth + 1):
                return False
        return True
    if isinstance(a, list):
        if not isinstance(b, list) or len(a) != len(b) or depth >= DEPTH_MAX:
            return False
        for i in range(len(a)):
            if not same(a[i], b[i], depth + 1):
                return False
        return True
    try:
        return a == b
    except ArithmeticError:  # a signalling NaN, which nothing is equal to
        return False


def _octets(value: object) -> object:
    """A text as it travels: a header may come as text or as bytes."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _write(value: object, parts: list[bytes], depth: i64) -> None:
    if isinstance(value, str):
        _write_octets(_bytes_of(value), parts)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _write_octets(bytes(value), parts)
    elif value is None:
        parts.append(b"n")
    elif isinstance(value, bool):
        parts.append(b"T" if value else b"F")
    elif isinstance(value, Timestamp):
        parts.append(f"t{int(value)};".encode())
    elif isinstance(value, (int, float, Decimal)):
        parts.append(_number(value))
    elif depth < DEPTH_MAX and isinstance(value, list):
        parts.append(f"l{len(value)}:".encode())
        for item in value:
            _write(item, parts, depth + 1)
    elif depth < DEPTH_MAX and isinstance(value, dict):
        parts.append(f"d{len(value)}:".encode())
        for name in sorted(value):
            _write_octets(_bytes_of(name), parts)
            _write(value[name], parts, depth + 1)
    else:
        # nothing that a protocol carries, or too deep to be looked into: known by how it is written
        _write_octets(f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass"), parts)


def _write_octets(octets: bytes, parts: list[bytes]) -> None:
    parts.append(f"s{len(octets)}:".encode())
    parts.append(octets)


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _number(value: object) -> bytes:
    """The value of a number, whatever its type: its digits without zeros at the end, and a power of ten."""
    if isinstance(value, int) and -1_000_000_000 < value < 1_000_000_000 and value % 10:
        return f"i{value}e0;".encode()
    exact = value if isinstance(value, Decimal) else Decimal(value)  # type: ignore[arg-type]
    sign, digits, exponent = exact.as_tuple()
    if not isinstance(exponent, int):
        return f"i{exact};".encode()
    text = "".join([str(digit) for digit in digits]).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return b"i0e0;"
    return f"i{'-' if sign else ''}{short}e{exponent + len(text) - len(short)};".encode()

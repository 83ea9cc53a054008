"""Arbitrary property lists, legal and not, and what each face shows of them.

Nothing here uses `rookery.format.fieldtables` or `rookery.format.properties`: encoder, checker and renderings are
written again from `docs/properties.md`, so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

Field = tuple[str, Any]
"""A field's type octet and its value: a number, bytes, a list of fields, or for a table, of names and fields."""

DEPTH_MAX = 32
WIDTHS = {
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "f": 4,
    "D": 5,
    "l": 8,
    "L": 8,
    "d": 8,
    "T": 8,
    "V": 0,
}
FORMATS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "f": ">f", "l": ">q", "L": ">q", "d": ">d"}
FORMATS |= {"T": ">Q"}
NAMES = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id", "cluster_id")
ORDER = (
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to"),
    *("expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)


# Bytes


def short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def sized(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def field_bytes(of: Field) -> bytes:
    kind, value = of
    if kind == "t":
        raw = bytes([value])
    elif kind == "D":
        raw = struct.pack(">Bi", *value)
    elif kind == "V":
        raw = b""
    elif kind in "Sx":
        raw = sized(value)
    elif kind == "A":
        raw = sized(b"".join(map(field_bytes, value)))
    elif kind == "F":
        raw = sized(table_bytes(value))
    else:
        raw = struct.pack(FORMATS[kind], value)
    return kind.encode() + raw


def table_bytes(fields: list[tuple[bytes, Field]]) -> bytes:
    return b"".join(short(name) + field_bytes(value) for name, value in fields)


@dataclass
class PropertyList:
    """A legal list: its properties by name, short strings as bytes, and its headers in order."""

    values: dict[str, Any] = field(default_factory=dict)
    headers: list[tuple[bytes, Field]] | None = None

    def wire(self) -> bytes:
        flags = 0
        raw = b""
        for place, name in enumerate(ORDER):
            if name == "headers":
                if self.headers is None:
                    continue
                raw += sized(table_bytes(self.headers))
            elif name not in self.values:
                continue
            elif name in ("delivery_mode", "priority"):
                raw += bytes([self.values[name]])
            elif name == "timestamp":
                raw += struct.pack(">Q", self.values[name])
            else:
                raw += short(self.values[name])
            flags |= 1 << (15 - place)
        return struct.pack(">H", flags) + raw

    # What is shown

    def text(self, name: str) -> str | None:
        raw = self.values.get(name)
        return None if not raw else legible(raw)

    def headers_json(self) -> dict[str, Any] | None:
        return table_json(self.headers) if self.headers else None

    def headers_python(self) -> dict[str, Any]:
        return table_python(self.headers or [])

    def headers_column(self) -> list[tuple[str, Any]]:
        """As a table has them, repeated names too; values that are no texts as JSON reads them."""
        return [(legible(name), value) for name, value in self.headers or []]


# Renderings


def legible(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def table_json(fields: list[tuple[bytes, Field]]) -> dict[str, Any]:
    last = dict(fields)
    return {legible(name): field_json(value) for name, value in last.items()}


def field_json(of: Field) -> Any:
    kind, value = of
    if kind == "t":
        return bool(value)
    if kind in "fd":
        if kind == "f":
            (value,) = struct.unpack(">f", struct.pack(">f", value))
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
    if kind == "D":
        return str(Decimal(f"{value[1]}E-{value[0]}"))
    if kind == "S":
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if kind == "x":
        return base64.b64encode(value).decode()
    if kind == "A":
        return [field_json(each) for each in value]
    if kind == "F":
        return table_json(value)
    return value


def table_python(fields: list[tuple[bytes, Field]]) -> dict[str, Any]:
    return {name.decode("utf-8", "surrogateescape"): field_python(value) for name, value in dict(fields).items()}


def field_python(of: Field) -> Any:
    """What the embedded broker and the client give; NaN as a text, which is equal to itself."""
    kind, value = of
    if kind == "D":
        return Decimal(f"{value[1]}E-{value[0]}")
    if kind == "S":
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if kind == "A":
        return [field_python(each) for each in value]
    if kind == "F":
        return table_python(value)
    if kind in "fd":
        shown = field_json(of)
        return shown if not isinstance(shown, str) else float(value) if shown != "NaN" else shown
    return value if kind == "x" else field_json(of)


def without_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    return [without_nan(part) for part in value] if isinstance(value, list) else value


def is_printed_as(of: Field, shown: bytes) -> bool:
    """Whether a column has these bytes for a field."""
    kind, value = of
    if kind in "Sx":
        return bool(shown == value)
    if kind == "V":
        return shown == b""
    wanted = field_json(of)
    if isinstance(wanted, str):
        return shown == wanted.encode()
    return bool(json.loads(shown) == wanted)


# Whether bytes are a legal list


class Illegal(Exception):
    pass


def is_legal(wire: bytes) -> bool:
    try:
        _read_list(wire)
    except (Illegal, IndexError, struct.error):
        return False
    return True


def _read_list(wire: bytes) -> None:
    (flags,) = struct.unpack_from(">H", wire, 0)
    at, more = 2, flags & 1
    if flags & 2:
        raise Illegal
    while more:
        (word,) = struct.unpack_from(">H", wire, at)
        at, more = at + 2, word & 1
        if word & ~1:
            raise Illegal
    for place, name in enumerate(ORDER):
        if not flags & 1 << (15 - place):
            continue
        if name == "headers":
            (size,) = struct.unpack_from(">I", wire, at)
            _read_fields(wire, at + 4, at + 4 + size, True, 1)
            at += 4 + size
        elif name in ("delivery_mode", "priority"):
            at += 1
        elif name == "timestamp":
            at += 8
        else:
            at += 1 + wire[at]
    if at != len(wire):
        raise Illegal


def _read_fields(wire: bytes, at: int, end: int, named: bool, depth: int) -> None:
    if end > len(wire) or depth > DEPTH_MAX:
        raise Illegal
    while at < end:
        if named:
            at += 1 + wire[at]
        kind = chr(wire[at])
        at += 1
        if kind in "SxAF":
            (size,) = struct.unpack_from(">I", wire, at)
            if kind in "AF":
                _read_fields(wire, at + 4, at + 4 + size, kind == "F", depth + 1)
            at += 4 + size
        elif kind in WIDTHS:
            at += WIDTHS[kind]
        else:
            raise Illegal
        if at > end:
            raise Illegal


# Strategies

BYTES = st.one_of(st.binary(max_size=12), st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")[:200]))
KEYS = BYTES.filter(lambda name: name not in (b"CC", b"BCC", b"x-death") and not name.startswith((b"x-", b"trace")))


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.sampled_from([low, high, 0]), st.integers(low, high))


def _of(kind: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Field]:
    return st.tuples(st.just(kind), values)


WHOLE = (("b", 8), ("B", 8), ("s", 16), ("u", 16), ("I", 32), ("i", 32), ("l", 64), ("L", 64))
LEAVES: st.SearchStrategy[Field] = st.one_of(
    _of("t", st.integers(0, 255)),
    *[_of(kind, integers(bits, kind in "bsIlL")) for kind, bits in WHOLE],
    _of("f", st.floats(width=32)),
    _of("d", st.floats()),
    _of("D", st.tuples(st.integers(0, 255), integers(32, True))),
    _of("S", BYTES),
    _of("x", BYTES),
    _of("T", integers(64, False)),
    _of("T", st.integers(0, 2_000_000_000)),
    _of("V", st.none()),
)
FIELDS: st.SearchStrategy[Field] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        _of("A", st.lists(inner, max_size=4)), _of("F", st.lists(st.tuples(KEYS, inner), max_size=4))
    ),
    max_leaves=12,
)
HEADERS = st.lists(st.tuples(KEYS, FIELDS), max_size=5)


def _list(values: dict[str, Any], headers: list[tuple[bytes, Field]] | None) -> PropertyList:
    return PropertyList({name: value for name, value in values.items() if value is not None}, headers)


LISTS: st.SearchStrategy[PropertyList] = st.builds(
    _list,
    st.fixed_dictionaries(
        {
            **{name: st.one_of(st.none(), BYTES) for name in NAMES},
            "delivery_mode": st.sampled_from([None, 1, 2]),
            "priority": st.one_of(st.none(), st.integers(0, 255)),
            "expiration": st.sampled_from([None, b"1000000000"]),
            "timestamp": st.one_of(st.none(), integers(64, False), st.integers(0, 2_000_000_000)),
        }
    ),
    st.one_of(st.none(), HEADERS),
)


def deep(levels: int, kind: bytes) -> bytes:
    """A list whose headers nest so deep."""
    inner = b""
    for _ in range(levels - 1):
        inner = (b"\x01a" if kind == b"F" else b"") + kind + sized(inner)
    return b"\x20\x00" + sized(inner if kind == b"F" else b"\x01a" + inner)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A list that was cut, lengthened, or changed in a byte or two: mostly not legal."""
    wire = bytearray(draw(LISTS).wire())
    how = draw(st.sampled_from(["cut", "longer", "byte", "flags", "length"]))
    if how == "cut":
        del wire[draw(st.integers(0, len(wire) - 1)) :]
    elif how == "longer":
        wire += draw(st.binary(min_size=1, max_size=6))
    elif how == "flags":
        wire[:2] = draw(st.binary(min_size=2, max_size=2))
    elif how == "length":
        wire[:2] = bytes([wire[0] | 0x20, wire[1]])
    else:
        for _ in range(draw(st.integers(1, 2))):
            wire[draw(st.integers(0, len(wire) - 1))] = draw(st.integers(0, 255))
    return bytes(wire)


ANY_BYTES: st.SearchStrategy[bytes] = st.one_of(
    damaged(),
    st.binary(max_size=40),
    st.binary(max_size=40).map(lambda fields: b"\x20\x00" + sized(fields)),
    st.builds(deep, st.sampled_from([31, 32, 33, 200]), st.sampled_from([b"F", b"A"])),
)

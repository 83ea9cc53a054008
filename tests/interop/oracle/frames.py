"""AMQP 0-9-1 on the client's side, written from the specification and from nothing of the broker's own codec.

Every value keeps the type it had on the wire, so that two brokers can be compared to the letter: a decoded table is a
list of (name, type letter, value), in the order in which it was sent.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
PROTOCOL = b"AMQP\x00\x00\x09\x01"

# id, name, arguments; bits that follow each other share an octet
_SPECIFICATION = """
10.10 connection.start u8:major u8:minor table:server_properties text:mechanisms text:locales
10.11 connection.start-ok table:client_properties str:mechanism text:response str:locale
10.30 connection.tune u16:channel_max u32:frame_max u16:heartbeat
10.31 connection.tune-ok u16:channel_max u32:frame_max u16:heartbeat
10.40 connection.open str:vhost str:_1 bits:_2
10.41 connection.open-ok str:_1
10.50 connection.close u16:code str:text u16:class_id u16:method_id
10.51 connection.close-ok
10.60 connection.blocked str:reason
10.61 connection.unblocked
10.70 connection.update-secret text:secret str:reason
10.71 connection.update-secret-ok
20.10 channel.open str:_1
20.11 channel.open-ok text:_1
20.20 channel.flow bits:active
20.21 channel.flow-ok bits:active
20.40 channel.close u16:code str:text u16:class_id u16:method_id
20.41 channel.close-ok
30.10 access.request str:realm bits:exclusive,passive,active,write,read
30.11 access.request-ok u16:ticket
40.10 exchange.declare u16:_0 str:exchange str:type bits:passive,durable,auto_delete,internal,nowait table:arguments
40.11 exchange.declare-ok
40.20 exchange.delete u16:_0 str:exchange bits:if_unused,nowait
40.21 exchange.delete-ok
40.30 exchange.bind u16:_0 str:destination str:source str:key bits:nowait table:arguments
40.31 exchange.bind-ok
40.40 exchange.unbind u16:_0 str:destination str:source str:key bits:nowait table:arguments
40.51 exchange.unbind-ok
50.10 queue.declare u16:_0 str:queue bits:passive,durable,exclusive,auto_delete,nowait table:arguments
50.11 queue.declare-ok str:queue u32:messages u32:consumers
50.20 queue.bind u16:_0 str:queue str:exchange str:key bits:nowait table:arguments
50.21 queue.bind-ok
50.30 queue.purge u16:_0 str:queue bits:nowait
50.31 queue.purge-ok u32:messages
50.40 queue.delete u16:_0 str:queue bits:if_unused,if_empty,nowait
50.41 queue.delete-ok u32:messages
50.50 queue.unbind u16:_0 str:queue str:exchange str:key table:arguments
50.51 queue.unbind-ok
60.10 basic.qos u32:size u16:count bits:shared
60.11 basic.qos-ok
60.20 basic.consume u16:_0 str:queue str:tag bits:no_local,no_ack,exclusive,nowait table:arguments
60.21 basic.consume-ok str:tag
60.30 basic.cancel str:tag bits:nowait
60.31 basic.cancel-ok str:tag
60.40 basic.publish u16:_0 str:exchange str:key bits:mandatory,immediate
60.50 basic.return u16:code str:text str:exchange str:key
60.60 basic.deliver str:tag u64:delivery bits:redelivered str:exchange str:key
60.70 basic.get u16:_0 str:queue bits:no_ack
60.71 basic.get-ok u64:delivery bits:redelivered str:exchange str:key u32:messages
60.72 basic.get-empty str:_1
60.80 basic.ack u64:delivery bits:multiple
60.90 basic.reject u64:delivery bits:requeue
60.100 basic.recover-async bits:requeue
60.110 basic.recover bits:requeue
60.111 basic.recover-ok
60.120 basic.nack u64:delivery bits:multiple,requeue
85.10 confirm.select bits:nowait
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""
METHODS: dict[str, tuple[int, int, list[tuple[str, str]]]] = {}
for _line in _SPECIFICATION.split("\n")[1:-1]:
    _id, _name, *_rest = _line.split()
    _class_id, _method_id = _id.split(".")
    _pairs = [(kind, name) for kind, _, name in (part.partition(":") for part in _rest)]
    METHODS[_name] = (int(_class_id), int(_method_id), _pairs)

WITH_CONTENT = ("basic.return", "basic.deliver", "basic.get-ok")
_NAMES = {(class_id, method_id): name for name, (class_id, method_id, _) in METHODS.items()}

PROPERTIES = (
    ("content_type", "str"),
    ("content_encoding", "str"),
    ("headers", "table"),
    ("delivery_mode", "u8"),
    ("priority", "u8"),
    ("correlation_id", "str"),
    ("reply_to", "str"),
    ("expiration", "str"),
    ("message_id", "str"),
    ("timestamp", "u64"),
    ("type", "str"),
    ("user_id", "str"),
    ("app_id", "str"),
    ("cluster_id", "str"),
)
_NUMBERS = {"u8": ">B", "u16": ">H", "u32": ">I", "u64": ">Q"}
_FIELDS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "f": ">f", "d": ">d", "T": ">Q"}


class Typed(NamedTuple):
    """A table value of a type that Python's own would not choose: Typed("s", 5) is a 16-bit number."""

    letter: str
    value: Any


class Method(NamedTuple):
    """A method that arrived, with its content where it carries one."""

    name: str
    arguments: dict[str, Any]
    properties: dict[str, Any] | None = None
    body: bytes = b""


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes


def frame(kind: int, channel: int, payload: bytes, end: int = END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


# Writing


def _short_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return bytes([len(raw)]) + raw


def _long_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(raw)) + raw


def field(value: object) -> bytes:
    if not isinstance(value, Typed):
        letters: dict[type, str] = {bool: "t", int: "l", str: "S", bytes: "x", dict: "F", list: "A", float: "d"}
        value = Typed("V" if value is None else letters[type(value)], value)
    letter, inner = value
    head = letter.encode()
    if letter == "t":
        return head + bytes([inner])
    if letter in "Sx":
        return head + _long_string(inner)
    if letter == "F":
        return head + table(inner)
    if letter == "A":
        return head + _long_string(b"".join(map(field, inner)))
    if letter == "V":
        return head
    return head + struct.pack(_FIELDS[letter], inner)


def table(fields: Mapping[str, object]) -> bytes:
    return _long_string(b"".join(_short_string(name) + field(value) for name, value in fields.items()))


def _written(kind: str, value: Any) -> bytes:
    if kind == "str":
        return _short_string(value or "")
    if kind == "text":
        return _long_string(value or "")
    if kind == "table":
        return table(value or {})
    return struct.pack(_NUMBERS[kind], value or 0)


def method_payload(name: str, values: dict[str, Any]) -> bytes:
    class_id, method_id, expected = METHODS[name]
    known = {each for _, names in expected for each in names.split(",")}
    assert values.keys() <= known, f"{name} has no argument {values.keys() - known}"
    out = struct.pack(">HH", class_id, method_id)
    for kind, each in expected:
        if kind == "bits":
            out += bytes([sum(bool(values.get(bit)) << at for at, bit in enumerate(each.split(",")))])
        else:
            out += _written(kind, values.get(each))
    return out


def header_payload(size: int, properties: dict[str, Any], class_id: int = 60) -> bytes:
    flags, out = 0, b""
    for at, (name, kind) in enumerate(PROPERTIES):
        if name in properties:
            flags |= 1 << (15 - at)
            out += _written(kind, properties[name])
    return struct.pack(">HHQH", class_id, 0, size, flags) + out


# Reading


class Reader:
    """Takes values from the front of some bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def take(self, count: int) -> bytes:
        piece = self.raw[self.at : self.at + count]
        assert len(piece) == count, f"{count} bytes wanted, {len(piece)} there"
        self.at += count
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def short_string(self) -> str:
        return self.take(self.number(">B")).decode("utf-8", "backslashreplace")

    def long_string(self) -> str:
        return self.take(self.number(">I")).decode("utf-8", "backslashreplace")

    def value(self, kind: str) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        return {"str": self.short_string, "text": self.long_string, "table": self.table}[kind]()

    def table(self) -> list[tuple[str, str, Any]]:
        inside = Reader(self.take(self.number(">I")))
        rows = []
        while inside.at < len(inside.raw):
            name = inside.short_string()
            letter, value = inside.field()
            rows.append((name, letter, value))
        return rows

    def field(self) -> tuple[str, Any]:
        letter = chr(self.number(">B"))
        if letter == "t":
            return letter, bool(self.number(">B"))
        if letter == "S":
            return letter, self.long_string()
        if letter == "x":
            return letter, self.take(self.number(">I"))
        if letter == "F":
            return letter, self.table()
        if letter == "A":
            inside = Reader(self.take(self.number(">I")))
            items = []
            while inside.at < len(inside.raw):
                items.append(inside.field())
            return letter, items
        if letter == "V":
            return letter, None
        if letter == "D":
            return letter, (self.number(">B"), self.number(">i"))
        return letter, self.number(_FIELDS[letter])


def read_method(payload: bytes) -> Method:
    reader = Reader(payload)
    key = (reader.number(">H"), reader.number(">H"))
    name = _NAMES[key]
    values: dict[str, Any] = {}
    for kind, each in METHODS[name][2]:
        if kind == "bits":
            octet = reader.number(">B")
            values.update({bit: bool(octet >> at & 1) for at, bit in enumerate(each.split(","))})
        else:
            values[each] = reader.value(kind)
    assert reader.at == len(payload), f"{name} has {len(payload) - reader.at} bytes too many"
    return Method(name, values)


def read_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    """The size of the body, and the properties."""
    reader = Reader(payload)
    assert (reader.number(">H"), reader.number(">H")) == (60, 0)
    size, flags = reader.number(">Q"), reader.number(">H")
    present = [(name, kind) for at, (name, kind) in enumerate(PROPERTIES) if flags >> (15 - at) & 1]
    properties = {name: reader.value(kind) for name, kind in present}
    assert reader.at == len(payload)
    return size, properties

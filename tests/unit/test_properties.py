"""Property lists and field tables: exact bytes, round trips, and what malformed input may do (nothing but raise)."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pika.spec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.properties import EMPTY, Properties, Scan, Timestamp, decode, encode

FULL = Properties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"a": 1, "nested": {"list": [True, None, "x"]}},
    delivery_mode=2,
    priority=9,
    correlation_id="c-1",
    reply_to="amq.rabbitmq.reply-to",
    expiration="60000",
    message_id="m-1",
    timestamp=1_700_000_000,
    type="order.created",
    user_id="guest",
    app_id="shop",
    cluster_id="one",
)
NAMES = [
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
]  # fmt: skip

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
short = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
decimals = st.builds(
    lambda unscaled, places: Decimal(f"{unscaled}E-{places}"), st.integers(-(2**31), 2**31 - 1), st.integers(0, 255)
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)]),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.floats(allow_nan=False),
    text,
    st.binary(max_size=20),
    decimals,
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short, inner, max_size=4), max_leaves=12
)
tables = st.dictionaries(short, values, max_size=5)
lists = st.builds(
    Properties,
    content_type=st.none() | short,
    content_encoding=st.none() | short,
    headers=st.none() | tables,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | short,
    reply_to=st.none() | short,
    expiration=st.none() | st.integers(0, 10**15).map(str),
    message_id=st.none() | short,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | short,
    user_id=st.none() | short,
    app_id=st.none() | short,
    cluster_id=st.none() | short,
)


def exact(value: object) -> object:
    """A value with its types: True, 1, 1.0 and Timestamp(1) are four different things, and a NaN equals itself."""
    if isinstance(value, dict):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return type(value), repr(value) if isinstance(value, float) else value


def table(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return struct.pack(">I", len(body)) + body


def with_table(body: bytes) -> bytes:
    """A property list with nothing but headers."""
    return b"\x20\x00" + body


# Exact bytes (AMQP 0-9-1 §4.2.5.5, §4.2.6.1)


def test_the_empty_list() -> None:
    assert encode(Properties()) == EMPTY == b"\x00\x00"
    assert decode(EMPTY) == Properties()


@pytest.mark.parametrize(
    ("name", "value", "wire"),
    [
        ("content_type", "a/b", b"\x80\x00\x03a/b"),
        ("content_encoding", "gzip", b"\x40\x00\x04gzip"),
        ("headers", {}, b"\x20\x00\x00\x00\x00\x00"),
        ("headers", {"k": "v"}, b"\x20\x00\x00\x00\x00\x08\x01kS\x00\x00\x00\x01v"),
        ("delivery_mode", 2, b"\x10\x00\x02"),
        ("priority", 255, b"\x08\x00\xff"),
        ("correlation_id", "c", b"\x04\x00\x01c"),
        ("reply_to", "r", b"\x02\x00\x01r"),
        ("expiration", "10", b"\x01\x00\x0210"),
        ("message_id", "m", b"\x00\x80\x01m"),
        ("timestamp", 2**64 - 1, b"\x00\x40" + b"\xff" * 8),
        ("type", "t", b"\x00\x20\x01t"),
        ("user_id", "u", b"\x00\x10\x01u"),
        ("app_id", "", b"\x00\x08\x00"),
        ("cluster_id", "é", b"\x00\x04\x02\xc3\xa9"),
    ],
)
def test_one_property(name: str, value: object, wire: bytes) -> None:
    arguments: dict[str, Any] = {name: value}
    assert encode(Properties(**arguments)) == wire
    assert getattr(decode(wire), name) == value
    assert decode(wire).as_dict() == {name: value}


def test_all_properties_in_order() -> None:
    wire = encode(FULL)
    assert wire[:2] == b"\xff\xfc"
    assert decode(wire) == FULL
    assert list(FULL.as_dict()) == NAMES
    assert "priority=9" in repr(FULL)
    assert decode(EMPTY) != FULL


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"t\x00", False),
        (b"t\x02", True),
        (b"b\x80", -128),
        (b"B\x80", 128),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\x80\x00\x00\x00", -(2**31)),
        (b"i\x80\x00\x00\x00", 2**31),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f" + struct.pack(">f", 0.5), 0.5),
        (b"d" + struct.pack(">d", 0.1), 0.1),
        (b"D\x02\x00\x00\x04\xd2", Decimal("12.34")),
        (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
        (b"S\x00\x00\x00\x02\xc3\xa9", "é"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x02ab", b"ab"),
        (b"A\x00\x00\x00\x03t\x01V", [True, None]),
        (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
        (b"T" + b"\xff" * 8, Timestamp(2**64 - 1)),
        (b"V", None),
    ],
)
def test_every_field_type_is_read(wire: bytes, value: object) -> None:
    read = properties.decode_table(b"\x01k" + wire, 0, len(wire) + 2)
    assert exact(read) == exact({"k": value})
    assert exact(properties.header(with_table(table(b"\x01j", b"V", b"\x01k" + wire)), "k")) == exact(value)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (True, b"t\x01"),
        (1, b"I\x00\x00\x00\x01"),
        (2**31 - 1, b"I\x7f\xff\xff\xff"),
        (2**31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
        (-(2**63), b"l\x80" + b"\x00" * 7),
        (1.5, b"d\x3f\xf8" + b"\x00" * 6),
        ("é", b"S\x00\x00\x00\x02\xc3\xa9"),
        (b"\xff", b"x\x00\x00\x00\x01\xff"),
        (bytearray(b"\xff"), b"x\x00\x00\x00\x01\xff"),
        (Decimal("-12.34"), b"D\x02\xff\xff\xfb\x2e"),
        (Decimal("1E+3"), b"D\x00\x00\x00\x03\xe8"),
        (Timestamp(5), b"T" + b"\x00" * 7 + b"\x05"),
        (dt.datetime(1970, 1, 1, 0, 0, 5, 999_999, tzinfo=dt.UTC), b"T" + b"\x00" * 7 + b"\x05"),
        (dt.datetime(1970, 1, 1, 1, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=1))), b"T" + b"\x00" * 7 + b"\x05"),
        (dt.datetime(1970, 1, 1, 0, 0, 5), b"T" + b"\x00" * 7 + b"\x05"),  # noqa: DTZ001 - a naive one is UTC
        ([1, "a"], b"A\x00\x00\x00\x0bI\x00\x00\x00\x01S\x00\x00\x00\x01a"),
        ((1, "a"), b"A\x00\x00\x00\x0bI\x00\x00\x00\x01S\x00\x00\x00\x01a"),
        ({"a": 1}, b"F\x00\x00\x00\x07\x01aI\x00\x00\x00\x01"),
        (None, b"V"),
    ],
)
def test_every_python_type_is_written(value: object, wire: bytes) -> None:
    assert properties.encode_table({"k": value}) == b"\x01k" + wire


def test_a_timestamp_is_an_int_that_keeps_its_type() -> None:
    assert Timestamp(5) == 5
    assert repr(Timestamp(5)) == "Timestamp(5)"
    body = properties.encode_table({"t": Timestamp(5), "n": 5})
    assert exact(properties.decode_table(body, 0, len(body))) == exact({"t": Timestamp(5), "n": 5})


def test_of_two_fields_of_one_name_the_last_counts() -> None:
    wire = with_table(table(b"\x01kt\x00", b"\x01kt\x01"))
    assert properties.headers(wire) == {"k": True}
    assert properties.header(wire, "k") is True


# Round trips


@given(lists)
@example(FULL)
def test_decode_undoes_encode(original: Properties) -> None:
    wire = encode(original)
    assert exact(decode(wire).as_dict()) == exact(original.as_dict())
    assert encode(decode(wire)) == wire
    properties.check(wire)


@given(tables)
def test_tables_round_trip(original: dict[str, object]) -> None:
    body = properties.encode_table(original)
    assert exact(properties.decode_table(b"--" + body + b"--", 2, 2 + len(body))) == exact(original)


@given(st.binary(max_size=255))
def test_a_short_string_that_is_not_utf8_survives(raw: bytes) -> None:
    wire = b"\x80\x80" + bytes([len(raw)]) + raw + b"\x01m"
    assert encode(decode(wire)) == wire
    assert properties.content_type(wire) == decode(wire).content_type
    assert properties.message_id(wire) == "m"
    named = with_table(table(bytes([len(raw)]) + raw + b"V"))
    assert encode(decode(named)) == named
    (name,) = properties.headers(named)
    assert properties.with_headers(named, {name: None}) == EMPTY


simple = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | text | st.binary(max_size=9)
simple_tables = st.dictionaries(text, simple | st.lists(simple, max_size=3), max_size=4)


@given(
    st.none() | short,
    st.none() | simple_tables,
    st.none() | st.integers(1, 2),
    st.none() | st.integers(0, 255),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | short,
)
def test_pika_reads_what_we_write_and_the_reverse(
    content_type: str | None,
    headers: dict[str, object] | None,
    mode: int | None,
    priority: int | None,
    seconds: int | None,
    app_id: str | None,
) -> None:
    arguments: dict[str, Any] = {
        "content_type": content_type,
        "headers": headers,
        "delivery_mode": mode,
        "priority": priority,
        "timestamp": seconds,
        "app_id": app_id,
    }
    theirs = pika.spec.BasicProperties(**arguments)
    ours = encode(Properties(**arguments))
    assert b"".join(theirs.encode()) == ours
    read = pika.spec.BasicProperties()
    read.decode(ours)
    assert {name: getattr(read, name) for name in arguments} == arguments
    assert decode(b"".join(theirs.encode())) == Properties(**arguments)


# Reading parts


@given(lists)
@example(FULL)
def test_scan_and_accessors_agree_with_decode(original: Properties) -> None:
    wire = encode(original)
    scan = Scan()
    scan.read(encode(FULL))
    scan.read(wire)
    mode = original.delivery_mode or 0
    priority = -1 if original.priority is None else original.priority
    expiration = -1 if original.expiration is None else int(original.expiration)
    assert (scan.delivery_mode, scan.priority, scan.expiration_ms) == (mode, priority, expiration)
    assert properties.delivery_mode(wire) == mode
    assert properties.priority(wire) == priority
    assert properties.expiration_ms(wire) == expiration
    for name in ("content_type", "correlation_id", "reply_to", "message_id", "user_id", "timestamp"):
        assert getattr(properties, name)(wire) == getattr(original, name)
    assert exact(properties.headers(wire)) == exact(original.headers or {})
    for name, value in (original.headers or {}).items():
        assert exact(properties.header(wire, name)) == exact(value)
    assert properties.header(wire, "no such header, as its name is longer than those drawn for the test" * 2) is None
    assert properties.header(wire, "\ud800") is None


def test_flags_may_be_continued_if_they_say_nothing() -> None:
    wire = b"\x10\x01\x00\x01\x00\x00\x02"
    scan = Scan()
    scan.read(wire)
    assert scan.delivery_mode == properties.delivery_mode(wire) == decode(wire).delivery_mode == 2
    assert properties.headers(properties.with_headers(wire, {"a": 1})) == {"a": 1}
    assert properties.delivery_mode(properties.with_headers(wire, {"a": 1})) == 2


@pytest.mark.parametrize(
    "wire", [b"\x00\x02", b"\x00\x01", b"\x00\x01\x00", b"\x00\x01\x00\x02", b"\x00\x01\x80\x00\x01a"]
)
def test_flags_without_a_property_are_malformed(wire: bytes) -> None:
    assert_malformed(wire)


@pytest.mark.parametrize("value", ["", "-1", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "ten", "²", "1" * 17, "9" * 255])
def test_an_expiration_must_be_a_number(value: str) -> None:
    wire = encode(Properties(expiration=value, priority=3))
    scan = Scan()
    with pytest.raises(InvalidArgument) as caught:
        scan.read(wire)
    assert caught.value.argument == "expiration"
    assert scan.priority == -1
    with pytest.raises(InvalidArgument):
        properties.expiration_ms(wire)
    assert decode(wire).expiration == value


def test_an_expiration_may_have_leading_zeros() -> None:
    assert properties.expiration_ms(encode(Properties(expiration="0" * 200 + "15"))) == 15
    assert properties.expiration_ms(encode(Properties(expiration="0"))) == 0


# Changing parts


@given(lists, tables)
def test_with_headers_merges(original: Properties, updates: dict[str, object]) -> None:
    wire = properties.with_headers(encode(original), updates)
    merged = {name: value for name, value in (original.headers or {}).items() if name not in updates}
    merged |= {name: value for name, value in updates.items() if value is not None}
    original.headers = merged or None
    assert exact(decode(wire).as_dict()) == exact(original.as_dict())


def test_with_headers_keeps_the_bytes_of_other_headers() -> None:
    others = b"\x01ss\x00\x01" + b"\x01ff\x3f\x00\x00\x00"
    wire = b"\xa0\x80\x01c" + table(b"\x01xV", others) + b"\x01m"
    assert properties.with_headers(wire, {"x": None}) == b"\xa0\x80\x01c" + table(others) + b"\x01m"
    assert properties.with_headers(wire, {"x": 1}) == (
        b"\xa0\x80\x01c" + table(others, b"\x01xI\x00\x00\x00\x01") + b"\x01m"
    )
    assert properties.with_headers(EMPTY, {}) == EMPTY


@given(lists)
def test_without_expiration(original: Properties) -> None:
    wire = properties.without_expiration(encode(original))
    original.expiration = None
    assert wire == encode(original)


# Malformed input

READERS: list[Callable[[bytes], object]] = [
    decode,
    properties.check,
    lambda data: Scan().read(data),
    properties.delivery_mode,
    properties.priority,
    properties.expiration_ms,
    properties.content_type,
    properties.message_id,
    properties.timestamp,
    properties.headers,
    lambda data: properties.header(data, "a"),
    lambda data: properties.with_headers(data, {"a": 1}),
    properties.without_expiration,
    lambda data: properties.decode_table(data, 0, len(data)),
]


def succeeds(reader: Callable[[bytes], object], data: bytes) -> bool:
    """False when the reader refuses the data; any error but InvalidArgument fails the test."""
    try:
        reader(data)
    except InvalidArgument:
        return False
    return True


def assert_malformed(wire: bytes) -> None:
    assert not succeeds(decode, wire)
    assert not succeeds(properties.check, wire)
    for reader in READERS:
        succeeds(reader, wire)


def assert_total(data: bytes) -> None:
    results = [succeeds(reader, data) for reader in READERS]
    assert results[0] == results[1]
    if results[0]:
        assert exact(decode(encode(decode(data))).as_dict()) == exact(decode(data).as_dict())


@given(st.binary(max_size=80))
def test_random_bytes(data: bytes) -> None:
    assert_total(data)


@given(st.binary(min_size=2, max_size=2), st.binary(max_size=80))
def test_random_headers(key: bytes, data: bytes) -> None:
    assert_total(with_table(table(data)))
    assert_total(with_table(table(b"\x02" + key, data)))


@given(lists, st.data())
def test_mutated_lists(original: Properties, data: st.DataObject) -> None:
    wire = bytearray(encode(original))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(wire) - 1))
        wire[position] = data.draw(st.integers(0, 255) | st.sampled_from(b"tbBsuIilLfdDSAFTVx"))
    assert_total(bytes(wire))


@given(lists)
@example(FULL)
def test_a_list_cut_short_or_followed_by_a_byte_is_malformed(original: Properties) -> None:
    wire = encode(original)
    for size in range(len(wire)):
        assert_malformed(wire[:size])
    assert_malformed(wire + b"\x00")
    with pytest.raises(InvalidArgument) as caught:
        Scan().read(wire + b"\x00")
    assert caught.value.argument == "properties"


def nested(levels: int, kind: bytes = b"F") -> bytes:
    """The fields of a table that holds `levels` further tables or arrays, one within the other."""
    name = b"\x01a" if kind == b"F" else b""
    body = b""
    for _ in range(levels):
        body = name + kind + table(body)
    return body if kind == b"F" else b"\x01a" + body


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nesting_is_bounded(kind: bytes) -> None:
    fits = with_table(table(nested(31, kind)))
    assert encode(decode(fits)) == fits
    for levels in (32, 33, 5000):
        bomb = with_table(table(nested(levels, kind)))
        assert_malformed(bomb)
        assert not succeeds(Scan().read, bomb)
        # Stepping over is no descent: the headers beside it can be changed and read.
        assert properties.header(properties.with_headers(bomb, {"b": 1}), "b") == 1


def test_values_that_nest_too_deep_are_not_written() -> None:
    deep: list[object] = []
    for _ in range(30):
        deep = [deep]
    body = properties.encode_table({"k": deep})
    assert properties.decode_table(body, 0, len(body)) == {"k": deep}
    endless: dict[str, object] = {}
    endless["again"] = endless
    too_deep: dict[str, object] = {"k": [deep]}
    for value in (too_deep, endless):
        with pytest.raises(InvalidArgument) as caught:
            encode(Properties(headers=value))
        assert caught.value.argument in ("k", "again")


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        (b"\x01", "table"),
        (b"\x01a", "table"),
        (b"\x01aQ\x00", "table"),
        (b"\x01aS\x00\x00\x00", "table"),
        (b"\x01aS\xff\xff\xff\xff", "table"),
        (b"\x01aS\x00\x00\x00\x02x", "table"),
        (b"\x01al\x00", "table"),
        (b"\x01aA\x00\x00\x00\x02I\x00", "table"),
    ],
)
def test_a_malformed_table(body: bytes, argument: str) -> None:
    wire = with_table(table(body))
    assert_malformed(wire)
    with pytest.raises(InvalidArgument) as caught:
        properties.headers(wire)
    assert caught.value.argument == argument


def test_a_table_outside_of_its_data() -> None:
    for pos, end in ((-1, 2), (0, 3)):
        with pytest.raises(InvalidArgument):
            properties.decode_table(b"\x00V", pos, end)


# What cannot be written


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        10**400,
        "\ud800",
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1E-256"),
        Decimal("1E+999999999"),
        Decimal(2**31),
        Timestamp(-1),
        Timestamp(2**64),
        dt.datetime(1969, 12, 31, tzinfo=dt.UTC),
        pytest,
        {1, 2},
        {1: "a"},
        [2**63],
    ],
    ids=lambda value: type(value).__name__ + (repr(value)[:40] if not isinstance(value, type(pytest)) else ""),
)
def test_a_header_that_cannot_be_written_is_named(value: object) -> None:
    argument = "table" if isinstance(value, dict) else "culprit"
    for write in (
        lambda: encode(Properties(headers={"fine": 1, "culprit": value})),
        lambda: properties.with_headers(encode(FULL), {"culprit": value}),
    ):
        with pytest.raises(InvalidArgument) as caught:
            write()
        assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content_type", "x" * 256),
        ("message_id", "é" * 128),
        ("reply_to", "\ud800"),
        ("priority", 256),
        ("priority", -1),
        ("delivery_mode", 10**30),
        ("timestamp", -1),
        ("timestamp", 2**64),
        ("headers", {"n" * 256: 1}),
    ],
)
def test_a_property_out_of_range_is_named(name: str, value: Any) -> None:
    original = Properties()
    setattr(original, name, value)
    with pytest.raises(InvalidArgument) as caught:
        encode(original)
    assert caught.value.argument in (name, "n" * 256)


@pytest.mark.parametrize(
    ("name", "value"), [("content_type", 5), ("priority", "5"), ("headers", [1]), ("timestamp", 1.5)]
)
def test_a_property_of_the_wrong_type(name: str, value: Any) -> None:
    # Compiled, the attribute itself refuses; plain, encode does.
    def write() -> bytes:
        original = Properties()
        setattr(original, name, value)
        return encode(original)

    with pytest.raises(TypeError):
        write()


def test_writing_headers_stops_long_before_the_end_of_what_is_too_long() -> None:
    with pytest.raises(InvalidArgument, match="more than 262144 bytes"):
        properties.encode(properties.Properties(headers={"a": [[]] * 1_000_000}))
    with pytest.raises(InvalidArgument, match="more than 262144 bytes"):
        properties.encode(properties.Properties(headers={str(n): None for n in range(1_000_000)}))

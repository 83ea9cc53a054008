"""The journal's records: what is written is what is read, and what cannot be a record is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rookery.errors import InvalidArgument
from rookery.format import records
from rookery.format.bytes import BytesWriter
from rookery.format.compression import packer
from rookery.format.model import DEAD, NEVER, PERSISTENT, PRIORITY_MAX, PRIORITY_MIN, Death, Message, Route
from rookery.format.properties import Properties, decode, encode, readable
from rookery.format.records import BACK, DEFINE, EXIT, EXITS, IDS, MARK, PUT, RETIRED, STATE, BatchHeader, Reader

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.integers(0, NEVER)
NUMBERS = st.integers(0, (1 << 31) - 1)
# text as it comes from the wire: also bytes that are no UTF-8
TEXT = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
PLACEMENT = st.tuples(NUMBERS, TIMES, TIMES, TIMES, NUMBERS, st.integers(0, 1))
DEATH = st.builds(Death, TEXT, TEXT, TEXT, TEXT, TEXT, NUMBERS, TIMES, TIMES, NUMBERS, TIMES)


CODINGS = {"none": records.PLAIN, "zlib": records.ZLIB, "zstd": records.ZSTD}


def put(message: Message, placements: list[tuple[int, ...]], compression: str = "none") -> bytes:
    w = BytesWriter()
    body = message.body if compression == "none" else packer(compression)(message.body)
    at = records.begin_put(w, message, body, CODINGS[compression], len(placements))
    for placement in placements:
        records.place(w, *placement)
    records.end_put(w, at)
    return bytes(w.getvalue())


def reader_of(payload: bytes) -> Reader:
    return Reader(payload, 0, len(payload))


def facts(message: Message) -> dict[str, Any]:
    """What a message is; of properties that are malformed, as they are read."""
    route = message.route
    return {
        "exchange": route.exchange,
        "key": route.key,
        "origin": route.origin_id,
        "deaths": [death.as_dict() for death in route.deaths],
        "props": readable(message.props),
        "body": message.body,
        "id": message.id,
        "priority": message.priority,
        "expires_ms": message.expires_ms,
        "flags": message.flags & 255,
    }


# Batches


@given(st.binary(max_size=300), TIMES, TIMES, TIMES, st.binary(max_size=30), st.binary(max_size=30))
def test_a_batch_is_found_where_it_begins(
    payload: bytes, epoch: int, seq: int, synced: int, before: bytes, behind: bytes
) -> None:
    data = before + records.seal(payload, epoch, seq, synced) + behind
    header = BatchHeader(data, len(before))
    assert header.sound
    assert (header.epoch, header.seq, header.synced) == (epoch, seq, synced)
    assert header.size == records.BATCH_HEADER_BYTES + len(payload) == records.batch_bytes(data, len(before))


@given(st.binary(max_size=60), st.data())
def test_a_batch_with_one_byte_changed_or_missing_is_not_sound(payload: bytes, data: st.DataObject) -> None:
    batch = records.seal(payload, 3, 4, 2)
    at = data.draw(st.integers(0, len(batch) - 1))
    changed = bytearray(batch)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert not BatchHeader(bytes(changed), 0).sound
    assert not BatchHeader(batch[:at], 0).sound


def test_no_batch_begins_in_noise_or_behind_the_end() -> None:
    for noise in (b"", b"RKB1", bytes(100), b"RKB1" + b"\xff" * 100, b"RKB2" + bytes(100)):
        assert not BatchHeader(noise, 0).sound
        assert records.batch_bytes(noise, 0) in (-1, 36)
    assert records.batch_bytes(b"RKB1\xff\xff\xff\xff", 0) == -1


# Messages


@given(
    TEXT,
    TEXT,
    st.binary(max_size=50),
    st.binary(max_size=200),
    TIMES,
    st.sampled_from([0, 1, -1, PRIORITY_MAX, PRIORITY_MIN]),
    st.sampled_from([0, 1, NEVER]),
    st.integers(0, 3),
    st.lists(DEATH, max_size=3),
    st.lists(PLACEMENT, min_size=1, max_size=4),
    st.sampled_from(["none", "zlib", "zstd"]),
)
def test_a_message_is_read_as_it_was_written(
    exchange: str,
    key: str,
    props: bytes,
    body: bytes,
    number: int,
    priority: int,
    expires_ms: int,
    flags: int,
    deaths: list[Death],
    placements: list[tuple[int, ...]],
    compression: str,
) -> None:
    route = Route(exchange, key)
    if deaths:
        route.origin_id = number + 1
        route.deaths = deaths
    message = Message(route, props, body, number, priority, expires_ms, flags)
    message.set_segment(77)
    record = put(message, placements, compression)
    assert facts(records.read_message(record, {})) == facts(message)
    assert records.read_message(record, {}).segment == 0
    reader = reader_of(record)
    assert reader.next()
    assert (reader.kind, reader.number, reader.body_bytes) == (PUT, number, len(body))
    assert reader.plain == (not priority and not deaths)
    assert reader.expires_ms == expires_ms
    assert reader.raw() == record
    found = []
    for _ in range(reader.placements):
        reader.placement()
        found.append(
            (reader.queue, reader.seq, reader.enqueued_ms, reader.due_ms, reader.attempts, reader.flags),
        )
    assert found == placements
    assert not reader.next()


def test_routes_are_shared_unless_they_carry_a_history() -> None:
    routes: dict[bytes, Route] = {}
    shared = Route("x", "k")
    first = records.read_message(put(Message(shared, b"", b"1", 1, 0, 0, PERSISTENT), [(1, 1, 0, 0, 0, 0)]), routes)
    second = records.read_message(put(Message(shared, b"", b"2", 2, 0, 0, PERSISTENT), [(1, 2, 0, 0, 0, 0)]), routes)
    assert first.route is second.route
    dead = Route("x", "k")
    dead.origin_id = 1
    dead.deaths = [Death("q", "expired", "", "", "q", 0, 1, 1, 1, 5)]
    letter = records.read_message(put(Message(dead, b"", b"3", 3, 0, 0, DEAD), [(1, 3, 0, 0, 0, 0)]), routes)
    assert letter.route is not first.route
    assert letter.route.deaths[0].expiration_ms == 5
    assert len(routes) == 1


SHAPE = st.tuples(st.sampled_from(["", "x", "exchange"]), st.text(max_size=20), st.binary(max_size=20), st.booleans())


@given(st.lists(SHAPE, min_size=2, max_size=2))
@example([("x", "k", b"", False), ("x", "k", b"", False)])
@example([("x", "key.12345678", b"0123456789", False), ("x", "key.12345678", b"0123456780", False)])
@example([("x", "k", b"p", False), ("x", "k", b"p", True)])
@example([("x", "k", b"p", True), ("x", "k", b"p", False)])
def test_a_message_like_the_one_before_it_shares_what_is_the_same(shapes: list[tuple[str, str, bytes, bool]]) -> None:
    messages = []
    for exchange, key, text, dead in shapes:
        props = encode(Properties(headers={"text": text}))
        route = Route(exchange, key)
        if dead:
            route.origin_id = 1
            route.deaths = [Death("q", "expired", "", "", "q", 0, 1, 1, 1, 5)]
        messages.append(Message(route, props, b"body", 1, 0, 0, DEAD if dead else PERSISTENT))
    one, other = (put(message, [(1, 1, 0, 0, 0, 0)]) for message in messages)
    first = records.read_message(one, {})
    second = records.read_message(b"before" + other, {}, 6, first)
    assert facts(second) == facts(messages[1])
    alike = shapes[0][:2] == shapes[1][:2] and not (shapes[0][3] or shapes[1][3])
    assert (second.route is first.route) == alike
    assert second.props is first.props or second.props != first.props


def test_a_long_key_and_a_large_body() -> None:
    props = encode(Properties(headers={"long": "p" * 70_000}))
    message = Message(Route("e" * 255, "k" * 4_096), props, b"b" * (5 << 20), 1, 0, 0, PERSISTENT)
    read = records.read_message(put(message, [(1, 1, 0, 0, 0, 0)]), {})
    assert facts(read) == facts(message)
    assert read.props == props


@given(st.binary(min_size=1, max_size=60))
@example(b"\x20\x00\x00\x00\x00\x04\x01aZ\x00")
def test_properties_that_are_malformed_are_read_as_a_header_with_their_bytes(props: bytes) -> None:
    read = records.read_message(put(Message(Route("", "q"), props, b"", 1, 0, 0, 0), [(1, 1, 0, 0, 0, 0)]), {}).props
    try:
        decode(props)
    except InvalidArgument:
        assert decode(read) == Properties(headers={"x-undecodable": props}, delivery_mode=2)
    else:
        assert read == props


@pytest.mark.parametrize("compression", ["zlib", "zstd"])
def test_compression_keeps_the_size_of_what_was_compressed(compression: str) -> None:
    message = Message(Route("", "q"), b"", b"again and " * 1_000, 1, 0, 0, PERSISTENT)
    record = put(message, [(1, 1, 0, 0, 0, 0)], compression)
    assert len(record) < 300
    reader = reader_of(record)
    assert reader.next()
    assert reader.body_bytes == 10_000
    assert reader.zstd == (compression == "zstd")
    assert records.read_message(record, {}).body == message.body


# The others


@given(NUMBERS, TIMES, NUMBERS, TIMES, NUMBERS, st.integers(0, 1))
def test_settles_and_returns(queue: int, seq: int, segment: int, due_ms: int, attempts: int, flags: int) -> None:
    w = BytesWriter()
    records.write_exits(w, queue, seq, segment, 1)
    records.write_exits(w, queue, seq, segment, 7)
    assert len(w) == records.EXIT_BYTES + records.EXITS_BYTES
    records.write_back(w, queue, seq, segment, due_ms, attempts, flags)
    records.write_ids(w, seq)
    records.write_retired(w, segment)
    reader = reader_of(w.getvalue())
    assert reader.next()
    assert (reader.kind, reader.queue, reader.seq, reader.segment, reader.count) == (EXIT, queue, seq, segment, 1)
    assert reader.next()
    assert (reader.kind, reader.queue, reader.seq, reader.segment, reader.count) == (EXITS, queue, seq, segment, 7)
    assert reader.next()
    assert (reader.kind, reader.queue, reader.seq, reader.segment) == (BACK, queue, seq, segment)
    assert (reader.due_ms, reader.attempts, reader.flags) == (due_ms, attempts, flags)
    assert reader.next()
    assert (reader.kind, reader.number) == (IDS, seq)
    assert reader.next()
    assert (reader.kind, reader.segment) == (RETIRED, segment)
    assert not reader.next()


JSON = st.recursive(
    st.none() | st.booleans() | I64 | TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner)
)


@given(st.sampled_from([DEFINE, MARK, STATE]), JSON)
def test_documents(kind: int, document: Any) -> None:
    w = BytesWriter()
    records.write_document(w, kind, document)
    reader = reader_of(w.getvalue())
    assert reader.next()
    assert reader.kind == kind
    assert reader.document() == document
    assert not reader.next()


@given(st.lists(st.tuples(NUMBERS, TIMES, st.integers(1, 5), st.integers(1, 3)), max_size=30))
def test_settles_are_counted_by_segment(exits: list[tuple[int, int, int, int]]) -> None:
    w = BytesWriter()
    records.write_ids(w, 9)
    start = len(w)
    for queue, seq, segment, count in exits:
        records.write_exits(w, queue, seq, segment, count)
    sizes = records.exits_by_segment(w.getvalue(), start)
    assert sizes == {s: sum(17 if e[3] == 1 else 21 for e in exits if e[2] == s) for s in {e[2] for e in exits}}


# What is no record


def test_an_unknown_kind_is_refused() -> None:
    for kind in (0, 11, 255):
        with pytest.raises(InvalidArgument):
            reader_of(bytes([kind]) + bytes(40)).next()


def test_a_record_that_reaches_past_its_batch_is_refused() -> None:
    message = Message(Route("", "q"), b"", b"body", 1, 0, 0, PERSISTENT)
    record = put(message, [(1, 1, 0, 0, 0, 0)])
    padded = record + bytes(50)
    with pytest.raises(InvalidArgument):
        Reader(padded, 0, len(record) - 1).next()
    w = BytesWriter()
    records.write_exits(w, 1, 1, 1, 1)
    with pytest.raises(InvalidArgument):
        Reader(w.getvalue() + bytes(50), 0, 16).next()
    w = BytesWriter()
    records.write_exits(w, 1, 1, 1, 2)
    with pytest.raises(InvalidArgument):
        Reader(w.getvalue() + bytes(50), 0, 20).next()


@given(
    offset=st.integers(0, 1 << 62), stamp=st.integers(0, 1 << 62), body=st.binary(max_size=40), key=st.text(max_size=9)
)
def test_a_record_of_a_stream_comes_back_and_can_be_written_again(
    offset: int, stamp: int, body: bytes, key: str
) -> None:
    message = Message(Route("x", key), b"\0\0", body, 77, 5, 9, PERSISTENT)
    w = BytesWriter()
    records.write_record(w, 3, offset, stamp, message, body, records.PLAIN)
    reader = records.Reader(w.getvalue(), 0, len(w))
    assert reader.next()
    found = (reader.kind, reader.queue, reader.seq, reader.enqueued_ms, reader.number)
    assert found == (records.RECORD, 3, offset, stamp, 77)
    assert not reader.next()
    again = BytesWriter()
    records.write_record_again(again, w.getvalue(), 4, 1, 2)
    for raw in (w.getvalue(), again.getvalue()):
        back = records.read_message(raw, {})
        assert (back.route.exchange, back.route.key, back.body, back.id) == ("x", key, body, 77)
        assert (back.priority, back.expires_ms, back.props) == (5, 9, b"\0\0")
    reader = records.Reader(again.getvalue(), 0, len(again))
    assert reader.next()
    assert (reader.queue, reader.seq, reader.enqueued_ms) == (4, 1, 2)

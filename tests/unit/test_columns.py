"""Columns of records: what Arrow shows is what the messages said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.errors import InvalidArgument
from rookery.format import records
from rookery.format.bytes import BytesWriter
from rookery.format.model import Message, Route
from rookery.format.properties import Properties, encode
from rookery.sealed.columns import check_columns

pytest.importorskip("pyarrow")

from rookery.sealed import arrow
from rookery.sealed.schema import SCHEMA, SEALED_SCHEMA

TEXT = st.text(st.characters(categories=("L", "M", "N", "P", "S")) | st.just(" "), max_size=30)
VALUES = st.one_of(TEXT, st.binary(max_size=9), st.booleans(), st.integers(-(1 << 40), 1 << 40), st.none())
ROWS = st.lists(
    st.tuples(
        TEXT,
        st.binary(max_size=20),
        st.one_of(st.none(), TEXT),
        st.one_of(st.none(), TEXT),
        st.dictionaries(
            st.sampled_from(["a", "x-key", "ü", "a-longer-name-than-most-headers-have"]), VALUES, max_size=4
        ),
        st.integers(0, 9),
        st.sampled_from([0, 1_700_000_000_000]),
    ),
    max_size=40,
)


def printed(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"" if value is None else str(value).encode()


@given(rows=ROWS)
def test_columns_say_what_the_messages_said(rows: list[tuple]) -> None:
    columns = arrow.empty_columns(SEALED_SCHEMA)
    for n, (key, body, message_id, content_type, headers, priority, expires) in enumerate(rows):
        props = encode(Properties(message_id=message_id, content_type=content_type, headers=headers or None))
        message = Message(Route("exchange", key), props, body, n + 1, priority, expires, 1)
        w = BytesWriter()
        w.write(b"before")
        records.write_record(w, 1, n, 5 + n, message, body, False)
        columns.add(w.getvalue(), 6, n, 5 + n)
    batch = arrow.batch_of(columns, SCHEMA, "t", "s", 3)
    batch.validate(full=True)
    sealed = arrow.batch_of(columns, SEALED_SCHEMA, "t", "s", 3)
    sealed.validate(full=True)
    found = [{**shown, **kept} for shown, kept in zip(batch.to_pylist(), sealed.to_pylist(), strict=True)]
    assert len(found) == len(rows)
    for n, (key, body, message_id, content_type, headers, priority, expires) in enumerate(rows):
        row = found[n]
        assert (row["tenant"], row["stream"], row["partition"], row["offset"]) == ("t", "s", 3, n)
        assert (row["exchange"], row["routing_key"], row["value"]) == ("exchange", key, body)
        assert (row["message_id"], row["content_type"], row["priority"]) == (message_id, content_type, priority)
        assert row["key"] == (printed(headers["x-key"]) if "x-key" in headers else None)
        others = [{"key": name, "value": printed(value)} for name, value in headers.items() if name != "x-key"]
        assert row["headers"] == others
        assert (row["expiration"] is None) == (expires == 0)
        again = records.join_record(row["envelope"], row["value"], 1, n, 5 + n)
        assert records.read_message(again, {}).props == encode(
            Properties(message_id=message_id, content_type=content_type, headers=headers or None)
        )


def test_names_that_are_not_utf_8_are_shown_all_the_same() -> None:
    columns = arrow.empty_columns(SCHEMA)
    w = BytesWriter()
    records.write_record(w, 1, 0, 5, Message(Route("", "a\udcffb"), b"\0\0", b"", 1, 1 << 40, 0, 1), b"", False)
    columns.add(w.getvalue(), 0, 0, 5)
    batch = arrow.batch_of(columns, SCHEMA, "t", "s", 0)
    batch.validate(full=True)
    assert batch.to_pylist()[0]["routing_key"] == "a\ufffdb"
    assert batch.to_pylist()[0]["priority"] == (1 << 31) - 1


def test_an_unknown_column_is_named() -> None:
    assert check_columns(["value", "tenant"]) == ["value", "tenant"]
    with pytest.raises(InvalidArgument, match="no column 'body'"):
        check_columns(["value", "body"])

"""Bodies as JSON shows them: by one rule, whichever face asks."""

from __future__ import annotations

import base64

import msgspec
import pytest

from rookery.core.shard import Shard
from rookery.embed.messages import decode_body
from rookery.format import properties
from rookery.format.bytes import BytesWriter
from rookery.format.model import Message, Route
from rookery.format.properties import Properties
from rookery.format.rendering import body_as_json, content_of, headers_of, is_json, legible_bytes, plain, says_json
from rookery.webhooks.calls import _data
from rookery.wire.api.records import message_row
from rookery.wire.http.routes import encode_json
from rookery.wire.push.json import MessageWriter

KINDS = {
    "application/json": True,
    "Application/JSON": True,
    "application/json; charset=utf-8": True,
    "application/vnd.shop+json": True,
    "application/vnd.shop+json; charset=utf-8": True,
    "application/jsonl": False,
    "application/json-seq": False,
    "text/plain": False,
    "": False,
}
BODIES = {
    b'{"a": [1, null]}': True,
    b"1e400": True,
    '"\u00e4"'.encode(): True,
    b'"\xff"': False,
    b"{": False,
    b"": False,
    b"[" * 100_000: False,
    b"\x00\xff": False,
}


@pytest.mark.parametrize(("kind", "says"), KINDS.items())
def test_a_content_type_says_json_or_does_not(kind: str, says: bool) -> None:
    assert says_json(kind) is says


@pytest.mark.parametrize(("body", "sound"), BODIES.items())
def test_a_body_is_json_or_is_not(body: bytes, sound: bool) -> None:
    assert is_json(body) is sound


def expected(body: bytes, kind: str) -> tuple[object, str | None]:
    if KINDS[kind] and BODIES[body]:
        return msgspec.Raw(body), None
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES)
def test_every_face_shows_a_body_the_same(body: bytes, kind: str) -> None:
    value, coded = expected(body, kind)
    message = Message(Route("", "q"), properties.encode(Properties(content_type=kind)), body, 1, 0, 0, 0)
    assert body_as_json(body, kind) == content_of(message) == (value, coded)
    row = message_row(message, str)
    assert (row.get("value"), row.get("value_base64")) == (value, coded)
    data = _data(kind, body)
    assert (data.get("data"), data.get("data_base64")) == (value, coded)
    w = BytesWriter()
    MessageWriter(Shard(b"s", 1)).record(w, message, 0, 7)
    pushed = w.getvalue()
    shown = b'"message":' + (b"null" if coded is not None else encode_json(value))
    assert shown in pushed
    assert (b"message_base64" in pushed) is (coded is not None)


def test_python_reads_json_by_the_same_rule() -> None:
    for kind, says in KINDS.items():
        got = decode_body(b'{"a": 1}', kind)
        assert (got == {"a": 1}) is says, kind


def test_texts_that_are_not_utf_8_are_shown_with_a_replacement() -> None:
    assert legible_bytes(b"a\xff") == "a\ufffd".encode()
    made = msgspec.Raw(b"[1]")
    assert plain({"a\udcff": ["b\udcff", made]}) == {"a\ufffd": ["b\ufffd", made]}
    assert encode_json({"a\udcff": made, 1: "x"}) == '{"a\ufffd":[1],"1":"x"}'.encode()
    props = properties.encode(Properties(headers={"a": b"\xff"}))
    assert headers_of(Message(Route("", "q"), props, b"", 1, 0, 0, 0)) == {"a": "/w=="}
    assert headers_of(Message(Route("", "q"), b"\0\0", b"", 1, 0, 0, 0)) is None

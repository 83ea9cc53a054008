"""Texts that stand for something (leases, ids, offsets, traces, keys), what a broker sends to its clients, and bodies
that are shown as JSON.
"""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import msgspec

from rookery import spans
from rookery.client.answers import read_json
from rookery.client.messages import read_frame, read_messages, read_page
from rookery.core import streams
from rookery.core.credentials import split_key
from rookery.core.shard import Shard
from rookery.embed.messages import decode_body
from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.model import Message, Route
from rookery.format.rendering import content_of, is_json
from rookery.webhooks.calls import _data
from rookery.wire.api.records import message_row
from rookery.wire.http.answers import BrokenAnswer
from rookery.wire.http.routes import encode_json
from rookery.wire.push.sources import places_of
from tests.fuzz.target import Target, words
from tests.fuzz.targets_amqp import table
from tests.fuzz.targets_http import json_value


class Handles(Target):
    """A text that names nothing is refused, or names nothing."""

    tokens = (b"/1/1/1", b"q/", b"0:5,1:-1", b"00-", b"9" * 30, b"rk_", b"-", "²".encode(), "٣".encode())

    def __init__(self) -> None:
        self._shard = Shard(b"x", 1)
        self._tenant = self._shard.create_tenant("t")
        self._tenant.declare_queue("q", {}, "amqp")
        streams.declare(self._tenant, "s", {"partitions": 2})
        streams.declare(self._tenant, "one", {"partitions": 1})

    def make(self, rng: random.Random) -> bytes:
        return rng.choice(
            (
                f"q/{rng.randrange(9)}/1/{rng.randrange(9)}",
                f"0:{rng.randrange(99)},1:{rng.randrange(99)}",
                self._shard.ids.uuid(rng.randrange(99)),
                base64.urlsafe_b64encode(rng.randbytes(16))[:22].decode(),
                f"00-{rng.randbytes(16).hex()}-{rng.randbytes(8).hex()}-01",
                f"rk_{words(rng)}_{base64.urlsafe_b64encode(rng.randbytes(24)).decode()}",
            )
        ).encode()

    def check(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        assert self._shard.lease(self._tenant, text) is None
        self._shard.ids.number(text)
        self._shard.ids.unpacked(data[:16])
        spans.context(text, text)
        split_key(text)
        for stream in self._tenant.streams.values():
            try:
                for index, offset in places_of(stream, text, "after").items():
                    assert -1 <= index < 1 << 63
                    assert -1 <= offset < 1 << 63
            except InvalidArgument:
                pass


class BrokerFrames(Target):
    """What a client reads of a broker, behind a byte for what it is: values, or a broken answer."""

    tokens = (b'{"type":"messages","id":"1","messages":[', b'{"packed":"', b"kw==", b"[" * 60, b"\xff")

    def make(self, rng: random.Random) -> bytes:
        kind = rng.randrange(4)
        props = properties.encode(properties.Properties(headers=table(rng)))
        message: list[Any] = ["id", "key", props, b"body", 0, 0, 1, 1, "lease", []]
        packed = msgspec.msgpack.encode(message)
        if kind == 0:
            shown = [{"packed": base64.b64encode(packed).decode()}] * rng.randrange(3)
            return b"\0" + json.dumps({"type": "messages", "id": "5", "messages": shown}).encode()
        made = (b"", json.dumps(json_value(rng, 0)).encode(), msgspec.msgpack.encode([message]))
        return bytes([kind]) + (made[kind] if kind < 3 else msgspec.msgpack.encode([0, 1, 2, [[1, 2, message]]]))

    def check(self, data: bytes) -> None:
        read = (read_frame, read_json, read_messages, read_page)[(data[0] if data else 0) % 4]
        try:
            read(data[1:])
        except BrokenAnswer:
            pass


class ShownBodies(Target):
    """A stored body, behind a byte for its content type: every face that speaks JSON can show it."""

    tokens = (b'"\xff"', b"[" * 60, b'{"a":' * 30, b"1e999", b"NaN", b'"\\ud800"', b"\xed\xa0\x80", b"\x00")
    _KINDS = ("application/json", "application/x+json", "text/plain", "", "application/json; charset=latin-1")

    def make(self, rng: random.Random) -> bytes:
        return bytes([rng.randrange(5)]) + json.dumps(json_value(rng, 0)).encode()

    def check(self, data: bytes) -> None:
        kind = self._KINDS[(data[0] if data else 0) % 5]
        body = data[1:]
        props = properties.encode(properties.Properties(content_type=kind))
        message = Message(Route("", "q"), props, body, 1, 0, 0, 0)
        shown: list[object] = [message_row(message, str), content_of(message), _data(kind, body)]
        if is_json(body):
            shown.append(msgspec.Raw(body))
        decode_body(body, kind)
        for each in shown:
            encode_json(each).decode()

"""Messages as JSON, written straight into the bytes of a frame: as a claim shows them, and records with their place.

It is what `Handling.show` and `msgspec` would make, without an object per message. Publishers repeat themselves, so
what the properties say is kept from one message to the next.
"""

from __future__ import annotations

import base64
from typing import Any, final

import msgspec
from mypy_extensions import i64, u8

from rookery.core.entries import Entry, Lease
from rookery.core.shard import Shard
from rookery.format import properties
from rookery.format.bytes import BytesWriter
from rookery.format.model import Message, Route
from rookery.format.rendering import is_json, legible, plain, plain_table, says_json

_encode: Any = msgspec.json.Encoder().encode


@final
class MessageWriter:
    """See the module's docstring."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        # makes bytes of a delivery, for Rookery's own client
        self.packed: Any = None
        self._queue = ""
        self._queue_json = b""
        self._epoch = b""
        self._route: Route | None = None
        self._route_json = b""
        self._props = b""
        self._props_json = b""
        self._is_json = False
        self._message_id = ""
        # what all records of a partition begin with, and all messages of one moment
        self._partition: i64 = -1
        self._place = b""
        self._entered_ms: i64 = -1
        self._attempt: i64 = 0
        self._begin = b""

    def delivery(self, w: BytesWriter, entry: Entry, lease: Lease, with_lease: bool) -> None:
        """A message under lease; who is not to settle it is not told the lease."""
        if self.packed is not None:
            w.write(b'{"packed":"%b"}' % base64.b64encode(self.packed(entry, lease)))
            return
        message = entry.message
        if entry.enqueued_ms != self._entered_ms or lease.attempt != self._attempt:
            self._entered_ms = entry.enqueued_ms
            self._attempt = lease.attempt
            self._begin = b'{"attempt":%d,"enqueued_ms":%d' % (int(lease.attempt), int(entry.enqueued_ms))
        w.write(self._begin)
        if with_lease:
            name = lease.queue.name
            if name != self._queue:
                self._queue = name
                # without its closing quote
                self._queue_json = b',"lease":%b/' % _encode(legible(name))[:-1]
                self._epoch = b"/%d/" % int(self._shard.epoch)
            w.write(self._queue_json)
            w.write(str(int(entry.seq)).encode())
            w.write(self._epoch)
            w.write(str(int(lease.grant)).encode())
            w.append(u8(0x22))
        if entry.redelivered:
            w.write(b',"redelivered":true')
        if entry.due_ms:
            w.write(b',"due_ms":%d' % int(entry.due_ms))
        if message.expires_ms:
            w.write(b',"expires_ms":%d' % int(message.expires_ms))
        if message.route.deaths:
            w.write(b',"deaths":')
            w.write(_encode(plain([death.as_dict() for death in message.route.deaths])))
        self._rest(w, message)

    def record(self, w: BytesWriter, message: Message, partition: i64, offset: i64) -> None:
        """A message of a stream."""
        if partition != self._partition:
            self._partition = partition
            self._place = b'{"partition":%d,"offset":' % int(partition)
        w.write(self._place)
        w.write(str(int(offset)).encode())
        self._rest(w, message)

    def _rest(self, w: BytesWriter, message: Message) -> None:
        if message.priority:
            w.write(b',"priority":%d' % int(message.priority))
        route = message.route
        if route is not self._route:
            self._route = route
            self._route_json = self._show_route(route)
        w.write(self._route_json)
        if message.props != self._props:
            self._props = message.props
            self._props_json = self._show_props(message.props)
        w.write(self._props_json)
        if self._message_id:
            w.write(b',"message_id":')
            w.write(_encode(self._message_id))
        else:
            w.write(b',"message_id":"')
            w.write(self._shard.ids.uuid(message.public_id).encode())
            w.append(u8(0x22))
        self._body(w, message.body)
        w.append(u8(0x7D))

    def _show_route(self, route: Route) -> bytes:
        shown = b""
        if route.exchange:
            shown += b',"exchange":' + _encode(legible(route.exchange))
        if route.key:
            shown += b',"routing_key":' + _encode(legible(route.key))
        return shown

    def _show_props(self, props: bytes) -> bytes:
        found = properties.decode(props)
        kind = found.content_type or ""
        self._is_json = says_json(kind)
        self._message_id = legible(found.message_id) if found.message_id else ""
        row: dict[str, Any] = {}
        for name in ("content_type", "correlation_id", "reply_to", "type"):
            value = getattr(found, name)
            if value is not None:
                row[name] = legible(value)
        if found.timestamp is not None:
            row["timestamp_ms"] = int(found.timestamp) * 1000
        if found.headers:
            row["headers"] = plain_table(found.headers)
        if not row:
            return b""
        encoded: bytes = _encode(row)
        return b"," + encoded[1:-1]

    def _body(self, w: BytesWriter, body: bytes) -> None:
        """A body as JSON sees it: itself if it is JSON, text if it is UTF-8, else base64."""
        if self._is_json and is_json(body):
            w.write(b',"message":')
            w.write(body)
            return
        try:
            text = body.decode()
        except UnicodeDecodeError:
            w.write(b',"message":null,"message_base64":"')
            w.write(base64.b64encode(body))
            w.append(u8(0x22))
            return
        w.write(b',"message":')
        w.write(_encode(text))

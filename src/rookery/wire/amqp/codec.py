"""AMQP 0-9-1 on the wire: the numbers, how method arguments are read, and how frames are written.

A frame is kind (1 octet), channel (2), payload size (4), payload, and the octet 0xCE (spec 4.2.3). A method's payload
begins with class and method id, which are one 32-bit number here. Reading is total: `Arguments` checks every length
against the end of its frame before it is believed, and what does not fit raises `Fault`, which carries the reply code
that the peer is told.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i16, i32, i64, u8

from rookery.errors import InvalidArgument
from rookery.format.bytes import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from rookery.format.fieldtables import decode_table, read_field, read_name
from rookery.format.model import Route
from rookery.format.properties import within
from rookery.wire.turn import SPLICE_BYTES, Outlet

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MIN_BYTES: Final = 4096
"""The least frame-max that both sides must take (spec 4.2.3)."""
FRAME_FIRST_BYTES: Final = 8192
"""The largest frame before frame-max is negotiated: room for client properties and a long credential."""
FRAME_MAX_BYTES: Final = 131072
FRAME_OVERHEAD: Final[i64] = 8

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CLOSE_OK_FRAME: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"

CONNECTION_START: Final = 0x000A000A
CONNECTION_START_OK: Final = 0x000A000B
CONNECTION_TUNE: Final = 0x000A001E
CONNECTION_TUNE_OK: Final = 0x000A001F
CONNECTION_OPEN: Final = 0x000A0028
CONNECTION_OPEN_OK: Final = 0x000A0029
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033
CONNECTION_BLOCKED: Final = 0x000A003C
CONNECTION_UNBLOCKED: Final = 0x000A003D
CONNECTION_UPDATE_SECRET: Final = 0x000A0046
CONNECTION_UPDATE_SECRET_OK: Final = 0x000A0047
CHANNEL_OPEN: Final = 0x0014000A
CHANNEL_OPEN_OK: Final = 0x0014000B
CHANNEL_FLOW: Final = 0x00140014
CHANNEL_FLOW_OK: Final = 0x00140015
CHANNEL_CLOSE: Final = 0x00140028
CHANNEL_CLOSE_OK: Final = 0x00140029
ACCESS_REQUEST: Final = 0x001E000A
ACCESS_REQUEST_OK: Final = 0x001E000B
EXCHANGE_DECLARE: Final = 0x0028000A
EXCHANGE_DECLARE_OK: Final = 0x0028000B
EXCHANGE_DELETE: Final = 0x00280014
EXCHANGE_DELETE_OK: Final = 0x00280015
EXCHANGE_BIND: Final = 0x0028001E
EXCHANGE_BIND_OK: Final = 0x0028001F
EXCHANGE_UNBIND: Final = 0x00280028
EXCHANGE_UNBIND_OK: Final = 0x00280033
QUEUE_DECLARE: Final = 0x0032000A
QUEUE_DECLARE_OK: Final = 0x0032000B
QUEUE_BIND: Final = 0x00320014
QUEUE_BIND_OK: Final = 0x00320015
QUEUE_PURGE: Final = 0x0032001E
QUEUE_PURGE_OK: Final = 0x0032001F
QUEUE_DELETE: Final = 0x00320028
QUEUE_DELETE_OK: Final = 0x00320029
QUEUE_UNBIND: Final = 0x00320032
QUEUE_UNBIND_OK: Final = 0x00320033
BASIC_QOS: Final = 0x003C000A
BASIC_QOS_OK: Final = 0x003C000B
BASIC_CONSUME: Final = 0x003C0014
BASIC_CONSUME_OK: Final = 0x003C0015
BASIC_CANCEL: Final = 0x003C001E
BASIC_CANCEL_OK: Final = 0x003C001F
BASIC_PUBLISH: Final = 0x003C0028
BASIC_RETURN: Final = 0x003C0032
BASIC_DELIVER: Final = 0x003C003C
BASIC_GET: Final = 0x003C0046
BASIC_GET_OK: Final = 0x003C0047
BASIC_GET_EMPTY: Final = 0x003C0048
BASIC_ACK: Final = 0x003C0050
BASIC_REJECT: Final = 0x003C005A
BASIC_RECOVER_ASYNC: Final = 0x003C0064
BASIC_RECOVER: Final = 0x003C006E
BASIC_RECOVER_OK: Final = 0x003C006F
BASIC_NACK: Final = 0x003C0078
CONFIRM_SELECT: Final = 0x0055000A
CONFIRM_SELECT_OK: Final = 0x0055000B
TX_SELECT: Final = 0x005A000A
TX_SELECT_OK: Final = 0x005A000B
TX_COMMIT: Final = 0x005A0014
TX_COMMIT_OK: Final = 0x005A0015
TX_ROLLBACK: Final = 0x005A001E
TX_ROLLBACK_OK: Final = 0x005A001F

BASIC: Final = 60
NO_ROUTE: Final = 312

# Reply codes (spec 1.2): those of HARD end the connection, the others the channel.
REPLY_NAMES: Final = {
    200: "REPLY_SUCCESS",
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
FRAME_ERROR: Final = 501
"""After this one nobody knows where the next frame begins, so nothing more is read."""
HARD: Final = frozenset({320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541})


class Fault(Exception):
    """The peer asked for something it cannot have: its channel, or (`hard`) its connection, ends with this reply.

    `method` is the one that asked, 0 when that is not known.
    """

    def __init__(self, code: int, text: str, method: i32 = 0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.method: i32 = method
        self.hard = code in HARD

    def reply_text(self) -> str:
        return f"{REPLY_NAMES.get(self.code, 'INTERNAL_ERROR')} - {self.text}"


def _cut_off() -> Fault:
    return Fault(502, "a method's arguments are cut off")


@final
class Arguments:
    """The arguments of one method, read in order. `bits` of one octet are taken apart by the caller."""

    def __init__(self, data: bytes, pos: i64, end: i64) -> None:
        self._data = data
        self._pos: i64 = pos
        self._end: i64 = end

    def _take(self, size: i64) -> i64:
        start = self._pos
        if size > self._end - start:
            raise _cut_off()
        self._pos = start + size
        return start

    def octet(self) -> i64:
        return i64(self._data[self._take(1)])

    def short(self) -> i64:
        return i64(read_i16_be(self._data, self._take(2))) & 0xFFFF

    def long(self) -> i64:
        return i64(read_i32_be(self._data, self._take(4))) & 0xFFFFFFFF

    def longlong(self) -> i64:
        """A delivery tag: in practice never beyond 63 bits, so one that is reads as negative."""
        return read_i64_be(self._data, self._take(8))

    def short_string(self) -> str:
        size = self.octet()
        start = self._take(size)
        return self._data[start : start + size].decode("utf-8", "surrogateescape")

    def long_string(self) -> bytes:
        size = self.long()
        start = self._take(size)
        return self._data[start : start + size]

    def table(self) -> dict[str, object]:
        size = self.long()
        start = self._take(size)
        try:
            return decode_table(self._data, start, start + size)
        except InvalidArgument as error:
            raise Fault(502, str(error)) from None

    def typed_table(self) -> dict[str, tuple[str, object]]:
        """A table with the type octet of each of its fields."""
        size = self.long()
        pos = self._take(size)
        end = pos + size
        fields: dict[str, tuple[str, object]] = {}
        try:
            while pos < end:
                name, at = read_name(self._data, pos, end)
                value, pos = read_field(self._data, at, end, 1)
                fields[name] = (chr(self._data[at]), value)
        except InvalidArgument as error:
            raise Fault(502, str(error)) from None
        return fields


# Writing


def put_short_string(w: BytesWriter, text: str) -> None:
    """Append a short string; what does not fit 255 bytes is cut off (names from other faces may be longer)."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raw = raw[:255]
    w.append(u8(len(raw)))
    w.write(raw)


def put_long_string(w: BytesWriter, raw: bytes) -> None:
    write_i32_be(w, i32(len(raw)))
    w.write(raw)


def begin_method(out: Outlet, channel: i64, method: i32) -> i64:
    """Start a method frame; `end_method` takes the number this gives, once the arguments are written."""
    out.touch()
    w = out.w
    start: i64 = len(w)
    w.append(u8(METHOD))
    put_channel(w, channel)
    write_i32_be(w, 0)
    write_i32_be(w, method)
    return start


def end_method(out: Outlet, start: i64) -> None:
    w = out.w
    size: i64 = len(w) - start - 7
    w[start + 3] = u8(size >> 24 & 0xFF)
    w[start + 4] = u8(size >> 16 & 0xFF)
    w[start + 5] = u8(size >> 8 & 0xFF)
    w[start + 6] = u8(size & 0xFF)
    w.append(u8(FRAME_END))


def put_method(out: Outlet, channel: i64, method: i32) -> None:
    """A method without arguments."""
    end_method(out, begin_method(out, channel, method))


def put_settled(out: Outlet, channel: i64, method: i32, tag: i64, bits: i64) -> None:
    """basic.ack or basic.nack to a publisher."""
    out.touch()
    w = out.w
    w.append(u8(METHOD))
    put_channel(w, channel)
    write_i32_be(w, 13)
    write_i32_be(w, method)
    write_i64_be(w, tag)
    w.append(u8(bits))
    w.append(u8(FRAME_END))


def put_channel(w: BytesWriter, channel: i64) -> None:
    write_i16_be(w, i16(channel if channel < 0x8000 else channel - 0x10000))


def put_content(out: Outlet, channel: i64, payload_max: i64, props: bytes, body: bytes) -> None:
    """Header and body frames. A large body is not copied; one beyond `payload_max` is cut into several frames.

    Properties cannot be cut: those that do not fit a frame go without their headers.
    """
    if len(props) > payload_max - 12:
        props = within(props, payload_max - 12)
    w = out.w
    size: i64 = len(body)
    w.append(u8(HEADER))
    put_channel(w, channel)
    write_i32_be(w, i32(12 + len(props)))
    write_i32_be(w, 0x003C0000)  # class basic, weight 0
    write_i64_be(w, size)
    w.write(props)
    w.append(u8(FRAME_END))
    if size == 0:
        return
    if size > payload_max:
        _put_frames(out, channel, payload_max, body)
        return
    w.append(u8(BODY))
    put_channel(w, channel)
    write_i32_be(w, i32(size))
    if size < SPLICE_BYTES:
        w.write(body)
    else:
        out.splice(body, size)
    w.append(u8(FRAME_END))


def put_return(out: Outlet, channel: i64, payload_max: i64, route: Route, props: bytes, body: bytes) -> None:
    """basic.return of a message that reached nobody."""
    start = begin_method(out, channel, BASIC_RETURN)
    w = out.w
    put_channel(w, NO_ROUTE)
    put_short_string(w, "NO_ROUTE")
    put_short_string(w, route.exchange)
    put_short_string(w, route.key)
    end_method(out, start)
    put_content(out, channel, payload_max, props, body)


def _put_frames(out: Outlet, channel: i64, payload_max: i64, body: bytes) -> None:
    view = memoryview(body)
    w = out.w
    size: i64 = len(body)
    at: i64 = 0
    while at < size:
        part = size - at
        if part > payload_max:
            part = payload_max
        w.append(u8(BODY))
        put_channel(w, channel)
        write_i32_be(w, i32(part))
        if part < SPLICE_BYTES:
            w.write(body[at : at + part])
        else:
            out.splice(view[at : at + part], part)
        w.append(u8(FRAME_END))
        at += part

"""Message properties in their canonical encoding: AMQP 0-9-1's property list, as bytes.

A list is what follows the body size in an AMQP content header: a word of property flags (continued by further words
while bit 0 is set), then the values of the properties present, highest flag first. Every face hands messages over in
this form, the core stores and forwards the bytes as they came, and they are decoded only when somebody asks: `Scan` for
what queueing needs, accessors that skip to one value, `decode` for all.

Everything here is total. Lengths are checked before they are believed; malformed input raises InvalidArgument with
`argument` "properties" (the list), "table" (the headers, see `fieldtables`) or "expiration".

Short strings are UTF-8. Bytes that are not become lone surrogates (PEP 383), which encode back to the same bytes, so
decoding and encoding again changes nothing; such a string is not valid in JSON.
"""

from __future__ import annotations

from typing import Final, cast, final

from mypy_extensions import i16, i64, mypyc_attr, u8

from rookery.errors import InvalidArgument, InvalidType
from rookery.format.bytes import BytesWriter, read_i16_be, read_i32_be, write_i16_be
from rookery.format.fieldtables import (
    FIELDS_MAX,
    Timestamp,
    after_field,
    after_name,
    check_table,
    decode_table,
    encode_table,
    read_field,
    read_name,
    read_unsigned,
    write_field,
    write_short,
    write_size,
    write_table,
    write_unsigned,
)

__all__ = [
    "BYTES_MAX",
    "EMPTY",
    "EXPIRATION_MS_MAX",
    "UNDECODABLE_HEADER",
    "Properties",
    "Scan",
    "Timestamp",
    "check",
    "check_published",
    "content_type",
    "correlation_id",
    "decode",
    "decode_table",
    "delivery_mode",
    "encode",
    "encode_table",
    "expiration_ms",
    "header",
    "header_type",
    "headers",
    "message_id",
    "priority",
    "readable",
    "reply_to",
    "timestamp",
    "user_id",
    "with_headers",
    "with_reply_to",
    "within",
    "without_expiration",
    "write_table",
]

EMPTY: Final = b"\x00\x00"
"""The property list without properties."""

EXPIRATION_MS_MAX: Final = 10**15
"""The longest expiration, about 31,000 years: added to any present time it still fits 64 bits."""

BYTES_MAX: Final = 131_052
"""The longest list that can be published: what fits one AMQP frame of 128 KiB."""

UNDECODABLE_HEADER: Final = "x-undecodable"
"""The one header of a message whose stored list is malformed: the bytes of that list."""

OMITTED_HEADER: Final = "x-headers-omitted"
"""The one header of a delivery whose own headers do not fit the frames of its consumer: how many bytes they have."""

SMALL_BYTES: Final = 64
SOUND_MAX: Final = 1_024
"""Lists this small are likely to come again: so many that were found sound are known, and not looked into each time."""

_sound: Final[dict[bytes, bool]] = {}

TYPES_MAX: Final = 1_000
_types: Final[dict[str, bytes]] = {}
"""The property lists of `of_type`."""

_NAMED: Final = ("content_type", "correlation_id", "reply_to", "type", "message_id")
"""Properties that publishers name as AMQP does."""

_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
_HEADERS: Final = 1 << 13
_DELIVERY_MODE: Final = 1 << 12
_PRIORITY: Final = 1 << 11
_CORRELATION_ID: Final = 1 << 10
_REPLY_TO: Final = 1 << 9
_EXPIRATION: Final = 1 << 8
_MESSAGE_ID: Final = 1 << 7
_TIMESTAMP: Final = 1 << 6
_TYPE: Final = 1 << 5
_USER_ID: Final = 1 << 4
_APP_ID: Final = 1 << 3
_CLUSTER_ID: Final = 1 << 2
_UNDEFINED: Final = 2
_CONTINUED: Final = 1


@final
class Properties:
    """The fourteen properties of a message, None where absent."""

    def __init__(
        self,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, object] | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: int | None = None,
        type: str | None = None,
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def as_dict(self) -> dict[str, object]:
        """The properties present, by name, in the order of the list."""
        every: dict[str, object] = {
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "headers": self.headers,
            "delivery_mode": self.delivery_mode,
            "priority": self.priority,
            "correlation_id": self.correlation_id,
            "reply_to": self.reply_to,
            "expiration": self.expiration,
            "message_id": self.message_id,
            "timestamp": self.timestamp,
            "type": self.type,
            "user_id": self.user_id,
            "app_id": self.app_id,
            "cluster_id": self.cluster_id,
        }
        return {name: value for name, value in every.items() if value is not None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"


@final
@mypyc_attr(acyclic=True)
class Scan:
    """What queueing needs of a property list, read in one walk. One object serves any number of lists."""

    def __init__(self) -> None:
        self.delivery_mode: i64 = 0
        """0 when absent; 2 asks for persistence."""
        self.priority: i64 = -1
        """-1 when absent."""
        self.expiration_ms: i64 = -1
        """-1 when absent."""

    def read(self, props: bytes) -> None:
        """Take the values of this list. All of it is checked, as `check_published` does; nothing is built."""
        size: i64 = len(props)
        flags = _flags(props)
        pos = _values(props, flags)
        mode: i64 = 0
        priority: i64 = -1
        expiration_ms: i64 = -1
        if flags & _CONTENT_TYPE:
            pos = _after_short(props, pos, size)
        if flags & _CONTENT_ENCODING:
            pos = _after_short(props, pos, size)
        if flags & _HEADERS:
            start = pos + 4
            pos = _after_sized(props, pos, size)
            _check_count(check_table(props, start, pos))
        if flags & _DELIVERY_MODE:
            mode = _octet(props, pos, size)
            pos += 1
        if flags & _PRIORITY:
            priority = _octet(props, pos, size)
            pos += 1
        if flags & _CORRELATION_ID:
            pos = _after_short(props, pos, size)
        if flags & _REPLY_TO:
            pos = _after_short(props, pos, size)
        if flags & _EXPIRATION:
            start = pos + 1
            pos = _after_short(props, pos, size)
            expiration_ms = _milliseconds(props, start, pos)
        if _after_rest(props, pos, size, flags) != size:
            raise _malformed("the values do not end where the list does")
        if size > BYTES_MAX:
            raise _too_long(size)
        self.delivery_mode = mode
        self.priority = priority
        self.expiration_ms = expiration_ms


# Whole lists


def encode(properties: Properties, fields: bytes = b"") -> bytes:
    """The property list of these values. A value that does not fit its property raises InvalidArgument naming it.

    `fields` are headers as they stand in a table, instead of those of `properties`. Limits are those of
    `check_published`.
    """
    w = BytesWriter()
    write_i16_be(w, 0)
    p = properties
    flags: i64 = 0
    flags |= _put_string(w, p.content_type, "content_type", _CONTENT_TYPE)
    flags |= _put_string(w, p.content_encoding, "content_encoding", _CONTENT_ENCODING)
    headers_at: i64 = len(w)
    if fields:
        flags |= _HEADERS
        write_size(w, len(fields), "headers")
        w.write(fields)
    elif p.headers is not None:
        flags |= _HEADERS
        write_table(w, p.headers)
    headers_end: i64 = len(w)
    flags |= _put_octet(w, p.delivery_mode, "delivery_mode", _DELIVERY_MODE)
    flags |= _put_octet(w, p.priority, "priority", _PRIORITY)
    flags |= _put_string(w, p.correlation_id, "correlation_id", _CORRELATION_ID)
    flags |= _put_string(w, p.reply_to, "reply_to", _REPLY_TO)
    flags |= _put_string(w, p.expiration, "expiration", _EXPIRATION)
    flags |= _put_string(w, p.message_id, "message_id", _MESSAGE_ID)
    if p.timestamp is not None:
        flags |= _TIMESTAMP
        write_unsigned(w, p.timestamp, "timestamp")
    flags |= _put_string(w, p.type, "type", _TYPE)
    flags |= _put_string(w, p.user_id, "user_id", _USER_ID)
    flags |= _put_string(w, p.app_id, "app_id", _APP_ID)
    flags |= _put_string(w, p.cluster_id, "cluster_id", _CLUSTER_ID)
    w[0] = u8(flags >> 8)
    w[1] = u8(flags & 0xFF)
    made = w.getvalue()
    if len(made) > BYTES_MAX:
        raise _too_long(len(made))
    if headers_end - headers_at > FIELDS_MAX:
        # an item of an array takes one byte at least
        _check_count(check_table(made, headers_at + 4, headers_end))
    return made


def of_fields(
    content_type: str | None,
    headers: dict[str, object],
    persistent: bool,
    priority: int,
    correlation_id: str | None,
    reply_to: str | None,
    message_id: str | None,
    timestamp_ms: int | None,
    kind: str | None,
) -> bytes:
    """The property list of what a publisher says of a message, whatever it says it in: JSON, a query, Python.

    A priority that AMQP's octet cannot hold, and the milliseconds of the timestamp, are no part of it. An error names
    the property, and `headers` for anything in them.
    """
    made = Properties(
        content_type=content_type,
        headers=headers or None,
        delivery_mode=2 if persistent else 1,
        priority=priority if 0 < priority < 256 else None,
        correlation_id=correlation_id,
        reply_to=reply_to,
        message_id=message_id,
        timestamp=None if timestamp_ms is None else timestamp_ms // 1000,
        type=kind,
    )
    return encode_named(made)


def encode_named(properties: Properties) -> bytes:
    """As `encode`; an error names one of the properties that publishers know, else `headers`."""
    try:
        return encode(properties)
    except InvalidArgument as error:
        if error.argument not in _NAMED:
            error.argument = "headers"
        raise


def of_type(content_type: str | None) -> bytes:
    """The property list of a persistent message of which nothing but its content type is known."""
    key = content_type or ""
    props = _types.get(key)
    if props is None:
        props = encode_named(Properties(content_type=content_type or None, delivery_mode=2))
        if len(_types) < TYPES_MAX:
            _types[key] = props
    return props


def decode(data: bytes) -> Properties:
    """All properties of a list. `encode` gives the same bytes again, but for field types Python does not tell apart."""
    size: i64 = len(data)
    flags = _flags(data)
    pos = _values(data, flags)
    p = Properties()
    if flags & _CONTENT_TYPE:
        p.content_type, pos = _short(data, pos, size)
    if flags & _CONTENT_ENCODING:
        p.content_encoding, pos = _short(data, pos, size)
    if flags & _HEADERS:
        stop = _after_sized(data, pos, size)
        p.headers = decode_table(data, pos + 4, stop)
        pos = stop
    if flags & _DELIVERY_MODE:
        p.delivery_mode = _octet(data, pos, size)
        pos += 1
    if flags & _PRIORITY:
        p.priority = _octet(data, pos, size)
        pos += 1
    if flags & _CORRELATION_ID:
        p.correlation_id, pos = _short(data, pos, size)
    if flags & _REPLY_TO:
        p.reply_to, pos = _short(data, pos, size)
    if flags & _EXPIRATION:
        p.expiration, pos = _short(data, pos, size)
    if flags & _MESSAGE_ID:
        p.message_id, pos = _short(data, pos, size)
    if flags & _TIMESTAMP:
        p.timestamp = _seconds(data, pos, size)
        pos += 8
    if flags & _TYPE:
        p.type, pos = _short(data, pos, size)
    if flags & _USER_ID:
        p.user_id, pos = _short(data, pos, size)
    if flags & _APP_ID:
        p.app_id, pos = _short(data, pos, size)
    if flags & _CLUSTER_ID:
        p.cluster_id, pos = _short(data, pos, size)
    if pos != size:
        raise _malformed("bytes follow the last value")
    return p


def check(props: bytes) -> i64:
    """Raise InvalidArgument unless `decode` would succeed; builds nothing. Returns how many fields the headers have."""
    size: i64 = len(props)
    flags = _flags(props)
    count: i64 = 0
    if flags & _HEADERS:
        start = _place(props, flags, _HEADERS)
        count = check_table(props, start + 4, _after_sized(props, start, size))
    if _after_rest(props, _place(props, flags, _MESSAGE_ID), size, flags) != size:
        raise _malformed("the values do not end where the list does")
    return count


def check_published(props: bytes) -> None:
    """Raise InvalidArgument unless a publisher may send this list: it is well-formed and within the limits.

    Every way in by which lists come as bytes checks them so: what was accepted can be decoded by every way out.
    """
    if len(props) <= SMALL_BYTES and props in _sound:
        return
    if len(props) > BYTES_MAX:
        raise _too_long(len(props))
    _check_count(check(props))
    _remember(props)


def readable(props: bytes) -> bytes:
    """A list that was stored: itself, or, if it is malformed, one whose only header holds its bytes.

    Earlier versions accepted lists that they did not look into. What comes out of the journal goes through here, so
    that nothing behind it meets a list that cannot be decoded.
    """
    if len(props) <= SMALL_BYTES and props in _sound:
        return props
    try:
        check(props)
    except InvalidArgument:
        if not props:
            return EMPTY
        return encode(Properties(headers={UNDECODABLE_HEADER: props[: BYTES_MAX - 64]}, delivery_mode=2))
    _remember(props)
    return props


def within(props: bytes, size: i64) -> bytes:
    """The list if it is no longer than `size`, which is 4,000 at least; else the same without its headers."""
    if len(props) <= size:
        return props
    flags = _flags(props)
    start = _place(props, flags, _HEADERS)
    stop = _after_sized(props, start, len(props))
    w = BytesWriter()
    w.write(props[:start])
    write_table(w, {OMITTED_HEADER: int(stop - start - 4)})
    w.write(props[stop:])
    return w.getvalue()


@final
class Places:
    """Where the values of a list stand that lies within other bytes; 0 for those that are not there.

    Texts have their length in the octet there. Headers are the fields from `headers` to `headers_end`.
    """

    def __init__(self) -> None:
        self.content_type: i64 = 0
        self.content_encoding: i64 = 0
        self.headers: i64 = 0
        self.headers_end: i64 = 0
        self.correlation_id: i64 = 0
        self.reply_to: i64 = 0
        self.message_id: i64 = 0
        self.timestamp: i64 = 0

    def read(self, data: bytes, pos: i64, end: i64) -> bool:
        """Look at the list data[pos:end]; False when it is malformed (see `readable`)."""
        try:
            return self._read(data, pos, end)
        except (InvalidArgument, IndexError):
            return False

    def _read(self, data: bytes, pos: i64, end: i64) -> bool:
        # positions only grow: when the last is at the end, no value reached past it
        flags = i64(read_i16_be(data, pos)) & 0xFFFF
        pos = pos + 2 if flags & (_UNDEFINED | _CONTINUED) == 0 else pos + _values(data[pos:end], flags)
        self.content_type = pos if flags & _CONTENT_TYPE else 0
        if flags & _CONTENT_TYPE:
            pos += 1 + data[pos]
        self.content_encoding = pos if flags & _CONTENT_ENCODING else 0
        if flags & _CONTENT_ENCODING:
            pos += 1 + data[pos]
        self.headers = pos + 4 if flags & _HEADERS else 0
        self.headers_end = 0
        if flags & _HEADERS:
            pos = _after_sized(data, pos, end)
            self.headers_end = pos
        if flags & _DELIVERY_MODE:
            pos += 1
        if flags & _PRIORITY:
            pos += 1
        self.correlation_id = pos if flags & _CORRELATION_ID else 0
        if flags & _CORRELATION_ID:
            pos += 1 + data[pos]
        self.reply_to = pos if flags & _REPLY_TO else 0
        if flags & _REPLY_TO:
            pos += 1 + data[pos]
        if flags & _EXPIRATION:
            pos += 1 + data[pos]
        if _after_rest(data, pos, end, flags) != end:
            return False
        self.message_id = pos if flags & _MESSAGE_ID else 0
        if flags & _MESSAGE_ID:
            pos += 1 + data[pos]
        self.timestamp = pos if flags & _TIMESTAMP else 0
        if self.headers:
            check_table(data, self.headers, self.headers_end)
        return True


# One value of a list


def delivery_mode(props: bytes) -> i64:
    """The delivery mode, 0 when absent."""
    flags = _flags(props)
    return _octet(props, _place(props, flags, _DELIVERY_MODE), len(props)) if flags & _DELIVERY_MODE else 0


def priority(props: bytes) -> i64:
    """The priority, -1 when absent."""
    flags = _flags(props)
    return _octet(props, _place(props, flags, _PRIORITY), len(props)) if flags & _PRIORITY else -1


def expiration_ms(props: bytes) -> i64:
    """The expiration, -1 when absent. InvalidArgument unless it is a decimal number of milliseconds."""
    flags = _flags(props)
    if not flags & _EXPIRATION:
        return -1
    pos = _place(props, flags, _EXPIRATION)
    return _milliseconds(props, pos + 1, _after_short(props, pos, len(props)))


def content_type(props: bytes) -> str | None:
    return _string(props, _CONTENT_TYPE)


def correlation_id(props: bytes) -> str | None:
    return _string(props, _CORRELATION_ID)


def reply_to(props: bytes) -> str | None:
    return _string(props, _REPLY_TO)


def message_id(props: bytes) -> str | None:
    return _string(props, _MESSAGE_ID)


def user_id(props: bytes) -> str | None:
    return _string(props, _USER_ID)


def timestamp(props: bytes) -> int | None:
    """Seconds since 1970."""
    flags = _flags(props)
    return _seconds(props, _place(props, flags, _TIMESTAMP), len(props)) if flags & _TIMESTAMP else None


def headers(props: bytes) -> dict[str, object]:
    """All headers; an empty dict when there are none. Of headers with the same name the last counts."""
    flags = _flags(props)
    if not flags & _HEADERS:
        return {}
    pos = _place(props, flags, _HEADERS)
    return decode_table(props, pos + 4, _after_sized(props, pos, len(props)))


def header(props: bytes, name: str) -> object:
    """The value of one header, None when there is none of that name (or it is void); the others are stepped over."""
    flags = _flags(props)
    if not flags & _HEADERS:
        return None
    try:
        key = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    pos = _place(props, flags, _HEADERS)
    end = _after_sized(props, pos, len(props))
    pos += 4
    found: i64 = -1
    while pos < end:
        start = pos + 1
        pos = after_name(props, pos, end)
        if pos - start == len(key) and props[start:pos] == key:
            found = pos
        pos = after_field(props, pos, end)
    return None if found < 0 else read_field(props, found, end, 1)[0]


def header_type(props: bytes, name: str) -> str:
    """The type octet of a header, empty when there is none of that name."""
    flags = _flags(props)
    if not flags & _HEADERS:
        return ""
    pos = _place(props, flags, _HEADERS)
    end = _after_sized(props, pos, len(props))
    pos += 4
    found = ""
    while pos < end:
        key, pos = read_name(props, pos, end)
        if key == name:
            found = chr(props[pos])
        pos = after_field(props, pos, end)
    return found


def with_headers(props: bytes, updates: dict[str, object], keep: bool = False) -> bytes:
    """The list with these headers set. A None value takes the header away; without any left the property goes too,
    unless it is to be kept.

    Headers that are not named keep their bytes, so also the field types that Python does not tell apart.
    """
    flags = _flags(props)
    start = _place(props, flags, _HEADERS)
    stop = start
    kept = BytesWriter()
    if flags & _HEADERS:
        stop = _after_sized(props, start, len(props))
        pos = start + 4
        while pos < stop:
            name, value = read_name(props, pos, stop)
            after = after_field(props, value, stop)
            if name not in updates:
                kept.write(props[pos:after])
            pos = after
    for key, new in cast("dict[object, object]", updates).items():
        if new is not None:
            label = key if isinstance(key, str) else "headers"
            write_short(kept, key, label)
            write_field(kept, new, label, 1)
    keep = (keep and flags & _HEADERS != 0) or len(kept) > 0
    flags = flags | _HEADERS if keep else flags & ~_HEADERS
    w = BytesWriter()
    _put_word(w, flags)
    w.write(props[2:start])
    if keep:
        write_size(w, len(kept), "headers")
        w.write(kept.getvalue())
    w.write(props[stop:])
    return w.getvalue()


def with_reply_to(props: bytes, reply_to: str) -> bytes:
    """The list with another address to reply to; it must have had one."""
    flags = _flags(props)
    start = _place(props, flags, _REPLY_TO)
    w = BytesWriter()
    w.write(props[:start])
    write_short(w, reply_to, "reply_to")
    w.write(props[_after_short(props, start, len(props)) :])
    return w.getvalue()


def without_expiration(props: bytes) -> bytes:
    """The list without its expiration: a dead letter does not expire again."""
    flags = _flags(props)
    if not flags & _EXPIRATION:
        return props
    start = _place(props, flags, _EXPIRATION)
    w = BytesWriter()
    _put_word(w, flags & ~_EXPIRATION)
    w.write(props[2:start])
    w.write(props[_after_short(props, start, len(props)) :])
    return w.getvalue()


# Reading: each checks that what it reads lies before `end`


def _flags(data: bytes) -> i64:
    if len(data) < 2:
        raise _malformed("the flags are missing")
    return i64(read_i16_be(data, 0)) & 0xFFFF


def _values(data: bytes, flags: i64) -> i64:
    """Where the values begin: after the flag words, of which only the first has flags with a meaning."""
    if flags & (_UNDEFINED | _CONTINUED) == 0:
        return 2
    pos: i64 = 2
    word = flags & _UNDEFINED
    more = flags & _CONTINUED
    while more and not word:
        if pos + 2 > len(data):
            raise _malformed("the flags are cut off")
        word = i64(read_i16_be(data, pos)) & 0xFFFF
        more = word & _CONTINUED
        word &= ~_CONTINUED
        pos += 2
    if word:
        raise _malformed("a flag is set that names no property")
    return pos


def _place(data: bytes, flags: i64, wanted: i64) -> i64:
    """Where the value of the property with the flag `wanted` is, or would be."""
    size: i64 = len(data)
    pos = _values(data, flags)
    flag: i64 = _CONTENT_TYPE
    while flag > wanted:
        if flags & flag:
            if flag == _HEADERS:
                pos = _after_sized(data, pos, size)
            elif flag in (_DELIVERY_MODE, _PRIORITY):
                _octet(data, pos, size)
                pos += 1
            elif flag == _TIMESTAMP:
                _seconds(data, pos, size)
                pos += 8
            else:
                pos = _after_short(data, pos, size)
        flag >>= 1
    return pos


def _after_rest(data: bytes, pos: i64, size: i64, flags: i64) -> i64:
    """The position after the properties that follow the expiration."""
    if flags & _MESSAGE_ID:
        pos = _after_short(data, pos, size)
    if flags & _TIMESTAMP:
        pos += 8
    if flags & _TYPE:
        pos = _after_short(data, pos, size)
    if flags & _USER_ID:
        pos = _after_short(data, pos, size)
    if flags & _APP_ID:
        pos = _after_short(data, pos, size)
    if flags & _CLUSTER_ID:
        pos = _after_short(data, pos, size)
    return pos


def _after_short(data: bytes, pos: i64, end: i64) -> i64:
    if pos >= end:
        raise _malformed("a value is missing")
    stop: i64 = pos + 1 + data[pos]
    if stop > end:
        raise _malformed("a string is cut off")
    return stop


def _after_sized(data: bytes, pos: i64, end: i64) -> i64:
    if pos + 4 > end:
        raise _malformed("a length is cut off")
    stop: i64 = pos + 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)
    if stop > end:
        raise _malformed("the headers are cut off")
    return stop


def _short(data: bytes, pos: i64, end: i64) -> tuple[str, i64]:
    stop = _after_short(data, pos, end)
    return data[pos + 1 : stop].decode("utf-8", "surrogateescape"), stop


def _string(data: bytes, flag: i64) -> str | None:
    flags = _flags(data)
    return _short(data, _place(data, flags, flag), len(data))[0] if flags & flag else None


def _octet(data: bytes, pos: i64, end: i64) -> i64:
    if pos >= end:
        raise _malformed("a value is missing")
    return data[pos]


def _seconds(data: bytes, pos: i64, end: i64) -> int:
    if pos + 8 > end:
        raise _malformed("a timestamp is cut off")
    return read_unsigned(data, pos)


def _milliseconds(data: bytes, pos: i64, end: i64) -> i64:
    total: i64 = 0
    if pos == end:
        raise InvalidArgument("the expiration is empty", argument="expiration")
    while pos < end:
        digit: i64 = data[pos] - 0x30
        if digit < 0 or digit > 9:
            raise InvalidArgument("the expiration is not a number of milliseconds", argument="expiration")
        total = total * 10 + digit
        if total > EXPIRATION_MS_MAX:
            raise InvalidArgument(f"the expiration is above {EXPIRATION_MS_MAX} ms", argument="expiration")
        pos += 1
    return total


# Writing


def _put_word(w: BytesWriter, flags: i64) -> None:
    write_i16_be(w, i16(flags if flags < 0x8000 else flags - 0x10000))


def _put_string(w: BytesWriter, text: object, name: str, flag: i64) -> i64:
    if text is None:
        return 0
    write_short(w, text, name)
    return flag


def _put_octet(w: BytesWriter, number: object, name: str, flag: i64) -> i64:
    if number is None:
        return 0
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidType(f"{name} must be int, not {type(number).__name__}", argument=name)
    if number < 0 or number > 255:
        raise InvalidArgument(f"{name} is not in 0..255", argument=name)
    w.append(u8(number))
    return flag


def _remember(props: bytes) -> None:
    if len(props) <= SMALL_BYTES:
        if len(_sound) >= SOUND_MAX:
            _sound.clear()
        _sound[props] = True


def _check_count(fields: i64) -> None:
    if fields > FIELDS_MAX:
        raise InvalidArgument(f"the headers have {fields} fields; at most {FIELDS_MAX} are allowed", argument="table")


def _too_long(size: i64) -> InvalidArgument:
    return InvalidArgument(f"the properties have {size} bytes; at most {BYTES_MAX} are allowed", argument="properties")


def _malformed(what: str) -> InvalidArgument:
    return InvalidArgument(f"malformed properties: {what}", argument="properties")

"""What the broker is about: messages, the way they came, the deaths they died, and the text form of their ids.

A `Message` is one published body, shared by every queue it reached. What differs from queue to queue (sequence,
attempts, due time) is not here but in the queue's entries. Properties stay in their canonical encoding
(`rookery.format.properties`) until somebody asks. The classes are small on purpose: a queued message may cost 200 bytes
beyond its body, all told.
"""

from __future__ import annotations

import hashlib
from typing import Final, final

from mypy_extensions import i32, i64, mypyc_attr, u8

from rookery.errors import InvalidArgument
from rookery.format.bytes import BytesWriter, append, vec, write_i32_be, write_i64_be

NEVER: Final[i64] = 1 << 62
"""A time that does not come; also "no limit" where a number is compared."""

PRIORITY_MIN: Final = -(1 << 63)
PRIORITY_MAX: Final = (1 << 63) - 1

# Message.flags: the low byte are flags, above it stands the journal segment that holds the message (0: none)
PERSISTENT: Final[i32] = 1
DEAD: Final[i32] = 2
"""The message was dead-lettered: its route carries the history."""

SAMPLE_SHIFT: Final[i32] = 2
SAMPLED: Final[i32] = 31 << 2
"""The bits that say whether a message's life is told of (`core.events`): the power of two of its weight, plus 1."""

FLAGS_MASK: Final[i32] = 255

_DASH: Final = 0x2D
_LETTER_A: Final = 0x61

MESSAGE_OVERHEAD_BYTES: Final[i64] = 200
"""What memory accounting adds to body and properties."""


_LATEST_MS: Final = 1 << 62


def check_numbers(priority: int, expires_ms: int, due_ms: int) -> None:
    """Refuse numbers that do not fit: uncompiled, nothing else would."""
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidArgument("priority must be a signed 64-bit number", argument="priority")
    if not 0 <= expires_ms <= _LATEST_MS:
        raise InvalidArgument("expires_ms is no time", argument="expires_ms")
    if not 0 <= due_ms <= _LATEST_MS:
        raise InvalidArgument("due_ms is no time", argument="due_ms")


@final
@mypyc_attr(acyclic=True)
class Death:
    """One line of a message's history: how often, when and why it died in one queue for one reason."""

    def __init__(
        self,
        queue: str,
        reason: str,
        detail: str,
        exchange: str,
        key: str,
        attempts: i64,
        first_ms: i64,
        last_ms: i64,
        count: i64,
        expiration_ms: i64 = -1,
        order: i64 = 0,
        copies: list[str] | None = None,
        row: i64 = 0,
    ) -> None:
        self.queue = queue
        self.reason = reason
        self.detail = detail
        self.exchange = exchange
        self.key = key
        self.attempts: i64 = attempts
        self.first_ms: i64 = first_ms
        self.last_ms: i64 = last_ms
        self.count: i64 = count
        # the time to live the message was published with, -1 for none
        self.expiration_ms: i64 = expiration_ms
        # 0 for the first death of the message, 1 for the next in another queue or for another reason, ...
        self.order: i64 = order
        # other keys it was published with (CC)
        self.copies: list[str] = copies if copies is not None else []
        # where RabbitMQ would have it in the header x-death
        self.row: i64 = row

    def at(self, row: i64) -> Death:
        """The same in another row; deaths are shared by all copies of a letter."""
        if row == self.row:
            return self
        return Death(
            self.queue,
            self.reason,
            self.detail,
            self.exchange,
            self.key,
            self.attempts,
            self.first_ms,
            self.last_ms,
            self.count,
            self.expiration_ms,
            self.order,
            self.copies,
            row,
        )

    def as_dict(self) -> dict[str, object]:
        row: dict[str, object] = {
            "queue": self.queue,
            "reason": self.reason,
            "detail": self.detail,
            "exchange": self.exchange,
            "routing_key": self.key,
            "attempts": self.attempts,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "count": self.count,
        }
        if self.expiration_ms >= 0:
            row["expiration_ms"] = self.expiration_ms
        if self.order:
            row["order"] = self.order
        if self.copies:
            row["copies"] = list(self.copies)
        if self.row:
            row["row"] = self.row
        return row


@final
@mypyc_attr(acyclic=True)
class Route:
    """How a message came: exchange and routing key, and, for a dead letter, its history (newest first).

    Publishers repeat themselves, so one Route is shared by all messages of a (exchange, key); a dead letter has its
    own.
    """

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange = exchange
        self.key = key
        # how protocol and journal write it, kept when first needed
        self.wire: bytes = b""
        self.record: bytes = b""
        self.deaths: list[Death] = []
        self.origin_id: i64 = 0


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Message:
    """One published message. `expires_ms` is a wall time, 0 for none; `refs` counts the queues that hold it."""

    def __init__(
        self, route: Route, props: bytes, body: bytes, id: i64, priority: i64, expires_ms: i64, flags: i32
    ) -> None:
        self.route = route
        self.props = props
        self.body = body
        self.id: i64 = id
        self.priority: i64 = priority
        self.expires_ms: i64 = expires_ms
        self.flags: i32 = flags
        self.refs: i32 = 0

    @property
    def segment(self) -> i64:
        """The journal segment that holds it, 0 while it is not written."""
        return i64(self.flags >> 8)

    def set_segment(self, segment: i64) -> None:
        self.flags = (self.flags & FLAGS_MASK) | (i32(segment) << 8)

    @property
    def public_id(self) -> i64:
        """The number its text id is made of: a dead letter, also a redriven one, keeps that of the message it was."""
        origin = self.route.origin_id
        return origin or self.id

    def size_bytes(self) -> i64:
        return len(self.body) + len(self.props) + MESSAGE_OVERHEAD_BYTES


class MessageIds:
    """Text ids for numbered messages, without storing a text: a keyed permutation written as a UUID (version 4 shape).

    The same number always gives the same text, different numbers different texts, and the number can be got back, so
    a handle that is only a message id needs no table.
    """

    def __init__(self, secret: bytes) -> None:
        self.renew(secret)

    def renew(self, secret: bytes) -> None:
        """Take another secret: the ids of a broker are those of its journal."""
        self.secret = secret
        digest = hashlib.blake2b(secret, digest_size=32, person=b"rookery-ids").digest()
        keys = vec[i64]()
        for i in range(0, 32, 4):
            keys = append(keys, int.from_bytes(digest[i : i + 3], "big"))
        self._keys: vec[i64] = keys

    def uuid(self, number: i64) -> str:
        """A UUID version 4 text for the number of a message."""
        w = BytesWriter()
        self.write_uuid(w, number)
        return w.getvalue().decode("ascii")

    def write_uuid(self, w: BytesWriter, number: i64) -> None:
        """The same, written: ids are part of most answers, so the digits are made eight at a time."""
        high, middle, low = self._mix(number)
        second = _digits((high & 0xFFFF) << 16 | middle >> 16)
        third = _digits((middle & 0xFFFF) << 16 | low >> 32)
        write_i64_be(w, _digits(high >> 16))
        w.append(u8(_DASH))
        write_i32_be(w, i32(second >> 32))
        w.append(u8(_DASH))
        write_i32_be(w, i32(second & 0xFFFFFFFF))
        w.append(u8(_DASH))
        write_i32_be(w, i32(third >> 32))
        w.append(u8(_DASH))
        write_i32_be(w, i32(third & 0xFFFFFFFF))
        write_i64_be(w, _digits(low & 0xFFFFFFFF))

    def packed(self, number: i64) -> bytes:
        """The 16 bytes of that UUID."""
        high, middle, low = self._mix(number)
        return (int(high) << 80 | int(middle) << 48 | int(low)).to_bytes(16, "big")

    def _mix(self, number: i64) -> tuple[i64, i64, i64]:
        """The first 48, the middle 32 and the last 48 bits of a UUID: the number through a Feistel network, and 74 bits
        that follow from it and the secret.
        """
        keys = self._keys
        left = (number >> 24) & 0xFFFFFF
        right = number & 0xFFFFFF
        i: i64 = 0
        while i < 4:
            swapped = right
            right = left ^ _round(right, keys[i])
            left = swapped
            i += 1
        first = _round(left ^ 0x5A5A5A, keys[4]) ^ right
        second = _round(first, keys[5]) ^ left
        third = _round(second, keys[6]) ^ first
        fourth = _round(third, keys[7]) ^ second
        # the version and the variant of the UUID stand in the middle
        middle = (0x4000 | (first & 0xFFF)) << 16 | 0x8000 | (second & 0x3FFF)
        return (left << 24) | right, middle, (third << 24) | fourth

    def number(self, text: str) -> int:
        """The number that `uuid` made this text of, or -1 when it made no such text."""
        if len(text) != 36 or text[8] != "-" or text[13] != "-" or text[18] != "-" or text[23] != "-":
            return -1
        try:
            packed = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            return -1
        return self.unpacked(packed)

    def unpacked(self, packed: bytes) -> int:
        """The number that `packed` made these bytes of, or -1 when it made no such bytes."""
        if len(packed) != 16:
            return -1
        left: i64 = packed[0] << 16 | packed[1] << 8 | packed[2]
        right: i64 = packed[3] << 16 | packed[4] << 8 | packed[5]
        i: i64 = 3
        while i >= 0:
            swapped = left
            left = right ^ _round(left, self._keys[i])
            right = swapped
            i -= 1
        number = (left << 24) | right
        return int(number) if self.packed(number) == packed else -1


def _digits(value: i64) -> i64:
    """The eight hexadecimal digits of 32 bits, as the bytes of their text."""
    spread = (value & 0xFFFF0000) << 16 | (value & 0xFFFF)
    spread = (spread & 0x0000FF000000FF00) << 8 | (spread & 0x000000FF000000FF)
    spread = (spread & 0x00F000F000F000F0) << 4 | (spread & 0x000F000F000F000F)
    letters = ((spread + 0x0606060606060606) >> 4) & 0x0101010101010101
    return spread + 0x3030303030303030 + letters * (_LETTER_A - 0x30 - 10)


def _round(half: i64, key: i64) -> i64:
    """24 bits of 24 bits and a key."""
    mixed = ((half ^ key) * 0x9E3779B1) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 15)) & 0xFFFFFF

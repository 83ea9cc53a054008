"""WebSocket (RFC 6455) as bytes, for servers and clients: the handshake, frames in, frames out. No sockets, no state
beyond what is still arriving.

`Decoder.receive` takes whatever came and gives the messages and control frames that are complete. It keeps no more
than one message, which is bounded before it arrives: a frame that says it is too long is refused by its head. After the
first fault nothing more of the peer is believed; `fault_code` and `fault` say how to close.

The roles differ in one thing: what a client sends is masked, and what a server sends is not (5.1).

No extensions are offered, so a frame with a reserved bit is a fault.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final, final

from mypy_extensions import i16, i64, u8

from rookery.format.bytes import BytesWriter, read_i16_be, read_i64_be, write_i16_be, write_i64_be

# what a frame is: its opcode, section 5.2
CONTINUATION: Final[i64] = 0
TEXT: Final[i64] = 1
BINARY: Final[i64] = 2
CLOSE: Final[i64] = 8
PING: Final[i64] = 9
PONG: Final[i64] = 10

# why a connection is closed, section 7.4.1
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
NO_CODE: Final = 1005
NOT_UTF8: Final = 1007
REFUSED: Final = 1008
TOO_LARGE: Final = 1009
DEFECT: Final = 1011
TRY_LATER: Final = 1013

CONTROL_MAX_BYTES: Final[i64] = 125
PARTS_MAX: Final[i64] = 10_000
"""Of one message: empty ones take room too."""

_ACCEPT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accept_key(key: bytes) -> str | None:
    """The answer to a handshake's key (4.2.2), None when it is no key: 16 bytes in base64."""
    try:
        if len(base64.b64decode(key, validate=True)) != 16:
            return None
    except binascii.Error:
        return None
    return base64.b64encode(hashlib.sha1(key + _ACCEPT, usedforsecurity=False).digest()).decode()


def is_code(code: int) -> bool:
    """Whether a peer may close with this code (7.4)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def close_payload(code: int, reason: str) -> bytes:
    """What a close frame says; of a long reason the beginning."""
    text = reason.encode()[: CONTROL_MAX_BYTES - 2].decode("utf-8", "ignore")
    return code.to_bytes(2, "big") + text.encode()


def read_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame that was received."""
    if not payload:
        return NO_CODE, ""
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()


def put_head(w: BytesWriter, opcode: i64, size: i64) -> None:
    """The head of a whole, unmasked frame."""
    w.append(u8(0x80 | opcode))
    if size < 126:
        w.append(u8(size))
    elif size < 65536:
        w.append(u8(126))
        write_i16_be(w, i16(size if size < 0x8000 else size - 0x10000))
    else:
        w.append(u8(127))
        write_i64_be(w, size)


def frame(opcode: i64, payload: bytes) -> bytes:
    """A whole, unmasked frame."""
    w = BytesWriter()
    put_head(w, opcode, len(payload))
    w.write(payload)
    return w.getvalue()


def masked_frame(opcode: i64, payload: bytes, key: bytes) -> bytes:
    """A whole frame as a client sends it. The key must be four bytes that nobody can foresee (5.3)."""
    whole = frame(opcode, payload)
    head = len(whole) - len(payload)
    return whole[:1] + bytes([whole[1] | 0x80]) + whole[2:head] + key + unmask(payload, key)


def unmask(data: bytes, key: bytes) -> bytes:
    """Mask or unmask (5.3)."""
    size = len(data)
    if not size:
        return b""
    keys = key * (size // 4 + 1)
    plain = int.from_bytes(data, "little") ^ int.from_bytes(keys[:size], "little")
    return plain.to_bytes(size, "little")


@final
class Decoder:
    """See the module's docstring. `fault_code` is 0 as long as there was no fault; `held_bytes` is what of the peer's
    bytes waits here for the rest of a message. It reads what clients send, or with `masked` False what servers send.
    """

    def __init__(self, message_max_bytes: i64, masked: bool = True) -> None:
        self.message_max_bytes: i64 = message_max_bytes
        self._mask_bit: i64 = 0x80 if masked else 0
        self._key_bytes: i64 = 4 if masked else 0
        self.fault_code: i64 = 0
        self.fault = ""
        self.held_bytes: i64 = 0
        self._pieces: list[bytes] = []
        self._piece_bytes: i64 = 0
        self._wanted_bytes: i64 = 2
        self._opcode: i64 = 0
        self._parts: list[bytes] = []
        self._part_bytes: i64 = 0

    def receive(self, data: bytes) -> list[tuple[i64, bytes]]:
        """Opcode and payload of each message and control frame that is complete now."""
        found: list[tuple[i64, bytes]] = []
        if self.fault_code:
            return found
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self._piece_bytes >= self._wanted_bytes:
            pieces = self._pieces
            whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._pieces = []
            self._piece_bytes = 0
            at = self._read_all(whole, found)
            if at < len(whole) and not self.fault_code:
                self._pieces.append(whole[at:] if at else whole)
                self._piece_bytes = len(whole) - at
        self.held_bytes = self._piece_bytes + self._part_bytes
        return found

    def _read_all(self, data: bytes, found: list[tuple[i64, bytes]]) -> i64:
        """Read whole frames; where the first one begins that is not."""
        at: i64 = 0
        end: i64 = len(data)
        while not self.fault_code:
            left = end - at
            if left < 2:
                self._wanted_bytes = 2
                return at
            size: i64 = data[at + 1] & 0x7F
            head: i64 = 2 + self._key_bytes
            if size == 126:
                head += 2
            elif size == 127:
                head += 8
            if not self._may_begin(data[at], data[at + 1], size):
                return at
            if left < head:
                self._wanted_bytes = head
                return at
            if size == 126:
                size = i64(read_i16_be(data, at + 2)) & 0xFFFF
                if size < 126:
                    return self._stop(PROTOCOL_ERROR, "a length is not in its shortest form")
            elif size == 127:
                size = read_i64_be(data, at + 2)
                if 0 <= size < 65536:
                    return self._stop(PROTOCOL_ERROR, "a length is not in its shortest form")
            if size < 0 or size > self.message_max_bytes - (self._part_bytes if data[at] & 0x0F < 8 else 0):
                return self._stop(TOO_LARGE, f"a message is larger than {int(self.message_max_bytes)} bytes")
            if left < head + size:
                self._wanted_bytes = head + size
                return at
            body = at + head
            payload = data[body : body + size]
            if self._key_bytes:
                payload = unmask(payload, data[body - 4 : body])
            self._take(data[at], payload, found)
            at = body + size
        return at

    def _may_begin(self, first: i64, second: i64, size: i64) -> bool:
        """Whether a frame with this beginning is allowed here."""
        opcode = first & 0x0F
        if first & 0x70:
            self._stop(PROTOCOL_ERROR, "a reserved bit is set, and no extension was agreed on")
        elif second & 0x80 != self._mask_bit:
            text = "a client masks its frames" if self._mask_bit else "a server does not mask its frames"
            self._stop(PROTOCOL_ERROR, text)
        elif opcode > PONG or BINARY < opcode < CLOSE:
            self._stop(PROTOCOL_ERROR, f"there is no opcode {int(opcode)}")
        elif opcode >= CLOSE and (not first & 0x80 or size > CONTROL_MAX_BYTES):
            self._stop(PROTOCOL_ERROR, "a control frame is whole and not longer than 125 bytes")
        elif opcode == CONTINUATION and not self._opcode:
            self._stop(PROTOCOL_ERROR, "there is nothing to continue")
        elif self._opcode and (opcode == TEXT or opcode == BINARY):
            self._stop(PROTOCOL_ERROR, "a message begins before the last one ended")
        return self.fault_code == 0

    def _take(self, first: i64, payload: bytes, found: list[tuple[i64, bytes]]) -> None:
        opcode = first & 0x0F
        if opcode >= CLOSE:
            if opcode == CLOSE and not self._is_farewell(payload):
                return
            found.append((opcode, payload))
            return
        if opcode != CONTINUATION:
            self._opcode = opcode
        if not first & 0x80:
            self._parts.append(payload)
            self._part_bytes += len(payload)
            if len(self._parts) > PARTS_MAX:
                self._stop(TOO_LARGE, f"a message has more than {int(PARTS_MAX)} parts")
            return
        if self._parts:
            self._parts.append(payload)
            payload = b"".join(self._parts)
            self._parts = []
            self._part_bytes = 0
        opcode = self._opcode
        self._opcode = 0
        if opcode == TEXT and not is_utf8(payload):
            self._stop(NOT_UTF8, "a text is not UTF-8")
            return
        found.append((opcode, payload))

    def _is_farewell(self, payload: bytes) -> bool:
        """Whether a close frame says something that can be said (5.5.1)."""
        if not payload:
            return True
        if len(payload) == 1 or not is_code((payload[0] << 8) | payload[1]):
            self._stop(PROTOCOL_ERROR, "a close frame has a code that may be sent, or is empty")
        elif not is_utf8(payload[2:]):
            self._stop(NOT_UTF8, "the reason of a close frame is not UTF-8")
        return self.fault_code == 0

    def _stop(self, code: int, text: str) -> i64:
        self.fault_code = code
        self.fault = text
        self._parts = []
        self._part_bytes = 0
        return 0


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

"""WebSocket (RFC 6455) from the asking side, without I/O: the handshake's headers, frames out, frames in."""

from __future__ import annotations

import base64
import os
from typing import Final

from rookery.client.http import BrokenAnswer
from rookery.wire.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    CONTROL_MAX_BYTES,
    PARTS_MAX,
    PING,
    PONG,
    TEXT,
    close_payload,
    frame,
    is_utf8,
    unmask,
)

MESSAGE_MAX_BYTES: Final = 256 << 20
"""Of one message, all its frames together."""


def handshake() -> dict[str, str]:
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "rookery.v1",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }


def masked(opcode: int, payload: bytes) -> bytes:
    """A whole frame, masked as a client must."""
    whole = frame(opcode, payload)
    head = whole[: len(whole) - len(payload)]
    key = os.urandom(4)
    return head[:1] + bytes([head[1] | 0x80]) + head[2:] + key + unmask(payload, key)


class Frames:
    """Takes whatever came, and gives the messages and control frames that are complete. What a server may not send
    raises BrokenAnswer.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._opcode = 0
        self._parts: list[bytes] = []
        self._part_bytes = 0

    def receive(self, data: bytes) -> list[tuple[int, bytes]]:
        self._data += data
        found: list[tuple[int, bytes]] = []
        at = 0
        while (end := self._read(at, found)) > at:
            at = end
        del self._data[:at]
        return found

    def _read(self, at: int, found: list[tuple[int, bytes]]) -> int:
        """Read the frame that begins here, if all of it is there; where the next one begins."""
        data = self._data
        if len(data) - at < 2:
            return at
        first, size, head = data[at], data[at + 1], 2
        if size & 0x80 or not self._may_begin(first, size):
            raise BrokenAnswer("a frame is not as a server sends it")
        if size == 126:
            head = 4
        elif size == 127:
            head = 10
        if len(data) - at < head:
            return at
        if head > 2:
            size = int.from_bytes(data[at + 2 : at + head], "big")
        if size > MESSAGE_MAX_BYTES - (self._part_bytes if first & 0x0F < CLOSE else 0):
            raise BrokenAnswer(f"a message is larger than {MESSAGE_MAX_BYTES} bytes")
        stop = at + head + size
        if len(data) < stop:
            return at
        self._take(first, bytes(data[at + head : stop]), found)
        return stop

    def _may_begin(self, first: int, size: int) -> bool:
        """Whether a frame with this beginning is allowed here (RFC 6455, 5.2, 5.4 and 5.5)."""
        opcode = first & 0x0F
        if first & 0x70 or opcode > PONG or BINARY < opcode < CLOSE:
            return False
        if opcode >= CLOSE:
            return first & 0x80 != 0 and size <= CONTROL_MAX_BYTES
        # a message is continued until it is whole, and only then the next one begins
        return (opcode == CONTINUATION) == (self._opcode != 0)

    def _take(self, first: int, payload: bytes, found: list[tuple[int, bytes]]) -> None:
        opcode = first & 0x0F
        if opcode >= CLOSE:
            if opcode == CLOSE and (len(payload) == 1 or not is_utf8(payload[2:])):
                raise BrokenAnswer("a close frame is malformed")
            found.append((opcode, payload))
            return
        if opcode != CONTINUATION:
            self._opcode = opcode
        self._parts.append(payload)
        self._part_bytes += len(payload)
        if len(self._parts) > PARTS_MAX:
            raise BrokenAnswer(f"a message has more than {PARTS_MAX} parts")
        if first & 0x80:
            whole = b"".join(self._parts)
            if self._opcode == TEXT and not is_utf8(whole):
                raise BrokenAnswer("a text is not UTF-8")
            found.append((self._opcode, whole))
            self._opcode = 0
            self._parts = []
            self._part_bytes = 0


__all__ = ["BINARY", "CLOSE", "PING", "PONG", "TEXT", "Frames", "close_payload", "handshake", "masked"]

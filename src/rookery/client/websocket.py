"""WebSocket (RFC 6455) from the asking side, without I/O: the handshake's headers, frames out, frames in."""

from __future__ import annotations

import base64
import os
from typing import Final

from rookery.client.http import BrokenAnswer
from rookery.wire.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, close_payload, frame, unmask

MESSAGE_MAX_BYTES: Final = 256 << 20


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
    """Takes whatever came, and gives the messages and control frames that are complete."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._opcode = 0
        self._parts: list[bytes] = []

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
        if size & 0x80 or first & 0x70:
            raise BrokenAnswer("a frame is not as a server sends it")
        if size == 126:
            head = 4
        elif size == 127:
            head = 10
        if len(data) - at < head:
            return at
        if head > 2:
            size = int.from_bytes(data[at + 2 : at + head], "big")
        if size > MESSAGE_MAX_BYTES:
            raise BrokenAnswer("a frame is too long")
        stop = at + head + size
        if len(data) < stop:
            return at
        self._take(first, bytes(data[at + head : stop]), found)
        return stop

    def _take(self, first: int, payload: bytes, found: list[tuple[int, bytes]]) -> None:
        opcode = first & 0x0F
        if opcode >= CLOSE:
            found.append((opcode, payload))
            return
        if opcode != CONTINUATION:
            self._opcode = opcode
        self._parts.append(payload)
        if first & 0x80:
            found.append((self._opcode, b"".join(self._parts)))
            self._parts = []


__all__ = ["BINARY", "CLOSE", "PING", "PONG", "TEXT", "Frames", "close_payload", "handshake", "masked"]

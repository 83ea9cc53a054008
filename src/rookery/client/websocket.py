"""A WebSocket from the asking side, without I/O: the codec of `wire.websocket` with the client's limits and errors."""

from __future__ import annotations

import base64
import os
from typing import Final

from rookery.wire.http.answers import BrokenAnswer
from rookery.wire.websocket import Decoder, masked_frame

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
    return masked_frame(opcode, payload, os.urandom(4))


class Frames:
    """Takes whatever came, and gives the messages and control frames that are complete. What a server may not send
    raises BrokenAnswer.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(MESSAGE_MAX_BYTES, masked=False)

    def receive(self, data: bytes) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = self._decoder.receive(data)
        if self._decoder.fault_code:
            raise BrokenAnswer(f"a frame is not as a server sends it: {self._decoder.fault}")
        return found

"""WebSocket frames from either side, PROXY headers, and the line protocol."""

from __future__ import annotations

import random

from rookery.client.websocket import Frames
from rookery.errors import InvalidArgument
from rookery.server.proxy import HEADER_MAX_BYTES, SIGNATURE, Reader, Source
from rookery.wire.http.answers import BrokenAnswer
from rookery.wire.websocket import Decoder, accept_key, frame, masked_frame, read_close
from tests.fuzz.target import Target, pieces, words
from tests.wire.line_peer import Broker, Peer

_MESSAGE_MAX_BYTES = 1_000


def _frame(rng: random.Random, masked: bool) -> bytes:
    opcode = rng.choice((0, 1, 1, 2, 2, 8, 9, 10))
    body = words(rng, 40).encode() if opcode == 1 else rng.randbytes(rng.choice((0, 1, 2, 125, 126, 700)))
    if opcode == 8:
        body = rng.choice((1000, 1001, 1011, 4000)).to_bytes(2, "big") + words(rng).encode()
    whole = frame(opcode, body[:125] if opcode >= 8 else body)
    if rng.random() < 0.3 and opcode < 8:
        whole = bytes([whole[0] & 0x7F]) + whole[1:]
    if not masked:
        return whole
    size = len(body[:125] if opcode >= 8 else body)
    sent = masked_frame(opcode, whole[len(whole) - size :], rng.randbytes(4))
    return whole[:1] + sent[1:]


class ServerFrames(Target):
    """The same frames come out whole, byte by byte and in pieces; what is held back is bounded."""

    masked = True
    tokens: tuple[bytes, ...] = (
        b"\x81\x80",
        b"\x82\xfe",
        b"\x82\xff",
        b"\x01\x80",
        b"\x80\x80",
        b"\x88\x82",
        b"\x89\x80",
    )

    def make(self, rng: random.Random) -> bytes:
        return b"".join(_frame(rng, self.masked) for _ in range(rng.randrange(1, 5)))

    def check(self, data: bytes) -> None:
        whole = self._read(data, len(data) or 1)
        for step in (1, 7):
            assert self._read(data, step) == whole
        accept_key(data[:64])

    def _read(self, data: bytes, step: int) -> tuple[list[tuple[int, bytes]], int, str]:
        decoder = Decoder(_MESSAGE_MAX_BYTES, self.masked)
        found: list[tuple[int, bytes]] = []
        for piece in pieces(data, step):
            found += decoder.receive(piece)
            assert decoder.held_bytes <= 2 * _MESSAGE_MAX_BYTES + 14 + len(piece)
        for opcode, payload in found:
            assert len(payload) <= _MESSAGE_MAX_BYTES
            if opcode == 8:
                read_close(payload)
        return found, int(decoder.fault_code), decoder.fault


class ClientFrames(ServerFrames):
    """The same for frames that a client reads; with its own limits all of them come out, or the answer is broken."""

    masked = False
    tokens = (b"\x81\x00", b"\x82\x7e", b"\x82\x7f", b"\x01\x00", b"\x80\x00", b"\x88\x02\x03\xe8", b"\x89\x00")

    def check(self, data: bytes) -> None:
        super().check(data)
        whole = self._heard(data, len(data) or 1)
        for step in (1, 7):
            assert self._heard(data, step) == whole

    def _heard(self, data: bytes, step: int) -> list[tuple[int, bytes]] | None:
        frames = Frames()
        found: list[tuple[int, bytes]] = []
        try:
            for piece in pieces(data, step):
                found += frames.receive(piece)
        except BrokenAnswer:
            return None
        for opcode, payload in found:
            assert opcode in (1, 2, 8, 9, 10)
            if opcode == 8:
                read_close(payload)
            elif opcode == 1:
                payload.decode()
        return found


class ProxyHeaders(Target):
    """The same source, and the same end of the header, whole and byte by byte."""

    tokens = (SIGNATURE, b"PROXY ", b"TCP4 ", b"TCP6 ", b"UNKNOWN", b"\r\n", b"127.0.0.1", b"::1", b"\x21\x11\x00\x0c")

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            kind, address = rng.choice((("TCP4", "192.0.2.7"), ("TCP6", "2001:db8::7"), ("UNKNOWN", "")))
            return f"PROXY {kind} {address} {address} 4711 80\r\nGET".encode()
        family, size = rng.choice(((0x11, 12), (0x21, 36), (0x31, 216), (0x00, 0)))
        size += rng.choice((0, 0, 3, 40))
        return SIGNATURE + bytes([rng.choice((0x20, 0x21)), family]) + size.to_bytes(2, "big") + rng.randbytes(size + 3)

    def check(self, data: bytes) -> None:
        whole = self._read(data, len(data) or 1)
        assert self._read(data, 1) == whole

    def _read(self, data: bytes, step: int) -> tuple[Source | None, int] | None:
        reader = Reader()
        taken = 0
        try:
            for piece in pieces(data, step):
                taken += reader.take(piece)
                if reader.source is not None:
                    break
        except InvalidArgument:
            return None
        assert taken <= min(len(data), HEADER_MAX_BYTES)
        return reader.source, taken


class Lines(Target):
    """Whatever lines a peer sends, its connection does not fail by a defect, and leaves nothing behind."""

    tokens: tuple[bytes, ...] = (
        b"DECLARE_EXCHANGE x topic\n",
        b"DECLARE_QUEUE q\n",
        b"BIND_QUEUE q x a.#\n",
        b"PUBLISH x a.b hello\n",
        b"CONSUME q\n",
        b"CONSUME q prefetch=3 ack=manual\n",
        b"ACK 1\n",
        b"NACK 1\n",
        b"GET q\n",
        b"STATS\n",
        b"HELP\n",
        b"LOGIN u p\n",
        b"QUIT\n",
        b"\r\n",
        b" HTTP/1.1\n",
        b"priority=5 delay_ms=10 ",
        b"\xff\xfe",
        b"\x00",
    )

    def __init__(self) -> None:
        from rookery.wire.line.commands import COMMANDS

        self.tokens = (*self.tokens, *(f"{verb} ".encode() for verb in COMMANDS))

    def make(self, rng: random.Random) -> bytes:
        lines = rng.choices(self.tokens[:13], k=rng.randrange(1, 10))
        return bytes([rng.randrange(256)]) + b"".join(lines)

    def check(self, data: bytes) -> None:
        broker = Broker()
        peer = Peer(broker)
        for piece in pieces(data[1:], 1 + (data[0] if data else 0) * 8):
            peer.connection.data_received(piece)
        broker.sync()
        broker.settle()
        broker.pass_time(1_000)
        peer.received()
        peer.lose()
        assert not [event for event, _ in broker.log if event == "connection_failed"], broker.log
        assert not broker.face.connections
        for queue in broker.tenant.queues.values():
            assert queue.leased == 0

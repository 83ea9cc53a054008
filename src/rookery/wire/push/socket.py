"""A reader over a WebSocket: many messages a frame, and what it asks for (`ops`) answered in order.

    {"type":"messages","messages":[…],"id":…}     to the reader; the id is that of the last message
    {"op":…,"ref":…}                              from the reader
    {"type":"done","ref":…,"result":…}            to it, once the journal has what it speaks of
    {"type":"error","ref":…,"error":…}

What it is sent in one turn is bounded, and nothing is written while it does not read. What it sends is read all the
same, because acks must get through, until too many answers wait.

A peer that was not heard of for `HEARTBEAT_MS` is pinged, and one that stays silent for `DEAD_MS` is dropped. A ping
with a number asks whether everything up to it has arrived: its pong acks what needs no explicit ack.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, final

from mypy_extensions import i64, u8

from rookery.core.entries import Entry, Lease
from rookery.format.bytes import BytesWriter
from rookery.format.model import Message
from rookery.wire import websocket
from rookery.wire.http.call import Call
from rookery.wire.push.json import MessageWriter
from rookery.wire.push.sources import UNCONFIRMED_MAX, Reader, Source
from rookery.wire.turn import BEHIND, CORK_BYTES, HELD, SPLICE_BYTES
from rookery.wire.websocket import Decoder, close_payload, put_head

HEARTBEAT_MS: Final[i64] = 15_000
DEAD_MS: Final[i64] = 45_000
CLOSE_MS: Final[i64] = 5_000
"""How long a peer may take to answer a close frame."""

FRAME_BYTES: Final[i64] = 64 * 1024
"""A frame of messages is not made longer than this, except by one message."""

ANSWERS_MAX: Final[i64] = 1_000
"""How many answers may wait, for the journal or the peer, before no more is read."""

_BEGIN: Final = b'{"type":"messages","messages":['


@final
class Socket(Reader):
    """See the module's docstring. `left` is called when the reader is gone."""

    def __init__(self, call: Call, source: Source, show_lease: bool, left: Any, packed: Any = None) -> None:
        connection = call.connection
        assert connection is not None
        self._call = call
        self._connection = connection
        self._shard = connection.shard
        self._source = source
        self._show_lease = show_lease
        self._left = left
        self.operations: Any = None
        self._decoder = Decoder(connection.face.body_max_bytes)
        self._counted_bytes: i64 = 0
        self._writer = MessageWriter(connection.shard)
        self._writer.packed = packed
        self._batch = BytesWriter()
        self._open = False
        self._gone = False
        # answers with the batch of the journal that each waits for
        self._answers: deque[tuple[bytes, i64]] = deque()
        self._pong: bytes | None = None
        self._pinged: i64 = 0
        self._confirmed: i64 = 0
        self._heard_ms: i64 = self._shard.mono_ms
        self._pinged_ms: i64 = 0
        self._farewell = b""
        self._closing_ms: i64 = 0
        self._said_farewell = False
        self._agreed = False

    # What the source calls

    def delivered(self, entry: Entry, lease: Lease) -> None:
        self._writer.delivery(self._next(), entry, lease, self._show_lease)
        if len(self._batch) >= FRAME_BYTES:
            self._end_frame()

    def record(self, message: Message, partition: i64, offset: i64) -> None:
        self._writer.record(self._next(), message, partition, offset)
        if len(self._batch) >= FRAME_BYTES:
            self._end_frame()

    def ended(self, reason: str) -> None:
        self._say_farewell(websocket.NORMAL, reason)
        self._source.stop()

    def _next(self) -> BytesWriter:
        """Where the next message of the frame is to be written."""
        w = self._batch
        if len(w):
            w.append(u8(0x2C))
        else:
            w.write(_BEGIN)
            self._call.touch()
        return w

    def _end_frame(self) -> None:
        """A frame is full: send it, and when that is much for one turn, go on in the next."""
        connection = self._connection
        if not self._open:
            self._source.pause()
            return
        self._send_frame()
        if connection.out.size() > CORK_BYTES:
            self._source.pause()
            connection.out.corked = True

    def _send_frame(self) -> None:
        w = self._batch
        size: i64 = len(w)
        w.write(b'],"id":"%b"}' % self._source.last_id().encode())
        data = w.getvalue()
        if size > FRAME_BYTES:
            self._batch = BytesWriter()
        else:
            w.truncate(0)
        self._put(websocket.TEXT, data)

    def _put(self, opcode: i64, payload: bytes) -> None:
        out = self._connection.out
        put_head(out.w, opcode, len(payload))
        if len(payload) >= SPLICE_BYTES:
            out.splice(payload, len(payload))
        else:
            out.w.write(payload)
        out.touch()

    # What the connection calls

    def opened(self) -> None:
        self._open = True
        self._heard_ms = self._shard.mono_ms
        if self._connection.write_paused:
            self.stalled()
        else:
            # the source may have been paused until now
            self._connection.out.corked = True

    def received(self, data: bytes) -> None:
        self._heard_ms = self._shard.mono_ms
        if self._decoder.fault_code:
            # a peer that is not understood any more was told so, and answers
            self._agreed = True
            self._call.touch()
            return
        try:
            for opcode, payload in self._decoder.receive(data):
                self._heed(opcode, payload)
        except Exception as error:  # noqa: BLE001 - a defect met by one peer must not reach the others
            face = self._connection.face
            if face.defect is not None:
                face.defect(error, self._call)
            self._say_farewell(websocket.DEFECT, face.explained("the server met a defect of its own", error))
        if self._decoder.fault_code:
            self._say_farewell(int(self._decoder.fault_code), self._decoder.fault)
        self._count(self._decoder.held_bytes)

    def _heed(self, opcode: i64, payload: bytes) -> None:
        if opcode == websocket.CLOSE:
            code, reason = websocket.read_close(payload)
            if code == websocket.NORMAL and reason:
                self._source.left_after(reason)
            self._say_farewell(websocket.NORMAL if code == websocket.NO_CODE else code, "")
            self._agreed = True
            self._call.touch()
        elif self._farewell:
            # what comes behind a farewell is not for anybody
            return
        elif opcode == websocket.PING:
            # the last one is answered, if there were several (5.5.3)
            self._pong = payload
            self._call.touch()
        elif opcode == websocket.PONG:
            self._confirm(payload)
        elif opcode == websocket.TEXT:
            answer, batch = self.operations.do(payload)
            if answer or batch:
                self._answers.append((answer, batch))
                self._call.touch()
                if len(self._answers) > ANSWERS_MAX or (batch and self._connection.turn.held == BEHIND):
                    self._connection.out.pause(HELD)
        else:
            self._say_farewell(websocket.UNSUPPORTED, "requests are JSON, in text frames")

    def _confirm(self, payload: bytes) -> None:
        if payload.isdigit() and len(payload) < 19:
            number: i64 = int(payload)
            if self._confirmed < number <= self._pinged:
                self._confirmed = number
                self._source.confirm(number)

    def _count(self, held_bytes: i64) -> None:
        """Let what waits here count among the bodies of requests that are still arriving."""
        bodies = self._connection.face.bodies
        tenant: str = self._call.principal.tenant
        more = held_bytes - self._counted_bytes
        if more < 0:
            bodies.give(tenant, -more)
        elif more and not bodies.take(tenant, more):
            self._say_farewell(websocket.TRY_LATER, "there are too many large requests under way; try again")
            return
        self._counted_bytes = held_bytes

    def finish(self) -> bool:
        """The turn ends: send what came in it, and the answers that the journal has; whether some wait for it."""
        if not self._open or self._connection.write_paused:
            return False
        if self._agreed:
            if not self._said_farewell:
                self._put(websocket.CLOSE, self._farewell)
            self._connection.out.close()
            return False
        if self._said_farewell:
            return False
        if self._pong is not None:
            self._put(websocket.PONG, self._pong)
            self._pong = None
        if len(self._batch):
            self._send_frame()
        waits = self._send_answers()
        unconfirmed = self._source.unconfirmed()
        if unconfirmed * 2 >= UNCONFIRMED_MAX and self._pinged == self._confirmed:
            self._ping()
        if self._farewell and not waits:
            self._said_farewell = True
            self._put(websocket.CLOSE, self._farewell)
        return waits

    def _send_answers(self) -> bool:
        answers = self._answers
        log = self._shard.log
        while answers:
            answer, batch = answers[0]
            if batch > log.durable:
                if log.failure is not None:
                    answers.clear()
                    self._say_farewell(websocket.DEFECT, str(log.failure))
                    return False
                return True
            answers.popleft()
            if answer:
                self._put(websocket.TEXT, answer)
        self._connection.out.resume(HELD)
        return False

    def stalled(self) -> None:
        self._source.pause()

    def room(self) -> None:
        if self._connection.write_paused or self._gone:
            return
        self._source.resume()
        self._call.touch()
        self._connection.out.touch()

    def recheck(self, still_valid: Any) -> None:
        if not still_valid(self._call.principal):
            self._say_farewell(websocket.REFUSED, "the credential is no longer valid")

    def close(self) -> None:
        self._say_farewell(websocket.GOING_AWAY, "the server ends")

    def lost(self) -> None:
        self._source.stop()
        self._left(self)
        self._gone = True
        self._count(0)
        self._answers.clear()

    # Time

    def tick(self, now_ms: i64) -> None:
        """About once a second, in a turn."""
        connection = self._connection
        expires_ms = self._call.principal.expires_ms
        if expires_ms is not None and self._shard.wall_ms >= expires_ms:
            self._say_farewell(websocket.REFUSED, "the credential is no longer valid")
        if self._farewell:
            if now_ms - self._closing_ms > CLOSE_MS:
                connection.out.close()
            return
        self._source.tick(now_ms, False)
        if not self._open or connection.write_paused:
            return
        silent = now_ms - self._heard_ms
        if silent >= DEAD_MS:
            connection.broken()
            return
        unasked = self._source.unconfirmed() and self._source.sent() > self._pinged
        if unasked or (silent >= HEARTBEAT_MS and now_ms - self._pinged_ms >= HEARTBEAT_MS):
            self._ping()

    def _ping(self) -> None:
        self._pinged_ms = self._shard.mono_ms
        self._pinged = self._source.sent()
        self._put(websocket.PING, b"%d" % int(self._pinged))

    # The end

    def _say_farewell(self, code: int, reason: str) -> None:
        """Take no more messages, and close when the peer has the answers that it waits for, and agrees."""
        if self._farewell:
            return
        self._farewell = close_payload(code, reason)
        self._closing_ms = self._shard.mono_ms
        self._source.pause()
        self._call.touch()

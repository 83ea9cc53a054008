"""What becomes of publishes while publishers are held (see `turn`): they are parked, and the rest goes on.

A peer that only publishes is no longer read. One that has consumers or unsettled deliveries is: of each channel that
published meanwhile all frames are parked, in order, but for acknowledgements, which make the room that everybody waits
for. (In a transaction those belong to what is parked.) When there is room, the parked frames are taken as if they had
just come. A peer that asked for it is told by connection.blocked and unblocked when the reason may last; one that goes
on publishing far beyond what may be parked ends with 506.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i32, i64

from rookery.format.bytes import read_i16_be
from rookery.wire.amqp.codec import (
    BASIC_ACK,
    BASIC_NACK,
    BASIC_REJECT,
    CONNECTION_BLOCKED,
    CONNECTION_UNBLOCKED,
    METHOD,
    begin_method,
    end_method,
    put_method,
    put_short_string,
)
from rookery.wire.turn import BEHIND, FREE, HELD, PARKED_MAX_BYTES, REASONS

if TYPE_CHECKING:
    from rookery.wire.amqp.connection import AmqpConnection

REFUSED_BYTES: Final[i64] = 4 * PARKED_MAX_BYTES


@final
class Parking:
    """The parked frames of one connection."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._turn = connection.turn
        self._frames: list[bytes] = []
        self._bytes: i64 = 0
        self._channels: dict[int, bool] = {}
        self._told = False

    def takes(self, data: bytes, pos: i64, method: i32) -> bool:
        """Whether a frame has to wait: its channel has parked something, and it is no acknowledgement."""
        number = i64(read_i16_be(data, pos + 1)) & 0xFFFF
        if number not in self._channels:
            return False
        channel = self._connection.channels.get(number)
        if channel is None or channel.closing:
            return False
        if data[pos] != METHOD:
            # the content of a message that was under way when publishers came to be held
            return channel.incoming is None
        return channel.tx is not None or (method != BASIC_ACK and method != BASIC_NACK and method != BASIC_REJECT)

    def add(self, data: bytes, pos: i64, after: i64) -> None:
        """Park a frame, or end a peer that has parked too much."""
        connection = self._connection
        turn = self._turn
        if not connection.parked:
            connection.parked = True
            turn.wait_for_room(connection)
        self._channels[i64(read_i16_be(data, pos + 1)) & 0xFFFF] = True
        self._frames.append(data[pos:after])
        self._bytes += after - pos
        turn.parked_bytes += after - pos
        if not connection.out.paused & HELD and not connection.has_deliveries():
            connection.out.pause(HELD)
        if self._bytes > REFUSED_BYTES:
            connection.close(506, f"{REASONS[turn.held]}, and more was published than can wait")
        elif turn.held > BEHIND or self._bytes > PARKED_MAX_BYTES:
            self._tell(turn.held)

    def room(self, held: i64) -> None:
        """There is room, or another reason why there is none."""
        if held == FREE:
            self.release()
        elif held > BEHIND:
            self._tell(held)

    def release(self) -> None:
        """Take what is parked as if it had just come; what finds no room again is parked anew."""
        connection = self._connection
        frames = self._clear()
        connection.take_parked(b"".join(frames))
        if not connection.parked:
            if self._told:
                self._told = False
                put_method(connection.out, 0, CONNECTION_UNBLOCKED)
            connection.read_ms = connection.shard.mono_ms
            connection.out.resume(HELD)

    def forget(self) -> None:
        """The connection ends."""
        self._clear()
        self._turn.leave(self._connection)

    def _clear(self) -> list[bytes]:
        frames = self._frames
        self._frames = []
        self._turn.parked_bytes -= self._bytes
        self._bytes = 0
        self._channels = {}
        self._connection.parked = False
        return frames

    def _tell(self, held: i64) -> None:
        connection = self._connection
        if self._told or not connection.tells_blocked:
            return
        self._told = True
        start = begin_method(connection.out, 0, CONNECTION_BLOCKED)
        put_short_string(connection.out.w, REASONS[held])
        end_method(connection.out, start)

"""An AMQP 0-9-1 connection: bytes in, calls to the core, bytes out. No sockets: a transport only has to take bytes.

    header → start-ok → (login) → tune-ok → open → OPEN → close

Frames are parsed in one loop per read; a tail that holds no whole frame is kept and not looked at again until enough of
it has come. Publishing is done by `publish`, or put off by `parking`; whatever else a channel can be asked
for is done by `methods`.

A `Fault` ends the channel or the connection it concerns. Whatever else goes wrong costs this connection and no other.
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i32, i64

from rookery.core.queue import Queue
from rookery.core.topology import Tenant
from rookery.errors import RookeryError
from rookery.format.bytes import read_i16_be, read_i32_be, read_i64_be, write_i32_be
from rookery.wire.amqp import handshake, methods
from rookery.wire.amqp.channel import ACK, REQUEUE, Channel
from rookery.wire.amqp.codec import (
    BASIC_ACK,
    BASIC_PUBLISH,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CLOSE_OK_FRAME,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
    FRAME_END,
    FRAME_ERROR,
    FRAME_FIRST_BYTES,
    FRAME_MAX_BYTES,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    Arguments,
    Fault,
    begin_method,
    end_method,
    put_channel,
    put_long_string,
    put_method,
    put_short_string,
)
from rookery.wire.amqp.names import reply_text
from rookery.wire.amqp.parking import Parking
from rookery.wire.amqp.publish import Publisher, unexpected
from rookery.wire.turn import FREE, HELD, NO_ACCESS, SHUTDOWN, UNREAD, Face, Outlet, Peer, Turn

# AmqpConnection.state, in the order in which they are passed
AWAIT_HEADER: Final = 0
AWAIT_START_OK: Final = 1
AWAIT_LOGIN: Final = 2
AWAIT_TUNE_OK: Final = 3
AWAIT_OPEN: Final = 4
OPEN: Final = 5
CLOSING: Final = 6
CLOSED: Final = 7

CONNECTION_FORCED: Final[i64] = 320
"""The reply code for a peer that has to go through no fault of its own."""

UNPARSED_MAX_BYTES: Final[i64] = 64 * 1024
"""What a peer may send ahead while its credentials are being verified."""
UNSENT_MAX_BYTES: Final[i64] = 16 * 1024 * 1024
"""What may wait for a peer that does not read, beyond one message of the largest size."""


class AmqpFace(Face):
    """What all AMQP connections of a server share.

    `login(connection, user, password)` must verify the two, now or later, and call `connection.login_done`. When the
    peer opens a vhost, `enter(connection, user, password, tenant)` gives its principal there or raises what refuses it.
    """

    def __init__(self, turn: Turn, login: Any, enter: Any, random_text: Any) -> None:
        super().__init__("amqp", turn)
        self.login = login
        self.enter = enter
        self.random_text = random_text
        self.log: Any = None
        self.channels_max: i64 = 2047
        self.frame_max: i64 = FRAME_MAX_BYTES
        self.heartbeat_sec: i64 = 60
        self.server_properties: dict[str, object] = {}
        self.partial_bytes: i64 = 0
        # who takes answers by direct reply-to under which name
        self.replies: dict[str, Channel] = {}

    def connect(self) -> Peer:
        return AmqpConnection(self)


@final
class AmqpConnection(Peer):
    """One connection, from the first byte to the last. It is its transport's protocol: asyncio calls it as such."""

    def __init__(self, face: AmqpFace) -> None:
        super().__init__()
        self.face = face
        self.turn = face.turn
        self.shard = face.shard
        self.out = Outlet(face.turn, self)
        self.state: i64 = AWAIT_HEADER
        self.user = ""
        self.password = ""
        self.mechanism = ""
        self.vhost = ""
        self.tenant: Tenant | None = None
        self.cancel_notify = False
        self.tells_refusal = False
        self.tells_blocked = False
        self.shared_prefetch = False
        self.channels: dict[int, Channel] = {}
        self.channels_max: i64 = face.channels_max
        self.payload_max: i64 = FRAME_FIRST_BYTES - FRAME_OVERHEAD
        self.heartbeat_ms: i64 = 0
        self.exclusive: list[Queue] = []
        self.write_paused = False
        self.read_ms: i64 = 0
        self.since_ms: i64 = 0
        self._held: list[bytes] = []
        self._held_bytes: i64 = 0
        self._need: i64 = 0
        self._current: Channel | None = None
        self._gone = False
        self._deaf = False
        self._in_login = False
        self._next: i64 = 0
        self.publisher = Publisher(self)
        self.parked = False
        self._parking: Parking | None = None
        self._forcing = False
        self._secret: str | None = None

    # What a transport calls

    def connection_made(self, transport: Any) -> None:
        face = self.face
        self.out.transport = transport
        self.since_ms = self.shard.mono_ms
        self.read_ms = self.shard.mono_ms
        self.out.written_ms = self.shard.mono_ms
        if not face.add(self, transport):
            self._gone = True
            self.state = CLOSED

    def data_received(self, data: bytes) -> None:
        if not self.turn.begin():
            self.broken()
            return
        try:
            self._receive(data)
        except Exception as error:  # noqa: BLE001 - a defect met by one peer must not reach the others
            self._defect(error)
        finally:
            self.turn.end()

    def eof_received(self) -> bool:
        """A peer that will send no more is gone: AMQP has no half-closed connections."""
        return False

    def connection_lost(self, error: Any) -> None:
        self.face.remove(self)
        if self.turn.begin():
            try:
                self._leave()
                self.turn.leave(self)
            finally:
                self.turn.end()
        self.state = CLOSED
        self._deaf = True
        self._held = []
        # the two refer to each other
        self.out.peer = None
        self.out.transport = None

    def pause_writing(self) -> None:
        """The peer does not read: it gets no deliveries until it does, and is not asked for more work."""
        self.write_paused = True
        self._pause_consumers()
        if not self.has_deliveries():
            self.out.pause(UNREAD)

    def resume_writing(self) -> None:
        self.write_paused = False
        self.out.resume(UNREAD)
        if not self.turn.begin():
            return
        try:
            if not self.out.corked:
                self._resume_consumers()
        finally:
            self.turn.end()

    # What a turn calls

    def finish(self) -> bool:
        return self.publisher.confirm()

    def uncork(self) -> None:
        if not self.write_paused:
            self._resume_consumers()

    def broken(self) -> None:
        transport = self.out.transport
        if transport is not None:
            transport.abort()

    def unanswered(self, why: str) -> None:
        self.close(541, why)

    def room(self, held: i64) -> None:
        if self._parking is None:
            return
        try:
            self._parking.room(held)
        except Exception as error:  # noqa: BLE001 - as in data_received
            self._defect(error)

    # Flow

    def cork(self) -> None:
        """Enough for this turn: deliveries go on when the transport has taken what there is."""
        if not self.out.corked:
            self.out.corked = True
            self._pause_consumers()

    def _pause_consumers(self) -> None:
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                consumer.paused = True

    def _resume_consumers(self) -> None:
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                if consumer.paused:
                    consumer.paused = False
                    consumer.queue.mark_dirty()

    def has_deliveries(self) -> bool:
        """Whether the peer consumes, or has something to settle."""
        for channel in self.channels.values():
            if channel.consumers or channel.holds():
                return True
        return False

    def channel_count(self) -> int:
        return len(self.channels)

    def tick(self, now_ms: i64) -> None:
        """Send the heartbeat that is due, and drop a peer that is silent too long."""
        transport = self.out.transport
        if self.state != OPEN:
            if now_ms - self.since_ms > self.face.handshake_ms:
                transport.abort()
            return
        # what is not sent because it waits for the journal counts too
        unsent = self.out.size()
        if self.write_paused:
            unsent += i64(transport.get_write_buffer_size())
        if unsent > UNSENT_MAX_BYTES + self._message_max():
            self._log("connection_dropped", "it does not read what it asked for")
            transport.abort()
            return
        if self.heartbeat_ms == 0:
            return
        if now_ms - self.read_ms > 2 * self.heartbeat_ms and not self.out.paused & HELD:
            self._log("connection_dropped", "no heartbeat")
            transport.abort()
        elif now_ms - self.out.written_ms >= self.heartbeat_ms // 2 and not self.write_paused:
            self.out.touch()
            self.out.w.write(HEARTBEAT_FRAME)

    def _message_max(self) -> i64:
        tenant = self.tenant
        return 0 if tenant is None else tenant.message_bytes_max

    # Frames

    def _receive(self, data: bytes) -> None:
        self.read_ms = self.shard.mono_ms
        if self._deaf:
            # after a broken frame nothing can be told apart, but a peer that was told so ends with close-ok
            if self.state == CLOSING and data.endswith(CLOSE_OK_FRAME):
                self._hang_up()
            return
        pos: i64 = 0
        if self._held_bytes:
            pos = self._complete(data)
            if pos < 0:
                return
        self._take(data, pos)

    def _complete(self, data: bytes) -> i64:
        """Finish the frame that is held with the start of `data`; returns where that ends, -1 when all went into it.

        Only the frame is put together and not all that follows: what follows is large.
        """
        pos: i64 = 0
        while self._held_bytes:
            # what was held during the login may be more than one frame
            lacking = max(0, self._need - self._held_bytes)
            if lacking > len(data) - pos or self.state == AWAIT_LOGIN:
                self._hold(data[pos:])
                return -1
            self._held.append(data[pos : pos + lacking])
            pos += lacking
            self._take(self._unhold(), 0)
            if self._deaf:
                return -1
        return pos

    def _take(self, data: bytes, pos: i64) -> None:
        """Do all that lies in `data` from `pos` on, and hold the rest."""
        if self.state == AWAIT_HEADER:
            pos = self._protocol_header(data)
        again = True
        while again:
            again = False
            try:
                pos = self._parse(data, pos)
            except Fault as fault:
                # only faults of the connection come this far; the frames behind may hold its close-ok
                self.close(fault.code, fault.text, fault.method)
                pos = self._next
                again = fault.code != FRAME_ERROR
                self._deaf = not again
        if pos < len(data) and not self._deaf:
            self._hold(data[pos:])

    def _hold(self, tail: bytes) -> None:
        self._held.append(tail)
        self._held_bytes += len(tail)
        if self.state == AWAIT_LOGIN and self._held_bytes > UNPARSED_MAX_BYTES:
            self.close(505, "too much was sent ahead of the login")

    def _unhold(self) -> bytes:
        held = self._held
        self._held = []
        self._held_bytes = 0
        return b"".join(held)

    def _protocol_header(self, data: bytes) -> i64:
        if len(data) < 8 and PROTOCOL_HEADER.startswith(data):
            self._need = 8
            return 0
        if data[:8] != PROTOCOL_HEADER:
            # spec 4.2.2: say what would have been right, and hang up
            self.out.touch()
            self.out.w.write(PROTOCOL_HEADER)
            self._hang_up()
            return 0
        self.state = AWAIT_START_OK
        handshake.put_start(self)
        return 8

    def _parse(self, data: bytes, pos: i64) -> i64:
        """Take all whole frames from `pos` on; returns where the first that is not whole begins."""
        end: i64 = len(data)
        while end - pos >= 7:
            if self.state != OPEN and (self.state <= AWAIT_HEADER or self.state == AWAIT_LOGIN or self.state == CLOSED):
                return pos
            size = i64(read_i32_be(data, pos + 3))
            if size < 0 or size > self.payload_max:
                raise Fault(FRAME_ERROR, f"a frame of {size & 0xFFFFFFFF} bytes is longer than negotiated")
            after = pos + size + 8
            if after > end:
                self._need = size + 8
                return pos
            self._next = after
            if data[after - 1] != FRAME_END:
                raise Fault(FRAME_ERROR, "a frame does not end where it says")
            kind: i64 = data[pos]
            if self.parked and self._park(data, pos, after, size):
                pos = after
                continue
            if kind == METHOD and size >= 4:
                method = read_i32_be(data, pos + 7)
                if method == BASIC_PUBLISH and self.state == OPEN:
                    if self.turn.held != FREE and not self._forcing:
                        self._park_here(data, pos, after)
                        pos = after
                        continue
                    pos = self.publisher.publish(data, pos, after, end)
                    continue
                if method == BASIC_ACK and self.state == OPEN and size == 13:
                    self._ack(data, pos)
                else:
                    self._method(data, pos, after, method)
            elif kind == HEADER or kind == BODY:
                if self.state == OPEN:
                    self.publisher.content(data, pos, after)
                elif self.state < OPEN:
                    raise Fault(505, "content before the connection is open")
            elif kind != HEARTBEAT or size:
                raise Fault(FRAME_ERROR, f"no frame of type {kind} and {size} bytes is known")
            elif read_i16_be(data, pos + 1):
                raise Fault(505, "a heartbeat belongs to no channel")
            pos = after
        self._need = 7
        return pos

    # Publishes that have to wait

    def _park(self, data: bytes, pos: i64, after: i64, size: i64) -> bool:
        """Park a frame that must not overtake what is parked already."""
        parking = self._parking
        assert parking is not None
        if (
            self._forcing
            or self.state != OPEN
            or not parking.takes(data, pos, read_i32_be(data, pos + 7) if size >= 4 else i32(0))
        ):
            return False
        parking.add(data, pos, after)
        return True

    def _park_here(self, data: bytes, pos: i64, after: i64) -> None:
        if self._parking is None:
            self._parking = Parking(self)
        self._parking.add(data, pos, after)

    def take_parked(self, frames: bytes) -> None:
        """Do what was parked, in a turn that was not begun by bytes from the peer."""
        need = self._need
        after = self._next
        self._take(frames, 0)
        self._need = need
        self._next = after

    def _channel(self, number: i64) -> Channel | None:
        current = self._current
        if current is not None and current.number == number:
            return current
        channel = self.channels.get(number)
        if channel is not None:
            self._current = channel
        return channel

    def open_channel(self, number: i64, method: i32) -> Channel:
        channel = self._channel(number)
        if channel is None:
            raise Fault(504, "expected 'channel.open'", method)
        return channel

    # Methods

    def _ack(self, data: bytes, pos: i64) -> None:
        channel = self.open_channel(i64(read_i16_be(data, pos + 1)) & 0xFFFF, BASIC_ACK)
        if channel.closing:
            return
        if channel.incoming is not None:
            raise unexpected(channel.incoming)
        try:
            if data[pos + 19] & 1:
                channel.settle(read_i64_be(data, pos + 11), True, ACK)
            else:
                channel.ack(read_i64_be(data, pos + 11))
        except Fault as fault:
            self.close_channel(channel, fault.code, fault.reply_text(), BASIC_ACK)

    def _method(self, data: bytes, pos: i64, after: i64, method: i32) -> None:
        try:
            self._channel_method(data, pos, after, method)
        except Fault as fault:
            if fault.method == 0:
                fault.method = method
            raise

    def _channel_method(self, data: bytes, pos: i64, after: i64, method: i32) -> None:
        number = i64(read_i16_be(data, pos + 1)) & 0xFFFF
        arguments = Arguments(data, pos + 11, after - 1)
        if number == 0 or self.state != OPEN:
            self._connection_method(number, arguments, method)
            return
        channel = self._channel(number)
        if method == CHANNEL_OPEN:
            self._channel_open(number, channel)
            return
        if channel is None:
            if method == CHANNEL_CLOSE_OK:
                return
            raise Fault(504, "expected 'channel.open'")
        if method == CHANNEL_CLOSE:
            self._channel_closed(channel, True)
        elif channel.closing:
            if method == CHANNEL_CLOSE_OK:
                self._channel_closed(channel, False)
        elif channel.incoming is not None:
            raise unexpected(channel.incoming)
        else:
            try:
                methods.call(channel, method, arguments)
            except Fault as fault:
                if fault.hard:
                    raise
                self.close_channel(channel, fault.code, fault.reply_text(), method)
            except RookeryError as error:
                self.close_channel(channel, error.amqp, reply_text(error), method)

    def _channel_open(self, number: i64, channel: Channel | None) -> None:
        if channel is not None:
            raise Fault(504, "second 'channel.open' seen")
        if len(self.channels) >= self.channels_max:
            text = f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max"
            self.close(530, f"{text} ({self.channels_max})")
            return
        self.channels[number] = Channel(self, number, self.out)
        start = begin_method(self.out, number, CHANNEL_OPEN_OK)
        put_long_string(self.out.w, b"")
        end_method(self.out, start)

    def close_channel(self, channel: Channel, code: i64, text: str, method: i32) -> None:
        """End a channel for a fault of its peer; from here on it only waits for close-ok."""
        self._end_channel(channel)
        channel.closing = True
        out = self.out
        start = begin_method(out, channel.number, CHANNEL_CLOSE)
        put_close(out, code, text, method)
        end_method(out, start)

    def _end_channel(self, channel: Channel) -> None:
        channel.confirm(self.shard.log)
        incoming = channel.incoming
        if incoming is not None:
            channel.incoming = None
            self.publisher.forget(incoming)
        channel.leave()
        if channel.tx is not None:
            channel.tx.rollback()
        channel.settle_all(REQUEUE)
        self.publisher.forget_targets()
        self._current = None

    def _channel_closed(self, channel: Channel, by_peer: bool) -> None:
        if by_peer:
            if not channel.closing:
                self._end_channel(channel)
            put_method(self.out, channel.number, CHANNEL_CLOSE_OK)
        self._current = None
        self.channels.pop(channel.number, None)

    # The connection's own methods

    def _connection_method(self, number: i64, arguments: Arguments, method: i32) -> None:
        if method == CONNECTION_CLOSE_OK and self.state == CLOSING:
            self._hang_up()
        elif method == CONNECTION_CLOSE and number == 0:
            if self._parking is not None and self.parked:
                # it says goodbye after what it published: that is not lost
                self._forcing = True
                self._parking.release()
            self._leave()
            put_method(self.out, 0, CONNECTION_CLOSE_OK)
            self._hang_up()
        elif self.state == CLOSING:
            return
        elif number:
            raise Fault(504, "no channel may be used before the connection is open")
        elif method == CONNECTION_START_OK and self.state == AWAIT_START_OK:
            self._login(arguments)
        elif method == CONNECTION_TUNE_OK and self.state == AWAIT_TUNE_OK:
            handshake.tune_ok(self, arguments)
            self.state = AWAIT_OPEN
        elif method == CONNECTION_OPEN and self.state == AWAIT_OPEN:
            handshake.enter(self, arguments)
            self.state = OPEN
        elif self.state != OPEN:
            raise Fault(503, f"method {method >> 16}.{method & 0xFFFF} is not expected now")
        elif method == CONNECTION_UPDATE_SECRET:
            secret = arguments.long_string().decode("utf-8", "surrogateescape")
            self._secret = secret
            self.face.login(self, self.user, secret)
        else:
            raise Fault(504, "unexpected method in connection state running")

    def _login(self, arguments: Arguments) -> None:
        handshake.start_ok(self, arguments)
        self.state = AWAIT_LOGIN
        self._in_login = True
        self.face.login(self, self.user, self.password)
        self._in_login = False

    def login_done(self, accepted: bool) -> None:
        """The credentials of start-ok are verified. Called inside a turn."""
        if self.state == OPEN and self._secret is not None:
            secret = self._secret
            self._secret = None
            handshake.secret_updated(self, accepted, secret)
            return
        if self.state != AWAIT_LOGIN:
            return
        if accepted:
            self.state = AWAIT_TUNE_OK
            handshake.put_tune(self)
        elif self.tells_refusal:
            text = f"Login was refused using authentication mechanism {self.mechanism}."
            self.close(403, text + " For details see the broker logfile.")
        else:
            # spec 2.2.4: hang up without a word, for peers that expect no more
            self._hang_up()
        if self._held_bytes and not self._in_login:
            # go on with what the peer sent meanwhile
            self._take(self._unhold(), 0)

    # Ending

    def dismiss(self, why: i64, reason: str) -> None:
        if why == SHUTDOWN:
            text = f"broker forced connection closure with reason '{reason}'"
        elif why == NO_ACCESS:
            text = f"the access of user '{self.user}' has ended"
        else:
            text = f"CONNECTION_FORCED - {reason}"
        self.close(CONNECTION_FORCED, text)

    def close(self, code: i64, text: str, method: i32 = 0) -> None:
        """End the connection: say why, and wait for close-ok."""
        if self.state >= CLOSING:
            return
        if self.state == AWAIT_HEADER:
            self._hang_up()
            return
        self._leave()
        self.state = CLOSING
        self.since_ms = self.shard.mono_ms
        fault = Fault(code, text)
        out = self.out
        start = begin_method(out, 0, CONNECTION_CLOSE)
        put_close(out, code, fault.reply_text(), method)
        end_method(out, start)

    def _hang_up(self) -> None:
        """Close the transport behind what was written; nothing more is read."""
        self._leave()
        self.state = CLOSED
        self.since_ms = self.shard.mono_ms
        self._deaf = True
        self._held = []
        self._held_bytes = 0
        self.out.close()

    def _leave(self) -> None:
        """Give back everything this connection has: subscriptions, leases, exclusive queues. Once."""
        if self._gone:
            return
        self._gone = True
        for channel in self.channels.values():
            channel.confirm(self.shard.log)
            if channel.incoming is not None:
                self.publisher.forget(channel.incoming)
                channel.incoming = None
        if self._parking is not None:
            self._parking.forget()
        for channel in self.channels.values():
            channel.leave()
        for channel in self.channels.values():
            if channel.tx is not None:
                channel.tx.rollback()
            channel.settle_all(REQUEUE)
        self.channels = {}
        self._current = None
        self.publisher.forget_targets()
        tenant = self.tenant
        if tenant is not None:
            for queue in self.exclusive:
                tenant.delete(queue, "exclusive owner gone")
        self.exclusive = []

    def _defect(self, error: Exception) -> None:
        self._log("connection_failed", repr(error))
        self.close(541, self.face.explained("an internal error", error))

    def _log(self, event: str, reason: str) -> None:
        if self.face.log is not None:
            self.face.log(event, self.peer_name, reason)


def put_close(out: Outlet, code: i64, text: str, method: i32) -> None:
    """The arguments of channel.close and connection.close."""
    w = out.w
    put_channel(w, code)
    put_short_string(w, text)
    write_i32_be(w, method)

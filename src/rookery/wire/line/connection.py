"""The line protocol: a command a line, an answer a line, and deliveries in between. No sockets: a transport only has to
take bytes.

    PUBLISH <exchange_name> <routing_key> <message>    →    Message published successfully

Lines are taken in order and answers leave in order, all of a turn in one write, once what they say is in the journal.
A line that cannot be done yet (its publisher is held, a password is being verified) stops those behind it; a connection
that consumes is not stopped but parks its publishes, and answers whatever it sends meanwhile after them.

This module has the connection and publishing, `commands` the other commands, `consumer` the deliveries.
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i64

from rookery.core import publishing, rights
from rookery.core.access import Principal
from rookery.core.queue import REFUSED
from rookery.core.topology import Tenant, Way
from rookery.errors import (
    AccessRefused,
    ExchangeNotFound,
    LimitExceeded,
    MemoryLimitExceeded,
    QueueFull,
    RookeryError,
    Unauthenticated,
)
from rookery.format import properties
from rookery.format.model import PERSISTENT
from rookery.format.properties import Properties
from rookery.wire.line import commands
from rookery.wire.line.consumer import LineConsumer
from rookery.wire.turn import FREE, HELD, PARKED_MAX_BYTES, SHUTDOWN, UNREAD, Face, Outlet, Peer, Turn

LINE_MAX_BYTES: Final[i64] = 16 << 20
FIRST_LINE_MAX_BYTES: Final[i64] = 4096
"""How long a line may be, and how long before the peer has said who it is."""
PARTIAL_FREE_BYTES: Final[i64] = 64 * 1024
"""What has come of a line is refused for lack of memory only if it is more than this."""
UNSENT_MAX_BYTES: Final[i64] = 16 << 20
"""What may wait for a peer that does not read, beyond one message of the largest size."""
WAYS_MAX: Final[i64] = 1_000
IN_LOGIN: Final[i64] = 4
"""A reason not to read a peer (see Outlet.pause): its credentials are being verified."""

DEFAULT_EXCHANGE: Final = "amq.default"
"""How the default exchange, which has no name, is called in a line."""

PUBLISHED: Final = b"Message published successfully"
_PROPS: Final = properties.encode(Properties(delivery_mode=2))


class LineFace(Face):
    """What all line connections of a server share.

    `guest(connection)` gives the principal of a peer that shows no credential, None when it has to show one.
    `login(connection, user, password)` must verify the two, or, without a user, the API key that the password is, now
    or later, and call `connection.login_done`. `later(delay_ms, work)` runs work in a turn of its own and gives
    something to cancel.

    A client that reads its answers and its deliveries through different buffers loses what comes along with an answer:
    so `gap_ms` lie between the answer to CONSUME or ACK and the delivery that follows. A client that has not said
    whether it acknowledges is given `ack_wait_ms` to do so with its first message.
    """

    def __init__(self, turn: Turn, guest: Any, login: Any, later: Any) -> None:
        super().__init__("line", turn)
        self.guest = guest
        self.login = login
        self.later = later
        self.log: Any = None
        self.gap_ms: i64 = 20
        self.ack_wait_ms: i64 = 200
        self.line_max_bytes: i64 = LINE_MAX_BYTES
        self.dlq_suffix = ".DLQ"
        self.partial_bytes: i64 = 0

    def connect(self) -> Peer:
        return LineConnection(self)


@final
class LineConnection(Peer):
    """One connection, as its transport's protocol."""

    def __init__(self, face: LineFace) -> None:
        super().__init__()
        self.face = face
        self.turn = face.turn
        self.shard = face.shard
        self.out = Outlet(face.turn, self)
        self.tenant: Tenant | None = None
        self.consumers: dict[str, LineConsumer] = {}
        self.write_paused = False
        self.since_ms: i64 = 0
        # what came and was not taken: the start of a line, or whole lines that have to wait
        self._rest: list[bytes] = []
        self._rest_bytes: i64 = 0
        self._skipping: RookeryError | None = None
        self._logging_in = False
        self._at_login = False
        self._stopped = False
        self._eof = False
        self._quit = False
        self._deaf = False
        # answers behind a parked publish, and such publishes: (whether it is one, the line)
        self._parked: list[tuple[bool, bytes]] = []
        self._parked_bytes: i64 = 0
        self._lasting = False
        self._gaps: list[LineConsumer] = []
        self._ways: dict[bytes, Way] = {}
        self._props = _PROPS

    # What a transport calls

    def connection_made(self, transport: Any) -> None:
        face = self.face
        self.out.transport = transport
        self.since_ms = self.shard.mono_ms
        if not face.add(self, transport):
            self._deaf = True
            return
        try:
            self._enter(face.guest(self))
        except RookeryError as error:
            self.end(f"Error: {error}")

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._quit:
            return
        if not self.turn.begin():
            self.broken()
            return
        try:
            self._receive(data)
            self._conclude()
        except Exception as error:  # noqa: BLE001 - a defect met by one peer must not reach the others
            self._defect(error)
        finally:
            self.turn.end()

    def eof_received(self) -> bool:
        """A peer that sends no more gets the answers to what it sent, and no more deliveries.

        The start of a line is not a line: nobody knows what would have followed.
        """
        if self._deaf or not self.turn.begin():
            return False
        try:
            self._eof = True
            self._leave(True)
            self._conclude()
        finally:
            self.turn.end()
        # TLS has no half-closed connections
        return self.out.transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Any) -> None:
        if not self.face.remove(self):
            return
        self._deaf = True
        if self.turn.begin():
            try:
                self._leave(True)
                self._forget_rest()
                self._forget_parked()
            finally:
                self.turn.end()
        # the two refer to each other
        self.out.peer = None
        self.out.transport = None

    def pause_writing(self) -> None:
        """The peer does not read: it gets no deliveries until it does, and is not asked for more work."""
        self.write_paused = True
        for consumer in self.consumers.values():
            consumer.heed()
        if not self.consumers:
            self.out.pause(UNREAD)

    def resume_writing(self) -> None:
        self.write_paused = False
        self.out.resume(UNREAD)
        if not self.turn.begin():
            return
        try:
            self._heed()
        finally:
            self.turn.end()

    # What a turn calls

    def finish(self) -> bool:
        """Let the gaps begin whose answers leave now; True when these wait for the journal.

        Answers behind a parked publish are not waited for: what this peer consumes may be what makes room.
        """
        if not self._gaps:
            return False
        log = self.shard.log
        if self.out.awaited > log.durable and log.failure is None:
            return True
        gaps = self._gaps
        self._gaps = []
        for consumer in gaps:
            consumer.begin_gap()
        return False

    def uncork(self) -> None:
        self._heed()

    def broken(self) -> None:
        transport = self.out.transport
        if transport is not None:
            transport.abort()

    def unanswered(self, why: str) -> None:
        self.end(f"Error: {why}")

    def room(self, held: i64) -> None:
        """Publish what was parked, and go on with what was stopped."""
        if held != FREE:
            return
        parked = self._parked
        self._parked = []
        self._count_parked(-self._parked_bytes)
        for is_publish, line in parked:
            if is_publish:
                self._do_publish(line)
            else:
                self.answer(line)
        if parked:
            # settles among them were done long ago, but may not be written yet
            self._lasting = True
        self._stopped = False
        self._go_on()
        if not self._stopped:
            self.out.resume(HELD)

    # Flow

    def gap(self, consumer: LineConsumer) -> None:
        """Have a consumer wait until the answers so far have left, and a while longer."""
        if consumer not in self._gaps:
            self._gaps.append(consumer)
        self.turn.expect(self)

    def cork(self) -> None:
        """Enough for this turn: deliveries go on when the transport has taken what there is."""
        if not self.out.corked:
            self.out.corked = True
            for consumer in self.consumers.values():
                consumer.heed()

    def _heed(self) -> None:
        for consumer in self.consumers.values():
            consumer.heed()

    def tick(self, now_ms: i64) -> None:
        if self.principal is None and not self._deaf and now_ms - self.since_ms > self.face.handshake_ms:
            self.end("Error: nobody logged in")
        self._check_unsent()

    def _check_unsent(self) -> None:
        """Drop a peer that asks and does not read."""
        unsent = self.out.size() + self._parked_bytes
        if self.write_paused:
            unsent += i64(self.out.transport.get_write_buffer_size())
        tenant = self.tenant
        if tenant is not None and unsent > UNSENT_MAX_BYTES + tenant.message_bytes_max:
            self.log("connection_dropped", "it does not read what it asked for")
            self.broken()

    # Lines

    def _receive(self, data: bytes) -> None:
        if self._skipping is not None:
            at: i64 = data.find(b"\n")
            if at < 0:
                return
            data = data[at + 1 :]
            self._refuse(self._skipping)
            self._skipping = None
        if self._waits():
            self._hold(data)
        elif not self._rest:
            self._take(data)
        elif data.find(b"\n") < 0:
            self._hold(data)
        else:
            self._take(self._unhold() + data)

    def _waits(self) -> bool:
        """Whether lines have to wait."""
        return self._logging_in or self._stopped

    def _go_on(self) -> None:
        """Take the lines that had to wait."""
        if self._rest and not self._waits():
            self._take(self._unhold())
        self._conclude()

    def _take(self, data: bytes) -> None:
        """Do all whole lines, and hold the rest."""
        pos: i64 = 0
        while not self._deaf and not self._logging_in and not self._quit:
            at: i64 = data.find(b"\n", pos)
            if at < 0:
                break
            line = data[pos:at]
            if line.endswith(b"\r"):
                line = line[:-1]
            if not self._line(line):
                break
            pos = at + 1
        if pos < len(data) and not self._deaf and not self._quit:
            self._hold(data[pos:])

    def _line(self, line: bytes) -> bool:
        """Do one line; False when it has to wait for room."""
        if len(line) > self._line_max():
            if commands.is_command(line):
                self._refuse(self._too_long())
            else:
                self.end(f"Error: {self._too_long()}")
            return True
        try:
            if line.startswith(b"PUBLISH "):
                return self.publish(line)
            return commands.call(self, line)
        except RookeryError as error:
            self._refuse(error)
            return True

    def _line_max(self) -> i64:
        return FIRST_LINE_MAX_BYTES if self.principal is None else self.face.line_max_bytes

    def _too_long(self) -> RookeryError:
        return LimitExceeded(f"a line must not be longer than {int(self._line_max())} bytes")

    def _hold(self, data: bytes) -> None:
        """Keep what cannot be taken yet, within bounds."""
        self._rest.append(data)
        self._rest_bytes += len(data)
        self.face.partial_bytes += len(data)
        size = self._rest_bytes
        if self._waits():
            # it is not read any more, so this is not much; whoever sends on regardless is not listened to
            if size > 2 * PARTIAL_FREE_BYTES + self._line_max():
                self.end("Error: too much was sent ahead")
        elif size > self._line_max():
            self._skip(self._too_long())
        elif (
            size > PARTIAL_FREE_BYTES
            and self.shard.memory_bytes + self.face.partial_bytes > self.shard.memory_bytes_max
        ):
            self._skip(MemoryLimitExceeded())

    def _skip(self, why: RookeryError) -> None:
        """Pass over the line that is coming in, and say why when it has.

        One that is no command may be the first of an HTTP request, of which the other lines must not be taken.
        """
        known = commands.is_command(b"".join(self._rest))
        self._forget_rest()
        if known:
            self._skipping = why
        else:
            self.end(f"Error: {why}")

    def _unhold(self) -> bytes:
        rest = self._rest
        self._forget_rest()
        return rest[0] if len(rest) == 1 else b"".join(rest)

    def _forget_rest(self) -> None:
        self.face.partial_bytes -= self._rest_bytes
        self._rest = []
        self._rest_bytes = 0

    # Answers

    def answer(self, line: bytes) -> None:
        """Say something in answer to the line at hand, after all earlier answers."""
        if self._parked:
            self._parked.append((False, line))
            self._count_parked(len(line))
        else:
            self.say(line)

    def say(self, line: bytes) -> None:
        """Write a line that answers nothing."""
        out = self.out
        if not out.dirty:
            out.touch()
        out.w.write(line)
        out.w.write(b"\n")

    def lasting(self) -> None:
        """What has happened so far must be in the journal before the answer leaves."""
        self._lasting = True

    def _refuse(self, error: RookeryError) -> None:
        self.answer(b"Error: " + commands.one_line(str(error)))

    def _conclude(self) -> None:
        """What had come is done: the answers wait for the journal, and who sends no more is taken leave of."""
        if self._lasting:
            self._lasting = False
            log = self.shard.log
            if log.active:
                log.urgent = True
                self.out.await_batch(log.horizon())
        if (self._eof or self._quit) and not self._deaf and not self._waits() and not self._parked:
            self._hang_up()
        elif not self._deaf:
            self._check_unsent()

    # Publishing

    def publish(self, line: bytes) -> bool:
        """Do a PUBLISH, whose verb is spelled in capitals; False when it has to wait where it is."""
        if self.turn.held == FREE and not self._parked:
            self._do_publish(line)
            return True
        self.turn.wait_for_room(self)
        if not self.consumers and not self._parked:
            self._stopped = True
            self.out.pause(HELD)
            return False
        if self._parked_bytes + len(line) > PARKED_MAX_BYTES:
            raise MemoryLimitExceeded("publishers are held, and too much waits already; try again later")
        self._parked.append((True, line))
        self._count_parked(len(line))
        return True

    def _count_parked(self, size: i64) -> None:
        self._parked_bytes += size
        self.turn.parked_bytes += size

    def _forget_parked(self) -> None:
        self._count_parked(-self._parked_bytes)
        self._parked = []
        self.turn.leave(self)

    def _do_publish(self, line: bytes) -> None:
        key_at: i64 = line.find(b" ", 8)
        body_at: i64 = line.find(b" ", key_at + 1)
        if key_at <= 8 or body_at < 0 or body_at + 1 >= len(line):
            self.answer(commands.usage_of("PUBLISH"))
            return
        try:
            self._post(line[8:body_at], line[body_at + 1 :])
        except RookeryError as error:
            self._refuse(error)
            return
        self.answer(PUBLISHED)

    def _post(self, head: bytes, body: bytes) -> None:
        """Publish a body to the exchange and key that `head` names."""
        way = self._ways.get(head)
        tenant = self.tenant
        if tenant is None or way is None or way.version != tenant.version:
            way = self._way(head)
            tenant = self.tenant
            assert tenant is not None
        shard = self.shard
        message = publishing.new_message(shard, tenant, way, self._props, body, 0, 0, PERSISTENT)
        reached = publishing.post(shard, tenant, way, message, 0, publishing.WHOLE)
        if reached == REFUSED:
            raise QueueFull(f"Queue {publishing.full(tenant, way, message).name} is full", argument="queue")
        if reached:
            self._lasting = True

    def set_trace(self, headers: dict[str, object]) -> None:
        """Have these headers go with what is published from now on."""
        self._props = properties.with_headers(_PROPS, headers) if headers else _PROPS

    def _way(self, head: bytes) -> Way:
        """Where messages of an exchange and key go now, if this peer may send them there."""
        tenant = self.entered()
        name, _, key = head.decode("utf-8", "surrogateescape").partition(" ")
        if name == DEFAULT_EXCHANGE:
            name = ""
        self.require("exchange.publish", "exchange", name)
        exchange = tenant.exchanges.get(name)
        if exchange is None:
            raise ExchangeNotFound(f"Exchange {name} does not exist", argument="exchange")
        if exchange.internal:
            raise AccessRefused(f"Exchange {name} is internal: only exchanges bound to it publish to it")
        if len(self._ways) >= WAYS_MAX:
            self._ways = {}
        way = tenant.way(exchange, key)
        self._ways[head] = way
        return way

    # Who it is

    def entered(self) -> Tenant:
        """The tenant that the peer acts in, once that is known."""
        if self.tenant is None:
            raise Unauthenticated("log in first: AUTH <user> <password> or AUTH <api_key>")
        return self.tenant

    def require(self, operation: str, role: str, name: str) -> None:
        """Refuse what the table of rights (`rookery.core.rights`) does not let this peer do."""
        principal = self.principal
        assert principal is not None
        rights.require(principal, operation, role, name)

    def log_in(self, user: str, password: str) -> None:
        """Verify a credential; lines behind it wait. A peer that fails is nobody, also if it was the guest before."""
        if self.consumers:
            raise AccessRefused("AUTH comes before CONSUME")
        if self.principal is not None:
            self.since_ms = self.shard.mono_ms
        self._enter(None)
        self._logging_in = True
        self._at_login = True
        self.out.pause(IN_LOGIN)
        self.face.login(self, user, password)
        self._at_login = False

    def login_done(self, principal: Principal | None, why: str) -> None:
        """A credential was verified, and is good if there is a principal. Called inside a turn."""
        if not self._logging_in or self._deaf:
            return
        self._logging_in = False
        self.out.resume(IN_LOGIN)
        try:
            self._enter(principal)
        except RookeryError as error:
            why = str(error)
        if self.principal is None:
            self.answer(b"Error: " + commands.one_line(why))
        else:
            self.answer(b"Authenticated successfully")
        if not self._at_login:
            # go on with what the peer sent meanwhile
            self._go_on()

    def _enter(self, principal: Principal | None) -> None:
        self.principal = None
        self.tenant = None
        self._ways = {}
        if principal is not None:
            self.tenant = self.shard.tenant(principal.tenant)
            self.principal = principal

    # Ending

    def take_leave(self) -> None:
        """The peer wants to go: that is the last line of it."""
        self.answer(b"Goodbye")
        self._quit = True
        self._leave(False)

    def dismiss(self, why: i64, reason: str) -> None:
        self.end("" if why == SHUTDOWN else f"Error: {reason}")

    def end(self, text: str) -> None:
        """Say a last word, after which the transport is closed; consumers are told that they stopped."""
        if self._deaf:
            return
        for _ in self.consumers:
            self.say(b"Consumer stopped")
        if text:
            self.say(commands.one_line(text))
        self._hang_up()

    def _hang_up(self) -> None:
        self._deaf = True
        self._leave(False)
        self._forget_rest()
        self._forget_parked()
        self.out.close()

    def _leave(self, lost: bool) -> None:
        """Give back all deliveries. Those of a peer that got lost count as failed, so that a message which kills its
        consumers is dead-lettered in the end.
        """
        consumers = list(self.consumers.values())
        self.consumers = {}
        self._gaps = []
        for consumer in consumers:
            consumer.stop()
        for consumer in consumers:
            consumer.give_back(lost)

    def _defect(self, error: Exception) -> None:
        self.log("connection_failed", repr(error))
        self.end(self.face.explained("Error: an internal error", error))

    def log(self, event: str, reason: str) -> None:
        if self.face.log is not None:
            self.face.log(event, self.peer_name, reason)

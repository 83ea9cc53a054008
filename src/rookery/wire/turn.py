"""One turn of the loop as the protocols see it, and the bytes it leaves for each peer.

A protocol wraps whatever a callback brings in `Turn.begin` and `Turn.end`. In between it calls the core, and everything
that anybody has to be told is written to that peer's `Outlet`. `end` lets the core deliver, asks the peers that are due
for their closing words (confirms), and hands each touched peer's bytes to its transport in one call. A peer whose
transport fails, or is closing already, loses its bytes and harms nobody else.

The core is driven by an *engine*: an object with the attribute `shard` and the methods `begin()`, which passes the time
in, and `end()`, which wakes whoever waits on the shard. When the engine's owner acts by itself (a program that embeds
the broker), peers are touched outside of a turn: then `wake` is called, once, and must see to it that a turn follows
soon, in the thread of the transports. When the journal has answered, the engine calls `progressed`: in a turn of this
kind if it can, whose end then has the closing words that waited for it; else `wake` is called if somebody waits.

The core is flushed once a turn, here. What closing words and failing transports leave for it to deliver is delivered in
a turn that follows at once.

Back-pressure. `Turn.held` says why publishers are held, FREE when they are not. A protocol looks at it before each
publish; nobody else notices. When it is not FREE, the peer

1. calls `turn.wait_for_room(peer)`, after which `peer.room(held)` tells it whenever the reason changes; and
2. if it has neither consumers nor unsettled deliveries, stops being read: `outlet.pause(HELD)`; else it parks its
   publishes, up to `PARKED_MAX_BYTES`, and goes on with everything else that it sends.

`room(FREE)` comes inside a turn and one peer at a time, as long as publishers are not held again: there the peer
publishes what it parked, and is read again with `outlet.resume(HELD)`. A peer that goes calls `turn.leave(peer)`.
BEHIND passes within a sync or two and is not worth a word to the peer; FULL and NO_DISK may last.
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr

from rookery.core.access import Principal
from rookery.core.shard import Shard
from rookery.errors import RookeryError
from rookery.format.bytes import BytesWriter
from rookery.format.model import NEVER

SPLICE_BYTES: Final[i64] = 4096
"""A body this large goes to the transport as it is; a smaller one is cheaper to copy."""

CORK_BYTES: Final[i64] = 256 * 1024
"""How much a peer is given in one turn before its deliveries wait for the next."""

KEEP_BYTES: Final[i64] = 64 * 1024
"""A writer that grew beyond this is not kept: its memory would stay with the connection."""

UNSYNCED_MAX_BYTES: Final[i64] = 8 * 1024 * 1024
"""How much may wait for the journal to take it before publishers are held."""

PARKED_MAX_BYTES: Final[i64] = 4 * 1024 * 1024
"""How much of what it published a peer may have parked while publishers are held."""

# Turn.held: why publishers are held
FREE: Final[i64] = 0
BEHIND: Final[i64] = 1
"""The journal has yet to take more than UNSYNCED_MAX_BYTES."""
FULL: Final[i64] = 2
"""Messages take more memory than is configured."""
NO_DISK: Final[i64] = 3
"""There is too little room on the disk."""

REASONS: Final = ("", "the journal is behind", "low on memory", "low on disk")
"""In words, by `Turn.held`; the last two as clients of RabbitMQ know them from connection.blocked."""

# Outlet.pause: why a peer is not read
UNREAD: Final[i64] = 1
"""It does not read what it is sent."""
HELD: Final[i64] = 2
"""It only publishes, and publishers are held."""

# Peer.dismiss: why a connection has to end
SHUTDOWN: Final[i64] = 0
"""The server stops."""
NO_ACCESS: Final[i64] = 1
"""The access of its principal was revoked or has expired."""
OPERATOR: Final[i64] = 2
"""An operator closed it."""


@final
class Outlet:
    """What is to be sent to one peer at the end of the turn."""

    def __init__(self, turn: Turn, peer: Peer) -> None:
        self.turn = turn
        self.peer: Peer | None = peer
        self.transport: Any = None
        self.w = BytesWriter()
        self.dirty = False
        self.corked = False
        self.closing = False
        self.ending = False
        self.awaited: i64 = 0
        self.written_ms: i64 = 0
        self.paused: i64 = 0
        self._chunks: list[object] = []
        self._chunk_bytes: i64 = 0

    def touch(self) -> None:
        """There is, or will be, something to send."""
        if not self.dirty:
            self.dirty = True
            self.turn.touch(self)

    def await_batch(self, batch: i64) -> None:
        """Send nothing, from the answer just written on, before this batch of the journal is durable."""
        if batch > self.awaited:
            self.awaited = batch

    def size(self) -> i64:
        return len(self.w) + self._chunk_bytes

    def splice(self, part: object, size: i64) -> None:
        """Send a bytes-like object after what was written so far, without copying it."""
        w = self.w
        self._chunks.append(w.getvalue())
        self._chunk_bytes += len(w) + size
        self._chunks.append(part)
        w.truncate(0)

    def pause(self, why: i64) -> None:
        """Read no more from the peer; there may be several reasons at a time."""
        if self.paused == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self.paused |= why

    def resume(self, why: i64) -> None:
        """One reason not to read the peer is gone; it is read again when that was the last."""
        if self.paused == 0:
            return
        self.paused &= ~why
        if self.paused == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the transport once everything written so far is handed over."""
        self.closing = True
        self.touch()

    def end(self) -> None:
        """Say that nothing follows what was written so far. TLS knows no such end: there it is only what was said."""
        self.ending = True
        self.touch()

    def flush(self, now_ms: i64) -> None:
        self.dirty = False
        transport = self.transport
        if transport is None or transport.is_closing():
            self.drop()
            return
        w = self.w
        size: i64 = len(w)
        data = w.getvalue()
        chunks = self._chunks
        if chunks:
            chunks.append(data)
            self._chunks = []
            self._chunk_bytes = 0
        # forgotten before it is handed over: a transport that raises is not offered the same bytes again
        if size > KEEP_BYTES:
            self.w = BytesWriter()
        else:
            w.truncate(0)
        self.written_ms = now_ms
        if chunks:
            transport.writelines(chunks)
        elif size:
            transport.write(data)
        if self.closing:
            transport.close()
        elif self.ending:
            self.ending = False
            if transport.can_write_eof():
                transport.write_eof()

    def drop(self) -> None:
        """Forget what was written."""
        self.dirty = False
        self.w = BytesWriter()
        self._chunks = []
        self._chunk_bytes = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Peer:
    """The far end of one connection, as a turn, its face and the API know it.

    `protocol` is the name of its protocol. `peer_name` is its address, the real one behind a proxy that tells it,
    `network` what of it counts as one address in limits, and `loopback` whether it is on this machine. `certified` is
    the name in its TLS certificate, once verified, and empty without one. `principal` is who it acts for, None until it
    has logged in.
    """

    def __init__(self) -> None:
        self.due = False
        self.waiting = False
        self.protocol = ""
        self.peer_name = ""
        self.network = ""
        self.loopback = False
        self.certified = ""
        self.principal: Principal | None = None

    def label(self) -> str:
        """The id by which operators know this connection."""
        return f"{self.protocol}-{id(self):x}"

    def finish(self) -> bool:
        """The turn ends: say what had to wait for that; True when something has to wait until more is durable."""
        return False

    def uncork(self) -> None:
        """The transport took what it was given: deliveries may go on."""

    def broken(self) -> None:
        """The transport failed."""

    def unanswered(self, why: str) -> None:
        """The journal failed, and answers that waited for it were dropped."""

    def room(self, held: i64) -> None:
        """Publishers, of whom this is a waiting one, are held for another reason now, or, if FREE, no longer."""

    def tick(self, now_ms: i64) -> None:
        """Do what time asks for (heartbeats, handshakes that take too long). Called in a turn, about once a second."""

    def recheck(self, still_valid: Any, everyone: bool) -> None:
        """Dismiss the peer if its principal's access has ended. Without `everyone` only access that expires is checked:
        nobody's rights have changed. Called in a turn.
        """
        principal = self.principal
        if principal is None or not (everyone or principal.expires_ms is not None):
            return
        if not still_valid(principal):
            self.dismiss(NO_ACCESS, f"the access of '{principal.name}' has ended")

    def dismiss(self, why: i64, reason: str) -> None:
        """End the connection in the protocol's own way: tell the peer the reason, then close. `why` is SHUTDOWN,
        NO_ACCESS or OPERATOR. A protocol that has no words for it drops the connection. Called in a turn.
        """
        self.broken()

    def channel_count(self) -> int:
        """How many channels are open on the connection, where the protocol has such."""
        return 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Face:
    """What the connections of one protocol share, and all that a server has to know of a protocol while it runs.

    `connect` makes one connection: a Peer that its transport calls as asyncio does. In `connection_made` it calls
    `add`, and does nothing more if the answer is False; in `connection_lost` it calls `remove`. In between it is among
    the `connections` that the server lists, limits, rechecks and dismisses. A peer that has not opened its connection
    `handshake_ms` after it came is dropped by its `tick`.

    `admit(peer, transport)` is the server's say: it gives a new peer its `peer_name` and what else is known of it, and
    may refuse it. `left(peer)` is told of each admitted one that goes. `explain(error)` is what peers are told about an
    internal error beyond that there was one; nothing by default.
    """

    def __init__(self, protocol: str, turn: Turn) -> None:
        self.protocol = protocol
        self.turn = turn
        self.shard: Shard = turn.shard
        self.admit: Any = None
        self.left: Any = None
        self.explain: Any = None
        self.handshake_ms: i64 = 10_000
        self.connections: dict[int, Peer] = {}
        self.opened: i64 = 0

    def connect(self) -> Peer:
        raise NotImplementedError

    def add(self, peer: Peer, transport: Any) -> bool:
        """Take a new connection in, unless it is refused: then its transport is aborted, and the answer is False."""
        peer.protocol = self.protocol
        if self.admit is not None and not self.admit(peer, transport):
            transport.abort()
            return False
        self.connections[id(peer)] = peer
        self.opened += 1
        return True

    def remove(self, peer: Peer) -> bool:
        """The transport of a connection is lost; False if it was not taken in."""
        if self.connections.pop(id(peer), None) is None:
            return False
        if self.left is not None:
            self.left(peer)
        return True

    def explained(self, text: str, error: Exception) -> str:
        """The text of an internal error for a peer."""
        return text if self.explain is None else f"{text}: {self.explain(error)}"

    def tick(self) -> None:
        """Have every connection do what time asks for. Called in a turn, about once a second."""
        now = self.shard.mono_ms
        for peer in list(self.connections.values()):
            peer.tick(now)

    def recheck(self, still_valid: Any, everyone: bool) -> None:
        """Dismiss those whose access has ended; see `Peer.recheck`."""
        for peer in list(self.connections.values()):
            peer.recheck(still_valid, everyone)

    def close_all(self, reason: str) -> None:
        """Tell every peer that the server stops, and close its transport when it has taken leave. Called in a turn."""
        for peer in list(self.connections.values()):
            peer.dismiss(SHUTDOWN, reason)

    def abort_all(self) -> None:
        """Drop every peer at once."""
        for peer in list(self.connections.values()):
            peer.broken()

    def count_in(self, tenant: str) -> int:
        """How many connections act in a tenant."""
        count = 0
        for peer in self.connections.values():
            principal = peer.principal
            if principal is not None and principal.tenant == tenant:
                count += 1
        return count


@final
class Turn:
    """See the module's docstring."""

    def __init__(self, engine: Any, wake: Any) -> None:
        self.shard: Shard = engine.shard
        self.running = False
        self._engine = engine
        self._wake = wake
        self._woken = False
        self._durable: i64 = 0
        self._dirty: list[Outlet] = []
        self._late: list[Outlet] = []
        self._due: list[Peer] = []
        self._waiting: list[Peer] = []
        self._corked: list[Outlet] = []
        self.held: i64 = FREE
        self.memory_high_bytes: i64 = NEVER
        self.memory_low_bytes: i64 = NEVER
        self.parked_bytes: i64 = 0
        self.on_held: Any = None
        self._wanting: dict[Peer, bool] = {}

    def begin(self) -> bool:
        """Start a turn. False when the engine takes no more of them: then there is no turn to end either."""
        try:
            self._engine.begin()
        except RookeryError:
            return False
        self.running = True
        self._woken = False
        if self._corked:
            self._uncork()
        self._look()
        if self._wanting and self.held == FREE:
            self._make_room()
        return True

    def end(self) -> None:
        try:
            self.shard.flush()
            if self._due or self._waiting:
                self._finish()
            self._flush()
            if (self._wanting and self._reason() == FREE) or self.shard.dirty or self.shard.stirred:
                # those who wait publish in a turn of their own, and what is deliverable only now is delivered in one
                self._wake_once()
        finally:
            # the engine may let another thread in when it ends, so it ends last
            self.running = False
            self._engine.end()

    def touch(self, outlet: Outlet) -> None:
        self._dirty.append(outlet)
        if not self.running:
            self._wake_once()

    def expect(self, peer: Peer) -> None:
        """Have the peer's `finish` called when the turn ends."""
        if not peer.due:
            peer.due = True
            self._due.append(peer)

    def hold_above(self, memory_bytes: i64) -> None:
        """Hold publishers while messages take more memory than this."""
        self.memory_high_bytes = memory_bytes
        self.memory_low_bytes = memory_bytes - memory_bytes // 16

    def wait_for_room(self, peer: Peer) -> None:
        """Have the peer's `room` called when the reason why publishers are held changes."""
        self._wanting[peer] = True

    def leave(self, peer: Peer) -> None:
        """The peer is gone, or has nothing more to publish."""
        self._wanting.pop(peer, None)

    def awaits_journal(self) -> bool:
        """Whether closing words, answers or publishers wait for the journal."""
        return bool(self._waiting or self._late or self._wanting or self.held != FREE)

    def progressed(self) -> None:
        """The journal has answered, or publishes are refused or taken again. A turn that is under way sees that at its
        end; else one follows if anybody waits for it.
        """
        if not self.running and self.awaits_journal():
            self._wake_once()

    def _finish(self) -> None:
        due = self._due
        self._due = []
        log = self.shard.log
        if log.durable != self._durable or log.failure is not None:
            self._durable = log.durable
            for peer in self._waiting:
                peer.waiting = False
                if not peer.due:
                    due.append(peer)
            self._waiting = []
        for peer in due:
            peer.due = False
            if peer.finish() and not peer.waiting:
                peer.waiting = True
                self._waiting.append(peer)

    def _reason(self) -> i64:
        """Why publishers are to be held now; once they are, it takes some slack to let them go."""
        log = self.shard.log
        if log.failure is not None:
            # nothing will ever make room: who publishes is refused instead
            return FREE
        if log.refusing:
            return NO_DISK
        # without what is parked: that waits for room, and must not be what there is no room for
        if self.shard.memory_bytes > (self.memory_low_bytes if self.held == FULL else self.memory_high_bytes):
            return FULL
        if log.bytes > (UNSYNCED_MAX_BYTES // 2 if self.held == BEHIND else UNSYNCED_MAX_BYTES):
            return BEHIND
        return FREE

    def _look(self) -> None:
        """Hold publishers, or let them go."""
        held = self._reason()
        if held == self.held:
            return
        self.held = held
        if self.on_held is not None:
            self.on_held(held)
        if held != FREE:
            for peer in list(self._wanting):
                peer.room(held)

    def _make_room(self) -> None:
        """Let those who wait publish, one after the other, until publishers are held again."""
        for peer in list(self._wanting):
            if self._wanting.pop(peer, False):
                peer.room(FREE)
                self._look()
                if self.held != FREE:
                    return

    def _wake_once(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()

    def _flush(self) -> None:
        if self._late:
            self._look_at_late()
        dirty = self._dirty
        if not dirty:
            return
        self._dirty = []
        now = self.shard.mono_ms
        durable = self.shard.log.durable
        for outlet in dirty:
            if outlet.awaited > durable:
                self._late.append(outlet)
                continue
            try:
                outlet.flush(now)
            except Exception:  # noqa: BLE001 - whatever a transport raises concerns its own peer only
                outlet.drop()
                if outlet.peer is not None:
                    outlet.peer.broken()
            if outlet.corked:
                self._corked.append(outlet)
        if self._corked:
            self._wake_once()

    def _look_at_late(self) -> None:
        """Look again at what waits for the journal. If that failed, nobody knows what was kept: so nothing is said."""
        late = self._late
        self._late = []
        failure = self.shard.log.failure
        for outlet in late:
            if failure is None:
                self._dirty.append(outlet)
                continue
            outlet.awaited = 0
            outlet.drop()
            outlet.touch()
            if outlet.peer is not None:
                outlet.peer.unanswered(str(failure))

    def _uncork(self) -> None:
        corked = self._corked
        self._corked = []
        for outlet in corked:
            if outlet.corked and outlet.peer is not None:
                outlet.corked = False
                outlet.peer.uncork()

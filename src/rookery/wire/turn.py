"""One turn of the loop as the protocols see it, and the bytes it leaves for each peer.

A protocol wraps whatever a callback brings in `Turn.begin` and `Turn.end`. In between it calls the core, and everything
that anybody has to be told is written to that peer's `Outlet`. `end` lets the core deliver, asks the peers that are due
for their closing words (confirms), and hands each touched peer's bytes to its transport in one call. A peer whose
transport fails, or is closing already, loses its bytes and harms nobody else.

The core is driven by an *engine*: an object with the attribute `shard` and the methods `begin()`, which passes the time
in, and `end()`, which wakes whoever waits on the shard. When the engine's owner acts by itself (a program that embeds
the broker), peers are touched outside of a turn: then `wake` is called, once, and must see to it that a turn follows
soon, in the thread of the transports. When closing words have to wait until the journal has something, `watch` is
called, once, and must see to it that a turn follows, begun by `watched`, when more is durable.
"""

from __future__ import annotations

from typing import Any, Final, final

from mypy_extensions import i64

from rookery._bytes import BytesWriter
from rookery.core.shard import Shard
from rookery.errors import RookeryError

SPLICE_BYTES: Final[i64] = 4096
"""A body this large goes to the transport as it is; a smaller one is cheaper to copy."""

CORK_BYTES: Final[i64] = 256 * 1024
"""How much a peer is given in one turn before its deliveries wait for the next."""

KEEP_BYTES: Final[i64] = 64 * 1024
"""A writer that grew beyond this is not kept: its memory would stay with the connection."""


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
        self.written_ms: i64 = 0
        self._chunks: list[object] = []
        self._chunk_bytes: i64 = 0

    def touch(self) -> None:
        """There is, or will be, something to send."""
        if not self.dirty:
            self.dirty = True
            self.turn.touch(self)

    def size(self) -> i64:
        return len(self.w) + self._chunk_bytes

    def splice(self, part: object, size: i64) -> None:
        """Send a bytes-like object after what was written so far, without copying it."""
        w = self.w
        self._chunks.append(w.getvalue())
        self._chunk_bytes += len(w) + size
        self._chunks.append(part)
        w.truncate(0)

    def close(self) -> None:
        """Close the transport once everything written so far is handed over."""
        self.closing = True
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

    def drop(self) -> None:
        """Forget what was written."""
        self.dirty = False
        self.w = BytesWriter()
        self._chunks = []
        self._chunk_bytes = 0


class Peer:
    """The far end of one connection, as a turn knows it."""

    def __init__(self) -> None:
        self.due = False
        self.waiting = False

    def finish(self) -> bool:
        """The turn ends: say what had to wait for that; True when something has to wait until more is durable."""
        return False

    def uncork(self) -> None:
        """The transport took what it was given: deliveries may go on."""

    def broken(self) -> None:
        """The transport failed."""


@final
class Turn:
    """See the module's docstring."""

    def __init__(self, engine: Any, wake: Any, watch: Any) -> None:
        self.shard: Shard = engine.shard
        self.running = False
        self._engine = engine
        self._wake = wake
        self._woken = False
        self._watch = watch
        self._watching = False
        self._durable: i64 = 0
        self._dirty: list[Outlet] = []
        self._due: list[Peer] = []
        self._waiting: list[Peer] = []
        self._corked: list[Outlet] = []

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
        return True

    def end(self) -> None:
        try:
            self.shard.flush()
            if self._due or self._waiting:
                self._finish()
            self._flush()
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

    def watched(self) -> None:
        """What `watch` was called for has happened: a turn follows."""
        self._watching = False

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
        if self._waiting and not self._watching:
            self._watching = True
            self._watch()

    def _wake_once(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()

    def _flush(self) -> None:
        dirty = self._dirty
        if not dirty:
            return
        self._dirty = []
        now = self.shard.mono_ms
        for outlet in dirty:
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

    def _uncork(self) -> None:
        corked = self._corked
        self._corked = []
        for outlet in corked:
            if outlet.corked and outlet.peer is not None:
                outlet.corked = False
                outlet.peer.uncork()

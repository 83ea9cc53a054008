"""A consumer of the line protocol: how a message becomes a line, and how it is settled by that line.

A consumer that has said how it acknowledges is MANUAL or AUTO from the start. One that has not is PROBING: it is given
one message, and what it does with that tells what it is.

    PROBING ── ACK in time ──▶ MANUAL (one message at a time)
       └────── no ACK ───────▶ AUTO ── ACK after all ──▶ MANUAL

While a gap lasts (see LineFace) it has no credit, as when its peer does not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from mypy_extensions import i64

from rookery import spans
from rookery.core.consumers import Subscription
from rookery.core.entries import Entry, Lease
from rookery.core.queue import Queue
from rookery.format import properties
from rookery.format.model import NEVER
from rookery.wire.turn import CORK_BYTES, SPLICE_BYTES

if TYPE_CHECKING:
    from rookery.wire.line.connection import LineConnection

# LineConsumer.mode
PROBING: Final[i64] = 0
AUTO: Final[i64] = 1
MANUAL: Final[i64] = 2

# How a lease is settled
ACK: Final[i64] = 0
RETRY: Final[i64] = 1
RELEASE: Final[i64] = 2
REJECT: Final[i64] = 3

LONG_BYTES: Final[i64] = 64 * 1024
"""Clients written for Raven-MQ read lines up to this length."""

HEAD: Final = b"Consumed message: "
TRACE: Final = b"Trace: "


@final
class LineConsumer(Subscription):
    """See the module's docstring."""

    def __init__(
        self, connection: LineConnection, queue: Queue, mode: i64, prefetch: i64, priority: i64, lease_ms: i64
    ) -> None:
        super().__init__(queue, 0 if mode == AUTO else prefetch, lease_ms, mode == AUTO, priority, False)
        self.connection = connection
        self.mode: i64 = mode
        self.implicit = mode == PROBING
        # unsettled deliveries, by their text without the spaces around it: clients may trim
        self._held: dict[bytes, list[tuple[bytes, Lease]]] = {}
        self._in_gap = False
        self._probe: Any = None
        self._gap: Any = None
        self._warned = False
        self.traced = False

    def peer(self) -> object:
        return self.connection

    # Delivering

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        connection = self.connection
        out = connection.out
        if not out.dirty:
            out.touch()
        text = text_of(entry.message.body)
        if self.traced:
            self._write_trace(entry.message.props)
        out.w.write(HEAD)
        if len(text) >= SPLICE_BYTES:
            out.splice(text, len(text))
            if len(text) + len(HEAD) > LONG_BYTES and not self._warned:
                self._warned = True
                connection.log("long_line", f"queue {self.queue.name!r} holds messages that some clients cannot read")
        else:
            out.w.write(text)
        out.w.write(b"\n")
        if lease is not None:
            self._held.setdefault(text.strip(), []).append((text, lease))
            if self.mode == PROBING:
                self._probe = connection.face.later(connection.face.ack_wait_ms, self._no_ack)
        if out.size() >= CORK_BYTES:
            connection.cork()

    def _write_trace(self, props: bytes) -> None:
        """The trace of the message that follows, if it has one."""
        parent, state = properties.header(props, spans.PARENT), properties.header(props, spans.STATE)
        if isinstance(parent, str):
            words = [str(each) for each in spans.context(parent, state if isinstance(state, str) else "").values()]
            if words:
                self.connection.out.w.write(TRACE + text_of(" ".join(words).encode("utf-8", "replace")) + b"\n")

    def lapsed(self, lease: Lease) -> None:
        text = text_of(lease.entry.message.body).strip()
        left = [each for each in self._held.get(text, []) if each[1] is not lease]
        if left:
            self._held[text] = left
        else:
            self._held.pop(text, None)

    def cancelled(self, reason: str) -> None:
        """The queue is gone."""
        self._cancel_timers()
        if self.connection.consumers.pop(self.queue.name, None) is not None:
            self.connection.say(b"Consumer stopped")
        self.give_back(False)

    # Acknowledging

    def settle(self, text: bytes, outcome: i64) -> bool:
        """Settle the first delivery of that text; False when there is none."""
        if self.implicit and self.mode != MANUAL:
            self.mode = MANUAL
            self.no_ack = False
            self.limit = 1
        if self.limit == 1:
            # the client reads the answer next, and would not see a delivery behind it
            self.pause_for_answer()
        key = text.strip()
        held = self._held.get(key)
        if held is None:
            return False
        at = 0
        if held[0][0] != text:
            at = next((i for i, each in enumerate(held) if each[0] == text), 0)
        _, lease = held.pop(at)
        if not held:
            del self._held[key]
        end_lease(lease, outcome)
        return True

    def _no_ack(self) -> None:
        """No acknowledgement came: this client sends none."""
        if self.mode != PROBING or not self.active:
            return
        self.mode = AUTO
        self.no_ack = True
        self.limit = NEVER
        for held in self._take_held():
            end_lease(held, ACK)
        self.queue.mark_dirty()

    # Flow

    def heed(self) -> None:
        """Take deliveries, or not, as things are."""
        connection = self.connection
        paused = connection.write_paused or connection.out.corked or self._in_gap
        if self.paused and not paused:
            self.queue.mark_dirty()
        self.paused = paused

    def pause_for_answer(self) -> None:
        """Have a gap behind the answer that is being written."""
        if self._gap is not None:
            self._gap.cancel()
            self._gap = None
        self._in_gap = True
        self.paused = True
        self.connection.gap(self)

    def begin_gap(self) -> None:
        """The answer leaves now."""
        if self.active:
            self._gap = self.connection.face.later(self.connection.face.gap_ms, self._end_gap)

    def _end_gap(self) -> None:
        self._gap = None
        self._in_gap = False
        if self.active:
            self.heed()

    # Ending

    def stop(self) -> None:
        """Take no more; what was delivered is still held."""
        self._cancel_timers()
        self.queue.unsubscribe(self)

    def give_back(self, failed: bool) -> None:
        """Settle everything that is held: as failed, or as never delivered."""
        for lease in self._take_held():
            if failed and lease.queue.max_attempts:
                lease.queue.retry(lease, 0, "")
            else:
                lease.queue.release(lease)

    def _take_held(self) -> list[Lease]:
        leases = [each[1] for held in self._held.values() for each in held]
        self._held = {}
        return leases

    def _cancel_timers(self) -> None:
        for timer in (self._probe, self._gap):
            if timer is not None:
                timer.cancel()
        self._probe = None
        self._gap = None


def end_lease(lease: Lease, outcome: i64) -> None:
    queue = lease.queue
    if outcome == ACK:
        queue.ack(lease)
    elif outcome == RETRY:
        queue.retry(lease, -1, "")
    elif outcome == RELEASE:
        queue.release(lease)
    else:
        queue.reject(lease, "")


def text_of(body: bytes) -> bytes:
    """A body as a line can carry it: itself, or, with line breaks in it, with these and backslashes escaped."""
    if b"\n" not in body and b"\r" not in body:
        return body
    return body.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")

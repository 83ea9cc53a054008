"""Where the messages of a reader come from: a queue, under leases, or a stream, from offsets on.

A source hands each message to its reader as it is delivered, and knows what to call it, so that a reader whose
connection broke says which one it saw last and goes on behind it. For a stream that is an offset, and nothing has to be
remembered. For a queue it is a number in a `Session`: the deliveries of one reader, kept for a while after its
connection is gone. What came after the number it names is released, and comes again at once.

A delivery that needs no explicit ack is acked when it was sent `CONFIRM_MS` ago over a connection that still stands, or
as soon as `UNCONFIRMED_MAX` later ones were sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from rookery import properties
from rookery.core.consumers import Subscription
from rookery.core.feeds import OFFSET_HEADER, Feed
from rookery.core.shard import check_subscriptions
from rookery.errors import InvalidArgument, OffsetOutOfRange
from rookery.wire.rest import Rest, content_of, headers_of
from rookery.wire.rest_s2 import Delivery, show

if TYPE_CHECKING:
    from rookery.core.entries import Entry, Lease
    from rookery.core.queue import Queue
    from rookery.core.stream import Stream

CONFIRM_MS: Final = 5_000
UNCONFIRMED_MAX: Final = 1_000
LINGER_MS: Final = 30_000
"""How long a session waits for its reader to come back."""

SESSIONS_MAX: Final = 10_000


class Record(msgspec.Struct, omit_defaults=True):
    """A message of a stream. A body that is neither JSON nor text is in `message_base64`."""

    partition: int
    offset: int
    message: Any
    message_id: str
    routing_key: str
    priority: int = 0
    message_base64: str | None = None
    headers: dict[str, Any] | None = None
    correlation_id: str | None = None
    reply_to: str | None = None


class Reader(Protocol):
    """Whoever is sent the messages."""

    def arrived(self, event_id: str, value: Delivery | Record) -> None: ...

    def ended(self, reason: str) -> None: ...


class Source:
    """See the module's docstring. `start` begins to deliver, `stop` ends it; `pause` and `resume` as room allows."""

    subscriptions: list[Subscription]

    def start(self, reader: Reader) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        for subscription in self.subscriptions:
            subscription.paused = True

    def resume(self) -> None:
        for subscription in self.subscriptions:
            subscription.paused = False
            subscription.queue.mark_dirty()

    def tick(self, now_ms: int, flowing: bool) -> None:
        """About once a second; `flowing` says that the reader takes what it is sent."""


class Session:
    """The deliveries of one reader of a queue, in order, each under its number."""

    def __init__(self, name: str, queue: Queue, explicit: bool) -> None:
        self.name = name
        self.queue = queue
        self.explicit = explicit
        self.source: QueueSource | None = None
        self.last = 0
        self.left_ms = 0
        self._sent: deque[tuple[int, int, Lease]] = deque()

    def add(self, lease: Lease, now_ms: int) -> int:
        self.last += 1
        self._sent.append((self.last, now_ms, lease))
        if len(self._sent) > UNCONFIRMED_MAX:
            self._sent = deque(row for row in self._sent if row[2].live)
            if not self.explicit:
                self._confirm(len(self._sent) - UNCONFIRMED_MAX)
        return self.last

    def confirm_older(self, sent_ms: int) -> None:
        """What was sent before then has arrived."""
        self._confirm(sum(1 for row in self._sent if row[1] <= sent_ms))

    def _confirm(self, count: int) -> None:
        for _ in range(count):
            _, _, lease = self._sent.popleft()
            self.queue.ack(lease)

    def go_on_after(self, number: int) -> None:
        """Its reader is back, and this is the last delivery it knows of."""
        kept: deque[tuple[int, int, Lease]] = deque()
        for row in self._sent:
            if row[0] > number:
                self.queue.release(row[2])
            elif self.explicit:
                kept.append(row)
            else:
                self.queue.ack(row[2])
        self._sent = kept

    def give_up(self) -> None:
        """Its reader does not come back. What it was to ack lapses in its own time."""
        if not self.explicit:
            for _, _, lease in self._sent:
                self.queue.release(lease)
        self._sent.clear()


class Sessions:
    """The sessions of a server, by name."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def find(self, name: str, queue: Queue) -> Session | None:
        session = self._sessions.get(name)
        return session if session is not None and session.queue is queue else None

    def open(self, name: str, queue: Queue, explicit: bool) -> Session:
        if len(self._sessions) >= SESSIONS_MAX:
            self._forget(next((s for s in self._sessions.values() if s.source is None), None))
        session = self._sessions[name] = Session(name, queue, explicit)
        return session

    def tick(self, now_ms: int) -> None:
        gone = [s for s in self._sessions.values() if s.source is None and now_ms - s.left_ms > LINGER_MS]
        for session in gone:
            self._forget(session)

    def _forget(self, session: Session | None) -> None:
        if session is not None:
            session.give_up()
            del self._sessions[session.name]


class _Taker(Subscription):
    """A subscription that hands its deliveries to a source at once."""

    def __init__(self, queue: Queue, limit: int, lease_ms: int, no_ack: bool, source: Any) -> None:
        super().__init__(queue, limit, lease_ms, no_ack, 0, not no_ack)
        self._source = source

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        self._source.delivered(self.queue, entry, lease)

    def cancelled(self, reason: str) -> None:
        self._source.ended(reason)


class QueueSource(Source):
    """A queue, for one reader and its session. `prefix` comes before each event's id; `after` is the number of the last
    delivery that a reader who comes back has seen.
    """

    def __init__(self, rest: Rest, session: Session, credit: int, prefix: str = "", after: int | None = None) -> None:
        check_subscriptions(session.queue)
        self._rest = rest
        self._session = session
        self._prefix = prefix
        self._after = after
        self._reader: Reader | None = None
        lease_ms = rest.options.lease_ms if session.explicit else 0
        self.taker = _Taker(session.queue, credit, lease_ms, False, self)
        self.subscriptions = [self.taker]

    def start(self, reader: Reader) -> None:
        earlier = self._session.source
        if earlier is not None:
            earlier.ended("continued by another connection")
        if self._after is not None:
            self._session.go_on_after(self._after)
        self._session.source = self
        self._reader = reader
        self._session.queue.subscribe(self.taker)

    def delivered(self, queue: Queue, entry: Entry, lease: Lease | None) -> None:
        assert lease is not None
        session = self._session
        number = session.add(lease, int(self._rest.shard.mono_ms))
        tag = lease.token() if session.explicit else None
        reader = self._reader
        assert reader is not None
        reader.arrived(f"{self._prefix}{session.name}:{number}", show(self._rest, entry, tag, int(lease.attempt) - 1))

    def ended(self, reason: str) -> None:
        reader = self._reader
        if reader is not None:
            reader.ended(reason)

    def stop(self) -> None:
        self._reader = None
        self._session.queue.unsubscribe(self.taker)
        if self._session.source is self:
            self._session.source = None
            self._session.left_ms = int(self._rest.shard.mono_ms)

    def tick(self, now_ms: int, flowing: bool) -> None:
        if flowing and not self._session.explicit:
            self._session.confirm_older(now_ms - CONFIRM_MS)


class StreamSource(Source):
    """Some partitions of a stream, each from an offset on. An event's id tells how far all of them were read."""

    def __init__(self, rest: Rest, stream: Stream, positions: dict[int, int]) -> None:
        self._rest = rest
        self._single = len(stream.partitions) == 1
        self._seen = {index: offset - 1 for index, offset in positions.items()}
        self._reader: Reader | None = None
        self._feeds = {index: Feed(stream, {index: offset}) for index, offset in positions.items()}
        self._indexes = {id(feed.queue): index for index, feed in self._feeds.items()}
        self.subscriptions = [_Taker(feed.queue, 0, 0, True, self) for feed in self._feeds.values()]

    def start(self, reader: Reader) -> None:
        self._reader = reader
        for subscription in self.subscriptions:
            subscription.queue.subscribe(subscription)
        for feed in self._feeds.values():
            feed.on_end = self.ended
            feed.fill()

    def delivered(self, queue: Queue, entry: Entry, lease: Lease | None) -> None:
        index = self._indexes[id(queue)]
        headers = headers_of(entry) or {}
        offset = int(headers.pop(OFFSET_HEADER))
        self._seen[index] = offset
        message, coded = content_of(entry)
        stored = entry.message
        record = Record(
            partition=index,
            offset=offset,
            message=message,
            message_id=self._rest.message_id(entry),
            routing_key=stored.route.key,
            priority=int(stored.priority),
            message_base64=coded,
            headers=headers or None,
            correlation_id=properties.correlation_id(stored.props) or None,
            reply_to=properties.reply_to(stored.props) or None,
        )
        reader = self._reader
        assert reader is not None
        reader.arrived(self._event_id(), record)

    def _event_id(self) -> str:
        if self._single:
            return str(self._seen[0])
        return ",".join([f"{index}:{offset}" for index, offset in self._seen.items()])

    def ended(self, reason: str) -> None:
        reader = self._reader
        if reader is not None:
            reader.ended(reason)

    def stop(self) -> None:
        self._reader = None
        for subscription in self.subscriptions:
            subscription.queue.unsubscribe(subscription)
        for feed in self._feeds.values():
            feed.close()


def positions_of(stream: Stream, partition: int | None, start: str, last_id: str) -> dict[int, int]:
    """Where to begin, by partition: behind the last event seen, else at `start`: `first`, `next` or an offset."""
    indexes = range(len(stream.partitions)) if partition is None else [int(stream.partition(partition).index)]
    positions: dict[int, int] = {}
    for index in indexes:
        found = stream.partition(index)
        if start == "first":
            positions[index] = int(found.first)
        elif start == "next":
            positions[index] = int(found.visible)
        elif len(indexes) == 1:
            positions[index] = _number(start, "from")
        else:
            raise InvalidArgument("an offset is of one partition: say which", argument="partition")
    if last_id:
        positions |= _after(stream, last_id, positions)
    for index, position in positions.items():
        end = int(stream.partition(index).visible)
        if position > end:
            raise OffsetOutOfRange(f"partition {index} ends at offset {end}, before {position}", argument="from")
    return positions


def _after(stream: Stream, last_id: str, positions: dict[int, int]) -> dict[int, int]:
    if len(stream.partitions) == 1:
        return {0: _number(last_id, "Last-Event-ID") + 1}
    found: dict[int, int] = {}
    for pair in last_id.split(","):
        index, _, offset = pair.partition(":")
        found[_number(index, "Last-Event-ID")] = _number(offset, "Last-Event-ID") + 1
    return {index: offset for index, offset in found.items() if index in positions}


def _number(text: str, argument: str) -> int:
    text = text.strip()
    if text == "-1" and argument == "Last-Event-ID":
        return -1
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidArgument(f"{argument} is no offset: {text[:100]!r}", argument=argument)
    return int(text)

"""Where the messages of a reader come from: a queue, under leases, or a stream, from offsets on.

A source hands each message to its reader as it is delivered, and knows what to call it, so that a reader whose
connection broke says which one it saw last and goes on behind it. For a stream that is an offset, and nothing has to be
remembered. For a queue it is a number in a `Session`: the deliveries of one reader, kept for a while after its
connection is gone. What came after the number it names is released, and comes again at once.

A delivery that needs no explicit ack is acked once it is known to have arrived. A reader that cannot say so is believed
to have what was sent `CONFIRM_MS` ago over a connection that still stands, or when `UNCONFIRMED_MAX` later ones were
sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr

from rookery.core.consumers import Subscription
from rookery.core.entries import Entry, Lease
from rookery.core.feeds import Tap
from rookery.core.groups import Group, group_of
from rookery.core.queue import Queue
from rookery.core.shard import check_subscriptions
from rookery.core.stream import Stream
from rookery.errors import GroupFenced, InUse, InvalidArgument, LimitExceeded, OffsetOutOfRange
from rookery.format.model import NEVER, Message
from rookery.wire.packed import NONE_SEEN

CONFIRM_MS: Final[i64] = 5_000
UNCONFIRMED_MAX: Final[i64] = 1_000
LINGER_MS: Final[i64] = 30_000
"""How long a session waits for its reader to come back."""

SESSIONS_MAX: Final[i64] = 10_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Reader:
    """Whoever is sent the messages. What a source calls each, its `last_id` tells."""

    def delivered(self, entry: Entry, lease: Lease) -> None:
        """A message of a queue."""
        raise NotImplementedError

    def record(self, message: Message, partition: i64, offset: i64) -> None:
        """A message of a stream."""
        raise NotImplementedError

    def ended(self, reason: str) -> None:
        """There will be no more."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Source:
    """See the module's docstring. `start` begins to deliver, `stop` ends it; `pause` and `resume` as room allows."""

    def start(self, reader: Reader) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def last_id(self) -> str:
        """What the last message is called, for a reader that comes back."""
        raise NotImplementedError

    def done_through(self, id: str) -> int:
        """The reader is done with everything up to the message of that id: how many that were."""
        raise NotImplementedError

    def left_after(self, id: str) -> None:
        """The reader leaves for good, and the message of that id is the last it has seen."""

    def set_credit(self, credit: i64) -> None:
        """From now on, have so many messages out that the reader is not done with."""
        raise NotImplementedError

    def unconfirmed(self) -> i64:
        """How many messages are acked when they are known to have arrived."""
        return 0

    def sent(self) -> i64:
        """The number of the last message, to be `confirm`ed."""
        return 0

    def confirm(self, number: i64) -> None:
        """Everything up to that number has arrived."""

    def tick(self, now_ms: i64, guess: bool) -> None:
        """About once a second; with `guess`, what was sent long ago has arrived."""


@final
class Session:
    """The deliveries of one reader of a queue, in order, each under its number."""

    def __init__(self, name: str, queue: Queue, explicit: bool) -> None:
        self.name = name
        self.queue = queue
        self.explicit = explicit
        self.source: QueueSource | None = None
        self.last: i64 = 0
        self.left_ms: i64 = 0
        self._sent: deque[tuple[i64, i64, Lease]] = deque()

    def add(self, lease: Lease, now_ms: i64) -> None:
        self.last += 1
        self._sent.append((self.last, now_ms, lease))
        if len(self._sent) > UNCONFIRMED_MAX:
            self._sent = deque([row for row in self._sent if row[2].live])
            if not self.explicit:
                self._confirm(len(self._sent) - UNCONFIRMED_MAX)

    def unsettled(self) -> i64:
        return len(self._sent)

    def confirm_older(self, sent_ms: i64) -> None:
        """What was sent before then has arrived."""
        count: i64 = 0
        for row in self._sent:
            if row[1] > sent_ms:
                break
            count += 1
        self._confirm(count)

    def ack_through(self, number: i64) -> int:
        """Ack everything up to that number; how many that were."""
        count = 0
        while self._sent and self._sent[0][0] <= number:
            count += self.queue.ack(self._sent.popleft()[2])
        return count

    def _confirm(self, count: i64) -> None:
        while count > 0:
            count -= 1
            self.queue.ack(self._sent.popleft()[2])

    def go_on_after(self, number: i64) -> None:
        """Its reader is back, and this is the last delivery it knows of."""
        kept: deque[tuple[i64, i64, Lease]] = deque()
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
            for row in self._sent:
                self.queue.release(row[2])
        self._sent = deque()


@final
class Sessions:
    """The sessions of a server, by name."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def find(self, name: str, queue: Queue) -> Session | None:
        session = self._sessions.get(name)
        return session if session is not None and session.queue is queue else None

    def open(self, name: str, queue: Queue, explicit: bool) -> Session:
        if len(self._sessions) >= SESSIONS_MAX:
            for other in self._sessions.values():
                if other.source is None:
                    self._forget(other)
                    break
        session = self._sessions[name] = Session(name, queue, explicit)
        return session

    def tick(self, now_ms: i64) -> None:
        for session in list(self._sessions.values()):
            if session.source is None and now_ms - session.left_ms > LINGER_MS:
                self._forget(session)

    def _forget(self, session: Session) -> None:
        session.give_up()
        del self._sessions[session.name]


@final
class _Taker(Subscription):
    """A subscription that hands its deliveries to a source at once."""

    def __init__(self, source: QueueSource, queue: Queue, limit: i64, lease_ms: i64) -> None:
        super().__init__(queue, limit, lease_ms, False, 0, True)
        self._source = source

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        assert lease is not None
        self._source.delivered(entry, lease)

    def cancelled(self, reason: str) -> None:
        self._source.ended(reason)


@final
class QueueSource(Source):
    """A queue, for one reader and its session. `prefix` comes before each event's id; `after` is the number of the last
    delivery that a reader who comes back has seen, -1 for one who does not. A credit of 0 is no limit.
    """

    def __init__(self, session: Session, credit: i64, lease_ms: i64, prefix: str, after: i64) -> None:
        check_subscriptions(session.queue)
        self._shard = session.queue.shard
        self._session = session
        self._prefix = prefix
        self._after: i64 = after
        self._reader: Reader | None = None
        self._taker = _Taker(self, session.queue, credit, lease_ms if session.explicit else 0)

    def introduce(self, priority: i64, name: str) -> None:
        """Who reads, for a queue that makes a difference."""
        self._taker.priority = priority
        self._taker.name = name

    def start(self, reader: Reader) -> None:
        session = self._session
        earlier = session.source
        if earlier is not None:
            earlier.ended("continued by another connection")
        if self._after >= 0:
            session.go_on_after(self._after)
        session.source = self
        self._reader = reader
        session.queue.subscribe(self._taker)

    def delivered(self, entry: Entry, lease: Lease) -> None:
        self._session.add(lease, self._shard.mono_ms)
        reader = self._reader
        assert reader is not None
        reader.delivered(entry, lease)

    def ended(self, reason: str) -> None:
        reader = self._reader
        if reader is not None:
            reader.ended(reason)

    def stop(self) -> None:
        self._reader = None
        session = self._session
        session.queue.unsubscribe(self._taker)
        if session.source is self:
            session.source = None
            session.left_ms = self._shard.mono_ms

    def pause(self) -> None:
        self._taker.paused = True

    def resume(self) -> None:
        self._taker.paused = False
        self._session.queue.mark_dirty()

    def last_id(self) -> str:
        return f"{self._prefix}{self._session.name}:{self._session.last}"

    def done_through(self, id: str) -> int:
        known, _, number = id.removeprefix(self._prefix).rpartition(":")
        if known != self._session.name or not is_number(number) or int(number) > self._session.last:
            raise InvalidArgument(f"{id[:100]!r} is no id of a message sent here", argument="through")
        return self._session.ack_through(int(number))

    def left_after(self, id: str) -> None:
        known, _, number = id.removeprefix(self._prefix).rpartition(":")
        if id == NONE_SEEN or (known == self._session.name and is_number(number)):
            self._session.queue.unsubscribe(self._taker)
            self._session.go_on_after(0 if id == NONE_SEEN else int(number))

    def set_credit(self, credit: i64) -> None:
        if not self._session.explicit:
            raise InvalidArgument("with ack=auto there is no credit to give", argument="credit")
        self._taker.limit = credit if credit > 0 else NEVER
        self._session.queue.mark_dirty()

    def unconfirmed(self) -> i64:
        return 0 if self._session.explicit else self._session.unsettled()

    def sent(self) -> i64:
        return self._session.last

    def confirm(self, number: i64) -> None:
        if not self._session.explicit:
            self._session.ack_through(number)

    def tick(self, now_ms: i64, guess: bool) -> None:
        if guess and not self._session.explicit:
            self._session.confirm_older(now_ms - CONFIRM_MS)


@final
class _RecordTaker(Tap):
    """A tap that hands its records to a source at once."""

    def __init__(self, source: StreamSource, stream: Stream, positions: dict[int, int]) -> None:
        self._source = source
        super().__init__(stream, positions)

    def hand(self, message: Message, index: i64, offset: i64) -> None:
        self._source.taken(message, index, offset)


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamSource(Source):
    """Some partitions of a stream, each from an offset on. An id tells how far all of them were read.

    With a credit, no more records are out than that beyond those that the reader said it was done with.
    """

    def __init__(self, stream: Stream, positions: dict[int, int], credit: i64 = 0) -> None:
        limits = stream.tenant.limits
        if limits.subscriptions_max and stream.tenant.subscriptions >= limits.subscriptions_max:
            most = limits.subscriptions_max
            raise LimitExceeded(f"tenant {stream.tenant.name!r} has its {most} subscriptions", argument="stream")
        self._stream = stream
        self._single = len(stream.partitions) == 1
        self._reader: Reader | None = None
        self._tap: Tap | None = None
        self._credit: i64 = credit
        self._out: i64 = 0
        self._stalled = False
        self._set_positions(positions)

    def _set_positions(self, positions: dict[int, int]) -> None:
        self._positions = positions
        # by partition: the last record sent, and the last that the reader is done with
        self._seen: dict[int, int] = {index: offset - 1 for index, offset in positions.items()}
        self._done: dict[int, int] = dict(self._seen)
        self._out = 0

    def start(self, reader: Reader) -> None:
        self._reader = reader
        self._stream.tenant.subscriptions += 1
        self._open_tap()

    def _open_tap(self) -> None:
        self._tap = _RecordTaker(self, self._stream, dict(self._positions))
        self._tap.on_end = self._ended
        self._heed()

    def taken(self, message: Message, index: i64, offset: i64) -> None:
        """The next record of a partition."""
        self._out += offset - self._seen[index]
        self._seen[index] = offset
        reader = self._reader
        if reader is not None:
            reader.record(message, index, offset)
        if self._credit and self._out >= self._credit:
            self._heed()

    def _ended(self, reason: str) -> None:
        reader = self._reader
        if reader is not None:
            reader.ended(reason)

    def stop(self) -> None:
        if self._reader is not None:
            self._reader = None
            self._stream.tenant.subscriptions -= 1
        if self._tap is not None:
            self._tap.close()

    def pause(self) -> None:
        self._stalled = True
        self._heed()

    def resume(self) -> None:
        self._stalled = False
        self._heed()

    def _heed(self) -> None:
        """Take records, or not, as things are; what is to be taken is taken at the end of the turn."""
        tap = self._tap
        if tap is not None:
            tap.paused = self._stalled or (self._credit > 0 and self._out >= self._credit)

    def last_id(self) -> str:
        if self._single:
            return str(self._seen[0])
        return ",".join([f"{index}:{offset}" for index, offset in self._seen.items()])

    def done_through(self, id: str) -> int:
        places: dict[int, int] = {}
        for index, offset in places_of(self._stream, id, "through").items():
            if index in self._seen:
                if offset > self._seen[index]:
                    raise InvalidArgument(f"{id[:100]!r} is no id of a record sent here", argument="through")
                if offset > self._done[index]:
                    places[index] = offset
        count = 0
        for index, offset in places.items():
            count += offset - self._done[index]
            self._done[index] = offset
        self._out -= count
        self.done(places)
        self._heed()
        return count

    def done(self, places: dict[int, int]) -> None:
        """The reader is done with everything up to these offsets, by partition."""

    def set_credit(self, credit: i64) -> None:
        self._credit = credit
        self._heed()


@final
class GroupSource(StreamSource):
    """A member's share of a stream: what its group has not been done with. The share changes with the membership.

    `begin(partition)` tells where the group begins in a partition in which it has no place yet. `others` are the
    members of groups that read so; one that comes back takes the place of its earlier self.
    """

    def __init__(
        self,
        stream: Stream,
        group: str,
        member: str,
        begin: Callable[[int], int],
        credit: i64,
        others: dict[tuple[int, str], GroupSource],
    ) -> None:
        super().__init__(stream, {}, credit)
        self._group: Group = group_of(stream, group)
        self._member = member
        self._begin = begin
        self._generation = 0
        self._others = others
        earlier = others.get((id(self._group), member))
        if earlier is not None:
            earlier._ended("continued by another connection")
        if member in self._group.members:
            raise InUse(f"group {group!r} has a member {member!r} already", argument="member")
        self._group.join(member)
        others[id(self._group), member] = self
        self._take_share()

    def _take_share(self) -> None:
        """Go on where the group is in each partition of the share, and where it was in those that it had before."""
        group = self._group
        self._generation = group.generation
        asked: Any = group.as_dict()["offsets"]
        share = group.members[self._member].partitions
        new = {index: self._begin(index) for index in share if asked[index] < 0}
        if new:
            # so that it has a place there, whatever becomes of this member
            group.commit(new, self._member, self._generation)
        earlier = self._seen
        positions = {index: new[index] if index in new else int(asked[index]) for index in share}
        self._set_positions(positions)
        for index in share:
            if earlier.get(index, -1) >= positions[index]:
                self._positions[index] = earlier[index] + 1
                self._seen[index] = earlier[index]
                self._out += earlier[index] - self._done[index]

    def done(self, places: dict[int, int]) -> None:
        if places and self._group.generation == self._generation:
            self._group.commit({index: offset + 1 for index, offset in places.items()}, self._member, self._generation)

    def tick(self, now_ms: i64, guess: bool) -> None:
        if self._reader is None:
            return
        try:
            self._group.member(self._member)
        except GroupFenced:
            # the loop did not turn for as long as a session lasts
            self._group.join(self._member)
        if self._group.generation != self._generation:
            if self._tap is not None:
                self._tap.close()
            self._take_share()
            self._open_tap()

    def stop(self) -> None:
        super().stop()
        if self._others.pop((id(self._group), self._member), None) is not None:
            self._group.leave(self._member)


def positions_of(stream: Stream, partition: int | None, start: str, last_id: str) -> dict[int, int]:
    """Where to begin, by partition: behind the last event seen, else at `start`: `first`, `next` or an offset."""
    indexes = list(range(len(stream.partitions))) if partition is None else [int(stream.partition(partition).index)]
    positions = {index: start_of(stream, index, start, len(indexes) == 1) for index in indexes}
    if last_id:
        for index, offset in places_of(stream, last_id, "Last-Event-ID").items():
            if index in positions:
                positions[index] = offset + 1
    for index, position in positions.items():
        end = int(stream.partition(index).visible)
        if position > end:
            raise OffsetOutOfRange(f"partition {index} ends at offset {end}, before {position}", argument="from")
    return positions


def start_of(stream: Stream, index: int, start: str, single: bool) -> int:
    """The offset that a start stands for in a partition."""
    found = stream.partition(index)
    if start == "first":
        return int(found.first)
    if start == "next":
        return int(found.visible)
    if single:
        return _number(start, "from")
    raise InvalidArgument("an offset is of one partition: say which", argument="partition")


def places_of(stream: Stream, id: str, argument: str) -> dict[int, int]:
    """The offsets that an id stands for, by partition."""
    if len(stream.partitions) == 1:
        return {0: _number(id.removeprefix("0:"), argument)}
    found: dict[int, int] = {}
    for pair in id.split(","):
        index, _, offset = pair.partition(":")
        found[_number(index, argument)] = _number(offset, argument)
    return found


def _number(text: str, argument: str) -> int:
    text = text.strip()
    if text == "-1" and argument != "from":
        return -1
    if not is_number(text):
        raise InvalidArgument(f"{argument} is no offset: {text[:100]!r}", argument=argument)
    return int(text)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19

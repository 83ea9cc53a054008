"""Ranges of a stream: as JSON, a page at a time, or whole as an Arrow IPC stream that is read and sent in pieces.

Arrow pieces are made in a thread, one ahead of the peer; a peer that does not read holds up its own range only. What a
range is made of is kept until it is sent, or its peer is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec

from rookery.core import streams
from rookery.core.routing import matcher
from rookery.core.stream import KEY_HEADER, Follower, Partition
from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.model import Message, Route
from rookery.format.records import RecordView, read_message
from rookery.format.rendering import body_as_json, legible, plain, plain_table, printed
from rookery.sealed.columns import check_columns
from rookery.wire.api.broker import ARROW, Api
from rookery.wire.api.handling import packed_content, wants_packed
from rookery.wire.api.shapes import PartitionIndex
from rookery.wire.api.types import CheckedShort, Name, Offset, WaitSeconds
from rookery.wire.http.call import Call
from rookery.wire.http.routes import LATER, Content, Router, encode_json
from rookery.wire.packed import PackedMessage, PackedPage, PackedRecord

PAGE_RECORDS: Final = 1_000
PAGE_BYTES: Final = 4 << 20
PIECE_BYTES: Final = 1 << 20
LEASE_MS: Final = 60_000
ROWS_AT_ONCE: Final = 100
"""So few records are made into JSON in the turn: a thread would take longer."""

RecordCount = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class RecordPage(msgspec.Struct):
    """`next` is the offset to go on with, `end` the one after the last there is.

    A record has the columns of the stream's table; a value, or key, that is neither JSON nor text is in
    `value_base64`, or `key_base64`.
    """

    stream: str
    partition: int
    next: int
    end: int
    records: list[dict[str, Any]]


class Records:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def read(
        self,
        call: Call,
        name: Name,
        partition: PartitionIndex = 0,
        from_: Offset | None = None,
        to: Offset | None = None,
        limit: RecordCount | None = None,
        columns: str = "",
        routing_key: CheckedShort = "",
        wait: WaitSeconds = 0,
        positions: str = "",
        id: str = "",
    ) -> object:
        """Records from an offset up to, not including, another: as JSON a page of up to 1,000, or, where `Accept` asks
        for `application/vnd.apache.arrow.stream`, all as one Arrow stream. `columns`, divided by commas, names those
        wanted, `routing_key` is a topic pattern. At the end of the stream JSON may `wait` some seconds for more.
        `positions`, such as `0:41,1:17`, reads on in the first of several partitions that has more, or waits for any.
        With an `id`, they are those of the stream that had it, not of one that was made anew under its name.
        """
        stream = self._api.stream(call, name, "read")
        streams.check_id(stream, id)
        if positions:
            wishes = [
                _Wish(stream.partition(index), offset, 0, [], "", True, limit or PAGE_RECORDS, wants_packed(call))
                for index, offset in _positions(positions)
            ]
            return self._any(call, wishes, int(wait * 1000))
        chosen = stream.partition(partition)
        names = check_columns([column for column in columns.split(",") if column])
        start = int(chosen.first) if from_ is None else from_
        chosen.check(start)
        stop = int(chosen.visible) if to is None else to
        chosen.check(stop)
        if stop < start:
            raise InvalidArgument("to is before from", argument="to")
        if limit is not None:
            stop = min(stop, start + limit)
        if wants_arrow(call):
            return self._arrow(call, chosen, start, stop, names, routing_key)
        wish = _Wish(chosen, start, stop, names, routing_key, to is None, limit or PAGE_RECORDS, wants_packed(call))
        if start >= stop and wait and to is None:
            _Waiting(self._api, call, [chosen], int(wait * 1000), lambda: self._json(call, wish))
            return LATER
        return self._json(call, wish)

    def _any(self, call: Call, wishes: list[_Wish], wait_ms: int) -> object:
        """Read on in the first partition that has more; wait for one if there is none."""
        for wish in wishes:
            wish.partition.check(wish.start)
        for wish in wishes:
            if wish.start < int(wish.partition.visible):
                return self._json(call, wish)
        if not wait_ms:
            return self._json(call, wishes[0])
        _Waiting(self._api, call, [wish.partition for wish in wishes], wait_ms, lambda: self._any(call, wishes, 0))
        return LATER

    def _arrow(
        self, call: Call, partition: Partition, start: int, stop: int, columns: list[str], routing_key: str
    ) -> object:
        if call.method == "HEAD":
            return Content(b"", ARROW)
        archive = self._api.archive

        def begin(_: None) -> object:
            partition.check(start)
            reading = archive.reading(partition, start, stop, columns, routing_key)
            return pour(self._api, call, reading.ipc(), lambda: archive.done_reading(reading))

        return self._api.later(call, archive.load, begin)

    def _json(self, call: Call, wish: _Wish) -> object:
        partition = wish.partition
        start = wish.start
        end = int(partition.visible)
        stop = min(end if wish.is_open else wish.stop, start + min(wish.limit, PAGE_RECORDS))
        page = _Page(self._api, wish, end)
        partition.check(start)
        if start < min(stop, int(partition.tail)):
            return self._sealed(call, page, start, stop)
        raws: list[bytes] = []
        size = 0
        for offset in range(start, stop):
            raw = partition.record(offset)
            size += len(raw)
            if raws and size > PAGE_BYTES:
                break
            raws.append(raw)
        if len(raws) <= ROWS_AT_ONCE and size < PIECE_BYTES:
            return page.of(raws, start + len(raws))
        return self._api.later(call, lambda: page.of(raws, start + len(raws)), lambda found: found)

    def _sealed(self, call: Call, page: _Page, start: int, stop: int) -> object:
        file = page.wish.partition.file_of(start)
        assert file is not None, "sealed offsets are in files"
        stop = min(stop, int(file.last) + 1)
        archive, path, plan = self._api.archive, file.path, f"page-{self._api.random_text()}"
        archive.lease(plan, frozenset([path]), LEASE_MS)

        def work() -> object:
            return page.of(archive.records(path, start, stop), stop)

        def then(found: object) -> object:
            archive.release(plan)
            return found

        return self._api.later(call, work, then)


class _Wish:
    """What is to be read as JSON; `is_open` when it may grow with the stream."""

    def __init__(
        self,
        partition: Partition,
        start: int,
        stop: int,
        columns: list[str],
        routing_key: str,
        is_open: bool,
        limit: int,
        packed: bool,
    ) -> None:
        self.partition = partition
        self.start = start
        self.stop = stop
        self.columns = columns
        self.routing_key = routing_key
        self.is_open = is_open
        self.limit = limit
        self.packed = packed


class _Page:
    """Makes a page of raw records, in any thread."""

    def __init__(self, api: Api, wish: _Wish, end: int) -> None:
        self.wish = wish
        self._uuid = api.shard.ids.uuid
        self._end = end
        self._stream = wish.partition.stream.name
        self._index = int(wish.partition.index)
        self._tenant = wish.partition.stream.tenant.name
        self._routes: dict[bytes, Route] = {}
        self._keys = None
        if wish.routing_key:
            self._keys = matcher("topic", {})
            self._keys.add(wish.routing_key, None, self)

    def of(self, raws: list[bytes], following: int) -> Content:
        rows: list[Any] = []
        view = RecordView()
        for raw in raws:
            view.read(raw, 0)
            message = read_message(raw, self._routes)
            if self._keys is not None and not self._keys.match(message.route.key, None):
                continue
            if self.wish.packed:
                rows.append(PackedRecord(int(view.offset), self._packed(message, int(view.stamp))))
            else:
                rows.append(self._row(message, int(view.offset), int(view.stamp)))
        if self.wish.packed:
            return packed_content(PackedPage(self._index, following, self._end, rows))
        page = RecordPage(self._stream, self._index, following, self._end, rows)
        return Content(encode_json(page), b"application/json")

    def _packed(self, message: Message, stamp_ms: int) -> PackedMessage:
        return PackedMessage(
            legible(properties.message_id(message.props) or "") or self._uuid(int(message.public_id)),
            message.props,
            message.body,
            legible(message.route.exchange),
            legible(message.route.key),
            int(message.priority),
            stamp_ms,
            int(message.expires_ms),
            deaths=plain([death.as_dict() for death in message.route.deaths]),
        )

    def _row(self, message: Message, offset: int, stamp_ms: int) -> dict[str, Any]:
        row = {
            "tenant": self._tenant,
            "stream": self._stream,
            "partition": self._index,
            "offset": offset,
            "timestamp": stamp_ms,
            **message_row(message, self._uuid),
        }
        wanted = self.wish.columns
        if wanted:
            both = {name for column in wanted for name in (column, f"{column}_base64")}
            row = {name: value for name, value in row.items() if name in both}
        return row


def message_row(message: Message, uuid: Callable[[int], str]) -> dict[str, Any]:
    """A message as JSON, under the names of the table's columns, without what it lacks."""
    found = properties.decode(message.props)
    headers = plain_table(found.headers or {})
    row: dict[str, Any] = {}
    key = (found.headers or {}).get(KEY_HEADER)
    if key is not None:
        headers.pop(KEY_HEADER, None)
        _put(row, "key", printed(key), "")
    _put(row, "value", message.body, found.content_type or "")
    stamp = found.timestamp
    more: dict[str, Any] = {
        "headers": headers or None,
        "exchange": message.route.exchange or None,
        "routing_key": message.route.key or None,
        "message_id": found.message_id or uuid(int(message.public_id)),
        "correlation_id": found.correlation_id,
        "reply_to": found.reply_to,
        "content_type": found.content_type,
        "content_encoding": found.content_encoding,
        "priority": int(message.priority) or None,
        "expiration": int(message.expires_ms) or None,
        "producer_timestamp": None if stamp is None else int(stamp) * 1000,
    }
    row.update((name, plain(value)) for name, value in more.items() if value is not None)
    return row


def _put(row: dict[str, Any], name: str, data: bytes, kind: str) -> None:
    value, coded = body_as_json(data, kind)
    if coded is None:
        row[name] = value
    else:
        row[f"{name}_base64"] = coded


def wants_arrow(call: Call) -> bool:
    return ARROW.decode() in call.header(b"accept")


def _positions(said: str) -> list[tuple[int, int]]:
    """Offsets by partition."""
    found = []
    for pair in said.split(","):
        index, _, offset = pair.partition(":")
        if not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in (index, offset)):
            raise InvalidArgument("positions are like 0:41,1:17", argument="positions")
        found.append((int(index), int(offset)))
    return found


class _Waiting(Follower):
    """A read at the end of a stream: waits for more, or for the end of its time."""

    def __init__(
        self, api: Api, call: Call, partitions: list[Partition], wait_ms: int, read: Callable[[], object]
    ) -> None:
        self._api = api
        self._call = call
        self._partitions = partitions
        self._read = read
        self._over = False
        assert call.connection is not None
        self._timer = call.connection.face.later(wait_ms, self._answer)
        for partition in partitions:
            partition.followers.append(self)
        call.suspend(self._leave, self._look)

    def grown(self) -> None:
        self._over = True
        self._call.touch()

    def ended(self, reason: str) -> None:
        self.grown()

    def _look(self) -> None:
        if self._over:
            self._answer()

    def _leave(self) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            if self in partition.followers:
                partition.followers.remove(self)

    def _answer(self) -> None:
        self._leave()
        self._api.router.complete(self._call, self._found)

    def _found(self) -> object:
        # it may have been deleted meanwhile
        stream = self._partitions[0].stream
        stream.tenant.stream(stream.name)
        return self._read()


# Pouring


def pour(api: Api, call: Call, pieces: Iterator[bytes], done: Callable[[], None]) -> object:
    """Answer with an Arrow stream, made in a thread while it is sent; `done` is called at the end, whatever it is."""
    pouring = _Pouring(api, call, pieces, done)
    call.suspend(pouring.leave)
    pouring.ask()
    return LATER


def _cut(pieces: Iterator[bytes]) -> Iterator[bytes | memoryview]:
    """The same bytes in pieces of a MiB at most: a batch of Arrow may be much more than a peer should have ahead."""
    for piece in pieces:
        if len(piece) <= PIECE_BYTES:
            yield piece
        else:
            whole = memoryview(piece)
            for at in range(0, len(piece), PIECE_BYTES):
                yield whole[at : at + PIECE_BYTES]


class _Pouring:
    """See `pour`. One piece is made ahead; while the peer does not read, the next waits for it."""

    def __init__(self, api: Api, call: Call, pieces: Iterator[bytes], done: Callable[[], None]) -> None:
        self._api = api
        self._call: Call | None = call
        self._pieces = _cut(pieces)
        self._done: Callable[[], None] | None = done
        self._asked = False
        self._begun = False
        self._ready: tuple[bytes, bool] | None = None

    def ask(self) -> None:
        """Have the next piece made."""
        self._asked = True
        self._api.archive.run(self._next, self._made)

    def _next(self) -> tuple[bytes, bool]:
        """About a MiB, and whether it is the last (in a thread)."""
        parts: list[bytes | memoryview] = []
        size = 0
        for part in self._pieces:
            parts.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                return b"".join(parts), False
        return b"".join(parts), True

    def _made(self, result: tuple[bytes, bool], error: BaseException | None) -> None:
        self._asked = False
        call = self._call
        if call is None:
            self._finish()
        elif error is not None:
            self._fail(call, error)
        elif not self._begun:
            self._begin(call, *result)
        else:
            self._ready = result
            self._go_on()

    def _begin(self, call: Call, piece: bytes, last: bool) -> None:
        self._begun = True
        if last:
            self._call = None
            self._finish()
            self._api.router.complete(call, lambda: Content(piece, ARROW))
            return
        call.stream(ARROW, self.leave, None, self._room)
        call.send(piece)
        self.ask()

    def _room(self) -> None:
        call = self._call
        if call is not None and call.connection is not None:
            call.connection.face.later(0, self._go_on)

    def _go_on(self) -> None:
        """Send what is ready, if the peer takes it, and have more made."""
        call = self._call
        if call is None or self._ready is None or call.connection is None or call.connection.write_paused:
            return
        piece, last = self._ready
        self._ready = None
        call.send(piece)
        if last:
            self._call = None
            call.end()
            self._finish()
        else:
            self.ask()

    def _fail(self, call: Call, error: BaseException) -> None:
        self._call = None
        self._finish()

        def tell() -> object:
            raise error

        if not self._begun:
            self._api.router.complete(call, tell)
        elif call.connection is not None:
            # the head is sent: all that is left is not to look whole
            call.connection.broken()

    def leave(self) -> None:
        """The peer is gone."""
        self._call = None
        if not self._asked:
            self._finish()

    def _finish(self) -> None:
        done = self._done
        self._done = None
        if done is not None:
            done()


def add_routes(router: Router, api: Api) -> None:
    routes = Records(api)
    router.add(
        "GET", "/api/v1/streams/{name}/records", routes.read, {200: (RecordPage, bytes)}, "stream.read", tag="streams"
    )


__all__ = ["Records", "add_routes", "message_row", "pour", "wants_arrow"]

"""Streams: publish records, read them from anywhere, follow them, share them out among the members of a group."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self, Unpack

from rookery.client.aio.link import AsyncLink
from rookery.client.aio.queues import bind, unbind
from rookery.client.aio.transport import NOTHING
from rookery.client.http import part
from rookery.client.messages import pack, read_page, unpack_record
from rookery.client.sockets import GivenUp, Hold
from rookery.core.groups import SESSION_MS
from rookery.core.stream import KEY_HEADER
from rookery.embed.aio.queues import check_bodies
from rookery.embed.context import check_key, check_not_negative, check_positive, check_text, check_timeout
from rookery.embed.messages import Message, wall_ms
from rookery.embed.options import StreamArguments
from rookery.embed.records import Position, Record, Start, check_start, check_stream_key
from rookery.engine.workers import AsyncSignal
from rookery.errors import BrokerClosed, GroupFenced, InvalidArgument, NotFound, OffsetOutOfRange, StoreError
from rookery.wire.packed import PackedPublish, encode

AHEAD: Final = 1_000
WAIT_MAX_MS: Final = 20_000
ARROW: Final = "application/vnd.apache.arrow.stream"


class AsyncStream:
    """One stream. Handles are cheap and hold no state: two of one name are the same stream."""

    def __init__(self, link: AsyncLink, name: str) -> None:
        self._link = link
        self._path = f"/api/v1/streams/{part(name)}"
        self.name = name

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    # Publishing

    async def publish(self, body: Any, *, key: str | bytes | None = None, partition: int | None = None) -> Position:
        """Append a value or a Message; where it is. Records of one `key` are in one partition, in order.

        When the answer got lost on the way and the broker, asked again, has the record already, where it is remains
        unknown: then the position is `repeated`, as for a dedup key that was used before.
        """
        return (await self.publish_many([body], key=key, partition=partition))[0]

    async def publish_many(
        self, bodies: Iterable[Any], *, key: str | bytes | None = None, partition: int | None = None
    ) -> Sequence[Position]:
        """Append all of them, or none when one is invalid; where they are."""
        self._link.check_open()
        packed = [self._pack(body, key, partition) for body in check_bodies(bodies)]
        if not packed:
            return []
        answer = await self._link.once(f"{self._path}/publish", encode(packed), packed=True)
        return [
            Position(-1, -1, repeated=True) if each["offset"] is None else Position(each["partition"], each["offset"])
            for each in answer["positions"]
        ]

    def _pack(self, body: Any, key: str | bytes | None, partition: int | None) -> PackedPublish:
        headers: dict[str, object] | None = None if check_stream_key(key) is None else {KEY_HEADER: key}
        publish = pack(body, headers)
        if partition is not None:
            if type(partition) is not int or not 0 <= partition <= 255:
                raise InvalidArgument(f"stream {self.name!r} has no partition {partition!r}", argument="partition")
            publish.partition = partition
        return publish

    # Reading

    async def read(self, offset: int = 0, count: int = 100, *, partition: int = 0, wait_ms: int = 0) -> list[Record]:
        """Up to `count` records from an offset on; waits up to `wait_ms` for the first one.

        OffsetOutOfRange when the offset is not kept any more, or is beyond the end.
        """
        check_not_negative(offset, "offset")
        check_positive(count, "count")
        check_not_negative(wait_ms, "wait_ms")
        self._link.check_open()
        await self._link.get_packed(f"{self._path}/records", {"partition": partition, "limit": 1, "from": offset})
        async with AsyncStreamReader(self._link, self.name, {partition: offset}) as reader:
            found = await reader.get_many(count, wait_ms)
            while len(found) < count and (more := await reader.get_many(count - len(found), 0)):
                found += more
            return found

    async def read_arrow(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        partition: int = 0,
        columns: Sequence[str] = (),
        routing_key: str = "",
    ) -> Any:
        """A range of offsets (up to, not including, `stop`) as a pyarrow Table, without an object per message.

        `columns` names those wanted, `routing_key` is a pattern as in bindings. Needs pyarrow.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise StoreError("reading as Arrow needs pyarrow: pip install rookery[streams]") from None
        self._link.check_open()
        query: dict[str, object] = {"partition": partition, "columns": ",".join(columns) or None}
        query["from"] = None if start is None else check_not_negative(start, "start")
        query["to"] = None if stop is None else check_not_negative(stop, "stop")
        query["routing_key"] = check_text(routing_key, "routing_key") or None
        content = await self._link.transport.request(
            "GET", f"{self._path}/records", NOTHING, query=query, headers={"Accept": ARROW}, wait_ms=60_000
        )
        with pa.ipc.open_stream(content) as table:
            return table.read_all()

    async def reader(self, start: Start = "next", *, partitions: Iterable[int] | None = None) -> AsyncStreamReader:
        """Follow the stream from `start` on ("first", "last", "next", an offset, a datetime), live, until closed."""
        where = check_start(start)
        chosen = None if partitions is None else list(partitions)
        if chosen is None:
            chosen = [row["partition"] for row in (await self.info())["partitions"]]
        positions = {index: await self._position(index, where) for index in chosen}
        return AsyncStreamReader(self._link, self.name, positions)

    async def offset_at(self, moment: datetime | int, *, partition: int = 0) -> int:
        """The first offset that was appended at this time or later; the end when there is none."""
        return await self._position(partition, f"@{wall_ms(moment, 'moment')}")

    async def _position(self, index: int, where: int | str) -> int:
        """The offset that a start stands for."""
        if isinstance(where, int):
            await self._link.get_packed(f"{self._path}/records", {"partition": index, "limit": 1, "from": where})
            return where
        answer = await self._link.get(f"{self._path}/offsets", at=where.removeprefix("@"), partition=index)
        return int(answer["offsets"][0]["offset"])

    async def recover(self, limit: int = 0, *, partition: int = 0) -> list[Message]:
        """The messages that are kept, oldest first, up to `limit` (0: all), expired ones left out."""
        check_not_negative(limit, "limit")
        found: list[Message] = []
        async with await self.reader("first", partitions=[partition]) as reader:
            while not limit or len(found) < limit:
                records = await reader.get_many(AHEAD, 0)
                if not records:
                    break
                now = int(time.time() * 1000)
                found += [r.message for r in records if not _is_over(r.message.expires_at, now)]
        return found[:limit] if limit else found

    async def replay(self, limit: int = 0, *, partition: int = 0) -> int:
        """Hand the messages that are kept to whoever their exchanges lead to today, oldest first, up to `limit`.

        They are not stored in a stream again. Returns how many messages were handed out. Where an answer gets lost,
        up to 1,000 of them may come twice.
        """
        check_not_negative(limit, "limit")
        self._link.check_open()
        count = 0
        following: int | None = None
        while not limit or count < limit:
            body = {"partition": partition, "limit": min(limit - count, AHEAD) if limit else AHEAD}
            if following is not None:
                body["from"] = following
            answer = await self._link.post(f"{self._path}/replay", body)
            count += int(answer["replayed"])
            following = int(answer["next"])
            if following >= answer["end"]:
                break
        return count

    # Looking after it

    async def info(self) -> dict[str, Any]:
        """Settings, partitions with their offsets and sizes, and groups."""
        found: dict[str, Any] = await self._link.get(self._path)
        return found

    async def alter(self, **settings: Unpack[StreamArguments]) -> None:
        """Change what the stream keeps, and when it is sealed."""
        await self._link.patch(self._path, settings)

    async def trim(self, offset: int, *, partition: int = 0) -> int:
        """Let go of what is before an offset, as far as whole blocks and files allow; the oldest offset kept."""
        check_not_negative(offset, "offset")
        answer = await self._link.post(f"{self._path}/trim", {"offset": offset, "partition": partition})
        return int(answer["first"])

    async def seal(self) -> None:
        """Write everything that the stream shows now into Parquet files, and wait until that is done."""
        self._link.check_open()
        await self._link.transport.request("POST", f"{self._path}/seal", wait_ms=600_000)

    async def bind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> None:
        """Let an exchange route messages that match `key` (or `headers`) into this stream."""
        await bind(self._link, check_text(exchange, "exchange"), self.name, "stream", check_key(key), headers)

    async def unbind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> bool:
        """Take a binding away; False when there was none."""
        return await unbind(self._link, check_text(exchange, "exchange"), self.name, "stream", check_key(key), headers)

    async def delete(self, *, if_unused: bool = False) -> int:
        """Delete the stream with all its records; returns how many there were."""
        self._link.check_open()
        self._link.forget(f"stream {self.name}")
        return int((await self._link.delete(self._path, if_unused=bool(if_unused))).get("messages", 0))

    def group(self, name: str) -> AsyncGroup:
        """A consumer group of this stream; it comes into being when it is first used."""
        self._link.check_open()
        return AsyncGroup(self, check_text(name, "group"))

    async def groups(self) -> list[str]:
        """The names of all groups."""
        return [each["group"] for each in (await self._link.get(f"{self._path}/groups"))["groups"]]


def _is_over(expires_at: object, now_ms: int) -> bool:
    return isinstance(expires_at, int) and expires_at <= now_ms


class AsyncStreamReader:
    """Records of some partitions from positions of its own. Iterate it, or call `get`; `close` ends it.

    `skipped` counts records that were let go of before they were read. It goes on over breaks of the connection.
    """

    def __init__(self, link: AsyncLink, stream: str, positions: dict[int, int]) -> None:
        self._link = link
        self._name = stream
        self._path = f"/api/v1/streams/{part(stream)}"
        self.positions = positions
        self.skipped = 0
        self._ahead: deque[Record] = deque()
        self._stopped = link.watch(AsyncSignal())
        self._hold = Hold()
        self._turn = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"StreamReader({self._name!r}, {self.positions})"

    @property
    def done(self) -> bool:
        """Whether it has ended: closed, or with its stream or its client."""
        return self._closed or self._link.closed

    async def get(self, timeout_ms: int | None = None) -> Record:
        """The next record; TimeoutError when none came in time, NotFound when the reader or its stream has ended."""
        found = await self._get(1, check_timeout(timeout_ms))
        if not found:
            raise TimeoutError(f"no record of {self._name!r} within {timeout_ms} ms")
        return found[0]

    async def get_many(self, count: int, timeout_ms: int | None = None) -> list[Record]:
        """At least one and up to `count` records; an empty list when none came in time."""
        check_positive(count, "count")
        return await self._get(count, check_timeout(timeout_ms))

    async def _get(self, count: int, timeout_ms: int | None) -> list[Record]:
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            self._link.check_open()
            await self._prepare()
            if self._closed:
                raise NotFound(f"the reader of {self._name!r} has ended", argument="reader")
            if not self._ahead:
                left = WAIT_MAX_MS if until is None else max(0, int((until - time.monotonic()) * 1000))
                await self._fetch(self._patience(min(left, WAIT_MAX_MS)))
            # the other partitions may have something too
            for _ in range(len(self.positions) - 1):
                if 0 < len(self._ahead) < count:
                    await self._fetch(0)
            if self._ahead:
                found = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
                for record in found:
                    self.positions[record.partition] = record.offset + 1
                return found
            if until is not None and time.monotonic() >= until:
                return []

    async def _prepare(self) -> None:
        """What is to be done before each look."""

    def _patience(self, left_ms: int) -> int:
        return left_ms

    async def _fetch(self, wait_ms: int) -> None:
        """Take what there is after what was taken, in one of the partitions at a time."""
        if not self.positions:
            # a member without a share
            await self._stopped.wait(min(wait_ms, 1_000))
            return
        after = {record.partition: record.offset + 1 for record in self._ahead}
        order = sorted(self.positions)
        order = order[self._turn % len(order) :] + order[: self._turn % len(order)]
        self._turn += 1
        said = ",".join(f"{index}:{after.get(index, self.positions[index])}" for index in order)
        try:
            content = await self._link.get_packed(
                f"{self._path}/records",
                {"positions": said, "limit": AHEAD, "wait": wait_ms / 1000 if wait_ms else None},
                wait_ms=wait_ms,
                hold=self._hold,
            )
        except OffsetOutOfRange:
            await self._skip()
            return
        except (NotFound, GivenUp):
            self._closed = True
            raise NotFound(f"the reader of {self._name!r} has ended", argument="reader") from None
        page = read_page(content)
        for each in page.records:
            key, message = unpack_record(each.message)
            entered = datetime.fromtimestamp(each.message.entered_ms / 1000, UTC)
            self._ahead.append(Record(page.partition, each.offset, entered, key, message))

    async def _skip(self) -> None:
        """Go on behind what is not kept any more."""
        moved = False
        for row in (await self._link.get(self._path))["partitions"]:
            position = self.positions.get(row["partition"])
            if position is not None and position < row["first"]:
                self.skipped += row["first"] - position
                self.positions[row["partition"]] = row["first"]
                moved = True
        if not moved:
            raise OffsetOutOfRange(f"stream {self._name!r} is not as long as it was", argument="offset")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        try:
            found = await self._get(1, None)
        except (NotFound, BrokerClosed):
            raise StopAsyncIteration from None
        return found[0]

    async def close(self) -> None:
        """End the reader; a second call does nothing."""
        self._closed = True
        self._stopped.set()
        self._hold.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncGroup:
    """A consumer group: how far its readers have come, and who of them reads which partitions."""

    def __init__(self, stream: AsyncStream, name: str) -> None:
        self._stream = stream
        self._link = stream._link
        self._path = f"{stream._path}/groups/{part(name)}"
        self.name = name

    def __repr__(self) -> str:
        return f"Group({self._stream.name!r}, {self.name!r})"

    async def join(self, member: str = "", *, start: Start = "first", session_ms: int = SESSION_MS) -> AsyncGroupMember:
        """Read a share of the partitions, from where the group is, or from `start` where it has read nothing yet.

        A member that is not heard of for `session_ms` loses its share; reading and committing is being heard of.
        """
        check_text(member, "member")
        where = check_start(start)
        check_positive(session_ms, "session_ms")
        self._link.check_open()
        reader = AsyncGroupMember(self, member or f"member-{uuid.uuid4().hex[:12]}", where, session_ms)
        await reader._prepare()
        return reader

    async def info(self) -> dict[str, Any]:
        """Committed offsets, lag and members."""
        found: dict[str, Any] = await self._link.get(self._path)
        return found

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Everything before these offsets, by partition, has been dealt with. For readers that are no members."""
        await self._link.post(f"{self._path}/commit", {"offsets": _said(offsets)})

    async def reset(self, to: Start | Mapping[int, int]) -> None:
        """Let the group go on elsewhere: at an offset, a time, "first", "last", "next", or at offsets by partition."""
        self._link.check_open()
        if isinstance(to, Mapping):
            offsets = dict(to)
        else:
            where = check_start(to)
            rows = (await self._stream.info())["partitions"]
            offsets = {row["partition"]: await self._stream._position(row["partition"], where) for row in rows}
        await self._link.post(f"{self._path}/reset", {"offsets": _said(offsets)})

    async def delete(self) -> None:
        """Forget the group and how far it has read."""
        await self._link.delete(self._path)


def _said(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


class AsyncGroupMember(AsyncStreamReader):
    """A member of a group: reads its share of the partitions, whatever that is at the time.

    `commit` says that everything taken so far has been dealt with. What was taken and not committed is read again by
    whoever gets the partition next.
    """

    def __init__(self, group: AsyncGroup, member: str, start: int | str, session_ms: int) -> None:
        super().__init__(group._link, group._stream.name, {})
        self.member = member
        self.generation = -1
        self._group = group
        self._start = start
        self._session_ms = session_ms

    @property
    def partitions(self) -> list[int]:
        """Its share."""
        return sorted(self.positions)

    async def _prepare(self) -> None:
        """Be heard of, and take over what the share is now."""
        if self.done:
            return
        body = {"member": self.member, "session_ms": self._session_ms}
        share = await self._link.post(f"{self._group._path}/join", body)
        if share["generation"] == self.generation:
            return
        self.generation = share["generation"]
        rows = {row["partition"]: row["committed"] for row in share["partitions"]}
        self._ahead = deque(record for record in self._ahead if record.partition in rows)
        for index in [index for index in self.positions if index not in rows]:
            del self.positions[index]
        for index, committed in rows.items():
            if index not in self.positions:
                self.positions[index] = (
                    await self._group._stream._position(index, self._start) if committed is None else committed
                )

    def _patience(self, left_ms: int) -> int:
        # to be heard of in time while nothing comes
        return min(left_ms, self._session_ms // 3)

    async def commit(self) -> None:
        """Everything taken so far has been dealt with; GroupFenced when the share has changed meanwhile."""
        self._link.check_open()
        if not self.positions:
            raise GroupFenced(f"{self.member!r} has no share of the group", argument="member")
        body = {"offsets": _said(self.positions), "member": self.member, "generation": self.generation}
        await self._link.post(f"{self._group._path}/commit", body)

    async def close(self) -> None:
        """Leave the group; the others take over."""
        if not self.done:
            try:
                await self._link.post(f"{self._group._path}/leave", {"member": self.member})
            except NotFound:
                pass
        await super().close()

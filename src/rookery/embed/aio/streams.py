"""Streams: publish records, read them from anywhere, follow them, share them out among the members of a group."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack

from rookery.core import groups, retention, streams
from rookery.core import stream as core
from rookery.core.publishing import Append, Publish, append_all
from rookery.core.stream import KEY_HEADER
from rookery.embed.aio.queues import check_bodies, check_headers
from rookery.embed.context import (
    Context,
    check_key,
    check_not_negative,
    check_positive,
    check_text,
    check_timeout,
)
from rookery.embed.messages import Message, wall_ms
from rookery.embed.options import StreamArguments
from rookery.embed.records import (
    AHEAD_RECORDS,
    SEALED_RECORDS,
    Position,
    Record,
    Start,
    Wake,
    check_start,
    check_stream_key,
    record_of,
    tail_records,
)
from rookery.engine.engine import AsyncEngine
from rookery.engine.workers import AsyncSignal
from rookery.errors import BrokerClosed, GroupFenced, NotFound, StreamNotFound


class AsyncStream:
    """One stream. Handles are cheap and hold no state: two of one name are the same stream."""

    def __init__(self, context: Context[AsyncEngine], name: str) -> None:
        self._context = context
        self.name = name

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def _core(self) -> core.Stream:
        return self._context.tenant.stream(self.name)

    # Publishing

    async def publish(self, body: Any, *, key: str | bytes | None = None, partition: int | None = None) -> Position:
        """Append a value or a Message; where it is. Records of one `key` are in one partition, in order."""
        context = self._context
        context.check_open()
        p = self._pack(body, key)
        async with context.engine.change:
            return self._append([p], partition)[0]

    async def publish_many(
        self, bodies: Iterable[Any], *, key: str | bytes | None = None, partition: int | None = None
    ) -> Sequence[Position]:
        """Append all of them, or none when one is invalid; where they are."""
        context = self._context
        context.check_open()
        packed = [self._pack(body, key) for body in check_bodies(bodies)]
        async with context.engine.change:
            return self._append(packed, partition)

    def _pack(self, body: Any, key: str | bytes | None) -> Publish:
        headers: dict[str, object] | None = None if check_stream_key(key) is None else {KEY_HEADER: key}
        return self._context.pack("", self.name, body, True, headers)

    def _append(self, packed: list[Publish], partition: int | None) -> list[Position]:
        stream = self._core()
        chosen = -1 if partition is None else int(stream.partition(partition).index)
        records = [
            Append(self.name, p.props, p.body, p.priority, p.expires_ms, p.due_ms, p.dedup_key, chosen) for p in packed
        ]
        positions = append_all(stream.tenant.shard, stream, records)
        return [Position(-1, -1, repeated=True) if each is None else Position(*each) for each in positions]

    # Reading

    async def read(self, offset: int = 0, count: int = 100, *, partition: int = 0, wait_ms: int = 0) -> list[Record]:
        """Up to `count` records from an offset on; waits up to `wait_ms` for the first one.

        OffsetOutOfRange when the offset is not kept any more, or is beyond the end.
        """
        check_not_negative(offset, "offset")
        check_positive(count, "count")
        check_not_negative(wait_ms, "wait_ms")
        context = self._context
        context.check_open()
        with context.engine:
            self._core().partition(partition).check(offset)
        reader = AsyncStreamReader(context, self.name, {partition: offset})
        try:
            return await reader.get_many(count, wait_ms)
        finally:
            await reader.close()

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
        context = self._context
        context.check_open()
        check_text(routing_key, "routing_key")
        with context.engine as engine:
            chosen = self._core().partition(partition)
            first = int(chosen.first) if start is None else check_not_negative(start, "start")
            last = int(chosen.visible) if stop is None else check_not_negative(stop, "stop")
            reading = engine.reading(chosen, first, last, columns, routing_key)
        try:
            return await context.engine.in_thread(reading.table)
        finally:
            with context.engine as engine:
                engine.done_reading(reading)

    async def reader(self, start: Start = "next", *, partitions: Iterable[int] | None = None) -> AsyncStreamReader:
        """Follow the stream from `start` on ("first", "last", "next", an offset, a datetime), live, until closed."""
        where = check_start(start)
        context = self._context
        context.check_open()
        with context.engine:
            stream = self._core()
            chosen = [int(p.index) for p in stream.partitions] if partitions is None else list(partitions)
            for index in chosen:
                stream.partition(index)
        positions = {index: await self._position(index, where) for index in chosen}
        return AsyncStreamReader(context, self.name, positions)

    async def offset_at(self, moment: datetime | int, *, partition: int = 0) -> int:
        """The first offset that was appended at this time or later; the end when there is none."""
        return await self._position(partition, f"@{wall_ms(moment, 'moment')}")

    async def _position(self, index: int, where: int | str) -> int:
        """The offset that a start stands for."""
        context = self._context
        context.check_open()
        with context.engine as engine:
            partition = self._core().partition(index)
            if isinstance(where, int):
                partition.check(where)
                return where
            if where == "first":
                return int(partition.first)
            if where == "last":
                return max(int(partition.first), int(partition.visible) - 1)
            if where == "next":
                return int(partition.visible)
            stamp = int(where[1:])
            files = [file for file in partition.files if file.last_ms >= stamp]
            if not files:
                return int(partition.offset_at(stamp))
            path, history = files[0].path, engine.history
            first = int(partition.first)
        assert history is not None
        found = await context.engine.in_thread(history.first_at, path, stamp)
        return max(first, found)

    async def recover(self, limit: int = 0, *, partition: int = 0) -> list[Message]:
        """The messages that are kept, oldest first, up to `limit` (0: all), expired ones left out."""
        check_not_negative(limit, "limit")
        found: list[Message] = []
        context = self._context
        async with await self.reader("first", partitions=[partition]) as reader:
            while not limit or len(found) < limit:
                records = await reader.get_many(AHEAD_RECORDS, 0)
                if not records:
                    break
                now = context.engine.clock.wall_ms()
                found += [r.message for r in records if not _is_over(r.message.expires_at, now)]
        return found[:limit] if limit else found

    async def replay(self, limit: int = 0, *, partition: int = 0) -> int:
        """Hand the messages that are kept to whoever their exchanges lead to today, oldest first, up to `limit`.

        They are not stored in a stream again. Returns how many messages were handed out.
        """
        context = self._context
        check_not_negative(limit, "limit")
        count = 0
        async with await self.reader("first", partitions=[partition]) as reader:
            while not limit or count < limit:
                records = await reader.get_many(min(limit - count, AHEAD_RECORDS) if limit else AHEAD_RECORDS, 0)
                if not records:
                    break
                now = context.engine.clock.wall_ms()
                with context.engine:
                    for record in records:
                        if record.stored is not None and not _is_over(record.message.expires_at, now):
                            count += streams.replay(context.tenant, record.stored)
        await context.engine.lasting()
        return count

    # Looking after it

    async def info(self) -> dict[str, Any]:
        """Settings, partitions with their offsets and sizes, and groups."""
        self._context.check_open()
        with self._context.engine:
            return streams.describe(self._core())

    async def alter(self, **settings: Unpack[StreamArguments]) -> None:
        """Change what the stream keeps, and when it is sealed."""
        self._context.check_open()
        async with self._context.engine.change:
            streams.alter(self._context.tenant, self.name, settings)

    async def trim(self, offset: int, *, partition: int = 0) -> int:
        """Let go of what is before an offset, as far as whole blocks and files allow; the oldest offset kept."""
        check_not_negative(offset, "offset")
        self._context.check_open()
        async with self._context.engine.change:
            chosen = self._core().partition(partition)
            chosen.check(offset)
            retention.release(chosen, offset)
            return int(chosen.first)

    async def seal(self) -> None:
        """Write everything that the stream shows now into Parquet files, and wait until that is done."""
        context = self._context
        context.check_open()
        with context.engine as engine:
            partitions = list(self._core().partitions)
            history = engine.sealing()
        for partition in partitions:
            signal = context.watch(AsyncSignal())
            errors: list[BaseException] = []

            def done(error: BaseException | None, errors: list[BaseException] = errors, signal: Any = signal) -> None:
                if error is not None:
                    errors.append(error)
                signal.set()

            with context.engine:
                history.seal(partition, done)
            await signal.wait(None)
            context.check_open()
            if errors:
                raise errors[0]
        await context.engine.lasting()

    async def bind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> None:
        """Let an exchange route messages that match `key` (or `headers`) into this stream."""
        check_key(key)
        self._context.check_open()
        async with self._context.engine.change:
            self._context.tenant.bind(check_text(exchange, "exchange"), self._core(), key, check_headers(headers))

    async def unbind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> bool:
        """Take a binding away; False when there was none."""
        check_key(key)
        self._context.check_open()
        async with self._context.engine.change:
            tenant = self._context.tenant
            return tenant.unbind(check_text(exchange, "exchange"), self._core(), key, check_headers(headers))

    async def delete(self, *, if_unused: bool = False) -> int:
        """Delete the stream with all its records; returns how many there were."""
        self._context.check_open()
        async with self._context.engine.change:
            return streams.delete(self._context.tenant, self.name, bool(if_unused))

    def group(self, name: str) -> AsyncGroup:
        """A consumer group of this stream; it comes into being when it is first used."""
        self._context.check_open()
        return AsyncGroup(self, check_text(name, "group"))

    async def groups(self) -> list[str]:
        """The names of all groups."""
        self._context.check_open()
        with self._context.engine:
            return sorted(self._core().groups)


def _is_over(expires_at: object, now_ms: int) -> bool:
    return isinstance(expires_at, int) and expires_at <= now_ms


class AsyncStreamReader:
    """Records of some partitions from positions of its own. Iterate it, or call `get`; `close` ends it.

    `skipped` counts records that were let go of before they were read.
    """

    def __init__(self, context: Context[AsyncEngine], stream: str, positions: dict[int, int]) -> None:
        self._context = context
        self._name = stream
        self.positions = positions
        self.skipped = 0
        self._signal = context.watch(AsyncSignal())
        self._wake = Wake(self._signal)
        self._ahead: deque[Record] = deque()
        self._closed = False
        with context.engine:
            self._stream = context.tenant.stream(stream)
            for index in positions:
                self._stream.partition(index).followers.append(self._wake)

    def __repr__(self) -> str:
        return f"StreamReader({self._name!r}, {self.positions})"

    @property
    def done(self) -> bool:
        """Whether it has ended: closed, or with its stream or its broker."""
        return self._closed or self._wake.reason != "" or self._context.closed

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
            await self._prepare()
            if len(self._ahead) < count:
                await self._fetch(count - len(self._ahead))
            if self._ahead:
                found = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
                for record in found:
                    self.positions[record.partition] = record.offset + 1
                return found
            left = None if until is None else (until - time.monotonic()) * 1000
            if left is not None and left <= 0:
                return []
            await self._signal.wait(self._patience(left))

    async def _prepare(self) -> None:
        """What is to be done before each look."""

    def _patience(self, left_ms: float | None) -> float | None:
        return left_ms

    async def _fetch(self, count: int) -> None:
        """Take what there is after the positions, from the tail at once, from files in a thread."""
        context = self._context
        context.check_open()
        sealed: tuple[int, str, int, int] | None = None
        with context.engine as engine:
            if self.done:
                raise NotFound(f"the reader of {self._name!r} has ended", argument="reader")
            self._signal.clear()
            after = {record.partition: record.offset + 1 for record in self._ahead}
            for index in sorted(self.positions):
                partition = self._stream.partitions[index]
                position = after.get(index, self.positions[index])
                if position < partition.first:
                    self.skipped += int(partition.first) - position
                    position = self.positions[index] = int(partition.first)
                if position < partition.tail:
                    file = partition.file_of(position)
                    assert file is not None
                    sealed = (index, file.path, position, min(position + SEALED_RECORDS, int(file.last) + 1))
                    break
                for raw in tail_records(partition, position, max(count, AHEAD_RECORDS)):
                    self._ahead.append(record_of(engine.shard, index, raw))
            history = engine.history
        if sealed is not None:
            assert history is not None
            index, path, start, stop = sealed
            raws = await context.engine.in_thread(history.records, path, start, stop)
            with context.engine as engine:
                self._ahead.extend(record_of(engine.shard, index, raw) for raw in raws)

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
        if self._closed or self._context.closed:
            return
        with self._context.engine:
            self._closed = True
            self._unfollow(list(self.positions))
            self._signal.set()

    def _unfollow(self, indexes: list[int]) -> None:
        for index in indexes:
            followers = self._stream.partitions[index].followers
            if self._wake in followers:
                followers.remove(self._wake)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncGroup:
    """A consumer group: how far its readers have come, and who of them reads which partitions."""

    def __init__(self, stream: AsyncStream, name: str) -> None:
        self._stream = stream
        self._context = stream._context
        self.name = name

    def __repr__(self) -> str:
        return f"Group({self._stream.name!r}, {self.name!r})"

    def _core(self, create: bool = False) -> groups.Group:
        return groups.group_of(self._stream._core(), self.name, create=create)

    async def join(
        self, member: str = "", *, start: Start = "first", session_ms: int = groups.SESSION_MS
    ) -> AsyncGroupMember:
        """Read a share of the partitions, from where the group is, or from `start` where it has read nothing yet.

        A member that is not heard of for `session_ms` loses its share; reading and committing is being heard of.
        """
        check_text(member, "member")
        where = check_start(start)
        check_positive(session_ms, "session_ms")
        self._context.check_open()
        reader = AsyncGroupMember(self, member or f"member-{uuid.uuid4().hex[:12]}", where, session_ms)
        await reader._prepare()
        return reader

    async def info(self) -> dict[str, Any]:
        """Committed offsets, lag and members."""
        self._context.check_open()
        with self._context.engine:
            return self._core().describe()

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Everything before these offsets, by partition, has been dealt with. For readers that are no members."""
        self._context.check_open()
        async with self._context.engine.change:
            self._core(create=True).commit(dict(offsets))

    async def reset(self, to: Start | Mapping[int, int]) -> None:
        """Let the group go on elsewhere: at an offset, a time, "first", "last", "next", or at offsets by partition."""
        self._context.check_open()
        if isinstance(to, Mapping):
            offsets = dict(to)
        else:
            where = check_start(to)
            with self._context.engine:
                count = len(self._stream._core().partitions)
            offsets = {index: await self._stream._position(index, where) for index in range(count)}
        async with self._context.engine.change:
            self._core(create=True).reset(offsets)

    async def delete(self) -> None:
        """Forget the group and how far it has read."""
        self._context.check_open()
        async with self._context.engine.change:
            groups.delete_group(self._stream._core(), self.name)


class AsyncGroupMember(AsyncStreamReader):
    """A member of a group: reads its share of the partitions, whatever that is at the time.

    `commit` says that everything taken so far has been dealt with. What was taken and not committed is read again by
    whoever gets the partition next.
    """

    def __init__(self, group: AsyncGroup, member: str, start: int | str, session_ms: int) -> None:
        super().__init__(group._context, group._stream.name, {})
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
        with self._context.engine:
            if self._stream.deleted:
                raise StreamNotFound(f"stream {self._name!r} was deleted", argument="stream")
            group = self._group._core(create=True)
            member = group.join(self.member, self._session_ms)
            if group.generation == self.generation:
                return
            self.generation = group.generation
            share = set(member.partitions)
            lost = [index for index in self.positions if index not in share]
            self._unfollow(lost)
            self._ahead = deque(record for record in self._ahead if record.partition in share)
            for index in lost:
                del self.positions[index]
            gained = {index: group.position(index) for index in share if index not in self.positions}
            for index in gained:
                self._stream.partitions[index].followers.append(self._wake)
        for index, committed in gained.items():
            self.positions[index] = (
                committed if committed >= 0 else await self._group._stream._position(index, self._start)
            )

    def _patience(self, left_ms: float | None) -> float | None:
        # to be heard of in time while nothing comes
        patience = self._session_ms / 3
        return patience if left_ms is None else min(left_ms, patience)

    async def commit(self) -> None:
        """Everything taken so far has been dealt with; GroupFenced when the share has changed meanwhile."""
        context = self._context
        context.check_open()
        async with context.engine.change:
            group = self._group._core(create=True)
            if self.member not in group.members:
                raise GroupFenced(f"{self.member!r} was not heard of in time", argument="member")
            group.commit(dict(self.positions), self.member, self.generation)

    async def close(self) -> None:
        """Leave the group; the others take over."""
        if not self._closed and not self._context.closed:
            with self._context.engine:
                if not self._stream.deleted:
                    self._group._core(create=True).leave(self.member)
        await super().close()

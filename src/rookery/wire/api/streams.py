"""Streams: declare, look at, change, trim, seal, delete, and append records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.core import events, retention, streams
from rookery.core.access import Principal
from rookery.core.dedup import scope_of
from rookery.core.stream import Partition, Stream
from rookery.errors import AccessRefused, InvalidArgument, MemoryLimitExceeded, MessageTooLarge
from rookery.model import MESSAGE_OVERHEAD_BYTES, PERSISTENT, check_numbers
from rookery.wire import api_bodies
from rookery.wire.api import Api
from rookery.wire.api_bodies import Outgoing
from rookery.wire.api_messages import ACCEPTED
from rookery.wire.api_queues import Deleted, page
from rookery.wire.api_shapes import Item, PartitionIndex
from rookery.wire.http_call import Call
from rookery.wire.http_routes import CHECKED, LATER, Answer, Router
from rookery.wire.rest_types import Amount, DedupKey, Many, Name, Short

Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Start = Annotated[str, msgspec.Meta(pattern=r"^(first|last|next|[0-9]{1,16})$"), CHECKED]
STARTS: Final = ("first", "last", "next")


class StreamWanted(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What can be said about a stream. Ages and sizes of 0 are no limit; `max_bytes` is of each partition."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    max_age_ms: Amount | None = None
    max_bytes: Amount | None = None
    until_committed: bool | None = None
    by_routing_key: bool | None = None
    seal_bytes: Annotated[int, msgspec.Meta(ge=1 << 10, le=1 << 40)] | None = None
    seal_ms: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] | None = None

    def said(self) -> dict[str, object]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class PartitionShown(msgspec.Struct):
    """`first` is the oldest offset that is kept, `end` the next to come, `sealed_before` where the tail begins."""

    partition: int
    first: int
    end: int
    sealed_before: int
    bytes: int
    files: int
    last_ms: int


class StreamShown(msgspec.Struct):
    """`id` is another when the stream was deleted and made anew; `groups` has the lag of each."""

    name: str
    id: str
    settings: dict[str, Any]
    records: int
    bytes: int
    appended: int
    partitions: list[PartitionShown]
    groups: dict[str, int]


class StreamMade(msgspec.Struct):
    name: str
    created: bool
    settings: dict[str, Any]


class StreamPage(msgspec.Struct):
    streams: list[StreamShown]
    next: str | None


class Appended(msgspec.Struct, omit_defaults=True):
    """Where a record is; of a `duplicate` there is none, its idempotency key was seen before."""

    partition: int | None
    offset: int | None
    duplicate: bool = False


class AppendedAll(msgspec.Struct):
    count: int
    positions: list[Appended]


class OffsetShown(msgspec.Struct):
    partition: int
    offset: int


class OffsetList(msgspec.Struct):
    offsets: list[OffsetShown]


class Trimming(msgspec.Struct, forbid_unknown_fields=True):
    """Records before `offset` are let go of, as far as whole blocks and files allow."""

    offset: Offset
    partition: PartitionIndex = 0


class Trimmed(msgspec.Struct):
    partition: int
    first: int


class Streams:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shard = api.shard

    def all(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> StreamPage:
        """The streams that the caller may read, by name; for admins also the broker's own."""
        tenant = self._api.tenant(call)
        principal: Principal = call.principal
        names = [name for name in tenant.streams if principal.may("read", name) and name != events.STREAM]
        system = self._shard.tenants.get(events.SYSTEM)
        if principal.admin and system is not None and events.STREAM in system.streams:
            names.append(events.STREAM)
        chosen, following = page(names, prefix, after, limit)
        return StreamPage([_shown(self._api.stream(call, name, "read")) for name in chosen], following)

    def declare(self, call: Call, name: Name, body: StreamWanted | None = None) -> Answer:
        """Make a stream. The same again is fine, other settings a conflict."""
        if name == events.STREAM:
            raise AccessRefused(f"stream '{name}' is the broker's own")
        said = {} if body is None else body.said()
        stream, created = streams.declare(self._api.tenant(call), name, said)
        call.lasting()
        return Answer(201 if created else 200, StreamMade(name, created, stream.settings.as_dict()))

    def info(self, call: Call, name: Name) -> StreamShown:
        """A stream: settings, partitions with their offsets and sizes, and the lag of its groups."""
        return _shown(self._api.stream(call, name, "read"))

    def alter(self, call: Call, name: Name, body: StreamWanted) -> StreamShown:
        """Change what a stream keeps and when it is sealed; the number of partitions stays."""
        stream = self._api.stream(call, name, "configure")
        streams.alter(stream.tenant, name, body.said())
        call.lasting()
        return _shown(stream)

    def delete(self, call: Call, name: Name, if_unused: bool = False) -> Deleted:
        """Delete a stream with all its records."""
        stream = self._api.stream(call, name, "configure")
        count = streams.delete(stream.tenant, name, if_unused)
        call.lasting()
        return Deleted(name, count)

    # Publishing

    def publish(
        self,
        call: Call,
        name: Name,
        body: bytes,
        key: str | None = None,
        partition: PartitionIndex | None = None,
        message_id: Short | None = None,
        idempotency_key: DedupKey | None = None,
    ) -> Answer:
        """Append one record or many, all of them or none; where they are. Records of one `key` are in one partition, in
        order. A body that is neither JSON, lines of JSON nor an event is one record as it is. A repeated header
        `Idempotency-Key` adds nothing.
        """
        stream = self._api.stream(call, name, "write")
        said = Item(message_id=message_id, idempotency_key=idempotency_key, key=key, partition=partition)
        found = api_bodies.read(call, body, int(self._shard.wall_ms), said)
        messages = found.all()
        if self._api.repeated(call, "", name):
            call.lasting()
            gone = [Appended(None, None, True) for _ in messages]
            return Answer(200, gone[0] if found.single else AppendedAll(len(gone), gone))
        self._check(stream, messages, found.single)
        positions = [self._append(stream, each) for each in messages]
        self._api.remember(call, "", name, int(self._shard.last_id))
        call.lasting()
        if found.single:
            return Answer(200 if positions[0].duplicate else 201, positions[0])
        return Answer(201, AppendedAll(len(positions), positions))

    def _check(self, stream: Stream, messages: list[Outgoing], single: bool) -> None:
        """Refuse all of them if one cannot be appended."""
        tenant = stream.tenant
        self._api.rest.check_room()
        self._shard.log.check()
        total = 0
        for index, each in enumerate(messages):
            at = "" if single else f"[{index}]."
            size = len(each.props) + len(each.body)
            total += size + MESSAGE_OVERHEAD_BYTES
            check_numbers(each.priority, each.expires_ms, each.due_ms)
            if each.due_ms:
                raise InvalidArgument("records of a stream have no delay", argument=f"{at}delay_ms")
            if each.partition >= len(stream.partitions):
                last = len(stream.partitions) - 1
                raise InvalidArgument(f"stream {stream.name!r} has partitions 0 to {last}", argument=f"{at}partition")
            if size > tenant.message_bytes_max:
                raise MessageTooLarge(
                    f"record of {size} bytes; at most {tenant.message_bytes_max}", argument=f"{at}message"
                )
        if (
            tenant.memory_bytes + total > tenant.memory_bytes_max
            or self._shard.memory_bytes + total > self._shard.memory_bytes_max
        ):
            raise MemoryLimitExceeded

    def _append(self, stream: Stream, each: Outgoing) -> Appended:
        tenant = stream.tenant
        shard = self._shard
        if each.dedup_key and tenant.dedup.find(scope_of("", stream.name), each.dedup_key, shard.wall_ms):
            tenant.dedup.duplicates += 1
            return Appended(None, None, True)
        way = tenant.way(tenant.default, stream.name)
        if each.routing_key is not None:
            way = tenant.way(tenant.default, each.routing_key)
        message = shard.message(tenant, way, each.props, each.body, each.priority, each.expires_ms, PERSISTENT)
        chosen = stream.choose(message) if each.partition < 0 else stream.partition(each.partition)
        offset = chosen.append(message)
        stream.appended += 1
        tenant.published += 1
        if each.dedup_key:
            tenant.remember("", stream.name, each.dedup_key, message.id)
        return Appended(int(chosen.index), int(offset))

    # Offsets

    def offsets(self, call: Call, name: Name, at: Start = "next", partition: PartitionIndex | None = None) -> object:
        """The offsets at which to begin to read: `first`, `last`, `next` (the end), or at a time, in milliseconds since
        1970: then the first that was appended then or later.
        """
        stream = self._api.stream(call, name, "read")
        chosen = list(stream.partitions) if partition is None else [stream.partition(partition)]
        return self.positions(call, chosen, at, lambda found: OffsetList([OffsetShown(p, o) for p, o in found]))

    def positions(
        self, call: Call, partitions: list[Partition], start: str, then: Callable[[list[tuple[int, int]]], object]
    ) -> object:
        """Answer with what `then` makes of the offsets that a start stands for, by partition."""
        if start in STARTS:
            return then([(int(each.index), _named(each, start)) for each in partitions])
        stamp = int(start)
        looks: list[tuple[int, int, str]] = []
        for each in partitions:
            files = [file for file in each.files if file.last_ms >= stamp]
            if files:
                looks.append((int(each.index), int(each.first), files[0].path))
            else:
                looks.append((int(each.index), int(each.offset_at(stamp)), ""))
        if not any(path for _, _, path in looks):
            return then([(index, offset) for index, offset, _ in looks])
        archive = self._api.archive

        def work() -> list[tuple[int, int]]:
            return [(i, max(offset, archive.first_at(path, stamp)) if path else offset) for i, offset, path in looks]

        return self._api.later(call, work, then)

    # Looking after it

    def trim(self, call: Call, name: Name, body: Trimming) -> Trimmed:
        """Let go of old records."""
        stream = self._api.stream(call, name, "configure")
        partition = stream.partition(body.partition)
        partition.check(body.offset)
        retention.release(partition, body.offset)
        call.lasting()
        return Trimmed(body.partition, int(partition.first))

    def seal(self, call: Call, name: Name) -> object:
        """Write everything that the stream shows now into Parquet files, and answer when that is done."""
        stream = self._api.stream(call, name, "configure")
        waiting = _Sealing(self._api, call, stream)
        call.suspend(waiting.leave)
        waiting.go_on(None)
        return LATER


class _Sealing:
    """A call that waits until each partition of a stream is sealed."""

    def __init__(self, api: Api, call: Call, stream: Stream) -> None:
        self._api = api
        self._call: Call | None = call
        self._stream = stream
        self._todo = list(stream.partitions)

    def leave(self) -> None:
        self._call = None

    def go_on(self, error: BaseException | None) -> None:
        call = self._call
        if call is None:
            return
        if error is None and self._todo:
            self._api.archive.seal(self._todo.pop(0), self.go_on)
            return
        self._call = None
        self._api.router.complete(call, lambda: self._answer(call, error))

    def _answer(self, call: Call, error: BaseException | None) -> StreamShown:
        if error is not None:
            raise error
        call.lasting()
        return _shown(self._stream)


def _named(partition: Partition, start: str) -> int:
    if start == "first":
        return int(partition.first)
    if start == "last":
        return max(int(partition.first), int(partition.visible) - 1)
    return int(partition.visible)


def _shown(stream: Stream) -> StreamShown:
    return msgspec.convert(streams.describe(stream), StreamShown)


def add_routes(router: Router, api: Api) -> Streams:
    routes = Streams(api)
    one = "/api/v1/streams/{name}"
    made = {201: StreamMade, 200: StreamMade}
    sent = {201: (Appended, AppendedAll), 200: (Appended, AppendedAll)}
    tag: Literal["streams"] = "streams"
    router.add("GET", "/api/v1/streams", routes.all, {200: StreamPage}, "stream.list", tag=tag)
    router.add("PUT", one, routes.declare, made, "stream.declare", tag=tag)
    router.add("GET", one, routes.info, {200: StreamShown}, "stream.show", tag=tag)
    router.add("PATCH", one, routes.alter, {200: StreamShown}, "stream.change", tag=tag)
    router.add("DELETE", one, routes.delete, {200: Deleted}, "stream.change", tag=tag)
    router.add("POST", f"{one}/publish", routes.publish, sent, "stream.publish", tag=tag, accepts=ACCEPTED)
    router.add("GET", f"{one}/offsets", routes.offsets, {200: OffsetList}, "stream.read", tag=tag)
    router.add("POST", f"{one}/trim", routes.trim, {200: Trimmed}, "stream.change", tag=tag)
    router.add("POST", f"{one}/seal", routes.seal, {200: StreamShown}, "stream.change", tag=tag)
    return routes

"""Streams: declare, look at, change, trim, seal, delete, append records, and publish records once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.core import events, retention, rights, streams
from rookery.core.access import Principal
from rookery.core.publishing import append_all
from rookery.core.stream import Partition, Stream
from rookery.errors import AccessRefused
from rookery.wire.api import bodies
from rookery.wire.api.broker import Api
from rookery.wire.api.messages import ACCEPTED
from rookery.wire.api.records import LEASE_MS, PAGE_BYTES, PAGE_RECORDS
from rookery.wire.api.shapes import Deleted, Item, PartitionIndex
from rookery.wire.api.types import Amount, DedupKey, Many, Name, Offset, Short
from rookery.wire.http.call import Call
from rookery.wire.http.routes import CHECKED, LATER, Answer, Router

Start = Annotated[str, msgspec.Meta(pattern=r"^(first|last|next|[0-9]{1,16})$"), CHECKED]
STARTS: Final = ("first", "last", "next")

Records = Annotated[int, msgspec.Meta(ge=1, le=PAGE_RECORDS)]


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


class ReplayStream(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """From an offset on, by default the oldest that is kept."""

    partition: PartitionIndex = 0
    from_: Offset | None = None
    limit: Records = PAGE_RECORDS


class ReplayedStream(msgspec.Struct):
    """How many somebody got; `next` is the offset to go on with, `end` the one after the last there is."""

    replayed: int
    next: int
    end: int


class Streams:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shard = api.shard

    def all(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> object:
        """The streams that the caller may read, by name; for admins also the broker's own."""
        tenant = self._api.tenant(call)
        principal: Principal = call.principal
        found = {name: stream for name, stream in tenant.streams.items() if name != events.STREAM}
        system = self._shard.tenants.get(events.SYSTEM)
        if principal.admin and system is not None and events.STREAM in system.streams:
            found[events.STREAM] = system.streams[events.STREAM]

        def show(name: str) -> StreamShown | None:
            return None if found[name].deleted else _shown(found[name])

        return self._api.page(call, list(found), (prefix, after, limit), show, StreamPage)

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
        found = bodies.read(call, body, int(self._shard.wall_ms), said)
        messages = found.all()
        if self._api.repeated(call, "", name):
            call.lasting()
            gone = [Appended(None, None, True) for _ in messages]
            return Answer(200, gone[0] if found.single else AppendedAll(len(gone), gone))
        self._api.rest.check_room()
        records = [each.append(name) for each in messages]
        appended = append_all(self._shard, stream, records, not found.single)
        positions = [Appended(None, None, True) if each is None else Appended(*each) for each in appended]
        self._api.remember(call, "", name, int(self._shard.last_id))
        call.lasting()
        if found.single:
            return Answer(200 if positions[0].duplicate else 201, positions[0])
        return Answer(201, AppendedAll(len(positions), positions))

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

    def replay(self, call: Call, name: Name, body: ReplayStream | None = None) -> object:
        """Hand records to whoever their exchanges lead to today, a page of up to 1,000; no stream gets them again."""
        wanted = body or ReplayStream()
        partition = self._api.stream(call, name, "read").partition(wanted.partition)
        start = int(partition.first) if wanted.from_ is None else wanted.from_
        partition.check(start)
        stop = min(int(partition.visible), start + wanted.limit)
        if start < min(stop, int(partition.tail)):
            return self._sealed(call, partition, start, stop)
        raws: list[bytes] = []
        size = 0
        while start + len(raws) < stop and size < PAGE_BYTES:
            raws.append(partition.record(start + len(raws)))
            size += len(raws[-1])
        return self._hand_out(call, partition, raws, start + len(raws))

    def _sealed(self, call: Call, partition: Partition, start: int, stop: int) -> object:
        file = partition.file_of(start)
        assert file is not None, "sealed offsets are in files"
        stop = min(stop, int(file.last) + 1)
        archive, path, plan = self._api.archive, file.path, f"replay-{self._api.random_text()}"
        archive.lease(plan, frozenset([path]), LEASE_MS)

        def then(raws: list[bytes]) -> object:
            archive.release(plan)
            return self._hand_out(call, partition, raws, stop)

        return self._api.later(call, lambda: archive.records(path, start, stop), then)

    def _hand_out(self, call: Call, partition: Partition, raws: list[bytes], following: int) -> ReplayedStream:
        tenant = partition.stream.tenant
        shard = tenant.shard
        found = [shard.message_of(raw) for raw in raws]
        chosen = [record for record in found if not 0 < int(record.expires_ms) <= int(shard.wall_ms)]
        for exchange in {streams.exchange_of(tenant, record).name for record in chosen}:
            rights.require(call.principal, "exchange.publish", "exchange", exchange)
        self._api.rest.check_room()
        count = sum(streams.replay(tenant, record) for record in chosen)
        call.lasting()
        return ReplayedStream(count, following, int(partition.visible))


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
    router.add("POST", f"{one}/replay", routes.replay, {200: ReplayedStream}, "stream.replay", tag=tag)
    return routes

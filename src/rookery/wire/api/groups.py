"""Consumer groups of streams: how far they have read, and for members their share of the partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from rookery.core import groups
from rookery.core.groups import SESSION_MS, Group, Member
from rookery.core.stream import Stream
from rookery.wire.api.broker import Api
from rookery.wire.api.shapes import Deleted
from rookery.wire.api.streams import Start, Streams
from rookery.wire.api.types import Name, Offset
from rookery.wire.http.call import JSON, Call
from rookery.wire.http.routes import Content, Router, encode_json

STEP_ROWS: Final = 2_000
"""So many partitions of groups are shown in one turn."""

PartitionKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}$")]
Offsets = Annotated[dict[PartitionKey, Offset], msgspec.Meta(min_length=1, max_length=256)]
SessionMs = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
Generation = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class GroupPartition(msgspec.Struct):
    """`committed` is the next offset to be read, null where nothing was committed."""

    partition: int
    committed: int | None
    end: int
    lag: int


class GroupShown(msgspec.Struct):
    """`lag` counts the records that are kept and not yet read; `members` have their partitions."""

    group: str
    stream: str
    lag: int
    generation: int
    members: dict[str, list[int]]
    partitions: list[GroupPartition]


class GroupList(msgspec.Struct):
    groups: list[GroupShown]


class Committing(msgspec.Struct, forbid_unknown_fields=True):
    """Everything before these offsets, by partition, has been dealt with. Members say who they are."""

    offsets: Offsets
    member: str = ""
    generation: Generation = 0


class Resetting(msgspec.Struct, forbid_unknown_fields=True):
    """All partitions `to` first, last, next or a time in milliseconds since 1970; those in `offsets` to theirs."""

    offsets: Offsets | None = None
    to: Start | None = None


class Joining(msgspec.Struct, forbid_unknown_fields=True):
    """Whoever is not heard of for `session_ms` loses its share. Without `member` a name is given."""

    member: Name | None = None
    session_ms: SessionMs = SESSION_MS


class MemberNamed(msgspec.Struct, forbid_unknown_fields=True):
    member: Name


class Share(msgspec.Struct):
    """What a member reads, until the generation changes, and where to go on."""

    group: str
    member: str
    generation: int
    session_ms: int
    partitions: list[GroupPartition]


class Left(msgspec.Struct):
    status: str
    generation: int


class Groups:
    """The routes. A group comes into being when it is first used; all it needs is the right to read the stream."""

    def __init__(self, api: Api, streams: Streams) -> None:
        self._api = api
        self._streams = streams

    def _stream(self, call: Call, name: str) -> Stream:
        return self._api.stream(call, name, "read")

    def all(self, call: Call, name: Name) -> object:
        """The groups of a stream."""
        stream = self._stream(call, name)
        rows: list[bytes] = []

        def work() -> Iterator[None]:
            for group in [stream.groups[name] for name in sorted(stream.groups)]:
                rows.append(encode_json(_shown(group)))
                for _ in stream.partitions:
                    yield

        def answer() -> Content:
            return Content(b'{"groups":[' + b",".join(rows) + b"]}", JSON)

        return self._api.in_steps(call, work(), STEP_ROWS, answer)

    def one(self, call: Call, name: Name, group: Name) -> GroupShown:
        """How far a group has read, and who is in it."""
        return _shown(groups.group_of(self._stream(call, name), group, create=False))

    def commit(self, call: Call, name: Name, group: Name, body: Committing) -> object:
        """Say how far the group has read. An earlier offset than before changes nothing."""
        found = groups.group_of(self._stream(call, name), group)
        found.commit(_offsets(body.offsets), body.member, body.generation)
        return self._when_durable(call, found)

    def reset(self, call: Call, name: Name, group: Name, body: Resetting) -> object:
        """Let a group without members go on elsewhere."""
        stream = self._stream(call, name)
        own = _offsets(body.offsets or {})
        if body.to is None:
            return self._reset(call, stream, group, own)
        return self._streams.positions(
            call,
            list(stream.partitions),
            body.to,
            lambda found: self._reset(call, stream, group, {**dict(found), **own}),
        )

    def _reset(self, call: Call, stream: Stream, group: str, offsets: dict[int, int]) -> object:
        found = groups.group_of(stream, group)
        found.reset(offsets)
        return self._when_durable(call, found)

    def _when_durable(self, call: Call, group: Group) -> object:
        """Show a group as it is once what it was told is durable."""
        return self._api.after(call, lambda: _shown(group))

    def delete(self, call: Call, name: Name, group: Name) -> Deleted:
        """Forget a group without members."""
        groups.delete_group(self._stream(call, name), group)
        call.lasting()
        return Deleted(group)

    # Members

    def join(self, call: Call, name: Name, group: Name, body: Joining | None = None) -> Share:
        """Read a share of the partitions. The shares of the others change: their generation is over."""
        wanted = body or Joining()
        found = groups.group_of(self._stream(call, name), group)
        member = wanted.member or f"member-{self._api.random_text()}"
        return _share(found, found.join(member, wanted.session_ms))

    def heartbeat(self, call: Call, name: Name, group: Name, body: MemberNamed) -> Share:
        """Say that a member is there, and learn its share."""
        found = groups.group_of(self._stream(call, name), group, create=False)
        return _share(found, found.member(body.member))

    def leave(self, call: Call, name: Name, group: Name, body: MemberNamed) -> Left:
        """Leave the share to the others."""
        found = groups.group_of(self._stream(call, name), group, create=False)
        found.leave(body.member)
        return Left("ok", found.generation)


def _offsets(said: dict[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in said.items()}


def _shown(group: Group) -> GroupShown:
    return msgspec.convert(group.describe(), GroupShown)


def _share(group: Group, member: Member) -> Share:
    rows = {row.partition: row for row in _shown(group).partitions}
    share = [rows[index] for index in member.partitions]
    return Share(group.name, member.name, group.generation, member.session_ms, share)


def add_routes(router: Router, api: Api, streams: Streams) -> None:
    routes = Groups(api, streams)
    root = "/api/v1/streams/{name}/groups"
    one = f"{root}/{{group}}"
    more: dict[str, Any] = {"tag": "groups"}
    router.add("GET", root, routes.all, {200: GroupList}, "stream.show", **more)
    router.add("GET", one, routes.one, {200: GroupShown}, "stream.show", **more)
    router.add("DELETE", one, routes.delete, {200: Deleted}, "stream.group", **more)
    router.add("POST", f"{one}/commit", routes.commit, {200: GroupShown}, "stream.group", **more)
    router.add("POST", f"{one}/reset", routes.reset, {200: GroupShown}, "stream.group", **more)
    router.add("POST", f"{one}/join", routes.join, {200: Share}, "stream.group", **more)
    router.add("POST", f"{one}/heartbeat", routes.heartbeat, {200: Share}, "stream.group", **more)
    router.add("POST", f"{one}/leave", routes.leave, {200: Left}, "stream.group", **more)

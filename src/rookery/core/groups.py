"""Consumer groups of a stream: how far each has read, and which of its members reads which partitions.

A committed offset is the next one to be read. It never moves back but by `reset`, and it is shown only once it is
durable. Partitions are shared out among the members by their ids in order; each change of membership begins a new
generation, and whoever commits for a partition that is not his, or speaks of an older generation, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rookery.core.topology import check_name
from rookery.errors import GroupFenced, GroupNotFound, InUse, InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from rookery.core.stream import Stream

IDLE_MS: Final = 7 * 86_400_000
"""A group that nobody used for so long is forgotten."""

SESSION_MS: Final = 30_000
GROUPS_MAX: Final = 1_000
MEMBERS_MAX: Final = 1_000


class Member:
    """One reader of a group, as long as it is heard of."""

    def __init__(self, name: str, session_ms: int, due_ms: int) -> None:
        self.name = name
        self.session_ms = session_ms
        self.due_ms = due_ms
        self.partitions: list[int] = []


class Group:
    """See the module's docstring."""

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self.stream = stream
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.used_ms = int(stream.tenant.shard.wall_ms)
        # what is durable, and what has been asked for; -1 where nothing was
        self.committed = [-1] * len(stream.partitions)
        self._asked = [-1] * len(stream.partitions)

    # Membership

    def join(self, member: str, session_ms: int = SESSION_MS) -> Member:
        """Become a member, or say that one still is."""
        check_name(member, "member")
        if session_ms < 1:
            raise InvalidArgument("session_ms must be at least 1", argument="session_ms")
        shard = self.stream.tenant.shard
        self.used_ms = int(shard.wall_ms)
        known = self.members.get(member)
        if known is None:
            if len(self.members) >= MEMBERS_MAX:
                raise LimitExceeded(f"group {self.name!r} has its {MEMBERS_MAX} members", argument="member")
            known = self.members[member] = Member(member, session_ms, 0)
            self._share_out()
        known.session_ms = session_ms
        known.due_ms = int(shard.mono_ms) + session_ms
        shard.streams_due_ms = min(int(shard.streams_due_ms), known.due_ms)
        return known

    def leave(self, member: str) -> None:
        """Give one's partitions to the others."""
        if self.members.pop(member, None) is not None:
            self._share_out()

    def member(self, member: str) -> Member:
        """A member that is heard of again just now."""
        known = self.members.get(member)
        if known is None:
            raise GroupFenced(f"{member!r} is no member of group {self.name!r} (any more)", argument="member")
        shard = self.stream.tenant.shard
        known.due_ms = int(shard.mono_ms) + known.session_ms
        self.used_ms = int(shard.wall_ms)
        return known

    def tick(self, mono_ms: int) -> None:
        """Let go of members that were not heard of in time."""
        silent = [name for name, member in self.members.items() if member.due_ms <= mono_ms]
        for name in silent:
            del self.members[name]
        if silent:
            self._share_out()

    def next_due_ms(self, never: int) -> int:
        return min((member.due_ms for member in self.members.values()), default=never)

    def _share_out(self) -> None:
        """Contiguous runs of partitions, as equal as can be, to the members in order of their ids."""
        self.generation += 1
        names = sorted(self.members)
        partitions = list(range(len(self.stream.partitions)))
        for i, name in enumerate(names):
            share, more = divmod(len(partitions), len(names))
            start = i * share + min(i, more)
            self.members[name].partitions = partitions[start : start + share + (i < more)]
        for partition in self.stream.partitions:
            partition.stir()

    # Offsets

    def position(self, partition: int) -> int:
        """Where the group goes on reading; -1 where it has committed nothing."""
        return self.committed[partition]

    def lag(self) -> int:
        """How many records that are kept the group has not read."""
        return sum(
            int(partition.visible) - max(self.committed[i], int(partition.first))
            for i, partition in enumerate(self.stream.partitions)
        )

    def commit(self, offsets: Mapping[int, int], member: str = "", generation: int = 0) -> None:
        """Everything before these offsets, by partition, has been dealt with."""
        if member:
            self._check_share(offsets, member, generation)
        elif self.members:
            raise GroupFenced(f"group {self.name!r} has members, who commit for themselves", argument="member")
        self._check_offsets(offsets)
        ahead = {index: offset for index, offset in offsets.items() if offset > self._asked[index]}
        self.used_ms = int(self.stream.tenant.shard.wall_ms)
        if ahead:
            self._move("commit", ahead)

    def reset(self, offsets: Mapping[int, int]) -> None:
        """Go on reading from these offsets, which may be earlier ones; nobody may be reading meanwhile."""
        if self.members:
            raise InUse(f"group {self.name!r} has members: {', '.join(sorted(self.members))}", argument="group")
        self._check_offsets(offsets)
        self._move("reset", dict(offsets))

    def _check_share(self, offsets: Mapping[int, int], member: str, generation: int) -> None:
        known = self.member(member)
        if generation != self.generation:
            raise GroupFenced(
                f"group {self.name!r} is in generation {self.generation}, not {generation}", argument="generation"
            )
        for index in offsets:
            if index not in known.partitions:
                raise GroupFenced(f"partition {index} is not {member!r}'s", argument="partition")

    def _check_offsets(self, offsets: Mapping[int, int]) -> None:
        for index, offset in offsets.items():
            partition = self.stream.partition(index)
            if not 0 <= offset <= partition.visible:
                raise InvalidArgument(
                    f"offset {offset} of partition {index} is not there: it ends at {partition.visible}",
                    argument="offset",
                )

    def _move(self, operation: str, offsets: dict[int, int]) -> None:
        for index, offset in offsets.items():
            self._asked[index] = offset
        tenant = self.stream.tenant
        log = tenant.shard.log
        log.change(
            operation + "-group",
            tenant.name,
            {
                "stream": self.stream.name,
                "group": self.name,
                "offsets": [[index, offset] for index, offset in offsets.items()],
                "used_ms": int(tenant.shard.wall_ms),
            },
        )
        log.when_durable(lambda: self.put(offsets))

    def put(self, offsets: Mapping[int, int]) -> None:
        """These offsets are durable."""
        for index, offset in offsets.items():
            self.committed[index] = offset

    def restore(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets, which a journal tells of: nothing beyond them was asked for."""
        for index, offset in offsets.items():
            self.committed[index] = self._asked[index] = offset

    def describe(self) -> dict[str, Any]:
        """What is shown of it."""
        return {
            "group": self.name,
            "stream": self.stream.name,
            "lag": self.lag(),
            "generation": self.generation,
            "members": {name: list(member.partitions) for name, member in sorted(self.members.items())},
            "partitions": [
                {
                    "partition": index,
                    "committed": self.committed[index] if self.committed[index] >= 0 else None,
                    "end": int(partition.visible),
                    "lag": int(partition.visible) - max(self.committed[index], int(partition.first)),
                }
                for index, partition in enumerate(self.stream.partitions)
            ],
        }

    def as_dict(self) -> dict[str, Any]:
        """As it is written down: with what has been asked for, which is durable together with this."""
        return {"name": self.name, "offsets": list(self._asked), "used_ms": self.used_ms}


def group_of(stream: Stream, name: str, create: bool = True) -> Group:
    """The group of that name, made if need be."""
    group = stream.groups.get(name)
    if group is None:
        if not create:
            raise GroupNotFound(f"no group {name!r} of stream {stream.name!r}", argument="group")
        check_name(name, "group")
        if len(stream.groups) >= GROUPS_MAX:
            raise LimitExceeded(f"stream {stream.name!r} reached its limit of {GROUPS_MAX} groups", argument="group")
        tenant = stream.tenant
        if tenant.is_full(tenant.limits.groups_max, int(tenant.groups)):
            raise tenant.too_many("consumer groups", "groups_max", "group")
        group = stream.groups[name] = Group(name, stream)
        tenant.groups += 1
    return group


def delete_group(stream: Stream, name: str) -> None:
    """Forget a group and how far it has read."""
    group = group_of(stream, name, create=False)
    if group.members:
        raise InUse(f"group {name!r} has members: {', '.join(sorted(group.members))}", argument="group")
    drop_group(stream, name)


def drop_group(stream: Stream, name: str) -> None:
    del stream.groups[name]
    tenant = stream.tenant
    tenant.groups -= 1
    tenant.shard.log.change("drop-group", tenant.name, {"stream": stream.name, "group": name})

"""What streams let go of by themselves: records that are too old or too many, members not heard of, forgotten groups.

Whole blocks of the tail and whole files are let go of. Age keeps a little more than it must; size is a cap.
Removing a file from a partition's list is all that happens here; whoever keeps the files deletes it later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rookery.core.groups import IDLE_MS, drop_group
from rookery.format.model import NEVER

if TYPE_CHECKING:
    from rookery.core.shard import Shard
    from rookery.core.stream import Partition, Stream

TICK_MS: Final = 1_000
GRACE_MS: Final = 3_600_000
"""How long a file stays that was let go of: somebody may be reading it."""


def tick(shard: Shard) -> int:
    """Do what is due in all streams; the monotonic time at which to look again."""
    now = int(shard.mono_ms)
    due = int(NEVER)
    if shard.staging.chunks or shard.staging.aliases or shard.staging.producers:
        shard.staging.expire()
        due = now + TICK_MS
    for tenant in list(shard.tenants.values()):
        for stream in list(tenant.streams.values()):
            for group in list(stream.groups.values()):
                group.tick(now)
                due = min(due, group.next_due_ms(due))
                if not group.members and group.used_ms + IDLE_MS < shard.wall_ms:
                    drop_group(stream, group.name)
            trim(stream)
            due = min(due, now + TICK_MS)
    return due


def trim(stream: Stream) -> None:
    """Let go of what a stream need not keep."""
    settings = stream.settings
    if not (settings.max_age_ms or settings.max_bytes or settings.until_committed):
        return
    for partition in stream.partitions:
        floor = int(partition.first)
        if settings.max_age_ms:
            floor = max(floor, _young(partition, int(stream.tenant.shard.wall_ms) - settings.max_age_ms))
        if settings.max_bytes:
            floor = max(floor, _fitting(partition, settings.max_bytes))
        if settings.until_committed and stream.groups:
            floor = max(floor, min(group.committed[int(partition.index)] for group in stream.groups.values()))
        if floor > partition.first:
            release(partition, floor)


def release(partition: Partition, floor: int) -> None:
    """Keep nothing before this offset, as far as whole blocks and files allow; nothing that is not durable goes."""
    floor = min(floor, int(partition.visible))
    gone = 0
    while gone < len(partition.files) and partition.files[gone].last < floor:
        gone += 1
    dropped = partition.files[:gone]
    if gone:
        partition.files = partition.files[gone:]
    if partition.files:
        first = int(partition.files[0].first)
    else:
        first = max(int(partition.tail), partition.block_floor(floor))
        partition.cut_tail(first)
    if first <= partition.first and not dropped:
        return
    partition.first = first
    tenant = partition.stream.tenant
    paths = [file.path for file in dropped]
    due = int(tenant.shard.wall_ms) + GRACE_MS
    row: dict[str, object] = {"partition": int(partition.number), "first": first, "files": paths, "due_ms": due}
    tenant.shard.log.change("trim", tenant.name, row)
    tenant.shard.condemn(paths, GRACE_MS)


def _young(partition: Partition, stamp: int) -> int:
    """The first offset that was appended at this time or later, files taken as wholes."""
    for file in partition.files:
        if file.last_ms >= stamp:
            return int(file.first)
    return int(partition.offset_at(stamp))


def _fitting(partition: Partition, most: int) -> int:
    """The first offset from which on no more than so many bytes follow."""
    excess = int(partition.size_bytes()) - most
    if excess <= 0:
        return int(partition.first)
    for file in partition.files:
        if excess <= 0:
            return int(file.first)
        excess -= int(file.bytes)
    return int(partition.offset_after(excess)) if excess > 0 else int(partition.tail)

"""Declaring, changing and deleting the streams of a tenant.

Queues and streams share their names, because the default exchange routes to either by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rookery.core import publishing
from rookery.core.keeping import TOPICS
from rookery.core.stream import Partition, Stream, StreamSettings, check_settings
from rookery.core.topology import PARTITION_BYTES, STREAM_BYTES, check_name
from rookery.errors import AlreadyExists, Conflict, InUse, OffsetOutOfRange
from rookery.format.model import PERSISTENT, Message

if TYPE_CHECKING:
    from rookery.core.topology import Exchange, Tenant


def declare(tenant: Tenant, name: str, settings: Mapping[str, object], create: bool = False) -> tuple[Stream, bool]:
    """The stream of that name, made if it was not there (then True); what is said must agree with an existing one."""
    check_name(name, "stream")
    said = check_settings(settings)
    stream = tenant.streams.get(name)
    if stream is not None:
        if create:
            raise AlreadyExists(f"stream {name!r} already exists", argument="stream")
        for setting, value in said.items():
            before = getattr(stream.settings, setting)
            if before != value:
                raise Conflict(f"stream {name!r} exists with {setting}={before!r}, not {value!r}", argument=setting)
        return stream, False
    if name in tenant.queues:
        raise Conflict(f"{name!r} is a queue", argument="stream")
    tenant.check_unlocked()
    if tenant.is_full(tenant.limits.streams_max, len(tenant.streams)):
        raise tenant.too_many("streams", "streams_max", "stream")
    count = said.get("partitions", 1)
    assert isinstance(count, int)
    first = int(tenant.shard.queue_numbers) + 1
    made_ms = int(tenant.shard.wall_ms)
    stream = make(tenant, name, said, list(range(first, first + count)), made_ms)
    numbers = [int(partition.number) for partition in stream.partitions]
    row = {"name": name, "settings": dict(said), "numbers": numbers, "made_ms": made_ms}
    tenant.shard.log.change("stream", tenant.name, row)
    return stream, True


def make(tenant: Tenant, name: str, said: dict[str, object], numbers: list[int], made_ms: int) -> Stream:
    """A stream whose partitions have these numbers in the journal, which no queue has."""
    settings = StreamSettings()
    for setting, value in said.items():
        setattr(settings, setting, value)
    tenant.count_definition(_bytes_of(name, len(numbers)))
    stream = Stream(name, tenant, settings)
    stream.said = dict(said)
    stream.made_ms = made_ms
    shard = tenant.shard
    for index, number in enumerate(numbers):
        partition = Partition(stream, index, number)
        stream.partitions.append(partition)
        shard.partitions[number] = partition
        shard.queue_numbers = max(int(shard.queue_numbers), number)
    tenant.streams[name] = stream
    shard.streams_due_ms = 0
    tenant.version += 1
    return stream


def alter(tenant: Tenant, name: str, settings: Mapping[str, object]) -> Stream:
    """Change what a stream keeps; the number of its partitions stays."""
    stream = tenant.stream(name)
    said = check_settings(settings)
    if said.get("partitions", stream.settings.partitions) != stream.settings.partitions:
        raise Conflict(f"stream {name!r} has {stream.settings.partitions} partitions for good", argument="partitions")
    for setting, value in said.items():
        setattr(stream.settings, setting, value)
    stream.said.update(said)
    tenant.shard.log.change("alter-stream", tenant.name, {"name": name, "settings": dict(said)})
    return stream


def delete(tenant: Tenant, name: str, if_unused: bool = False) -> int:
    """Delete a stream with all its records; returns how many there were."""
    stream = tenant.stream(name)
    tenant.check_unlocked()
    if if_unused and any(partition.followers for partition in stream.partitions):
        raise InUse(f"stream {name!r} in use", argument="stream")
    count = stream.records()
    del tenant.streams[name]
    tenant.groups -= len(stream.groups)
    tenant.count_definition(-_bytes_of(name, len(stream.partitions)))
    tenant.unbind_target(stream)
    tenant.forget_keys("queue:" + name)
    tenant.version += 1
    paths = [file.path for partition in stream.partitions for file in partition.files]
    stream.end("deleted")
    for partition in stream.partitions:
        tenant.shard.partitions.pop(int(partition.number), None)
    number = int(stream.partitions[0].number)
    due = int(tenant.shard.wall_ms)
    row: dict[str, object] = {"name": name, "number": number, "files": paths, "due_ms": due}
    tenant.shard.log.change("drop-stream", tenant.name, row)
    tenant.shard.condemn(paths, 0)
    return count


def _bytes_of(name: str, partitions: int) -> int:
    return STREAM_BYTES + len(name) + partitions * PARTITION_BYTES


def check_id(stream: Stream, wanted: str) -> None:
    """Raise for a stream that was made anew since `wanted` was its id; any will do when that is empty."""
    if wanted and wanted != stream.id():
        raise OffsetOutOfRange(f"stream {stream.name!r} was deleted and made anew", argument="id")


def describe(stream: Stream) -> dict[str, Any]:
    """What is shown of a stream."""
    return {
        "name": stream.name,
        "id": stream.id(),
        "settings": stream.settings.as_dict(),
        "records": stream.records(),
        "bytes": sum(int(partition.size_bytes()) for partition in stream.partitions),
        "appended": int(stream.appended),
        "partitions": [
            {
                "partition": int(partition.index),
                "first": int(partition.first),
                "end": int(partition.visible),
                "sealed_before": int(partition.tail),
                "bytes": int(partition.size_bytes()),
                "files": len(partition.files),
                "last_ms": int(partition.last_ms),
            }
            for partition in stream.partitions
        ],
        "groups": {name: group.lag() for name, group in sorted(stream.groups.items())},
    }


def exchange_of(tenant: Tenant, record: Message) -> Exchange:
    """Where a record leads when it is replayed: to its exchange, or, if that is gone or none, to the topics."""
    exchange = tenant.exchanges.get(record.route.exchange)
    return tenant.exchanges[TOPICS] if exchange is None or exchange is tenant.default else exchange


def replay(tenant: Tenant, record: Message) -> bool:
    """Offer a record to the queues that its exchange leads to today; whether there are any (within a turn)."""
    way = tenant.way(exchange_of(tenant, record), record.route.key)
    message = Message(way.route, record.props, record.body, record.id, record.priority, record.expires_ms, PERSISTENT)
    queues = tenant.queues_for(way, record.props)
    publishing.offer_again(queues, message)
    return bool(queues)

"""Streams as AMQP sees them: queues of the type `stream` (RabbitMQ's), whose records are consumed from a place on.

A consumer gets a feed (`core.feeds`): a queue of its own, filled from the stream as it acknowledges. A delivery's place
is in its header `x-stream-offset`.
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

from rookery.core import streams
from rookery.core.feeds import Feed
from rookery.core.stream import Partition, Stream
from rookery.errors import Conflict, InUse, InvalidName
from rookery.wire.amqp.arguments import INTEGERS, TYPES, Typed, check_same_field
from rookery.wire.amqp.channel import AmqpConsumer, Channel
from rookery.wire.amqp.codec import Fault
from rookery.wire.amqp.names import require, tenant_of

_UNITS_MS: Final = {
    "Y": 365 * 86_400_000,
    "M": 30 * 86_400_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}
_AGE: Final = re.compile(r"([0-9]{1,9})([YMDhms])")


def asks_for_stream(table: Typed) -> bool:
    return table.get("x-queue-type", ("S", ""))[1] == "stream"


def declare(channel: Channel, name: str, bits: i64, table: Typed) -> Stream:
    """The stream of that name, made if it was not there."""
    tenant = tenant_of(channel)
    where = f"queue '{name}' in vhost '{channel.connection.vhost}'"
    require(channel, "queue.declare", "queue", name)
    if not asks_for_stream(table):
        # a stream is there, and a queue was asked for
        check_same_field(where, "x-queue-type", ("S", "stream"), table.get("x-queue-type"))
    for wrong, found in (("auto-delete", bits & 8), ("exclusive-owner", bits & 4), ("non-durable", not bits & 2)):
        if found:
            raise Fault(406, f"invalid property '{wrong}' for {where}")
    settings = _settings(where, table)
    known = tenant.streams.get(name)
    if known is not None:
        _check_same(where, known, table, settings)
        return known
    if name in tenant.queues:
        check_same_field(where, "x-queue-type", None, table["x-queue-type"])
    try:
        return streams.declare(tenant, name, settings)[0]
    except InvalidName as error:
        raise Fault(406, f"invalid queue name '{name}': {error}") from None
    except Conflict as error:
        raise Fault(406, str(error)) from None


def _settings(where: str, table: Typed) -> dict[str, object]:
    settings: dict[str, object] = {}
    if "x-max-age" in table:
        kind, value = table["x-max-age"]
        if not isinstance(value, str):
            raise Fault(406, f"invalid arg 'x-max-age' for {where}: {{unacceptable_type,{TYPES[kind]}}}")
        settings["max_age_ms"] = age_ms(where, value)
    if "x-max-length-bytes" in table:
        kind, value = table["x-max-length-bytes"]
        if kind not in INTEGERS or not isinstance(value, int):
            raise Fault(406, f"invalid arg 'x-max-length-bytes' for {where}: \"expected integer, got {TYPES[kind]}\"")
        if value < 0:
            raise Fault(406, f"invalid arg 'x-max-length-bytes' for {where}: {{value_negative,{value}}}")
        settings["max_bytes"] = value
    return settings


def age_ms(where: str, text: str) -> int:
    match = _AGE.fullmatch(text)
    if match is None:
        raise Fault(406, f"invalid arg 'x-max-age' for {where}: {{error,invalid_max_age}}")
    return int(match[1]) * _UNITS_MS[match[2]]


def _check_same(where: str, stream: Stream, table: Typed, settings: dict[str, object]) -> None:
    for argument, setting in (("x-max-age", "max_age_ms"), ("x-max-length-bytes", "max_bytes")):
        before = stream.said.get(setting)
        if before == settings.get(setting):
            continue
        old: tuple[str, object] | None = None
        if before is not None:
            assert isinstance(before, int)
            old = ("S", _age_text(before)) if setting == "max_age_ms" else ("l", before)
        check_same_field(where, argument, old, table.get(argument))


def _age_text(ms: int) -> str:
    for unit, length in _UNITS_MS.items():
        if ms and ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms // 1000}s"


# Consuming


def consume(channel: Channel, stream: Stream, tag: str, bits: i64, table: Typed) -> AmqpConsumer:
    """A consumer from the place that it names on."""
    where = f"queue '{stream.name}' in vhost '{channel.connection.vhost}'"
    if bits & 2:
        raise unsupported(channel, "automatic acknowledgement", stream.name)
    if not channel.prefetch and channel.credit is None:
        raise Fault(406, f"consumer prefetch count is not set for '{where}'")
    kind, start = table.get("x-stream-offset", ("S", "next"))
    positions = {int(p.index): _position(where, p, kind, start) for p in stream.partitions}
    feed = Feed(stream, positions)
    consumer = AmqpConsumer(channel, feed.queue, tag, channel.prefetch, False, 0, False)
    consumer.feed = feed
    feed.on_end = consumer.cancelled
    return consumer


def _position(where: str, partition: Partition, kind: str, start: object) -> int:
    if kind in INTEGERS and isinstance(start, int):
        return min(max(int(partition.first), start), int(partition.visible))
    if kind == "T" and isinstance(start, int):
        return _at(partition, int(start) * 1000)
    if start == "first":
        return int(partition.first)
    if start == "last":
        return max(int(partition.first), int(partition.visible) - 1)
    if start == "next":
        return int(partition.visible)
    if isinstance(start, str) and _AGE.fullmatch(start):
        return _at(partition, int(partition.stream.tenant.shard.wall_ms) - age_ms(where, start))
    shown = f'<<"{start}">>' if isinstance(start, str) else str(start).lower()
    raise Fault(406, f"invalid value for x-stream-offset: {shown}")


def _at(partition: Partition, stamp_ms: int) -> int:
    """The first offset of that time or later; of sealed records, the first of the file that has it."""
    for file in partition.files:
        if file.last_ms >= stamp_ms:
            return max(int(partition.first), int(file.first))
    return int(partition.offset_at(stamp_ms))


def unsupported(channel: Channel, what: str, name: str) -> Fault:
    """A stream does not do that."""
    return Fault(540, f"{what} not supported by stream queues queue '{name}' in vhost '{channel.connection.vhost}'")


def delete(channel: Channel, stream: Stream, if_unused: bool) -> None:
    try:
        streams.delete(tenant_of(channel), stream.name, if_unused)
    except InUse:
        raise Fault(406, f"queue '{stream.name}' in vhost '{channel.connection.vhost}' in use") from None

"""Exactly-once writers and readers: producers that stage and commit, and cuts of queues that can be read again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from rookery.core.publishing import Append
from rookery.core.staging import row_of
from rookery.core.stream import KEY_HEADER
from rookery.embed.aio.queues import AsyncExchange, AsyncQueue, check_bodies
from rookery.embed.aio.streams import AsyncStream
from rookery.embed.context import Context, check_key, check_not_negative, check_positive, check_text
from rookery.embed.messages import Message, unpack
from rookery.embed.records import check_stream_key
from rookery.engine.engine import AsyncEngine
from rookery.errors import InvalidType


class AsyncProducer:
    """A writer with epochs: what it stages is unseen until it commits, and each epoch happens once.

    Stage any number of chunks, from anywhere, then commit them under the next epoch. Committing an epoch again succeeds
    and adds nothing, so a commit whose answer was lost is simply repeated.
    """

    def __init__(self, context: Context[AsyncEngine], name: str) -> None:
        self._context = context
        self.name = name

    def __repr__(self) -> str:
        return f"Producer({self.name!r})"

    async def stage(
        self,
        target: AsyncStream | AsyncQueue | AsyncExchange,
        bodies: Iterable[Any],
        *,
        key: str | bytes | None = None,
        routing_key: str = "",
        chunk: str = "",
    ) -> str:
        """Write values or Messages down for a stream, queue or exchange, unseen; returns the chunk's id.

        `key` is the key of a stream's records, `routing_key` that of an exchange's messages. Staging a chunk again
        under the same id is harmless.
        """
        context = self._context
        context.check_open()
        check_text(chunk, "chunk")
        stream, exchange, route = self._target(target, check_key(routing_key))
        headers: dict[str, object] | None = None if check_stream_key(key) is None else {KEY_HEADER: key}
        packed = [context.pack(exchange, route, body, False, headers) for body in check_bodies(bodies)]
        records = [Append(p.key, p.props, p.body, p.priority, p.expires_ms, p.due_ms, p.dedup_key) for p in packed]
        rows = [row_of(record, bool(stream)) for record in records]
        name = chunk or uuid.uuid4().hex
        async with context.engine.change as engine:
            engine.shard.staging.stage(context.tenant, name, stream, exchange, rows)
        return name

    def _target(self, target: object, routing_key: str) -> tuple[str, str, str]:
        if isinstance(target, AsyncStream):
            return target.name, "", target.name
        if isinstance(target, AsyncQueue):
            return "", "", target.name
        if isinstance(target, AsyncExchange):
            return "", target.name, routing_key
        raise InvalidType("target must be a Stream, a Queue or an Exchange", argument="target")

    async def commit(self, epoch: int, chunks: Sequence[str]) -> dict[str, Any]:
        """Let all rows of these chunks happen, once for this epoch; where they are."""
        check_not_negative(epoch, "epoch")
        context = self._context
        context.check_open()
        async with context.engine.change as engine:
            return engine.shard.staging.commit(context.tenant, self.name, epoch, list(chunks))

    async def drop(self, chunk: str) -> bool:
        """Throw a chunk away; False when there is none."""
        context = self._context
        context.check_open()
        async with context.engine.change as engine:
            return engine.shard.staging.drop(context.tenant, check_text(chunk, "chunk"))

    async def epoch(self) -> int | None:
        """The last epoch that was committed."""
        context = self._context
        context.check_open()
        with context.engine as engine:
            state = engine.shard.staging.producers.get((context.tenant.name, self.name))
            return None if state is None else int(state["epoch"])


class AsyncCuts:
    """The cuts of one consumer of a queue: each is the same whenever it is asked for, until it is acknowledged."""

    def __init__(self, context: Context[AsyncEngine], queue: str, consumer: str) -> None:
        self._context = context
        self.queue = queue
        self.consumer = consumer

    def __repr__(self) -> str:
        return f"Cuts({self.queue!r}, {self.consumer!r})"

    async def after(self, cut: int, count: int) -> tuple[int, list[Message]]:
        """The cut that follows `cut`, with up to `count` messages if it is a new one; (`cut`, []) when there is
        none.
        """
        check_not_negative(cut, "cut")
        check_positive(count, "count")
        context = self._context
        context.check_open()
        async with context.engine.change as engine:
            queue = context.tenant.queue(self.queue)
            number, leases = engine.shard.cuts.cut(queue, self.consumer, cut, count)
            return number, [unpack(lease.entry, engine.shard.ids) for lease in leases]

    async def read(self, cut: int) -> list[Message]:
        """What is in an open cut, once it is durable."""
        context = self._context
        context.check_open()
        async with context.engine.change as engine:
            leases = engine.shard.cuts.read(context.tenant.queue(self.queue), self.consumer, cut)
            return [unpack(lease.entry, engine.shard.ids) for lease in leases]

    async def ack(self, upto: int) -> int:
        """Settle every cut up to this one; returns how many messages that were."""
        check_not_negative(upto, "upto")
        context = self._context
        context.check_open()
        async with context.engine.change as engine:
            return engine.shard.cuts.ack(context.tenant.queue(self.queue), self.consumer, upto)

    async def release(self) -> int:
        """Give everything back and forget the consumer; returns how many messages that were."""
        context = self._context
        context.check_open()
        async with context.engine.change as engine:
            return engine.shard.cuts.release(context.tenant.queue(self.queue), self.consumer)

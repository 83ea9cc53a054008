"""Exactly-once writers and readers: producers that stage and commit, and cuts of queues that can be read again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from rookery.client.aio.link import AsyncLink
from rookery.client.aio.queues import AsyncExchange, AsyncQueue
from rookery.client.aio.streams import AsyncStream
from rookery.client.http import part
from rookery.client.messages import pack, read_messages, unpack
from rookery.core.stream import KEY_HEADER
from rookery.embed.aio.queues import check_bodies
from rookery.embed.context import check_key, check_not_negative, check_positive, check_text
from rookery.embed.messages import Message
from rookery.embed.records import check_stream_key
from rookery.errors import ChunkNotFound, InvalidType
from rookery.wire.packed import PACKED, encode

PAGE = 1_000


class AsyncProducer:
    """A writer with epochs: what it stages is unseen until it commits, and each epoch happens once.

    Stage any number of chunks, from anywhere, then commit them under the next epoch. Committing an epoch again succeeds
    and adds nothing, so a commit whose answer was lost is simply repeated.
    """

    def __init__(self, link: AsyncLink, name: str) -> None:
        self._link = link
        self._path = f"/api/v1/producers/{part(name)}"
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
        self._link.check_open()
        name = check_text(chunk, "chunk") or uuid.uuid4().hex
        query: dict[str, object] = {"chunk": name}
        path = _path(target)
        if isinstance(target, AsyncExchange):
            query["routing_key"] = check_key(routing_key)
        elif isinstance(target, AsyncQueue):
            query["create"] = False
        headers: dict[str, object] | None = None if check_stream_key(key) is None else {KEY_HEADER: key}
        packed = [pack(body, headers) for body in check_bodies(bodies)]
        await self._link.transport.request("POST", path, encode(packed), query=query, content_type=PACKED)
        return name

    async def commit(self, epoch: int, chunks: Sequence[str]) -> dict[str, Any]:
        """Let all rows of these chunks happen, once for this epoch; where they are."""
        check_not_negative(epoch, "epoch")
        body = {"epoch": epoch, "chunks": list(chunks)}
        found: dict[str, Any] = await self._link.post(f"{self._path}/commit", body)
        # whether the broker had done it before is its own affair: the outcome is the same
        found.pop("duplicate", None)
        return found

    async def drop(self, chunk: str) -> bool:
        """Throw a chunk away; False when there is none."""
        try:
            await self._link.delete(f"/api/v1/chunks/{part(check_text(chunk, 'chunk'))}")
        except ChunkNotFound:
            return False
        return True

    async def epoch(self) -> int | None:
        """The last epoch that was committed."""
        epoch: int | None = (await self._link.get(self._path))["epoch"]
        return epoch


def _path(target: object) -> str:
    if isinstance(target, AsyncStream | AsyncQueue | AsyncExchange):
        return f"{target._path}/stage"
    raise InvalidType("target must be a Stream, a Queue or an Exchange", argument="target")


class AsyncCuts:
    """The cuts of one consumer of a queue: each is the same whenever it is asked for, until it is acknowledged."""

    def __init__(self, link: AsyncLink, queue: str, consumer: str) -> None:
        self._link = link
        self._root = f"/api/v1/queues/{part(queue)}/cuts"
        self._path = f"{self._root}/{part(consumer)}"
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
        made = await self._link.post(self._root, {"consumer": self.consumer, "after": cut, "max": count})
        if not made["messages"]:
            return made["cut"], []
        return made["cut"], await self.read(made["cut"])

    async def read(self, cut: int) -> list[Message]:
        """What is in an open cut, once it is durable."""
        found: list[Message] = []
        while True:
            content = await self._link.get_packed(f"{self._path}/{cut}", {"from": len(found), "limit": PAGE})
            page = read_messages(content)
            found += [unpack(got) for got in page]
            if len(page) < PAGE:
                return found

    async def ack(self, upto: int) -> int:
        """Settle every cut up to this one; returns how many messages that were."""
        check_not_negative(upto, "upto")
        return int((await self._link.post(f"{self._path}/ack", {"upto": upto}))["messages"])

    async def release(self) -> int:
        """Give everything back and forget the consumer; returns how many messages that were."""
        return int((await self._link.delete(self._path))["released"])

"""Handles of named things: a queue to publish to, claim from and look into, an exchange to publish to and bind."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rookery.client.aio.deliveries import AsyncDelivery, claim, settle
from rookery.client.aio.link import AsyncLink
from rookery.client.aio.subscriptions import AsyncQueueSubscription
from rookery.client.http import part
from rookery.client.messages import pack, read_messages, unpack
from rookery.client.seen import Seen
from rookery.core.definitions import plain_table
from rookery.embed.aio.queues import check_bodies, check_headers
from rookery.embed.context import check_key, check_not_negative, check_positive, check_text
from rookery.embed.messages import Message
from rookery.embed.options import Outcome
from rookery.errors import InvalidArgument, InvalidType
from rookery.wire.packed import PackedMessage, PackedPublish, encode


async def publish_all(link: AsyncLink, path: str, packed: list[PackedPublish], **query: object) -> list[str]:
    """Publish messages in one step; their ids. Those of a batch have keys of their own all together, or none has."""
    if not packed:
        return []
    if any(each.dedup_key for each in packed):
        for each in packed:
            each.dedup_key = each.dedup_key or uuid.uuid4().hex
    answer = await link.once(path, encode(packed), packed=True, **query)
    return [each["message_id"] for each in answer["messages"]]


class AsyncQueue:
    """One queue. Handles are cheap and hold no state: two of one name are the same queue."""

    def __init__(self, link: AsyncLink, name: str) -> None:
        self._link = link
        self._path = f"/api/v1/queues/{part(name)}"
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    async def publish(self, body: Any) -> str:
        """Put a value or a Message into the queue; returns the message's id."""
        self._link.check_open()
        return (await publish_all(self._link, f"{self._path}/messages", [pack(body)], create=False))[0]

    async def publish_many(self, bodies: Iterable[Any]) -> Sequence[str]:
        """Put all of them into the queue, or none when one is invalid or does not fit; returns their ids."""
        self._link.check_open()
        packed = [pack(body) for body in check_bodies(bodies)]
        return await publish_all(self._link, f"{self._path}/messages", packed, create=False)

    async def claim(self, count: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[AsyncDelivery]:
        """Up to `count` deliveries under lease; waits up to `wait_ms` for the first one."""
        check_positive(count, "count")
        check_not_negative(wait_ms, "wait_ms")
        self._link.check_open()
        if lease_ms is not None:
            check_positive(lease_ms, "lease_ms")
        found = await claim(self._link, self.name, count, wait_ms, lease_ms)
        return [AsyncDelivery(self._link, self.name, got) for got in found]

    async def subscribe(
        self,
        *,
        credit: int = 1,
        lease_ms: int | None = None,
        priority: int = 0,
        name: str = "",
        skip_duplicates: bool = False,
    ) -> AsyncQueueSubscription:
        """A standing demand for up to `credit` unsettled deliveries at a time. Higher `priority` is served first;
        `name` keeps a consumer's share of a queue that distributes by key. With `skip_duplicates`, a message whose id
        is that of one it has acked is acked without being handed out.
        """
        check_positive(credit, "credit")
        check_text(name, "name")
        if type(priority) is not int or not -(1 << 31) <= priority < 1 << 31:
            raise InvalidArgument("priority must be an int of 32 bits", argument="priority")
        if lease_ms is not None:
            check_positive(lease_ms, "lease_ms")
        self._link.check_open()
        seen = Seen() if skip_duplicates else None
        made = AsyncQueueSubscription(
            self._link, self.name, credit, lease_ms, priority, name or self._link.next_name("consumer"), seen
        )
        await made.open()
        return made

    async def settle(
        self,
        deliveries: Iterable[AsyncDelivery],
        outcome: Outcome = "ack",
        *,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> None:
        """Settle many deliveries with one outcome (ack, retry, release, reject): all, or none when a lease has
        ended.
        """
        await settle(self._link, deliveries, outcome, delay_ms, reason)

    async def peek(self, count: int = 1) -> list[Message]:
        """The next `count` ready messages, in order, left where they are."""
        check_positive(count, "count")
        return [unpack(got) for got in await self._look(count)]

    async def _look(self, count: int) -> list[PackedMessage]:
        content = await self._link.get_packed(f"{self._path}/messages", {"limit": min(count, 100_000)})
        return read_messages(content)

    async def purge(self) -> int:
        """Throw all ready messages away; returns how many."""
        return int((await self._link.post(f"{self._path}/purge"))["purged"])

    async def move(self, target: str, *, limit: int = 0, filter: Callable[[Message], bool] | None = None) -> int:
        """Move ready messages to the queue named `target`, in order (all, or up to `limit`); returns how many."""
        check_text(target, "target")
        body: dict[str, object] = {"to": target, "limit": check_not_negative(limit, "limit")}
        self._link.check_open()
        if filter is not None:
            body["where"] = {"seqs": await self._choose(limit, filter)}
        return int((await self._link.once(f"{self._path}/move", body))["moved"])

    async def redrive(
        self,
        *,
        limit: int = 0,
        filter: Callable[[Message], bool] | None = None,
        target: str | None = None,
        dry_run: bool = False,
    ) -> list[Message]:
        """Send dead letters back to the queues they died in (or to `target`); returns them, also for a dry run."""
        body: dict[str, object] = {"limit": check_not_negative(limit, "limit"), "dry_run": bool(dry_run)}
        if target is not None:
            body["to"] = check_text(target, "target")
        self._link.check_open()
        if filter is not None:
            body["where"] = {"seqs": await self._choose(limit, filter)}
        content = await self._link.post_packed(f"{self._path}/redrive", body)
        return [unpack(got) for got in read_messages(content)]

    async def _choose(self, limit: int, filter: Callable[[Message], bool]) -> list[int]:
        """The filter's choice among what is ready now."""
        if not callable(filter):
            raise InvalidType("filter must be callable", argument="filter")
        chosen: list[int] = []
        for got in await self._look(100_000):
            if filter(unpack(got)):
                chosen.append(got.seq)
                if len(chosen) == limit:
                    break
        return chosen

    async def bind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> None:
        """Let an exchange route messages that match `key` (or `headers`) into this queue."""
        await bind(self._link, check_text(exchange, "exchange"), self.name, "queue", check_key(key), headers)

    async def unbind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> bool:
        """Take a binding away; False when there was none."""
        return await unbind(self._link, check_text(exchange, "exchange"), self.name, "queue", check_key(key), headers)

    async def stats(self) -> dict[str, Any]:
        """Counts, meters and waiting times of this queue."""
        found: dict[str, Any] = (await self._link.get(self._path))["stats"]
        return found

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue; returns how many messages were ready in it."""
        self._link.check_open()
        self._link.forget(f"queue {self.name}")
        answer = await self._link.delete(self._path, if_unused=bool(if_unused), if_empty=bool(if_empty))
        return int(answer.get("messages", 0))


class AsyncExchange:
    """One exchange: publish to it by key, bind queues and other exchanges to it."""

    def __init__(self, link: AsyncLink, name: str) -> None:
        self._link = link
        self._path = f"/api/v1/exchanges/{part(name)}"
        self.name = name

    def __repr__(self) -> str:
        return f"Exchange({self.name!r})"

    async def publish(self, key: str, body: Any, *, mandatory: bool = False) -> str:
        """Publish a value or Message under a routing key; with `mandatory`, Unroutable when no queue would get it."""
        self._link.check_open()
        query = {"routing_key": check_key(key), "mandatory": bool(mandatory)}
        return (await publish_all(self._link, f"{self._path}/messages", [pack(body)], **query))[0]

    async def publish_many(self, key: str, bodies: Iterable[Any]) -> Sequence[str]:
        """Publish all of them under one key, or none when one is invalid; returns their ids."""
        self._link.check_open()
        packed = [pack(body) for body in check_bodies(bodies)]
        return await publish_all(self._link, f"{self._path}/messages", packed, routing_key=check_key(key))

    async def bind(
        self, target: AsyncQueue | AsyncExchange | str, key: str = "", *, headers: Mapping[str, object] | None = None
    ) -> None:
        """Route messages that match `key` (or `headers`) on to a queue (or its name) or another exchange."""
        name, kind = _target(target)
        await bind(self._link, self.name, name, kind, check_key(key), headers)

    async def unbind(
        self, target: AsyncQueue | AsyncExchange | str, key: str = "", *, headers: Mapping[str, object] | None = None
    ) -> bool:
        """Take a binding away; False when there was none."""
        name, kind = _target(target)
        return await unbind(self._link, self.name, name, kind, check_key(key), headers)

    async def delete(self, *, if_unused: bool = False) -> None:
        """Delete the exchange with its bindings."""
        self._link.check_open()
        self._link.forget(f"exchange {self.name}")
        await self._link.delete(self._path, if_unused=bool(if_unused))


def _target(target: object) -> tuple[str, str]:
    if isinstance(target, AsyncExchange):
        return target.name, "exchange"
    if isinstance(target, AsyncQueue):
        return target.name, "queue"
    if isinstance(target, str):
        return target, "queue"
    raise InvalidType("target must be a Queue, an Exchange or the name of a queue", argument="target")


async def bind(
    link: AsyncLink, source: str, target: str, kind: str, key: str, headers: Mapping[str, object] | None
) -> None:
    """Make a binding, and make it again should the broker lose it."""
    link.check_open()
    said = plain_table(check_headers(headers) or {})
    body = {"source": source, "target": target, "target_kind": kind, "key": key, "arguments": said}
    await link.post("/api/v1/bindings", body)
    link.declared(f"{kind} {target} {_binding(source, key, said)}", "POST", "/api/v1/bindings", body)


async def unbind(
    link: AsyncLink, source: str, target: str, kind: str, key: str, headers: Mapping[str, object] | None
) -> bool:
    link.check_open()
    said = plain_table(check_headers(headers) or {})
    link.forget(f"{kind} {target} {_binding(source, key, said)}")
    query: dict[str, object] = {"source": source, "target": target, "target_kind": kind, "key": key}
    if said:
        query["arguments"] = msgspec.json.encode(said).decode()
    return bool((await link.delete("/api/v1/bindings", **query))["deleted"])


def _binding(source: str, key: str, said: dict[str, Any]) -> str:
    return msgspec.json.encode([source, key, said], order="sorted").decode()


__all__ = ["AsyncExchange", "AsyncQueue", "bind", "publish_all", "unbind"]

"""Handles of named things: a queue to publish to, claim from and look into, an exchange to publish to and bind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rookery.core import dead_letters
from rookery.core import queue as core
from rookery.core.entries import Entry
from rookery.core.publishing import Batch, Publish, publish, publish_all, publish_batch
from rookery.core.shard import Shard
from rookery.core.snapshots import queue_stats
from rookery.core.topology import Tenant
from rookery.embed.aio.deliveries import (
    AsyncDelivery,
    AsyncQueueSubscription,
    settle,
    tell_redelivered,
    wait_for_leases,
)
from rookery.embed.context import Context, check_key, check_not_negative, check_positive, check_text
from rookery.embed.messages import IdList, Message, given_id, given_ids, unpack
from rookery.embed.options import Outcome
from rookery.engine.engine import AsyncEngine
from rookery.errors import InvalidArgument, InvalidType, QueueNotFound, Unroutable


def put(shard: Shard, tenant: Tenant, p: Publish, value: object) -> str:
    """Hand a publish to the core within a turn; the id of its message (the first one's, for a repeated dedup key)."""
    try:
        number, repeat = publish(shard, tenant, p)
    except Unroutable:
        if p.exchange:
            raise
        raise QueueNotFound(f"no queue {p.key!r} in tenant {tenant.name!r}", argument="queue") from None
    return (None if repeat else given_id(value)) or shard.ids.uuid(number)


def put_all(shard: Shard, tenant: Tenant, packed: Batch | list[Publish], values: Sequence[object]) -> Sequence[str]:
    """Hand all of them to the core within a turn, or none when one does not fit; their ids."""
    if isinstance(packed, Batch):
        return IdList(shard.ids, publish_batch(shard, tenant, packed), {})
    last_id = shard.last_id
    numbers = publish_all(shard, tenant, packed)
    return IdList(shard.ids, numbers, given_ids(values, numbers, last_id))


def check_bodies(bodies: object) -> list[Any]:
    """What is to be published together, as a list."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping) or not isinstance(bodies, Iterable):
        raise InvalidType(f"bodies must be a list of bodies, not {type(bodies).__name__}", argument="bodies")
    return list(bodies)


class AsyncQueue:
    """One queue. Handles are cheap and hold no state: two of one name are the same queue."""

    def __init__(self, context: Context[AsyncEngine], name: str) -> None:
        self._context = context
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def _core(self) -> core.Queue:
        return self._context.tenant.queue(self.name)

    async def publish(self, body: Any) -> str:
        """Put a value or a Message into the queue; returns the message's id."""
        context = self._context
        context.check_open()
        p = context.pack("", self.name, body, True)
        if self.name in context.tenant.streams:
            self._core()
        # `change`, written out: there is a publish for every message
        with context.engine as engine:
            message_id = put(engine.shard, context.tenant, p, body)
        if engine.journal is not None:
            await engine.lasting()
        return message_id

    async def publish_many(self, bodies: Iterable[Any]) -> Sequence[str]:
        """Put all of them into the queue, or none when one is invalid or does not fit; returns their ids."""
        context = self._context
        context.check_open()
        values = check_bodies(bodies)
        packed = context.pack_all("", self.name, values)
        async with context.engine.change as engine:
            self._core()
            return put_all(engine.shard, context.tenant, packed, values)

    async def claim(self, count: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[AsyncDelivery]:
        """Up to `count` deliveries under lease; waits up to `wait_ms` for the first one."""
        check_positive(count, "count")
        check_not_negative(wait_ms, "wait_ms")
        context = self._context
        context.check_open()
        if lease_ms is not None:
            check_positive(lease_ms, "lease_ms")
        with context.engine:
            queue = self._core()
            lease = queue.settings.lease_ms if lease_ms is None else lease_ms
            leases = queue.claim(count, lease)
        if not leases and wait_ms:
            leases = await wait_for_leases(context, queue, count, lease, wait_ms)
            context.check_open()
            if queue.deleted:
                raise QueueNotFound(f"queue {self.name!r} was deleted", argument="queue")
        if context.observer is not None:
            tell_redelivered(context, leases)
        return [AsyncDelivery(context, lease) for lease in leases]

    async def subscribe(
        self, *, credit: int = 1, lease_ms: int | None = None, priority: int = 0, name: str = ""
    ) -> AsyncQueueSubscription:
        """A standing demand for up to `credit` unsettled deliveries at a time. Higher `priority` is served first;
        `name` keeps a consumer's share of a queue that distributes by key.
        """
        check_positive(credit, "credit")
        check_text(name, "name")
        if type(priority) is not int or not -(1 << 31) <= priority < 1 << 31:
            raise InvalidArgument("priority must be an int of 32 bits", argument="priority")
        context = self._context
        context.check_open()
        with context.engine as engine:
            queue = self._core()
            lease = queue.settings.lease_ms if lease_ms is None else check_positive(lease_ms, "lease_ms")
            mailbox = engine.shard.subscribe(queue, credit, lease, priority, name or context.next_name("consumer"))
            return AsyncQueueSubscription(context, mailbox)

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
        await settle(self._context, deliveries, outcome, delay_ms, reason)

    async def peek(self, count: int = 1) -> list[Message]:
        """The next `count` ready messages, in order, left where they are."""
        check_positive(count, "count")
        self._context.check_open()
        with self._context.engine as engine:
            return [unpack(entry, engine.shard.ids) for entry in self._core().ready_entries(count)[:count]]

    async def purge(self) -> int:
        """Throw all ready messages away; returns how many."""
        self._context.check_open()
        async with self._context.engine.change:
            return self._core().purge()

    async def move(self, target: str, *, limit: int = 0, filter: Callable[[Message], bool] | None = None) -> int:
        """Move ready messages to the queue named `target`, in order (all, or up to `limit`); returns how many."""
        check_text(target, "target")
        chosen = self._choose(check_not_negative(limit, "limit"), filter)
        async with self._context.engine.change:
            tenant = self._context.tenant
            return dead_letters.move(tenant, self._core(), tenant.queue(target), limit, chosen)

    async def redrive(
        self,
        *,
        limit: int = 0,
        filter: Callable[[Message], bool] | None = None,
        target: str | None = None,
        dry_run: bool = False,
    ) -> list[Message]:
        """Send dead letters back to the queues they died in (or to `target`); returns them, also for a dry run."""
        if target is not None:
            check_text(target, "target")
        chosen = self._choose(check_not_negative(limit, "limit"), filter)
        async with self._context.engine.change as engine:
            done = dead_letters.redrive(self._context.tenant, self._core(), limit, chosen, bool(dry_run), target)
            return [unpack(entry, engine.shard.ids) for entry, _ in done]

    def _choose(self, limit: int, filter: Callable[[Message], bool] | None) -> Callable[[Entry], bool] | None:
        """The filter's choice among what is ready now, made before the turn in which it is acted upon."""
        self._context.check_open()
        if filter is None:
            return None
        if not callable(filter):
            raise InvalidType("filter must be callable", argument="filter")
        with self._context.engine as engine:
            entries = self._core().ready_entries()
            ids = engine.shard.ids
        chosen: set[int] = set()
        for entry in entries:
            if filter(unpack(entry, ids)):
                chosen.add(entry.seq)
                if len(chosen) == limit:
                    break
        return lambda entry: entry.seq in chosen

    async def bind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> None:
        """Let an exchange route messages that match `key` (or `headers`) into this queue."""
        check_key(key)
        self._context.check_open()
        async with self._context.engine.change:
            self._context.tenant.bind(check_text(exchange, "exchange"), self._core(), key, check_headers(headers))

    async def unbind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> bool:
        """Take a binding away; False when there was none."""
        check_key(key)
        self._context.check_open()
        async with self._context.engine.change:
            tenant = self._context.tenant
            return tenant.unbind(check_text(exchange, "exchange"), self._core(), key, check_headers(headers))

    async def stats(self) -> dict[str, Any]:
        """Counts, meters and waiting times of this queue."""
        self._context.check_open()
        with self._context.engine:
            return queue_stats(self._core())

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue; returns how many messages were ready in it."""
        self._context.check_open()
        async with self._context.engine.change:
            return self._context.tenant.delete_queue(self.name, bool(if_unused), bool(if_empty))


class AsyncExchange:
    """One exchange: publish to it by key, bind queues and other exchanges to it."""

    def __init__(self, context: Context[AsyncEngine], name: str) -> None:
        self._context = context
        self.name = name

    def __repr__(self) -> str:
        return f"Exchange({self.name!r})"

    async def publish(self, key: str, body: Any, *, mandatory: bool = False) -> str:
        """Publish a value or Message under a routing key; with `mandatory`, Unroutable when no queue would get it."""
        context = self._context
        context.check_open()
        p = context.pack(self.name, check_key(key), body, bool(mandatory))
        async with context.engine.change as engine:
            return put(engine.shard, context.tenant, p, body)

    async def publish_many(self, key: str, bodies: Iterable[Any]) -> Sequence[str]:
        """Publish all of them under one key, or none when one is invalid; returns their ids."""
        context = self._context
        context.check_open()
        values = check_bodies(bodies)
        check_key(key)
        packed = context.pack_all(self.name, key, values)
        async with context.engine.change as engine:
            context.tenant.exchange(self.name)
            return put_all(engine.shard, context.tenant, packed, values)

    async def bind(
        self, target: AsyncQueue | AsyncExchange | str, key: str = "", *, headers: Mapping[str, object] | None = None
    ) -> None:
        """Route messages that match `key` (or `headers`) on to a queue (or its name) or another exchange."""
        check_key(key)
        self._context.check_open()
        async with self._context.engine.change:
            self._context.tenant.bind(self.name, self._target(target), key, check_headers(headers))

    async def unbind(
        self, target: AsyncQueue | AsyncExchange | str, key: str = "", *, headers: Mapping[str, object] | None = None
    ) -> bool:
        """Take a binding away; False when there was none."""
        check_key(key)
        self._context.check_open()
        async with self._context.engine.change:
            return self._context.tenant.unbind(self.name, self._target(target), key, check_headers(headers))

    def _target(self, target: object) -> Any:
        if isinstance(target, AsyncExchange):
            return self._context.tenant.exchange(target.name)
        if isinstance(target, AsyncQueue):
            return self._context.tenant.queue(target.name)
        if isinstance(target, str):
            return self._context.tenant.queue(target)
        raise InvalidType("target must be a Queue, an Exchange or the name of a queue", argument="target")

    async def delete(self, *, if_unused: bool = False) -> None:
        """Delete the exchange with its bindings."""
        self._context.check_open()
        async with self._context.engine.change:
            self._context.tenant.delete_exchange(self.name, bool(if_unused))


def check_headers(headers: object) -> Mapping[str, object] | None:
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidType(f"headers must be a mapping, not {type(headers).__name__}", argument="headers")
    return headers

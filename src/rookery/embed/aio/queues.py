"""Handles of named things: a queue to publish to, claim from and look into, an exchange to publish to and bind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from rookery.core import dead_letters
from rookery.core import queue as core
from rookery.core.entries import Entry
from rookery.core.snapshots import queue_stats
from rookery.core.transactions import Publish, apply
from rookery.embed.aio.deliveries import AsyncDelivery, AsyncQueueSubscription, settle
from rookery.embed.context import Context, check_positive, check_wait
from rookery.embed.engine import AsyncEngine, AsyncSignal
from rookery.embed.messages import IdList, Message, Parcel, unpack
from rookery.errors import InvalidArgument, InvalidType, QueueFull, QueueNotFound, Unroutable


async def publish_one(context: Context, exchange: str, key: str, value: Any, mandatory: bool) -> str:
    """Publish one value or Message; its id."""
    context.check_open()
    with cast(AsyncEngine, context.engine) as engine:
        return put(context, engine, exchange, key, context.parcel(value), mandatory)


def put(context: Context, engine: AsyncEngine, exchange: str, key: str, parcel: Parcel, mandatory: bool) -> str:
    """Hand a parcel to the core within a turn; the id of its message (the first one's, for a repeated dedup key)."""
    shard = engine.shard
    tenant = context.tenant
    if mandatory and not tenant.queues_for(tenant.way(tenant.exchange(exchange), key), parcel.props):
        raise Unroutable(f"no queue for key {key!r} of exchange {exchange!r}", argument="key")
    if parcel.dedup_key:
        number, reached, repeat = shard.publish_once(
            tenant,
            exchange,
            key,
            parcel.dedup_key,
            parcel.props,
            parcel.body,
            parcel.priority,
            parcel.expires_ms,
            parcel.due_ms,
            parcel.persistent,
        )
        if repeat:
            return shard.ids.uuid(number)
    else:
        message, reached = shard.publish(
            tenant,
            exchange,
            key,
            parcel.props,
            parcel.body,
            parcel.priority,
            parcel.expires_ms,
            parcel.due_ms,
            parcel.persistent,
        )
        number = message.id
    if reached < 0:
        raise QueueFull(f"a queue for key {key!r} is full", argument="key")
    return parcel.id or shard.ids.uuid(number)


async def publish_all(context: Context, exchange: str, key: str, values: Iterable[Any]) -> Sequence[str]:
    """Publish all values or, when one is invalid or does not fit, none; their ids."""
    context.check_open()
    with cast(AsyncEngine, context.engine) as engine:
        parcels = [context.parcel(value) for value in values]
        publishes = [
            Publish(exchange, key, p.props, p.body, p.priority, p.expires_ms, p.due_ms, p.persistent, p.dedup_key)
            for p in parcels
        ]
        numbers = apply(engine.shard, context.tenant, cast(Any, publishes))
        return IdList(engine.shard.ids, [p.id for p in parcels], numbers)


class AsyncQueue:
    """One queue. Handles are cheap and hold no state: two of one name are the same queue."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def _core(self) -> core.Queue:
        return self._context.tenant.queue(self.name)

    async def publish(self, body: Any) -> str:
        """Put a value or a Message into the queue; returns the message's id."""
        return await publish_one(self._context, "", self.name, body, True)

    async def publish_many(self, bodies: Iterable[Any]) -> Sequence[str]:
        """Put all of them into the queue, or none when one is invalid; returns their ids."""
        self._context.check_open()
        self._core()
        return await publish_all(self._context, "", self.name, bodies)

    async def claim(self, count: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[AsyncDelivery]:
        """Up to `count` deliveries under lease; waits up to `wait_ms` for the first one."""
        check_positive(count, "count")
        check_wait(wait_ms, "wait_ms")
        context = self._context
        context.check_open()
        with cast(AsyncEngine, context.engine) as engine:
            queue = self._core()
            lease = queue.settings.lease_ms if lease_ms is None else check_positive(lease_ms, "lease_ms")
            leases = engine.shard.claim(queue, count, lease)
            if leases or not wait_ms:
                return [AsyncDelivery(context, lease) for lease in leases]
            mailbox = engine.shard.wait_claim(queue, count, lease)
            signal = context.watch(AsyncSignal())
            mailbox.on_event = signal
        try:
            await signal.wait(wait_ms)
        except BaseException:
            with cast(AsyncEngine, context.engine):
                queue.unsubscribe(mailbox)
                for lapsed in mailbox.take():
                    queue.release(lapsed)
            raise
        context.check_open()
        with cast(AsyncEngine, context.engine):
            queue.unsubscribe(mailbox)
            leases = mailbox.take()
        if mailbox.ended:
            raise QueueNotFound(f"queue {self.name!r} was deleted", argument="queue")
        return [AsyncDelivery(context, lease) for lease in leases]

    async def subscribe(
        self, *, credit: int = 1, lease_ms: int | None = None, priority: int = 0, name: str = ""
    ) -> AsyncQueueSubscription:
        """A standing demand for up to `credit` unsettled deliveries at a time."""
        check_positive(credit, "credit")
        context = self._context
        context.check_open()
        with cast(AsyncEngine, context.engine) as engine:
            queue = self._core()
            lease = queue.settings.lease_ms if lease_ms is None else check_positive(lease_ms, "lease_ms")
            mailbox = engine.shard.subscribe(queue, credit, lease, priority, name or context.next_name("consumer"))
            return AsyncQueueSubscription(context, mailbox)

    async def settle(
        self, deliveries: list[AsyncDelivery], outcome: str = "ack", *, delay_ms: int | None = None, reason: str = ""
    ) -> None:
        """Settle many deliveries with one outcome (ack, retry, release, reject): all, or none when a lease has
        ended.
        """
        await settle(self._context, deliveries, outcome, delay_ms, reason)

    async def peek(self, count: int = 1) -> list[Message]:
        """The next `count` ready messages, in order, left where they are."""
        check_positive(count, "count")
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine) as engine:
            return [unpack(entry, engine.shard.ids) for entry in self._core().ready_entries()[:count]]

    async def purge(self) -> int:
        """Throw all ready messages away; returns how many."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            return self._core().purge()

    async def move(self, target: str, *, limit: int = 0, filter: Callable[[Message], bool] | None = None) -> int:
        """Move ready messages to the queue named `target`, in order (all, or up to `limit`); returns how many."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            tenant = self._context.tenant
            chosen = None if filter is None else self._chooser(filter)
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
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine) as engine:
            chosen = None if filter is None else self._chooser(filter)
            done = dead_letters.redrive(self._context.tenant, self._core(), limit, chosen, dry_run, target)
            return [unpack(entry, engine.shard.ids) for entry, _ in done]

    def _chooser(self, filter: Callable[[Message], bool]) -> Callable[[Entry], bool]:
        if not callable(filter):
            raise InvalidType("filter must be callable", argument="filter")
        ids = self._context.engine.shard.ids
        return lambda entry: bool(filter(unpack(entry, ids)))

    async def bind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> None:
        """Let an exchange route messages that match `key` (or `headers`) into this queue."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            self._context.tenant.bind(exchange, self._core(), key, headers)

    async def unbind(self, exchange: str, key: str = "", *, headers: Mapping[str, object] | None = None) -> bool:
        """Take a binding away; False when there was none."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            return self._context.tenant.unbind(exchange, self._core(), key, headers)

    async def stats(self) -> dict[str, Any]:
        """Counts, meters and waiting times of this queue."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            return queue_stats(self._core())

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue; returns how many messages were ready in it."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            return self._context.tenant.delete_queue(self.name, if_unused, if_empty)


class AsyncExchange:
    """One exchange: publish to it by key, bind queues and other exchanges to it."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self.name = name

    def __repr__(self) -> str:
        return f"Exchange({self.name!r})"

    async def publish(self, key: str, body: Any, *, mandatory: bool = False) -> str:
        """Publish a value or Message under a routing key; with `mandatory`, Unroutable when no queue would get it."""
        if not isinstance(key, str):
            raise InvalidType(f"key must be str, not {type(key).__name__}", argument="key")
        return await publish_one(self._context, self.name, key, body, mandatory)

    async def publish_many(self, key: str, bodies: Iterable[Any]) -> Sequence[str]:
        """Publish all of them under one key, or none when one is invalid; returns their ids."""
        return await publish_all(self._context, self.name, key, bodies)

    async def bind(
        self, target: AsyncQueue | AsyncExchange | str, key: str = "", *, headers: Mapping[str, object] | None = None
    ) -> None:
        """Route messages that match `key` (or `headers`) on to a queue (or its name) or another exchange."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            tenant = self._context.tenant
            if isinstance(target, AsyncExchange):
                tenant.bind(self.name, tenant.exchange(target.name), key, headers)
            elif isinstance(target, AsyncQueue):
                tenant.bind(self.name, tenant.queue(target.name), key, headers)
            elif isinstance(target, str):
                tenant.bind(self.name, tenant.queue(target), key, headers)
            else:
                raise InvalidType("target must be a Queue, an Exchange or the name of a queue", argument="target")

    async def unbind(
        self, target: AsyncQueue | AsyncExchange | str, key: str = "", *, headers: Mapping[str, object] | None = None
    ) -> bool:
        """Take a binding away; False when there was none."""
        self._context.check_open()
        with cast(AsyncEngine, self._context.engine):
            tenant = self._context.tenant
            if isinstance(target, AsyncExchange):
                return tenant.unbind(self.name, tenant.exchange(target.name), key, headers)
            name = target.name if isinstance(target, AsyncQueue) else target
            return tenant.unbind(self.name, tenant.queue(name), key, headers)

    async def delete(self, *, if_unused: bool = False) -> None:
        """Delete the exchange with its bindings."""
        self._context.check_open()
        if not self.name:
            raise InvalidArgument("the default exchange cannot be deleted", argument="exchange")
        with cast(AsyncEngine, self._context.engine):
            self._context.tenant.delete_exchange(self.name, if_unused)

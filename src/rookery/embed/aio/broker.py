"""The embedded broker itself: a complete broker in your process, with no server, socket or file."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

from rookery.clock import Clock, SystemClock
from rookery.core import dead_letters, definitions
from rookery.core.policy import Policy
from rookery.core.snapshots import exchange_stats, queue_stats, tenant_stats
from rookery.core.transactions import Publish
from rookery.embed.aio.deliveries import AsyncDelivery
from rookery.embed.aio.handlers import AsyncHandler
from rookery.embed.aio.queues import AsyncExchange, AsyncQueue, publish_all, put
from rookery.embed.aio.topics import AsyncTopics, AsyncTopicSubscription
from rookery.embed.aio.transactions import AsyncTransaction
from rookery.embed.context import (
    TOPICS,
    Context,
    Observer,
    check_name,
    check_positive,
    check_topic,
    check_wait,
)
from rookery.embed.engine import AsyncEngine
from rookery.embed.messages import Message, Parcel, unpack
from rookery.embed.options import Config, SubOptions
from rookery.errors import (
    DeadLetterNotSupported,
    InvalidArgument,
    InvalidConfig,
    InvalidType,
    PersistenceDisabled,
    ReplyTimeout,
    TransactionNotSupported,
    Unroutable,
)
from rookery.model import PERSISTENT

Function = TypeVar("Function", bound=Callable[..., Any])


class AsyncBroker:
    """A broker in this process. Use it as a context manager, or `close` it.

    Queues hold messages until one consumer settles each; exchanges route to them; topics give every subscriber a copy.
    Settings are those of `Config`, given as one or by name.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        tenant: str = "default",
        clock: Clock | None = None,
        observer: Observer | None = None,
        secret: bytes | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and not isinstance(config, Config):
            raise InvalidConfig("config must be a Config", argument="config")
        wanted = (config or Config()).replace(**settings)
        check_name(tenant, "tenant")
        if wanted.enable_persistence:
            raise PersistenceDisabled("this build keeps messages in memory only (persistence)")
        self._engine = AsyncEngine(clock or SystemClock(), secret or secrets.token_bytes(16))
        self._engine.begin()
        home = self._engine.shard.create_tenant(tenant)
        self._context = Context(self._engine, home, wanted, observer)
        self._topics = AsyncTopics(self._context)
        self._handlers: list[AsyncHandler] = []
        self._running = False
        self._started_ms = self._engine.clock.mono_ms()
        self._apply_config(wanted)

    # Life

    async def start(self) -> None:
        """Start the registered handlers; the broker itself works without it."""
        self._context.check_open()
        await self._engine.start()
        if not self._running:
            self._running = True
            for handler in self._handlers:
                await self._start_handler(handler)

    async def close(self) -> None:
        """End all subscriptions and handlers; from then on every call raises BrokerClosed. Twice is harmless."""
        if self._context.closed:
            return
        started = time.perf_counter()
        with self._engine:
            self._context.close()
        await self._engine.stop()
        self._context.observe("close", "", started, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """For web frameworks: `FastAPI(lifespan=broker.lifespan)` runs the handlers as long as the application runs."""
        await self.start()
        try:
            yield
        finally:
            await self.close()

    @property
    def engine(self) -> AsyncEngine:
        """The engine, for listeners that are attached to this broker."""
        return self._engine

    @property
    def clock(self) -> Clock:
        return self._engine.clock

    @property
    def tenant(self) -> str:
        return self._context.tenant.name

    # Settings

    @property
    def config(self) -> Config:
        return self._context.config

    async def update_config(self, **changes: Any) -> Config:
        """Change settings while running; an invalid one changes nothing. Buffers that exist keep their size."""
        self._context.check_open()
        with self._engine:
            config = self._context.config.replace(**changes)
            if config.enable_persistence:
                raise PersistenceDisabled("this build keeps messages in memory only (persistence)")
            self._apply_config(config)
            return config

    def _apply_config(self, config: Config) -> None:
        tenant = self._context.tenant
        tenant.set_limits({"memory_bytes_max": config.memory_bytes_max})
        self._context.config = config
        if config.enable_dead_letter_queue:
            key = check_topic(config.dead_letter_topic)
            queue, _ = tenant.declare_queue(config.dead_letter_topic, {}, "dead-letter")
            tenant.bind(TOPICS, queue, key)

    # Queues and exchanges

    async def queue(self, name: str, **settings: Any) -> AsyncQueue:
        """The queue of that name, made if it is not there; what is said must agree with how it was declared."""
        self._context.check_open()
        with self._engine:
            self._context.tenant.declare_queue(name, settings, "embedded")
            return AsyncQueue(self._context, name)

    async def create_queue(self, name: str, **settings: Any) -> AsyncQueue:
        """A new queue; AlreadyExists when there is one of that name."""
        self._context.check_open()
        with self._engine:
            self._context.tenant.declare_queue(name, settings, "embedded", create=True)
            return AsyncQueue(self._context, name)

    async def exchange(
        self,
        name: str,
        kind: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        alternate: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> AsyncExchange:
        """The exchange of that name, made if it is not there: direct, fanout, topic, headers or consistent-hash."""
        self._context.check_open()
        with self._engine:
            self._context.tenant.declare_exchange(name, kind, durable, auto_delete, False, alternate, arguments)
            return AsyncExchange(self._context, name)

    async def queues(self) -> list[str]:
        """The names of all queues that users made."""
        self._context.check_open()
        with self._engine:
            return sorted(name for name in self._context.tenant.queues if name not in self._topics.subscriptions)

    async def set_policy(self, name: str, pattern: str, *, priority: int = 0, **settings: Any) -> None:
        """Apply settings to every queue whose name matches a regular expression, also to those that exist."""
        self._context.check_open()
        with self._engine:
            self._context.tenant.set_policy(Policy(name, pattern, settings, priority))

    async def delete_policy(self, name: str) -> None:
        self._context.check_open()
        with self._engine:
            self._context.tenant.delete_policy(name)

    # Topics

    async def publish(
        self,
        topic: str,
        body: Any,
        *,
        ack: str = "none",
        ack_id: str | None = None,
        ack_timeout_ms: int | None = None,
        transaction: str | None = None,
        mandatory: bool = False,
    ) -> str:
        """Give every subscriber of the topic a copy of a value or Message; returns the message's id.

        With `ack` ("required", or "timeout" with `ack_timeout_ms`) it is delivered again until `ack(topic, ack_id)` is
        called. With `transaction` it is published when that transaction is committed.
        """
        started = time.perf_counter()
        try:
            self._context.check_open()
            key = check_topic(topic)
            if transaction is not None:
                if ack != "none":
                    raise InvalidConfig("a message with an ack id cannot be part of a transaction", argument="ack")
                result = self._publish_later(key, body, transaction)
            else:
                result = await self._publish(key, body, ack, ack_id, ack_timeout_ms, mandatory)
        except BaseException as error:
            self._context.observe("publish", str(topic), started, error)
            raise
        if self._context.observer is not None:
            self._context.observe("publish", topic, started, None)
        return result

    async def _publish(
        self, key: str, body: Any, ack: str, ack_id: str | None, ack_timeout_ms: int | None, mandatory: bool
    ) -> str:
        waited: set[str] = set()
        while True:
            self._context.check_open()
            with self._engine as engine:
                headers = self._topics.ack_headers(key, ack, ack_id, ack_timeout_ms)
                parcel = self._context.parcel(body, headers)
                full = self._topics.crowded(key, parcel, waited)
                if full is None:
                    if headers is not None:
                        return self._put_tracked(engine, key, parcel, ack_id, mandatory)
                    return put(self._context, engine, TOPICS, key, parcel, mandatory)
            if not await full.room.wait(full.options.block_timeout_ms):
                waited.add(full.id)

    def _put_tracked(self, engine: AsyncEngine, key: str, parcel: Parcel, ack_id: str | None, mandatory: bool) -> str:
        shard = engine.shard
        tenant = self._context.tenant
        way = tenant.way(tenant.exchange(TOPICS), key)
        if mandatory and not tenant.queues_for(way, parcel.props):
            raise Unroutable(f"nobody subscribes to {key!r}", argument="topic")
        message = shard.message(tenant, way, parcel.props, parcel.body, parcel.priority, parcel.expires_ms, PERSISTENT)
        self._topics.track(key, ack_id or self._topics.default_ack_id(message), message)
        shard.post(tenant, way, message, parcel.due_ms)
        return parcel.id or shard.ids.uuid(message.id)

    def _publish_later(self, key: str, body: Any, id: str) -> str:
        self._check_transactions()
        with self._engine as engine:
            transactions = engine.shard.transactions
            parcel = self._context.parcel(body)
            if not transactions.is_known(self._context.tenant, id):
                timeout = self._context.config.transaction_timeout_ms
                transactions.begin(self._context.tenant, id, timeout)
            transaction = transactions.get(self._context.tenant, id)
            p = parcel
            operation = Publish(TOPICS, key, p.props, p.body, p.priority, p.expires_ms, p.due_ms, p.persistent)
            transactions.add(transaction, operation)
            return parcel.id or ""

    async def publish_many(self, topic: str, bodies: Iterable[Any]) -> Sequence[str]:
        """Publish all of them, or none when one is invalid; returns their ids."""
        started = time.perf_counter()
        try:
            result = await publish_all(self._context, TOPICS, check_topic(topic), bodies)
        except BaseException as error:
            self._context.observe("publish", str(topic), started, error)
            raise
        self._context.observe("publish", topic, started, None)
        return result

    async def subscribe(self, topic: str, options: SubOptions | None = None, **settings: Any) -> AsyncTopicSubscription:
        """A subscription to a topic or pattern (`orders.*`, `orders.#`); options are those of `SubOptions`."""
        return (await self.subscribe_many([topic], options, **settings))[0]

    async def subscribe_many(
        self, topics: Sequence[str], options: SubOptions | None = None, **settings: Any
    ) -> list[AsyncTopicSubscription]:
        """One subscription per topic: all of them, or none when one is refused."""
        started = time.perf_counter()
        self._context.check_open()
        if options is not None and settings:
            raise InvalidArgument("give options or single settings, not both", argument="options")
        try:
            chosen = options or SubOptions(**settings)
        except TypeError as error:
            raise InvalidArgument(str(error), argument="options") from None
        keys = [check_topic(topic) for topic in topics]
        made: list[AsyncTopicSubscription] = []
        with self._engine:
            try:
                made.extend(self._topics.add(key, chosen) for key in keys)
            except BaseException as error:
                for subscription in made:
                    self._topics.forget(subscription)
                self._context.observe("subscribe", ",".join(topics), started, error)
                raise
        self._context.observe("subscribe", ",".join(topics), started, None)
        return made

    async def ack(self, topic: str, ack_id: str) -> None:
        """Acknowledge a message that was published with this ack id: it comes no more."""
        self._settle_by_id("ack", topic, ack_id)

    async def nack(self, topic: str, ack_id: str) -> None:
        """Have a message that was published with this ack id delivered again now."""
        self._settle_by_id("nack", topic, ack_id)

    def _settle_by_id(self, operation: str, topic: str, ack_id: str) -> None:
        started = time.perf_counter()
        self._context.check_open()
        try:
            with self._engine:
                key = check_topic(topic)
                if operation == "ack":
                    self._topics.ack(key, ack_id)
                else:
                    self._topics.nack(key, ack_id)
        except BaseException as error:
            self._context.observe(operation, topic, started, error)
            raise
        self._context.observe(operation, topic, started, None)

    # Transactions

    def transaction(self, timeout_ms: int | None = None) -> AsyncTransaction:
        """A block of publishes and settles that happen wholly or not at all."""
        self._context.check_open()
        timeout = self._context.config.transaction_timeout_ms if timeout_ms is None else timeout_ms
        return AsyncTransaction(self._context, check_positive(timeout, "timeout_ms"))

    def _check_transactions(self) -> None:
        if not self._context.config.enable_transactions:
            raise TransactionNotSupported("transactions by id are switched off (enable_transactions)")

    async def commit(self, transaction: str) -> None:
        """Publish everything that was published under this transaction id, or nothing."""
        self._context.check_open()
        self._check_transactions()
        with self._engine as engine:
            engine.shard.transactions.commit(self._context.tenant, transaction)

    async def rollback(self, transaction: str) -> None:
        """Drop everything that was published under this transaction id."""
        self._context.check_open()
        self._check_transactions()
        with self._engine as engine:
            engine.shard.transactions.rollback(self._context.tenant, transaction)

    # Dead letters of topics

    def _dead_letter_queue(self) -> Any:
        if not self._context.config.enable_dead_letter_queue:
            raise DeadLetterNotSupported("dead letters are switched off (enable_dead_letter_queue)")
        return self._context.tenant.queue(self._context.config.dead_letter_topic)

    async def publish_dead_letter(self, topic: str, body: Any, reason: str) -> str:
        """Give a message up: it goes to the dead-letter topic with its own topic and the reason attached."""
        self._context.check_open()
        key = check_topic(topic)
        with self._engine as engine:
            self._dead_letter_queue()
            shard = engine.shard
            tenant = self._context.tenant
            p = self._context.parcel(body)
            origin = tenant.way(tenant.exchange(TOPICS), key)
            message = shard.message(tenant, origin, p.props, p.body, p.priority, 0, PERSISTENT)
            way = tenant.way(tenant.exchange(TOPICS), check_topic(self._context.config.dead_letter_topic))
            dead_letters.bury_new(tenant, way.queues, key, message, reason)
            return p.id or shard.ids.uuid(message.id)

    async def dead_letter_stats(self) -> dict[str, Any]:
        """Whether dead letters are on, where they go, how many came and are there, and when the last one came."""
        self._context.check_open()
        with self._engine:
            config = self._context.config
            stats: dict[str, Any] = {
                "enabled": config.enable_dead_letter_queue,
                "topic": config.dead_letter_topic,
                "total_messages": 0,
                "current_count": 0,
                "last_message_time": None,
            }
            if config.enable_dead_letter_queue:
                queue = self._dead_letter_queue()
                stats["total_messages"] = int(queue.dead_lettered_in)
                stats["current_count"] = int(queue.ready + queue.delayed + queue.leased)
                stats["last_message_time"] = queue.last_entered_ms or None
            return stats

    async def drain_dead_letters(self, limit: int = 0) -> list[Message]:
        """Take up to `limit` dead letters (0: all) out for good."""
        return self._take_dead_letters(limit, False)

    async def replay_dead_letters(self, limit: int = 0) -> list[Message]:
        """Publish up to `limit` dead letters (0: all) to the topics they were meant for, in one step."""
        return self._take_dead_letters(limit, True)

    def _take_dead_letters(self, limit: int, replay: bool) -> list[Message]:
        check_wait(limit, "limit")
        self._context.check_open()
        with self._engine as engine:
            queue = self._dead_letter_queue()
            leases = engine.shard.claim(queue, limit or max(1, int(queue.ready)), 30_000)
            messages = [unpack(lease.entry, engine.shard.ids) for lease in leases]
            if replay:
                for lease in leases:
                    dead_letters.revive_to_topic(self._context.tenant, lease.entry.message, TOPICS)
            for lease in leases:
                queue.ack(lease)
            return messages

    # Request and reply

    async def request(self, queue: str, body: Any, *, timeout_ms: int = 5_000) -> Any:
        """Publish a request to a queue and wait for the answer its consumer gives with `Delivery.reply`."""
        check_positive(timeout_ms, "timeout_ms")
        message = body if isinstance(body, Message) else Message(body)
        self._context.check_open()
        with self._engine:
            name = self._context.next_name("reply")
            self._context.tenant.declare_queue(name, {"durable": False}, "embedded", owner=self)
        message.reply_to = name
        message.correlation_id = message.correlation_id or name
        if message.ttl_ms is None:
            message.ttl_ms = timeout_ms
        replies = AsyncQueue(self._context, name)
        try:
            await AsyncQueue(self._context, queue).publish(message)
            answers: list[AsyncDelivery] = await replies.claim(1, wait_ms=timeout_ms)
        finally:
            if not self._context.closed:
                with self._engine:
                    self._context.tenant.delete_queue(name, owner=self)
        if not answers:
            raise ReplyTimeout(f"no reply from {queue!r} within {timeout_ms} ms")
        return answers[0].data

    # Handlers

    def handler(self, queue: str, *, concurrency: int = 1, **settings: Any) -> Callable[[Function], Function]:
        """Call the decorated function for each message of a queue, which is declared with these settings.

        Its first parameter's type says what it gets: bytes, str, Message, a delivery, or any type that msgspec decodes
        from JSON; without a type, the value that was published. Returning acks, raising retries, `Reject` rejects.
        """
        check_name(queue, "queue")
        check_positive(concurrency, "concurrency")

        def register(function: Function) -> Function:
            if not callable(function):
                raise InvalidType("a handler must be callable", argument="handler")
            self._handlers.append(AsyncHandler(self._context, queue, function, concurrency, settings))
            if self._running:
                raise InvalidArgument("register handlers before the broker is started", argument="handler")
            return function

        return register

    async def _start_handler(self, handler: AsyncHandler) -> None:
        queue = await self.queue(handler.queue, **handler.settings)
        for _ in range(handler.concurrency):
            subscription = await queue.subscribe()
            self._engine.spawn(handler.run, subscription)

    # Looking at it

    async def health(self) -> dict[str, Any]:
        """Whether the broker is well, and the numbers an operator asks for first."""
        self._context.check_open()
        with self._engine as engine:
            context = self._context
            tenant = context.tenant
            live = [s for s in self._topics.subscriptions.values() if not s.done]
            limit = context.config.memory_bytes_max
            healthy = not limit or tenant.memory_bytes < limit
            topics = {s.topic for s in live}
            waits = [q.wait_ms for q in tenant.queues.values()]
            deliveries = sum(int(w.count) for w in waits)
            waited = sum(int(w.total_ms) for w in waits)
            return {
                "status": "healthy" if healthy else "unhealthy",
                "timestamp": engine.clock.wall_ms(),
                "uptime": engine.clock.mono_ms() - self._started_ms,
                "total_topics": len(topics),
                "total_subscribers": len(live),
                "memory_usage": int(tenant.memory_bytes),
                "memory_limit": limit,
                "metrics": {
                    "total_published": int(tenant.published),
                    "total_delivered": int(tenant.delivered_before)
                    + sum(int(q.delivered) for q in tenant.queues.values()),
                    "total_dropped": int(tenant.dropped_before)
                    + sum(int(q.dropped + q.expired) for q in tenant.queues.values()),
                    "active_topics": len(topics),
                    "active_subscribers": len(live),
                    "average_latency": waited / deliveries if deliveries else 0.0,
                    "last_error": context.last_error,
                    "last_panic": context.last_panic,
                    "last_panic_time": context.last_panic_ms,
                },
            }

    async def metrics(self) -> dict[str, Any]:
        """All meters: of the tenant, of every queue and of every exchange."""
        started = time.perf_counter()
        self._context.check_open()
        with self._engine:
            tenant = self._context.tenant
            snapshot = {
                "tenant": tenant_stats(tenant),
                "queues": {name: queue_stats(queue) for name, queue in tenant.queues.items()},
                "exchanges": {name: exchange_stats(x) for name, x in tenant.exchanges.items()},
            }
        self._context.observe("metrics", "", started, None)
        return snapshot

    async def export_definitions(self) -> dict[str, Any]:
        """Everything that was declared, as a JSON-able document (no messages)."""
        self._context.check_open()
        with self._engine as engine:
            return definitions.export(engine.shard)

    async def import_definitions(self, document: Mapping[str, Any]) -> None:
        """Declare what a document says; an invalid one changes nothing."""
        self._context.check_open()
        with self._engine as engine:
            definitions.load(engine.shard, cast(Any, document))

    async def tick(self) -> None:
        """Do what is due now: for a broker on a manual clock, after the clock was moved."""
        self._context.check_open()
        with self._engine:
            self._topics.closed_by_overflow()

"""The embedded broker itself: a complete broker in your process, with no server, socket or file."""

from __future__ import annotations

import contextlib
import copy
import logging
import secrets
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from rookery.clock import Clock, SystemClock
from rookery.core import definitions, streams
from rookery.core.policy import Policy, check_settings
from rookery.embed import graveyard, keeping, reports
from rookery.embed.aio.deliveries import AsyncQueueSubscription
from rookery.embed.aio.handlers import AsyncHandler
from rookery.embed.aio.producers import AsyncCuts, AsyncProducer
from rookery.embed.aio.queues import AsyncExchange, AsyncQueue, check_bodies
from rookery.embed.aio.requests import AsyncRequests
from rookery.embed.aio.streams import AsyncStream
from rookery.embed.aio.topics import AsyncTopics, AsyncTopicSubscription
from rookery.embed.aio.transactions import AsyncTransaction
from rookery.embed.context import (
    TOPICS,
    Context,
    Observer,
    check_name,
    check_not_negative,
    check_positive,
    check_text,
    check_topic,
)
from rookery.embed.messages import Message
from rookery.embed.options import (
    FIXED,
    AckPolicy,
    Config,
    ConfigArguments,
    ExchangeKind,
    QueueArguments,
    StreamArguments,
    SubArguments,
    SubOptions,
)
from rookery.engine.engine import AsyncEngine
from rookery.engine.workers import AsyncSignal
from rookery.errors import (
    BrokerClosed,
    InvalidArgument,
    InvalidConfig,
    InvalidType,
    TransactionNotSupported,
)
from rookery.store.file import FileMedium

Function = TypeVar("Function", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


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
        **settings: Unpack[ConfigArguments],
    ) -> None:
        if config is not None and not isinstance(config, Config):
            raise InvalidConfig("config must be a Config", argument="config")
        if observer is not None and not callable(observer):
            raise InvalidType("observer must be callable", argument="observer")
        if secret is not None and not isinstance(secret, bytes):
            raise InvalidType(f"secret must be bytes, not {type(secret).__name__}", argument="secret")
        wanted = (config or Config()).replace(**settings)
        check_name(tenant, "tenant")
        self._engine = AsyncEngine(clock or SystemClock(), secret or secrets.token_bytes(16))
        if wanted.enable_persistence:
            directory = Path(wanted.persistence_path)
            self._engine.open_journal(
                FileMedium(directory),
                directory,
                sync=wanted.sync,
                page_bytes=wanted.page_bytes,
                compression=wanted.compression,
                compress_min_bytes=wanted.compress_min_bytes,
            )
        for problem in definitions.problems(self._engine.shard):
            _log.warning(
                "policy %(name)r of tenant %(tenant)r applies to no queue: its pattern is not supported: %(reason)s",
                problem,
            )
        home = self._engine.shard.tenants.get(tenant) or self._engine.shard.create_tenant(tenant)
        self._context = Context(self._engine, home, wanted, observer)
        self._topics = AsyncTopics(self._context)
        self._requests = AsyncRequests(self._context)
        self._handlers: list[AsyncHandler] = []
        self._serving: list[AsyncQueueSubscription] = []
        self._running = False
        self._closing = False
        self._stopping = self._context.watch(AsyncSignal())
        self._started_ms = self._engine.clock.mono_ms()
        self._apply_config(wanted)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tenant={self.tenant!r})"

    # Life

    async def start(self) -> None:
        """Start the registered handlers; the broker itself works without it."""
        self._check_open()
        await self._engine.start()
        for handler in self._handlers:
            self._serve(handler)
        if not self._running:
            self._running = True
            if self._context.observer is not None:
                self._engine.spawn(self._watch_health)

    async def close(self, *, grace_ms: int = 5_000) -> None:
        """End it: handlers finish what they hold (for up to `grace_ms`), then all subscriptions end, and from then on
        every call raises BrokerClosed. Twice is harmless, and so is closing what a forked child inherited.
        """
        check_not_negative(grace_ms, "grace_ms")
        if self._closing or self._engine.forked:
            return
        started = time.perf_counter()
        self._closing = True
        try:
            self._stopping.set()
            for subscription in self._serving:
                await subscription.cancel()
            await self._engine.join(grace_ms)
        finally:
            with self._engine:
                self._context.close()
            await self._engine.stop()
        self._context.observe("close", "", started, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # async only
    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """For web frameworks: `FastAPI(lifespan=broker.lifespan)` runs the handlers as long as the application runs."""
        await self.start()
        try:
            yield
        finally:
            await self.close()

    # end of async only
    def _check_open(self) -> None:
        if self._closing:
            raise BrokerClosed("the broker is closed")

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

    async def update_config(self, **changes: Unpack[ConfigArguments]) -> Config:
        """Change settings while running; an invalid one changes nothing. Subscriptions keep the buffers they have."""
        self._context.check_open()
        config = self._context.config.replace(**changes)
        for fixed in FIXED:
            if getattr(config, fixed) != getattr(self._context.config, fixed):
                raise InvalidConfig(f"{fixed} cannot change while the broker runs", argument=fixed)
        async with self._engine.change:
            self._apply_config(config)
        return config

    def _apply_config(self, config: Config) -> None:
        graveyard.prepare(self._context, config)
        self._context.tenant.set_limits({"memory_bytes_max": config.memory_bytes_max})
        self._context.config = config

    # Queues and exchanges

    async def queue(self, name: str, **settings: Unpack[QueueArguments]) -> AsyncQueue:
        """The queue of that name, made if it is not there; what is said must agree with how it was declared."""
        self._context.check_open()
        check_name(name, "queue")
        async with self._engine.change:
            self._context.tenant.declare_queue(name, settings, "embedded")
            return AsyncQueue(self._context, name)

    async def create_queue(self, name: str, **settings: Unpack[QueueArguments]) -> AsyncQueue:
        """A new queue; AlreadyExists when there is one of that name."""
        self._context.check_open()
        check_name(name, "queue")
        async with self._engine.change:
            self._context.tenant.declare_queue(name, settings, "embedded", create=True)
            return AsyncQueue(self._context, name)

    async def exchange(
        self,
        name: str,
        kind: ExchangeKind = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        alternate: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> AsyncExchange:
        """The exchange of that name, made if it is not there. What no binding matches goes to `alternate`."""
        self._context.check_open()
        check_name(name, "exchange")
        check_text(kind, "kind")
        check_text(alternate, "alternate")
        for argument, value in (("durable", durable), ("auto_delete", auto_delete)):
            if type(value) is not bool:
                raise InvalidType(f"{argument} must be bool, not {type(value).__name__}", argument=argument)
        if arguments is not None and not isinstance(arguments, Mapping):
            raise InvalidType(f"arguments must be a mapping, not {type(arguments).__name__}", argument="arguments")
        async with self._engine.change:
            self._context.tenant.declare_exchange(name, kind, durable, auto_delete, False, alternate, arguments)
            return AsyncExchange(self._context, name)

    async def queues(self) -> list[str]:
        """The names of all queues, but for those that serve subscriptions, requests and kept topics."""
        self._context.check_open()
        with self._engine:
            return sorted(
                name
                for name, queue in self._context.tenant.queues.items()
                if queue.owner is None and not name.startswith(keeping.PREFIX)
            )

    async def exchanges(self) -> list[str]:
        """The names of all exchanges, but for those that every broker has."""
        self._context.check_open()
        with self._engine:
            return sorted(name for name in self._context.tenant.exchanges if name and not name.startswith("amq."))

    async def stream(self, name: str, **settings: Unpack[StreamArguments]) -> AsyncStream:
        """The stream of that name, made if it is not there; what is said must agree with how it was declared."""
        self._context.check_open()
        check_name(name, "stream")
        async with self._engine.change:
            streams.declare(self._context.tenant, name, settings)
            return AsyncStream(self._context, name)

    async def streams(self) -> list[str]:
        """The names of all streams."""
        self._context.check_open()
        with self._engine:
            return sorted(self._context.tenant.streams)

    def producer(self, name: str) -> AsyncProducer:
        """A writer that stages and commits, each epoch once."""
        self._context.check_open()
        return AsyncProducer(self._context, check_name(name, "producer"))

    def cuts(self, queue: str, consumer: str) -> AsyncCuts:
        """Read a queue repeatably: cut by cut, as this consumer."""
        self._context.check_open()
        return AsyncCuts(self._context, check_name(queue, "queue"), check_name(consumer, "consumer"))

    async def set_policy(
        self, name: str, pattern: str, *, priority: int = 0, **settings: Unpack[QueueArguments]
    ) -> None:
        """Apply settings to every queue whose name matches a regular expression, also to those that exist."""
        self._context.check_open()
        check_name(name, "name")
        check_text(pattern, "pattern")
        if type(priority) is not int:
            raise InvalidType(f"priority must be int, not {type(priority).__name__}", argument="priority")
        async with self._engine.change:
            self._context.tenant.set_policy(Policy(name, pattern, settings, priority))

    async def delete_policy(self, name: str) -> None:
        self._context.check_open()
        check_text(name, "policy")
        async with self._engine.change:
            self._context.tenant.delete_policy(name)

    # Topics

    async def publish(
        self,
        topic: str,
        body: Any,
        *,
        ack: AckPolicy = "none",
        ack_id: str | None = None,
        ack_timeout_ms: int | None = None,
        transaction: str | None = None,
        mandatory: bool = False,
    ) -> str:
        """Give every subscriber of the topic a copy of a value or Message; returns the message's id.

        With `ack` ("required", or "timeout" with `ack_timeout_ms`) it is delivered again until `ack(topic, ack_id)` is
        called. With `transaction` it is published when that transaction is committed. With `mandatory`, Unroutable when
        nobody subscribes.
        """
        started = time.perf_counter()
        try:
            self._context.check_open()
            key = check_topic(topic)
            if transaction is not None:
                if ack != "none" or ack_id is not None or ack_timeout_ms is not None:
                    raise InvalidConfig("a message with an ack id cannot be part of a transaction", argument="ack")
                result = self._publish_later(key, body, transaction, bool(mandatory))
            else:
                result = await self._topics.publish(key, body, ack, ack_id, ack_timeout_ms, bool(mandatory))
        except BaseException as error:
            self._context.observe("publish", str(topic), started, error)
            raise
        if self._context.observer is not None:
            self._context.observe("publish", topic, started, None)
        return result

    def _publish_later(self, key: str, body: Any, id: str, mandatory: bool) -> str:
        """Add a publish to a transaction by id, which begins with its first."""
        self._check_transactions(id)
        message = copy.copy(body) if isinstance(body, Message) else Message(body)
        if message.id is None:
            message.id = str(uuid.uuid4())
        operation = self._context.pack(TOPICS, key, message, mandatory)
        with self._engine as engine:
            transactions = engine.shard.transactions
            keeping.keep(self._context, key)
            if not transactions.is_known(self._context.tenant, id):
                transactions.begin(self._context.tenant, id, self._context.config.transaction_timeout_ms)
            transactions.add(transactions.get(self._context.tenant, id), operation)
        return message.id

    async def publish_many(self, topic: str, bodies: Iterable[Any]) -> Sequence[str]:
        """Publish all of them, or none when one is invalid; returns their ids."""
        started = time.perf_counter()
        try:
            self._context.check_open()
            result = await self._topics.publish_many(check_topic(topic), check_bodies(bodies))
        except BaseException as error:
            self._context.observe("publish", str(topic), started, error)
            raise
        self._context.observe("publish", topic, started, None)
        return result

    async def subscribe(
        self, topic: str, options: SubOptions | None = None, **settings: Unpack[SubArguments]
    ) -> AsyncTopicSubscription:
        """A subscription to a topic or pattern (`orders.*`, `orders.#`); options are those of `SubOptions`."""
        return (await self.subscribe_many([topic], options, **settings))[0]

    async def subscribe_many(
        self, topics: Sequence[str], options: SubOptions | None = None, **settings: Unpack[SubArguments]
    ) -> list[AsyncTopicSubscription]:
        """One subscription per topic: all of them, or none when one is refused."""
        started = time.perf_counter()
        try:
            made = self._subscribe(topics, options, settings)
        except BaseException as error:
            self._context.observe("subscribe", str(topics), started, error)
            raise
        for subscription in made:
            self._context.observe("subscribe", subscription.topic, started, None)
        return made

    def _subscribe(
        self, topics: Sequence[str], options: SubOptions | None, settings: SubArguments
    ) -> list[AsyncTopicSubscription]:
        self._context.check_open()
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise InvalidType(f"topics must be a list of topics, not {type(topics).__name__}", argument="topics")
        if options is not None and not isinstance(options, SubOptions):
            raise InvalidType(f"options must be SubOptions, not {type(options).__name__}", argument="options")
        if options is not None and settings:
            raise InvalidArgument("give options or single settings, not both", argument="options")
        chosen = options or SubOptions.of(settings)
        keys = [check_topic(topic) for topic in topics]
        made: list[AsyncTopicSubscription] = []
        with self._engine:
            try:
                for key in keys:
                    made.append(self._topics.add(key, chosen))  # noqa: PERF401 (what was made is undone on an error)
            except BaseException:
                for subscription in made:
                    self._topics.forget(subscription)
                raise
        return made

    async def ack(self, topic: str, ack_id: str) -> None:
        """Acknowledge a message that was published with this ack id: it comes no more."""
        self._settle_by_id("ack", topic, ack_id)

    async def nack(self, topic: str, ack_id: str) -> None:
        """Have a message that was published with this ack id delivered again now."""
        self._settle_by_id("nack", topic, ack_id)

    def _settle_by_id(self, operation: str, topic: str, ack_id: str) -> None:
        started = time.perf_counter()
        try:
            self._context.check_open()
            key = check_topic(topic)
            with self._engine:
                if operation == "ack":
                    self._topics.ack(key, ack_id)
                else:
                    self._topics.nack(key, ack_id)
        except BaseException as error:
            self._context.observe(operation, str(topic), started, error)
            raise
        self._context.observe(operation, topic, started, None)

    # Transactions

    def transaction(self, *, timeout_ms: int | None = None) -> AsyncTransaction:
        """A block of publishes and settles that happen wholly or not at all."""
        self._context.check_open()
        timeout = self._context.config.transaction_timeout_ms if timeout_ms is None else timeout_ms
        return AsyncTransaction(self._context, check_positive(timeout, "timeout_ms"))

    def _check_transactions(self, id: object) -> None:
        self._context.check_open()
        if not self._context.config.enable_transactions:
            raise TransactionNotSupported("transactions by id are switched off (enable_transactions)")
        check_name(id, "transaction")

    async def commit(self, transaction: str) -> None:
        """Publish everything that was published under this transaction id, or nothing."""
        self._check_transactions(transaction)
        async with self._engine.change as engine:
            engine.shard.transactions.commit(self._context.tenant, transaction)

    async def rollback(self, transaction: str) -> None:
        """Drop everything that was published under this transaction id."""
        self._check_transactions(transaction)
        with self._engine as engine:
            engine.shard.transactions.rollback(self._context.tenant, transaction)

    # Kept messages

    async def recover(self, topic: str, limit: int = 0) -> list[Message]:
        """What was published to a topic and is kept (or waits in the queue of that name): up to `limit`, oldest
        first.
        """
        self._context.check_open()
        check_not_negative(limit, "limit")
        with self._engine:
            return keeping.recover(self._context, check_topic(topic), limit)

    async def replay(self, topic: str, limit: int = 0) -> int:
        """Hand what is kept of a topic to its subscribers of today, oldest first; returns how many messages."""
        self._context.check_open()
        check_not_negative(limit, "limit")
        with self._engine:
            return keeping.replay(self._context, check_topic(topic), limit)

    # Dead letters of topics

    async def publish_dead_letter(self, topic: str, body: Any, reason: str) -> str:
        """Give a message up: it goes to the dead-letter topic with its own topic and the reason attached."""
        self._context.check_open()
        check_text(reason, "reason")
        p = self._context.pack(TOPICS, check_topic(topic), body)
        async with self._engine.change:
            return graveyard.bury(self._context, p, body, reason)

    async def dead_letter_stats(self) -> dict[str, Any]:
        """Whether dead letters are on, where they go, how many came and are there, and when the last one came."""
        self._context.check_open()
        with self._engine:
            return graveyard.stats(self._context)

    async def drain_dead_letters(self, limit: int = 0) -> list[Message]:
        """Take up to `limit` dead letters (0: all) out for good."""
        self._context.check_open()
        check_not_negative(limit, "limit")
        async with self._engine.change:
            return graveyard.take(self._context, limit, False)

    async def replay_dead_letters(self, limit: int = 0) -> list[Message]:
        """Publish up to `limit` dead letters (0: all) to the topics they were meant for, in one step.

        Returns those that somebody subscribes to; the others stay.
        """
        self._context.check_open()
        check_not_negative(limit, "limit")
        async with self._engine.change:
            return graveyard.take(self._context, limit, True)

    # Request and reply

    async def request(self, queue: str, body: Any, *, timeout_ms: int = 5_000) -> Any:
        """Publish a request to a queue and wait for the answer its consumer gives with `Delivery.reply`."""
        self._context.check_open()
        check_name(queue, "queue")
        check_positive(timeout_ms, "timeout_ms")
        return await self._requests.request(queue, body, timeout_ms)

    # Handlers

    def handler(
        self, queue: str, *, concurrency: int = 1, **settings: Unpack[QueueArguments]
    ) -> Callable[[Function], Function]:
        """Call the decorated function for each message of a queue, which is declared with these settings.

        Its parameter's type says what it gets: bytes, str, Message, a delivery, or any type that msgspec decodes from
        JSON; without a type, the value that was published. Returning acks, raising retries, `Reject` rejects. Handlers
        run once the broker is started; one that is registered later starts at once.
        """
        self._check_open()
        check_name(queue, "queue")
        check_positive(concurrency, "concurrency")
        check_settings(settings)

        def register(function: Function) -> Function:
            if not callable(function):
                raise InvalidType("a handler must be callable", argument="handler")
            # what is visible where the decorator is applied
            names = sys._getframe(1).f_locals
            handler = AsyncHandler(
                self._engine, queue, function, concurrency, settings, names, self._context.note_panic
            )
            if self._running:
                self._serve(handler)
            self._handlers.append(handler)
            return function

        return register

    def _serve(self, handler: AsyncHandler) -> None:
        """Start a handler's workers, unless they run already."""
        if handler.started:
            return
        self._check_open()
        context = self._context
        with self._engine as engine:
            queue, _ = context.tenant.declare_queue(handler.queue, handler.settings, "embedded")
            lease_ms = queue.settings.lease_ms
            workers = [
                AsyncQueueSubscription(
                    context, engine.shard.subscribe(queue, 1, lease_ms, 0, context.next_name("handler"))
                )
                for _ in range(handler.concurrency)
            ]
            handler.started = True
        self._serving.extend(workers)
        for worker in workers:
            self._engine.spawn(handler.run, worker)

    # Looking at it

    async def _watch_health(self) -> None:
        """Tell the observer `metrics` at every interval, until the broker is closed."""
        while not self._closing:
            if await self._stopping.wait(self._context.config.health_check_interval_ms):
                return
            if self._context.config.enable_health_check:
                await self.metrics()

    async def health(self) -> dict[str, Any]:
        """Whether the broker is well, and the numbers an operator asks for first. Times are in milliseconds."""
        self._context.check_open()
        with self._engine:
            topics = [subscription.topic for subscription in self._topics.live()]
            return reports.health(self._context, topics, self._started_ms)

    async def metrics(self) -> dict[str, Any]:
        """All meters: of the tenant, of every queue and of every exchange."""
        started = time.perf_counter()
        self._context.check_open()
        with self._engine:
            snapshot = reports.metrics(self._context.tenant)
        self._context.observe("metrics", "", started, None)
        return snapshot

    async def export_definitions(self) -> dict[str, Any]:
        """Everything that was declared, as a JSON-able document (no messages)."""
        self._context.check_open()
        with self._engine as engine:
            return definitions.export(engine.shard)

    async def import_definitions(self, document: Mapping[str, Any]) -> None:
        """Declare what a document says; an invalid one changes nothing. This broker's own settings stay as they are."""
        self._context.check_open()
        if not isinstance(document, Mapping):
            raise InvalidType(f"document must be a mapping, not {type(document).__name__}", argument="document")
        async with self._engine.change as engine:
            definitions.load(engine.shard, document)
            self._apply_config(self._context.config)

    async def tick(self) -> None:
        """Do what is due now: for a broker on a manual clock, after the clock was moved."""
        self._context.check_open()
        with self._engine:
            self._topics.live()

"""The client: a broker elsewhere, with the methods of the embedded one.

It connects when it is first used, over kept connections. What breaks is tried again after pauses (`RetryPolicy`); what
must happen once goes out under a key and happens once; what this client declared is declared again where the broker
does not know it any more; subscriptions and readers go on.
"""

from __future__ import annotations

import contextlib
import copy
import ssl
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar, Unpack

from rookery.client.aio.admin import AsyncAdmin, pages
from rookery.client.aio.consuming import AsyncConsumer
from rookery.client.aio.deliveries import AsyncDelivery
from rookery.client.aio.link import AsyncLink
from rookery.client.aio.producers import AsyncCuts, AsyncProducer
from rookery.client.aio.queues import AsyncExchange, AsyncQueue, publish_all
from rookery.client.aio.requests import AsyncRequests
from rookery.client.aio.streams import AsyncStream
from rookery.client.aio.topics import AsyncTopicSubscription, subscribe
from rookery.client.aio.transactions import AsyncNamedTransactions, AsyncTransaction
from rookery.client.aio.transport import NOTHING, AsyncTransport
from rookery.client.http import part
from rookery.client.messages import pack, read_messages, unpack
from rookery.client.retrying import RetryPolicy
from rookery.core.definitions import plain_table
from rookery.core.policy import check_settings
from rookery.core.receipts import TIMEOUT_MS as ACK_TIMEOUT_MS
from rookery.core.transactions import TIMEOUT_MS
from rookery.embed.aio.deliveries import AsyncDelivery as AsyncEmbeddedDelivery
from rookery.embed.aio.handlers import AsyncHandler
from rookery.embed.aio.queues import check_bodies
from rookery.embed.context import (
    TOPICS,
    check_ack,
    check_name,
    check_not_negative,
    check_positive,
    check_text,
    check_topic,
)
from rookery.embed.messages import Message
from rookery.embed.options import (
    AckPolicy,
    ExchangeKind,
    QueueArguments,
    StreamArguments,
    SubArguments,
    SubOptions,
)
from rookery.errors import (
    DeadLetterNotSupported,
    InvalidArgument,
    InvalidConfig,
    InvalidType,
    PersistenceDisabled,
)
from rookery.wire.packed import encode

Function = TypeVar("Function", bound=Callable[..., Any])

OURS = "amq."
"""What the names of queues begin with that serve subscriptions and requests."""


class AsyncClient:
    """A broker elsewhere. Use it as a context manager, or `close` it.

    `url` is like `http://KEY@host:8080`, or several, of which one that answers is used. `api_key` may stand in it or in
    ROOKERY_API_KEY; `ca_file` or `tls` say whom to trust over https. `timeout_ms` is the longest silence of a broker
    that owes an answer, `retry` what happens then. With `keep_topics`, what this client publishes to topics is kept for
    a week, for `recover` and `replay`.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://localhost:8080",
        *,
        api_key: str | None = None,
        ca_file: str = "",
        tls: ssl.SSLContext | None = None,
        timeout_ms: int = 30_000,
        retry: RetryPolicy | None = None,
        requests_max: int = 32,
        keep_topics: bool = False,
    ) -> None:
        self.transport = AsyncTransport(
            url,
            api_key=api_key,
            ca_file=ca_file,
            tls=tls,
            timeout_ms=timeout_ms,
            retry=retry,
            requests_max=requests_max,
        )
        self._link = AsyncLink(self.transport)
        self._requests = AsyncRequests(self._link)
        self._named = AsyncNamedTransactions(self._link)
        self._keep_topics = bool(keep_topics)
        self._kept: set[str] = set()
        self._handlers: list[AsyncHandler] = []
        self._serving: list[Any] = []
        self._running = False
        self._closing = False
        self._tenant = ""
        self.admin = AsyncAdmin(self._link)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transport.address.url!r})"

    # Life

    async def start(self) -> None:
        """Meet the broker, which learns who calls, and start the registered handlers."""
        self._link.check_open()
        self._tenant = (await self._link.get("/api/v1/stats", limit=1))["tenant"]
        for handler in self._handlers:
            await self._serve(handler)
        self._running = True

    async def close(self, *, grace_ms: int = 5_000) -> None:
        """End it: handlers finish what they hold (for up to `grace_ms`), then all subscriptions end, and from then on
        every call raises BrokerClosed. Twice is harmless.
        """
        check_not_negative(grace_ms, "grace_ms")
        if self._closing:
            return
        self._closing = True
        try:
            for subscription in self._serving:
                await subscription.cancel()
            await self._link.workers.join(grace_ms)
        finally:
            await self._link.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # async only
    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """For web frameworks: `FastAPI(lifespan=client.lifespan)` runs the handlers as long as the application runs."""
        async with self:
            yield

    # end of async only
    @property
    def tenant(self) -> str:
        """The tenant of its credential, once it has started."""
        return self._tenant

    # Queues, exchanges, streams

    async def queue(self, name: str, **settings: Unpack[QueueArguments]) -> AsyncQueue:
        """The queue of that name, made if it is not there; what is said must agree with how it was declared."""
        return await self._queue(name, settings, False)

    async def create_queue(self, name: str, **settings: Unpack[QueueArguments]) -> AsyncQueue:
        """A new queue; AlreadyExists when there is one of that name."""
        return await self._queue(name, settings, True)

    async def _queue(self, name: str, settings: QueueArguments, new: bool) -> AsyncQueue:
        self._link.check_open()
        check_name(name, "queue")
        check_settings(settings)
        path = f"/api/v1/queues/{part(name)}"
        await self._link.put(path, settings, new=True if new else None)
        self._link.declared(f"queue {name}", "PUT", path, settings)
        return AsyncQueue(self._link, name)

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
        self._link.check_open()
        check_name(name, "exchange")
        check_text(kind, "kind")
        check_text(alternate, "alternate")
        for argument, value in (("durable", durable), ("auto_delete", auto_delete)):
            if type(value) is not bool:
                raise InvalidType(f"{argument} must be bool, not {type(value).__name__}", argument=argument)
        if arguments is not None and not isinstance(arguments, Mapping):
            raise InvalidType(f"arguments must be a mapping, not {type(arguments).__name__}", argument="arguments")
        path = f"/api/v1/exchanges/{part(name)}"
        body = {
            "kind": kind,
            "durable": durable,
            "auto_delete": auto_delete,
            "alternate": alternate,
            "arguments": plain_table(arguments or {}),
        }
        await self._link.put(path, body)
        self._link.declared(f"exchange {name}", "PUT", path, body)
        return AsyncExchange(self._link, name)

    async def queues(self) -> list[str]:
        """The names of all queues, but for those that serve subscriptions and requests."""
        found = await pages(self._link, "/api/v1/queues", "queues")
        return [each["name"] for each in found if not each["name"].startswith(OURS)]

    async def exchanges(self) -> list[str]:
        """The names of all exchanges, but for those that every broker has."""
        found = await pages(self._link, "/api/v1/exchanges", "exchanges")
        return [each["name"] for each in found if not each["name"].startswith(OURS)]

    async def stream(self, name: str, **settings: Unpack[StreamArguments]) -> AsyncStream:
        """The stream of that name, made if it is not there; what is said must agree with how it was declared."""
        self._link.check_open()
        check_name(name, "stream")
        path = f"/api/v1/streams/{part(name)}"
        await self._link.put(path, settings)
        self._link.declared(f"stream {name}", "PUT", path, settings)
        return AsyncStream(self._link, name)

    async def streams(self) -> list[str]:
        """The names of all streams."""
        return [each["name"] for each in await pages(self._link, "/api/v1/streams", "streams")]

    def producer(self, name: str) -> AsyncProducer:
        """A writer that stages and commits, each epoch once."""
        self._link.check_open()
        return AsyncProducer(self._link, check_name(name, "producer"))

    def cuts(self, queue: str, consumer: str) -> AsyncCuts:
        """Read a queue repeatably: cut by cut, as this consumer."""
        self._link.check_open()
        return AsyncCuts(self._link, check_name(queue, "queue"), check_name(consumer, "consumer"))

    async def set_policy(
        self, name: str, pattern: str, *, priority: int = 0, **settings: Unpack[QueueArguments]
    ) -> None:
        """Apply settings to every queue whose name matches a regular expression, also to those that exist."""
        self._link.check_open()
        check_name(name, "name")
        check_text(pattern, "pattern")
        if type(priority) is not int:
            raise InvalidType(f"priority must be int, not {type(priority).__name__}", argument="priority")
        check_settings(settings)
        body = {"pattern": pattern, "settings": settings, "priority": priority}
        await self._link.put(f"/api/v1/policies/{part(name)}", body)

    async def delete_policy(self, name: str) -> None:
        self._link.check_open()
        await self._link.delete(f"/api/v1/policies/{part(check_text(name, 'policy'))}")

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
        called. With `transaction` it is published when that transaction of this client is committed. With `mandatory`,
        Unroutable when nobody subscribes.
        """
        self._link.check_open()
        key = check_topic(topic)
        timeout_ms = check_ack(ack, ack_id, ack_timeout_ms, ACK_TIMEOUT_MS)
        if transaction is not None:
            if timeout_ms is not None:
                raise InvalidConfig("a message with an ack id cannot be part of a transaction", argument="ack")
            return await self._publish_later(key, body, transaction, bool(mandatory))
        if timeout_ms is None:
            return (await self._publish(key, [body], mandatory=bool(mandatory)))[0]
        publish = pack(body)
        await self._keep(key)
        query = {"topic": key, "ack_id": ack_id, "timeout_ms": timeout_ms, "mandatory": bool(mandatory)}
        answer = await self._link.once("/api/v1/receipts", encode([publish]), packed=True, **query)
        return str(answer["message_id"])

    async def _publish_later(self, key: str, body: Any, name: str, mandatory: bool) -> str:
        message = copy.copy(body) if isinstance(body, Message) else Message(body)
        if message.id is None:
            message.id = str(uuid.uuid4())
        await self._keep(key)
        self._named.publish(name, key, message, mandatory)
        return message.id

    async def _keep(self, key: str) -> None:
        """Have messages of a topic kept, if this client's are."""
        if self._keep_topics and key not in self._kept:
            path = f"/api/v1/kept?topic={part(key)}"
            await self._link.put(path)
            self._link.declared(f"kept {key}", "PUT", path, NOTHING)
            self._kept.add(key)

    async def publish_many(self, topic: str, bodies: Iterable[Any]) -> Sequence[str]:
        """Publish all of them, or none when one is invalid; returns their ids."""
        self._link.check_open()
        return await self._publish(check_topic(topic), check_bodies(bodies))

    async def _publish(self, key: str, bodies: list[Any], mandatory: bool = False) -> list[str]:
        packed = [pack(body) for body in bodies]
        await self._keep(key)
        return await publish_all(
            self._link, f"/api/v1/exchanges/{TOPICS}/messages", packed, routing_key=key, mandatory=mandatory
        )

    async def subscribe(
        self, topic: str, options: SubOptions | None = None, **settings: Unpack[SubArguments]
    ) -> AsyncTopicSubscription:
        """A subscription to a topic or pattern (`orders.*`, `orders.#`); options are those of `SubOptions`."""
        return (await self.subscribe_many([topic], options, **settings))[0]

    async def subscribe_many(
        self, topics: Sequence[str], options: SubOptions | None = None, **settings: Unpack[SubArguments]
    ) -> list[AsyncTopicSubscription]:
        """One subscription per topic: all of them, or none when one is refused."""
        self._link.check_open()
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise InvalidType(f"topics must be a list of topics, not {type(topics).__name__}", argument="topics")
        if options is not None and not isinstance(options, SubOptions):
            raise InvalidType(f"options must be SubOptions, not {type(options).__name__}", argument="options")
        if options is not None and settings:
            raise InvalidArgument("give options or single settings, not both", argument="options")
        chosen = options or SubOptions.of(settings)
        keys = [check_topic(topic) for topic in topics]
        made: list[AsyncTopicSubscription] = []
        try:
            for key in keys:
                made.append(await subscribe(self._link, key, chosen))  # noqa: PERF401 (what was made is undone)
        except BaseException:
            for subscription in made:
                await subscription.cancel()
            raise
        return made

    async def ack(self, topic: str, ack_id: str) -> None:
        """Acknowledge a message that was published with this ack id: it comes no more, to anybody."""
        await self._settle_by_id(topic, ack_id, "ack")

    async def nack(self, topic: str, ack_id: str) -> None:
        """Have a message that was published with this ack id delivered again now."""
        await self._settle_by_id(topic, ack_id, "retry")

    async def _settle_by_id(self, topic: str, ack_id: str, outcome: str) -> None:
        self._link.check_open()
        body = {"topic": check_topic(topic), "ack_id": check_text(ack_id, "ack_id"), "outcome": outcome}
        await self._link.once("/api/v1/receipts/settle", body)

    async def recover(self, topic: str, limit: int = 0) -> list[Message]:
        """What was published to a topic and is kept (or waits in the queue of that name): up to `limit`, oldest
        first.
        """
        key = self._check_kept(topic, limit)
        content = await self._link.get_packed("/api/v1/kept", {"topic": key, "limit": limit})
        return [unpack(got) for got in read_messages(content)]

    async def replay(self, topic: str, limit: int = 0) -> int:
        """Hand what is kept of a topic to its subscribers of today, oldest first; returns how many messages."""
        key = self._check_kept(topic, limit)
        return int((await self._link.post("/api/v1/kept/replay", {"topic": key, "limit": limit}))["replayed"])

    def _check_kept(self, topic: str, limit: int) -> str:
        self._link.check_open()
        check_not_negative(limit, "limit")
        if not self._keep_topics:
            raise PersistenceDisabled("nothing is kept for this client (keep_topics)")
        return check_topic(topic)

    # Dead letters of topics, which only an embedded broker has: those of queues are in their dead-letter queues

    async def publish_dead_letter(self, topic: str, body: Any, reason: str) -> str:
        """Refused, as by an embedded broker without a dead-letter topic."""
        check_topic(topic)
        check_text(reason, "reason")
        self._no_dead_letters()

    async def dead_letter_stats(self) -> dict[str, Any]:
        """That there is no dead-letter topic."""
        self._link.check_open()
        nothing = {"total_messages": 0, "current_count": 0, "last_message_time": None}
        return {"enabled": False, "topic": "", **nothing}

    async def drain_dead_letters(self, limit: int = 0) -> list[Message]:
        """Refused, as by an embedded broker without a dead-letter topic."""
        check_not_negative(limit, "limit")
        self._no_dead_letters()

    async def replay_dead_letters(self, limit: int = 0) -> list[Message]:
        """Refused, as by an embedded broker without a dead-letter topic."""
        check_not_negative(limit, "limit")
        self._no_dead_letters()

    def _no_dead_letters(self) -> NoReturn:
        self._link.check_open()
        raise DeadLetterNotSupported("a dead-letter topic needs an embedded broker; queues have dead-letter queues")

    # Transactions, requests

    async def commit(self, transaction: str) -> None:
        """Publish everything that this client published under this transaction id, or nothing."""
        await self._named.commit(transaction)

    async def rollback(self, transaction: str) -> None:
        """Drop everything that this client published under this transaction id."""
        await self._named.rollback(transaction)

    def transaction(self, *, timeout_ms: int | None = None) -> AsyncTransaction:
        """A block of publishes and settles that happen wholly or not at all."""
        self._link.check_open()
        timeout = TIMEOUT_MS if timeout_ms is None else timeout_ms
        return AsyncTransaction(self._link, check_positive(timeout, "timeout_ms"))

    async def request(self, queue: str, body: Any, *, timeout_ms: int = 5_000) -> Any:
        """Publish a request to a queue and wait for the answer its consumer gives with `Delivery.reply`."""
        self._link.check_open()
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
        run once the client is started: register them before.
        """
        self._link.check_open()
        check_name(queue, "queue")
        check_positive(concurrency, "concurrency")
        check_settings(settings)

        def register(function: Function) -> Function:
            if not callable(function):
                raise InvalidType("a handler must be callable", argument="handler")
            # what is visible where the decorator is applied
            names = sys._getframe(1).f_locals
            kinds = (AsyncDelivery, AsyncEmbeddedDelivery)
            handler = AsyncHandler(
                self._link.workers, queue, function, concurrency, settings, names, self._link.note_panic, kinds
            )
            self._handlers.append(handler)
            if self._running:
                self._link.workers.spawn(self._serve, handler)
            return function

        return register

    async def _serve(self, handler: AsyncHandler) -> None:
        """Start a handler's workers, unless they run already."""
        if handler.started:
            return
        handler.started = True
        queue = await self.queue(handler.queue, **handler.settings)  # type: ignore[arg-type]
        for _ in range(handler.concurrency):
            subscription = await queue.subscribe()
            self._serving.append(subscription)
            self._link.workers.spawn(handler.run, subscription)

    # Producer and consumer in one call each

    async def define_queue_and_exchange(self, exchange: str, kind: ExchangeKind, queue: str, key: str) -> AsyncExchange:
        """Declare an exchange and a queue and bind them by a key: what a producer needs before it publishes."""
        for argument, text in (("exchange", exchange), ("kind", kind), ("queue", queue)):
            if not check_text(text, argument):
                raise InvalidArgument(f"{argument} must not be empty", argument=argument)
        source = await self.exchange(exchange, kind)
        target = await self.queue(queue)
        await target.bind(exchange, key)
        return source

    async def consume(
        self,
        exchange: str,
        kind: ExchangeKind,
        queue: str,
        key: str,
        handler: Callable[..., Any],
        *,
        credit: int = 1,
        retry: RetryPolicy | None = None,
        skip_duplicates: bool = False,
    ) -> AsyncConsumer:
        """Declare an exchange and a queue, bind them, and call `handler` for each message, as `handler()` says.

        With `retry`, a message whose handling failed is tried again after its pauses and rejected after its tries;
        without, the queue's own backoff and attempts hold. The consumer runs until it is cancelled or the client is
        closed.
        """
        for argument, text in (("exchange", exchange), ("kind", kind), ("queue", queue), ("key", key)):
            if not check_text(text, argument):
                raise InvalidArgument(f"{argument} must not be empty", argument=argument)
        if not callable(handler):
            raise InvalidType("a handler must be callable", argument="handler")
        made = AsyncHandler(
            self._link.workers, queue, handler, 1, {}, {}, self._link.note_panic, (AsyncDelivery, AsyncEmbeddedDelivery)
        )
        await self.define_queue_and_exchange(exchange, kind, queue, key)
        subscription = await AsyncQueue(self._link, queue).subscribe(credit=credit, skip_duplicates=skip_duplicates)
        consumer = AsyncConsumer(made, subscription, retry)
        self._serving.append(consumer)
        self._link.workers.spawn(consumer.run)
        return consumer

    # Looking at it

    async def health(self) -> dict[str, Any]:
        """Whether the broker is well, the counts of this client's tenant, and how its last handler failed."""
        started = time.perf_counter()
        answer = await self._link.get("/health")
        took = (time.perf_counter() - started) * 1000
        counts = await self._link.get(f"/api/v1/tenants/{part(await self._who())}")
        return {
            "status": "healthy" if answer["status"] in ("ok", "healthy") else answer["status"],
            "timestamp": int(time.time() * 1000),
            "round_trip": took,
            "metrics": {**counts["stats"], "last_panic": self._link.panic},
        }

    async def metrics(self) -> dict[str, Any]:
        """All meters: of the tenant, of every queue and of every exchange."""
        counts = await self._link.get(f"/api/v1/tenants/{part(await self._who())}")
        queues = await pages(self._link, "/api/v1/queues", "queues")
        exchanges = await pages(self._link, "/api/v1/exchanges", "exchanges")
        return {
            "tenant": counts["stats"],
            "queues": {each["name"]: each["stats"] for each in queues},
            "exchanges": {each["name"]: each["stats"] for each in exchanges},
        }

    async def _who(self) -> str:
        if not self._tenant:
            self._tenant = (await self._link.get("/api/v1/stats", limit=1))["tenant"]
        return self._tenant

    async def export_definitions(self) -> dict[str, Any]:
        """Everything that was declared in its tenant, as a JSON-able document (no messages)."""
        found: dict[str, Any] = await self._link.get("/api/v1/definitions")
        return found

    async def import_definitions(self, document: Mapping[str, Any]) -> None:
        """Declare what a document says; an invalid one changes nothing."""
        self._link.check_open()
        if not isinstance(document, Mapping):
            raise InvalidType(f"document must be a mapping, not {type(document).__name__}", argument="document")
        await self._link.post("/api/v1/definitions", document)

"""Topics under /api/v1: exchanges of kind topic, with subscriptions that are pulled from, or POSTed to an endpoint.

A subscription is a queue `<topic>.sub.<id>` bound to the topic; the binding names who made it, so that a pull without
`subscription` finds the caller's own.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rookery.core import rights
from rookery.core.credentials import typed_id
from rookery.core.queue import Queue
from rookery.core.topology import Exchange, Tenant
from rookery.core.webhooks import Format
from rookery.errors import Conflict, InvalidArgument, NotFound
from rookery.wire.api.bodies import check_routing_key, pack
from rookery.wire.api.compat.pulling import Pulling
from rookery.wire.api.rest import FACE, Rest, refuse_internal
from rookery.wire.api.stats import TopicStats, topic_stats
from rookery.wire.api.types import (
    Deliveries,
    Delivery,
    Many,
    Nack,
    Name,
    Nothing,
    Published,
    Sending,
    Settled,
    Short,
    Tag,
    WaitSeconds,
)
from rookery.wire.api.webhooks import Calling, Concurrency, Endpoint, Hooks, Secret, TimeoutMs
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router
from rookery.wire.http.trace import carry

OWNER: Final = "x-subscriber"
ID_BYTES: Final = 9


class TopicMade(msgspec.Struct):
    name: str
    created: bool


class Subscribing(msgspec.Struct, forbid_unknown_fields=True):
    """`routing_key` is a pattern: `*` is one word, `#` any number of words. With an `endpoint` the messages are POSTed
    there (mode `webhook`); what else can be said then is as for a webhook of a queue.
    """

    routing_key: Short = "#"
    mode: Literal["pull", "webhook"] | None = None
    endpoint: Endpoint | None = None
    secret: Secret | None = None
    format: Format = "raw"
    concurrency: Concurrency = 8
    timeout_ms: TimeoutMs = 15_000

    def calling(self) -> Calling | None:
        """What is said of a webhook, if one is meant."""
        if self.endpoint is None and self.mode == "webhook":
            raise InvalidArgument("a webhook needs an endpoint", argument="endpoint")
        if self.endpoint is None:
            return None
        if self.mode == "pull":
            raise InvalidArgument("what is pulled needs no endpoint", argument="endpoint")
        return Calling(self.endpoint, self.secret, self.format, self.concurrency, self.timeout_ms)


class Subscription(msgspec.Struct, omit_defaults=True):
    """`endpoint` is a webhook's; its `secret` is shown only when it is made."""

    subscription_id: str
    topic: str
    queue: str
    mode: str
    routing_key: str
    endpoint: str | None = None
    secret: str | None = None


class SubscriptionList(msgspec.Struct):
    subscriptions: list[Subscription]


class SendingToTopic(Sending, kw_only=True):
    """As to a queue, with a routing key; the one in the body counts before the one in the query."""

    routing_key: Short | None = None


class Topics:
    """The routes."""

    def __init__(self, rest: Rest, random_bytes: Any, hooks: Hooks) -> None:
        self._rest = rest
        self._hooks = hooks
        self._random_bytes = random_bytes
        self._pulling = Pulling(rest)

    def create(self, call: Call, name: Name) -> Answer:
        """Create a topic."""
        _, created = self._rest.tenant(call).declare_exchange(name, "topic")
        call.lasting()
        return Answer(201 if created else 200, TopicMade(name, created))

    def publish(self, call: Call, name: Name, body: SendingToTopic, routing_key: Short = "") -> Answer:
        """Publish any JSON value to a topic: every subscription whose pattern matches gets it."""
        rest = self._rest
        key = body.routing_key if body.routing_key is not None else routing_key
        check_routing_key(key)
        p = pack(body, name, key, int(rest.shard.wall_ms))
        carry(call, p)
        exchange = self.topic(call, name, "write")
        refuse_internal(exchange)
        number, repeat = rest.publish(rest.tenant(call), p)
        assert exchange.name == name
        call.lasting()
        return Answer(200 if repeat else 201, Published(rest.shard.ids.uuid(number), repeat))

    def subscribe(self, call: Call, name: Name, body: Subscribing) -> Subscription:
        """Subscribe to a topic; messages from now on that match the pattern wait to be pulled, or are POSTed."""
        tenant = self._rest.tenant(call)
        calling = body.calling()
        self.topic(call, name, "read")
        subscription_id = typed_id(self._random_bytes(ID_BYTES))
        target = queue_name(name, subscription_id)
        rights.require(call.principal, "topic.subscribe", "subscription", target)
        hook = None
        if calling is not None:
            more = {"id": subscription_id, "routing_key": body.routing_key}
            hook = self._hooks.define(call, "topic", name, calling, **more)
        queue, _ = self._rest.declare(tenant, target, {}, FACE)
        try:
            tenant.bind(name, queue, body.routing_key, {OWNER: call.principal.name})
            if hook is not None:
                self._hooks.begin(call, hook)
        except Exception:
            tenant.delete(queue, "deleted")
            raise
        call.lasting()
        made = Subscription(subscription_id, name, target, "pull", body.routing_key)
        if hook is not None:
            made.mode, made.endpoint, made.secret = "webhook", hook.endpoint, hook.secret
        return made

    def subscriptions(self, call: Call, name: Name) -> SubscriptionList:
        """The subscriptions of a topic."""
        tenant = self._rest.tenant(call)
        found = [subscription for subscription, _ in _subscriptions(tenant, name)]
        hooks = self._hooks.of(call)
        for subscription in found:
            hook = hooks.get(subscription.subscription_id)
            if hook is not None and hook.queue == subscription.queue:
                subscription.mode, subscription.endpoint = "webhook", hook.endpoint
        return SubscriptionList(found)

    def unsubscribe(self, call: Call, name: Name, id: str) -> Settled:
        """End a subscription; what waits in it is gone."""
        rights.require(call.principal, "topic.unsubscribe", "subscription", queue_name(name, id))
        tenant = self._rest.tenant(call)
        queue = self.queue_of(tenant, name, id)
        self._hooks.end(call, id, queue.name)
        tenant.delete(queue, "deleted")
        call.lasting()
        return Settled("ok")

    def pull(
        self,
        call: Call,
        name: Name,
        subscription: str = "",
        wait: WaitSeconds = 0,
        max: Many | None = None,
        auto_ack: bool = False,
        empty: Literal["200", "204"] = "200",
    ) -> object:
        """Lease the next message of a subscription, by default of the caller's only one."""
        queue = self._find(call, name, subscription)
        rights.require(call.principal, "topic.pull", "subscription", queue.name)
        return self._pulling.pull(call, queue, wait, max, auto_ack, empty, self._rest.options.lease_ms)

    def ack(self, call: Call, name: Name, body: Tag) -> Settled:
        """Done with a message."""
        return self._pulling.ack(call, self._queue_name_of(call, name, body.delivery_tag), body)

    def nack(self, call: Call, name: Name, body: Nack) -> Settled:
        """Failed with a message: it is tried again, or becomes a dead letter."""
        return self._pulling.nack(call, self._queue_name_of(call, name, body.delivery_tag), body)

    def stats(self, call: Call, name: Name) -> TopicStats:
        """The counts of a topic."""
        call.principal.require("read", name, kind="topic")
        exchange = self._rest.tenant(call).exchanges.get(name)
        return TopicStats(name, 0, 0, 0, 0) if exchange is None else topic_stats(exchange)

    def topic(self, call: Call, name: Name, action: Literal["write", "read"]) -> Exchange:
        """The topic of that name, which comes into being when it is first used."""
        call.principal.require(action, name, kind="topic")
        tenant = self._rest.tenant(call)
        exchange = tenant.exchanges.get(name) if name else None
        if exchange is None:
            call.principal.require("configure", name, kind="topic")
            exchange, _ = tenant.declare_exchange(name, "topic")
        return exchange

    def _find(self, call: Call, topic: str, id: str) -> Queue:
        tenant = self._rest.tenant(call)
        if id:
            return self.queue_of(tenant, topic, id)
        owner = call.principal.name
        hooks = self._hooks.of(call)
        own = [queue for found, queue in _subscriptions(tenant, topic, owner) if found.subscription_id not in hooks]
        if not own:
            raise NotFound(f"user '{owner}' has no subscription to topic '{topic}'", argument="subscription")
        if len(own) > 1:
            text = f"user '{owner}' has {len(own)} subscriptions to topic '{topic}': say which"
            raise Conflict(text, argument="subscription")
        return own[0]

    def queue_of(self, tenant: Tenant, topic: str, id: str) -> Queue:
        queue = tenant.queues.get(queue_name(topic, id))
        if queue is None:
            raise NotFound(f"topic '{topic}' has no subscription '{id}'", argument="subscription")
        return queue

    def _queue_name_of(self, call: Call, topic: str, tag: str) -> str:
        """The queue that a delivery tag is of, if it is one of this topic's."""
        queue = tag.rsplit("/", 3)[0]
        if not queue.startswith(queue_name(topic, "")):
            raise NotFound(f"no such delivery in topic '{topic}'", argument="delivery_tag")
        rights.require(call.principal, "topic.settle", "subscription", queue)
        return queue


def queue_name(topic: str, id: str) -> str:
    return f"{topic}.sub.{id}"


def _subscriptions(tenant: Tenant, topic: str, owner: str | None = None) -> list[tuple[Subscription, Queue]]:
    exchange = tenant.exchange(topic)
    prefix = queue_name(topic, "")
    found = []
    for key, arguments, target in exchange.matcher.bindings():
        if not isinstance(target, Queue) or not target.name.startswith(prefix) or arguments is None:
            continue
        if OWNER in arguments and owner in (None, arguments[OWNER]):
            subscription_id = target.name.removeprefix(prefix)
            found.append((Subscription(subscription_id, topic, target.name, "pull", key), target))
    return found


def add_routes(router: Router, topics: Topics) -> None:
    root = "/api/v1/topics/{name}"
    pulled = (Delivery, Nothing, Deliveries)
    router.add("PUT", root, topics.create, {201: TopicMade, 200: TopicMade}, "topic.declare", tag="topics")
    router.add(
        "POST", f"{root}/publish", topics.publish, {201: Published, 200: Published}, "topic.publish", tag="topics"
    )
    router.add("POST", f"{root}/subscriptions", topics.subscribe, {201: Subscription}, "topic.subscribe", tag="topics")
    router.add(
        "GET",
        f"{root}/subscriptions",
        topics.subscriptions,
        {200: SubscriptionList},
        "topic.subscriptions",
        tag="topics",
    )
    router.add(
        "DELETE", f"{root}/subscriptions/{{id}}", topics.unsubscribe, {200: Settled}, "topic.unsubscribe", tag="topics"
    )
    router.add("POST", f"{root}/pull", topics.pull, {200: pulled, 204: None}, "topic.pull", tag="topics")
    router.add("POST", f"{root}/ack", topics.ack, {200: Settled}, "topic.settle", tag="topics")
    router.add("POST", f"{root}/nack", topics.nack, {200: Settled}, "topic.settle", tag="topics")
    router.add("GET", f"{root}/stats", topics.stats, {200: TopicStats}, "topic.stats", tag="topics")

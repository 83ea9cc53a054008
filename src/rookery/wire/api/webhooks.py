"""Webhooks over HTTP: define, list, look at, delete, test, and the log of their calls.

Those of topics are subscriptions too, under the same id (`topics`). Whoever may read and configure what is
consumed may define one; only an admin's may lead to addresses that are not public.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol

import msgspec

from rookery.core import rights
from rookery.core.credentials import typed_id
from rookery.core.topology import Tenant
from rookery.core.webhooks import CONCURRENCY_MAX, ENDPOINT_MAX, TIMEOUT_MAX_MS, Format, Kind, Webhook
from rookery.format import properties
from rookery.format.properties import Properties
from rookery.wire.api.rest import FACE, Rest
from rookery.wire.api.types import Many, Name, Settled
from rookery.wire.http.auth import ANYBODY, is_local
from rookery.wire.http.call import Call
from rookery.wire.http.routes import LATER, Router

ID_BYTES: Final = 9

Endpoint = Annotated[str, msgspec.Meta(min_length=8, max_length=ENDPOINT_MAX)]
Secret = Annotated[str, msgspec.Meta(min_length=16, max_length=255)]
Concurrency = Annotated[int, msgspec.Meta(ge=1, le=CONCURRENCY_MAX)]
TimeoutMs = Annotated[int, msgspec.Meta(ge=100, le=TIMEOUT_MAX_MS)]

_TEST: Final = b'{"test":true}'
_TEST_PROPS: Final = properties.encode(Properties(content_type="application/json"))


class Calling(msgspec.Struct, forbid_unknown_fields=True):
    """Where to, how many calls at a time, and how long each may take. Without a `secret` one is made."""

    endpoint: Endpoint
    secret: Secret | None = None
    format: Format = "raw"
    concurrency: Concurrency = 8
    timeout_ms: TimeoutMs = 15_000


class WebhookMade(msgspec.Struct):
    """The secret is not shown again."""

    id: str
    kind: Kind
    target: str
    endpoint: str
    secret: str


class WebhookShown(msgspec.Struct):
    """`state` is active, resting (the endpoint failed or asked to wait), trying, or waiting (for what it consumes).

    `in_flight` counts the calls under way, and `waiting` those that begin when fewer are: there are limits for all
    webhooks, for one tenant's, and for those of a tenant that lead to one host.
    """

    id: str
    kind: Kind
    target: str
    queue: str | None
    routing_key: str | None
    endpoint: str
    format: Format
    concurrency: int
    timeout_ms: int
    state: str
    in_flight: int
    waiting: int
    delivered: int
    failed: int
    failures: int


class WebhookList(msgspec.Struct):
    webhooks: list[WebhookShown]


class CallShown(msgspec.Struct):
    """`outcome` is ack, failed, wait or gone; `status` is null when there was no answer."""

    time_ms: int
    message_id: str
    attempt: int
    outcome: str
    status: int | None
    text: str
    ms: int


class CallList(msgspec.Struct):
    """Newest first."""

    deliveries: list[CallShown]


class TestResult(msgspec.Struct):
    outcome: str
    status: int | None
    text: str
    ms: int


class Dispatching(Protocol):
    """Who calls the endpoints (`rookery.webhooks.dispatcher`)."""

    guard: Any

    def begin(self, tenant: Tenant, webhook: Webhook) -> None: ...

    def forget(self, tenant: Tenant, webhook: Webhook) -> None: ...

    def hook(self, tenant: str, id: str) -> Any: ...

    def test(self, hook: Any, body: bytes, props: bytes, done: Callable[[Any], None]) -> None: ...


class Hooks:
    """The routes."""

    def __init__(
        self,
        rest: Rest,
        dispatcher: Dispatching,
        random_bytes: Callable[[int], bytes],
        new_secret: Callable[[Callable[[int], bytes]], str],
    ) -> None:
        self._rest = rest
        self._dispatcher = dispatcher
        self._random_bytes = random_bytes
        self._new_secret = new_secret

    def define(self, call: Call, kind: Kind, target: str, said: Calling, **more: str) -> Webhook:
        """A webhook as the caller wants and may have it; it is not there yet."""
        principal = call.principal
        private = principal.admin or (principal is ANYBODY and is_local(call))
        hook = Webhook(
            id=more.pop("id", "") or typed_id(self._random_bytes(ID_BYTES)),
            kind=kind,
            target=target,
            endpoint=said.endpoint,
            secret=said.secret or self._new_secret(self._random_bytes),
            format=said.format,
            concurrency=said.concurrency,
            timeout_ms=said.timeout_ms,
            private=private,
            **more,
        )
        self._dispatcher.guard.check_endpoint(hook.endpoint, private)
        return hook

    def begin(self, call: Call, hook: Webhook) -> None:
        """Let it work from now on."""
        self._dispatcher.begin(self._rest.tenant(call), hook)
        call.lasting()

    def end(self, call: Call, id: str, queue: str) -> None:
        """Delete the webhook of that id, if there is one and it consumes from that queue."""
        tenant = self._rest.tenant(call)
        hook = self.of(call).get(id)
        if hook is not None and hook.kind == "topic" and hook.queue == queue:
            self._dispatcher.forget(tenant, hook)

    def of(self, call: Call) -> Mapping[str, Webhook]:
        return self._rest.shard.webhooks.of(self._rest.tenant(call).name)

    def on_queue(self, call: Call, name: Name, body: Calling) -> WebhookMade:
        """Have the messages of a queue POSTed to an endpoint."""
        hook = self.define(call, "queue", name, body)
        self._rest.queue(call, name, FACE, "read")
        return self._made(call, hook)

    def on_stream(self, call: Call, name: Name, body: Calling) -> WebhookMade:
        """Have the records of a stream from now on POSTed to an endpoint."""
        hook = self.define(call, "stream", name, body)
        tenant = self._rest.tenant(call)
        tenant.stream(name)
        self._rest.heed_defaults(tenant)
        return self._made(call, hook)

    def _made(self, call: Call, hook: Webhook) -> WebhookMade:
        self.begin(call, hook)
        return WebhookMade(hook.id, hook.kind, hook.target, hook.endpoint, hook.secret)

    def list(self, call: Call) -> WebhookList:
        """The tenant's webhooks that one may read the messages of."""
        return WebhookList([self._show(call, hook) for hook in self.of(call).values() if _may(call, hook)])

    def get(self, call: Call, id: Name) -> WebhookShown:
        """One webhook, and how it is doing."""
        return self._show(call, self._find(call, id, "webhook.show"))

    def delete(self, call: Call, id: Name) -> Settled:
        """End a webhook; of a topic, what waits for it is gone."""
        hook = self._find(call, id, "webhook.change")
        self._dispatcher.forget(self._rest.tenant(call), hook)
        call.lasting()
        return Settled("ok")

    def deliveries(self, call: Call, id: Name, max: Many = 100) -> CallList:
        """The last calls of a webhook, newest first; they are forgotten when the server ends."""
        hook = self._find(call, id, "webhook.show")
        rows = reversed(self._dispatcher.hook(call.principal.tenant, hook.id).log)
        return CallList([CallShown(**row) for row in rows][:max])

    def test(self, call: Call, id: Name) -> object:
        """Call the endpoint once with `{"test":true}` and say how that went."""
        hook = self._find(call, id, "webhook.change")
        working = self._dispatcher.hook(call.principal.tenant, hook.id)
        router = self._rest.router

        def done(result: Any) -> None:
            if call.connection is not None:
                shown = TestResult(result.outcome, result.status, result.text, result.ms)
                router.complete(call, lambda: shown)

        call.suspend(_nothing)
        self._dispatcher.test(working, _TEST, _TEST_PROPS, done)
        return LATER

    def _find(self, call: Call, id: str, operation: str) -> Webhook:
        tenant = self._rest.tenant(call)
        hook = self._rest.shard.webhooks.get(tenant.name, id)
        rights.require(call.principal, operation, "queue", hook.queue if hook.kind != "stream" else hook.target)
        return hook

    def _show(self, call: Call, hook: Webhook) -> WebhookShown:
        working = self._dispatcher.hook(call.principal.tenant, hook.id)
        return WebhookShown(
            id=hook.id,
            kind=hook.kind,
            target=hook.target,
            queue=hook.queue if hook.kind != "stream" else None,
            routing_key=hook.routing_key if hook.kind == "topic" else None,
            endpoint=hook.endpoint,
            format=hook.format,
            concurrency=hook.concurrency,
            timeout_ms=hook.timeout_ms,
            state=working.state,
            in_flight=len(working.tasks) - len(working.waiting),
            waiting=len(working.waiting),
            delivered=working.delivered,
            failed=working.failed,
            failures=working.failures,
        )


def _may(call: Call, hook: Webhook) -> bool:
    return bool(call.principal.may("read", hook.queue if hook.kind != "stream" else hook.target))


def _nothing() -> None:
    """A test whose caller went away is made to its end."""


def add_routes(router: Router, hooks: Hooks) -> None:
    tag = "webhooks"
    router.add("POST", "/api/v1/queues/{name}/webhooks", hooks.on_queue, {201: WebhookMade}, "queue.webhook", tag=tag)
    router.add(
        "POST", "/api/v1/streams/{name}/webhooks", hooks.on_stream, {201: WebhookMade}, "stream.webhook", tag=tag
    )
    router.add("GET", "/api/v1/webhooks", hooks.list, {200: WebhookList}, "webhook.list", tag=tag)
    router.add("GET", "/api/v1/webhooks/{id}", hooks.get, {200: WebhookShown}, "webhook.show", tag=tag)
    router.add("DELETE", "/api/v1/webhooks/{id}", hooks.delete, {200: Settled}, "webhook.change", tag=tag)
    router.add("GET", "/api/v1/webhooks/{id}/deliveries", hooks.deliveries, {200: CallList}, "webhook.show", tag=tag)
    router.add("POST", "/api/v1/webhooks/{id}/test", hooks.test, {200: TestResult}, "webhook.change", tag=tag)

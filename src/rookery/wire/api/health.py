"""Is the server alive, is it ready.

`/health/ready` sends a message through the broker for real (publish, to disk, claim, ack), at most once a second
however often it is asked.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rookery.core.publishing import Publish
from rookery.core.queue import Queue
from rookery.errors import NotReady
from rookery.format import properties
from rookery.wire.api.broker import Api
from rookery.wire.api.keys import SYSTEM_TENANT
from rookery.wire.http.call import Call
from rookery.wire.http.routes import LATER, Router

READY_QUEUE: Final = "rookery.ready"

READY_MAX_MS: Final = 5_000

READY_CACHE_MS: Final = 1_000

_PROPS: Final = properties.of_type(None)


class Health(msgspec.Struct):
    status: str


class Ready(msgspec.Struct):
    """`took_ms` is how long the message was under way."""

    status: str
    took_ms: int


class HealthRoutes:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._rest = api.rest
        self._shard = api.shard
        self._ready: Ready | None = None
        self._ready_ms = 0

    def health(self, call: Call) -> Health:
        """The process is alive."""
        return Health("ok")

    def ready(self, call: Call) -> object:
        """A message made its way through the broker: published, on disk, claimed, acked."""
        now = int(self._shard.mono_ms)
        if self._ready is not None and now - self._ready_ms < READY_CACHE_MS:
            return self._ready
        if self._shard.log.failure is not None:
            raise NotReady(str(self._shard.log.failure))
        tenant = self._shard.tenants.get(SYSTEM_TENANT) or self._shard.create_tenant(SYSTEM_TENANT)
        queue, _ = tenant.declare_queue(READY_QUEUE, {"length_max": 1_000}, "embedded")
        self._rest.publish(tenant, Publish("", READY_QUEUE, _PROPS, b"ready?"))
        call.lasting()
        call.then = lambda: self._claim(call, queue, now)
        call.ready = True
        call.touch()
        return LATER

    def _claim(self, call: Call, queue: Queue, began_ms: int) -> object:
        leases = queue.claim(1_000, READY_MAX_MS)
        if not leases:
            raise NotReady("the message is not there")
        for lease in leases:
            queue.ack(lease)
        call.lasting()
        now = int(self._shard.mono_ms)
        self._ready = Ready("ready", now - began_ms)
        self._ready_ms = now
        return self._ready


def add_routes(router: Router, api: Api) -> None:
    routes = HealthRoutes(api)
    for root in ("", "/api/v1"):
        router.add("GET", f"{root}/health", routes.health, {200: Health}, "server.health", tag="operations")
        router.add("GET", f"{root}/health/ready", routes.ready, {200: Ready}, "server.health", tag="operations")

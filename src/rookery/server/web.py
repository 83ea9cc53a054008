"""HTTP for a server: the face with its routes, made from the settings, and what it writes to the log."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Final

from rookery import __version__
from rookery.core.access import Access
from rookery.engine.engine import AsyncEngine, Engine
from rookery.errors import InvalidConfig
from rookery.server.archive import EngineArchive
from rookery.server.logs import Log, explained, trace
from rookery.server.peers import is_own_user
from rookery.webhooks import new_secret
from rookery.webhooks.addresses import Guard
from rookery.webhooks.dispatcher import Dispatcher
from rookery.wire.api import insights, keys, metrics, pipelines, routes, stats, topics, webhooks
from rookery.wire.api.broker import Api
from rookery.wire.api.compat import legacy, s2
from rookery.wire.api.rest import Rest
from rookery.wire.api.types import RestOptions
from rookery.wire.http import openapi, spans
from rookery.wire.http.auth import Gatekeeper
from rookery.wire.http.call import Call
from rookery.wire.http.connection import HttpFace
from rookery.wire.http.routes import Router
from rookery.wire.http.tokens import Tokens
from rookery.wire.push import readers as push
from rookery.wire.turn import Face

if TYPE_CHECKING:
    from collections.abc import Callable

    from rookery.clock import Clock
    from rookery.config.settings import Settings
    from rookery.server.logins import Logins
    from rookery.server.turns import Turns

NOTED: Final = frozenset({401, 403, 408, 413, 429, 431})
"""Statuses that are logged at level info: somebody is kept out or held back."""


class Web:
    """The HTTP face of a server. `face` is what a listener brings connections to."""

    def __init__(
        self,
        engine: AsyncEngine | Engine,
        turns: Turns,
        access: Access,
        clock: Clock,
        log: Log,
        logins: Logins,
        settings: Settings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        self._log = log
        self._gatekeeper = Gatekeeper(
            access,
            clock,
            open_to_all=settings.auth_mode == "none",
            tokens=tokens(settings),
            rate_limit=settings.rate_limit,
        )
        self._gatekeeper.failed = logins.failed
        self._gatekeeper.verify = logins.verify
        self.router = Router(self._gatekeeper, self._defect)
        if settings.env == "development":
            self.router.explain = partial(explained, secrets=settings.secrets())
        self._gatekeeper.fail = self.router.fail
        self.face = self._face(settings)
        self.face.spans = self.router.spans = spans.make(__version__)
        shard = turns.turn.shard
        self.rest = Rest(turns.turn, access, self.router, options(settings))
        self.archive = EngineArchive(engine, turns, log, settings.http_body_max_bytes)
        # the faces whose connections are listed; whoever makes more of them adds them
        self.faces: dict[str, Face] = {self.face.protocol: self.face}
        api = Api(self.rest, self.archive, os.urandom, self.faces)
        tenant_stats = stats.StatsRoutes(api)
        counters = metrics.MetricsRoutes(api, int(shard.mono_ms))
        # rows of /metrics; whoever counts something adds one
        self.values = counters.server_values
        legacy.add_routes(self.router, self.rest, tenant_stats)
        s2.add_routes(self.router, self.rest)
        # the ports of this server, which webhooks may not call; whoever opens them adds them
        self.own_ports: set[int] = set()
        guard = Guard(settings.webhook_allow, lambda: frozenset(self.own_ports))
        self.webhooks = Dispatcher(turns, guard, log, settings.webhook_calls_max)
        slots = self.webhooks.slots
        self.values += [
            lambda: ("webhook_calls", "gauge", "calls of webhooks under way", slots.used),
            lambda: ("webhook_calls_waiting", "gauge", "calls of webhooks that wait for others to end", slots.waiting),
        ]
        turns.on_tick.append(self.webhooks.tick)
        hooks = webhooks.Hooks(self.rest, self.webhooks, os.urandom, new_secret)
        webhooks.add_routes(self.router, hooks)
        topic_routes = topics.Topics(self.rest, os.urandom, hooks)
        topics.add_routes(self.router, topic_routes)
        keys.add_routes(self.router, self.rest)
        metrics.add_routes(self.router, counters)
        stats.add_routes(self.router, tenant_stats)
        failures = "Arrow bodies that ended the process that decoded them"
        self.values.append(lambda: ("arrow_failures_total", "counter", failures, self.archive.decoder.failures))
        routes.add_routes(self.router, api)
        pipelines.add_routes(self.router, api, settings.pipelines_dir)
        insights.add_routes(self.router, api, settings.pipelines_dir)
        self.readers = push.Push(api, topic_routes)
        push.add_routes(self.router, self.readers)
        turns.on_tick.append(self.readers.tick)
        openapi.add_routes(self.router, __version__)

    def _face(self, settings: Settings) -> HttpFace:
        face = HttpFace(self._turns.turn, self.router.handle, os.urandom(4).hex())
        face.resume = self.router.resume
        face.later = self._later
        face.defect = self._defect
        face.origins = frozenset(origin.encode() for origin in settings.cors_origins)
        face.vet = self.router.vet
        face.is_own_user = is_own_user
        face.set_body_max(settings.http_body_max_bytes)
        if settings.log_level == "debug":
            face.done = self._answered
            face.told_from = 0
        else:
            face.done = self._failed
            face.told_from = 400
        return face

    def close(self) -> None:
        self.archive.close()

    def _later(self, delay_ms: int, work: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, self._turns.run, work)

    # The log. Neither headers nor queries are written: they may hold secrets.

    def _answered(self, call: Call) -> None:
        if not self._failed(call):
            self._log.debug("request", **_fields(call))

    def _failed(self, call: Call) -> bool:
        """Log a request that went wrong in a way that an operator should know of; whether it did."""
        if call.status >= 500:
            self._log.error("request", **_fields(call))
        elif call.status in NOTED:
            self._log.info("request", **_fields(call))
        else:
            return False
        return True

    def _defect(self, error: BaseException, call: Call | None) -> None:
        request_id = call.request_id if call is not None else ""
        self._log.error("defect", request_id=request_id, error=type(error).__name__, trace=trace(error))


def _fields(call: Call) -> dict[str, object]:
    connection = call.connection
    fields: dict[str, object] = {
        "request_id": call.request_id,
        "method": call.method,
        "path": call.url.partition(b"?")[0].decode("latin-1")[:300],
        "status": call.status,
    }
    if connection is not None:
        fields["peer"] = connection.peer_name
        fields["ms"] = int(connection.shard.mono_ms - call.began_ms)
    if call.principal is not None:
        fields["tenant"] = call.principal.tenant
        fields["user"] = call.principal.name
    if call.tag:
        fields["delivery_tag"] = call.tag
    return fields


def options(settings: Settings) -> RestOptions:
    """What the routes have to know of the settings."""
    target = "{queue}" + settings.dlq_suffix
    small = {
        "max_attempts": settings.claim_max_attempts,
        "lease_ms": max(1, round(settings.claim_lease_sec * 1000)),
        "dead_letter_queue": target,
    }
    large = {
        "max_attempts": settings.max_attempts,
        "lease_ms": settings.lease_ms,
        "backoff": settings.backoff_strategy,
        "backoff_base_ms": settings.backoff_base_ms,
        "dead_letter_queue": target,
    }
    return RestOptions(
        lease_ms=settings.lease_ms,
        claim_lease_ms=max(1, round(settings.claim_lease_sec * 1000)),
        claim_wait_ms=round(settings.claim_wait_sec * 1000),
        dlq_suffix=settings.dlq_suffix,
        key_creation=settings.key_creation,
        face_defaults={"s0": small, "http": large},
    )


def tokens(settings: Settings) -> Tokens | None:
    """How JWTs are verified, None where they are not accepted."""
    if settings.auth_mode != "bearer":
        return None
    audience = settings.jwt_audience or None
    if settings.jwt_key_file is None:
        assert settings.jwt_secret is not None
        return Tokens.by_secret(settings.jwt_secret, audience)
    try:
        text = settings.jwt_key_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"{settings.jwt_key_file} cannot be read: {error}", argument="ROOKERY_JWT_KEY_FILE"
        ) from None
    return Tokens.by_file(text, settings.jwt_key_file.name, audience)

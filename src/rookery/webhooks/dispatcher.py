"""Calls the endpoints of webhooks, in the server's loop.

Each webhook that is defined has a `Hook`: a subscription with as much credit as calls may be under way, a pool of
connections that leads to allowed addresses only, a log of its last calls, and a breaker. What an answer means for a
message is in `calls`; retries, backoff and dead letters are the queue's. Definitions are looked at in every tick and
after each change, whoever made it. How many calls there are at a time, of whom, is in `slots`.

The breaker: after `FAILURES_MAX` calls in a row in which the endpoint failed, it is left alone for a while that doubles
each time; then one call is tried, and if that succeeds everything goes on. Leases do not lapse: each ends with its
call, and a call has its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from rookery.core.groups import drop_group
from rookery.errors import NotReady
from rookery.format import properties
from rookery.webhooks.calls import Outgoing, Result, call, request
from rookery.webhooks.network import Connections
from rookery.webhooks.slots import CallSlots
from rookery.webhooks.sources import Source, begin, source_of

if TYPE_CHECKING:
    from rookery.core.entries import Lease
    from rookery.core.shard import Shard
    from rookery.core.topology import Tenant
    from rookery.core.webhooks import Webhook
    from rookery.webhooks.addresses import Guard
    from rookery.wire.turn import Turn

FAILURES_MAX: Final = 5
REST_MS: Final = 5_000
REST_MAX_MS: Final = 300_000
WAIT_MAX_MS: Final = 86_400_000
"""How long after it entered its queue a message is given back uncounted when the endpoint asks to wait."""

CALLS_MAX: Final = 1_000
"""Calls under way at a time, of all webhooks."""

LOG_MAX: Final = 100
"""Calls that are remembered, of each webhook."""


class Log(Protocol):
    """Where webhooks log: the part of a structlog logger that is used here."""

    def info(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


class Hook:
    """One webhook at work. Its `state` is active, resting (left alone), trying, or waiting (for what it consumes)."""

    def __init__(self, dispatcher: Dispatcher, tenant: str, webhook: Webhook) -> None:
        self.webhook = webhook
        self.tenant = tenant
        self.state = "waiting"
        self.failures = 0
        self.delivered = 0
        self.failed = 0
        self.log: deque[dict[str, Any]] = deque(maxlen=LOG_MAX)
        self.tasks: set[asyncio.Task[None]] = set()
        self.waiting: set[asyncio.Future[bool]] = set()
        self.connections = Connections(dispatcher.guard, webhook.private, webhook.concurrency, dispatcher.slots)
        self._dispatcher = dispatcher
        self._source: Source | None = None
        self._rest_ms = REST_MS
        self._awake: asyncio.TimerHandle | None = None
        self._looking = False
        self._closed = False

    # Within a turn

    def attach(self) -> None:
        """Consume, if what there is to consume is there."""
        tenant = self._dispatcher.shard.tenants.get(self.tenant)
        if self._source is None and tenant is not None and not self._closed:
            self._source = source_of(tenant, self.webhook, self)
            if self._source is not None:
                self.state = "active"
                self._flow()

    def tick(self) -> None:
        self.attach()
        self.connections.tick()
        if self._source is not None:
            self._source.tick()

    def stop(self) -> None:
        """Begin no more calls."""
        self._closed = True
        if self._awake is not None:
            self._awake.cancel()
        for future in self.waiting:
            if not future.done():
                future.set_result(False)
        if self._source is not None:
            self._source.rest()
            # whoever takes its place goes on behind what is settled
            self._source.tick()

    def finish(self) -> None:
        """No call is under way any more."""
        if self._source is not None:
            self._source.stop()
            self._source = None

    def _flow(self) -> None:
        if self._source is not None:
            credit = 1 if self.state == "trying" else self.webhook.concurrency
            self._source.set_flow(self.state == "resting", credit)

    def _settle(self, lease: Lease, result: Result | None) -> None:
        queue = lease.queue
        if result is None:
            queue.release(lease)
            return
        if result.outcome == "ack":
            self.delivered += 1
            queue.ack(lease)
        else:
            self.failed += 1
            # one that is asked to wait for ever is not held back for ever
            waited_ms = int(self._dispatcher.shard.wall_ms - lease.entry.enqueued_ms)
            if result.outcome == "failed" or (result.outcome == "wait" and waited_ms > WAIT_MAX_MS):
                queue.retry(lease, -1, f"{result.status or 'no answer'}: {result.text}"[:255])
            else:
                queue.release(lease)
        if self._source is not None:
            self._source.settled(lease)
        self._judge(result)
        if result.outcome == "gone":
            self._dispatcher.end(self)

    # The breaker

    def _judge(self, result: Result) -> None:
        if self._closed or self.state == "waiting":
            return
        if result.outcome == "wait":
            self._rest(result.wait_ms)
        elif not result.endpoint_failed:
            self.failures = 0
            self._rest_ms = REST_MS
            if self.state == "trying":
                self.state = "active"
                self._flow()
        else:
            self.failures += 1
            if self.state == "trying" or (self.state == "active" and self.failures >= FAILURES_MAX):
                self._rest(self._rest_ms)
                self._rest_ms = min(self._rest_ms * 2, REST_MAX_MS)

    def _rest(self, for_ms: int) -> None:
        """Leave the endpoint alone."""
        self.state = "resting"
        self._flow()
        if self._awake is not None:
            self._awake.cancel()
        delay = for_ms * self._dispatcher.pace / 1000
        self._awake = self._dispatcher.loop.call_later(delay, self._dispatcher.turns.run, self._try)

    def _try(self) -> None:
        if self.state == "resting" and not self._closed:
            self.state = "trying"
            self._flow()

    # Outside of a turn

    def set(self) -> None:
        """A mailbox has something, or its queue is gone."""
        if not self._looking:
            self._looking = True
            self._dispatcher.loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        source = self._source
        if source is None or self._closed:
            return
        for lease in source.take():
            task = self._dispatcher.loop.create_task(self._deliver(lease))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        if source.ended():
            self._dispatcher.turns.run(self._lose)

    def _lose(self) -> None:
        """What it consumed is gone. A topic's queue is the subscription itself."""
        if self._source is not None:
            self._source.stop()
            self._source = None
        self.state = "waiting"
        if self.webhook.kind == "topic":
            self._dispatcher.end(self)

    async def _deliver(self, lease: Lease) -> None:
        message = lease.entry.message
        name = properties.message_id(message.props) or self._dispatcher.shard.ids.uuid(message.public_id)
        sent = Outgoing.of(message, name, int(lease.attempt), int(lease.entry.enqueued_ms))
        result = await self.send(sent)
        self._dispatcher.turns.run(lambda: self._settle(lease, result))

    async def send(self, sent: Outgoing) -> Result | None:
        """Make one call, and write down how it went; None if the webhook ended before the call could begin."""
        slots, host = self._dispatcher.slots, urlsplit(self.webhook.endpoint).netloc
        if not await slots.acquire(self.tenant, host, self.waiting):
            return None
        at_ms = int(self._dispatcher.shard.wall_ms)
        try:
            headers, body = request(self.webhook, self.tenant, sent, int(time.time()))
            result = await call(self.connections, self.webhook, headers, body)
        except Exception as error:  # noqa: BLE001 - whatever a peer provokes must not end the deliveries
            self._dispatcher.log.error("webhook", tenant=self.tenant, id=self.webhook.id, error=repr(error))
            result = Result("failed", None, repr(error), 0)
        finally:
            slots.release(self.tenant, host)
        self.log.append(
            {
                "time_ms": at_ms,
                "message_id": sent.message_id,
                "attempt": sent.attempt,
                "outcome": result.outcome,
                "status": result.status,
                "text": result.text,
                "ms": result.ms,
            }
        )
        return result


class Runner(Protocol):
    """Who takes turns (`rookery.server.turns`)."""

    turn: Turn

    def run(self, work: Callable[[], None]) -> None: ...


class Dispatcher:
    """See the module's docstring. `pace` stretches or shortens the times for which an endpoint is left alone."""

    def __init__(self, turns: Runner, guard: Guard, log: Log, calls_max: int = CALLS_MAX) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns = turns
        self.shard: Shard = turns.turn.shard
        self.guard = guard
        self.log = log
        self.slots = CallSlots(calls_max)
        self.pace = 1.0
        self._hooks: dict[tuple[str, str], Hook] = {}
        self._seen = -1
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.shard.webhooks.on_change = self._changed

    def _changed(self) -> None:
        """Somebody defined or deleted a webhook, perhaps in another thread: heed that in a turn right after this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.turns.run, self.tick)

    # Within a turn

    def tick(self) -> None:
        """Heed what was defined or deleted since the last time, and look after what is at work."""
        if self._closed:
            return
        if self.shard.webhooks.version != self._seen:
            self._heed()
        for hook in list(self._hooks.values()):
            hook.tick()

    def _heed(self) -> None:
        self._seen = self.shard.webhooks.version
        wanted = {(tenant, webhook.id): webhook for tenant, webhook in self.shard.webhooks.all()}
        for key, hook in list(self._hooks.items()):
            if wanted.get(key) != hook.webhook:
                self._drop(key)
        for key, webhook in wanted.items():
            if key not in self._hooks:
                self._hooks[key] = Hook(self, key[0], webhook)

    def _drop(self, key: tuple[str, str]) -> None:
        hook = self._hooks.pop(key)
        hook.stop()
        task = self.loop.create_task(self._close(hook, None))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def begin(self, tenant: Tenant, webhook: Webhook) -> None:
        """Define a webhook, and let it work."""
        self.shard.webhooks.put(tenant.name, webhook)
        if webhook.kind == "stream":
            begin(tenant.stream(webhook.target), webhook)
        self.tick()

    def end(self, hook: Hook) -> None:
        """The endpoint does not want to be called any more, or what it was told of is gone."""
        tenant = self.shard.tenants.get(hook.tenant)
        if tenant is not None and hook.webhook.id in self.shard.webhooks.of(hook.tenant):
            self.log.info("webhook_ended", tenant=hook.tenant, id=hook.webhook.id)
            self.forget(tenant, hook.webhook)

    def forget(self, tenant: Tenant, webhook: Webhook) -> None:
        """Delete a webhook, and what it had for itself alone."""
        self.shard.webhooks.drop(tenant.name, webhook.id)
        self.tick()
        if webhook.kind == "topic" and webhook.queue in tenant.queues:
            tenant.delete(tenant.queues[webhook.queue], "deleted")
        elif webhook.kind == "stream" and webhook.target in tenant.streams:
            stream = tenant.streams[webhook.target]
            if webhook.group in stream.groups:
                drop_group(stream, webhook.group)

    def hook(self, tenant: str, id: str) -> Hook:
        """A webhook at work."""
        found = self._hooks.get((tenant, id))
        if found is None:
            self.shard.webhooks.get(tenant, id)
            raise NotReady("the webhook is just being begun; try again")
        return found

    # Outside of a turn

    def test(self, hook: Hook, body: bytes, props: bytes, done: Callable[[Result], None]) -> None:
        """Call the endpoint once with a message that is in no queue; `done` is told in a turn."""
        name = f"test-{time.time_ns():x}"

        async def work() -> None:
            sent = Outgoing(name, "test", 1, int(self.shard.wall_ms), props, body)
            result = await hook.send(sent) or Result("failed", None, "the webhook was changed or deleted", 0)
            self.turns.run(lambda: done(result))

        task = self.loop.create_task(work())
        hook.tasks.add(task)
        task.add_done_callback(hook.tasks.discard)

    async def close(self, patience_sec: float) -> None:
        """Begin no more calls, and wait for those under way. What was not settled by then comes again."""
        self._closed = True
        self.shard.webhooks.on_change = None
        hooks = list(self._hooks.values())
        self._hooks.clear()

        def stop_all() -> None:
            for hook in hooks:
                hook.stop()

        self.turns.run(stop_all)
        await asyncio.gather(*[self._close(hook, patience_sec) for hook in hooks], *self._closing)

    async def _close(self, hook: Hook, patience_sec: float | None) -> None:
        """Wait for the calls under way, and end them when patience is over."""
        tasks = set(hook.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience_sec)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self.turns.run(hook.finish)
        hook.connections.close()

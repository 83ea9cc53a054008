"""What the modules of routes share: queues that come into being on first use, publishing, claims that wait, settling,
and messages as JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rookery import properties
from rookery.core.access import Access, Principal
from rookery.core.entries import Lease
from rookery.core.parking import GROUP_HEADER
from rookery.core.policy import FACES
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.topology import Exchange, Tenant
from rookery.core.transactions import Publish, apply
from rookery.errors import (
    AccessRefused,
    InvalidArgument,
    LeaseLost,
    MemoryLimitExceeded,
    QueueFull,
    QueueNotFound,
    StoreFull,
)
from rookery.model import PERSISTENT, Message, check_numbers
from rookery.properties import Properties
from rookery.rendering import plain_table
from rookery.wire.http_call import Call
from rookery.wire.http_routes import LATER, Router, rendered
from rookery.wire.rest_types import RestOptions, Sending
from rookery.wire.turn import FULL, NO_DISK, Turn

JSON: Final = "application/json"
KEY_MAX_BYTES: Final = 255

_ALL: Final = ".*"
_JSON_PROPS: Final = properties.encode(Properties(content_type=JSON, delivery_mode=2))
_all_of: Final[Any] = msgspec.structs.astuple
_UNSAID: Final[tuple[object, ...]] = _all_of(Sending(message=msgspec.Raw()))[1:]
"""What a publisher says who sends nothing but a message, which is the first of the fields."""
_skim: Final[Any] = msgspec.json.Decoder(msgspec.Raw).decode
"""Reads all of a JSON text and makes nothing of it. It refuses what is nested too deeply to be read, as every decoder
here does, but does not look whether strings are UTF-8.
"""


class Rest:
    """The broker as routes see it."""

    def __init__(self, turn: Turn, access: Access, router: Router, options: RestOptions) -> None:
        self.turn = turn
        self.shard: Shard = turn.shard
        self.access = access
        self.router = router
        self.options = options

    def tenant(self, call: Call) -> Tenant:
        """The tenant of whoever calls."""
        principal: Principal = call.principal
        tenant = self.shard.tenants.get(principal.tenant)
        if tenant is None:
            raise AccessRefused(f"there is no tenant '{principal.tenant}'")
        return tenant

    def queue(self, call: Call, name: str, face: str, action: str) -> Queue:
        """The queue of that name, which comes into being when it is first used."""
        require(call.principal, action, name)
        tenant = self.tenant(call)
        queue = tenant.queues.get(name)
        if queue is None:
            require(call.principal, "configure", name)
            queue = self.declare(tenant, name, {}, face)[0]
        else:
            tenant.check_owner(queue, None)
        return queue

    def existing(self, call: Call, name: str, action: str) -> Queue:
        """The queue of that name, if there is one."""
        call.principal.require(action, name)
        tenant = self.tenant(call)
        queue = tenant.queue(name)
        tenant.check_owner(queue, None)
        return queue

    def declare(self, tenant: Tenant, name: str, settings: Mapping[str, object], face: str) -> tuple[Queue, bool]:
        """The queue of that name, made with the face's defaults if it was not there (then True)."""
        suffix = self.options.dlq_suffix
        if suffix and name.endswith(suffix) and name != suffix:
            face = "dead-letter"
        self.heed_defaults(tenant)
        return tenant.declare_queue(name, settings, face)

    def heed_defaults(self, tenant: Tenant) -> None:
        """Let the tenant have the defaults that the settings give to each face."""
        for each, defaults in self.options.face_defaults.items():
            if tenant.face_defaults.get(each, FACES[each]) != {**FACES[each], **defaults}:
                tenant.set_face_defaults(each, defaults)

    # Publishing

    def check_room(self) -> None:
        """Refuse publishes while there is no room for them.

        Whoever publishes over HTTP waits for the answer anyway, so that the journal is behind is no reason to refuse.
        """
        held = self.turn.held
        if held == FULL:
            raise MemoryLimitExceeded
        if held == NO_DISK:
            raise StoreFull

    def publish(self, tenant: Tenant, p: Publish) -> tuple[int, bool]:
        """Hand a publish to the core: the number of its message, and whether a dedup key made it a repeat."""
        shard = self.shard
        self.check_room()
        way = tenant.way(tenant.exchange(p.exchange), p.key)
        if len(way.queues) > 1 or way.by_headers or p.dedup_key:
            # several queues take it or none does
            last_id = shard.last_id
            number = apply(shard, tenant, [p])[0]
            return number, number <= last_id
        if p.priority or p.expires_ms or p.due_ms:
            check_numbers(p.priority, p.expires_ms, p.due_ms)
        flags = PERSISTENT if p.persistent else 0
        message = shard.message(tenant, way, p.props, p.body, p.priority, p.expires_ms, flags)
        if shard.post(tenant, way, message, p.due_ms) < 0:
            raise QueueFull(f"queue {way.queues[0].name!r} is full", argument="queue")
        return message.id, False

    # Claiming

    def claim(
        self,
        call: Call,
        queue: Queue,
        count: int,
        lease_ms: int,
        wait_ms: int,
        done: Callable[[list[Lease]], object],
        handed_out: Callable[[list[Lease]], None] | None = None,
    ) -> object:
        """Answer with what `done` makes of the leases, now or when there are some or the time is over.

        `handed_out` is called with those that are in the answer once that is rendered: nothing is settled before.
        """
        leases = queue.claim(count, lease_ms)
        if leases or wait_ms <= 0:
            return self.hand_out(call, leases, done, handed_out)
        Waiting(self, call, queue, count, lease_ms, wait_ms, done, handed_out)
        return LATER

    def hand_out(
        self,
        call: Call,
        leases: list[Lease],
        done: Callable[[list[Lease]], object],
        handed_out: Callable[[list[Lease]], None] | None,
    ) -> object:
        """What `done` makes of the leases, rendered. A message that cannot be rendered is left out and tried again
        later, as if its consumer had failed; the others do not suffer for it.
        """
        try:
            answer = rendered(done(leases))
        except Exception:
            sound = self._renderable(call, leases, done) if leases else []
            if not sound:
                raise
            leases = sound
            answer = rendered(done(leases))
        if handed_out is not None and leases:
            handed_out(leases)
        return answer

    def _renderable(self, call: Call, leases: list[Lease], done: Callable[[list[Lease]], object]) -> list[Lease]:
        sound: list[Lease] = []
        for lease in leases:
            try:
                rendered(done([lease]))
                sound.append(lease)
            except Exception as error:  # noqa: BLE001 - a defect that one message meets must not reach the others
                self.router.report(error, call)
                lease.queue.retry(lease, -1, "the message could not be rendered")
        return sound

    def lease(self, call: Call, queue: str, token: str) -> Lease:
        """The live lease that a token stands for, if it is of that queue."""
        lease = self.shard.lease(self.tenant(call), token)
        if lease is None or not lease.live or lease.queue.name != queue:
            raise LeaseLost(f"no such delivery: {token[:300]!r} was settled, has lapsed, or never was")
        return lease

    # Messages as JSON

    def message_id(self, message: Message) -> str:
        return properties.message_id(message.props) or self.shard.ids.uuid(message.public_id)


class Waiting:
    """A claim that waits: on whichever comes first of a message, the end of its time, and its peer's going away."""

    def __init__(
        self,
        rest: Rest,
        call: Call,
        queue: Queue,
        count: int,
        lease_ms: int,
        wait_ms: int,
        done: Callable[[list[Lease]], object],
        handed_out: Callable[[list[Lease]], None] | None,
    ) -> None:
        self._rest = rest
        self._call = call
        self._queue = queue
        self._done = done
        self._handed_out = handed_out
        self._mailbox = rest.shard.wait_claim(queue, count, lease_ms)
        self._mailbox.on_event = self
        assert call.connection is not None
        self._timer = call.connection.face.later(wait_ms, self._over)
        call.suspend(self._leave, self._look)

    def set(self) -> None:
        """The mailbox was touched, perhaps in a turn of somebody else's."""
        self._call.touch()

    def _look(self) -> None:
        if self._mailbox.leases or self._mailbox.ended:
            self._over()

    def _over(self) -> None:
        leases = self._end()
        if leases is not None:
            self._rest.router.complete(self._call, lambda: self._answer(leases))

    def _answer(self, leases: list[Lease]) -> object:
        if not leases and self._mailbox.ended:
            raise QueueNotFound(f"queue {self._queue.name!r} was deleted", argument="queue")
        return self._rest.hand_out(self._call, leases, self._done, self._handed_out)

    def _leave(self) -> None:
        for lease in self._end() or ():
            self._queue.release(lease)

    def _end(self) -> list[Lease] | None:
        """Wait no more; the leases that came, None when this was done before."""
        if self._mailbox.on_event is None:
            return None
        self._mailbox.on_event = None
        self._timer.cancel()
        self._queue.unsubscribe(self._mailbox)
        return self._mailbox.take()


def require(principal: Principal, action: str, name: str) -> None:
    """Raise AccessRefused unless the principal may do this to the queue of that name."""
    rights = principal.rights
    if action == "read":
        pattern = rights.read
    elif action == "write":
        pattern = rights.write
    else:
        pattern = rights.configure
    if pattern != _ALL:
        principal.require(action, name)  # type: ignore[arg-type]


def refuse_internal(exchange: Exchange) -> None:
    """Raise for an exchange to which only exchanges publish."""
    if exchange.internal:
        raise InvalidArgument(f"exchange {exchange.name!r} is internal", argument="exchange")


def pack(said: Sending, exchange: str, key: str, now_ms: int) -> Publish:
    """What a publisher said, for the core."""
    body = bytes(said.message)
    if _all_of(said)[1:] == _UNSAID:
        return Publish(exchange, key, _JSON_PROPS, body)
    due_ms, expires_ms = times(said, now_ms)
    dedup_key = said.idempotency_key or ""
    if dedup_key and len(dedup_key.encode()) > KEY_MAX_BYTES:
        raise InvalidArgument(f"idempotency_key is longer than {KEY_MAX_BYTES} bytes", argument="idempotency_key")
    return Publish(exchange, key, _props(said), body, said.priority, expires_ms, due_ms, said.persistent, dedup_key)


def times(said: Sending, now_ms: int) -> tuple[int, int]:
    """When a message is due and when it expires, 0 for now and never."""
    due_ms = 0
    deliver_at, delay_ms, ttl_ms = said.deliver_at, said.delay_ms, said.ttl_ms
    if deliver_at is not None:
        if delay_ms is not None:
            raise InvalidArgument("give delay_ms or deliver_at, not both", argument="delay_ms")
        due_ms = deliver_at
    elif delay_ms is not None:
        due_ms = now_ms + delay_ms
    if ttl_ms is None:
        return due_ms, 0
    return due_ms, max(now_ms, due_ms) + ttl_ms


def _props(said: Sending) -> bytes:
    correlation_id, reply_to, kind = said.correlation_id, said.reply_to, said.type
    unsaid = not said.headers and not said.group and said.persistent and not said.priority
    if unsaid and correlation_id is None and reply_to is None and kind is None:
        return _JSON_PROPS
    headers: dict[str, object] = dict(said.headers) if said.headers else {}
    if said.group:
        headers[GROUP_HEADER] = said.group
    try:
        return properties.encode(
            Properties(
                content_type=JSON,
                headers=headers or None,
                delivery_mode=2 if said.persistent else 1,
                priority=said.priority if 0 < said.priority < 256 else None,
                correlation_id=correlation_id,
                reply_to=reply_to,
                type=kind,
            )
        )
    except InvalidArgument as error:
        if error.argument not in ("correlation_id", "reply_to", "type"):
            error.argument = "headers"
        raise


def is_sound(body: bytes) -> bool:
    """Whether this is JSON that can be part of an answer."""
    try:
        _skim(body)
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def content_of(message: Message) -> tuple[msgspec.Raw | str | None, str | None]:
    """A body as JSON sees it: itself if it is JSON, text if it is UTF-8; what is neither comes second, in base64."""
    body = message.body
    kind = properties.content_type(message.props) or ""
    if (kind.startswith(JSON) or kind.endswith("+json")) and is_sound(body):
        return msgspec.Raw(body), None
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()


def headers_of(message: Message) -> dict[str, Any] | None:
    found = properties.headers(message.props)
    return plain_table(found) if found else None

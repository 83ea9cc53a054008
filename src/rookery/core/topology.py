"""Names and the ways between them: a tenant's exchanges, queues and bindings, and the routes that follow from them.

Routes are cached per exchange and key as a `Way`; any change of topology raises the tenant's `version`, and a way of an
older version is not used again. Deleting a queue goes through `Tenant.delete`, whoever decides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rookery.core import dead_letters
from rookery.core.arguments import size_of
from rookery.core.bindings import Matcher
from rookery.core.dedup import REQUEST, REQUEST_WINDOW_MS, WINDOW_MS, Dedup, scope_of
from rookery.core.policies import PolicyTable
from rookery.core.policy import FACES, Policy, QueueSettings, check_settings, effective
from rookery.core.queue import Queue
from rookery.core.receipts import Receipts
from rookery.core.routing import HashMatcher, matcher
from rookery.core.stream import Stream
from rookery.errors import (
    AlreadyExists,
    Conflict,
    ExchangeNotFound,
    InUse,
    InvalidArgument,
    InvalidName,
    InvalidType,
    LimitExceeded,
    Locked,
    MemoryLimitExceeded,
    NotEmpty,
    QueueNotFound,
    RookeryError,
    StreamNotFound,
)
from rookery.format import properties
from rookery.format.model import NEVER, Message, Route
from rookery.format.records import MARK

if TYPE_CHECKING:
    from rookery.core.shard import Shard

NAME_MAX_BYTES: Final = 255
KEY_MAX_BYTES: Final = 4096
"""Topics of the embedded face may have 1,024 characters."""

WAYS_MAX: Final = 10_000
"""Ways that are cached of one exchange."""

TENANT_WAYS_MAX: Final = 50_000
"""Ways that are cached of all exchanges of a tenant."""

STANDARD_EXCHANGES: Final = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
KEPT: Final = "amq.kept."
"""How the names of queues begin that keep what was published to a topic."""

DELAYED_KIND: Final = "delayed-message"


def check_name(name: object, argument: str, longest: int = NAME_MAX_BYTES) -> str:
    """A usable name, or an error naming the argument."""
    if not isinstance(name, str):
        raise InvalidType(f"{argument} must be str, not {type(name).__name__}", argument=argument)
    if not name or not name.strip():
        raise InvalidName(f"{argument} cannot be empty", argument=argument)
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidName(f"{argument} is not text that can be written as UTF-8", argument=argument) from None
    if size > longest:
        raise InvalidName(f"{argument} is longer than {longest} bytes", argument=argument)
    for c in name:
        if c < " " or c == "\x7f":
            raise InvalidName(f"{argument} holds a control character", argument=argument)
    return name


def check_key(key: object, longest: int) -> None:
    """A usable routing key or pattern; it may be empty."""
    if not isinstance(key, str):
        raise InvalidType(f"key must be str, not {type(key).__name__}", argument="key")
    try:
        size = len(key.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidArgument("key is not text that can be written as UTF-8", argument="key") from None
    if size > longest:
        raise InvalidArgument(f"key is longer than {longest} bytes", argument="key")


@final
class Way:
    """Where messages of one exchange and key go, as long as `version` is the tenant's.

    `by_headers` says that headers may change it, so that each message is routed by itself; `special` that a message has
    to be looked at before it enters: the exchange delays or asks for dedup, or one of the queues keeps all it gets or
    has a limit.
    """

    def __init__(
        self,
        exchange: Exchange,
        route: Route,
        queues: list[Queue],
        streams: list[Stream],
        version: i64,
        by_headers: bool,
    ) -> None:
        self.exchange = exchange
        self.route = route
        self.queues = queues
        self.streams = streams
        self.version: i64 = version
        self.by_headers = by_headers
        self.special = by_headers or exchange.dedup or exchange.delays
        for queue in queues:
            if queue.quorum or queue.bounded:
                self.special = True


def headers_for(matcher: Matcher, props: bytes) -> dict[str, object]:
    """What a matcher looks at: the headers, or the one property that a hash exchange was told to take."""
    if isinstance(matcher, HashMatcher) and matcher.hash_property:
        return {matcher.hash_property: getattr(properties.decode(props), matcher.hash_property)}
    return properties.headers(props)


@final
class Exchange:
    """A named routing point. The default exchange (empty name) has no bindings: the key names the queue."""

    def __init__(self, name: str, kind: str, arguments: dict[str, object]) -> None:
        self.name = name
        self.kind = kind
        self.arguments = arguments
        self.durable = True
        self.auto_delete = False
        self.internal = False
        self.alternate: str = ""
        # a delaying exchange routes as another kind does
        self.delays = kind == DELAYED_KIND
        self.routing = str(arguments.get("x-delayed-type", "")) if self.delays else kind
        self.matcher: Matcher = matcher(self.routing, arguments)
        self.dedup = arguments.get("x-message-deduplication") is True
        self.ways: dict[str, Way] = {}
        self.published: i64 = 0
        self.unroutable: i64 = 0
        self.bytes: i64 = 0

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "alternate": self.alternate or None,
            "arguments": dict(self.arguments),
        }


LIMITS: Final = (
    "connections_max",
    "queues_max",
    "exchanges_max",
    "streams_max",
    "bindings_max",
    "subscriptions_max",
    "queue_subscriptions_max",
    "waiting_claims_max",
    "message_bytes_max",
    "memory_bytes_max",
    "transaction_operations_max",
    "transaction_bytes_max",
    "transactions_max",
    "dedup_keys_max",
    "definition_bytes_max",
    "groups_max",
    "producers_max",
    "plans_max",
    "receipts_max",
    "kept_topics_max",
    "policies_max",
    "policy_states_max",
)


class Limits:
    """How much one tenant may have; each has a name and a default. 0 means no limit."""

    def __init__(self) -> None:
        self.connections_max = 0
        self.queues_max = 20_000
        self.exchanges_max = 10_000
        self.streams_max = 10_000
        self.bindings_max = 100_000
        self.subscriptions_max = 100_000
        self.queue_subscriptions_max = 0
        self.waiting_claims_max = 1_000
        self.message_bytes_max = 128 * 1024 * 1024
        self.memory_bytes_max = 0
        self.transaction_operations_max = 10_000
        self.transaction_bytes_max = 64 * 1024 * 1024
        self.transactions_max = 1_000
        self.dedup_keys_max = 1_000_000
        self.definition_bytes_max = 256 * 1024 * 1024
        self.groups_max = 10_000
        self.producers_max = 10_000
        self.plans_max = 1_000
        self.receipts_max = 100_000
        self.kept_topics_max = 10_000
        self.policies_max = 500
        self.policy_states_max = 4_096

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in LIMITS}

    def set(self, limits: Mapping[str, object]) -> None:
        """Change the named limits; an unknown name or a negative number changes nothing."""
        for name, value in limits.items():
            if name not in LIMITS:
                raise InvalidArgument(f"unknown limit {name!r}", argument=name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidType(f"{name} must be int, not {type(value).__name__}", argument=name)
            if value < 0:
                raise InvalidArgument(f"{name} must not be negative", argument=name)
        for name, value in limits.items():
            setattr(self, name, value)


QUEUE_BYTES: Final = 3_000
EXCHANGE_BYTES: Final = 1_000
STREAM_BYTES: Final = 2_000
PARTITION_BYTES: Final = 2_000
"""About how much memory each takes, empty, beside its name and settings."""


def _queue_bytes(name: str, said: dict[str, object]) -> int:
    return QUEUE_BYTES + len(name) + (size_of(said) if said else 0)


def _exchange_bytes(exchange: Exchange) -> int:
    return EXCHANGE_BYTES + len(exchange.name) + (size_of(exchange.arguments) if exchange.arguments else 0)


def kind_of(target: object) -> str:
    """What a binding calls its target."""
    if isinstance(target, Queue):
        return "queue"
    return "stream" if isinstance(target, Stream) else "exchange"


@final
class Tenant:
    """An isolation domain: nothing in one tenant has a name in another."""

    def __init__(self, name: str, shard: Shard) -> None:
        self.name = name
        self.shard = shard
        self.version: i64 = 1
        self.queues: dict[str, Queue] = {}
        self.streams: dict[str, Stream] = {}
        # the streams that the last way looked for leads to
        self.streams_met: list[Stream] = []
        self.exchanges: dict[str, Exchange] = {}
        self.policy_table = PolicyTable(self)
        self.policies: dict[str, Policy] = self.policy_table.by_name
        self.said: dict[str, dict[str, object]] = {}
        self.faces: dict[str, str] = {}
        self.face_defaults: dict[str, dict[str, object]] = {}
        self.bindings = 0
        # the exchanges that lead to each target, both by identity
        self._sources: dict[int, dict[int, Exchange]] = {}
        self._ways: i64 = 0
        self.groups: i64 = 0
        self.kept_topics: i64 = 0
        # a document is being loaded, in steps: nobody else changes definitions meanwhile
        self.loading = False
        # what is loaded with its limits may be more than they allow
        self.unlimited = False
        self.subscriptions: i64 = 0
        self.limits = Limits()
        self.dedup = Dedup()
        self.receipts = Receipts()
        self.memory_bytes: i64 = 0
        self.definition_bytes: i64 = 0
        """About how much memory queues, exchanges, streams, bindings and policies take."""
        self.memory_bytes_max: i64 = NEVER
        self.message_bytes_max: i64 = self.limits.message_bytes_max
        self.death_depth: i64 = 0
        self._met_headers = False
        self.dead_letters_lost = 0
        self.published: i64 = 0
        self.refused: i64 = 0
        # what queues that are gone had counted
        self.delivered_before: i64 = 0
        self.dropped_before: i64 = 0
        self.default = Exchange("", "direct", {})
        self.exchanges[""] = self.default
        for standard, kind in STANDARD_EXCHANGES.items():
            self.exchanges[standard] = Exchange(standard, kind, {})

    def set_limits(self, limits: Mapping[str, object]) -> None:
        self.limits.set(limits)
        self.shard.log.change("limits", self.name, dict(limits))
        self.heed_limits()

    def heed_limits(self) -> None:
        """Take the limits over to where they are looked at."""
        self.memory_bytes_max = self.limits.memory_bytes_max or NEVER
        self.message_bytes_max = self.limits.message_bytes_max or NEVER
        self.dedup.keys_max = self.limits.dedup_keys_max or 1 << 62

    def check_unlocked(self) -> None:
        """Raise while a document is being loaded, or the tenant deleted."""
        if self.loading:
            raise Locked(
                f"definitions of tenant {self.name!r} are being loaded or deleted; try again", argument="tenant"
            )

    def is_full(self, most: int, count: int) -> bool:
        """Whether there is no room for one more. What a journal has is always let in."""
        return most > 0 and count >= most and not self.unlimited and not self.shard.recovering

    def too_many(self, things: str, limit: str, argument: str) -> LimitExceeded:
        """The error of one more than a limit of this tenant allows."""
        most = getattr(self.limits, limit)
        return LimitExceeded(f"tenant {self.name!r} reached its limit of {most} {things} ({limit})", argument=argument)

    # Looking up

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFound(f"no queue {name!r} in tenant {self.name!r}", argument="queue")
        return queue

    def exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise ExchangeNotFound(f"no exchange {name!r} in tenant {self.name!r}", argument="exchange")
        return exchange

    # Declaring queues

    def declare_queue(
        self,
        name: str,
        settings: Mapping[str, object],
        face: str,
        exact: bool = False,
        owner: object = None,
        create: bool = False,
    ) -> tuple[Queue, bool]:
        """The queue of that name, made if it was not there (then True).

        What is said must agree with what an existing queue was declared with; `exact` also compares what is not said.
        With `create`, an existing queue is an error.
        """
        check_name(name, "queue")
        said = check_settings(settings)
        queue = self.queues.get(name)
        if queue is None:
            if name in self.streams:
                raise Conflict(f"{name!r} is a stream", argument="queue")
            self.check_unlocked()
            return self._new_queue(name, said, face, owner), True
        if create:
            raise AlreadyExists(f"queue {name!r} already exists", argument="queue")
        self.check_owner(queue, owner)
        if exact and (queue.owner is None) != (owner is None):
            raise Conflict(f"queue {name!r} differs in 'exclusive'", argument="exclusive")
        before = self.said[name]
        for setting in sorted(set(before) | set(said)) if exact else said:
            if before.get(setting) != said.get(setting):
                raise Conflict(
                    f"queue {name!r} exists with {setting}={before.get(setting)!r}, not {said.get(setting)!r}",
                    argument=setting,
                )
        queue.touch()
        return queue, False

    def _new_queue(self, name: str, said: dict[str, object], face: str, owner: object) -> Queue:
        if self.is_full(self.limits.queues_max, len(self.queues)):
            raise self.too_many("queues", "queues_max", "queue")
        if face not in FACES:
            raise InvalidArgument(f"unknown face {face!r}", argument="face")
        self.count_definition(_queue_bytes(name, said))
        self.said[name] = said
        self.faces[name] = face
        self.policy_table.admit(name)
        settings = self.settings_for(name)
        queue = Queue(name, self, self.shard, settings)
        queue.owner = owner
        self.queues[name] = queue
        self.kept_topics += name.startswith(KEPT)
        self.shard.queue_count += 1
        queue.configure(settings)
        self.version += 1
        if owner is None and settings.durable:
            self.shard.number_queue(queue, self.shard.queue_numbers + 1)
            details: dict[str, object] = {"name": name, "number": queue.number, "face": face, "settings": dict(said)}
            self.shard.log.change("queue", self.name, details)
        return queue

    def check_owner(self, queue: Queue, owner: object) -> None:
        """An exclusive queue serves its owner only."""
        if queue.owner is not None and queue.owner is not owner:
            raise Locked(f"queue {queue.name!r} is exclusive to another connection", argument="queue")

    def set_face_defaults(self, face: str, defaults: Mapping[str, object]) -> None:
        """Other defaults for queues that this face creates from now on, and for those it created."""
        if face not in FACES:
            raise InvalidArgument(f"unknown face {face!r}", argument="face")
        self.face_defaults[face] = {**FACES[face], **check_settings(defaults)}
        self.policy_table.face_changed(face)
        self.shard.log.change("face", self.name, {"face": face, "defaults": dict(self.face_defaults[face])})

    def _defaults(self, face: str) -> dict[str, object]:
        own = self.face_defaults.get(face)
        return FACES[face] if own is None else own

    # Policies

    def set_policy(self, policy: Policy) -> None:
        """Put a policy in force, also for queues that exist: if they are many, for some in the next turns."""
        check_name(policy.name, "policy")
        self.check_unlocked()
        self.policy_table.put(policy)
        self.shard.log.change("policy", self.name, policy.as_dict())

    def delete_policy(self, name: str) -> None:
        self.check_unlocked()
        self.policy_table.remove(name)
        self.shard.log.change("drop-policy", self.name, {"name": name})

    def policy_for(self, queue: str) -> Policy | None:
        """The policy in force for a queue that exists."""
        return self.policy_table.governor(queue)

    def settings_for(self, queue: str) -> QueueSettings:
        """What holds for a queue."""
        face = self.faces[queue]
        return effective(queue, face, self._defaults(face), self.policy_table.governor(queue), self.said[queue])

    # Deleting queues

    def delete_queue(self, name: str, if_unused: bool = False, if_empty: bool = False, owner: object = None) -> int:
        """Delete a queue; returns how many messages were ready in it."""
        queue = self.queue(name)
        self.check_owner(queue, owner)
        self.check_unlocked()
        if if_unused and queue.consumers():
            raise InUse(f"queue {name!r} in use", argument="queue")
        if if_empty and queue.ready + queue.delayed:
            raise NotEmpty(f"queue {name!r} not empty", argument="queue")
        ready = queue.ready
        self.delete(queue, "deleted")
        return ready

    def delete(self, queue: Queue, reason: str) -> None:
        """Remove a queue and everything that points at it; its subscriptions are told why."""
        if queue.deleted:
            return
        queue.empty()
        queue.deleted = True
        self.delivered_before += queue.delivered
        self.dropped_before += queue.dropped + queue.expired
        self.shard.queue_count -= 1
        del self.queues[queue.name]
        self.kept_topics -= queue.name.startswith(KEPT)
        self.count_definition(-_queue_bytes(queue.name, self.said[queue.name]))
        del self.said[queue.name]
        del self.faces[queue.name]
        self.policy_table.forget(queue.name)
        self.forget_keys("queue:" + queue.name)
        self.shard.cuts.forget(self.name, queue.name)
        self.unbind_target(queue)
        self.version += 1
        if queue.number:
            self.shard.numbered.pop(queue.number, None)
            self.shard.log.change("drop-queue", self.name, {"name": queue.name, "number": queue.number})
        for subscription in list(queue.roster.all):
            queue.roster.remove(subscription)
            if not subscription.once:
                self.subscriptions -= 1
            if subscription.shared is not None and subscription in subscription.shared.members:
                subscription.shared.members.remove(subscription)
            subscription.cancelled(reason)

    # Streams

    def stream(self, name: str) -> Stream:
        stream = self.streams.get(name)
        if stream is None:
            raise StreamNotFound(f"no stream {name!r} in tenant {self.name!r}", argument="stream")
        return stream

    # Exchanges

    def declare_exchange(
        self,
        name: str,
        kind: str,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        alternate: str = "",
        arguments: Mapping[str, object] | None = None,
        create: bool = False,
    ) -> tuple[Exchange, bool]:
        """The exchange of that name, made if it was not there (then True); an existing one must be the same."""
        check_name(name, "exchange")
        extra = dict(arguments) if arguments else {}
        exchange = self.exchanges.get(name)
        if exchange is not None:
            if create:
                raise AlreadyExists(f"exchange {name!r} already exists", argument="exchange")
            given: list[tuple[str, object, object]] = [
                ("kind", exchange.kind, kind),
                ("durable", exchange.durable, durable),
                ("auto_delete", exchange.auto_delete, auto_delete),
                ("internal", exchange.internal, internal),
                ("alternate", exchange.alternate, alternate),
                ("arguments", exchange.arguments, extra),
            ]
            for argument, before, now in given:
                if before != now:
                    raise Conflict(
                        f"exchange {name!r} exists with {argument}={before!r}, not {now!r}", argument=argument
                    )
            return exchange, False
        self.check_unlocked()
        if self.is_full(self.limits.exchanges_max, len(self.exchanges)):
            raise self.too_many("exchanges", "exchanges_max", "exchange")
        exchange = Exchange(name, kind, extra)
        exchange.durable = durable
        exchange.auto_delete = auto_delete
        exchange.internal = internal
        exchange.alternate = alternate
        self.count_definition(_exchange_bytes(exchange))
        self.exchanges[name] = exchange
        self.version += 1
        if durable:
            self.shard.log.change("exchange", self.name, exchange.as_dict())
        return exchange, True

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        exchange = self.exchange(name)
        if not name or name in STANDARD_EXCHANGES:
            raise InvalidArgument(f"exchange {name!r} is built in", argument="exchange")
        self.check_unlocked()
        if if_unused and exchange.matcher.count:
            raise InUse(f"exchange {name!r} in use", argument="exchange")
        self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> None:
        name = exchange.name
        self.bindings -= exchange.matcher.count
        self.count_definition(-exchange.matcher.bytes - _exchange_bytes(exchange))
        for target in exchange.matcher.targets():
            self._forget_source(exchange, target)
        del self.exchanges[name]
        self.forget_keys("exchange:" + name)
        self.unbind_target(exchange)
        self.version += 1
        if exchange.durable:
            self.shard.log.change("drop-exchange", self.name, {"name": name})

    # Bindings

    def bind(
        self, source: str, target: Queue | Stream | Exchange, key: str, arguments: Mapping[str, object] | None = None
    ) -> bool:
        """Let `source` route to `target`; False when this binding was there already."""
        exchange = self.exchange(source)
        if exchange is self.default or target is self.default:
            raise InvalidArgument("the default exchange has no bindings", argument="exchange")
        self.check_unlocked()
        check_key(key, KEY_MAX_BYTES if exchange.name == "amq.topic" else NAME_MAX_BYTES)
        table = dict(arguments) if arguments else None
        before = exchange.matcher.bytes
        full = "" if self.shard.recovering else exchange.matcher.refusal(key, target)
        if full:
            raise LimitExceeded(f"exchange {source!r} reached its limit of {full}", argument="key")
        if not exchange.matcher.add(key, table, target):
            return False
        try:
            if self.is_full(self.limits.bindings_max, self.bindings):
                raise self.too_many("bindings", "bindings_max", "key")
            self.count_definition(exchange.matcher.bytes - before)
        except RookeryError:
            exchange.matcher.remove(key, table, target)
            raise
        sources = self._sources.get(id(target))
        if sources is None:
            self._sources[id(target)] = {id(exchange): exchange}
        else:
            sources[id(exchange)] = exchange
        self.bindings += 1
        self.version += 1
        self._note_binding("bind", exchange, target, key, arguments)
        return True

    def unbind(
        self, source: str, target: Queue | Stream | Exchange, key: str, arguments: Mapping[str, object] | None = None
    ) -> bool:
        """Take a binding away; False when there was none."""
        exchange = self.exchange(source)
        self.check_unlocked()
        before = exchange.matcher.bytes
        if not exchange.matcher.remove(key, dict(arguments) if arguments else None, target):
            return False
        self.count_definition(exchange.matcher.bytes - before)
        if not exchange.matcher.has_target(target):
            self._forget_source(exchange, target)
        self.bindings -= 1
        self.version += 1
        self._note_binding("unbind", exchange, target, key, arguments)
        self._drop_if_unbound(exchange)
        return True

    def _note_binding(
        self,
        operation: str,
        source: Exchange,
        target: Queue | Stream | Exchange,
        key: str,
        arguments: Mapping[str, object] | None,
    ) -> None:
        """A binding is as durable as what it connects."""
        if isinstance(target, Queue):
            lasts = target.number != 0
        else:
            lasts = isinstance(target, Stream) or target.durable
        if lasts and source.durable:
            details: dict[str, object] = {
                "source": source.name,
                "target": target.name,
                "target_kind": kind_of(target),
                "key": key,
                "arguments": dict(arguments) if arguments else {},
            }
            self.shard.log.change(operation, self.name, details)

    def unbind_target(self, target: object) -> None:
        """Remove every binding that leads to a target."""
        sources = self._sources.pop(id(target), None)
        if sources is not None:
            for exchange in sources.values():
                before = exchange.matcher.bytes
                self.bindings -= exchange.matcher.remove_target(target)
                self.count_definition(exchange.matcher.bytes - before)
                self._drop_if_unbound(exchange)

    def _forget_source(self, exchange: Exchange, target: object) -> None:
        """An exchange does not lead to a target any more."""
        sources = self._sources.get(id(target))
        if sources is not None and sources.pop(id(exchange), None) is not None and not sources:
            del self._sources[id(target)]

    def _drop_if_unbound(self, exchange: Exchange) -> None:
        # a journal knows of no transient bindings, but of each exchange that went
        if (
            exchange.auto_delete
            and not self.shard.recovering
            and not exchange.matcher.count
            and exchange.name in self.exchanges
        ):
            self._remove_exchange(exchange)

    # Routing

    def way(self, exchange: Exchange, key: str) -> Way:
        """The cached way of a key, found anew when the topology has changed. Headers do not count in it."""
        way = exchange.ways.get(key)
        if way is not None:
            if way.version == self.version:
                return way
        elif len(exchange.ways) >= WAYS_MAX:
            self._ways -= len(exchange.ways)
            exchange.ways.clear()
        self._met_headers = False
        queues = self._reach(exchange, key, properties.EMPTY)
        if way is None:
            self._ways += 1
            if self._ways > TENANT_WAYS_MAX:
                for other in self.exchanges.values():
                    other.ways.clear()
                self._ways = 1
        route = Route(exchange.name, key) if way is None else way.route
        found = Way(exchange, route, queues, self.streams_met, self.version, self._met_headers)
        exchange.ways[key] = found
        return found

    def joined(self, exchange: Exchange, keys: list[str], props: bytes) -> Way:
        """One way for all the keys of a message with these properties, each target once; it has the first key's
        route.
        """
        first = self.way(exchange, keys[0])
        queues: list[Queue] = []
        streams: list[Stream] = []
        for key in keys:
            for queue in self.queues_for(self.way(exchange, key), props):
                if queue not in queues:
                    queues.append(queue)
            for stream in self.streams_met:
                if stream not in streams:
                    streams.append(stream)
        return Way(exchange, first.route, queues, streams, self.version, False)

    def queues_for(self, way: Way, props: bytes) -> list[Queue]:
        """The queues that a message with these properties reaches by this way; `streams_met` has the streams."""
        if way.by_headers:
            return self._reach(way.exchange, way.route.key, props)
        self.streams_met = way.streams
        return way.queues

    def _reach(self, exchange: Exchange, key: str, props: bytes) -> list[Queue]:
        """All queues reachable from an exchange, each once, through bindings and alternates, without walking in
        circles.
        """
        found: list[Queue] = []
        streams: list[Stream] = []
        self.streams_met = streams
        if exchange is self.default:
            self._named(key, found, streams)
            return found
        taken: set[int] = set()
        seen: set[int] = set()
        todo: list[Exchange] = [exchange]
        while todo:
            here = todo.pop(0)
            if id(here) in seen:
                continue
            seen.add(id(here))
            if here is self.default:
                targets: list[object] = []
                named: object = self.queues.get(key) or self.streams.get(key)
                if named is not None:
                    targets.append(named)
            else:
                headers: dict[str, object] | None = None
                if here.matcher.uses_headers:
                    self._met_headers = True
                    headers = headers_for(here.matcher, props)
                targets = here.matcher.match(key, headers)
            if not targets and here.alternate:
                alternate = self.exchanges.get(here.alternate)
                if alternate is not None:
                    todo.append(alternate)
            for target in targets:
                if isinstance(target, Queue):
                    if id(target) not in taken:
                        taken.add(id(target))
                        found.append(target)
                elif isinstance(target, Exchange):
                    todo.append(target)
                elif isinstance(target, Stream) and target not in streams:
                    streams.append(target)
        return found

    def _named(self, key: str, queues: list[Queue], streams: list[Stream]) -> None:
        """Where the default exchange leads to."""
        queue = self.queues.get(key)
        if queue is not None:
            queues.append(queue)
        elif self.streams:
            stream = self.streams.get(key)
            if stream is not None:
                streams.append(stream)

    def forget_keys(self, scope: str) -> None:
        """What had these dedup keys is gone; a later one of the same name starts afresh, also after a restart."""
        if self.dedup.forget_scope(scope):
            self.shard.log.change("forget", self.name, {"scope": scope, "upto": int(self.shard.last_id)})

    def dedup_window_ms(self, exchange: str, key: str) -> int:
        """How long a dedup key published there is remembered."""
        queue = None if exchange else self.queues.get(key)
        if queue is not None:
            return queue.settings.dedup_window_ms
        source = self.exchanges.get(exchange)
        window = None if source is None else source.arguments.get("x-deduplication-window")
        return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else WINDOW_MS

    def is_repeat(self, scope: str, dedup_key: str) -> bool:
        """Whether this key was published there in its window; if so, it counts as a duplicate."""
        if not self.dedup.find(scope, dedup_key, self.shard.wall_ms):
            return False
        self.dedup.duplicates += 1
        return True

    def remember(self, exchange: str, key: str, dedup_key: str, number: int) -> None:
        """A publish used a dedup key: until its window is over, a repeat is answered with this message."""
        scope = scope_of(exchange, key)
        window = REQUEST_WINDOW_MS if dedup_key.startswith(REQUEST) else self.dedup_window_ms(exchange, key)
        now = self.shard.wall_ms
        self.dedup.remember(scope, dedup_key, number, now, window)
        if self.shard.log.active:
            self.shard.log.note(MARK, [self.name, scope, dedup_key, number, now + window], True)

    # Memory

    def count_definition(self, size: i64) -> None:
        """A definition takes so much memory, or, when negative, gives it back."""
        if size > 0 and not self.unlimited and not self.shard.recovering:
            most = self.limits.definition_bytes_max
            if most and self.definition_bytes + size > most:
                raise self.too_many("bytes of definitions", "definition_bytes_max", "definition_bytes_max")
            if self.shard.memory_bytes + self.shard.definition_bytes + size > self.shard.memory_bytes_max:
                raise MemoryLimitExceeded
        self.definition_bytes += size
        self.shard.definition_bytes += size

    def hold(self, message: Message) -> None:
        """The first queue took the message."""
        size = message.size_bytes()
        self.memory_bytes += size
        self.shard.memory_bytes += size

    def unhold(self, message: Message) -> None:
        """The last queue let go of it."""
        size = message.size_bytes()
        self.memory_bytes -= size
        self.shard.memory_bytes -= size

    # Dying

    def dead_letter(self, queue: Queue, message: Message, attempts: i64, reason: str, detail: str) -> bool:
        """Move a dead message to the queue's dead-letter target; False when it arrived nowhere."""
        return dead_letters.bury(self, queue, message, attempts, reason, detail)

"""The ways to publish, side by side: the same random publishes by each of them, and what they leave behind.

Each way has a tenant of its own with the same exchanges, queues and streams. What is compared afterwards is the state
of the core: contents of queues and streams, meters, dedup keys, and the notes of events. The others are compared with
the embedded broker, which publishes one message at a time; each is given what it can express.

Two differences are by intention (see `rookery.core.publishing`), and the cases leave them out; tests of their own
cover them. AMQP and staged commits publish to each queue by itself, so for them the queues that reject are reached
alone. Of messages that happen together, one that is rejected leaves no trace: no meter of it, and no dead letter.

Run as a program it prints the first difference: `python -m tests.wire.publish_paths WAY SEED...`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import httpx

from rookery.clock import ManualClock
from rookery.core import streams
from rookery.core.entries import Entry
from rookery.core.shard import Shard
from rookery.core.topology import Tenant
from rookery.embed import Broker, Message
from rookery.embed.blocking.queues import Exchange
from rookery.errors import QueueFull, Unroutable
from rookery.format import model, properties
from rookery.format.properties import Properties
from rookery.wire.line.connection import DEFAULT_EXCHANGE
from tests.wire import amqp_peer, line_peer
from tests.wire.http_world import World

API = "/api/v1"
SENDS = 60
SEEDS = tuple(range(1, 5))

EXCHANGES = ("direct", "fanout", "topic", "headers", "consistent-hash", "delayed-message")
KEYS = ("a", "a.b", "c")
PATTERNS = {"direct": KEYS, "fanout": ("",), "topic": ("a.#", "*", "#.b"), "consistent-hash": ("1", "2")}
OVERFLOWS = ("drop-head", "drop-new", "close", "reject-publish", "reject-publish-dead-letter")
SHOWN_HEADERS = ("kind", "x-delay", "x-deduplication-header", "x-key")

EACH, WHOLE, TOGETHER = "each", "whole", "together"


@dataclass
class Send:
    """One publish: to a queue or stream by its name, or to an exchange with a key."""

    kind: str
    name: str
    key: str
    body: bytes
    headers: dict[str, object] = field(default_factory=dict)
    message_id: str = ""
    priority: int = 0
    ttl_ms: int = 0
    delay_ms: int = 0
    dedup_key: str = ""
    persistent: bool = True
    mandatory: bool = False

    def is_plain(self) -> bool:
        numbers = self.priority or self.ttl_ms or self.delay_ms
        return self.persistent and not (numbers or self.headers or self.message_id or self.dedup_key or self.mandatory)

    def message(self) -> Message:
        """For the embedded broker."""
        return Message(
            self.body,
            id=self.message_id or None,
            meta=self.headers or None,
            priority=self.priority,
            ttl_ms=self.ttl_ms or None,
            delay_ms=self.delay_ms or None,
            dedup_key=self.dedup_key or None,
            persistent=self.persistent,
        )

    def item(self) -> dict[str, Any]:
        """As JSON, without what is unsaid."""
        said = {
            "headers": self.headers,
            "priority": self.priority,
            "ttl_ms": self.ttl_ms,
            "delay_ms": self.delay_ms,
            "idempotency_key": self.dedup_key,
        }
        found: dict[str, Any] = {name: value for name, value in said.items() if value}
        if not self.persistent:
            found["persistent"] = False
        return {"message": json.loads(self.body), **found}


def queues_of(chance: Random, mode: str) -> dict[str, dict[str, object]]:
    """The queues, and what is declared about them."""
    found: dict[str, dict[str, object]] = {
        "plain": {},
        "mortal": {"ttl_ms": 50_000},
        "once": {"dedup": True},
        "quorum": {"queue_type": "quorum"},
    }
    for overflow in OVERFLOWS:
        if mode == TOGETHER and overflow == "reject-publish-dead-letter":
            continue
        limit = {"length_max": 2} if chance.random() < 0.7 else {"bytes_max": 12}
        dedup = {"dedup": True} if chance.random() < 0.3 else {}
        found[f"full-{overflow}"] = {"overflow": overflow, "dead_letter_queue": "graves", **limit, **dedup}
    return found


def build(tenant: Tenant, seed: int, mode: str) -> None:
    """Declare everything, the same for each way of this mode."""
    chance = Random(seed)
    settings = queues_of(chance, mode)
    for name, said in settings.items():
        tenant.declare_queue(name, said, "embedded")
    tenant.declare_queue("graves", {}, "dead-letter")
    streams.declare(tenant, "log", {})
    streams.declare(tenant, "parts", {"partitions": 3, "by_routing_key": chance.random() < 0.5})
    bindable: list[Any] = [tenant.queues[name] for name in settings if mode != EACH or "reject" not in name]
    bindable += [tenant.stream("log"), tenant.stream("parts")]
    for kind in EXCHANGES:
        arguments: dict[str, object] = {}
        if chance.random() < 0.4:
            arguments["x-message-deduplication"] = True
        if kind == "delayed-message":
            arguments["x-delayed-type"] = chance.choice(("fanout", "direct"))
        if kind == "consistent-hash" and chance.random() < 0.5:
            arguments["hash-header"] = "kind"
        alternate = chance.choice(("", "fanout", "topic")) if kind in ("direct", "headers", "consistent-hash") else ""
        tenant.declare_exchange(kind, kind, alternate=alternate, arguments=arguments)
    for kind in EXCHANGES:
        exchange = tenant.exchange(kind)
        targets = chance.sample(bindable, chance.randint(0, 4))
        if kind == "direct" and chance.random() < 0.3:
            targets.append(tenant.exchange("fanout"))
        for target in targets:
            table = {"x-match": "any", "kind": chance.choice("xy")} if kind == "headers" else None
            tenant.bind(kind, target, chance.choice(PATTERNS.get(exchange.routing, ("",))), table)


def sends(seed: int, mode: str) -> list[Send]:
    """Random publishes; each way is given those that it can express."""
    chance = Random(seed * 1_000)
    queues = [name for name in queues_of(Random(seed), mode) if name != "full-close"]
    found = []
    for number in range(SENDS):
        kind = chance.choice(("queue", "exchange", "exchange", "exchange", "stream"))
        name = chance.choice({"queue": queues, "exchange": list(EXCHANGES), "stream": ["log", "parts"]}[kind])
        send = Send(kind, name, chance.choice(KEYS) if kind == "exchange" else name, json.dumps(f"m{number}").encode())
        found.append(send)
        if chance.random() < 0.35:
            continue
        if chance.random() < 0.5:
            send.headers["kind"] = chance.choice("xyz")
        if chance.random() < 0.3:
            send.headers["x-deduplication-header"] = chance.choice("pq")
        if chance.random() < 0.3:
            send.headers["x-delay"] = chance.choice((5_000, 0, -1))
        if chance.random() < 0.3:
            send.headers["x-key"] = chance.choice("mn")
        if chance.random() < 0.3:
            send.message_id = chance.choice(("id-1", "id-2", "id-3"))
        send.priority = chance.choice((0, 0, 3, 9))
        send.ttl_ms = chance.choice((0, 0, 40_000))
        send.delay_ms = chance.choice((0, 0, 7_000)) if kind != "stream" else 0
        send.dedup_key = chance.choice(("", "", "k", "l"))
        send.persistent = chance.random() < 0.8 or kind == "stream"
        send.mandatory = kind == "exchange" and chance.random() < 0.3
    return found


# What is left behind


def _entry(entry: Entry) -> list[object]:
    message = entry.message
    headers = properties.headers(message.props)
    return [
        message.body.decode(),
        int(message.priority),
        int(message.expires_ms),
        int(entry.due_ms),
        int(entry.message.flags) & int(model.PERSISTENT),
        {name: headers[name] for name in SHOWN_HEADERS if name in headers},
        [[death.queue, death.reason, death.exchange, death.key] for death in message.route.deaths],
        message.route.exchange,
        message.route.key,
    ]


def _memory(tenant: Tenant) -> int:
    """What the messages of a tenant are said to take, without their properties, which differ."""
    held = {}
    for queue in tenant.queues.values():
        for entry in [*queue.ready_entries(), *queue.delayed_entries()]:
            held[id(entry.message)] = len(entry.message.props)
    return int(tenant.memory_bytes) - sum(held.values())


QUEUE_METERS = ("published", "dead_lettered_in", "dead_lettered", "dropped", "refused", "ready", "delayed", "bytes")


def snapshot(shard: Shard, tenant: Tenant, mode: str) -> dict[str, object]:
    """All that a publish can change in a tenant."""
    found: dict[str, object] = {
        "tenant": [int(tenant.published), int(tenant.refused), tenant.dedup.duplicates],
        "memory": _memory(tenant),
        "dedup": sorted([scope, key, until] for scope, key, _, until in tenant.dedup.marks()),
    }
    for name, queue in tenant.queues.items():
        meters = {meter: int(getattr(queue, meter)) for meter in QUEUE_METERS}
        if mode == TOGETHER:
            del meters["refused"]
        rows = [_entry(entry) for entry in [*queue.ready_entries(), *queue.delayed_entries()]]
        found[f"queue {name}"] = [meters, rows]
    for name, exchange in tenant.exchanges.items():
        found[f"exchange {name}"] = [int(exchange.published), int(exchange.unroutable), int(exchange.bytes)]
    for name, stream in tenant.streams.items():
        parts = []
        for partition in stream.partitions:
            records = [shard.message_of(partition.record(n)) for n in range(partition.first, partition.visible)]
            parts.append([[record.body.decode(), record.route.exchange, record.route.key] for record in records])
        found[f"stream {name}"] = [int(stream.appended), parts]
    events = []
    for kind, _, owner, where, message, attempts, reached, size, reason, _ in shard.events._notes:
        if owner == tenant.name:
            length = len(message.body) if where else size or len(message.body)
            events.append([kind, where, message.route.exchange, message.route.key, attempts, reached, length, reason])
    found["events"] = events
    return found


# The ways


class Way:
    """One way to publish, with a tenant of its own."""

    mode: ClassVar[str] = WHOLE

    shard: Shard
    tenant: Tenant

    def __init__(self, world: Any) -> None:
        raise NotImplementedError

    def can(self, send: Send) -> bool:
        """Whether this way can express it."""
        raise NotImplementedError

    def send(self, send: Send) -> bool:
        """Publish; whether the publisher was told that it arrived."""
        raise NotImplementedError

    def inside(self, work: Callable[[], Any]) -> Any:
        """Call a function in a turn."""
        raise NotImplementedError

    def close(self) -> None: ...


class Embedded(Way):
    """`Queue.publish`, `Exchange.publish` and `Stream.publish`: what the others are compared with."""

    def __init__(self, _: Any) -> None:
        self.broker = Broker(clock=ManualClock())
        self.engine = self.broker._engine
        self.shard, self.tenant = self.engine.shard, self.broker._context.tenant

    def can(self, send: Send) -> bool:
        return True

    def send(self, send: Send) -> bool:
        try:
            if send.kind == "queue":
                self.broker.queue(send.name).publish(send.message())
            elif send.kind == "stream":
                self.broker.stream(send.name).publish(send.message())
            else:
                self.exchange(send.name).publish(send.key, send.message(), mandatory=send.mandatory)
        except (QueueFull, Unroutable):
            return False
        return True

    def exchange(self, name: str) -> Exchange:
        """A handle, without declaring it."""
        return Exchange(self.broker._context, name)

    def inside(self, work: Callable[[], Any]) -> Any:
        with self.engine:
            return work()

    def close(self) -> None:
        self.broker.close(grace_ms=0)


class EmbeddedMany(Embedded):
    """`publish_many`: bodies that say nothing of themselves are one batch."""

    mode = TOGETHER

    def can(self, send: Send) -> bool:
        return not send.mandatory

    def send(self, send: Send) -> bool:
        value = send.body if send.is_plain() else send.message()
        try:
            if send.kind == "queue":
                self.broker.queue(send.name).publish_many([value])
            elif send.kind == "stream":
                self.broker.stream(send.name).publish_many([value])
            else:
                self.exchange(send.name).publish_many(send.key, [value])
        except QueueFull:
            return False
        return True


class EmbeddedTransaction(Embedded):
    """A transaction of an embedded broker, each of one publish."""

    mode = TOGETHER

    def can(self, send: Send) -> bool:
        return send.kind != "stream" and not send.mandatory

    def send(self, send: Send) -> bool:
        try:
            with self.broker.transaction() as transaction:
                if send.kind == "queue":
                    transaction.publish_to_queue(send.name, send.message())
                else:
                    transaction.publish_to_exchange(send.name, send.key, send.message())
        except QueueFull:
            return False
        return True


class EmbeddedStaged(Embedded):
    """Rows that a producer of an embedded broker stages and commits."""

    mode = EACH

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._producer = self.broker.producer("test")
        self._epoch = 0

    def can(self, send: Send) -> bool:
        return send.persistent and not send.dedup_key and not send.mandatory

    def send(self, send: Send) -> bool:
        target: Any = self.broker.queue if send.kind == "queue" else self.exchange
        target = (self.broker.stream if send.kind == "stream" else target)(send.name)
        before = self._refused()
        routing = {"routing_key": send.key} if send.kind == "exchange" else {}
        chunk = self._producer.stage(target, [send.message()], **routing)
        self._producer.commit(self._epoch, [chunk])
        self._epoch += 1
        # rows for an exchange are enqueued in the next turn
        self.inside(lambda: None)
        return self._refused() == before

    def _refused(self) -> int:
        return sum(int(queue.refused) for name, queue in self.tenant.queues.items() if "reject" in name)


class Http(Way):
    """What the ways by HTTP share: a server, and a client with a key of the tenant."""

    def __init__(self, world: World) -> None:
        self.world = world
        number = sum(1 for name in world.server.engine.shard.tenants if name.startswith("way-"))
        name = f"way-{number}"
        self.shard = world.server.engine.shard
        self.tenant = world.inside(lambda server: server.engine.shard.create_tenant(name))
        self.client = self.make_client(name)

    def make_client(self, tenant: str) -> httpx.Client:
        return self.world.large(tenant)

    def inside(self, work: Callable[[], Any]) -> Any:
        return self.world.inside(lambda _: work())

    def post(self, path: str, **more: Any) -> bool:
        answer = self.client.post(path, **more)
        assert answer.status_code < 300 or answer.status_code in (422, 429, 503, 507), (answer.status_code, answer.text)
        return answer.status_code < 300


class SmallHttp(Http):
    """The small queue API, and the oldest one for exchanges."""

    def make_client(self, tenant: str) -> httpx.Client:
        return self.world.small(tenant)

    def can(self, send: Send) -> bool:
        return send.is_plain() and send.kind != "stream"

    def send(self, send: Send) -> bool:
        if send.kind == "queue":
            return self.post(f"/publish?queue={send.name}", content=send.body)
        document = {"exchange": send.name, "routing_key": send.key, "body": send.body.decode()}
        return self.post("/publish", json=document, headers={"Authorization": self._bearer()})

    def _bearer(self) -> str:
        return "Bearer " + self.client.headers["authorization"].partition(" ")[2]


class RestHttp(Http):
    """The API of queues and topics."""

    def can(self, send: Send) -> bool:
        return send.kind != "stream" and not send.mandatory and not send.message_id

    def send(self, send: Send) -> bool:
        if send.kind == "queue":
            return self.post(f"{API}/queues/{send.name}/publish", json=send.item())
        return self.post(f"{API}/topics/{send.name}/publish?routing_key={send.key}", json=send.item())


class NativeHttp(Http):
    """The native API, one message at a time."""

    def can(self, send: Send) -> bool:
        return True

    def send(self, send: Send) -> bool:
        item = self.item(send)
        if send.kind == "queue":
            return self.post(f"{API}/queues/{send.name}/messages", json=item)
        if send.kind == "stream":
            return self.post(f"{API}/streams/{send.name}/publish", json=item)
        mandatory = "true" if send.mandatory else "false"
        query = f"routing_key={send.key}&mandatory={mandatory}"
        return self.post(f"{API}/exchanges/{send.name}/messages?{query}", json=item)

    def item(self, send: Send) -> dict[str, Any]:
        item = send.item()
        if send.message_id:
            item["message_id"] = send.message_id
        return item


class NativeTransaction(NativeHttp):
    """Transactions of the native API, each of one publish."""

    mode = TOGETHER

    def can(self, send: Send) -> bool:
        return not send.mandatory

    def send(self, send: Send) -> bool:
        item = self.item(send)
        if send.kind == "exchange":
            item |= {"exchange": send.name, "routing_key": send.key}
        else:
            item["queue"] = send.name
        return self.post(f"{API}/transactions", json={"publish": [item]})


class NativeStaged(NativeHttp):
    """Chunks that the native API stages and commits."""

    mode = EACH

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._epoch = 0

    def can(self, send: Send) -> bool:
        return send.persistent and not send.dedup_key and not send.mandatory

    def send(self, send: Send) -> bool:
        before = self._refused()
        query = f"?routing_key={send.key}" if send.kind == "exchange" else ""
        answer = self.client.post(f"{API}/{send.kind}s/{send.name}/stage{query}", json=[self.item(send)])
        assert answer.status_code == 201, answer.text
        work = {"epoch": self._epoch, "chunks": [answer.json()["chunk"]]}
        assert self.post(f"{API}/producers/{self.tenant.name}/commit", json=work)
        self._epoch += 1
        self.inside(lambda: None)
        return self._refused() == before

    def _refused(self) -> int:
        return sum(int(queue.refused) for name, queue in self.tenant.queues.items() if "reject" in name)


class Amqp(Way):
    """AMQP with confirms."""

    mode = EACH

    def __init__(self, _: Any) -> None:
        self.broker = amqp_peer.Broker()
        self.shard, self.tenant = self.broker.shard, self.broker.tenant
        self.peer = amqp_peer.Peer(self.broker).handshake().channel()
        self.prepare()

    def prepare(self) -> None:
        self.peer.confirm()

    def can(self, send: Send) -> bool:
        return not send.dedup_key and not send.delay_ms

    def frames(self, send: Send) -> bytes:
        props = properties.encode(
            Properties(
                headers=send.headers or None,
                delivery_mode=2 if send.persistent else 1,
                priority=send.priority or None,
                expiration=str(send.ttl_ms) if send.ttl_ms else None,
                message_id=send.message_id or None,
            )
        )
        exchange = send.name if send.kind == "exchange" else ""
        return amqp_peer.publish(1, exchange, send.key, send.body, props, int(send.mandatory))

    def send(self, send: Send) -> bool:
        names = [each.name for each in self.peer.ask(self.frames(send)) if each.kind == 1]
        assert names[-1] in ((60, 80), (60, 120)), names
        return names == [(60, 80)]

    def inside(self, work: Callable[[], Any]) -> Any:
        found: list[Any] = []
        self.broker.take_turn(lambda: found.append(work()))
        return found[0]


class AmqpTransaction(Amqp):
    """Transactions of an AMQP channel, each of one publish."""

    mode = TOGETHER

    def prepare(self) -> None:
        assert self.peer.call(1, 90, 10).name == (90, 11)

    def can(self, send: Send) -> bool:
        return super().can(send) and not send.mandatory

    def send(self, send: Send) -> bool:
        names = [each.name for each in self.peer.ask(self.frames(send) + amqp_peer.method(1, 90, 20))]
        if names == [(90, 21)]:
            return True
        assert names == [(20, 40)], names
        self.peer.send(amqp_peer.method(1, 20, 41))
        self.peer.channel()
        self.prepare()
        return False


class Line(Way):
    """The line protocol."""

    def __init__(self, _: Any) -> None:
        self.broker = line_peer.Broker()
        self.shard, self.tenant = self.broker.shard, self.broker.tenant
        self.peer = line_peer.Peer(self.broker)

    def can(self, send: Send) -> bool:
        return send.is_plain()

    def send(self, send: Send) -> bool:
        exchange = send.name if send.kind == "exchange" else DEFAULT_EXCHANGE
        (answer,) = self.peer.ask(f"PUBLISH {exchange} {send.key} {send.body.decode()}")
        assert answer == line_peer.PUBLISHED or answer.endswith("is full"), answer
        return answer == line_peer.PUBLISHED

    def inside(self, work: Callable[[], Any]) -> Any:
        found: list[Any] = []
        self.broker.take_turn(lambda: found.append(work()))
        return found[0]


WAYS: dict[str, type[Way]] = {
    "embedded batch": EmbeddedMany,
    "embedded transaction": EmbeddedTransaction,
    "embedded staged": EmbeddedStaged,
    "S0 HTTP": SmallHttp,
    "S2 HTTP": RestHttp,
    "native HTTP": NativeHttp,
    "native HTTP transaction": NativeTransaction,
    "native HTTP staged": NativeStaged,
    "AMQP": Amqp,
    "AMQP transaction": AmqpTransaction,
    "line": Line,
}


def observe(make: Callable[[], Way], seed: int, mode: str, wanted: list[Send]) -> dict[str, object]:
    """Publish all of these by one way; what it said and left behind."""
    way = make()
    try:

        def prepare() -> None:
            way.shard.events.start(1_000_000, {})
            build(way.tenant, seed, mode)

        way.inside(prepare)
        told = [way.send(each) for each in wanted]
        found: dict[str, object] = way.inside(lambda: snapshot(way.shard, way.tenant, mode))
        return {"told": told, **found}
    finally:
        way.close()


def difference(name: str, seed: int, world: World | None) -> str:
    """The first thing in which a way differs from the embedded broker, empty when there is none."""
    kind = WAYS[name]
    asked = kind.__new__(kind)
    wanted = [each for each in sends(seed, kind.mode) if asked.can(each)]
    expected = observe(lambda: Embedded(None), seed, kind.mode, wanted)
    found = observe(lambda: kind(world), seed, kind.mode, wanted)
    for what in expected.keys() | found.keys():
        if expected.get(what) != found.get(what):
            return f"{name}, seed {seed}, {what}:\n  expected {expected.get(what)}\n  found    {found.get(what)}"
    return ""


def main() -> None:
    name, seeds = sys.argv[1], [int(each) for each in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ManualClock()) if issubclass(WAYS[name], Http) else None
        try:
            for seed in seeds:
                found = difference(name, seed, world)
                if found:
                    print(found)
                    return
        finally:
            if world is not None:
                world.close()


if __name__ == "__main__":
    main()

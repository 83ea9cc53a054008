"""No operation of one tenant holds the loop for long: each is done at a size where that would show, while another
tenant goes on being served.

What is measured is the CPU time of each callback of the server's loop, which is what everybody else waits for. It is
20 ms for the compiled package; uncompiled, the same work takes up to ten times as long. The other tenant measures the
CPU time of all callbacks between its requests and their answers.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pika
import pyarrow as pa
import pytest

from rookery import _compiled
from rookery.core import groups, streams
from rookery.core.shard import Shard
from rookery.core.staging import Row
from rookery.core.stream import PARTITIONS_MAX
from rookery.core.topology import Tenant
from rookery.format.properties import EMPTY
from tests.wire.api_client import API, ARROW, ok
from tests.wire.arrow_bodies import ipc
from tests.wire.http_world import ADMIN, World, world

HELD_MAX_SEC = 0.02 if _compiled.compiled else 0.2
SLACK = 2.5
"""CPU time on a machine that does other things too: caches are shared."""

BETWEEN = 3
"""How many long callbacks may be between a request and its answer: each of both takes a turn, and there are two steps
in a turn while another tenant's work is begun or ended.
"""

MANY = 100_000 if _compiled.compiled else 40_000
QUEUES = 20_000 if _compiled.compiled else 8_000
TENANT = "big"


class Watch:
    """The CPU time of the callbacks of a loop, and what of it the collector took."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.what = ""
        self.longest_own = 0.0
        """The longest without the collector's part."""
        self.total = 0.0
        self.thread = 0
        self._began = 0.0
        self._collected = 0.0

    def reset(self) -> None:
        self.longest = self.longest_own = 0.0

    def run(self, run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> None:
        self.thread = threading.get_ident()
        self._collected = 0.0
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        self.total += took
        self.longest_own = max(self.longest_own, took - self._collected)
        if took > self.longest:
            self.longest = took
            self.what = repr(handle)

    def collector(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() == self.thread:
            if phase == "start":
                self._began = time.thread_time()
            else:
                self._collected += time.thread_time() - self._began


@pytest.fixture(name="watch", scope="module")
def a_watch() -> Iterator[Watch]:
    watch = Watch()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        watch.run(run, handle)

    asyncio.Handle._run = measured  # type: ignore[assignment]
    gc.callbacks.append(watch.collector)
    try:
        yield watch
    finally:
        gc.callbacks.remove(watch.collector)
        asyncio.Handle._run = run  # type: ignore[method-assign]


@pytest.fixture(name="web", scope="module")
def a_web(watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(Path(tmp_path_factory.mktemp("fair"))) as web:
        yield web


class Neighbour:
    """Another tenant, which publishes and claims all the time."""

    def __init__(self, web: World, watch: Watch) -> None:
        self._client = web.large("neighbour")
        self._watch = watch
        self.longest = 0.0
        """The most CPU time that the loop spent between a request and its answer."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.served = 0
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            made = self._post("messages", [{"message": 1}])
            got = self._post("claim", {"max": 1, "ack": True})
            self.served += 1
            if made.status_code != 201 or len(got.json()["deliveries"]) != 1:
                self.failed.append(f"{made.text} {got.text}")

    def _post(self, what: str, body: object) -> httpx.Response:
        before = self._watch.total
        answer = self._client.post(f"{API}/queues/mine/{what}", json=body)
        self.longest = max(self.longest, self._watch.total - before)
        return answer


Fill = Callable[[Shard, Tenant], None]
Use = Callable[[httpx.Client], None]


def messages(queue: str, count: int = MANY) -> Fill:
    def fill(shard: Shard, tenant: Tenant) -> None:
        tenant.declare_queue(queue, {}, "embedded")
        for _ in range(count):
            shard.publish(tenant, "", queue, EMPTY, b"x" * 20)

    return fill


def two_queues(shard: Shard, tenant: Tenant) -> None:
    tenant.declare_queue("to", {}, "embedded")
    messages("full")(shard, tenant)


def letters(shard: Shard, tenant: Tenant) -> None:
    tenant.declare_queue("sick", {"max_attempts": 1}, "http")
    for _ in range(MANY // 4):
        shard.publish(tenant, "", "sick", EMPTY, b"x" * 20)
    queue = tenant.queue("sick")
    for lease in shard.claim(queue, MANY, 30_000):
        queue.reject(lease, "no")


def queues(shard: Shard, tenant: Tenant) -> None:
    for i in range(QUEUES):
        tenant.declare_queue(f"q{i}", {}, "embedded")


def same_key(shard: Shard, tenant: Tenant) -> None:
    """One key, many arguments."""
    queue = tenant.declare_queue("bound", {}, "embedded")[0]
    tenant.declare_exchange("one", "direct")
    for i in range(MANY // 2):
        tenant.bind("one", queue, "k", {"n": i})


def topics(shard: Shard, tenant: Tenant) -> None:
    queue = tenant.declare_queue("bound", {}, "embedded")[0]
    tenant.declare_exchange("patterns", "topic")
    for i in range(MANY // 2):
        tenant.bind("patterns", queue, f"a.*.n{i}.#")


def headers(shard: Shard, tenant: Tenant) -> None:
    queue = tenant.declare_queue("bound", {}, "embedded")[0]
    tenant.declare_exchange("headers", "headers")
    for i in range(10_000):
        tenant.bind("headers", queue, "", {"kind": "a", "n": i})


def keys(shard: Shard, tenant: Tenant) -> None:
    tenant.declare_queue("once", {"dedup_window_ms": 1}, "embedded")
    for i in range(2 * MANY):
        tenant.dedup.remember("queue:once", f"k{i}", i + 1, int(shard.wall_ms) - 10, 1)


def deletes_tenant(client: httpx.Client) -> None:
    """As an admin."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    ok(client.delete(f"{API}/tenants/{TENANT}", headers=headers, timeout=300))


def posts(path: str, status: int = 200, **body: Any) -> Use:
    return lambda client: ok(client.post(API + path, json=body, timeout=300), status) and None


def gets(path: str, accept: str = "application/json") -> Use:
    def use(client: httpx.Client) -> None:
        answer = client.get(path, headers={"Accept": accept}, timeout=300)
        assert answer.status_code == 200, answer.text[:500]

    return use


def deletes(path: str) -> Use:
    return lambda client: ok(client.delete(API + path, timeout=300)) and None


def document(**parts: Any) -> Use:
    body = json.dumps({"rookery": 1, "tenants": [{"name": TENANT, **parts}]})

    def use(client: httpx.Client) -> None:
        ok(client.post(f"{API}/definitions", content=body, timeout=300))

    return use


def publishes(client: httpx.Client) -> None:
    """As many as one request takes, over a topic, a headers exchange and to a queue."""
    client.post(f"{API}/queues/plain/messages", json=[{"message": i} for i in range(10_000)], timeout=300)


def transaction(client: httpx.Client) -> None:
    root = f"{API}/transactions/t1"
    ok(client.put(root), 201)
    for _ in range(10):
        operations = [{"queue": "plain", "message": 1} for _ in range(1_000)]
        ok(client.post(f"{root}/add", json={"publish": operations}, timeout=300))
    ok(client.post(f"{root}/commit", timeout=300))


def by_headers(client: httpx.Client) -> None:
    body = [{"message": 1, "headers": {"kind": "a", "n": i}} for i in range(100)]
    ok(client.post(f"{API}/exchanges/headers/messages", json=body), 201)


def by_topic(client: httpx.Client) -> None:
    body = [{"message": 1, "routing_key": f"a.b.n{i}.c.d"} for i in range(1_000)]
    ok(client.post(f"{API}/exchanges/patterns/messages", json=body), 201)


def nested(client: httpx.Client) -> None:
    body = b'[{"message": ' + b"[" * 500_000 + b"]" * 500_000 + b"}]"
    assert client.post(f"{API}/queues/plain/messages", content=body, timeout=300).status_code in (201, 400, 422)


def once(client: httpx.Client) -> None:
    for i in range(20):
        body = [{"message": 1, "idempotency_key": f"new{i}"}]
        ok(client.post(f"{API}/queues/once/messages", json=body, timeout=300), 201)


def refused(method: str, path: str, body: bytes, status: int) -> Use:
    def use(client: httpx.Client) -> None:
        answer = client.request(method, API + path, content=body, timeout=300)
        assert answer.status_code == status, answer.text[:500]

    return use


def laborious_policies(client: httpx.Client) -> None:
    """Patterns that take long to compile, as many as a tenant may have, and then more."""
    hard = "(?i)[" + "".join(chr(0x100 + 3 * i) for i in range(900)) + "]"
    for count, status in ((400, 200), (1_000, 429)):
        rows = [{"name": f"p{i}", "pattern": f"{hard}{i}", "settings": {"length_max": 5}} for i in range(count)]
        body = json.dumps({"rookery": 1, "tenants": [{"name": TENANT, "policies": rows}]})
        answer = client.post(f"{API}/definitions", content=body, timeout=300)
        assert answer.status_code == status, answer.text[:500]


def with_laborious_rights(client: httpx.Client) -> None:
    """Bindings of many names, by a key whose patterns take long to match."""
    hard = "^" + "".join(f"(?!.*{each}[ab]{{80}}d)" for each in "ababababab") + ".*"
    rights = {"configure": ".*", "write": hard, "read": hard}
    key = ok(client.post("/keys", json={"tenant": TENANT, "rights": rights}), 201)["api_key"]
    rows = [{"source": "amq.topic", "target": "ab" * 120 + str(i), "key": "k"} for i in range(15_000)]
    body = json.dumps({"rookery": 1, "tenants": [{"name": TENANT, "bindings": rows}]})
    answer = client.post(f"{API}/definitions", content=body, timeout=300, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 404, answer.text[:500]


def lists_with_laborious_rights(client: httpx.Client) -> None:
    """A list of many names, by a key whose pattern takes long to match."""
    hard = "^" + "".join(f"(?!.*{each}[ab]{{80}}d)" for each in "ababababab") + ".*"
    rights = {"configure": ".*", "write": ".*", "read": hard}
    key = ok(client.post("/keys", json={"tenant": TENANT, "rights": rights}), 201)["api_key"]
    headers = {"Authorization": f"Bearer {key}"}
    page = ok(client.get(f"{API}/queues?limit=1000", headers=headers, timeout=300))
    assert len(page["queues"]) == 1_000
    assert page["next"] == page["queues"][-1]["name"]


def claims(client: httpx.Client) -> None:
    ok(client.post(f"{API}/queues/full/claim", json={"max": 1_000, "ack": True}, timeout=300))


def pipelined(method: str, path: str, body: bytes = b"") -> Use:
    """A hundred requests in one packet, of which each by itself takes almost as long as one may."""

    def use(client: httpx.Client) -> None:
        lines = (
            f"{method} {API}{path} HTTP/1.1",
            f"Host: {client.base_url.netloc.decode()}",
            f"Authorization: {client.headers['Authorization']}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        one = "\r\n".join(lines).encode()
        with socket.create_connection((client.base_url.host, client.base_url.port), 300) as sock:
            sock.sendall((one + b"\r\n\r\n" + body) * 99 + one + b"\r\nConnection: close\r\n\r\n" + body)
            # half closed: what was asked for is answered nevertheless
            sock.shutdown(socket.SHUT_WR)
            answers = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        assert answers.count(b"HTTP/1.1 200 ") == 100

    return use


def policies(client: httpx.Client) -> None:
    ok(client.put(f"{API}/policies/all", json={"pattern": "9", "settings": {"ttl_ms": 60_000}}, timeout=300))
    ok(client.delete(f"{API}/policies/all", timeout=300))


def many_groups(shard: Shard, tenant: Tenant) -> None:
    stream = streams.declare(tenant, "wide", {"partitions": PARTITIONS_MAX})[0]
    for i in range(MANY // 200):
        groups.group_of(stream, f"g{i}")


def group_commits(client: httpx.Client) -> None:
    root = f"{API}/streams/wide/groups/g1"
    offsets = {str(i): 0 for i in range(PARTITIONS_MAX)}
    ok(client.post(f"{root}/commit", json={"offsets": offsets}, timeout=300))
    for i in range(20):
        ok(client.post(f"{root}/join", json={"member": f"m{i}"}, timeout=300))
    ok(client.post(f"{root}/heartbeat", json={"member": "m1"}, timeout=300))
    ok(client.post(f"{root}/leave", json={"member": "m1"}, timeout=300))


def staged(stream: str, exchange: str) -> Fill:
    def fill(shard: Shard, tenant: Tenant) -> None:
        tenant.declare_queue("plain", {}, "embedded")
        streams.declare(tenant, "log", {"partitions": 4})
        rows = [Row("plain", EMPTY, b"x" * 20) for _ in range(MANY)]
        shard.staging.stage(tenant, "c1", stream, exchange, rows)

    return fill


def commits(client: httpx.Client) -> None:
    ok(client.post(f"{API}/producers/p/commit", json={"epoch": 1, "chunks": ["c1"]}, timeout=300))
    # rows for queues arrive in slices after the answer
    time.sleep(0.5)


def stages(client: httpx.Client) -> None:
    body = ipc(value=pa.array([b"x"] * MANY, pa.binary()))
    ok(client.post(f"{API}/queues/plain/stage", content=body, headers={"Content-Type": ARROW}, timeout=300), 201)


def purges_by_amqp(client: httpx.Client) -> None:
    kid, _, secret = client.headers["Authorization"].removeprefix("Bearer ").partition(".")
    port = int(client.headers["X-AMQP-Port"])
    login = pika.PlainCredentials(kid, secret)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, TENANT, login)) as connection:
        connection.channel().queue_purge("full")


def nothing(shard: Shard, tenant: Tenant) -> None:
    tenant.declare_queue("plain", {}, "embedded")


SAME_KEY = [{"source": "amq.direct", "target": "t", "key": "k", "arguments": {"n": i}} for i in range(8_000)]
VALUES = b"[" + b"1," * 200_000 + b"1]"
"""Arguments with many values."""
ROW = b'{"name": "t", "face": "embedded", "settings": {"arguments": {"a": ' + VALUES + b"}}}"
OPERATIONS: dict[str, tuple[Fill, Use]] = {
    "load policies that take long to compile": (nothing, laborious_policies),
    "load bindings with rights that take long to match": (nothing, with_laborious_rights),
    "load arguments with many values": (
        nothing,
        refused("POST", "/definitions", b'{"rookery": 1, "tenants": [{"name": "big", "queues": [' + ROW + b"]}]}", 400),
    ),
    "declare a queue with many values": (
        nothing,
        refused("PUT", "/queues/t", b'{"arguments": {"a": ' + VALUES + b"}}", 413),
    ),
    "bind with many values": (
        nothing,
        refused(
            "POST",
            "/bindings",
            b'{"source": "amq.direct", "target": "plain", "arguments": {"a": ' + VALUES + b"}}",
            413,
        ),
    ),
    "load 8,000 bindings of one key": (
        nothing,
        document(queues=[{"name": "t", "face": "embedded"}], bindings=SAME_KEY),
    ),
    "load 10,000 queues": (
        nothing,
        document(queues=[{"name": f"q{i}", "face": "embedded"} for i in range(10_000)]),
    ),
    "load one queue beside many bindings": (same_key, document(queues=[{"name": "t", "face": "embedded"}])),
    "export many bindings": (same_key, gets(f"{API}/definitions")),
    "export many queues": (queues, gets(f"{API}/definitions")),
    "list queues": (queues, gets(f"{API}/queues?limit=1000")),
    "list queues with rights that take long to match": (queues, lists_with_laborious_rights),
    "list bindings": (same_key, gets(f"{API}/bindings?limit=1000")),
    "stats": (queues, gets(f"{API}/stats")),
    "metrics": (queues, gets("/metrics", "text/plain")),
    "show the tenant": (queues, gets(f"{API}/tenants/{TENANT}")),
    "delete a queue with many messages": (messages("full"), deletes("/queues/full")),
    "delete a queue with many bindings": (same_key, deletes("/queues/bound")),
    "delete a queue with many patterns": (topics, deletes("/queues/bound")),
    "delete an exchange with many bindings": (same_key, deletes("/exchanges/one")),
    "delete a tenant with many queues": (queues, deletes_tenant),
    "delete a tenant with many bindings": (topics, deletes_tenant),
    "purge": (messages("full"), posts("/queues/full/purge")),
    "move": (two_queues, posts("/queues/full/move", to="to")),
    "redrive": (letters, posts("/queues/sick.DLQ/redrive")),
    "purge by AMQP": (messages("full"), purges_by_amqp),
    "set a policy over many queues": (queues, policies),
    "list many groups": (many_groups, gets(f"{API}/streams/wide/groups")),
    "commit, join and leave a wide group": (many_groups, group_commits),
    "stage many rows": (nothing, stages),
    "commit staged rows to a stream": (staged("log", ""), commits),
    "commit staged rows to a queue": (staged("", ""), commits),
    "claim": (messages("full"), claims),
    "peek": (messages("full"), gets(f"{API}/queues/full/messages?limit=1000")),
    "a hundred peeks in one packet": (messages("full"), pipelined("GET", "/queues/full/messages?limit=1000")),
    "a hundred claims in one packet": (
        messages("full"),
        pipelined("POST", "/queues/full/claim", b'{"max": 400, "ack": true}'),
    ),
    "publish 10,000": (nothing, publishes),
    "a transaction of 10,000": (nothing, transaction),
    "publish by headers": (headers, by_headers),
    "publish by topic": (topics, by_topic),
    "a body of a megabyte that nests": (nothing, nested),
    "dedup keys that expire": (keys, once),
}

COLLECTED: dict[str, str] = {
    "load 10,000 queues": "new queues are many objects, and the collector walks over them while they are made",
}
"""Operations that are judged without the time of the collector, and why."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_nobody_holds_the_loop(web: World, watch: Watch, name: str) -> None:
    fill, use = OPERATIONS[name]
    if TENANT in web.server.engine.shard.tenants:
        ok(web.admin.delete(f"{API}/tenants/{TENANT}", timeout=300))
    client = web.large(TENANT)
    client.headers["X-AMQP-Port"] = web.server.addresses["amqp"].rpartition(":")[2]
    web.inside(lambda server: fill(server.engine.shard, server.engine.shard.tenants[TENANT]))
    # what is there is old, as in a server that has run for a while: the collector does not look at it again
    gc.collect()
    gc.freeze()
    with Neighbour(web, watch) as neighbour:
        ok(client.get(f"{API}/queues?limit=1"))
        watch.reset()
        neighbour.longest = 0.0
        use(client)
        # an answer is on its way before the callback that wrote it ends
        web.inside(lambda server: None)
        held, own, what = watch.longest, watch.longest_own, watch.what
    gc.unfreeze()
    print(f"\n{name}: {held * 1e3:.1f} ms, {own * 1e3:.1f} ms without the collector;", end=" ")
    print(f"neighbour served {neighbour.served} times, within {neighbour.longest * 1e3:.1f} ms")
    assert not neighbour.failed
    if name in COLLECTED:
        assert own < HELD_MAX_SEC * SLACK, what
    else:
        assert held < HELD_MAX_SEC * SLACK, what
        assert neighbour.longest < HELD_MAX_SEC * SLACK * BETWEEN

"""Readers over server-sent events and WebSockets, and a webhook, while the broker is killed again and again: everything
that was confirmed arrives, and nothing comes again whose ack was answered.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import WebSocketException

from tests.interop.server import ServerProcess, serving
from tests.wire.api_client import API, ok
from tests.wire.receiver import Arrived, Receiver
from tests.wire.socket_reader import SocketReader

KEY = "admin-key"
AUTH = {"Authorization": f"Bearer {KEY}"}
EACH = 160
BATCH = 8
KILLS = 3
PATIENCE_SEC = 120

BROKEN = (OSError, httpx.HTTPError, WebSocketException, EOFError)


class Consumer:
    """Does its work again whenever the broker is gone. `seen` counts what came; `acked` is what it was told of."""

    def __init__(self, name: str, work: Callable[[Consumer], None]) -> None:
        self.name = name
        self.seen: Counter[int] = Counter()
        self.acked: set[int] = set()
        self.wrong: list[object] = []
        self.last_id = ""
        self.over = threading.Event()
        self._work = work
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.over.is_set():
            try:
                self._work(self)
            except BROKEN:
                self.over.wait(0.05)
            except Exception as error:  # noqa: BLE001 - for the test to tell
                self.wrong.append(error)
                return

    def came(self, number: int) -> None:
        if number in self.acked:
            self.wrong.append(f"{number} came again after its ack was answered")
        self.seen[number] += 1

    def is_done(self) -> bool:
        return bool(self.wrong) or len(self.seen) == EACH


class World:
    def __init__(self, address: str) -> None:
        self.address = address
        self.base = f"http://{address}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.base, headers=AUTH, timeout=10, trust_env=False, verify=False)

    def read_events(self, consumer: Consumer) -> None:
        """Server-sent events, each acked by a request."""
        headers = {"Last-Event-ID": consumer.last_id} if consumer.last_id else {}
        path = f"{API}/queues/events/stream?ack=explicit"
        with self.client() as client, self.client() as other, client.stream("GET", path, headers=headers) as answer:
            for line in answer.iter_lines():
                if consumer.over.is_set():
                    return
                if line.startswith("id: "):
                    consumer.last_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    found = json.loads(line.removeprefix("data: "))
                    consumer.came(found["message"])
                    tag = {"delivery_tag": found["delivery_tag"]}
                    if other.post(f"{API}/queues/events/ack", json=tag).status_code == 200:
                        consumer.acked.add(found["message"])

    def read_socket(self, consumer: Consumer) -> None:
        """A queue over a WebSocket, each message settled there."""
        after = {"after": consumer.last_id} if consumer.last_id else {}
        path = f"{API}/queues/socket"
        with SocketReader(self.address, path, key=KEY, ack="explicit", credit=10, **after) as reader:
            while not consumer.over.is_set():
                found = reader.next()
                consumer.came(found["message"])
                if reader.ask("settle", leases=[found["lease"]]) == {"settled": 1, "lost": []}:
                    consumer.acked.add(found["message"])
                consumer.last_id = reader.last_id

    def read_group(self, consumer: Consumer) -> None:
        """A stream over a WebSocket, by a group."""
        path = f"{API}/streams/group"
        with SocketReader(self.address, path, key=KEY, group="g", member="m", from_="first", credit=10) as reader:
            while not consumer.over.is_set():
                found = reader.next()
                consumer.came(found["message"])
                assert "acked" in reader.ask("ack", through=f"{found['partition']}:{found['offset']}")
                consumer.acked.add(found["message"])

    def publish(self, first: int) -> None:
        """The next numbers to everybody, until that is confirmed."""
        bodies = {
            target: [{"message": n, "idempotency_key": f"{n}"} for n in range(first, first + BATCH)]
            for target in ("queues/events/messages", "queues/socket/messages", "queues/hook/messages")
        }
        bodies["streams/group/publish"] = [
            {"message": n, "idempotency_key": f"{n}"} for n in range(first, first + BATCH)
        ]
        for target, body in bodies.items():
            self._until_confirmed(target, body)

    def _until_confirmed(self, target: str, body: Any) -> None:
        waited = threading.Event()
        for _ in range(PATIENCE_SEC * 20):
            try:
                with self.client() as client:
                    if client.post(f"{API}/{target}", json=body).status_code in (200, 201):
                        return
            except BROKEN:
                pass
            waited.wait(0.05)
        raise AssertionError(f"{target} was not confirmed")


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    waiting = threading.Event()
    for _ in range(PATIENCE_SEC * 20):
        if condition():
            return
        waiting.wait(0.05)
    raise AssertionError(what())


def declare(client: httpx.Client, receiver: Receiver) -> None:
    for queue in ("events", "socket", "hook"):
        ok(client.put(f"{API}/queues/{queue}", json={"max_attempts": 100}), 201)
    ok(client.put(f"{API}/streams/group", json={"partitions": 2}), 201)
    answer = client.post(f"{API}/queues/hook/webhooks", json={"endpoint": receiver.url})
    assert answer.status_code == 201, answer.text


class Endpoint:
    """What the webhook's receiver was told."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()
        self.names: dict[int, set[str]] = {}

    def answer(self, arrived: Arrived) -> tuple[int, dict[str, str]]:
        number = json.loads(arrived.body)
        self.seen[number] += 1
        self.names.setdefault(number, set()).add(arrived.headers["webhook-id"])
        return 200, {}


@pytest.mark.row("S2-17", "S2-43")
def test_push_goes_on_over_kills_and_nothing_acked_comes_again(tmp_path: Path) -> None:
    endpoint = Endpoint()
    receiver = Receiver(endpoint.answer)
    server = ServerProcess(tmp_path, "--api-key", KEY)
    flags = ("--api-key", KEY, "--http-port", str(server.http))
    world = World(f"127.0.0.1:{server.http}")
    consumers: list[Consumer] = []
    try:
        with world.client() as client:
            declare(client, receiver)
        consumers = [
            Consumer("events", world.read_events),
            Consumer("socket", world.read_socket),
            Consumer("group", world.read_group),
        ]
        for first in range(0, EACH, BATCH):
            world.publish(first)
            if first and first % (EACH // (KILLS + 1)) == 0:
                server.signal(signal.SIGKILL)
                server.wait()
                server = ServerProcess(tmp_path, *flags)
        for consumer in consumers:
            until(consumer.is_done, lambda consumer=consumer: (consumer.name, EACH - len(consumer.seen)))  # type: ignore[misc]
        until(lambda: len(endpoint.seen) == EACH, lambda: EACH - len(endpoint.seen))
        with world.client() as client:
            for queue in ("events", "socket", "hook"):
                until(lambda queue=queue: at_rest(client, queue), lambda queue=queue: queue)  # type: ignore[misc]
            group = f"{API}/streams/group/groups/g"
            until(lambda: bool(ok(client.get(group))["lag"] == 0), lambda: "the group is behind")
        assert [consumer.wrong for consumer in consumers] == [[], [], []]
        for seen in (endpoint.seen, *(consumer.seen for consumer in consumers)):
            assert set(seen) == set(range(EACH))
            # nothing comes again but for a kill
            assert max(seen.values()) <= KILLS + 1
        assert all(len(names) == 1 for names in endpoint.names.values())
    finally:
        for consumer in consumers:
            consumer.over.set()
        if server.process.poll() is None:
            server.signal(signal.SIGKILL)
        server.wait()
        for consumer in consumers:
            consumer.thread.join(30)
        receiver.close()


def at_rest(client: httpx.Client, queue: str) -> bool:
    stats = ok(client.get(f"{API}/queues/{queue}/stats"))
    return bool(stats["ready"] == stats["in_flight"] == stats["delayed"] == 0)


def test_a_reader_without_acks_misses_nothing_when_the_broker_is_killed(tmp_path: Path) -> None:
    """With automatic acks too: what was on the way comes again, from a topic's queue that outlives the process."""
    seen: list[int] = []
    server = ServerProcess(tmp_path, "--api-key", KEY)
    world = World(f"127.0.0.1:{server.http}")
    try:
        reader = SocketReader(world.address, f"{API}/topics/t", key=KEY)
        with world.client() as client:
            for n in range(10):
                ok(client.post(f"{API}/topics/t/publish", json={"message": n, "routing_key": "k"}), 201)
        seen += reader.bodies(10)
        known = reader.last_id
        server.signal(signal.SIGKILL)
        server.wait()
        with pytest.raises(WebSocketException):
            reader.next()
    finally:
        server.signal(signal.SIGKILL)
        server.wait()
    with serving(tmp_path, "--api-key", KEY) as again:
        world = World(f"127.0.0.1:{again.http}")
        with world.client() as client:
            ok(client.post(f"{API}/topics/t/publish", json={"message": 10, "routing_key": "k"}), 201)
        with SocketReader(world.address, f"{API}/topics/t", key=KEY, after=known) as reader:
            while 10 not in seen:
                seen.append(reader.next()["message"])
    assert set(seen) == set(range(11))
    assert max(Counter(seen).values()) <= 2

"""A served broker is killed again and again while clients use all that promises durability.

That is: messages over HTTP and AMQP, transactions of both, dedup keys, streams and their groups, staged rows, and a
webhook. One ledger (`mixed_ledger`) knows what was answered: none of it is lost, nothing is half done, no answered ack
comes back, and nothing is there twice.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from tests.interop.mixed_ledger import Hook, Queue, Stream, Together
from tests.interop.server import ServerProcess
from tests.wire.api_client import API, ok
from tests.wire.receiver import Arrived, Receiver

KEY = "admin-key"
KILLS = 5
LONG_KILLS = 500
PATIENCE_SEC = 120
BROKEN = (OSError, httpx.HTTPError, pika.exceptions.AMQPError, EOFError)
JSON_PROPERTIES = pika.BasicProperties(content_type="application/json", delivery_mode=2)
QUEUES = ("http", "amqp", "amqp.left", "amqp.right", "in", "left", "right", "keys")


class Books:
    """All that is known."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = itertools.count(1)
        self.queues = {name: Queue(name) for name in QUEUES}
        self.streams = {name: Stream(name) for name in ("plain", "staged")}
        self.hook = Hook()
        self.together: list[Together] = []
        self.totals: Counter[str] = Counter()
        self.pending_keys: list[int] = []
        self.pending_commit: tuple[int, list[str], list[int]] | None = None
        self.producer_epoch = 0

    def draw(self, count: int) -> list[int]:
        return list(itertools.islice(self.numbers, count))

    @property
    def wrong(self) -> list[str]:
        books: list[Queue | Stream | Hook] = [*self.queues.values(), *self.streams.values(), self.hook]
        return [text for book in books for text in book.wrong]


class Worker(ABC):
    """Does one kind of work over and over until the server is gone."""

    def __init__(self, books: Books, server: ServerProcess) -> None:
        self.books = books
        self.server = server
        self.rng = random.Random(books.rng.getrandbits(32))
        self.wrong: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.open()
            while True:
                self.work()
        except BROKEN:
            pass
        except BaseException as error:  # noqa: BLE001 - for the test to tell
            if self.server.process.poll() is None:
                self.wrong = error
        finally:
            self.close()

    def join(self) -> None:
        self._thread.join(PATIENCE_SEC)
        assert not self._thread.is_alive(), self._thread.name
        if self.wrong is not None:
            raise self.wrong

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def work(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class HttpWorker(Worker):
    def open(self) -> None:
        self.client = connect(self.server)

    def close(self) -> None:
        self.client.close()

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        return ok(self.client.post(f"{API}/{path}", json=body), status)

    def publish(self, queue: str, numbers: list[int]) -> None:
        book = self.books.queues[queue]
        book.tried.update(numbers)
        self.post(f"queues/{queue}/messages", [{"message": n} for n in numbers], 201)
        book.confirmed.update(numbers)
        self.books.totals["confirmed"] += len(numbers)

    def claim(self, queue: str, count: int) -> list[tuple[int, str]]:
        book = self.books.queues[queue]
        rows = self.post(f"queues/{queue}/claim", {"max": count, "lease_ms": 60_000})["deliveries"]
        for row in rows:
            book.deliver(row["message"])
        return [(row["message"], row["lease"]) for row in rows]


class Messages(HttpWorker):
    """Publishes, claims and acks."""

    def work(self) -> None:
        self.publish("http", self.books.draw(self.rng.randrange(1, 9)))
        if self.rng.random() < 0.5:
            return
        taken = self.claim("http", self.rng.randrange(1, 9))
        book = self.books.queues["http"]
        numbers = [number for number, _ in taken]
        book.taking.update(numbers)
        self.post("queues/http/settle", {"settle": [{"lease": lease} for _, lease in taken]})
        book.gone.update(numbers)
        self.books.totals["acked"] += len(numbers)


class Transactions(HttpWorker):
    """Takes a message from one queue and puts others into two, in one step."""

    def work(self) -> None:
        self.publish("in", self.books.draw(2))
        for number, lease in self.claim("in", 2):
            (new,) = self.books.draw(1)
            for name in ("left", "right"):
                self.books.queues[name].tried.add(new)
            self.books.queues["in"].taking.add(number)
            both = Together([("left", new), ("right", new)], ("in", number))
            self.books.together.append(both)
            rows = [{"queue": "left", "message": new}, {"queue": "right", "message": new}]
            self.post("transactions", {"publish": rows, "settle": [{"lease": lease}]})
            both.answered = True
            self.books.totals["transactions"] += 1


class Keys(HttpWorker):
    """Publishes under dedup keys until that is confirmed, in this life or in a later one, and then once more."""

    def work(self) -> None:
        if not self.books.pending_keys:
            self.books.pending_keys = self.books.draw(4)
        numbers = self.books.pending_keys
        book = self.books.queues["keys"]
        book.retry(numbers)
        rows = [{"message": n, "idempotency_key": f"{n}"} for n in numbers]
        self.post("queues/keys/messages", rows, 201)
        book.confirmed.update(numbers)
        self.books.totals["confirmed"] += len(numbers)
        self.post("queues/keys/messages", rows, 201)
        self.books.totals["repeated"] += len(numbers)
        self.books.pending_keys = []


class Records(HttpWorker):
    """Publishes to a stream, and commits a group's offset."""

    def work(self) -> None:
        stream = self.books.streams["plain"]
        numbers = self.books.draw(self.rng.randrange(1, 9))
        stream.tried.update(numbers)
        self.post("streams/plain/publish", [{"message": n} for n in numbers], 201)
        stream.confirmed.update(numbers)
        self.books.totals["records"] += len(numbers)
        if self.rng.random() < 0.3:
            at = len(stream.records)
            self.post("streams/plain/groups/g/commit", {"offsets": {"0": at}})
            stream.group = at


class Staged(HttpWorker):
    """Stages two chunks and commits them; a commit without an answer is made again in the next life."""

    def work(self) -> None:
        books, stream = self.books, self.books.streams["staged"]
        if books.pending_commit is None:
            rows = books.draw(self.rng.randrange(4, 40))
            stream.tried.update(rows)
            half = len(rows) // 2
            chunks = [
                self.post("streams/staged/stage", [{"message": n} for n in part], 201)["chunk"]
                for part in (rows[:half], rows[half:])
            ]
            books.producer_epoch += 1
            books.pending_commit = (books.producer_epoch, chunks, rows)
            stream.commits.append((rows, False))
        epoch, chunks, rows = books.pending_commit
        self.post("producers/loader/commit", {"epoch": epoch, "chunks": chunks})
        stream.commits = [(each, answered or each is rows) for each, answered in stream.commits]
        stream.confirmed.update(rows)
        books.pending_commit = None
        books.totals["rows"] += len(rows)


class Hooked(HttpWorker):
    """Publishes what a webhook is to get."""

    def work(self) -> None:
        hook = self.books.hook
        numbers = self.books.draw(2)
        hook.tried.update(numbers)
        self.post("queues/hook/messages", [{"message": n} for n in numbers], 201)
        hook.confirmed.update(numbers)
        self.books.totals["hooked"] += len(numbers)
        time.sleep(0.01)


class Amqp(Worker):
    """Publishes with confirms, gets and acks, and commits transactions."""

    def open(self) -> None:
        self._connection = None
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.server.amqp))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._tx = self._connection.channel()
        self._tx.tx_select()

    def work(self) -> None:
        books = self.books
        book = books.queues["amqp"]
        for number in books.draw(self.rng.randrange(1, 6)):
            book.tried.add(number)
            self._channel.basic_publish("", "amqp", b"%d" % number, JSON_PROPERTIES)
            book.confirmed.add(number)
            books.totals["confirmed"] += 1
        for _ in range(self.rng.randrange(3)):
            method, _, body = self._channel.basic_get("amqp")
            if body is not None:
                book.deliver(int(body))
                book.taking.add(int(body))
                self._channel.basic_ack(method.delivery_tag)
        (new,) = books.draw(1)
        for name in ("amqp.left", "amqp.right"):
            books.queues[name].tried.add(new)
        both = Together([("amqp.left", new), ("amqp.right", new)])
        books.together.append(both)
        for name in ("amqp.left", "amqp.right"):
            self._tx.basic_publish("", name, b"%d" % new, JSON_PROPERTIES)
        self._tx.tx_commit()
        both.answered = True
        books.totals["transactions"] += 1

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()


WORKERS: tuple[type[Worker], ...] = (Messages, Transactions, Keys, Records, Staged, Hooked, Amqp)


def connect(server: ServerProcess) -> httpx.Client:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.Client(
        base_url=f"http://127.0.0.1:{server.http}", headers=headers, timeout=60, trust_env=False, verify=False
    )


def declare(client: httpx.Client, receiver: Receiver) -> None:
    for queue in (*QUEUES, "hook"):
        ok(client.put(f"{API}/queues/{queue}", json={"max_attempts": 0}), 201)
    for stream in ("plain", "staged"):
        ok(client.put(f"{API}/streams/{stream}", json={"partitions": 1}), 201)
    ok(client.post(f"{API}/queues/hook/webhooks", json={"endpoint": receiver.url, "timeout_ms": 5_000}), 201)


def drain(client: httpx.Client, queue: str) -> Iterator[int]:
    """Take everything out of a queue, and have that answered."""
    while rows := ok(client.post(f"{API}/queues/{queue}/claim", json={"max": 500, "ack": True}))["deliveries"]:
        yield from (row["message"] for row in rows)


def audit(books: Books, client: httpx.Client) -> None:
    """Read all that this process found, and hold it against what its predecessors were asked and answered."""
    found = {name: list(drain(client, name)) for name in QUEUES}
    as_sets = {name: set(numbers) for name, numbers in found.items()}
    for together in books.together:
        if (text := together.check(as_sets)) is not None:
            books.queues["in"].wrong.append(text)
    # what was taken from `in` within a transaction that was answered may not come again: checked above
    books.together.clear()
    for name, numbers in found.items():
        books.queues[name].audit(numbers)
        books.totals["found"] += len(numbers)
    for name, stream in books.streams.items():
        first = max(0, len(stream.records) - 50)
        stream.audit(list(records(client, name, first)), first, group_offset(client, name))


def records(client: httpx.Client, stream: str, first: int) -> Iterator[int]:
    while rows := ok(client.get(f"{API}/streams/{stream}/records?partition=0&from={first}"))["records"]:
        for row in rows:
            assert row["offset"] == first, row
            first += 1
            yield row["value"]


def group_offset(client: httpx.Client, stream: str) -> int:
    answer = client.get(f"{API}/streams/{stream}/groups/g")
    if answer.status_code == 404:
        return 0
    partition = ok(answer)["partitions"][0]
    return int(partition["committed"] or 0)


class Killer:
    """Starts servers on one directory and kills them, at moments that a seed decides."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.books = Books(random.Random(seed))
        self.receiver = Receiver(self._arrived)
        self._directory = directory
        self._ports: list[str] = []

    def _arrived(self, arrived: Arrived) -> tuple[int, dict[str, str]]:
        self.books.hook.arrive(json.loads(arrived.body), arrived.headers["webhook-id"])
        return 200, {}

    def start(self) -> ServerProcess:
        self.books.hook.life += 1
        server = ServerProcess(self._directory, "--api-key", KEY, *self._ports)
        if not self._ports:
            self._ports = ["--http-port", str(server.http), "--amqp-port", str(server.amqp)]
            with connect(server) as client:
                declare(client, self.receiver)
        return server

    def life(self) -> None:
        """One server: what it found is audited, then it works until it is killed."""
        server = self.start()
        workers: list[Worker] = []
        try:
            with connect(server) as client:
                audit(self.books, client)
            workers = [kind(self.books, server) for kind in WORKERS]
            # the moment is what this is about
            time.sleep(self.books.rng.uniform(0.02, 0.5))
        finally:
            server.process.kill()
            server.wait()
        for worker in workers:
            worker.join()

    def last_life(self) -> None:
        server = self.start()
        try:
            with connect(server) as client:
                audit(self.books, client)
                # and nothing that was acked just now is there
                audit(self.books, client)
            waiting = threading.Event()
            for _ in range(PATIENCE_SEC * 20):
                if not self.books.hook.missing():
                    break
                waiting.wait(0.05)
            self.books.hook.audit()
            assert server.stop() == 0
        finally:
            if server.process.poll() is None:
                server.process.kill()
                server.wait()


def kill_often(directory: Path, kills: int) -> None:
    seed = int(os.environ.get("ROOKERY_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"again: ROOKERY_SEED={seed}")
    killer = Killer(directory, seed)
    books = killer.books
    try:
        for life in range(kills):
            killer.life()
            assert not books.wrong, f"ROOKERY_SEED={seed}, life {life + 1}: " + "; ".join(books.wrong[:10])
        killer.last_life()
        assert not books.wrong, f"ROOKERY_SEED={seed}, at the end: " + "; ".join(books.wrong[:10])
    finally:
        killer.receiver.close()
        print(f"{kills} kills, {dict(books.totals)}")
    # the test is worth something only if every worker was at it
    for kind in ("confirmed", "acked", "transactions", "records", "rows", "hooked", "repeated"):
        assert books.totals[kind] >= kills, kind


def test_nothing_answered_is_lost_over_any_face(tmp_path: Path) -> None:
    kill_often(tmp_path, KILLS)


@pytest.mark.long
def test_nothing_answered_is_lost_over_any_face_and_many_kills(tmp_path: Path) -> None:
    kill_often(tmp_path, LONG_KILLS)


def test_the_ledger_would_notice() -> None:
    """Each way to break a promise is seen."""
    queue = Queue("q")
    queue.tried = {1, 2, 3, 4, 5}
    queue.confirmed = {1, 2, 3}
    queue.taking, queue.gone = {2}, {3}
    queue.audit([1, 4])
    assert queue.wrong == []
    queue.audit([1, 5, 9, 9])
    assert [text.split(":")[0] for text in queue.wrong] == ["back", "back", "nowhere", "doubled"]
    other = Queue("r")
    other.tried, other.confirmed = {1}, {1}
    other.audit([])
    assert other.wrong[0].startswith("lost")
    both = Together([("a", 1), ("b", 1)], ("in", 7))
    assert both.check({"a": {1}, "b": {1}, "in": set()}) is None
    assert both.check({"a": set(), "b": set(), "in": {7}}) is None
    assert "torn" in str(both.check({"a": {1}, "b": set(), "in": set()}))
    assert "torn" in str(both.check({"a": {1}, "b": {1}, "in": {7}}))
    both.answered = True
    assert "lost" in str(both.check({"a": set(), "b": set(), "in": {7}}))
    stream = Stream("s")
    stream.tried, stream.confirmed = {1, 2, 3, 4}, {1, 2}
    stream.audit([1, 2], 0, 0)
    assert stream.wrong == []
    stream.commits, stream.group = [([3, 4], False)], 2
    stream.audit([1, 3, 3, 8], 0, 1)
    kinds = Counter(text.split(":")[0] for text in stream.wrong)
    assert kinds == {"changed": 1, "doubled": 1, "nowhere": 1, "lost": 2, "torn": 1}

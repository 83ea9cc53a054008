"""The client against a real server that is killed, and behind a proxy that cuts, stalls and refuses."""

from __future__ import annotations

import asyncio
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import trustme

import rookery
from rookery import RetryPolicy, errors
from rookery.client import Transport
from rookery.client.aio.queues import AsyncQueue
from tests.interop.flapping import Flapping, flapping
from tests.interop.server import ServerProcess, serving

KEY = "secret"
QUICK = RetryPolicy(tries=2_000, base_ms=20, max_ms=200)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("server"), "--api-key", KEY) as made:
        yield made


@pytest.fixture
def between(server: ServerProcess) -> Iterator[Flapping]:
    with flapping(server.http) as made:
        yield made


def url(port: int) -> str:
    return f"http://{KEY}@127.0.0.1:{port}"


class Flapper:
    """Cuts all connections again and again until it is stopped."""

    def __init__(self, between: Flapping) -> None:
        self._between = between
        self._stop = threading.Event()
        self.cuts = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.cuts += self._between.cut()


@pytest.mark.row("S4-23", "S4-24", "S4-36")
def test_publishes_through_a_flapping_connection_happen_once(server: ServerProcess, between: Flapping) -> None:
    with (
        rookery.connect(url(between.port), retry=QUICK) as client,
        rookery.connect(url(server.http)) as direct,
        Flapper(between) as flapper,
    ):
        jobs = client.queue("flap-publish")
        n = 0
        while flapper.cuts < 10 or n < 90:
            jobs.publish(n)
            jobs.publish_many([n + 1, n + 2])
            n += 3
        values = [message.data for message in direct.queue("flap-publish").peek(100_000)]
    assert values == list(range(n))


async def test_many_at_a_time_through_a_flapping_connection_happen_once(
    server: ServerProcess, between: Flapping
) -> None:
    async with rookery.connect_async(url(between.port), retry=QUICK) as client:
        stream = await client.stream("flap-records", partitions=2)
        jobs = await client.queue("flap-many")
        with Flapper(between) as flapper:
            n = 0
            while flapper.cuts < 10 or n < 100:
                await asyncio.gather(*[jobs.publish(n + i) for i in range(10)], stream.publish(n // 10))
                n += 10
    async with rookery.connect_async(url(server.http)) as direct:
        values = [message.data for message in await (await direct.queue("flap-many")).peek(100_000)]
        assert sorted(values) == list(range(n))
        async with await (await direct.stream("flap-records", partitions=2)).reader("first") as reader:
            records = await reader.get_many(100_000, 0)
        assert sorted(record.data for record in records) == list(range(n // 10))


@pytest.mark.row("S4-23", "S2-43")
def test_a_subscription_goes_on_over_cuts_and_refusals(server: ServerProcess, between: Flapping) -> None:
    seen: Counter[int] = Counter()
    with (
        rookery.connect(url(server.http)) as direct,
        rookery.connect(url(between.port), retry=QUICK) as client,
    ):
        jobs = direct.queue("flap-consume", lease_ms=2_000, max_attempts=0)
        with client.queue("flap-consume").subscribe(credit=10) as subscription:
            for turn in range(4):
                jobs.publish_many(list(range(turn * 50, turn * 50 + 50)))
                between.refuse(turn % 2 == 1)
                between.cut()
                between.refuse(False)
                while len(seen) < turn * 50 + 50:
                    delivery = subscription.get(60_000)
                    seen[delivery.data] += 1
                    try:
                        delivery.ack()
                    except errors.LeaseLost:
                        continue
        assert sorted(seen) == list(range(200))
        deadline = time.monotonic() + 30
        while (stats := jobs.stats())["ready"] + stats["leased"] and time.monotonic() < deadline:
            for delivery in jobs.claim(100, wait_ms=200):
                delivery.ack()
        assert stats["acked"] == 200


def test_a_broker_that_stalls_is_given_up_and_asked_again(server: ServerProcess, between: Flapping) -> None:
    patience = RetryPolicy(tries=50, base_ms=10, max_ms=100)
    with rookery.connect(url(between.port), retry=patience, timeout_ms=300) as client:
        jobs = client.queue("stall")
        between.stall()
        done = threading.Thread(target=jobs.publish, args=("late",), daemon=True)
        done.start()
        deadline = time.monotonic() + 30
        while between.connections < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert between.connections >= 4
        between.flow()
        done.join(30)
        assert not done.is_alive()
        assert [message.data for message in jobs.peek(10)] == ["late"]


def test_who_cannot_reach_a_broker_says_so(server: ServerProcess, between: Flapping) -> None:
    between.refuse(True)
    with (
        pytest.raises(errors.BrokerUnreachable, match=r"GET http://127\.0\.0\.1:\d+/api/v1/stats failed 3 times"),
        rookery.connect(url(between.port), retry=RetryPolicy(tries=2, base_ms=1)),
    ):
        pass


def test_the_next_endpoint_is_tried(server: ServerProcess, between: Flapping) -> None:
    between.refuse(True)
    both = f"{url(between.port)},{url(server.http)}"
    with rookery.connect(both, retry=RetryPolicy(tries=3, base_ms=1)) as client:
        assert client.tenant == "default"


@pytest.mark.row("S4-23")
def test_what_was_declared_is_declared_again_by_a_broker_that_forgot(tmp_path: Path) -> None:
    flags = ("--api-key", KEY, "--store-backend", "memory")
    got: list[object] = []
    with (
        serving(tmp_path, *flags) as first,
        flapping(first.http) as between,
        rookery.connect(url(between.port), retry=QUICK) as client,
    ):
        client.consume("orders", "topic", "billing", "order.*", got.append)
        news = client.subscribe("news.#")
        exchange = client.exchange("orders", "topic")
        exchange.publish("order.new", 1)
        _until(lambda: got == [1])
        first.signal(signal.SIGKILL)
        first.wait()
        with serving(tmp_path, *flags) as second:
            between.target = second.http
            between.cut()
            # consumer, exchange and topic are all back
            _until(lambda: _tries(lambda: exchange.publish("order.new", 2, mandatory=True)))
            _until(lambda: 2 in got)
            _until(lambda: _heard(client, news))


def test_all_that_meet_a_broker_that_forgot_wait_for_the_one_that_declares(server: ServerProcess) -> None:
    async def main() -> None:
        declares, go_on = asyncio.Event(), asyncio.Event()
        async with rookery.connect_async(url(server.http)) as client, rookery.connect_async(url(server.http)) as other:
            exchange = await client.define_queue_and_exchange("forgotten", "topic", "forgotten", "order.*")
            ask = client.transport.request

            async def gated(method: str, path: str, *arguments: Any, **more: Any) -> Any:
                if method == "PUT":
                    declares.set()
                    await go_on.wait()
                return await ask(method, path, *arguments, **more)

            client.transport.request = gated  # type: ignore[method-assign]
            await (await other.exchange("forgotten", "topic")).delete()
            await (await other.queue("forgotten")).delete()
            client.transport.breaks += 1
            publishing = asyncio.create_task(exchange.publish("order.new", 1, mandatory=True))
            await declares.wait()
            # meets the same broker while the publisher still declares
            consuming = asyncio.create_task(client_subscription(client))
            await asyncio.sleep(0.2)
            assert not consuming.done()
            go_on.set()
            await publishing
            assert await consuming == 1

    async def client_subscription(client: rookery.AsyncClient) -> object:
        async with await AsyncQueue(client._link, "forgotten").subscribe() as subscription:
            delivery = await subscription.get(30_000)
            await delivery.ack()
            return delivery.data

    asyncio.run(main())


def _reached(sent: list[int], goal: int) -> bool:
    return len(sent) >= goal


def _heard(client: rookery.Client, news: Any) -> bool:
    client.publish("news.today", "again")
    try:
        return news.get(500) is not None
    except TimeoutError:
        return False


def _tries(work: Callable[[], object]) -> bool:
    try:
        work()
    except errors.Unroutable:
        return False
    return True


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_kill_9_while_publishing_and_consuming_loses_nothing_acked(tmp_path: Path) -> None:
    """Publishes happen once by their keys; what was answered is there; what was acked does not come again."""
    data = ("--api-key", KEY, "--data-dir", str(tmp_path / "data"))
    acked: Counter[int] = Counter()
    seen: set[int] = set()
    sent: list[int] = []
    stop = threading.Event()
    with flapping(0) as between:
        process = ServerProcess(tmp_path, *data)
        between.target = process.http
        try:
            with rookery.connect(url(between.port), retry=QUICK) as client:
                jobs = client.queue("jobs", lease_ms=3_000, max_attempts=0)

                def publish() -> None:
                    n = 0
                    while not stop.is_set():
                        jobs.publish(n)
                        sent.append(n)
                        n += 1

                def consume() -> None:
                    with client.queue("jobs").subscribe(credit=5) as subscription:
                        while not stop.is_set():
                            for delivery in subscription.get_many(5, 200):
                                seen.add(delivery.data)
                                try:
                                    delivery.ack()
                                except errors.LeaseLost:
                                    # the broker died with it: it may have been acked, or come again
                                    continue
                                acked[delivery.data] += 1

                threads = [threading.Thread(target=work, daemon=True) for work in (publish, consume)]
                for thread in threads:
                    thread.start()
                for _ in range(2):
                    goal = len(sent) + 20
                    _until(partial(_reached, sent, goal))
                    process.signal(signal.SIGKILL)
                    process.wait()
                    process = ServerProcess(tmp_path, *data)
                    between.target = process.http
                _until(lambda: len(sent) > 100)
                stop.set()
                for thread in threads:
                    thread.join(60)
                    assert not thread.is_alive()
                left: Counter[int] = Counter()
                _until(lambda: not client.queue("jobs").stats()["leased"])
                left.update(message.data for message in jobs.peek(100_000))
        finally:
            process.process.kill()
            process.wait()
    assert sent == list(range(len(sent)))
    # nothing is there twice, nothing that was answered is nowhere, and nothing that was acked came again
    assert max(left.values(), default=1) == 1
    assert set(sent) <= seen | set(left)
    assert max(acked.values(), default=1) == 1
    assert not set(left) & set(acked)


@pytest.mark.row("S4-26")
def test_duplicates_by_id_are_kept_from_a_consumer_that_wants_so(server: ServerProcess) -> None:
    with rookery.connect(url(server.http)) as client:
        jobs = client.queue("once")
        with jobs.subscribe(credit=1, skip_duplicates=True) as subscription:
            jobs.publish_many([rookery.Message(n, id=f"id-{n}") for n in (1, 1, 2, 1, 2, 3)])
            seen = []
            while 3 not in seen:
                delivery = subscription.get(10_000)
                seen.append(delivery.data)
                delivery.ack()
        assert seen == [1, 2, 3]
        _until(lambda: jobs.stats()["acked"] == 6)
        # one that failed was not dealt with, so it comes again
        with jobs.subscribe(credit=1, skip_duplicates=True) as subscription:
            jobs.publish(rookery.Message("x", id="x"))
            subscription.get(10_000).retry(0)
            assert subscription.get(10_000).attempt == 2


@pytest.mark.row("S4-24", "S4-25")
def test_a_producer_and_a_consumer_in_one_call_each(server: ServerProcess) -> None:
    got: list[object] = []
    with rookery.connect(url(server.http)) as client:
        client.consume("shop", "direct", "invoices", "paid", got.append)
        producer = client.define_queue_and_exchange("shop", "direct", "invoices", "paid")
        producer.publish("paid", {"order": 7})
        _until(lambda: got == [{"order": 7}])
        empty: list[Any] = [("", "direct", "q", "k"), ("x", "", "q", "k"), ("x", "direct", "", "k")]
        empty.append(("x", "direct", "q", ""))
        for arguments in empty:
            with pytest.raises(errors.InvalidArgument):
                exchange, kind, queue, key = arguments
                client.consume(exchange, kind, queue, key, got.append)
        with pytest.raises(errors.InvalidArgument):
            client.define_queue_and_exchange("", "direct", "q", "k")


@pytest.mark.row("S4-36")
def test_a_policy_says_how_often_a_message_is_tried(server: ServerProcess) -> None:
    calls: list[int] = []

    def fails(n: int) -> None:
        calls.append(n)
        raise ValueError("no")

    with rookery.connect(url(server.http)) as client:
        policy = RetryPolicy(tries=2, base_ms=1, max_ms=2)
        client.consume("patient", "direct", "patient", "k", fails, retry=policy)
        client.exchange("patient", "direct").publish("k", 5)
        _until(lambda: client.queue("patient").stats()["dead"] == 1)
        assert calls == [5, 5, 5]
        (letter,) = client.queue("patient.DLQ").peek()
        assert letter.reason == "ValueError: no"


def test_administration(server: ServerProcess) -> None:
    with rookery.connect(url(server.http)) as client:
        client.admin.create_tenant("shop", queues_max=10)
        assert "shop" in [tenant["name"] for tenant in client.admin.tenants()]
        key = client.admin.create_key("shop")
        with rookery.connect(f"http://127.0.0.1:{server.http}", api_key=key) as other:
            assert other.tenant == "shop"
            assert other.queues() == []
            with pytest.raises(errors.AccessRefused):
                other.admin.tenants()
        client.admin.revoke_key(key.partition(".")[0])
        with pytest.raises(errors.Unauthenticated), rookery.connect(f"http://127.0.0.1:{server.http}", api_key=key):
            pass
        assert [each["kid"] for each in client.admin.keys("shop")] == []
        client.admin.set_user("anna", "s3cret-word", tenants={"shop": {"configure": "", "write": ".*", "read": ".*"}})
        assert "anna" in [user["name"] for user in client.admin.users()]
        client.admin.delete_user("anna")
        assert client.admin.connections()
        client.admin.delete_tenant("shop")


def test_over_tls_only_who_is_trusted_is_spoken_to(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with serving(tmp_path, "--api-key", KEY, "--http-tls-port", "0", *tls) as server:
        place = f"https://localhost:{server.port('https')}"
        with rookery.connect(place, api_key=KEY, ca_file=str(tmp_path / "ca.pem")) as client:
            jobs = client.queue("jobs")
            with jobs.subscribe() as subscription:
                jobs.publish("over TLS")
                assert subscription.get(10_000).data == "over TLS"
        with (
            pytest.raises(errors.BrokerUnreachable, match="CERTIFICATE_VERIFY_FAILED"),
            rookery.connect(place, api_key=KEY, retry=RetryPolicy(tries=0)),
        ):
            pass


async def test_over_tls_in_an_event_loop(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with serving(tmp_path, "--api-key", KEY, "--http-tls-port", "0", *tls) as server:
        place = f"https://localhost:{server.port('https')}"
        async with rookery.connect_async(place, api_key=KEY, tls=context) as client:
            jobs = await client.queue("jobs")
            await jobs.publish_many([b"x" * 100_000] * 20)
            deliveries = await jobs.claim(20)
            assert sum(len(delivery.body) for delivery in deliveries) == 2_000_000
            await jobs.settle(deliveries)


def test_lines_of_json_are_read_as_they_come(server: ServerProcess) -> None:
    with Transport(url(server.http)) as transport:
        with transport.open("GET", "/api/v1/queues") as answer:
            assert (next(iter(answer)))["next"] is None
        with pytest.raises(errors.QueueNotFound):
            transport.open("GET", "/api/v1/queues/nowhere")

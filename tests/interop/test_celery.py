"""Celery, unmodified, against a real server: its workers are processes of their own, its clients are the tests."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu.pools
import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from tests.interop.celery_client import client_of, eventually, lines, url_of
from tests.interop.celery_worker import PATIENCE_SEC, Worker
from tests.interop.redis_server import redis_running
from tests.interop.server import ServerProcess, serving

Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def broker(server: ServerProcess) -> Iterator[str]:
    yield url_of(server)
    # shared by all applications of a process
    kombu.pools.reset()


@pytest.fixture(scope="module")
def start(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    workers: list[Worker] = []

    def begin(name: str, *flags: str, broker: str = broker, **options: Any) -> Worker:
        workers.append(Worker(tmp_path_factory.mktemp(name), name, broker, *flags, **options))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="module")
def solo(start: Start) -> Worker:
    return start("solo")


@pytest.fixture(scope="module")
def prefork(start: Start) -> Worker:
    return start("prefork", "-c", "2", pool="prefork")


@pytest.fixture(scope="module")
def client(broker: str) -> Iterator[Celery]:
    with client_of(broker) as app:
        yield app


def release(path: Path) -> None:
    """Let the tasks `hold` of this path end."""
    path.with_name(path.name + ".go").touch()


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_task_answers(client: Celery, request: pytest.FixtureRequest, pool: str) -> None:
    worker = request.getfixturevalue(pool)
    assert client.send_task("add", (2, 3), queue=worker.name).get(timeout=PATIENCE_SEC) == 5


def test_every_one_of_many_tasks_answers(client: Celery, prefork: Worker) -> None:
    results = [client.send_task("add", (n, 1), queue=prefork.name) for n in range(200)]
    assert [result.get(timeout=PATIENCE_SEC) for result in results] == list(range(1, 201))


def test_an_error_comes_back(client: Celery, prefork: Worker) -> None:
    with pytest.raises(ValueError, match="no such thing"):
        client.send_task("fail", ("no such thing",), queue=prefork.name).get(timeout=PATIENCE_SEC)


def test_a_countdown_is_kept(client: Celery, solo: Worker) -> None:
    sent = time.time()
    ran = client.send_task("when", countdown=1, queue=solo.name).get(timeout=PATIENCE_SEC)
    assert ran >= sent + 1


def test_an_eta_is_kept(client: Celery, prefork: Worker) -> None:
    eta = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    ran = client.send_task("when", eta=eta, queue=prefork.name).get(timeout=PATIENCE_SEC)
    assert ran >= eta.timestamp()


def test_tasks_that_wait_for_their_time_hold_up_nobody(client: Celery, prefork: Worker) -> None:
    # more than the worker's prefetch: it raises its credit for each task that it puts aside
    for _ in range(5):
        client.send_task("when", countdown=3600, queue=prefork.name)
    assert client.send_task("add", (1, 1), queue=prefork.name).get(timeout=PATIENCE_SEC) == 2


def test_retries_until_it_works(client: Celery, solo: Worker) -> None:
    result = client.send_task("flaky", (2, 0), queue=solo.name)
    assert result.get(timeout=PATIENCE_SEC) == 2


def test_retries_end(client: Celery, solo: Worker) -> None:
    result = client.send_task("flaky", (3, 0), queue=solo.name)
    with pytest.raises(ValueError, match="still failing"):
        result.get(timeout=PATIENCE_SEC)


def test_what_a_killed_worker_had_not_acked_another_does(client: Celery, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "held"
    victim = start("late", "-c", "1", "--without-mingle", pool="prefork")
    result = client.send_task("hold", (str(path),), queue="late")
    eventually(lambda: lines(path))
    victim.kill()
    release(path)
    start("late", "--without-mingle")
    assert result.get(timeout=PATIENCE_SEC) is True
    assert len(set(lines(path))) == 2


def test_what_a_killed_process_of_the_pool_did_is_done_again(client: Celery, prefork: Worker, tmp_path: Path) -> None:
    path = tmp_path / "held"
    result = client.send_task("hold", (str(path),), queue=prefork.name)
    (pid,) = eventually(lambda: lines(path))
    os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: len(lines(path)) == 2)
    release(path)
    assert result.get(timeout=PATIENCE_SEC) is True


def test_priorities(broker: str, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "order"
    with client_of(broker, settings="priority") as client:
        results = [
            client.send_task("note", (str(path), str(priority)), queue="ranked", priority=priority)
            for priority in (0, 9, 3, 10, 3)
        ]
        start("ranked", "--without-mingle", settings="priority")
        for result in results:
            result.get(timeout=PATIENCE_SEC)
    assert lines(path) == ["10", "9", "3", "3", "0"]


def test_a_group_over_rpc(client: Celery, prefork: Worker) -> None:
    tasks = [client.signature("add", (n, n), queue=prefork.name) for n in range(20)]
    assert group(tasks, app=client)().get(timeout=PATIENCE_SEC) == [2 * n for n in range(20)]


def test_a_chain_over_two_workers(client: Celery, solo: Worker, prefork: Worker) -> None:
    steps = chain(
        client.signature("add", (1, 2), queue=solo.name),
        client.signature("add", (10,), queue=prefork.name),
        client.signature("add", (100,), queue=solo.name),
        app=client,
    )
    assert steps().get(timeout=PATIENCE_SEC) == 113


@pytest.fixture(scope="module")
def redis(need_program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_running(need_program("redis-server"), tmp_path_factory.mktemp("redis")) as url:
        yield url


def test_a_chord_with_its_counts_in_redis(broker: str, redis: str, start: Start) -> None:
    worker = start("chords", "-c", "2", "--without-mingle", pool="prefork", backend=redis)
    with client_of(broker, redis) as client:
        header = [client.signature("add", (n, n), queue=worker.name) for n in range(20)]
        body = client.signature("total", queue=worker.name)
        assert chord(header, app=client)(body).get(timeout=PATIENCE_SEC) == 380


def test_inspect_finds_the_workers(client: Celery, solo: Worker, prefork: Worker) -> None:
    nodes = [solo.node, prefork.node]
    answers = client.control.inspect(destination=nodes, timeout=PATIENCE_SEC, limit=2).ping()
    assert answers == {node: {"ok": "pong"} for node in nodes}


def test_inspect_at_the_command_line(broker: str, prefork: Worker) -> None:
    command = [sys.executable, "-m", "celery", "-b", broker, "inspect", "ping", "-d", prefork.node, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SEC, check=True)
    assert json.loads(said.stdout) == {prefork.node: {"ok": "pong"}}


def ask(client: Celery, worker: Worker) -> Any:
    return client.control.inspect(destination=[worker.node], timeout=PATIENCE_SEC, limit=1)


def test_inspect_tells_what_a_worker_consumes(client: Celery, prefork: Worker) -> None:
    (queue,) = ask(client, prefork).active_queues()[prefork.node]
    assert (queue["name"], queue["durable"]) == (prefork.name, True)


def test_inspect_tells_what_runs(client: Celery, prefork: Worker, tmp_path: Path) -> None:
    path = tmp_path / "held"
    result = client.send_task("hold", (str(path),), queue=prefork.name)
    eventually(lambda: lines(path))
    # the child may have begun before its parent has heard of it
    (active,) = eventually(lambda: ask(client, prefork).active()[prefork.node])
    release(path)
    assert (active["id"], active["name"]) == (result.id, "hold")
    assert active["delivery_info"]["routing_key"] == prefork.name
    assert result.get(timeout=PATIENCE_SEC) is False


def test_inspect_tells_what_waits_for_its_time(client: Celery, solo: Worker) -> None:
    ids = {client.send_task("when", countdown=3600, queue=solo.name).id for _ in range(4)}
    scheduled = eventually(
        lambda: len(answer := ask(client, solo).scheduled()[solo.node]) == len(ids) and answer,
    )
    assert {each["request"]["id"] for each in scheduled} == ids


def test_a_waiting_task_is_revoked(client: Celery, solo: Worker) -> None:
    result = client.send_task("when", countdown=1, queue=solo.name)
    client.control.revoke(result.id, destination=[solo.node], reply=True, timeout=PATIENCE_SEC, limit=1)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE_SEC)


def test_a_running_task_is_terminated(client: Celery, prefork: Worker, tmp_path: Path) -> None:
    path = tmp_path / "held"
    result = client.send_task("hold", (str(path),), queue=prefork.name)
    eventually(lambda: lines(path))
    client.control.revoke(result.id, terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE_SEC)


def test_events(client: Celery, prefork: Worker) -> None:
    told: list[str] = []
    sent: list[str] = []

    def alive(_event: dict[str, Any]) -> None:
        """A worker answered the receiver's call, so the receiver listens."""
        if not sent:
            sent.append(client.send_task("add", (1, 1), queue=prefork.name).id)

    def tell(event: dict[str, Any]) -> None:
        if event.get("uuid") in sent:
            told.append(event["type"])
        receiver.should_stop = "task-succeeded" in told

    with client.connection_for_read() as connection:
        receiver = client.events.Receiver(connection, handlers={"worker-heartbeat": alive, "*": tell})
        receiver.capture(timeout=PATIENCE_SEC)
    assert sorted(told) == ["task-received", "task-sent", "task-started", "task-succeeded"]


def test_a_worker_learns_of_another_queue(client: Celery, prefork: Worker) -> None:
    told = {"destination": [prefork.node], "reply": True, "timeout": PATIENCE_SEC, "limit": 1}
    client.control.add_consumer("more", **told)
    assert client.send_task("add", (3, 4), queue="more").get(timeout=PATIENCE_SEC) == 7
    client.control.cancel_consumer("more", **told)
    eventually(lambda: [each["name"] for each in ask(client, prefork).active_queues()[prefork.node]] == [prefork.name])


def test_autoscale(client: Celery, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "held"
    worker = start("scaled", "--autoscale", "3,1", "--without-mingle", pool="prefork")
    results = [client.send_task("hold", (str(path),), queue=worker.name) for _ in range(3)]
    eventually(lambda: len(set(lines(path))) == 3)
    release(path)
    for result in results:
        result.get(timeout=PATIENCE_SEC)
    eventually(lambda: len(ask(client, worker).stats()[worker.node]["pool"]["processes"]) == 1)


def test_a_worker_that_is_told_to_stop_finishes_its_task(client: Celery, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "held"
    worker = start("leaving", "-c", "1", "--without-mingle", pool="prefork")
    result = client.send_task("hold", (str(path),), queue=worker.name)
    eventually(lambda: lines(path))
    worker.process.send_signal(signal.SIGTERM)
    worker.until("Warm shutdown")
    release(path)
    assert result.get(timeout=PATIENCE_SEC) is False
    assert worker.stop() == 0


@pytest.fixture(scope="module")
def quorum(start: Start) -> Worker:
    """It declares the 28 exchanges and queues of native delayed delivery."""
    return start("quorum-tasks", "--without-mingle", settings="quorum")


@pytest.fixture
def delaying(broker: str, quorum: Worker) -> Iterator[Celery]:
    with client_of(broker, settings="quorum") as app:
        yield app


def test_native_delays_are_kept(delaying: Celery) -> None:
    sent = time.time()
    results = {seconds: delaying.send_task("when", countdown=seconds) for seconds in (3, 2, 1)}
    ran = {seconds: result.get(timeout=PATIENCE_SEC) for seconds, result in results.items()}
    assert all(ran[seconds] >= sent + seconds for seconds in ran)
    assert ran[1] < ran[3]


def test_a_native_delay_is_the_brokers(delaying: Celery, quorum: Worker) -> None:
    delaying.send_task("when", countdown=1000)
    with delaying.connection_for_read() as connection:
        channel = connection.default_channel
        # the highest bit of 1000 is 512
        assert channel.queue_declare("celery_delayed_9", passive=True).message_count == 1
        assert ask(delaying, quorum).scheduled()[quorum.node] == []
        assert channel.queue_purge("celery_delayed_9") == 1


def test_a_retry_with_a_native_delay(delaying: Celery) -> None:
    assert delaying.send_task("flaky", (1, 1)).get(timeout=PATIENCE_SEC) == 1


def test_a_worker_comes_back_to_a_broker_that_was_killed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "done"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with serving(tmp_path, "--amqp-port", port) as server:
        worker = start("loyal", "--without-mingle", broker=url_of(server))
        server.signal(signal.SIGKILL)
        server.wait()
        worker.until("Connection to broker lost")
    with serving(tmp_path, "--amqp-port", port) as server, client_of(url_of(server)) as client:
        client.send_task("note", (str(path), "done"), queue="loyal")
        assert eventually(lambda: lines(path)) == ["done"]

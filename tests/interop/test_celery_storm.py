"""Celery's tasks survive the deaths of workers and of the broker: each confirmed task is done at least once."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu.pools
import pytest
from celery import Celery

from tests.interop.celery_client import client_of, eventually, lines, url_of
from tests.interop.celery_worker import Worker
from tests.interop.server import serving

TASKS = 3000
DEATHS = 5
LONG_PATIENCE_SEC = 180

pytestmark = pytest.mark.long


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Worker]]:
    workers: list[Worker] = []

    def begin(broker: str) -> Worker:
        name, flags = f"storm{len(workers)}", ("-c", "2", "--without-mingle")
        workers.append(Worker(tmp_path, name, broker, *flags, queue="storm", pool="prefork", settings="late"))
        return workers[-1]

    yield begin
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()
    kombu.pools.reset()


def send(client: Celery, path: Path, numbers: range) -> None:
    for number in numbers:
        client.send_task("note", (str(path), str(number)), queue="storm", ignore_result=True)


def all_done(path: Path) -> bool:
    return set(lines(path)) == {str(number) for number in range(TASKS)}


def test_workers_are_killed_one_after_another(tmp_path: Path, start: Callable[[str], Worker]) -> None:
    path = tmp_path / "done"
    with serving(tmp_path) as server, client_of(url_of(server), settings="late") as client:
        workers = [start(url_of(server)) for _ in range(2)]
        step = TASKS // DEATHS
        for death in range(DEATHS):
            send(client, path, range(death * step, (death + 1) * step))
            workers.pop(0).kill()
            workers.append(start(url_of(server)))
        eventually(lambda: all_done(path), LONG_PATIENCE_SEC)
        with client.connection_for_read() as connection:
            eventually(lambda: connection.default_channel.queue_declare("storm", passive=True).message_count == 0)


def test_the_broker_is_killed_again_and_again(tmp_path: Path, start: Callable[[str], Worker]) -> None:
    path = tmp_path / "done"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    started = False
    step = TASKS // DEATHS
    for death in range(DEATHS):
        with serving(tmp_path, "--amqp-port", port) as server, client_of(url_of(server), settings="late") as client:
            if not started:
                start(url_of(server))
                started = True
            send(client, path, range(death * step, (death + 1) * step))
            server.signal(signal.SIGKILL)
            server.wait()
    with serving(tmp_path, "--amqp-port", port):
        eventually(lambda: all_done(path), LONG_PATIENCE_SEC)

"""A real server under crafted Arrow bodies: each fails alone, and everybody else is served meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.interop.server import ServerProcess, serving
from tests.interop.spark_world import KEY, World
from tests.wire import arrow_bodies
from tests.wire.arrow_bodies import ipc

ARROW = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/vnd.apache.arrow.stream"}
GROWTH_MAX_KB = 96 << 10

ATTACKS: dict[str, tuple[Callable[[], bytes], int]] = {
    "segfault": (lambda: arrow_bodies.false_offset(1 << 30), 400),
    "memory": (lambda: arrow_bodies.false_offset(4_096), 400),
    "headers": (lambda: arrow_bodies.false_list(1 << 28), 400),
    "index": (lambda: arrow_bodies.false_index(1 << 28), 400),
    "negative": (lambda: arrow_bodies.false_length(-3), 400),
    "zstd": (lambda: arrow_bodies.bomb("zstd", 1 << 28), 413),
    "lz4": (lambda: arrow_bodies.bomb("lz4", 1 << 28), 413),
    "stated": (lambda: arrow_bodies.lying_bomb("zstd", 1 << 20, 1 << 40), 413),
    "dictionary": (lambda: arrow_bodies.repeated(1 << 20, 1_000_000), 413),
    "views": (lambda: arrow_bodies.repeated_views(1 << 20, 10_000), 413),
    "counts": (lambda: arrow_bodies.endless_headers((1 << 31) - 1), 413),
}


def stage(world: World, body: bytes) -> requests.Response:
    return requests.post(f"{world.url}/api/v1/streams/s/stage", data=body, headers=ARROW, timeout=120)


def peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


def metric(world: World, name: str) -> int:
    text = requests.get(f"{world.url}/metrics", headers=ARROW, timeout=30).text
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                state = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[1]) == pid and state[0] != "Z":
                found.append(int(path.name))
    return found


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with serving(tmp_path, "--api-key", KEY) as made:
        yield made


def test_a_server_survives_every_crafted_body_and_serves_others_meanwhile(server: ServerProcess) -> None:
    world = World(server.http)
    world.stream("s")
    assert stage(world, ipc(value=[b"first"])).status_code == 201
    before = peak_kb(server.process.pid)
    served = 0
    over = threading.Event()

    def others() -> None:
        nonlocal served
        while not over.is_set():
            world.call("POST", "/queues/q/publish", {"message": served})
            served += 1

    def reached(goal: int) -> bool:
        return served >= goal

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for name, (make, status) in ATTACKS.items():
            body = make()
            answer = stage(world, body)
            assert answer.status_code == status, (name, answer.text)
            assert answer.json()["argument"] == "body", (name, answer.text)
            goal = served + 1
            until(partial(reached, goal))
    finally:
        over.set()
        thread.join(60)
    assert peak_kb(server.process.pid) - before < GROWTH_MAX_KB
    assert stage(world, ipc(value=[b"last"])).json()["rows"] == 1
    assert world.call("GET", "/chunks")["chunks"][0]["rows"] == 1
    assert server.stop() == 0


def test_bombs_at_the_same_time_take_no_memory_of_the_server(server: ServerProcess) -> None:
    world = World(server.http)
    world.stream("s")
    stage(world, ipc(value=[b"first"]))
    before = peak_kb(server.process.pid)
    body = arrow_bodies.bomb("zstd", 1 << 28)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(stage(world, body).status_code)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == [413] * 12
    assert peak_kb(server.process.pid) - before < GROWTH_MAX_KB
    assert server.stop() == 0


def test_a_decoder_that_is_killed_fails_that_request_only(server: ServerProcess) -> None:
    world = World(server.http)
    world.stream("s")
    stage(world, ipc(value=[b"first"]))
    (decoder,) = children(server.process.pid)
    answers: list[requests.Response] = []
    slow = arrow_bodies.toilsome(50)
    thread = threading.Thread(target=lambda: answers.append(stage(world, slow)))
    thread.start()
    until(lambda: children(decoder))
    os.kill(children(decoder)[0], signal.SIGKILL)
    thread.join(120)
    assert (answers[0].status_code, answers[0].json()["code"]) == (503, "decoding_failed")
    assert "Retry-After" in answers[0].headers
    assert server.until("arrow body")["reason"] == "exit -9"
    assert metric(world, "rookery_arrow_failures_total") == 1
    os.kill(decoder, signal.SIGKILL)
    assert stage(world, ipc(value=[b"after"])).status_code == 201
    assert children(server.process.pid) != [decoder]
    assert server.stop() == 0


def test_the_decoder_ends_with_the_server_also_when_that_is_killed(server: ServerProcess) -> None:
    world = World(server.http)
    world.stream("s")
    stage(world, ipc(value=[b"first"]))
    (decoder,) = children(server.process.pid)
    server.signal(signal.SIGKILL)
    server.wait()
    until(lambda: not Path(f"/proc/{decoder}").exists() or not Path(f"/proc/{decoder}/cmdline").read_bytes())


def test_one_tenants_bodies_do_not_hold_up_history(server: ServerProcess) -> None:
    """As many slow bodies as are allowed to wait: records are read meanwhile, and what is too much is refused."""
    world = World(server.http)
    world.stream("s", 10)
    slow = arrow_bodies.toilsome(30)
    answers: list[int] = []

    def attack() -> None:
        with contextlib.suppress(requests.RequestException):  # the server is killed in the end
            answers.append(stage(world, slow).status_code)

    threads = [threading.Thread(target=attack) for _ in range(70)]
    for thread in threads:
        thread.start()
    until(lambda: 429 in answers)
    done = len(answers)
    accept = {**ARROW, "Accept": ARROW["Content-Type"]}
    table = requests.get(f"{world.url}/api/v1/streams/s/records", headers=accept, timeout=60)
    assert table.status_code == 200
    # the bodies were not all done before that
    assert done < len(threads)
    server.signal(signal.SIGKILL)
    server.wait()
    for thread in threads:
        thread.join(60)
    assert set(answers) <= {201, 429}

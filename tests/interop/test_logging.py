"""A server whose log cannot be written still answers, and still ends when it is told to."""

from __future__ import annotations

import base64
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import rookery

KEY = "a-key-that-nobody-guesses-4711"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes not a byte more, and of which nobody reads."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        pass
    fcntl.fcntl(writing, fcntl.F_SETFL, 0)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def command(port: int, *flags: str) -> list[str]:
    ports = ["--http-port", str(port), "--amqp-port", "off", "--line-port", "off"]
    options = ["--host", "127.0.0.1", "--log-level", "debug", "--login-failures-max", "0"]
    return [sys.executable, "-m", "rookery", "serve", *ports, *options, *flags]


def begin(folder: Path, port: int, kind: str, *flags: str) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROOKERY_")}
    environ |= {"PYTHONPATH": str(Path(rookery.__file__).parents[1]), "API_KEY": KEY}
    if kind == "closed":
        shell = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command(port, *flags)]
        return subprocess.Popen(shell, cwd=folder, env=environ)
    if kind == "disk full":
        with open("/dev/full", "wb") as full:  # noqa: PTH123
            return subprocess.Popen(command(port, *flags), cwd=folder, env=environ, stderr=full, stdout=full)
    with full_pipe() as (_, writing):
        process = subprocess.Popen(command(port, *flags), cwd=folder, env=environ, stderr=writing, stdout=writing)
        if kind == "not read":
            # somebody must hold the reading end, or the pipe would be broken and not full
            process.kept = os.dup(_)  # type: ignore[attr-defined]
        return process


def until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=20)
            return
        except httpx.ConnectError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


@pytest.mark.parametrize("kind", ["not read", "broken", "closed", "disk full"])
def test_requests_are_answered_whatever_becomes_of_the_log(tmp_path: Path, kind: str) -> None:
    port = free_port()
    process = begin(tmp_path, port, kind)
    try:
        until_up(port, process)
        base = f"http://127.0.0.1:{port}"
        good = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=base, trust_env=False, timeout=20) as client:
            for number in range(300):
                # each is logged: as wrong, with as much text as may be, or since everything is at level debug
                bad = client.get(f"/api/v1/stats?n={number}", headers={"Authorization": "Bearer wrong"})
                assert bad.status_code == 401
                name = base64.b64encode(b"\xed\xb3\xa9:x").decode()
                client.get("/api/v1/stats", headers={"Authorization": f"Basic {name}"})
                made = client.post("/api/v1/queues/q/publish", json={"message": "x"}, headers=good)
                assert made.status_code < 300, made.text
            shown = client.get("/metrics", headers=good).text
        (dropped,) = [line for line in shown.splitlines() if line.startswith("rookery_log_lines_dropped_total")]
        if kind != "closed":  # then they go to /dev/null
            assert process.poll() is None
            assert int(dropped.rpartition(" ")[2]) >= (0 if kind == "not read" else 100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if hasattr(process, "kept"):
            os.close(process.kept)


def test_a_server_without_streams_gives_their_numbers_to_no_file(tmp_path: Path) -> None:
    port = free_port()
    process = begin(tmp_path, port, "closed")
    try:
        until_up(port, process)
        targets = {number: Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in (0, 1, 2)}
        assert {str(target) for target in targets.values()} == {"/dev/null"}
    finally:
        process.kill()
        process.wait()

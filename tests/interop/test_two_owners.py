"""Two real servers on one data directory: the second is refused, or takes over, and the journal stays whole."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path

import httpx

import rookery
from rookery.care.repair import inspect
from tests.interop.server import ServerProcess
from tests.wire.api_client import API, ok

KEY = "admin-key"
DATA = "data"

UNLOCKED = """
    import sys
    from rookery.store import disk

    # a file system whose locks keep nobody out
    disk.try_lock = lambda fd: True
    sys.argv[0] = "rookery"
    from rookery.cli import main
    main()
"""


class UnlockedServer(ServerProcess):
    """A server that gets no lock and believes it has one."""

    program = ("-c", textwrap.dedent(UNLOCKED))


def connect(server: ServerProcess) -> httpx.Client:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.Client(
        base_url=f"http://127.0.0.1:{server.http}", headers=headers, timeout=60, trust_env=False, verify=False
    )


class Publisher:
    """Publishes numbers one after the other until the server refuses or is gone; keeps those that were confirmed."""

    def __init__(self, server: ServerProcess, first: int) -> None:
        self.confirmed: list[int] = []
        self.tried: list[int] = []
        self.enough = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server, first), daemon=True)
        self._thread.start()

    def _run(self, server: ServerProcess, first: int) -> None:
        with connect(server) as client:
            number = first
            while not self._over.is_set():
                number += 1
                self.tried.append(number)
                try:
                    answer = client.post(f"{API}/queues/q/messages", json={"message": number})
                except httpx.HTTPError:
                    break
                if answer.status_code != 201:
                    break
                self.confirmed.append(number)
                if len(self.confirmed) >= 20:
                    self.enough.set()
        self.enough.set()

    def wait(self) -> None:
        assert self.enough.wait(120)
        assert len(self.confirmed) >= 20

    def end(self) -> None:
        """Wait until it has ended by itself."""
        self._thread.join(120)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self._over.set()
        self.end()


def test_a_second_server_is_refused_without_the_lock_file_too(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--api-key", KEY, "--data-dir", DATA)
    try:
        publisher = Publisher(server, 0)
        publisher.wait()
        (tmp_path / DATA / "lock").unlink()
        environ = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
        command = [sys.executable, "-m", "rookery", "serve", "--http-port", "0", "--amqp-port", "0", "--line-port", "0"]
        second = subprocess.run(
            [*command, "--api-key", KEY, "--data-dir", DATA],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode != 0
        assert "in use by another process" in second.stderr
        publisher.stop()
        assert len(publisher.tried) == len(publisher.confirmed)
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()
    assert inspect(tmp_path / DATA).sound


def test_a_second_server_that_no_lock_keeps_out_takes_over(tmp_path: Path) -> None:
    servers = [UnlockedServer(tmp_path, "--api-key", KEY, "--data-dir", DATA)]
    try:
        first = Publisher(servers[0], 0)
        first.wait()
        (tmp_path / DATA / "lock").unlink()
        servers.append(UnlockedServer(tmp_path, "--api-key", KEY, "--data-dir", DATA))
        second = Publisher(servers[1], 1_000_000)
        second.wait()
        # the first notices with its next batch, says so, and ends
        first.end()
        assert servers[0].wait() == 1
        failed = servers[0].until("store_failed")
        assert failed["code"] == "fenced"
        assert "another process has taken over" in str(failed["text"])
        assert str(servers[0].until("stopped")["how"]).startswith("fenced")
        second.stop()
        assert servers[1].stop() == 0
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.process.kill()
                server.wait()
    assert inspect(tmp_path / DATA).sound
    found = everything(tmp_path)
    confirmed = first.confirmed + second.confirmed
    assert [number for number in confirmed if number not in found] == []
    assert [number for number, count in found.items() if count > 1] == []
    assert found.keys() <= {*first.tried, *second.tried}


def everything(folder: Path) -> Counter[int]:
    server = ServerProcess(folder, "--api-key", KEY, "--data-dir", DATA)
    found: Counter[int] = Counter()
    try:
        with connect(server) as client:
            while rows := ok(client.post(f"{API}/queues/q/claim", json={"max": 500, "ack": True}))["deliveries"]:
                found.update(row["message"] for row in rows)
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()
    return found

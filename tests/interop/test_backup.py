"""`rookery backup` and `rookery doctor` beside a server at work: the copy has what was confirmed before, and starts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.interop.server import ServerProcess, serving

PATIENCE_SEC = 30
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(server: ServerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))


def rookery(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rookery", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SEC
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Traffic:
    """Publishes 0, 1, 2 … with confirms to one queue, and in another connection takes and acks them in order."""

    def __init__(self, server: ServerProcess) -> None:
        self.confirmed = 0
        self.acked = 0
        self._ended = threading.Event()
        channel = connect(server).channel()
        channel.queue_declare("jobs", durable=True)
        channel.connection.close()
        self._threads = [threading.Thread(target=work, args=(server,)) for work in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def _publish(self, server: ServerProcess) -> None:
        channel = connect(server).channel()
        channel.confirm_delivery()
        while not self._ended.is_set():
            channel.basic_publish("", "jobs", b"%d " % self.confirmed + b"x" * 2000, PERSISTENT)
            self.confirmed += 1
        channel.connection.close()

    def _consume(self, server: ServerProcess) -> None:
        channel = connect(server).channel()
        while not self._ended.is_set():
            # some are left, so that there is something to find
            if self.confirmed - self.acked < 50:
                time.sleep(0.005)
                continue
            method, _, body = channel.basic_get("jobs")
            assert method is not None
            assert int(body.split()[0]) == self.acked
            self.acked += 1
            channel.basic_ack(method.delivery_tag)
        channel.connection.close()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_SEC)
            assert not thread.is_alive()


def numbers(server: ServerProcess) -> list[int]:
    connection = connect(server)
    channel = connection.channel()
    found = []
    while (got := channel.basic_get("jobs", auto_ack=True))[0] is not None:
        found.append(int(got[2].split()[0]))
    connection.close()
    return found


@pytest.mark.row("S1-53", "S3-6")
def test_a_backup_of_a_running_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    spans: list[tuple[int, int, Path]] = []
    with serving(tmp_path, "--data-dir", str(data)) as server:
        traffic = Traffic(server)
        for n in range(2):
            before = traffic.confirmed
            until(lambda: traffic.confirmed >= before + 100)  # noqa: B023
            acked, confirmed = traffic.acked, traffic.confirmed
            result = rookery("backup", "--json", "--data-dir", str(data), str(tmp_path / f"copy-{n}"))
            assert result.returncode == 0, result.stderr
            document: dict[str, Any] = json.loads(result.stdout)
            assert document["batches"] > 0
            # taken before and after: the copy is of a moment in between
            spans.append((confirmed, traffic.acked, tmp_path / f"copy-{n}"))
            assert traffic.acked >= acked
            looked = rookery("doctor", str(data))
            assert looked.returncode == 0, looked.stdout
        refused = rookery("doctor", "--repair", str(data))
        assert refused.returncode == 2
        assert f"process {server.process.pid}" in refused.stderr
        traffic.end()
        assert server.stop() == 0
    for confirmed, acked, copy in spans:
        assert rookery("doctor", str(copy)).returncode == 0
        with serving(tmp_path, "--data-dir", str(copy)) as server:
            found = numbers(server)
            assert server.stop() == 0
        assert found == list(range(found[0], found[-1] + 1))
        assert found[0] <= acked
        assert found[-1] >= confirmed - 1


def test_a_server_refuses_a_damaged_directory_until_it_is_repaired(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(tmp_path, "--data-dir", str(data)) as server:
        channel = connect(server).channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        for n in range(20):
            channel.basic_publish("", "jobs", b"%d number" % n, PERSISTENT)
        channel.connection.close()
        assert server.stop() == 0
    path = data / "00000001.log"
    content = bytearray(path.read_bytes())
    content[content.index(b"10 number") + 3] ^= 1
    path.write_bytes(content)
    flags = [
        "--host",
        "127.0.0.1",
        "--http-port",
        "off",
        "--amqp-port",
        "0",
        "--line-port",
        "off",
        "--data-dir",
        str(data),
    ]
    refused = rookery("serve", *flags)
    assert refused.returncode == 1
    offset = content.rindex(b"RKB1", 0, content.index(b"11 number"))
    assert f"{path} is damaged at offset" in refused.stderr
    assert f"rookery doctor --repair {data}" in refused.stderr
    assert int(refused.stderr.split("at offset ")[1].split(";")[0]) <= offset
    repaired = rookery("doctor", "--repair", str(data))
    assert repaired.returncode == 0, repaired.stderr
    with serving(tmp_path, "--data-dir", str(data)) as server:
        assert numbers(server) == list(range(20))
        assert server.stop() == 0

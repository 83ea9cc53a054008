"""A real Redis in a process of its own, without persistence."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SEC = 20


@contextmanager
def redis_running(program: str, folder: Path) -> Iterator[str]:
    """Its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    with subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL) as process:
        try:
            _await(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


def _await(port: int) -> None:
    """It listens only when it is ready to answer."""
    deadline = time.monotonic() + PATIENCE_SEC
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "Redis does not start"
            time.sleep(0.02)
        else:
            return

"""A server with an API key, and a client that asks it over one kept connection, for the benchmarks that share them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import rookery

KEY = "benchmark"
HOST = "Host: 127.0.0.1\r\n"
AUTH = f"Authorization: Bearer {KEY}\r\n"


def request(method: str, path: str, body: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\n{HOST}{AUTH}{length}\r\n{body}".encode()


class Server:
    def __init__(self, *flags: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "rookery", "serve", "--host", "127.0.0.1", "--http-port", "0"]
        command += ["--amqp-port", "off", "--line-port", "off", "--api-key", KEY, *flags]
        environment = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
        self.process = subprocess.Popen(
            command, cwd=self._folder.name, env=environment, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            row = json.loads(line)
            if row["event"] == "listening":
                self.listening = row
                self.port = int(row["http"].rpartition(":")[2])
                break

    def cpu_sec(self) -> float:
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._folder.cleanup()


class Client:
    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, data: bytes) -> bytes:
        self._sock.sendall(data)
        got = self._sock.recv(65536)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), got
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < size:
            body += self._sock.recv(65536)
        return body

    def close(self) -> None:
        self._sock.close()

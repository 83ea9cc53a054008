"""CPU per HTTP request of a server: the bare layer, publishing, pulling and acking, in memory and on disk.

The server runs in a process of its own; its CPU is read from the system before and after. Clients keep their
connections and send the next request when the last one is answered.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import rookery
from bench.harness import Case, show, start, title

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


def publish(client: Client, _: int) -> None:
    client.ask(PUBLISH)


def health(client: Client, _: int) -> None:
    client.ask(HEALTH)


def claim_and_ack(client: Client, _: int) -> None:
    tag = json.loads(client.ask(PULL))["delivery_tag"]
    client.ask(request("POST", "/api/v1/queues/q/ack", json.dumps({"delivery_tag": tag})))


HEALTH = request("GET", "/health")
PUBLISH = request("POST", "/api/v1/queues/q/publish", json.dumps({"message": "x" * 200}))
PULL = request("POST", "/api/v1/queues/q/pull")


def spent(server: Server, work: Callable[[Client, int], None], count: int, clients: int) -> float:
    """CPU microseconds of the server per round of `work`."""

    def loop() -> None:
        client = Client(server.port)
        for n in range(count // clients):
            work(client, n)
        client.close()

    threads = [threading.Thread(target=loop) for _ in range(clients)]
    before = server.cpu_sec()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (server.cpu_sec() - before) / (count // clients * clients) * 1e6


def main() -> None:
    parser = ArgumentParser(prog="bench/run http")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of each case and round (10,000)")
    arguments = start("http", parser)
    for store in ("memory", "journal"):
        server = Server("--store-backend", store)
        cases = [
            (Case("GET /health, 1 connection", int), health, 1),
            (Case("GET /health, 8 connections", int, 11), health, 8),
            (Case("publish 200 B, 8 connections", int, 18 if store == "memory" else None), publish, 8),
            (Case("pull and ack, 8 connections", int, 40 if store == "memory" else None), claim_and_ack, 8),
            (Case("publish 200 B, 64 connections", int), publish, 64),
        ]
        for turn in range(arguments.rounds + 1):
            for case, work, clients in cases:
                cost = spent(server, work, arguments.requests, clients)
                if turn:  # the first only warms up
                    case.cpu_us.append(cost)
        server.stop()
        title(f"HTTP, {store}", "CPU of the server per request (a pull and its ack count as one), all its threads")
        show([case for case, _, _ in cases], "CPU µs")


if __name__ == "__main__":
    main()

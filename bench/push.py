"""CPU per message pushed over a WebSocket: from a queue with and without acks, and from a stream.

The server runs in a process of its own; its CPU is read from the system before and after. One client takes what it is
sent as fast as it comes. What is drained was published before and is not measured.
"""

from __future__ import annotations

import base64
import json
import socket
from argparse import ArgumentParser
from collections.abc import Callable

from bench.asking import KEY, Server, request
from bench.asking import Client as HttpClient
from bench.harness import BODY_BYTES, Case, show, start, title

BATCH = 5_000
MASK = b"\0\0\0\0"


class Client:
    """The client's side of a WebSocket: as little as will do."""

    def __init__(self, port: int, path: str) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(b"0123456789abcdef").decode()
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}", "Upgrade: websocket"]
        lines += ["Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
        self._sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._buffer = bytearray()
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._sock.recv(1 << 18)
        assert self._buffer.startswith(b"HTTP/1.1 101"), self._buffer
        del self._buffer[: self._buffer.index(b"\r\n\r\n") + 4]

    def _need(self, size: int) -> None:
        while len(self._buffer) < size:
            self._buffer += self._sock.recv(1 << 18)

    def frame(self) -> bytes:
        """The next text; pings before it are answered."""
        while True:
            self._need(2)
            opcode, size, head = self._buffer[0] & 0x0F, self._buffer[1], 2
            if size > 125:
                head = 4 if size == 126 else 10
                self._need(head)
                size = int.from_bytes(self._buffer[2:head], "big")
            self._need(head + size)
            payload = bytes(self._buffer[head : head + size])
            del self._buffer[: head + size]
            if opcode == 1:
                return payload
            if opcode == 9:
                self._sock.sendall(bytes([0x8A, 0x80 | size]) + MASK + payload)

    def send(self, text: str) -> None:
        data = text.encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
        self._sock.sendall(b"\x81" + size + MASK + data)

    def close(self) -> None:
        self._sock.close()


def take(client: Client, messages: int) -> None:
    while messages > 0:
        messages -= client.frame().count(b'"message_id":')


def take_and_ack(client: Client, messages: int) -> None:
    while messages > 0:
        frame = client.frame()
        messages -= frame.count(b'"message_id":')
        last = frame[frame.rindex(b'"id":') + 5 : -1].decode()
        client.send(f'{{"op":"ack","through":{last}}}')


def take_and_settle(client: Client, messages: int) -> None:
    while messages > 0:
        found = json.loads(client.frame())["messages"]
        messages -= len(found)
        for at in range(0, len(found), 500):
            leases = [each["lease"] for each in found[at : at + 500]]
            client.send(json.dumps({"op": "settle", "leases": leases}))


def fill(server: Server, path: str, messages: int) -> None:
    client = HttpClient(server.port)
    body = json.dumps([{"message": "x" * BODY_BYTES}] * BATCH)
    for _ in range(messages // BATCH):
        client.ask(request("POST", f"{path}?ids=false", body))
    client.close()


def spent(server: Server, path: str, work: Callable[[Client, int], None], messages: int) -> float:
    """CPU microseconds of the server per message."""
    before = server.cpu_sec()
    client = Client(server.port, path)
    work(client, messages)
    cost = (server.cpu_sec() - before) / messages * 1e6
    client.close()
    return cost


def main() -> None:
    parser = ArgumentParser(prog="bench/run push")
    parser.add_argument("--messages", type=int, default=50_000, help="messages of each case and round (50,000)")
    arguments = start("push", parser)
    for store in ("memory", "journal"):
        server = Server("--store-backend", store, "--events-rate", "0")
        client = HttpClient(server.port)
        client.ask(request("PUT", "/api/v1/streams/s", "{}"))
        client.close()
        queue, stream = "/api/v1/queues/q", "/api/v1/streams/s"
        aim = 3 if store == "memory" else None
        cases = [
            (Case("queue, ack=auto", int, aim), f"{queue}/messages", f"{queue}/stream", take),
            (
                Case("queue, ack through each frame", int, aim),
                f"{queue}/messages",
                f"{queue}/stream?ack=explicit&credit=1000",
                take_and_ack,
            ),
            (
                Case("queue, settle each lease", int),
                f"{queue}/messages",
                f"{queue}/stream?ack=explicit&credit=1000",
                take_and_settle,
            ),
            (Case("stream", int, aim), f"{stream}/publish", f"{stream}/stream?from=", take),
        ]
        first = 0
        for turn in range(arguments.rounds + 1):
            for case, filled, path, work in cases:
                fill(server, filled, arguments.messages)
                if path.endswith("from="):
                    path += str(first)
                    first += arguments.messages
                cost = spent(server, path, work, arguments.messages)
                if turn:  # the first only warms up
                    case.cpu_us.append(cost)
        server.stop()
        title(f"WebSocket, {store}", f"CPU of the server per message of {BODY_BYTES} B, all its threads")
        show([case for case, *_ in cases], "CPU µs")


if __name__ == "__main__":
    main()

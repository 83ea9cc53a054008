"""CPU per message of the line protocol: publishing, delivering and acking, in memory and on disk.

The server runs in a process of its own; its CPU is read from the system before and after. One client sends a batch of
lines at a time and reads all answers before the next.
"""

from __future__ import annotations

import socket
from argparse import ArgumentParser
from collections.abc import Callable

from bench.asking import Server
from bench.harness import BODY_BYTES, Case, show, start, title

BATCH = 500
BODY = b"x" * BODY_BYTES


class Client:
    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, data: bytes, lines: int) -> None:
        """Send something and read that many lines."""
        self._sock.sendall(data)
        while lines > 0:
            lines -= self._sock.recv(1 << 18).count(b"\n")

    def close(self) -> None:
        self._sock.close()


def publish(client: Client, messages: int) -> None:
    batch = b"PUBLISH x q " + BODY + b"\n"
    for _ in range(messages // BATCH):
        client.ask(batch * BATCH, BATCH)


def drain(client: Client, messages: int) -> None:
    client.ask(b"CONSUME q ack=auto\n", messages + 1)
    client.ask(b"CANCEL q\n", 1)


def drain_and_ack(client: Client, messages: int) -> None:
    client.ask(b"CONSUME q ack=manual prefetch=%d\n" % BATCH, BATCH + 1)
    acks = (b"ACK q " + BODY + b"\n") * BATCH
    for n in range(BATCH, messages + BATCH, BATCH):
        client.ask(acks, 2 * BATCH if n < messages else BATCH)
    client.ask(b"CANCEL q\n", 1)


def spent(server: Server, work: Callable[[Client, int], None], messages: int) -> float:
    """CPU microseconds of the server per message."""
    client = Client(int(server.listening["line"].rpartition(":")[2]))
    before = server.cpu_sec()
    work(client, messages)
    cost = (server.cpu_sec() - before) / messages * 1e6
    client.close()
    return cost


def main() -> None:
    parser = ArgumentParser(prog="bench/run line")
    parser.add_argument("--messages", type=int, default=50_000, help="messages of each case and round (50,000)")
    arguments = start("line", parser)
    for store in ("memory", "journal"):
        server = Server("--store-backend", store, "--line-port", "0", "--events-rate", "0")
        client = Client(int(server.listening["line"].rpartition(":")[2]))
        client.ask(b"DECLARE_EXCHANGE x direct\nDECLARE_QUEUE q\nBIND_QUEUE q x q\n", 3)
        cases = [
            (Case("publish, pipelined", int, 1.5 if store == "memory" else None), publish),
            (Case("deliver, ack=auto", int), drain),
            (Case("publish again", int), publish),
            (Case("deliver and ack, prefetch 500", int), drain_and_ack),
        ]
        for turn in range(arguments.rounds + 1):
            for case, work in cases:
                cost = spent(server, work, arguments.messages)
                if turn:  # the first only warms up
                    case.cpu_us.append(cost)
        client.close()
        server.stop()
        title(f"Line protocol, {store}", f"CPU of the server per message of {BODY_BYTES} B, all its threads")
        show([case for case, _ in cases], "CPU µs")


if __name__ == "__main__":
    main()

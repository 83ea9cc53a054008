"""CPU per call of a webhook, with a hundred calls under way: from queues in memory and on disk.

The server runs in a process of its own; its CPU is read from the system before and after. The endpoint is a process of
its own too, which answers 204 to whatever comes. What is called with was published before, while nobody listened.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from argparse import ArgumentParser
from multiprocessing.connection import Connection

from bench.asking import Client, Server, request
from bench.harness import BODY_BYTES, Case, show, start, title
from bench.push import fill

CONCURRENCY = 100
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Endpoint(asyncio.Protocol):
    """Answers requests, of which each comes whole."""

    calls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            head, found, rest = self._data.partition(b"\r\n\r\n")
            if not found:
                return
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(rest) < size:
                return
            self._data = rest[size:]
            Endpoint.calls += 1
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


def endpoint(told: Connection) -> None:
    """Serve; tell the port, and then, whenever asked, how many calls there were."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Endpoint, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        loop.add_reader(told.fileno(), lambda: told.send((told.recv(), Endpoint.calls)))
        await asyncio.Event().wait()

    asyncio.run(serve())


def spent(server: Server, asked: Connection, url: str, calls: int) -> float:
    """CPU microseconds of the server per call."""

    def made() -> int:
        asked.send(None)
        return int(asked.recv()[1])

    client = Client(server.port)
    fill(server, "/api/v1/queues/q/messages", calls)
    wanted = made() + calls
    before = server.cpu_sec()
    body = json.dumps({"endpoint": url, "concurrency": CONCURRENCY})
    hook = json.loads(client.ask(request("POST", "/api/v1/queues/q/webhooks", body)))["id"]
    while made() < wanted:
        time.sleep(0.01)
    cost = (server.cpu_sec() - before) / calls * 1e6
    client.ask(request("DELETE", f"/api/v1/webhooks/{hook}"))
    client.close()
    return cost


def main() -> None:
    parser = ArgumentParser(prog="bench/run webhooks")
    parser.add_argument("--calls", type=int, default=5_000, help="calls of each round (5,000)")
    arguments = start("webhooks", parser)
    asked, told = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=endpoint, args=(told,), daemon=True)
    receiver.start()
    url = f"http://127.0.0.1:{asked.recv()}/hook"
    for store in ("memory", "journal"):
        server = Server("--store-backend", store, "--events-rate", "0")
        case = Case(f"{CONCURRENCY} under way", int, 150 if store == "memory" else None)
        for turn in range(arguments.rounds + 1):
            cost = spent(server, asked, url, arguments.calls)
            if turn:  # the first only warms up
                case.cpu_us.append(cost)
        server.stop()
        title(f"Webhooks, {store}", f"CPU of the server per call with {BODY_BYTES} B, all its threads")
        show([case], "CPU µs")
    receiver.kill()


if __name__ == "__main__":
    main()

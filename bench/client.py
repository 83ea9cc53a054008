"""CPU per publish of a program that uses the client, beside raw httpx and a bare socket.

Each way sends the same small message to the same server and waits for its answer, one after the other on one kept
connection. What is measured is the CPU time of the publishing process alone; the server runs in one of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from argparse import ArgumentParser
from collections.abc import Callable
from statistics import median

import httpx

import rookery
from bench.asking import KEY, Server, request
from bench.harness import title

BODY = {"task": "resize", "image": 7}


def cpu_us(work: Callable[[int], object], count: int, rounds: int) -> list[float]:
    """CPU microseconds per message, for each round."""
    work(count // 10)
    found = []
    for _ in range(rounds):
        started = time.process_time()
        work(count)
        found.append((time.process_time() - started) / count * 1e6)
    return found


def bare(port: int) -> Callable[[int], object]:
    peer = socket.create_connection(("127.0.0.1", port))
    data = request("POST", "/api/v1/queues/q/messages", json.dumps({"message": BODY}))

    def work(count: int) -> None:
        for _ in range(count):
            peer.sendall(data)
            peer.recv(65_536)

    return work


def raw_httpx(port: int) -> Callable[[int], object]:
    client = httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, trust_env=False)
    url = f"http://127.0.0.1:{port}/api/v1/queues/q/messages"

    def work(count: int) -> None:
        for _ in range(count):
            client.post(url, json={"message": BODY}).raise_for_status().json()

    return work


def raw_httpx_async(port: int) -> Callable[[int], object]:
    url = f"http://127.0.0.1:{port}/api/v1/queues/q/messages"

    async def publish(count: int) -> None:
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {KEY}"}, trust_env=False, verify=False
        ) as client:
            for _ in range(count):
                (await client.post(url, json={"message": BODY})).raise_for_status().json()

    return lambda count: asyncio.run(publish(count))


def blocking(port: int) -> Callable[[int], object]:
    queue = rookery.connect(f"http://{KEY}@127.0.0.1:{port}").queue("q")

    def work(count: int) -> None:
        for _ in range(count):
            queue.publish(BODY)

    return work


def in_loop(port: int) -> Callable[[int], object]:
    async def publish(count: int) -> None:
        async with rookery.connect_async(f"http://{KEY}@127.0.0.1:{port}") as client:
            queue = await client.queue("q")
            for _ in range(count):
                await queue.publish(BODY)

    return lambda count: asyncio.run(publish(count))


def batched(port: int) -> Callable[[int], object]:
    queue = rookery.connect(f"http://{KEY}@127.0.0.1:{port}").queue("q")

    def work(count: int) -> None:
        for at in range(0, count, 100):
            queue.publish_many([BODY] * min(100, count - at))

    return work


CASES = {
    "bare socket": bare,
    "httpx": raw_httpx,
    "httpx, async": raw_httpx_async,
    "rookery.connect": blocking,
    "rookery.connect_async": in_loop,
    "rookery.connect, 100 at a time": batched,
}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    title("client publish", f"CPU of the publishing process per message, median of {options.rounds} rounds")
    server = Server("--store-backend", "memory")
    try:
        found = {name: median(cpu_us(make(server.port), options.count, options.rounds)) for name, make in CASES.items()}
    finally:
        server.stop()
    for name, us in found.items():
        print(f"  {name:<32} {us:8.1f} µs   {us / found['httpx']:5.2f} of httpx")


if __name__ == "__main__":
    main()

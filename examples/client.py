"""A program uses a broker elsewhere as if it were its own: jobs, an answer, a transaction.

The broker is a server in this process; against `rookery serve` only the address and the key differ.

Prints:

    7 squared is 49
    resized 1
    resized 2
    moved on: 1 left of jobs, 1 done
"""

import asyncio
import tempfile
from pathlib import Path

import rookery
from rookery.config.settings import Settings
from rookery.server.process import Server

KEY = "an-admin-key"


async def work(url: str) -> None:
    broker = rookery.connect_async(url)

    @broker.handler("square")
    async def square(n: int) -> int:
        return n * n

    async with broker:
        print("7 squared is", await broker.request("square", 7))

        jobs = await broker.queue("jobs")
        done = await broker.queue("done")
        await jobs.publish_many([{"image": n} for n in (1, 2, 3)])
        async with await jobs.subscribe(credit=2) as subscription:
            for _ in range(2):
                delivery = await subscription.get(10_000)
                print("resized", delivery.data["image"])
                # both happen, or neither does
                async with broker.transaction() as transaction:
                    await transaction.ack(delivery)
                    if delivery.data["image"] == 2:
                        await transaction.publish_to_queue("done", delivery.data)
        left, ready = (await jobs.stats())["ready"], (await done.stats())["ready"]
        print(f"moved on: {left} left of jobs, {ready} done")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = {"http_port": 0, "amqp_port": None, "line_port": None, "api_key": KEY, "log_level": "error"}
        server = Server(Settings.load({**flags, "store_backend": "memory"}, {}, Path(folder)))
        await server.start()
        try:
            await work(f"http://{KEY}@{server.addresses['http']}")
        finally:
            await server.stop()


asyncio.run(main())

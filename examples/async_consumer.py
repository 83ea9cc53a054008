"""The same broker for asyncio: a subscription feeds a consumer as messages come.

Prints:

    got 0
    got 1
    got 2
    all 3 acked
"""

import asyncio

import rookery


async def consume(jobs: rookery.embed.AsyncQueue) -> None:
    # At most `credit` unsettled messages at a time; the rest stays for others.
    async with await jobs.subscribe(credit=10) as subscription:
        async for delivery in subscription:
            print("got", delivery.data)
            await delivery.ack()
            if delivery.data == 2:
                return


async def main() -> None:
    async with rookery.AsyncBroker() as broker:
        jobs = await broker.queue("jobs")
        consumer = asyncio.create_task(consume(jobs))
        for n in range(3):
            await jobs.publish(n)
        await consumer
        print("all", (await jobs.stats())["acked"], "acked")


asyncio.run(main())

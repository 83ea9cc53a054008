"""aio-pika, an AMQP client for asyncio, with a broker in the same loop: a topic exchange, prefetch, confirms.

Against `rookery serve` only the address differs: `aio_pika.connect_robust("amqp://guest:guest@localhost/")`.

Prints:

    user.created: {"id": 1}
    user.deleted: {"id": 1}
"""

import asyncio

import aio_pika

import rookery
from rookery.server import attach


async def main() -> None:
    async with rookery.AsyncBroker() as broker:
        listening = await attach(broker, amqp=0)
        async with await aio_pika.connect(f"amqp://guest:guest@{listening.amqp}/") as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            events = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC)
            queue = await channel.declare_queue("audit")
            await queue.bind(events, "user.*")

            for key in ("user.created", "order.created", "user.deleted"):
                await events.publish(aio_pika.Message(b'{"id": 1}'), routing_key=key)

            for _ in range(2):
                message = await queue.get(timeout=1)
                async with message.process():
                    print(f"{message.routing_key}: {message.body.decode()}")
        await listening.close()


asyncio.run(main())

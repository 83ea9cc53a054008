"""Handlers: a function per queue, called with the type that it asks for.

Prints:

    order 7: 2 items
    dead letter: ValidationError: Expected `int`, got `str` - at `$.id`
    dead letter: no items
    a refund of 5 EUR, attempt 1: the bank is busy
    a refund of 5 EUR, attempt 2: done
"""

import asyncio
from dataclasses import dataclass

import msgspec

import rookery

broker = rookery.AsyncBroker()
done = asyncio.Event()


class Order(msgspec.Struct):
    id: int
    items: list[str]


@dataclass
class Refund:
    amount: int
    currency: str


@broker.handler("orders", dead_letter_queue="dead")
async def on_order(order: Order) -> None:
    if not order.items:
        raise rookery.Reject("no items")
    print(f"order {order.id}: {len(order.items)} items")


@broker.handler("refunds")
async def on_refund(delivery: rookery.AsyncDelivery) -> None:
    refund = msgspec.convert(delivery.data, Refund)
    busy = delivery.attempt == 1
    print(f"a refund of {refund.amount} {refund.currency}, attempt {delivery.attempt}:", end=" ")
    print("the bank is busy" if busy else "done")
    if busy:
        raise ConnectionError("the bank is busy")
    done.set()


async def main() -> None:
    # In a web application: FastAPI(lifespan=broker.lifespan)
    async with broker:
        orders = await broker.queue("orders")
        await orders.publish(Order(7, ["book", "lamp"]))
        await orders.publish({"id": "seven", "items": []})
        await orders.publish(Order(8, []))
        dead = await broker.queue("dead")
        for _ in range(2):
            (letter,) = await dead.claim(wait_ms=1_000)
            print("dead letter:", letter.message.reason)
        await (await broker.queue("refunds")).publish(Refund(5, "EUR"))
        await done.wait()


asyncio.run(main())

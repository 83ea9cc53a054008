"""Topics with acknowledgements: a message comes again until somebody says that it is done.

Prints:

    order-1
    order-1 once more
    acknowledged
    ack twice: no message with ack id 'order-1' waits on 'orders'
    nobody acknowledged order-2: ack timeout after 1000 ms
"""

import rookery
from rookery import Message

clock = rookery.ManualClock()

with rookery.Broker(
    clock=clock, enable_ack_support=True, enable_dead_letter_queue=True, dead_letter_topic="dead"
) as broker:
    orders = broker.subscribe("orders")
    dead = broker.subscribe("dead")

    broker.publish("orders", Message("a book", id="order-1"), ack="required")
    print(orders.get().ack_id)
    broker.nack("orders", "order-1")
    print(orders.get().ack_id, "once more")
    broker.ack("orders", "order-1")
    print("acknowledged")
    try:
        broker.ack("orders", "order-1")
    except rookery.errors.MessageNotAcked as error:
        print("ack twice:", error)

    broker.publish("orders", Message("a lamp", id="order-2"), ack="timeout", ack_timeout_ms=1_000)
    for _ in range(4):
        orders.get()
        clock.advance(1_000)
    broker.tick()
    letter = dead.get()
    print(f"nobody acknowledged {letter.id}:", letter.reason)

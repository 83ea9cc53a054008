"""Topics: every subscriber gets a copy, patterns choose, and a full buffer does what its policy says.

Prints:

    all orders: order.new 1
    all orders: order.paid 2
    paid only: order.paid 2
    the last two: [4, 5]
    dropped: 3
    large: 250
"""

import rookery

with rookery.Broker() as broker:
    everything = broker.subscribe("order.#")
    paid = broker.subscribe("order.paid")
    broker.publish("order.new", 1)
    broker.publish("order.paid", 2)
    for _ in range(2):
        message = everything.get()
        print("all orders:", message.topic, message.data)
    message = paid.get()
    print("paid only:", message.topic, message.data)

    # A subscriber who cares for the newest only. Others: drop_newest, block_with_timeout, close_subscriber.
    with broker.subscribe("prices", buffer_size=2, policy="drop_oldest") as prices:
        broker.publish_many("prices", [1, 2, 3, 4, 5])
        print("the last two:", [prices.get().data, prices.get().data])
        print("dropped:", prices.stats()["dropped"])

    # A filter sees each message before the subscriber does.
    with broker.subscribe("prices", filter=lambda message: message.data > 100) as large:
        broker.publish_many("prices", [99, 250])
        print("large:", large.get().data)

"""Transactions: take an order and hand out its parts, wholly or not at all.

Prints:

    inside the block: 0 parcels
    after it: 2 parcels
    rolled back: out of stock
    parcels: 2 orders: 1
"""

import rookery

with rookery.Broker() as broker:
    orders = broker.queue("orders")
    parcels = broker.queue("parcels")
    orders.publish_many([{"items": ["book", "lamp"]}, {"items": ["unicorn"]}])

    (order,) = orders.claim()
    with broker.transaction() as transaction:
        for item in order.data["items"]:
            transaction.publish_to_queue("parcels", item)
        transaction.ack(order)
        print("inside the block:", parcels.stats()["ready"], "parcels")
    print("after it:", parcels.stats()["ready"], "parcels")

    (order,) = orders.claim()
    try:
        with broker.transaction() as transaction:
            transaction.ack(order)
            transaction.publish_to_queue("parcels", order.data["items"][0])
            raise LookupError("out of stock")
    except LookupError as error:
        print("rolled back:", error)
    order.release()
    print("parcels:", parcels.stats()["ready"], "orders:", orders.stats()["ready"])

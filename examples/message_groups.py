"""Message groups: many consumers in parallel, and still each customer's messages one after the other.

Prints:

    handed out: ['ann: open account', 'bob: open account']
    while both are busy: []
    ann is done, next: ['ann: deposit 100']
"""

import rookery
from rookery import Message

with rookery.Broker() as broker:
    accounts = broker.queue("accounts", grouped=True)
    for customer, action in (
        ("ann", "open account"),
        ("ann", "deposit 100"),
        ("bob", "open account"),
        ("ann", "withdraw 30"),
    ):
        accounts.publish(Message(f"{customer}: {action}", group=customer))

    ann, bob = accounts.claim(10)
    print("handed out:", [ann.data, bob.data])
    print("while both are busy:", accounts.claim(10))
    ann.ack()
    print("ann is done, next:", [delivery.data for delivery in accounts.claim(10)])

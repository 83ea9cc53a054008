"""Priorities: the urgent first, in order inside a level.

Prints:

    40 page the operator
    20 first report
    20 second report
    0 tidy up
"""

import rookery
from rookery import HIGHEST, LOWEST, NORMAL, Message

with rookery.Broker() as broker:
    jobs = broker.queue("jobs")
    jobs.publish(Message("tidy up", priority=LOWEST))
    jobs.publish(Message("first report", priority=NORMAL))
    jobs.publish(Message("second report", priority=NORMAL))
    jobs.publish(Message("page the operator", priority=HIGHEST))
    for delivery in jobs.claim(4):
        print(delivery.message.priority, delivery.data)
        delivery.ack()

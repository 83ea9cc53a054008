"""Publishing twice and meaning it once: a dedup key makes a repeat harmless.

Prints:

    the same id: True
    in the queue: ['charge order 7']
    and after a day it is a new message: True
"""

import rookery
from rookery import Message

clock = rookery.ManualClock()

with rookery.Broker(clock=clock) as broker:
    payments = broker.queue("payments")
    charge = Message("charge order 7", dedup_key="order 7")
    first = payments.publish(charge)

    # The connection broke, we do not know whether it arrived: once more, to be sure.
    print("the same id:", payments.publish(charge) == first)
    print("in the queue:", [message.data for message in payments.peek(10)])

    # Keys are remembered for a day, unless the queue says otherwise (dedup_window_ms).
    clock.advance(24 * 3600 * 1000)
    print("and after a day it is a new message:", payments.publish(charge) != first)

"""Request and reply: ask a queue, get an answer, or learn that none came.

Prints:

    21 doubled is 42
    no reply from 'silent' within 20 ms
"""

import rookery

broker = rookery.Broker()


@broker.handler("double", concurrency=2)
def double(number: int) -> int:
    return 2 * number


with broker:
    print("21 doubled is", broker.request("double", 21))

    broker.queue("silent")
    try:
        broker.request("silent", "anybody?", timeout_ms=20)
    except TimeoutError as error:
        print(error)

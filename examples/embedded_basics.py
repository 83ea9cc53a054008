r"""A broker inside your program: publish, claim, settle.

Prints:

    {'task': 'resize', 'image': 7}
    plain text
    b'\x00 bytes'
    ready: 0 acked: 2
    again, attempt 2: plain text
"""

import rookery

with rookery.Broker() as broker:
    jobs = broker.queue("jobs")

    # Any JSON-able value, text or bytes; what comes out is what went in.
    jobs.publish({"task": "resize", "image": 7})
    jobs.publish_many(["plain text", b"\x00 bytes"])

    # A claimed message is yours under a lease. Settle it, or it goes to the next one.
    resize, text, data = jobs.claim(10)
    for delivery in (resize, text, data):
        print(delivery.data)
    resize.ack()
    data.ack()
    stats = jobs.stats()
    print("ready:", stats["ready"], "acked:", stats["acked"])

    # Not done: once more.
    text.retry()
    (again,) = jobs.claim()
    print(f"again, attempt {again.attempt}: {again.data}")
    again.ack()

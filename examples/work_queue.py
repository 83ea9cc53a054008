"""A work queue: failures are retried with growing pauses, and what never works ends as a dead letter.

Prints:

    attempt 1: no route to printer
    attempt 2: no route to printer
    attempt 3: no route to printer
    dead letter: report 7 after 3 attempts: no route to printer
    sent back: ['report 7']
    printed report 7
"""

import rookery

with rookery.Broker() as broker:
    jobs = broker.queue(
        "print",
        max_attempts=3,
        backoff="exponential",
        backoff_base_ms=5,
        dead_letter_queue="print.dead",
    )
    jobs.publish("report 7")
    for _ in range(3):
        (delivery,) = jobs.claim(wait_ms=1_000)
        print(f"attempt {delivery.attempt}: no route to printer")
        delivery.retry(reason="no route to printer")

    dead = broker.queue("print.dead")
    (letter,) = dead.peek()
    print(f"dead letter: {letter.data} after {letter.deaths[0]['attempts']} attempts: {letter.reason}")

    # The printer works again: what died of that goes back to where it died.
    back = dead.redrive(filter=lambda message: message.reason == "no route to printer")
    print("sent back:", [message.data for message in back])
    (delivery,) = jobs.claim()
    print("printed", delivery.data)
    delivery.ack()

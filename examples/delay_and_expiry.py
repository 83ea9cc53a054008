"""Messages that come later, and messages that are of no use later.

Prints:

    at once: ['now']
    in the meantime: []
    after 60 s: ['reminder']
    expired: 1
    too late to publish: the message's time is over already
"""

from datetime import UTC, datetime, timedelta

import rookery
from rookery import Message

# A clock that we move ourselves, so that a minute takes no time.
clock = rookery.ManualClock()

with rookery.Broker(clock=clock) as broker:
    jobs = broker.queue("jobs")
    jobs.publish(Message("reminder", delay_ms=60_000))
    jobs.publish(Message("offer", delay_ms=20_000, ttl_ms=10_000))
    jobs.publish("now")

    def take() -> list[str]:
        deliveries = jobs.claim(10)
        jobs.settle(deliveries)
        return [delivery.data for delivery in deliveries]

    print("at once:", take())
    clock.advance(30_000)
    print("in the meantime:", take())
    clock.advance(30_000)
    print("after 60 s:", take())
    print("expired:", jobs.stats()["expired"])

    # Points in time work as well: an aware datetime or milliseconds since 1970.
    now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
    try:
        jobs.publish(Message("yesterday's news", expires_at=now - timedelta(days=1)))
    except rookery.errors.MessageExpired as error:
        print("too late to publish:", error)

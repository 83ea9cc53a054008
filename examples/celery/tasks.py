"""Celery with Rookery as its broker, unmodified. In three terminals, in this folder:

    rookery serve
    celery -A tasks worker
    python tasks.py

The variable CELERY_BROKER_URL names a broker that is elsewhere.

Prints:

    add: 5
    a second later: True
    squares: [0, 1, 4, 9, 16]
    it worked on attempt 3
"""

import time

from celery import Celery, group

app = Celery("tasks", broker="amqp://guest:guest@localhost//", backend="rpc://")
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x, y):
    return x + y


@app.task
def square(number):
    return number * number


@app.task
def now():
    return time.time()


@app.task(bind=True, autoretry_for=(ConnectionError,), default_retry_delay=0)
def fetch(self):
    if self.request.retries < 2:
        raise ConnectionError("no route to host")
    return self.request.retries + 1


if __name__ == "__main__":
    print("add:", add.delay(2, 3).get(timeout=10))

    sent = time.time()
    print("a second later:", now.apply_async(countdown=1).get(timeout=10) >= sent + 1)

    print("squares:", group(square.s(number) for number in range(5))().get(timeout=10))
    print("it worked on attempt", fetch.delay().get(timeout=10))

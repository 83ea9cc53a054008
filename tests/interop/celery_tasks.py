"""The Celery application that the workers of the tests run. Tests send tasks by name, from applications of their own.

The environment tells a worker its broker (CELERY_TEST_BROKER), its result backend (CELERY_TEST_BACKEND), which of
SETTINGS it has (CELERY_TEST_SETTINGS), and over TLS the file of the broker's authority (CELERY_TEST_CA).
"""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path
from typing import Any, Final

from celery import Celery
from kombu.entity import Exchange, Queue

COMMON: Final[dict[str, Any]] = {
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {"confirm_publish": True},
    "task_send_sent_event": True,
    "worker_prefetch_multiplier": 1,
}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "classic": COMMON,
    "late": COMMON | {"task_acks_late": True, "task_reject_on_worker_lost": True},
    "priority": COMMON | {"task_queue_max_priority": 10, "task_acks_late": True},
    # Delayed delivery needs a topic exchange: it puts the delay in front of the routing key.
    "quorum": COMMON
    | {
        "task_queues": [
            Queue(
                "quorum-tasks",
                Exchange("quorum-tasks", type="topic"),
                routing_key="quorum-tasks",
                queue_arguments={"x-queue-type": "quorum"},
            )
        ],
        "task_default_queue": "quorum-tasks",
        "task_default_exchange": "quorum-tasks",
        "task_default_exchange_type": "topic",
        "task_default_routing_key": "quorum-tasks",
    },
}


def over_tls(ca: str) -> dict[str, Any]:
    return {"broker_use_ssl": {"ca_certs": ca, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost"}}


app = Celery("worker", broker=os.environ.get("CELERY_TEST_BROKER"), backend=os.environ.get("CELERY_TEST_BACKEND"))
app.conf.update(SETTINGS[os.environ.get("CELERY_TEST_SETTINGS", "classic")])
if "CELERY_TEST_CA" in os.environ:
    app.conf.update(over_tls(os.environ["CELERY_TEST_CA"]))


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="when")
def when() -> float:
    """The time at which it runs."""
    return time.time()


@app.task(name="note")
def note(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@app.task(name="fail")
def fail(why: str) -> None:
    raise ValueError(why)


@app.task(name="flaky", bind=True, max_retries=2)
def flaky(self: Any, failures: int, countdown: float) -> int:
    """Fails so many times, and then returns how often it was retried."""
    if self.request.retries < failures:
        raise self.retry(exc=ValueError("still failing"), countdown=countdown)
    return int(self.request.retries)


@app.task(name="hold", bind=True, acks_late=True, reject_on_worker_lost=True)
def hold(self: Any, path: str) -> bool:
    """Notes its process in the file, and ends when there is one named `<path>.go`; returns `redelivered`."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    while not Path(path + ".go").exists():
        time.sleep(0.02)
    return bool(self.request.delivery_info["redelivered"])

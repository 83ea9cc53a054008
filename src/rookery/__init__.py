"""Rookery: a message broker, embedded in your process or served to others.

import rookery

with rookery.Broker() as broker:
    jobs = broker.queue("jobs")
    jobs.publish({"task": "resize", "image": 7})
    for delivery in jobs.claim(10):
        print(delivery.data)
        delivery.ack()
"""

from __future__ import annotations

from rookery import errors
from rookery._compiled import compiled
from rookery.clock import ManualClock, SystemClock
from rookery.embed import (
    HIGH,
    HIGHEST,
    LOW,
    LOWEST,
    NORMAL,
    AsyncBroker,
    AsyncDelivery,
    Broker,
    Config,
    Delivery,
    Message,
    Observation,
    Record,
    SubOptions,
)
from rookery.errors import Reject, RookeryError

__version__ = "0.1.0"

__all__ = [
    "HIGH",
    "HIGHEST",
    "LOW",
    "LOWEST",
    "NORMAL",
    "AsyncBroker",
    "AsyncDelivery",
    "Broker",
    "Config",
    "Delivery",
    "ManualClock",
    "Message",
    "Observation",
    "Record",
    "Reject",
    "RookeryError",
    "SubOptions",
    "SystemClock",
    "__version__",
    "compiled",
    "errors",
]

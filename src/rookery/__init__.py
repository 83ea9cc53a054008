"""Rookery: a message broker, embedded in your process or served to others.

import rookery

with rookery.Broker() as broker:
    jobs = broker.queue("jobs")
    jobs.publish({"task": "resize", "image": 7})
    for delivery in jobs.claim(10):
        print(delivery.data)
        delivery.ack()

`rookery.connect("http://localhost:8080")` is a broker elsewhere, with the same methods.

A name is imported when it is first asked for: `rookery --help` needs no broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rookery import errors
from rookery._compiled import compiled
from rookery._version import __version__
from rookery.errors import Reject, RookeryError

if TYPE_CHECKING:
    from rookery.client import AsyncClient, Client, RetryPolicy, connect, connect_async
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


__all__ = [
    "HIGH",
    "HIGHEST",
    "LOW",
    "LOWEST",
    "NORMAL",
    "AsyncBroker",
    "AsyncClient",
    "AsyncDelivery",
    "Broker",
    "Client",
    "Config",
    "Delivery",
    "ManualClock",
    "Message",
    "Observation",
    "Record",
    "Reject",
    "RetryPolicy",
    "RookeryError",
    "SubOptions",
    "SystemClock",
    "__version__",
    "compiled",
    "connect",
    "connect_async",
    "errors",
]

_HOMES: Final = {
    "AsyncClient": "rookery.client",
    "Client": "rookery.client",
    "ManualClock": "rookery.clock",
    "RetryPolicy": "rookery.client",
    "SystemClock": "rookery.clock",
    "connect": "rookery.client",
    "connect_async": "rookery.client",
}
"""Where names are that are not in `rookery.embed`."""


def __getattr__(name: str) -> Any:
    if name in ("client", "clock", "embed"):
        return import_module(f"rookery.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "rookery.embed")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""A broker elsewhere, spoken to over HTTP: the same methods as those of the embedded one.

Below the client is a transport (requests, retries, errors by their class), which commands and connectors use directly.
A name is imported when it is first asked for, so that they need no more than that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rookery.client.retrying import RetryPolicy

if TYPE_CHECKING:
    from rookery.client.aio.client import AsyncClient
    from rookery.client.aio.transport import AsyncAnswer, AsyncTransport
    from rookery.client.blocking.client import Client
    from rookery.client.blocking.transport import Answer, Transport
    from rookery.client.connecting import connect, connect_async

__all__ = [
    "Answer",
    "AsyncAnswer",
    "AsyncClient",
    "AsyncTransport",
    "Client",
    "RetryPolicy",
    "Transport",
    "connect",
    "connect_async",
]

_HOMES: Final = {
    "Answer": "blocking.transport",
    "AsyncAnswer": "aio.transport",
    "AsyncClient": "aio.client",
    "AsyncTransport": "aio.transport",
    "Client": "blocking.client",
    "Transport": "blocking.transport",
    "connect": "connecting",
    "connect_async": "connecting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"rookery.client.{_HOMES[name]}"), name)
    globals()[name] = value
    return value

"""How a program comes to a client: `connect` for threads, `connect_async` for asyncio."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TypedDict, Unpack

from rookery.client.aio.client import AsyncClient
from rookery.client.blocking.client import Client
from rookery.client.retrying import RetryPolicy

LOCAL = "http://localhost:8080"


class ClientArguments(TypedDict, total=False):
    """What may be said about a client; see `Client`."""

    api_key: str | None
    ca_file: str
    tls: ssl.SSLContext | None
    timeout_ms: int
    retry: RetryPolicy | None
    requests_max: int
    keep_topics: bool


def connect(url: str | Sequence[str] = LOCAL, **settings: Unpack[ClientArguments]) -> Client:
    """A broker elsewhere, for any number of threads, with the methods of `Broker`."""
    return Client(url, **settings)


def connect_async(url: str | Sequence[str] = LOCAL, **settings: Unpack[ClientArguments]) -> AsyncClient:
    """A broker elsewhere, for an event loop, with the methods of `AsyncBroker`."""
    return AsyncClient(url, **settings)

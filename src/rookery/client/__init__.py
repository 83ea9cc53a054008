"""A broker elsewhere, spoken to over HTTP: the same methods as those of the embedded one."""

from __future__ import annotations

from rookery.client.address import Address
from rookery.client.aio.transport import AsyncAnswer, AsyncTransport
from rookery.client.blocking.transport import Answer, Transport
from rookery.client.retrying import RetryPolicy

__all__ = ["Address", "Answer", "AsyncAnswer", "AsyncTransport", "RetryPolicy", "Transport"]

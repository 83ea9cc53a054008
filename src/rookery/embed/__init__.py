"""The in-process broker: an async face, a blocking face generated from it, and what they share."""

from __future__ import annotations

from rookery.embed.aio.broker import AsyncBroker
from rookery.embed.aio.deliveries import AsyncDelivery
from rookery.embed.blocking.broker import Broker
from rookery.embed.blocking.deliveries import Delivery
from rookery.embed.context import Observation
from rookery.embed.messages import HIGH, HIGHEST, LOW, LOWEST, NORMAL, Message
from rookery.embed.options import Config, SubOptions

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
    "Message",
    "Observation",
    "SubOptions",
]

"""The in-process broker: an async face, a blocking face generated from it, and what they share."""

from __future__ import annotations

from rookery.embed.aio.broker import AsyncBroker
from rookery.embed.aio.deliveries import AsyncDelivery, AsyncQueueSubscription
from rookery.embed.aio.producers import AsyncCuts, AsyncProducer
from rookery.embed.aio.queues import AsyncExchange, AsyncQueue
from rookery.embed.aio.streams import AsyncGroup, AsyncGroupMember, AsyncStream, AsyncStreamReader
from rookery.embed.aio.topics import AsyncTopicSubscription
from rookery.embed.aio.transactions import AsyncTransaction
from rookery.embed.blocking.broker import Broker
from rookery.embed.blocking.deliveries import Delivery, QueueSubscription
from rookery.embed.blocking.producers import Cuts, Producer
from rookery.embed.blocking.queues import Exchange, Queue
from rookery.embed.blocking.streams import Group, GroupMember, Stream, StreamReader
from rookery.embed.blocking.topics import TopicSubscription
from rookery.embed.blocking.transactions import Transaction
from rookery.embed.context import Observation
from rookery.embed.messages import HIGH, HIGHEST, LOW, LOWEST, NORMAL, Message
from rookery.embed.options import Config, SubOptions
from rookery.embed.records import Position, Record

__all__ = [
    "HIGH",
    "HIGHEST",
    "LOW",
    "LOWEST",
    "NORMAL",
    "AsyncBroker",
    "AsyncCuts",
    "AsyncDelivery",
    "AsyncExchange",
    "AsyncGroup",
    "AsyncGroupMember",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncQueueSubscription",
    "AsyncStream",
    "AsyncStreamReader",
    "AsyncTopicSubscription",
    "AsyncTransaction",
    "Broker",
    "Config",
    "Cuts",
    "Delivery",
    "Exchange",
    "Group",
    "GroupMember",
    "Message",
    "Observation",
    "Position",
    "Producer",
    "Queue",
    "QueueSubscription",
    "Record",
    "Stream",
    "StreamReader",
    "SubOptions",
    "TopicSubscription",
    "Transaction",
]

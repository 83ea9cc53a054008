"""A shard to measure: one tenant, queues as the embedded face declares them, and a clock that moves when it is told."""

from __future__ import annotations

from typing import Any

from bench.harness import BODY_BYTES
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.format.properties import Properties, encode

START_MS = 1_700_000_000_000

PLAIN_PROPS = encode(Properties(delivery_mode=2))
"""What the embedded face gives every plain message of bytes: one object, shared by all of them."""


class World:
    """One shard with one tenant, at a time that stands still until `turn` moves it."""

    def __init__(self) -> None:
        self.shard = Shard(b"benchmark", 1)
        self.now_ms = START_MS
        self.turn(0)
        self.tenant = self.shard.create_tenant("bench")

    def queue(self, name: str = "q", **settings: Any) -> Queue:
        return self.tenant.declare_queue(name, settings, "embedded")[0]

    def turn(self, ms: int = 1) -> None:
        """Let `ms` milliseconds pass and do what has become due."""
        self.now_ms += ms
        self.shard.turn(self.now_ms, self.now_ms - START_MS + 1_000)


def bodies(count: int) -> list[bytes]:
    """As many different bodies of the usual size."""
    return [i.to_bytes(4, "big") * (BODY_BYTES // 4) for i in range(count)]

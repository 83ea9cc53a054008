"""The settings of an embedded broker, and of a subscription to its topics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rookery.errors import InvalidConfig

if TYPE_CHECKING:
    from rookery.embed.messages import Message

POLICIES: Final = ("drop_oldest", "drop_newest", "block_with_timeout", "close_subscriber")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """How an embedded broker behaves. A limit or duration of 0 means none.

    The `enable_` switches guard what the broker keeps on behalf of callers who may never come back: messages that wait
    for an ack id, transactions by name, the dead-letter topic, messages on disk.
    """

    topics_max: int = 0
    subscribers_max: int = 0
    buffer_size: int = 16
    message_ttl_ms: int = 0
    memory_bytes_max: int = 0
    enable_metrics: bool = True
    enable_health_check: bool = True
    health_check_interval_ms: int = 30_000
    enable_priority_queue: bool = True
    enable_ack_support: bool = False
    ack_timeout_ms: int = 30_000
    enable_transactions: bool = False
    transaction_timeout_ms: int = 30_000
    enable_dead_letter_queue: bool = False
    dead_letter_topic: str = ""
    enable_persistence: bool = False
    persistence_path: str = ""
    require_body: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            wanted: type = type(field.default)
            if type(value) is not wanted:
                raise InvalidConfig(
                    f"{field.name} must be {wanted.__name__}, not {type(value).__name__}", argument=field.name
                )
            if isinstance(value, int) and value < 0:
                raise InvalidConfig(f"{field.name} must not be negative", argument=field.name)
        for name in ("buffer_size", "ack_timeout_ms", "transaction_timeout_ms", "health_check_interval_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} must be at least 1", argument=name)
        if self.enable_dead_letter_queue and not self.dead_letter_topic.strip():
            raise InvalidConfig("enable_dead_letter_queue needs dead_letter_topic", argument="dead_letter_topic")
        if self.enable_persistence and not self.persistence_path:
            raise InvalidConfig("enable_persistence needs persistence_path", argument="persistence_path")

    def replace(self, **changes: object) -> Config:
        """The same settings with some changed; the result is validated."""
        unknown = changes.keys() - {f.name for f in dataclasses.fields(self)}
        for name in sorted(unknown):
            raise InvalidConfig(f"unknown setting {name!r}", argument=name)
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubOptions:
    """How a subscription to a topic buffers what its subscriber has not taken yet.

    `buffer_size` 0 takes the broker's. When the buffer is full, `policy` says what happens: the oldest is dropped, the
    newest is dropped, the publisher waits up to `block_timeout_ms` and then the newest is dropped, or the subscription
    is closed. `filter` sees each message and says whether to deliver it. Bodies are always shared, never copied, so
    `zero_copy` changes nothing.
    """

    buffer_size: int = 0
    policy: str = "drop_oldest"
    block_timeout_ms: int = 50
    filter: Callable[[Message], bool] | None = None
    zero_copy: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidConfig(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}", argument="policy")
        for name in ("buffer_size", "block_timeout_ms"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise InvalidConfig(f"{name} must be an int that is not negative", argument=name)

"""The settings of an embedded broker, of a subscription to its topics and of its queues, and their names for types.

The `…Arguments` are what the keyword arguments of the broker's methods may be: type checkers and editors know them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args

from rookery.errors import InvalidConfig
from rookery.format.compression import COMPRESSIONS, NEEDS_ZSTD, is_available

if TYPE_CHECKING:
    from rookery.embed.messages import Message

TOPIC_MAX_CHARS: Final = 1024
NAME_MAX_BYTES: Final = 255

OverflowPolicy = Literal["drop_oldest", "drop_newest", "block_with_timeout", "close_subscriber"]
POLICIES: Final = get_args(OverflowPolicy)

AckPolicy = Literal["none", "required", "timeout"]
SYNCS: Final = ("always", "interval", "os")
FIXED: Final = ("enable_persistence", "persistence_path", "sync", "page_bytes", "compression", "compress_min_bytes")
"""Settings that cannot change while a broker runs."""

Outcome = Literal["ack", "retry", "release", "reject"]
ExchangeKind = Literal["direct", "fanout", "topic", "headers", "consistent-hash"]


class StreamArguments(TypedDict, total=False):
    """What may be said about a stream. Ages and sizes of 0 mean no limit; the number of partitions is for good."""

    partitions: int
    max_age_ms: int
    max_bytes: int
    until_committed: bool
    by_routing_key: bool
    seal_bytes: int
    seal_ms: int


class QueueArguments(TypedDict, total=False):
    """What may be said about a queue when it is declared, or by a policy. Durations of 0 mean none, but for ttl_ms."""

    # The types of the settings: written by tools/make_tables.py
    durable: bool
    auto_delete: bool
    expires_ms: int
    ttl_ms: int
    length_max: int
    bytes_max: int
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dead-letter", "drop-new", "close"]
    dead_letter_exchange: str
    dead_letter_key: str
    dead_letter_queue: str
    max_attempts: int
    backoff: Literal["fixed", "linear", "exponential"]
    backoff_base_ms: int
    backoff_max_ms: int
    backoff_jitter: float
    ordered: bool
    priority_max: int
    single_active: bool
    distribution: Literal["round-robin", "least-busy", "priority", "key-hash"]
    grouped: bool
    lease_ms: int
    dedup_window_ms: int
    dedup: bool
    queue_type: Literal["classic", "quorum"]
    consumer_timeout_ms: int
    arguments: dict[str, object]
    # End of settings


class ConfigArguments(TypedDict, total=False):
    """The settings of `Config`, by name."""

    topics_max: int
    subscribers_max: int
    buffer_size: int
    message_ttl_ms: int
    memory_bytes_max: int
    enable_metrics: bool
    enable_health_check: bool
    health_check_interval_ms: int
    enable_priority_queue: bool
    enable_ack_support: bool
    ack_timeout_ms: int
    enable_transactions: bool
    transaction_timeout_ms: int
    enable_dead_letter_queue: bool
    dead_letter_topic: str
    enable_persistence: bool
    persistence_path: str
    sync: str
    page_bytes: int
    compression: str
    compress_min_bytes: int
    require_body: bool


class SubArguments(TypedDict, total=False):
    """The settings of `SubOptions`, by name."""

    buffer_size: int
    policy: OverflowPolicy
    block_timeout_ms: int
    filter: Callable[[Message], bool] | None
    zero_copy: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """How an embedded broker behaves. A limit or duration of 0 means none.

    The `enable_` switches guard what the broker keeps on behalf of callers who may never come back: messages that wait
    for an ack id, transactions by name, the dead-letter topic, messages on disk. While a started broker has an
    observer, `enable_health_check` tells it the operation `metrics` every `health_check_interval_ms`.

    With `enable_persistence` durable queues, their persistent messages and what was published to topics are kept under
    `persistence_path`. `sync` says when a write is synced: `always` before it is answered, every second (`interval`),
    or when the system likes (`os`). Above `page_bytes` of messages in memory, long queues are left on disk; bodies of
    `compress_min_bytes` and more are compressed there, as `compression` says: `none`, `zlib`, or `zstd`, which needs
    the extra of that name before Python 3.14.
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
    sync: str = "always"
    page_bytes: int = 128 << 20
    compression: str = "zlib"
    compress_min_bytes: int = 4096
    require_body: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            wanted: type = type(field.default)
            if type(value) is not wanted:
                raise InvalidConfig(
                    f"{field.name} must be {wanted.__name__}, not {type(value).__name__}", argument=field.name
                )
            if isinstance(value, int) and not 0 <= value < 1 << 53:
                raise InvalidConfig(f"{field.name} must be between 0 and 2**53, not {value}", argument=field.name)
        for name in ("buffer_size", "ack_timeout_ms", "transaction_timeout_ms", "health_check_interval_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} must be at least 1", argument=name)
        if self.enable_dead_letter_queue and not self.dead_letter_topic.strip():
            raise InvalidConfig("enable_dead_letter_queue needs dead_letter_topic", argument="dead_letter_topic")
        if len(self.dead_letter_topic.encode("utf-8", "surrogateescape")) > NAME_MAX_BYTES:
            raise InvalidConfig(
                f"dead_letter_topic is longer than {NAME_MAX_BYTES} bytes", argument="dead_letter_topic"
            )
        if self.sync not in SYNCS:
            raise InvalidConfig(f"sync must be one of {', '.join(SYNCS)}, not {self.sync!r}", argument="sync")
        if self.compression not in COMPRESSIONS:
            choices = ", ".join(COMPRESSIONS)
            raise InvalidConfig(
                f"compression must be one of {choices}, not {self.compression!r}", argument="compression"
            )
        if not is_available(self.compression):
            raise InvalidConfig(f"compression {NEEDS_ZSTD}", argument="compression")
        if self.enable_persistence and not self.persistence_path:
            raise InvalidConfig("enable_persistence needs persistence_path", argument="persistence_path")

    def replace(self, **changes: Any) -> Config:
        """The same settings with some changed; the result is validated."""
        unknown = changes.keys() - {f.name for f in dataclasses.fields(self)}
        for name in sorted(unknown):
            raise InvalidConfig(f"unknown setting {name!r}", argument=name)
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubOptions:
    """How a subscription to a topic buffers what its subscriber has not taken yet.

    `buffer_size` 0 takes the broker's. When the buffer is full, `policy` says what happens: the oldest is dropped, the
    newest is dropped, the publisher waits up to `block_timeout_ms` and then the newest is dropped, or the subscription
    is closed. `filter` sees each message before the subscriber does and says whether it is for him; what it refuses
    has had its place in the buffer. Bodies are always shared, never copied, so `zero_copy` changes nothing.
    """

    buffer_size: int = 0
    policy: OverflowPolicy = "drop_oldest"
    block_timeout_ms: int = 50
    filter: Callable[[Message], bool] | None = None
    zero_copy: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidConfig(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}", argument="policy")
        for name in ("buffer_size", "block_timeout_ms"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 1 << 53:
                raise InvalidConfig(f"{name} must be an int that is not negative", argument=name)
        if self.filter is not None and not callable(self.filter):
            raise InvalidConfig("filter must be callable", argument="filter")
        if type(self.zero_copy) is not bool:
            raise InvalidConfig("zero_copy must be bool", argument="zero_copy")

    @classmethod
    def of(cls, settings: SubArguments) -> SubOptions:
        """Options from single settings; an unknown one is an error that names it."""
        unknown = settings.keys() - {f.name for f in dataclasses.fields(cls)}
        for name in sorted(unknown):
            raise InvalidConfig(f"unknown setting {name!r}", argument=name)
        return cls(**settings)

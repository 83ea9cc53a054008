"""What the handles of one embedded broker share: engine, tenant, settings, and the checks before every call."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from rookery.core.topology import Tenant, check_name
from rookery.embed.engine import AsyncEngine, AsyncSignal, Engine, Signal
from rookery.embed.messages import Parcel, pack
from rookery.embed.options import Config
from rookery.errors import BrokerClosed, InvalidArgument, InvalidTopic, InvalidType, RookeryError

TOPICS: Final = "amq.topic"
"""The exchange on which topics of the embedded face, MQTT topics and AMQP bindings meet."""

TOPIC_MAX_CHARS: Final = 1024


class Observation:
    """One operation, as told to an observer."""

    __slots__ = ("duration_ms", "error", "operation", "panicked", "topic")

    def __init__(self, operation: str, topic: str, duration_ms: float, error: BaseException | None) -> None:
        self.operation = operation
        self.topic = topic
        self.duration_ms = duration_ms
        self.error = error
        self.panicked = error is not None and not isinstance(error, RookeryError)

    def __repr__(self) -> str:
        return f"Observation({self.operation!r}, {self.topic!r}, {self.duration_ms:.3f} ms, error={self.error!r})"


Observer = Callable[[Observation], None]
SignalT = TypeVar("SignalT", Signal, AsyncSignal)


class Context:
    """Shared by a broker and all handles it gave out."""

    def __init__(self, engine: Engine | AsyncEngine, tenant: Tenant, config: Config, observer: Observer | None) -> None:
        self.engine = engine
        self.tenant = tenant
        self.config = config
        self.observer = observer
        self.closed = False
        self.last_error: str | None = None
        self.last_panic: str | None = None
        self.last_panic_ms: int | None = None
        self.counter = 0
        self._signals: weakref.WeakSet[Signal | AsyncSignal] = weakref.WeakSet()

    def watch(self, signal: SignalT) -> SignalT:
        """Have a signal set when the broker closes, so that whoever waits on it learns of it (within a turn)."""
        self._signals.add(signal)
        return signal

    def close(self) -> None:
        """No call is taken any more; whoever waits is woken."""
        self.closed = True
        for signal in list(self._signals):
            signal.set()

    def check_open(self) -> None:
        if self.closed:
            raise BrokerClosed("the broker is closed")

    def next_name(self, kind: str) -> str:
        """A name for something of ours that users do not name."""
        self.counter += 1
        return f"amq.{kind}-{self.counter}"

    def parcel(self, value: object, headers: dict[str, object] | None = None) -> Parcel:
        """A value or Message, encoded for the core by this broker's settings."""
        shard = self.engine.shard
        return pack(value, shard.wall_ms, self.config.message_ttl_ms, self.config.require_body, headers)

    def observe(self, operation: str, topic: str, started: float, error: BaseException | None) -> None:
        """Tell the observer, if metrics are on; an observer that fails is noted, not obeyed."""
        if error is not None:
            self.last_error = f"{type(error).__name__}: {error}"
        if self.observer is None or not self.config.enable_metrics:
            return
        try:
            self.observer(Observation(operation, topic, (time.perf_counter() - started) * 1000, error))
        except Exception as panic:  # noqa: BLE001 (whatever an observer does, the broker goes on)
            self.note_panic(panic)

    def note_panic(self, panic: BaseException) -> None:
        self.last_panic = f"{type(panic).__name__}: {panic}"
        self.last_panic_ms = self.engine.clock.wall_ms()


def check_topic(topic: object) -> str:
    """A topic or pattern as a routing key: `/` separates levels as `.` does, and `+` is one level as `*` is."""
    if not isinstance(topic, str):
        raise InvalidType(f"topic must be str, not {type(topic).__name__}", argument="topic")
    if not topic.strip() or len(topic) > TOPIC_MAX_CHARS:
        raise InvalidTopic(f"a topic has 1 to {TOPIC_MAX_CHARS} characters", argument="topic")
    if "/" in topic:
        topic = ".".join("*" if level == "+" else level for level in topic.split("/"))
    return topic


def check_positive(value: object, argument: str) -> int:
    if type(value) is not int:
        raise InvalidType(f"{argument} must be int, not {type(value).__name__}", argument=argument)
    if value < 1:
        raise InvalidArgument(f"{argument} must be at least 1, not {value}", argument=argument)
    return value


def check_wait(value: object, argument: str) -> int:
    if type(value) is not int:
        raise InvalidType(f"{argument} must be int, not {type(value).__name__}", argument=argument)
    if value < 0:
        raise InvalidArgument(f"{argument} must not be negative", argument=argument)
    return value


__all__ = [
    "TOPICS",
    "TOPIC_MAX_CHARS",
    "Context",
    "Observation",
    "Observer",
    "check_name",
    "check_positive",
    "check_topic",
    "check_wait",
]

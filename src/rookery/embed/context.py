"""What the handles of one embedded broker share: engine, tenant, settings, and the checks before every call."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rookery.core.keeping import TOPICS
from rookery.core.publishing import Batch, Publish
from rookery.core.queue_settings import TIME_MAX_MS
from rookery.core.topology import NAME_MAX_BYTES, Tenant, check_name
from rookery.embed.messages import pack, pack_batch
from rookery.embed.options import TOPIC_MAX_CHARS, Config
from rookery.engine.engine import AsyncEngine, Engine
from rookery.engine.workers import AsyncSignal, Signal
from rookery.errors import BrokerClosed, InvalidArgument, InvalidConfig, InvalidTopic, InvalidType, RookeryError


class Observation:
    """One operation, as told to an observer: publish, subscribe, ack, nack, redeliver, metrics or close.

    `panicked` says that the error is not one of the broker's own.
    """

    __slots__ = ("duration_ms", "error", "operation", "panicked", "topic")

    def __init__(self, operation: str, topic: str, duration_ms: float, error: BaseException | None) -> None:
        self.operation = operation
        self.topic = topic
        self.duration_ms = duration_ms
        self.error = error
        # a caller who gives up waiting is no failure
        self.panicked = isinstance(error, Exception) and not isinstance(error, RookeryError)

    def __repr__(self) -> str:
        return f"Observation({self.operation!r}, {self.topic!r}, {self.duration_ms:.3f} ms, error={self.error!r})"


Observer = Callable[[Observation], object]
EngineT = TypeVar("EngineT", Engine, AsyncEngine)
SignalT = TypeVar("SignalT", Signal, AsyncSignal)


class Context(Generic[EngineT]):
    """Shared by a broker and all handles it gave out. User's code is never called within a turn."""

    def __init__(self, engine: EngineT, tenant: Tenant, config: Config, observer: Observer | None) -> None:
        self.engine: EngineT = engine
        self.tenant = tenant
        self.config = config
        self.observer = observer
        self.closed = False
        self.last_error: str | None = None
        self.last_panic: str | None = None
        self.last_panic_ms: int | None = None
        self._counter = 0
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
        """A name for something of ours that users do not name (within a turn)."""
        while True:
            self._counter += 1
            name = f"amq.{kind}-{self._counter}"
            if name not in self.tenant.queues:
                return name

    def pack(
        self,
        exchange: str,
        key: str,
        value: object,
        mandatory: bool = False,
        headers: dict[str, object] | None = None,
    ) -> Publish:
        """A value or Message as the core takes it, by this broker's settings. Runs outside of turns: it may call the
        value's own code.
        """
        config = self.config
        return pack(
            exchange, key, value, self.engine.clock, config.message_ttl_ms, config.require_body, mandatory, headers
        )

    def pack_all(self, exchange: str, key: str, values: list[Any]) -> Batch | list[Publish]:
        """As `pack`, for values that are published together."""
        config = self.config
        batch = pack_batch(exchange, key, values, self.engine.clock, config.message_ttl_ms, config.require_body)
        return [self.pack(exchange, key, value) for value in values] if batch is None else batch

    def observe(self, operation: str, topic: str, started: float, error: BaseException | None) -> None:
        """Tell the observer, if metrics are on; an observer that fails is noted, not obeyed."""
        if isinstance(error, Exception):
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


# Checks of arguments, each naming the one that is wrong


def check_topic(topic: object) -> str:
    """A topic or pattern as a routing key: `/` separates levels as `.` does, and `+` is one level as `*` is."""
    if not isinstance(topic, str):
        raise InvalidType(f"topic must be str, not {type(topic).__name__}", argument="topic")
    if not topic.strip() or len(topic) > TOPIC_MAX_CHARS:
        raise InvalidTopic(f"a topic has 1 to {TOPIC_MAX_CHARS} characters and is not blank", argument="topic")
    if "/" in topic or topic == "+":
        topic = ".".join("*" if level == "+" else level for level in topic.split("/"))
    return topic


def check_key(key: object) -> str:
    """A routing key, which may be empty."""
    if not isinstance(key, str):
        raise InvalidType(f"key must be str, not {type(key).__name__}", argument="key")
    if len(key.encode("utf-8", "surrogateescape")) > NAME_MAX_BYTES:
        raise InvalidArgument(f"key is longer than {NAME_MAX_BYTES} bytes", argument="key")
    return key


def check_text(value: object, argument: str) -> str:
    if not isinstance(value, str):
        raise InvalidType(f"{argument} must be str, not {type(value).__name__}", argument=argument)
    return value


def check_positive(value: object, argument: str) -> int:
    if type(value) is not int:
        raise InvalidType(f"{argument} must be int, not {type(value).__name__}", argument=argument)
    if not 1 <= value <= TIME_MAX_MS:
        raise InvalidArgument(f"{argument} must be between 1 and {TIME_MAX_MS}, not {value}", argument=argument)
    return value


def check_not_negative(value: object, argument: str) -> int:
    if type(value) is not int:
        raise InvalidType(f"{argument} must be int, not {type(value).__name__}", argument=argument)
    if not 0 <= value <= TIME_MAX_MS:
        raise InvalidArgument(f"{argument} must be between 0 and {TIME_MAX_MS}, not {value}", argument=argument)
    return value


def check_ack(ack: str, ack_id: str | None, ack_timeout_ms: int | None, default_ms: int) -> int | None:
    """How long the ack of a message may take; None when it waits for none."""
    if ack not in ("none", "required", "timeout"):
        raise InvalidConfig(f"ack must be none, required or timeout, not {ack!r}", argument="ack")
    if ack == "none":
        if ack_id is not None or ack_timeout_ms is not None:
            raise InvalidConfig("an ack id or timeout needs ack='required' or ack='timeout'", argument="ack")
        return None
    if ack == "timeout" and ack_timeout_ms is None:
        raise InvalidConfig("ack='timeout' needs ack_timeout_ms", argument="ack_timeout_ms")
    timeout = default_ms if ack_timeout_ms is None else ack_timeout_ms
    if type(timeout) is not int or not 1 <= timeout < 1 << 53:
        raise InvalidConfig("ack_timeout_ms must be an int of at least 1", argument="ack_timeout_ms")
    if ack_id is not None and not check_text(ack_id, "ack_id").strip():
        raise InvalidArgument("an ack id is not blank (or none: it is made of the message's id)", argument="ack_id")
    return timeout


def check_timeout(value: object) -> int | None:
    return None if value is None else check_not_negative(value, "timeout_ms")


__all__ = [
    "TOPICS",
    "TOPIC_MAX_CHARS",
    "Context",
    "Observation",
    "Observer",
    "check_ack",
    "check_key",
    "check_name",
    "check_not_negative",
    "check_positive",
    "check_text",
    "check_timeout",
    "check_topic",
]

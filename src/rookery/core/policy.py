"""What can be said about a queue: its settings, the defaults of each face, and policies that apply by name pattern.

A queue keeps what its declarer said. What holds is computed from that: the defaults of the face that created it, then
the policy with the highest priority whose pattern matches its name, then the declarer's own words. Defaults and
policies take no part in redeclare equivalence, and a policy change reaches queues that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rookery.core.consumers import DISTRIBUTIONS
from rookery.core.patterns import Pattern, PatternError
from rookery.core.queue import OVERFLOWS
from rookery.errors import InvalidArgument, InvalidType

BACKOFFS: Final = ("fixed", "linear", "exponential")
QUEUE_TYPES: Final = ("classic", "quorum")
"""A quorum queue keeps every message as if it were persistent, and counts every delivery."""
TIME_MAX_MS: Final = 1 << 53
"""No delay, lease or time to live may be longer: 285,000 years."""


class QueueSettings:
    """The settings in force for one queue. Durations of 0, and a time to live or counts below 0, mean "none"."""

    def __init__(self) -> None:
        self.durable = True
        self.auto_delete = False
        self.expires_ms = 0
        self.ttl_ms = -1
        self.length_max = -1
        self.bytes_max = -1
        self.overflow = "drop-head"
        self.dead_letter_exchange: str | None = None
        self.dead_letter_key: str | None = None
        self.dead_letter_queue: str | None = None
        self.dead_letter_declared = False
        self.max_attempts = 0
        self.backoff = "fixed"
        self.backoff_base_ms = 0
        self.backoff_max_ms = 3_600_000
        self.backoff_jitter = 0.0
        self.ordered = True
        self.priority_max = 0
        self.single_active = False
        self.distribution = "round-robin"
        self.grouped = False
        self.lease_ms = 30_000
        self.dedup_window_ms = 86_400_000
        self.dedup = False
        self.queue_type = "classic"
        self.consumer_timeout_ms = 0
        self.arguments: dict[str, object] = {}

    @property
    def overflow_code(self) -> int:
        return OVERFLOWS[self.overflow]

    @property
    def distribution_code(self) -> int:
        return DISTRIBUTIONS[self.distribution]

    def backoff_ms(self, attempt: int, salt: int) -> int:
        """The pause after delivery number `attempt` failed; jitter is a function of `salt`, so a run can be
        repeated.
        """
        base = self.backoff_base_ms
        if base <= 0:
            return 0
        if self.backoff == "linear":
            pause = base * attempt
        elif self.backoff == "exponential":
            pause = base << min(attempt - 1, 62)
        else:
            pause = base
        pause = min(pause, self.backoff_max_ms)
        if self.backoff_jitter:
            mixed = (salt * 0x9E3779B97F4A7C15 + attempt * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
            mixed ^= mixed >> 31
            share = mixed % 10_001 / 5_000 - 1
            pause += int(pause * self.backoff_jitter * share)
        return max(0, pause)

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in SETTINGS}


# name -> (types, smallest, largest, choices)
_Rule = tuple[tuple[type, ...], float | None, float | None, tuple[str, ...] | None]

SETTINGS: Final[dict[str, _Rule]] = {
    "durable": ((bool,), None, None, None),
    "auto_delete": ((bool,), None, None, None),
    "expires_ms": ((int,), 1, TIME_MAX_MS, None),
    "ttl_ms": ((int,), 0, TIME_MAX_MS, None),
    "length_max": ((int,), 0, 1 << 53, None),
    "bytes_max": ((int,), 0, 1 << 53, None),
    "overflow": ((str,), None, None, tuple(OVERFLOWS)),
    "dead_letter_exchange": ((str,), None, 255, None),
    "dead_letter_key": ((str,), None, 255, None),
    "dead_letter_queue": ((str,), None, 255, None),
    "max_attempts": ((int,), 0, 1 << 30, None),
    "backoff": ((str,), None, None, BACKOFFS),
    "backoff_base_ms": ((int,), 0, TIME_MAX_MS, None),
    "backoff_max_ms": ((int,), 0, TIME_MAX_MS, None),
    "backoff_jitter": ((float, int), 0, 1, None),
    "ordered": ((bool,), None, None, None),
    "priority_max": ((int,), 0, 1 << 53, None),
    "single_active": ((bool,), None, None, None),
    "distribution": ((str,), None, None, tuple(DISTRIBUTIONS)),
    "grouped": ((bool,), None, None, None),
    "lease_ms": ((int,), 1, TIME_MAX_MS, None),
    "dedup_window_ms": ((int,), 1, TIME_MAX_MS, None),
    "dedup": ((bool,), None, None, None),
    "queue_type": ((str,), None, None, QUEUE_TYPES),
    "consumer_timeout_ms": ((int,), 0, TIME_MAX_MS, None),
    "arguments": ((dict,), None, None, None),
}

# A policy cannot change what a queue is made of.
FIXED_AT_DECLARE: Final = frozenset({"durable", "auto_delete", "ordered", "queue_type", "arguments"})

FACES: Final[dict[str, dict[str, object]]] = {
    "embedded": {"max_attempts": 4},
    "s0": {"max_attempts": 3, "lease_ms": 5_000, "dead_letter_queue": "{queue}.DLQ"},
    "http": {
        "max_attempts": 6,
        "backoff": "exponential",
        "backoff_base_ms": 500,
        "dead_letter_queue": "{queue}.DLQ",
    },
    "line": {
        "max_attempts": 6,
        "backoff_base_ms": 30_000,
        "dead_letter_queue": "{queue}.DLQ",
        "ordered": False,
    },
    "amqp": {"ordered": False},
    "mqtt": {"ordered": False},
    "dead-letter": {},
}


def check_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """The same settings, or an error naming the first that is unknown or out of range. None counts as not said."""
    checked: dict[str, object] = {}
    for name, value in settings.items():
        rule = SETTINGS.get(name)
        if rule is None:
            raise InvalidArgument(f"unknown queue setting {name!r}", argument=name)
        if value is not None:
            _check(name, value, rule)
            checked[name] = value
    if checked.get("dead_letter_exchange") is not None and checked.get("dead_letter_queue") is not None:
        raise InvalidArgument(
            "a queue has one dead-letter target: an exchange or a queue", argument="dead_letter_queue"
        )
    if "dead_letter_key" in checked and "dead_letter_exchange" not in checked:
        raise InvalidArgument("dead_letter_key needs dead_letter_exchange", argument="dead_letter_key")
    return checked


def _check(name: str, value: object, rule: _Rule) -> None:
    types, low, high, choices = rule
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise InvalidType(f"{name} must be {types[0].__name__}, not {type(value).__name__}", argument=name)
    if isinstance(value, str):
        if choices is not None and value not in choices:
            raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, not {value!r}", argument=name)
        if high is not None:
            _check_text(name, value, int(high))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if low is not None and not value >= low:
            raise InvalidArgument(f"{name} must be at least {low:g}, not {value}", argument=name)
        if high is not None and not value <= high:
            raise InvalidArgument(f"{name} must be at most {high:g}, not {value}", argument=name)


def _check_text(name: str, value: str, longest: int) -> None:
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is not text that can be written as UTF-8", argument=name) from None
    if size > longest:
        raise InvalidArgument(f"{name} is longer than {longest} bytes", argument=name)
    if name == "dead_letter_queue" and (not value.strip() or any(c < " " or c == "\x7f" for c in value)):
        raise InvalidArgument(f"{name} is not a name for a queue", argument=name)


class Policy:
    """Settings for every queue whose name the pattern matches; of several, the one with the highest priority counts.

    A policy that was `stored` by an earlier version may have a pattern that this one refuses: then `problem` says why,
    and it matches nothing.
    """

    def __init__(
        self, name: str, pattern: str, settings: Mapping[str, object], priority: int = 0, *, stored: bool = False
    ) -> None:
        for argument, value, wanted in (
            ("policy", name, str),
            ("pattern", pattern, str),
            ("priority", priority, int),
        ):
            if type(value) is not wanted:
                raise InvalidType(
                    f"{argument} must be {wanted.__name__}, not {type(value).__name__}", argument=argument
                )
        self.problem = ""
        self._compiled: Pattern | None = None
        try:
            self._compiled = Pattern(pattern)
        except PatternError as error:
            if not stored:
                raise InvalidArgument(f"pattern is not valid: {error}", argument="pattern") from None
            self.problem = str(error)
        self.states = 0 if self._compiled is None else self._compiled.states
        self.settings = check_settings(settings)
        for fixed in FIXED_AT_DECLARE & self.settings.keys():
            raise InvalidArgument(f"a policy cannot change {fixed}", argument=fixed)
        self.name = name
        self.pattern = pattern
        self.priority = priority

    @property
    def steps(self) -> int:
        """What matching has cost so far (`Pattern.steps`)."""
        return self._compiled.steps if self.states and self._compiled is not None else 0

    def matches(self, queue: str) -> bool:
        return self._compiled is not None and self._compiled.search(queue)

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name, "pattern": self.pattern, "priority": self.priority, "settings": dict(self.settings)}


def effective(
    queue: str, face: str, face_defaults: Mapping[str, object], policy: Policy | None, said: Mapping[str, object]
) -> QueueSettings:
    """What holds for a queue: defaults of its face, then the policy, then its declarer's words."""
    result = QueueSettings()
    layers: list[Mapping[str, object]] = [face_defaults]
    if policy is not None:
        layers.append(policy.settings)
    layers.append(said)
    for layer in layers:
        if "dead_letter_exchange" in layer:
            result.dead_letter_queue = None
        elif "dead_letter_queue" in layer:
            result.dead_letter_exchange = None
            result.dead_letter_key = None
        for name, value in layer.items():
            setattr(result, name, value)
        if layer is not face_defaults and ("dead_letter_exchange" in layer or "dead_letter_queue" in layer):
            result.dead_letter_declared = True
    if result.dead_letter_queue is not None:
        target = result.dead_letter_queue.replace("{queue}", queue)
        result.dead_letter_queue = None if target == queue else target
    return result

"""What can be said about a queue: its settings, the defaults of each face, and policies that apply by name pattern.

Which settings there are is said by the table in `core.queue_settings`.
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
from rookery.core.queue_settings import FACES as FACE_NAMES
from rookery.core.queue_settings import QUEUE_SETTINGS, QueueSetting
from rookery.errors import InvalidArgument, InvalidType

SETTINGS: Final[dict[str, QueueSetting]] = {row.name: row for row in QUEUE_SETTINGS}
"""The rows of the table of settings by name."""

FIXED_AT_DECLARE: Final = frozenset(row.name for row in QUEUE_SETTINGS if not row.by_policy)

FACES: Final[dict[str, dict[str, object]]] = {
    face: {row.name: row.faces[face] for row in QUEUE_SETTINGS if face in row.faces} for face in FACE_NAMES
}
"""The defaults of each face, where they are not those of the table."""


class QueueSettings:
    """The settings in force for one queue. Durations of 0, and a time to live or counts below 0, mean "none"."""

    # The types of the settings: written by tools/make_tables.py
    durable: bool
    auto_delete: bool
    expires_ms: int
    ttl_ms: int
    length_max: int
    bytes_max: int
    overflow: str
    dead_letter_exchange: str | None
    dead_letter_key: str | None
    dead_letter_queue: str | None
    max_attempts: int
    backoff: str
    backoff_base_ms: int
    backoff_max_ms: int
    backoff_jitter: float
    ordered: bool
    priority_max: int
    single_active: bool
    distribution: str
    grouped: bool
    lease_ms: int
    dedup_window_ms: int
    dedup: bool
    queue_type: str
    consumer_timeout_ms: int
    arguments: dict[str, object]
    # End of settings
    dead_letter_declared: bool

    def __init__(self) -> None:
        for name, row in SETTINGS.items():
            setattr(self, name, {} if row.type is dict else row.default)
        self.dead_letter_declared = False

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


def check_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """The same settings, or an error naming the first that is unknown or out of range. None counts as not said."""
    checked: dict[str, object] = {}
    for name, value in settings.items():
        row = SETTINGS.get(name)
        if row is None:
            raise InvalidArgument(f"unknown queue setting {name!r}", argument=name)
        if value is not None:
            _check(row, value)
            checked[name] = value
    if checked.get("dead_letter_exchange") is not None and checked.get("dead_letter_queue") is not None:
        raise InvalidArgument(
            "a queue has one dead-letter target: an exchange or a queue", argument="dead_letter_queue"
        )
    if "dead_letter_key" in checked and "dead_letter_exchange" not in checked:
        raise InvalidArgument("dead_letter_key needs dead_letter_exchange", argument="dead_letter_key")
    return checked


def _check(row: QueueSetting, value: object) -> None:
    name, low, high = row.name, row.smallest, row.largest
    wanted = (float, int) if row.type is float else (row.type,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and row.type is not bool):
        raise InvalidType(f"{name} must be {row.type.__name__}, not {type(value).__name__}", argument=name)
    if isinstance(value, str):
        if row.choices and value not in row.choices:
            raise InvalidArgument(f"{name} must be one of {', '.join(row.choices)}, not {value!r}", argument=name)
        if high is not None:
            _check_text(row, value, high)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if low is not None and not value >= low:
            raise InvalidArgument(f"{name} must be at least {low:g}, not {value}", argument=name)
        if high is not None and not value <= high:
            raise InvalidArgument(f"{name} must be at most {high:g}, not {value}", argument=name)


def _check_text(row: QueueSetting, value: str, longest: int) -> None:
    name = row.name
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is not text that can be written as UTF-8", argument=name) from None
    if size > longest:
        raise InvalidArgument(f"{name} is longer than {longest} bytes", argument=name)
    if row.is_name and (not value.strip() or any(c < " " or c == "\x7f" for c in value)):
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

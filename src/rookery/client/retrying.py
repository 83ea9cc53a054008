"""How often, and after which pauses, something is tried again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from rookery.errors import InvalidConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Up to `tries` further tries, after pauses that double from `base_ms` up to `max_ms`.

    `jitter` is the part of each pause that is left to chance, so that those whom one failure hit do not come back at
    one moment. What is tried again is what got no answer, and what the broker refused for the moment: it is stopping,
    or there were too many requests. With `for_room`, also what it refused because a queue, its memory or its disk is
    full.
    """

    tries: int = 10
    base_ms: int = 1_000
    max_ms: int = 10_000
    jitter: float = 0.5
    for_room: bool = False

    def __post_init__(self) -> None:
        for name in ("tries", "base_ms", "max_ms"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 1 << 53:
                raise InvalidConfig(f"{name} must be an int that is not negative, not {value!r}", argument=name)
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise InvalidConfig(f"jitter must be between 0 and 1, not {self.jitter!r}", argument="jitter")
        if type(self.for_room) is not bool:
            raise InvalidConfig(f"for_room must be bool, not {type(self.for_room).__name__}", argument="for_room")

    def pauses(self) -> Iterator[float]:
        """The pauses before the further tries, in seconds."""
        for i in range(self.tries):
            pause_ms = min(self.max_ms, self.base_ms << min(i, 53))
            yield pause_ms / 1000 * (1 - self.jitter * random.random())  # noqa: S311  no secret hangs on it

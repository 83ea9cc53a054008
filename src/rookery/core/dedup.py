"""Deduplication: publishers' keys, remembered for a window, each with the id of the message it first named.

Keys are scoped by the queue or exchange they were published to. The oldest go first when a tenant has too many. Keys of
whole requests, which a client makes up to be able to repeat one whose answer was lost, are kept apart and for minutes
only, so that they cost publishers' own keys nothing.
"""

from __future__ import annotations

from typing import Final

from rookery import properties
from rookery.errors import InvalidArgument

KEYS_MAX: Final = 1_000_000
WINDOW_MS: Final = 86_400_000

REQUEST: Final = "\0request "
"""Before the keys of requests; publishers' own do not begin so."""

REQUESTS_MAX: Final = 100_000
REQUEST_WINDOW_MS: Final = 600_000

KEY_HEADER: Final = "x-deduplication-header"


def dedup_key_of(props: bytes) -> str:
    """What a message is known by where a queue or an exchange asks for dedup: a header, else its message id."""
    try:
        key = properties.header(props, KEY_HEADER)
        if key is None:
            key = properties.message_id(props)
    except InvalidArgument:
        return ""
    return "" if key is None else str(key)


def scope_of(exchange: str, key: str) -> str:
    """Keys are scoped by the exchange, or by the queue for the default exchange."""
    return "exchange:" + exchange if exchange else "queue:" + key


class _Marks:
    """Keys in the order of their age, and how many there are of each scope."""

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.all: dict[tuple[str, str], tuple[int, int]] = {}
        self.scopes: dict[str, int] = {}

    def put(self, scope: str, key: str, number: int, until_ms: int) -> None:
        if (scope, key) in self.all:
            self.drop((scope, key))
        self.all[scope, key] = (number, until_ms)
        self.scopes[scope] = self.scopes.get(scope, 0) + 1

    def drop(self, mark: tuple[str, str]) -> None:
        del self.all[mark]
        left = self.scopes[mark[0]] - 1
        if left:
            self.scopes[mark[0]] = left
        else:
            del self.scopes[mark[0]]

    def drop_old(self, now_ms: int) -> int:
        count = 0
        while self.all:
            first = next(iter(self.all))
            if self.all[first][1] > now_ms:
                break
            self.drop(first)
            count += 1
        return count

    def drop_surplus(self) -> int:
        count = 0
        while len(self.all) > self.keys_max:
            self.drop(next(iter(self.all)))
            count += 1
        return count


class Dedup:
    """The remembered keys of one tenant."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self.evicted = 0
        self.duplicates = 0
        # whether a journal may have keys that are not known here: evicted ones, or such whose window is over
        self.hidden = False
        self._marks = _Marks(keys_max)
        self._requests = _Marks(REQUESTS_MAX)

    @property
    def keys_max(self) -> int:
        return self._marks.keys_max

    @keys_max.setter
    def keys_max(self, keys_max: int) -> None:
        self._marks.keys_max = keys_max

    def __len__(self) -> int:
        return len(self._marks.all) + len(self._requests.all)

    def _of(self, key: str) -> _Marks:
        return self._requests if key.startswith(REQUEST) else self._marks

    def find(self, scope: str, key: str, now_ms: int) -> int:
        """The number of the message that this key named first, 0 when the key is new or its window is over."""
        mark = self._of(key).all.get((scope, key))
        if mark is None or mark[1] <= now_ms:
            return 0
        return mark[0]

    def remember(self, scope: str, key: str, number: int, now_ms: int, window_ms: int) -> None:
        marks = self._of(key)
        marks.put(scope, key, number, now_ms + window_ms)
        old = marks.drop_old(now_ms)
        evicted = marks.drop_surplus()
        if old or evicted:
            self.hidden = True
        if marks is self._marks:
            self.evicted += evicted

    def forget(self, scope: str, key: str) -> None:
        """A key is of no more use."""
        marks = self._of(key)
        if (scope, key) in marks.all:
            marks.drop((scope, key))
            self.hidden = True

    def forget_old(self, now_ms: int) -> None:
        """Drop the oldest keys whose window is over."""
        if self._marks.drop_old(now_ms) + self._requests.drop_old(now_ms):
            self.hidden = True

    def forget_scope(self, scope: str) -> bool:
        """A queue or exchange was deleted: a new one of that name starts afresh. Whether there was any key, or a
        journal may have one.
        """
        found = self.hidden
        for marks in (self._marks, self._requests):
            if scope in marks.scopes:
                found = True
                for mark in [m for m in marks.all if m[0] == scope]:
                    marks.drop(mark)
        return found

    def marks(self) -> list[tuple[str, str, int, int]]:
        """(scope, key, number, expires_ms), oldest first, those of requests last."""
        return [
            (scope, key, number, until)
            for marks in (self._marks, self._requests)
            for (scope, key), (number, until) in marks.all.items()
        ]

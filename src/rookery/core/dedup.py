"""Deduplication: publishers' keys, remembered for a window, each with the id of the message it first named.

Keys are scoped by the queue or exchange they were published to. The oldest go first when a tenant has too many.
"""

from __future__ import annotations

from typing import Final

from rookery import properties
from rookery.errors import InvalidArgument

KEYS_MAX: Final = 1_000_000
WINDOW_MS: Final = 86_400_000


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


class Dedup:
    """The remembered keys of one tenant. Insertion order is age."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self.keys_max = keys_max
        self.evicted = 0
        self.duplicates = 0
        self._marks: dict[tuple[str, str], tuple[int, int]] = {}
        self._scopes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def find(self, scope: str, key: str, now_ms: int) -> int:
        """The number of the message that this key named first, 0 when the key is new or its window is over."""
        mark = self._marks.get((scope, key))
        if mark is None or mark[1] <= now_ms:
            return 0
        return mark[0]

    def remember(self, scope: str, key: str, number: int, now_ms: int, window_ms: int) -> None:
        marks = self._marks
        if (scope, key) in marks:
            self._drop((scope, key))
        marks[scope, key] = (number, now_ms + window_ms)
        self._scopes[scope] = self._scopes.get(scope, 0) + 1
        self.forget_old(now_ms)
        while len(marks) > self.keys_max:
            self._drop(next(iter(marks)))
            self.evicted += 1

    def _drop(self, mark: tuple[str, str]) -> None:
        del self._marks[mark]
        left = self._scopes[mark[0]] - 1
        if left:
            self._scopes[mark[0]] = left
        else:
            del self._scopes[mark[0]]

    def forget_old(self, now_ms: int) -> None:
        """Drop the oldest keys whose window is over."""
        marks = self._marks
        while marks:
            first = next(iter(marks))
            if marks[first][1] > now_ms:
                return
            self._drop(first)

    def forget_scope(self, scope: str) -> bool:
        """A queue or exchange was deleted: a new one of that name starts afresh. Whether there was any key."""
        if scope not in self._scopes:
            return False
        for mark in [m for m in self._marks if m[0] == scope]:
            self._drop(mark)
        return True

    def marks(self) -> list[tuple[str, str, int, int]]:
        """(scope, key, number, expires_ms), oldest first."""
        return [(scope, key, number, until) for (scope, key), (number, until) in self._marks.items()]

"""Deduplication: publishers' keys, remembered for a window, each with the id of the message it first named.

Keys are scoped by the queue or exchange they were published to. The oldest go first when a tenant has too many, or when
they take too much memory. Keys of whole requests, which a client makes up to be able to repeat one whose answer was
lost, are kept apart and for minutes only, so that they cost publishers' own keys nothing.

Nothing here takes longer the more keys there are: of those whose time is over, a few go with each new one, and the keys
of a deleted queue or exchange are unknown at once and go when their turn comes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from rookery.errors import InvalidArgument
from rookery.format import properties

KEYS_MAX: Final = 1_000_000
WINDOW_MS: Final = 86_400_000

REQUEST: Final = "\0request "
"""Before the keys of requests; publishers' own do not begin so."""

REQUESTS_MAX: Final = 100_000
REQUEST_WINDOW_MS: Final = 600_000

KEY_BYTES: Final = 400
"""About how much memory a remembered key takes beside its text."""

KEYS_MAX_BYTES: Final = 1 << 29
"""How much memory the keys of a tenant may take."""

OLD_PER_KEY: Final = 100
"""So many keys whose time is over go when one is remembered."""

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


class _Scope:
    """A queue or exchange that has keys; not `known` any more once it was deleted."""

    __slots__ = ("count", "known", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.known = True


class _Marks:
    """Keys in the order of their age. Those of forgotten scopes are among them until they are the oldest."""

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.all: OrderedDict[tuple[_Scope, str], tuple[int, int]] = OrderedDict()
        self.scopes: dict[str, _Scope] = {}
        self.known = 0
        self.bytes = 0

    def find(self, scope: str, key: str) -> tuple[int, int] | None:
        place = self.scopes.get(scope)
        return None if place is None else self.all.get((place, key))

    def put(self, scope: str, key: str, number: int, until_ms: int) -> None:
        place = self.scopes.get(scope)
        if place is None:
            place = self.scopes[scope] = _Scope(scope)
        elif (place, key) in self.all:
            self.drop((place, key))
            self.scopes[scope] = place
        self.all[place, key] = (number, until_ms)
        place.count += 1
        self.known += 1
        self.bytes += KEY_BYTES + len(key)

    def drop(self, mark: tuple[_Scope, str]) -> None:
        del self.all[mark]
        self.bytes -= KEY_BYTES + len(mark[1])
        scope = mark[0]
        scope.count -= 1
        if scope.known:
            self.known -= 1
            if not scope.count:
                del self.scopes[scope.name]

    def drop_old(self, now_ms: int, most: int) -> int:
        """Drop the oldest keys whose time is over, or whose scope is forgotten, up to so many; how many were known."""
        count = 0
        while self.all and most > 0:
            first = next(iter(self.all))
            if first[0].known and self.all[first][1] > now_ms:
                break
            count += first[0].known
            most -= 1
            self.drop(first)
        return count

    def drop_surplus(self) -> int:
        """Drop the oldest while there are too many, or they take too much memory."""
        count = 0
        while self.known > self.keys_max or len(self.all) > 2 * self.keys_max or self.bytes > KEYS_MAX_BYTES:
            first = next(iter(self.all))
            count += first[0].known
            self.drop(first)
        return count

    def forget(self, name: str) -> bool:
        """Forget a scope; whether there was any key."""
        scope = self.scopes.pop(name, None)
        if scope is None:
            return False
        scope.known = False
        self.known -= scope.count
        return True


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

    @property
    def bytes(self) -> int:
        """About how much memory the keys take."""
        return self._marks.bytes + self._requests.bytes

    def __len__(self) -> int:
        return self._marks.known + self._requests.known

    def _of(self, key: str) -> _Marks:
        return self._requests if key.startswith(REQUEST) else self._marks

    def find(self, scope: str, key: str, now_ms: int) -> int:
        """The number of the message that this key named first, 0 when the key is new or its window is over."""
        mark = self._of(key).find(scope, key)
        if mark is None or mark[1] <= now_ms:
            return 0
        return mark[0]

    def remember(self, scope: str, key: str, number: int, now_ms: int, window_ms: int) -> None:
        marks = self._of(key)
        marks.put(scope, key, number, now_ms + window_ms)
        old = marks.drop_old(now_ms, OLD_PER_KEY)
        evicted = marks.drop_surplus()
        if old or evicted:
            self.hidden = True
        if marks is self._marks:
            self.evicted += evicted

    def forget(self, scope: str, key: str) -> None:
        """A key is of no more use."""
        marks = self._of(key)
        place = marks.scopes.get(scope)
        if place is not None and (place, key) in marks.all:
            marks.drop((place, key))
            self.hidden = True

    def forget_scope(self, scope: str) -> bool:
        """A queue or exchange was deleted: a new one of that name starts afresh. Whether there was any key, or a
        journal may have one.
        """
        known = [marks.forget(scope) for marks in (self._marks, self._requests)]
        return self.hidden or any(known)

    def marks(self) -> list[tuple[str, str, int, int]]:
        """(scope, key, number, expires_ms), oldest first, those of requests last."""
        return [
            (scope.name, key, number, until)
            for marks in (self._marks, self._requests)
            for (scope, key), (number, until) in marks.all.items()
            if scope.known
        ]

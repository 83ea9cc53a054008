"""A binary heap of items under 64-bit keys: the broker's one index, by time or by sequence.

Keys lie in a packed array, so comparing touches no object. Items are not removed from the middle: their owner marks
them as gone, skips them when they come up, and rebuilds the heap when most of it is stale (`crowded`).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rookery.format.bytes import append, pop, vec
from rookery.format.model import NEVER

SLACK: Final[i64] = 1024


@final
class Heap:
    """Smallest key first; among equal keys the order is fixed but arbitrary."""

    def __init__(self) -> None:
        self._keys: vec[i64] = vec[i64]()
        self._items: list[object] = []

    def __len__(self) -> int:
        return len(self._items)

    def first_key(self) -> i64:
        """The smallest key, NEVER when empty."""
        if not self._items:
            return NEVER
        return self._keys[0]

    def first(self) -> object:
        return self._items[0]

    def push(self, key: i64, item: object) -> None:
        items = self._items
        at: i64 = len(items)
        items.append(item)
        self._keys = append(self._keys, key)
        keys = self._keys
        while at > 0:
            up = (at - 1) >> 1
            parent = keys[up]
            if parent <= key:
                break
            keys[at] = parent
            items[at] = items[up]
            at = up
        keys[at] = key
        items[at] = item

    def pop(self) -> object:
        """Remove and return the item of the smallest key."""
        items = self._items
        first = items[0]
        last = items.pop()
        keys, key = pop(self._keys)
        self._keys = keys
        size: i64 = len(items)
        if size:
            self._sink(0, key, last, size)
        return first

    def _sink(self, at: i64, key: i64, item: object, size: i64) -> None:
        keys = self._keys
        items = self._items
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            smallest = keys[child]
            if child + 1 < size:
                right = keys[child + 1]
                if right < smallest:
                    smallest = right
                    child += 1
            if smallest >= key:
                break
            keys[at] = smallest
            items[at] = items[child]
            at = child
        keys[at] = key
        items[at] = item

    def crowded(self, live: i64) -> bool:
        """Whether more than half of the items (and enough to matter) are no longer among the `live` ones."""
        return len(self._items) > 2 * live + SLACK

    def items(self) -> list[object]:
        """All items, in no particular order."""
        return list(self._items)

    def clear(self) -> None:
        self._keys = vec[i64]()
        self._items = []

"""Ids of messages that a consumer has dealt with, so that it is not troubled with one of them again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SEEN_MAX: Final = 100_000


class Seen:
    """The last ids that were acked, the oldest forgotten first."""

    def __init__(self, ids_max: int = SEEN_MAX) -> None:
        self._max = ids_max
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: str) -> None:
        self._ids[id] = None
        self._ids.move_to_end(id)
        while len(self._ids) > self._max:
            self._ids.popitem(last=False)

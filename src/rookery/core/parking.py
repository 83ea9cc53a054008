"""Ready entries that wait beside their line, because their group or their consumer is busy.

In a grouped queue the messages of a group are delivered one after the other: while one is out (`_busy`), the others are
parked, and when it is settled the next is lined up (`_heads`). In a queue that is distributed by key each key belongs
to one subscription, and what its owner has no credit for is parked with it. Parked entries count as ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rookery.core.entries import DELAYED, LEASED, PARKED, Entry, Park
from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.model import Message

if TYPE_CHECKING:
    from rookery.core.queue import Queue

GROUP_HEADER: Final = "x-group-id"


def group_of(message: Message) -> str:
    """The message's group (header `x-group-id`), empty when it has none."""
    try:
        value = properties.header(message.props, GROUP_HEADER)
    except InvalidArgument:
        return ""
    return "" if value is None else str(value)


@final
class Parking:
    """See the module's docstring."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._busy: dict[str, Entry] = {}
        self._parked: dict[str, Park] = {}
        self._heads: dict[str, Entry] = {}

    def clear(self) -> None:
        self._busy.clear()
        self._parked.clear()
        self._heads.clear()

    def free_groups(self) -> None:
        """Groups do not count any more."""
        self._busy.clear()

    def holds_groups(self) -> bool:
        return bool(self._busy or self._heads)

    def takes(self, entry: Entry) -> bool:
        """Whether an entry that comes out of its line has to wait for another of its group; else the group is busy."""
        group = group_of(entry.message)
        if not group:
            return False
        holder = self._busy.get(group)
        if holder is None:
            self._busy[group] = entry
            if self._heads.get(group) is entry:
                del self._heads[group]
        elif holder is not entry:
            self.park(entry, group)
            return True
        return False

    def left(self, entry: Entry) -> None:
        """An entry is gone: if its group waited for it, the group goes on."""
        group = group_of(entry.message)
        if group and (self._busy.get(group) is entry or self._heads.get(group) is entry):
            self.unpark(group, entry)

    def entries(self) -> list[Entry]:
        """All that is parked, in no particular order."""
        parked: list[Entry] = []
        for park in self._parked.values():
            parked.extend(park.entries())
        for s in self._queue.roster.all:
            if s.parked is not None:
                parked.extend(s.parked.entries())
        return parked

    def any(self) -> bool:
        """Whether ready entries may stand elsewhere than in their lines."""
        queue = self._queue
        if self._parked:
            return True
        for s in queue.roster.all:
            if s.parked is not None and len(s.parked):
                return True
        return False

    def park(self, entry: Entry, group: str) -> None:
        queue = self._queue
        entry.state = PARKED
        if queue.journaled:
            queue.away[entry.seq] = entry
        queue.ready += 1
        if self._heads.get(group) is entry:
            del self._heads[group]
        park = self._parked.get(group)
        if park is None:
            park = Park()
            self._parked[group] = park
        park.push(self._level_of(entry), entry)

    def _level_of(self, entry: Entry) -> i64:
        queue = self._queue
        if not queue.ordered:
            return 0
        priority = entry.message.priority
        return min(queue.priority_max, priority)

    def unpark(self, group: str, left: Entry) -> None:
        """The group's busy entry, or the one lined up for it, left: the next may go."""
        queue = self._queue
        if self._busy.get(group) is left:
            del self._busy[group]
        if self._heads.get(group) is left:
            del self._heads[group]
        park = self._parked.get(group)
        if park is None:
            return
        entry = park.pop()
        if entry is None:
            del self._parked[group]
            return
        queue.ready -= 1
        self._heads[group] = entry
        queue.line_up(entry)
        queue.mark_dirty()

    def pump_by_key(self) -> None:
        """Each key belongs to one subscription; what its owner cannot take yet is parked with it."""
        queue = self._queue
        while True:
            entry = queue.next()
            if entry is None:
                break
            key = group_of(entry.message) or entry.message.route.key
            owner = queue.roster.owner_of(key)
            if owner is None:
                queue.line_up(entry)
                break
            if owner.parked is None:
                owner.parked = Park()
            entry.state = PARKED
            if queue.journaled:
                queue.away[entry.seq] = entry
            queue.ready += 1
            owner.parked.push(self._level_of(entry), entry)
        for subscription in list(queue.roster.all):
            while subscription.parked is not None and subscription.has_credit():
                entry = subscription.parked.pop()
                if entry is None:
                    break
                queue.ready -= 1
                if queue.max_attempts and i64(entry.attempts) >= queue.max_attempts:
                    queue.leave(entry, "delivery_limit", "")
                else:
                    queue.hand_over(entry, subscription)

    def unpark_all(self) -> None:
        """Back to the lines with everything that waits beside them: who waits for whom is to be decided anew."""
        queue = self._queue
        for s in queue.roster.all:
            if s.parked is not None:
                self.line_up_all(s.parked)
                s.parked = None
        for heap in list(self._parked.values()):
            self.line_up_all(heap)
        self._parked.clear()
        self._heads.clear()
        for group in list(self._busy):
            if self._busy[group].state != LEASED and self._busy[group].state != DELAYED:
                del self._busy[group]

    def line_up_all(self, park: Park) -> None:
        queue = self._queue
        while True:
            entry = park.pop()
            if entry is None:
                return
            queue.ready -= 1
            queue.line_up(entry)

"""The one account of test_kill_mixed.py: what was tried over every face, what was answered, and what was found.

Workers note an attempt before they make it and its answer after it. When the next process has started, all that it
holds is read and held against that. Each worker has queues of its own, so no two threads write one book.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


class Queue:
    """One queue: every message is a number that is used once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tried: set[int] = set()
        self.confirmed: set[int] = set()
        self.taking: set[int] = set()
        """Acks without an answer: they may count or not."""
        self.gone: set[int] = set()
        """Acks that were answered, and messages that were found not to be there: none of these may appear."""
        self.found: set[int] = set()
        self.wrong: list[str] = []

    def deliver(self, number: int) -> None:
        """A message came."""
        if number not in self.tried:
            self.wrong.append(f"nowhere: {self.name} delivers {number}, which nobody published")
        if number in self.gone:
            self.wrong.append(f"back: {self.name} delivers {number}, which was gone")

    def audit(self, found: list[int]) -> None:
        """Everything that is in the queue was taken out of it, and the acks were answered."""
        for number, count in Counter(found).items():
            self.deliver(number)
            if count > 1:
                self.wrong.append(f"doubled: {self.name} has {number} {count} times")
        for number in self.confirmed - self.gone - self.taking - set(found):
            self.wrong.append(f"lost: {number} was confirmed and is not in {self.name}")
        self.found.update(found)
        self.gone |= self.tried
        self.taking.clear()

    def retry(self, numbers: list[int]) -> None:
        """Publish again, under a dedup key, what was not answered: what is not there yet may be from now on."""
        self.tried.update(numbers)
        self.gone -= set(numbers) - self.found


@dataclass
class Together:
    """What happens wholly or not at all: numbers that it adds to queues, and one that it takes from another."""

    adds: list[tuple[str, int]]
    takes: tuple[str, int] | None = None
    answered: bool = False

    def check(self, found: dict[str, set[int]]) -> str | None:
        there = {number in found[queue] for queue, number in self.adds}
        if self.takes is not None:
            there.add(self.takes[1] not in found[self.takes[0]])
        if len(there) > 1:
            return f"torn: +{self.adds} -{self.takes} happened in part"
        if self.answered and there == {False}:
            return f"lost: +{self.adds} -{self.takes} was answered and did not happen"
        return None


class Stream:
    """One stream of one partition: what stands at an offset stays there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: list[int] = []
        self.tried: set[int] = set()
        self.confirmed: set[int] = set()
        self.commits: list[tuple[list[int], bool]] = []
        """Rows that become visible at once; whether that was answered."""
        self.group = 0
        """How far a group's commits were answered."""
        self.wrong: list[str] = []

    def audit(self, found: list[int], first: int, group: int) -> None:
        """Its records from offset `first` on, which is one that was read before, and how far the group is."""
        known = self.records[first:]
        if found[: len(known)] != known:
            self.wrong.append(f"changed: records of {self.name} from {first} on are not what they were")
        self.records[first:] = found
        counts = Counter(self.records)
        for number, count in counts.items():
            if number not in self.tried:
                self.wrong.append(f"nowhere: {self.name} has {number}, which nobody published")
            if count > 1:
                self.wrong.append(f"doubled: {self.name} has {number} {count} times")
        for number in self.confirmed - counts.keys():
            self.wrong.append(f"lost: {number} was confirmed and is not in {self.name}")
        for rows, answered in self.commits:
            there = {row in counts for row in rows}
            if len(there) > 1:
                self.wrong.append(f"torn: {self.name} shows some of the rows {rows[0]} to {rows[-1]}")
            elif answered and there == {False}:
                self.wrong.append(f"lost: the commit of {rows[0]} to {rows[-1]} was answered")
        self.commits = [(rows, answered) for rows, answered in self.commits if not answered]
        if group < self.group:
            self.wrong.append(f"lost: the group of {self.name} was at {self.group} and is at {group}")


class Hook:
    """A queue whose messages a webhook gets: each at least once, and once a life at most."""

    def __init__(self) -> None:
        self.tried: set[int] = set()
        self.confirmed: set[int] = set()
        self.seen: Counter[int] = Counter()
        self.lives: dict[int, Counter[int]] = {}
        self.ids: dict[int, set[str]] = {}
        self.life = 0
        self.wrong: list[str] = []

    def arrive(self, number: int, id: str) -> None:
        self.seen[number] += 1
        in_life = self.lives.setdefault(self.life, Counter())
        in_life[number] += 1
        self.ids.setdefault(number, set()).add(id)

    def missing(self) -> set[int]:
        return self.confirmed - self.seen.keys()

    def audit(self) -> None:
        for number in self.missing():
            self.wrong.append(f"lost: {number} was confirmed and never reached the endpoint")
        for number in self.seen.keys() - self.tried:
            self.wrong.append(f"nowhere: the endpoint got {number}")
        for life, seen in self.lives.items():
            # a call that was on its way at the kill may arrive when the next life has begun
            for number, count in seen.items():
                if count > 2:
                    self.wrong.append(f"doubled: the endpoint got {number} {count} times in life {life}")
        for number, ids in self.ids.items():
            if len(ids) > 1:
                self.wrong.append(f"doubled: the endpoint got {number} as {sorted(ids)}")

"""When a pipeline runs by the clock: five fields as cron has them, in UTC."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from rookery.errors import InvalidArgument

_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MONTHS: Final = {name.lower(): i for i, name in enumerate(calendar.month_abbr) if name}
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_PART: Final = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")
YEARS_MAX: Final = 8
"""How far ahead a time is looked for: the 29th of February comes every eight years at the least."""


@dataclass(frozen=True)
class Cron:
    """Which minutes, hours, days, months and weekdays (0 is Sunday) it names."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Cron:
        fields = text.split()
        if len(fields) != len(_FIELDS):
            raise InvalidArgument(
                f"cron has five fields (minute, hour, day, month, weekday), such as '*/10 * * * *', not {text!r}",
                argument="cron",
            )
        minutes, hours, days, months, weekdays = (
            _values(field, *which) for field, which in zip(fields, _FIELDS, strict=True)
        )
        found = cls(text, minutes, hours, days, months, frozenset(day % 7 for day in weekdays))
        if found.next_after(datetime(2024, 1, 1)) is None:  # noqa: DTZ001  any year does
            raise InvalidArgument(f"cron {text!r} names a day that never comes", argument="cron")
        return found

    def next_after(self, now: datetime) -> datetime | None:
        """The first time after `now` that it names."""
        at = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        last = at.year + YEARS_MAX
        while at.year <= last:
            if at.month not in self.months or not self._day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return at
        return None

    def _day(self, at: datetime) -> bool:
        """As in cron: with both a day and a weekday named, either will do."""
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return day or weekday
        return day and weekday


def _values(field: str, name: str, smallest: int, largest: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part.lower())
        if match is None:
            raise InvalidArgument(f"cron: {part!r} is no {name}", argument="cron")
        every, first, last, step = match.groups()
        if every == "*":
            low, high = smallest, largest
        else:
            low = _number(first, name)
            high = _number(last, name) if last else (largest if step else low)
        if not smallest <= low <= high <= largest or step == "0":
            raise InvalidArgument(f"cron: a {name} is from {smallest} to {largest}, not {part!r}", argument="cron")
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, name: str) -> int:
    known = {"month": _MONTHS, "weekday": _DAYS}.get(name, {})
    if text in known:
        return known[text]
    if not text.isdecimal():
        raise InvalidArgument(f"cron: {text!r} is no {name}", argument="cron")
    return int(text)

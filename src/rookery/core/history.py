"""What the headers of a message tell of its past: the keys it was published with, and deaths it died elsewhere."""

from __future__ import annotations

from typing import Final

from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.model import Death

COPIES_HEADER: Final = "CC"
HISTORY_HEADER: Final = "x-death"
ROWS_MAX: Final = 64


def copies_of(props: bytes) -> list[str]:
    """The further keys a message was published with (header CC)."""
    try:
        copies = properties.header(props, COPIES_HEADER)
    except InvalidArgument:
        return []
    return [each for each in copies if isinstance(each, str)] if isinstance(copies, list) else []


def told(props: bytes) -> list[Death]:
    """The deaths that a publisher passed on in the header x-death, newest first, as far as they make sense."""
    try:
        rows = properties.header(props, HISTORY_HEADER)
    except InvalidArgument:
        return []
    deaths: list[Death] = []
    if isinstance(rows, list):
        for row in rows[:ROWS_MAX]:
            if isinstance(row, dict):
                death = _death(row)
                if death is not None:
                    deaths.append(death)
    for i in range(len(deaths)):
        deaths[i].order = len(deaths) - 1 - i
        deaths[i].row = i
    return deaths


def rearranged(deaths: list[Death], newest: Death) -> dict[int, int]:
    """The rows, by order of death, in which RabbitMQ lists what a message died of before its newest death.

    That one comes first. The others, when there are several, turn round each time.
    """
    listed = sorted(deaths, key=_row_of, reverse=len(deaths) > 1)
    rows: dict[int, int] = {}
    for death in listed:
        if death.order != newest.order:
            rows[death.order] = len(rows) + 1
    return rows


def _row_of(death: Death) -> int:
    return death.row


def _death(row: dict[str, object]) -> Death | None:
    queue, reason, exchange = row.get("queue"), row.get("reason"), row.get("exchange")
    if not isinstance(queue, str) or not isinstance(reason, str) or not isinstance(exchange, str):
        return None
    listed = row.get("routing-keys")
    keys = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    count, seconds = row.get("count"), row.get("time")
    at = min(seconds, 1 << 40) * 1000 if isinstance(seconds, int) and seconds > 0 else 0
    many = min(count, 1 << 40) if isinstance(count, int) and count > 0 else 1
    death = Death(queue, reason, reason, exchange, keys[0] if keys else "", 0, at, at, many)
    death.copies = keys[1:]
    expiration = row.get("original-expiration")
    if isinstance(expiration, str) and expiration.isascii() and expiration.isdigit():
        death.expiration_ms = min(int(expiration[:18]), properties.EXPIRATION_MS_MAX)
    return death

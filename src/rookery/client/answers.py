"""What the broker answers with when it refuses: the error it has in the broker itself, by its code."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rookery import errors
from rookery.errors import RookeryError
from rookery.wire.http.answers import BrokenAnswer

FULL: Final = frozenset({"limit_exceeded", "queue_full", "memory_limit_exceeded", "store_full"})
"""Refusals that end when somebody makes room."""

KINDS: Final[dict[str, type[RookeryError]]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RookeryError)
}
_BY_STATUS: Final = {401: errors.Unauthenticated, 403: errors.AccessRefused, 404: errors.NotFound}


def error_of(status: int, content: bytes) -> RookeryError:
    """The error that an answer stands for."""
    try:
        found = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = {}
    kind = KINDS.get(str(found.get("code"))) or _BY_STATUS.get(status, RookeryError)
    argument = found.get("argument")
    return kind(
        str(found.get("message") or f"the broker answered {status}"),
        argument=argument if isinstance(argument, str) else None,
    )


def read_json(content: bytes) -> Any:
    """The value of an answer, or of a line of it."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenAnswer(f"the answer is not JSON: {error}") from None


def is_passing(status: int, error: RookeryError, for_room: bool) -> bool:
    """Whether what was refused is worth another try, and nothing happened."""
    if status not in (429, 502, 503, 504):
        return False
    return for_room or error.code not in FULL

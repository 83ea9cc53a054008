"""Values of AMQP as JSON and tables show them: the one rendering that all faces share.

`docs/properties.md` has it as a table. It is total: every value that `fieldtables` decodes has a form, and every text
is UTF-8 afterwards. Names that become equal by that count as repeated: the last one wins.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

_encode: Final[Any] = msgspec.json.Encoder().encode
# under a name without a type: the compiler takes `int(x)` of what is an int already for x itself
_as_int: Final[Any] = int


def legible(text: str) -> str:
    """A text that came over AMQP, with a replacement character for each byte that is not UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def plain(value: object) -> Any:
    """A header's value as JSON carries it."""
    if isinstance(value, str):
        return legible(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # a Timestamp or a Long is a number like others
        return _as_int(value)
    if isinstance(value, float):
        return value if value - value == 0 else _no_number(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return plain_table(value)
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value)


def plain_table(table: dict[str, object]) -> dict[str, Any]:
    """Headers as JSON carries them."""
    return {legible(name): plain(value) for name, value in table.items()}


def printed(value: object) -> bytes:
    """A header's value as the bytes that a table shows: texts and bytes as they are, what is void as nothing, other
    values as JSON without quotes.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if value is None:
        return b""
    shown = plain(value)
    if isinstance(shown, str):
        return shown.encode()
    encoded: bytes = _encode(shown)
    return encoded


def _no_number(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"

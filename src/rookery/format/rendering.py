"""Values of AMQP and bodies as JSON and tables show them: the one rendering that all faces share.

`docs/properties.md` has it as a table. It is total: every value that `fieldtables` decodes has a form, every body has
one, and every text is UTF-8 afterwards. Names that become equal by that count as repeated: the last one wins.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from rookery.format import properties
from rookery.format.model import Message

JSON: Final = "application/json"

_encode: Final[Any] = msgspec.json.Encoder().encode
# under a name without a type: the compiler takes `int(x)` of what is an int already for x itself
_as_int: Final[Any] = int
_skim: Final[Any] = msgspec.json.Decoder(msgspec.Raw).decode
"""Reads all of a JSON text and makes nothing of it. It refuses what is nested too deeply to be read, as every decoder
here does, but does not look whether strings are UTF-8.
"""


def legible(text: str) -> str:
    """A text that came over AMQP, with a replacement character for each byte that is not UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def legible_bytes(text: bytes) -> bytes:
    """The same for a text as it came."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def plain(value: object) -> Any:
    """A header's value as JSON carries it. JSON that is made already stays as it is."""
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
    if isinstance(value, msgspec.Raw):
        return value
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


# Bodies


def says_json(content_type: str) -> bool:
    """Whether a content type says that a body is JSON."""
    if content_type == JSON:
        return True
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def is_json(body: bytes) -> bool:
    """Whether this is JSON that can be part of an answer."""
    try:
        _skim(body)
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def body_as_json(body: bytes, content_type: str) -> tuple[msgspec.Raw | str | None, str | None]:
    """A body as JSON sees it: itself if it is JSON, text if it is UTF-8; what is neither comes second, in base64."""
    if says_json(content_type) and is_json(body):
        return msgspec.Raw(body), None
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()


def content_of(message: Message) -> tuple[msgspec.Raw | str | None, str | None]:
    """The body of a message, as `body_as_json` shows it."""
    return body_as_json(message.body, properties.content_type(message.props) or "")


def headers_of(message: Message) -> dict[str, Any] | None:
    """The headers of a message as JSON carries them, None when it has none."""
    found = properties.headers(message.props)
    return plain_table(found) if found else None

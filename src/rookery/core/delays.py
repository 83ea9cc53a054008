"""Delays that a message brings along: the header `x-delay`, heeded by exchanges of the kind `delayed-message`."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rookery.errors import InvalidArgument
from rookery.format import properties
from rookery.format.model import Message

DELAY_HEADER: Final = "x-delay"
DELAY_MAX_MS: Final = 1 << 53


def hold_back(message: Message, now_ms: i64) -> i64:
    """When a message that passes a delaying exchange is due, 0 for at once.

    Its time to live begins then. The header is turned negative: whoever gets the message sees how long it was held,
    and the next delaying exchange it passes does not hold it again (as RabbitMQ's plugin has it).
    """
    try:
        delay = properties.header(message.props, DELAY_HEADER)
    except InvalidArgument:
        return 0
    if not isinstance(delay, int) or isinstance(delay, bool) or delay <= 0:
        return 0
    held = min(delay, DELAY_MAX_MS)
    if message.expires_ms:
        message.expires_ms += held
    message.props = properties.with_headers(message.props, {DELAY_HEADER: -held})
    return now_ms + held

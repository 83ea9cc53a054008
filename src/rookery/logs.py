"""The server's log: one JSON object a line."""

from __future__ import annotations

import logging
from typing import Protocol, TextIO

import msgspec
import structlog


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def debug(self, event: str, **fields: object) -> object: ...

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


def make_log(level: str, stream: TextIO) -> Log:
    """A logger that writes one JSON object a line."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda row, **_: msgspec.json.encode(row).decode()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
    )
    return log

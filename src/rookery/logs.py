"""The server's log: one JSON object a line, on a stream, and in a file if there is one."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Protocol, TextIO

import msgspec
import structlog


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def debug(self, event: str, **fields: object) -> object: ...

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


class LogFile:
    """A stream, and a file beside it that gets the same. A line that the file cannot take is on the stream still."""

    def __init__(self, stream: TextIO, path: Path) -> None:
        self._stream = stream
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def reopen(self) -> None:
        """Go on in the file that has the name now: the old one may have been moved away."""
        fresh = self._path.open("a", buffering=1, encoding="utf-8")
        self._file.close()
        self._file = fresh

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


def make_log(level: str, stream: TextIO | LogFile) -> Log:
    """A logger that writes one JSON object a line."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda row, **_: msgspec.json.encode(row).decode()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
    )
    return log

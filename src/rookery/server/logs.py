"""The server's log: one JSON object a line, on a stream, and in a file if there is one.

With `APP_ENV=development` lines are for people instead: time, level, event, then the fields, and text of several lines
(a traceback) indented below. Only `listening` stays JSON, because programs wait for it to learn the ports.

Logging cannot fail and does not block. Every value has a rendering (`plain`): text that is not UTF-8, bytes, integers
of any size, objects whose `repr` raises, values that contain themselves. Lines are bounded in size, and are written by
threads (`log_writer`).

Invariant: no secret of the settings, and nothing that looks like a key, a token or a webhook's secret, is in a line,
wherever it came from: a path, a user name, an error's text.
"""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

import msgspec
import structlog

from rookery.config.kinds import AppEnv
from rookery.server.log_writer import DescriptorSink, FileSink, LogWriter, descriptor_of

LINE_MAX_CHARS: Final = 32 * 1024
"""How much text of one event is logged; the rest is cut off."""

TEXT_MAX_CHARS: Final = 16 * 1024
DEPTH_MAX: Final = 5
PARTS_MAX: Final = 200
"""How deep a value is shown, and how many parts of one event."""

_HEAD: Final = ("event", "level", "timestamp")
_CUT: Final = "…"
_INTEGER_MAX: Final = 1 << 63
_HIDDEN: Final = "***"
_WORD: Final = re.compile(r"[^\s\"=]+")
_KEY: Final = re.compile(r"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]{11})\.[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])")
_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*|whsec_[A-Za-z0-9+/=_-]+")


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def debug(self, event: str, **fields: object) -> object: ...

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...


class LogOutput:
    """A stream and, if there is one, a file that gets the same lines. One that cannot be written delays no other."""

    def __init__(self, stream: TextIO | None, path: Path | None = None) -> None:
        self._file = FileSink(path) if path is not None else None
        self._writers = [] if self._file is None else [LogWriter(self._file)]
        # a stream in memory takes a line at once; so does one that is not there
        descriptor = descriptor_of(stream)
        self._memory = stream if descriptor is None else None
        if descriptor is not None:
            self._writers.append(LogWriter(DescriptorSink(descriptor)))

    @property
    def dropped(self) -> int:
        """How many lines were lost."""
        return sum(writer.dropped for writer in self._writers)

    def reopen(self) -> None:
        """Continue in the file that has the name now: the old one may have been moved away."""
        if self._file is not None:
            self._file.reopen()

    def close(self) -> None:
        """Write what waits, for a bounded time."""
        for writer in self._writers:
            writer.close()

    def msg(self, line: str) -> None:
        """Log a line that is rendered."""
        data = line.encode("utf-8", "replace") + b"\n"
        for writer in self._writers:
            writer.put(data)
        if self._memory is not None:
            with contextlib.suppress(Exception):
                self._memory.write(line + "\n")

    debug = info = warning = error = critical = msg


def make_log(
    level: str, output: TextIO | LogOutput | None, secrets: Sequence[str] = (), env: AppEnv = "production"
) -> Log:
    """A logger that writes one JSON object a line, or in development what people read, and none of the `secrets`."""
    rendered = render_readable if env == "development" else render
    log: Log = structlog.wrap_logger(
        output if isinstance(output, LogOutput) else LogOutput(output),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            lambda _, __, row: rendered(row, secrets),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
    )
    return log


def render(row: Mapping[str, object], secrets: Sequence[str] = ()) -> str:
    """An event as one line of JSON, whatever its values are."""
    try:
        return msgspec.json.encode(_Plain(secrets).row(row)).decode()
    except Exception as error:  # noqa: BLE001 - there is nobody to tell but the log
        return f'{{"event":"log_failed","level":"error","error":"{type(error).__name__}"}}'


def render_readable(row: Mapping[str, object], secrets: Sequence[str] = ()) -> str:
    """An event as a line that a person reads; values of several lines follow, indented."""
    if row.get("event") == "listening":
        return render(row, secrets)
    try:
        plain = _Plain(secrets).row(row)
        event, level, when = (str(plain.pop(name, "")) for name in _HEAD)
        words = [when[11:19], f"{level:<8}", _one_line(event)]
        below = ""
        for name, value in plain.items():
            if isinstance(value, str) and "\n" in value:
                lines = value.rstrip("\n").split("\n")
                below += f"\n    {_one_line(name)}:" + "".join(f"\n    {_one_line(line)}" for line in lines)
            else:
                text = (
                    value if isinstance(value, str) and _WORD.fullmatch(value) else msgspec.json.encode(value).decode()
                )
                words.append(f"{_one_line(name)}={_one_line(text)}")
        return " ".join(words) + below
    except Exception as error:  # noqa: BLE001 - there is nobody to tell but the log
        return f"log_failed error={type(error).__name__}"


def _one_line(text: str) -> str:
    """Text that cannot end a line, or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Internal errors, for the log and, in development, for whoever met one


def trace(error: BaseException) -> str:
    """The traceback of an internal error."""
    return "".join(traceback.format_exception(error))


def explained(error: BaseException, secrets: Sequence[str] = ()) -> tuple[str, str]:
    """An internal error in one line, and with its traceback; bounded, and without secrets."""
    plain = _Plain(secrets)
    line = _one_line(str(plain.value(traceback.format_exception_only(error)[-1].strip(), 0)))
    return line, str(plain.value(trace(error), 0))


def explainer(secrets: Sequence[str]) -> Callable[[BaseException], str]:
    """What a face tells its peers about an internal error in development."""
    return lambda error: explained(error, secrets)[0]


class _Plain:
    """Makes plain JSON values of anything, within a budget of text and parts."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._chars = LINE_MAX_CHARS
        self._parts = PARTS_MAX

    def row(self, row: Mapping[str, object]) -> dict[str, object]:
        # what makes it an event is rendered first, so that it is never what is cut off
        head = {name: self.value(row[name], 0) for name in _HEAD if name in row}
        rest = self._mapping({name: value for name, value in row.items() if name not in head}, 0)
        return rest | head

    def value(self, value: object, depth: int) -> object:
        try:
            return self._value(value, depth)
        except Exception:  # noqa: BLE001 - an object of somebody else's may do anything
            return f"<{_type_name(value)} that cannot be shown>"

    def _value(self, value: object, depth: int) -> object:
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return self._text(value)  # type: ignore[arg-type]
        if kind is int:
            inside = -_INTEGER_MAX <= value < _INTEGER_MAX  # type: ignore[operator]
            return value if inside else self._text(f"{value:#x}")
        if kind is float:
            return value
        if isinstance(value, bytes | bytearray):
            return self._text(bytes(value[:TEXT_MAX_CHARS]).decode("utf-8", "backslashreplace"))
        if depth < DEPTH_MAX and isinstance(value, dict):
            return self._mapping(value, depth + 1)
        if depth < DEPTH_MAX and isinstance(value, list | tuple | set | frozenset):
            return self._sequence(value, depth + 1)
        if isinstance(value, dict | list | tuple | set | frozenset):
            return _CUT
        return self._text(str(value) if isinstance(value, str) else repr(value))

    def _mapping(self, value: dict[Any, Any], depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, part in value.items():
            if self._parts <= 0:
                found[_CUT] = _CUT
                break
            self._parts -= 1
            key = self.value(name, DEPTH_MAX)
            found[key if isinstance(key, str) else str(key)] = self.value(part, depth)
        return found

    def _sequence(self, value: Any, depth: int) -> list[object]:
        found: list[object] = []
        for part in value:
            if self._parts <= 0:
                found.append(_CUT)
                break
            self._parts -= 1
            found.append(self.value(part, depth))
        return found

    def _text(self, text: str) -> str:
        most = max(0, min(TEXT_MAX_CHARS, self._chars))
        cut = len(text) > most
        if cut:
            text = text[: most + TEXT_MAX_CHARS]  # so that what is cut through is hidden too
        text = self._hide(text)[:most].encode("utf-8", "backslashreplace").decode()
        self._chars -= len(text)
        return text + _CUT if cut else text

    def _hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _TOKEN.sub(_HIDDEN, _KEY.sub(rf"\1.{_HIDDEN}", text))


def _type_name(value: object) -> str:
    try:
        return str(type(value).__name__)[:100].encode("ascii", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - as above
        return "object"


class LibraryLog(logging.Handler):
    """Takes what libraries log by Python's own `logging`, which would be written to a stream that may block."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception:  # noqa: BLE001 - nothing throws in a logger
            text = "a message that cannot be shown"
        self._log.warning("library", logger=record.name, text=text)

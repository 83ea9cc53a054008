"""Nothing throws in a logger, and no line waits for whoever reads it."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.server import log_writer
from rookery.server.log_writer import LogWriter
from rookery.server.logs import LINE_MAX_CHARS, LibraryLog, LogOutput, explained, make_log, render, render_readable


class Hostile:
    """Whatever is asked of it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class HostileDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


class HostileMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no")


class HostileType(metaclass=HostileMeta):
    def __repr__(self) -> str:
        raise RuntimeError("no")


def recursive() -> object:
    found: list[object] = []
    found.append({"again": found})
    return found


def deep() -> object:
    value: object = 1
    for _ in range(2_000):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "repr": Hostile,
    "items": lambda: HostileDict(a=1),
    "type": HostileType,
    "recursive": recursive,
    "deep": deep,
    "class": lambda: Hostile,
    "text": lambda: "\udce9" * 1_000_000,
    "bytes": lambda: b"\xff" * 1_000_000,
    "many": lambda: list(range(100_000)),
    "names": lambda: {"x" * 1_000 + str(number): number for number in range(1_000)},
}


class Stand:
    """Stands for a hostile value until it is logged: a report of hypothesis could not show that."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def resolved(value: Any) -> Any:
    if isinstance(value, Stand):
        return HOSTILE[value.name]()
    if isinstance(value, list | tuple):
        return type(value)(resolved(part) for part in value)
    return {name: resolved(part) for name, part in value.items()} if isinstance(value, dict) else value


texts = st.text(st.characters(), max_size=200)  # surrogates included
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**4_000, max_value=10**4_001),
    st.floats(),
    st.complex_numbers(),
    texts,
    st.binary(max_size=200),
    st.builds(Stand, st.sampled_from(sorted(HOSTILE))),
    st.builds(lambda text: RuntimeError(text), texts),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(texts, st.integers(), st.binary(), st.none(), st.floats()), inner),
        st.frozensets(texts),
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(event=texts, fields=st.dictionaries(texts.filter(lambda name: name not in ("self", "event")), values))
def test_every_value_becomes_one_bounded_line_of_json(event: str, fields: dict[str, object]) -> None:
    stream = io.StringIO()
    make_log("info", stream).warning(event, **resolved(fields))
    line, end = stream.getvalue().split("\n")
    assert end == ""
    row = json.loads(line)
    assert row["event"].startswith(event.encode("utf-8", "backslashreplace").decode()[:10])
    # escapes of JSON and of bytes that are no text may make it longer, but not by much
    assert len(line) < LINE_MAX_CHARS * 16
    line.encode()  # all of it is UTF-8


@settings(max_examples=150, deadline=None)
@given(event=texts, fields=st.dictionaries(texts.filter(lambda name: name not in ("self", "event")), values))
def test_in_development_every_value_becomes_bounded_text_that_steers_no_terminal(
    event: str, fields: dict[str, object]
) -> None:
    text = render_readable(
        {"event": event, "level": "warning", "timestamp": "2026-01-02T03:04:05Z", **resolved(fields)}
    )
    first, *below = text.split("\n")
    assert all(line.isprintable() for line in (first, *below))
    assert all(line.startswith("    ") for line in below)
    assert len(text) < LINE_MAX_CHARS * 16
    text.encode()


def test_a_line_in_development_has_time_level_event_and_fields() -> None:
    row = {"event": "request", "level": "info", "timestamp": "2026-01-02T03:04:05.678Z"}
    fields = {"path": "/a", "user": "a b", "status": 500, "odd": "x\x1b[2J", "trace": "one\ntwo\x1b[2J\n"}
    assert render_readable(row | fields) == (
        '03:04:05 info     request path=/a user="a b" status=500 odd=x\\x1b[2J\n    trace:\n    one\n    two\\x1b[2J'
    )
    # programs wait for this one
    assert json.loads(render_readable(row | {"event": "listening", "http": "a:1"}))["http"] == "a:1"


def test_an_internal_error_is_explained_without_secrets() -> None:
    error = RuntimeError("with sesame\nand more")
    assert explained(error, ["sesame"]) == ("RuntimeError: with ***\\nand more", "RuntimeError: with ***\nand more\n")

    class Mute(Exception):
        __str__ = Hostile.__repr__

    assert "Mute" in explained(Mute())[0]


def test_what_cannot_be_shown_is_named() -> None:
    row = json.loads(render({"event": "e", "user": "caf\udce9", "body": b"\xff\x00", "big": 1 << 80, "bad": Hostile()}))
    assert row == {
        "event": "e",
        "user": "caf\\udce9",
        "body": "\\xff\x00",
        "big": hex(1 << 80),
        "bad": "<Hostile that cannot be shown>",
    }


def test_what_looks_like_a_secret_is_hidden() -> None:
    key, fixed = "AbCdEfGhI-_.0123456789abcdefghijKL", "the key of the settings"
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
    webhook = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    given = f"{key} {fixed} {token} {webhook}"
    long = "x" * 16_380 + fixed  # would be cut through
    row = {"event": given, "path": f"/keys/{key}/a", "names": {given: [given]}, "error": RuntimeError(given), "l": long}
    for line in (render(row, [fixed]), render_readable(row, [fixed])):
        for secret in (key.partition(".")[2], fixed, fixed[:10], token, token.partition(".")[2], webhook):
            assert secret not in line
        assert "/keys/AbCdEfGhI-_.***/a" in line
    # what only looks a little like one is shown
    assert json.loads(render({"event": "rookery.events 127.0.0.1:5672"}))["event"] == "rookery.events 127.0.0.1:5672"


def test_a_stream_that_raises_stops_nobody() -> None:
    stream = io.StringIO()
    log = make_log("info", stream)
    stream.close()
    log.info("unheard")
    make_log("info", None).info("unheard")


def test_libraries_speak_through_the_log() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("rookery.tests.library")
    logger.propagate = False
    logger.addHandler(LibraryLog(make_log("info", stream)))
    logger.warning("bad %d", "number")
    try:
        raise RuntimeError("caf\udce9")
    except RuntimeError:
        logger.exception("went wrong")
    logger.info("unseen")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first["text"] == "a message that cannot be shown"
    assert second["text"].startswith("went wrong\nTraceback")
    assert second["logger"] == "rookery.tests.library"
    logger.handlers.clear()


class Pipe:
    """A pipe of which the reading end is ours."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.stream = os.fdopen(self.writing, "w", closefd=False)

    def read_all(self) -> list[dict[str, Any]]:
        """What was written by the time the writing end is closed."""
        os.close(self.writing)
        with os.fdopen(self.reading, "rb") as file:
            return [json.loads(line) for line in file.read().splitlines()]


def test_lines_are_written_in_order() -> None:
    pipe = Pipe()
    output = LogOutput(pipe.stream)
    log = make_log("info", output)
    for number in range(200):
        log.info("line", number=number)
    output.close()
    assert [row["number"] for row in pipe.read_all()] == list(range(200))
    assert output.dropped == 0


def test_a_pipe_that_nobody_reads_loses_lines_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LINES_MAX", 100)
    pipe = Pipe()
    output = LogOutput(pipe.stream)
    log = make_log("info", output)
    for number in range(2_000):
        log.info("line", number=number, text="x" * 1_000)  # 2 MB, of which a pipe takes 64 KiB
    assert output.dropped > 1_000
    before = output.dropped
    rows: list[dict[str, Any]] = []
    heard = threading.Event()

    def read() -> None:
        with os.fdopen(os.dup(pipe.reading), "rb") as file:
            for line in file:
                rows.append(json.loads(line))
                if rows[-1]["event"] == "last":
                    heard.set()

    reader = threading.Thread(target=read)
    reader.start()
    while not heard.wait(0.05):
        log.info("last")
    output.close()
    os.close(pipe.writing)
    os.close(pipe.reading)
    reader.join(30)
    numbers = [row["number"] for row in rows if row["event"] == "line"]
    assert numbers == sorted(numbers)
    told = sum(row["count"] for row in rows if row["event"] == "log_lines_dropped")
    assert told == output.dropped >= before
    assert len(numbers) + told >= 2_000


def test_the_end_does_not_wait_for_a_reader() -> None:
    pipe = Pipe()
    output = LogOutput(pipe.stream)
    log = make_log("info", output)
    for _ in range(200):
        log.info("line", text="x" * 1_000)
    for writer in output._writers:
        writer.close(0.05)
    log.info("late")
    assert output.dropped >= 1
    os.close(pipe.reading)  # which ends the thread that waits for a reader
    while output._writers[0]._thread is not None:
        pass
    os.close(pipe.writing)


@pytest.mark.parametrize("kind", ["reader gone", "closed", "disk full"])
def test_what_cannot_be_written_is_counted(kind: str) -> None:
    pipe = Pipe()
    os.close(pipe.reading)
    if kind == "disk full":
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, pipe.writing)
        os.close(full)
    output = LogOutput(pipe.stream)
    if kind == "closed":
        os.close(pipe.writing)
    log = make_log("info", output)
    log.info("lost")
    output.close()
    assert output.dropped == 1
    if kind != "closed":
        os.close(pipe.writing)


def test_a_file_goes_on_when_the_stream_is_stuck(tmp_path: Path) -> None:
    pipe = Pipe()
    path = tmp_path / "logs" / "a.log"
    output = LogOutput(pipe.stream, path)
    log = make_log("info", output)
    for number in range(500):
        log.info("line", number=number, text="x" * 1_000)
    output._writers[0].close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["number"] for row in rows] == list(range(500))
    os.close(pipe.reading)
    output.close()
    os.close(pipe.writing)


def test_the_file_is_private_also_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    old = os.umask(0)
    try:
        output = LogOutput(io.StringIO(), path)
        log = make_log("info", output)
        log.info("one")
        while not path.read_text():
            pass
        path.rename(tmp_path / "a.log.1")
        output.reopen()
        output.reopen()
        log.info("two")
        output.close()
    finally:
        os.umask(old)
    for name, event in (("a.log.1", "one"), ("a.log", "two")):
        file = tmp_path / name
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text())["event"] == event


def test_a_thread_ends_when_there_is_nothing_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "IDLE_SEC", 0.01)
    written: list[bytes] = []

    class Memory:
        def write(self, data: bytes) -> None:
            written.append(data)

    writer = LogWriter(Memory())
    for number in range(3):
        writer.put(b"%d" % number)
        while writer._thread is not None:
            pass
    writer.close()
    assert written == [b"0", b"1", b"2"]

"""Writes log lines in a thread, so that nothing waits for whoever reads them.

A pipe that nobody reads, a full disk or a closed stream must not hold up a request. Lines go into a queue with limits;
a thread writes them in order. Lines that do not fit, or that cannot be written, are dropped and counted, and the next
line that gets through is preceded by one `log_lines_dropped` line with their number.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, Protocol

LINES_MAX: Final = 10_000
QUEUE_MAX_BYTES: Final = 8 << 20
"""How much of the log may wait to be written."""

BATCH_BYTES: Final = 64 * 1024
IDLE_SEC: Final = 30.0
"""A thread with nothing to write ends after this time; the next line starts another."""

FLUSH_SEC: Final = 2.0
"""How long the end of the process waits for the log."""


class Sink(Protocol):
    """Where lines go. `write` may block or raise."""

    def write(self, data: bytes) -> None: ...


class DescriptorSink:
    """An open file descriptor, which somebody else closes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        write_all(self._descriptor, data)


class FileSink:
    """A file that only its owner may read. `reopen` continues in whatever file has the name now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = self._open()
        self._fresh: int | None = None
        self._lock = threading.Lock()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def reopen(self) -> None:
        """Use a new descriptor from the next write on: the old file may have been moved away."""
        fresh = self._open()
        with self._lock:
            if self._fresh is not None:
                os.close(self._fresh)
            self._fresh = fresh

    def write(self, data: bytes) -> None:
        # only the writing thread closes the descriptor in use, so that its number cannot mean another file
        with self._lock:
            fresh, self._fresh = self._fresh, None
        if fresh is not None:
            os.close(self._descriptor)
            self._descriptor = fresh
        write_all(self._descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, also to a descriptor that was set to non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


class LogWriter:
    """The queue and the thread of one sink. `dropped` counts the lines that were lost.

    `dropped_line(count)` renders the line that tells of them. Nothing here raises or blocks but `close`, which waits
    for a bounded time.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.dropped = 0
        self._told = 0
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._writing = False
        self._closed = False
        self._torn = False
        atexit.register(self.close)

    def put(self, line: bytes) -> None:
        """Have a line written soon, or count it as dropped."""
        with self._changed:
            if self._closed or len(self._lines) >= LINES_MAX or self._bytes + len(line) > QUEUE_MAX_BYTES:
                self.dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rookery-log", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads, or the interpreter is ending
                    self._thread = None
            self._changed.notify_all()

    def close(self, patience_sec: float = FLUSH_SEC) -> None:
        """Write what waits, but do not wait longer than `patience_sec`; later lines are dropped."""
        deadline = time.monotonic() + patience_sec
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._thread is not None and (self._lines or self._writing):
                if not self._changed.wait(deadline - time.monotonic()):
                    break
        atexit.unregister(self.close)

    # In the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    if self._closed or not self._changed.wait(IDLE_SEC):
                        self._thread = None
                        self._changed.notify_all()
                        return
                batch = self._take()
                told = self.dropped
                self._writing = True
            written = self._write(batch, told)
            with self._changed:
                self._writing = False
                if written:
                    self._told = told
                else:
                    self.dropped += len(batch)
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._lines and size < BATCH_BYTES:
            line = self._lines.popleft()
            size += len(line)
            batch.append(line)
        self._bytes -= size
        return batch

    def _write(self, batch: list[bytes], dropped: int) -> bool:
        lines = [b"\n"] if self._torn else []
        if dropped > self._told:
            lines.append(dropped_line(dropped - self._told))
        try:
            self.sink.write(b"".join([*lines, *batch]))
        except (OSError, ValueError):  # full, closed, gone
            self._torn = True
            return False
        self._torn = False
        return True


def dropped_line(count: int) -> bytes:
    """The line that tells how many lines were lost."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06}Z"
    text = f'{{"count":{count},"event":"log_lines_dropped","level":"warning","timestamp":"{stamp}"}}\n'
    return text.encode()


def descriptor_of(stream: object) -> int | None:
    """The file descriptor behind a text stream; None for one in memory."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        descriptor = stream.fileno()  # type: ignore[attr-defined]
        return descriptor if isinstance(descriptor, int) else None
    return None

"""The server's side of decoding Arrow bodies in a process of its own (`store.arrow_process`).

The process starts with the first body and ends when there was none for a while. A body that ends its child, or takes
too much memory or time, fails its own request and nothing else; a process that is gone is replaced. Of what comes back
nothing is trusted: it is bounded, typed and counted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rookery.arrow.frames import HEAD, ROW_BYTES, Done, Job, Part, Refused, frame, read_answer
from rookery.core.staging import CHUNK_ROWS_MAX, Row
from rookery.errors import DecodingFailed, InvalidArgument, MessageTooLarge, RookeryError, StoreError, UnsupportedMedia

EXPANSION_MAX: Final = 4
"""How often the largest body of a request the decompressed body, and all its rows together, may be."""

CPU_SEC: Final = 20
WALL_SEC: Final = 60
"""How long decoding one body may take, in the process and altogether."""

MEMORY_BYTES: Final = 128 << 20
MEMORY_FACTOR: Final = 6
"""What decoding one body may take: MEMORY_BYTES, the body, and so many times its limit when decompressed."""

MODULE: Final = "rookery.arrow.process"
IDLE_SEC: Final = 60
START_SEC: Final = 30
PACKAGE: Final = Path(__file__).resolve().parents[2]

# neither secrets nor settings of the server; jemalloc's thread would make forking unsafe
_KEPT: Final = ("PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_SET: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
}

_ERRORS: Final[dict[str, type[RookeryError]]] = {each.code: each for each in (InvalidArgument, MessageTooLarge)}
# a child that ends well, but in the middle of an answer, is as suspect
_DAMAGED: Final = frozenset(("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"))

Report = Callable[[str, int], None]


class ArrowDecoder:
    """Rows from Arrow bodies of at most `body_max_bytes`, decoded by the process that `module` is.

    `report` is told of bodies that ended their process.
    """

    def __init__(self, body_max_bytes: int, report: Report = lambda _reason, _size: None, module: str = MODULE) -> None:
        self._module = module
        self.bytes_max = EXPANSION_MAX * body_max_bytes
        self.failures = 0
        self.cpu_sec = CPU_SEC
        self.wall_sec = WALL_SEC
        self._report = report
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._busy = 0
        self._used = time.monotonic()
        self._closed = False

    def rows(self, body: bytes, key: str, names: Mapping[str, str], now_ms: int) -> list[Row]:
        """The rows of a body, in any thread. Errors are those of the body, or `DecodingFailed`."""
        if importlib.util.find_spec("pyarrow") is None:
            raise StoreError("Arrow needs pyarrow: pip install 'rookery[streams]'")
        if not hasattr(os, "fork"):
            raise UnsupportedMedia("Arrow bodies need a system that can fork; send lines of JSON")
        memory = MEMORY_BYTES + len(body) + MEMORY_FACTOR * self.bytes_max
        job = Job(len(body), key, dict(names), now_ms, self.bytes_max, memory, self.cpu_sec, self.wall_sec)
        with self._lock:
            self._busy += 1
        try:
            try:
                return self._decode(job, body)
            except _ProcessGone:
                # it ended before it could fork a child for this body, so the body is not to blame
                return self._decode(job, body)
        except _Failed as failed:
            raise failed.error from None
        finally:
            with self._lock:
                self._busy -= 1
                self._used = time.monotonic()

    def _decode(self, job: Job, body: bytes) -> list[Row]:
        work = self._begin()
        try:
            return work.run(job, body)
        except _Failed as failed:
            with self._lock:
                self.failures += 1
            self._report(failed.reason, len(body))
            raise
        finally:
            work.close()

    def _begin(self) -> _Work:
        """A child for one body, of a process that runs."""
        with self._lock:
            for _ in range(2):
                if self._closed:
                    break
                if self._process is None:
                    self._process = _Process(self._module)
                try:
                    return _Work(self._process, time.monotonic() + self.wall_sec)
                except OSError:
                    # it was killed, or is full: the next one is new
                    self._process.stop()
                    self._process = None
        raise DecodingFailed("the process that decodes Arrow bodies is not there; try again")

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        process = self._process
        return None if process is None else process.pid

    def tick(self) -> None:
        """End a process that nobody needed for a while."""
        if self._process is not None and self._lock.acquire(blocking=False):
            try:
                if not self._busy and time.monotonic() - self._used > IDLE_SEC:
                    self._stop()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the process, and with it whatever is being decoded."""
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()


class _Process:
    """The process that forks."""

    def __init__(self, module: str) -> None:
        self.control, theirs = socket.socketpair()
        environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        with theirs:
            # a session of its own: what a terminal sends to the server is for the server
            self._popen = subprocess.Popen(  # noqa: S603  a module of ours
                [sys.executable, "-P", "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environ, **_SET},
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.control.settimeout(START_SEC)
        try:
            said = self.control.recv(4096)
        except OSError:
            said = b"no answer"
        if said != b"ready\n":
            self.stop()
            words = said.decode("utf-8", "replace").strip() or "it ended at once"
            raise DecodingFailed(f"the process that decodes Arrow bodies did not start: {words}")

    def stop(self) -> None:
        """End it; its children end with it."""
        self.control.close()
        if self._popen.poll() is None:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(1)


class _Failed(Exception):
    """A child did not do its work: why, and what to tell."""

    def __init__(self, reason: str, error: RookeryError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class _ProcessGone(_Failed):
    """The process that forks ended, or could not fork.

    If it ended, its socket is closed by now, so `_begin` replaces it.
    """

    def __init__(self) -> None:
        super().__init__("process gone", DecodingFailed("the process that decodes Arrow bodies ended; try again"))


class _Work:
    """One body, and the child that decodes it."""

    def __init__(self, process: _Process, deadline: float) -> None:
        self._deadline = deadline
        self._channel, theirs = socket.socketpair()
        self._status, status = os.pipe()
        try:
            socket.send_fds(process.control, [b"j"], [theirs.fileno(), status])
        except OSError:
            self.close()
            raise
        finally:
            theirs.close()
            os.close(status)

    def close(self) -> None:
        """Let go of the child, which ends it if it is there still."""
        self._channel.close()
        os.close(self._status)

    def run(self, job: Job, body: bytes) -> list[Row]:
        try:
            self._set_timeout()
            # a child that refuses early does not read all of it
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._channel.sendall(frame(job))
                self._channel.sendall(body)
            return self._receive(job.bytes_max)
        except RookeryError:
            raise
        except TimeoutError:
            words = f"decoding the body took longer than {job.wall_sec} s; send fewer rows in one body, or try again"
            raise _Failed("timeout", DecodingFailed(words)) from None
        except (EOFError, ConnectionResetError):
            raise self._ended(job) from None
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            raise _Failed("damaged answer", _damaged()) from None

    def _receive(self, bytes_max: int) -> list[Row]:
        rows: list[Row] = []
        left = bytes_max + CHUNK_ROWS_MAX * ROW_BYTES
        while True:
            (length,) = HEAD.unpack(self._read(HEAD.size))
            left -= length
            if left < 0:
                raise ValueError("too many bytes")
            answer = read_answer(self._read(length))
            if isinstance(answer, Part):
                rows += _rows(answer)
                if len(rows) > CHUNK_ROWS_MAX:
                    raise ValueError("too many rows")
            elif isinstance(answer, Refused):
                kind = _ERRORS.get(answer.code, InvalidArgument)
                raise kind(answer.message, argument=answer.argument)
            elif isinstance(answer, Done) and answer.rows == len(rows):
                return rows
            else:
                raise ValueError("rows are missing")

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        at = 0
        while at < size:
            self._set_timeout()
            got = self._channel.recv_into(view[at:])
            if not got:
                raise EOFError
            at += got
        return data

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._channel.settimeout(left)

    def _ended(self, job: Job) -> _Failed:
        """Why the child ended without an answer."""
        ready, _, _ = select.select([self._status], [], [], 5)
        said = os.read(self._status, 16) if ready else b"?"
        if not said:
            return _ProcessGone()
        if not said.lstrip(b"-").isdigit():
            return _Failed(
                "no status", DecodingFailed("the process that decodes Arrow bodies does not answer; try again")
            )
        code = int(said)
        number = -code
        if number == signal.SIGXCPU:
            words = f"decoding the body took more than {job.cpu_sec} s of CPU time; send fewer rows in one body"
            return _Failed("cpu limit", MessageTooLarge(words, argument="body"))
        if number == signal.SIGALRM:
            words = f"decoding the body took longer than {job.wall_sec} s; send fewer rows in one body, or try again"
            return _Failed("timeout", DecodingFailed(words))
        if not number or _signal_name(number) in _DAMAGED:
            return _Failed(f"signal {number}", _damaged())
        words = f"the process that decoded the body ended with {code}; try again"
        return _Failed(f"exit {code}", DecodingFailed(words))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _rows(part: Part) -> list[Row]:
    try:
        return part.rows()
    except RookeryError as error:  # not the sender's fault, and no answer for it
        raise ValueError(str(error)) from None


def _damaged() -> InvalidArgument:
    return InvalidArgument("the body is not a valid Arrow IPC stream: decoding it ended its process", argument="body")

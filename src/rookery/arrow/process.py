"""Decoding Arrow bodies outside of the server. Runs in a process of its own, `python -m rookery.arrow.process`.

This process imports what decoding needs and then only forks: one child for each body. Its standard input is a socket
that brings, for each body, two file descriptors: the socket over which the child gets its job and sends the rows, and a
pipe to which this process writes how the child ended. The child limits its own memory, CPU time and wall time before it
reads the first byte, and exits after its body, so no body meets what another one left behind.

It has one thread, so forking is safe; it reads no body, so no body can harm it. When the server goes, however it goes,
the socket ends, and with it this process and its children. When the server gives a body up, it closes its end of the
pipe, and the child is killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rookery.arrow.frames import HEAD, JOB_MAX_BYTES, WORDS_MAX, Done, Job, Refused, frame, read_job
from rookery.errors import InvalidArgument, MessageTooLarge, RookeryError

READY: Final = b"ready\n"
WALL_MAX_SEC: Final = 600
"""The end of a child that never got its job."""

_GONE: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL


class Forker:
    """Forks a child for each body, and says how each of them ended."""

    def __init__(self, control: socket.socket, work: Callable[[socket.socket], None]) -> None:
        self._control = control
        self._work = work
        self._poll = select.poll()
        # the pipe to which the end of each child is written
        self._children: dict[int, int] = {}
        self._wakes, self._wake = os.pipe()
        for end in (self._wakes, self._wake):
            os.set_blocking(end, False)

    def run(self) -> None:
        """Fork children until the server goes."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wakes, select.POLLIN)
        try:
            while True:
                events = dict(self._poll.poll())
                # first, since the numbers of what is closed and opened below are used again
                for pid, status in self._children.items():
                    if events.get(status, 0) & _GONE:
                        self._poll.unregister(status)
                        os.kill(pid, signal.SIGKILL)
                if self._wakes in events:
                    self._reap()
                if self._control.fileno() in events and not self._begin():
                    return
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)

    def _begin(self) -> bool:
        """Fork a child for the next body; False when the server is gone."""
        try:
            message, given, _, _ = socket.recv_fds(self._control, 1, 2)
        except OSError:
            return False
        if not message:
            return False
        if len(given) == 2:
            with contextlib.suppress(OSError):  # no more processes: the server sees the ends close
                pid = os.fork()
                if not pid:
                    self._be_child(*given)
                self._children[pid] = given.pop()
                self._poll.register(self._children[pid], 0)
        for end in given:
            os.close(end)
        return True

    def _be_child(self, job: int, status: int) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.alarm(WALL_MAX_SEC)
            self._control.close()
            for end in (self._wakes, self._wake, status, *self._children.values()):
                os.close(end)
            self._work(socket.socket(fileno=job))
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wakes, 4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, ended = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                status = self._children.pop(pid)
                with contextlib.suppress(KeyError):
                    self._poll.unregister(status)
                with contextlib.suppress(OSError):
                    os.write(status, str(os.waitstatus_to_exitcode(ended)).encode())
                os.close(status)


# The child


def decode(channel: socket.socket) -> None:
    """Read a job and its body, and answer with its rows."""
    job = read_job(_read(channel, _length(channel, JOB_MAX_BYTES)))
    limit(job)
    body = _read(channel, job.size)
    refused: Refused | None = None
    try:
        _send_rows(channel, job, body)
    except RookeryError as error:
        refused = Refused(error.code, str(error)[:WORDS_MAX], error.argument)
    except MemoryError:
        refused = Refused(MessageTooLarge.code, "", "body")
    except OSError:
        raise  # the server has gone away
    except Exception as error:  # noqa: BLE001  whatever it is, these bytes brought it about
        refused = Refused(InvalidArgument.code, f"the body cannot be decoded: {error!r}"[:WORDS_MAX], "body")
    if refused is not None:
        if refused.code == MessageTooLarge.code and not refused.message:
            refused.message = f"decoding the body needs more than {job.memory_bytes} bytes; send fewer rows in one body"
        channel.sendall(frame(refused))


def _send_rows(channel: socket.socket, job: Job, body: bytearray) -> None:
    from rookery.arrow.rows import parts_of

    rows = 0
    for part in parts_of(body, job.key, job.names, job.now_ms, job.bytes_max):
        channel.sendall(frame(part))
        rows += len(part.bodies)
    channel.sendall(frame(Done(rows)))


def limit(job: Job) -> None:
    """Take from this process what decoding does not need: memory, time, files and core dumps."""
    signal.alarm(job.wall_sec)
    import resource

    memory = _address_space() + job.memory_bytes
    for kind, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        # the signal of the soft limit tells the server why
        (resource.RLIMIT_CPU, job.cpu_sec, job.cpu_sec + 5),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        # where the system, or whoever started the server, allows less, that is the limit
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


def _address_space() -> int:
    """How much this process has mapped already: libraries, mostly."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 30


def _length(channel: socket.socket, most: int) -> int:
    (length,) = HEAD.unpack(_read(channel, HEAD.size))
    if length > most:
        raise ValueError("the frame is too long")
    return int(length)


def _read(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    at = 0
    while at < size:
        got = channel.recv_into(view[at:])
        if not got:
            raise EOFError("the server has gone away")
        at += got
    return data


def main(work: Callable[[socket.socket], None] = decode) -> None:
    """Fork a child that does `work` for each body, until the server goes."""
    control = socket.socket(fileno=os.dup(0))
    os.close(0)
    try:
        from rookery.arrow import rows as arrow_rows

        assert arrow_rows is not None
    except ImportError as error:
        control.sendall(f"{error}\n".encode())
        return
    # what is there now stays: no child needs to look through it, or to copy it for that
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    Forker(control, work).run()


if __name__ == "__main__":
    main()

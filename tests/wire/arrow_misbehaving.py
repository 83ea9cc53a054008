"""A process in place of `rookery.arrow.process` whose children do what the key of their job says."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from rookery.arrow.frames import HEAD, PART_ROWS, Done, Job, Part, frame, pack, read_job
from rookery.arrow.process import limit, main
from rookery.format.properties import EMPTY

PART = Part(["k"], [EMPTY], [b"x"], [0], [0], [-1])


def misbehave(channel: socket.socket) -> None:
    (length,) = HEAD.unpack(channel.recv(HEAD.size, socket.MSG_WAITALL))
    job: Job = read_job(channel.recv(length, socket.MSG_WAITALL))
    limit(job)
    channel.recv(job.size, socket.MSG_WAITALL)
    what, _, number = job.key.partition(" ")
    if what == "signal":
        os.kill(os.getpid(), int(number))
    elif what == "exit":
        os._exit(int(number))
    elif what == "spin":
        while True:
            pass
    elif what == "sleep":
        time.sleep(3_600)
    elif what == "half":
        channel.sendall(frame(PART)[:-1])
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "environment":
        files = [path.name for path in Path("/proc/self/fd").iterdir()]
        told = Part(["k"], [EMPTY], [repr((sorted(os.environ), files)).encode()], [0], [0], [-1])
        channel.sendall(frame(told) + frame(Done(1)))
    else:
        lie(channel, what)


def lie(channel: socket.socket, what: str) -> None:
    """Send what nobody should believe."""
    lies: dict[str, bytes] = {
        "noise": os.urandom(4_096),
        "long": HEAD.pack((1 << 32) - 1) + b"x",
        "nothing": HEAD.pack(0),
        "types": _framed(["part", [1], [2], [3], ["a"], [None], [{}]]),
        "nested": _framed(b"") + HEAD.pack(10_000) + b"\x91" * 10_000,
        "numbers": _framed(["part", ["k"], [EMPTY], [b"x"], [1 << 63], [0], [-1]]),
        "uneven": frame(Part(["k", "k"], [EMPTY], [b"x"], [0], [0], [-1])) + frame(Done(1)),
        "columns": frame(Part([], [], [b"x"], [], [], [])) + frame(Done(1)),
        "wide": frame(Part(["k"], [EMPTY], [b""] * (PART_ROWS + 1), [0], [0], [-1])),
        "props": frame(Part(["k"], [b"\xff\xff damaged"], [b"x"], [0], [0], [-1])) + frame(Done(1)),
        "fewer": frame(PART) + frame(Done(2)),
        "key": frame(Part(["k" * 256], [EMPTY], [b"x"], [0], [0], [-1])) + frame(Done(1)),
        "error": _framed(["refused", "no_such_code", "words", None]),
        "words": _framed(["refused", "invalid_argument", "w" * 100_000, None]),
    }
    if what == "endless":
        full = frame(Part(["k"], [EMPTY], [b"x" * 1_000] * PART_ROWS, [0], [0], [-1]))
        while True:
            channel.sendall(full)
    channel.sendall(lies[what])


def _framed(value: object) -> bytes:
    packed = pack(value)
    return HEAD.pack(len(packed)) + packed


if __name__ == "__main__":
    main(misbehave)

"""A gate between Spark and a broker that may be killed: it stops at chosen requests, before the broker has them or
before their answers are passed on, and lets them go or cuts them off later.

So a test knows what has happened when it kills something: nothing here waits for luck.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from tests.interop.server import ServerProcess
from tests.interop.spark_world import KEY, World

PATIENCE_SEC = 600


def staging(batch: int, task: int | None = None, attempt: int | None = None) -> str:
    """Requests that stage rows of a micro-batch."""
    numbers = [r"\d+" if number is None else str(number) for number in (task, attempt)]
    return rf"^POST /api/v1/streams/\S+/stage\S+chunk=.{{36}}-{batch}-{'-'.join(numbers)}-"


def committing(batch: int) -> str:
    """Requests that commit a micro-batch."""
    return rf'^POST /api/v1/producers/\S+/commit .*"epoch": {batch}\b'


def reading(offset: int, count: int) -> str:
    """Requests for records that begin at one of so many offsets."""
    offsets = "|".join(map(str, range(offset, offset + count)))
    return rf"^GET /api/v1/streams/\S+/records\?\S*from=(?:{offsets})&"


class Stop:
    """One request that is to be held, the first that matches."""

    def __init__(self, pattern: str, when: Literal["request", "answer"]) -> None:
        self.pattern = re.compile(pattern, re.DOTALL)
        self.when = when
        self.taken = False
        self._reached = threading.Event()
        self._decided = threading.Event()
        self._passes = False

    def wait(self) -> None:
        """Until the request is held."""
        assert self._reached.wait(PATIENCE_SEC), f"nothing came that matches {self.pattern.pattern}"

    def reached(self) -> bool:
        return self._reached.is_set()

    def release(self) -> None:
        self._passes = True
        self._decided.set()

    def cut(self) -> None:
        self._decided.set()

    def hold(self) -> bool:
        """Called where the request passes; whether it goes on."""
        self._reached.set()
        self._decided.wait(PATIENCE_SEC)
        return self._passes


class Gate:
    """Listens for clients, and speaks to the broker that it is told of last."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.target = 0
        self._stops: list[Stop] = []
        self._seen: list[str] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self, pattern: str, when: Literal["request", "answer"]) -> Stop:
        made = Stop(pattern, when)
        with self._lock:
            self._stops.append(made)
        return made

    def saw(self, pattern: str) -> bool:
        """Whether such a request has come."""
        return any(re.search(pattern, said, re.DOTALL) for said in list(self._seen))

    def close(self) -> None:
        self._listener.close()
        for stop in self._stops:
            stop.cut()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer, socket.create_connection(("127.0.0.1", self.target)) as server:
                asked, answered = peer.makefile("rb"), server.makefile("rb")
                while head := _head(asked):
                    body = asked.read(_length(head))
                    said = head.partition(b"\r\n")[0].decode() + " " + body[:60].decode(errors="replace")
                    self._seen.append(said)
                    if not self._passes(said, "request"):
                        return
                    server.sendall(head + body)
                    first = _head(answered)
                    if not first or not self._passes(said, "answer"):
                        return
                    peer.sendall(first)
                    for piece in _body(first, answered):
                        peer.sendall(piece)
        except OSError:
            pass

    def _passes(self, said: str, when: str) -> bool:
        with self._lock:
            for stop in self._stops:
                if stop.when == when and not stop.taken and stop.pattern.search(said):
                    stop.taken = True
                    break
            else:
                return True
        return stop.hold()


def _head(stream: BinaryIO) -> bytes:
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return b"".join([*lines, line]) if line else b""


def _length(head: bytes) -> int:
    found = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    return int(found[1]) if found else 0


def _body(head: bytes, stream: BinaryIO) -> Iterator[bytes]:
    if not re.search(rb"(?i)^transfer-encoding: *chunked", head, re.MULTILINE):
        yield stream.read(_length(head))
        return
    while True:
        size = stream.readline()
        if not size:
            raise ConnectionError
        data = stream.read(int(size, 16) + 2)
        yield size + data
        if int(size, 16) == 0:
            return


class Broker:
    """A server behind a gate, killed and started again on the same data."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags
        self.gate = Gate()
        self.server = self._start()
        self.world = World(self.gate.port)
        # what is held is not given up
        self.world.here |= {"retries": "100", "fetchTimeoutMs": str(PATIENCE_SEC * 1_000)}

    def _start(self) -> ServerProcess:
        server = ServerProcess(self._folder, "--api-key", KEY, *self._flags)
        self.gate.target = server.http
        return server

    def kill(self) -> None:
        self.server.signal(signal.SIGKILL)
        self.server.wait()

    def restart(self) -> None:
        self.kill()
        self.server = self._start()

    def close(self) -> None:
        self.gate.close()
        if self.server.process.poll() is None:
            self.kill()


@contextmanager
def gated(folder: Path, *flags: str) -> Iterator[Broker]:
    broker = Broker(folder, *flags)
    try:
        yield broker
    finally:
        broker.close()

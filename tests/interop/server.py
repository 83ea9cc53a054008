"""A real server in a process of its own, from the package that is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import rookery
from tests.logged_secrets import check_log

SECRET_FLAGS = ("--api-key", "--jwt-secret", "--tls-key-password")


class ServerProcess:
    """`rookery serve` on free ports; `amqp`, `http` and `line` say where.

    What it wrote anywhere is looked through when it has ended: nothing may look like a key, a token or a webhook's
    secret, and none of `secrets` may be in it, which are those of its flags, its first admin key, and what a test adds.
    """

    program: tuple[str, ...] = ("-m", "rookery")
    development = False
    """Whether lines of the log may be for people, and not JSON."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.secrets = {flags[at + 1] for at, flag in enumerate(flags) if flag in SECRET_FLAGS}
        self.output: list[str] = []
        self._folder = folder
        command = [
            sys.executable,
            *self.program,
            "serve",
            "--host",
            "127.0.0.1",
            "--http-port",
            "0",
            "--amqp-port",
            "0",
            "--line-port",
            "0",
        ]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ROOKERY_")}
        environ["PYTHONPATH"] = str(Path(rookery.__file__).parents[1])
        self.process = subprocess.Popen(
            [*command, *flags], cwd=folder, env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.log: list[dict[str, object]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        try:
            self.listening = self.until("listening")
        except AssertionError:
            self.process.kill()
            raise
        self.amqp = self.port("amqp")
        self.http = self.port("http")
        self.line = self.port("line")

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._news:
                self.output.append(line)
                if not self.development or line.startswith("{"):
                    self.log.append(json.loads(line))
                self._news.notify_all()

    def until(self, event: str) -> dict[str, object]:
        """Wait for a line of the log."""
        with self._news:
            assert self._news.wait_for(lambda: any(line["event"] == event for line in self.log), 120), self.log
            return next(line for line in self.log if line["event"] == event)

    def port(self, face: str) -> int:
        return int(str(self.listening[face]).rpartition(":")[2])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(30)
        self._reader.join(30)
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.output += self.process.stdout.readlines()
        for stream in (self.process.stderr, self.process.stdout):
            if stream is not None:
                stream.close()
        self.check_secrets()
        return code

    def check_secrets(self) -> None:
        """Nothing secret is in what the server wrote for people to read."""
        for path in self._folder.glob("*.admin-key"):
            self.secrets.add(path.read_text().strip().partition(".")[2])
        texts = ["".join(self.output), *(path.read_text() for path in self._folder.rglob("raven-mq.log*"))]
        for text in texts:
            check_log(text, self.secrets)


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[ServerProcess]:
    server = ServerProcess(folder, *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()

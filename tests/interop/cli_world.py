"""The command line as a person or a script has it: called in this process, in a pipe, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import rookery
from rookery.cli import app

KEY = "supersecretkey"
PATIENCE_SEC = 60
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()=>][0-9A-B]?")


def until(condition: Callable[[], object]) -> None:
    """Wait for something to be so."""
    ends = time.monotonic() + PATIENCE_SEC
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


class Cli:
    """`rookery` against one server."""

    def __init__(self, url: str, folder: Path, key: str = KEY) -> None:
        self.url = url
        self.folder = folder
        package = str(Path(rookery.__file__).parents[1])
        self.environ = {"ROOKERY_URL": url, "ROOKERY_API_KEY": key, "PATH": os.environ["PATH"], "PYTHONPATH": package}
        self.environ |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", "HOME": str(folder)}

    def call(self, *words: str, input: str | bytes = "", code: int = 0) -> str:
        """Run a command in this process; what it printed to stdout."""
        result = CliRunner().invoke(app, words, input=input, env=self.environ)
        assert result.exit_code == code, (words, result.stdout, result.stderr, result.exception)
        return result.stdout

    def refused(self, code: int, *words: str, input: str | bytes = "") -> str:
        """The one line of an error."""
        result = CliRunner().invoke(app, words, input=input, env=self.environ)
        assert result.exit_code == code, (words, result.stdout, result.stderr)
        (line,) = result.stderr.splitlines()
        return line

    def json(self, *words: str, input: str | bytes = "", code: int = 0) -> Any:
        return json.loads(self.call(*words, "--json", input=input, code=code))

    def lines(self, *words: str, code: int = 0) -> list[Any]:
        return [json.loads(line) for line in self.call(*words, code=code).splitlines()]

    def pipe(self, *words: str, input: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
        """Run a command as a process, with pipes for a terminal."""
        return subprocess.run(
            [sys.executable, "-m", "rookery", *words],
            input=input,
            capture_output=True,
            env=self.environ,
            cwd=self.folder,
            timeout=PATIENCE_SEC,
            check=False,
            **more,
        )

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Terminal]:
        """Run a command on a terminal of its own."""
        terminal = Terminal([sys.executable, "-m", "rookery", *words], self.environ, self.folder)
        try:
            yield terminal
        finally:
            terminal.end()


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, command: list[str], environ: dict[str, str], folder: Path) -> None:
        self._pid, self._fd = pty.fork()
        if not self._pid:
            os.chdir(folder)
            os.execve(command[0], command, environ)
        self._text = ""
        self.code: int | None = None

    @property
    def raw(self) -> str:
        return self._text

    @property
    def text(self) -> str:
        """What is to be read, without colours and movements."""
        return CODES.sub("", self._text)

    def until(self, text: str) -> str:
        """Wait for words on the screen."""
        ends = time.monotonic() + PATIENCE_SEC
        while text not in self.text:
            assert time.monotonic() < ends, (text, self.text)
            assert self._read(0.5), (text, self.text)
        return self.text

    def _read(self, patience_sec: float) -> bool:
        """Take what is there; False when the program has ended."""
        ready, _, _ = select.select([self._fd], [], [], patience_sec)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 65_536)
        except OSError:
            return False
        self._text += data.decode("utf-8", "replace")
        return bool(data)

    def until_hidden(self) -> None:
        """Wait until what is typed is not shown."""
        until(lambda: not termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait(self) -> int:
        """Until the program has ended; its exit code."""
        ends = time.monotonic() + PATIENCE_SEC
        while self._read(0.5):
            assert time.monotonic() < ends, self.text
        if self.code is None:
            _, status = os.waitpid(self._pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def end(self) -> None:
        if self.code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

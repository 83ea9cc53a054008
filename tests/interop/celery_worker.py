"""Celery workers, each a process of its own as users start them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SEC = 30


class Worker:
    """`celery worker` on one queue, by default that of its own name; it is ready when this is made."""

    def __init__(
        self,
        folder: Path,
        name: str,
        broker: str,
        *flags: str,
        queue: str = "",
        pool: str = "solo",
        backend: str = "rpc://",
        settings: str = "classic",
        ca: Path | None = None,
    ) -> None:
        self.name = name
        self.node = f"{name}@tests"
        command = [sys.executable, "-m", "celery", "-A", "tests.interop.celery_tasks", "worker", "-n", self.node]
        environ = {each: value for each, value in os.environ.items() if not each.startswith("ROOKERY_")}
        environ |= {
            "PYTHONPATH": str(ROOT),
            "CELERY_TEST_BROKER": broker,
            "CELERY_TEST_BACKEND": backend,
            "CELERY_TEST_SETTINGS": settings,
            "AUTOSCALE_KEEPALIVE": "0.5",
        }
        if ca is not None:
            environ["CELERY_TEST_CA"] = str(ca)
        self.process = subprocess.Popen(
            [*command, "-P", pool, "-Q", queue or name, "-l", "info", "-E", *flags],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.log: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()
        self.until(f"{self.node} ready.")

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._news:
                self.log.append(line)
                self._news.notify_all()

    def until(self, text: str) -> None:
        """Wait for a line of the log."""
        with self._news:
            there = self._news.wait_for(lambda: any(text in line for line in self.log), PATIENCE_SEC)
            assert there, f"no {text!r} in the log of {self.node}:\n{''.join(self.log)}"

    def stop(self) -> int:
        """Let it finish what it does; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """End it and the processes of its pool, without a word to the broker."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> int:
        code = self.process.wait(PATIENCE_SEC)
        self._reader.join(PATIENCE_SEC)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

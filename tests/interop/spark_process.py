"""Drivers of Spark as processes: started, given jobs, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rookery

CLASSES = Path(sys.prefix) / "share" / "rookery-tests" / "spark"
"""Where Java keeps loaded classes between runs: every driver starts in half the time."""

PROGRAM = Path(__file__).with_name("spark_driver.py")
PATIENCE_SEC = 600


def environment() -> dict[str, str]:
    found = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1]), "PYSPARK_PYTHON": sys.executable}
    return {**found, "PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1"}


def home(folder: Path) -> Path:
    """The package of Spark in a folder of its own: clusters within a driver put the folders of executors there.

    As in `rookery.spark.session` it is without its zip, which costs a second of each worker's start.
    """
    import pyspark

    made = folder / "spark"
    made.mkdir(exist_ok=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("python", "work"):
            (made / entry.name).unlink(missing_ok=True)
            (made / entry.name).symlink_to(entry)
    return made


class Driver:
    """One session of Spark. Everything that it starts is in its group, except the workers, which end with it."""

    def __init__(self, folder: Path, master: str, **settings: object) -> None:
        self._log = (folder / "driver.log").open("a")
        environ = environment()
        if master.startswith("local-cluster"):
            environ["SPARK_HOME"] = str(home(folder))
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._answers: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        small: dict[str, object] = {"spark.sql.execution.arrow.maxRecordsPerBatch": 10}
        if not master.startswith("sc://"):
            small["spark.driver.memory"] = "700m"
        self.send(master=master, class_cache=str(CLASSES), settings={**small, **settings})
        self._ready = False

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._answers.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._answers.append({"error": "the driver has ended"})
            self._news.notify_all()

    def send(self, **job: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What the job that was sent came to."""
        if not self._ready:
            self._ready = True
            found = self.result()
            assert "ready" in found, found
        with self._news:
            assert self._news.wait_for(lambda: bool(self._answers), PATIENCE_SEC), "the driver says nothing"
            return self._answers.pop(0)

    def run(self, **job: object) -> dict[str, Any]:
        """Do a job to its end."""
        self.send(**job)
        found = self.result()
        assert "error" not in found, found["error"]
        return found

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self._reader.join(30)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


@contextmanager
def driving(folder: Path, master: str, **settings: object) -> Iterator[Driver]:
    driver = Driver(folder, master, **settings)
    try:
        yield driver
    finally:
        driver.kill()


def until_there(note: Path) -> dict[str, Any]:
    """What a task has noted before it waits."""
    deadline = time.monotonic() + PATIENCE_SEC
    while not note.exists():
        assert time.monotonic() < deadline, f"no task came to {note}"
        time.sleep(0.02)
    return dict(json.loads(note.read_text()))

"""`rookery pipelines up`: all pipelines of a folder, each engine in a process of its own, for as long as it is wanted.

The folder is looked at again and again: a new, changed or removed file ends the process of its engine in order and
starts one with what is there now. A process that dies is started again after a pause that grows. A file with a mistake
stops nobody else; what is wrong with it is in its status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rookery.errors import InvalidPipeline
from rookery.lake.pipelines import LastError, Place, Status, now_ms, statuses
from rookery.pipelines.spec import Pipeline, load_folder
from rookery.pipelines.worker import FAILED

POLL_SEC: Final = 0.5
RESCAN_SEC: Final = 2.0
PAUSE_SEC: Final = 1.0
PAUSE_MAX_SEC: Final = 60.0
STEADY_SEC: Final = 60.0
"""A process that lived so long is started again without a pause."""
STOP_SEC: Final = 60.0


@dataclass
class Group:
    """The pipelines of one engine, and the process that runs them."""

    files: tuple[str, ...]
    stamp: object
    names: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = 0.0
    start_at: float = 0.0
    again: bool = False
    ended: int | None = None


@dataclass
class Supervisor:
    """Watches over the processes. `heard` is called with every status that has changed."""

    folder: Path | None
    root: Path
    endpoint: str = ""
    master: str = ""
    once: bool = False
    extra: Sequence[str] = ()
    heard: Callable[[Status], None] = lambda _: None
    said: Callable[[str], None] = lambda _: None
    groups: dict[str, Group] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _told: dict[str, tuple[str, int, int, int]] = field(default_factory=dict)
    _mistakes: set[str] = field(default_factory=set)

    def stop(self, *_: object) -> None:
        """May be called from anywhere, also as the handler of a signal."""
        self._stopping.set()

    def run(self) -> int:
        """Watch until stopped, or, with `once`, until every pipeline has ended; returns an exit code."""
        scanned = -RESCAN_SEC
        try:
            while not self._stopping.is_set():
                if time.monotonic() - scanned >= RESCAN_SEC and not (self.once and self.groups):
                    self._scan()
                    scanned = time.monotonic()
                for group in self.groups.values():
                    self._care(group)
                self._tell()
                if self.once and all(group.ended is not None for group in self.groups.values()):
                    break
                self._stopping.wait(POLL_SEC)
        finally:
            for group in self.groups.values():
                _ask_to_end(group)
            for group in self.groups.values():
                _await_end(group)
            self._tell()
        return 1 if self._mistakes or any(group.ended for group in self.groups.values()) else 0

    # Files

    def _scan(self) -> None:
        good, bad = load_folder(self.folder) if self.folder is not None else ([], [])
        self._report(bad)
        wanted: dict[str, list[Pipeline]] = {}
        for pipeline in good:
            engine = pipeline.at(master=self.master).engine
            wanted.setdefault(json.dumps([engine.master, dict(engine.conf)], sort_keys=True), []).append(pipeline)
        found = {key: self._group(each) for key, each in wanted.items()}
        if self.extra:
            # what is built in runs with the first engine there is
            found["builtin"] = Group(tuple(self.extra), tuple(self.extra), tuple(self.extra))
        for key in [key for key in self.groups if key not in found]:
            self._end(self.groups.pop(key))
        for key, group in found.items():
            running = self.groups.get(key)
            if running is None or running.stamp != group.stamp:
                if running is not None:
                    self.said("files have changed: starting again")
                    self._end(running)
                self.groups[key] = group

    def _group(self, pipelines: list[Pipeline]) -> Group:
        files = tuple(str(each.file) for each in pipelines)
        # functions of steps may be in modules beside the files
        beside = sorted(str(path) for path in Path(pipelines[0].file).parent.glob("*.py"))
        return Group(files, tuple(map(_stamp, (*files, *beside))), tuple(each.name for each in pipelines))

    def _report(self, bad: list[InvalidPipeline]) -> None:
        """Tell each mistake once, and leave it in the status of its file."""
        for error in bad:
            text = str(error)
            if text in self._mistakes:
                continue
            self.said(text)
            file = Path(text.partition(":")[0])
            status = Status(file.stem, "failed", str(file), error=LastError(text, now_ms()))
            Place(self.root, file.stem).tell(status)
        self._mistakes = {str(error) for error in bad}

    # Processes

    def _care(self, group: Group) -> None:
        if group.process is not None:
            code = group.process.poll()
            if code is None:
                return
            group.process = None
            if code in (0, FAILED):
                group.ended = code
                return
            group.again = True
            lived = time.monotonic() - group.began
            group.pause = PAUSE_SEC if lived > STEADY_SEC else min(PAUSE_MAX_SEC, max(PAUSE_SEC, group.pause * 2))
            group.start_at = time.monotonic() + group.pause
            self.said(
                f"the process of {', '.join(group.names)} ended with {code}: starting again in {group.pause:.0f} s"
            )
        if group.ended is None and time.monotonic() >= group.start_at:
            self._start(group)

    def _start(self, group: Group) -> None:
        command = [sys.executable, "-m", "rookery.pipelines.worker", "--supervised", "--root", str(self.root)]
        command += ["--endpoint", self.endpoint] if self.endpoint else []
        command += ["--master", self.master] if self.master else []
        command += ["--once"] if self.once else []
        command += ["--again"] if group.again else []
        # signals of the terminal are for this process, which passes them on
        group.process = subprocess.Popen([*command, *group.files], start_new_session=True)  # noqa: S603
        group.began = time.monotonic()

    def _end(self, group: Group) -> None:
        _ask_to_end(group)
        _await_end(group)

    def _tell(self) -> None:
        for status in statuses(self.root):
            mark = (status.state, status.progress.batch, status.progress.at_ms, status.restarts)
            if self._told.get(status.name) != mark:
                self._told[status.name] = mark
                self.heard(status)


def _stamp(file: str) -> tuple[str, int, int]:
    try:
        found = os.stat(file)  # noqa: PTH116
    except FileNotFoundError:
        return (file, 0, 0)
    return (file, found.st_mtime_ns, found.st_size)


def _ask_to_end(group: Group) -> None:
    if group.process is not None and group.process.poll() is None:
        group.process.send_signal(signal.SIGTERM)


def _await_end(group: Group) -> None:
    if group.process is None:
        return
    try:
        group.ended = group.process.wait(STOP_SEC)
    except subprocess.TimeoutExpired:
        group.process.kill()
        group.ended = group.process.wait()
    group.process = None

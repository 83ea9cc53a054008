"""What pipelines leave in their root for others to see: identities, checkpoints, locks, and how each is doing.

    <root>/pipelines/<name>/status.json     how it is doing; written by the one who runs it, read by everybody
                           identity.json    which run of checkpoints this is, and of which file
                           checkpoints/…    Spark's own
                           lock             held by the process that runs it
                           stop             is there when somebody wants it to stop
    <root>/lake/<table>                     lake tables

Nothing here needs Spark, so that the broker can show it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rookery.errors import InvalidArgument, NotFound, PipelineRunning
from rookery.store.disk import try_lock

_Found = TypeVar("_Found")

RUNNING: Final = ("starting", "running", "waiting", "restarting")
"""States in which a process cares for the pipeline."""


class Progress(msgspec.Struct, omit_defaults=True):
    """The last micro-batch, and what came before it."""

    batch: int = -1
    at_ms: int = 0
    rows: int = 0
    rows_per_sec: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
    """Records that wait in the sources; None when that is not known."""
    total_rows: int = 0
    durations_ms: dict[str, int] = {}
    failed_expectations: dict[str, int] = {}


class LastError(msgspec.Struct):
    """What ended the pipeline, or its last attempt."""

    message: str
    at_ms: int


class Status(msgspec.Struct):
    """How a pipeline is doing."""

    name: str
    state: str
    """starting, running, waiting for its next time, restarting after a failure, finished, stopped, failed or dead."""
    file: str = ""
    engine: str = ""
    pid: int = 0
    host: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    restarts: int = 0
    """Failures in a row."""
    next_ms: int = 0
    """When it is tried or run again."""
    progress: Progress = msgspec.field(default_factory=Progress)
    error: LastError | None = None


class Identity(msgspec.Struct):
    """One life of a pipeline: its name at sinks, and what its checkpoint was made for."""

    app: str
    fingerprint: str
    file: str = ""


class Place:
    """The folder of one pipeline below a root."""

    def __init__(self, root: str | Path, name: str) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100  links stay as they are
        self.name = name
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise InvalidArgument(f"{name!r} is no name of a pipeline", argument="name")
        self.folder = self.root / "pipelines" / name

    def table(self, name: str) -> Path:
        """Where a lake table is: below the root, or, if it is a path, there."""
        if os.path.isabs(name):  # noqa: PTH117
            return Path(name)
        if not name or name.startswith((".", "_")) or ".." in Path(name).parts:
            raise InvalidArgument(f"a table is a name or an absolute path, not {name!r}", argument="table")
        return self.root / "lake" / name.removeprefix("lake.")

    # Identity

    @property
    def checkpoint(self) -> Path:
        found = self.identity()
        assert found is not None, "claimed before it runs"
        return self.folder / "checkpoints" / found.app.rpartition("-")[2]

    def identity(self) -> Identity | None:
        return _read(self.folder / "identity.json", Identity)

    def claim(self, fingerprint: str, file: str) -> Identity:
        """The identity of this pipeline, made if it has none; an error if its checkpoint is of something else."""
        found = self.identity()
        if found is None:
            found = Identity(f"{self.name}-{uuid.uuid4().hex[:12]}", fingerprint, file)
            _write(self.folder / "identity.json", found)
        if found.fingerprint != fingerprint:
            raise InvalidArgument(
                f"the sources or the stateful steps of {self.name} have changed, and its checkpoint does not fit any "
                f"more: `rookery pipelines reset {self.name}` begins anew, or give the pipeline another name",
                argument="name",
            )
        return found

    def reset(self) -> None:
        """Forget what was read and all state: the next start begins anew, as another application."""
        with self.lock():
            (self.folder / "identity.json").unlink(missing_ok=True)
            (self.folder / "status.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only one who runs this pipeline; the lock ends with the process, however that ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            if not try_lock(file.fileno()):
                raise PipelineRunning(
                    f"{self.name} is running already: `rookery pipelines stop {self.name}`", argument="name"
                )
            yield

    # Stopping

    @property
    def stop_wanted(self) -> bool:
        return (self.folder / "stop").exists()

    def want_stop(self, wanted: bool) -> None:
        if wanted:
            (self.folder / "stop").touch()
        else:
            (self.folder / "stop").unlink(missing_ok=True)

    # Status

    def tell(self, status: Status) -> None:
        status.pid = os.getpid()
        status.host = socket.gethostname()
        status.updated_ms = now_ms()
        _write(self.folder / "status.json", status)

    def status(self) -> Status:
        found = _read(self.folder / "status.json", Status)
        if found is None:
            raise NotFound(f"there is no pipeline {self.name!r} below {self.root}", argument="name")
        if found.state in RUNNING and not _alive(found):
            found.state = "dead"
        return found


def statuses(root: str | Path) -> list[Status]:
    """How all pipelines below a root are doing, by name."""
    folder = Path(root) / "pipelines"
    found = []
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(NotFound):
            found.append(Place(root, each.name).status())
    return found


def now_ms() -> int:
    return int(time.time() * 1000)


def _alive(status: Status) -> bool:
    if status.host != socket.gethostname():
        # its clock is not ours either, but a minute without news is a bad sign on any
        return now_ms() - status.updated_ms < 60_000
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path, kind: type[_Found]) -> _Found | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path} is damaged: {error}", argument="root") from None


def _write(path: Path, value: Any) -> None:
    """Readers see the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(value))
    fresh.replace(path)

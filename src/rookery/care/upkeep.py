"""What an operator does with a data directory at a terminal: look at it, repair it, copy it.

Each function prints what it found, as text or as one JSON document on stdout, shows its progress on stderr when that is
a terminal, and returns the exit code: 0 when all is well (now), 1 when damage was found and left as it is, or a copy
failed, 2 when nothing could be done: no such directory, a target that is in the way, a broker at work.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rookery.care import backup, repair
from rookery.errors import InvalidArgument, RookeryError, StoreLocked
from rookery.store.segments import check_is_journal

WELL: Final = 0
DAMAGED: Final = 1
REFUSED: Final = 2


def look(directory: Path, *, as_json: bool) -> int:
    """Say whether the journal in a directory is whole, and if not, where it is damaged."""
    try:
        check_is_journal(directory, "directory")
        with _progress(f"Looking at {directory}") as progress:
            report = repair.inspect(directory, progress)
    except RookeryError as error:
        return _refused(error, as_json)
    _show(report, as_json)
    if report.sound:
        return WELL
    if not as_json:
        print(f"To mend it: rookery doctor --repair {directory}")
    return DAMAGED


def mend(directory: Path, out: Path | None, *, as_json: bool) -> int:
    """Make a sound directory of a damaged one, in its place or as `out`, and say what was lost."""
    try:
        check_is_journal(directory, "directory")
        with _progress(f"Repairing {directory}") as progress:
            report = repair.repair(directory, out, progress)
    except RookeryError as error:
        return _refused(error, as_json)
    _show(report, as_json)
    if not as_json and report.out is None:
        print("There is nothing to repair.")
    return WELL


def copy(directory: Path, target: Path, *, as_json: bool) -> int:
    """Copy the journal in a directory, whether a broker works on it or not."""
    try:
        with _progress(f"Copying {directory}") as progress:
            copied = backup.backup(directory, target, progress)
    except RookeryError as error:
        return _refused(error, as_json)
    if as_json:
        print(json.dumps(dataclasses.asdict(copied)))
    else:
        print(f"{copied.target}: {copied.segments} segments, {copied.batches} batches, {copied.bytes} bytes; checked")
        if copied.sealed_files:
            print(f"{copied.sealed_files} files of sealed records of streams are in it")
        print(f"To restore it: rookery serve --data-dir {copied.target}")
    return WELL


def _show(report: repair.Report, as_json: bool) -> None:
    if as_json:
        totals = {"sound": report.sound, "batches": report.batches, "batches_lost": report.batches_lost}
        print(json.dumps({**dataclasses.asdict(report), **totals}))
    else:
        print("\n".join(report.lines()))


def _refused(error: RookeryError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.code, "message": str(error)}))
    print(f"rookery: {error}", file=sys.stderr)
    if isinstance(error, StoreLocked):
        print("rookery: stop the broker first; `rookery backup` copies a running one", file=sys.stderr)
    return REFUSED if isinstance(error, InvalidArgument | StoreLocked) else DAMAGED


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn()]
    bar = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

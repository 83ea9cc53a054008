"""The history of streams: when tails are sealed into Parquet files, and when files that are let go of are deleted.

The work itself is done by `sealed.sealing` in a process of its own; here is what the owner of the shard does: choose
what is to be sealed, keep the journal's segments meanwhile, and record the result. The list of a partition's files in
the journal is the truth: a file that is not in it is deleted at start, one that is missing is damage. A file that was
let go of stays for a grace, and as long as a plan that somebody is reading by names it.

Without pyarrow nothing is sealed: the history stays in the journal.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from rookery.core.paging import OFFSET_MASK, PLACE_BITS
from rookery.core.ranges import FilePiece, TailPiece
from rookery.core.shard import Shard
from rookery.core.stream import Partition, SealedFile
from rookery.errors import InvalidArgument, NotFound, RookeryError, StoreDamaged, StoreError
from rookery.sealed.layout import TEMPORARY, last_offset, partition_directory
from rookery.store.journal import Journal

LOOK_MS: Final = 1_000
PLAN_MS: Final = 60_000
"""How long a plan keeps its files unless it is renewed."""

MERGE_FILES: Final = 8
"""So many small files of one day in a row are merged into one."""

RUN_RECORDS: Final = 1_000_000
DAY_MS: Final = 86_400_000
COPY: Final = ".records"
"""How the file ends into which records are copied from a medium that has no files."""

COPY_BYTES: Final = 1 << 20

HEAD_BYTES: Final = 5
"""A record begins with its kind and the size of the rest."""

PACKAGE: Final = Path(__file__).resolve().parent.parent.parent

Done = Callable[[BaseException | None], None]


def can_seal() -> bool:
    """Whether sealed files can be written and read."""
    return importlib.util.find_spec("pyarrow") is not None


def _parquet() -> Any:
    if not can_seal():
        raise StoreError("sealed records are in Parquet files, which need pyarrow: pip install 'rookery[streams]'")
    from rookery.sealed import parquet

    return parquet


class Reading:
    """A planned range of a partition, to be read in any thread as long as what it names is kept."""

    def __init__(
        self,
        partition: Partition,
        pieces: list[FilePiece | TailPiece],
        read: Callable[[int, int], bytes],
        root: Path,
        columns: Sequence[str],
        routing_key: str,
    ) -> None:
        self.plan = f"reading-{id(self)}"
        self._pieces = pieces
        self._range = _parquet().Range(partition, pieces, read, root, columns, routing_key)

    def paths(self) -> frozenset[str]:
        return frozenset(piece.path for piece in self._pieces if isinstance(piece, FilePiece))

    def table(self) -> Any:
        """All of it as a pyarrow Table."""
        return self._range.table()

    def ipc(self) -> Iterator[bytes]:
        """All of it as an Arrow IPC stream, piece by piece."""
        pieces: Iterator[bytes] = self._range.ipc()
        return pieces


class History:
    """See the module's docstring. Methods are called by the shard's owner, within turns."""

    def __init__(
        self,
        shard: Shard,
        journal: Journal,
        root: Path,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.shard = shard
        self.journal = journal
        self.root = root
        self.enabled = can_seal()
        self.sealed = 0
        self.failures = 0
        self.last_error = ""
        # who does the work: a process of its own, unless told otherwise
        self.helper: Callable[[Job], dict[str, Any]] | None = None
        self._post = post
        self._due_ms = 0
        self._job: Job | None = None
        self._waiting: list[tuple[Partition, int, Done]] = []
        self._plans: dict[str, tuple[int, frozenset[str]]] = {}
        self._closed = False

    # Opening and closing

    def open(self) -> None:
        """Check that every file is there, and delete those that belong to nobody."""
        for partition in self.shard.partitions.values():
            for file in partition.files:
                if not (self.root / file.path).is_file():
                    path = str(self.root / file.path)
                    raise StoreDamaged(f"{path} is missing: it holds sealed records of a stream", file=path)
        self._delete_strays("")
        for left in self.root.glob(f"{TEMPORARY}*{COPY}"):
            left.unlink()
        # whoever was reading by a plan has a moment to say so again
        for path, (due, batch) in self.shard.condemned.items():
            self.shard.condemned[path] = (max(due, int(self.shard.wall_ms) + 2 * PLAN_MS), batch)

    def _delete_strays(self, directory: str) -> None:
        """Delete the files below a directory that no list names: what an interrupted work has left."""
        known = {file.path for partition in self.shard.partitions.values() for file in partition.files}
        for found in (self.root / directory).rglob("*.parquet"):
            path = found.relative_to(self.root).as_posix()
            if path not in known and path not in self.shard.condemned:
                found.unlink()

    def close(self) -> None:
        """End what is under way; what it was doing is done again another time."""
        self._closed = True
        if self._job is not None:
            self._job.stop()

    # Plans: files that somebody is about to read

    def lease(self, plan: str, paths: frozenset[str], lease_ms: int = PLAN_MS) -> None:
        """Keep these files as long as the plan is renewed in time."""
        if lease_ms < 1:
            raise InvalidArgument("lease_ms must be at least 1", argument="lease_ms")
        self._plans[plan] = (int(self.shard.mono_ms) + lease_ms, paths)

    def renew(self, plan: str, lease_ms: int = PLAN_MS) -> None:
        held = self._plans.get(plan)
        if held is None or held[0] <= self.shard.mono_ms:
            raise NotFound(f"plan {plan!r} has ended", argument="plan")
        self.lease(plan, held[1], lease_ms)

    def release(self, plan: str) -> None:
        self._plans.pop(plan, None)

    def _leased(self) -> set[str]:
        now = int(self.shard.mono_ms)
        self._plans = {plan: held for plan, held in self._plans.items() if held[0] > now}
        return {path for _, paths in self._plans.values() for path in paths}

    # Reading, in any thread

    def read(self, place: int, size: int) -> bytes:
        """Bytes of the journal from a place on."""
        return self.journal.medium.read(place >> PLACE_BITS, place & OFFSET_MASK, size)

    def records(self, path: str, start: int, stop: int) -> list[bytes]:
        """Records of a sealed file, as they stood in the journal."""
        found: list[bytes] = _parquet().records_of(self.root / path, start, stop)
        return found

    def first_at(self, path: str, stamp_ms: int) -> int:
        """The first offset in a file that was appended at this time or later; there must be one."""
        found: int | None = _parquet().first_at(self.root / path, stamp_ms)
        if found is None:
            raise StoreDamaged(f"{path} ends before {stamp_ms}", file=path)
        return found

    # Looking for work

    def tick(self) -> int:
        """Do what is due; the milliseconds until there may be more."""
        now = int(self.shard.mono_ms)
        if now < self._due_ms:
            return self._due_ms - now
        self._due_ms = now + LOOK_MS
        self._delete()
        if self._job is None and self.enabled and not self._closed:
            self._begin()
        return LOOK_MS

    def seal(self, partition: Partition, done: Done) -> None:
        """Seal all that a partition shows now; `done` is told the outcome, in a later turn."""
        if not self.enabled:
            done(StoreError("sealing needs pyarrow: pip install 'rookery[streams]'"))
            return
        self._waiting.append((partition, int(partition.visible), done))
        if self._job is None:
            self._begin()

    def _begin(self) -> None:
        """Start on the first thing that is wanted or due."""
        for wish in list(self._waiting):
            partition, upto, done = wish
            if partition.tail >= upto or partition.stream.deleted:
                self._waiting.remove(wish)
                done(None)
            elif not self._is_occupied(partition):
                self._start(_Seal(self, partition, self._stop_of(partition, upto)))
                return
        for partition in self._partitions():
            upto = self._due(partition)
            if upto > partition.tail and not self._is_occupied(partition):
                self._start(_Seal(self, partition, upto))
                return
        leased = self._leased()
        for partition in self._partitions():
            files = self._mergeable(partition, leased)
            if files:
                self._start(_Merge(self, partition, files))
                return

    def _partitions(self) -> list[Partition]:
        return [partition for partition in self.shard.partitions.values() if not partition.stream.hidden]

    def _is_occupied(self, partition: Partition) -> bool:
        """Whether files of a deleted stream of the same name are still there: then the new one waits with its own,
        which may have the same names.
        """
        if not self.shard.condemned:
            return False
        stream = partition.stream
        directory = partition_directory(stream.tenant.name, stream.name, int(partition.index))
        return any(path.startswith(directory) and last_offset(path) >= partition.tail for path in self.shard.condemned)

    def _due(self, partition: Partition) -> int:
        """Up to where a partition is to be sealed now."""
        settings = partition.stream.settings
        if partition.tail >= partition.visible:
            return 0
        old = partition.stamp(partition.tail) + settings.seal_ms <= self.shard.wall_ms
        if not old and partition.tail_bytes < settings.seal_bytes:
            return 0
        return self._stop_of(partition, int(partition.visible))

    def _stop_of(self, partition: Partition, upto: int) -> int:
        """The end of a run that begins with the tail: of one day, and not too long for one file."""
        tail = int(partition.tail)
        first_ms = int(partition.stamp(tail))
        tomorrow = int(partition.offset_at((first_ms // DAY_MS + 1) * DAY_MS))
        size = max(1, int(partition.tail_bytes))
        rows = partition.stream.settings.seal_bytes * (int(partition.visible) - tail) // size
        return max(tail + 1, min(upto, tomorrow, tail + RUN_RECORDS, tail + rows))

    def _mergeable(self, partition: Partition, leased: set[str]) -> list[SealedFile]:
        """Neighbours of one day that are small enough to be one file."""
        most = partition.stream.settings.seal_bytes
        run: list[SealedFile] = []
        total = 0
        for file in partition.files:
            day = file.path.rpartition("/")[0]
            small = file.path not in leased and file.bytes * 2 <= most
            fits = run and run[-1].path.rpartition("/")[0] == day and total + file.bytes <= most
            if not small or not fits:
                if len(run) >= MERGE_FILES:
                    return run
                run, total = [], 0
            if small:
                run.append(file)
                total += int(file.bytes)
        return run if len(run) >= MERGE_FILES else []

    def _start(self, job: Job) -> None:
        self._job = job
        self.journal.hold()
        job.start()

    def finished(self, job: Job, answer: dict[str, Any] | None, error: str) -> None:
        """A job's process has ended; called in its thread."""
        self._post(lambda: self._settle(job, answer, error))

    def _settle(self, job: Job, answer: dict[str, Any] | None, error: str) -> None:
        self._job = None
        self.journal.release()
        if self._closed:
            return
        if answer is None:
            self.failures += 1
            self.last_error = error
            stream = job.partition.stream
            self._delete_strays(partition_directory(stream.tenant.name, stream.name, int(job.partition.index)))
            failed = [waiting for waiting in self._waiting if waiting[0] is job.partition]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] is not job.partition]
            for _, _, done in failed:
                done(StoreError(f"sealing failed: {error}"))
        else:
            self._record(job, SealedFile(answer))
            # a look at once: a wish may be fulfilled, or there may be more of it
            self._begin()

    def _record(self, job: Job, file: SealedFile) -> None:
        """Let a finished file count; from here on the journal may forget its records."""
        partition = job.partition
        shard = self.shard
        if partition.stream.deleted or file.last < partition.first:
            (self.root / file.path).unlink(missing_ok=True)
            return
        self.sealed += 1
        gone = [old.path for old in job.replaced]
        if not self._leased().isdisjoint(gone):
            # somebody began to read them while they were being merged
            (self.root / file.path).unlink(missing_ok=True)
            return
        kept = [old for old in partition.files if old.path not in gone]
        # those that were let go of meanwhile have a grace already
        gone = [path for path in gone if path not in shard.condemned]
        partition.files = sorted([*kept, file], key=lambda f: int(f.first))
        partition.cut_tail(file.last + 1)
        tenant = partition.stream.tenant
        row = {"partition": int(partition.number), "file": file.as_dict(), "files": gone, "due_ms": int(shard.wall_ms)}
        shard.log.change("sealed", tenant.name, row)
        # both at once would show a reader of the directory every record twice
        shard.condemn(gone, 0)

    # Deleting

    def _delete(self) -> None:
        """Delete the files whose grace is over and that no plan names."""
        shard = self.shard
        if not shard.condemned:
            return
        leased = self._leased()
        now = int(shard.wall_ms)
        due = [
            path
            for path, (at, batch) in shard.condemned.items()
            if at <= now and (batch <= shard.log.durable or not shard.log.active) and path not in leased
        ]
        for path in due:
            target = self.root / path
            target.unlink(missing_ok=True)
            del shard.condemned[path]
            for directory in list(target.parents)[:4]:
                try:
                    directory.rmdir()
                except OSError:
                    break
        if due:
            shard.log.change("unlinked", "", {"paths": due})


class Job:
    """A helper process, and the thread that waits for it."""

    def __init__(self, history: History, partition: Partition) -> None:
        self.partition = partition
        self.replaced: list[SealedFile] = []
        self._history = history
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def prepare(self) -> None:
        """Take from the core what the work needs to know, in the turn that starts it."""

    def input(self) -> bytes:
        """What the process is told. Called in the job's thread: it may read what is to be sealed."""
        raise NotImplementedError

    def clean_up(self) -> None:
        """Remove what was made for the process; called in the job's thread."""

    def start(self) -> None:
        self.prepare()
        threading.Thread(target=self._run, name="rookery-sealing", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        answer: dict[str, Any] | None = None
        error = "stopped"
        try:
            helper = self._history.helper
            if helper is not None:
                answer = helper(self)
            elif not self._stopped:
                answer, error = self._work()
        except (OSError, RookeryError) as failure:
            error = str(failure)
        finally:
            self.clean_up()
        self._history.finished(self, answer, error)

    def _work(self) -> tuple[dict[str, Any] | None, str]:
        told = self.input()
        path = os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "rookery.sealed.sealing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        if self._stopped:
            process.kill()
        out, err = process.communicate(told)
        if process.returncode != 0 or not out.strip():
            words = err.decode("utf-8", "replace").strip().splitlines()
            return None, words[-1] if words else f"the helper process ended with {process.returncode}"
        return json.loads(out), ""


class _Seal(Job):
    """Seal the tail up to an offset."""

    def __init__(self, history: History, partition: Partition, upto: int) -> None:
        super().__init__(history, partition)
        self._upto = upto
        self._row: dict[str, Any] = {}
        self._places = b""
        self._stamps = b""
        self._copy: Path | None = None

    def prepare(self) -> None:
        partition = self.partition
        history = self._history
        self._places, self._stamps = partition.run(partition.tail, self._upto)
        self._row = {
            "root": str(history.root),
            "owner": os.getpid(),
            "segments": {s.number: history.journal.medium.path(s.number) for s in history.journal.segments},
            "tenant": partition.stream.tenant.name,
            "stream": partition.stream.name,
            "partition": int(partition.index),
            "first": int(partition.tail),
            "bytes": len(self._places),
        }

    def input(self) -> bytes:
        if None in self._row["segments"].values():
            self._hand_over()
        return json.dumps(self._row).encode() + b"\n" + self._places + self._stamps

    def _hand_over(self) -> None:
        """Copy the records into one file, for a process that cannot read the medium by itself."""
        root = self._history.root
        root.mkdir(parents=True, exist_ok=True)
        self._copy = root / f"{TEMPORARY}{os.getpid()}-{self.partition.number}{COPY}"
        with self._copy.open("wb") as target:
            self._places = copy_records(self._places, self._history.read, target)
        self._row["segments"] = {0: str(self._copy)}

    def clean_up(self) -> None:
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)


def copy_records(places: bytes, read: Callable[[int, int], bytes], target: BinaryIO) -> bytes:
    """Copy the records at these places (64 bits each) into a file that counts as segment 0; their places there.

    `read` gives bytes from a place on; neighbours come from the same read.
    """
    moved = bytearray()
    window, start, written = b"", 0, 0
    for index in range(0, len(places), 8):
        place = int.from_bytes(places[index : index + 8], "big")
        at = place - start
        if not 0 <= at <= len(window) - HEAD_BYTES or at + record_bytes(window, at) > len(window):
            window, start, at = read(place, COPY_BYTES), place, 0
            if record_bytes(window, 0) > len(window):
                window = read(place, record_bytes(window, 0))
        size = record_bytes(window, at)
        if at + size > len(window):
            raise StoreDamaged(f"segment {place >> PLACE_BITS} ends within the record at {place & OFFSET_MASK}")
        target.write(window[at : at + size])
        moved += written.to_bytes(8, "big")
        written += size
    return bytes(moved)


def record_bytes(window: bytes, at: int) -> int:
    """The size of the record there, as far as it can be told."""
    return HEAD_BYTES + int.from_bytes(window[at + 1 : at + HEAD_BYTES], "big")


class _Merge(Job):
    """Make one file of several."""

    def __init__(self, history: History, partition: Partition, files: list[SealedFile]) -> None:
        super().__init__(history, partition)
        self.replaced = files

    def input(self) -> bytes:
        files = [file.as_dict() for file in self.replaced]
        row = {"root": str(self._history.root), "owner": os.getpid(), "merge": files}
        return json.dumps(row).encode() + b"\n"

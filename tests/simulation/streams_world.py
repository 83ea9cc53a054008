"""The scripted world of streams: a shard with a journal on a faulty medium and a history of real Parquet files.

Sealing takes time: its work is done in a thread that waits until the world lets it go on, and it can die at each of its
steps, alone or with the whole process. What is on the disk then is what the next process finds. One seed decides all.

    PYTHONPATH=src python -m tests.simulation SEED --streams
"""

from __future__ import annotations

import hashlib
import io
import queue as waiting
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from rookery import _compiled
from rookery.core import stream as core_stream
from rookery.core.shard import Shard
from rookery.core.stream import Partition, Stream
from rookery.core.topology import Tenant
from rookery.sealed import history, sealing
from rookery.sealed.history import History
from rookery.sealed.layout import TEMPORARY
from tests.contract.faulty import Disk, Fault
from tests.contract.journal_world import START_MS
from tests.contract.journal_world import World as JournalWorld
from tests.simulation.accounts import Violation
from tests.simulation.disks import Watched
from tests.simulation.streams_ledger import Ledger, values

FAULTS = (Fault.SHORT_WRITE, Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.SLOW, Fault.SLOW, Fault.SLOW)
SHOWN = 30
PATIENCE_S = 10
SHARED_MEMORY = Path("/dev/shm")
STEPS = 150

ENDS = (*["done"] * 9, "early", "temporary", "renamed")
"""How the work of sealing ends: well, or by a death at that step."""


class StreamsFailure(AssertionError):
    """A law of streams was broken."""

    def __init__(self, world: World, steps: int, law: str, what: str) -> None:
        shown = "\n".join(f"  {line}" for line in world.trace[-SHOWN:])
        again = f"PYTHONPATH=src python -m tests.simulation {world.seed} --steps {steps} --streams"
        super().__init__(f"seed {world.seed}, step {len(world.trace)}: {what}\nlast:\n{shown}\nagain: {again}")
        self.seed = world.seed
        self.at = len(world.trace)
        self.law = law
        self.trace = world.trace


class Plan:
    """What one run is about."""

    def __init__(self, rng: Random) -> None:
        self.partitions = rng.choice((1, 1, 2, 3))
        self.segment_bytes = rng.choice((1_500, 4_000, 20_000))
        self.faults = rng.random() < 0.5
        self.settings: dict[str, object] = {"partitions": self.partitions, "seal_ms": rng.choice((1_500, 1 << 40))}
        kept = rng.choice(("all", "all", "age", "bytes", "read"))
        if kept == "age":
            self.settings["max_age_ms"] = rng.choice((5_000, 3_600_000))
        elif kept == "bytes":
            self.settings["max_bytes"] = rng.choice((2_000, 40_000))
        elif kept == "read":
            self.settings["until_committed"] = True
        self.heat = {name: rng.choice((0.3, 1.0, 1.0, 3.0)) for name in ("publish", "stage", "queue", "seal", "crash")}


class Work:
    """The process that seals, as a thread that waits to be let go on."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._gate = threading.Semaphore(0)
        self._end = "stopped"

    def go_on(self, end: str) -> None:
        self._end = end
        self._gate.release()

    def __call__(self, job: history.Job) -> dict[str, Any]:
        self._gate.acquire()
        if self._end in ("stopped", "early"):
            raise OSError("died before it wrote anything")
        # the medium is in memory: its records are copied for the work
        source = io.BytesIO(job.input())
        publish = sealing.publish
        if self._end == "temporary":
            sealing.publish = _die_before_the_name
        try:
            answer = sealing.perform(source)
        finally:
            sealing.publish = publish
        if self._end == "renamed":
            raise OSError("died before it answered")
        return answer


def _die_before_the_name(temporary: Path, target: Path, owner: int) -> None:
    # what cleans up after an error does not run when a process is killed
    shutil.copy(temporary, temporary.with_name(f"{TEMPORARY}0-{target.name}"))
    raise OSError("died with a temporary file")


class Process(JournalWorld):
    """One process that owns the shard and the directory of its streams."""

    def __init__(self, disk: Disk, where: Path, wall_ms: int, segment_bytes: int) -> None:
        self.where = where
        self.root = where / "streams"
        self.watched = Watched(disk, segment_bytes=512, reserve_bytes=0)
        super().__init__(self.watched, wall_ms=wall_ms, segment_bytes=segment_bytes)
        self.calls: waiting.SimpleQueue[Callable[[], None]] = waiting.SimpleQueue()
        self.history = History(self.shard, self.journal, self.root, self.calls.put)
        self.work = Work(self)
        self.history.helper = self.work
        # the last job whose thread has ended
        self._ended: object = None
        self.history.open()

    @property
    def home(self) -> Tenant:
        return self.tenant()

    def streams(self) -> list[Stream]:
        return list(self.home.streams.values())

    def partitions(self) -> list[Partition]:
        return [partition for stream in self.streams() for partition in stream.partitions]

    def read(self, partition: Partition, start: int, stop: int) -> list[tuple[int, int, bytes]]:
        return values(self, partition, start, stop)

    def stamp_of(self, raw: bytes) -> int:
        return int.from_bytes(raw[17:25], "big")

    def files(self) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("[!_]*.parquet"))

    def synced_bytes(self) -> bytes:
        """What a loss of power could not take."""
        return b"".join(bytes(piece.data[: piece.synced]) for piece in self.watched.disk.pieces.values())

    def turn(self) -> None:
        super().turn()
        self.history.tick()

    def finish(self, end: str) -> Callable[[], None]:
        """Let the work go on to its end; what is to be done about it then."""
        self._ended = self.history._job
        self.work.go_on(end)
        return self.calls.get(timeout=PATIENCE_S)

    def settle_down(self) -> None:
        """Let everything so far be written, whatever it takes."""
        log = self.shard.log
        wanted = int(log.horizon())
        for _ in range(200):
            if log.durable >= wanted:
                return
            if self.watched.held:
                self.watched.release()
            log.urgent = True
            super().turn()
            if log.durable < wanted:
                self.wall_ms += 100
                self.mono_ms += 100
                self.shard.turn(self.wall_ms, self.mono_ms)
        raise Violation("journal", "it does not come to rest")

    def stop(self) -> None:
        """Be no more, with the thread that works for it."""
        self.history.close()
        if self.history._job not in (None, self._ended):
            self.finish("stopped")
        self.journal._closed = True
        self.journal.pager.close()


class World:
    """Processes one after the other over one disk, and the books that outlive them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.plan = Plan(self.rng)
        self.trace: list[str] = []
        self.digest = hashlib.blake2b(digest_size=16)
        memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self._directory = tempfile.TemporaryDirectory(dir=memory, prefix="rookery-streams-")
        self.where = Path(self._directory.name)
        (self.where / "streams").mkdir()
        self.ledger = Ledger()
        self.numbers = 0
        self.deaths = 0
        self.sealed = 0
        self.merged = 0
        self.days = 0
        self.process = Process(Disk(), self.where, START_MS, self.plan.segment_bytes)

    @property
    def shard(self) -> Shard:
        return self.process.shard

    def say(self, what: str) -> None:
        line = f"{len(self.trace):4} {self.process.wall_ms - START_MS:9} {what}"
        self.trace.append(line)
        self.digest.update(line.encode())

    def body(self, kind: str) -> bytes:
        """A body of its own, which no other contains."""
        self.numbers += 1
        body = f"<{kind}{self.numbers}>".encode() + b"." * self.rng.choice((0, 5, 60))
        self.ledger.origin[body] = kind
        return body

    def look(self) -> None:
        self.ledger.look(self.process)

    def die(self, power: bool) -> None:
        """The process ends, or the machine; another one takes over."""
        self.say("the power fails" if power else "the process dies")
        self.deaths += 1
        old = self.process
        old.stop()
        disk = old.watched.cut_power(self.rng) if power else old.watched.die(self.rng)
        self.process = Process(disk, self.where, old.wall_ms, self.plan.segment_bytes)
        self.ledger.restarted(self.process)
        self.look()
        self.ledger.audit(self.process)

    def run(self, steps: int) -> None:
        from tests.simulation import streams_moves

        streams_moves.furnish(self)
        moves = streams_moves.chosen(self.plan)
        weights = [weight for _, weight in moves]
        for move, _ in self.rng.choices(moves, weights, k=steps):
            if self.plan.faults and self.rng.random() < 0.15:
                self.process.watched.script(self.rng.choice(FAULTS))
            move(self)
            self.look()
        streams_moves.drain(self)

    def end(self) -> None:
        self.process.stop()
        self._directory.cleanup()


def run(seed: int, steps: int = STEPS) -> World:
    """Run one seed; raises StreamsFailure when a law is broken."""
    world = World(seed)
    try:
        world.run(steps)
    except Violation as violation:
        raise StreamsFailure(world, steps, violation.law, f"{violation.law}: {violation}") from violation
    except Exception as error:
        raise StreamsFailure(world, steps, "crash", f"crash: {type(error).__name__}: {error}") from error
    finally:
        world.end()
    return world


@contextmanager
def small() -> Iterator[None]:
    """Let small runs see what is meant for large ones: merges of few files, short blocks (uncompiled only)."""
    before = (history.MERGE_FILES, core_stream.BLOCK_RECORDS)
    history.MERGE_FILES = 2  # type: ignore[misc]
    if not _compiled.compiled:
        core_stream.BLOCK_RECORDS = 4  # type: ignore[misc]
    try:
        yield
    finally:
        history.MERGE_FILES, core_stream.BLOCK_RECORDS = before  # type: ignore[misc]

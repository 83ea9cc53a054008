"""An owner over a journal, driven by hand: a clock that tests set, crashes and restarts, and pictures to compare.

A `Site` is where a journal lives (memory or files); `World` is one process that owns it. Everything a process promises
to keep is in its `picture`, so "nothing was lost" is `picture(before) == picture(after)`.
"""

from __future__ import annotations

import queue as waiting
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rookery.core.access import Access
from rookery.core.entries import DELAYED, GONE, LEASED, Entry, Lease
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.topology import Tenant
from rookery.format import records
from rookery.format.model import PERSISTENT, Message
from rookery.format.properties import EMPTY
from rookery.store import changes
from rookery.store.file import FileMedium
from rookery.store.journal import Journal, _Retiring
from rookery.store.medium import Medium
from tests.contract.faulty import Disk, FaultyMedium
from tests.contract.media import PATIENCE_S
from tests.unit.core_world import publish_once

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class World:
    """One process: a shard, its journal over `medium`, and the owner's loop, which turns only when told to."""

    def __init__(
        self,
        medium: Medium,
        *,
        wall_ms: int = START_MS,
        page_bytes: int | None = None,
        secret: bytes = b"of this process",
        **options: Any,
    ) -> None:
        self.medium = medium
        self.wall_ms = wall_ms
        self.mono_ms = 1_000
        self.progress = 0
        self._calls: waiting.SimpleQueue[Callable[[], None]] = waiting.SimpleQueue()
        self.shard = Shard(secret, 1)
        self.shard.turn(wall_ms, self.mono_ms)
        if page_bytes is not None:
            self.shard.page_bytes = page_bytes
        options.setdefault("free_bytes_min", 0)
        self.journal = Journal(self.shard, medium, post=self._calls.put, on_progress=self._progressed, **options)
        try:
            self.recovery = self.journal.open()
        except BaseException:
            self.journal.close()
            raise

    def _progressed(self) -> None:
        self.progress += 1

    # Time and turns

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and do what becomes due by it."""
        self.wall_ms += ms
        self.mono_ms += ms
        self.shard.turn(self.wall_ms, self.mono_ms)
        self.turn()

    def turn(self) -> None:
        """End a turn as an owner does, and take the answers that are there."""
        self.shard.flush()
        self.journal.retry()
        self.journal.pump()
        while not self._calls.empty():
            self._calls.get()()

    def write(self) -> None:
        """Let everything so far be written, and answered."""
        log = self.shard.log
        wanted = log.horizon()
        while log.durable < wanted and log.failure is None:
            log.urgent = True
            self.turn()
            if self.busy and log.durable < wanted and log.failure is None:
                self._answer()

    def settle(self) -> None:
        """Let the journal finish: everything is written, and nothing is left to retire."""
        turns = 0
        while self.unfinished():
            self.shard.log.urgent = True
            self.turn()
            if self.busy and self.shard.log.failure is None:
                self._answer()
            turns += 1
            assert turns < 20_000, "the journal does not come to rest"

    def unfinished(self) -> bool:
        if self.shard.log.failure is not None:
            return False
        if self.busy or self.shard.log.pending() or self.journal._retiring is not None:
            return True
        self.journal._tidy_soon = True
        self.journal.pump()
        return any((self.busy, self.shard.log.pending(), self.journal._retiring is not None))

    @property
    def busy(self) -> bool:
        """Whether an answer of the medium is outstanding."""
        return self.journal._in_flight is not None or self.journal._syncing

    def _answer(self) -> None:
        self._calls.get(timeout=PATIENCE_S)()

    # Shorthands

    def tenant(self, name: str = "default") -> Tenant:
        found = self.shard.tenants.get(name)
        return self.shard.create_tenant(name) if found is None else found

    def queue(self, name: str = "q", settings: dict[str, object] | None = None, tenant: str = "default") -> Queue:
        """The queue of that name, made if it is not there."""
        home = self.tenant(tenant)
        found = home.queues.get(name)
        if found is not None:
            return found
        return home.declare_queue(name, {"max_attempts": 0} if settings is None else settings, "embedded")[0]

    def publish(self, body: bytes, key: str = "q", exchange: str = "", **options: Any) -> Message:
        message, _ = self.shard.publish(self.tenant(), exchange, key, EMPTY, body, **options)
        return message

    def claim(self, count: int = 1, queue: str = "q", lease_ms: int = HOUR_MS) -> list[Lease]:
        return self.shard.claim(self.queue(queue), count, lease_ms)

    def ack(self, count: int = 1, queue: str = "q") -> list[bytes]:
        """Take and acknowledge the next messages; their bodies."""
        bodies = []
        for lease in self.claim(count, queue):
            bodies.append(lease.entry.message.body)
            assert lease.queue.ack(lease)
        return bodies

    def bodies(self, queue: str = "q") -> list[bytes]:
        return [entry.message.body for entry in self.queue(queue).ready_entries()]

    def publish_once(self, dedup_key: str, body: bytes, queue: str = "q") -> bool:
        """Whether the key was new."""
        return not publish_once(self.shard, self.tenant(), "", queue, dedup_key, EMPTY, body)[1]

    def roll(self) -> None:
        """Write what there is, then begin a new segment."""
        self.write()
        while self.busy:
            self._answer()
        self.roll_now()

    def roll_now(self) -> None:
        """Begin a new segment with what there is to write."""
        assert not self.busy
        size = self.journal.segment_bytes
        self.journal.segment_bytes = 0
        self.tenant().set_limits({})
        self.journal.pump()
        self.journal.segment_bytes = size
        self.write()

    def retire_all(self) -> None:
        """Have every segment retired, whatever it is worth: all that lives is written again."""
        self.roll()
        self.settle()
        for segment in self.journal.segments[:-1]:
            self.retire(segment.number)

    def retire(self, number: int) -> None:
        """Have one segment retired, whatever it is worth."""
        (segment,) = (segment for segment in self.journal.segments if segment.number == number)
        self.journal._retiring = retiring = _Retiring(self.journal, segment, scan=True)
        retiring._counting = False
        self.settle()
        assert segment not in self.journal.segments

    def close(self) -> None:
        self.settle()
        self.journal.close()


class Site(ABC):
    """Where a journal is kept between processes."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._last: World | None = None

    @abstractmethod
    def medium(self, segment_bytes: int) -> Medium: ...

    @abstractmethod
    def kill(self, world: World) -> None:
        """End a process; the machine lives on."""

    @abstractmethod
    def segment(self, number: int) -> bytes:
        """The bytes of a segment as the next process would find them."""

    @abstractmethod
    def numbers(self) -> list[int]: ...

    def start(self, *, laid_out: int = 4096, **options: Any) -> World:
        """A process that owns what is here, at the time the last one knew."""
        if self._last is not None:
            options.setdefault("wall_ms", self._last.wall_ms)
        world = World(self.medium(laid_out), spill_directory=self.spills(), **options)
        self._last = world
        return world

    def restart(self, world: World, **options: Any) -> World:
        """Kill the process, as it is, and start another one."""
        self.kill(world)
        return self.start(**options)

    def reopen(self, world: World, **options: Any) -> World:
        """End the process in order, and start another one."""
        world.close()
        return self.start(**options)

    def spills(self) -> Path:
        path = self.where / "spills"
        path.mkdir(exist_ok=True)
        return path

    def stop(self) -> None:
        if self._last is not None:
            self._last.journal.close()


class MemorySite(Site):
    def __init__(self, where: Path) -> None:
        super().__init__(where)
        self.disk = Disk()

    def medium(self, segment_bytes: int) -> FaultyMedium:
        return FaultyMedium(self.disk, segment_bytes=segment_bytes)

    def kill(self, world: World) -> None:
        assert isinstance(world.medium, FaultyMedium)
        self.disk = world.medium.crash(tail=lambda unsynced: unsynced).disk

    def cut_power(self, world: World, **outcome: Any) -> None:
        """The machine dies: what was not synced is gone, or what `outcome` says."""
        assert isinstance(world.medium, FaultyMedium)
        self.disk = world.medium.crash(**outcome).disk

    def segment(self, number: int) -> bytes:
        return bytes(self.disk.pieces[number].data)

    def numbers(self) -> list[int]:
        return sorted(self.disk.pieces)


class FileSite(Site):
    def __init__(self, where: Path) -> None:
        super().__init__(where)
        self.directory = where / "shard"

    def medium(self, segment_bytes: int) -> FileMedium:
        return FileMedium(self.directory, segment_bytes=segment_bytes, reserve_bytes=0)

    def kill(self, world: World) -> None:
        assert isinstance(world.medium, FileMedium)
        while world.busy and world.shard.log.failure is None:
            world._answer()
        # a thread does not outlive its process
        if world.medium._thread is not None:
            world.medium._jobs.put(None)
            world.medium._thread.join()
        world.medium._abandon()

    def segment(self, number: int) -> bytes:
        return (self.directory / f"{number:08d}.log").read_bytes()

    def numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))


SITES: dict[str, Callable[[Path], Site]] = {"memory": MemorySite, "file": FileSite}


# What must outlive a process


class Either(int):
    """The attempts of a leased message: the one in flight may be forgotten by a crash, or not."""

    def __eq__(self, other: object) -> bool:
        return other in (int(self), int(self) - 1)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def picture(world: World) -> dict[str, Any]:
    """All that the journal promises: definitions, dedup keys, and every persistent message of every durable queue.

    What is leased is pictured as the next process will have it: ready, at its place. Compare as `before == after`.
    """
    shard = world.shard
    state = changes.state(shard, world.journal.access)
    now = int(shard.wall_ms)
    return {
        "definitions": state["definitions"],
        "numbers": sorted((tenant, queue, number) for tenant, queue, number, _ in state["numbers"]),
        "secret": state["secret"],
        "dedup": {
            name: sorted(mark for mark in tenant.dedup.marks() if mark[3] > now)
            for name, tenant in shard.tenants.items()
        },
        "messages": {
            (tenant.name, queue.name): queue_picture(queue)
            for tenant in shard.tenants.values()
            for queue in tenant.queues.values()
            if queue.number
        },
    }


def queue_picture(queue: Queue) -> list[tuple[Any, ...]]:
    """The persistent messages of a queue, those that wait in order of delivery, then the delayed ones."""
    ready = queue.ready_entries()
    assert ready == sorted(ready, key=lambda e: (rank(queue, e), e.seq))
    entries = [*ready, *(lease.entry for lease in queue.leases()), *queue.delayed_entries()]
    rows = [entry_picture(queue, entry) for entry in entries if entry.message.flags & PERSISTENT]
    return sorted(rows, key=_order)


def rank(queue: Queue, entry: Entry) -> int:
    return -min(int(entry.message.priority), int(queue.priority_max)) if queue.ordered else 0


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    due_ms, rank, seq = row[:3]
    return (due_ms, rank if not due_ms else 0, seq)


def as_of(before: dict[str, Any], now: int) -> dict[str, Any]:
    """The picture as it would be if only time had passed since: delays that are over have ended."""
    messages = {}
    for name, rows in before["messages"].items():
        ended = [(0, *row[1:]) if row[0] <= now else row for row in rows]
        messages[name] = sorted(ended, key=_order)
    return {**before, "messages": messages}


def entry_picture(queue: Queue, entry: Entry) -> tuple[Any, ...]:
    assert entry.state != GONE
    message = entry.message
    attempts = int(entry.attempts)
    return (
        int(entry.due_ms) if entry.state == DELAYED else 0,
        rank(queue, entry),
        int(entry.seq),
        message.body,
        message.props,
        (message.route.exchange, message.route.key, int(message.route.origin_id)),
        [death.as_dict() for death in message.route.deaths],
        queue.shard.ids.uuid(int(message.public_id)),
        int(message.id),
        int(message.priority),
        int(message.expires_ms),
        int(message.flags) & 255,
        int(entry.enqueued_ms),
        Either(attempts) if entry.state == LEASED else attempts,
        entry.redelivered,
    )


# What is written


def batches(data: bytes) -> Iterator[tuple[int, records.BatchHeader]]:
    """(offset, header) of every sound batch of a segment, from its beginning."""
    at = 0
    while (header := records.BatchHeader(data, at)).sound:
        yield at, header
        at += int(header.size)


def written_records(data: bytes) -> Iterator[records.Reader]:
    """Every record of a segment; the reader is the same object, one step on."""
    for at, header in batches(data):
        reader = records.Reader(data, at + records.BATCH_HEADER_BYTES, at + header.size)
        while reader.next():
            yield reader


def count_records(data: bytes, kind: int) -> int:
    return sum(1 for reader in written_records(data) if reader.kind == kind)


def new_access() -> Access:
    """Keys and users whose random bytes are the same in every run."""
    drawn = iter(range(1, 1 << 20))
    return Access(lambda count: b"".join(next(drawn).to_bytes(2, "big") for _ in range(count))[:count])

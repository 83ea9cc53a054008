"""The ledger's books: every copy of a message, its stay in each queue, and everyone who takes from a queue.

Plain data and naive questions. What an operation does to the books is in `ledger`; what must agree with the core at the
end of a step is in `audit`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mypy_extensions import i32

from rookery.core.entries import Entry
from rookery.format.records import read_message
from tests.simulation.naive import Dying, Terms

if TYPE_CHECKING:
    from rookery.core.consumers import Credit, Subscription
    from rookery.core.entries import Lease
    from rookery.core.queue import Queue
    from rookery.format.model import Message

READY = "ready"
DELAYED = "delayed"
LEASED = "leased"

OVERHEAD_BYTES = 200
"""What a message costs beyond its body and properties."""

ENTRIES = ("published", "dead_lettered_in", "moved_in", "restored")
EXITS = ("acked", "expired", "dead_lettered", "dropped", "purged", "moved_out")
METERS = (*ENTRIES, *EXITS, "delivered", "redelivered", "retried", "released", "rejected", "lapsed", "refused")

Facts = tuple[bytes, bool, tuple[tuple[object, ...], ...]]
"""What tells two copies apart: body, whether it is dead, and the lines of its history."""


class Violation(AssertionError):
    """A law was broken."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


@dataclass(slots=True, eq=False)
class Copy:
    """A message as one publish, burial or redrive made it; several queues may hold it. `bare` is without expiration.

    Where there is a journal, only what is `persistent` outlives the process.
    """

    body: bytes
    public_id: int
    exchange: str
    key: str
    props: bytes
    bare: bytes
    headers: dict[str, object]
    priority: int = 0
    expires_ms: int = 0
    dead: bool = False
    history: list[Dying] = field(default_factory=list)
    holders: int = 0
    persistent: bool = True

    @property
    def group(self) -> str:
        return str(self.headers.get("x-group-id", ""))

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.props) + OVERHEAD_BYTES

    def facts(self) -> Facts:
        return (
            self.body,
            self.dead,
            tuple((d.queue, d.reason, d.count, d.attempts, d.first_ms, d.exchange, d.key) for d in self.history),
        )

    def __repr__(self) -> str:
        name = self.body.rstrip(b".").decode()
        return name + "".join(f"+{line.reason}@{line.queue}" for line in self.history[:1])


def facts_of(message: Message) -> Facts:
    """The same facts, read off the core's message."""
    lines = tuple((d.queue, d.reason, d.count, d.attempts, d.first_ms, d.exchange, d.key) for d in message.route.deaths)
    return message.body, bool(message.flags & 2), lines


@dataclass(slots=True, eq=False)
class Record:
    """A copy's stay in one queue. `held` says that it was delivered in this stay."""

    account: Account
    seq: int
    copy: Copy
    since_ms: int
    state: str = READY
    due_ms: int = 0
    attempts: int = 0
    redelivered: bool = False
    held: bool = False
    lease: Lease | None = None
    lapses_ms: int | None = None
    holder: Consumer | None = None
    loose: bool = False

    @property
    def expires_ms(self) -> int | None:
        """When its time is up, None for never."""
        ends = [self.copy.expires_ms] if self.copy.expires_ms else []
        if self.account.terms.ttl_ms >= 0:
            ends.append(self.since_ms + self.account.terms.ttl_ms)
        return min(ends) if ends else None

    @property
    def over(self) -> bool:
        """Whether its time was up before this moment: it is not handed out any more."""
        return self.expires_ms is not None and self.expires_ms < self.account.core.shard.wall_ms

    @property
    def place(self) -> tuple[int, int]:
        return self.account.place_of(self.copy.priority, self.seq)

    def __repr__(self) -> str:
        return f"{self.copy!r} in {self.account.name}#{self.seq}"


@dataclass(slots=True, eq=False)
class Pool:
    """Credit shared by several consumers."""

    limit: int
    shared: Credit
    inflight: int = 0
    at_start: int = 0
    taken: int = 0


@dataclass(slots=True, eq=False)
class Consumer:
    """Somebody subscribed. `at_start` and `taken` are its deliveries when the step began, and those it got since."""

    account: Account
    subscription: Subscription
    name: str
    limit: int | None
    priority: int
    born: int
    once: bool = False
    no_ack: bool = False
    lease_ms: int = 0
    pool: Pool | None = None
    paused: bool = False
    inflight: int = 0
    at_start: int = 0
    taken: int = 0
    ended: bool = False

    def has_credit(self) -> bool:
        """Whether it may take one more now."""
        if self.paused or (self.limit is not None and self.inflight >= self.limit):
            return False
        return self.pool is None or self.pool.inflight < self.pool.limit

    def had_credit(self) -> bool:
        """Whether it could have taken one more at any moment of the step so far, whatever was settled meanwhile."""
        if self.paused or (self.limit is not None and self.at_start + self.taken >= self.limit):
            return False
        return self.pool is None or self.pool.at_start + self.pool.taken < self.pool.limit

    def __repr__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Handed:
    """A delivery that a peer saw: which one of its queue's deliveries it was, and the lease (None without ack)."""

    ordinal: int
    entry: Entry
    lease: Lease | None
    subscription: Subscription


class Sight:
    """What the core shows of a queue at the end of a step."""

    def __init__(self, account: Account, handed: list[Handed]) -> None:
        core = account.core
        self.ready = ready_now(account)
        self.delayed = core.delayed_entries()
        self.leases = core.leases()
        self.handed = [h for h in handed if h.entry.seq <= core.seq]
        self.seqs = {entry.seq for entry in self.ready}
        self.seqs.update(entry.seq for entry in self.delayed)
        self.seqs.update(lease.entry.seq for lease in self.leases)
        self.seqs.update(h.entry.seq for h in handed)
        shown = [*self.ready, *self.delayed, *(lease.entry for lease in self.leases), *(h.entry for h in handed)]
        fresh = {entry.seq: entry for entry in shown if entry.seq > account.last_seq}
        self.newcomers: dict[Facts, list[Entry]] = {}
        for _, entry in sorted(fresh.items()):
            self.newcomers.setdefault(facts_of(entry.message), []).append(entry)


def ready_now(account: Account) -> list[Entry]:
    """What is ready, in order; what is paged out is looked at where it stands, so that it stays there."""
    core = account.core
    if core.lines.plain.paged is None:
        return core.ready_entries()
    found = core.ready_in_memory()
    seen = {entry.seq for entry in found}
    fresh = range(account.last_seq + 1, core.seq + 1)
    for seq in sorted({*account.records, *fresh} - seen):
        place = core.lines.place_of(seq)
        if not place:
            continue
        pager = core.shard.pager
        assert pager is not None
        entry = Entry(read_message(pager.read(place), {}), seq, 0)
        meta = core.lines.meta_of(seq)
        entry.attempts = i32((meta & 0xFFFFFFFF) >> 1)
        entry.redelivered = bool(meta & 1)
        rank = account.place_of(entry.message.priority, seq)
        behind = (i for i, e in enumerate(found) if account.place_of(e.message.priority, e.seq) > rank)
        found.insert(next(behind, len(found)), entry)
    return found


class Account:
    """The books of one queue."""

    def __init__(self, name: str, core: Queue, terms: Terms, face: str, said: dict[str, object], mono_ms: int) -> None:
        self.name = name
        self.core = core
        self.terms = terms
        self.face = face
        self.said = said
        self.used_ms = mono_ms
        self.records: dict[int, Record] = {}
        self.last_seq = 0
        self.tally = dict.fromkeys(METERS, 0)
        self.consumers: list[Consumer] = []
        self.had_consumer = False
        self.active: Consumer | None = None
        self.owners: dict[str, Consumer] = {}
        # as the last step left it
        self.print: tuple[int, ...] = ()
        self.ready_since: list[Record] = []
        self.free_since: set[int] = set()
        self.delayed_since: set[int] = set()
        self.waiting_since = 0
        self.bytes_since = 0
        self.open_step()

    def open_step(self) -> None:
        """Forget what belonged to the last step."""
        self.touched = False
        self.newborn = False
        self.configured = False
        self.admitted = False
        self.closing = False
        self.sight: Sight | None = None
        self.entered = 0
        self.entered_seq = 0
        self.phantoms: list[Copy] = []
        self.victims: list[Record] = []
        self.refusals: list[tuple[Copy, str]] = []
        self.unsure = 0
        self.either = 0
        self.returned = 0
        self.other_moves = 0

    @property
    def durable(self) -> bool:
        return bool(self.said.get("durable", True))

    def keeps(self, copy: Copy) -> bool:
        """Whether a journal has to know of that copy's stay here."""
        return self.durable and copy.persistent

    def place_of(self, priority: int, seq: int) -> tuple[int, int]:
        """Where in the ready order something of that priority and sequence stands."""
        if not self.terms.ordered:
            return 0, seq
        if self.terms.priority_max:
            priority = min(priority, self.terms.priority_max)
        return -priority, seq

    def waiting(self) -> list[Record]:
        return [record for record in self.records.values() if record.state != LEASED]

    def ready(self) -> list[Record]:
        """What is ready, in the order in which it must go."""
        return sorted((r for r in self.records.values() if r.state == READY), key=lambda record: record.place)

    def holds_group(self, group: str, but: Record) -> bool:
        """Whether another message of the group is under way: delivered and not settled for good."""
        return any(r.held and r.copy.group == group and r is not but for r in self.records.values())

    def deliverable(self, record: Record) -> bool:
        group = record.copy.group
        return not (self.terms.grouped and group and self.holds_group(group, record))

    def takers(self) -> list[Consumer]:
        """Who may be given a message now."""
        if self.terms.single_active:
            return [self.active] if self.active is not None and self.active.has_credit() else []
        return [consumer for consumer in self.consumers if consumer.has_credit()]

    def fits(self, waiting: int, waiting_bytes: int) -> bool:
        terms = self.terms
        if terms.length_max is not None and waiting > terms.length_max:
            return False
        return terms.bytes_max is None or waiting_bytes <= terms.bytes_max

    def rejects(self, sizes: list[int]) -> bool:
        """Whether publishes of these sizes, all together, must be rejected now."""
        waiting = self.waiting()
        if not self.terms.overflow.startswith("reject") or (len(sizes) == 1 and not waiting and self.takers()):
            return False
        return not self.fits(len(waiting) + len(sizes), sum(len(r.copy.body) for r in waiting) + sum(sizes))

    def next_active(self) -> Consumer | None:
        """Who follows the active consumer: the highest priority, then the one that waited longest."""
        return min(self.consumers, key=lambda c: (-c.priority, c.born), default=None)

    def fingerprint(self) -> tuple[int, ...]:
        """Numbers of the core's queue that change whenever something happened in it."""
        q = self.core
        return (
            q.seq,
            q.ready,
            q.delayed,
            q.leased,
            q.delivered,
            q.acked,
            q.retried,
            q.released,
            q.lapsed,
            q.expired,
            q.dead_lettered,
            q.dropped,
            q.purged,
            q.moved_out,
            q.refused,
            q.bytes,
            q.leased_bytes,
        )

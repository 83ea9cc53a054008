"""The scripted world: one shard under a manual clock, and random operations on it that one integer seed decides.

Every run draws a plan first: which features it uses and how often each operation comes, so that runs differ in kind and
not only in order. After every call to the core the ledger checks the laws. A run that fails says which law was broken,
shows its last operations, and how to run it again:

    PYTHONPATH=src python -m tests.simulation SEED
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from rookery import _compiled, errors
from rookery.clock import ManualClock
from rookery.core import entries, index, lines, paging
from rookery.core.consumers import Mailbox, Subscription
from rookery.core.entries import Entry, Lease
from rookery.core.shard import Shard
from rookery.core.topology import Tenant
from rookery.store import journal, recovery
from tests.simulation import known
from tests.simulation.accounts import Account, Consumer, Handed, Record, Violation
from tests.simulation.ledger import Ledger

if TYPE_CHECKING:
    from tests.simulation.transacting import Operation

STEPS = 300
SHOWN = 25
"""How many of the last operations a failing run shows."""

TIGHT: tuple[tuple[ModuleType, str, int], ...] = (
    (index, "SLACK", 8),
    (entries, "PACK_ENTRIES", 4),
    (paging, "PAGE_ENTRIES", 4),
    (lines, "LOAD_ENTRIES", 3),
    (recovery, "CHUNK", 8),
    (recovery, "READ_BYTES", 200),
    (journal, "SLICE_BYTES", 300),
)

T = TypeVar("T")


class SimulationFailure(AssertionError):
    """A law was broken, or the core raised what it must not raise."""

    def __init__(self, world: World, steps: int, law: str, what: str) -> None:
        seed, at, trace = world.seed, len(world.trace), world.trace
        shown = "\n".join(f"  {line}" for line in trace[-SHOWN:])
        again = f"PYTHONPATH=src python -m tests.simulation {seed} --steps {steps}{world.flags}"
        super().__init__(f"seed {seed}, operation {at}: {what}\nlast operations:\n{shown}\nagain: {again}")
        self.seed = seed
        self.at = at
        self.law = law
        self.trace = trace


class Plan:
    """What one run is about."""

    def __init__(self, rng: Random) -> None:
        def often(share: float) -> bool:
            return rng.random() < share

        self.delays = often(0.6)
        self.ttl = often(0.6)
        self.priorities = often(0.6)
        self.groups = often(0.35)
        self.bounded = often(0.5)
        self.dead_letters = often(0.75)
        self.attempts = often(0.7)
        self.single_active = often(0.2)
        self.key_hash = often(0.2)
        self.consumers = often(0.75)
        self.claims = often(0.7)
        self.peers = often(0.5)
        self.pools = often(0.25)
        self.exchanges = often(0.6)
        self.policies = often(0.4)
        self.dedup = often(0.4)
        self.transactions = often(0.45)
        self.brief = often(0.4)
        self.jumps = often(0.5)
        self.fine_time = often(0.5)
        self.operator = often(0.7)
        self.wide = often(0.15)
        self.crowd = often(0.04)
        self.faults = often(0.2)
        self.limits: dict[str, object] = {}
        if often(0.2):
            self.limits["message_bytes_max"] = rng.randint(60, 120)
        if often(0.2):
            self.limits["memory_bytes_max"] = rng.randint(1_000, 6_000)
        if often(0.3):
            self.limits["waiting_claims_max"] = rng.randint(1, 3)
        if often(0.3):
            self.limits["dedup_keys_max"] = rng.randint(1, 4)
        if often(0.3):
            self.limits["transaction_operations_max"] = rng.randint(1, 4)
            self.limits["transactions_max"] = rng.randint(1, 3)
        self.queues_max = rng.randint(5, 8) if often(0.15) else 0
        self.passing = False
        if known.KNOWN_PARKED_GROUPS and self.groups:
            self.priorities = self.ttl = self.bounded = self.policies = self.operator = False
        self.heat = {name: rng.choice((0.3, 1.0, 1.0, 2.0)) for name in ("publish", "settle", "take", "time", "shape")}
        if self.crowd:
            self.heat |= {"publish": 8.0, "settle": 0.5, "time": 0.3}


class Peer(Subscription):
    """A consumer that is told of each delivery at once, as a protocol is; it notes them for the ledger."""

    def watch(self, seen: list[Handed]) -> None:
        self.seen = seen
        self.ended = ""

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        self.seen.append(Handed(self.queue.delivered, entry, lease, self))

    def lapsed(self, lease: Lease) -> None:
        if lease.live:
            raise Violation("2 leases", f"{self.name} was told of a lapse of a lease that lives")

    def cancelled(self, reason: str) -> None:
        self.ended = reason


class Hand:
    """A lease in somebody's hand; it lives as long as the ledger says so."""

    def __init__(self, record: Record, lease: Lease) -> None:
        self.record = record
        self.lease = lease
        self.token = lease.token()

    @property
    def live(self) -> bool:
        return self.record.lease is self.lease


class World:
    """A shard, its clock, its ledger, and the hands that hold its leases."""

    flags = ""
    """How to say on the command line that a run is in this kind of world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.plan = Plan(self.rng)
        self.clock = ManualClock()
        self.shard = self.begin()
        self.tenant = self.make_tenant()
        self.ledger = Ledger(self.shard, self.tenant, self.tenant.limits.dedup_keys_max)
        self.trace: list[str] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.numbers = 0
        self.refusing = False
        self.mail: dict[int, list[Hand]] = {}
        self.mailboxes: dict[int, Consumer] = {}
        self.hands: list[Hand] = []
        self.past: list[Hand] = []
        self.open_transactions: dict[str, tuple[list[Operation], int]] = {}
        # ended early, because too many queues dropped their heads at once
        self.beyond = False
        self.past_transactions: dict[str, type[errors.RookeryError]] = {}

    def begin(self) -> Shard:
        """The shard that the run begins with."""
        shard = Shard(b"simulation", 7)
        shard.turn(self.clock.wall_ms(), self.clock.mono_ms())
        return shard

    def make_tenant(self) -> Tenant:
        limits = dict(self.plan.limits)
        if self.plan.queues_max:
            limits["queues_max"] = self.plan.queues_max
        return self.shard.create_tenant("acme", limits)

    # One operation

    def say(self, what: str) -> None:
        at = f"{self.clock.wall_ms() % 100_000_000}/{self.clock.mono_ms()}"
        self.trace.append(f"{len(self.trace):4} {at} {what}")

    def call(self, operation: Callable[[], T], wrong: tuple[type[errors.RookeryError], ...] = ()) -> T | None:
        """Begin a step with a call to the core. When errors are expected one of them must come, otherwise none."""
        self.ledger.open()
        try:
            result = operation()
        except errors.RookeryError as error:
            if type(error) not in wrong:
                raise Violation("errors", f"{type(error).__name__}: {error}; expected {wrong or 'none'}") from error
            return None
        if wrong:
            raise Violation("errors", f"no error, expected {' or '.join(e.__name__ for e in wrong)}")
        return result

    def done(self) -> None:
        """End the step, and let those who were given something know."""
        self.ledger.close()
        for record in self.ledger.delivered:
            if record.lease is None:
                continue
            hand = Hand(record, record.lease)
            self.digest.update(f"{self.ledger.steps} {hand.token} {record.holder}".encode())
            holder = record.holder
            if holder is not None and isinstance(holder.subscription, Mailbox):
                self.mail.setdefault(id(holder.subscription), []).append(hand)
            else:
                self.hands.append(hand)

    @property
    def refusal(self) -> type[errors.RookeryError] | None:
        """Why persistent messages are refused now."""
        return errors.StoreFull if self.refusing else None

    # What is there

    def accounts(self) -> list[Account]:
        return list(self.ledger.accounts.values())

    def some_account(self) -> Account | None:
        accounts = self.accounts()
        return self.rng.choice(accounts) if accounts else None

    def some_consumer(self) -> Consumer | None:
        consumers = [c for account in self.accounts() for c in account.consumers]
        return self.rng.choice(consumers) if consumers else None

    def some_hand(self) -> Hand | None:
        """A lease that is live and in somebody's hand."""
        self.sort_hands()
        return self.rng.choice(self.hands) if self.hands else None

    def sort_hands(self) -> None:
        for hand in self.hands:
            if not hand.live:
                self.past.append(hand)
        self.hands = [hand for hand in self.hands if hand.live]
        del self.past[:-60]

    # Turns

    def flush(self) -> None:
        """End a turn: deliver what became deliverable, empty the mailboxes."""
        self.say("flush")
        self.call(self.shard.flush)
        self.ledger.flushed = True
        self.done()
        touched = {id(mailbox) for mailbox in self.shard.touched}
        self.shard.touched.clear()
        served = []
        for number, consumer in list(self.mailboxes.items()):
            expected = [hand for hand in self.mail.pop(number, []) if hand.live]
            if expected and number not in touched:
                raise Violation("mailbox", f"{consumer} has {len(expected)} deliveries and was not touched")
            if number in touched:
                self._take(consumer, expected)
            if consumer.ended:
                del self.mailboxes[number]
            elif consumer.once and expected:
                served.append(consumer)
        self._check_next_due()
        for consumer in served:
            if not consumer.ended:
                self.leave(consumer, "has what it waited for")
        if served:
            # no turn ends before those behind them had theirs
            self.flush()
        self.turned()

    def turned(self) -> None:
        """A turn ended; there is a journal to write in some worlds."""

    def _take(self, consumer: Consumer, expected: list[Hand]) -> None:
        mailbox = consumer.subscription
        assert isinstance(mailbox, Mailbox)
        taken = mailbox.take()
        if [id(lease) for lease in taken] != [id(hand.lease) for hand in expected]:
            raise Violation("mailbox", f"{consumer} took {len(taken)} leases, {len(expected)} were delivered")
        self.hands.extend(expected)

    def leave(self, consumer: Consumer, why: str) -> None:
        self.say(f"unsubscribe {consumer} of {consumer.account.name}: {why}")
        queue = consumer.account.core
        self.call(lambda: queue.unsubscribe(consumer.subscription))
        self.ledger.left(consumer)
        self.done()

    def _check_next_due(self) -> None:
        """Who sleeps as long as the shard allows misses nothing."""
        waits = [due - self.shard.mono_ms for _, due in self.open_transactions.values()]
        earliest = self.ledger.earliest_ms()
        if earliest is not None:
            waits.append(earliest)
        if waits and self.shard.next_due_ms() > max(0, min(waits)):
            raise Violation("4 exact times", f"something is due in {min(waits)} ms, not {self.shard.next_due_ms()}")

    def pass_time(self, ms: int, jump_ms: int = 0) -> None:
        """End the turn and begin the next one `ms` later; the wall clock may jump besides."""
        self.flush()
        self.clock.advance(ms)
        self.clock.jump_wall(jump_ms)
        self.say(f"turn after {ms} ms" + (f", wall clock jumped {jump_ms} ms" if jump_ms else ""))
        self.call(lambda: self.shard.turn(self.clock.wall_ms(), self.clock.mono_ms()))
        self.ledger.passed()
        for name, (_, due_ms) in list(self.open_transactions.items()):
            if due_ms <= self.shard.mono_ms:
                del self.open_transactions[name]
                self.past_transactions[name] = errors.TransactionTimeout
        self.done()
        if self.shard.next_due_ms() == 0:
            raise Violation("4 exact times", "a turn left something undone that is due")

    # A run

    def run(self, steps: int) -> None:
        from tests.simulation import moves

        operations = self.operations()
        weights = [weight for _, weight in operations]
        moves.furnish(self)
        for move, _ in self.rng.choices(operations, weights, k=steps):
            move(self)
        moves.drain(self)

    def operations(self) -> list[tuple[Callable[[World], None], float]]:
        """What may happen, and how often."""
        from tests.simulation import moves

        return [(moves.MOVES[name], weight) for name, weight in moves.chosen(self.plan)]

    def calm(self) -> None:
        """The run ends: no more trouble."""
        from tests.simulation import traffic

        if self.refusing:
            traffic.fault(self)

    def end(self) -> None:
        """Give back what the world has of the system."""
        self.shard.let_go()


def run(seed: int, steps: int = STEPS, make: Callable[[int], World] = World) -> World:
    """Run one seed; raises SimulationFailure when a law is broken."""
    world = make(seed)
    try:
        world.run(steps)
    except Violation as violation:
        if violation.law in ("8 limits", "9 conservation") and world.ledger.cascades():
            world.say(f"the rest is beyond the ledger: {violation}")
            world.beyond = True
            return world
        what = str(violation)
        raise SimulationFailure(world, steps, violation.law, what) from violation
    except Exception as error:
        what = f"crash: {type(error).__name__}: {error}"
        raise SimulationFailure(world, steps, "crash", what) from error
    finally:
        world.end()
    return world


@contextmanager
def tightened() -> Iterator[None]:
    """Let small runs see what is meant for large ones: how much is kept, read or worked through at once.

    Of the hot modules only when they are not compiled.
    """
    before = [(module, name, getattr(module, name)) for module, name, _ in TIGHT]
    for module, name, value in TIGHT:
        if not _compiled.compiled or module is journal:
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            if not _compiled.compiled or module is journal:
                setattr(module, name, value)

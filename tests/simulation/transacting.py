"""Transactions: some publishes and settles that must happen wholly or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rookery import errors
from rookery.core.publishing import Publish
from rookery.core.transactions import Settle, apply
from tests.simulation import known
from tests.simulation.accounts import Violation
from tests.simulation.traffic import OUTCOMES, Draft, remember

if TYPE_CHECKING:
    from tests.simulation.world import Hand, World

Wrong = tuple[type[errors.RookeryError], ...]


class Sending:
    """A publish that a transaction is to make."""

    def __init__(self, world: World) -> None:
        self.draft = draft = Draft(world)
        self.dedup_key = world.rng.choice("klmno") if world.plan.dedup and world.rng.random() < 0.5 else ""
        self.mandatory = world.rng.random() < 0.2
        self.operation = Publish(
            draft.exchange,
            draft.key,
            draft.props,
            draft.body,
            draft.priority,
            draft.expires_ms,
            draft.due_ms,
            draft.persistent,
            dedup_key=self.dedup_key,
            mandatory=self.mandatory,
        )

    def __str__(self) -> str:
        return f"publish {self.draft}{' once ' + self.dedup_key if self.dedup_key else ''}"


class Settling:
    """A settle that a transaction is to make."""

    def __init__(self, world: World, hand: Hand) -> None:
        self.hand = hand
        self.outcome = world.rng.choice(OUTCOMES)
        self.delay_ms = world.rng.choice((-1, 0, 40)) if self.outcome == "retry" else -1
        self.operation = Settle(hand.lease, self.outcome, self.delay_ms)

    def __str__(self) -> str:
        return f"{self.outcome} {self.hand.record!r}"


Operation = Sending | Settling


def _some_operation(world: World) -> Operation | None:
    if world.rng.random() < 0.5:
        hand = world.some_hand()
        if hand is not None and world.past and world.rng.random() < 0.08:
            hand = world.rng.choice(world.past)
        return None if hand is None else Settling(world, hand)
    sending = Sending(world)
    # A queue that closes when full would take what else the transaction does to it with it.
    names = world.ledger.reach(sending.draft.exchange, sending.draft.key, sending.draft.headers)
    closes = any(world.ledger.accounts[name].terms.overflow == "close" for name in names)
    return None if closes else sending


def _fresh(world: World, operations: list[Operation]) -> list[Sending]:
    """The publishes that are no repeats, neither of a key that is known nor of one in the same transaction."""
    places: list[tuple[str, str]] = []
    fresh = []
    for operation in operations:
        if isinstance(operation, Settling):
            continue
        draft = operation.draft
        if operation.dedup_key:
            place = draft.place(operation.dedup_key)
            if place in places or world.ledger.marks.find(place, world.shard.wall_ms)[0]:
                continue
            if world.ledger.reach(draft.exchange, draft.key, draft.headers):
                places.append(place)
        fresh.append(operation)
    return fresh


def _error(world: World, operations: list[Operation]) -> Wrong:
    """The first error that these operations must meet."""
    fresh = _fresh(world, operations)
    settled: list[Hand] = []
    for operation in operations:
        if isinstance(operation, Settling):
            hand = operation.hand
            if not hand.live or id(hand.lease) in world.ledger.orphans or any(h.lease is hand.lease for h in settled):
                return (errors.LeaseLost,)
            settled.append(hand)
    for operation in fresh:
        draft = operation.draft
        if draft.exchange and draft.exchange not in world.ledger.topology.hubs:
            return (errors.ExchangeNotFound,)
        if operation.mandatory and not world.ledger.reach(draft.exchange, draft.key, draft.headers):
            return (errors.Unroutable,)
        if len(draft.body) + len(draft.props) > int(str(world.plan.limits.get("message_bytes_max", 1 << 40))):
            return (errors.MessageTooLarge,)
    memory = sum(len(s.draft.body) + len(s.draft.props) + 200 for s in fresh)
    if memory and world.ledger.memory_bytes + memory > int(str(world.plan.limits.get("memory_bytes_max", 1 << 40))):
        return (errors.MemoryLimitExceeded,)
    if world.refusal is not None and any(sending.draft.persistent for sending in fresh):
        return (world.refusal,)
    return (errors.QueueFull,) if _overfills(world, fresh) else ()


def _overfills(world: World, sendings: list[Sending]) -> bool:
    adds: dict[str, list[int]] = {}
    for sending in sendings:
        draft = sending.draft
        for name in world.ledger.reach(draft.exchange, draft.key, draft.headers):
            adds.setdefault(name, []).append(len(draft.body))
    return any(world.ledger.accounts[name].rejects(sizes) for name, sizes in adds.items())


def _forgettable(world: World, operations: list[Operation]) -> bool:
    """Whether a dedup key that may or may not be known decides what happens."""
    places: list[tuple[str, str]] = []
    for operation in operations:
        if isinstance(operation, Sending) and operation.dedup_key:
            place = operation.draft.place(operation.dedup_key)
            if known.KNOWN_TRANSACTION_REPEATS and place in places:
                return True
            places.append(place)
            if not world.ledger.marks.find(place, world.shard.wall_ms)[1]:
                return True
    return False


def _book(world: World, operations: list[Operation], numbers: list[int]) -> None:
    """Enter what a transaction did."""
    ledger = world.ledger
    left = list(numbers)
    for operation in operations:
        if isinstance(operation, Settling):
            ledger.settled(operation.hand.record, operation.outcome, operation.delay_ms)
            ledger.altered |= ledger.settled_some
            continue
        draft = operation.draft
        number = left.pop(0)
        if operation.dedup_key:
            first, certain = ledger.marks.find(draft.place(operation.dedup_key), world.shard.wall_ms)
            if first and (certain or number == first):
                if number != first:
                    raise Violation("7 dedup", f"key {operation.dedup_key} stands for {number}, not {first}")
                continue
        queues, _ = ledger.published(draft.copy(number), draft.due_ms, refusing=False)
        if operation.dedup_key and queues:
            remember(world, draft, operation.dedup_key, number)
    if left:
        raise Violation("6 transactions", f"{len(left)} messages more than were published")


def _execute(world: World, operations: list[Operation], call: Callable[[], list[int]]) -> bool:
    wrong = _error(world, operations)
    numbers = world.call(call, wrong)
    if numbers is not None:
        _book(world, operations, numbers)
    else:
        for account in world.accounts():
            world.ledger.touch(account)
    world.done()
    return numbers is not None


def apply_at_once(world: World) -> None:
    drawn = [_some_operation(world) for _ in range(world.rng.randint(1, 5))]
    operations = [operation for operation in drawn if operation is not None]
    if not operations or _forgettable(world, operations):
        return
    world.say(f"apply [{'; '.join(str(o) for o in operations)}]")
    _execute(
        world, operations, lambda: apply(world.shard, world.tenant, [operation.operation for operation in operations])
    )


def begin(world: World) -> None:
    limits = world.plan.limits
    name = f"t{world.rng.randint(0, 9)}"
    timeout_ms = world.rng.choice((30, 400, 2_000))
    world.say(f"begin {name} for {timeout_ms} ms")
    wrong: Wrong = ()
    if name in world.open_transactions:
        wrong = (errors.InvalidArgument,)
    elif name in world.past_transactions:
        wrong = (world.past_transactions[name],)
    elif len(world.open_transactions) >= int(str(limits.get("transactions_max", 1_000))):
        wrong = (errors.LimitExceeded,)
    begun = world.call(lambda: world.shard.transactions.begin(world.tenant, name, timeout_ms), wrong)
    if begun is not None:
        world.open_transactions[name] = ([], world.shard.mono_ms + timeout_ms)
    world.done()


def _some_name(world: World) -> tuple[str, Wrong]:
    """A transaction, mostly an open one, and the errors that naming it must meet."""
    names = list(world.open_transactions)
    if not names or world.rng.random() < 0.15:
        name = f"t{world.rng.randint(0, 11)}"
    else:
        name = world.rng.choice(names)
    if name in world.open_transactions:
        return name, ()
    return name, (world.past_transactions.get(name, errors.TransactionNotFound),)


def add(world: World) -> None:
    name, wrong = _some_name(world)
    operation = _some_operation(world)
    if operation is None:
        return
    world.say(f"add to {name}: {operation}")
    if not wrong:
        exchange = operation.draft.exchange if isinstance(operation, Sending) else ""
        most = int(str(world.plan.limits.get("transaction_operations_max", 10_000)))
        if exchange and exchange not in world.ledger.topology.hubs:
            wrong = (errors.ExchangeNotFound,)
        elif len(world.open_transactions[name][0]) >= most:
            wrong = (errors.TransactionTooLarge,)
    transactions = world.shard.transactions
    world.call(lambda: transactions.add(transactions.get(world.tenant, name), operation.operation), wrong)
    if not wrong:
        world.open_transactions[name][0].append(operation)
    world.done()


def commit(world: World) -> None:
    name, wrong = _some_name(world)
    world.say(f"commit {name}")
    if wrong:
        world.call(lambda: world.shard.transactions.commit(world.tenant, name), wrong)
        world.done()
        return
    operations = world.open_transactions[name][0]
    if _forgettable(world, operations) or _closes(world, operations):
        return
    if _execute(world, operations, lambda: world.shard.transactions.commit(world.tenant, name)):
        del world.open_transactions[name]
        world.past_transactions[name] = errors.TransactionCommitted


def _closes(world: World, operations: list[Operation]) -> bool:
    """Whether a queue that closes when full is reached by now (the topology may have changed since)."""
    for operation in operations:
        if isinstance(operation, Sending):
            draft = operation.draft
            for name in world.ledger.reach(draft.exchange, draft.key, draft.headers):
                if world.ledger.accounts[name].terms.overflow == "close":
                    return True
    return False


def rollback(world: World) -> None:
    name, wrong = _some_name(world)
    world.say(f"roll back {name}")
    world.call(lambda: world.shard.transactions.rollback(world.tenant, name), wrong)
    if not wrong:
        del world.open_transactions[name]
        world.past_transactions[name] = errors.TransactionRolledBack
    for account in world.accounts():
        world.ledger.touch(account)
    world.done()

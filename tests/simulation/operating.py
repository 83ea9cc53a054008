"""The operator's hand in a queue: looking, purging, moving, sending dead letters back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rookery import errors
from rookery.core import dead_letters
from rookery.core.entries import Entry
from tests.simulation import known
from tests.simulation.accounts import Account, Record, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World


def peek(world: World) -> None:
    """Reading changes nothing, whatever is read."""
    account = world.some_account()
    if account is None:
        return
    world.say(f"peek into {account.name}")
    queue = account.core

    def read() -> None:
        for entry in [*queue.waiting_entries(), *queue.ready_entries(), *queue.delayed_entries()]:
            queue.expiry_ms(entry)
        queue.leases()
        queue.oldest_age_ms()

    world.call(read)
    world.ledger.touch(account)
    world.done()


def purge(world: World) -> None:
    account = world.some_account()
    if account is None:
        return
    world.say(f"purge {account.name}")
    removed = world.call(account.core.purge)
    ready = account.ready()
    if removed != len(ready):
        raise Violation("9 conservation", f"{removed} of {account.name} were purged, {len(ready)} were ready")
    for record in ready:
        world.ledger.leave(record, "purged")
    world.done()


def _picker(world: World) -> tuple[str, set[int] | None]:
    """Sometimes an operator chooses among the messages: here by their number."""
    if world.rng.random() < 0.6:
        return "all", None
    kept = {n for n in range(world.numbers + 1) if n % 3}
    return "those not divisible by three", kept


def _wanted(body: bytes, numbers: set[int] | None) -> bool:
    return numbers is None or int(body.rstrip(b".")[1:]) in numbers


def move(world: World) -> None:
    if known.KNOWN_MOVE_BY_LIST:
        world.flush()
    account, target = world.some_account(), world.some_account()
    if account is None or target is None or (known.KNOWN_MOVE_BY_LIST and account.terms.trims):
        return
    limit = world.rng.choice((0, 1, 3))
    what, numbers = _picker(world)
    world.say(f"move up to {limit} ({what}) of {account.name} to {target.name}")
    wrong = (errors.InvalidArgument,) if target is account else ()

    def chosen(entry: Entry) -> bool:
        return _wanted(entry.message.body, numbers)

    records = [r for r in account.ready() if _wanted(r.copy.body, numbers)]
    moved = world.call(lambda: dead_letters.move(world.tenant, account.core, target.core, limit, chosen), wrong)
    if moved is not None:
        # what comes back to the queue meanwhile may push some out, and those may be taken before their turn
        sight = world.ledger.look(account)
        gone = [r for r in records if r.seq not in sight.seqs]
        left_over = [r for r in records if _is_ready(world, r)]
        wanted = min(len(records), limit) if limit else len(records)
        may_stop = target.terms.bounded and target.terms.overflow != "drop-head"
        if moved > len(gone) or (moved < wanted and left_over and not may_stop):
            raise Violation("9 conservation", f"{moved} were moved, {wanted} should have been")
        for record in gone[:moved]:
            world.ledger.moved(record, target, replace(record.copy, holders=0))
    world.done()


def _is_ready(world: World, record: Record) -> bool:
    """Whether the core still shows a message as ready in its queue."""
    return any(entry.seq == record.seq for entry in world.ledger.look(record.account).ready)


def redrive(world: World) -> None:
    rng = world.rng
    if known.KNOWN_MOVE_BY_LIST:
        world.flush()
    accounts = [a for a in world.accounts() if any(r.copy.dead for r in a.records.values())]
    if known.KNOWN_MOVE_BY_LIST:
        accounts = [a for a in accounts if not a.terms.trims]
    if not accounts:
        return
    account = rng.choice(accounts)
    limit = rng.choice((0, 0, 1, 2))
    dry_run = rng.random() < 0.15
    goal = world.some_account() if rng.random() < 0.3 else None
    what, numbers = _picker(world)
    to = f"to {goal.name}" if goal is not None else "back"
    world.say(f"redrive up to {limit} ({what}) of {account.name} {to}{', dry run' if dry_run else ''}")

    def chosen(entry: Entry) -> bool:
        return _wanted(entry.message.body, numbers)

    records = [r for r in account.ready() if r.copy.dead and _wanted(r.copy.body, numbers)]
    name = None if goal is None else goal.name
    result = world.call(lambda: dead_letters.redrive(world.tenant, account.core, limit, chosen, dry_run, name))
    assert result is not None
    done = {entry.seq: where for entry, where in result}
    if list(done) != sorted(done, key=[r.seq for r in records].index):
        raise Violation("3 order", f"redriven in the order {list(done)}")
    for record in records:
        where = done.get(record.seq)
        wanted = name if name is not None else record.copy.history[0].queue
        if where is None:
            if not _is_ready(world, record):
                continue
            _check_stays(world, account, wanted, limit, len(done))
        elif where != wanted:
            raise Violation("5 dead letters", f"{record!r} was redriven to {where}, not to {wanted}")
        elif not dry_run:
            world.ledger.moved(record, world.ledger.accounts[where], world.ledger.revived(record))
    world.ledger.touch(account)
    world.done()


def _check_stays(world: World, account: Account, wanted: str, limit: int, done: int) -> None:
    """A letter stays when its origin is gone, is this queue, or is full."""
    origin = world.ledger.accounts.get(wanted)
    if origin is None or origin is account or (limit and done >= limit):
        return
    if origin.terms.bounded and origin.terms.overflow != "drop-head":
        return
    raise Violation("5 dead letters", f"a letter of {account.name} was not redriven to {wanted}")

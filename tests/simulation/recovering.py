"""What a journal owes: the books as they were when a batch was taken, held against what a new process found.

A `Snapshot` is everything durable at one moment. `take_over` compares a recovered shard with it and lets the ledger go
on from there. What recovery may choose freely is little: whether the attempt of a delivery in flight was counted, and
which of the dedup keys that a limit had pushed out it still knows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.simulation import audit
from tests.simulation.accounts import DELAYED, LEASED, READY, Account, Copy, Record, Sight, Violation
from tests.simulation.naive import Hub, Marks, Topology

if TYPE_CHECKING:
    from rookery.core.entries import Entry
    from tests.simulation.ledger import Ledger


@dataclass(slots=True)
class Stay:
    """A record as it was."""

    seq: int
    copy: Copy
    since_ms: int
    state: str
    due_ms: int
    attempts: int
    redelivered: bool


class Snapshot:
    """The durable part of the books after step number `step`; `definitions` is the core's own document of them."""

    def __init__(self, ledger: Ledger, definitions: dict[str, Any]) -> None:
        self.step = ledger.steps
        self.definitions = definitions
        self.policies = dict(ledger.policies)
        self.marks = copy.copy(ledger.marks)
        self.marks.marks = dict(ledger.marks.marks)
        self.marks.doubtful = set(ledger.marks.doubtful)
        self.marks.evicted = set(ledger.marks.evicted)
        durable = [account for account in ledger.accounts.values() if account.durable]
        self.queues = {account.name: (account.face, account.said) for account in durable}
        self.hubs = _lasting(ledger)
        scopes = {f"queue:{name}" for name in self.queues} | {f"exchange:{name}" for name in self.hubs}
        for scope in {place[0] for place in self.marks.marks} | {place[0] for place, _ in self.marks.evicted}:
            if scope not in scopes:
                self.marks.forget_scope(scope)
        self.stays = {account.name: _stays(account) for account in durable}


def _lasting(ledger: Ledger) -> dict[str, Hub]:
    hubs = {}
    for name, hub in ledger.topology.hubs.items():
        if hub.durable:
            links = [link for link in hub.links if ledger.lasts(name, link)]
            hubs[name] = Hub(hub.kind, hub.alternate, hub.auto_delete, links)
    return hubs


def _stays(account: Account) -> list[Stay]:
    return [
        Stay(r.seq, r.copy, r.since_ms, r.state, r.due_ms, r.attempts, r.redelivered)
        for r in account.records.values()
        if r.copy.persistent
    ]


def take_over(ledger: Ledger, found: Snapshot) -> None:
    """The recovered shard must be as the snapshot says; the books go on with it."""
    tenant = ledger.tenant
    now = ledger.shard.wall_ms
    ledger.policies = dict(found.policies)
    ledger.policies_before = dict(found.policies)
    ledger.topology = Topology()
    ledger.topology.hubs = {name: replace(hub, links=list(hub.links)) for name, hub in found.hubs.items()}
    ledger.consumers.clear()
    ledger.pools.clear()
    ledger.orphans.clear()
    ledger.memory_bytes = 0
    ledger.accounts = {}
    if tenant.queues.keys() != found.queues.keys():
        raise Violation("definitions", f"queues {sorted(tenant.queues)} came back, not {sorted(found.queues)}")
    copies: dict[int, Copy] = {}
    for name, (face, said) in found.queues.items():
        terms = ledger.terms_of(name, face, said)
        account = Account(name, tenant.queues[name], terms, face, said, ledger.shard.mono_ms)
        ledger.accounts[name] = account
        _restore(ledger, account, found.stays[name], copies)
    ledger.marks = _marks(ledger, found.marks, now)
    ledger.open()
    for account in ledger.accounts.values():
        ledger.touch(account)
    audit.audit(ledger)


def _restore(ledger: Ledger, account: Account, stays: list[Stay], copies: dict[int, Copy]) -> None:
    core = account.core
    for stay in stays:
        # so that the sight knows where to look for what is paged out
        account.records[stay.seq] = Record(account, stay.seq, stay.copy, stay.since_ms)
    sight = Sight(account, [])
    account.last_seq = core.seq
    shown: dict[int, Entry] = {entry.seq: entry for entry in [*sight.ready, *sight.delayed]}
    delayed = {entry.seq for entry in sight.delayed}
    for seq in shown.keys() - account.records.keys():
        raise Violation("1 settled and back", f"{shown[seq].message.body!r} is in {account.name}#{seq} again")
    if sight.leases:
        raise Violation("2 leases", f"{account.name} has leases of a process that is gone")
    for stay in stays:
        record = account.records[stay.seq]
        if stay.seq not in shown:
            raise Violation("1 nothing is lost", f"{record!r} was {stay.state} and is gone after recovery")
        _compare(ledger, record, stay, shown[stay.seq], stay.seq in delayed)
        message = shown[stay.seq].message
        paged = core.lines.place_of(stay.seq) != 0
        known = None if paged else copies.get(id(message))
        record.copy = replace(stay.copy, holders=0) if known is None else known
        if not paged:
            copies[id(message)] = record.copy
        ledger.hold(record.copy)
    account.tally["restored"] = len(stays)


def _compare(ledger: Ledger, record: Record, stay: Stay, entry: Entry, delayed: bool) -> None:
    audit.check_message(stay.copy, entry.message)
    now = ledger.shard.wall_ms
    # that a delay had ended is not written: it matters only where the clock was set back
    may_wait = stay.due_ms > now
    if delayed != may_wait and (stay.state == DELAYED or delayed):
        raise Violation("4 delay", f"{record!r} is {'delayed' * delayed or 'ready'}, it was due at {stay.due_ms}")
    if delayed and entry.due_ms != stay.due_ms:
        raise Violation("4 delay", f"{record!r} is due at {entry.due_ms}, not at {stay.due_ms}")
    paged = record.account.core.lines.place_of(stay.seq)
    if not paged and entry.enqueued_ms != stay.since_ms:
        raise Violation("4 expiry", f"{record!r} waits since {entry.enqueued_ms}, not since {stay.since_ms}")
    attempts = [stay.attempts]
    if stay.state == LEASED:
        attempts.append(stay.attempts - 1)
    if entry.attempts not in attempts or entry.redelivered != stay.redelivered:
        raise Violation(
            "5 attempts",
            f"{record!r} came back with attempts, redelivered {(entry.attempts, entry.redelivered)}, it had"
            f" {(stay.attempts, stay.redelivered)}, {stay.state}",
        )
    record.attempts = entry.attempts
    record.redelivered = entry.redelivered
    record.state = DELAYED if delayed else READY
    record.due_ms = stay.due_ms


def _marks(ledger: Ledger, owed: Marks, now: int) -> Marks:
    """The dedup keys from here on; every key that was certainly known must be known still."""
    shown = {(scope, key): (number, until) for scope, key, number, until in ledger.tenant.dedup.marks()}
    certain = [(mark[0], place) for place, mark in owed.marks.items() if place not in owed.doubtful and mark[1] > now]
    known = {place for _, place in certain}
    # others that the journal still has may have come back, and take the room of the oldest
    room = owed.keys_max - sum(place not in known for place in shown)
    for _, place in sorted(certain, reverse=True)[: max(0, room)]:
        mark = owed.marks[place]
        if shown.get(place) != mark:
            raise Violation("7 dedup", f"key {place} stood for {mark}, after recovery for {shown.get(place)}")
    marks = Marks(owed.keys_max)
    marks.evicted = set(owed.evicted)
    for place, mark in shown.items():
        if owed.marks.get(place) != mark:
            if (place, mark[0]) not in owed.evicted:
                raise Violation("7 dedup", f"key {place} stands for {mark} after recovery, it was not known")
            marks.doubtful.add(place)
        elif place in owed.doubtful:
            marks.doubtful.add(place)
        marks.marks[place] = mark
    for place, mark in owed.marks.items():
        if place not in shown:
            marks.evicted.add((place, mark[0]))
    return marks

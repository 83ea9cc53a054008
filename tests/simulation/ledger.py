"""The ledger: an independent account of where every message must be, and what the core was seen to do with it.

A step is one call to the core. `open` begins it; after the call the world tells the ledger what the call means
(`published`, `settled`, `passed` …), which the ledger enters in its books by the documented laws alone; `close` looks
at the core, explains everything that moved, and compares. What the core may choose freely (which consumer, the order
of things that fall due together) is taken from what is seen and held against the laws; everything else is predicted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from rookery.format import properties
from tests.simulation import audit
from tests.simulation.accounts import (
    DELAYED,
    LEASED,
    READY,
    Account,
    Consumer,
    Copy,
    Handed,
    Pool,
    Record,
    Sight,
    Violation,
)
from tests.simulation.naive import Dying, Link, Marks, Terms, Topology, goes_round, history_with, terms_of

if TYPE_CHECKING:
    from rookery.core.entries import Entry, Lease
    from rookery.core.shard import Shard
    from rookery.core.topology import Tenant


Rule = tuple[int, str, dict[str, object]]
"""A policy: its priority, its pattern, its settings."""


def governor_of(name: str, policies: dict[str, Rule]) -> Rule | None:
    """The policy that governs a queue; no two have the same priority."""
    matching = [rule for rule in policies.values() if re.search(rule[1], name)]
    return max(matching, key=lambda rule: rule[0]) if matching else None


class Ledger:
    """The books of one tenant, and the step that is open."""

    def __init__(self, shard: Shard, tenant: Tenant, dedup_keys_max: int) -> None:
        self.shard = shard
        self.tenant = tenant
        self.accounts: dict[str, Account] = {}
        self.topology = Topology()
        self.policies: dict[str, Rule] = {}
        self.policies_before: dict[str, Rule] = {}
        self.marks = Marks(dedup_keys_max)
        self.consumers: dict[int, Consumer] = {}
        self.pools: list[Pool] = []
        self.memory_bytes = 0
        self.pages = False
        self.orphans: dict[int, Record] = {}
        self.tokens: set[str] = set()
        self.handed: list[Handed] = []
        self.claimed: list[Lease] = []
        self.claim_lease_ms = 0
        self.delivered: list[Record] = []
        self.closed: list[str] = []
        self.steps = 0
        self.flushed = False
        self.altered = False
        self.settled_some = False

    # A step

    def open(self) -> None:
        """Begin a step; the core is called next."""
        self.steps += 1
        self.handed.clear()
        self.claimed = []
        self.delivered = []
        self.closed = []
        self.flushed = False
        self.altered = False
        self.settled_some = False

    def close(self) -> None:
        """End the step: everything that moved in the core must be explained, and the books must agree with it."""
        audit.audit(self)

    def touch(self, account: Account) -> None:
        account.touched = True

    def look(self, account: Account) -> Sight:
        if account.sight is None:
            core = account.core
            account.sight = Sight(account, [h for h in self.handed if h.subscription.queue is core])
        return account.sight

    # Queues

    def terms_of(self, name: str, face: str, said: dict[str, object]) -> Terms:
        governor = governor_of(name, self.policies)
        return terms_of(name, face, None if governor is None else governor[2], said)

    def declared(self, name: str, face: str, said: dict[str, object]) -> Account:
        """The queue is there now; it is new when there was no account."""
        account = self.accounts.get(name)
        if account is None:
            core = self.tenant.queues.get(name)
            if core is None:
                raise Violation("declare", f"queue {name} is not there")
            terms = self.terms_of(name, face, said)
            account = Account(name, core, terms, face, said, self.shard.mono_ms)
            account.newborn = True
            self.altered |= account.durable
            self.accounts[name] = account
        else:
            account.used_ms = self.shard.mono_ms
        self.touch(account)
        return account

    def reconfigured(self) -> None:
        """A policy came or went: for queues it governs or governed this counts as use."""
        self.altered = True
        before, self.policies_before = self.policies_before, dict(self.policies)
        for account in self.accounts.values():
            if governor_of(account.name, before) is governor_of(account.name, self.policies):
                continue
            account.terms = self.terms_of(account.name, account.face, account.said)
            account.used_ms = self.shard.mono_ms
            account.configured = True
            self.touch(account)

    def deleted(self, account: Account, reason: str) -> None:
        """The queue is gone with everything in it. A lease that the core does not track stays with its holder."""
        account.closing = True
        self.altered |= account.durable
        core = account.core
        if not core.deleted or self.tenant.queues.get(account.name) is core:
            raise Violation("delete", f"queue {account.name} should be gone ({reason})")
        for record in account.records.values():
            if record.loose and record.lease is not None and record.lease.live:
                self.orphans[id(record.lease)] = record
            else:
                self.drop(record.copy)
                if record.state == LEASED:
                    self._let_go(record)
        account.records.clear()
        for consumer in list(account.consumers):
            self._forget(consumer)
            ended = getattr(consumer.subscription, "ended", reason)
            if ended != reason:
                raise Violation("delete", f"{consumer} was told {ended!r}, not {reason!r}")
        del self.accounts[account.name]
        self.closed.append(account.name)
        self.topology.unbind_target(account.name, True)
        self.marks.forget_scope("queue:" + account.name)
        self.reshaped()
        audit.check_conservation(account)

    def reshaped(self) -> None:
        """Exchanges may be gone, and the dedup keys published to them with them."""
        for scope in {scope for scope, _ in self.marks.marks if scope.startswith("exchange:")}:
            if scope.removeprefix("exchange:") not in self.topology.hubs:
                self.marks.forget_scope(scope)

    def lasts(self, source: str, link: Link) -> bool:
        """Whether a binding outlives the process: when both its ends do."""
        hubs = self.topology.hubs
        there = self.accounts[link.target].durable if link.to_queue else hubs[link.target].durable
        return hubs[source].durable and there

    # Consumers

    def joined(self, consumer: Consumer) -> None:
        account = consumer.account
        self.consumers[id(consumer.subscription)] = consumer
        account.consumers.append(consumer)
        account.owners.clear()
        account.used_ms = self.shard.mono_ms
        if not consumer.once:
            account.had_consumer = True
        if account.terms.single_active and account.active is None:
            account.active = consumer
        self.touch(account)

    def left(self, consumer: Consumer) -> None:
        """Unsubscribed. The last standing one takes an auto-delete queue with it."""
        account = consumer.account
        if consumer.ended:
            return
        self._forget(consumer)
        account.used_ms = self.shard.mono_ms
        self.touch(account)
        if account.terms.auto_delete and not consumer.once and all(c.once for c in account.consumers):
            self.deleted(account, "auto-delete")

    def _forget(self, consumer: Consumer) -> None:
        account = consumer.account
        consumer.ended = True
        account.consumers.remove(consumer)
        account.owners.clear()
        if account.active is consumer:
            account.active = account.next_active()

    # Memory

    def hold(self, copy: Copy) -> None:
        if copy.holders == 0:
            self.memory_bytes += copy.size_bytes
        copy.holders += 1

    def drop(self, copy: Copy) -> None:
        copy.holders -= 1
        if copy.holders == 0:
            self.memory_bytes -= copy.size_bytes

    # Entering

    def reach(self, exchange: str, key: str, headers: dict[str, object]) -> list[str]:
        return self.topology.reach(exchange, key, headers, dict.fromkeys(self.accounts))

    def published(self, copy: Copy, due_ms: int, refusing: bool = True) -> tuple[int, bool]:
        """Where the message had to go: how many queues that is, and whether one of them refused it.

        `refusing` is False where limits were checked beforehand, so that a queue that rejects publishes took it.
        """
        names = self.reach(copy.exchange, copy.key, copy.headers)
        refused = False
        for name in names:
            account = self.accounts[name]
            account.admitted |= not refusing
            outcome = self.arrive(account, copy, "published", due_ms)
            if outcome == "unsure":
                audit.check_closed(account, copy)
                self.deleted(account, "overflow")
            elif outcome == "refused":
                if not refusing and account.terms.overflow.startswith("reject"):
                    raise Violation("6 transactions", f"{copy!r} of a transaction did not enter {name}")
                refused |= self._refuse(account, copy)
        return len(names), refused

    def rejected(self, copy: Copy, accounts: list[Account]) -> None:
        """All targets had to take the message or none, and these rejected it."""
        for account in accounts:
            self.touch(account)
            account.refusals.append((copy, "published"))
            self._refuse(account, copy)

    def _refuse(self, account: Account, copy: Copy) -> bool:
        """A full queue that does not drop its head did what was declared; True when the publisher is told no."""
        account.tally["refused"] += 1
        if account.terms.overflow == "reject-publish":
            return True
        account.tally["published"] += 1
        if account.terms.overflow == "reject-publish-dead-letter":
            self.bury(account, copy, 0, "maxlen")
            return True
        account.tally["dropped"] += 1
        return False

    def arrive(self, account: Account, copy: Copy, kind: str, due_ms: int = 0) -> str:
        """A copy had to enter a queue: "in", or "refused" by a full one, or "unsure" when the queue is gone since."""
        self.touch(account)
        if account.core.deleted:
            account.closing = True
            account.entered += 1
            account.phantoms.append(copy)
            return "unsure"
        newcomers = self.look(account).newcomers.get(copy.facts())
        if newcomers:
            entry = newcomers.pop(0)
            self._enter(account, copy, entry, kind, due_ms)
            return "in"
        if account.newborn and kind == "dead_lettered_in" and copy.history[0].queue not in self.named_by(account.name):
            # it came by the default exchange, perhaps before another letter made the queue
            return "unsure"
        if kind == "published" and 0 < copy.expires_ms <= self.shard.wall_ms:
            # its transaction was committed when its time was up, and nobody could take it at once
            account.tally[kind] += 1
            account.entered += 1
            self.bury(account, copy, 0, "expired")
            return "in"
        if account.terms.trims:
            account.tally[kind] += 1
            account.entered += 1
            account.phantoms.append(copy)
            self.bury(account, copy, 0, "maxlen")
            return "in"
        if not account.terms.bounded:
            raise Violation("1 nothing is lost", f"{copy!r} had to enter {account.name} ({kind}) and did not")
        account.refusals.append((copy, kind))
        return "refused"

    def _enter(self, account: Account, copy: Copy, entry: Entry, kind: str, due_ms: int) -> None:
        audit.check_message(copy, entry.message)
        now = self.shard.wall_ms
        record = Record(account, entry.seq, copy, now)
        if due_ms > now:
            record.since_ms = record.due_ms = due_ms
            record.state = DELAYED
        account.records[entry.seq] = record
        self.altered |= account.keeps(copy)
        account.tally[kind] += 1
        account.entered += 1
        if kind != "dead_lettered_in":
            if entry.seq < account.entered_seq:
                raise Violation("3 order", f"{record!r} was numbered before one that came earlier")
            account.entered_seq = entry.seq
        self.hold(copy)

    def moved(self, record: Record, target: Account, copy: Copy) -> None:
        """A waiting message went to another queue, as a new copy."""
        self.leave(record, "moved_out")
        if self.arrive(target, copy, "moved_in") == "refused":
            raise Violation("1 nothing is lost", f"{record!r} was moved to {target.name}, which was full")

    def revived(self, record: Record) -> Copy:
        """The copy that a redrive makes of a dead letter: alive again, with its history."""
        last = record.copy.history[0]
        return replace(record.copy, exchange=last.exchange, key=last.key, dead=False, expires_ms=0, holders=0)

    # Leaving

    def leave(self, record: Record, exit_: str) -> None:
        """A record ends for a reason that is no death."""
        account = record.account
        self.touch(account)
        del account.records[record.seq]
        account.tally[exit_] += 1
        if exit_ != "acked":
            account.other_moves += 1
        self.drop(record.copy)

    def die(self, record: Record, reason: str) -> None:
        """A record ends by death: in the queue's dead-letter target, or counted as lost for that reason."""
        account = record.account
        self.touch(account)
        del account.records[record.seq]
        if reason == "maxlen":
            account.victims.append(record)
        else:
            account.other_moves += 1
        self.bury(account, record.copy, record.attempts, reason)
        self.drop(record.copy)

    def bury(self, account: Account, copy: Copy, attempts: int, reason: str) -> None:
        arrived, unsure = self._bury(account, copy, attempts, reason)
        if arrived:
            account.tally["dead_lettered"] += 1
            return
        account.tally["expired" if reason == "expired" else "dropped"] += 1
        account.unsure += unsure

    def targets_of(self, account: Account, copy: Copy, reason: str) -> tuple[str, str, list[str]]:
        """The exchange and key a dead letter gets, and the queues it has to go to."""
        terms = account.terms
        if reason in ("expired", "maxlen") and not terms.declared:
            return "", "", []
        if terms.dead_letter_exchange is not None:
            exchange = terms.dead_letter_exchange
            key = copy.key if terms.dead_letter_key is None else terms.dead_letter_key
            if exchange and exchange not in self.topology.hubs:
                return exchange, key, []
            if not exchange and key not in self.accounts and key in self.tenant.queues:
                self.declared(key, "dead-letter", {})
            return exchange, key, self.reach(exchange, key, copy.headers)
        if terms.dead_letter_queue is None:
            return "", "", []
        return "", terms.dead_letter_queue, [terms.dead_letter_queue]

    def letter(self, account: Account, copy: Copy, attempts: int, reason: str) -> Copy:
        """What a death in that queue makes of a message."""
        now = self.shard.wall_ms
        expiration_ms = properties.expiration_ms(copy.props) if copy.expires_ms else -1
        line = Dying(account.name, reason, 1, attempts, now, now, copy.exchange, copy.key, expiration_ms)
        props = copy.bare if copy.expires_ms else copy.props
        history = history_with(line, copy.history)
        return replace(copy, props=props, expires_ms=0, dead=True, history=history, holders=0)

    def named_by(self, name: str) -> list[str]:
        """The queues whose dead-letter queue is the one of that name, so that it is made when they need it."""
        return [a.name for a in self.accounts.values() if a.terms.dead_letter_queue == name]

    def _bury(self, account: Account, copy: Copy, attempts: int, reason: str) -> tuple[bool, bool]:
        """Whether the letter arrived somewhere, and whether that cannot be told."""
        exchange, key, names = self.targets_of(account, copy, reason)
        if not names:
            return False, bool(self.closed)
        letter = self.letter(account, copy, attempts, reason)
        letter.exchange, letter.key = exchange, key
        arrived = False
        # a queue that is gone since may have taken the letter before
        unsure = bool(self.closed)
        for name in names:
            target = self.accounts.get(name)
            if target is None:
                if name in self.closed:
                    continue
                queues = max(len(self.accounts), len(self.tenant.queues))
                if name not in self.tenant.queues and queues >= self.tenant.limits.queues_max:
                    continue
                target = self.declared(name, "dead-letter", {})
            if goes_round(letter.history, name):
                continue
            outcome = self.arrive(target, letter, "dead_lettered_in")
            arrived |= outcome == "in"
            unsure |= outcome == "unsure"
        return arrived, unsure and not arrived

    # Settling

    def _let_go(self, record: Record) -> None:
        holder = record.holder
        record.lease = None
        record.lapses_ms = None
        record.holder = None
        record.loose = False
        if holder is not None:
            holder.inflight -= 1
            if holder.pool is not None:
                holder.pool.inflight -= 1

    def settled(self, record: Record, outcome: str, delay_ms: int) -> None:
        """The holder of a live lease settled it."""
        tally = record.account.tally
        self.settled_some |= record.account.keeps(record.copy)
        self._let_go(record)
        if outcome == "ack":
            self.leave(record, "acked")
        elif outcome == "retry":
            self._failed(record, delay_ms)
        elif outcome == "release":
            tally["released"] += 1
            record.attempts -= 1
            self._come_back(record, 0)
        else:
            tally["rejected"] += 1
            self.die(record, "rejected")

    def extended(self, record: Record, lease_ms: int) -> None:
        record.lapses_ms = self.shard.mono_ms + lease_ms
        self.touch(record.account)

    def abandoned(self, record: Record) -> None:
        """A lease of a queue that is gone was settled: that answers no, and gives memory and credit back."""
        del self.orphans[id(record.lease)]
        self._let_go(record)
        self.drop(record.copy)

    def _failed(self, record: Record, delay_ms: int) -> None:
        terms = record.account.terms
        if terms.max_attempts and record.attempts >= terms.max_attempts:
            self.die(record, "delivery_limit")
            return
        record.account.tally["retried"] += 1
        self._come_back(record, terms.pause_ms(record.attempts) if delay_ms < 0 else delay_ms)

    def _come_back(self, record: Record, delay_ms: int) -> None:
        self.touch(record.account)
        record.account.other_moves += 1
        record.account.returned += 1
        record.redelivered = True
        now = self.shard.wall_ms
        expires_ms = record.expires_ms
        if expires_ms is not None and expires_ms <= now:
            self.die(record, "expired")
        elif delay_ms > 0:
            record.state = DELAYED
            record.due_ms = now + delay_ms
        else:
            record.state = READY

    def cascades(self) -> bool:
        """Whether queues dropped their heads into others that dropped theirs, in this step. Which of the letters came
        where depends on the order of all the deaths then, and that is beyond this book-keeping.
        """
        pushed = {a.name for a in self.accounts.values() if a.terms.trims and a.core.seq != a.last_seq}
        return any(self.accounts[name].terms.dead_letter_queue in pushed for name in pushed)

    # Time

    def passed(self) -> None:
        """A turn began: everything due by the shard's two clocks has happened, and nothing that is not."""
        shard = self.shard
        self.marks.see_time(shard.wall_ms)
        idle = []
        for account in self.accounts.values():
            terms = account.terms
            if terms.expires_ms and not account.consumers and account.used_ms + terms.expires_ms <= shard.mono_ms:
                account.closing = True
                idle.append(account)
        for account in list(self.accounts.values()):
            for record in list(account.records.values()):
                self._age(record)
        for account in idle:
            self.deleted(account, "expired")

    def _age(self, record: Record) -> None:
        if record.state == LEASED:
            if record.lapses_ms is not None and record.lapses_ms <= self.shard.mono_ms:
                record.account.tally["lapsed"] += 1
                self._let_go(record)
                self._failed(record, 0)
            return
        now = self.shard.wall_ms
        expires_ms = record.expires_ms
        if expires_ms is not None and expires_ms <= now:
            self._expire(record)
        elif record.state == DELAYED and record.due_ms <= now:
            record.state = READY
            record.account.other_moves += 1
            self.touch(record.account)

    def _expire(self, record: Record) -> None:
        """Its time is up; where the head is dropped, a dead letter of the same turn may have pushed it out before."""
        account = record.account
        account.either += account.terms.trims
        pushed = account.terms.trims and audit.was_buried(self, record, "maxlen")
        self.die(record, "maxlen" if pushed else "expired")

    def earliest_ms(self) -> int | None:
        """How long until something falls due, None when nothing will. Transactions are the world's to add."""
        shard = self.shard
        waits = []
        for account in self.accounts.values():
            if account.terms.expires_ms and not account.consumers:
                waits.append(account.used_ms + account.terms.expires_ms - shard.mono_ms)
            for record in account.records.values():
                if record.state == LEASED:
                    if record.lapses_ms is not None:
                        waits.append(record.lapses_ms - shard.mono_ms)
                    continue
                if record.state == DELAYED:
                    waits.append(record.due_ms - shard.wall_ms)
                if record.expires_ms is not None:
                    waits.append(record.expires_ms - shard.wall_ms)
        return max(0, min(waits)) if waits else None

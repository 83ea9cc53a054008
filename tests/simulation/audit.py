"""The end of a step: what the core shows must follow from the books, law by law.

First everything that vanished is explained, then everything that appeared, then each delivery in the order it was made,
then the books and the core are compared number by number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.accounts import (
    DELAYED,
    ENTRIES,
    EXITS,
    LEASED,
    METERS,
    READY,
    Account,
    Consumer,
    Copy,
    Record,
    Sight,
    Violation,
)
from tests.simulation.naive import Dying

if TYPE_CHECKING:
    from rookery.core.entries import Entry, Lease
    from rookery.format.model import Message
    from tests.simulation.ledger import Ledger

FULL_EVERY = 40
"""Every so many steps also the queues in which nothing seems to have happened are compared."""


def audit(ledger: Ledger) -> None:
    full = ledger.steps % FULL_EVERY == 0
    for account in list(ledger.accounts.values()):
        if full or account.touched or account.fingerprint() != account.print:
            _explain_missing(ledger, account)
    if ledger.tenant.queues.keys() != ledger.accounts.keys():
        raise Violation("topology", f"queues {sorted(ledger.tenant.queues)}, not {sorted(ledger.accounts)}")
    moved = [account for account in ledger.accounts.values() if account.sight is not None or account.touched]
    for account in moved:
        _explain_new(ledger, account)
        _check_deliveries(ledger, account)
    for account in moved:
        _check_limits(account)
        _compare(ledger, account)
    _check_whole(ledger)
    if ledger.flushed:
        for account in ledger.accounts.values():
            _check_nobody_idle(account)
    for account in moved:
        _end_step(account)
    for pool in ledger.pools:
        pool.at_start = pool.inflight
        pool.taken = 0


def _end_step(account: Account) -> None:
    account.print = account.fingerprint()
    account.last_seq = account.core.seq
    account.ready_since = account.ready()
    account.free_since = {r.seq for r in account.ready_since if account.deliverable(r)}
    waiting = account.waiting()
    account.delayed_since = {r.seq for r in waiting if r.state == DELAYED}
    account.waiting_since = len(waiting)
    account.bytes_since = sum(len(r.copy.body) for r in waiting)
    for consumer in account.consumers:
        consumer.at_start = consumer.inflight
        consumer.taken = 0
    account.open_step()


# What vanished, what appeared


def _explain_missing(ledger: Ledger, account: Account) -> None:
    """A record that the core no longer shows must have been trimmed, or was not to be handed out: it has had its last
    attempt, or its time was up before this turn.
    """
    sight = ledger.look(account)
    terms = account.terms
    # a queue drops its head only when something comes in, or when its limits change and it is beyond them
    beyond = account.configured and not account.fits(account.waiting_since, account.bytes_since)
    may_trim = terms.trims and (beyond or account.core.seq != account.last_seq)
    for record in list(account.records.values()):
        if record.seq in sight.seqs or (record.loose and record.lease is not None and record.lease.live):
            continue
        if record.state == LEASED:
            raise Violation("1 nothing is lost", f"{record!r} vanished while leased")
        used_up = record.state == READY and 0 < terms.max_attempts <= record.attempts
        if used_up and (not may_trim or _left_for(ledger, record, "delivery_limit")):
            ledger.die(record, "delivery_limit")
        elif record.state == READY and record.over and (not may_trim or _left_for(ledger, record, "expired")):
            account.either += may_trim
            ledger.die(record, "expired")
        elif may_trim:
            ledger.die(record, "maxlen")
        else:
            raise Violation("1 nothing is lost", f"{record!r} vanished while {record.state}")


def _left_for(ledger: Ledger, record: Record, reason: str) -> bool:
    """Of a message that may also have been trimmed: whether its letter says so, or it makes no difference."""
    targets = ledger.targets_of(record.account, record.copy, reason)[2]
    return not targets or was_buried(ledger, record, reason)


def was_buried(ledger: Ledger, record: Record, reason: str) -> bool:
    """Whether a letter of this record's death for that reason has appeared somewhere."""
    account = record.account
    facts = ledger.letter(account, record.copy, record.attempts, reason).facts()
    for name in ledger.targets_of(account, record.copy, reason)[2]:
        if name in ledger.tenant.queues:
            target = ledger.accounts.get(name) or ledger.declared(name, "dead-letter", {})
            if ledger.look(target).newcomers.get(facts):
                return True
    return False


def _explain_new(ledger: Ledger, account: Account) -> None:
    sight = ledger.look(account)
    for newcomers in sight.newcomers.values():
        for entry in newcomers:
            raise Violation(
                "9 conservation",
                f"{entry.message.body!r} appeared in {account.name}#{entry.seq} from nowhere"
                f" (history {[d.as_dict() for d in entry.message.route.deaths]})",
            )
    numbered = account.core.seq - account.last_seq
    if numbered != account.entered:
        raise Violation("9 conservation", f"{account.entered} entered {account.name}, it numbered {numbered}")


def check_message(copy: Copy, message: Message) -> None:
    """The core's message is what was published, or what its death had to make of it."""
    shown = (message.props, message.priority, message.expires_ms, message.public_id)
    expected = (copy.props, copy.priority, copy.expires_ms, copy.public_id)
    if shown != expected:
        raise Violation("1 nothing is lost", f"{copy!r} became (props, priority, expiry, id) {shown}, not {expected}")
    if (message.route.exchange, message.route.key) != (copy.exchange, copy.key):
        raise Violation("routing", f"{copy!r} says it came by {message.route.exchange!r}/{message.route.key!r}")
    history = [
        Dying(d.queue, d.reason, d.count, d.attempts, d.first_ms, d.last_ms, d.exchange, d.key, d.expiration_ms)
        for d in message.route.deaths
    ]
    if history != copy.history:
        raise Violation("5 dead letters", f"{copy!r} has the history {history}, not {copy.history}")


# Deliveries


def _deliveries(account: Account, sight: Sight) -> list[tuple[Entry, Lease | None]]:
    """What was handed over in this step, in order: peers saw their own place in it, the core lists the other leases."""
    told = {h.ordinal: h for h in sight.handed}
    silent = []
    for lease in sight.leases:
        record = account.records.get(lease.entry.seq)
        if record is None:
            raise Violation("2 leases", f"{account.name}#{lease.entry.seq} is leased, it should have left")
        if record.lease is not lease and not any(h.lease is lease for h in sight.handed):
            silent.append(lease)
    found: list[tuple[Entry, Lease | None]] = []
    first = account.tally["delivered"] + 1
    total = len(told) + len(silent)
    counted = account.core.delivered - account.tally["delivered"]
    if counted != total:
        raise Violation("9 conservation", f"{account.name} counts {counted} deliveries, {total} were seen")
    for ordinal in range(first, first + total):
        if ordinal in told:
            found.append((told[ordinal].entry, told[ordinal].lease))
        else:
            lease = silent.pop(0)
            found.append((lease.entry, lease))
    return found


def _check_deliveries(ledger: Ledger, account: Account) -> None:
    sight = ledger.look(account)
    holders = {id(h.entry): h.subscription for h in sight.handed}
    for entry, lease in _deliveries(account, sight):
        record = account.records.get(entry.seq)
        if record is None:
            raise Violation("1 nothing is lost", f"{account.name}#{entry.seq} was delivered after it had left")
        subscription = holders.get(id(entry)) if lease is None else lease.holder
        if subscription is None:
            consumer = None
            if not any(lease is claimed for claimed in ledger.claimed):
                raise Violation("claims", f"{record!r} was leased to nobody who asked")
        else:
            consumer = ledger.consumers[id(subscription)]
        _check_delivery(ledger, record, entry, lease, consumer)


def _check_delivery(
    ledger: Ledger, record: Record, entry: Entry, lease: Lease | None, consumer: Consumer | None
) -> None:
    account = record.account
    if record.state != READY:
        raise Violation("1 one delivery at a time", f"{record!r} was delivered while {record.state}")
    if not account.deliverable(record):
        raise Violation("group order", f"{record!r} was delivered while its group is busy")
    _check_order(account, record, consumer)
    if consumer is not None:
        _check_choice(account, record, consumer)
    account.tally["delivered"] += 1
    account.tally["redelivered"] += record.redelivered
    record.attempts += 1
    record.held = True
    record.state = LEASED
    if account.terms.max_attempts and record.attempts > account.terms.max_attempts:
        raise Violation(
            "5 attempts", f"{record!r} got attempt {record.attempts}, allowed are {account.terms.max_attempts}"
        )
    if entry.attempts != record.attempts or (lease is not None and lease.attempt != record.attempts):
        raise Violation("5 attempts", f"{record!r} was delivered as {entry.attempts}, not as {record.attempts}")
    if entry.redelivered != record.redelivered:
        raise Violation("10 peek is a read", f"{record!r} was delivered with redelivered={entry.redelivered}")
    if lease is None:
        ledger.leave(record, "acked")
        return
    record.lease = lease
    record.loose = account.core.lease_of(record.seq) is not lease
    record.holder = consumer
    if consumer is not None:
        consumer.inflight += 1
        consumer.taken += 1
        if consumer.limit is not None and consumer.inflight > consumer.limit:
            raise Violation("credit", f"{consumer} has {consumer.inflight} unsettled, its credit is {consumer.limit}")
        if consumer.pool is not None:
            consumer.pool.inflight += 1
            consumer.pool.taken += 1
            if consumer.pool.inflight > consumer.pool.limit:
                raise Violation("credit", f"{consumer} went beyond its shared credit of {consumer.pool.limit}")
    record.lapses_ms = None
    lease_ms = consumer.lease_ms if consumer is not None else ledger.claim_lease_ms
    if lease_ms:
        record.lapses_ms = ledger.shard.mono_ms + lease_ms
    ledger.delivered.append(record)


def _check_order(account: Account, record: Record, consumer: Consumer | None) -> None:
    """Nothing that was ready all the time and stands before it may be passed over."""
    by_key = account.terms.distribution == "key-hash"
    if by_key and consumer is None:
        return
    place = record.place
    for other in account.ready_since:
        if other.place >= place:
            return
        if other.state != READY or other.seq not in account.free_since or other.seq not in account.records:
            continue
        if by_key and key_of(other.copy) != key_of(record.copy):
            continue
        if account.deliverable(other):
            raise Violation("3 order", f"{record!r} was delivered before {other!r}")


def key_of(copy: Copy) -> str:
    """What a key-hash queue goes by."""
    return copy.group or copy.key


def _check_choice(account: Account, record: Record, consumer: Consumer) -> None:
    if consumer.account is not account or consumer.ended:
        raise Violation("consumers", f"{record!r} went to {consumer}, who is not subscribed")
    if consumer.paused:
        raise Violation("credit", f"{record!r} went to {consumer}, who is paused")
    if account.terms.single_active:
        if consumer is not account.active:
            raise Violation("single active", f"{record!r} went to {consumer}, active is {account.active}")
        return
    if account.terms.distribution == "key-hash":
        _check_key_owner(account, record, consumer)
        return
    for other in account.consumers:
        if other is consumer or other.pool is not None or not other.had_credit():
            continue
        if other.priority > consumer.priority:
            raise Violation("consumer priority", f"{record!r} went to {consumer}, {other} goes first")
        if (
            account.terms.distribution == "least-busy"
            and other.priority == consumer.priority
            and other.at_start + other.taken < consumer.inflight
        ):
            raise Violation("least busy", f"{record!r} went to {consumer}, {other} has less to do")


def _check_key_owner(account: Account, record: Record, consumer: Consumer) -> None:
    if all(c.once for c in account.consumers):
        return
    if consumer.once:
        raise Violation("key hash", f"{record!r} went to the waiting claim {consumer}")
    owner = account.owners.setdefault(key_of(record.copy), consumer)
    if owner is not consumer:
        raise Violation("key hash", f"{record!r} went to {consumer}, {owner} has its key")


def _check_nobody_idle(account: Account) -> None:
    """After a flush nobody who may take a message faces one."""
    takers = account.takers()
    if not takers:
        return
    if account.terms.distribution == "key-hash" and not account.terms.single_active:
        standing = [c for c in account.consumers if not c.once] or account.consumers
        if not all(c.has_credit() for c in standing):
            return
    for record in account.ready_since if account.sight is None else account.ready():
        if account.deliverable(record):
            raise Violation("nobody idle", f"{record!r} waits while {takers[0]} could take it")


# Limits


def check_closed(account: Account, copy: Copy) -> None:
    """The queue is gone in a publish: only a full one that closes may do that."""
    sizes = [len(other.body) for other in account.phantoms]
    room = account.fits(account.waiting_since + len(sizes), account.bytes_since + sum(sizes))
    if account.terms.overflow != "close" or room or (len(sizes) == 1 and _had_room(account, copy)):
        raise Violation("8 limits", f"{account.name} went away when {copy!r} was published")


def _had_room(account: Account, copy: Copy) -> bool:
    takers = [account.active] if account.terms.single_active else account.consumers
    if account.waiting_since == 0 and any(c is not None and c.had_credit() for c in takers):
        return True
    return account.fits(account.waiting_since + 1, account.bytes_since + len(copy.body))


def _check_limits(account: Account) -> None:
    waiting = account.waiting()
    waiting_bytes = sum(len(r.copy.body) for r in waiting)
    if account.terms.trims:
        _check_trims(account, len(waiting), waiting_bytes)
        return
    still = not account.other_moves and not account.entered and len(account.refusals) == 1
    for copy, kind in account.refusals:
        if still and _had_room(account, copy):
            raise Violation("8 limits", f"{copy!r} ({kind}) was refused by {account.name}, which had room")
    if account.entered and account.terms.bounded and not account.fits(len(waiting), waiting_bytes):
        _check_not_overfull(account, len(waiting), waiting_bytes)


def _check_not_overfull(account: Account, waiting: int, waiting_bytes: int) -> None:
    """A queue that refuses is over its limit only by what came back to it, not by what it let in."""
    if account.waiting_since and waiting > account.waiting_since and not account.other_moves and not account.admitted:
        raise Violation(
            "8 limits", f"{account.name} let in more than it may: {waiting} messages, {waiting_bytes} bytes wait"
        )


def _check_trims(account: Account, waiting: int, waiting_bytes: int) -> None:
    came_in = account.entered or account.configured
    if came_in and not account.returned and not account.fits(waiting, waiting_bytes):
        raise Violation("8 limits", f"{waiting} messages, {waiting_bytes} bytes wait in {account.name}")
    dropped = [(r.copy, r.place, r.state, r.due_ms) for r in account.victims]
    dropped += [(c, account.place_of(c.priority, 1 << 60), READY, 0) for c in account.phantoms]
    if not dropped:
        return
    for copy, place, state, due_ms in dropped:
        for other in account.ready_since:
            if other.seq in account.records and other.state == READY and (state != READY or other.place < place):
                raise Violation("8 limits", f"{account.name} dropped {copy!r} before {other!r}, its head")
        if state != READY:
            for other in account.records.values():
                if other.state == state and other.due_ms < due_ms and other.seq in account.delayed_since:
                    raise Violation("8 limits", f"{account.name} dropped {copy!r} before {other!r}, due earlier")
    if not account.other_moves and not any(c.taken for c in account.consumers):
        largest = max(len(copy.body) for copy, _, _, _ in dropped)
        if account.fits(waiting + 1, waiting_bytes + largest):
            raise Violation("8 limits", f"{account.name} dropped {[c for c, _, _, _ in dropped]} and had room")


# Comparing


def _compare(ledger: Ledger, account: Account) -> None:
    sight = ledger.look(account)
    records = account.records
    ready = account.ready()
    if [e.seq for e in sight.ready] != [r.seq for r in ready]:
        _explain_ready(account, sight, ready)
    delayed = sorted((r.due_ms, r.seq) for r in records.values() if r.state == DELAYED)
    if [(e.due_ms, e.seq) for e in sight.delayed] != delayed:
        raise Violation("4 delay", f"{account.name} delays {[(e.due_ms, e.seq) for e in sight.delayed]}, not {delayed}")
    leased = [r for r in records.values() if r.state == LEASED]
    for record in leased:
        if record.lease is None or not record.lease.live:
            raise Violation("2 leases", f"{record!r} should be leased, its lease has ended")
        if not record.loose and account.core.lease_of(record.seq) is not record.lease:
            raise Violation("2 leases", f"{record!r} is not among the leases of its queue")
    for lease in sight.leases:
        if records[lease.entry.seq].lease is not lease:
            raise Violation("2 leases", f"{records[lease.entry.seq]!r} is under a lease that should have ended")
    for entry in [*sight.ready, *sight.delayed]:
        record = records[entry.seq]
        if (entry.attempts, entry.redelivered) != (record.attempts, record.redelivered):
            raise Violation(
                "5 attempts",
                f"{record!r} has attempts, redelivered {(entry.attempts, entry.redelivered)},"
                f" not {(record.attempts, record.redelivered)}",
            )
    _compare_counts(account, len(ready), len(delayed), leased)


def _explain_ready(account: Account, sight: Sight, ready: list[Record]) -> None:
    shown = [e.seq for e in sight.ready]
    expected = [r.seq for r in ready]
    if sorted(shown) == sorted(expected):
        raise Violation("3 order", f"{account.name} shows {shown}, the order is {expected}")
    wrong = sorted(set(shown) ^ set(expected))
    states = {seq: account.records[seq].state if seq in account.records else "gone" for seq in wrong}
    raise Violation("4 delay and expiry", f"{account.name} has ready {sorted(shown)}, not {sorted(expected)}: {states}")


def _compare_counts(account: Account, ready: int, delayed: int, leased: list[Record]) -> None:
    core = account.core
    if account.unsure or account.either:
        _resolve_unsure(account)
    bytes_ = sum(len(r.copy.body) for r in account.records.values())
    leased_bytes = sum(len(r.copy.body) for r in leased)
    shown = (core.ready, core.delayed, core.leased, core.bytes, core.leased_bytes)
    expected = (ready, delayed, len(leased), bytes_, leased_bytes)
    if shown != expected:
        raise Violation(
            "9 conservation", f"{account.name} counts ready, delayed, leased, bytes {shown}, not {expected}"
        )
    for meter in METERS:
        if getattr(core, meter) != account.tally[meter]:
            raise Violation(
                "9 conservation", f"{account.name} counts {getattr(core, meter)} {meter}, not {account.tally[meter]}"
            )
    check_conservation(account)
    origins: dict[str, int] = {}
    for record in account.records.values():
        if record.copy.dead:
            origin = record.copy.history[0].queue
            origins[origin] = origins.get(origin, 0) + 1
    if core.origins != origins:
        raise Violation("9 conservation", f"{account.name} counts dead by origin {core.origins}, not {origins}")


def _resolve_unsure(account: Account) -> None:
    """Two things a step may decide either way: whether a letter reached a queue before that queue went away, and
    whether a message whose time was up was first pushed out by another.
    """
    tally = account.tally
    more = account.core.dropped - tally["dropped"]
    if 0 < more <= account.either and tally["expired"] - account.core.expired >= more:
        tally["expired"] -= more
        tally["dropped"] += more
    for meter in ("expired", "dropped"):
        less = tally[meter] - getattr(account.core, meter)
        if 0 < less <= account.unsure:
            tally[meter] -= less
            tally["dead_lettered"] += less
            account.unsure -= less


def check_conservation(account: Account) -> None:
    core = account.core
    entered = sum(getattr(core, meter) for meter in ENTRIES)
    left = sum(getattr(core, meter) for meter in EXITS)
    if entered != core.ready + core.delayed + core.leased + left:
        raise Violation(
            "9 conservation",
            f"{entered} entered {account.name}, {core.ready + core.delayed + core.leased} are there, {left} left",
        )


def _check_whole(ledger: Ledger) -> None:
    """What concerns the tenant as a whole."""
    tenant = ledger.tenant
    if not ledger.pages and (
        tenant.memory_bytes != ledger.memory_bytes or ledger.shard.memory_bytes != ledger.memory_bytes
    ):
        raise Violation(
            "memory",
            f"tenant {tenant.memory_bytes}, shard {ledger.shard.memory_bytes} bytes, not {ledger.memory_bytes}",
        )
    if tenant.bindings != ledger.topology.bindings():
        raise Violation("topology", f"{tenant.bindings} bindings, not {ledger.topology.bindings()}")
    own = {name for name in tenant.exchanges if name and not name.startswith("amq.")}
    if own != ledger.topology.hubs.keys():
        raise Violation("topology", f"exchanges {sorted(own)}, not {sorted(ledger.topology.hubs)}")
    if tenant.death_depth:
        raise Violation("5 dead letters", f"death_depth is {tenant.death_depth} between steps")
    for lease in (record.lease for record in ledger.delivered):
        if lease is not None:
            token = lease.token()
            if token in ledger.tokens:
                raise Violation("2 leases", f"token {token} was used before")
            ledger.tokens.add(token)

"""Messages on their way: publishing, taking, settling, time, and the operator's hand in a queue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rookery import errors
from rookery.core import publishing
from rookery.core.consumers import Credit, Mailbox, Subscription
from rookery.core.publishing import Publish
from rookery.format import properties
from tests.simulation import known
from tests.simulation.accounts import Account, Consumer, Copy, Pool, Record, Violation
from tests.simulation.world import Hand, Peer

if TYPE_CHECKING:
    from tests.simulation.world import World

KEYS = ("a", "b", "a.b", "b.a.c", "c")
COLOURS = ("red", "green")
OUTCOMES = ("ack", "ack", "ack", "retry", "retry", "release", "reject")


# Publishing


class Draft:
    """A message to be published."""

    def __init__(self, world: World) -> None:
        rng, plan = world.rng, world.plan
        world.numbers += 1
        self.exchange = ""
        if plan.exchanges and rng.random() < 0.5:
            hubs = list(world.ledger.topology.hubs)
            self.exchange = rng.choice(hubs) if hubs and rng.random() < 0.97 else "nowhere"
        if self.exchange:
            self.key = rng.choice(KEYS)
        else:
            names = list(world.ledger.accounts)
            self.key = rng.choice(names) if names and rng.random() < 0.97 else "nobody"
        self.body = f"m{world.numbers}".encode().ljust(rng.choice((4, 8, 8, 30, 90)), b".")
        self.headers: dict[str, object] = {}
        if plan.groups and rng.random() < 0.7:
            self.headers["x-group-id"] = rng.choice("gh")
        if plan.exchanges and rng.random() < 0.6:
            self.headers["colour"] = rng.choice(COLOURS)
            self.headers["size"] = rng.choice((1, 2))
        self.priority = rng.choice((0, 0, 1, 2, 7, -3, 1 << 40)) if plan.priorities else 0
        if plan.priorities and plan.wide:
            self.priority = rng.randint(-60, 60)
        self.due_ms = self.expires_ms = 0
        now = world.shard.wall_ms
        if plan.delays and rng.random() < 0.35:
            self.due_ms = now + rng.choice((-5, 0, 1, 10, 50, 200, 200, 900, 5_000))
        expiration = None
        if plan.ttl and rng.random() < 0.35:
            ttl_ms = rng.choice((1, 10, 60, 200, 200, 1_000, 6_000))
            self.expires_ms = now + ttl_ms
            expiration = str(ttl_ms)
        self.persistent = not (plan.passing and rng.random() < 0.2)
        headers = self.headers or None
        self.props = properties.encode(properties.Properties(headers=headers, expiration=expiration))
        self.bare = properties.encode(properties.Properties(headers=headers))

    def copy(self, number: int) -> Copy:
        return Copy(
            self.body,
            number,
            self.exchange,
            self.key,
            self.props,
            self.bare,
            self.headers,
            self.priority,
            self.expires_ms,
            persistent=self.persistent,
        )

    def place(self, dedup_key: str) -> tuple[str, str]:
        return ("exchange:" + self.exchange if self.exchange else "queue:" + self.key, dedup_key)

    def error(self, world: World) -> type[errors.RookeryError] | None:
        """The error that publishing it by itself must meet."""
        limits = world.plan.limits
        size = len(self.body) + len(self.props)
        overhead = 200
        if self.exchange and self.exchange not in world.ledger.topology.hubs:
            return errors.ExchangeNotFound
        if size > int(str(limits.get("message_bytes_max", 1 << 40))):
            return errors.MessageTooLarge
        if world.ledger.memory_bytes + size + overhead > int(str(limits.get("memory_bytes_max", 1 << 40))):
            return errors.MemoryLimitExceeded
        return world.refusal if self.persistent else None

    def rejecting(self, world: World) -> list[Account]:
        """The queues that must reject it."""
        names = world.ledger.reach(self.exchange, self.key, self.headers)
        return [world.ledger.accounts[name] for name in names if world.ledger.accounts[name].rejects([len(self.body)])]

    def __str__(self) -> str:
        words = [f"{self.body.rstrip(b'.').decode()}({len(self.body)}B) to {self.exchange!r}/{self.key}"]
        if self.priority:
            words.append(f"priority {self.priority}")
        if self.due_ms:
            words.append(f"due {self.due_ms % 100_000_000}")
        if self.expires_ms:
            words.append(f"expires {self.expires_ms % 100_000_000}")
        if not self.persistent:
            words.append("transient")
        return " ".join([*words, *(f"{name}={value}" for name, value in self.headers.items())])


def publish(world: World) -> None:
    draft = Draft(world)
    world.say(f"publish {draft}")
    wrong = draft.error(world)
    result = world.call(
        lambda: world.shard.publish(
            world.tenant,
            draft.exchange,
            draft.key,
            draft.props,
            draft.body,
            draft.priority,
            draft.expires_ms,
            draft.due_ms,
            draft.persistent,
        ),
        (wrong,) if wrong else (),
    )
    if result is not None:
        message, reached = result
        check_reached(world, draft.copy(message.id), draft.due_ms, reached)
    world.done()


def check_reached(world: World, copy: Copy, due_ms: int, reached: int) -> bool:
    """Enter a publish in the books; False when no queue took it or one refused it."""
    queues, refused = world.ledger.published(copy, due_ms)
    expected = -1 if refused else queues
    if reached != expected:
        raise Violation("routing", f"{copy!r} is said to have reached {reached} queues, not {expected}")
    return expected > 0


def publish_once(world: World) -> None:
    draft = Draft(world)
    dedup_key = world.rng.choice("klmno")
    world.say(f"publish once {dedup_key} {draft}")
    place = draft.place(dedup_key)
    first, certain = world.ledger.marks.find(place, world.shard.wall_ms)
    wrong: tuple[type[errors.RookeryError], ...] = ()
    error = draft.error(world)
    if error is not None and not first:
        wrong = (error,)
    elif error is not None and not certain:
        return
    rejecting = [] if wrong or first else draft.rejecting(world)
    if rejecting and not certain:
        return
    p = Publish(
        draft.exchange,
        draft.key,
        draft.props,
        draft.body,
        draft.priority,
        draft.expires_ms,
        draft.due_ms,
        draft.persistent,
        dedup_key,
    )
    number = int(world.shard.last_id) + 1
    result = world.call(
        lambda: publishing.publish(world.shard, world.tenant, p), (errors.QueueFull,) if rejecting else wrong
    )
    if rejecting:
        world.ledger.rejected(draft.copy(number), rejecting)
    if result is not None:
        number, repeat = result
        if repeat != bool(first) and (certain or repeat):
            raise Violation("7 dedup", f"key {place} is known as {first}, the core says repeat={repeat}")
        if repeat:
            if number != first:
                raise Violation("7 dedup", f"key {place} stands for {number}, not {first}")
        elif world.ledger.published(draft.copy(number), draft.due_ms, refusing=False)[0]:
            remember(world, draft, dedup_key, number)
    world.done()


def remember(world: World, draft: Draft, dedup_key: str, number: int) -> None:
    account = None if draft.exchange else world.ledger.accounts.get(draft.key)
    window_ms = 86_400_000 if account is None else account.terms.dedup_window_ms
    world.ledger.marks.remember(draft.place(dedup_key), number, world.shard.wall_ms + window_ms)


# Taking


def claim(world: World) -> None:
    account = world.some_account()
    if account is None:
        return
    claim_from(world, account, world.rng.choice((1, 1, 2, 5)), world.rng.choice((20, 100, 400, 400, 2_000)))


def claim_from(world: World, account: Account, count: int, lease_ms: int) -> None:
    world.say(f"claim {count} of {account.name} for {lease_ms} ms")
    expected = _claimable(account, count)
    entered = account.core.seq
    leases = world.call(lambda: world.shard.claim(account.core, count, lease_ms))
    assert leases is not None
    world.ledger.claimed = leases
    world.ledger.claim_lease_ms = lease_ms
    account.used_ms = world.shard.mono_ms
    world.ledger.touch(account)
    # A claim passes over exhausted messages; as dead letters they may push others back into this queue, which it finds.
    back = min(account.core.seq - entered, count - (expected or 0))
    if account.terms.distribution != "key-hash" and expected is not None and not 0 <= len(leases) - expected <= back:
        raise Violation("claims", f"{len(leases)} of {account.name} were leased, {expected} are ready")
    world.done()


def _claimable(account: Account, count: int) -> int | None:
    """How many can be claimed: of each group one. None when some are not handed out any more, which frees groups."""
    groups: list[str] = []
    found = 0
    for record in account.ready():
        if found == count:
            break
        if record.over or 0 < account.terms.max_attempts <= record.attempts:
            if account.terms.grouped:
                return None
            continue
        group = record.copy.group if account.terms.grouped else ""
        if group:
            if group in groups or not account.deliverable(record):
                continue
            groups.append(group)
        found += 1
    return found


def wait_claim(world: World) -> None:
    account = world.some_account()
    if account is None or (known.KNOWN_KEY_HASH_PLACES and account.terms.distribution == "key-hash"):
        return
    count = world.rng.choice((1, 1, 3))
    lease_ms = world.rng.choice((50, 400))
    name = f"w{len(world.trace)}"
    world.say(f"wait for {count} of {account.name} as {name}")
    waiting = sum(1 for c in account.consumers if c.once)
    full = waiting >= int(str(world.plan.limits.get("waiting_claims_max", 1_000)))
    mailbox = world.call(
        lambda: world.shard.wait_claim(account.core, count, lease_ms), (errors.LimitExceeded,) if full else ()
    )
    if mailbox is not None:
        consumer = Consumer(account, mailbox, name, count, 0, len(world.trace), once=True, lease_ms=lease_ms)
        world.mailboxes[id(mailbox)] = consumer
        world.ledger.joined(consumer)
    world.done()


def subscribe(world: World) -> None:
    rng = world.rng
    account = world.some_account()
    if account is None or len(account.consumers) > 4:
        return
    limit = rng.choice((1, 1, 2, 3, 10, 0))
    lease_ms = rng.choice((50, 300, 300, 2_000))
    priority = rng.choice((0, 0, 0, 1, 5, -1))
    name = f"c{len(world.trace)}"
    terms = f"{name} to {account.name}: credit {limit}, priority {priority}"
    pool = None
    subscription: Subscription | None
    if world.plan.peers and rng.random() < 0.5:
        peer = _peer(world, account, limit, priority, name)
        pool = next((pool for pool in world.ledger.pools if pool.shared is peer.shared), None)
        lease_ms = peer.lease_ms
        kind = f"{'no-ack ' * peer.no_ack}{'untracked ' * (not peer.tracked)}peer"
        shared = f", shared {pool.limit}" if pool is not None else ""
        world.say(f"subscribe {terms}{shared}, lease {lease_ms} ms, {kind}")
        world.call(partial(account.core.subscribe, peer))
        subscription = peer
    else:
        world.say(f"subscribe {terms}, lease {lease_ms} ms")
        subscription = world.call(partial(world.shard.subscribe, account.core, limit, lease_ms, priority, name))
    assert subscription is not None
    consumer = Consumer(account, subscription, name, limit or None, priority, len(world.trace), lease_ms=lease_ms)
    consumer.pool = pool
    consumer.no_ack = subscription.no_ack
    if isinstance(subscription, Mailbox):
        world.mailboxes[id(subscription)] = consumer
    world.ledger.joined(consumer)
    world.done()


def _peer(world: World, account: Account, limit: int, priority: int, name: str) -> Peer:
    """A consumer as a protocol makes it: with a lease for good, without ack, or with credit shared in its channel."""
    rng = world.rng
    lease_ms = rng.choice((0, 0, 50, 300))
    no_ack = rng.random() < 0.25
    peer = Peer(account.core, limit, lease_ms, no_ack, priority, rng.random() < 0.5)
    peer.watch(world.ledger.handed)
    peer.name = name
    if world.plan.pools and not no_ack and rng.random() < 0.6:
        pools = world.ledger.pools
        if not pools or rng.random() < 0.4:
            shared = Credit(rng.randint(1, 3))
            pools.append(Pool(shared.limit, shared))
        peer.shared = rng.choice(pools).shared
    return peer


def unsubscribe(world: World) -> None:
    """A consumer goes and keeps what it holds."""
    consumer = world.some_consumer()
    if consumer is not None and (consumer.lease_ms or consumer.no_ack):
        world.leave(consumer, "keeps what it holds")


def crash(world: World) -> None:
    """A consumer dies: its leases lapse by themselves, or whoever notices releases them."""
    consumer = world.some_consumer()
    if consumer is None:
        return
    world.flush()
    if consumer.ended:
        return
    mine = [hand for hand in world.hands if hand.record.holder is consumer]
    world.leave(consumer, "crashed")
    if consumer.lease_ms and world.rng.random() < 0.5:
        world.hands = [hand for hand in world.hands if hand not in mine]
        world.past.extend(mine)
        return
    for hand in mine:
        if hand.live and id(hand.lease) not in world.ledger.orphans:
            settle_hand(world, hand, "release")


def pause(world: World) -> None:
    """A consumer stops or resumes taking, or gets another credit."""
    consumer = world.some_consumer()
    if consumer is None:
        return
    subscription = consumer.subscription
    if consumer.once or world.rng.random() < 0.5:
        consumer.paused = subscription.paused = not consumer.paused
        world.say(f"{consumer} {'pauses' if consumer.paused else 'resumes'}")
    else:
        limit = world.rng.choice((1, 2, 4))
        consumer.limit = subscription.limit = limit
        world.say(f"credit of {consumer} is {limit}")
    world.call(consumer.account.core.mark_dirty)
    world.done()


# Settling


def settle(world: World) -> None:
    hand = world.some_hand()
    if hand is not None:
        settle_hand(world, hand, world.rng.choice(OUTCOMES))


def settle_hand(world: World, hand: Hand, outcome: str) -> None:
    if id(hand.lease) in world.ledger.orphans:
        settle_orphan(world, hand.record)
        return
    lease = hand.lease
    queue = lease.queue
    if not hand.record.loose and world.rng.random() < 0.3:
        found = world.shard.lease(world.tenant, hand.token)
        if found is not lease:
            raise Violation("2 leases", f"token {hand.token} stands for {found}, not for its lease")
    delay_ms = world.rng.choice((-1, 0, 0, 30, 400)) if outcome == "retry" else 0
    world.say(f"{outcome} {hand.record!r}" + (f" after {delay_ms} ms" if delay_ms else ""))
    calls = {
        "ack": lambda: queue.ack(lease),
        "retry": lambda: queue.retry(lease, delay_ms, "failed"),
        "release": lambda: queue.release(lease),
        "reject": lambda: queue.reject(lease, "unfit"),
    }
    if not world.call(calls[outcome]):
        raise Violation("2 leases", f"a live lease of {hand.record!r} could not be settled")
    world.ledger.settled(hand.record, outcome, delay_ms)
    world.done()


def settle_orphan(world: World, record: Record) -> None:
    world.say(f"ack {record!r}, whose queue is gone")
    lease = record.lease
    assert lease is not None
    if world.call(lambda: lease.queue.ack(lease)):
        raise Violation("2 leases", f"{record!r} was settled in a queue that is gone")
    world.ledger.abandoned(record)
    world.done()


def late_settle(world: World) -> None:
    """A settle after the lease ended answers no and changes nothing, by lease and by token."""
    world.sort_hands()
    hands = [hand for hand in world.past if not hand.live]
    if not hands:
        return
    hand = world.rng.choice(hands)
    lease, queue = hand.lease, hand.lease.queue
    outcome = world.rng.choice(("ack", "retry", "release", "reject", "extend", "token"))
    world.say(f"late {outcome} of {hand.token}")
    if outcome == "token":
        if world.shard.lease(world.tenant, hand.token) is not None:
            raise Violation("2 leases", f"token {hand.token} of an ended lease still opens one")
        return
    calls = {
        "ack": lambda: queue.ack(lease),
        "retry": lambda: queue.retry(lease, 0, "late"),
        "release": lambda: queue.release(lease),
        "reject": lambda: queue.reject(lease, "late"),
        "extend": lambda: queue.extend(lease, 1_000),
    }
    if world.call(calls[outcome]):
        raise Violation("2 leases", f"a late {outcome} of {hand.token} was accepted")
    for account in world.accounts():
        world.ledger.touch(account)
    world.done()


def strange_token(world: World) -> None:
    """A token that this owner never gave out opens nothing."""
    hand = world.some_hand()
    if hand is None:
        return
    queue, seq, epoch, attempt = hand.token.rsplit("/", 3)
    strange = world.rng.choice(
        (
            f"{queue}/{seq}/{int(epoch) - 1}/{attempt}",
            f"{queue}/{seq}/{epoch}/{int(attempt) + 1}",
            f"{queue}/{int(seq) + 1000}/{epoch}/{attempt}",
            f"nobody/{seq}/{epoch}/{attempt}",
            f"{queue}/{seq}/{epoch}",
            f"{queue}/{seq}/{epoch}/x",
        )
    )
    if world.shard.lease(world.tenant, strange) is not None:
        raise Violation("2 leases", f"token {strange} was never given out and opens a lease")


def extend(world: World) -> None:
    hand = world.some_hand()
    if hand is None or id(hand.lease) in world.ledger.orphans:
        return
    lease_ms = world.rng.choice((1, 30, 500, 3_000))
    world.say(f"extend {hand.record!r} to {lease_ms} ms")
    if not world.call(lambda: hand.lease.queue.extend(hand.lease, lease_ms)):
        raise Violation("2 leases", f"a live lease of {hand.record!r} could not be extended")
    world.ledger.extended(hand.record, lease_ms)
    world.done()


# Time and trouble


def fault(world: World) -> None:
    """The medium is full for a while: publishes are refused, everything else goes on."""
    world.refusing = not world.refusing
    world.say("the medium is full" if world.refusing else "the medium takes publishes again")
    if world.refusing:
        world.shard.log.refuse(errors.StoreFull("no room"))
    else:
        world.shard.log.accept()


def flush(world: World) -> None:
    world.flush()


def time(world: World) -> None:
    rng = world.rng
    due_ms = world.shard.next_due_ms()
    choices = [1, 5, 20, 100, 300, 1_000]
    if due_ms < 100_000:
        choices += [due_ms] * 3 + [max(0, due_ms - 1)]
        if world.plan.fine_time:
            choices += [due_ms] * 12
    jump_ms = 0
    if world.plan.jumps and rng.random() < 0.15:
        jump_ms = rng.choice((-50, -700, -20_000, 40, 600, 20_000))
    world.pass_time(rng.choice(choices), jump_ms)

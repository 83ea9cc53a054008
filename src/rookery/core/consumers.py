"""Who takes messages from a queue: subscriptions, their credit, and the choice among them.

A queue hands an entry to a subscription by calling its `deliver`. A protocol subclasses `Subscription` and writes the
delivery to its peer at once; everybody else uses a `Mailbox`, which collects leases and puts itself on the shard's list
of touched mailboxes, to be emptied by its owner at the end of the turn. A waiting claim is a mailbox that goes after
its first turn with something in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from rookery.format.model import NEVER

if TYPE_CHECKING:
    from rookery.core.entries import Entry, Lease, Park
    from rookery.core.queue import Queue

# How a queue chooses among subscriptions that have credit. Always: higher consumer priority first.
ROUND_ROBIN: Final[i64] = 0
LEAST_BUSY: Final[i64] = 1
KEY_HASH: Final[i64] = 2

DISTRIBUTIONS: Final = {"round-robin": 0, "least-busy": 1, "priority": 0, "key-hash": 2}


@final
class Credit:
    """A limit on unsettled deliveries shared by several subscriptions (an AMQP channel's global prefetch)."""

    def __init__(self, limit: i64) -> None:
        self.limit: i64 = limit
        self.inflight: i64 = 0
        self.members: list[Subscription] = []

    def free(self) -> None:
        """One delivery was settled: if that ends a shortage, every queue of the group may deliver again."""
        self.inflight -= 1
        if self.inflight == self.limit - 1:
            for member in self.members:
                if member.queue.ready:
                    member.queue.mark_dirty()


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscription:
    """A standing demand. `limit` is its credit: how many unsettled deliveries it holds at most. While an `exclusive`
    one is there, its queue takes no other.
    """

    def __init__(self, queue: Queue, limit: i64, lease_ms: i64, no_ack: bool, priority: i64, tracked: bool) -> None:
        self.queue = queue
        self.limit: i64 = limit if limit > 0 else NEVER
        self.lease_ms: i64 = lease_ms
        self.no_ack = no_ack
        self.priority: i64 = priority
        self.tracked = tracked
        self.once = False
        self.exclusive = False
        self.active = False
        self.paused = False
        self.inflight: i64 = 0
        self.delivered: i64 = 0
        self.shared: Credit | None = None
        self.name: str = ""
        self.parked: Park | None = None

    def peer(self) -> object:
        """The connection that it delivers to, None where there is none."""
        return None

    def has_credit(self) -> bool:
        if self.inflight >= self.limit or self.paused:
            return False
        shared = self.shared
        return shared is None or shared.inflight < shared.limit

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        """Hand over an entry; `lease` is None when the subscription takes messages without acknowledgement."""
        raise NotImplementedError

    def lapsed(self, lease: Lease) -> None:
        """A lease of this subscription ran out."""

    def cancelled(self, reason: str) -> None:
        """The queue ended this subscription: it was deleted, or closed a subscriber that was too slow."""


@final
class Mailbox(Subscription):
    """Collects deliveries for an owner who empties it at the end of the turn."""

    def __init__(
        self, queue: Queue, limit: i64, lease_ms: i64, priority: i64, touched: list[Mailbox], once: bool
    ) -> None:
        super().__init__(queue, limit, lease_ms, False, priority, True)
        self.once = once
        self.leases: list[Lease] = []
        self.ended: str = ""
        self.on_event: object = None
        self._touched = touched
        self._is_touched = False

    def deliver(self, entry: Entry, lease: Lease | None) -> None:
        assert lease is not None
        self.leases.append(lease)
        self._touch()

    def cancelled(self, reason: str) -> None:
        self.ended = reason
        self._touch()

    def _touch(self) -> None:
        if not self._is_touched:
            self._is_touched = True
            self._touched.append(self)

    def take(self) -> list[Lease]:
        """The leases collected since the last call that are still live."""
        self._is_touched = False
        taken = [lease for lease in self.leases if lease.live]
        self.leases = []
        return taken


def key_hash(key: str, name: str) -> i64:
    """A number that is the same in every process: FNV-1a over key and name, for rendezvous hashing."""
    h: i64 = 0x4BF29CE484222325
    for c in key:
        h = ((h ^ ord(c)) * 0x100000001B3) & 0x7FFFFFFFFFFFFFFF
    h = ((h ^ 0xFF) * 0x100000001B3) & 0x7FFFFFFFFFFFFFFF
    for c in name:
        h = ((h ^ ord(c)) * 0x100000001B3) & 0x7FFFFFFFFFFFFFFF
    h ^= h >> 32
    h = (h * 0x45D9F3B3335B369) & 0x7FFFFFFFFFFFFFFF
    return h ^ (h >> 29)


@final
class Roster:
    """The subscriptions of one queue, by consumer priority and then age, and the choice among them."""

    def __init__(self) -> None:
        self.all: list[Subscription] = []
        self.distribution: i64 = ROUND_ROBIN
        self.single_active = False
        self._next: i64 = 0
        self._added: i64 = 0
        self._uniform = True

    def add(self, subscription: Subscription) -> None:
        self._added += 1
        if not subscription.name:
            subscription.name = f"#{self._added}"
        at = len(self.all)
        if self.single_active:
            # the active one (first) keeps its place whatever comes later
            while at > 1 and self.all[at - 1].priority < subscription.priority:
                at -= 1
        else:
            while at > 0 and self.all[at - 1].priority < subscription.priority:
                at -= 1
        self.all.insert(at, subscription)
        subscription.active = True
        self._survey()

    def remove(self, subscription: Subscription) -> bool:
        if not subscription.active:
            return False
        self.all.remove(subscription)
        subscription.active = False
        self._survey()
        return True

    def _survey(self) -> None:
        self._uniform = True
        for s in self.all:
            if s.priority != self.all[0].priority:
                self._uniform = False
        self._next = 0

    def choose(self) -> Subscription | None:
        """The subscription that gets the next entry, None when none has credit."""
        everyone = self.all
        n: i64 = len(everyone)
        if n == 0:
            return None
        if self.single_active:
            first = everyone[0]
            return first if first.has_credit() else None
        if self.distribution == LEAST_BUSY:
            return self._least_busy()
        if not self._uniform:
            return self._by_priority()
        i: i64 = 0
        at = self._next
        while i < n:
            if at >= n:
                at = 0
            s = everyone[at]
            at += 1
            if s.inflight < s.limit and s.has_credit():
                self._next = at
                return s
            i += 1
        return None

    def any_credit(self) -> bool:
        """Whether somebody could take an entry now."""
        if self.single_active:
            return bool(self.all) and self.all[0].has_credit()
        for s in self.all:
            if s.has_credit():
                return True
        return False

    def _by_priority(self) -> Subscription | None:
        """The highest priority that has credit; inside it the one served longest ago goes first."""
        everyone = self.all
        n: i64 = len(everyone)
        i: i64 = 0
        while i < n:
            s = everyone[i]
            if s.has_credit():
                # move behind its equals, so that they take turns
                j = i
                while j + 1 < n and everyone[j + 1].priority == s.priority:
                    everyone[j] = everyone[j + 1]
                    j += 1
                everyone[j] = s
                return s
            i += 1
        return None

    def _least_busy(self) -> Subscription | None:
        best: Subscription | None = None
        for s in self.all:
            if s.has_credit() and (
                best is None
                or (
                    s.priority == best.priority
                    and (s.inflight < best.inflight or (s.inflight == best.inflight and s.delivered < best.delivered))
                )
            ):
                best = s
        return best

    def owner_of(self, key: str) -> Subscription | None:
        """Who gets all messages of this key (rendezvous hashing: a newcomer takes only its share)."""
        best: Subscription | None = None
        weight: i64 = -1
        for s in self.all:
            if not s.once:
                w = key_hash(key, s.name)
                if w > weight:
                    weight = w
                    best = s
        return best if best is not None else self.choose()

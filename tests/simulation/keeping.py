"""The world with a journal on a faulty medium: what happens to it, its deaths, and going on after each.

Between steps the world does what an owner does between turns: it lets the journal write and takes the medium's answers,
now or later. When a batch is taken, the durable part of the books is put aside. When the process or the machine dies,
at any moment, the next process must find exactly one of those states, and none that is older than what publishers and
consumers were told.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rookery import errors
from rookery.core.shard import Shard
from rookery.store import changes
from rookery.store.journal import LAZY_MS, SYNC_MS, Journal
from tests.contract.faulty import PLENTY, Fault
from tests.simulation.accounts import Violation
from tests.simulation.disks import FATAL, PASSING, Watched
from tests.simulation.recovering import Snapshot, take_over
from tests.simulation.world import World

Move = Callable[[World], None]


class Terms:
    """What kind of journal and medium one run has."""

    def __init__(self, rng: Random) -> None:
        self.sync = rng.choice(("always", "always", "always", "interval", "os"))
        self.segment_bytes = rng.choice((150, 250, 400, 1_000, 4_000))
        self.laid_out = rng.choice((0, 4_096))
        self.compress_min = rng.choice((0, 0, 50))
        self.page_bytes = rng.choice((300, 800, 2_500)) if rng.random() < 0.45 else 0
        self.faults = rng.choice((0.0, 0.05, 0.2, 0.4))
        self.fatal = rng.choice((0.0, 0.3))
        self.reserve_bytes = rng.choice((0, 2_000))
        self.tight = rng.random() < 0.25
        self.deaths = rng.choice((1.0, 2.0, 5.0))
        self.prompt = rng.choice((0.5, 0.9, 1.0))
        """How soon the owner takes an answer of the medium."""


class KeptWorld(World):
    """See the module's docstring."""

    flags = " --journal"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ledger.pages = bool(self.terms.page_bytes)

    def begin(self) -> Shard:
        self.terms = terms = Terms(self.rng)
        plan = self.plan
        plan.passing = self.rng.random() < 0.5
        plan.faults = False
        plan.transactions |= self.rng.random() < 0.4
        plan.heat["time"] *= 2
        plan.heat["shape"] *= self.rng.choice((1, 1, 4))
        if terms.page_bytes:
            plan.limits.pop("memory_bytes_max", None)
            plan.ttl &= self.rng.random() < 0.4
            plan.groups = plan.key_hash = False
            plan.heat["publish"] *= 2
        self._spills = tempfile.TemporaryDirectory() if terms.page_bytes else None
        self._calls: deque[Callable[[], None]] = deque()
        self._waiting: list[tuple[int, bool, int]] = []
        self._described: tuple[object, dict[str, Any]] = ((), {})
        self.snapshots: dict[int, Snapshot] = {}
        self.tokens: list[str] = []
        self.processes = 0
        self.paged = False
        self.confirmed = 0
        self.answered = 0
        self.last_id = 0
        self._unsynced_since: tuple[int, int, int] | None = None
        self._ghost: Ghost | None = None
        self.taken_over = 0
        self.medium = Watched(None, segment_bytes=terms.laid_out, reserve_bytes=terms.reserve_bytes)
        return self._open()

    def _open(self) -> Shard:
        """A process begins: it owns what is on the medium."""
        shard, self._calls, self.journal = self._begin_process(self.medium)
        self._unsynced_since = None
        self._waiting.clear()
        return shard

    def _begin_process(self, medium: Watched) -> tuple[Shard, deque[Callable[[], None]], Journal]:
        self.processes += 1
        terms = self.terms
        shard = Shard(b"process %d" % self.processes, 1)
        shard.turn(self.clock.wall_ms(), self.clock.mono_ms())
        if terms.page_bytes:
            shard.page_bytes = terms.page_bytes
        calls: deque[Callable[[], None]] = deque()
        journal = Journal(
            shard,
            medium,
            post=calls.append,
            sync=terms.sync,
            segment_bytes=terms.segment_bytes,
            compress_min=terms.compress_min,
            free_bytes_min=1_500 if terms.tight else 0,
            spill_directory=Path(self._spills.name) if self._spills is not None else None,
        )
        journal.open()
        return shard, calls, journal

    # Moves

    def operations(self) -> list[tuple[Move, float]]:
        deaths = self.terms.deaths
        found = super().operations()
        found += [(_method(KeptWorld.die), 0.8 * deaths), (_method(KeptWorld.cut_power), 0.8 * deaths)]
        found.append((_method(KeptWorld.be_taken_over), 0.8 * deaths))
        found += [(_method(KeptWorld.rest), 5.0), (_method(KeptWorld.use_old_token), 1.0)]
        if self.terms.tight:
            found.append((_method(KeptWorld.change_room), 4.0))
        return [(_then_mend(move), weight) for move, weight in found]

    @property
    def refusal(self) -> type[errors.RookeryError] | None:
        why = self.shard.log.refusal
        return None if why is None else type(why)

    def done(self) -> None:
        super().done()
        ledger, log = self.ledger, self.shard.log
        if ledger.altered or ledger.settled_some:
            self._waiting.append((int(log.horizon()), ledger.altered, ledger.steps))
            if ledger.altered or self.rng.random() < 0.7:
                log.urgent = True

    def turned(self) -> None:
        """What an owner does between turns."""
        rng, medium, journal = self.rng, self.medium, self.journal
        if self._ghost is not None and rng.random() < 0.3:
            self._ghost.haunt()
        if medium.held and rng.random() < 0.5:
            self._release(rng.choice((None, None, None, Fault.ANSWER_LOST, *self._fatal())))
        if rng.random() < self.terms.faults:
            fault = rng.choice((*PASSING, *self._fatal()))
            self.say(f"next: {fault.name}")
            medium.script(fault)
        self._drive(journal.retry)
        self._drive(journal.pump)
        while self._calls and rng.random() < self.terms.prompt:
            self._drive(self._calls.popleft())
        self.paged = self.paged or any(queue.paged_out for queue in self.tenant.queues.values())
        self._hear()
        self._check_written_in_time()
        self._check_synced_in_time()

    def _fatal(self) -> tuple[Fault, ...]:
        return FATAL if self.rng.random() < self.terms.fatal else ()

    def _release(self, fault: Fault | None) -> None:
        self.say(f"a slow answer comes{': ' + fault.name if fault is not None else ''}")
        self.medium.release(Fault.SYNC_ERROR if fault is Fault.WRITE_ERROR else fault)

    def _drive(self, call: Callable[[], None]) -> None:
        """Let the journal do something; put the books aside for each batch that it takes."""
        before = self.journal._seq
        call()
        for seq in range(before + 1, self.journal._seq + 1):
            self.say(f"batch {seq} in segment {self.journal.segments[-1].number}")
            self.snapshots[seq] = Snapshot(self.ledger, self._definitions())

    def _definitions(self) -> dict[str, Any]:
        key = (self.shard.epoch, self.tenant.version, repr(self.ledger.policies))
        if self._described[0] != key:
            whole = changes.state(self.shard, None)["definitions"]
            self._described = (key, json.loads(json.dumps(whole)))
        return self._described[1]

    def _hear(self, *, taken_over: bool = False) -> None:
        """Publishers and consumers whose batch is durable, or written, are told so."""
        log = self.shard.log
        for horizon, publish, step in self._waiting:
            if horizon <= log.durable and publish:
                self.confirmed = max(self.confirmed, step)
            if horizon <= log.written:
                self.answered = max(self.answered, step)
        if self.terms.sync == "always" and self.confirmed > self._step_after(self.medium.synced):
            raise Violation("1 confirms", f"step {self.confirmed} was confirmed, and is not synced")
        if self.answered > self._step_after(self.medium.answered):
            raise Violation("11 settles", f"step {self.answered} was answered, and is not written")
        self._waiting = [w for w in self._waiting if w[0] > min(log.durable, log.written)]
        if log.failure is not None and self.medium._failure is None and not taken_over:
            raise Violation("recovery", f"the journal gave up by itself: {log.failure}")

    def _step_after(self, seq: int) -> int:
        """Up to which step the journal tells, if it ends with that batch."""
        snapshot = self.snapshots.get(seq)
        return 0 if snapshot is None else snapshot.step

    def _check_written_in_time(self) -> None:
        """What nobody waits for is written within a tenth of a second, if the owner comes when it is asked to."""
        journal = self.journal
        if journal._in_flight is not None or journal._syncing or self.shard.log.failure is not None:
            return
        due_ms = journal.next_due_ms()
        if self.shard.log.pending() and (due_ms is None or due_ms > LAZY_MS):
            raise Violation("11 settles", f"there is something to write, and the journal is due in {due_ms} ms")

    def _check_synced_in_time(self) -> None:
        """By the interval policy, what was answered is synced a second later, if the medium did not fail meanwhile."""
        medium = self.medium
        if self.terms.sync != "interval" or medium.synced >= medium.answered or medium._failure is not None:
            self._unsynced_since = None
        elif self._calls or self.journal._in_flight is not None or self.journal._syncing:
            return
        elif self._unsynced_since is None or self._unsynced_since[:2] != (medium.synced, medium.sync_failures):
            self._unsynced_since = (medium.synced, medium.sync_failures, self.shard.mono_ms)
        elif self.shard.mono_ms - self._unsynced_since[2] > SYNC_MS:
            raise Violation("1 nothing is lost", "what was answered a second ago is not synced")

    def rest(self) -> None:
        """A quiet time, in which the journal can tidy up."""
        for _ in range(self.rng.choice((2, 4, 12))):
            self.pass_time(self.rng.choice((1, 60, 110)))

    def change_room(self) -> None:
        """Others use the disk too."""
        disk = self.medium.disk
        room = self.rng.choice((0, 500, 1_500, 4_000, PLENTY))
        self.say(f"room for {room} bytes")
        disk.capacity_bytes = disk.used_bytes() + room

    def use_old_token(self) -> None:
        """A lease that an earlier process gave out opens nothing."""
        for token in self.tokens[-20:]:
            if self.shard.lease(self.tenant, token) is not None:
                raise Violation("2 leases", f"token {token} of an earlier process opens a lease")

    # Deaths

    def die(self) -> None:
        self.say("the process dies")
        floor, told = self.medium.answered, max(self.answered, self.confirmed)
        self._go_on(self.medium.die(self.rng), floor, told)

    def cut_power(self) -> None:
        self.say("the machine dies")
        told = self.confirmed if self.terms.sync == "always" else 0
        self._go_on(self.medium.cut_power(self.rng), self.medium.synced, told)

    def be_taken_over(self) -> None:
        """Another process takes over while this one lives, and goes on between any two of its steps."""
        if self.medium._failure is not None or self.shard.log.failure is not None:
            return
        self.say("another process takes over")
        terms, old = self.terms, self.medium
        heir = Watched(old.disk, segment_bytes=terms.laid_out, reserve_bytes=terms.reserve_bytes, between=self._live_on)
        try:
            shard, calls, journal = self._begin_process(heir)
        except errors.RookeryError as error:
            raise Violation("recovery", f"{type(error).__name__}: {error}") from error
        # perhaps a slow answer is still to come, or a batch still to be written
        self._hear(taken_over=True)
        floor, told = old.answered, max(self.answered, self.confirmed)
        ghost = Ghost(self.shard, self.journal, old, self._calls)
        secret = self._part()
        self.medium, self.shard, self._calls, self.journal = heir, shard, calls, journal
        self._unsynced_since = None
        self._waiting.clear()
        self._ghost = ghost
        self.taken_over += 1
        self._check_found(secret, floor, told)

    def _live_on(self) -> None:
        """One thing that an owner does, if it happens to."""
        rng = self.rng
        if self.medium.held and rng.random() < 0.3:
            self._release(None)
        elif rng.random() < 0.3:
            self._drive(self.journal.pump)
        elif self._calls and rng.random() < 0.5:
            self._drive(self._calls.popleft())

    def _go_on(self, disk: Any, floor: int, told: int) -> None:
        """The next process: the last state that is owed, or a later one."""
        secret = self._part()
        self.journal.pager.close()
        terms = self.terms
        self.medium = Watched(disk, segment_bytes=terms.laid_out, reserve_bytes=terms.reserve_bytes)
        try:
            self.shard = self._open()
        except errors.RookeryError as error:
            raise Violation("recovery", f"{type(error).__name__}: {error}") from error
        self._check_found(secret, floor, told)

    def _part(self) -> bytes:
        """Part from a process; the secret behind its ids."""
        old = self.shard
        self._ghost = None
        self.last_id = max(self.last_id, int(old.last_id))
        self.sort_hands()
        self.tokens += [hand.token for hand in [*self.hands, *self.past]]
        self.clock.advance(self.rng.choice((0, 0, 10, 500, 3_000)))
        if self.plan.jumps and self.rng.random() < 0.3:
            self.clock.jump_wall(self.rng.choice((-700, 600, 20_000)))
        return old.ids.secret

    def _check_found(self, secret: bytes, floor: int, told: int) -> None:
        seq = self.journal._seq
        self.say(f"process {self.processes} goes on after batch {seq}")
        self.medium.answered = self.medium.synced = seq
        if seq < floor:
            raise Violation("1 nothing is lost", f"batch {floor} was answered, recovery ends with batch {seq}")
        self.snapshots = {n: snapshot for n, snapshot in self.snapshots.items() if n <= seq}
        if "acme" in self.shard.tenants and self.shard.ids.secret != secret:
            raise Violation("ids", "the secret behind the ids is another one")
        self._forget()
        self._take_over(seq, told)

    def _forget(self) -> None:
        """What only the old process knew."""
        self.mail.clear()
        self.mailboxes.clear()
        self.hands.clear()
        self.past.clear()
        self.open_transactions.clear()
        self.past_transactions.clear()

    def _take_over(self, seq: int, told: int) -> None:
        ledger = self.ledger
        ledger.shard = self.shard
        found = self.snapshots.get(seq)
        if found is None:
            if seq or told:
                raise Violation("recovery", f"no state is known after batch {seq}")
            self.tenant = ledger.tenant = self.make_tenant()
            found = Snapshot(type(ledger)(self.shard, self.tenant, self.tenant.limits.dedup_keys_max), {})
        else:
            if found.step < told:
                raise Violation(
                    "1 nothing is lost", f"step {told} was answered, recovery ends before step {found.step}"
                )
            if "acme" not in self.shard.tenants:
                raise Violation("definitions", "the tenant is gone")
            self.tenant = ledger.tenant = self.shard.tenants["acme"]
            shown = changes.state(self.shard, None)["definitions"]
            if json.loads(json.dumps(shown)) != found.definitions:
                raise Violation("definitions", f"{shown} came back, not {found.definitions}")
        if self.shard.last_id < self.last_id:
            raise Violation("ids", f"message {self.last_id} was given out, {self.shard.last_id + 1} comes next")
        take_over(ledger, found)
        self.confirmed = self.answered = 0
        self.pass_time(0)

    # The end

    def calm(self) -> None:
        """No more faults; what failed is started again."""
        self.terms.faults = self.terms.fatal = 0.0
        self.terms.prompt = 1.0
        self.medium._script.clear()
        self.medium.disk.capacity_bytes = PLENTY
        if self.medium.held:
            self._release(None)
        self.flush()
        if self.shard.log.failure is not None:
            self.die()
        for _ in range(10):
            self.pass_time(300)
        if self.shard.log.refusing:
            raise Violation("8 limits", f"there is room, and publishes are refused: {self.shard.log.refusal}")

    def run(self, steps: int) -> None:
        super().run(steps)
        for _ in range(40):
            self.pass_time(110)
        if self._waiting:
            raise Violation("1 nothing is lost", f"{len(self._waiting)} answers never came")
        self.die()
        if any(account.records for account in self.accounts()):
            raise Violation("1 settled and back", "a drained broker has messages after a restart")

    def end(self) -> None:
        super().end()
        self.journal.pager.close()
        if self._spills is not None:
            self._spills.cleanup()


class Ghost:
    """A process that was taken over and does not know it: whatever it does from now on, it confirms nothing."""

    def __init__(self, shard: Shard, journal: Journal, medium: Watched, calls: deque[Callable[[], None]]) -> None:
        self._shard = shard
        self._journal = journal
        self._medium = medium
        self._calls = calls

    def haunt(self) -> None:
        """Publish something, and let everything go on that can. Answers from before count, but they were heard."""
        log = self._shard.log
        while self._calls:
            self._calls.popleft()()
        known = (int(log.durable), int(log.written))
        for tenant in self._shard.tenants.values():
            for name in list(tenant.queues):
                with contextlib.suppress(errors.RookeryError):
                    self._shard.publish(tenant, "", name, b"", b"of a ghost")
        self._shard.flush()
        log.urgent = log.wants_sync = True
        self._journal.pump()
        while self._medium.held:
            self._medium.release()
        while self._calls:
            self._calls.popleft()()
        if (int(log.durable), int(log.written)) != known:
            raise Violation("1 confirms", "a process that was taken over confirms what nobody will find")


def _method(method: Callable[[KeptWorld], None]) -> Move:
    def move(world: World) -> None:
        assert isinstance(world, KeptWorld)
        method(world)

    return move


def _then_mend(move: Move) -> Move:
    """A journal that failed is started again, sooner or later."""

    def both(world: World) -> None:
        assert isinstance(world, KeptWorld)
        move(world)
        if world.shard.log.failure is not None and world.rng.random() < 0.1:
            world.rng.choice((world.die, world.cut_power))()

    return both

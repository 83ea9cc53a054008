"""Random lives of a broker over a faulty medium, with crashes of the process and of the machine; one seed, one life.

Two things are checked after each crash. The state is exactly the one that the last surviving batch was taken from. And
a ledger, which knows nothing of batches, holds what publishers and consumers were told: what was confirmed and not
acked is there, what was acked (and answered) is not, as far as the sync policy covers the kind of death.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookery.core.policy import Policy
from rookery.core.publishing import Publish
from rookery.core.transactions import Settle, apply
from rookery.errors import RookeryError
from rookery.format.properties import EMPTY
from rookery.store.medium import Done
from tests.contract.faulty import Disk, Fault, FaultyMedium
from tests.contract.journal_world import START_MS, World, as_of, picture

LONG = os.environ.get("ROOKERY_LONG") == "1"
QUEUES = ("a", "b", "c")


class Recording(FaultyMedium):
    """Remembers how the broker was when each batch was taken."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, segment_bytes=0)
        self.on_append: Callable[[int], None] = lambda seq: None

    def append(
        self, epoch: int, seq: int, segment: int, data: bytes, sync: bool, done: Done, *, urgent: bool = False
    ) -> None:
        self.on_append(seq)
        super().append(epoch, seq, segment, data, sync, done, urgent=urgent)


class Ledger:
    """What the world outside was told, by message body."""

    def __init__(self) -> None:
        self.published: dict[bytes, int] = {}
        self.acked: dict[bytes, int] = {}

    def must_be_there(self, durable: int) -> set[bytes]:
        return {body for body, horizon in self.published.items() if horizon <= durable and body not in self.acked}

    def must_be_gone(self, durable: int) -> set[bytes]:
        return {body for body, horizon in self.acked.items() if horizon <= durable}


class Life:
    def __init__(self, where: Path, seed: int, sync: str) -> None:
        self.chance = random.Random(seed)
        self.sync = sync
        self.where = where
        self.options: dict[str, Any] = {"sync": sync, "segment_bytes": self.chance.choice([300, 2_000, 20_000])}
        self.options["compress_min"] = self.chance.choice([0, 50])
        self.options["compression"] = self.chance.choice(["zlib", "zstd"])
        self.disk = Disk()
        self.wall_ms = START_MS
        self.serial = 0
        self.crashes = 0
        self.pictures: dict[int, dict[str, Any]] = {}
        self.start()

    def start(self) -> None:
        """The next process. What it finds is kept before anything happens to it."""
        self.medium = Recording(self.disk)
        self.world = World(self.medium, wall_ms=self.wall_ms, **self.options)
        self.found = picture(self.world)
        self.pictures = {seq: then for seq, then in self.pictures.items() if seq <= self.world.recovery.seq}
        self.ledger = Ledger()
        self.medium.on_append = self.note
        for name in QUEUES:
            self.queue(name)

    def queue(self, name: str) -> Any:
        return self.world.queue(name, {"max_attempts": 3, "dead_letter_queue": "dead"})

    def note(self, seq: int) -> None:
        if seq not in self.pictures:
            self.pictures[seq] = picture(self.world)

    # What happens

    def step(self) -> None:
        act = self.chance.choices(
            [self.publish, self.consume, self.transact, self.define, self.idle, self.turn, self.misfortune],
            [30, 30, 6, 3, 6, 20, 3],
        )[0]
        try:
            act()
        except RookeryError:
            # refused by a journal that failed: then only a restart helps
            assert self.world.shard.log.refusing

    def body(self) -> bytes:
        self.serial += 1
        return b"%d " % self.serial + b"x" * self.chance.randrange(120)

    def told(self, where: dict[bytes, int], body: bytes) -> None:
        where[body] = int(self.world.shard.log.horizon())

    def publish(self) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            body = self.body()
            options: dict[str, Any] = {}
            if self.chance.random() < 0.2:
                options["priority"] = self.chance.randrange(-2, 3)
            if self.chance.random() < 0.1:
                options["due_ms"] = self.world.wall_ms + self.chance.randrange(5_000)
            if self.chance.random() < 0.1:
                self.world.publish(body, self.chance.choice(QUEUES), persistent=False)
                continue
            if self.chance.random() < 0.1:
                # to several queues, or for a while: not in the ledger
                self.world.publish(b"all " + body, f"k{self.chance.randrange(3)}", "amq.topic")
                self.world.publish(b"short " + body, "a", expires_ms=self.world.wall_ms + 1_000)
                continue
            if self.chance.random() < 0.1:
                key = f"k{self.chance.randrange(30)}"
                if not self.world.publish_once(key, body, self.chance.choice(QUEUES)):
                    continue
            else:
                self.world.publish(body, self.chance.choice(QUEUES), **options)
            self.told(self.ledger.published, body)

    def consume(self) -> None:
        queue = self.queue(self.chance.choice([*QUEUES, "dead"]))
        for lease in queue.claim(self.chance.randrange(1, 6), 3_000):
            fate = self.chance.random()
            if fate < 0.6:
                queue.ack(lease)
                if not lease.entry.message.body.startswith(b"all"):
                    self.told(self.ledger.acked, lease.entry.message.body)
            elif fate < 0.7:
                queue.retry(lease, self.chance.choice([0, 0, 2_000]), "failed")
            elif fate < 0.8:
                queue.release(lease)
            elif fate < 0.85:
                queue.reject(lease, "unfit")

    def transact(self) -> None:
        bodies = [self.body() for _ in range(2)]
        leases = self.queue("a").claim(1, 3_000)
        publishes = [Publish("", self.chance.choice(QUEUES), EMPTY, body) for body in bodies]
        apply(self.world.shard, self.world.tenant(), [*publishes, *(Settle(lease, "ack") for lease in leases)])
        for body in bodies:
            self.told(self.ledger.published, body)
        for lease in leases:
            if not lease.entry.message.body.startswith(b"all"):
                self.told(self.ledger.acked, lease.entry.message.body)

    def define(self) -> None:
        tenant = self.world.tenant()
        what = self.chance.randrange(5)
        if what == 0:
            name = self.chance.choice(QUEUES)
            gone = tenant.queue(name)
            bodies = [entry.message.body for entry in gone.waiting_entries()]
            bodies += [lease.entry.message.body for lease in gone.leases()]
            tenant.delete_queue(name)
            self.queue(name)
            for body in bodies:
                if not body.startswith(b"all"):
                    self.told(self.ledger.acked, body)
        elif what == 1:
            tenant.set_policy(Policy("p", self.chance.choice(QUEUES), {"lease_ms": self.chance.randrange(1, 9_000)}))
        elif what == 2:
            tenant.bind("amq.topic", tenant.queue(self.chance.choice(QUEUES)), f"k{self.chance.randrange(3)}")
        elif what == 3 and "x" in tenant.exchanges:
            tenant.delete_exchange("x")
        else:
            tenant.declare_exchange("x", "fanout")

    def idle(self) -> None:
        self.world.pass_ms(self.chance.choice([1, 150, 1_100]))
        self.wall_ms = self.world.wall_ms

    def turn(self) -> None:
        self.world.shard.log.urgent = self.chance.random() < 0.5
        self.world.turn()
        if self.medium.held and self.chance.random() < 0.7:
            self.medium.release()
            self.world.turn()

    def misfortune(self) -> None:
        fault = self.chance.choice([*Fault, Fault.SLOW, Fault.ANSWER_LOST])
        if not self.medium.held:
            self.medium.script(fault)

    # Death and after

    def die(self) -> None:
        self.crashes += 1
        machine = self.chance.random() < 0.5
        durable = int(self.world.shard.log.durable)
        synced, written = self.world.journal._synced, self.medium._seq
        # some died of their attempts: that is not the journal's doing
        alive = bodies(picture(self.world))
        crashed = self.medium.crash(
            tail=self.losing if machine else lambda unsynced: unsynced,
            undelete=self.chance.randrange(2) if machine else 0,
        )
        ledger, pictures = self.ledger, self.pictures
        self.disk = crashed.disk
        self.world.shard.let_go()
        self.start()
        seq = int(self.world.recovery.seq)
        assert seq >= synced
        if seq:
            assert as_of(pictures[seq], self.wall_ms) == self.found
        there = bodies(self.found)
        if self.sync == "always" or not machine:
            assert ledger.must_be_there(durable) & alive <= there
        if not machine:
            assert seq == written
            assert not ledger.must_be_gone(durable) & there

    def losing(self, unsynced: bytes) -> bytes:
        kept = bytearray(unsynced[: self.chance.randrange(len(unsynced) + 1)])
        for at in range(0, len(kept), 64):
            if self.chance.random() < 0.2:
                kept[at : at + 64] = bytes(len(kept[at : at + 64]))
        return bytes(kept)


def bodies(of: dict[str, Any]) -> set[bytes]:
    return {row[3] for rows in of["messages"].values() for row in rows}


def live(where: Path, seed: int, sync: str, steps: int) -> Life:
    life = Life(where, seed, sync)
    for _ in range(steps):
        life.step()
        failed = life.world.shard.log.failure is not None
        if life.chance.random() < (0.3 if failed else 0.02):
            life.die()
    life.die()
    return life


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("seed", range(100 if LONG else 12))
def test_a_life_with_crashes(tmp_path: Path, seed: int, sync: str) -> None:
    life = live(tmp_path, seed, sync, 1_500 if LONG else 400)
    assert life.crashes > 3

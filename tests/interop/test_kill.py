"""A process with a durable broker is killed again and again while it publishes, settles, transacts, pages and compacts.

What it told before it died is held against what its successor finds: nothing confirmed is lost, nothing whose ack was
answered is back, no transaction or batch is half done, dedup keys are remembered, and queues keep their order. Each
finding becomes the account for the next life, so what was gone once may never come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO

import pika
import pika.exceptions
import pytest

from tests.interop.kill_child import QUEUES, TOPIC
from tests.interop.server import serving

ROOT = Path(__file__).parents[2]
KILLS = 10
LONG_KILLS = 200
PATIENCE_S = 120
UNORDERED = ("single.dead", "keys")


class Operation:
    """What happens wholly or not at all: `answered` is whether the child was told that it happened."""

    def __init__(self, adds: list[str], takes: list[str], life: int) -> None:
        self.adds = adds
        self.takes = takes
        self.life = life
        self.answered = False
        self.seen: set[bool] = set()


class Account:
    """Which messages must, may and must not be there, by what the child has told so far.

    A placement is `queue:id`; it is added by one operation and taken by at most one that is not refused.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.adder: dict[str, Operation] = {}
        self.taker: dict[str, Operation] = {}
        self.gone: set[str] = set()
        self.uuids: dict[str, str] = {}
        self.keyed: list[int] = []
        self._unsure: set[str] = set()
        self.retries: dict[str, tuple[int, int]] = {}
        self.declared = False
        self.totals: Counter[str] = Counter()
        self.peaks: Counter[str] = Counter()
        self._open: dict[str, Operation] = {}
        self._retrying: dict[str, str] = {}
        self._found: list[str] = []
        self._retired = 0
        self._life = 0

    def hear(self, line: str) -> None:
        word, *rest = line.split(" ")
        if word == "try":
            self._try(rest[0], rest[1:])
        elif word == "ok":
            self._ok(rest[0], rest[1])
        elif word == "got":
            self._got(rest[0], int(rest[1]))
        elif word == "has":
            self._found.append(rest[0])
        elif word == "queues" and self.declared:
            self._expect(set(QUEUES) <= set(rest), f"queues are missing: {set(QUEUES) - set(rest)}")
        elif word == "declared":
            self.declared = True
        elif word == "dumped":
            self.audit()
        elif word == "repeat":
            self._repeat(f"keys:{rest[0]}")
        elif word == "again":
            self._again(int(rest[0]), rest[1], int(rest[2]))
        elif word == "journal":
            self._retired, segments, paged = map(int, rest)
            self.peaks["segments"] = max(self.peaks["segments"], segments)
            self.peaks["paged"] = max(self.peaks["paged"], paged)

    def died(self) -> None:
        """The child is no more; what it found, if it did not come to the end of that, does not count."""
        self._found = []
        self.totals["retired"] += self._retired
        self._retired = 0
        self._life += 1

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def _try(self, number: str, changes: list[str]) -> None:
        if changes[0].startswith("~"):
            self._retrying[number] = changes[0][1:]
            done, tried = self.retries.get(changes[0][1:], (0, 0))
            self.retries[changes[0][1:]] = (done, tried + 1)
            return
        adds = [change[1:] for change in changes if change[0] == "+"]
        takes = [change[1:] for change in changes if change[0] == "-"]
        operation = self._open[number] = Operation(adds, takes, self._life)
        for placement in adds:
            self._expect(placement not in self.adder, f"{placement} was added already, and its origin is back")
            self.adder[placement] = operation
            if placement.startswith("keys:"):
                self.keyed.append(int(placement[5:]))
        for placement in takes:
            self._expect(placement not in self.gone, f"{placement} was gone and was delivered")
            self.taker[placement] = operation

    def _ok(self, number: str, uuid: str) -> None:
        self.totals["answered"] += 1
        retried = self._retrying.pop(number, None)
        if retried is not None:
            done, tried = self.retries[retried]
            self.retries[retried] = (done + 1, tried)
            return
        operation = self._open.pop(number)
        operation.answered = True
        if uuid and operation.adds[0].startswith("keys:"):
            self.uuids[operation.adds[0]] = uuid

    def _got(self, placement: str, attempt: int) -> None:
        self._expect(placement in self.adder, f"{placement} came from nowhere")
        taker = self.taker.get(placement)
        self._expect(taker is None or not taker.answered, f"{placement} was settled and was delivered again")
        done, tried = self.retries.get(placement, (0, 0))
        if placement in self.adder:
            # what was in a consumer's hands when the process died may count as an attempt or not
            tried += self._life - self.adder[placement].life
        self._expect(done < attempt <= tried + 1, f"{placement}: attempt {attempt} after {done} to {tried} others")

    def _repeat(self, placement: str) -> None:
        """A dedup key of an earlier life is used once more: if it is not known, that adds its message."""
        if placement not in self.adder:
            self._open[placement] = self.adder[placement] = Operation([placement], [], self._life)

    def _again(self, id: int, uuid: str, grew: int) -> None:
        """The repeat was answered."""
        placement = f"keys:{id}"
        self.totals["repeats"] += 1
        new = self._open.pop(placement, None)
        if placement in self.uuids:
            first = self.uuids[placement]
            self._expect(uuid == first, f"{placement}: a repeat was answered {uuid}, the first {first}")
            self._expect(grew == 0, f"{placement}: a repeat of a confirmed key was added")
        elif grew:
            self._expect(new is not None, f"{placement} happened, and its repeat was added")
            self.adder[placement].answered = True
        elif new is not None:
            self._expect(placement in self._unsure, f"{placement}: its key was kept, its message was not")
            del self.adder[placement]
        self.uuids[placement] = uuid

    # The audit

    def audit(self) -> None:
        """Hold what was found against what was told; from now on what was found is the truth."""
        self._check_order()
        found = set(self._found)
        self.totals["found"] += len(found)
        for placement in found - self.adder.keys():
            self.wrong.append(f"{placement} came from nowhere")
        doubtful = []
        for placement, adder in self.adder.items():
            taker = self.taker.get(placement)
            there = placement in found
            if placement in self.gone or (taker is not None and taker.answered):
                self._expect(not there, f"{placement} was settled and is back")
            elif taker is None and adder.answered:
                self._expect(there, f"{placement} was confirmed and is lost")
            elif taker is None:
                adder.seen.add(there)
            elif there:
                adder.seen.add(True)
                taker.seen.add(False)
            elif adder.answered:
                taker.seen.add(True)
            else:
                doubtful.append((placement, adder, taker))
        self._check_open(doubtful)
        self._settle(found, doubtful)

    def _check_order(self) -> None:
        last: dict[str, int] = {}
        twice = Counter(self._found)
        for placement in self._found:
            queue, _, id = placement.rpartition(":")
            self._expect(twice[placement] == 1, f"{placement} is there {twice[placement]} times")
            if queue not in UNORDERED:
                self._expect(last.get(queue, 0) < int(id), f"{placement} is out of order")
            last[queue] = int(id)

    def _check_open(self, doubtful: list[tuple[str, Operation, Operation]]) -> None:
        for operation in self._open.values():
            self.totals["open"] += 1
            self.totals["open, happened"] += True in operation.seen
            half = f"half happened: +{operation.adds} -{operation.takes}"
            self._expect(len(operation.seen) < 2, half)
        for placement, adder, taker in doubtful:
            if adder.seen == {True}:
                self._expect(taker.seen != {False}, f"{placement} was added, is not there and was not taken")
            if adder.seen == {False}:
                self._expect(taker.seen != {True}, f"{placement} was taken, but what was added with it is not there")

    def _settle(self, found: set[str], doubtful: list[tuple[str, Operation, Operation]]) -> None:
        """From now on what was found is the truth: what did not happen may be tried again, what is gone stays gone."""
        for operation in self._open.values():
            if True not in operation.seen:
                for placement in operation.adds:
                    del self.adder[placement]
                    self.taker.pop(placement, None)
        self._unsure = {placement for placement, _, _ in doubtful}
        for placement, adder in self.adder.items():
            adder.answered = True
            if placement in found:
                self.taker.pop(placement, None)
            else:
                self.gone.add(placement)
        # whether a retry without an answer counts is told by the next delivery
        self._open = {}
        self._retrying = {}
        self._found = []


class Killer:
    """Starts children on one directory and ends them, at moments that a seed decides."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.account = Account()
        self._directory = directory
        self._rng = random.Random(seed)
        self._lives = 0

    def _start(self, work: bool) -> subprocess.Popen[str]:
        self._lives += 1
        keyed = self.account.keyed
        # the newest ones: among them are those that were never answered
        keys = keyed[-12:] + self._rng.sample(keyed[:-12], min(12, len(keyed[:-12])))
        plan = {
            "directory": str(self._directory),
            "seed": self._rng.getrandbits(32),
            "first_id": self._lives * 10_000_000,
            "keys": keys,
            "work": work,
        }
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        command = [sys.executable, "-m", "tests.interop.kill_child", json.dumps(plan)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def life(self) -> None:
        """One child, killed at a random moment: mostly at work, sometimes while it starts."""
        early = self._rng.random() < 0.2
        after_lines = self._rng.randrange(0, 400) if early else self._rng.randrange(1, 6000)
        child = self._start(work=True)
        self._listen(child, early, after_lines)
        child.kill()
        self._end(child, -9)
        self.account.died()

    def last_life(self) -> None:
        """One more child, which looks at what there is and closes its broker."""
        child = self._start(work=False)
        self._listen(child, False, sys.maxsize)
        self._end(child, 0)

    def _listen(self, child: subprocess.Popen[str], early: bool, lines: int) -> None:
        """Hear the child until it has said so many lines, counted from its start or from the start of its work."""
        watchdog = threading.Timer(PATIENCE_S, child.kill)
        watchdog.start()
        counting = early
        assert child.stdout is not None
        while lines > 0:
            line = child.stdout.readline()
            if not line:
                break
            self.account.hear(line.rstrip("\n"))
            counting |= line == "working\n"
            lines -= counting
        watchdog.cancel()

    def _end(self, child: subprocess.Popen[str], wanted: int) -> None:
        assert child.stdout is not None and child.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(child.stderr,))
        reader.start()
        self._hear_rest(child.stdout)
        reader.join()
        code = child.wait()
        child.stdout.close()
        child.stderr.close()
        assert code == wanted and not errors[0], f"life {self._lives} ended with {code}:\n{errors[0]}"

    def _hear_rest(self, stream: IO[str]) -> None:
        for line in stream:
            # a write of one line is whole or not there, but for a pipe that was full
            if line.endswith("\n"):
                self.account.hear(line.rstrip("\n"))


def kill_often(directory: Path, kills: int) -> None:
    seed = int(os.environ.get("ROOKERY_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"again: ROOKERY_SEED={seed}")
    killer = Killer(directory, seed)
    account = killer.account
    for life in range(kills):
        killer.life()
        assert not account.wrong, f"ROOKERY_SEED={seed}, life {life + 1}: " + "; ".join(account.wrong[:10])
    killer.last_life()
    assert not account.wrong, f"ROOKERY_SEED={seed}, at the end: " + "; ".join(account.wrong[:10])
    print(f"{dict(account.totals)}, at most {dict(account.peaks)}")
    # the test is worth something only if the child was at it
    assert account.totals["answered"] > 20 * kills
    assert account.totals["open"] > kills
    assert account.totals["retired"] > 0, "nothing was compacted"
    assert account.peaks["paged"] > 0, "nothing was paged"
    assert account.totals["repeats"] > 0


@pytest.mark.row("S1-30", "S1-53", "S2-42", "S3-6", "S4-29")
def test_nothing_confirmed_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    kill_often(tmp_path / "data", KILLS)


@pytest.mark.long
def test_nothing_confirmed_is_lost_over_many_kills(tmp_path: Path) -> None:
    kill_often(tmp_path / "data", LONG_KILLS)


class Declarer:
    """A client that declares, binds and deletes until its server dies, and knows what it was answered."""

    def __init__(self, port: int, name: str) -> None:
        self.kept: set[str] = set()
        self.bound: set[str] = set()
        self.deleted: set[str] = set()
        self._connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self._thread = threading.Thread(target=self._work, args=(name,))
        self._thread.start()

    def _work(self, name: str) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError):
            channel = self._connection.channel()
            for n in range(1_000_000):
                queue = f"{name}-{n}"
                channel.queue_declare(queue, durable=True)
                self.kept.add(queue)
                channel.queue_bind(queue, "amq.topic", queue)
                self.bound.add(queue)
                if n % 3 == 0:
                    # from here on nobody knows, until the answer
                    self.kept.discard(queue)
                    self.bound.discard(queue)
                    channel.queue_delete(queue)
                    self.deleted.add(queue)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def exists(connection: pika.BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    channel.close()
    return True


@pytest.mark.row("S3-6")
def test_what_was_declared_over_amqp_survives_a_kill(tmp_path: Path) -> None:
    declarers: list[Declarer] = []
    for life in range(3):
        with serving(tmp_path) as server:
            new = [Declarer(server.amqp, f"{life}-{n}") for n in range(6)]
            # the moment is what this is about
            time.sleep(random.SystemRandom().uniform(0.1, 0.6))
            server.process.kill()
            server.wait()
            for declarer in new:
                declarer.join()
            declarers += new
    kept = set().union(*(each.kept for each in declarers))
    bound = set().union(*(each.bound for each in declarers))
    deleted = set().union(*(each.deleted for each in declarers))
    assert len(kept) > 20
    assert len(deleted) > 10
    with serving(tmp_path) as server:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp))
        assert [queue for queue in sorted(kept) if not exists(connection, queue)] == []
        assert [queue for queue in sorted(deleted) if exists(connection, queue)] == []
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in sorted(bound):
            channel.basic_publish("amq.topic", queue, b"x", mandatory=True)
        connection.close()


def test_the_account_would_notice() -> None:
    """Each way to break a promise is seen by the audit."""
    told = [
        "declared",
        "try 1 +a:1",
        "ok 1 ",
        "try 2 +a:2 +a:3",
        "try 3 +b:9 -a:1",
        "try 4 +c:5",
        "ok 4 ",
        "try 5 -c:5",
    ]

    def audit(*found: str, more: tuple[str, ...] = ()) -> list[str]:
        account = Account()
        for line in [*told, *more, *(f"has {placement}" for placement in found), "dumped"]:
            account.hear(line)
        return account.wrong

    assert audit("a:1", "c:5") == []
    assert audit("b:9") == []
    assert audit("a:1", "a:2", "a:3") == []
    assert "half" in audit("a:1", "a:2")[0]
    assert "half" in audit("a:1", "b:9")[0]
    assert "half" in audit()[0]
    assert "nowhere" in audit("a:1", "d:1")[0]
    assert "order" in audit("a:1", "a:3", "a:2")[0]
    assert "2 times" in audit("a:1", "a:1")[0]
    assert "back" in audit("a:1", "c:5", more=("ok 5 ",))[0]
    assert "lost" in audit("a:1", "a:2", "a:3", more=("try 6 +e:1", "ok 6 "))[0]
    assert audit("a:1", "a:2", "a:3", more=("try 6 -a:2", "ok 6 "))[0].startswith("a:2 was settled")
    assert f"{TOPIC}:7 was confirmed" in audit("a:1", more=(f"try 6 +{TOPIC}:7", "ok 6 "))[0]

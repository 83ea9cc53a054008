"""A process with a durable stream is killed again and again while it publishes, stages, commits, seals, merges, trims
and compacts.

What it told before it died is held against what its successor finds: offsets are dense, a record that was once there
is there unchanged until it is let go of, nothing answered is lost, and each (producer, epoch) happened once and wholly.
At the end the directory itself is read, as those would who know nothing of the broker.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
KILLS = 5
LONG_KILLS = 100
PATIENCE_S = 120


class Account:
    """What must be there, by what the children have told so far."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.records: dict[tuple[int, int], int] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.answered: dict[tuple[int, int], int] = {}
        self.first: Counter[int] = Counter()
        self.floors: Counter[int] = Counter()
        self.groups: Counter[int] = Counter()
        self.asked_groups: Counter[int] = Counter()
        self.epochs: dict[str, tuple[int, list[int], bool]] = {}
        self.totals: Counter[str] = Counter()
        self._tries: dict[str, list[int]] = {}
        self._did = (0, 0, 0, 0)
        self._ranges: dict[int, tuple[int, int]] = {}
        self._found: dict[tuple[int, int], int] = {}

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def hear(self, line: str) -> None:
        word, *rest = line.split(" ")
        if word == "try":
            self._tries[rest[0]] = [int(id) for id in rest[1:]]
        elif word == "ok":
            for id, where in zip(self._tries.pop(rest[0]), rest[1:], strict=True):
                partition, offset = map(int, where.split(":"))
                self.answered[partition, offset] = id
            self.totals["published"] += 1
        elif word == "commit":
            self.epochs[rest[0]] = (int(rest[1]), [int(id) for id in rest[2:]], False)
        elif word == "committed":
            epoch, ids, _ = self.epochs[rest[0]]
            self.epochs[rest[0]] = (epoch, ids, True)
            self.totals["committed"] += 1
        elif word == "trim":
            self.floors[int(rest[0])] = max(self.floors[int(rest[0])], int(rest[1]))
            self.totals["trims"] += 1
        elif word == "commit-group":
            self.asked_groups[int(rest[0])] = int(rest[1])
        elif word == "group":
            self._group(int(rest[0]), int(rest[1]))
        elif word == "merged":
            self.totals["merged"] += 1
        elif word == "did":
            self._did = (int(rest[0]), int(rest[1]), int(rest[2]), int(rest[3]))
        else:
            self._hear_dump(word, [int(word) for word in rest])

    def _group(self, partition: int, offset: int) -> None:
        before = self.groups[partition]
        self.expect(offset >= before, f"the group moved back from {before} to {offset} in {partition}")
        asked = max(self.asked_groups[partition], before)
        self.expect(offset <= asked, f"the group is at {offset} in {partition}, {asked} was asked for")
        self.groups[partition] = offset

    def _hear_dump(self, word: str, numbers: list[int]) -> None:
        if word == "range":
            self._ranges[numbers[0]] = (numbers[1], numbers[2])
        elif word == "has":
            self._found[numbers[0], numbers[1]] = numbers[2]
        elif word == "dumped":
            self._audit()

    def died(self) -> None:
        retired, sealed, failed, files = self._did
        self.totals.update(retired=retired, sealed=sealed, failed=failed)
        self.totals["files"] = max(self.totals["files"], files)
        self._did = (0, 0, 0, 0)
        self._tries.clear()
        self._ranges.clear()
        self._found.clear()

    def _audit(self) -> None:
        for partition, (first, end) in self._ranges.items():
            offsets = sorted(offset for index, offset in self._found if index == partition)
            self.expect(offsets == list(range(first, end)), f"{partition} has {len(offsets)} of {first} to {end}")
            self.expect(first <= self.floors[partition], f"{partition} begins at {first}, for no reason")
            last = max((o for p, o in [*self.records, *self.answered] if p == partition), default=-1)
            self.expect(end > last, f"{partition} ended after {last} and ends before {end}")
            self.first[partition] = first
        for place, id in self._found.items():
            known = self.records.get(place, self.answered.get(place, id))
            self.expect(known == id, f"{place} held {known} and holds {id}")
            self.expect(self.places.setdefault(id, place) == place, f"{id} is at {place} and was at {self.places[id]}")
        for place, id in self.answered.items():
            kept = place[1] >= self.first[place[0]]
            self.expect(not kept or self._found.get(place) == id, f"{id} was confirmed at {place} and is lost")
        self.records.update(self._found)
        self.answered.clear()
        for producer, (epoch, ids, answered) in self.epochs.items():
            there = sum(id in self.places for id in ids)
            self.expect(there in (0, len(ids)), f"{producer} {epoch}: {there} of {len(ids)} rows are there")
            self.expect(bool(there) or not answered, f"{producer} {epoch} was answered and is lost")
        self.totals["found"] += len(self._found)

    def pending(self) -> dict[str, tuple[int, list[int]]]:
        """The last epoch of each producer, to be committed once more whether it was answered or not."""
        return {producer: (epoch, ids) for producer, (epoch, ids, _) in self.epochs.items()}


class Killer:
    """Starts children on one directory and ends them, at moments that a seed decides."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.account = Account()
        self._directory = directory
        self._rng = random.Random(seed)
        self._lives = 0

    def life(self, work: bool) -> None:
        """One child: killed at a random moment while it works, or, without work, ended in order."""
        self._lives += 1
        plan = {
            "directory": str(self._directory),
            "seed": self._rng.getrandbits(32),
            "first_id": self._lives * 10_000_000,
            "pending": self.account.pending(),
            "work": work,
        }
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        command = [sys.executable, "-m", "tests.interop.kill_streams_child", json.dumps(plan)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as child:
            watchdog = threading.Timer(PATIENCE_S, child.kill)
            watchdog.start()
            self._listen(child, self._rng.uniform(0.1, 4.0) if work else None)
            assert child.stderr is not None
            errors = child.stderr.read()
            watchdog.cancel()
        assert child.returncode == (-9 if work else 0) and not errors, f"life {self._lives}:\n{errors}"
        self.account.died()

    def _listen(self, child: subprocess.Popen[str], kill_after_s: float | None) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line == "working\n" and kill_after_s is not None:
                threading.Timer(kill_after_s, child.kill).start()
            elif line.endswith("\n"):
                self.account.hear(line.rstrip("\n"))


def kill_often(directory: Path, kills: int) -> None:
    seed = int(os.environ.get("ROOKERY_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"again: ROOKERY_SEED={seed}")
    killer = Killer(directory, seed)
    account = killer.account
    for life in range(kills):
        killer.life(work=True)
        assert not account.wrong, f"ROOKERY_SEED={seed}, life {life + 1}: " + "; ".join(account.wrong[:10])
    killer.life(work=False)
    assert not account.wrong, f"ROOKERY_SEED={seed}, at the end: " + "; ".join(account.wrong[:10])
    print(dict(account.totals))
    # the test is worth something only if the child was at it
    for what in ("published", "committed", "sealed", "trims", *(["merged", "retired"] if kills > KILLS else [])):
        assert account.totals[what] > 0, f"nothing was {what}"
    check_directory(directory, account)


def check_directory(directory: Path, account: Account) -> None:
    """Everything is sealed by now: the files hold each record that is kept, once."""
    found: dict[tuple[int, int], int] = {}
    for path in current(list((directory / "streams" / "tenant=default" / "stream=log").rglob("[!_]*.parquet"))):
        partition = int(path.parts[-3].removeprefix("partition="))
        table = pq.read_table(path, columns=["offset", "value"], partitioning=None)
        for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
            assert (partition, offset) not in found, f"{partition}:{offset} is in two files"
            found[partition, offset] = int(value[:12])
    for place, id in account.records.items():
        # what was let go of stays for a while
        assert found.get(place, id) == id
        assert place in found or place[1] < account.first[place[0]], f"{place} is in no file"


def current(paths: list[Path]) -> list[Path]:
    """Without files that were merged into others, which stay a moment longer."""

    def span(path: Path) -> tuple[int, int]:
        first, _, last = path.stem.partition("-")
        return int(first), int(last)

    return [
        path
        for path in paths
        if not any(
            other.parent == path.parent and span(other)[0] <= span(path)[0] and span(path)[1] <= span(other)[1]
            for other in paths
            if other != path
        )
    ]


def test_a_stream_keeps_its_records_when_the_process_is_killed(tmp_path: Path) -> None:
    kill_often(tmp_path / "data", KILLS)


@pytest.mark.long
def test_a_stream_keeps_its_records_over_many_kills(tmp_path: Path) -> None:
    kill_often(tmp_path / "data", LONG_KILLS)

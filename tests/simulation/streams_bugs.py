"""Bugs of streams that the simulator must find, by the laws alone; see `bugs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.bugs import Bug
from tests.simulation.hunt import ROOT, seeded

_SCRIPT = """
import json, sys
from tests.simulation.streams_world import StreamsFailure, run, small
for seed in json.loads(sys.argv[1]):
    try:
        with small():
            run(seed)
    except StreamsFailure as failure:
        print(json.dumps({"seed": seed, "at": failure.at, "law": failure.law, "what": str(failure)}))
        break
"""


def hunt(bug: Bug, directory: Path, seeds: list[int]) -> dict[str, object] | None:
    """The first of the seeds that catches the bug, with the law it was caught by; None when none does."""
    path = os.pathsep.join((str(seeded(bug, directory)), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(seeds)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"bug {bug.name!r}: the simulator itself failed:\n{done.stderr}")
    found: dict[str, object] | None = json.loads(done.stdout) if done.stdout else None
    return found


def _bug(name: str, path: str, old: str, new: str) -> Bug:
    part, file = path.split("/")
    return Bug(name, file, old, new, part)


STREAMS_BUGS = (
    # what is shown, and when
    _bug(
        "a record is shown before it is durable",
        "core/stream.py",
        "            shard.log.append(self, message, offset, stamp)\n",
        "            shard.log.append(self, message, offset, stamp)\n            self.show(self._unplaced)\n",
    ),
    _bug(
        "staged rows are shown before the commit is durable",
        "core/staging.py",
        "        shard.log.when_durable(lambda: _show(shown))\n",
        "        _show(shown)\n",
    ),
    _bug(
        "only the first part of a commit is shown at once",
        "core/staging.py",
        "    for partition, upto in shown:\n        partition.show(upto)",
        "    for partition, upto in shown[:1]:\n        partition.show(upto)",
    ),
    _bug(
        "staged records come back in another order",
        "store/recovery.py",
        "                tail.set(alias.base + i, place, alias.stamp, part.sizes.get(i))",
        "                tail.set(alias.base + alias.count - 1 - i, place, alias.stamp, part.sizes.get(i))",
    ),
    # staging
    _bug(
        "an epoch happens twice",
        "core/staging.py",
        '        if last is not None and epoch <= last["epoch"]:',
        '        if last is not None and epoch < last["epoch"]:',
    ),
    _bug(
        "epochs are forgotten at a checkpoint",
        "core/staging.py",
        '            "producers": [[tenant, name, state] for (tenant, name), state in self.producers.items()],',
        '            "producers": [],',
    ),
    _bug(
        "an alias is lost at a checkpoint",
        "core/staging.py",
        '            "aliases": [[n, a.partition, a.base, a.count, a.stamp] for n, a in self.aliases.items()],',
        '            "aliases": [],',
    ),
    _bug(
        "staged records are not carried forward",
        "store/journal.py",
        "                number, at = alias.partition, alias.base + at",
        "                number, at = alias.partition, at",
    ),
    _bug(
        "a commit to an exchange starts again after a crash",
        "core/staging.py",
        '{"number": int(part.number), "position": stop, "done": done}',
        '{"number": int(part.number), "position": position, "done": False}',
    ),
    # groups
    _bug(
        "a group moves back",
        "core/groups.py",
        "        ahead = {index: offset for index, offset in offsets.items() if offset > self._asked[index]}",
        "        ahead = dict(offsets)",
    ),
    _bug(
        "a group's offset is shown before it is durable",
        "core/groups.py",
        "        log.when_durable(lambda: self.put(offsets))",
        "        self.put(offsets)",
    ),
    _bug(
        "what a group asked for is not in the checkpoint of its batch",
        "core/groups.py",
        '"offsets": list(self._asked)',
        '"offsets": list(self.committed)',
    ),
    _bug(
        "a member of an older generation commits",
        "core/groups.py",
        "        if generation != self.generation:",
        "        if generation > self.generation:",
    ),
    # cuts
    _bug(
        "a cut is not leased again after a restart",
        "store/recovery.py",
        "            if held is not None and reader.seq in held:",
        "            if held is not None and reader.seq in held and reader.seq % 2:",
    ),
    _bug(
        "cuts are lost at a checkpoint",
        "store/changes.py",
        '        "cuts": shard.cuts.state(),',
        '        "cuts": [],',
    ),
    _bug(
        "acknowledged cuts come back",
        "core/cuts.py",
        "{number: seqs for number, seqs in cutting.open.items() if number > row",
        "{number: seqs for number, seqs in cutting.open.items() if number >= row",
    ),
    # files
    _bug(
        "a file that is on no list is served",
        "sealed/history.py",
        "            if path not in known and path not in self.shard.condemned:\n                found.unlink()",
        '            if found.name.startswith("_"):\n                found.unlink()',
    ),
    _bug(
        "a file is deleted although a plan names it",
        "sealed/history.py",
        "not shard.log.active) and path not in leased",
        "not shard.log.active)",
    ),
    _bug(
        "a file is deleted before that it is replaced is durable",
        "sealed/history.py",
        "            if at <= now and (batch <= shard.log.durable or not shard.log.active)",
        "            if at <= now",
    ),
    _bug(
        "the grace of files begins with their sealing",
        "core/shard.py",
        "            self.condemned[path] = (int(self.wall_ms) + grace_ms, int(self.log.horizon()))",
        "            self.condemned[path] = (int(self.wall_ms), 0)",
    ),
    _bug(
        "segments are deleted while their records are being sealed",
        "store/journal.py",
        "        if self._holds:\n            self._held",
        "        if self._holds > 1:\n            self._held",
    ),
    _bug(
        "merged files stay on the list",
        "store/changes.py",
        "    partition.files = [file for file in partition.files if file.path not in gone]",
        "    partition.files = [file for file in partition.files if file.path not in gone or row['op'] == 'sealed']",
    ),
    _bug(
        "a new stream takes the place of files that are to be deleted",
        "sealed/history.py",
        "last_offset(path) >= partition.tail for path",
        "last_offset(path) < 0 for path",
    ),
    # letting go
    _bug(
        "age lets go of what is young",
        "core/retention.py",
        "    return int(partition.offset_at(stamp))",
        "    return int(partition.offset_at(stamp)) + 4",
    ),
    _bug(
        "what was let go of is forgotten at a restart",
        "store/changes.py",
        '        first = row["first"]\n',
        '        first = max(first, 0 if gone else row["first"])\n',
    ),
)

"""Seed one bug and look for it: copy the package, change it, run the simulator on the copy in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.simulation.bugs import Bug

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rookery"

_SCRIPT = """
import json, sys
from tests.simulation.keeping import KeptWorld
from tests.simulation.world import STEPS, SimulationFailure, World, run, tightened
make = KeptWorld if sys.argv[2] == "kept" else World
for seed in json.loads(sys.argv[1]):
    try:
        with tightened():
            run(seed, STEPS, make)
    except SimulationFailure as failure:
        print(json.dumps({"seed": seed, "at": failure.at, "law": failure.law, "what": str(failure)}))
        break
"""


class StalePatch(AssertionError):
    """The source that a bug changes is not there any more, or is there more than once."""


def seeded(bug: Bug, directory: Path) -> Path:
    """A copy of the package with the bug in it; returns what to put on the path."""
    source = (PACKAGE / bug.part / bug.file).read_text()
    if source.count(bug.old) != 1:
        raise StalePatch(f"bug {bug.name!r}: its text occurs {source.count(bug.old)} times in {bug.part}/{bug.file}")
    copy = directory / "rookery"
    for part in ("format", "core", "store", "sealed"):
        shutil.copytree(PACKAGE / part, copy / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for module in PACKAGE.glob("*.py"):
        shutil.copy2(module, copy)
    # the public names would import far more than the core
    (copy / "__init__.py").write_text("")
    (copy / bug.part / bug.file).write_text(source.replace(bug.old, bug.new))
    return directory


def hunt(bug: Bug, directory: Path, seeds: list[int]) -> dict[str, object] | None:
    """The first of the seeds that catches the bug, with the law it was caught by; None when none does."""
    path = os.pathsep.join((str(seeded(bug, directory)), str(ROOT)))
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(seeds), "kept" if bug.kept else ""],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"bug {bug.name!r}: the simulator itself failed:\n{done.stderr}")
    if not done.stdout:
        return None
    found: dict[str, object] = json.loads(done.stdout)
    found["runs"] = seeds.index(int(str(found["seed"]))) + 1
    found["seconds"] = time.monotonic() - began
    return found

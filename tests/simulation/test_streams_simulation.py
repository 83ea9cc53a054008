"""Random worlds of streams keep the laws, wherever sealing, the process or the machine dies."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.simulation.bugs import Bug
from tests.simulation.streams_bugs import STREAMS_BUGS, hunt
from tests.simulation.streams_world import STEPS, run, small
from tests.simulation.test_simulation import LONG

SEEDS = 2_000 if LONG else 30
BATCHES = 5
QUICK = (
    "a record is shown before it is durable",
    "only the first part of a commit is shown at once",
    "an epoch happens twice",
    "an alias is lost at a checkpoint",
    "a commit to an exchange starts again after a crash",
    "a group moves back",
    "a cut is not leased again after a restart",
    "a file that is on no list is served",
    "a file is deleted although a plan names it",
    "segments are deleted while their records are being sealed",
)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_laws_of_streams_hold(batch: int) -> None:
    with small():
        for seed in range(batch, SEEDS, BATCHES):
            run(seed, STEPS)


def test_a_seed_always_makes_the_same_run_of_streams() -> None:
    with small():
        first, again = run(3, 100), run(3, 100)
    assert first.trace == again.trace
    assert first.digest.hexdigest() == again.digest.hexdigest()


def test_runs_of_streams_see_what_they_are_about() -> None:
    sealed = merged = deaths = 0
    with small():
        for seed in range(8):
            world = run(seed, STEPS)
            sealed, merged, deaths = sealed + world.sealed, merged + world.merged, deaths + world.deaths
    assert (sealed > 10, merged > 0, deaths > 20) == (True, True, True)


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[] if bug.name in QUICK else pytest.mark.long) for bug in STREAMS_BUGS],
    ids=lambda bug: bug.name.replace(" ", "-"),
)
def test_a_seeded_bug_of_streams_is_caught(bug: Bug, tmp_path: Path) -> None:
    found = hunt(bug, tmp_path, list(range(100)))
    assert found is not None, f"no run noticed: {bug.name}"


def test_the_quick_bugs_are_there() -> None:
    assert {bug.name for bug in STREAMS_BUGS} > set(QUICK)

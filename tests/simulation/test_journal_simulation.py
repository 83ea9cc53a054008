"""Random worlds with a journal keep the laws, whatever the medium does and whenever the process or the machine dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.bugs import Bug
from tests.simulation.hunt import hunt
from tests.simulation.journal_bugs import JOURNAL_BUGS
from tests.simulation.keeping import KeptWorld
from tests.simulation.test_simulation import LONG, STEPS
from tests.simulation.world import run, tightened

SEEDS = 3_000 if LONG else 80
BATCHES = 10


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_laws_hold_with_a_journal(batch: int) -> None:
    seeds = range(batch, SEEDS, BATCHES)
    with tightened():
        beyond = sum(run(seed, STEPS, KeptWorld).beyond for seed in seeds)
    assert beyond <= 1 + len(seeds) // 50


def test_a_seed_always_makes_the_same_run_with_a_journal() -> None:
    first, again = run(8, 200, KeptWorld), run(8, 200, KeptWorld)
    assert first.trace == again.trace
    assert first.digest.hexdigest() == again.digest.hexdigest()


def test_runs_see_what_they_are_about() -> None:
    """Processes and machines die, others take over from living ones, segments roll and retire, lines are paged out: not
    only by chance, in most runs.
    """
    rolled = retired = paged = deaths = taken_over = 0
    for seed in range(20):
        world = run(seed, 300, KeptWorld)
        assert isinstance(world, KeptWorld)
        deaths += world.processes - 1
        taken_over += world.taken_over
        rolled += world.journal.segments[-1].number > 3
        retired += world.journal.segments[0].number > 1
        paged += world.paged
    assert deaths > 60
    assert taken_over > 20
    assert rolled > 10
    assert retired > 10
    assert paged > 3


@pytest.mark.parametrize("bug", JOURNAL_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_seeded_bug_of_the_journal_is_caught(bug: Bug, tmp_path: Path) -> None:
    found = hunt(bug, tmp_path, list(range(480)))
    assert found is not None, f"no run noticed: {bug.name}"

"""Random worlds keep the laws, whatever happens in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world import World, run, tightened

LONG = os.environ.get("ROOKERY_LONG") == "1"
SEEDS = 5_000 if LONG else 200
STEPS = 600 if LONG else 300
BATCHES = 20
"""One test per batch of seeds, so that several processes can share the work."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_laws_hold(batch: int) -> None:
    seeds = range(batch, SEEDS, BATCHES)
    with tightened():
        beyond = sum(run(seed, STEPS).beyond for seed in seeds)
    assert beyond <= 1 + len(seeds) // 50


def test_a_seed_always_makes_the_same_run() -> None:
    first, again = run(7, 150), run(7, 150)
    assert first.trace == again.trace
    assert first.digest.hexdigest() == again.digest.hexdigest()


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    """The core iterates over no set of names: another process with another hash seed does the same."""
    script = "from tests.simulation.world import run; print(run(3, 200).digest.hexdigest())"
    root = Path(__file__).parents[2]
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_failing_run_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.simulation import moves
    from tests.simulation.accounts import Violation
    from tests.simulation.world import SimulationFailure

    def stumble(world: World) -> None:
        world.say("stumble")
        raise Violation("9 conservation", "one is missing")

    monkeypatch.setitem(moves.MOVES, "publish", stumble)
    with pytest.raises(SimulationFailure) as failure:
        run(11, 40)
    assert failure.value.law == "9 conservation"
    assert "seed 11" in str(failure.value)
    assert "stumble" in str(failure.value)
    assert "python -m tests.simulation 11 --steps 40" in str(failure.value)

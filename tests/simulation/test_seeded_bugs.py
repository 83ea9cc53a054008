"""The simulator would notice: each seeded bug breaks a law within the default budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS, Bug
from tests.simulation.hunt import hunt
from tests.simulation.test_simulation import SEEDS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_seeded_bug_is_caught(bug: Bug, tmp_path: Path) -> None:
    found = hunt(bug, tmp_path, list(range(min(SEEDS, 200))))
    assert found is not None, f"no run noticed: {bug.name}"


def test_bugs_have_names_of_their_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)

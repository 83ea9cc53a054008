"""What every test shares: markers, budgets, and the rule for programs that this machine may lack.

ROOKERY_LONG=1 runs the tests marked `long` and raises Hypothesis' budgets. ROOKERY_TEST_AS=compiled|pure, set by the
Makefile, says which of the two builds the run is meant to test; under CI=true any other is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rookery import _compiled

LONG = os.environ.get("ROOKERY_LONG") == "1"
IN_CI = os.environ.get("CI") == "true"

# Checks of time and luck are off: on a shared machine they fail for reasons that are not ours.
_UNTIMED = (HealthCheck.too_slow, HealthCheck.filter_too_much)
# A commit gets one verdict, always the same: what has not been tried yet is looked for by `make test-long`.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, max_examples=60, suppress_health_check=_UNTIMED
)
settings.register_profile(
    "long", settings.get_profile("ci"), derandomize=False, max_examples=2000, stateful_step_count=200
)
settings.load_profile("long" if LONG else "ci")

# One JVM serves all tests of Spark in a process, and keeps the environment of the test that started it.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# Where Debian puts servers that are not on an ordinary user's PATH.
_SERVER_DIRS = ("/usr/local/sbin", "/usr/sbin", "/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin")))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(id, ...): the acceptance rows that this test proves, such as 'S0-6'")
    config.addinivalue_line("markers", "long: runs only with ROOKERY_LONG=1 (make test-long)")
    expected = os.environ.get("ROOKERY_TEST_AS")
    if expected == "pure" and _compiled.compiled:
        raise pytest.UsageError(
            f"this run is for the uncompiled package, but the package of {_compiled.__file__} is compiled"
        )
    if expected == "compiled" and IN_CI and not _compiled.compiled:
        raise pytest.UsageError(
            f"this run is for the compiled package, but the package of {_compiled.__file__} is not compiled"
        )


def pytest_report_header() -> str:
    return f"rookery: {Path(_compiled.__file__).parent}, {'compiled' if _compiled.compiled else 'not compiled'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not LONG and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="long: runs with ROOKERY_LONG=1"))
        for marker in item.iter_markers("row"):
            if not marker.args or not all(re.fullmatch(r"S\d-\d+", str(row)) for row in marker.args):
                raise pytest.UsageError(f"{item.nodeid}: row{marker.args} names no acceptance row such as 'S0-6'")


@pytest.fixture(scope="session")
def need_program() -> Callable[[str], str]:
    """`need_program("rabbitmq-server")` is its path; where there is none the test is skipped, or fails in CI."""

    def find(name: str) -> str:
        path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_SERVER_DIRS)))
        if path is None:
            message = f"{name} is not installed; tools/ensure-system says which package has it"
            if IN_CI:
                pytest.fail(message)
            pytest.skip(message)
        return path

    return find

"""What makes a script a test: it is run against both brokers, and their transcripts must be the same.

Where Rookery differs on purpose, the scenario names the row of the table in docs/amqp.md that says so, and the lines
that only one of the two transcripts has. A difference that is not written down fails, and so does one that is gone.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.interop.oracle.script import Script, Stuck

Scenario = Callable[[Script], None]
Test = Callable[["Brokers"], None]

DIFFERENCES: dict[str, list[str]] = {}
"""Row of the documented table: the scenarios that show it."""


class Brokers(NamedTuple):
    """Where the two listen."""

    rabbitmq: int
    rookery: int


def transcript(play: Scenario, port: int) -> list[str]:
    script = Script(port)
    try:
        play(script)
        script.finish()
    except Stuck as reason:
        script.write(f"stuck: {reason}")
    finally:
        script.clean()
    return script.lines


TRIES = 8
"""RabbitMQ answers from several processes: where two of them race, a script may not be able to follow at once."""


def scenario(play: Scenario) -> Test:
    """A test: both brokers answer alike."""
    return _test(play, "", "")


def differs(row: str, *, rabbitmq: str, rookery: str) -> Callable[[Scenario], Test]:
    """A test: the brokers differ in these lines and in no others, for the reason that the row gives."""

    def make(play: Scenario) -> Test:
        DIFFERENCES.setdefault(row, []).append(play.__name__)
        return _test(play, rabbitmq, rookery)

    return make


def _test(play: Scenario, only_rabbitmq: str, only_rookery: str) -> Test:
    def test(brokers: Brokers) -> None:
        theirs, ours = ["stuck"], [""]
        for _ in range(TRIES):
            if theirs[-1].startswith("stuck"):
                with ThreadPoolExecutor(2) as both:
                    theirs, ours = both.map(lambda port: transcript(play, port), brokers)
        assert not theirs[-1].startswith("stuck"), "RabbitMQ cannot follow:\n" + "\n".join(theirs)
        assert _lines_of_one(theirs, ours) == (_lines(only_rabbitmq), _lines(only_rookery)), "\n" + "\n".join(
            difflib.unified_diff(theirs, ours, "RabbitMQ", "Rookery", n=100, lineterm="")
        )

    test.__name__ = play.__name__
    test.__doc__ = play.__doc__
    test.__module__ = play.__module__
    return test


def _lines(text: str) -> list[str]:
    """What stands further in goes on with the line before."""
    return re.sub(r"\n +", " ", textwrap.dedent(text).strip()).splitlines()


def _lines_of_one(theirs: list[str], ours: list[str]) -> tuple[list[str], list[str]]:
    marked = list(difflib.ndiff(theirs, ours))
    return [line[2:] for line in marked if line[0] == "-"], [line[2:] for line in marked if line[0] == "+"]

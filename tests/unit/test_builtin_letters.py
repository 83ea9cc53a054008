"""Dead letters in groups, and the plan that is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rookery.errors import InvalidArgument
from rookery.pipelines.builtin import letters


def death(**said: Any) -> dict[str, Any]:
    base = {"tenant": "t", "queue": "q", "outcome": "dead_lettered", "reason": "delivery_limit", "routing_key": "a.b"}
    more = {"signature": "timed out after # ms", "messages": 3, "first_seen_ms": 100, "last_seen_ms": 200}
    return {**base, **more, "examples": [{"ms": 100, "id": "m1"}], **said}


def outcome(last_acked_ms: int | None, **said: Any) -> dict[str, Any]:
    return {"tenant": "t", "queue": "q", "routing_key": "a.b", "last_acked_ms": last_acked_ms, **said}


def test_groups_of_several_days_are_one() -> None:
    later = death(messages=4, first_seen_ms=300, last_seen_ms=400, examples=[{"ms": 300, "id": "m2"}])
    (group,) = letters.judged([later, death()], [outcome(500), outcome(None)])
    assert (group.messages, group.first_seen_ms, group.last_seen_ms) == (7, 100, 400)
    assert (group.examples, group.last_acked_ms) == (["m2", "m1"], 500)


@pytest.mark.parametrize(
    ("said", "acked", "verdict"),
    [
        ({}, 201, "redrive"),
        ({}, 200, "look"),
        ({}, None, "look"),
        ({"reason": "rejected"}, 201, "look"),
        ({"reason": "expired"}, 201, "leave"),
    ],
)
def test_what_works_again_is_worth_another_try(said: dict[str, Any], acked: int | None, verdict: str) -> None:
    (group,) = letters.judged([death(**said)], [outcome(acked)])
    assert group.verdict == verdict
    assert group.why


def test_what_was_dropped_or_has_expired_without_a_grave_is_no_letter() -> None:
    assert letters.judged([death(outcome="dropped"), death(outcome="expired")], []) == []


def test_a_plan_names_letters_by_what_they_have_in_common(tmp_path: Path) -> None:
    found = letters.judged(
        [death(), death(queue="r", reason="rejected", signature="#", routing_key="a.*.c")], [outcome(201)]
    )
    plan = letters.propose(found, "t")
    (step,) = plan.steps
    assert (step.queue, step.expected) == ("q", 3)
    assert step.where == letters.Where("q", "delivery_limit", "timed out after", "a.b", 201)
    assert [group.queue for group in plan.left] == ["r"]
    everything = letters.propose(found, "t", everything=True)
    assert everything.steps[1].where == letters.Where("r", "rejected", None, None, 201)
    letters.write_plan(plan, tmp_path / "plan.json")
    assert letters.read_plan(tmp_path / "plan.json") == plan


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(InvalidArgument, match="cannot be read"):
        letters.read_plan(path)
    path.write_text('{"version": 1}')
    with pytest.raises(InvalidArgument, match="is no plan"):
        letters.read_plan(path)
    path.write_text('{"version": 9, "tenant": "t", "steps": [], "left": []}')
    with pytest.raises(InvalidArgument, match="version 9"):
        letters.read_plan(path)

"""Dead letters in groups, what is to be thought of each group, and a plan of which to send back to life.

The groups come from gold: messages that died in a queue with the same reason, the same signature of what was said and
the same routing key. Whether trying again makes sense is judged by what became of other messages of that queue and key
since: if they are done, so might these be. The plan is a file that a person reads, changes and has executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rookery.errors import InvalidArgument
from rookery.lake.insights import gold_rows

VERSION: Final = 1
Verdict = Literal["redrive", "look", "leave"]


class Group(msgspec.Struct):
    """Dead letters that are alike. `acked_since` says how many of the same queue and key were done on days since."""

    tenant: str
    queue: str
    reason: str
    signature: str
    routing_key: str
    messages: int
    first_seen_ms: int
    last_seen_ms: int
    examples: list[str]
    last_acked_ms: int | None
    verdict: Verdict
    why: str


class Where(msgspec.Struct, omit_defaults=True):
    """Which letters a step is about, as `POST /api/v1/queues/{name}/redrive` takes it."""

    origin: str
    reason: str | None = None
    detail: str | None = None
    routing_key: str | None = None
    died_before_ms: int | None = None


class Step(msgspec.Struct, omit_defaults=True):
    """Letters that died in `queue` go back to it, or to `to`. `expected` is how many there may be."""

    queue: str
    where: Where
    expected: int
    why: str
    to: str | None = None
    limit: int = 0


class Plan(msgspec.Struct):
    """A file for `rookery dead-letters redrive --plan`. Groups that are not to be redriven stand beside the steps."""

    version: int
    tenant: str
    steps: list[Step]
    left: list[Group]


def groups(root: Path, tenant: str, queue: str | None = None) -> list[Group]:
    """What has died in the queues of a tenant, the largest groups first."""
    return judged(
        gold_rows(root, "dlq_summary", tenant=tenant, queue=queue),
        gold_rows(root, "route_outcomes", tenant=tenant, queue=queue),
    )


def judged(deaths: Iterable[dict[str, Any]], outcomes: Iterable[dict[str, Any]]) -> list[Group]:
    """Groups over all days, each with a verdict. The rows are those of `dlq_summary` and `route_outcomes`."""
    done: dict[tuple[str, str, str], int] = {}
    for row in outcomes:
        key = (row["tenant"], row["queue"], row["routing_key"])
        done[key] = max(done.get(key, 0), row["last_acked_ms"] or 0)
    found: dict[tuple[str, ...], Group] = {}
    for row in deaths:
        if row["outcome"] != "dead_lettered":
            continue
        names = ("tenant", "queue", "reason", "signature", "routing_key")
        key = tuple(row[name] for name in names)
        examples = [each["id"] for each in row["examples"]]
        last_acked = done.get((row["tenant"], row["queue"], row["routing_key"])) or None
        before = found.get(key)
        if before is None:
            found[key] = Group(
                row["tenant"],
                row["queue"],
                row["reason"],
                row["signature"],
                row["routing_key"],
                messages=row["messages"],
                first_seen_ms=row["first_seen_ms"],
                last_seen_ms=row["last_seen_ms"],
                examples=examples,
                last_acked_ms=last_acked,
                verdict="look",
                why="",
            )
        else:
            before.messages += row["messages"]
            before.first_seen_ms = min(before.first_seen_ms, row["first_seen_ms"])
            before.last_seen_ms = max(before.last_seen_ms, row["last_seen_ms"])
            before.examples = [*before.examples, *examples][:5]
    for group in found.values():
        group.verdict, group.why = _verdict(group)
    return sorted(found.values(), key=lambda group: (-group.messages, group.queue, group.signature))


def _verdict(group: Group) -> tuple[Verdict, str]:
    if group.reason == "expired":
        return "leave", "they outlived their time to live"
    if group.last_acked_ms is None:
        return "look", "no other message of this queue and key has been done"
    if group.last_acked_ms <= group.last_seen_ms:
        return "look", "nothing of this queue and key has been done since the last of them died"
    if group.reason == "rejected":
        return "look", "they were rejected as unfit, though others of this queue and key have been done since"
    return "redrive", "others of this queue and key have been done since the last of them died"


def propose(found: list[Group], tenant: str, *, everything: bool = False) -> Plan:
    """The plan: groups that are worth another try, or, with `everything`, all that did not expire."""
    steps: list[Step] = []
    left: list[Group] = []
    for group in found:
        if group.verdict == "redrive" or (everything and group.verdict == "look"):
            steps.append(
                Step(
                    queue=group.queue,
                    where=Where(
                        origin=group.queue,
                        reason=group.reason or None,
                        detail=_literal(group.signature),
                        routing_key=_pattern(group.routing_key),
                        # what dies from here on is another matter
                        died_before_ms=group.last_seen_ms + 1,
                    ),
                    expected=group.messages,
                    why=group.why,
                )
            )
        else:
            left.append(group)
    return Plan(VERSION, tenant, steps, left)


def _literal(signature: str) -> str | None:
    """The longest part of a signature that stands in what was said as it is."""
    parts = sorted(signature.split("#"), key=len)
    return parts[-1].strip() or None


def _pattern(key: str) -> str | None:
    """A routing key as the pattern that means it; None where no pattern does."""
    return key if key and not re.search(r"[*#]", key) else None


def write_plan(plan: Plan, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")


def read_plan(path: Path) -> Plan:
    """A plan from its file."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}", argument="plan") from None
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path} is no plan: {error}", argument="plan") from None
    if found.version != VERSION:
        raise InvalidArgument(f"{path} is a plan of version {found.version}, not {VERSION}", argument="plan")
    return found

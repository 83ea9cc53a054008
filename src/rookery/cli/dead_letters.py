"""`rookery dead-letters`: what died in queues, why, and back to life.

A queue is named by its own name: its dead letters are looked for in the queue they are kept in. The name of that queue
will do as well, and then stands for everything in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rookery.cli.claiming import preview
from rookery.cli.commands import Max, Yes, command, duration_ms, family, pairs
from rookery.cli.completing import queue_names
from rookery.cli.output import Columns, ago, confirm
from rookery.cli.session import Session
from rookery.errors import NotFound

app = family("List, show, redrive and purge dead letters.")

Name = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Where they died, or where they are kept.", autocompletion=queue_names)
]
Filter = Annotated[
    list[str],
    typer.Option(
        "--filter",
        metavar="NAME=VALUE",
        help="Only those with this reason, detail (a part of it), origin, id, routing_key (a pattern), header.NAME, or "
        "that died within (2h) or before (2h) so long; repeatable, all must hold.",
    ),
]
FILTERS: Final = ("reason", "detail", "origin", "routing_key", "id", "within", "before", "header.NAME")


def _died(row: Any, name: str) -> Any:
    deaths = row.get("deaths") or [{}]
    return deaths[0].get(name)


COLUMNS: Columns = {
    "message id": "message_id",
    "died in": lambda row: _died(row, "queue"),
    "reason": lambda row: _died(row, "reason"),
    "detail": lambda row: _died(row, "detail") or "-",
    "when": lambda row: ago(_died(row, "last_ms")),
    "message": preview,
}


@command(
    app,
    "list",
    "rookery dead-letters list",
    "rookery dead-letters list jobs --max 50",
    "rookery dead-letters list jobs --json | jq -r '.[].deaths[0].detail' | sort | uniq -c",
)
def list_(
    at: Session,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE", help="Without one: the queues that have some.", autocompletion=queue_names),
    ] = None,
    max: Max = 100,
) -> None:
    """The dead letters of a queue, or all queues in which messages have died."""
    if queue is None:
        rows = [row for row in at.pages("/queues", "queues") if row["stats"]["dead"]]
        columns: Columns = {
            "queue": "name",
            "dead": "stats.dead",
            "kept in": _kept_in,
            "dead-lettered ever": "stats.dead_lettered",
        }
        at.out.table(rows, columns, empty="There are no dead letters.")
        return
    place, origin = _place(at, queue)
    at.out.table(islice(_letters(at, place, origin), max), COLUMNS, empty=f"Nothing that died in {queue} is kept.")


@command(
    app, "show", "rookery dead-letters show jobs 0194f0c2-…", "rookery dead-letters show jobs ID --json | jq .message"
)
def show(at: Session, queue: Name, id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")]) -> None:
    """One dead letter: the message, and each of its deaths."""
    place, origin = _place(at, queue)
    for letter in _letters(at, place, origin):
        if letter["message_id"] == id:
            at.out.record(letter)
            return
    raise NotFound(f"no dead letter {id} in {place}", argument="ID")


@command(
    app,
    "redrive",
    "rookery dead-letters redrive jobs --dry-run",
    "rookery dead-letters redrive jobs --filter reason=rejected --filter detail=stock",
    "rookery dead-letters redrive jobs --filter header.eu=true --filter within=2h --limit 100",
    "rookery dead-letters redrive jobs --to jobs.slow",
    "rookery dead-letters redrive --plan plan.json --dry-run",
)
def redrive(
    at: Session,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="Where they died, or where they are kept.", autocompletion=queue_names),
    ] = None,
    filter: Filter = [],  # noqa: B006
    to: Annotated[
        str | None, typer.Option("--to", help="A queue, instead of where they died.", autocompletion=queue_names)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0 for all.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="What `rookery insights plan` has written.")
    ] = None,
) -> None:
    """Send dead letters back to the queues they died in, or to another; all of them, those chosen, or as planned."""
    if (plan is None) == (queue is None):
        raise typer.BadParameter("name a queue, or a plan.", param_hint="QUEUE")
    if plan is not None:
        if filter or to is not None or limit:
            raise typer.BadParameter("a plan says itself which, where to and how many.", param_hint="--plan")
        _follow(at, plan, dry_run)
        return
    assert queue is not None
    place, origin = _place(at, queue)
    where = _where(filter)
    if origin is not None:
        where.setdefault("origin", origin)
    body: dict[str, Any] = {"dry_run": dry_run, "limit": limit, "where": where}
    if to is not None:
        body["to"] = to
    done = at.post("/queues/{}/redrive", place, body=body)
    if at.out.as_json:
        at.out.json(done)
        return
    if dry_run and done["letters"]:
        at.out.table(done["letters"], {"message id": "message_id", "reason": "reason", "to": "to"})
    print(f"{done['redriven']} dead letters {'would be' if dry_run else 'were'} redriven")


def _follow(at: Session, file: Path, dry_run: bool) -> None:
    """Do what a plan says, step by step."""
    import msgspec

    from rookery.pipelines.builtin.letters import read_plan

    rows = []
    for step in read_plan(file).steps:
        place, _ = _place(at, step.queue)
        body = {"dry_run": dry_run, "limit": step.limit, "where": msgspec.to_builtins(step.where)}
        if step.to is not None:
            body["to"] = step.to
        done = at.post("/queues/{}/redrive", place, body=body)
        said = {"queue": step.queue, "reason": step.where.reason, "detail": step.where.detail}
        rows.append({**said, "expected": step.expected, "redriven": done["redriven"], "dry_run": dry_run})
    names = ("queue", "reason", "detail", "expected", "redriven")
    at.out.table(rows, {name: name for name in names}, empty="The plan has no steps.")


@command(app, "purge", "rookery dead-letters purge jobs --yes")
def purge(at: Session, queue: Name, yes: Yes = False) -> None:
    """Throw away everything in the queue that a queue's dead letters are kept in."""
    place, _ = _place(at, queue)
    confirm(f"Throw away every dead letter in {place}?", yes)
    purged = at.post("/queues/{}/purge", place)
    at.out.done(f"{purged['purged']} dead letters purged from {place}", purged)


def _kept_in(row: Any) -> Any:
    return row["settings"].get("dead_letter_queue")


def _place(at: Session, name: str) -> tuple[str, str | None]:
    """The queue in which the dead letters of a queue are kept, and where they died, if that is all that is meant."""
    kept = _kept_in(at.get("/queues/{}", name))
    if kept is None or kept == name:
        return name, None
    found = at.get("/queues", prefix=kept, limit=1)["queues"]
    if not found or found[0]["name"] != kept:
        raise NotFound(f"nothing has died in {name}: there is no queue {kept}", argument="QUEUE")
    return kept, name


def _letters(at: Session, place: str, origin: str | None) -> Iterator[Any]:
    for row in at.pages("/queues/{}/messages", "messages", place):
        if origin is None or _died(row, "queue") == origin:
            yield row


def _where(filters: list[str]) -> dict[str, Any]:
    """What the API takes, from what is said on the command line."""
    where: dict[str, Any] = {}
    now_ms = round(time.time() * 1000)
    for name, value in pairs(filters, "--filter").items():
        text = value if isinstance(value, str) else str(value)
        if name in ("reason", "detail", "origin", "routing_key"):
            where[name] = text
        elif name == "id":
            where.setdefault("message_ids", []).append(text)
        elif name == "within":
            where["died_after_ms"] = now_ms - duration_ms(text)
        elif name == "before":
            where["died_before_ms"] = now_ms - duration_ms(text)
        elif name.startswith("header."):
            where.setdefault("headers", {})[name.removeprefix("header.")] = value
        else:
            raise typer.BadParameter(
                f"there is no filter {name!r}; there are {', '.join(FILTERS)}.", param_hint="--filter"
            )
    return where

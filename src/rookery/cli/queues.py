"""`rookery queues`."""

from __future__ import annotations

from typing import Annotated

import typer

from rookery.cli.commands import Prefix, Yes, command, family, pairs
from rookery.cli.completing import queue_names, queue_settings
from rookery.cli.output import Columns, Output, confirm, size, span
from rookery.cli.session import Session

app = family("List, show, create, delete, purge and move queues; list their settings.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", autocompletion=queue_names)]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="A setting, such as max_attempts=3; repeatable. `rookery queues settings` lists them.",
        autocompletion=queue_settings,
    ),
]

COLUMNS: Columns = {
    "queue": "name",
    "ready": "stats.ready",
    "delayed": "stats.delayed",
    "leased": "stats.leased",
    "dead": "stats.dead",
    "consumers": "stats.consumers",
    "published": "stats.published",
    "acked": "stats.acked",
    "size": lambda row: size(row["stats"]["bytes"]),
    "oldest": lambda row: span(row["stats"]["oldest_age_ms"] / 1000) if row["stats"]["ready"] else "-",
}


@command(app, "list", "rookery queues list", "rookery queues list --prefix jobs --json | jq -r '.[].name'")
def list_(at: Session, prefix: Prefix = "") -> None:
    """The queues that the key may read, with their counts."""
    at.out.table(at.pages("/queues", "queues", prefix=prefix), COLUMNS, empty="There are no queues yet.")


@command(app, "show", "rookery queues show jobs", "rookery queues show jobs --json | jq .stats.ready")
def show(at: Session, queue: Name) -> None:
    """A queue: what its declarer said, what holds, and its counts."""
    at.out.record(at.get("/queues/{}", queue))


@command(
    app,
    "create",
    "rookery queues create jobs",
    "rookery queues create jobs -s max_attempts=3 -s ttl_ms=600000 -s dead_letter_queue=jobs.dead",
)
def create(at: Session, queue: Name, settings: Settings = []) -> None:  # noqa: B006  never changed
    """Make a queue. The same again is fine; other settings are a conflict."""
    made = at.put("/queues/{}", queue, body=pairs(settings, "--set"))
    at.out.done(f"queue {queue} {'created' if made['created'] else 'is there, and agrees'}", made)


@command(app, "settings", "rookery queues settings", "rookery queues settings --json | jq -r '.[].name'")
def settings_(out: Output) -> None:
    """List the settings that a queue can have, with their values and defaults."""
    from rookery.core.queue_settings import QUEUE_SETTINGS

    rows = [
        {
            "name": row.name,
            "type": row.type.__name__,
            "choices": list(row.choices),
            "smallest": row.smallest,
            "largest": row.largest,
            "default": row.default,
            "none": row.none,
            "policy": row.by_policy,
            "amqp": row.argument.name if row.argument else None,
            "help": row.help,
        }
        for row in QUEUE_SETTINGS
    ]
    columns: Columns = {
        "setting": "name",
        "values": lambda row: ", ".join(row["choices"]) or row["type"],
        "default": lambda row: row["none"] or row["default"],
        "meaning": "help",
    }
    out.table(rows, columns)


@command(app, "delete", "rookery queues delete jobs", "rookery queues delete jobs --if-empty --yes")
def delete(
    at: Session,
    queue: Name,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if nothing is in it.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if nobody consumes from it.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a queue and everything in it."""
    confirm(f"Delete queue {queue} with everything in it?", yes)
    gone = at.delete("/queues/{}", queue, if_empty=if_empty, if_unused=if_unused)
    at.out.done(f"queue {queue} deleted, with {gone.get('messages', 0)} ready messages", gone)


@command(app, "purge", "rookery queues purge jobs --yes")
def purge(at: Session, queue: Name, yes: Yes = False) -> None:
    """Throw away what is ready in a queue."""
    confirm(f"Throw away what is ready in queue {queue}?", yes)
    purged = at.post("/queues/{}/purge", queue)
    at.out.done(f"{purged['purged']} messages purged", purged)


@command(app, "move", "rookery queues move jobs slow-jobs", "rookery queues move jobs slow-jobs --limit 100")
def move(
    at: Session,
    queue: Name,
    to: Annotated[str, typer.Argument(metavar="TO", help="An existing queue.", autocompletion=queue_names)],
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0 for all.")] = 0,
) -> None:
    """Move ready messages to another queue, in order."""
    moved = at.post("/queues/{}/move", queue, body={"to": to, "limit": limit})
    at.out.done(f"{moved['moved']} messages moved to {to}", moved)

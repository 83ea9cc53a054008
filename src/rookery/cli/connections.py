"""`rookery connections` and `rookery consumers`: who is there now."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rookery.cli.commands import Yes, command, family
from rookery.cli.completing import queue_names
from rookery.cli.output import Columns, confirm
from rookery.cli.session import Session

app = family("Who is connected; close a connection.")
consumers = family("Who consumes from queues; cancel a consumer.")

PAGE: Final = 1_000


@command(app, "list", "rookery connections list", "rookery connections list --json | jq -r '.[] | .peer'")
def list_(at: Session) -> None:
    """Open connections: of the key's own tenant, or of all (admin); at most 1,000."""
    columns: Columns = {name: name for name in ("id", "protocol", "peer", "tenant", "user", "channels")}
    at.out.table(at.get("/connections", limit=PAGE)["connections"], columns)


@command(app, "close", "rookery connections close amqp-7f3a --reason 'moving house'")
def close(
    at: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
    reason: Annotated[str, typer.Option("--reason", help="What its peer is told.")] = "closed by an operator",
    yes: Yes = False,
) -> None:
    """Close a connection. What it had leased goes back."""
    confirm(f"Close connection {id}?", yes)
    at.out.done(f"connection {id} closed", at.delete("/connections/{}", id, reason=reason))


@command(consumers, "list", "rookery consumers list", "rookery consumers list --queue jobs --json")
def list_consumers(
    at: Session,
    queue: Annotated[str, typer.Option("--queue", help="Only of this one.", autocompletion=queue_names)] = "",
) -> None:
    """Who consumes from the queues that the key may read; at most 1,000."""
    rows = at.get("/consumers", queue=queue, limit=PAGE)["consumers"]
    columns: Columns = {
        "id": "id",
        "queue": "queue",
        "name": "name",
        "protocol": "protocol",
        "connection": "connection",
        "credit": "credit",
        "leased": "leased",
        "delivered": "delivered",
    }
    at.out.table(rows, columns, empty="Nobody consumes.")


@command(consumers, "cancel", "rookery consumers cancel ID")
def cancel(
    at: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")],
    yes: Yes = False,
) -> None:
    """End a consumer; its connection stays, and is told where the protocol has a word for it."""
    confirm(f"Cancel consumer {id}?", yes)
    at.out.done(f"consumer {id} cancelled", at.delete("/consumers/{}", id))

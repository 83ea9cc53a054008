"""`rookery policies`."""

from __future__ import annotations

from typing import Annotated

import typer

from rookery.cli.commands import Yes, command, family, pairs
from rookery.cli.completing import policy_settings
from rookery.cli.output import Columns, confirm
from rookery.cli.session import Session

app = family("Settings for all queues whose names match; the highest priority counts.")

Name = Annotated[str, typer.Argument(metavar="POLICY", help="The policy's name.")]


@command(app, "list", "rookery policies list")
def list_(at: Session) -> None:
    """The policies of the tenant."""
    columns: Columns = {"policy": "name", "pattern": "pattern", "priority": "priority", "settings": "settings"}
    at.out.table(at.get("/policies")["policies"], columns, empty="There are no policies.")


@command(app, "show", "rookery policies show bounded")
def show(at: Session, policy: Name) -> None:
    """A policy."""
    at.out.record(at.get("/policies/{}", policy))


@command(app, "set", "rookery policies set bounded '^jobs' length_max=1000 overflow=reject-publish --priority 5")
def set_(
    at: Session,
    policy: Name,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression over names of queues.")],
    settings: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="Such as length_max=1000.", autocompletion=policy_settings),
    ],
    priority: Annotated[int, typer.Option("--priority", help="Among policies that match, the highest counts.")] = 0,
) -> None:
    """Put a policy in force, also for the queues there are."""
    body = {"pattern": pattern, "settings": pairs(settings, "NAME=VALUE"), "priority": priority}
    at.out.done(f"policy {policy} is in force", at.put("/policies/{}", policy, body=body))


@command(app, "delete", "rookery policies delete bounded --yes")
def delete(at: Session, policy: Name, yes: Yes = False) -> None:
    """End a policy."""
    confirm(f"End policy {policy}?", yes)
    at.out.done(f"policy {policy} ended", at.delete("/policies/{}", policy))

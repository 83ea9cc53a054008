"""The families of commands, and the group that imports one when it is called.

To add a family: write a module of this package whose `app` (or another name) is made by `commands.family` or
`commands.single`, and give it a line in `FAMILIES`. Help and completion of `rookery` itself read only this table.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from rookery.errors import RookeryError

MODULES: Final = "rookery.cli"


class Family(NamedTuple):
    """A command of `rookery`: where its Typer is (`module:name`), and its line in the help."""

    name: str
    place: str
    help: str
    section: str


def _section(title: str, *rows: tuple[str, str, str]) -> tuple[Family, ...]:
    return tuple(Family(name, place, text, title) for name, place, text in rows)


FAMILIES: Final = (
    *_section(
        "Begin",
        ("tour", "tour:app", "The main ideas on a throw-away broker, in two minutes."),
        ("serve", "serving:serve", "Start the broker."),
    ),
    *_section(
        "Messages",
        ("publish", "publishing:app", "Publish messages: an argument, a file, or lines of stdin."),
        ("claim", "claiming:claim", "Take messages of a queue under lease, as JSON lines."),
        ("settle", "claiming:settle", "Settle leases: ack, retry, release or reject."),
        ("subscribe", "subscribing:app", "Follow a queue, topic or stream, or run a program for each message."),
        ("peek", "claiming:peek", "Look at messages of a queue and leave them as they are."),
        ("dead-letters", "dead_letters:app", "List, show, redrive and purge dead letters."),
    ),
    *_section(
        "What there is",
        ("queues", "queues:app", "List, show, create, delete, purge and move queues."),
        ("exchanges", "exchanges:app", "List, show, create and delete exchanges."),
        ("bindings", "exchanges:bindings", "List, create and delete bindings."),
        ("policies", "policies:app", "Settings for all queues whose names match."),
        ("streams", "streams:app", "List, show, create, read, trim, seal and delete streams."),
        ("groups", "groups:app", "Consumer groups of streams: lag, offsets, reset."),
        ("webhooks", "webhooks:app", "Endpoints that messages are POSTed to."),
        ("connections", "connections:app", "Who is connected; close a connection."),
        ("consumers", "connections:consumers", "Who consumes from queues; cancel a consumer."),
    ),
    *_section(
        "Spark",
        ("pipelines", "pipelines:app", "New, validate, plan, run, up, status, stop, reset, backfill, export."),
    ),
    *_section(
        "Who may",
        ("keys", "access:keys", "List, create and revoke API keys."),
        ("users", "access:users", "List, show, set and delete users."),
        ("tenants", "access:tenants", "List, show, create, limit and delete tenants."),
    ),
    *_section(
        "The whole broker",
        ("stats", "stats:app", "Counts and rates of all queues, live on a terminal."),
        ("definitions", "definitions:app", "Queues, exchanges, bindings … as one JSON document."),
        ("export", "moving:export", "Definitions, messages and records as JSON lines."),
        ("import", "moving:load", "Bring in what `export` wrote."),
        ("insights", "insights:app", "What became of messages: tables, a report, a plan for dead letters."),
        ("replay", "replay:app", "Publish records of a stream or of the archive again, each once."),
        ("doctor", "serving:doctor", "Look at this installation, or at a data directory; repair one."),
        ("backup", "serving:backup", "Copy the data directory of a running broker."),
        ("bench", "bench:app", "Measure a broker: messages a second, and how long each takes."),
    ),
)

# Typer has had Click inside and beside it: this is Click's UsageError in both.
UsageError: Final[Any] = typer.BadParameter.__base__

AS_JSON: Final = "rookery.json"
"""Where a context's `meta` says that JSON is wanted."""


def load(name: str) -> Any:
    """The real command of a family."""
    family = next(each for each in FAMILIES if each.name == name)
    module, _, attribute = family.place.partition(":")
    command: Any = typer.main.get_command(getattr(import_module(f"{MODULES}.{module}"), attribute))
    command.name = name
    return command


class Families(TyperGroup):
    """`rookery` itself. What it lists are stand-ins; the family is imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [family.name for family in FAMILIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for family in FAMILIES:
            if family.name == cmd_name:
                return TyperCommand(name=family.name, help=family.help)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load(name), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(family.name) for family in FAMILIES)
        for title in dict.fromkeys(family.section for family in FAMILIES):
            with formatter.section(title):
                formatter.write_dl([(f.name.ljust(width), f.help) for f in FAMILIES if f.section == title])

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command; every error is one line, and the process ends with its exit code."""
        standalone = more.pop("standalone_mode", True)
        more["standalone_mode"] = False
        try:
            code = super().main(*args, **more)
        except UsageError as error:
            code = _misused(error)
        except typer.Abort:
            print("rookery: nothing was done", file=sys.stderr)
            code = 1
        if not standalone:
            return code
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        from rookery.cli.output import refuse

        try:
            return super().invoke(ctx)
        except RookeryError as error:
            raise typer.Exit(refuse(error, as_json=bool(ctx.meta.get(AS_JSON)))) from None


def _misused(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return 2
    path = error.ctx.command_path if error.ctx is not None else "rookery"
    print(f"rookery: {error.format_message()} See '{path} --help'.", file=sys.stderr)
    return 2


__all__ = ["AS_JSON", "FAMILIES", "Families", "Family", "load"]

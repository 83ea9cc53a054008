"""The command `rookery`: a family of commands per module, imported when one of them is called.

`families.FAMILIES` is the list of them. A module builds its commands with `commands.family` and `commands.command`,
speaks to a broker through a `Session`, and prints through its `Output`. Nothing here decides anything about messages:
every command is a request of the native API, or a look at a data directory.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rookery.cli.families import Families


def _show_version(wanted: bool) -> None:
    if wanted:
        from rookery import __version__

        print(f"rookery {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="rookery",
    cls=Families,
    help="A message broker: queues, exchanges and streams, over AMQP, HTTP and lines of text.\n\n"
    "Commands speak to the broker at --url (ROOKERY_URL) with --key (ROOKERY_API_KEY); without these, to the one of "
    "this directory's settings on this machine. `rookery tour` shows the main ideas in two minutes.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not there, 4 not allowed, 5 conflict, 6 no broker reached.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    app(prog_name="rookery")


__all__ = ["app", "main"]

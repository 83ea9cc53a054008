"""The command `rookery`. Every setting of `config` is a flag of `serve`; imports wait until a command needs them."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rookery.config import SETTINGS, Setting, Settings
from rookery.errors import InvalidConfig, RookeryError

if TYPE_CHECKING:
    from collections.abc import Callable

SERVE_HELP: Final = """Start the broker.

Settings come from flags, the environment, a `.env` file, `rookery.toml` and defaults, the first that has one.

Examples:

  rookery serve

  rookery serve --amqp-port 5673 --http-port off

  rookery serve --host 127.0.0.1 --auth-mode none

  API_KEY=… rookery serve --config /etc/rookery.toml
"""

app = typer.Typer(
    name="rookery",
    help="A message broker: queues, exchanges and streams, served over AMQP and HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from rookery import __version__

        print(f"rookery {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _with_settings(command: Callable[[Settings], None]) -> Callable[..., None]:
    """The command with one flag per setting, each a text that `config` reads; a flag not given is None."""

    def run(**flags: str | None) -> None:
        try:
            command(Settings.load(flags, os.environ, Path.cwd()))
        except InvalidConfig as error:
            print(f"rookery: {error}", file=sys.stderr)
            raise typer.Exit(2) from None

    parameters = [
        inspect.Parameter(setting.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(setting))
        for setting in SETTINGS
    ]
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _flag(setting: Setting) -> Any:
    default = setting.show(setting.default)
    text = f"{setting.help}; {setting.variable}" + (f" [{default}]" if default else "")
    return Annotated[str | None, typer.Option(setting.flag, help=text, metavar=_metavar(setting))]


def _metavar(setting: Setting) -> str:
    words = setting.kind.expects.removeprefix("one of ")
    return "|".join(words.split(", ")) if words != setting.kind.expects else "VALUE"


def _serve(settings: Settings) -> None:
    from rookery.server import serve

    try:
        code = serve(settings)
    except RookeryError as error:
        print(f"rookery: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _doctor(settings: Settings) -> None:
    """Show what this installation is made of, which settings are in force and where each came from."""
    import platform
    from importlib import metadata

    from rookery import __version__, _compiled

    print(f"rookery {__version__}, Python {platform.python_version()} ({platform.system()} {platform.machine()})")
    print("\nHot modules")
    for module, is_compiled in _compiled.report().items():
        print(f"  {module:<32} {'compiled' if is_compiled else 'plain Python: about ten times slower'}")
    print("\nPackages")
    for name in ("uvloop", "librt", "httptools", "msgspec", "structlog", "typer", "redis", "asyncpg", "pyarrow"):
        try:
            print(f"  {name:<32} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"  {name:<32} not installed")
    print("\nSettings")
    for row in settings.describe():
        print(f"  {row.name:<32} {row.value or '-':<24} {row.source}")
    for warning in settings.warnings:
        print(f"  warning: {warning}")
    problems = _problems(settings)
    print("\n" + ("\n".join(f"problem: {problem}" for problem in problems) if problems else "No problems found."))
    if problems:
        raise typer.Exit(1)


def _problems(settings: Settings) -> list[str]:
    from rookery.server import loop_factory

    problems = []
    place = settings.data_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        problems.append(f"the data directory {settings.data_dir} cannot be written")
    if loop_factory() is None:
        problems.append("uvloop is not installed: asyncio's own loop needs more CPU at light load")
    return problems


app.command("serve", help=SERVE_HELP)(_with_settings(_serve))
app.command("doctor")(_with_settings(_doctor))


def main() -> None:
    app()

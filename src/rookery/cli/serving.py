"""`rookery serve`, `doctor` and `backup`: every setting is a flag; data directories are looked at as files."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rookery.cli.commands import Json, help_text, single
from rookery.config.settings import SETTINGS, Setting, Settings
from rookery.errors import InvalidConfig, RookeryError

if TYPE_CHECKING:
    from collections.abc import Callable

SERVE_HELP: Final = """Start the broker.

Settings come from flags, the environment, a `.env` file, `rookery.toml` and defaults, the first that has one.
"""
SERVE_EXAMPLES: Final = (
    "rookery serve",
    "rookery serve --amqp-port 5673 --http-port off",
    "rookery serve --host 127.0.0.1 --auth-mode none",
    "API_KEY=… rookery serve --config /etc/rookery.toml",
)

DOCTOR_HELP: Final = """Look at this installation, or at the journal in a data directory.

Without DIR: what this installation is made of, which settings are in force and where each came from. With DIR: whether
every batch of the journal there is whole, and if not, which file is damaged at which offset; nothing is changed, and a
broker may be running.

With --repair: make a sound directory of what is left of DIR (or of the data directory of the settings). It takes the
place of the damaged one, which is kept as DIR.damaged-1, or becomes the directory named by --out. No broker may be
running on it.

Exit code: 0 all is well, 1 a problem or damage was found, 2 nothing could be done.
"""
DOCTOR_EXAMPLES: Final = (
    "rookery doctor",
    "rookery doctor /var/lib/rookery",
    "rookery doctor --repair /var/lib/rookery",
    "rookery doctor --repair --out /mnt/large/repaired --json /var/lib/rookery",
)

BACKUP_HELP: Final = """Copy the data directory to DIR, also while the broker runs on it.

The copy is the broker as it was at one moment: everything that was confirmed before the command began is in it. It is
checked, and gets its name when it is complete. DIR must not be there yet, or be empty. To restore a backup is to start
on it.

Exit code: 0 done, 1 the copy failed or the journal is damaged, 2 nothing could be done.
"""
BACKUP_EXAMPLES: Final = (
    "rookery backup /backup/rookery-today",
    "rookery backup --data-dir /var/lib/rookery /backup/rookery-today",
    "rookery serve --data-dir /backup/rookery-today",
)

serve = single()
doctor = single()
backup = single()


def _with_settings(
    command: Callable[..., None], *own: inspect.Parameter, only: tuple[str, ...] = ()
) -> Callable[..., None]:
    """The command with one flag per setting (or `only` some), each a text that `config` reads.

    A flag not given is None. What is the command's `own` is passed on by name.
    """

    def run(**flags: Any) -> None:
        mine = {each.name: flags.pop(each.name) for each in own}
        try:
            settings = Settings.load(flags, os.environ, Path.cwd())
        except InvalidConfig as error:
            print(f"rookery: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        command(settings, **mine)

    parameters = [
        *own,
        *(
            inspect.Parameter(setting.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(setting))
            for setting in SETTINGS
            if not only or setting.field in only
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _own(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag(setting: Setting) -> Any:
    default = setting.show(setting.default)
    text = f"{setting.help}; {setting.variable}" + (f" [{default}]" if default else "")
    return Annotated[str | None, typer.Option(setting.flag, help=text, metavar=_metavar(setting))]


def _metavar(setting: Setting) -> str:
    words = setting.kind.expects.removeprefix("one of ")
    return "|".join(words.split(", ")) if words != setting.kind.expects else "VALUE"


def _serve(settings: Settings) -> None:
    from rookery.server.process import serve

    try:
        code = serve(settings)
    except RookeryError as error:
        print(f"rookery: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _doctor(settings: Settings, directory: Path | None, repair: bool, out: Path | None, as_json: bool) -> None:
    if out is not None and not repair:
        print("rookery: --out is where --repair puts what it makes", file=sys.stderr)
        raise typer.Exit(2)
    if directory is None and not repair:
        raise typer.Exit(_installation(settings, as_json))
    from rookery.care import upkeep

    place = directory or settings.data_dir
    raise typer.Exit(upkeep.mend(place, out, as_json=as_json) if repair else upkeep.look(place, as_json=as_json))


def _backup(settings: Settings, target: Path, as_json: bool) -> None:
    from rookery.care import upkeep

    raise typer.Exit(upkeep.copy(settings.data_dir, target, as_json=as_json))


def _installation(settings: Settings, as_json: bool) -> int:
    """Show what this installation is made of, which settings are in force and where each came from."""
    import platform

    from rookery import __version__, _compiled

    modules, packages, problems = _compiled.report(), _packages(), _problems(settings)
    rows = settings.describe()
    if as_json:
        import json

        made_of = {"version": __version__, "python": platform.python_version(), "compiled": modules}
        made_of["speed"] = _compiled.speed()
        in_force = {row.name: {"value": row.value, "source": row.source} for row in rows}
        found = {"packages": packages, "settings": in_force, "warnings": settings.warnings, "problems": problems}
        print(json.dumps({**made_of, **found}))
        return 1 if problems else 0
    print(f"rookery {__version__}, Python {platform.python_version()} ({platform.system()} {platform.machine()})")
    print(f"The hot modules are {_compiled.speed()}.")
    print("\nHot modules")
    for module, is_compiled in modules.items():
        print(f"  {module:<32} {'compiled' if is_compiled else 'plain Python: about ten times slower'}")
    print("\nPackages")
    for name, version in packages.items():
        print(f"  {name:<32} {version or 'not installed'}")
    print("\nSettings")
    for row in rows:
        print(f"  {row.name:<32} {row.value or '-':<24} {row.source}")
    for warning in settings.warnings:
        print(f"  warning: {warning}")
    print("\n" + ("\n".join(f"problem: {problem}" for problem in problems) if problems else "No problems found."))
    return 1 if problems else 0


def _packages() -> dict[str, str | None]:
    """The version of each package that takes part, None for one that is not installed."""
    from importlib import metadata

    found: dict[str, str | None] = {}
    names = (
        "uvloop",
        "librt",
        "httptools",
        "msgspec",
        "structlog",
        "typer",
        "zstandard",
        "pyarrow",
    )
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _problems(settings: Settings) -> list[str]:
    from rookery.server.process import loop_factory

    problems = []
    place = settings.data_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        problems.append(f"the data directory {settings.data_dir} cannot be written")
    if loop_factory() is None:
        problems.append("uvloop is not installed: asyncio's own loop needs more CPU at light load")
    return problems


_json = _own("as_json", False, Json)

serve.command("serve", help=help_text(SERVE_HELP, SERVE_EXAMPLES))(_with_settings(_serve))
doctor.command("doctor", help=help_text(DOCTOR_HELP, DOCTOR_EXAMPLES))(
    _with_settings(
        _doctor,
        _own("directory", None, Annotated[Path | None, typer.Argument(metavar="DIR", help="A data directory.")]),
        _own("repair", False, Annotated[bool, typer.Option("--repair", help="Salvage what is left of a damaged one.")]),
        _own("out", None, Annotated[Path | None, typer.Option("--out", help="Where to, instead of its place.")]),
        _json,
    )
)
backup.command("backup", help=help_text(BACKUP_HELP, BACKUP_EXAMPLES))(
    _with_settings(
        _backup,
        _own("target", inspect.Parameter.empty, Annotated[Path, typer.Argument(metavar="DIR", help="The copy.")]),
        _json,
        only=("config", "data_dir"),
    )
)

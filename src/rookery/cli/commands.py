"""How commands are made: from a function whose docstring is the help, with examples, and the options all of them have.

A function whose first parameter is a `Session` speaks to a broker: it gets `--url`, `--key`, `--ca-file` and
`--timeout`. One whose first parameter is an `Output` only prints. Both get `--json`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from rookery.cli.families import AS_JSON
from rookery.cli.output import Output
from rookery.cli.session import Session
from rookery.cli.where import find

STYLE: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
EXAMPLES: dict[str, list[str]] = {}
"""Every example of a help text, by the module and name of its function."""

Function = TypeVar("Function", bound=Callable[..., Any])


def family(help: str, *, otherwise: str = "") -> typer.Typer:
    """A group of commands, such as `rookery queues`; `otherwise` is the one that is meant when none is named."""
    app = typer.Typer(help=help, no_args_is_help=not otherwise, invoke_without_command=bool(otherwise), **STYLE)
    if otherwise:

        @app.callback()
        def none_named(ctx: typer.Context) -> None:
            if ctx.invoked_subcommand is None:
                meant: Any = ctx.command
                command = meant.get_command(ctx, otherwise)
                with command.make_context(otherwise, [], parent=ctx) as inner:
                    command.invoke(inner)

    return app


def single() -> typer.Typer:
    """For a command that stands alone, such as `rookery publish`."""
    return typer.Typer(**STYLE)


def command(app: typer.Typer, name: str, *examples: str) -> Callable[[Function], Function]:
    """Make a command of a function."""

    def register(function: Function) -> Function:
        EXAMPLES[f"{function.__module__}.{function.__qualname__}"] = list(examples)
        app.command(name, help=help_text(function.__doc__ or "", examples))(_with_common(function))
        return function

    return register


def help_text(text: str, examples: tuple[str, ...]) -> str:
    """A docstring with examples below it, which keep their lines."""
    shown = "\n".join(f"  {example}" for example in examples)
    return f"{inspect.cleandoc(text)}\n\n\b\nExamples:\n{shown}"


def _keep_json(ctx: typer.Context, wanted: bool) -> bool:
    ctx.meta[AS_JSON] = wanted
    return wanted


Json = Annotated[bool, typer.Option("--json", help="Print JSON.", callback=_keep_json, is_eager=True)]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Where the broker is; ROOKERY_URL.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="API key; ROOKERY_API_KEY.")]
CaFile = Annotated[
    str | None, typer.Option("--ca-file", metavar="PEM", help="Certificates to trust over https; ROOKERY_CA_FILE.")
]


def _seconds(text: str) -> int:
    return duration_ms(text)


Timeout = Annotated[int, typer.Option("--timeout", parser=_seconds, metavar="TIME", help="For an answer, such as 30s.")]

_COMMON: Final = (
    ("url", None, Url),
    ("key", None, Key),
    ("ca_file", None, CaFile),
    ("timeout", "30s", Timeout),
)
_JSON: Final = ("as_json", False, Json)


def _with_common(function: Callable[..., Any]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    first, *own = inspect.signature(function).parameters.values()
    remote = hints[first.name] is Session
    common = (*_COMMON, _JSON) if remote else (_JSON,)

    def run(**values: Any) -> None:
        said = {name: values.pop(name) for name, _, _ in common}
        out = Output(as_json=said.pop("as_json"))
        if not remote:
            function(out, **values)
            return
        timeout_ms = said.pop("timeout")
        with Session(out, find(**said), timeout_ms) as session:
            function(session, **values)

    parameters = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in own
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in common
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


# What several commands ask for

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1_000}


def duration_ms(text: str) -> int:
    """`500ms`, `10s`, `5m`, `2h`, `7d`, or a number of seconds, in milliseconds."""
    shape = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*(ms|s|m|h|d|)", text.strip())
    if shape is None:
        raise typer.BadParameter(f"{text!r} is no time: say 500ms, 10s, 5m, 2h or 7d.")
    return round(float(shape[1]) * _UNITS[shape[2]])


def time_option(flag: str, text: str) -> Any:
    """An option that is a time, in milliseconds when it is given."""
    return typer.Option(flag, parser=duration_ms, metavar="TIME", help=text)


def pairs(texts: list[str], option: str) -> dict[str, Any]:
    """`name=value` texts as a table; a value that is JSON counts as that, any other as text."""
    import msgspec

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint=option)
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")]
Max = Annotated[int, typer.Option("--max", "-n", min=1, help="At most so many.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Only names that begin so.")]

__all__ = ["EXAMPLES", "Max", "Prefix", "Yes", "command", "duration_ms", "family", "pairs", "single", "time_option"]

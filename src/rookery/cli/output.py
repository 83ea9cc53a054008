"""What commands print: tables, single things, JSON, lines, progress, and errors with their exit codes.

Results go to stdout, everything said about them to stderr. Colours, boxes and bars are for terminals; into a pipe or a
file goes plain text. With `--json` stdout holds JSON and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rookery.errors import BrokerUnreachable, RookeryError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILED: Final = 1
MISUSED: Final = 2
NOT_THERE: Final = 3
NOT_ALLOWED: Final = 4
CONFLICT: Final = 5
UNREACHED: Final = 6

_BY_STATUS: Final = {
    400: MISUSED,
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_THERE,
    409: CONFLICT,
    413: MISUSED,
    415: MISUSED,
    416: NOT_THERE,
    422: CONFLICT,
    429: UNREACHED,
    503: UNREACHED,
}
ADVICE: Final = {
    "broker_unreachable": "start one with `rookery serve`, or say where it is: --url or ROOKERY_URL",
    "unauthenticated": "give a key: --key or ROOKERY_API_KEY",
    "queue_not_found": "`rookery queues list` shows those there are",
    "exchange_not_found": "`rookery exchanges list` shows those there are",
    "stream_not_found": "`rookery streams list` shows those there are",
    "group_not_found": "`rookery groups list STREAM` shows those there are",
    "tenant_not_found": "`rookery tenants list` shows those there are",
    "lease_lost": "claim the message again",
}
"""What to do about an error, by its code."""

PLAIN_WIDTH: Final = 100_000
"""Of what is not a terminal: lines are not broken there."""

Column = str | Callable[[Any], object]
"""Where a cell's value is in its row (`stats.ready`), or what makes it of the row."""

Columns = dict[str, Column]
"""By their titles."""


class Output:
    """Prints what a command found, as text or as JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def table(self, rows: Iterable[Any], columns: Columns, *, empty: str = "none") -> None:
        """Rows as a table; as JSON, an array of the rows as they came."""
        rows = list(rows)
        if self.as_json:
            self.json(rows)
        elif not rows and sys.stdout.isatty():
            print(empty)
        else:
            self.print(make_table(rows, columns))

    def record(self, document: Mapping[str, Any]) -> None:
        """One thing, a line for each of its values."""
        if self.as_json:
            self.json(document)
            return
        rows = [{"name": name, "value": value} for name, value in flat(document)]
        self.print(make_table(rows, {"name": "name", "value": "value"}, head=False))

    def done(self, text: str, document: object) -> None:
        """What was done, in a sentence."""
        if self.as_json:
            self.json(document)
        else:
            print(text)

    def json(self, document: object) -> None:
        import msgspec

        encoded = msgspec.json.encode(document)
        if sys.stdout.isatty():
            encoded = msgspec.json.format(encoded, indent=2)
        print(encoded.decode())

    def line(self, document: object) -> None:
        """One JSON line, at once."""
        import msgspec

        print(msgspec.json.encode(document).decode(), flush=True)

    def print(self, shown: Table) -> None:
        if sys.stdout.isatty():
            console().print(shown)
            return
        screen = console()
        with screen.capture() as captured:
            screen.print(shown)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, no_color=True, force_terminal=False, width=PLAIN_WIDTH)


def make_table(rows: Sequence[Any], columns: Columns, *, head: bool = True) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    made = Table(box=box.SIMPLE_HEAD if terminal and head else None, show_header=head, pad_edge=False)
    cells = [[cell(row, column) for column in columns.values()] for row in rows]
    for index, title in enumerate(columns):
        values = [line[index] for line in cells]
        numbers = {type(value) for value in values if value is not None} == {int}
        made.add_column(title, justify="right" if numbers else "left", overflow="fold", no_wrap=not terminal)
    for line in cells:
        # Text, so that no part of a name is taken for markup
        made.add_row(*(Text(shown(value)) for value in line))
    return made


def cell(row: Any, column: Column) -> Any:
    if callable(column):
        return column(row)
    value = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def shown(value: object) -> str:
    """A value as a cell has it: control characters are spelt out, lest a message command the terminal."""
    import msgspec

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested tables, by their path."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None and value not in ({}, []):
            yield f"{prefix}{name}", value


def ago(wall_ms: int | None) -> str:
    """A moment, as how long ago it was, or how long it is until then."""
    import time

    if not wall_ms:
        return "-"
    seconds = time.time() - wall_ms / 1000
    return f"{span(abs(seconds))} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}"
        amount /= 1_000
    return f"{amount:.0f} TB"


def note(text: str) -> None:
    """Something said about the work, not a part of its result."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; call what is yielded with how much more was done."""
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.update(task, advance=more)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless the answer was given; a script is taken at its word."""
    import typer

    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(question, abort=True)


# Errors


def exit_code(error: RookeryError) -> int:
    if isinstance(error, BrokerUnreachable):
        return UNREACHED
    return _BY_STATUS.get(error.http, FAILED)


def refuse(error: RookeryError, *, as_json: bool) -> int:
    """Tell an error in one line, with what to do about it, and return its exit code."""
    if as_json:
        document = {"error": error.code, "message": str(error)}
        if error.argument is not None:
            document["argument"] = error.argument
        Output(as_json=True).json(document)
    advice = ADVICE.get(error.code)
    text = str(error).rstrip(".")
    if error.argument and error.argument.split(".")[-1] not in text:
        text = f"{error.argument}: {text}"
    note(f"rookery: {text}" + (f" ({advice})" if advice else ""))
    return exit_code(error)

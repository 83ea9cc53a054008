"""`rookery stats`: counts and rates of all queues, over and over on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final

import typer

from rookery.cli.commands import Prefix, command, single, time_option
from rookery.cli.output import Columns, console, make_table, size, span
from rookery.cli.session import Session

app = single()

RATES: Final = ("published", "delivered", "acked")
INTERVAL_MIN_MS: Final = 100


@command(
    app,
    "stats",
    "rookery stats",
    "rookery stats --prefix jobs --interval 5s",
    "rookery stats --json | jq '.queues[] | {name, ready}'",
    "rookery stats --once",
)
def stats(
    at: Session,
    prefix: Prefix = "",
    interval: Annotated[int, time_option("--interval", "Between two looks, such as 2s.")] = "2s",  # type: ignore[assignment]
    once: Annotated[bool, typer.Option("--once", help="Look once, also on a terminal.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Show so many queues, the fullest first.")] = 30,
) -> None:
    """Ready, delayed, leased and dead messages of every queue, and what happens a second.

    On a terminal this is a live view that Ctrl-C ends; into a pipe, or with --once or --json, it is one look.
    """
    look = _Look(at, prefix)
    if once or at.out.as_json or not sys.stdout.isatty():
        rows = look.take()
        if at.out.as_json:
            at.out.json({"queues": [row["stats"] for row in rows], "totals": _totals(rows)})
        else:
            at.out.print(make_table([*rows[:top], _sum_row(rows)], _columns(False)))
        return
    _live(at, look, max(interval, INTERVAL_MIN_MS) / 1000, top)


def _live(at: Session, look: _Look, interval_sec: float, top: int) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            rows = look.take()
            more = f", {len(rows) - top} more not shown" if len(rows) > top else ""
            head = Text(f"{at.transport.address.url}  {time.strftime('%H:%M:%S')}  {len(rows)} queues{more}", "bold")
            live.update(Group(head, make_table([*rows[:top], _sum_row(rows)], _columns(True))), refresh=True)
            time.sleep(interval_sec)


class _Look:
    """Looks at the queues, and knows what has changed since the last time."""

    def __init__(self, at: Session, prefix: str) -> None:
        self._at = at
        self._prefix = prefix
        self._before: dict[str, tuple[float, dict[str, int]]] = {}

    def take(self) -> list[Any]:
        """The queues, the fullest first, each with its `rates` a second since the last look."""
        rows = list(self._at.pages("/queues", "queues", prefix=self._prefix))
        now = time.monotonic()
        for row in rows:
            counts = {name: row["stats"][name] for name in RATES}
            then, old = self._before.get(row["name"], (now, counts))
            passed = now - then
            row["rates"] = {name: round((counts[name] - old[name]) / passed) if passed else 0 for name in RATES}
            self._before[row["name"]] = (now, counts)
        return sorted(rows, key=lambda row: (-row["stats"]["ready"] - row["stats"]["leased"], row["name"]))


def _columns(live: bool) -> dict[str, Any]:
    columns: Columns = {
        "queue": "name",
        **{name: f"stats.{name}" for name in ("ready", "delayed", "leased", "dead", "consumers")},
    }
    if live:
        columns |= {f"{name}/s": f"rates.{name}" for name in RATES}
    else:
        columns |= {name: f"stats.{name}" for name in RATES}
    columns["size"] = lambda row: size(row["stats"]["bytes"])
    columns["oldest"] = lambda row: span(row["stats"]["oldest_age_ms"] / 1000)
    return columns


def _totals(rows: list[Any]) -> dict[str, int]:
    names = ("ready", "delayed", "leased", "dead", "consumers", "bytes", *RATES)
    return {name: sum(row["stats"][name] for row in rows) for name in names}


def _sum_row(rows: list[Any]) -> dict[str, Any]:
    oldest = max((row["stats"]["oldest_age_ms"] for row in rows), default=0)
    rates = {name: sum(row["rates"][name] for row in rows) for name in RATES}
    return {"name": "all", "stats": {**_totals(rows), "oldest_age_ms": oldest}, "rates": rates}

"""Writes the tables of docs/rights.md from `rookery.core.rights` and a server's routes; with --check, only compares."""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rookery.config.settings import Settings
from rookery.core.rights import AMQP, LINE, OPERATIONS, WHO
from rookery.server.logs import make_log
from rookery.server.process import Server

PAGE = Path(__file__).parents[1] / "docs" / "rights.md"
BEGIN = "<!-- rights: written by tools/make_rights.py -->\n"
END = "<!-- end of rights -->\n"


def who_table() -> str:
    return "| who | means |\n|---|---|\n" + "".join(f"| {who} | {text} |\n" for who, text in WHO.items())


def operations_table(routes: Iterable[Any]) -> str:
    """One row per operation: who may ask, the rights by role, and where it is asked for."""
    places: dict[str, list[str]] = {name: [] for name in OPERATIONS}
    for route in routes:
        places[route.operation].append(f"`{route.method} {route.template}`")
    for kind, table in (("AMQP", AMQP), ("line", LINE)):
        for name, operations in table.items():
            for operation in operations:
                places[operation].append(f"{kind} `{name}`")
    text = "| operation | who | rights | asked for by | note |\n|---|---|---|---|---|\n"
    for name, entry in OPERATIONS.items():
        rights = "; ".join(f"{' + '.join(needed)} on {role}" for role, needed in entry.needs.items())
        text += f"| `{name}` | {entry.who} | {rights} | {', '.join(places[name])} | {entry.note} |\n"
    return text


def page(text: str, routes: Iterable[Any]) -> str:
    """The page with the tables as they should be."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "the page has lost the mark where the tables begin"
    assert end, "the page has lost the mark where the tables end"
    return f"{before}{BEGIN}\n{who_table()}\n{operations_table(routes)}\n{END}{after}"


async def served_routes(folder: Path) -> list[Any]:
    """The routes of a server as it is started."""
    flags = {"host": "127.0.0.1", "http_port": 0, "amqp_port": "off", "line_port": "off", "store_backend": "memory"}
    server = Server(
        Settings.load({**flags, "api_key": "only to list routes", "data_dir": folder}, {}, folder),
        log=make_log("error", io.StringIO()),
    )
    await server.start()
    assert server._web is not None
    routes: list[Any] = list(server._web.router.routes)
    await server.stop()
    return routes


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        new = page(old, asyncio.run(served_routes(Path(folder))))
    if "--check" in sys.argv:
        return int(old != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

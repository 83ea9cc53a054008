"""Names for shell completion, asked for at the broker; when it does not answer at once, there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

TIMEOUT_MS: Final = 1_000
NAMES_MAX: Final = 100


def _names(kind: str) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from rookery.cli.output import Output
        from rookery.cli.session import Session
        from rookery.cli.where import find
        from rookery.errors import RookeryError

        said = {name: ctx.params.get(name) for name in ("url", "key", "ca_file")}
        try:
            with Session(Output(), find(**said), TIMEOUT_MS) as at:
                rows = at.get(f"/{kind}", prefix=incomplete, limit=NAMES_MAX)[kind]
        except RookeryError:
            return []
        return [row["name"] for row in rows]

    return complete


queue_names = _names("queues")
exchange_names = _names("exchanges")
stream_names = _names("streams")

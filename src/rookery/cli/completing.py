"""Names for shell completion, asked for at the broker; when it does not answer at once, there are none.

Names of queue settings come from their table.
"""

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


def _settings(*, by_policy: bool) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        from rookery.core.queue_settings import QUEUE_SETTINGS

        name, equals, value = incomplete.partition("=")
        if not equals:
            rows = [row for row in QUEUE_SETTINGS if row.by_policy or not by_policy]
            return [f"{row.name}=" for row in rows if row.name.startswith(name)]
        choices = next((row.choices for row in QUEUE_SETTINGS if row.name == name), ())
        return [f"{name}={choice}" for choice in choices if choice.startswith(value)]

    return complete


queue_settings = _settings(by_policy=False)
policy_settings = _settings(by_policy=True)
queue_names = _names("queues")
exchange_names = _names("exchanges")
stream_names = _names("streams")

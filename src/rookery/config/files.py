"""The files that settings come from: their names, the format of `.env`, and what commands read of them."""

from __future__ import annotations

import re
from typing import Final

from rookery.errors import InvalidConfig

CONFIG_FILE: Final = "rookery.toml"
ENV_FILE: Final = ".env"
DB_FILE: Final = "DB_FILE"
"""Where Raven-MQ keeps its messages: another name of the variable for the data directory, which counts before it."""

CLIENT_SETTINGS: Final = {
    "client.url": "ROOKERY_URL",
    "client.key": "ROOKERY_API_KEY",
    "client.ca_file": "ROOKERY_CA_FILE",
}
"""What commands that speak to a broker read from the same sources (`cli.where`), by TOML key; the server has no use."""


def parse_env_file(text: str) -> dict[str, tuple[str, int]]:
    """Read `KEY=VALUE` lines into {key: (value, line number)}; of a repeated key the last counts.

    `export` before a key and blank or `#` lines are passed over. Single quotes keep their text as it is; double quotes
    know \\n, \\t, \\", \\\\ and \\$; without quotes the value ends before a ` #`. Nothing is expanded.
    """
    found: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        shape = re.fullmatch(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=(.*)", line)
        value = _unquote(shape[2]) if shape is not None else None
        if shape is None or value is None:
            problem = "is not KEY=VALUE" if shape is None else "has quotes that do not match"
            raise InvalidConfig(f"{ENV_FILE} line {number} {problem}", argument=ENV_FILE)
        found[shape[1]] = (value, number)
    return found


def _unquote(raw: str) -> str | None:
    value = raw.lstrip()
    if value[:1] == "'":
        shape = re.fullmatch(r"'([^']*)'\s*(?:#.*)?", value)
        return shape[1] if shape else None
    if value[:1] == '"':
        shape = re.fullmatch(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', value)
        escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "$": "$"}
        return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[0]), shape[1]) if shape else None
    return re.split(r"\s#", raw, maxsplit=1)[0].strip()

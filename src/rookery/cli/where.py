"""Which broker a command speaks to: flags > environment > `.env` > TOML file > this machine, as for the server.

Without a URL it is the server of this directory's settings, on this machine: its port, and its key, be that `API_KEY`
or the file beside the data directory in which a server without a terminal leaves its first admin key. Such a key is
never sent elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rookery.config.files import CLIENT_SETTINGS, CONFIG_FILE, DB_FILE, ENV_FILE, parse_env_file
from rookery.config.kinds import is_loopback
from rookery.errors import InvalidConfig

HOST: Final = "127.0.0.1"


class Where(NamedTuple):
    """An address and a credential; `key` is None where there is none."""

    url: str
    key: str | None
    ca_file: str


def find(url: str | None = None, key: str | None = None, ca_file: str | None = None) -> Where:
    """Where to, by what the flags say, and by what the other sources say where they say nothing."""
    cwd = Path.cwd()
    said = dict(os.environ)
    if url is None or key is None:
        said = {**_toml(cwd, said), **_env_file(cwd), **{name: text for name, text in said.items() if text}}
    url = url or said.get("ROOKERY_URL")
    key = key or said.get("ROOKERY_API_KEY")
    if url is None:
        port = said.get("APP_PORT") or "8080"
        url = f"http://{HOST}:{port}"
    if key is None and is_loopback(urlsplit(url).hostname or "") and "@" not in url:
        key = said.get("API_KEY") or _key_file(
            cwd / (said.get("ROOKERY_DATA_DIR") or said.get(DB_FILE) or "rookery-data")
        )
    return Where(url, key, ca_file or said.get("ROOKERY_CA_FILE") or "")


def _env_file(cwd: Path) -> dict[str, str]:
    path = cwd / ENV_FILE
    if not path.is_file():
        return {}
    try:
        found = parse_env_file(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidConfig):
        # it may be another program's; the server is strict about its own
        return {}
    return {name: text.strip() for name, (text, _) in found.items() if text.strip()}


def _toml(cwd: Path, environ: dict[str, str]) -> dict[str, str]:
    path = cwd / (environ.get("ROOKERY_CONFIG") or CONFIG_FILE)
    if not path.is_file():
        return {}
    import tomllib

    from rookery.config.settings import SETTINGS

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}", argument="ROOKERY_CONFIG") from None
    variables = {s.key: s.variable for s in SETTINGS if s.key} | CLIENT_SETTINGS
    return {
        variables[f"{table}.{name}"]: str(value)
        for table, values in document.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if f"{table}.{name}" in variables
    }


def _key_file(data_dir: Path) -> str | None:
    try:
        return data_dir.with_name(data_dir.name + ".admin-key").read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None

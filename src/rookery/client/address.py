"""Where a broker is and as whom it is spoken to, from a URL."""

from __future__ import annotations

import base64
import dataclasses
import os
import ssl
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from rookery.errors import InvalidArgument, InvalidType

PORT: Final = 8080
TLS_PORT: Final = 443
KEY_VARIABLE: Final = "ROOKERY_API_KEY"


@dataclasses.dataclass(frozen=True)
class Address:
    """One endpoint. `path` goes before every path; `credential` is a header's value, or empty."""

    host: str
    port: int
    tls: ssl.SSLContext | None = dataclasses.field(default=None, repr=False, compare=False)
    path: str = ""
    credential: str = dataclasses.field(default="", repr=False)

    @property
    def url(self) -> str:
        """As it may be shown: without the credential."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"


def addresses(
    urls: str | Sequence[str],
    *,
    api_key: str | None = None,
    ca_file: str = "",
    tls: ssl.SSLContext | None = None,
) -> list[Address]:
    """The endpoints that a URL, several with commas between, or a list of them name.

    A credential is `api_key`, or stands in the URL (`http://KEY@host`, `http://user:password@host`), or is the variable
    ROOKERY_API_KEY. `ca_file` holds the certificates to trust instead of the system's; `tls` replaces all of that.
    """
    if not isinstance(urls, str | Sequence):
        raise InvalidType(f"url must be str, not {type(urls).__name__}", argument="url")
    if api_key is not None and not isinstance(api_key, str):
        raise InvalidType(f"api_key must be str, not {type(api_key).__name__}", argument="api_key")
    texts = [text.strip() for text in urls.split(",")] if isinstance(urls, str) else list(urls)
    found = [_address(text, api_key, ca_file, tls) for text in texts]
    if not found:
        raise InvalidArgument("there must be a URL", argument="url")
    return found


def _address(url: object, api_key: str | None, ca_file: str, tls: ssl.SSLContext | None) -> Address:
    if not isinstance(url, str):
        raise InvalidType(f"url must be str, not {type(url).__name__}", argument="url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"url is not one: {error}", argument="url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument("url must be like http://host:8080 or https://host", argument="url")
    if parts.query or parts.fragment:
        raise InvalidArgument("url must have no query and no fragment", argument="url")
    secure = None
    if parts.scheme == "https":
        secure = tls or _context(ca_file)
    if port is None:
        port = TLS_PORT if secure else PORT
    path = parts.path.rstrip("/")
    credential = _credential(parts.username, parts.password, api_key)
    for text in (path, credential):
        if not text.isascii() or not text.isprintable():
            raise InvalidArgument("url and key must be of printable ASCII characters", argument="url")
    return Address(parts.hostname, port, secure, path, credential)


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"ca_file cannot be used: {error}", argument="ca_file") from None


def _credential(user: str | None, password: str | None, api_key: str | None) -> str:
    key = api_key
    if key is None and user:
        if password is not None:
            pair = f"{unquote(user)}:{unquote(password)}"
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        key = unquote(user)
    if key is None:
        key = os.environ.get(KEY_VARIABLE, "")
    return f"Bearer {key}" if key else ""

"""HTTP/1.1 from the asking side, without I/O: a request as bytes. `wire.http.answers` reads what comes back."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from rookery.client.address import Address
from rookery.errors import InvalidArgument


class Request:
    """A request that can be sent to any endpoint, and again."""

    __slots__ = ("body", "headers", "method", "target")

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        for name, value in headers.items():
            if not (name.isascii() and value.isascii() and name.isprintable() and value.isprintable()):
                raise InvalidArgument(f"header {name!r} must be of printable ASCII characters", argument="headers")
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def encode(self, address: Address) -> bytes:
        host = f"[{address.host}]" if ":" in address.host else address.host
        lines = f"{self.method} {address.path}{self.target} HTTP/1.1\r\nHost: {host}:{address.port}\r\n"
        if address.credential:
            lines += f"Authorization: {address.credential}\r\n"
        for name, value in self.headers.items():
            lines += f"{name}: {value}\r\n"
        if self.body or self.method not in ("GET", "DELETE", "HEAD"):
            lines += f"Content-Length: {len(self.body)}\r\n"
        return f"{lines}\r\n".encode("ascii") + self.body


def target_of(path: str, query: dict[str, object] | None) -> str:
    """A path with its query; what is None is left out, and bools are said as JSON says them."""
    if not query:
        return path
    said = {
        name: value if not isinstance(value, bool) else "true" if value else "false"
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(said)}" if said else path


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="", errors="surrogateescape")

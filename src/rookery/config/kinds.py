"""The types of settings: what each wants, in words, how it is read from text, and how it is shown.

A reader raises ValueError; what it expected is said once, in `expects`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from rookery.wire.protocols import listeners

AppEnv = Literal["production", "development"]
AuthMode = Literal["none", "apikey", "bearer"]
StoreBackend = Literal["memory", "journal"]
BackoffStrategy = Literal["fixed", "linear", "exponential"]
KeyCreation = Literal["local", "open", "admin", "closed"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
SyncMode = Literal["always", "interval", "os"]
Compression = Literal["none", "zlib", "zstd"]
EventLoop = Literal["auto", "uvloop", "asyncio"]
ClientCertificates = Literal["off", "optional", "required"]
TlsVersion = Literal["1.2", "1.3"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MASK: Final = "***"
WEEK_SEC: Final = 7 * 24 * 3_600
_SIZE_UNITS: Final = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})

SECRET_CHARS_MIN: Final = 16
SECRET_DISTINCT_MIN: Final = 6
GUESSED_FIRST: Final = (
    "changeme|supersecretkey|secret|password|passw0rd|example|apikey|default|rookery|ravenmq|letmein|admin|guest|super|"
    "test|your|here|token|qwerty|0123456789|123456789|123456|1234|abcdef|my|key"
)
"""Words that weak secrets are made of; what is left without them must still be long."""


def is_guessable(secret: str) -> bool:
    """Whether a secret is short, made of few characters, or among those that everybody tries first."""
    plain = "".join(c for c in secret.lower() if c.isalnum())
    rest = re.sub(GUESSED_FIRST, "", plain)
    return len(secret) < SECRET_CHARS_MIN or len(set(secret)) < SECRET_DISTINCT_MIN or len(rest) < SECRET_DISTINCT_MIN


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of setting: what it wants, in words, how it is read from text, and how it is shown."""

    expects: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    secret: bool = False


def whole(low: int, high: int) -> Kind:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", text) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return Kind(f"a whole number from {low} to {high}", read)


def decimal(low: float, high: int) -> Kind:
    def read(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,6})?", text) or not low <= float(text) <= high:
            raise ValueError
        return float(text)

    return Kind(f"a number from {low} to {high}", read, lambda value: f"{value:.6f}".rstrip("0").rstrip("."))


def size(low: int) -> Kind:
    def read(text: str) -> int:
        shape = re.fullmatch(r"([0-9]{1,15}) ?([A-Za-z]{0,3})", text)
        unit = _SIZE_UNITS.get(shape[2].lower()) if shape else None
        if shape is None or unit is None or not low <= int(shape[1]) * unit < 1 << 63:
            raise ValueError
        return int(shape[1]) * unit

    return Kind(f"a number of bytes from {low}, such as 65536 or 64MiB", read)


class NotAvailable(ValueError):
    """A value that is planned, but does nothing in this version."""


def word(literal: Any, planned: tuple[str, ...] = (), **also: str) -> Kind:
    """One of a Literal's words, in any case; `also` maps further spellings to them. A `planned` word is refused as
    such, so that nobody takes it for a typo.
    """
    words: tuple[str, ...] = get_args(literal)

    def read(text: str) -> str:
        word = also.get(text.lower(), text.lower())
        if word in planned:
            raise NotAvailable
        if word not in words:
            raise ValueError
        return word

    return Kind("one of " + ", ".join(words), read)


def read_port(text: str) -> int | None:
    if text.lower() == "off":
        return None
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65_535:
        raise ValueError
    return int(text)


def _read_bool(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise ValueError
    return text.lower() in _YES


def _read_host(text: str) -> str:
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in host:
        ipaddress.IPv6Address(host)
    elif not re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", host):
        raise ValueError
    return host


def _read_origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", origin):
            raise ValueError
    return origins


def _read_listeners(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not set(names) <= set(listeners()):
        raise ValueError
    return names


def _read_networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def _read_suffix(text: str) -> str:
    if len(text.encode()) > 64 or re.search(r"[\x00-\x20\x7f]", text):
        raise ValueError
    return text


Port = Annotated[
    int | None,
    Kind("a port from 0 (any free one) to 65535, or off", read_port, lambda port: "off" if port is None else str(port)),
]
Host = Annotated[str, Kind("an IP address or a host name", _read_host)]
Bool = Annotated[bool, Kind("true or false", _read_bool, lambda value: "true" if value else "false")]
Secret = Annotated[str | None, Kind("text", str, lambda _: MASK, secret=True)]
Origins = Annotated[
    tuple[str, ...], Kind("origins such as https://example.org, separated by commas, or *", _read_origins, ",".join)
]
Listeners = Annotated[
    tuple[str, ...], Kind("names out of " + ", ".join(listeners()) + ", separated by commas", _read_listeners, ",".join)
]
Networks = Annotated[
    tuple[Network, ...],
    Kind(
        "networks such as 10.0.0.0/8, separated by commas",
        _read_networks,
        lambda networks: ",".join(str(network) for network in networks),
    ),
]
Suffix = Annotated[str, Kind("at most 64 bytes without spaces", _read_suffix)]
Seconds = Annotated[float, decimal(0, WEEK_SEC)]
LeaseSeconds = Annotated[float, decimal(0.001, WEEK_SEC)]
Bytes = Annotated[int, size(1)]
Attempts = Annotated[int, whole(1, 1_000_000)]
Level = Annotated[LogLevel, word(LogLevel, warn="warning", fatal="critical")]
Store = Annotated[StoreBackend, word(StoreBackend, planned=("redis", "postgres"))]
FilePath = Annotated[Path, Kind("a path", Path)]
MoreBytes = Annotated[int | None, size(1)]

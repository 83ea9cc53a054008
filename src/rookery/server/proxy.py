"""The PROXY protocol, versions 1 and 2: how a proxy says from where a connection really comes. No I/O.

A `Reader` is shown what has arrived and says how much of it is the header, so that whoever reads the socket leaves all
that follows (a TLS handshake, say) where it is. A header that is malformed, or longer than it has any reason to be,
raises InvalidArgument.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from rookery.errors import InvalidArgument

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
WORD: Final = b"PROXY "
LINE_MAX_BYTES: Final = 107
"""The longest line of version 1, with its end."""

HEADER_MAX_BYTES: Final = 4_096
"""The longest header of version 2, with whatever a proxy adds to the addresses."""

_FIXED_BYTES: Final = 16
_LOCAL: Final = 0x20
_PROXIED: Final = 0x21
_ADDRESS_BYTES: Final = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}


class Source(NamedTuple):
    """Where a connection comes from: `address`, when the proxy says so; `itself`, when it is the proxy's own."""

    address: str
    itself: bool


class Reader:
    """Takes one header; `source` is None until it is whole."""

    def __init__(self) -> None:
        self.source: Source | None = None
        self._got = b""

    def take(self, data: bytes) -> int:
        """How many bytes of `data`, which follows what was taken before, belong to the header."""
        before = len(self._got)
        seen = self._got + data
        if seen[:12] == SIGNATURE[: len(seen)]:
            end = self._second(seen)
        elif seen[:6] == WORD[: len(seen)]:
            end = self._first(seen)
        else:
            raise InvalidArgument("there is no PROXY header", argument="header")
        self._got = seen[:end]
        return end - before

    def _first(self, seen: bytes) -> int:
        end = seen.find(b"\r\n")
        if end < 0:
            if len(seen) >= LINE_MAX_BYTES:
                raise InvalidArgument("the line is too long", argument="header")
            return len(seen)
        if end + 2 > LINE_MAX_BYTES:
            raise InvalidArgument("the line is too long", argument="header")
        words = seen[:end].decode("ascii", "replace").split(" ")
        if words[1] == "UNKNOWN":
            self.source = Source("", itself=False)
        elif len(words) == 6 and words[1] in ("TCP4", "TCP6"):
            version = 4 if words[1] == "TCP4" else 6
            source, _ = (_address(text, version) for text in words[2:4])
            for text in words[4:]:
                if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65_535):
                    raise InvalidArgument(f"{text!r} is not a port", argument="header")
            self.source = Source(source, itself=False)
        else:
            raise InvalidArgument(
                "the line is not of the form PROXY TCP4 source destination port port", argument="header"
            )
        return end + 2

    def _second(self, seen: bytes) -> int:
        if len(seen) < _FIXED_BYTES:
            return len(seen)
        command, family = seen[12], seen[13] >> 4
        size = int.from_bytes(seen[14:16], "big")
        end = _FIXED_BYTES + size
        if command not in (_LOCAL, _PROXIED):
            raise InvalidArgument(f"version and command {command:#x} are not known", argument="header")
        if command == _PROXIED and (family not in _ADDRESS_BYTES or size < _ADDRESS_BYTES[family]):
            raise InvalidArgument(f"{size} bytes are no address of family {family}", argument="header")
        if end > HEADER_MAX_BYTES:
            raise InvalidArgument(f"a header of {end} bytes is too long", argument="header")
        if len(seen) < end:
            return len(seen)
        if command == _LOCAL:
            self.source = Source("", itself=True)
        elif family == 1:
            self.source = Source(str(ipaddress.IPv4Address(seen[16:20])), itself=False)
        elif family == 2:
            self.source = Source(str(ipaddress.IPv6Address(seen[16:32])), itself=False)
        else:
            self.source = Source("", itself=False)
        return end


def _address(text: str, version: int) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or address.version != version or "%" in text:
        raise InvalidArgument(f"{text!r} is not an address of IPv{version}", argument="header")
    return str(address)

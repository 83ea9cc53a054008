"""Where the calls of webhooks may lead. A name is resolved here, each of its addresses is checked, and what was checked
is what is connected to: a name that leads elsewhere a moment later changes nothing, and a redirect is checked like the
first address.

| address | an admin's webhook | others' |
|---|---|---|
| public | yes | yes |
| private, loopback | yes | no |
| link-local, multicast, unspecified, reserved, those of cloud metadata | no | no |
| one of this machine, with a port of this server | no | no |

Networks that the operator allows (`ROOKERY_WEBHOOK_ALLOW`) are open to everybody; the last row stays.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from rookery.errors import AccessRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
"""IPv4 addresses written as IPv6 ones, as was usual before `::ffff:0:0/96`; `::` and `::1` are in it too."""
_LOCAL_USE: Final = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("5f00::/16"))
"""Translation to IPv4 and segment routing within a site (RFC 8215, RFC 9602), which older Pythons take for public."""


class Guard:
    """The rules in force. `own_ports` gives the ports that the server itself listens on."""

    def __init__(self, allow: Iterable[Network] = (), own_ports: Callable[[], frozenset[int]] = frozenset) -> None:
        self._allow = tuple(allow)
        self._own_ports = own_ports

    def check_endpoint(self, endpoint: str, private: bool) -> None:
        """Refuse an endpoint whose host is an address that could never be called; names are looked at later."""
        parts = urlsplit(endpoint)
        try:
            address = ipaddress.ip_address(parts.hostname or "")
        except ValueError:
            return
        self.check(address, parts.port or (443 if parts.scheme == "https" else 80), private)

    def check(self, address: Address, port: int, private: bool) -> None:
        """Raise AccessRefused unless a webhook may call this address."""
        real = unwrapped(address)
        if port in self._own_ports() and _is_here(real):
            raise AccessRefused(f"{address}:{port} is this server itself", argument="endpoint")
        if any(real in network or address in network for network in self._allow):
            return
        if real in METADATA or real.is_link_local or real.is_multicast or real.is_unspecified or _is_reserved(real):
            raise AccessRefused(f"webhooks do not call {address}", argument="endpoint")
        if not private and (not real.is_global or any(real in network for network in _LOCAL_USE)):
            raise AccessRefused(f"{address} is not public: only an admin's webhook may call it", argument="endpoint")


def unwrapped(address: Address) -> Address:
    """The address that a packet goes to in the end: an IPv4 one inside an IPv6 one counts as itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        if inner is None and (address in _NAT64 or (address in _COMPATIBLE and int(address) > 1)):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return inner
    return address


def _is_reserved(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        # 0.0.0.0/8 leads to this machine on some systems
        return address.is_reserved or address in ipaddress.IPv4Network("0.0.0.0/8")
    return address.is_site_local


def _is_here(address: Address) -> bool:
    """Whether the address is one of this machine: then it can be bound to."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True

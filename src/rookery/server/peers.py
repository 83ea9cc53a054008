"""Which user of this machine is at the other end of a loopback connection.

A proxy on this machine connects from a loopback address too, and may add nothing to a request that tells of it (nginx
from 1.29.7 on, in its default configuration). It usually runs as a user of its own. Linux says by a netlink socket
(sock_diag) whose socket it is; elsewhere, nothing is known.
"""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBxI")
_PORTS: Final = struct.Struct("!HH")
_REST: Final = struct.Struct("=III")
_UID_AT: Final = _HEADER.size + 4 + 48 + 12
"""Behind four bytes of state, the addresses, and three counters."""


def is_own_user(transport: Any) -> bool:
    """Whether this process's user, or root, made the connection; True where that cannot be known."""
    try:
        uid = user_of(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
    except (AttributeError, OSError, TypeError, ValueError, struct.error):
        return True
    return uid is None or uid in (0, os.geteuid())


def user_of(peer: Any, ours: Any) -> int | None:
    """The user id of the socket at `peer` that is connected to `ours`; None if there is no such socket here."""
    source, target = _plain(peer[0]), _plain(ours[0])
    if source.version != target.version:
        return None
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    request = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    request += _PORTS.pack(peer[1], ours[1])
    request += source.packed.ljust(16, b"\0") + target.packed.ljust(16, b"\0")
    request += _REST.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG) as link:
        link.settimeout(1)
        link.sendto(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST, 1, 0) + request, (0, 0))
        answer = link.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return uid


def _plain(address: str) -> Any:
    found = ip_address(address.partition("%")[0])
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found

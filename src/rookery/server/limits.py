"""What the machine allows, and how often an address may fail: memory, open files, logins."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Final

MEMORY_SHARE: Final = 0.4
"""How much of the memory that there is may hold messages, unless said otherwise."""

FILES_SPARE: Final = 256
"""Open files beside connections: segments, listeners, libraries."""

WINDOW_MS: Final = 60_000
"""Failed logins are counted for so long, and then forgotten."""

ADDRESS_FACTOR: Final = 10
"""An address may fail so many times as often as one user from there."""

TRACKED_MAX: Final = 20_000


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """The memory of this machine, or of the container, if that has less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    own = ""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = line[3:].strip("/")
    groups = root / "sys/fs/cgroup"
    # a container sees its own group at the top, other processes under their path; any level may set the limit
    places = [groups / "memory/memory.limit_in_bytes", groups / "memory.max"]
    places += [groups / part / "memory.max" for part in (Path(own), *Path(own).parents) if own]
    for place in places:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(place.read_text()))
    return min(found)


def allow_open_files(wanted: int) -> int:
    """Ask the system for so many open files; returns how many it allows."""
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def is_local(host: str) -> bool:
    """Whether a peer with this address is on this machine."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@lru_cache(maxsize=4_096)
def network_of(host: str) -> str:
    """What is counted as one address: of IPv6 the first half, of which one customer has all."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class FailedLogins:
    """Counts failed logins by address and user, and by address. At `most` of the one, or ten times as many of the
    other, within a minute, further ones are refused unheard until a minute after the first of them. 0: no limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed: OrderedDict[tuple[str, str | None], tuple[int, int]] = OrderedDict()

    def refused(self, host: str, user: str, now_ms: int) -> bool:
        """Whether a login is to be refused without looking at it."""
        if not self._most or not self._failed:
            return False
        address = network_of(host)
        return (
            self._count((address, user[:255]), now_ms) >= self._most
            or self._count((address, None), now_ms) >= self._most * ADDRESS_FACTOR
        )

    def fail(self, host: str, user: str, now_ms: int) -> bool:
        """Count a failure; whether it is the one after which logins are refused."""
        if not self._most:
            return False
        address = network_of(host)
        return any(
            [
                self._add((address, user[:255]), now_ms) == self._most,
                self._add((address, None), now_ms) == self._most * ADDRESS_FACTOR,
            ]
        )

    def _count(self, key: tuple[str, str | None], now_ms: int) -> int:
        since_ms, count = self._failed.get(key, (now_ms, 0))
        return count if now_ms - since_ms < WINDOW_MS else 0

    def _add(self, key: tuple[str, str | None], now_ms: int) -> int:
        since_ms, count = self._failed.get(key, (now_ms, 0))
        if now_ms - since_ms >= WINDOW_MS:
            since_ms, count = now_ms, 0
            self._failed.pop(key, None)
        self._failed[key] = (since_ms, count + 1)
        while len(self._failed) > TRACKED_MAX:
            self._failed.popitem(last=False)
        return count + 1


class Seldom:
    """Keeps a log short when the same thing happens again and again: each name is told once in `every_ms`."""

    def __init__(self, every_ms: int = 10_000) -> None:
        self._every_ms = every_ms
        self._told: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def count(self, name: str, now_ms: int) -> int:
        """How often it happened since it was told, this time included; 0 when it is not to be told now."""
        told_ms, unsaid = self._told.get(name, (now_ms - self._every_ms, 0))
        if now_ms - told_ms < self._every_ms:
            self._told[name] = (told_ms, unsaid + 1)
            return 0
        self._told[name] = (now_ms, 0)
        self._told.move_to_end(name)
        while len(self._told) > TRACKED_MAX:
            self._told.popitem(last=False)
        return unsaid + 1

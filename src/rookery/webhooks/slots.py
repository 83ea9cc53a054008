"""How many calls of webhooks are under way: in all, of one tenant, and of one tenant to one host.

A call needs a slot, and waits for one if there is none; the time of the call begins when it has one. Tenants take turns
at slots that become free, and so do the hosts of a tenant: endpoints that never answer hold up their own tenant's calls
to the same host first, then the tenant's others, and those of other tenants not at all.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Any, Final

TENANT_PART: Final = 5
HOST_PART: Final = 10
"""One tenant has a fifth of all slots at most, and a tenth for one host."""


class CallSlots:
    """See the module's docstring. Connections that are kept for the next call are counted too, as `idle`."""

    def __init__(self, calls_max: int) -> None:
        self.calls_max = calls_max
        self.tenant_max = max(1, calls_max // TENANT_PART)
        self.host_max = max(1, calls_max // HOST_PART)
        self.idle_max = calls_max // 2
        self.idle = 0
        self.used = 0
        self.waiting = 0
        self._tenants: dict[str, int] = {}
        self._hosts: dict[tuple[str, str], int] = {}
        self._lines: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[bool]]]] = OrderedDict()

    async def acquire(self, tenant: str, host: str, waiting: set[asyncio.Future[bool]]) -> bool:
        """Wait for a slot; False when whoever holds `waiting` gave up the future that is in there meanwhile."""
        if self._fits(tenant, host):
            self._take(tenant, host)
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, OrderedDict()).setdefault(host, deque()).append(future)
        waiting.add(future)
        self.waiting += 1
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result():
                self.release(tenant, host)
            raise
        finally:
            waiting.discard(future)
            self.waiting -= 1

    def release(self, tenant: str, host: str) -> None:
        """A call is over: let the next one begin."""
        self.used -= 1
        _less(self._tenants, tenant)
        _less(self._hosts, (tenant, host))
        while self.used < self.calls_max and self._wake():
            pass

    def keep(self) -> bool:
        """Whether one more connection may be kept though nobody uses it; `idle` counts it then."""
        if self.idle >= self.idle_max:
            return False
        self.idle += 1
        return True

    def _fits(self, tenant: str, host: str) -> bool:
        return (
            self.used < self.calls_max
            and self._tenants.get(tenant, 0) < self.tenant_max
            and self._hosts.get((tenant, host), 0) < self.host_max
        )

    def _take(self, tenant: str, host: str) -> None:
        self.used += 1
        self._tenants[tenant] = self._tenants.get(tenant, 0) + 1
        self._hosts[tenant, host] = self._hosts.get((tenant, host), 0) + 1

    def _wake(self) -> bool:
        """Give a slot to the first tenant in line that may have one; whether there was one."""
        for tenant, hosts in list(self._lines.items()):
            for host, line in list(hosts.items()):
                while line and line[0].done():
                    line.popleft()
                if line and self._fits(tenant, host):
                    self._take(tenant, host)
                    line.popleft().set_result(True)
                    hosts.move_to_end(host)
                    self._lines.move_to_end(tenant)
                    if not line:
                        del hosts[host]
                    if not hosts:
                        del self._lines[tenant]
                    return True
                if not line:
                    del hosts[host]
            if not hosts:
                del self._lines[tenant]
        return False


def _less(counts: dict[Any, int], key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]

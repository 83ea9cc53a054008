"""Memory for request bodies that are still arriving, shared fairly.

A body counts from its first byte until its request begins, with what was received of it and not with what its head
declares. There are two pools, so that peers who have not shown who they are cannot keep out those who have: in one
each address has a share, in the other each tenant.
"""

from __future__ import annotations

from typing import Final

BODIES_MAX_BYTES: Final = 256 << 20
"""Bodies of callers whose credential was verified."""

UNVERIFIED_MAX_BYTES: Final = 64 << 20
"""Bodies of everybody else."""


class BodyPool:
    """Bytes in use, in all and by owner. Neither goes beyond its limit."""

    def __init__(self, bytes_max: int, share_max: int) -> None:
        self.bytes_max = bytes_max
        self.share_max = share_max
        self.used = 0
        self._owners: dict[str, int] = {}

    def take(self, owner: str, count: int) -> bool:
        """Use `count` more bytes, if there is room for them."""
        own = self._owners.get(owner, 0) + count
        if self.used + count > self.bytes_max or own > self.share_max:
            return False
        self.used += count
        self._owners[owner] = own
        return True

    def give(self, owner: str, count: int) -> None:
        """Use `count` bytes less."""
        self.used -= count
        own = self._owners.get(owner, 0) - count
        if own > 0:
            self._owners[owner] = own
        else:
            self._owners.pop(owner, None)


def verified_pool(body_max_bytes: int) -> BodyPool:
    """The pool of callers who are known; one tenant may use three quarters of it."""
    most = max(BODIES_MAX_BYTES, 2 * body_max_bytes)
    return BodyPool(most, max(most * 3 // 4, body_max_bytes))


def unverified_pool(body_max_bytes: int) -> BodyPool:
    """The pool of everybody else; one address may use a quarter of it, at least one body."""
    most = max(UNVERIFIED_MAX_BYTES, 2 * body_max_bytes)
    return BodyPool(most, max(most // 4, body_max_bytes))

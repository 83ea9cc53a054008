"""The policies of one tenant, and which of them governs each queue.

Of the policies that match a queue's name, the one with the highest priority governs it, and among equals the one that
was set first. What was found is remembered per queue, so a change looks only at the queues it may concern: those that
the changed policy governed, and those whose governor it outranks.

One tenant must not keep all others waiting. A change is made for as many queues as a slice of steps allows, and goes on
in the next turns (`Shard.turn`) with the rest. A queue made meanwhile is governed by what holds now. While a journal is
read back nothing is matched; when it has been read, all queues are looked at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from rookery.core.policy import Policy
from rookery.errors import LimitExceeded, NotFound

if TYPE_CHECKING:
    from rookery.core.queue import Queue
    from rookery.core.topology import Tenant

SLICE_STEPS: Final = 50_000
"""What is done in one turn, in steps of some 0.1 µs (`Pattern.steps`)."""
RECOVERY_STEPS: Final = 100_000_000
"""What is done before a broker that was restarted answers; the rest is done in slices."""

_QUEUE_STEPS: Final = 10
_MATCH_STEPS: Final = 2
_ADOPT_STEPS: Final = 250


@final
class PolicyTable:
    """See the module's docstring."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self.by_name: dict[str, Policy] = {}
        self.states = 0
        self._ordered: list[Policy] = []
        self._rank: dict[str, int] = {}
        self._governors: dict[str, Policy] = {}
        # the pass that is under way: its queues, the last first, and what changed
        self._rest: list[str] = []
        self._changed: dict[str, None] = {}
        self._changed_faces: dict[str, None] = {}
        self._everything = False
        self._held = False
        self._steps = 0

    # Queues

    def governor(self, queue: str) -> Policy | None:
        """The policy in force for a queue that exists."""
        return self._governors.get(queue)

    def admit(self, queue: str) -> Policy | None:
        """Choose the policy for a queue that comes into being."""
        if self._tenant.shard.recovering or self._tenant.shard.trial:
            return None
        policy = self._find(queue)
        if policy is not None:
            self._governors[queue] = policy
        return policy

    def forget(self, queue: str) -> None:
        self._governors.pop(queue, None)

    # Changes

    def put(self, policy: Policy) -> None:
        """Put a policy in force, in place of one of the same name."""
        old = self.by_name.get(policy.name)
        states = self.states + policy.states - (0 if old is None else old.states)
        if not self._tenant.shard.recovering and not self._tenant.unlimited:
            self._check_limits(policy, old, states)
        self.states = states
        self.by_name[policy.name] = policy
        self._sort()
        self._changed[policy.name] = None
        self._begin()

    def remove(self, name: str) -> None:
        policy = self.by_name.pop(name, None)
        if policy is None:
            raise NotFound(f"no policy {name!r}", argument="policy")
        self.states -= policy.states
        self._sort()
        self._changed[name] = None
        self._begin()

    def face_changed(self, face: str) -> None:
        """The defaults of a face are others now: its queues take them over."""
        if self._tenant.queues:
            self._changed_faces[face] = None
            self._begin()

    def hold(self) -> None:
        """Several changes follow: make them for queues that exist only when `release` is called."""
        self._held = True

    def release(self) -> None:
        self._held = False
        if self._changed or self._changed_faces:
            self._begin()

    def recovered(self, steps: int) -> int:
        """A journal was read back: look at all queues, for at most so many steps. Returns how many are left."""
        self._everything = True
        self._rest = list(self._tenant.queues)
        self.go_on(steps)
        return max(0, steps - self._steps)

    def _check_limits(self, policy: Policy, old: Policy | None, states: int) -> None:
        limits = self._tenant.limits
        if old is None and limits.policies_max and len(self.by_name) >= limits.policies_max:
            raise LimitExceeded(
                f"tenant {self._tenant.name!r} reached its limit of {limits.policies_max} policies (policies_max)",
                argument="policy",
            )
        if limits.policy_states_max and states > max(limits.policy_states_max, self.states):
            raise LimitExceeded(
                f"the patterns of the policies of tenant {self._tenant.name!r} would need {states} states together, "
                f"more than {limits.policy_states_max} (policy_states_max): use simpler patterns, such as ^prefix",
                argument="pattern",
            )

    def _sort(self) -> None:
        # sorting keeps the order of equals
        self._ordered = sorted(self.by_name.values(), key=_order)
        self._rank = {policy.name: rank for rank, policy in enumerate(self._ordered)}

    # Passes

    def _begin(self) -> None:
        """Look at all queues from the start, because of everything that has changed since the last whole pass."""
        if self._held or self._tenant.shard.recovering or self._tenant.shard.trial:
            return
        self._rest = list(self._tenant.queues)
        self._rest.reverse()
        self.go_on(self._tenant.shard.policy_steps)

    def go_on(self, steps: int) -> None:
        """Do a slice of the pass. If that is not all, the shard goes on with it in its next turn."""
        tenant = self._tenant
        adopting: list[Queue] = []
        self._steps = 0
        while self._rest and self._steps < steps:
            name = self._rest.pop()
            queue = tenant.queues.get(name)
            if queue is None:
                continue
            self._steps += _QUEUE_STEPS
            before = self._governors.get(name)
            after = self._find(name) if self._everything else self._decide(name, before)
            if after is None:
                self._governors.pop(name, None)
            else:
                self._governors[name] = after
            if after is not before or tenant.faces[name] in self._changed_faces:
                adopting.append(queue)
                self._steps += _ADOPT_STEPS
        for queue in adopting:
            queue.adopt(tenant.settings_for(queue.name))
        for queue in adopting:
            queue.conform()
        if self._rest:
            if self not in tenant.shard.applying:
                tenant.shard.applying.append(self)
        else:
            self._changed.clear()
            self._changed_faces.clear()
            self._everything = False

    def _decide(self, queue: str, before: Policy | None) -> Policy | None:
        """The policy that governs a queue now, by what has changed."""
        after = before
        if before is not None and before.name in self._changed:
            now = self.by_name.get(before.name)
            if now is None or now.pattern != before.pattern or now.priority != before.priority:
                return self._find(queue)
            after = now
        for name in self._changed:
            policy = self.by_name.get(name)
            if policy is None or (after is not None and self._rank[name] >= self._rank[after.name]):
                continue
            if self._matches(policy, queue):
                after = policy
        return after

    def _find(self, queue: str) -> Policy | None:
        for policy in self._ordered:
            if self._matches(policy, queue):
                return policy
        return None

    def _matches(self, policy: Policy, queue: str) -> bool:
        before = policy.steps
        found = policy.matches(queue)
        self._steps += _MATCH_STEPS + policy.steps - before
        return found


def _order(policy: Policy) -> int:
    return -policy.priority

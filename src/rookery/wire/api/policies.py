"""Policies of a tenant: settings for all queues whose name matches."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rookery.core import rights
from rookery.core.policy import Policy
from rookery.errors import NotFound
from rookery.wire.api.broker import Api
from rookery.wire.api.queue_options import QueueOptions, said
from rookery.wire.api.shapes import Deleted
from rookery.wire.api.types import Name, Regex
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router

PolicyPriority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


class PolicyWanted(msgspec.Struct, forbid_unknown_fields=True):
    """For all queues whose name the regular expression `pattern` is found in; the highest priority counts."""

    pattern: Regex
    settings: QueueOptions
    priority: PolicyPriority = 0


class PolicyShown(msgspec.Struct, omit_defaults=True):
    """`problem` says why a pattern that an earlier version stored matches nothing."""

    name: str
    pattern: str
    priority: int
    settings: dict[str, Any]
    problem: str = ""


class PolicyList(msgspec.Struct):
    policies: list[PolicyShown]


class Policies:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def policies(self, call: Call) -> PolicyList:
        """The policies of the tenant. Like their change, this needs the right to configure everything."""
        return PolicyList([_policy(policy) for policy in self._api.tenant(call).policies.values()])

    def policy(self, call: Call, name: Name) -> PolicyShown:
        """A policy."""
        found = self._api.tenant(call).policies.get(name)
        if found is None:
            raise NotFound(f"no policy {name!r}", argument="policy")
        return _policy(found)

    def set_policy(self, call: Call, name: Name, body: PolicyWanted) -> PolicyShown:
        """Put a policy in force, also for the queues there are."""
        settings = said(body.settings)
        rights.require_dead_letters(call.principal, settings)
        policy = Policy(name, body.pattern, settings, body.priority)
        self._api.tenant(call).set_policy(policy)
        call.lasting()
        return _policy(policy)

    def delete_policy(self, call: Call, name: Name) -> Deleted:
        """End a policy."""
        self._api.tenant(call).delete_policy(name)
        call.lasting()
        return Deleted(name)


def _policy(policy: Policy) -> PolicyShown:
    return PolicyShown(policy.name, policy.pattern, policy.priority, dict(policy.settings), policy.problem)


def add_routes(router: Router, api: Api) -> None:
    routes = Policies(api)
    one = "/api/v1/policies/{name}"
    router.add("GET", "/api/v1/policies", routes.policies, {200: PolicyList}, "policy.show", tag="policies")
    router.add("GET", one, routes.policy, {200: PolicyShown}, "policy.show", tag="policies")
    router.add("PUT", one, routes.set_policy, {200: PolicyShown}, "policy.change", tag="policies")
    router.add("DELETE", one, routes.delete_policy, {200: Deleted}, "policy.change", tag="policies")

"""Tenants with their limits: all of them for admins, one's own for everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec

from rookery.core import definitions, events
from rookery.core.access import DEFAULT_TENANT, Principal
from rookery.core.snapshots import add_to_totals, no_totals, tenant_stats
from rookery.core.topology import LIMITS, Tenant
from rookery.errors import Conflict
from rookery.wire.api.broker import Api
from rookery.wire.api.shapes import Deleted
from rookery.wire.api.types import Many, Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Answer, Router

STATS_QUEUES: Final = 1_000
"""So many queues are summed up in one turn."""

DELETED_QUEUES: Final = 500
"""So many queues of a tenant are deleted in one turn."""

Limit = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class LimitsWanted(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a tenant may have; 0 is no limit. What is not said stays."""

    connections_max: Limit | None = None
    queues_max: Limit | None = None
    exchanges_max: Limit | None = None
    streams_max: Limit | None = None
    bindings_max: Limit | None = None
    subscriptions_max: Limit | None = None
    queue_subscriptions_max: Limit | None = None
    waiting_claims_max: Limit | None = None
    message_bytes_max: Limit | None = None
    memory_bytes_max: Limit | None = None
    transaction_operations_max: Limit | None = None
    transaction_bytes_max: Limit | None = None
    transactions_max: Limit | None = None
    dedup_keys_max: Limit | None = None
    definition_bytes_max: Limit | None = None
    groups_max: Limit | None = None
    producers_max: Limit | None = None
    plans_max: Limit | None = None
    receipts_max: Limit | None = None
    kept_topics_max: Limit | None = None
    policies_max: Limit | None = None
    policy_states_max: Limit | None = None

    def said(self) -> dict[str, object]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


assert LimitsWanted.__struct_fields__ == LIMITS


class TenantWanted(msgspec.Struct, forbid_unknown_fields=True):
    limits: LimitsWanted | None = None


class TenantShown(msgspec.Struct):
    name: str
    limits: dict[str, int]
    stats: dict[str, Any]


class TenantPage(msgspec.Struct):
    tenants: list[TenantShown]
    next: str | None


class LimitsShown(msgspec.Struct):
    tenant: str
    limits: dict[str, int]


class Tenants:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shard = api.shard
        self._access = api.rest.access

    def tenants(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> object:
        """All tenants (admin)."""
        chosen, following = _page(self._shard.tenants, prefix, after, limit)
        tenants = [self._shard.tenants[name] for name in chosen]
        return self._show(call, tenants, lambda shown: TenantPage(shown, following))

    def tenant(self, call: Call, tenant: Name) -> object:
        """A tenant: one's own, or any (admin)."""
        return self._show(call, [tenant_of(self._api, call, tenant)], lambda shown: shown[0])

    def create_tenant(self, call: Call, tenant: Name, body: TenantWanted | None = None) -> object:
        """Make a tenant, with limits if some are said (admin). Of an existing one these change."""
        limits = {} if body is None or body.limits is None else body.limits.said()
        found = self._shard.tenants.get(tenant)
        created = found is None
        if found is None:
            found = self._shard.create_tenant(tenant, limits)
        elif limits:
            found.set_limits(limits)

        def answer(shown: list[TenantShown]) -> Answer:
            call.lasting()
            return Answer(201 if created else 200, shown[0])

        return self._show(call, [found], answer)

    def _show(self, call: Call, tenants: list[Tenant], answer: Callable[[list[TenantShown]], object]) -> object:
        """Answer with what is made of the tenants as they are shown, once their queues are summed up."""
        shown: list[TenantShown] = []

        def work() -> Iterator[None]:
            for tenant in tenants:
                totals = no_totals()
                for queue in list(tenant.queues.values()):
                    add_to_totals(totals, queue)
                    yield
                shown.append(TenantShown(tenant.name, tenant.limits.as_dict(), tenant_stats(tenant, totals)))
                yield

        return self._api.in_steps(call, work(), STATS_QUEUES, lambda: answer(shown))

    def delete_tenant(self, call: Call, tenant: Name) -> object:
        """Delete a tenant with everything in it, and the access to it (admin). A large one is deleted in steps, between
        which others are served; if the server ends meanwhile, delete it again.
        """
        if tenant in (DEFAULT_TENANT, events.SYSTEM):
            raise Conflict(f"tenant {tenant!r} is always there", argument="tenant")
        work = definitions.deleting(self._shard, self._shard.tenant(tenant))

        def answer() -> Deleted:
            call.lasting()
            return Deleted(tenant)

        return self._api.in_steps(call, self._delete(tenant, work), DELETED_QUEUES, answer)

    def _delete(self, tenant: str, work: Iterator[None]) -> Iterator[None]:
        yield from work
        self._access.drop_tenant(tenant)

    def limits(self, call: Call, tenant: Name) -> LimitsShown:
        """What a tenant may have: one's own, or any (admin)."""
        return LimitsShown(tenant, tenant_of(self._api, call, tenant).limits.as_dict())

    def set_limits(self, call: Call, tenant: Name, body: LimitsWanted) -> LimitsShown:
        """Change what a tenant may have (admin)."""
        found = self._shard.tenant(tenant)
        found.set_limits(body.said())
        call.lasting()
        return LimitsShown(tenant, found.limits.as_dict())


def tenant_of(api: Api, call: Call, name: str) -> Tenant:
    """The tenant of that name: the caller's own, or any for an admin."""
    principal: Principal = call.principal
    if name != principal.tenant:
        principal.require_admin()
    return api.shard.tenant(name)


def _page(names: Iterable[str], prefix: str, after: str, limit: int) -> tuple[list[str], str | None]:
    """The first names after one, and the last of them if there are more."""
    found = sorted(name for name in names if name.startswith(prefix) and name > after)
    return found[:limit], found[limit - 1] if len(found) > limit else None


def add_routes(router: Router, api: Api) -> None:
    routes = Tenants(api)
    one = "/api/v1/tenants/{tenant}"
    router.add("GET", "/api/v1/tenants", routes.tenants, {200: TenantPage}, "tenant.list", tag="tenants")
    router.add("GET", one, routes.tenant, {200: TenantShown}, "tenant.show", tag="tenants")
    router.add("PUT", one, routes.create_tenant, {201: TenantShown, 200: TenantShown}, "tenant.change", tag="tenants")
    router.add("DELETE", one, routes.delete_tenant, {200: Deleted}, "tenant.change", tag="tenants")
    router.add("GET", f"{one}/limits", routes.limits, {200: LimitsShown}, "tenant.show", tag="tenants")
    router.add("PUT", f"{one}/limits", routes.set_limits, {200: LimitsShown}, "tenant.change", tag="tenants")

"""Queues, exchanges, bindings and policies of a tenant: list, get, make, delete, with their counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from rookery.core import rights
from rookery.core.access import Principal
from rookery.core.definitions import plain_table, table_of, target_of
from rookery.core.policy import Policy
from rookery.core.queue import Queue
from rookery.core.snapshots import exchange_stats, queue_stats
from rookery.core.stream import Stream
from rookery.core.topology import STANDARD_EXCHANGES, Exchange, Tenant, kind_of
from rookery.errors import AccessRefused, Conflict, InvalidArgument, NotFound
from rookery.wire.api import Api
from rookery.wire.http_call import Call
from rookery.wire.http_routes import Answer, Router, decode_json
from rookery.wire.rest_s2 import QueueOptions
from rookery.wire.rest_types import Many, Name, Regex, Short

Kind = Literal["direct", "fanout", "topic", "headers", "consistent-hash"]
TargetKind = Literal["queue", "stream", "exchange"]
PolicyPriority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]

STEP_ROWS: Final = 1_000
"""So many bindings are looked at in one turn."""

_table = msgspec.json.Decoder(dict[str, Any])


class QueueShown(msgspec.Struct):
    """`said` is what its declarer said, `settings` what holds, `stats` its counts."""

    name: str
    face: str
    policy: str | None
    said: dict[str, Any]
    settings: dict[str, Any]
    stats: dict[str, Any]


class QueuePage(msgspec.Struct):
    """`next` is what to ask for with `after` to go on, null at the end."""

    queues: list[QueueShown]
    next: str | None


class Deleted(msgspec.Struct, omit_defaults=True):
    """`messages` is how many were ready in a queue, or were records of a stream."""

    deleted: str
    messages: int = 0


class ExchangeWanted(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: Short = ""
    arguments: dict[str, Any] = {}


class ExchangeShown(msgspec.Struct):
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None
    arguments: dict[str, Any]
    stats: dict[str, Any]


class ExchangePage(msgspec.Struct):
    exchanges: list[ExchangeShown]
    next: str | None


class Binding(msgspec.Struct, forbid_unknown_fields=True):
    """From exchange `source` to a target, for messages whose key matches."""

    source: Name
    target: Name
    target_kind: TargetKind = "queue"
    key: Short = ""
    arguments: dict[str, Any] = {}


class BindingList(msgspec.Struct):
    """`more` says that there are others beyond the limit."""

    bindings: list[Binding]
    more: bool


class Bound(msgspec.Struct):
    created: bool
    binding: Binding


class Unbound(msgspec.Struct):
    deleted: bool


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


class Topology:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._rest = api.rest

    # Queues

    def queues(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> QueuePage:
        """The queues that the caller may read, by name."""
        tenant = self._api.tenant(call)
        principal: Principal = call.principal
        names = (q.name for q in tenant.queues.values() if q.owner is None and principal.may("read", q.name))
        chosen, following = page(names, prefix, after, limit)
        return QueuePage([_queue(tenant.queues[name]) for name in chosen], following)

    def queue(self, call: Call, name: Name) -> QueueShown:
        """A queue with its settings and counts."""
        return _queue(self._rest.existing(call, name, "read"))

    def delete_queue(self, call: Call, name: Name, if_unused: bool = False, if_empty: bool = False) -> Deleted:
        """Delete a queue and everything in it."""
        queue = self._rest.existing(call, name, "configure")
        ready = queue.tenant.delete_queue(name, if_unused, if_empty)
        call.lasting()
        return Deleted(name, int(ready))

    # Exchanges

    def exchanges(self, call: Call, prefix: str = "", after: str = "", limit: Many = 100) -> ExchangePage:
        """The exchanges that the caller may read, by name."""
        tenant = self._api.tenant(call)
        principal: Principal = call.principal
        names = (name for name in tenant.exchanges if name and principal.may("read", name))
        chosen, following = page(names, prefix, after, limit)
        return ExchangePage([_exchange(tenant.exchanges[name]) for name in chosen], following)

    def exchange(self, call: Call, name: Name) -> ExchangeShown:
        """An exchange with its counts."""
        return _exchange(self._api.tenant(call).exchange(name))

    def declare_exchange(self, call: Call, name: Name, body: ExchangeWanted) -> Answer:
        """Make an exchange. The same again is fine, another of the name a conflict. An alternate needs the right to
        read the exchange and to write to the alternate.
        """
        if body.alternate:
            rights.require(call.principal, "exchange.alternate", "exchange", name)
            rights.require(call.principal, "exchange.alternate", "alternate", body.alternate)
        if name.startswith("amq.") and name not in STANDARD_EXCHANGES:
            raise AccessRefused(f"exchange '{name}': names that begin with 'amq.' are reserved")
        exchange, created = self._api.tenant(call).declare_exchange(
            name,
            body.kind,
            body.durable,
            body.auto_delete,
            body.internal,
            body.alternate,
            table_of(body.arguments),
        )
        call.lasting()
        return Answer(201 if created else 200, _exchange(exchange))

    def delete_exchange(self, call: Call, name: Name, if_unused: bool = False) -> Deleted:
        """Delete an exchange with its bindings."""
        if name in STANDARD_EXCHANGES:
            raise Conflict(f"exchange {name!r} is built in", argument="exchange")
        self._api.tenant(call).delete_exchange(name, if_unused)
        call.lasting()
        return Deleted(name)

    # Bindings

    def bindings(self, call: Call, source: str = "", target: str = "", limit: Many = 1_000) -> object:
        """The bindings whose ends the caller may read, of one source or target if it is named."""
        tenant = self._api.tenant(call)
        sources = [tenant.exchange(source)] if source else [tenant.exchanges[name] for name in sorted(tenant.exchanges)]
        found: list[Binding] = []
        work = _bindings(sources, target, limit, call.principal, found)
        return self._api.in_steps(call, work, STEP_ROWS, lambda: BindingList(found[:limit], len(found) > limit))

    def bind(self, call: Call, body: Binding) -> Answer:
        """Let an exchange route to a queue, a stream or another exchange. Needs the right to read the source and to
        write to the target.
        """
        tenant, target = self._ends(call, body.source, body.target_kind, body.target)
        created = tenant.bind(body.source, target, body.key, table_of(body.arguments))
        call.lasting()
        return Answer(201 if created else 200, Bound(created, body))

    def unbind(
        self,
        call: Call,
        source: Name,
        target: Name,
        target_kind: TargetKind = "queue",
        key: Short = "",
        arguments: str = "",
    ) -> Unbound:
        """Take a binding away; `arguments`, if it has some, as a JSON object."""
        rights.require(call.principal, "binding.change", "source", source)
        table: dict[str, Any] = {}
        if arguments:
            try:
                table = decode_json(_table.decode, arguments.encode())
            except InvalidArgument as error:
                error.argument = "arguments"
                raise
        tenant, end = self._ends(call, source, target_kind, target)
        deleted = tenant.unbind(source, end, key, table_of(table))
        call.lasting()
        return Unbound(deleted)

    def _ends(self, call: Call, source: str, kind: str, name: str) -> tuple[Tenant, Queue | Stream | Exchange]:
        rights.require(call.principal, "binding.change", "source", source)
        rights.require(call.principal, "binding.change", "target", name, kind)
        tenant = self._api.tenant(call)
        target = target_of(tenant, kind, name)
        if isinstance(target, Queue):
            tenant.check_owner(target, None)
        return tenant, target

    # Policies

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
        said = {setting: value for setting, value in msgspec.to_builtins(body.settings).items() if value is not None}
        rights.require_dead_letters(call.principal, said)
        policy = Policy(name, body.pattern, said, body.priority)
        self._api.tenant(call).set_policy(policy)
        call.lasting()
        return _policy(policy)

    def delete_policy(self, call: Call, name: Name) -> Deleted:
        """End a policy."""
        self._api.tenant(call).delete_policy(name)
        call.lasting()
        return Deleted(name)


def page(names: Iterable[str], prefix: str, after: str, limit: int) -> tuple[list[str], str | None]:
    """The first names after one, and the last of them if there are more."""
    found = sorted(name for name in names if name.startswith(prefix) and name > after)
    return found[:limit], found[limit - 1] if len(found) > limit else None


def _queue(queue: Queue) -> QueueShown:
    tenant = queue.tenant
    policy = tenant.policy_for(queue.name)
    return QueueShown(
        queue.name,
        tenant.faces[queue.name],
        None if policy is None else policy.name,
        dict(tenant.said[queue.name]),
        queue.settings.as_dict(),
        queue_stats(queue),
    )


def _exchange(exchange: Exchange) -> ExchangeShown:
    return ExchangeShown(
        exchange.name,
        exchange.kind,
        exchange.durable,
        exchange.auto_delete,
        exchange.internal,
        exchange.alternate or None,
        plain_table(exchange.arguments),
        exchange_stats(exchange),
    )


def _bindings(
    sources: list[Exchange], target: str, limit: int, principal: Principal, found: list[Binding]
) -> Iterator[None]:
    """Find one binding more than the limit, or all; a step for each that is looked at."""
    for exchange in sources:
        if not exchange.name or not principal.may("read", exchange.name):
            continue
        for row in exchange.matcher.rows():
            to = exchange.matcher.target_of(row)
            if isinstance(to, Queue | Stream | Exchange) and target in ("", to.name) and principal.may("read", to.name):
                found.append(Binding(exchange.name, to.name, _kind(to), row.key, plain_table(row.arguments or {})))
                if len(found) > limit:
                    return
            yield


def _kind(target: object) -> TargetKind:
    kind: Any = kind_of(target)
    found: TargetKind = kind
    return found


def _policy(policy: Policy) -> PolicyShown:
    return PolicyShown(policy.name, policy.pattern, policy.priority, dict(policy.settings), policy.problem)


def add_routes(router: Router, api: Api) -> None:
    routes = Topology(api)
    one = "/api/v1/queues/{name}"
    router.add("GET", "/api/v1/queues", routes.queues, {200: QueuePage}, "queue.list", tag="queues")
    router.add("GET", one, routes.queue, {200: QueueShown}, "queue.show", tag="queues")
    router.add("DELETE", one, routes.delete_queue, {200: Deleted}, "queue.delete", tag="queues")
    one = "/api/v1/exchanges/{name}"
    made: Final = {201: ExchangeShown, 200: ExchangeShown}
    router.add("GET", "/api/v1/exchanges", routes.exchanges, {200: ExchangePage}, "exchange.list", tag="exchanges")
    router.add("GET", one, routes.exchange, {200: ExchangeShown}, "exchange.show", tag="exchanges")
    router.add("PUT", one, routes.declare_exchange, made, "exchange.declare", tag="exchanges")
    router.add("DELETE", one, routes.delete_exchange, {200: Deleted}, "exchange.delete", tag="exchanges")
    router.add("GET", "/api/v1/bindings", routes.bindings, {200: BindingList}, "binding.list", tag="exchanges")
    router.add("POST", "/api/v1/bindings", routes.bind, {201: Bound, 200: Bound}, "binding.change", tag="exchanges")
    router.add("DELETE", "/api/v1/bindings", routes.unbind, {200: Unbound}, "binding.change", tag="exchanges")
    one = "/api/v1/policies/{name}"
    router.add("GET", "/api/v1/policies", routes.policies, {200: PolicyList}, "policy.show", tag="policies")
    router.add("GET", one, routes.policy, {200: PolicyShown}, "policy.show", tag="policies")
    router.add("PUT", one, routes.set_policy, {200: PolicyShown}, "policy.change", tag="policies")
    router.add("DELETE", one, routes.delete_policy, {200: Deleted}, "policy.change", tag="policies")

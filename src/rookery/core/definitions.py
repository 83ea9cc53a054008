"""Definitions as a document: what was declared, without the messages, in plain JSON values.

`export` describes a shard or one tenant; `load` makes it so elsewhere, adding to what is there. Loading first does
everything to a copy that holds no messages, and touches the real shard only when that went through: on an error nothing
has changed. Exclusive queues belong to a connection and are no part of a document.

Arguments of exchanges and bindings may hold values that JSON lacks. Such a value becomes an object with one key that
begins with `$` (`{"$bytes": "…"}`), and a table that looks like one is wrapped in `{"$table": …}`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

import msgspec

from rookery.core import streams
from rookery.core.access import Access
from rookery.core.policy import Policy
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.stream import Stream
from rookery.core.topology import STANDARD_EXCHANGES, Exchange, Tenant, kind_of
from rookery.core.webhooks import Webhook
from rookery.errors import InvalidArgument, InvalidType
from rookery.properties import Timestamp

VERSION: Final = 1

_COUNTED: Final = ("queues_max", "exchanges_max", "streams_max", "bindings_max")


class _Exchange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None
    arguments: dict[str, Any] = {}


class _Queue(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    face: str
    settings: dict[str, Any] = {}


class _Stream(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    settings: dict[str, Any] = {}


class _Binding(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    source: str
    target: str
    target_kind: Literal["queue", "stream", "exchange"] = "queue"
    key: str = ""
    arguments: dict[str, Any] = {}


class _Policy(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    pattern: str
    priority: int = 0
    settings: dict[str, Any] = {}


class _Tenant(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    limits: dict[str, Any] = {}
    face_defaults: dict[str, dict[str, Any]] = {}
    policies: list[_Policy] = []
    exchanges: list[_Exchange] = []
    queues: list[_Queue] = []
    streams: list[_Stream] = []
    bindings: list[_Binding] = []
    webhooks: list[Webhook] = []


class _Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    rookery: Literal[1]
    tenants: list[_Tenant]
    access: dict[str, Any] | None = None


def export(of: Shard | Tenant, access: Access | None = None) -> dict[str, Any]:
    """The definitions of a shard or of one tenant, and with `access` all keys and users (digests only).

    Equal definitions give equal documents, but for what has an order of its own: policies, of which the first wins
    among equals, and the bindings of an exchange.
    """
    tenants = [of] if isinstance(of, Tenant) else [of.tenants[name] for name in sorted(of.tenants)]
    document: dict[str, Any] = {"rookery": VERSION, "tenants": [_describe(tenant, False) for tenant in tenants]}
    if access is not None:
        document["access"] = access.export()
    return document


def load(shard: Shard, document: Mapping[str, object], access: Access | None = None) -> None:
    """Let everything in the document exist in the shard; what is there already must agree with it.

    Policies, face defaults and limits of the same name are replaced; nothing is deleted. Keys and users, if the
    document has them and `access` is given, replace all that `access` holds. Loading again changes nothing.
    A tenant whose limits are in the document may have more than they allow: they count from then on.
    """
    try:
        wanted = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        path = str(error).partition(" - at `$.")[2].rstrip("`")
        raise InvalidArgument(str(error), argument=path or "document") from None
    _refuse_repeats("tenants", (tenant.name for tenant in wanted.tenants))
    trial = _copy(shard, [tenant.name for tenant in wanted.tenants])
    for tenant in wanted.tenants:
        _apply(trial, tenant)
    if access is not None and wanted.access is not None:
        Access(bytes).load(wanted.access)
        access.load(wanted.access)
    for tenant in wanted.tenants:
        _apply(shard, tenant)


# Describing


def _describe(tenant: Tenant, exclusive: bool) -> dict[str, Any]:
    queues = [tenant.queues[name] for name in sorted(tenant.queues)]
    exchanges = [tenant.exchanges[name] for name in sorted(tenant.exchanges)]
    return {
        "name": tenant.name,
        "limits": tenant.limits.as_dict(),
        "face_defaults": {face: dict(tenant.face_defaults[face]) for face in sorted(tenant.face_defaults)},
        "policies": [policy.as_dict() for policy in tenant.policies.values()],
        "exchanges": [
            {**exchange.as_dict(), "arguments": plain_table(exchange.arguments)}
            for exchange in exchanges
            if exchange.name and exchange.name not in STANDARD_EXCHANGES
        ],
        "queues": [
            {"name": queue.name, "face": tenant.faces[queue.name], "settings": dict(tenant.said[queue.name])}
            for queue in queues
            if exclusive or queue.owner is None
        ],
        "streams": [{"name": name, "settings": dict(tenant.streams[name].said)} for name in sorted(tenant.streams)],
        "bindings": [row for exchange in exchanges for row in _bindings(exchange, exclusive)],
        "webhooks": [msgspec.to_builtins(hook) for _, hook in sorted(tenant.shard.webhooks.of(tenant.name).items())],
    }


def _bindings(exchange: Exchange, exclusive: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key, arguments, target in exchange.matcher.bindings():
        assert isinstance(target, Queue | Stream | Exchange)
        if isinstance(target, Queue) and target.owner is not None and not exclusive:
            continue
        rows.append(
            {
                "source": exchange.name,
                "target": target.name,
                "target_kind": kind_of(target),
                "key": key,
                "arguments": plain_table(arguments or {}),
            }
        )
    return rows


# Applying


def _copy(shard: Shard, names: list[str]) -> Shard:
    """A shard that answers every declaration as this one would, for the tenants named."""
    copy = Shard(b"", shard.epoch)
    copy.tenants_max = shard.tenants_max - sum(1 for name in shard.tenants if name not in names)
    for name in names:
        tenant = shard.tenants.get(name)
        if tenant is None:
            continue
        _apply(copy, msgspec.convert(_describe(tenant, True), _Tenant))
        for queue in tenant.queues.values():
            copy.tenants[name].queues[queue.name].owner = queue.owner
    return copy


def _apply(shard: Shard, wanted: _Tenant) -> None:
    tenant = shard.tenants.get(wanted.name)
    if tenant is None:
        tenant = shard.create_tenant(wanted.name)
    if wanted.limits:
        # through set_limits, so that whoever makes these changes again in the same order meets no limit either
        tenant.set_limits(wanted.limits)
        counted = {limit: tenant.limits.as_dict()[limit] for limit in _COUNTED}
        tenant.set_limits(dict.fromkeys(_COUNTED, 0))
        _declare(tenant, wanted)
        tenant.set_limits(counted)
    else:
        _declare(tenant, wanted)


def _declare(tenant: Tenant, wanted: _Tenant) -> None:
    """Defaults and policies first, so that queues come into being as they will be."""
    _refuse_repeats("policies", (policy.name for policy in wanted.policies))
    _refuse_repeats("exchanges", (exchange.name for exchange in wanted.exchanges))
    _refuse_repeats("queues", (queue.name for queue in wanted.queues))
    _refuse_repeats("streams", (stream.name for stream in wanted.streams))
    for face, defaults in wanted.face_defaults.items():
        if tenant.face_defaults.get(face) != defaults:
            tenant.set_face_defaults(face, defaults)
    for row in wanted.policies:
        policy = Policy(row.name, row.pattern, row.settings, row.priority)
        old = tenant.policies.get(row.name)
        if old is None or old.as_dict() != policy.as_dict():
            tenant.set_policy(policy)
    for exchange in wanted.exchanges:
        tenant.declare_exchange(
            exchange.name,
            exchange.kind,
            exchange.durable,
            exchange.auto_delete,
            exchange.internal,
            exchange.alternate or "",
            table_of(exchange.arguments),
        )
    for queue in wanted.queues:
        tenant.declare_queue(queue.name, queue.settings, queue.face, exact=True)
    for stream in wanted.streams:
        streams.declare(tenant, stream.name, stream.settings)
    for binding in wanted.bindings:
        target = target_of(tenant, binding.target_kind, binding.target)
        tenant.bind(binding.source, target, binding.key, table_of(binding.arguments))
    _refuse_repeats("webhooks", (hook.id for hook in wanted.webhooks))
    for hook in wanted.webhooks:
        tenant.shard.webhooks.put(tenant.name, hook)


def target_of(tenant: Tenant, kind: str, name: str) -> Queue | Stream | Exchange:
    """What a binding leads to."""
    if kind == "queue":
        return tenant.queue(name)
    return tenant.stream(name) if kind == "stream" else tenant.exchange(name)


def _refuse_repeats(part: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"{part} holds {name!r} more than once", argument=part)
        seen.add(name)


# Values


def plain_table(table: Mapping[str, object]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in table.items()}


def _plain(value: object) -> Any:
    """The value as JSON has it."""
    if isinstance(value, Timestamp):
        return {"$timestamp": int(value)}
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        table = plain_table(value)
        return {"$table": table} if _is_tagged(table) else table
    raise InvalidType(f"an argument of type {type(value).__name__} cannot be written down", argument="arguments")


def table_of(table: Mapping[str, Any]) -> dict[str, object]:
    return {name: _value(value) for name, value in table.items()}


def _value(value: Any) -> object:
    """What `_plain` was given."""
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_tagged(value):
        return table_of(value)
    ((tag, inside),) = value.items()
    try:
        return _tagged(tag, inside)
    except (ValueError, TypeError, InvalidOperation):
        raise InvalidArgument(f"{tag} cannot hold {inside!r}", argument="arguments") from None


def _tagged(tag: str, inside: Any) -> object:
    if tag == "$table" and isinstance(inside, dict):
        return table_of(inside)
    if tag == "$timestamp" and isinstance(inside, int):
        return Timestamp(inside)
    if tag == "$bytes":
        return base64.b64decode(inside, validate=True)
    if tag == "$float":
        return float(inside)
    if tag == "$decimal":
        return Decimal(inside)
    if tag == "$datetime":
        return datetime.fromisoformat(inside)
    raise ValueError(tag)


def _is_tagged(table: Mapping[str, Any]) -> bool:
    return len(table) == 1 and next(iter(table)).startswith("$")

"""Definitions as a document: what was declared, without the messages, in plain JSON values.

`export` describes a shard or one tenant; `load` makes it so elsewhere, adding to what is there. Loading first does
everything to a copy of what the document names, without messages, and touches the real shard only when that went
through: on an error nothing has changed. Exclusive queues belong to a connection and are no part of a document.

A large document is loaded in steps (`Loading`), with other turns between them. Meanwhile nobody else changes the
definitions of its tenants, so that what went through on the copy goes through on the shard. A large export is made in
steps too (`head` and `sections`), and locks nothing: what is deleted before its turn comes is left out.

Arguments of exchanges and bindings may hold values that JSON lacks. Such a value becomes an object with one key that
begins with `$` (`{"$bytes": "…"}`), and a table that looks like one is wrapped in `{"$table": …}`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from rookery.core import rights, streams
from rookery.core.access import Access, Principal
from rookery.core.bindings import Row
from rookery.core.patterns import Pattern, PatternError
from rookery.core.policy import Policy
from rookery.core.queue import Queue
from rookery.core.shard import Shard
from rookery.core.stream import Stream
from rookery.core.topology import STANDARD_EXCHANGES, Exchange, Tenant, kind_of
from rookery.core.webhooks import Webhook
from rookery.errors import AccessRefused, InvalidArgument, InvalidType, Locked
from rookery.format.fieldtables import DEPTH_MAX
from rookery.format.properties import Timestamp

VERSION: Final = 1

DELETED_MESSAGES: Final = 100
"""So many messages are deleted in the time that a queue takes."""

ARGUMENTS_DEPTH_MAX: Final = 2 * DEPTH_MAX
"""How deep arguments nest as JSON: as deep as AMQP's tables, each of which may have a tag around it."""

ARGUMENTS_MAX: Final = 10_000
"""How many values the arguments or settings of one row of a document have, nested ones included."""
PATTERN_COST: Final = 20
VALUES_PER_ROW: Final = 50
"""A row with a pattern to compile takes as long as so many others, one with so many values as one more."""

_COUNTED: Final = (
    ("queues_max", "queues", "queue"),
    ("exchanges_max", "exchanges", "exchange"),
    ("streams_max", "streams", "stream"),
    ("bindings_max", "bindings", "key"),
    ("definition_bytes_max", "bytes of definitions", "definition_bytes_max"),
    ("policies_max", "policies", "policy"),
    ("policy_states_max", "states of the patterns of policies", "pattern"),
)


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


class Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What an export gave; loading adds to what is there."""

    rookery: Literal[1]
    tenants: list[_Tenant]
    access: dict[str, Any] | None = None

    def rows(self) -> int:
        """How many things it declares."""
        return sum(
            len(t.policies) + len(t.exchanges) + len(t.queues) + len(t.streams) + len(t.bindings) + len(t.webhooks)
            for t in self.tenants
        )


def export(of: Shard | Tenant, access: Access | None = None) -> dict[str, Any]:
    """The definitions of a shard or of one tenant, and with `access` all keys and users (digests only).

    Equal definitions give equal documents, but for what has an order of its own: policies, of which the first wins
    among equals, and the bindings of an exchange.
    """
    tenants = [of] if isinstance(of, Tenant) else [of.tenants[name] for name in sorted(of.tenants)]
    document: dict[str, Any] = {"rookery": VERSION, "tenants": [_describe(tenant) for tenant in tenants]}
    if access is not None:
        document["access"] = access.export()
    return document


def load(shard: Shard, document: Mapping[str, object], access: Access | None = None) -> None:
    """Let everything in the document exist in the shard; what is there already must agree with it.

    Policies, face defaults and limits of the same name are replaced; nothing is deleted. Keys and users, if the
    document has them and `access` is given, replace all that `access` holds. Loading again changes nothing.
    A tenant whose limits are in the document may have more than they allow: they count from then on.
    """
    Loading(shard, parse(document), access).finish()


def restore(shard: Shard, document: Mapping[str, object], access: Access | None = None) -> None:
    """Let what was exported from a shard, perhaps by an earlier version, exist in one that has no tenants.

    It is not tried on a copy before. Patterns that this version refuses are kept: policies with them match nothing, and
    rights with them deny.
    """
    wanted = parse(document)
    if access is not None and wanted.access is not None:
        access.load(wanted.access, stored=True)
    for tenant in wanted.tenants:
        for _ in _apply(shard, tenant):
            pass


def parse(document: Mapping[str, object]) -> Document:
    """A document whose parts all have their names and types."""
    try:
        wanted = msgspec.convert(document, Document)
    except msgspec.ValidationError as error:
        path = str(error).partition(" - at `$.")[2].rstrip("`")
        raise InvalidArgument(str(error), argument=path or "document") from None
    check(wanted)
    return wanted


def check(wanted: Document) -> None:
    """Refuse a document that has a tenant twice."""
    _refuse_repeats("tenants", (tenant.name for tenant in wanted.tenants))


class Loading:
    """A document on its way into a shard: call `step` until it returns True, or `finish` at once.

    On an error, which `step` raises, nothing has changed. Between steps the definitions of the tenants are locked.
    """

    def __init__(self, shard: Shard, wanted: Document, access: Access | None = None) -> None:
        self._shard = shard
        self._wanted = wanted
        self._access = access
        self._work = self._all()
        self._locked: list[Tenant] = []

    def step(self, rows: int) -> bool:
        """Do so many rows more, of which laborious ones count as several; whether all is done."""
        for tenant in self._locked:
            tenant.loading = False
        done = True
        try:
            for cost in self._work:
                rows -= cost
                if rows <= 0:
                    done = False
                    break
        except BaseException:
            self._locked = []
            raise
        if done:
            self._locked = []
        for tenant in self._locked:
            tenant.loading = True
        return done

    def steps(self, rows: int) -> Iterator[None]:
        """All of it, so many rows at a time."""
        while not self.step(rows):
            yield

    def finish(self) -> None:
        for _ in self.steps(1 << 30):
            pass

    def _all(self) -> Iterator[int]:
        shard, wanted = self._shard, self._wanted
        names = [tenant.name for tenant in wanted.tenants]
        found = [shard.tenants[name] for name in names if name in shard.tenants]
        for tenant in found:
            if tenant.loading:
                raise Locked(
                    f"definitions of tenant {tenant.name!r} are being loaded or deleted; try again", argument="tenants"
                )
        self._locked = found
        yield from _refuse_large(wanted)
        yield from _refuse_unusable(shard, wanted)
        trial = Shard(b"", shard.epoch)
        trial.trial = True
        trial.tenants_max = shard.tenants_max - sum(1 for name in shard.tenants if name not in names)
        for row in wanted.tenants:
            yield from self._try(trial, row)
        if self._access is not None and wanted.access is not None:
            Access(bytes).load(wanted.access)
            self._access.load(wanted.access)
        for row in wanted.tenants:
            yield from _apply(shard, row)

    def _try(self, trial: Shard, wanted: _Tenant) -> Iterator[int]:
        """Do it to a copy, and see whether there is room for what it adds."""
        tenant = self._shard.tenants.get(wanted.name)
        if tenant is not None:
            yield from _copy(trial, tenant, wanted)
        copy = trial.tenants.get(wanted.name)
        before = _NOTHING if copy is None else _counts(copy)
        yield from _apply(trial, wanted, unlimited=True)
        copy = trial.tenants[wanted.name]
        if not wanted.limits:
            real = Tenant(wanted.name, trial) if tenant is None else tenant
            there = _NOTHING if tenant is None else _counts(tenant)
            for (limit, things, argument), old, new, now in zip(_COUNTED, before, _counts(copy), there, strict=True):
                most = real.limits.as_dict()[limit]
                if most and new > old and now + new - old > most:
                    raise real.too_many(things, limit, argument)


def deleting(shard: Shard, tenant: Tenant) -> Iterator[None]:
    """Delete a tenant with everything in it: a step for each queue or stream, and more for one with many messages.

    Between steps its definitions are locked. What was deleted is gone also when the last step is never made.
    """
    tenant.check_unlocked()
    for queue in list(tenant.queues.values()):
        held = int(queue.ready + queue.delayed + queue.leased)
        tenant.delete(queue, "deleted")
        yield from _locked(tenant, 1 + held // DELETED_MESSAGES)
    for stream in list(tenant.streams.values()):
        held = sum(len(partition.files) for partition in stream.partitions)
        streams.delete(tenant, stream.name)
        yield from _locked(tenant, 1 + held)
    shard.delete_tenant(tenant.name)


def _locked(tenant: Tenant, steps: int) -> Iterator[None]:
    for _ in range(steps):
        tenant.loading = True
        yield
        tenant.loading = False


def check_rights(principal: Principal, document: Document) -> Iterator[None]:
    """Raise AccessRefused unless the principal may declare, one by one, all that is in the document: a row a time,
    because to match names with the patterns of the rights takes a while.
    """
    for tenant in document.tenants:
        for defaults in tenant.face_defaults.values():
            rights.require_dead_letters(principal, defaults)
        for policy in tenant.policies:
            rights.require_dead_letters(principal, policy.settings)
            yield
        for queue in tenant.queues:
            rights.require_dead_letter(principal, queue.name, queue.settings)
            yield
        for exchange in tenant.exchanges:
            if exchange.alternate:
                rights.require(principal, "exchange.alternate", "exchange", exchange.name)
                rights.require(principal, "exchange.alternate", "alternate", exchange.alternate)
            yield
        for binding in tenant.bindings:
            rights.require(principal, "binding.change", "source", binding.source)
            rights.require(principal, "binding.change", "target", binding.target, binding.target_kind)
            yield
        for hook in tenant.webhooks:
            if hook.private:
                raise AccessRefused("webhooks whose endpoints may be private are loaded by admins")
            role = "stream" if hook.kind == "stream" else "queue"
            rights.require(principal, f"{role}.webhook", role, hook.target if role == "stream" else hook.queue)
            yield


def _refuse_large(wanted: Document) -> Iterator[int]:
    """Raise if arguments or settings have more values than ARGUMENTS_MAX."""
    for tenant in wanted.tenants:
        tables: list[Mapping[str, Any]] = [exchange.arguments for exchange in tenant.exchanges]
        tables += [queue.settings for queue in tenant.queues]
        tables += [stream.settings for stream in tenant.streams]
        tables += [policy.settings for policy in tenant.policies]
        tables += [binding.arguments for binding in tenant.bindings]
        tables += tenant.face_defaults.values()
        for table in tables:
            check_count(table)
            yield _cost(table)


def _refuse_unusable(shard: Shard, wanted: Document) -> Iterator[int]:
    """Raise if patterns of new policies cannot be used, and name all of them."""
    found: list[str] = []
    for tenant in wanted.tenants:
        there = shard.tenants.get(tenant.name)
        known = {} if there is None else there.policies
        if there is not None and not tenant.limits:
            most = there.limits.policies_max
            new = {row.name for row in tenant.policies} - known.keys()
            if most and new and len(known) + len(new) > most:
                raise there.too_many("policies", "policies_max", "policy")
        for row in tenant.policies:
            old = known.get(row.name)
            if old is not None and old.pattern == row.pattern:
                continue
            try:
                Pattern(row.pattern)
            except PatternError as error:
                found.append(f"policy {row.name!r} of tenant {tenant.name!r}: {error}")
            yield PATTERN_COST
    if found:
        raise InvalidArgument(f"these patterns cannot be used: {'; '.join(found)}", argument="pattern")


def problems(shard: Shard, access: Access | None = None) -> list[dict[str, str]]:
    """Patterns that an earlier version stored and this one refuses: what has them, and why they cannot be used."""
    found = [
        {"kind": "policy", "name": policy.name, "tenant": tenant.name, "reason": policy.problem}
        for tenant in shard.tenants.values()
        for policy in tenant.policies.values()
        if policy.problem
    ]
    return found + ([] if access is None else access.problems())


# Describing


def _describe(tenant: Tenant) -> dict[str, Any]:
    rows = {name: [row for row in part if row is not None] for name, part in sections(tenant).items()}
    return {**head(tenant), **rows}


def head(tenant: Tenant) -> dict[str, Any]:
    """What a document says of a tenant before its sections."""
    return {
        "name": tenant.name,
        "limits": tenant.limits.as_dict(),
        "face_defaults": {face: dict(tenant.face_defaults[face]) for face in sorted(tenant.face_defaults)},
    }


def sections(tenant: Tenant) -> dict[str, Iterator[dict[str, Any] | None]]:
    """The lists of a document for what the tenant has now, row by row; None stands for what has been deleted since.

    The rows may be taken over many turns. They can be loaded whatever happens in between: a binding whose ends are not
    among the rows was deleted with them.
    """
    exchanges = [tenant.exchanges[name] for name in sorted(tenant.exchanges)]
    queues = [tenant.queues[name] for name in sorted(tenant.queues)]
    streams = [tenant.streams[name] for name in sorted(tenant.streams)]
    bindings = [(exchange, exchange.matcher.rows()) for exchange in exchanges]
    hooks = [hook for _, hook in sorted(tenant.shard.webhooks.of(tenant.name).items())]
    return {
        "policies": iter([policy.as_dict() for policy in tenant.policies.values()]),
        "exchanges": _exchanges(tenant, exchanges),
        "queues": _queues(tenant, queues),
        "streams": _streams(tenant, streams),
        "bindings": _bindings(tenant, bindings),
        "webhooks": (msgspec.to_builtins(hook) for hook in hooks),
    }


def _exchanges(tenant: Tenant, exchanges: list[Exchange]) -> Iterator[dict[str, Any] | None]:
    for exchange in exchanges:
        name = exchange.name
        if not name or name in STANDARD_EXCHANGES or tenant.exchanges.get(name) is not exchange:
            yield None
        else:
            yield {**exchange.as_dict(), "arguments": plain_table(exchange.arguments)}


def _queues(tenant: Tenant, queues: list[Queue]) -> Iterator[dict[str, Any] | None]:
    for queue in queues:
        name = queue.name
        if queue.owner is not None or tenant.queues.get(name) is not queue:
            yield None
        else:
            yield {"name": name, "face": tenant.faces[name], "settings": dict(tenant.said[name])}


def _streams(tenant: Tenant, streams: list[Stream]) -> Iterator[dict[str, Any] | None]:
    for stream in streams:
        if tenant.streams.get(stream.name) is not stream:
            yield None
        else:
            yield {"name": stream.name, "settings": dict(stream.said)}


def _bindings(tenant: Tenant, bindings: list[tuple[Exchange, list[Row]]]) -> Iterator[dict[str, Any] | None]:
    for exchange, rows in bindings:
        for row in rows:
            target = exchange.matcher.target_of(row)
            if target is None or tenant.exchanges.get(exchange.name) is not exchange:
                yield None
                continue
            assert isinstance(target, Queue | Stream | Exchange)
            if isinstance(target, Queue) and target.owner is not None:
                yield None
                continue
            yield {
                "source": exchange.name,
                "target": target.name,
                "target_kind": kind_of(target),
                "key": row.key,
                "arguments": plain_table(row.arguments or {}),
            }


# Applying


_NOTHING: Final = (0,) * len(_COUNTED)


def _counts(tenant: Tenant) -> tuple[int, ...]:
    """What a tenant has of each of `_COUNTED`."""
    return (
        len(tenant.queues),
        len(tenant.exchanges),
        len(tenant.streams),
        tenant.bindings,
        int(tenant.definition_bytes),
        len(tenant.policies),
        tenant.policy_table.states,
    )


def _copy(trial: Shard, tenant: Tenant, wanted: _Tenant) -> Iterator[int]:
    """A tenant that answers every declaration of the document as this one would: with all that it names."""
    copy = trial.create_tenant(tenant.name)
    copy.set_limits(dict.fromkeys([limit for limit, _, _ in _COUNTED], 0))
    for face, defaults in tenant.face_defaults.items():
        copy.set_face_defaults(face, defaults)
    for policy in tenant.policies.values():
        copy.set_policy(policy)
        yield 1
    ends: dict[str, set[str]] = {"queue": set(), "stream": set(), "exchange": set()}
    ends["queue"].update(queue.name for queue in wanted.queues)
    # a queue and a stream cannot have the same name
    ends["queue"].update(stream.name for stream in wanted.streams)
    ends["stream"].update(ends["queue"])
    ends["exchange"].update(exchange.name for exchange in wanted.exchanges)
    for binding in wanted.bindings:
        ends["exchange"].add(binding.source)
        ends[binding.target_kind].add(binding.target)
    for name in sorted(ends["exchange"]):
        exchange = tenant.exchanges.get(name)
        if exchange is not None and name not in copy.exchanges:
            copy.declare_exchange(
                name,
                exchange.kind,
                exchange.durable,
                exchange.auto_delete,
                exchange.internal,
                exchange.alternate,
                exchange.arguments,
            )
            yield 1
    for name in sorted(ends["queue"]):
        queue = tenant.queues.get(name)
        if queue is not None:
            copy.declare_queue(name, tenant.said[name], tenant.faces[name])[0].owner = queue.owner
            yield 1
    for name in sorted(ends["stream"]):
        stream = tenant.streams.get(name)
        if stream is not None:
            streams.declare(copy, name, stream.said)
            yield 1
    yield from _copy_bindings(copy, tenant, wanted)


def _copy_bindings(copy: Tenant, tenant: Tenant, wanted: _Tenant) -> Iterator[int]:
    """Of the bindings, those that the document has too: they do not count as new."""
    for row in wanted.bindings:
        source = tenant.exchanges.get(row.source)
        target: Queue | Stream | Exchange | None
        if row.target_kind == "queue":
            target = tenant.queues.get(row.target)
        elif row.target_kind == "stream":
            target = tenant.streams.get(row.target)
        else:
            target = tenant.exchanges.get(row.target)
        arguments = table_of(row.arguments)
        if source is not None and target is not None and source.matcher.has(row.key, arguments, target):
            copy.bind(row.source, target_of(copy, row.target_kind, row.target), row.key, arguments)
        yield _cost(row.arguments)


def _apply(shard: Shard, wanted: _Tenant, unlimited: bool = False) -> Iterator[int]:
    tenant = shard.tenants.get(wanted.name)
    if tenant is None:
        tenant = shard.create_tenant(wanted.name)
    if wanted.limits:
        tenant.set_limits(wanted.limits)
    unlimited = unlimited or bool(wanted.limits)
    tenant.policy_table.hold()
    try:
        tenant.unlimited = unlimited
        for cost in _declare(tenant, wanted):
            tenant.unlimited = False
            yield cost
            tenant.unlimited = unlimited
    finally:
        tenant.unlimited = False
        tenant.policy_table.release()


def _declare(tenant: Tenant, wanted: _Tenant) -> Iterator[int]:
    """Defaults and policies first, so that queues come into being as they will be."""
    _refuse_repeats("policies", (policy.name for policy in wanted.policies))
    _refuse_repeats("exchanges", (exchange.name for exchange in wanted.exchanges))
    _refuse_repeats("queues", (queue.name for queue in wanted.queues))
    _refuse_repeats("streams", (stream.name for stream in wanted.streams))
    for face, defaults in wanted.face_defaults.items():
        if tenant.face_defaults.get(face) != defaults:
            tenant.set_face_defaults(face, defaults)
    for row in wanted.policies:
        # which patterns are refused was decided before: of what exists, none
        policy = Policy(row.name, row.pattern, row.settings, row.priority, stored=True)
        old = tenant.policies.get(row.name)
        if old is None or old.as_dict() != policy.as_dict():
            tenant.set_policy(policy)
        yield PATTERN_COST
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
        yield _cost(exchange.arguments)
    for queue in wanted.queues:
        check_depth(queue.settings)
        tenant.declare_queue(queue.name, queue.settings, queue.face, exact=True)
        yield _cost(queue.settings)
    for stream in wanted.streams:
        streams.declare(tenant, stream.name, stream.settings)
        yield 1
    for binding in wanted.bindings:
        target = target_of(tenant, binding.target_kind, binding.target)
        tenant.bind(binding.source, target, binding.key, table_of(binding.arguments))
        yield _cost(binding.arguments)
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


def _cost(table: Mapping[str, Any]) -> int:
    """How many rows one with this table counts as."""
    return 1 + _count(table, ARGUMENTS_MAX) // VALUES_PER_ROW if table else 1


def check_count(table: Mapping[str, Any]) -> None:
    """Refuse more values than ARGUMENTS_MAX."""
    if table and _count(table, ARGUMENTS_MAX + 1) > ARGUMENTS_MAX:
        raise InvalidArgument(f"there are more than {ARGUMENTS_MAX} values", argument="arguments")


def _count(table: Mapping[str, Any], most: int) -> int:
    """How many values there are, those of nested lists and objects included; it does not count on beyond `most`."""
    level: list[object] = [table]
    found = 0
    while level and found < most:
        each = level.pop()
        if isinstance(each, Mapping):
            found += len(each)
            level.extend(islice(each.values(), most))
        elif isinstance(each, list):
            found += len(each)
            level.extend(islice(each, most))
    return found


def check_depth(table: Mapping[str, Any]) -> None:
    """Refuse values with lists and objects deeper in one another than ARGUMENTS_DEPTH_MAX."""
    level: list[object] = [table]
    for _ in range(ARGUMENTS_DEPTH_MAX + 1):
        inner: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        if not inner:
            return
        level = inner
    raise InvalidArgument(f"lists and objects nest deeper than {ARGUMENTS_DEPTH_MAX}", argument="arguments")


def table_of(table: Mapping[str, Any]) -> dict[str, object]:
    """Arguments as they were before `plain_table`. InvalidArgument for a value that it would not write."""
    check_depth(table)
    return _table(table)


def _table(table: Mapping[str, Any]) -> dict[str, object]:
    return {name: _value(value) for name, value in table.items()}


def _value(value: Any) -> object:
    """What `_plain` was given."""
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_tagged(value):
        return _table(value)
    ((tag, inside),) = value.items()
    try:
        return _tagged(tag, inside)
    except (ValueError, TypeError, OverflowError, InvalidOperation):
        raise InvalidArgument(f"{tag} cannot hold {str(inside)[:100]!r}", argument="arguments") from None


def _tagged(tag: str, inside: Any) -> object:
    if tag == "$table" and isinstance(inside, dict):
        return _table(inside)
    if tag == "$timestamp" and isinstance(inside, int):
        return Timestamp(inside)
    if tag == "$bytes":
        return base64.b64decode(inside, validate=True)
    if tag == "$float":
        return float(inside)
    if tag == "$decimal":
        number = Decimal(inside)
        # to compare a signalling NaN raises
        return Decimal("NaN") if number.is_snan() else number
    if tag == "$datetime":
        return datetime.fromisoformat(inside)
    raise ValueError(tag)


def _is_tagged(table: Mapping[str, Any]) -> bool:
    return len(table) == 1 and next(iter(table)).startswith("$")

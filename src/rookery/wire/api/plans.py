"""Plans: which files and which part of the tail hold a range of a stream, kept as long as the plan is renewed.

Whoever scans the sealed files itself (Spark) asks for a plan, renews it while it reads, and releases it. A plan keeps
files only: what it calls the tail is read as records, whether it was sealed meanwhile or not.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from rookery.core import rights, streams
from rookery.core.stream import Partition
from rookery.errors import InvalidArgument, NotFound
from rookery.wire.api.broker import Api
from rookery.wire.api.shapes import PartitionIndex
from rookery.wire.api.types import Name, Offset
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Router

LEASE_MS: Final = 60_000

PlanLeaseMs = Annotated[int, msgspec.Meta(ge=1_000, le=86_400_000)]


class Planning(msgspec.Struct, forbid_unknown_fields=True):
    """The whole stream; or one partition, and of it offsets `from` up to, not including, `to`. With an `id`, of the
    stream that had it, not of one that was made anew under its name.
    """

    partition: PartitionIndex | None = None
    from_: Offset | None = msgspec.field(default=None, name="from")
    to: Offset | None = None
    lease_ms: PlanLeaseMs = LEASE_MS
    id: str = ""


class PlannedFile(msgspec.Struct):
    """Of the file at `path`, below the root, offsets `from` up to `to`; it has those from `first` to `last`."""

    path: str
    from_: int = msgspec.field(name="from")
    to: int
    first: int
    last: int
    bytes: int


class PlannedRange(msgspec.Struct):
    from_: int = msgspec.field(name="from")
    to: int


class PlannedPartition(msgspec.Struct):
    """`tail` is what stands in no file yet, null when there is nothing of it."""

    partition: int
    from_: int = msgspec.field(name="from")
    to: int
    files: list[PlannedFile]
    tail: PlannedRange | None


class Plan(msgspec.Struct):
    """`root` is the directory of the files, null where there are none; the plan holds for `lease_ms`."""

    plan: str
    tenant: str
    stream: str
    root: str | None
    lease_ms: int
    partitions: list[PlannedPartition]


class PlanRenewal(msgspec.Struct, forbid_unknown_fields=True):
    lease_ms: PlanLeaseMs = LEASE_MS


class PlanHeld(msgspec.Struct):
    plan: str
    status: str


class Plans:
    """The routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        # the plans of each tenant: the stream of each, and until when on the monotonic clock
        self._held: dict[str, dict[str, tuple[str, int]]] = {}

    def make(self, call: Call, name: Name, body: Planning | None = None) -> Plan:
        """Where the records of a range are; the files named stay until the plan is released or not renewed."""
        wanted = body or Planning()
        stream = self._api.stream(call, name, "read")
        streams.check_id(stream, wanted.id)
        if wanted.partition is None and (wanted.from_ is not None or wanted.to is not None):
            raise InvalidArgument("a range is one of a partition: say which", argument="partition")
        chosen = list(stream.partitions) if wanted.partition is None else [stream.partition(wanted.partition)]
        parts = [_planned(each, wanted.from_, wanted.to) for each in chosen]
        plan = f"plan-{self._api.random_text()}"
        tenant = self._api.tenant(call)
        most = tenant.limits.plans_max
        if most and len(self._living(tenant.name)) >= most:
            raise tenant.too_many("plans", "plans_max", "plan")
        self._hold(call, plan, name, wanted.lease_ms)
        paths = frozenset(file.path for part in parts for file in part.files)
        self._api.archive.lease(plan, paths, wanted.lease_ms)
        return Plan(plan, stream.tenant.name, name, self._api.archive.root, wanted.lease_ms, parts)

    def renew(self, call: Call, plan: str, body: PlanRenewal | None = None) -> PlanHeld:
        """Keep the files of a plan for longer."""
        stream = self._check(call, plan)
        lease_ms = (body or PlanRenewal()).lease_ms
        self._api.archive.renew(plan, lease_ms)
        self._hold(call, plan, stream, lease_ms)
        return PlanHeld(plan, "renewed")

    def release(self, call: Call, plan: str) -> PlanHeld:
        """Have done with a plan."""
        self._check(call, plan)
        self._api.archive.release(plan)
        del self._held[call.principal.tenant][plan]
        return PlanHeld(plan, "released")

    def _hold(self, call: Call, plan: str, stream: str, lease_ms: int) -> None:
        until = int(self._api.shard.mono_ms) + lease_ms
        self._held.setdefault(call.principal.tenant, {})[plan] = (stream, until)

    def _check(self, call: Call, plan: str) -> str:
        """The stream of a plan, if the caller may hold it."""
        held = self._living(call.principal.tenant).get(plan)
        stream = "" if held is None else held[0]
        if stream == rights.EVENTS:
            call.principal.require_admin()
        else:
            rights.require(call.principal, "stream.plan", "stream", stream)
        if held is None:
            raise NotFound(f"plan {plan!r} has ended", argument="plan")
        return stream

    def _living(self, tenant: str) -> dict[str, tuple[str, int]]:
        """The plans of a tenant that are still held."""
        now = int(self._api.shard.mono_ms)
        living = {plan: held for plan, held in self._held.pop(tenant, {}).items() if held[1] > now}
        if living:
            self._held[tenant] = living
        return living


def _planned(partition: Partition, start: int | None, stop: int | None) -> PlannedPartition:
    first = int(partition.first) if start is None else start
    last = int(partition.visible) if stop is None else stop
    partition.check(first)
    partition.check(last)
    if last < first:
        raise InvalidArgument("to is before from", argument="to")
    files = []
    at = first
    while at < min(last, int(partition.tail)):
        file = partition.file_of(at)
        assert file is not None, "sealed offsets are in files"
        after = min(last, int(file.last) + 1)
        files.append(PlannedFile(file.path, at, after, int(file.first), int(file.last), int(file.bytes)))
        at = after
    tail = PlannedRange(at, last) if at < last else None
    return PlannedPartition(int(partition.index), first, last, files, tail)


def add_routes(router: Router, api: Api) -> None:
    routes = Plans(api)
    more: dict[str, Any] = {"tag": "streams"}
    router.add("POST", "/api/v1/streams/{name}/plan", routes.make, {201: Plan}, "stream.plan", **more)
    router.add("POST", "/api/v1/plans/{plan}/renew", routes.renew, {200: PlanHeld}, "stream.plan", **more)
    router.add("DELETE", "/api/v1/plans/{plan}", routes.release, {200: PlanHeld}, "stream.plan", **more)

"""Cuts: a queue read repeatably, cut by cut, for consumers that may have to read the same again."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from rookery.core.cuts import CUT_MAX
from rookery.core.entries import Lease
from rookery.sealed.columns import check_columns
from rookery.wire.api.broker import ARROW, Api
from rookery.wire.api.handling import Handling, packed_content, wants_packed
from rookery.wire.api.records import pour, wants_arrow
from rookery.wire.api.shapes import Leased
from rookery.wire.api.types import Name
from rookery.wire.http.call import Call
from rookery.wire.http.routes import Content, Router

CutNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
CutIndex = Annotated[int, msgspec.Meta(ge=0, le=CUT_MAX)]
PAGE: Final = 1_000


class Cutting(msgspec.Struct, forbid_unknown_fields=True):
    """The cut that follows cut `after`: the same again if it is there, else one of up to `max` messages."""

    consumer: Name
    after: CutNumber = 0
    max: Annotated[int, msgspec.Meta(ge=1, le=CUT_MAX)] = 1_000


class CutMade(msgspec.Struct):
    """`cut` is `after`, and `messages` 0, when there was nothing to be had."""

    consumer: str
    cut: int
    messages: int


class CutConsumer(msgspec.Struct):
    """`cuts` has the open ones and how many messages each has."""

    consumer: str
    acked: int
    cuts: dict[str, int]


class CutList(msgspec.Struct):
    consumers: list[CutConsumer]


class CutMessages(msgspec.Struct):
    """`count` is how many there are in all; `next` where to go on, null at the end."""

    consumer: str
    cut: int
    count: int
    next: int | None
    messages: list[Leased]


class CutAck(msgspec.Struct, forbid_unknown_fields=True):
    """Every cut up to this one is done with."""

    upto: CutNumber


class CutAcked(msgspec.Struct):
    consumer: str
    acked: int
    messages: int


class CutsReleased(msgspec.Struct):
    consumer: str
    released: int


class CutRoutes:
    """The routes; all need the right to read the queue."""

    def __init__(self, api: Api, messages: Handling) -> None:
        self._api = api
        self._cuts = api.shard.cuts
        self._messages = messages

    def cut(self, call: Call, name: Name, body: Cutting) -> object:
        """Take the next cut of a queue, or the same again. Nobody else gets what is in it."""
        queue = self._api.rest.existing(call, name, "read")
        number, leases = self._cuts.cut(queue, body.consumer, body.after, body.max)
        return self._api.after(call, lambda: CutMade(body.consumer, number, len(leases)))

    def all(self, call: Call, name: Name) -> object:
        """Who cuts a queue, and the cuts that are open."""
        queue = self._api.rest.existing(call, name, "read")
        rows = self._cuts.describe(queue)
        shown = CutList(
            [CutConsumer(row["consumer"], row["acked"], {str(n): c for n, c in row["cuts"].items()}) for row in rows]
        )
        return self._api.after(call, lambda: shown)

    def read(
        self,
        call: Call,
        name: Name,
        consumer: Name,
        cut: CutNumber,
        from_: CutIndex = 0,
        limit: Annotated[int, msgspec.Meta(ge=1, le=CUT_MAX)] | None = None,
        columns: str = "",
    ) -> object:
        """The messages of a cut, in the same order each time: as JSON up to 1,000 from index `from` on, or as an Arrow
        stream where `Accept` asks for it; there `offset` is the index in the cut.
        """
        queue = self._api.rest.existing(call, name, "read")
        leases = self._cuts.read(queue, consumer, cut)
        names = check_columns([column for column in columns.split(",") if column])
        if wants_arrow(call):
            stop = len(leases) if limit is None else min(len(leases), from_ + limit)
            return self._arrow(call, name, leases[from_:stop], from_, names)
        stop = from_ + min(limit or PAGE, PAGE)
        if wants_packed(call):
            every = [self._messages.pack(lease.entry, int(lease.attempt)) for lease in leases[from_:stop]]
            return self._api.after(call, lambda: packed_content(every))
        shown = [self._messages.show(lease.entry, int(lease.attempt)) for lease in leases[from_:stop]]
        following = stop if stop < len(leases) else None
        return self._api.after(call, lambda: CutMessages(consumer, cut, len(leases), following, shown))

    def _arrow(self, call: Call, queue: str, leases: list[Lease], first: int, columns: list[str]) -> object:
        if call.method == "HEAD":
            return Content(b"", ARROW)
        archive = self._api.archive
        tenant = self._api.tenant(call).name
        found = [
            (first + index, int(lease.entry.enqueued_ms), int(lease.attempt), lease.entry.message)
            for index, lease in enumerate(leases)
        ]

        def begin(_: None) -> object:
            call.lasting()
            return pour(self._api, call, archive.table(tenant, queue, found, columns), lambda: None)

        return self._api.later(call, archive.load, begin)

    def ack(self, call: Call, name: Name, consumer: Name, body: CutAck) -> CutAcked:
        """Settle every cut up to one; again is fine."""
        queue = self._api.rest.existing(call, name, "read")
        count = self._cuts.ack(queue, consumer, body.upto)
        call.lasting()
        return CutAcked(consumer, self._cuts.of(queue)[consumer].acked, count)

    def release(self, call: Call, name: Name, consumer: Name) -> CutsReleased:
        """Give back what is in a consumer's cuts, and forget the consumer."""
        queue = self._api.rest.existing(call, name, "read")
        count = self._cuts.release(queue, consumer)
        call.lasting()
        return CutsReleased(consumer, count)


def add_routes(router: Router, api: Api, messages: Handling) -> None:
    routes = CutRoutes(api, messages)
    root = "/api/v1/queues/{name}/cuts"
    more: dict[str, Any] = {"tag": "cuts"}
    router.add("POST", root, routes.cut, {200: CutMade}, "queue.cut", **more)
    router.add("GET", root, routes.all, {200: CutList}, "queue.cut", **more)
    router.add("GET", f"{root}/{{consumer}}/{{cut}}", routes.read, {200: (CutMessages, bytes)}, "queue.cut", **more)
    router.add("POST", f"{root}/{{consumer}}/ack", routes.ack, {200: CutAcked}, "queue.cut", **more)
    router.add("DELETE", f"{root}/{{consumer}}", routes.release, {200: CutsReleased}, "queue.cut", **more)


__all__ = ["CutRoutes", "add_routes"]
